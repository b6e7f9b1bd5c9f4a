//! How whoever signs in proves who he is: by a password, a token of an identity provider, or a
//! certificate.

use std::path::PathBuf;

use tidewater_client::{BearerToken, ClientCertificate, LinkProof, Remote};
use tidewater_terminal::Failure;

use crate::password::{self, PasswordArgs};

/// The environment variable that holds a token.
const VARIABLE: &str = "TIDEWATER_TOKEN";

/// How a command takes what signs in.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ProofArgs {
    #[command(flatten)]
    pub(crate) password: PasswordArgs,
    /// Sign in with the identity provider's token in this file, not with a password
    ///
    /// The file is read each time that the token is wanted. The environment variable
    /// TIDEWATER_TOKEN may hold the token itself instead.
    #[arg(long, value_name = "FILE", conflicts_with = "password_stdin")]
    token_file: Option<PathBuf>,
    /// Show this client certificate (PEM); without a password or a token it signs in
    #[arg(long, value_name = "FILE", requires = "certificate_key")]
    certificate: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "certificate")]
    certificate_key: Option<PathBuf>,
}

/// What was given to sign in with.
pub(crate) enum GivenProof {
    Password(String),
    Bearer(BearerToken),
    Certificate(ClientCertificate),
}

impl GivenProof {
    /// Has a remote sign in so, where it has to.
    pub(crate) fn give(self, remote: &mut Remote) {
        match self {
            GivenProof::Password(password) => remote.set_password(password),
            GivenProof::Bearer(bearer) => remote.set_bearer(bearer),
            GivenProof::Certificate(certificate) => remote.set_certificate(certificate),
        }
    }

    /// The same for a program.
    pub(crate) fn for_link(self) -> LinkProof {
        match self {
            GivenProof::Password(password) => LinkProof::Password(password),
            GivenProof::Bearer(bearer) => LinkProof::Bearer(bearer),
            GivenProof::Certificate(certificate) => LinkProof::Certificate(certificate),
        }
    }
}

impl ProofArgs {
    /// Whether it says by itself who the user is.
    pub(crate) fn tells_user(&self) -> bool {
        self.token_file.is_some() || self.certificate.is_some() || has_token()
    }

    /// What was given beforehand: nobody is asked. An option goes before the environment.
    pub(crate) fn given(&self) -> Result<Option<GivenProof>, Failure> {
        if let Some(file) = &self.token_file {
            return Ok(Some(GivenProof::Bearer(BearerToken::File(file.clone()))));
        }
        if let (Some(certificate), Some(key)) = (&self.certificate, &self.certificate_key) {
            return Ok(Some(GivenProof::Certificate(ClientCertificate {
                certificate: certificate.clone(),
                key: key.clone(),
            })));
        }
        if !self.password.password_stdin && has_token() {
            let token = std::env::var(VARIABLE)
                .map_err(|_| Failure::usage(format!("{VARIABLE} is not UTF-8"), ""))?;
            return Ok(Some(GivenProof::Bearer(BearerToken::Token(token))));
        }
        Ok(self.password.given()?.map(GivenProof::Password))
    }

    /// What somebody signs in with; a password is asked for.
    pub(crate) fn obtain(&self, prompt: &str) -> Result<GivenProof, Failure> {
        match self.given()? {
            Some(given) => Ok(given),
            None => self.password.obtain(prompt).map(GivenProof::Password),
        }
    }

    /// Whether there is a person to ask for a password.
    pub(crate) fn can_ask(&self) -> bool {
        !self.tells_user() && password::can_ask()
    }
}

fn has_token() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|it| !it.is_empty())
}
