//! Calls: from whoever calls to whoever does it, and back.
//!
//! Owns the procedures that are declared, who provides them, and the way of one call: its name,
//! its arguments, its deadline, its outcome. What a connection says is the affair of
//! [`crate::call_channel`], what a statement does the database's.

mod call_lane;
mod declared;
mod providers;
mod stream;
mod unawaited;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use tidewater_centre::engine::callable_procedure::CallableProcedure as Script;
use tidewater_centre::procedure::{AnswerSink, CallOutcome, Cancel, OnceKeyState, ProcedureCall};
use tidewater_centre::records::UserClaims;
use tidewater_centre::{Caller, Centre, CentreError};
use tidewater_protocol::argument::{coerce, given, type_name};
use tidewater_protocol::message::{Answer, Argument, Call, CallFailed, Returns};
use tidewater_protocol::{Code, Value, json};
use tidewater_server_config::{
    Config, ProcedureConfig, ProcedureProvider, ProcedureWork, ServerLimits,
};
use tidewater_server_jobs::connector::Connection;
use tidewater_server_jobs::database_task::DatabaseTask;
use tidewater_server_jobs::environment::Clock;
use tidewater_server_jobs::fair_queue::FairQueue;
use tidewater_server_jobs::fault::Fault;
use tidewater_server_jobs::memory::{HeldMemory, MemoryBudget};
use tidewater_server_jobs::worker_pool::{WorkerCount, WorkerPool};

use self::call_lane::{CallTask, HeldAnswer, Pace, run_calls};
use self::declared::read_rule;
pub use self::declared::{DeclaredProcedures, check};
use self::providers::Providers;
use self::stream::StreamingCall;
pub use self::stream::{AnswerPart, AnswerStart, AnswerStream};
use self::unawaited::UnawaitedCalls;
use crate::call_address::CallAddress;
use crate::call_outcome::{self as outcome, CallResult};
use crate::nats_client::NatsClient;
use crate::outgoing_calls::{OutgoingCalls, ProviderGone};

/// How often a call that may be repeated goes to another provider.
const TRIES: usize = 3;

/// What came of a call is kept so long after its end at most, and clocks of servers differ by less.
const LATE: Duration = Duration::from_secs(5);

/// How long it may take to find out who may.
const RULE_TIMEOUT: Duration = Duration::from_secs(10);

/// The procedures of a server and those who provide them.
pub struct Calls {
    procedures: RwLock<Arc<HashMap<String, Arc<Procedure>>>>,
    providers: Providers,
    /// Calls for which nobody waits.
    pub unawaited: UnawaitedCalls,
    /// Calls under a key that providers are at, by user.
    running: Mutex<HashSet<Running>>,
    /// Of rules, by their text.
    rules: Mutex<HashMap<String, Arc<Script>>>,
    centre: Arc<dyn Centre>,
    /// Where statements wait for a worker.
    lane: Arc<FairQueue<CallTask>>,
    clock: Arc<dyn Clock>,
    budget: MemoryBudget,
    /// The most bytes of an answer in one piece, and of one that goes on.
    answer_bytes: usize,
    answer_stream_bytes: u64,
    /// The way to providers at other servers, if there is one.
    nats: Option<NatsClient>,
}

/// What calls need of the server.
pub struct CallServices<'a> {
    /// Where statements are run.
    pub pool: &'a WorkerPool,
    /// How many workers there are, and how large answers may be.
    pub limits: &'a ServerLimits,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Memory for arguments and answers.
    pub budget: MemoryBudget,
    /// The way to providers at other servers, if there is one.
    pub nats: Option<NatsClient>,
}

/// A user, and the key of a call.
type Running = (String, [u8; 16]);

/// As long as it is there, the call is under way.
struct CallInProgress<'a> {
    calls: &'a Calls,
    call: Running,
}

impl Drop for CallInProgress<'_> {
    fn drop(&mut self) {
        self.calls.running().remove(&self.call);
    }
}

/// A declared procedure.
pub struct Procedure {
    /// How it is declared.
    pub config: ProcedureConfig,
    /// What the database knows of it: its statement, or who may call. `None` if it has nothing to
    /// do with it.
    script: Option<Arc<Script>>,
    pace: Arc<Pace>,
}

/// A call that can be done, as far as can be told without the database.
pub struct PreparedCall {
    procedure: Arc<Procedure>,
    caller: Arc<Caller>,
    arguments: Vec<Value>,
    to: CallAddress,
    key: Option<[u8; 16]>,
    deadline: Instant,
}

impl Calls {
    /// Begins with what is declared, and starts the workers that run statements.
    pub fn start(
        centre: Arc<dyn Centre>,
        declared: DeclaredProcedures,
        services: CallServices<'_>,
    ) -> Calls {
        let CallServices {
            pool,
            limits,
            clock,
            budget,
            nats,
        } = services;
        let count = WorkerCount::new(limits.call_workers, &limits.tried_workers);
        let (of_lane, memory) = (clock.clone(), budget.clone());
        let lane = pool.start_lane("calls", count, move |lane| {
            run_calls(lane, of_lane.clone(), memory.clone())
        });
        let DeclaredProcedures { procedures, rules } = declared;
        Calls {
            procedures: RwLock::new(Arc::new(procedures)),
            providers: Providers::default(),
            unawaited: UnawaitedCalls::default(),
            running: Mutex::default(),
            rules: Mutex::new(rules),
            centre,
            lane,
            clock,
            budget,
            answer_bytes: limits.answer_bytes,
            answer_stream_bytes: limits.answer_stream_bytes,
            nats,
        }
    }

    fn rules(&self) -> MutexGuard<'_, HashMap<String, Arc<Script>>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A query of a rule, as the database has read it.
    async fn rule(&self, query: &str) -> Result<Arc<Script>, CallFailed> {
        let known = self.rules().get(query).cloned();
        if let Some(script) = known {
            return Ok(script);
        }
        let read = read_rule(&*self.centre, query).await;
        let script = read.map_err(|error| outcome::of_fault(Fault::from(error)))?;
        self.rules().insert(query.to_owned(), script.clone());
        Ok(script)
    }

    /// Goes by these declarations from now on. Who may not provide any longer what he provided does
    /// so no more, until he may again.
    ///
    /// # Errors
    /// One of them cannot be run: those before stay.
    pub async fn declare(&self, config: &Config) -> Result<(), CentreError> {
        let declared = DeclaredProcedures::read(&*self.centre, config).await?;
        let DeclaredProcedures { procedures, rules } = declared;
        let current = self.procedures.write();
        *current.unwrap_or_else(PoisonError::into_inner) = Arc::new(procedures);
        *self.rules() = rules;
        self.providers
            .settle(|name, who| self.may_provide(name, who).is_ok());
        Ok(())
    }

    /// All procedures.
    pub fn procedures(&self) -> Arc<HashMap<String, Arc<Procedure>>> {
        let current = self.procedures.read();
        current.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn find(&self, name: &str) -> Result<Arc<Procedure>, CallFailed> {
        let procedures = self.procedures();
        procedures.get(name).cloned().ok_or_else(|| {
            CallFailed::new(
                Code::NoSuchProcedure,
                format!("there is no procedure {name:?}"),
                "the server's operator declares it as a [[procedure]]",
            )
        })
    }

    /// Asks whoever provides a procedure for the server's own sake: nobody else has to be allowed
    /// to call it. Gives the answer as JSON.
    ///
    /// # Errors
    /// Nothing came of it.
    pub async fn ask_provider(
        &self,
        name: &str,
        caller: &Arc<Caller>,
        request: String,
        deadline: Instant,
    ) -> Result<serde_json::Value, CallFailed> {
        let asked = PreparedCall {
            procedure: self.find(name)?,
            caller: caller.clone(),
            arguments: vec![Value::Text(request)],
            to: CallAddress::Anybody,
            key: None,
            deadline,
        };
        let answer = Answer::from(asked.ask(self).await?);
        json::answer(&answer).map_err(|_| outcome::internal("an answer that cannot be read"))
    }

    /// Looks at a call that has come. Without a deadline it has what its procedure is given.
    pub fn prepare(
        &self,
        caller: &Arc<Caller>,
        call: Call,
        deadline: Option<Duration>,
    ) -> Result<PreparedCall, CallFailed> {
        let procedure = self.find(&call.procedure)?;
        let to = CallAddress::parse(&call.to)?;
        if let (ProcedureWork::Sql { .. }, CallAddress::User(_) | CallAddress::Remote(_)) =
            (&procedure.config.work, &to)
        {
            let name = &procedure.config.name;
            return Err(CallFailed::new(
                Code::BadArgument,
                format!("the procedure {name:?} is done by the server, and not by {to}"),
                "leave out whom it is for: only procedures of providers can be done by one of them",
            ));
        }
        let own = procedure.config.timeout;
        let deadline = Instant::now() + deadline.map_or(own, |it| it.min(own));
        Ok(PreparedCall {
            key: key(&call)?,
            arguments: procedure.arguments(&call.arguments)?,
            procedure,
            caller: caller.clone(),
            to,
            deadline,
        })
    }

    /// A connection provides a procedure from now on.
    pub fn provide(&self, name: &str, post: &Arc<OutgoingCalls>) -> Result<(), CallFailed> {
        self.may_provide(name, post.who())?;
        self.providers.enter(name, post);
        Ok(())
    }

    fn may_provide(&self, name: &str, who: &Caller) -> Result<(), CallFailed> {
        let procedure = self.find(name)?;
        match &procedure.config.work {
            ProcedureWork::Provided(ProcedureProvider::By(users)) if users.contains(&who.user) => {}
            ProcedureWork::Provided(ProcedureProvider::OnRemotes) if who.remote_id.is_some() => {}
            ProcedureWork::Sql { .. } => {
                return Err(CallFailed::new(
                    Code::NameTaken,
                    format!("the procedure {name:?} is done by the server itself"),
                    "choose another name, or have the server's operator write provided_by \
                     instead of sql",
                ));
            }
            ProcedureWork::Provided(_) => {
                return Err(CallFailed::new(
                    Code::NameTaken,
                    format!("{} may not provide the procedure {name:?}", who.user),
                    "the server's operator names who provides it: provided_by, or on_remotes",
                ));
            }
        }
        Ok(())
    }

    fn running(&self) -> MutexGuard<'_, HashSet<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a provider is at a call.
    fn enter(&self, user: &str, key: [u8; 16]) -> Result<CallInProgress<'_>, CallFailed> {
        let call = (user.to_owned(), key);
        if self.running().insert(call.clone()) {
            return Ok(CallInProgress { calls: self, call });
        }
        Err(under_way())
    }

    /// A connection provides a procedure no longer.
    pub fn withdraw(&self, name: &str, post: &Arc<OutgoingCalls>) {
        self.providers.leave(name, post);
    }

    /// The one of this server that is to do a call.
    pub fn choose(
        &self,
        name: &str,
        to: &CallAddress,
    ) -> Result<Option<Arc<OutgoingCalls>>, CallFailed> {
        self.providers.choose(name, to)
    }

    /// Ends when [`Self::changes`] has some. Safe to drop; one caller at a time.
    pub async fn provided(&self) {
        self.providers.changed().await;
    }

    /// The subjects of other servers that have changed, and whether somebody provides there now.
    pub fn changes(&self) -> Vec<(String, bool)> {
        self.providers.changes()
    }

    /// A connection is gone.
    pub fn gone(&self, post: &Arc<OutgoingCalls>) {
        self.providers.leave_all(post);
        post.close();
    }

    /// Notes that a call is about to be done under a key, unless it was before.
    pub(crate) async fn begin_once(
        &self,
        user: &str,
        key: [u8; 16],
        procedure: &str,
    ) -> Result<OnceKeyState, CallFailed> {
        let (reply, answer) = oneshot::channel();
        let (clock, procedure) = (self.clock.clone(), procedure.to_owned());
        let begun = (user.to_owned(), key, procedure);
        let task = DatabaseTask::new(move |connection: &mut Connection| {
            Box::pin(async move {
                // Whoever does not wait any longer asks no provider.
                if reply.is_closed() {
                    return;
                }
                let now_ms = clock.now_ms();
                let result = connection
                    .ask_once(&begun, |worker, (user, key, procedure)| {
                        worker.begin_once(user, *key, procedure, now_ms)
                    })
                    .await;
                let unheard = reply.send(result).err();
                if matches!(unheard, Some(Ok(OnceKeyState::New))) {
                    // Whoever was to begin has gone, and has begun nothing. If the centre is away
                    // now, the next one finds it unfinished.
                    let _ = connection
                        .ask_once(&begun, |worker, (user, key, _)| {
                            worker.forget_once(user, *key)
                        })
                        .await;
                }
            })
        });
        self.lane.submit(task.for_user(user).into());
        outcome::of_worker(answer.await)
    }

    /// Whether a query yields a row for whoever asks.
    pub async fn is_allowed(&self, query: &str, caller: &Caller) -> Result<bool, CallFailed> {
        let script = self.rule(query).await?;
        let (reply, answer) = oneshot::channel();
        self.lane.submit(CallTask::Run {
            call: ProcedureCall {
                procedure: script.clone(),
                caller: caller.clone(),
                claims: UserClaims::default(),
                arguments: Vec::new(),
                once: None,
                timeout: RULE_TIMEOUT,
                max_bytes: self.answer_bytes,
                sink: None,
                cancel: Cancel::default(),
            },
            pace: Arc::default(),
            reply,
        });
        let done = outcome::of_worker(answer.await)?;
        match done.ok_or_else(|| outcome::no_room(true))? {
            (CallOutcome::NotAllowed, _) => Ok(false),
            done => outcome::of_script("allow", script.returns(), done).map(|_| true),
        }
    }
}

impl Procedure {
    /// The arguments in the order of their declaration.
    fn arguments(&self, arguments: &[Argument]) -> Result<Vec<Value>, CallFailed> {
        let declared = &self.config.arguments;
        for (index, argument) in arguments.iter().enumerate() {
            let name = &argument.name;
            if !declared.iter().any(|it| it.name == *name) {
                let names: Vec<&str> = declared.iter().map(|it| it.name.as_str()).collect();
                return Err(CallFailed {
                    hint: match names.is_empty() {
                        true => "it takes none".into(),
                        false => format!("it takes {}", names.join(", ")),
                    },
                    ..CallFailed::argument(name, "is not one of the procedure's")
                });
            }
            if arguments[..index].iter().any(|it| it.name == *name) {
                return Err(CallFailed::argument(name, "is given twice"));
            }
        }
        let values = declared.iter().map(|declared| {
            let argument = arguments.iter().find(|it| it.name == declared.name);
            let name = type_name(declared.column_type);
            match argument.and_then(|it| it.given.as_ref()) {
                Some(given) => coerce(declared.column_type, given).ok_or_else(|| {
                    CallFailed::argument(&declared.name, format_args!("is no {name}"))
                }),
                None if declared.optional => Ok(Value::Null),
                None => Err(CallFailed::argument(
                    &declared.name,
                    format_args!("is missing: it has to be a {name}"),
                )),
            }
        });
        values.collect()
    }
}

impl PreparedCall {
    /// Whether it goes on when its caller has gone: what a provider makes of a call under a key is
    /// kept, for the caller to ask for it again.
    pub fn outlives_its_caller(&self) -> bool {
        self.key.is_some() && matches!(self.procedure.config.work, ProcedureWork::Provided(_))
    }

    /// Does it, within its deadline. To drop it is to cancel it.
    pub async fn run(self, calls: &Calls) -> CallResult {
        let (name, deadline) = (self.procedure.config.name.clone(), self.deadline);
        let done = timeout_at(deadline, self.go(calls)).await;
        done.unwrap_or_else(|_| Err(too_late(&name)))
    }

    /// The same; an answer of many rows begins before all of it is read. The deadline is that of its
    /// beginning, and of the statement: the caller takes it as fast as it likes.
    pub async fn run_streaming(self, calls: &Calls) -> Result<AnswerStart, CallFailed> {
        let streams = self.procedure.script.as_ref().is_some_and(|script| {
            !script.is_provided() && script.is_read_only() && script.returns() == Returns::Rows
        });
        if !streams {
            return self.run(calls).await.map(AnswerStart::Whole);
        }
        let (name, deadline) = (self.procedure.config.name.clone(), self.deadline);
        let begun = timeout_at(deadline, self.stream(calls)).await;
        begun.unwrap_or_else(|_| Err(too_late(&name)))
    }

    /// Has the database run the statement, and answer while it reads.
    async fn stream(self, calls: &Calls) -> Result<AnswerStart, CallFailed> {
        let Some(script) = &self.procedure.script else {
            return Err(outcome::internal("a procedure without a statement"));
        };
        let beginning = StreamingCall::new(&calls.budget, calls.answer_stream_bytes);
        let reply = self.submit(calls, script, Some(beginning.sink()));
        let name = &self.procedure.config.name;
        beginning.begun(name, script.returns(), reply).await
    }

    async fn go(self, calls: &Calls) -> CallResult {
        match &self.procedure.config.work {
            ProcedureWork::Sql { .. } => self.run_script(calls).await,
            ProcedureWork::Provided(_) => {
                if self.procedure.script.is_some() {
                    self.run_script(calls).await?;
                }
                self.ask(calls).await
            }
        }
    }

    /// Has the database run the statement, or tell whether the caller may call.
    async fn run_script(&self, calls: &Calls) -> CallResult {
        let Some(script) = &self.procedure.script else {
            return Err(outcome::internal("a procedure without a statement"));
        };
        let answer = self.submit(calls, script, None);
        let is_repeatable = self.key.is_some() || script.is_read_only();
        let done = outcome::of_worker(answer.await)?;
        let done = done.ok_or_else(|| outcome::no_room(is_repeatable))?;
        outcome::of_script(&self.procedure.config.name, script.returns(), done)
    }

    /// Hands the statement to a worker.
    fn submit(
        &self,
        calls: &Calls,
        script: &Arc<Script>,
        sink: Option<Arc<dyn AnswerSink>>,
    ) -> oneshot::Receiver<Result<HeldAnswer, CentreError>> {
        let (reply, answer) = oneshot::channel();
        calls.lane.submit(CallTask::Run {
            call: ProcedureCall {
                procedure: script.clone(),
                caller: Caller::clone(&self.caller),
                claims: UserClaims::default(),
                arguments: self.arguments.clone(),
                once: self.key.filter(|_| !script.is_provided()),
                timeout: self.deadline.saturating_duration_since(Instant::now()),
                max_bytes: calls.answer_bytes,
                sink,
                cancel: Cancel::default(),
            },
            pace: self.procedure.pace.clone(),
            reply,
        });
        answer
    }

    /// Has a provider do it.
    async fn ask(&self, calls: &Calls) -> CallResult {
        let config = &self.procedure.config;
        let call = self.for_provider();
        let user = &self.caller.user;
        let under_way = self.key.map(|key| calls.enter(user, key));
        let _under_way = under_way.transpose()?;
        let mut begun = false;
        for _ in 0..TRIES {
            let near = calls.choose(&config.name, &self.to)?;
            let outside = calls.nats.as_ref().filter(|it| it.is_connected());
            if near.is_none() && outside.is_none() {
                break;
            }
            if let Some(key) = self.key
                && !std::mem::replace(&mut begun, true)
                && let Some(outcome) = self.begin(calls, key).await?
            {
                return outcome;
            }
            let asked = match (near, outside) {
                (Some(post), _) => post.ask(&call, self.deadline).await.map(Some),
                (None, Some(nats)) => {
                    let asked = {
                        let room = (&calls.budget, calls.answer_bytes);
                        nats.ask(call.clone(), &self.to, self.deadline, room)
                    };
                    asked.await
                }
                (None, None) => Ok(None),
            };
            let outcome = match asked {
                Ok(Some(outcome)) => outcome,
                Ok(None) => break,
                Err(ProviderGone) if config.idempotent => continue,
                Err(ProviderGone) => Err(CallFailed::new(
                    Code::ProviderGone,
                    format!("whoever was doing {:?} has gone", config.name),
                    "it may have been done or not: find out before you call again",
                )),
            };
            if let Some(key) = self.key {
                self.finish(calls, key, Some(&outcome)).await?;
            }
            return outcome;
        }
        // Another server may be at what can be done again.
        if let Some(key) = self.key.filter(|_| begun && !config.idempotent) {
            self.finish(calls, key, None).await?;
        }
        let message = match &self.to {
            CallAddress::Anybody => format!("nobody provides {:?} at the moment", config.name),
            _ => format!("{:?} is not provided by who is called", config.name),
        };
        Err(CallFailed {
            retry_after_ms: 1_000,
            ..CallFailed::new(Code::NoProvider, message, "try again when it is connected")
        })
    }

    fn for_provider(&self) -> Call {
        let config = &self.procedure.config;
        let declared = config.arguments.iter().zip(&self.arguments);
        let arguments = declared.map(|(declared, value)| {
            let given = given(declared.column_type, value);
            Argument::new(declared.name.as_str(), given)
        });
        let remote_id = self.caller.remote_id;
        Call {
            procedure: config.name.clone(),
            arguments: arguments.collect(),
            user: self.caller.user.clone(),
            remote_id: remote_id.map_or_else(Bytes::new, |id| Bytes::copy_from_slice(&id.0)),
            key: self
                .key
                .map_or_else(Bytes::new, |it| Bytes::copy_from_slice(&it)),
            ..Call::default()
        }
    }

    /// Notes that a provider is about to be asked. What came of it, if that is known already.
    async fn begin(&self, calls: &Calls, key: [u8; 16]) -> Result<Option<CallResult>, CallFailed> {
        match calls
            .begin_once(&self.caller.user, key, &self.procedure.config.name)
            .await?
        {
            OnceKeyState::New if self.deadline <= Instant::now() => {
                // Nobody is asked any more: nothing was begun.
                self.finish(calls, key, None).await?;
                Ok(None)
            }
            OnceKeyState::New => Ok(None),
            OnceKeyState::Unfinished { .. } if self.procedure.config.idempotent => Ok(None),
            OnceKeyState::Unfinished { begun_ms } if self.may_run(calls, begun_ms) => {
                Err(under_way())
            }
            OnceKeyState::Unfinished { .. } => Err(CallFailed::new(
                Code::OutcomeUnknown,
                "the call was begun before, and nobody knows what came of it",
                "find out whether it was done; if not, call with another key",
            )),
            OnceKeyState::Done(bytes) => outcome::decode(&bytes).map(Some),
            OnceKeyState::KeyTaken => Err(outcome::key_taken()),
        }
    }

    /// Whether a provider may still be at what was begun then, asked by another server.
    fn may_run(&self, calls: &Calls, begun_ms: i64) -> bool {
        let given = self.procedure.config.timeout + LATE;
        let age_ms = calls.clock.now_ms().abs_diff(begun_ms);
        u128::from(age_ms) < given.as_millis()
    }

    /// Keeps what a provider made of it; that nobody was there is not kept.
    async fn finish(
        &self,
        calls: &Calls,
        key: [u8; 16],
        outcome: Option<&CallResult>,
    ) -> Result<(), CallFailed> {
        let (user, outcome) = (self.caller.user.clone(), outcome.map(outcome::encode));
        let kept = (user.clone(), key, outcome);
        let finished =
            calls
                .lane
                .ask_once(&user, kept, |worker, (user, key, outcome)| match outcome {
                    Some(outcome) => worker.finish_once(user, *key, outcome.clone()),
                    None => worker.forget_once(user, *key),
                });
        finished.await.map_err(outcome::of_fault)
    }
}

fn too_late(procedure: &str) -> CallFailed {
    CallFailed::new(
        Code::DeadlineExceeded,
        format!("the procedure {procedure:?} took longer than it was given"),
        "give it more time, or have the server's operator raise its timeout",
    )
}

fn under_way() -> CallFailed {
    CallFailed {
        hint: "call again later under the same key, to hear what came of it".into(),
        ..outcome::busy("the call is under way already")
    }
}

/// The key of a call that is to be done once.
pub(crate) fn key(call: &Call) -> Result<Option<[u8; 16]>, CallFailed> {
    match &call.key[..] {
        [] => Ok(None),
        key => key.try_into().map(Some).map_err(|_| {
            CallFailed::new(
                Code::BadArgument,
                "the key of the call has not 16 bytes",
                "make a random UUID for each call that is to be done once",
            )
        }),
    }
}

/// Reserves memory for what was sent with a call.
pub fn hold(budget: &MemoryBudget, bytes: usize) -> Result<HeldMemory, CallFailed> {
    budget.hold(bytes).ok_or_else(no_memory)
}

/// There is no memory for a call at the moment.
pub fn no_memory() -> CallFailed {
    outcome::busy("the server has no memory for the call at the moment")
}
