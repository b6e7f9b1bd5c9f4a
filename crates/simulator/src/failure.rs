//! How a simulation fails.

/// A promise is broken, or something that cannot be has happened.
#[derive(Debug)]
pub(crate) struct Failed(pub(crate) String);

impl<E: std::error::Error> From<E> for Failed {
    fn from(error: E) -> Failed {
        Failed(format!("unexpected: {error}"))
    }
}
