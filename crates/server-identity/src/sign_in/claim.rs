//! What a remote says when it signs in, checked as far as that can be done without the centre.

use tidewater_protocol::message::{PROTOCOL_VERSION, Proof, SignIn, is_device_name, negotiate};
use tidewater_protocol::{Code, RemoteId};

use tidewater_server_config::MAX_NAME_BYTES;
use tidewater_server_jobs::fault::Fault;

/// A SignIn whose parts are well-formed.
pub struct ParsedSignIn {
    /// The version that the connection speaks.
    pub version: u32,
    /// The remote's id; `None` if it has none yet, or is a program.
    pub remote_id: Option<RemoteId>,
    /// The user's name; empty where the proof tells it.
    pub user: String,
    /// What proves who it is.
    pub proof: Proof,
    /// The program that speaks, and its version.
    pub client: String,
    /// The name of the centre that it knows; empty if none.
    pub(super) centre: String,
    /// It is a program without a file.
    pub is_program: bool,
    /// What people call the device; empty if nobody has named it.
    pub device_name: String,
}

impl ParsedSignIn {
    /// Reads a SignIn.
    ///
    /// # Errors
    /// A part of it is not well-formed, or its protocol version is not spoken.
    pub fn check(sign_in: SignIn) -> Result<ParsedSignIn, Fault> {
        let version = check_version(sign_in.protocol_version)?;
        check_name("user", &sign_in.user)?;
        check_name("client", &sign_in.client)?;
        check_name("centre", &sign_in.centre)?;
        let name = &sign_in.device_name;
        if !(name.is_empty() || is_device_name(name)) {
            return Err(Fault::malformed(
                "a name of a device that is too long, or has control characters",
            ));
        }
        let proof = sign_in.proof;
        let has_identity =
            !sign_in.remote_id.is_empty() || matches!(proof, Some(Proof::Credential(_)));
        if sign_in.is_program && has_identity {
            return Err(Fault::malformed("a program with the identity of a remote"));
        }
        Ok(ParsedSignIn {
            version,
            remote_id: identity(&sign_in.remote_id, RemoteId::from_slice)?,
            user: sign_in.user,
            proof: proof.ok_or_else(|| Fault::malformed("a SignIn without a proof"))?,
            client: sign_in.client,
            centre: sign_in.centre,
            is_program: sign_in.is_program,
            device_name: sign_in.device_name,
        })
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

/// Refuses a name that is too long. `what`: whose name it is.
///
/// # Errors
/// It is longer than [`MAX_NAME_BYTES`].
pub fn check_name(what: &str, name: &str) -> Result<(), Fault> {
    if name.len() > MAX_NAME_BYTES {
        let name = format!("a {what} name of {} bytes", name.len());
        return Err(Fault::malformed(&name));
    }
    Ok(())
}

/// Reads an identity of 16 bytes, or none.
///
/// # Errors
/// It is of another length.
pub fn identity<T>(bytes: &[u8], read: impl Fn(&[u8]) -> Option<T>) -> Result<Option<T>, Fault> {
    if bytes.is_empty() {
        return Ok(None);
    }
    read(bytes)
        .map(Some)
        .ok_or_else(|| Fault::malformed("an identity that is not 16 bytes long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_claims_are_refused() {
        let sign_in = || SignIn {
            protocol_version: PROTOCOL_VERSION,
            user: "ada".into(),
            proof: Some(Proof::Password("x".into())),
            ..Default::default()
        };
        assert!(ParsedSignIn::check(sign_in()).is_ok());
        let refused = |change: &dyn Fn(&mut SignIn)| {
            let mut changed = sign_in();
            change(&mut changed);
            let fault = ParsedSignIn::check(changed).err();
            fault.expect("the SignIn is refused").code
        };
        assert_eq!(refused(&|it| it.proof = None), Code::MalformedMessage);
        let version = |it: &mut SignIn| it.protocol_version = 9 << 16;
        assert_eq!(refused(&version), Code::ProtocolVersion);
        assert_eq!(
            refused(&|it| it.remote_id = vec![1]),
            Code::MalformedMessage
        );
        let user = |it: &mut SignIn| it.user = "x".repeat(600);
        assert_eq!(refused(&user), Code::MalformedMessage);
        for name in ["x".repeat(65), "a\u{1b}[2J".into(), "two\nlines".into()] {
            let name = |it: &mut SignIn| it.device_name.clone_from(&name);
            assert_eq!(refused(&name), Code::MalformedMessage);
        }
        let mut named = sign_in();
        named.device_name = "ß".repeat(64);
        assert!(ParsedSignIn::check(named).is_ok());
    }
}
