//! The server lets us in: what a Welcome says, checked against the Hello.

use tidewater_protocol::message::{PROTOCOL_MAJOR, UploadState, Welcome, WelcomeSubscription};
use tidewater_protocol::{Code, PublicationSchema, RemoteId, UploadId};

use super::error::SyncError;
use crate::database::{CentreState, CompareDue, SubscriptionState};

/// A Welcome that makes sense.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) remote_id: RemoteId,
    pub(super) token: Option<Vec<u8>>,
    pub(super) credential: Option<Vec<u8>>,
    /// The centre's name; empty if the server does not say.
    pub(super) centre: String,
    /// Whether the server takes us for a restored or copied remote.
    pub(super) new_identity: bool,
    /// For each subscription: the last upload that the centre says it has, if we are at odds.
    pub(super) has: Vec<Option<(u64, UploadId)>>,
    /// The subscriptions whose kept uploads are wanted back under the new identity.
    pub(super) give_back: Vec<i64>,
    /// What the centre has forgotten, or does not know: the session ends, and the next one
    /// goes by it.
    pub(super) forgotten: Vec<CentreState>,
    /// For each subscription: whether its pending upload was applied already.
    pub(super) already_applied: Vec<bool>,
    /// For each subscription: its new schema.
    pub(super) schemas: Vec<Option<PublicationSchema>>,
}

impl Admission {
    /// Reads a Welcome. `own` is the remote's id so far.
    pub(super) fn read(
        welcome: Welcome,
        own: Option<RemoteId>,
        subscriptions: &[SubscriptionState],
    ) -> Result<Admission, SyncError> {
        let major = welcome.protocol_version >> 16;
        if major != PROTOCOL_MAJOR {
            return Err(SyncError::Protocol {
                code: Code::ProtocolVersion,
                what: format!("it chose protocol version {major}, which we do not speak"),
            });
        }
        let remote_id = RemoteId::from_slice(&welcome.remote_id)
            .ok_or_else(|| SyncError::malformed("the remote id in its Welcome is no UUID"))?;
        if welcome.subscriptions.len() != subscriptions.len() {
            return Err(SyncError::malformed(format!(
                "its Welcome answers to {} subscriptions; we have {}",
                welcome.subscriptions.len(),
                subscriptions.len()
            )));
        }
        let mut admission = Admission {
            remote_id,
            token: some(welcome.token),
            credential: some(welcome.credential),
            centre: welcome.centre,
            new_identity: false,
            has: Vec::new(),
            give_back: Vec::new(),
            forgotten: Vec::new(),
            already_applied: Vec::new(),
            schemas: Vec::new(),
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
            admission.new_identity |= state == UploadState::NewIdentity;
            let has = UploadId::from_slice(&answer.upload_id);
            admission.has.push(has.map(|id| (answer.sequence, id)));
            if answer.give_back {
                admission.give_back.push(subscription.id);
            }
            admission
                .forgotten
                .extend(forgotten(answer, state, subscription)?);
            admission
                .already_applied
                .push(state == UploadState::AlreadyApplied);
            let schema = schema(&answer.schema, subscription)?;
            admission.schemas.push(schema);
        }
        if own.is_none() && admission.new_identity {
            return Err(SyncError::unexpected(
                "it gave another identity to a remote that has none",
            ));
        }
        // Under another id nothing of what we know about uploads would hold.
        if !admission.new_identity && own.is_some_and(|own| own != remote_id) {
            return Err(SyncError::unexpected(
                "it gave the remote another id without saying that it starts over",
            ));
        }
        Ok(admission)
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

fn some(bytes: Vec<u8>) -> Option<Vec<u8>> {
    (!bytes.is_empty()).then_some(bytes)
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
