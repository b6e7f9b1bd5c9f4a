//! What a Welcome says, checked against the Hello.

use tidewater_protocol::message::{NumberBlock, UploadState, Welcome, WelcomeSubscription};
use tidewater_protocol::{PublicationSchema, RemoteId, UploadId};

use super::error::SyncError;
use crate::database::{CentreState, CompareDue, SubscriptionState};

/// A Welcome that makes sense.
#[derive(Debug)]
pub(super) struct WelcomeAnswer {
    /// Whether the server takes us for a restored or copied remote: its new id and credential.
    pub(super) new_identity: Option<(RemoteId, Vec<u8>)>,
    /// For each subscription: the last upload that the centre says it has, if we are at odds.
    pub(super) has: Vec<Option<(u64, UploadId)>>,
    /// What the centre has forgotten, or does not know: the session ends, and the next one
    /// goes by it.
    pub(super) forgotten: Vec<CentreState>,
    /// For each subscription: whether its pending upload was applied already.
    pub(super) already_applied: Vec<bool>,
    /// For each subscription: its new schema.
    pub(super) schemas: Vec<Option<PublicationSchema>>,
    /// The numbers that it has for us, each with the subscription's number in the file.
    pub(super) blocks: Vec<(i64, NumberBlock)>,
    /// For each subscription: what the server has of an upload that broke off, bytes and checksum.
    pub(super) received: Vec<(u64, u32)>,
}

impl WelcomeAnswer {
    pub(super) fn read(
        welcome: Welcome,
        subscriptions: &[SubscriptionState],
    ) -> Result<WelcomeAnswer, SyncError> {
        if welcome.subscriptions.len() != subscriptions.len() {
            return Err(SyncError::malformed(format!(
                "its Welcome answers to {} subscriptions; we have {}",
                welcome.subscriptions.len(),
                subscriptions.len()
            )));
        }
        let mut new_identity = false;
        let mut read = WelcomeAnswer {
            new_identity: None,
            has: Vec::new(),
            forgotten: Vec::new(),
            already_applied: Vec::new(),
            schemas: Vec::new(),
            blocks: Vec::new(),
            received: Vec::new(),
        };
        for (answer, subscription) in welcome.subscriptions.iter().zip(subscriptions) {
            let state = UploadState::try_from(answer.upload_state).map_err(|_| {
                SyncError::malformed(format!("unknown upload state {}", answer.upload_state))
            })?;
            if state == UploadState::AlreadyApplied && subscription.next_upload().is_none() {
                return Err(SyncError::unexpected(format!(
                    "it has an upload of {:?} that was never sent",
                    subscription.publication
                )));
            }
            new_identity |= state == UploadState::NewIdentity;
            let has = UploadId::from_slice(&answer.upload_id);
            read.has.push(has.map(|id| (answer.sequence, id)));
            read.forgotten
                .extend(forgotten(answer, state, subscription)?);
            read.already_applied
                .push(state == UploadState::AlreadyApplied);
            let blocks = answer.blocks.iter().cloned();
            read.blocks
                .extend(blocks.map(|block| (subscription.id, block)));
            let received = (answer.received_bytes, answer.received_checksum);
            read.received.push(received);
            read.schemas.push(schema(&answer.schema, subscription)?);
        }
        // Under another id nothing of what we know about uploads would hold.
        if new_identity == welcome.remote_id.is_empty() {
            return Err(SyncError::unexpected(
                "a new id and the word that the remote starts over must come together",
            ));
        }
        if new_identity {
            let remote_id = RemoteId::from_slice(&welcome.remote_id);
            let remote_id = remote_id
                .ok_or_else(|| SyncError::malformed("the remote id in its Welcome is no UUID"))?;
            read.new_identity = Some((remote_id, welcome.credential));
        }
        Ok(read)
    }
}

/// What the centre does not have that it once had.
fn forgotten(
    answer: &WelcomeSubscription,
    state: UploadState,
    subscription: &SubscriptionState,
) -> Result<Option<CentreState>, SyncError> {
    let formers = subscription.formers.iter().zip(&answer.formers);
    let formers: Vec<_> = formers
        .filter(|(former, has)| former.sequence > **has)
        .map(|(former, &has)| (former.remote_id, has))
        .collect();
    let last_upload = match state {
        UploadState::CentreRestored if answer.sequence < subscription.sequence => {
            Some((answer.sequence, UploadId::from_slice(&answer.upload_id)))
        }
        UploadState::CentreRestored if formers.is_empty() => {
            return Err(SyncError::unexpected(format!(
                "it has forgotten uploads of {:?}, but has number {} and we know of {}",
                subscription.publication, answer.sequence, subscription.sequence
            )));
        }
        _ => None,
    };
    if answer.compare && subscription.compares {
        return Err(SyncError::unexpected(format!(
            "it asked for a compare of {:?}, which was on its way",
            subscription.publication
        )));
    }
    let compare_due = match (answer.compare, state) {
        (true, _) => CompareDue::UnknownHistory,
        (false, UploadState::CentreRestored) => CompareDue::Yes,
        (false, _) => return Ok(None),
    };
    Ok(Some(CentreState {
        subscription: subscription.id,
        last_upload,
        formers,
        compare_due,
    }))
}

fn schema(
    bytes: &[u8],
    subscription: &SubscriptionState,
) -> Result<Option<PublicationSchema>, SyncError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let schema = PublicationSchema::decode(bytes)
        .map_err(|error| SyncError::malformed(error.to_string()))?;
    if schema.name == subscription.publication {
        Ok(Some(schema))
    } else {
        Err(SyncError::unexpected(format!(
            "it sent the schema of {:?} for {:?}",
            schema.name, subscription.publication
        )))
    }
}
