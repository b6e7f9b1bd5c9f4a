//! Signing in: who we are, how we prove it, and what the server makes of it.

use std::fmt;

use tidewater_protocol::message::{
    Control, FailureNotice, MAX_ABOVE, PROTOCOL_MAJOR, PROTOCOL_VERSION, Proof, SignIn, SignedIn,
};
use tidewater_protocol::{Code, RemoteId};

use super::error::DeviceError;

/// How a remote can prove who it is, cheapest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProofKind {
    /// The session token of an earlier sync.
    #[default]
    Token,
    /// The remote's own credential.
    Credential,
    /// What only the user has: see [`UserProof`].
    User,
}

/// How a user proves who he is, at the first sync or when the remote's credential is no longer
/// enough.
#[derive(Clone, PartialEq, Eq)]
pub enum UserProof {
    /// With a password.
    Password(String),
    /// With a token of an identity provider.
    Bearer(String),
    /// With the certificate that the connection was opened with.
    Certificate,
}

impl From<UserProof> for Proof {
    fn from(proof: UserProof) -> Proof {
        match proof {
            UserProof::Password(password) => Proof::Password(password),
            UserProof::Bearer(token) => Proof::Bearer(token),
            UserProof::Certificate => Proof::Certificate(true),
        }
    }
}

/// It is not for logs.
impl fmt::Debug for UserProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UserProof::Password(_) => "Password",
            UserProof::Bearer(_) => "Bearer",
            UserProof::Certificate => "Certificate",
        })
    }
}

/// Who a device is, and what it has of earlier sign-ins to prove that.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct DeviceCredentials {
    /// Given by the server at the first sync.
    pub remote_id: Option<RemoteId>,
    /// Whom the device belongs to.
    pub user: String,
    /// The remote's own credential.
    pub credential: Option<Vec<u8>>,
    /// The last session token.
    pub token: Option<Vec<u8>>,
    /// The name of the centre that gave the remote its id; empty if it is not known.
    pub centre: String,
    /// What people call the device; empty if nobody has named it.
    pub device_name: String,
}

/// They are not for logs.
impl fmt::Debug for DeviceCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceCredentials")
            .field("remote_id", &self.remote_id)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// What a device or a program says to be let in.
pub struct SignInRequest {
    message: Box<SignIn>,
    /// Of a program without a file there is one proof, and no other.
    presented: Option<PresentedProof>,
}

/// A sign-in that waits for its answer: what was presented, and what else could be.
#[derive(Clone, Copy, Debug)]
pub(super) struct PresentedProof {
    proof: ProofKind,
    has_credential: bool,
    has_user_proof: bool,
}

impl SignInRequest {
    /// What a device says, with the cheapest proof at hand from `from` on; those before it were
    /// refused.
    ///
    /// # Errors
    /// There is no proof at hand.
    pub fn for_device(
        credentials: DeviceCredentials,
        from: ProofKind,
        user_proof: Option<UserProof>,
    ) -> Result<SignInRequest, DeviceError> {
        let has_credential = credentials.credential.is_some();
        let has_user_proof = user_proof.is_some();
        let (kind, proof) = choose_proof(&credentials, from, user_proof)?;
        let remote_id = credentials.remote_id.map(|id| id.to_vec());
        Ok(SignInRequest {
            presented: Some(PresentedProof {
                proof: kind,
                has_credential,
                has_user_proof,
            }),
            message: Box::new(SignIn {
                protocol_version: PROTOCOL_VERSION,
                remote_id: remote_id.unwrap_or_default(),
                user: credentials.user,
                proof: Some(proof),
                client: String::new(),
                centre: credentials.centre,
                is_program: false,
                device_name: credentials.device_name,
            }),
        })
    }

    /// What a program without a file says.
    pub fn for_program(user: &str, proof: Proof) -> SignInRequest {
        SignInRequest {
            presented: None,
            message: Box::new(SignIn {
                protocol_version: PROTOCOL_VERSION,
                user: user.to_owned(),
                proof: Some(proof),
                is_program: true,
                ..SignIn::default()
            }),
        }
    }

    pub(super) fn presented(&self) -> Option<PresentedProof> {
        self.presented
    }

    /// The message. `client`: the program that signs in, for the server's logs.
    pub(super) fn into_message(mut self, client: &str) -> Control {
        client.clone_into(&mut self.message.client);
        Control::SignIn(self.message)
    }
}

fn choose_proof(
    credentials: &DeviceCredentials,
    from: ProofKind,
    user_proof: Option<UserProof>,
) -> Result<(ProofKind, Proof), DeviceError> {
    // A remote without an id is not known to the server: only its user speaks for it.
    let known = credentials.remote_id.is_some();
    if known
        && from == ProofKind::Token
        && let Some(token) = &credentials.token
    {
        return Ok((ProofKind::Token, Proof::Token(token.clone())));
    }
    if known
        && from != ProofKind::User
        && let Some(credential) = &credentials.credential
    {
        return Ok((ProofKind::Credential, Proof::Credential(credential.clone())));
    }
    match user_proof {
        Some(proof) => Ok((ProofKind::User, proof.into())),
        None => Err(DeviceError::ProofMissing),
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
pub struct SignInAnswer {
    /// Who the device is from now on.
    pub remote_id: RemoteId,
    /// The token of this session.
    pub token: Option<Vec<u8>>,
    /// The remote's own credential, if the server gives it one.
    pub credential: Option<Vec<u8>>,
    /// The centre's name; empty if the server does not say.
    pub centre: String,
    /// The names of the centres above it.
    pub above: Vec<String>,
    /// The user's name, if it is not the one that was said.
    pub user: Option<String>,
}

impl SignInAnswer {
    pub(super) fn read(signed_in: SignedIn) -> Result<SignInAnswer, DeviceError> {
        let major = signed_in.protocol_version >> 16;
        if major != PROTOCOL_MAJOR {
            return Err(DeviceError::Protocol {
                code: Code::ProtocolVersion,
                what: format!("it chose protocol version {major}, which we do not speak"),
            });
        }
        let remote_id = RemoteId::from_slice(&signed_in.remote_id);
        if signed_in.above.len() > MAX_ABOVE {
            return Err(DeviceError::malformed(
                "too many centres above it in its SignedIn",
            ));
        }
        Ok(SignInAnswer {
            remote_id: remote_id.ok_or_else(|| {
                DeviceError::malformed("the remote id in its SignedIn is no UUID")
            })?,
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
