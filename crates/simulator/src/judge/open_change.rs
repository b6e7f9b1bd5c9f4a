//! A change of a remote of which it is not known what became.

/// The last change of a row.
#[derive(Clone, Debug)]
pub(super) struct OpenChange {
    pub(super) text: Option<String>,
    /// What a row had here that is gone: where that did not reach the centre, nothing does.
    pub(super) before: Option<String>,
    /// The row was made here, and perhaps nobody else knows of it.
    pub(super) is_new: bool,
    /// How far the centre's audit was by then.
    pub(super) since: i64,
    /// How far it was when the row was first deleted, though it has been made again since: what
    /// is deleted once more need not be gone once more.
    pub(super) deleted: Option<i64>,
    /// What a deleted row was when the remote last had it from the centre.
    pub(super) pre_image: Option<String>,
    /// What a row was that was deleted while nothing tracked its table.
    pub(super) untracked: Option<String>,
}
