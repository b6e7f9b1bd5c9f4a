//! How certain it is that a remote may go on.

use std::time::Duration;

use tokio::time::Instant;

/// How long an answer is as good as new.
const CERTAIN_FOR: Duration = Duration::from_millis(100);

/// How certain it is that a remote may go on. Who signs in is looked up once; what came over the
/// network since makes the worker ask once more, before it applies an upload or reads a download.
#[derive(Clone, Copy, Debug)]
pub struct SessionValidity(Option<Instant>);

impl SessionValidity {
    /// It was looked up after this moment, and nothing came from it since.
    pub fn known_since(moment: Instant) -> SessionValidity {
        SessionValidity(Some(moment))
    }

    /// Something came from it since.
    pub fn doubtful() -> SessionValidity {
        SessionValidity(None)
    }

    /// Whether nobody needs to be asked.
    pub fn is_certain(self) -> bool {
        self.0.is_some_and(|at| at.elapsed() < CERTAIN_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn certainty_wears_off() {
        let validity = SessionValidity::known_since(Instant::now());
        assert!(validity.is_certain() && !SessionValidity::doubtful().is_certain());
        tokio::time::advance(CERTAIN_FOR).await;
        assert!(!validity.is_certain());
    }
}
