//! Signatures on what remotes keep for the server: session tokens and checkpoints.
//!
//! Keys come from the centre, so that every server verifies what any server signed.
//! What does not verify counts for nothing. The layouts are private to servers:
//!
//! ```text
//! token:      1, key id (4), expiry in ms (8), remote id (16), user, HMAC (32)
//! identity:   1, key id (4), expiry in ms (8), remote id (16), id before (16), random (16),
//!             user, HMAC (32)
//! checkpoint: 1, key id (4), Checkpoint::encode, HMAC (32)
//! ```
//!
//! The HMAC-SHA256 covers a word for the kind and everything before it; that of a
//! checkpoint also the remote, the publication and the hash of its schema, because
//! a scope's tables are numbered by the schema. That of an image's has the hash of
//! the file in place of the remote, and a word of its own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidewater_carrier::cryptography::hmac;
use tidewater_centre::records::SigningKey;
use tidewater_centre::{Centre, CentreError, Checkpoint};
use tidewater_protocol::RemoteId;

use tidewater_server_jobs::environment::{Environment, random};
use tidewater_server_jobs::error::ServerError;

/// How long a token is good.
pub const TOKEN_LIFETIME_MS: i64 = 60 * 60 * 1_000;

/// How long a new identity may be taken up.
const IDENTITY_LIFETIME_MS: i64 = 30 * 24 * TOKEN_LIFETIME_MS;

/// How often an unknown key id may make the server look for new keys out of turn.
const SEEK_AFTER_MS: i64 = 5_000;

/// How old a key is before it signs, if there is another: by then every server has looked
/// for new keys several times, and so verifies what it signs.
pub const KEY_SIGNS_AFTER_MS: i64 = 10_000;

/// What a signature of a checkpoint is for.
const CHECKPOINT: &[u8] = b"checkpoint";

/// The same of an image.
const IMAGE: &[u8] = b"image";

const LAYOUT: u8 = 1;
const TAG_BYTES: usize = 32;

/// A new key, to be added to the centre.
///
/// # Errors
/// The system has no random numbers.
pub fn new_signing_key(environment: &Environment, id: u32) -> Result<SigningKey, ServerError> {
    let secret = random::<32>(&*environment.randomness).map_err(|error| {
        ServerError::configuration(
            format!("the system has no random numbers: {error}"),
            "try again",
        )
    })?;
    Ok(SigningKey {
        id,
        secret: secret.to_vec(),
        created_ms: environment.clock.now_ms(),
    })
}

/// What a checkpoint is signed for.
#[derive(Clone, Copy)]
pub struct CheckpointFor<'a> {
    /// The remote that keeps it.
    pub remote_id: RemoteId,
    /// The publication of the subscription.
    pub publication: &'a str,
    /// The hash of its schema.
    pub schema_hash: &'a [u8; 32],
}

/// What the checkpoint of an image is signed for.
#[derive(Clone, Copy)]
pub struct ImageFor<'a> {
    /// The SHA-256 of its file.
    pub sha256: &'a [u8; 32],
    /// The publication that it holds.
    pub publication: &'a str,
    /// The hash of its schema.
    pub schema_hash: &'a [u8; 32],
}

/// What a token is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenCheck {
    /// It lets the remote in.
    Valid,
    /// Expired, of another remote or user, or signed by nobody: the remote presents
    /// its credential instead.
    Invalid,
}

/// The signing keys, kept up to date.
pub struct Signer {
    centre: Arc<dyn Centre>,
    known: Mutex<KeyCache>,
}

struct KeyCache {
    keyring: SigningKeys,
    /// When a key was last looked for out of turn.
    sought_ms: i64,
    /// Whether the last look-up failed: the first failure is logged, not every one.
    failed: bool,
}

/// Signs with the newest key that all servers know, verifies with all.
#[derive(Clone)]
pub struct SigningKeys {
    /// At least one, newest first.
    keys: Arc<[Key]>,
    /// The one that signs.
    signing: usize,
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
    pub async fn load(centre: Arc<dyn Centre>, now_ms: i64) -> Result<Signer, CentreError> {
        let keyring = SigningKeys::new(centre.signing_keys().await?, now_ms);
        let keyring = keyring.ok_or_else(|| CentreError::NotDeployed {
            message: "the database has no signing key".into(),
        })?;
        Ok(Signer {
            centre,
            known: Mutex::new(KeyCache {
                keyring,
                sought_ms: now_ms,
                failed: false,
            }),
        })
    }

    fn known(&self) -> MutexGuard<'_, KeyCache> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keys to sign and verify with. If one of these signed blobs names a key
    /// that is not among them, new ones are looked for first; without an answer the
    /// known keys stay.
    pub async fn keyring(&self, blobs: &[&[u8]], now_ms: i64) -> SigningKeys {
        {
            let mut known = self.known();
            let fresh = (now_ms - known.sought_ms).abs() < SEEK_AFTER_MS;
            if fresh || blobs.iter().all(|blob| known.keyring.knows(blob)) {
                return known.keyring.clone();
            }
            known.sought_ms = now_ms;
        }
        self.refresh(now_ms).await;
        self.known().keyring.clone()
    }

    /// Learns of new keys and of those that were retired.
    pub async fn refresh(&self, now_ms: i64) {
        let refreshed = match self.centre.signing_keys().await {
            Ok(keys) => SigningKeys::new(keys, now_ms).ok_or_else(|| "there are none".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let mut known = self.known();
        let failed = match refreshed {
            Ok(keyring) => {
                let (old, new) = (known.keyring.signing_id(), keyring.signing_id());
                if old != new {
                    tracing::info!(old, new, "another key signs from now on");
                }
                known.keyring = keyring;
                false
            }
            Err(error) => {
                if !known.failed {
                    tracing::warn!(%error, "signing keys cannot be refreshed");
                }
                true
            }
        };
        known.failed = failed;
    }
}

impl SigningKeys {
    /// `None` without keys.
    pub fn new(keys: Vec<SigningKey>, now_ms: i64) -> Option<SigningKeys> {
        let is_known =
            |key: &SigningKey| now_ms.saturating_sub(key.created_ms) >= KEY_SIGNS_AFTER_MS;
        let oldest = keys.len().saturating_sub(1);
        let signing = keys.iter().position(is_known).unwrap_or(oldest);
        let keys: Arc<[Key]> = keys
            .into_iter()
            .map(|key| Key {
                id: key.id,
                key: hmac::Key::new(hmac::HMAC_SHA256, &key.secret),
            })
            .collect();
        (!keys.is_empty()).then_some(SigningKeys { keys, signing })
    }

    fn signing_id(&self) -> u32 {
        self.keys[self.signing].id
    }

    /// Whether the key that a blob names is here, or it names none.
    fn knows(&self, signed: &[u8]) -> bool {
        key_id(signed).is_none_or(|id| self.keys.iter().any(|key| key.id == id))
    }

    /// A token for a remote and its user.
    pub fn token(&self, remote_id: RemoteId, user: &str, now_ms: i64) -> Vec<u8> {
        let mut body = (now_ms + TOKEN_LIFETIME_MS).to_be_bytes().to_vec();
        body.extend_from_slice(&remote_id.0);
        body.extend_from_slice(user.as_bytes());
        self.sign(b"token", &[], &body)
    }

    /// Whether a token lets this remote in as this user.
    pub fn check_token(
        &self,
        token: &[u8],
        remote_id: RemoteId,
        user: &str,
        now_ms: i64,
    ) -> TokenCheck {
        match self.token_user(token, remote_id, now_ms) {
            Some(name) if name == user => TokenCheck::Valid,
            _ => TokenCheck::Invalid,
        }
    }

    /// As whom a token lets this remote in; `None` if it does not.
    pub fn token_user(&self, token: &[u8], remote_id: RemoteId, now_ms: i64) -> Option<String> {
        let body = self.verify(b"token", &[], token)?;
        let (expiry, rest) = body.split_first_chunk::<8>()?;
        let expiry = i64::from_be_bytes(*expiry);
        // What is good for much longer was signed while a clock was ahead.
        let is_good = now_ms < expiry && expiry.saturating_sub(now_ms) <= 2 * TOKEN_LIFETIME_MS;
        let user = rest.strip_prefix(&remote_id.0).filter(|_| is_good)?;
        String::from_utf8(user.to_vec()).ok()
    }

    /// The credential that follows this one. Whoever presents the same gets the same, from
    /// every server: of two syncs of one file at once, it makes no difference which Welcome
    /// the file keeps.
    pub fn credential(&self, remote_id: RemoteId, presented: &[u8]) -> Vec<u8> {
        let key = &self.keys[self.signing].key;
        let tag = hmac::sign(key, &message(b"credential", &remote_id.0, presented));
        tag.as_ref().to_vec()
    }

    /// A new identity for a remote, good until it is taken up: token and credential in one.
    pub fn identity(
        &self,
        remote_id: RemoteId,
        successor_of: RemoteId,
        user: &str,
        random: [u8; 16],
        now_ms: i64,
    ) -> Vec<u8> {
        let mut body = (now_ms + IDENTITY_LIFETIME_MS).to_be_bytes().to_vec();
        body.extend_from_slice(&remote_id.0);
        body.extend_from_slice(&successor_of.0);
        body.extend_from_slice(&random);
        body.extend_from_slice(user.as_bytes());
        self.sign(b"identity", &[], &body)
    }

    /// The remote that this one was, if it presents a new identity of this user.
    pub fn open_identity(
        &self,
        identity: &[u8],
        remote_id: RemoteId,
        user: &str,
        now_ms: i64,
    ) -> Option<RemoteId> {
        let body = self.verify(b"identity", &[], identity)?;
        let (expiry, rest) = body.split_first_chunk::<8>()?;
        let (before, rest) = rest.strip_prefix(&remote_id.0)?.split_at_checked(16)?;
        let name = rest.get(16..)?;
        let good = now_ms < i64::from_be_bytes(*expiry) && name == user.as_bytes();
        RemoteId::from_slice(before).filter(|_| good)
    }

    /// A checkpoint as the remote keeps it.
    pub fn sign_checkpoint(&self, subject: CheckpointFor<'_>, checkpoint: &Checkpoint) -> Vec<u8> {
        self.sign(CHECKPOINT, &subject.bytes(), &checkpoint.encode())
    }

    /// The checkpoint that a remote presents, if it was signed for just that.
    pub fn open_checkpoint(&self, subject: CheckpointFor<'_>, signed: &[u8]) -> Option<Checkpoint> {
        let body = self.verify(CHECKPOINT, &subject.bytes(), signed)?;
        Checkpoint::decode(body)
    }

    /// The checkpoint of an image, for whoever begins from it.
    pub fn sign_image(&self, subject: ImageFor<'_>, checkpoint: &Checkpoint) -> Vec<u8> {
        self.sign(IMAGE, &subject.bytes(), &checkpoint.encode())
    }

    /// The checkpoint of an image that a remote has begun from, if it was signed for just that.
    pub fn open_image(&self, subject: ImageFor<'_>, signed: &[u8]) -> Option<Checkpoint> {
        let body = self.verify(IMAGE, &subject.bytes(), signed)?;
        Checkpoint::decode(body)
    }

    fn sign(&self, kind: &[u8], subject: &[u8], body: &[u8]) -> Vec<u8> {
        let key = &self.keys[self.signing];
        let mut signed = Vec::with_capacity(5 + body.len() + TAG_BYTES);
        signed.push(LAYOUT);
        signed.extend_from_slice(&key.id.to_be_bytes());
        signed.extend_from_slice(body);
        let tag = hmac::sign(&key.key, &message(kind, subject, &signed));
        signed.extend_from_slice(tag.as_ref());
        signed
    }

    fn verify<'a>(&self, kind: &[u8], subject: &[u8], signed: &'a [u8]) -> Option<&'a [u8]> {
        let id = key_id(signed)?;
        let (content, tag) = signed.split_at_checked(signed.len().checked_sub(TAG_BYTES)?)?;
        let body = content.get(5..)?;
        let key = self.keys.iter().find(|key| key.id == id)?;
        let genuine = hmac::verify(&key.key, &message(kind, subject, content), tag);
        genuine.is_ok().then_some(body)
    }
}

impl ImageFor<'_> {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.sha256.to_vec();
        bytes.extend_from_slice(self.schema_hash);
        bytes.extend_from_slice(self.publication.as_bytes());
        bytes
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

    fn keyring(ids: &[u32]) -> SigningKeys {
        let keys = ids.iter().map(|&id| SigningKey {
            id,
            secret: vec![id as u8; 32],
            created_ms: 0,
        });
        SigningKeys::new(keys.collect(), KEY_SIGNS_AFTER_MS).unwrap()
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
        let years_ago = -10_000 * TOKEN_LIFETIME_MS;
        assert_eq!(check(ADA, "ada", years_ago), TokenCheck::Invalid);
        assert_eq!(check(ADA, "ad", 1_000), TokenCheck::Invalid);
        assert_eq!(check(ADA, "adam", 1_000), TokenCheck::Invalid);
    }

    #[test]
    fn a_checkpoint_is_good_for_its_remote_publication_and_schema() {
        let keyring = keyring(&[7]);
        let checkpoint = Checkpoint {
            serial: 3,
            watermark: vec![1, 2],
            rules: Vec::new(),
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
    fn an_identity_is_good_for_its_id_and_user_and_is_no_token() {
        let keyring = keyring(&[7]);
        let signed = keyring.identity(ADA, BOB, "ada", [5; 16], 0);
        let open = |id, user, now_ms| keyring.open_identity(&signed, id, user, now_ms);
        assert_eq!(open(ADA, "ada", 0), Some(BOB));
        assert_eq!(open(ADA, "ada", IDENTITY_LIFETIME_MS), None);
        assert_eq!(open(BOB, "ada", 0), None);
        assert_eq!(open(ADA, "eve", 0), None);
        let checked = keyring.check_token(&signed, ADA, "ada", 0);
        assert_eq!(checked, TokenCheck::Invalid);
        let token = keyring.token(ADA, "ada", 0);
        assert_eq!(keyring.open_identity(&token, ADA, "ada", 0), None);
    }

    #[test]
    fn a_new_key_signs_when_every_server_has_had_the_time_to_learn_of_it() {
        let key = |id, created_ms| SigningKey {
            id,
            secret: vec![id as u8; 32],
            created_ms,
        };
        let signing = |keys: &[SigningKey], now_ms| {
            let keyring = SigningKeys::new(keys.to_vec(), now_ms).unwrap();
            keyring.signing_id()
        };
        let rotated = [key(2, 1_000_000), key(1, 0)];
        assert_eq!(signing(&rotated, 1_000_000), 1);
        assert_eq!(signing(&rotated, 1_000_000 + KEY_SIGNS_AFTER_MS), 2);
        // The clock of whoever rotated runs ahead, or the first key is just being made.
        assert_eq!(signing(&[key(2, i64::MAX), key(1, 0)], 1_000_000), 1);
        assert_eq!(signing(&[key(1, 1_000_000)], 1_000_000), 1);
        assert!(SigningKeys::new(Vec::new(), 0).is_none());
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
