//! Signing in: who we are, how we prove it, and what the server makes of it.

use tidewater_protocol::message::{
    Control, FailureNotice, MAX_ABOVE, PROTOCOL_MAJOR, PROTOCOL_VERSION, Proof, SignIn, SignedIn,
};
use tidewater_protocol::{Code, RemoteId};

use crate::database::RemoteAccount;
use crate::session::{ProofKind, SyncError, UserProof};

/// A sign-in that waits for its answer: what was presented, and what else could be.
#[derive(Clone, Copy, Debug)]
pub(super) struct PresentedProof {
    proof: ProofKind,
    has_credential: bool,
    has_user_proof: bool,
}

/// What to say, with the cheapest proof at hand from `from` on; those before it were refused.
pub(super) fn present(
    account: &RemoteAccount,
    from: ProofKind,
    user_proof: Option<UserProof>,
    client: &str,
) -> Result<(PresentedProof, Control), SyncError> {
    let has_user_proof = user_proof.is_some();
    let (kind, proof) = choose_proof(account, from, user_proof)?;
    let presented = PresentedProof {
        proof: kind,
        has_credential: account.credential.is_some(),
        has_user_proof,
    };
    let sign_in = SignIn {
        protocol_version: PROTOCOL_VERSION,
        remote_id: account.remote_id.map(|id| id.to_vec()).unwrap_or_default(),
        user: account.user.clone(),
        proof: Some(proof),
        client: client.to_owned(),
        centre: account.centre.clone(),
        is_program: false,
        device_name: account.device_name.clone(),
    };
    Ok((presented, Control::SignIn(Box::new(sign_in))))
}

/// What a program without a file says.
pub(super) fn for_program(user: &str, proof: Proof, client: &str) -> Control {
    Control::SignIn(Box::new(SignIn {
        protocol_version: PROTOCOL_VERSION,
        user: user.to_owned(),
        proof: Some(proof),
        client: client.to_owned(),
        is_program: true,
        ..SignIn::default()
    }))
}

fn choose_proof(
    account: &RemoteAccount,
    from: ProofKind,
    user_proof: Option<UserProof>,
) -> Result<(ProofKind, Proof), SyncError> {
    // A remote without an id is not known to the server: only its user speaks for it.
    let known = account.remote_id.is_some();
    if known
        && from == ProofKind::Token
        && let Some(token) = &account.token
    {
        return Ok((ProofKind::Token, Proof::Token(token.clone())));
    }
    if known
        && from != ProofKind::User
        && let Some(credential) = &account.credential
    {
        return Ok((ProofKind::Credential, Proof::Credential(credential.clone())));
    }
    match user_proof {
        Some(proof) => Ok((ProofKind::User, proof.into())),
        None => Err(SyncError::PasswordMissing),
    }
}

impl PresentedProof {
    /// The proof to present next, if the server only did not like this one.
    pub(super) fn next(&self, failure: &FailureNotice) -> Option<ProofKind> {
        let code = Code::from_number(failure.code)?;
        let is_user_wanted = code == Code::SignInAgain;
        if !is_user_wanted && !matches!(code, Code::TokenExpired | Code::CredentialInvalid) {
            return None;
        }
        match self.proof {
            ProofKind::Token if self.has_credential && !is_user_wanted => {
                Some(ProofKind::Credential)
            }
            ProofKind::Token | ProofKind::Credential if self.has_user_proof => {
                Some(ProofKind::User)
            }
            _ => None,
        }
    }
}

/// A SignedIn that makes sense.
#[derive(Debug)]
pub(crate) struct SignInAnswer {
    pub(crate) remote_id: RemoteId,
    pub(crate) token: Option<Vec<u8>>,
    pub(crate) credential: Option<Vec<u8>>,
    /// The centre's name; empty if the server does not say.
    pub(crate) centre: String,
    /// The names of the centres above it.
    pub(crate) above: Vec<String>,
    /// The user's name, if it is not the one that was said.
    pub(crate) user: Option<String>,
}

impl SignInAnswer {
    pub(super) fn read(signed_in: SignedIn) -> Result<SignInAnswer, SyncError> {
        let major = signed_in.protocol_version >> 16;
        if major != PROTOCOL_MAJOR {
            return Err(SyncError::Protocol {
                code: Code::ProtocolVersion,
                what: format!("it chose protocol version {major}, which we do not speak"),
            });
        }
        let remote_id = RemoteId::from_slice(&signed_in.remote_id);
        if signed_in.above.len() > MAX_ABOVE {
            return Err(SyncError::malformed(
                "too many centres above it in its SignedIn",
            ));
        }
        Ok(SignInAnswer {
            remote_id: remote_id
                .ok_or_else(|| SyncError::malformed("the remote id in its SignedIn is no UUID"))?,
            token: some(signed_in.token),
            credential: some(signed_in.credential),
            centre: signed_in.centre,
            above: signed_in.above,
            user: Some(signed_in.user).filter(|user| !user.is_empty()),
        })
    }
}

fn some(bytes: Vec<u8>) -> Option<Vec<u8>> {
    (!bytes.is_empty()).then_some(bytes)
}
