//! What a remote keeps for the centre with its scope: how far it has come, in which history of the
//! database, and which rules its scope is by.

use super::publication::RowRule;
use crate::scope::{Checkpoint, HeldRule};
use crate::watermark::Watermark;

/// A watermark older than this is made new even if there is nothing to send, so that it outlives
/// the retention of the logs. A day.
const RENEW_AFTER_MS: i64 = 24 * 60 * 60 * 1000;

/// Whether a watermark is so old that it is made new; `created_ms` is its mark's time.
pub fn is_old(created_ms: Option<i64>, now_ms: i64) -> bool {
    created_ms.is_none_or(|created_ms| now_ms.saturating_sub(created_ms) > RENEW_AFTER_MS)
}

/// A checkpoint as far as it is understood.
pub struct PresentedCheckpoint<'c> {
    /// Its watermark.
    pub watermark: Watermark,
    checkpoint: &'c Checkpoint,
}

impl<'c> PresentedCheckpoint<'c> {
    /// Understands a checkpoint; `None` if its watermark is none.
    pub fn from_checkpoint(checkpoint: &'c Checkpoint) -> Option<PresentedCheckpoint<'c>> {
        let watermark = Watermark::read(&checkpoint.watermark)?;
        let fits = watermark.rules.len() == checkpoint.rules.len();
        fits.then_some(PresentedCheckpoint {
            watermark,
            checkpoint,
        })
    }

    /// The place of a rule's part in the scope; `None` if the remote knows nothing of it.
    pub fn place(&self, rule: i64) -> Option<usize> {
        self.watermark.rules.iter().position(|&it| it == rule)
    }

    /// What the remote was given by a rule.
    pub fn held(&self, rule: i64) -> Option<&'c HeldRule> {
        Some(&self.checkpoint.rules[self.place(rule)?])
    }
}

/// What a checkpoint says of each rule of a publication.
pub fn held<'c>(
    rules: &[RowRule],
    checkpoint: Option<&'c Checkpoint>,
) -> Vec<Option<&'c HeldRule>> {
    let presented = checkpoint.and_then(PresentedCheckpoint::from_checkpoint);
    let held = rules.iter().map(|rule| presented.as_ref()?.held(rule.id));
    held.collect()
}
