//! Opening a sync: what we subscribe to, and what we know of it.

use tidewater_protocol::message::{self, Control, Hello, HelloSubscription, NumbersLeft};

use super::download_parts::DownloadParts;
use crate::database::{CompareDue, FormerIdentity, SubscriptionState};

/// The Hello. `downloads`: whether more than results is asked for.
pub(super) fn hello(
    subscriptions: &[SubscriptionState],
    parts: &DownloadParts,
    downloads: bool,
) -> Control {
    let subscriptions = subscriptions.iter().enumerate();
    let subscriptions = subscriptions.map(|(index, subscription)| HelloSubscription {
        publication: subscription.publication.clone(),
        sequence: subscription.sequence,
        upload_id: subscription
            .upload_id
            .map(|id| id.to_vec())
            .unwrap_or_default(),
        // Also when the upload itself is not sent: the server may have applied it, and
        // would take us for a copy if we did not know it.
        pending_upload_id: subscription
            .next_upload()
            .map(|id| id.to_vec())
            .unwrap_or_default(),
        checkpoint: checkpoint(subscription, downloads),
        schema_hash: subscription.schema_hash.clone(),
        compares: subscription.compares,
        formers: subscription.formers.iter().map(former).collect(),
        numbers: subscription
            .numbers
            .iter()
            .map(|(table, left)| NumbersLeft {
                table: table.clone(),
                left: *left,
            })
            .collect(),
        parameters: subscription.parameters.clone(),
        refused_from: subscription.refused_from,
        settled_after: subscription.settled_after,
        verified: subscription.verified.clone(),
        partial: parts.presented(index),
        image: match subscription.checkpoint.is_empty() {
            true => Vec::new(),
            false => subscription.image.clone(),
        },
    });
    Control::Hello(Hello {
        subscriptions: subscriptions.collect(),
    })
}

fn former(former: &FormerIdentity) -> message::FormerId {
    message::FormerId {
        remote_id: former.remote_id.to_vec(),
        sequence: former.sequence,
        upload_id: former.upload_id.to_vec(),
    }
}

/// What a session presents of a checkpoint. One whose history the centre does not know makes it
/// ask for a compare, and take no upload before: a session that only uploads goes without.
pub(super) fn checkpoint(subscription: &SubscriptionState, downloads: bool) -> Vec<u8> {
    let is_unknown = subscription.compare_due == CompareDue::UnknownHistory;
    match is_unknown && !downloads {
        true => Vec::new(),
        false => subscription.checkpoint.clone(),
    }
}
