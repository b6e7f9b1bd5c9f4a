//! What a user can put right.

/// Wrong input: not a defect, and not a measurement that failed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct BadInput {
    /// What is wrong.
    pub message: String,
    /// What to do next.
    pub hint: String,
}

impl BadInput {
    pub(crate) fn error(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(BadInput {
            message: message.into(),
            hint: hint.into(),
        })
    }
}
