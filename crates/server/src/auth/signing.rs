//! Signatures on what remotes keep for the server: session tokens and checkpoints.
//!
//! Keys come from the centre, so that every server verifies what any server signed.
//! What does not verify counts for nothing. The layouts are private to servers:
//!
//! ```text
//! token:      1, key id (4), expiry in ms (8), remote id (16), user, HMAC (32)
//! checkpoint: 1, key id (4), Checkpoint::encode, HMAC (32)
//! ```
//!
//! The HMAC-SHA256 covers a word for the kind and everything before it; that of a
//! checkpoint also the remote, the publication and the hash of its schema, because
//! a scope's tables are numbered by the schema.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring::hmac;

use tidewater_consolidated::records::SigningKey;
use tidewater_consolidated::{Centre, CentreError, Checkpoint};
use tidewater_protocol::RemoteId;

/// How long a token is good.
pub(crate) const TOKEN_LIFETIME_MS: i64 = 60 * 60 * 1_000;

/// How often an unknown key id may make the server look for new keys.
const REFRESH_AFTER_MS: i64 = 5_000;

const LAYOUT: u8 = 1;
const TAG_BYTES: usize = 32;

/// What a checkpoint is signed for.
#[derive(Clone, Copy)]
pub(crate) struct CheckpointFor<'a> {
    pub(crate) remote_id: RemoteId,
    pub(crate) publication: &'a str,
    pub(crate) schema_hash: &'a [u8; 32],
}

/// What a token is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenCheck {
    Valid,
    /// Expired, of another remote or user, or signed by nobody: the remote presents
    /// its credential instead.
    Invalid,
}

/// The signing keys, kept up to date.
pub(crate) struct Signer {
    centre: Arc<dyn Centre>,
    known: Mutex<Known>,
}

struct Known {
    keyring: Keyring,
    refreshed_ms: i64,
}

/// Signs with the newest key, verifies with all. At least one key.
#[derive(Clone)]
pub(crate) struct Keyring {
    /// Newest first.
    keys: Arc<[Key]>,
}

struct Key {
    id: u32,
    key: hmac::Key,
}

impl Signer {
    /// Takes the keys from the centre.
    ///
    /// # Errors
    /// The centre cannot be asked, or has no keys.
    pub(crate) async fn load(centre: Arc<dyn Centre>, now_ms: i64) -> Result<Signer, CentreError> {
        let keyring = Keyring::new(centre.signing_keys().await?);
        let keyring = keyring.ok_or_else(|| CentreError::NotDeployed {
            message: "the database has no signing key".into(),
        })?;
        Ok(Signer {
            centre,
            known: Mutex::new(Known {
                keyring,
                refreshed_ms: now_ms,
            }),
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keys to sign and verify with. If one of these signed blobs names a key
    /// that is not among them, new ones are looked for first; without an answer the
    /// known keys stay.
    pub(crate) async fn keyring(&self, blobs: &[&[u8]], now_ms: i64) -> Keyring {
        let keyring = {
            let mut known = self.known();
            let keyring = known.keyring.clone();
            let fresh = (now_ms - known.refreshed_ms).abs() < REFRESH_AFTER_MS;
            if fresh || blobs.iter().all(|blob| keyring.knows(blob)) {
                return keyring;
            }
            known.refreshed_ms = now_ms;
            keyring
        };
        match self.centre.signing_keys().await {
            Ok(keys) => match Keyring::new(keys) {
                Some(refreshed) => {
                    self.known().keyring = refreshed.clone();
                    refreshed
                }
                None => keyring,
            },
            Err(error) => {
                tracing::warn!(%error, "signing keys cannot be refreshed");
                keyring
            }
        }
    }
}

impl Keyring {
    /// `None` without keys.
    fn new(keys: Vec<SigningKey>) -> Option<Keyring> {
        let keys: Arc<[Key]> = keys
            .into_iter()
            .map(|key| Key {
                id: key.id,
                key: hmac::Key::new(hmac::HMAC_SHA256, &key.secret),
            })
            .collect();
        (!keys.is_empty()).then_some(Keyring { keys })
    }

    /// Whether the key that a blob names is here, or it names none.
    fn knows(&self, signed: &[u8]) -> bool {
        key_id(signed).is_none_or(|id| self.keys.iter().any(|key| key.id == id))
    }

    /// A token for a remote and its user.
    pub(crate) fn token(&self, remote_id: RemoteId, user: &str, now_ms: i64) -> Vec<u8> {
        let mut body = (now_ms + TOKEN_LIFETIME_MS).to_be_bytes().to_vec();
        body.extend_from_slice(&remote_id.0);
        body.extend_from_slice(user.as_bytes());
        self.sign(b"token", &[], &body)
    }

    /// Whether a token lets this remote in as this user.
    pub(crate) fn check_token(
        &self,
        token: &[u8],
        remote_id: RemoteId,
        user: &str,
        now_ms: i64,
    ) -> TokenCheck {
        let Some(body) = self.verify(b"token", &[], token) else {
            return TokenCheck::Invalid;
        };
        let Some((expiry, rest)) = body.split_first_chunk::<8>() else {
            return TokenCheck::Invalid;
        };
        let good = now_ms < i64::from_be_bytes(*expiry)
            && rest
                .strip_prefix(&remote_id.0)
                .is_some_and(|name| name == user.as_bytes());
        if good {
            TokenCheck::Valid
        } else {
            TokenCheck::Invalid
        }
    }

    /// A checkpoint as the remote keeps it.
    pub(crate) fn sign_checkpoint(
        &self,
        subject: CheckpointFor<'_>,
        checkpoint: &Checkpoint,
    ) -> Vec<u8> {
        self.sign(b"checkpoint", &subject.bytes(), &checkpoint.encode())
    }

    /// The checkpoint that a remote presents, if it was signed for just that.
    pub(crate) fn open_checkpoint(
        &self,
        subject: CheckpointFor<'_>,
        signed: &[u8],
    ) -> Option<Checkpoint> {
        let body = self.verify(b"checkpoint", &subject.bytes(), signed)?;
        Checkpoint::decode(body)
    }

    fn sign(&self, kind: &[u8], subject: &[u8], body: &[u8]) -> Vec<u8> {
        let newest = &self.keys[0];
        let mut signed = Vec::with_capacity(5 + body.len() + TAG_BYTES);
        signed.push(LAYOUT);
        signed.extend_from_slice(&newest.id.to_be_bytes());
        signed.extend_from_slice(body);
        let tag = hmac::sign(&newest.key, &message(kind, subject, &signed));
        signed.extend_from_slice(tag.as_ref());
        signed
    }

    fn verify<'a>(&self, kind: &[u8], subject: &[u8], signed: &'a [u8]) -> Option<&'a [u8]> {
        let id = key_id(signed)?;
        let (content, tag) = signed.split_at_checked(signed.len().checked_sub(TAG_BYTES)?)?;
        let body = content.get(5..)?;
        let key = self.keys.iter().find(|key| key.id == id)?;
        hmac::verify(&key.key, &message(kind, subject, content), tag).ok()?;
        Some(body)
    }
}

impl CheckpointFor<'_> {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.remote_id.to_vec();
        bytes.extend_from_slice(self.schema_hash);
        bytes.extend_from_slice(self.publication.as_bytes());
        bytes
    }
}

fn key_id(signed: &[u8]) -> Option<u32> {
    let (&layout, rest) = signed.split_first()?;
    let id = rest.first_chunk::<4>()?;
    (layout == LAYOUT).then(|| u32::from_be_bytes(*id))
}

/// What the HMAC covers: every part with its length, so that none runs into the
/// next.
fn message(kind: &[u8], subject: &[u8], content: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(24 + kind.len() + subject.len() + content.len());
    for part in [kind, subject, content] {
        message.extend_from_slice(&(part.len() as u64).to_be_bytes());
        message.extend_from_slice(part);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidewater_consolidated::Scope;

    fn keyring(ids: &[u32]) -> Keyring {
        let keys = ids.iter().map(|&id| SigningKey {
            id,
            secret: vec![id as u8; 32],
            created_ms: 0,
        });
        Keyring::new(keys.collect()).unwrap()
    }

    const ADA: RemoteId = RemoteId([1; 16]);
    const BOB: RemoteId = RemoteId([2; 16]);

    #[test]
    fn a_token_is_good_for_its_remote_its_user_and_its_hour() {
        let keyring = keyring(&[7]);
        let token = keyring.token(ADA, "ada", 1_000);
        let check = |id, user, now_ms| keyring.check_token(&token, id, user, now_ms);
        assert_eq!(check(ADA, "ada", 1_000), TokenCheck::Valid);
        assert_eq!(
            check(ADA, "ada", 1_000 + TOKEN_LIFETIME_MS),
            TokenCheck::Invalid
        );
        assert_eq!(check(BOB, "ada", 1_000), TokenCheck::Invalid);
        assert_eq!(check(ADA, "ad", 1_000), TokenCheck::Invalid);
        assert_eq!(check(ADA, "adam", 1_000), TokenCheck::Invalid);
    }

    #[test]
    fn a_checkpoint_is_good_for_its_remote_publication_and_schema() {
        let keyring = keyring(&[7]);
        let checkpoint = Checkpoint {
            serial: 3,
            watermark: vec![1, 2],
            scope: Scope::default(),
        };
        let subject = CheckpointFor {
            remote_id: ADA,
            publication: "sales",
            schema_hash: &[9; 32],
        };
        let signed = keyring.sign_checkpoint(subject, &checkpoint);
        assert_eq!(
            keyring.open_checkpoint(subject, &signed),
            Some(checkpoint.clone())
        );
        for other in [
            CheckpointFor {
                remote_id: BOB,
                ..subject
            },
            CheckpointFor {
                publication: "sale",
                ..subject
            },
            CheckpointFor {
                schema_hash: &[8; 32],
                ..subject
            },
        ] {
            assert_eq!(keyring.open_checkpoint(other, &signed), None);
        }
        for cut in 0..signed.len() {
            assert_eq!(keyring.open_checkpoint(subject, &signed[..cut]), None);
            let mut flipped = signed.clone();
            flipped[cut] ^= 1;
            assert_eq!(keyring.open_checkpoint(subject, &flipped), None);
        }
    }

    #[test]
    fn old_keys_verify_what_they_signed_and_the_newest_signs() {
        let old = keyring(&[1]);
        let token = old.token(ADA, "ada", 0);
        let both = keyring(&[2, 1]);
        assert_eq!(both.check_token(&token, ADA, "ada", 0), TokenCheck::Valid);
        let newer = both.token(ADA, "ada", 0);
        assert!(!old.knows(&newer) && old.knows(b"\x01") && old.knows(&token));
        assert_eq!(old.check_token(&newer, ADA, "ada", 0), TokenCheck::Invalid);
    }

    #[test]
    fn a_token_is_no_checkpoint() {
        let keyring = keyring(&[7]);
        let subject = CheckpointFor {
            remote_id: ADA,
            publication: "",
            schema_hash: &[0; 32],
        };
        let token = keyring.token(ADA, "ada", 0);
        assert_eq!(keyring.open_checkpoint(subject, &token), None);
    }
}
