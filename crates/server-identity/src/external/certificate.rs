//! Certificates that clients show: whether an authority that counts has issued one, and to whom.

use tidewater_carrier::tls::ClientAuthorities;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{CertificateError, Error};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{Identity, rejected, user_name};
use tidewater_server_config::{CertificateName, CertificatesConfig};
use tidewater_server_jobs::error::ServerError;
use tidewater_server_jobs::fault::Fault;

/// Who has said so, in the user's record.
const BY: &str = "certificate";

/// Whose certificates count.
pub(super) struct Certificates {
    authorities: ClientAuthorities,
    user_from: CertificateName,
}

impl Certificates {
    pub(super) fn new(config: &CertificatesConfig) -> Result<Certificates, ServerError> {
        Ok(Certificates {
            authorities: authorities(config)?,
            user_from: config.user_from,
        })
    }

    /// Who has shown these certificates.
    ///
    /// # Errors
    /// They prove nothing.
    pub(super) fn check(
        &self,
        shown: &[CertificateDer<'_>],
        now_ms: i64,
    ) -> Result<Identity, Fault> {
        let Some(own) = shown.first() else {
            return Err(rejected(
                "no certificate was shown on this connection",
                "connect by tls:// to the server itself, with a certificate and its key: what \
                 ends TLS in front of the server keeps certificates from it",
            ));
        };
        let now_s = u64::try_from(now_ms / 1_000).unwrap_or(0);
        let checked = self.authorities.check(shown, now_s);
        checked.map_err(|error| unproven(&error))?;
        let what = spelled(self.user_from);
        let name = name(own, self.user_from).ok_or_else(|| {
            rejected(
                format!("the certificate has no {what}, which is to be the user's name"),
                "have one issued that has it; the server's operator can take the name from \
                 elsewhere: user_from under [sign_in.certificates]",
            )
        })?;
        Ok(Identity {
            user: user_name(&name, &format!("the certificate's {what}"))?,
            by: BY.into(),
            claims: None,
        })
    }
}

/// The authorities of a configuration.
pub fn authorities(config: &CertificatesConfig) -> Result<ClientAuthorities, ServerError> {
    ClientAuthorities::load(&config.authority).map_err(|error| {
        ServerError::configuration(
            format!("sign_in.certificates: authority: {error}"),
            "name a PEM file with the certificate of the authority that issues to clients",
        )
    })
}

/// What is a certificate worth nothing for, and what to do.
fn unproven(error: &Error) -> Fault {
    use CertificateError as Refused;
    let (what, hint) = match error {
        Error::InvalidCertificate(Refused::Expired | Refused::ExpiredContext { .. }) => (
            "the certificate has run out".to_owned(),
            "have a new one issued",
        ),
        Error::InvalidCertificate(Refused::NotValidYet | Refused::NotValidYetContext { .. }) => (
            "the certificate is not good yet".to_owned(),
            "wait, or see that the clocks of its authority and of the server are right",
        ),
        Error::InvalidCertificate(Refused::UnknownIssuer) => (
            "the certificate is from an authority that does not count here".to_owned(),
            "use one that the server's own authority has issued; if it was issued in steps, put \
             the certificates between into the file, too",
        ),
        Error::InvalidCertificate(
            Refused::InvalidPurpose | Refused::InvalidPurposeContext { .. },
        ) => (
            "the certificate is not meant for clients".to_owned(),
            "have one issued for client authentication",
        ),
        other => (
            format!("the certificate proves nothing: {other}"),
            "have a new one issued",
        ),
    };
    rejected(what, hint)
}

fn spelled(from: CertificateName) -> &'static str {
    match from {
        CertificateName::CommonName => "common name",
        CertificateName::Email => "mail address",
        CertificateName::Uri => "URI",
    }
}

/// The name in a certificate; `None` if there is none, or several, of which nobody knows which is
/// meant.
fn name(certificate: &CertificateDer<'_>, from: CertificateName) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    if from == CertificateName::CommonName {
        let mut names = parsed.subject().iter_common_name();
        let name = names.next()?.as_str().ok()?.to_owned();
        return names.next().is_none().then_some(name);
    }
    let names = parsed.subject_alternative_name().ok()??;
    let mut wanted = names.value.general_names.iter().filter_map(|it| match it {
        GeneralName::RFC822Name(address) if from == CertificateName::Email => Some(*address),
        GeneralName::URI(uri) if from == CertificateName::Uri => Some(*uri),
        _ => None,
    });
    let name = wanted.next()?.to_owned();
    wanted.next().is_none().then_some(name)
}
