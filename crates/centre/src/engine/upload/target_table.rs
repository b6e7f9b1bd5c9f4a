//! What the engine has to know of a table that uploads are written to.

/// A table that uploads are written to.
pub trait TargetTable: Send + Sync {
    /// What a delete of it would do to published children.
    fn on_delete(&self) -> OnDelete;

    /// Whether a published column can be written; the others are computed.
    fn is_written(&self, column: usize) -> bool;

    /// Whether an update can set a column that can be written.
    fn is_settable(&self, column: usize) -> bool;
}

/// What a delete does to published rows that refer to the deleted one by a foreign key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDelete {
    /// Nothing.
    Nothing,
    /// It would take them along, or change them: they are looked for before it.
    Looks,
    /// The same, and that is as its operator wants it.
    TakesAlong,
}
