//! Calls that go on though nobody may wait for them any more: no connection bounds them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidewater_protocol::message::CallFailed;

use crate::call_outcome as outcome;

/// So many of one user go on at most.
const MAX_UNAWAITED: usize = 1_000;

/// How many go on, by user.
#[derive(Clone, Default)]
pub struct UnawaitedCalls(Arc<Mutex<HashMap<String, usize>>>);

/// As long as it is there, one goes on.
pub struct GoesOn {
    all: UnawaitedCalls,
    user: String,
}

impl UnawaitedCalls {
    fn counts(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more.
    pub fn enter(&self, user: &str) -> Result<GoesOn, CallFailed> {
        let mut counts = self.counts();
        let count = counts.get(user).copied().unwrap_or_default();
        if count >= MAX_UNAWAITED {
            return Err(outcome::busy(
                "too many calls of this user go on for which nobody waits",
            ));
        }
        counts.insert(user.to_owned(), count + 1);
        Ok(GoesOn {
            all: self.clone(),
            user: user.to_owned(),
        })
    }
}

impl Drop for GoesOn {
    fn drop(&mut self) {
        let mut counts = self.all.counts();
        match counts.get_mut(&self.user) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(counts.remove(&self.user)),
        }
    }
}

#[cfg(test)]
mod tests {
    use tidewater_protocol::Code;

    use super::*;

    #[test]
    fn one_user_has_so_many_and_leaves_others_theirs() {
        let all = UnawaitedCalls::default();
        let mut going: Vec<_> = (0..MAX_UNAWAITED)
            .map(|_| all.enter("ada").unwrap())
            .collect();
        let refused = all.enter("ada").err().unwrap();
        assert_eq!(refused.code(), Some(Code::Busy));
        assert!(refused.retry_after_ms > 0);
        drop(all.enter("bob").unwrap());
        going.pop();
        drop(all.enter("ada").unwrap());
        drop(going);
        assert!(all.counts().is_empty());
    }
}
