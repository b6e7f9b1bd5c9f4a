//! The keeper: the link's own thread, which reads when nobody else does.

use std::sync::Weak;
use std::time::Duration;

use super::state::SharedLink;

/// The keeper leaves reading to callers that follow each other as closely as that.
const PAUSE: Duration = Duration::from_millis(5);

/// Reads when nobody else does.
pub(super) fn keep(link: &Weak<SharedLink>) {
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
