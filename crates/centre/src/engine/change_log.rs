//! What a change log has to be.

/// What a change log has to be.
pub trait ChangeLog: Clone + Send + Sync {
    /// Tells change logs apart, by their table and what their entries have.
    fn identity(&self) -> String;

    /// Its table, for people.
    fn title(&self) -> &str;

    /// What tells it from others of its table, for people: the way to the table that decides, and
    /// the partition columns; nothing for "everyone".
    fn by(&self) -> &[String];

    /// Has it serve for what another one of its identity is for, too.
    fn join(&mut self, other: &Self);
}
