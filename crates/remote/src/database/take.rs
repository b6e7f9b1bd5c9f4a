//! Beginning a sync: restoring the triggers and taking the current generation.

use tidewater_protocol::UploadId;

use super::{Database, SubscriptionState};
use crate::error::RemoteError;

impl Database {
    /// Begins a sync: restores tracking triggers that are missing and, unless only a
    /// download is wanted, takes what is pending as the next upload of each subscription.
    pub fn begin_sync(
        &mut self,
        download_only: bool,
        new_upload_id: &mut dyn FnMut() -> UploadId,
    ) -> Result<Vec<SubscriptionState>, RemoteError> {
        let _ = (download_only, new_upload_id);
        todo!()
    }
}
