//! What a program does for others: procedures that it provides.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tidewater_protocol::argument::type_name;
use tidewater_protocol::message::{Answer, Argument, ArgumentValue, Call, CallFailed};
use tidewater_protocol::{Code, ColumnType, RemoteId};

/// So many calls are done at once.
const HANDS: usize = 8;

/// How long a thread waits for something to do before it ends.
const REST: Duration = Duration::from_secs(10);

/// What is done for a call.
pub(crate) type Handler =
    Arc<dyn Fn(&ProvidedCall) -> Result<Answer, CallFailed> + Send + Sync + 'static>;

/// Where what comes of a call goes.
pub(crate) type Reply = Box<dyn FnOnce(Result<Answer, CallFailed>) + Send>;

/// A call that a provider is to do.
#[derive(Clone, Debug)]
pub struct ProvidedCall {
    call: Call,
    until: Option<Instant>,
}

impl ProvidedCall {
    /// The procedure.
    pub fn procedure(&self) -> &str {
        &self.call.procedure
    }

    /// The user who calls.
    pub fn user(&self) -> &str {
        &self.call.user
    }

    /// The remote that calls, if it is one.
    pub fn remote_id(&self) -> Option<RemoteId> {
        RemoteId::from_slice(&self.call.remote_id)
    }

    /// All arguments.
    pub fn arguments(&self) -> &[Argument] {
        &self.call.arguments
    }

    /// An argument; `None` where it is NULL.
    pub fn argument(&self, name: &str) -> Option<&ArgumentValue> {
        let mut arguments = self.call.arguments.iter();
        arguments.find(|it| it.name == name)?.given.as_ref()
    }

    /// An argument that is a whole number.
    ///
    /// # Errors
    /// It is none.
    pub fn integer(&self, name: &str) -> Result<i64, CallFailed> {
        match self.argument(name) {
            Some(ArgumentValue::Integer(integer)) => Ok(*integer),
            _ => Err(is_no(name, ColumnType::Integer)),
        }
    }

    /// An argument that is text, or is written as text.
    ///
    /// # Errors
    /// It is none.
    pub fn text(&self, name: &str) -> Result<&str, CallFailed> {
        match self.argument(name) {
            Some(ArgumentValue::Text(text) | ArgumentValue::Json(text)) => Ok(text),
            _ => Err(is_no(name, ColumnType::Text)),
        }
    }

    /// The time that is left; `None` if nobody has said how much.
    pub fn left(&self) -> Option<Duration> {
        let until = self.until?;
        Some(until.saturating_duration_since(Instant::now()))
    }
}

fn is_no(name: &str, column_type: ColumnType) -> CallFailed {
    CallFailed::argument(name, format_args!("is no {}", type_name(column_type)))
}

/// The procedures that one link provides, and the threads that do them.
#[derive(Default)]
pub(crate) struct Providers {
    state: Arc<ProviderPool>,
}

#[derive(Default)]
struct ProviderPool {
    state: Mutex<ProviderState>,
    ready: Condvar,
}

#[derive(Default)]
struct ProviderState {
    handlers: HashMap<String, Handler>,
    tasks: VecDeque<ProviderTask>,
    threads: usize,
    idle: usize,
}

struct ProviderTask {
    id: u64,
    called: ProvidedCall,
    handler: Handler,
    /// `None`: what comes of it is of no interest.
    reply: Option<Reply>,
}

impl Providers {
    pub(crate) fn add(&self, name: &str, handler: Handler) {
        let mut state = self.state.lock();
        state.handlers.insert(name.to_owned(), handler);
    }

    pub(crate) fn remove(&self, name: &str) {
        self.state.lock().handlers.remove(name);
    }

    /// The server has a call for this side.
    pub(crate) fn called(&self, id: u64, call: Call, deadline_ms: u32, reply: Option<Reply>) {
        let mut state = self.state.lock();
        let handler = match state.handlers.get(&call.procedure) {
            Some(handler) => handler.clone(),
            None => Arc::new(|called: &ProvidedCall| Err(unknown(called))),
        };
        let within = (deadline_ms > 0).then(|| Duration::from_millis(deadline_ms.into()));
        state.tasks.push_back(ProviderTask {
            id,
            called: ProvidedCall {
                call,
                until: within.map(|it| Instant::now() + it),
            },
            handler,
            reply,
        });
        if state.idle == 0 && state.threads < HANDS {
            state.threads += 1;
            let hands = self.state.clone();
            let thread = thread::Builder::new().name("tidewater-provider".into());
            if thread.spawn(move || hands.work()).is_err() {
                state.threads -= 1;
            }
        }
        drop(state);
        self.state.ready.notify_one();
    }

    /// Nobody waits for a call any longer: what was not begun is not begun.
    pub(crate) fn cancelled(&self, id: u64) {
        let mut state = self.state.lock();
        state.tasks.retain(|it| it.id != id);
    }
}

fn unknown(called: &ProvidedCall) -> CallFailed {
    CallFailed::new(
        Code::NoSuchProcedure,
        format!("{:?} is not provided here", called.procedure()),
        "call again: somebody else may provide it",
    )
}

impl ProviderPool {
    fn lock(&self) -> MutexGuard<'_, ProviderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some(task) = self.next() {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                (task.handler)(&task.called)
            }));
            let outcome = done.unwrap_or_else(|_| {
                Err(CallFailed::new(
                    Code::ProcedureFailed,
                    "the provider has panicked",
                    "see the provider's own log",
                ))
            });
            if let Some(reply) = task.reply {
                reply(outcome);
            }
        }
    }

    fn next(&self) -> Option<ProviderTask> {
        let mut state = self.lock();
        loop {
            if let Some(task) = state.tasks.pop_front() {
                return Some(task);
            }
            state.idle += 1;
            let waited = self.ready.wait_timeout(state, REST);
            let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.idle -= 1;
            if timeout.timed_out() && state.tasks.is_empty() {
                state.threads -= 1;
                return None;
            }
        }
    }
}
