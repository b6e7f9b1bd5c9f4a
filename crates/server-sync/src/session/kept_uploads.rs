//! Uploads that broke off, kept for a while so that their remotes need not send them anew.
//!
//! Only on the server to which they were sent: on another one an upload begins again. What is kept
//! are whole rows, in the order in which they came.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use tidewater_protocol::{RemoteId, UploadId};

use super::upload::BrokenUpload;

/// Less is not worth it.
pub(crate) const LEAST_BYTES: u64 = 256 << 10;

/// Whoever has not come back by then begins anew.
const KEPT_FOR: Duration = Duration::from_secs(600);

/// So many are kept.
const KEPT: usize = 64;

/// So much of the memory for rows they hold, together; the rest is in files.
const MEMORY_SHARE: u64 = 4;

/// Which upload it is.
#[derive(Clone, PartialEq, Eq)]
pub struct UploadName {
    /// The remote.
    pub remote_id: RemoteId,
    /// The publication.
    pub publication: String,
    /// The number of the upload.
    pub sequence: u64,
    /// Its id.
    pub upload_id: UploadId,
    /// Of the schema in which the publication was served.
    pub schema_hash: [u8; 32],
}

/// One that is kept.
struct KeptUpload {
    since: Instant,
    name: UploadName,
    upload: Box<BrokenUpload>,
}

/// The uploads that broke off.
pub struct KeptUploads {
    uploads: Mutex<VecDeque<KeptUpload>>,
    memory_bytes: u64,
}

impl KeptUploads {
    /// `memory_bytes`: for rows on their way, altogether.
    pub fn new(memory_bytes: u64) -> KeptUploads {
        KeptUploads {
            uploads: Mutex::default(),
            memory_bytes,
        }
    }

    /// Keeps what has come of an upload. Of those before it the oldest go where there is no room.
    pub(crate) fn keep(&self, name: UploadName, upload: Box<BrokenUpload>) {
        let mut uploads = self.uploads();
        uploads.retain(|it| {
            it.name.remote_id != name.remote_id || it.name.publication != name.publication
        });
        uploads.push_back(KeptUpload {
            since: Instant::now(),
            name,
            upload,
        });
        let memory = |uploads: &VecDeque<KeptUpload>| {
            uploads
                .iter()
                .map(|it| it.upload.memory_bytes())
                .sum::<u64>()
        };
        while uploads.len() > KEPT || memory(&uploads) > self.memory_bytes / MEMORY_SHARE {
            uploads.pop_front();
        }
    }

    /// What has come of an upload, once. Mostly nothing is kept, and no name is needed.
    pub(crate) fn take(&self, name: impl FnOnce() -> UploadName) -> Option<Box<BrokenUpload>> {
        let mut uploads = self.uploads();
        if uploads.is_empty() {
            return None;
        }
        let name = name();
        let at = uploads.iter().position(|it| it.name == name)?;
        uploads.remove(at).map(|it| it.upload)
    }

    /// Forgets those that nobody has come back for.
    pub fn sweep(&self) {
        let now = Instant::now();
        self.uploads().retain(|it| now - it.since < KEPT_FOR);
    }

    fn uploads(&self) -> MutexGuard<'_, VecDeque<KeptUpload>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
