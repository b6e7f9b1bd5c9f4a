//! A remote's own credential: 32 random bytes (or the signed identity that a restored remote
//! was given), of which the centre has the SHA-256.
//!
//! A new one is given when the old is a day old. The old one stays valid until the
//! new one is used, because the Welcome that brings it may be lost. The new one is made of
//! the old and a signing key ([`super::signing`]), so that nobody is given two.

use std::io;

use tidewater_carrier::cryptography::digest::{SHA256, digest};
use tidewater_centre::records::RemoteRecord;

use tidewater_server_jobs::environment::{Randomness, random};

/// When a credential is replaced by a new one.
pub const ROTATE_AFTER_MS: i64 = 24 * 60 * 60 * 1_000;

/// A new credential, and the hash to store.
pub fn generate(randomness: &dyn Randomness) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let credential = random::<32>(randomness)?.to_vec();
    let hash = hash(&credential);
    Ok((credential, hash))
}

/// What the centre stores of a credential.
pub fn hash(credential: &[u8]) -> Vec<u8> {
    digest(&SHA256, credential).as_ref().to_vec()
}

/// Which credential of a remote was presented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PresentedCredential {
    /// The newest one.
    Current,
    /// The one before: the newest never reached the remote.
    Previous,
    /// None of them.
    Wrong,
}

/// Compares a credential with what is stored.
pub fn verify(remote: &RemoteRecord, credential: &[u8]) -> PresentedCredential {
    let hash = hash(credential);
    if same(&remote.credential_hash, &hash) {
        PresentedCredential::Current
    } else if same(&remote.previous_credential_hash, &hash) {
        PresentedCredential::Previous
    } else {
        PresentedCredential::Wrong
    }
}

/// In constant time for equal lengths. An empty hash is no hash.
fn same(stored: &[u8], presented: &[u8]) -> bool {
    if stored.len() != presented.len() {
        return false;
    }
    let difference = stored
        .iter()
        .zip(presented)
        .fold(0, |difference, (left, right)| difference | (left ^ right));
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidewater_protocol::RemoteId;
    use tidewater_server_jobs::environment::Environment;

    #[test]
    fn the_current_and_the_previous_credential_are_told_from_all_others() {
        let environment = Environment::real();
        let (old, old_hash) = generate(&*environment.randomness).unwrap();
        let (new, new_hash) = generate(&*environment.randomness).unwrap();
        let mut remote = RemoteRecord {
            id: RemoteId([1; 16]),
            user: "ada".into(),
            revoked: false,
            credential_hash: new_hash,
            previous_credential_hash: old_hash,
            rotated_ms: 0,
            created_ms: 0,
            last_sync_ms: 0,
            unverified: 0,
            device_name: String::new(),
        };
        assert_eq!(verify(&remote, &new), PresentedCredential::Current);
        assert_eq!(verify(&remote, &old), PresentedCredential::Previous);
        assert_eq!(verify(&remote, b""), PresentedCredential::Wrong);
        remote.previous_credential_hash.clear();
        assert_eq!(verify(&remote, &old), PresentedCredential::Wrong);
        assert_eq!(verify(&remote, b""), PresentedCredential::Wrong);
    }
}
