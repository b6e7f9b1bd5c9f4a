//! Staying in sync: connected, told by the server, and watching the file.

use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use tidewater_connection::device::ServerNotice;
use tidewater_protocol::Code;
use tidewater_remote::database::EventInterest;
use tidewater_remote::{Report, SyncProgress};

use crate::carrier_loop::TICK;
use crate::error::ClientError;
use crate::link::Link;
use crate::remote::Remote;
use crate::retry_pause::{FIRST_PAUSE, LONGEST_PAUSE, pause, random_seed};
use crate::space::SpaceSubscription;

/// How to stay in sync.
#[derive(Clone, Copy, Debug)]
pub struct LiveOptions {
    /// It syncs at least so often, whatever happens.
    pub every: Duration,
    /// How long after a local change it syncs: what is changed meanwhile goes with it. So long it
    /// also waits after it has filled the inbox before it does so again.
    pub settle: Duration,
}

impl Default for LiveOptions {
    fn default() -> LiveOptions {
        LiveOptions {
            every: Duration::from_secs(300),
            settle: Duration::from_millis(200),
        }
    }
}

/// Why it syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncReason {
    /// It has just connected.
    Connected,
    /// Somebody else has changed something.
    Told,
    /// Something was changed here.
    Local,
    /// Events have come that the file is interested in: only its inbox was filled.
    Event,
    /// It is time to.
    Regular,
}

impl SyncReason {
    /// Its stable name.
    pub fn name(self) -> &'static str {
        match self {
            SyncReason::Connected => "connected",
            SyncReason::Told => "told",
            SyncReason::Local => "local",
            SyncReason::Event => "event",
            SyncReason::Regular => "regular",
        }
    }
}

/// What happens while it stays in sync.
#[derive(Debug)]
#[non_exhaustive]
pub enum LiveEvent<'a> {
    /// It has synced.
    Synced {
        /// Why.
        why: SyncReason,
        /// What came of it, with the tables that have changed.
        report: &'a Report,
    },
    /// A sync has failed, or the connection is lost.
    Failed {
        /// Why.
        error: &'a ClientError,
        /// After so long it is tried again; `None` if that is of no use before somebody has done
        /// something about it.
        again_after: Option<Duration>,
    },
    /// The server shuts down; it connects again, to another one if it was told of one.
    Leaving,
    /// Nothing, a few times a second: whether to go on.
    Idle,
}

/// Whom to ask whether to go on, and to tell what happens.
pub type LiveCallback<'c> = dyn FnMut(&LiveEvent<'_>) -> ControlFlow<()> + 'c;

impl Remote {
    /// Stays in sync until the callback breaks: connects, and again with growing pauses when the
    /// connection is lost; syncs when the server says that something has changed, when something
    /// was changed in the file, and every so often; fills the inbox when there are durable events
    /// that the file is interested in. [`Remote::link`] is the connection meanwhile.
    ///
    /// # Errors
    /// Something that only somebody can change: a wrong password, a file that cannot be read.
    pub fn live(
        &mut self,
        options: &LiveOptions,
        callback: &mut LiveCallback<'_>,
    ) -> Result<(), ClientError> {
        self.set_keep_connected(true);
        let mut living = LiveLoop {
            remote: self,
            options: *options,
            callback,
            ears: Vec::new(),
            filled: None,
            synced: Instant::now(),
            again: options.every,
            failures: 0,
            was_served: false,
            left: 0,
            former: None,
        };
        let result = living.run();
        drop(living);
        self.set_elsewhere(None);
        self.set_keep_connected(false);
        result
    }
}

struct LiveLoop<'a, 'c> {
    remote: &'a mut Remote,
    options: LiveOptions,
    callback: &'a mut LiveCallback<'c>,
    /// By these it hears of events that the file is interested in.
    ears: Vec<SpaceSubscription>,
    /// When the inbox was last filled without a sync.
    filled: Option<Instant>,
    /// When it last synced, and after how long it does so again without any other reason.
    synced: Instant,
    again: Duration,
    /// In a row.
    failures: u32,
    /// A server has served it here: what answers in its place now may be gone again.
    was_served: bool,
    /// Syncs in a row that left something in the outbox.
    left: u32,
    /// The connection to a server that shuts down, for what is under way there.
    former: Option<Link>,
}

impl LiveLoop<'_, '_> {
    fn run(&mut self) -> Result<(), ClientError> {
        let mut why = SyncReason::Connected;
        loop {
            let seen = match self.remote.version() {
                Ok(seen) => seen,
                Err(error) => match self.handle_failure(error.into())? {
                    Some(next) => {
                        why = next;
                        continue;
                    }
                    None => return Ok(()),
                },
            };
            let before = self.remote.link().cloned();
            let mut stopped = false;
            let synced = {
                let callback = &mut self.callback;
                let mut progress = |_: &SyncProgress| {
                    stopped |= callback(&LiveEvent::Idle).is_break();
                    match stopped {
                        true => ControlFlow::Break(()),
                        false => ControlFlow::Continue(()),
                    }
                };
                let done = match why {
                    SyncReason::Event => self.remote.fill_inbox(&mut progress),
                    _ => self.remote.sync(&mut progress),
                };
                done.and_then(|report| self.stay().map(|()| report))
            };
            if stopped {
                return Ok(());
            }
            let next = match synced {
                Ok(report) => {
                    self.failures = 0;
                    self.was_served = true;
                    self.note(why, &report);
                    let event = LiveEvent::Synced {
                        why,
                        report: &report,
                    };
                    match (self.callback)(&event) {
                        ControlFlow::Continue(()) => match self.wait(seen) {
                            Err(error) if error.code() == Code::RemoteLocked => {
                                self.handle_failure(error)?
                            }
                            next => next?,
                        },
                        ControlFlow::Break(()) => return Ok(()),
                    }
                }
                Err(error) => match before.and_then(|link| farewell(&link)) {
                    Some((servers, pause)) => self.move_on(servers, pause)?,
                    None => self.handle_failure(error)?,
                },
            };
            match next {
                Some(next) => why = next,
                None => return Ok(()),
            }
        }
    }

    /// Asks the server to say when something has changed, and when events have come.
    fn stay(&mut self) -> Result<(), ClientError> {
        let Some(link) = self.remote.link().cloned() else {
            return Ok(());
        };
        link.stay(self.remote.provided())?;
        let interests = self.remote.interests()?;
        self.ears.retain(|ear| {
            let mut interests = interests.iter();
            ear.is_over(&link)
                && ear.ended().is_none()
                && interests.any(|it| ear.is_to(&it.space, &it.subject))
        });
        for it in &interests {
            if let Some(position) = it.position()
                && !self.ears.iter().any(|ear| ear.is_to(&it.space, &it.subject))
                // If not, the interest tells why, or the next sync finds out.
                && let Ok(ear) = link.hear(&it.space, &it.subject, position)
            {
                self.ears.push(ear);
            }
        }
        Ok(())
    }

    /// Waits for a reason to sync. `None`: it is to stop.
    fn wait(&mut self, mut seen: i64) -> Result<Option<SyncReason>, ClientError> {
        let mut changed: Option<Instant> = None;
        let mut heard = false;
        // What was committed while it synced is looked at, too.
        let mut first = true;
        loop {
            let word = match self.remote.link() {
                Some(link) => match (link.wait_for_notice(TICK), link.lost()) {
                    // What was said before it was lost comes first.
                    (None, Some(lost)) => {
                        return self.handle_failure(ClientError::from_shared(&lost));
                    }
                    (word, _) => word,
                },
                None => return Ok(Some(SyncReason::Connected)),
            };
            match word {
                Some(ServerNotice::Changed) => return Ok(Some(SyncReason::Told)),
                Some(ServerNotice::Leaving { servers, pause }) => {
                    return self.move_on(servers, pause);
                }
                Some(ServerNotice::Heard) => heard = true,
                Some(ServerNotice::Missed { .. }) | None => {}
            }
            if (self.callback)(&LiveEvent::Idle).is_break() {
                return Ok(None);
            }
            let version = self.remote.version()?;
            if first || version != seen {
                first = false;
                seen = version;
                if changed.is_none() && self.remote.has_something_to_upload()? {
                    changed = Some(Instant::now());
                }
            }
            if changed.is_some_and(|at| at.elapsed() >= self.options.settle) {
                return Ok(Some(SyncReason::Local));
            }
            let settled = |at: Instant| at.elapsed() >= self.options.settle;
            if heard && self.filled.is_none_or(settled) {
                heard = false;
                if self.lacks_events()? {
                    return Ok(Some(SyncReason::Event));
                }
            }
            if self.synced.elapsed() >= self.again {
                return Ok(Some(SyncReason::Regular));
            }
        }
    }

    /// Whether events have come that are not in the file.
    fn lacks_events(&mut self) -> Result<bool, ClientError> {
        let interests = self.remote.interests()?;
        let lacks = |it: &EventInterest| {
            let mut ears = self.ears.iter();
            let ear = ears.find(|ear| ear.is_to(&it.space, &it.subject));
            ear.map(SpaceSubscription::reached) > it.position().map(|position| position.id)
        };
        Ok(interests.iter().any(lacks))
    }

    /// Notes what follows from a sync: the next one comes soon, and later from time to time, if
    /// something in the outbox could not be done now.
    fn note(&mut self, why: SyncReason, report: &Report) {
        let now = Instant::now();
        if why == SyncReason::Event {
            self.filled = Some(now);
            return;
        }
        self.synced = now;
        (self.left, self.again) = match report.outbox.pending {
            0 => (0, self.options.every),
            _ => (self.left + 1, pause(self.left).min(self.options.every)),
        };
    }

    /// The server shuts down: goes to another one, if it knows one, without breaking off what is
    /// under way.
    fn move_on(
        &mut self,
        servers: Vec<String>,
        pause: Duration,
    ) -> Result<Option<SyncReason>, ClientError> {
        if (self.callback)(&LiveEvent::Leaving).is_break() {
            return Ok(None);
        }
        let here = self.remote.connects_to()?;
        let others: Vec<String> = servers.into_iter().filter(|it| *it != here).collect();
        let [chance, ..] = random_seed().unwrap_or([0; 32]);
        let other = others.get(usize::from(chance) % others.len().max(1));
        self.remote.set_elsewhere(other.cloned());
        let pause = match other {
            Some(_) => pause.min(LONGEST_PAUSE),
            None => pause.clamp(FIRST_PAUSE, LONGEST_PAUSE),
        };
        if !self.sleep(pause) {
            return Ok(None);
        }
        self.former = self.remote.take_link();
        Ok(Some(SyncReason::Connected))
    }

    /// Whether to go on afterwards.
    fn sleep(&mut self, pause: Duration) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < pause {
            thread::sleep(TICK.min(pause.saturating_sub(begun.elapsed())));
            if (self.callback)(&LiveEvent::Idle).is_break() {
                return false;
            }
        }
        true
    }

    /// Tells, and waits before it tries again, at its own address.
    fn handle_failure(&mut self, error: ClientError) -> Result<Option<SyncReason>, ClientError> {
        self.remote.set_elsewhere(None);
        let error = error.in_sync();
        let may_pass = error.code().is_transient() || self.was_served && error.is_of_the_address();
        let again_after = may_pass.then(|| {
            let said = error.retry_after_ms().map(Duration::from_millis);
            self.pause().max(said.unwrap_or_default())
        });
        let event = LiveEvent::Failed {
            error: &error,
            again_after,
        };
        if (self.callback)(&event).is_break() {
            return Ok(None);
        }
        let Some(pause) = again_after else {
            return Err(error);
        };
        let goes_on = self.sleep(pause);
        Ok(goes_on.then_some(SyncReason::Connected))
    }

    fn pause(&mut self) -> Duration {
        self.failures += 1;
        pause(self.failures - 1)
    }
}

/// Where the server has sent whoever was connected, and after which pause, if it has said that it
/// shuts down.
fn farewell(link: &Link) -> Option<(Vec<String>, Duration)> {
    let words = std::iter::from_fn(|| link.wait_for_notice(Duration::ZERO));
    words
        .filter_map(|word| match word {
            ServerNotice::Leaving { servers, pause } => Some((servers, pause)),
            _ => None,
        })
        .last()
}
