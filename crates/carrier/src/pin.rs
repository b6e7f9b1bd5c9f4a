//! The key of a server, by its hash: whoever pins it needs no authority.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{DigitallySignedStruct, OtherError, SignatureScheme};
use sha2::{Digest, Sha256};

/// The SHA-256 of a server's public key, as its certificate has it (SubjectPublicKeyInfo). Written
/// `sha256/` and Base64.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pin([u8; 32]);

/// Not a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a pin is sha256/ and 32 bytes in Base64, as tidewater cert prints it")]
pub struct NoPin;

const PREFIX: &str = "sha256/";

impl Pin {
    pub(crate) fn from_certificate(certificate: &CertificateDer<'_>) -> Result<Pin, rustls::Error> {
        let key = ParsedCertificate::try_from(certificate)?.subject_public_key_info();
        Ok(Pin(Sha256::digest(key).into()))
    }
}

impl FromStr for Pin {
    type Err = NoPin;

    fn from_str(text: &str) -> Result<Pin, NoPin> {
        let hash = text.trim().strip_prefix(PREFIX).ok_or(NoPin)?;
        let hash = STANDARD.decode(hash).map_err(|_| NoPin)?;
        hash.try_into().map(Pin).map_err(|_| NoPin)
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", STANDARD.encode(self.0))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A server has another key.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("its key is {0}")]
pub(crate) struct OtherKey(pub(crate) Pin);

/// Trusts whoever has the key: whatever the certificate says of names, issuers and times.
#[derive(Debug)]
pub(crate) struct PinVerifier {
    pub(crate) pin: Pin,
    pub(crate) provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let found = Pin::from_certificate(certificate)?;
        match found == self.pin {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(rustls::Error::Other(OtherError(Arc::new(OtherKey(found))))),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let known = &self.provider.signature_verification_algorithms;
        known.supported_schemes()
    }
}
