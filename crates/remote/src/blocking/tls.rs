//! Whom we trust, and what is wrong when we do not.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::session::SyncError;

/// A client for the server of this name. Trusts the authorities of `ca_file`, or those
/// that browsers trust.
pub(super) fn client(host: &str, ca_file: Option<&Path>) -> Result<ClientConnection, SyncError> {
    let defect = |_| SyncError::Defect {
        what: "the TLS library refuses its own defaults",
    };
    let name = ServerName::try_from(host.to_owned()).map_err(|_| SyncError::Usage {
        what: format!("{host:?} is not a host name that a certificate can have"),
        hint: "write the server's address as tls://host:port".into(),
    })?;
    let roots = match ca_file {
        Some(file) => roots_of(file)?,
        None => RootCertStore {
            roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
        },
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(defect)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    ClientConnection::new(Arc::new(config), name).map_err(defect)
}

/// The certificates of a PEM file. They replace the public authorities: who runs an
/// authority of his own does not want others to speak for his server.
fn roots_of(file: &Path) -> Result<RootCertStore, SyncError> {
    let unusable = |what: String| SyncError::Usage {
        what: format!(
            "the certificate file {} cannot be used: {what}",
            file.display()
        ),
        hint: "name a PEM file with the certificate of the server's authority".into(),
    };
    let mut roots = RootCertStore::empty();
    let certificates =
        CertificateDer::pem_file_iter(file).map_err(|error| unusable(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        roots
            .add(certificate)
            .map_err(|error| unusable(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(unusable("it contains no certificate".into()));
    }
    Ok(roots)
}

/// An error of TLS in the words of a sync.
pub(super) fn failed(error: rustls::Error, server: &str) -> SyncError {
    let server = server.to_owned();
    match error {
        rustls::Error::InvalidCertificate(what) => SyncError::Certificate {
            server,
            by_the_clock: is_of_the_clock(&what),
            what: what.to_string(),
        },
        rustls::Error::InvalidMessage(_) => SyncError::Tls {
            server,
            what: "what it answers is not TLS".into(),
        },
        other => SyncError::Tls {
            server,
            what: other.to_string(),
        },
    }
}

/// Whether a certificate is refused only because of what time it is here.
fn is_of_the_clock(what: &rustls::CertificateError) -> bool {
    use rustls::CertificateError as Refused;
    matches!(
        what,
        Refused::Expired
            | Refused::ExpiredContext { .. }
            | Refused::NotValidYet
            | Refused::NotValidYetContext { .. }
    )
}
