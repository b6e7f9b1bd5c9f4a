//! The Hello, checked: sizes, identities, publications named twice, and which of its
//! checkpoints are genuine. Whether the remote is who it says is for
//! [`crate::sign_in`] to find out.

use std::collections::BTreeMap;

use tidewater_centre::Checkpoint;
use tidewater_centre::records::{FormerRecord, SubscriptionRecord, SubscriptionRequest};
use tidewater_protocol::message::{
    self, Hello, HelloSubscription, MAX_FORMERS, NumbersLeft, SubscriptionParameter, UploadState,
    VerifiedTables,
};
use tidewater_protocol::{Code, PublicationSchema, RemoteId, Table, UploadId};

use tidewater_server_identity::sign_in::{check_name, identity};
use tidewater_server_identity::signing::{CheckpointFor, ImageFor, SigningKeys};
use tidewater_server_jobs::fault::Fault;

/// A Hello whose parts are well-formed.
pub struct ParsedHello {
    /// The subscriptions, in their order.
    pub subscriptions: Vec<Subscription>,
}

/// A subscription as the remote knows it.
pub struct Subscription {
    pub publication: String,
    pub sequence: u64,
    pub upload_id: Option<UploadId>,
    pub pending: Option<UploadId>,
    pub checkpoint: Vec<u8>,
    pub schema_hash: Vec<u8>,
    /// What it has of a download that broke.
    pub part: Option<Box<PresentedPart>>,
    /// Checksums of its tables follow.
    pub compares: bool,
    /// The ids that it had before, with the last upload under each that it keeps.
    pub formers: Vec<Former>,
    /// How many numbers it has left, by table.
    pub numbers: Vec<NumbersLeft>,
    /// What the remote has set.
    pub parameters: BTreeMap<String, String>,
    /// What it wants to hear of its refused rows.
    pub refusal_news: RefusalNews,
    /// What was not equal when it verified itself.
    pub verified: Option<VerifiedTables>,
    /// The checkpoint, once it is found to be what a server signed for the remote of the
    /// Hello under the schema of the Hello.
    pub genuine: Option<Checkpoint>,
    /// See [`HelloSubscription::image`]: the checkpoint is that of an image with this hash.
    pub image: Option<[u8; 32]>,
}

/// What a remote wants to hear of its refused rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct RefusalNews {
    /// See [`HelloSubscription::refused_from`].
    pub refused_from: u64,
    /// See [`HelloSubscription::settled_after`].
    pub settled_after: u64,
}

/// See [`message::PartialDownload`].
pub struct PresentedPart {
    pub checkpoint: Vec<u8>,
    pub schema_hash: [u8; 32],
    pub mark: Vec<u8>,
    /// The same as [`Subscription::genuine`].
    pub genuine: Option<Checkpoint>,
}

/// See [`message::Former`].
pub struct Former {
    remote_id: RemoteId,
    sequence: u64,
    upload_id: UploadId,
}

impl Former {
    fn check(wire: message::FormerId) -> Result<Former, Fault> {
        let is_none = || Fault::malformed("a former id without an id");
        Ok(Former {
            remote_id: RemoteId::from_slice(&wire.remote_id).ok_or_else(is_none)?,
            sequence: wire.sequence,
            upload_id: UploadId::from_slice(&wire.upload_id).ok_or_else(is_none)?,
        })
    }

    /// The number of the last upload under this id that the centre has, as far as it matters to
    /// the remote: all of its own, if the id was removed and what it uploaded is not wanted back.
    pub fn has(&self, known: &FormerRecord) -> u64 {
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
    pub fn is_ahead_of(&self, has: u64) -> bool {
        self.sequence > has
    }
}

impl ParsedHello {
    /// Checks a Hello.
    pub fn check(hello: Hello, max_subscriptions: usize) -> Result<ParsedHello, Fault> {
        if hello.subscriptions.len() > max_subscriptions {
            return Err(Fault::limit(
                "the number of subscriptions",
                max_subscriptions as u64,
                "subscriptions",
            ));
        }
        let subscriptions = hello.subscriptions.into_iter().map(Subscription::check);
        let subscriptions: Vec<Subscription> = subscriptions.collect::<Result<_, _>>()?;
        for (index, subscription) in subscriptions.iter().enumerate() {
            let before = &subscriptions[..index];
            if before
                .iter()
                .any(|other| other.publication == subscription.publication)
            {
                return Err(Fault::malformed("a Hello that names a publication twice"));
            }
        }
        Ok(ParsedHello { subscriptions })
    }

    /// What a server may have signed.
    pub fn signed(&self) -> Vec<&[u8]> {
        let signed = self.subscriptions.iter().flat_map(|it| {
            let part = it.part.as_ref().map(|it| it.checkpoint.as_slice());
            [Some(it.checkpoint.as_slice()), part]
        });
        signed.flatten().collect()
    }

    /// Finds out which checkpoints are genuine. A remote without an id can only have begun from
    /// images.
    ///
    /// # Errors
    /// It has begun from what is no image of ours.
    pub fn verify(
        &mut self,
        keyring: &SigningKeys,
        remote_id: Option<RemoteId>,
    ) -> Result<(), Fault> {
        for subscription in &mut self.subscriptions {
            if let (Some(part), Some(remote_id)) = (&mut subscription.part, remote_id) {
                let subject = CheckpointFor {
                    remote_id,
                    publication: &subscription.publication,
                    schema_hash: &part.schema_hash,
                };
                part.genuine = keyring.open_checkpoint(subject, &part.checkpoint);
            }
            let Ok(schema_hash) = subscription.schema_hash.as_slice().try_into() else {
                continue;
            };
            if let Some(sha256) = &subscription.image {
                let subject = ImageFor {
                    sha256,
                    publication: &subscription.publication,
                    schema_hash,
                };
                let genuine = keyring.open_image(subject, &subscription.checkpoint);
                let genuine = genuine.ok_or_else(|| foreign_image(&subscription.publication))?;
                subscription.genuine = Some(genuine);
                continue;
            }
            let Some(remote_id) = remote_id else {
                continue;
            };
            let subject = CheckpointFor {
                remote_id,
                publication: &subscription.publication,
                schema_hash,
            };
            subscription.genuine = keyring.open_checkpoint(subject, &subscription.checkpoint);
        }
        Ok(())
    }

    /// What the centre is asked about the subscriptions, in order.
    pub fn asked(&self) -> Vec<SubscriptionRequest> {
        let asked = self.subscriptions.iter().map(|it| SubscriptionRequest {
            publication: it.publication.clone(),
            watermark: it.genuine.as_ref().map(|it| it.watermark.clone()),
            formers: it.formers.iter().map(|it| it.remote_id).collect(),
        });
        asked.collect()
    }
}

/// The remote has begun from something that no server of this centre has made, or has signed with a
/// key that is long gone.
fn foreign_image(publication: &str) -> Fault {
    Fault::new(
        Code::ImageInvalid,
        format!(
            "the image of {publication:?} that the file began from was not made by this centre, or \
             was changed, or is too old"
        ),
        "begin from a newer image of this centre, or sync a new file without one; what was written \
         into this file meanwhile goes up with `tidewater verify FILE --repair`",
    )
}

impl Subscription {
    fn check(wire: HelloSubscription) -> Result<Subscription, Fault> {
        check_name("publication", &wire.publication)?;
        if !matches!(wire.schema_hash.len(), 0 | 32) {
            return Err(Fault::malformed("a schema hash that is none"));
        }
        if wire.sequence == u64::MAX {
            return Err(Fault::malformed("an impossible sequence number"));
        }
        if wire.formers.len() > MAX_FORMERS {
            return Err(Fault::malformed("a subscription with too many former ids"));
        }
        if let Some(fault) = SubscriptionParameter::fault(&wire.parameters) {
            return Err(Fault::malformed(&format!("a subscription with {fault}")));
        }
        if let Some(fault) = wire.verified.as_ref().and_then(VerifiedTables::fault) {
            return Err(Fault::malformed(&format!("a subscription with {fault}")));
        }
        let partial = wire.partial.filter(|it| !it.mark.is_empty());
        if partial.is_some() && wire.compares {
            return Err(Fault::malformed("a part of a download beside a compare"));
        }
        let part = partial.map(|it| {
            let schema_hash = it.schema_hash.as_slice().try_into();
            let schema_hash =
                schema_hash.map_err(|_| Fault::malformed("a schema hash that is none"))?;
            Ok::<_, Fault>(Box::new(PresentedPart {
                checkpoint: it.checkpoint,
                schema_hash,
                mark: it.mark,
                genuine: None,
            }))
        });
        let part = part.transpose()?;
        let image = match wire.image.is_empty() {
            true => None,
            false => {
                let hash = wire.image.as_slice().try_into();
                Some(hash.map_err(|_| Fault::malformed("a hash of an image that is none"))?)
            }
        };
        if image.is_some() && (part.is_some() || wire.schema_hash.is_empty()) {
            return Err(Fault::malformed(
                "an image of nothing, or beside something else",
            ));
        }
        let parameters = wire.parameters.into_iter();
        let formers = wire.formers.into_iter().map(Former::check);
        Ok(Subscription {
            publication: wire.publication,
            sequence: wire.sequence,
            upload_id: identity(&wire.upload_id, UploadId::from_slice)?,
            pending: identity(&wire.pending_upload_id, UploadId::from_slice)?,
            checkpoint: wire.checkpoint,
            schema_hash: wire.schema_hash,
            part,
            compares: wire.compares,
            formers: formers.collect::<Result<_, _>>()?,
            numbers: wire.numbers,
            parameters: parameters.map(|it| (it.name, it.value)).collect(),
            refusal_news: RefusalNews {
                refused_from: wire.refused_from,
                settled_after: wire.settled_after,
            },
            verified: wire.verified,
            genuine: None,
            image,
        })
    }

    /// The tables of a publication for which the remote needs more numbers.
    pub fn wants_numbers(&self, schema: &PublicationSchema) -> Vec<String> {
        let runs_low = |table: &&Table| {
            let mut known = self.numbers.iter();
            let known = known.find(|it| it.table == table.name);
            let left = known.map_or(0, |it| it.left);
            table
                .identity
                .is_some_and(|it| left < u64::from(it.refill_below))
        };
        let tables = schema.tables.iter().filter(runs_low);
        tables.map(|table| table.name.clone()).collect()
    }

    /// What the server makes of sequence and upload id, given what it has stored.
    pub fn upload_state(&self, stored: Option<&SubscriptionRecord>) -> UploadState {
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

#[cfg(test)]
mod tests {
    use tidewater_protocol::message::{MAX_VERIFIED_KEYS, VerifiedTable};

    use super::*;

    fn subscription(sequence: u64, id: Option<u8>, pending: Option<u8>) -> Subscription {
        Subscription {
            publication: "p".into(),
            sequence,
            upload_id: id.map(|byte| UploadId([byte; 16])),
            pending: pending.map(|byte| UploadId([byte; 16])),
            checkpoint: Vec::new(),
            schema_hash: Vec::new(),
            part: None,
            compares: false,
            formers: Vec::new(),
            numbers: Vec::new(),
            parameters: BTreeMap::new(),
            refusal_news: RefusalNews::default(),
            verified: None,
            genuine: None,
            image: None,
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
            subscriptions: vec![HelloSubscription {
                publication: "p".into(),
                ..Default::default()
            }],
        };
        assert!(ParsedHello::check(hello(), 1).is_ok());
        let mut twice = hello();
        twice.subscriptions.push(twice.subscriptions[0].clone());
        let fault = ParsedHello::check(twice.clone(), 1).err();
        assert_eq!(fault.unwrap().code, Code::LimitExceeded);
        assert!(ParsedHello::check(twice, 2).is_err());
        let mut last = hello();
        last.subscriptions[0].sequence = u64::MAX;
        let fault = ParsedHello::check(last, 1).err();
        assert_eq!(fault.unwrap().code, Code::MalformedMessage);
        let mut talkative = hello();
        let table = VerifiedTable {
            keys: vec!["[1]".into(); MAX_VERIFIED_KEYS + 1],
            ..VerifiedTable::default()
        };
        talkative.subscriptions[0].verified = Some(VerifiedTables {
            tables: vec![table],
        });
        let fault = ParsedHello::check(talkative, 1).err();
        assert_eq!(fault.unwrap().code, Code::MalformedMessage);
    }
}
