//! Calls: from whoever calls to whoever does it, and back.
//!
//! Owns the procedures that are declared, who provides them, and the way of one call: its name,
//! its arguments, its deadline, its outcome. What a connection says is [`channel`]'s affair, what
//! a statement does the database's.

pub(crate) mod built_in;
pub(crate) mod channel;
mod declared;
pub(crate) mod lane;
mod outcome;
pub(crate) mod post;
mod providers;
mod stream;
mod unawaited;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use tidewater_protocol::argument::{coerce, given, type_name};
use tidewater_protocol::message::{Answer, Argument, Call, CallFailed, ColumnHeader, Returns};
use tidewater_protocol::{Code, RemoteId, Value, json};

use self::declared::{Declared, read, read_rule};
use self::lane::{CallTask, Kept, Pace};
use self::post::{Gone, Post};
use self::providers::Providers;
use self::stream::StreamingCall;
use self::unawaited::Unawaited;
use crate::config::{Config, ProcedureConfig, Provision, Work};
use crate::fault::Fault;
use crate::memory::{Held, MemoryBudget};
use crate::server::Shared;
use tidewater_centre::engine::callable_procedure::CallableProcedure as Script;
use tidewater_centre::procedure::{AnswerSink, CallOutcome, Cancel, ProcedureCall};
use tidewater_centre::records::UserClaims;
use tidewater_centre::{Centre, CentreError};

pub(crate) use tidewater_centre::procedure::Caller;
pub(crate) use tidewater_centre::procedure::OnceKeyState;

pub(crate) use self::built_in::PUBLISH;
pub use self::declared::check;
pub(crate) use self::outcome::{in_pieces, key_taken, no_room, of_fault, put_in_pieces};
pub(crate) use self::stream::{AnswerPart, AnswerStart, AnswerStream};

/// How often a call that may be repeated goes to another provider.
const TRIES: usize = 3;

/// What came of a call is kept so long after its end at most, and clocks of servers differ by less.
const LATE: Duration = Duration::from_secs(5);

/// How long it may take to find out who may.
const RULE_TIMEOUT: Duration = Duration::from_secs(10);

/// What came of a call that was done.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answered {
    pub(crate) returns: Option<Returns>,
    pub(crate) columns: Vec<ColumnHeader>,
    /// Packed rows; where one piece ends says nothing about where rows end.
    pub(crate) rows: Vec<Bytes>,
    /// The memory that they are in.
    pub(crate) held: Held,
}

impl From<Answer> for Answered {
    fn from(answer: Answer) -> Answered {
        Answered {
            returns: Returns::try_from(answer.returns).ok(),
            columns: answer.columns,
            rows: vec![answer.rows],
            held: Held::default(),
        }
    }
}

/// The whole of it, in one piece.
impl From<Answered> for Answer {
    fn from(answered: Answered) -> Answer {
        let mut rows = answered.rows.into_iter();
        let rows = match (rows.next(), rows.len()) {
            (None, _) => Bytes::new(),
            (Some(only), 0) => only,
            (Some(first), _) => rows
                .fold(BytesMut::from(first), |mut all, piece| {
                    all.extend_from_slice(&piece);
                    all
                })
                .freeze(),
        };
        Answer {
            returns: answered.returns.unwrap_or(Returns::Nothing) as i32,
            columns: answered.columns,
            rows,
        }
    }
}

/// How a call ends.
pub(crate) type Outcome = Result<Answered, CallFailed>;

/// The procedures of a server and those who provide them.
pub(crate) struct Calls {
    procedures: RwLock<Arc<HashMap<String, Arc<Procedure>>>>,
    providers: Providers,
    pub(crate) unawaited: Unawaited,
    /// Calls under a key that providers are at, by user.
    running: Mutex<HashSet<Running>>,
    /// Of rules, by their text.
    rules: Mutex<HashMap<String, Arc<Script>>>,
    centre: Arc<dyn Centre>,
}

/// A user, and the key of a call.
type Running = (String, [u8; 16]);

/// As long as it is there, the call is under way.
struct UnderWay<'a> {
    calls: &'a Calls,
    call: Running,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.calls.running().remove(&self.call);
    }
}

/// A declared procedure.
pub(crate) struct Procedure {
    pub(crate) config: ProcedureConfig,
    /// What the database knows of it: its statement, or who may call. `None` if it has nothing to
    /// do with it.
    script: Option<Arc<Script>>,
    pace: Arc<Pace>,
}

/// A call that can be done, as far as can be told without the database.
pub(crate) struct Prepared {
    procedure: Arc<Procedure>,
    caller: Arc<Caller>,
    arguments: Vec<Value>,
    to: Address,
    key: Option<[u8; 16]>,
    deadline: Instant,
}

/// Who of those that provide a procedure is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Anybody,
    User(String),
    Remote(RemoteId),
}

impl Address {
    pub(crate) fn parse(text: &str) -> Result<Address, CallFailed> {
        let remote = || Some(Address::Remote(text.strip_prefix("remote:")?.parse().ok()?));
        let user = || Some(Address::User(text.strip_prefix("user:")?.to_owned()));
        match text {
            "" => Ok(Address::Anybody),
            _ => remote().or_else(user).ok_or_else(|| {
                CallFailed::new(
                    Code::BadArgument,
                    format!("{text:?} is nobody who can be called"),
                    "write user:NAME or remote:ID",
                )
            }),
        }
    }

    fn means(&self, caller: &Caller) -> bool {
        match self {
            Address::Anybody => true,
            Address::User(user) => caller.user == *user,
            Address::Remote(id) => caller.remote_id == Some(*id),
        }
    }
}

/// As [`Address::parse`] reads it.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Anybody => Ok(()),
            Address::User(user) => write!(f, "user:{user}"),
            Address::Remote(id) => write!(f, "remote:{id}"),
        }
    }
}

impl Calls {
    /// Has the database read the procedures and the rules of spaces.
    ///
    /// # Errors
    /// One of them cannot be run.
    pub(crate) async fn load(
        centre: Arc<dyn Centre>,
        config: &Config,
    ) -> Result<Calls, CentreError> {
        let calls = Calls {
            procedures: RwLock::default(),
            providers: Providers::default(),
            unawaited: Unawaited::default(),
            running: Mutex::default(),
            rules: Mutex::default(),
            centre,
        };
        calls.declare(config).await?;
        Ok(calls)
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
    pub(crate) async fn declare(&self, config: &Config) -> Result<(), CentreError> {
        let Declared { procedures, rules } = read(&*self.centre, config).await?;
        let current = self.procedures.write();
        *current.unwrap_or_else(PoisonError::into_inner) = Arc::new(procedures);
        *self.rules() = rules;
        self.providers
            .settle(|name, who| self.may_provide(name, who).is_ok());
        Ok(())
    }

    /// All procedures.
    pub(crate) fn procedures(&self) -> Arc<HashMap<String, Arc<Procedure>>> {
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
    pub(crate) async fn ask_provider(
        &self,
        server: &Arc<Shared>,
        name: &str,
        caller: &Arc<Caller>,
        request: String,
        deadline: Instant,
    ) -> Result<serde_json::Value, CallFailed> {
        let asked = Prepared {
            procedure: self.find(name)?,
            caller: caller.clone(),
            arguments: vec![Value::Text(request)],
            to: Address::Anybody,
            key: None,
            deadline,
        };
        let answer = Answer::from(asked.ask(server).await?);
        json::answer(&answer).map_err(|_| outcome::internal("an answer that cannot be read"))
    }

    /// Looks at a call that has come. Without a deadline it has what its procedure is given.
    pub(crate) fn prepare(
        &self,
        caller: &Arc<Caller>,
        call: Call,
        deadline: Option<Duration>,
    ) -> Result<Prepared, CallFailed> {
        let procedure = self.find(&call.procedure)?;
        let to = Address::parse(&call.to)?;
        if let (Work::Sql { .. }, Address::User(_) | Address::Remote(_)) =
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
        Ok(Prepared {
            key: key(&call)?,
            arguments: procedure.arguments(&call.arguments)?,
            procedure,
            caller: caller.clone(),
            to,
            deadline,
        })
    }

    /// A connection provides a procedure from now on.
    pub(crate) fn provide(&self, name: &str, post: &Arc<Post>) -> Result<(), CallFailed> {
        self.may_provide(name, post.who())?;
        self.providers.enter(name, post);
        Ok(())
    }

    fn may_provide(&self, name: &str, who: &Caller) -> Result<(), CallFailed> {
        let procedure = self.find(name)?;
        match &procedure.config.work {
            Work::Provided(Provision::By(users)) if users.contains(&who.user) => {}
            Work::Provided(Provision::OnRemotes) if who.remote_id.is_some() => {}
            Work::Sql { .. } => {
                return Err(CallFailed::new(
                    Code::NameTaken,
                    format!("the procedure {name:?} is done by the server itself"),
                    "choose another name, or have the server's operator write provided_by \
                     instead of sql",
                ));
            }
            Work::Provided(_) => {
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
    fn enter(&self, user: &str, key: [u8; 16]) -> Result<UnderWay<'_>, CallFailed> {
        let call = (user.to_owned(), key);
        if self.running().insert(call.clone()) {
            return Ok(UnderWay { calls: self, call });
        }
        Err(under_way())
    }

    /// A connection provides a procedure no longer.
    pub(crate) fn withdraw(&self, name: &str, post: &Arc<Post>) {
        self.providers.leave(name, post);
    }

    /// The one of this server that is to do a call.
    pub(crate) fn choose(&self, name: &str, to: &Address) -> Result<Option<Arc<Post>>, CallFailed> {
        self.providers.choose(name, to)
    }

    /// Ends when [`Self::changes`] has some. Safe to drop; one caller at a time.
    pub(crate) async fn provided(&self) {
        self.providers.changed().await;
    }

    /// The subjects of other servers that have changed, and whether somebody provides there now.
    pub(crate) fn changes(&self) -> Vec<(String, bool)> {
        self.providers.changes()
    }

    /// A connection is gone.
    pub(crate) fn gone(&self, post: &Arc<Post>) {
        self.providers.leave_all(post);
        post.close();
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

impl Prepared {
    /// Whether it goes on when its caller has gone: what a provider makes of a call under a key is
    /// kept, for the caller to ask for it again.
    pub(crate) fn outlives_its_caller(&self) -> bool {
        self.key.is_some() && matches!(self.procedure.config.work, Work::Provided(_))
    }

    /// Does it, within its deadline. To drop it is to cancel it.
    pub(crate) async fn run(self, server: &Arc<Shared>) -> Outcome {
        let (name, deadline) = (self.procedure.config.name.clone(), self.deadline);
        let done = timeout_at(deadline, self.go(server)).await;
        done.unwrap_or_else(|_| Err(too_late(&name)))
    }

    /// The same; an answer of many rows begins before all of it is read. The deadline is that of its
    /// beginning, and of the statement: the caller takes it as fast as it likes.
    pub(crate) async fn run_streaming(
        self,
        server: &Arc<Shared>,
    ) -> Result<AnswerStart, CallFailed> {
        let streams = self.procedure.script.as_ref().is_some_and(|script| {
            !script.is_provided() && script.is_read_only() && script.returns() == Returns::Rows
        });
        if !streams {
            return self.run(server).await.map(AnswerStart::Whole);
        }
        let (name, deadline) = (self.procedure.config.name.clone(), self.deadline);
        let begun = timeout_at(deadline, self.stream(server)).await;
        begun.unwrap_or_else(|_| Err(too_late(&name)))
    }

    /// Has the database run the statement, and answer while it reads.
    async fn stream(self, server: &Arc<Shared>) -> Result<AnswerStart, CallFailed> {
        let Some(script) = &self.procedure.script else {
            return Err(outcome::internal("a procedure without a statement"));
        };
        let beginning = StreamingCall::new(&server.budget, server.limits.answer_stream_bytes);
        let reply = self.submit(server, script, Some(beginning.sink()));
        let name = &self.procedure.config.name;
        beginning.begun(name, script.returns(), reply).await
    }

    async fn go(self, server: &Arc<Shared>) -> Outcome {
        match &self.procedure.config.work {
            Work::Sql { .. } => self.run_script(server).await,
            Work::Provided(_) => {
                if self.procedure.script.is_some() {
                    self.run_script(server).await?;
                }
                self.ask(server).await
            }
        }
    }

    /// Has the database run the statement, or tell whether the caller may call.
    async fn run_script(&self, server: &Arc<Shared>) -> Outcome {
        let Some(script) = &self.procedure.script else {
            return Err(outcome::internal("a procedure without a statement"));
        };
        let answer = self.submit(server, script, None);
        let is_repeatable = self.key.is_some() || script.is_read_only();
        let done = answered(answer).await?;
        let done = done.ok_or_else(|| outcome::no_room(is_repeatable))?;
        outcome::of_script(&self.procedure.config.name, script.returns(), done)
    }

    /// Hands the statement to a worker.
    fn submit(
        &self,
        server: &Arc<Shared>,
        script: &Arc<Script>,
        sink: Option<Arc<dyn AnswerSink>>,
    ) -> oneshot::Receiver<Result<Kept, CentreError>> {
        let (reply, answer) = oneshot::channel();
        server.workers.calls.submit(CallTask::Run {
            call: ProcedureCall {
                procedure: script.clone(),
                caller: Caller::clone(&self.caller),
                claims: UserClaims::default(),
                arguments: self.arguments.clone(),
                once: self.key.filter(|_| !script.is_provided()),
                timeout: self.deadline.saturating_duration_since(Instant::now()),
                max_bytes: server.limits.answer_bytes,
                sink,
                cancel: Cancel::default(),
            },
            pace: self.procedure.pace.clone(),
            reply,
        });
        answer
    }

    /// Has a provider do it.
    async fn ask(&self, server: &Arc<Shared>) -> Outcome {
        let config = &self.procedure.config;
        let call = self.for_provider();
        let user = &self.caller.user;
        let under_way = self.key.map(|key| server.calls.enter(user, key));
        let _under_way = under_way.transpose()?;
        let mut begun = false;
        for _ in 0..TRIES {
            let near = server.calls.choose(&config.name, &self.to)?;
            let outside = server.spaces.outside().filter(|it| it.is_connected());
            if near.is_none() && outside.is_none() {
                break;
            }
            if let Some(key) = self.key
                && !std::mem::replace(&mut begun, true)
                && let Some(outcome) = self.begin(server, key).await?
            {
                return outcome;
            }
            let asked = match (near, outside) {
                (Some(post), _) => post.ask(&call, self.deadline).await.map(Some),
                (None, Some(nats)) => {
                    let asked = {
                        let room = (&server.budget, server.limits.answer_bytes);
                        nats.ask(call.clone(), &self.to, self.deadline, room)
                    };
                    asked.await
                }
                (None, None) => Ok(None),
            };
            let outcome = match asked {
                Ok(Some(outcome)) => outcome,
                Ok(None) => break,
                Err(Gone) if config.idempotent => continue,
                Err(Gone) => Err(CallFailed::new(
                    Code::ProviderGone,
                    format!("whoever was doing {:?} has gone", config.name),
                    "it may have been done or not: find out before you call again",
                )),
            };
            if let Some(key) = self.key {
                self.finish(server, key, Some(&outcome)).await?;
            }
            return outcome;
        }
        // Another server may be at what can be done again.
        if let Some(key) = self.key.filter(|_| begun && !config.idempotent) {
            self.finish(server, key, None).await?;
        }
        let message = match &self.to {
            Address::Anybody => format!("nobody provides {:?} at the moment", config.name),
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
    async fn begin(&self, server: &Shared, key: [u8; 16]) -> Result<Option<Outcome>, CallFailed> {
        match begin_once(server, &self.caller.user, key, &self.procedure.config.name).await? {
            OnceKeyState::New if self.deadline <= Instant::now() => {
                // Nobody is asked any more: nothing was begun.
                self.finish(server, key, None).await?;
                Ok(None)
            }
            OnceKeyState::New => Ok(None),
            OnceKeyState::Unfinished { .. } if self.procedure.config.idempotent => Ok(None),
            OnceKeyState::Unfinished { begun_ms } if self.may_run(server, begun_ms) => {
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
    fn may_run(&self, server: &Shared, begun_ms: i64) -> bool {
        let given = self.procedure.config.timeout + LATE;
        let age_ms = server.environment.clock.now_ms().abs_diff(begun_ms);
        u128::from(age_ms) < given.as_millis()
    }

    /// Keeps what a provider made of it; that nobody was there is not kept.
    async fn finish(
        &self,
        server: &Shared,
        key: [u8; 16],
        outcome: Option<&Outcome>,
    ) -> Result<(), CallFailed> {
        let (reply, answer) = oneshot::channel();
        server.workers.calls.submit(CallTask::Finish {
            user: self.caller.user.clone(),
            key,
            outcome: outcome.map(outcome::encode),
            reply,
        });
        answered(answer).await
    }
}

/// Notes that a call is about to be done under a key, unless it was before.
pub(crate) async fn begin_once(
    server: &Shared,
    user: &str,
    key: [u8; 16],
    procedure: &str,
) -> Result<OnceKeyState, CallFailed> {
    let (reply, answer) = oneshot::channel();
    let user = user.to_owned();
    let begin = CallTask::Begin {
        user,
        key,
        procedure: procedure.to_owned(),
        reply,
    };
    server.workers.calls.submit(begin);
    answered(answer).await
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
fn key(call: &Call) -> Result<Option<[u8; 16]>, CallFailed> {
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
pub(crate) fn hold(budget: &MemoryBudget, bytes: usize) -> Result<Held, CallFailed> {
    budget.hold(bytes).ok_or_else(no_memory)
}

pub(crate) fn no_memory() -> CallFailed {
    outcome::busy("the server has no memory for the call at the moment")
}

/// The answer of a worker.
async fn answered<T>(answer: oneshot::Receiver<Result<T, CentreError>>) -> Result<T, CallFailed> {
    answered_by(answer.await)
}

fn answered_by<T>(
    answer: Result<Result<T, CentreError>, oneshot::error::RecvError>,
) -> Result<T, CallFailed> {
    match answer {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(outcome::of_fault(Fault::from(error))),
        Err(_) => Err(outcome::internal("a worker dropped its task")),
    }
}

/// Whether a query yields a row for whoever asks.
pub(crate) async fn is_allowed(
    server: &Arc<Shared>,
    query: &str,
    caller: &Caller,
) -> Result<bool, CallFailed> {
    let script = server.calls.rule(query).await?;
    let (reply, answer) = oneshot::channel();
    server.workers.calls.submit(CallTask::Run {
        call: ProcedureCall {
            procedure: script.clone(),
            caller: caller.clone(),
            claims: UserClaims::default(),
            arguments: Vec::new(),
            once: None,
            timeout: RULE_TIMEOUT,
            max_bytes: server.limits.answer_bytes,
            sink: None,
            cancel: Cancel::default(),
        },
        pace: Arc::default(),
        reply,
    });
    let done = answered(answer).await?;
    match done.ok_or_else(|| outcome::no_room(true))? {
        (CallOutcome::NotAllowed, _) => Ok(false),
        done => outcome::of_script("allow", script.returns(), done).map(|_| true),
    }
}
