//! The Hello, checked: sizes, identities, publications named twice, and which of its
//! checkpoints are genuine. Whether the remote is who it says is for
//! [`super::sign_in`] to find out.

use tidewater_consolidated::Checkpoint;
use tidewater_consolidated::records::{AskedSubscription, FormerRecord, SubscriptionRecord};
use tidewater_protocol::message::{
    self, Hello, HelloSubscription, MAX_FORMERS, PROTOCOL_VERSION, Proof, UploadState, negotiate,
};
use tidewater_protocol::{Code, RemoteId, UploadId};

use crate::auth::signing::{CheckpointFor, Keyring};
use crate::fault::Fault;

/// Names of users, publications and programs are shorter.
pub(crate) const MAX_NAME_BYTES: usize = 512;

/// A Hello whose parts are well-formed.
pub(crate) struct Greeting {
    /// The version that the session speaks.
    pub(crate) version: u32,
    pub(crate) remote_id: Option<RemoteId>,
    pub(crate) user: String,
    pub(crate) proof: Proof,
    pub(crate) subscriptions: Vec<Subscription>,
    pub(crate) client: String,
    /// The name of the centre that it knows; empty if none.
    pub(crate) centre: String,
}

/// A subscription as the remote knows it.
pub(crate) struct Subscription {
    pub(crate) publication: String,
    pub(crate) sequence: u64,
    pub(crate) upload_id: Option<UploadId>,
    pub(crate) pending: Option<UploadId>,
    pub(crate) checkpoint: Vec<u8>,
    pub(crate) schema_hash: Vec<u8>,
    /// Checksums of its tables follow.
    pub(crate) compares: bool,
    /// The ids that it had before, with the last upload under each that it keeps.
    pub(crate) formers: Vec<Former>,
    /// The checkpoint, once it is found to be what a server signed for the remote of the
    /// Hello under the schema of the Hello.
    pub(crate) genuine: Option<Checkpoint>,
}

/// See [`message::Former`].
pub(crate) struct Former {
    remote_id: RemoteId,
    sequence: u64,
    upload_id: UploadId,
}

impl Former {
    fn check(wire: message::Former) -> Result<Former, Fault> {
        let is_none = || malformed("a former id without an id");
        Ok(Former {
            remote_id: RemoteId::from_slice(&wire.remote_id).ok_or_else(is_none)?,
            sequence: wire.sequence,
            upload_id: UploadId::from_slice(&wire.upload_id).ok_or_else(is_none)?,
        })
    }

    /// The number of the last upload under this id that the centre has, as far as it matters to
    /// the remote: all of its own, if the id was removed and what it uploaded is not wanted back.
    pub(crate) fn has(&self, known: &FormerRecord) -> u64 {
        match &known.last {
            _ if known.removed => self.sequence,
            None => 0,
            // Another copy of the file has taken the number.
            Some(last)
                if last.sequence == self.sequence && last.upload_id != Some(self.upload_id) =>
            {
                self.sequence.saturating_sub(1)
            }
            Some(last) => last.sequence,
        }
    }

    /// Whether the centre has forgotten uploads under this id.
    pub(crate) fn is_ahead_of(&self, has: u64) -> bool {
        self.sequence > has
    }
}

impl Greeting {
    /// Checks a Hello.
    pub(crate) fn check(hello: Hello, max_subscriptions: usize) -> Result<Greeting, Fault> {
        let version = check_version(hello.protocol_version)?;
        check_name("user", &hello.user)?;
        check_name("client", &hello.client)?;
        check_name("centre", &hello.centre)?;
        if hello.subscriptions.len() > max_subscriptions {
            return Err(Fault::limit(
                "the number of subscriptions",
                max_subscriptions as u64,
                "subscriptions",
            ));
        }
        let proof = hello
            .proof
            .ok_or_else(|| malformed("a Hello without token, credential or password"))?;
        let subscriptions = hello.subscriptions.into_iter().map(Subscription::check);
        let subscriptions: Vec<Subscription> = subscriptions.collect::<Result<_, _>>()?;
        for (index, subscription) in subscriptions.iter().enumerate() {
            let before = &subscriptions[..index];
            if before
                .iter()
                .any(|other| other.publication == subscription.publication)
            {
                return Err(malformed("a Hello that names a publication twice"));
            }
        }
        Ok(Greeting {
            version,
            remote_id: identity(&hello.remote_id, RemoteId::from_slice)?,
            user: hello.user,
            proof,
            subscriptions,
            client: hello.client,
            centre: hello.centre,
        })
    }

    /// Finds out which checkpoints are genuine.
    pub(crate) fn verify(&mut self, keyring: &Keyring) {
        let Some(remote_id) = self.remote_id else {
            return;
        };
        for subscription in &mut self.subscriptions {
            let Ok(schema_hash) = subscription.schema_hash.as_slice().try_into() else {
                continue;
            };
            let subject = CheckpointFor {
                remote_id,
                publication: &subscription.publication,
                schema_hash,
            };
            subscription.genuine = keyring.open_checkpoint(subject, &subscription.checkpoint);
        }
    }

    /// What the centre is asked about the subscriptions, in order.
    pub(crate) fn asked(&self) -> Vec<AskedSubscription> {
        let asked = self.subscriptions.iter().map(|it| AskedSubscription {
            publication: it.publication.clone(),
            watermark: it.genuine.as_ref().map(|it| it.watermark.clone()),
            formers: it.formers.iter().map(|it| it.remote_id).collect(),
        });
        asked.collect()
    }

    /// The publications, in order.
    pub(crate) fn publications(&self) -> Vec<String> {
        let names = self.subscriptions.iter().map(|s| s.publication.clone());
        names.collect()
    }
}

impl Subscription {
    fn check(wire: HelloSubscription) -> Result<Subscription, Fault> {
        check_name("publication", &wire.publication)?;
        if !matches!(wire.schema_hash.len(), 0 | 32) {
            return Err(malformed("a schema hash that is none"));
        }
        if wire.sequence == u64::MAX {
            return Err(malformed("an impossible sequence number"));
        }
        if wire.formers.len() > MAX_FORMERS {
            return Err(malformed("a subscription with too many former ids"));
        }
        let formers = wire.formers.into_iter().map(Former::check);
        Ok(Subscription {
            publication: wire.publication,
            sequence: wire.sequence,
            upload_id: identity(&wire.upload_id, UploadId::from_slice)?,
            pending: identity(&wire.pending_upload_id, UploadId::from_slice)?,
            checkpoint: wire.checkpoint,
            schema_hash: wire.schema_hash,
            compares: wire.compares,
            formers: formers.collect::<Result<_, _>>()?,
            genuine: None,
        })
    }

    /// What the server makes of sequence and upload id, given what it has stored.
    pub(crate) fn upload_state(&self, stored: Option<&SubscriptionRecord>) -> UploadState {
        let (sequence, upload_id) =
            stored.map_or((0, None), |record| (record.sequence, record.upload_id));
        if sequence == self.sequence && upload_id == self.upload_id {
            UploadState::InSequence
        } else if sequence == self.sequence + 1
            && self.pending.is_some()
            && upload_id == self.pending
        {
            UploadState::AlreadyApplied
        } else if sequence < self.sequence {
            UploadState::CentreRestored
        } else {
            UploadState::NewIdentity
        }
    }
}

fn check_version(version: u32) -> Result<u32, Fault> {
    negotiate(version).ok_or_else(|| {
        Fault::new(
            Code::ProtocolVersion,
            format!(
                "the remote speaks protocol version {}.{}, the server {}.{}",
                version >> 16,
                version & 0xffff,
                PROTOCOL_VERSION >> 16,
                PROTOCOL_VERSION & 0xffff
            ),
            "update the older of the two: the remote's Tidewater or the server",
        )
    })
}

fn check_name(what: &str, name: &str) -> Result<(), Fault> {
    if name.len() > MAX_NAME_BYTES {
        return Err(malformed(&format!("a {what} name of {} bytes", name.len())));
    }
    Ok(())
}

fn identity<T>(bytes: &[u8], read: impl Fn(&[u8]) -> Option<T>) -> Result<Option<T>, Fault> {
    if bytes.is_empty() {
        return Ok(None);
    }
    read(bytes)
        .map(Some)
        .ok_or_else(|| malformed("an identity that is not 16 bytes long"))
}

fn malformed(what: &str) -> Fault {
    Fault::peer(Code::MalformedMessage, format!("the remote sent {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscription(sequence: u64, id: Option<u8>, pending: Option<u8>) -> Subscription {
        Subscription {
            publication: "p".into(),
            sequence,
            upload_id: id.map(|byte| UploadId([byte; 16])),
            pending: pending.map(|byte| UploadId([byte; 16])),
            checkpoint: Vec::new(),
            schema_hash: Vec::new(),
            compares: false,
            formers: Vec::new(),
            genuine: None,
        }
    }

    #[test]
    fn a_retry_a_follower_and_a_restored_remote_are_told_apart() {
        let stored = |sequence, id: u8| SubscriptionRecord {
            sequence,
            upload_id: Some(UploadId([id; 16])),
        };
        let state = |s: Subscription, r: Option<SubscriptionRecord>| s.upload_state(r.as_ref());
        use UploadState::{AlreadyApplied, CentreRestored, InSequence, NewIdentity};
        assert_eq!(state(subscription(0, None, None), None), InSequence);
        assert_eq!(state(subscription(0, None, Some(1)), None), InSequence);
        assert_eq!(
            state(subscription(0, None, Some(1)), Some(stored(1, 1))),
            AlreadyApplied
        );
        assert_eq!(
            state(subscription(0, None, Some(2)), Some(stored(1, 1))),
            NewIdentity
        );
        assert_eq!(
            state(subscription(0, None, None), Some(stored(1, 1))),
            NewIdentity
        );
        assert_eq!(
            state(subscription(1, Some(1), Some(2)), Some(stored(1, 1))),
            InSequence
        );
        assert_eq!(
            state(subscription(1, Some(9), Some(2)), Some(stored(1, 1))),
            NewIdentity
        );
        // The centre was restored: the remote's number runs ahead of what it has.
        let ahead = || subscription(3, Some(3), Some(4));
        assert_eq!(state(ahead(), None), CentreRestored);
        assert_eq!(state(ahead(), Some(stored(2, 2))), CentreRestored);
        assert_eq!(
            state(subscription(1, Some(1), Some(2)), Some(stored(3, 3))),
            NewIdentity
        );
    }

    #[test]
    fn impossible_hellos_are_refused() {
        let hello = || Hello {
            protocol_version: PROTOCOL_VERSION,
            user: "ada".into(),
            proof: Some(Proof::Password("x".into())),
            subscriptions: vec![HelloSubscription {
                publication: "p".into(),
                ..Default::default()
            }],
            ..Default::default()
        };
        assert!(Greeting::check(hello(), 1).is_ok());
        let refused = |change: &dyn Fn(&mut Hello)| {
            let mut changed = hello();
            change(&mut changed);
            let fault = Greeting::check(changed, 1).err();
            fault.expect("the Hello is refused").code
        };
        assert_eq!(refused(&|h| h.proof = None), Code::MalformedMessage);
        assert_eq!(
            refused(&|h| h.protocol_version = 9 << 16),
            Code::ProtocolVersion
        );
        assert_eq!(refused(&|h| h.remote_id = vec![1]), Code::MalformedMessage);
        assert_eq!(
            refused(&|h| h.user = "x".repeat(600)),
            Code::MalformedMessage
        );
        let double = |h: &mut Hello| h.subscriptions.push(h.subscriptions[0].clone());
        assert_eq!(refused(&double), Code::LimitExceeded);
        let mut twice = hello();
        double(&mut twice);
        assert!(Greeting::check(twice, 2).is_err());
        assert_eq!(
            refused(&|h| h.subscriptions[0].sequence = u64::MAX),
            Code::MalformedMessage
        );
    }
}
