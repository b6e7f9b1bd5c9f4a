//! What remotes keep for the server: nothing counts that was not signed for just that.

use std::sync::LazyLock;

use tidewater_centre::Checkpoint;
use tidewater_centre::records::SigningKey;
use tidewater_protocol::RemoteId;
use tidewater_server::fuzzing::{CheckpointFor, SigningKeys, TokenCheck};

use crate::input::Input;

/// When everything was signed, in milliseconds since 1970.
const SIGNED_MS: i64 = 1_700_000_000_000;
const ADA: RemoteId = RemoteId([1; 16]);
const BOB: RemoteId = RemoteId([2; 16]);

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let keyring = keyring();
    let genuine = genuine(&keyring);
    Server { keyring, genuine }
});

/// Who signs, and what was signed: a token, an identity and a checkpoint of Ada's.
struct Server {
    keyring: SigningKeys,
    genuine: [Vec<u8>; 3],
}

/// The bytes of a token, an identity or a checkpoint; or a genuine one of them, changed
/// at one place.
///
/// # Panics
/// A promise is broken.
pub fn signed(data: &[u8]) {
    let mut input = Input::new(data);
    let Server { keyring, genuine } = &*SERVER;
    let (choice, at, with) = (input.below(4), input.below(256), input.byte());
    let blob = match genuine.get(choice) {
        Some(genuine) => {
            let mut changed = genuine.clone();
            let at = at % changed.len();
            changed[at] ^= with;
            changed.extend_from_slice(input.rest());
            changed
        }
        None => input.rest().to_vec(),
    };
    let [token, identity, checkpoint] = genuine;
    for (remote_id, user) in [(ADA, "ada"), (BOB, "ada"), (ADA, "bob")] {
        let own = remote_id == ADA && user == "ada";
        let valid = keyring.check_token(&blob, remote_id, user, SIGNED_MS) == TokenCheck::Valid;
        assert_eq!(valid, own && blob == *token, "a forged token");
        let opened = keyring.open_identity(&blob, remote_id, user, SIGNED_MS);
        assert_eq!(
            opened.is_some(),
            own && blob == *identity,
            "a forged identity"
        );
        let subject = CheckpointFor {
            remote_id,
            publication: user,
            schema_hash: &[9; 32],
        };
        let opened = keyring.open_checkpoint(subject, &blob);
        assert_eq!(
            opened.is_some(),
            own && blob == *checkpoint,
            "a forged checkpoint"
        );
    }
    content(&blob);
}

/// What is within the signature comes back, whoever signed it.
fn content(bytes: &[u8]) {
    let Some(checkpoint) = Checkpoint::decode(bytes) else {
        return;
    };
    assert_eq!(Checkpoint::decode(&checkpoint.encode()), Some(checkpoint));
}

fn keyring() -> SigningKeys {
    let keys = [7, 3].map(|id| SigningKey {
        id,
        secret: vec![id as u8; 32],
        created_ms: 0,
    });
    SigningKeys::new(keys.to_vec(), SIGNED_MS).expect("there are keys")
}

fn genuine(keyring: &SigningKeys) -> [Vec<u8>; 3] {
    let subject = CheckpointFor {
        remote_id: ADA,
        publication: "ada",
        schema_hash: &[9; 32],
    };
    let checkpoint = Checkpoint {
        serial: 3,
        watermark: b"731:731:".to_vec(),
        rules: Vec::new(),
    };
    [
        keyring.token(ADA, "ada", SIGNED_MS),
        keyring.identity(ADA, BOB, "ada", [5; 16], SIGNED_MS),
        keyring.sign_checkpoint(subject, &checkpoint),
    ]
}
