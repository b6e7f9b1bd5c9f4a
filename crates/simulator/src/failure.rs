//! How a simulation fails.

/// A promise is broken, or something that cannot be has happened.
#[derive(Debug)]
pub(crate) struct SimulationFailure(pub(crate) String);

impl<E: std::error::Error> From<E> for SimulationFailure {
    fn from(error: E) -> SimulationFailure {
        SimulationFailure(format!("unexpected: {error}"))
    }
}
