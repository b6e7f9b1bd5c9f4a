//! What a worker reads for a download.

use super::Sync;
use super::opening::OpenedSync;
use tidewater_centre::packed_rows::TableRequest;
use tidewater_centre::{
    DownloadJob, DownloadSubscription, GainedPartitions, GivenTable, OwnUpload, TableCompare,
    UploadResult,
};

/// What the uploads of a sync came to.
#[derive(Default)]
pub(crate) struct AppliedUploads {
    /// Index of the subscription, sequence, id, result.
    pub(crate) results: Vec<(usize, UploadResult)>,
    pub(crate) own: Vec<(usize, OwnUpload)>,
}

impl AppliedUploads {
    /// What the download has to answer: what the remote asks for, and what handlers have seen to.
    fn requests(&self, index: usize, mut asked: Vec<TableRequest>) -> Vec<TableRequest> {
        let of_index = self.results.iter().filter(|(of, _)| *of == index);
        asked.extend(of_index.flat_map(|(_, it)| it.requests()));
        asked
    }

    /// See [`UploadResult::gained`]; of one subscription.
    fn gained(&self, index: usize) -> Vec<GainedPartitions> {
        let of_index = self.results.iter().filter(|(of, _)| *of == index);
        of_index.flat_map(|(_, it)| it.gained.clone()).collect()
    }
}

impl Sync<'_> {
    /// What a worker reads: of each subscription what it asks for besides the changes.
    pub(crate) fn download_job(
        &self,
        opened: &OpenedSync,
        applied: &mut AppliedUploads,
        besides: impl Iterator<Item = ((Vec<TableRequest>, Vec<TableCompare>), Vec<GivenTable>)>,
    ) -> DownloadJob {
        let subscriptions = opened.subscriptions.iter().zip(besides).enumerate();
        let subscriptions = subscriptions.map(|(index, (subscription, besides))| {
            let ((requests, compares), given) = besides;
            DownloadSubscription {
                publication: subscription.published.schema.name.clone(),
                schema: subscription.published.schema.clone(),
                before: subscription.before.clone(),
                checkpoint: subscription.checkpoint.clone(),
                from_image: subscription.from_image,
                requests: applied.requests(index, requests),
                compares,
                kept: subscription.mark.clone(),
                part_of: None,
                own: take_own(&mut applied.own, index),
                gained: applied.gained(index),
                refused_from: subscription.refusal_news.refused_from,
                settled_after: subscription.refusal_news.settled_after,
                given,
            }
        });
        let parts = opened.subscriptions.iter().enumerate();
        let parts = parts.filter_map(|(index, subscription)| {
            let part = subscription.part.clone()?;
            Some(DownloadSubscription {
                publication: subscription.published.schema.name.clone(),
                schema: subscription.published.schema.clone(),
                before: None,
                checkpoint: Some(*part),
                from_image: false,
                requests: Vec::new(),
                compares: Vec::new(),
                kept: None,
                part_of: Some(index),
                own: None,
                gained: Vec::new(),
                refused_from: 0,
                settled_after: 0,
                given: Vec::new(),
            })
        });
        // No room for more than there are: it is held as long as the download waits for a worker.
        let mut subscriptions: Vec<DownloadSubscription> = subscriptions.collect();
        subscriptions.extend(parts);
        DownloadJob {
            subscriptions,
            marks: self.service.limits.marks,
            only_opens: false,
            context: opened.context(self.service.environment.clock.now_ms()),
        }
    }
}

fn take_own(own: &mut Vec<(usize, OwnUpload)>, index: usize) -> Option<OwnUpload> {
    let position = own.iter().position(|(of, _)| *of == index)?;
    Some(own.swap_remove(position).1)
}
