//! [`Link`]: one connection, shared by the threads of a program, for calls and events.
//!
//! Whoever waits for an answer reads for all: while one thread, the *leader*, waits at the socket,
//! the others write their requests and wait for what it reads for them; when it has its own answer,
//! another one takes over. So a single caller pays for no second thread, and many share every
//! read. When nobody waits, a thread of the link's own, the *keeper*, reads: it answers pings and
//! takes what the server says of its own accord.

use std::collections::HashMap;
use std::fmt;
use std::net::{Shutdown, TcpStream};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use prost::Message as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use tidewater_carrier::{CarrierError, ServerUrl};
use tidewater_protocol::Code;
use tidewater_protocol::frame::Message;
use tidewater_protocol::message::{Answer, Call, CallFailed, CallKind, Failure, Proof};
use tidewater_remote::database::Database;
use tidewater_remote::session::{Outcome, SessionOptions, Work};
use tidewater_remote::{Event, Progress, SyncError};

use crate::clock::Clock;
use crate::error::ClientError;
use crate::line::{Line, TICK};
use crate::options::SyncOptions;
use crate::provider::{Handler, Providers};
use crate::request::{CallError, LinkOptions, LinkProof, Request};
use crate::space::Spaces;
use crate::word::{Word, Words};

/// The keeper leaves reading to callers that follow each other as closely as that.
const PAUSE: Duration = Duration::from_millis(5);

/// Bytes of events that may wait to be sent.
const UNSENT_BYTES: usize = 1 << 20;

/// How often a connection is looked at while something is applied.
const GLANCE: Duration = Duration::from_millis(20);

/// A connection for calls and events. Clones share it; it closes with the last one.
#[derive(Clone, Debug)]
pub struct Link {
    pub(crate) shared: Arc<Shared>,
    /// Ends the keeper.
    _alive: Arc<Alive>,
}

#[derive(Debug)]
struct Alive(Weak<Shared>);

impl Drop for Alive {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.close();
        }
    }
}

pub(crate) struct Shared {
    state: Mutex<State>,
    /// Wakes the keeper.
    quiet: Condvar,
    /// For whoever waits at it.
    socket: TcpStream,
    providers: Providers,
    pub(crate) words: Arc<Words>,
    pub(crate) spaces: Spaces,
    /// As [`State::lost`] says, without its lock.
    is_lost: AtomicBool,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

struct State {
    line: Line,
    /// Somebody waits at the socket.
    led: bool,
    /// There is a keeper.
    kept: bool,
    /// The server tells what has changed.
    stays: bool,
    /// Calls that wait for their answers.
    waiting: HashMap<u64, Waiting>,
    /// A sync is under way, and its thread may wait for others to read.
    syncing: Option<Option<Thread>>,
    last_id: u64,
    last_call: Instant,
    lost: Option<Arc<ClientError>>,
    /// The same, for the sync that it broke.
    broken: Option<ClientError>,
    closing: bool,
}

struct Waiting {
    thread: Option<Thread>,
    returns: Answer,
    rows: BytesMut,
    outcome: Option<Result<Answer, CallError>>,
}

impl Link {
    /// Connects a program without a file, and signs it in.
    ///
    /// # Errors
    /// The server cannot be reached, or does not let the program in.
    pub fn connect(server: &str, options: &LinkOptions) -> Result<Link, ClientError> {
        let url: ServerUrl = server.parse()?;
        let dial = SyncOptions {
            insecure: options.insecure,
            timeout: options.timeout,
            client: options.client.clone(),
            certificate: match &options.proof {
                LinkProof::Certificate(certificate) => Some(certificate.clone()),
                _ => None,
            },
            ..SyncOptions::default()
        };
        let go_on = &mut || ControlFlow::Continue(());
        let ca_file = options.ca_file.as_deref();
        let mut line = Line::dial(&url, ca_file, &dial, Clock::start(), go_on)?;
        let proof = match &options.proof {
            LinkProof::Password(password) => Proof::Password(password.clone()),
            LinkProof::Token(token) => Proof::Token(token.clone()),
            LinkProof::Bearer(bearer) => Proof::Bearer(bearer.read()?),
            LinkProof::Certificate(_) => Proof::Certificate(true),
        };
        line.connection.sign_in_program(&options.user, proof);
        while !line.connection.is_open() {
            line.turn()?;
            while let Some(event) = line.connection.poll_event() {
                if let Event::Failed(error) = event {
                    return Err(error.into());
                }
            }
        }
        let link = Link::over(line)?;
        link.keep()?;
        Ok(link)
    }

    /// Over an open connection. Until [`Link::keep`], it is read only while somebody waits.
    pub(crate) fn over(line: Line) -> Result<Link, ClientError> {
        let socket = line.socket().map_err(CarrierError::Lost)?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                line,
                led: false,
                kept: false,
                stays: false,
                waiting: HashMap::new(),
                syncing: None,
                last_id: 0,
                last_call: Instant::now(),
                lost: None,
                broken: None,
                closing: false,
            }),
            quiet: Condvar::new(),
            socket,
            providers: Providers::default(),
            words: Arc::default(),
            spaces: Spaces::default(),
            is_lost: AtomicBool::new(false),
        });
        Ok(Link {
            _alive: Arc::new(Alive(Arc::downgrade(&shared))),
            shared,
        })
    }

    /// Has a thread read when nobody else does, so that the connection can last.
    pub(crate) fn keep(&self) -> Result<(), ClientError> {
        if std::mem::replace(&mut self.shared.state().kept, true) {
            return Ok(());
        }
        let keeper = Arc::downgrade(&self.shared);
        let thread = thread::Builder::new().name("tidewater-link".into());
        let started = thread.spawn(move || keep(&keeper));
        started.map_err(|_| SyncError::Defect {
            what: "the system starts no thread",
        })?;
        Ok(())
    }

    /// Whether another sync can begin on it.
    pub(crate) fn can_sync(&self) -> bool {
        let state = self.shared.state();
        state.lost.is_none() && !state.closing && state.line.connection.can_sync()
    }

    /// Syncs, while others call. Gives the database back with what came of it.
    pub(crate) fn sync(
        &self,
        database: Database,
        options: SessionOptions,
        seed: [u8; 32],
        progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> (Database, Result<Outcome, ClientError>) {
        let shared = &self.shared;
        let mut state = shared.state();
        state.line.connection.sync(database, options, seed);
        state.syncing = Some(None);
        shared.flush(state);
        let mut leads = false;
        let mut state = shared.state();
        while state.line.connection.is_syncing() {
            if let Some(work) = state.line.connection.poll_work() {
                if std::mem::take(&mut leads) {
                    state.resign();
                }
                drop(state);
                let work = self.work(work, progress);
                state = shared.state();
                state.line.connection.handle_work(work);
                continue;
            }
            if leads || !state.led {
                leads = true;
                state.led = true;
                state = shared.lead(state);
            } else {
                state.syncing = Some(Some(thread::current()));
                drop(state);
                thread::park_timeout(TICK);
                state = shared.state();
            }
            if let Some(now) = state.line.connection.progress().cloned() {
                // It may call on this very link.
                drop(state);
                let broken = progress(&now).is_break();
                state = shared.state();
                if broken {
                    state.line.connection.cancel();
                }
            }
        }
        state.syncing = None;
        let ended = state.line.connection.end_sync();
        let (database, outcome) = ended.expect("the sync has ended, and its work is handed back");
        let broken = state.broken.take();
        if leads {
            state.resign();
        }
        shared.flush(state);
        match broken {
            Some(error) => (database, Err(error)),
            None => (database, Ok(outcome)),
        }
    }

    /// Has work done beside the connection, or in its place if that takes no time.
    fn work(&self, mut work: Work, progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>) -> Work {
        let cancelled = AtomicBool::new(false);
        let clock = self.shared.state().line.clock;
        if !work.is_short() {
            let mut last = work.progress().clone();
            thread::scope(|scope| {
                let (sender, receiver) = mpsc::channel();
                let work = &mut work;
                let cancelled = &cancelled;
                let apply = move || {
                    while !work.is_done() && !cancelled.load(Ordering::Relaxed) {
                        work.step(clock.now());
                        // The other side waits until this one is done.
                        let _ = sender.send(work.progress().clone());
                    }
                };
                let thread = thread::Builder::new().name("tidewater-apply".into());
                if thread.spawn_scoped(scope, apply).is_err() {
                    return;
                }
                loop {
                    match receiver.recv_timeout(GLANCE) {
                        Ok(progress) => last = progress,
                        Err(RecvTimeoutError::Timeout) => {}
                        Err(RecvTimeoutError::Disconnected) => break,
                    }
                    let mut state = self.shared.state();
                    if !state.led {
                        self.shared.pump(&mut state);
                    }
                    drop(state);
                    if progress(&last).is_break() {
                        cancelled.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
        while !work.is_done() && !cancelled.load(Ordering::Relaxed) {
            work.step(clock.now());
            if !work.is_done() && progress(work.progress()).is_break() {
                cancelled.store(true, Ordering::Relaxed);
            }
        }
        work
    }

    /// Bytes sent and received so far.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        self.shared.state().line.connection.traffic()
    }

    /// Says good-bye. Whoever still waits for an answer gets none.
    pub(crate) fn hang_up(&self) {
        let mut state = self.shared.state();
        state.closing = true;
        state.line.hang_up();
        state.lose(SyncError::Cancelled.into());
        self.shared.is_lost.store(true, Ordering::Release);
        self.shared.spaces.close();
        self.shared.quiet.notify_all();
        let _ = self.shared.socket.shutdown(Shutdown::Both);
    }

    /// Has the server say when something has changed that the remote holds.
    pub(crate) fn stay(&self, provided: &[(String, Handler)]) -> Result<(), ClientError> {
        if std::mem::replace(&mut self.shared.state().stays, true) {
            return Ok(());
        }
        let mut asked = self.call(&Request::new("tidewater.live")).map(|_| ());
        for (name, handler) in provided {
            asked = asked.and_then(|()| self.provide_with(name, handler.clone()));
        }
        asked.map_err(|error| match error {
            CallError::Lost(lost) => ClientError::of_shared(&lost),
            CallError::Failed(failed) => SyncError::from(Failure {
                code: failed.code,
                message: failed.message,
                hint: failed.hint,
                retry_after_ms: failed.retry_after_ms,
            })
            .into(),
        })
    }

    /// Waits for a word of the server, at most so long.
    pub(crate) fn wait_for_word(&self, patience: Duration) -> Option<Word> {
        self.shared.words.next(patience)
    }

    /// Why the connection is lost, if it is.
    pub fn lost(&self) -> Option<Arc<ClientError>> {
        self.shared.state().lost.clone()
    }

    /// Calls a procedure and waits for what comes of it.
    ///
    /// # Errors
    /// It came to nothing, or nobody knows what came of it.
    pub fn call(&self, request: &Request) -> Result<Answer, CallError> {
        self.begin(request)?.wait()
    }

    /// Calls a procedure and waits for what comes of it, as long as `go_on` does not break, which
    /// is asked a few times a second.
    pub(crate) fn call_while(
        &self,
        request: &Request,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Answer, CallError> {
        let pending = self.begin(request)?;
        self.shared.wait(pending.id, Some(go_on))
    }

    /// Calls a procedure; what comes of it can be had later.
    ///
    /// # Errors
    /// There is no connection any more, or the request is too large.
    pub fn begin(&self, request: &Request) -> Result<Pending, CallError> {
        self.shared.begin(request, CallKind::Call)
    }

    pub(crate) fn begin_telling(&self, request: &Request) -> Result<Pending, CallError> {
        self.shared.begin(request, CallKind::OneWay)
    }

    /// Has a procedure called whose outcome is of no interest. Waits until the server has accepted
    /// that.
    ///
    /// # Errors
    /// The server does not accept it.
    pub fn tell(&self, request: &Request) -> Result<(), CallError> {
        let accepted = self.shared.begin(request, CallKind::OneWay)?.wait();
        accepted.map(|_| ())
    }

    /// Provides a procedure as long as the connection lasts. `handler` may run several times at
    /// once.
    ///
    /// # Errors
    /// The server has no such procedure, or somebody else is to provide it.
    pub fn provide(
        &self,
        name: &str,
        handler: impl Fn(&crate::provider::Called) -> Result<Answer, CallFailed> + Send + Sync + 'static,
    ) -> Result<(), CallError> {
        self.provide_with(name, Arc::new(handler))
    }

    fn provide_with(&self, name: &str, handler: Handler) -> Result<(), CallError> {
        self.shared.providers.add(name, handler);
        let provide = Request::new("tidewater.provide").with("name", Some(name.into()));
        self.call(&provide).map(|_| ()).inspect_err(|_| {
            self.shared.providers.remove(name);
        })
    }

    /// Provides a procedure no longer. What was begun is finished.
    ///
    /// # Errors
    /// There is no connection any more.
    pub fn withdraw(&self, name: &str) -> Result<(), CallError> {
        let withdraw = Request::new("tidewater.withdraw").with("name", Some(name.into()));
        let withdrawn = self.call(&withdraw).map(|_| ());
        self.shared.providers.remove(name);
        withdrawn
    }

    /// Waits until the connection is lost, and tells why.
    pub fn wait_until_lost(&self) -> Arc<ClientError> {
        let mut state = self.shared.state();
        loop {
            if let Some(lost) = &state.lost {
                return lost.clone();
            }
            let waited = self.shared.quiet.wait_timeout(state, TICK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A call that was made. To drop it is to cancel it.
pub struct Pending {
    shared: Arc<Shared>,
    id: u64,
}

impl Pending {
    /// Waits for what comes of it.
    ///
    /// # Errors
    /// It came to nothing, or nobody knows what came of it.
    pub fn wait(self) -> Result<Answer, CallError> {
        self.shared.wait(self.id, None)
    }
}

impl Pending {
    /// Lets the call go on; what comes of it is of no interest.
    pub(crate) fn forget(self) {
        self.shared.state().waiting.remove(&self.id);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.shared.cancel(self.id);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(self: &Arc<Self>, request: &Request, kind: CallKind) -> Result<Pending, CallError> {
        let payload = Bytes::from(request.call.encode_to_vec());
        let within = request.within.map(|it| it.as_millis().max(1));
        let deadline_ms = within.map_or(0, |it| u32::try_from(it).unwrap_or(u32::MAX));
        let mut state = self.state();
        state.check()?;
        state.last_id += 1;
        state.last_call = Instant::now();
        let id = state.last_id;
        state.send(Message {
            id,
            deadline_ms,
            flags: kind as u8,
            payload,
        })?;
        state.waiting.insert(
            id,
            Waiting {
                thread: None,
                returns: Answer::default(),
                rows: BytesMut::new(),
                outcome: None,
            },
        );
        self.flush(state);
        Ok(Pending {
            shared: self.clone(),
            id,
        })
    }

    /// Reads for all until this call is answered, unless somebody else does.
    fn wait(
        self: &Arc<Self>,
        id: u64,
        mut go_on: Option<&mut dyn FnMut() -> ControlFlow<()>>,
    ) -> Result<Answer, CallError> {
        let mut state = self.state();
        let mut leads = false;
        loop {
            if let Some(go_on) = &mut go_on {
                drop(state);
                let broken = go_on().is_break();
                state = self.state();
                if broken {
                    if leads {
                        state.resign();
                    }
                    return Err(CallError::Lost(Arc::new(SyncError::Cancelled.into())));
                }
            }
            let led = state.led;
            let waiting = state.waiting.get_mut(&id);
            let waiting = waiting.expect("its call waits");
            if let Some(outcome) = waiting.outcome.take() {
                state.waiting.remove(&id);
                if leads {
                    state.resign();
                }
                return outcome;
            }
            if leads || !led {
                leads = true;
                state.led = true;
                state = self.lead(state);
            } else {
                waiting.thread = Some(thread::current());
                drop(state);
                match go_on {
                    Some(_) => thread::park_timeout(TICK),
                    None => thread::park(),
                }
                state = self.state();
            }
        }
    }

    /// Waits at the socket once, and hands out what has come.
    fn lead<'s>(self: &'s Arc<Self>, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        let mut state = state;
        if state.lost.is_none() {
            let patience = state.line.patience();
            let wants = match state.line.has_output() {
                true => PollFlags::IN | PollFlags::OUT,
                false => PollFlags::IN,
            };
            state = self.wait_at_socket(state, wants, patience);
        }
        self.pump(&mut state);
        state
    }

    fn wait_at_socket<'s>(
        &'s self,
        state: MutexGuard<'s, State>,
        wants: PollFlags,
        patience: Duration,
    ) -> MutexGuard<'s, State> {
        drop(state);
        let patience = Timespec::try_from(patience).ok();
        // Whatever comes of it, what follows finds out.
        let _ = poll(&mut [PollFd::new(&self.socket, wants)], patience.as_ref());
        self.state()
    }

    /// Takes what has come, without waiting.
    fn pump(self: &Arc<Self>, state: &mut MutexGuard<'_, State>) {
        if state.lost.is_some() {
            return;
        }
        if let Err(error) = state.line.take() {
            state.lose(error.into());
        }
        while let Some(event) = state.line.connection.poll_event() {
            if let Event::Failed(error) = event {
                state.lose(error.into());
            }
        }
        while let Some(message) = state.line.connection.poll_call() {
            state.take(message, self);
        }
        self.poll_events(state);
        if let Err(error) = state.line.give() {
            state.lose(error.into());
        }
        // A sync that failed takes the connection along.
        if state.line.connection.has_ended() {
            state.lose(SyncError::Cancelled.into());
        }
        if state.lost.is_some() {
            self.is_lost.store(true, Ordering::Release);
            self.quiet.notify_all();
            self.words.wake();
            self.spaces.close();
        }
        if let Some(waiting) = &mut state.syncing
            && let Some(thread) = waiting.take()
        {
            thread.unpark();
        }
    }

    /// Hands events that have come to the subscriptions.
    fn poll_events(&self, state: &mut State) {
        while self.spaces.takes_more()
            && let Some(bytes) = state.line.connection.poll_events()
        {
            if let Err(error) = self.spaces.take(bytes) {
                let failure = Failure {
                    code: error.code().number(),
                    message: error.to_string(),
                    hint: "update the older of the two, this program or the server".into(),
                    retry_after_ms: 0,
                };
                state.lose(SyncError::from(failure).into());
                return;
            }
        }
    }

    /// A subscription takes events again.
    pub(crate) fn take_events(self: &Arc<Self>) {
        let mut state = self.state();
        self.pump(&mut state);
        self.flush(state);
    }

    /// Sends events, unless more wait already than may.
    pub(crate) fn send_events(self: &Arc<Self>, events: &Bytes) -> bool {
        let mut state = self.state();
        if state.lost.is_some() {
            return true;
        }
        let takes = state.line.connection.unsent_events() < UNSENT_BYTES;
        if takes {
            state.line.connection.send_events(events.clone());
        }
        self.flush(state);
        takes
    }

    pub(crate) fn flush_events(self: &Arc<Self>) {
        self.flush(self.state());
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    pub(crate) fn why_lost(&self) -> CallError {
        match &self.state().lost {
            Some(lost) => CallError::Lost(lost.clone()),
            None => CallError::Lost(Arc::new(SyncError::Cancelled.into())),
        }
    }

    /// Sends what is queued; waits while the network takes nothing.
    fn flush(self: &Arc<Self>, state: MutexGuard<'_, State>) {
        let mut state = state;
        loop {
            if state.lost.is_none()
                && let Err(error) = state.line.give()
            {
                state.lose(error.into());
            }
            if state.lost.is_some() || !state.line.has_output() {
                return;
            }
            state = self.wait_at_socket(state, PollFlags::OUT, TICK);
        }
    }

    fn cancel(self: &Arc<Self>, id: u64) {
        let mut state = self.state();
        if state.waiting.remove(&id).is_some() && state.lost.is_none() {
            let cancel = Message {
                id,
                deadline_ms: 0,
                flags: CallKind::Cancel as u8,
                payload: Bytes::new(),
            };
            if state.send(cancel).is_ok() {
                self.flush(state);
            }
        }
    }

    /// Sends what came of a call of the server's.
    pub(crate) fn answer(self: &Arc<Self>, id: u64, outcome: Result<Answer, CallFailed>) {
        let mut state = self.state();
        let (kind, payload) = match &outcome {
            Ok(answer) => (CallKind::Answer, answer.encode_to_vec()),
            Err(failed) => (CallKind::Failed, failed.encode_to_vec()),
        };
        let message = |kind: CallKind, payload: Vec<u8>| Message {
            id,
            deadline_ms: 0,
            flags: kind as u8,
            payload: payload.into(),
        };
        if state.send(message(kind, payload)).is_err() {
            let failed = CallFailed::new(
                Code::AnswerTooLarge,
                "the provider's answer is larger than a message can be",
                "have it answer with less",
            );
            let _ = state.send(message(CallKind::Failed, failed.encode_to_vec()));
        }
        self.flush(state);
    }

    fn close(&self) {
        self.spaces.close();
        let mut state = self.state();
        state.closing = true;
        self.quiet.notify_all();
        // Whoever waits at the socket comes back.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl State {
    fn check(&self) -> Result<(), CallError> {
        match &self.lost {
            Some(lost) => Err(CallError::Lost(lost.clone())),
            None => Ok(()),
        }
    }

    fn send(&mut self, message: Message) -> Result<(), CallError> {
        let sent = self.line.connection.send_call(message);
        sent.map_err(|_| {
            CallError::Failed(CallFailed::new(
                Code::LimitExceeded,
                "the call is larger than a message can be: one MiB",
                "send less, or sync it",
            ))
        })
    }

    /// Somebody else is to wait at the socket.
    fn resign(&mut self) {
        self.led = false;
        let mut others = self.waiting.values_mut();
        let next = others.find_map(|it| it.thread.take());
        let next = next.or_else(|| self.syncing.as_mut()?.take());
        if let Some(thread) = next {
            thread.unpark();
        }
    }

    fn lose(&mut self, error: ClientError) {
        if self.lost.is_none() {
            let error = if self.line.connection.is_syncing() {
                self.line.connection.cancel();
                let for_others = ClientError::of_shared(&error);
                self.broken = Some(error);
                Arc::new(for_others)
            } else {
                Arc::new(error)
            };
            for waiting in self.waiting.values_mut() {
                waiting.end(Err(CallError::Lost(error.clone())));
            }
            self.lost = Some(error);
        }
    }

    fn take(&mut self, message: Message, shared: &Arc<Shared>) {
        let Message {
            id,
            deadline_ms,
            flags,
            payload,
        } = message;
        let Some(kind) = CallKind::from_flags(flags) else {
            return;
        };
        match kind {
            CallKind::Call | CallKind::OneWay => {
                let call = Call::decode(payload).unwrap_or_default();
                shared.spaces.told(&call);
                if let Some(word) = Word::of(&call) {
                    shared.words.say(word);
                    return;
                }
                if call.procedure.starts_with("tidewater.") {
                    return;
                }
                shared.providers.called(shared, id, kind, call, deadline_ms);
            }
            CallKind::Cancel => shared.providers.cancelled(id),
            CallKind::Accepted | CallKind::Answer | CallKind::Piece | CallKind::Failed => {
                if let Some(waiting) = self.waiting.get_mut(&id) {
                    waiting.take(kind, payload);
                }
            }
        }
    }
}

impl Waiting {
    fn take(&mut self, kind: CallKind, payload: Bytes) {
        let malformed = || {
            CallError::Failed(CallFailed::new(
                Code::MalformedMessage,
                "the answer cannot be read",
                "update the older of the two, this program or the server",
            ))
        };
        match kind {
            CallKind::Failed => {
                let failed = CallFailed::decode(payload).map_err(|_| malformed());
                self.end(Err(failed.map_or_else(|it| it, CallError::Failed)));
            }
            CallKind::Accepted => self.end(Ok(Answer::nothing())),
            _ => match Answer::decode(payload) {
                Err(_) => self.end(Err(malformed())),
                Ok(answer) if kind == CallKind::Answer && self.rows.is_empty() => {
                    self.end(Ok(answer));
                }
                Ok(answer) => {
                    if self.rows.is_empty() {
                        self.returns = Answer {
                            rows: Bytes::new(),
                            ..answer.clone()
                        };
                    }
                    self.rows.extend_from_slice(&answer.rows);
                    if kind == CallKind::Answer {
                        let rows = std::mem::take(&mut self.rows).freeze();
                        let whole = std::mem::take(&mut self.returns);
                        self.end(Ok(Answer { rows, ..whole }));
                    }
                }
            },
        }
    }

    fn end(&mut self, outcome: Result<Answer, CallError>) {
        self.outcome = Some(outcome);
        if let Some(thread) = self.thread.take() {
            thread.unpark();
        }
    }
}

/// Reads when nobody else does.
fn keep(link: &Weak<Shared>) {
    loop {
        let Some(shared) = link.upgrade() else {
            return;
        };
        let mut state = shared.state();
        if state.closing || state.lost.is_some() {
            return;
        }
        let rested = state.last_call.elapsed();
        if state.led || rested < PAUSE {
            // Somebody reads, or is about to.
            let pause = PAUSE.saturating_sub(rested).max(Duration::from_millis(1));
            let waited = shared.quiet.wait_timeout(state, pause);
            drop(waited);
            continue;
        }
        state.led = true;
        let mut state = shared.lead(state);
        state.resign();
    }
}
