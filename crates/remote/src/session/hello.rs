//! Opening a sync: who we are, how we prove it, what we subscribe to.

use bytes::BytesMut;
use tidewater_protocol::frame::{CONNECTION_CHANNEL, PREFACE, SYNC_CHANNEL, put_control};
use tidewater_protocol::message::{
    self, Control, Hello, HelloSubscription, PROTOCOL_VERSION, Proof, SignIn,
};

use super::ProofKind;
use super::error::SyncError;
use crate::database::{Account, CompareDue, Former, SubscriptionState};

/// The proof to present: the cheapest at hand from `from` on; those before it were refused.
pub(super) fn choose_proof(
    account: &Account,
    from: ProofKind,
    password: Option<&str>,
) -> Result<(ProofKind, Proof), SyncError> {
    // A remote without an id is not known to the server: only the password speaks for it.
    let known = account.remote_id.is_some();
    if known
        && from == ProofKind::Token
        && let Some(token) = &account.token
    {
        return Ok((ProofKind::Token, Proof::Token(token.clone())));
    }
    if known
        && from != ProofKind::Password
        && let Some(credential) = &account.credential
    {
        return Ok((ProofKind::Credential, Proof::Credential(credential.clone())));
    }
    match password {
        Some(password) => Ok((ProofKind::Password, Proof::Password(password.to_owned()))),
        None => Err(SyncError::PasswordMissing),
    }
}

/// The preface, who we are, and the Hello. `downloads`: whether more than results is asked for.
pub(super) fn opening(
    account: &Account,
    proof: Proof,
    client: &str,
    subscriptions: &[SubscriptionState],
    downloads: bool,
) -> Result<BytesMut, SyncError> {
    let subscriptions = subscriptions.iter().map(|subscription| HelloSubscription {
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
    });
    let sign_in = SignIn {
        protocol_version: PROTOCOL_VERSION,
        remote_id: account.remote_id.map(|id| id.to_vec()).unwrap_or_default(),
        user: account.user.clone(),
        proof: Some(proof),
        client: client.to_owned(),
        centre: account.centre.clone(),
    };
    let hello = Hello {
        subscriptions: subscriptions.collect(),
    };
    let mut out = BytesMut::from(&PREFACE[..]);
    put_control(&mut out, CONNECTION_CHANNEL, Control::SignIn(sign_in))?;
    put_control(&mut out, SYNC_CHANNEL, Control::Hello(hello))?;
    Ok(out)
}

fn former(former: &Former) -> message::Former {
    message::Former {
        remote_id: former.remote_id.to_vec(),
        sequence: former.sequence,
        upload_id: former.upload_id.to_vec(),
    }
}

/// What a session presents of a checkpoint. One whose history the centre does not know makes it
/// ask for a compare, and take no upload before: a session that only uploads goes without.
fn checkpoint(subscription: &SubscriptionState, downloads: bool) -> Vec<u8> {
    let is_unknown = subscription.compare_due == CompareDue::UnknownHistory;
    match is_unknown && !downloads {
        true => Vec::new(),
        false => subscription.checkpoint.clone(),
    }
}
