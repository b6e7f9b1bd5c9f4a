//! Which way a sync goes.

/// Which way a sync goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncDirection {
    /// Up and down.
    #[default]
    Both,
    /// Local changes go up; nothing comes down but what became of them.
    UploadOnly,
    /// Changes come down; local ones stay pending.
    DownloadOnly,
}
