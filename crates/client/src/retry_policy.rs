//! Whether and when a sync that the server turned away is tried again.
//!
//! Owns the policy and how long is left of it. Waiting itself is the driver's.

use std::time::Duration;

use tidewater_protocol::Code;

use crate::error::ClientError;

/// How long a sync is turned away by default before it fails.
const LIMIT: Duration = Duration::from_secs(300);

/// Nobody waits for longer at once, whatever the server says.
const LONGEST_WAIT: Duration = Duration::from_secs(3_600);

/// The next time is not before this part of the whole time has passed again.
const SLOWER: u32 = 8;

/// What becomes of a sync that the server turns away with a time to come back.
///
/// Only that is tried again: a server that cannot be reached, a connection that breaks and a
/// password that is wrong too often end the sync at once. A download whose connection breaks is gone
/// on with, unless this is [`RetryPolicy::Off`]: at once while connections bring more of it, then after
/// growing pauses, and not any more after eight tries in a row that brought nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryPolicy {
    /// It fails, and [`ClientError::retry_after_ms`] tells when to come back.
    Off,
    /// It is tried again when the server said.
    AsAdvised {
        /// How long the server may turn it away without serving it in between; then it fails. It
        /// also fails at once if the server wants it back later than that. `None`: for ever.
        limit: Option<Duration>,
    },
    /// It is tried again after a fixed time, whatever the server said. That is for measuring:
    /// the server knows best when it has time.
    Fixed {
        /// The time.
        delay: Duration,
        /// See [`RetryPolicy::AsAdvised`].
        limit: Option<Duration>,
    },
}

impl Default for RetryPolicy {
    /// As advised, for five minutes.
    fn default() -> RetryPolicy {
        RetryPolicy::AsAdvised { limit: Some(LIMIT) }
    }
}

impl RetryPolicy {
    /// How long to wait after this error: the longer the less often, should the server say
    /// something short again and again; `None` if it is final. `waited` is the time since the
    /// server first turned the sync away.
    pub(crate) fn wait(self, error: &ClientError, waited: Duration) -> Option<Duration> {
        let advised = Duration::from_millis(error.retry_after_ms()?);
        // Whoever guesses passwords is not helped along, and whoever mistyped has to know.
        if error.code() == Code::TooManyAttempts {
            return None;
        }
        let (wait, limit) = match self {
            RetryPolicy::Off => return None,
            RetryPolicy::AsAdvised { limit } => {
                (advised.max(waited / SLOWER).min(LONGEST_WAIT), limit)
            }
            RetryPolicy::Fixed { delay, limit } => (delay, limit),
        };
        let is_within = limit.is_none_or(|limit| waited.saturating_add(wait) <= limit);
        is_within.then_some(wait)
    }
}

#[cfg(test)]
mod tests {
    use tidewater_connection::device::DeviceError;
    use tidewater_protocol::message::FailureNotice;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn busy(retry_after_ms: u64) -> ClientError {
        DeviceError::Busy { retry_after_ms }.into()
    }

    #[test]
    fn a_policy_says_how_long_to_wait_and_when_it_is_enough() {
        let advised = |limit| RetryPolicy::AsAdvised { limit };
        let patient = advised(None);
        assert_eq!(patient.wait(&busy(1_500), 9 * SECOND), Some(SECOND * 3 / 2));
        assert_eq!(patient.wait(&busy(100), 80 * SECOND), Some(10 * SECOND));
        assert_eq!(patient.wait(&busy(u64::MAX), SECOND), Some(LONGEST_WAIT));
        let limited = advised(Some(10 * SECOND));
        assert_eq!(limited.wait(&busy(4_000), 6 * SECOND), Some(4 * SECOND));
        assert_eq!(limited.wait(&busy(4_001), 6 * SECOND), None);
        assert_eq!(RetryPolicy::Off.wait(&busy(1), Duration::ZERO), None);
        let (delay, limit) = (50 * SECOND, None);
        let fixed = RetryPolicy::Fixed { delay, limit };
        assert_eq!(fixed.wait(&busy(1), 1_000 * SECOND), Some(delay));
        assert!(RetryPolicy::default().wait(&busy(90_000), SECOND).is_some());
    }

    #[test]
    fn only_what_the_server_says_a_time_for_is_tried_again() {
        let wait = |code, after_ms| {
            let mut failure = FailureNotice::new(code, "no", "");
            failure.retry_after_ms = after_ms;
            let error: ClientError = DeviceError::from(failure).into();
            RetryPolicy::default().wait(&error, Duration::ZERO)
        };
        for code in [
            Code::Busy,
            Code::ConsolidatedUnavailable,
            Code::SyncInProgress,
        ] {
            assert_eq!(wait(code, 1_000), Some(SECOND));
            assert_eq!(wait(code, 0), None);
        }
        assert_eq!(wait(Code::TooManyAttempts, 1_000), None);
        let lost = DeviceError::ConnectionLost {
            during: "the upload",
            source: None,
        };
        assert_eq!(RetryPolicy::default().wait(&lost.into(), SECOND), None);
    }
}
