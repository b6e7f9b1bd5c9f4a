//! A list of uploads in one transaction, each undone alone if it has to be.

use crate::engine::upload::apply::apply_one;
use crate::engine::upload::batching;
use crate::engine::upload::upload_driver::UploadDriver;
use crate::engine::upload::upload_writer::{UploadWriter, fails_alone};
use crate::upload::{SyncUpload, UploadOutcome};

use crate::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

/// Applies a list of uploads; see [`crate::Worker::apply`].
pub async fn apply(
    rows: &mut UploadWriter<impl UploadDriver>,
    uploads: &[SyncUpload],
) -> Result<Vec<UploadOutcome>> {
    for upload in uploads {
        upload.context.scripts.begin_upload(&upload.publication);
    }
    let mut attempts = 0;
    loop {
        match try_apply(rows, uploads).await {
            Err(error) => {
                rows.try_again("applying uploads", error, &mut attempts)
                    .await?
            }
            done => return done,
        }
        for upload in uploads {
            upload.context.scripts.count_deadlock(&upload.publication);
        }
    }
}

async fn try_apply(
    rows: &mut UploadWriter<impl UploadDriver>,
    uploads: &[SyncUpload],
) -> Result<Vec<UploadOutcome>> {
    if uploads.is_empty() {
        return Ok(Vec::new());
    }
    let mut outcomes = batching::apply(rows, uploads).await?;
    for (number, upload) in uploads.iter().enumerate() {
        if outcomes.contains_key(&number) {
            continue;
        }
        rows.begin(number).await?;
        let outcome = match apply_one(rows, upload, uploads.len() == 1).await {
            Ok(outcome) => outcome,
            Err(error) if fails_alone(&error) && rows.is_usable() => {
                rows.undo_failed(&error).await?;
                UploadOutcome::Failed { error }
            }
            Err(error) => return Err(error),
        };
        outcomes.insert(number, outcome);
    }
    rows.commit().await?;
    Ok(outcomes.into_values().collect())
}
