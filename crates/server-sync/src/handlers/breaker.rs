//! Whether a handler is asked at all: one that does not answer is left alone for a while.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long others wait for what comes of a trial.
const TRIAL: Duration = Duration::from_secs(1);

/// After some failures in a row nothing is asked for a while; then one request is a trial.
pub(crate) struct Breaker {
    failures: u32,
    pause: Duration,
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
enum State {
    /// So many requests in a row have failed.
    Closed(u32),
    /// Nothing is asked until then.
    Open(Instant),
    /// One request finds out.
    Trial,
}

impl State {
    fn closed_for(self, now: Instant) -> Option<Duration> {
        match self {
            State::Closed(_) => None,
            State::Open(until) => {
                let left = until.saturating_duration_since(now);
                Some(left).filter(|it| !it.is_zero())
            }
            State::Trial => Some(TRIAL),
        }
    }
}

/// A request that may be sent. One that comes to nothing, because nobody waits any more, says
/// nothing about the handler.
pub(crate) struct Pass<'b> {
    breaker: &'b Breaker,
    is_trial: bool,
}

impl Breaker {
    pub(crate) fn new(failures: u32, pause: Duration) -> Breaker {
        Breaker {
            failures,
            pause,
            state: Mutex::new(State::Closed(0)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long nothing is asked, if that is so.
    pub(crate) fn closed_for(&self, now: Instant) -> Option<Duration> {
        self.state().closed_for(now)
    }

    /// Whether a request may be sent.
    ///
    /// # Errors
    /// Not for so long.
    pub(crate) fn pass(&self, now: Instant) -> Result<Pass<'_>, Duration> {
        let mut state = self.state();
        if let Some(left) = state.closed_for(now) {
            return Err(left);
        }
        let is_trial = !matches!(*state, State::Closed(_));
        if is_trial {
            *state = State::Trial;
        }
        Ok(Pass {
            breaker: self,
            is_trial,
        })
    }
}

impl Pass<'_> {
    /// The handler has answered.
    pub(crate) fn succeeded(&mut self) {
        *self.breaker.state() = State::Closed(0);
        self.is_trial = false;
    }

    /// It has not; whether nothing is asked for a while because of that.
    pub(crate) fn failed(&mut self, now: Instant) -> bool {
        let mut state = self.breaker.state();
        let failures = match *state {
            State::Closed(failures) => failures + 1,
            // Whatever was sent before it was opened.
            State::Open(_) => return true,
            State::Trial if !self.is_trial => return true,
            State::Trial => self.breaker.failures,
        };
        self.is_trial = false;
        *state = match failures >= self.breaker.failures {
            true => State::Open(now + self.breaker.pause),
            false => State::Closed(failures),
        };
        matches!(*state, State::Open(_))
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.is_trial {
            // The next one is the trial.
            *self.breaker.state() = State::Open(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_open_it_and_one_trial_closes_it_again() {
        let pause = Duration::from_secs(10);
        let breaker = Breaker::new(2, pause);
        let now = Instant::now();
        assert!(!breaker.pass(now).unwrap().failed(now));
        breaker.pass(now).unwrap().succeeded();
        assert!(!breaker.pass(now).unwrap().failed(now));
        let mut late = breaker.pass(now).unwrap();
        assert!(breaker.pass(now).unwrap().failed(now));
        assert_eq!(breaker.pass(now).err(), Some(pause));
        assert_eq!(breaker.closed_for(now + pause / 2), Some(pause / 2));
        // It was sent before.
        assert!(late.failed(now));
        tokio::time::advance(pause).await;
        let now = Instant::now();
        assert_eq!(breaker.closed_for(now), None);
        let trial = breaker.pass(now).unwrap();
        assert!(breaker.pass(now).is_err(), "there is one trial at a time");
        drop(trial);
        let mut trial = breaker.pass(now).unwrap();
        assert!(trial.failed(now));
        drop(trial);
        assert_eq!(breaker.pass(now).err(), Some(pause));
        tokio::time::advance(pause).await;
        let now = Instant::now();
        breaker.pass(now).unwrap().succeeded();
        assert!(!breaker.pass(now).unwrap().failed(now));
    }
}
