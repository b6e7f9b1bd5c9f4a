//! TLS to PostgreSQL, as `sslmode` and `sslrootcert` of its URL ask for it.
//!
//! Owns those two parameters and what they mean, which is what they mean to PostgreSQL's
//! own programs, and the handshake.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tidewater_carrier::tls;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres::{Config, Socket};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as RustlsStream;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{self, CryptoProvider};
use tokio_rustls::rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use tidewater_centre::error::CentreError;

/// What is checked of the server's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    /// Nothing: whoever listens in hears nothing, whoever stands between hears all.
    Nothing,
    /// Who issued it.
    Issuer,
    /// Who issued it, and that it is for this host.
    IssuerAndName,
}

/// What a URL says about TLS.
#[derive(Debug, Default)]
pub(super) struct TlsOptions {
    mode: Option<String>,
    root: Option<String>,
}

/// Makes connections over TLS.
#[derive(Clone, Debug)]
pub(super) struct Tls(Arc<ClientConfig>);

impl TlsOptions {
    /// Takes the parameters about TLS out of a URL, and gives the rest of it.
    pub(super) fn split(url: &str) -> (String, TlsOptions) {
        let mut wishes = TlsOptions::default();
        let Some((base, query)) = url.split_once('?') else {
            return (url.to_owned(), wishes);
        };
        let mut rest = Vec::new();
        for parameter in query.split('&') {
            match parameter.split_once('=') {
                Some(("sslmode", value)) => wishes.mode = Some(decoded(value)),
                Some(("sslrootcert", value)) => wishes.root = Some(decoded(value)),
                _ => rest.push(parameter),
            }
        }
        let url = match rest.is_empty() {
            true => base.to_owned(),
            false => format!("{base}?{}", rest.join("&")),
        };
        (url, wishes)
    }

    /// Puts the mode into the configuration, and gives what speaks TLS if it may be spoken.
    pub(super) fn apply(&self, config: &mut Config) -> Result<Option<Tls>, CentreError> {
        let strict = match self.root {
            Some(_) => Check::Issuer,
            None => Check::Nothing,
        };
        let (mode, check) = match self.mode.as_deref() {
            Some("disable") => (SslMode::Disable, None),
            // Nobody listens on the way to the same machine.
            None | Some("allow" | "prefer") if is_near(config) => (SslMode::Disable, None),
            None | Some("allow" | "prefer") => (SslMode::Prefer, Some(strict)),
            Some("require") => (SslMode::Require, Some(strict)),
            Some("verify-ca") => (SslMode::Require, Some(Check::Issuer)),
            Some("verify-full") => (SslMode::Require, Some(Check::IssuerAndName)),
            Some(other) => {
                return Err(CentreError::Configuration {
                    message: format!("the database's URL has an unknown sslmode: {other:?}"),
                    hint: "write disable, prefer, require, verify-ca or verify-full".into(),
                });
            }
        };
        config.ssl_mode(mode);
        check.map(|check| self.client(check)).transpose()
    }

    fn client(&self, check: Check) -> Result<Tls, CentreError> {
        let internal = |error: &dyn std::fmt::Display| CentreError::Internal {
            message: format!("TLS cannot be set up: {error}"),
        };
        let provider = tls::provider();
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| internal(&error))?;
        let inner = match check {
            Check::Nothing => None,
            _ => {
                let verifier = WebPkiServerVerifier::builder_with_provider(
                    Arc::new(self.roots()?),
                    provider.clone(),
                );
                Some(verifier.build().map_err(|error| internal(&error))?)
            }
        };
        let verifier = Verifier {
            check,
            inner,
            provider,
        };
        let config = builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        Ok(Tls(Arc::new(config)))
    }

    /// The issuers that are trusted.
    fn roots(&self) -> Result<RootCertStore, CentreError> {
        let file = self.root.as_deref().filter(|&root| root != "system");
        tls::roots(file.map(Path::new)).map_err(|error| CentreError::Configuration {
            message: format!("sslrootcert of the database's URL, {error}"),
            hint: "name a PEM file with the certificate of whoever issued the database's".into(),
        })
    }
}

/// Whether all hosts are this machine.
fn is_near(config: &Config) -> bool {
    let near = |host: &Host| match host {
        Host::Tcp(name) => match name.parse::<std::net::IpAddr>() {
            Ok(address) => address.is_loopback(),
            Err(_) => name == "localhost",
        },
        #[cfg(unix)]
        Host::Unix(_) => true,
    };
    config.get_hostaddrs().iter().all(|it| it.is_loopback()) && config.get_hosts().iter().all(near)
}

/// A parameter's value without its percent signs. What is no text stays as it is.
fn decoded(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [first, tail @ ..] = rest {
        let pair = tail.get(..2).and_then(|pair| str::from_utf8(pair).ok());
        let byte = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok());
        match (first, byte) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| value.to_owned())
}

/// Why a certificate was not trusted, if that is why a connection failed.
pub(super) fn distrust(error: &tokio_postgres::Error) -> Option<CentreError> {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        // An `io::Error` shows what it wraps as itself.
        let wrapped = inner
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
            .and_then(|inner| inner.downcast_ref::<Error>());
        let found = wrapped.or_else(|| inner.downcast_ref::<Error>());
        if let Some(Error::InvalidCertificate(reason)) = found {
            return Some(CentreError::Configuration {
                message: format!("the certificate of PostgreSQL is not trusted: {reason}"),
                hint: "name the certificate of its issuer in the URL (sslrootcert=FILE), and the \
                       host as in the certificate"
                    .into(),
            });
        }
        source = inner.source();
    }
    None
}

/// Checks as much of a certificate as was asked for.
#[derive(Debug)]
struct Verifier {
    check: Check,
    /// `None` if nothing is checked.
    inner: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(inner) = &self.inner else {
            return Ok(ServerCertVerified::assertion());
        };
        let verified =
            inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The name is looked at last: all else is right.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.check == Check::Issuer => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = TlsConnection;
    type TlsConnect = Handshake;
    type Error = InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, Self::Error> {
        Ok(Handshake {
            connector: TlsConnector::from(self.0.clone()),
            name: ServerName::try_from(host.to_owned())?,
        })
    }
}

/// A handshake with one host.
pub(super) struct Handshake {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl TlsConnect<Socket> for Handshake {
    type Stream = TlsConnection;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TlsConnection>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let stream = self.connector.connect(self.name, socket).await?;
            Ok(TlsConnection(Box::new(stream)))
        })
    }
}

/// A connection over TLS.
pub(super) struct TlsConnection(Box<RustlsStream<Socket>>);

impl TlsStream for TlsConnection {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for TlsConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for TlsConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameters_about_tls_are_taken_out_of_a_url() {
        let url =
            "postgres://u@h/db?sslmode=verify-full&options=-c%20a%3Db&sslrootcert=%2Fa%20b.pem";
        let (rest, wishes) = TlsOptions::split(url);
        assert_eq!(rest, "postgres://u@h/db?options=-c%20a%3Db");
        assert_eq!(wishes.mode.as_deref(), Some("verify-full"));
        assert_eq!(wishes.root.as_deref(), Some("/a b.pem"));
        let (rest, wishes) = TlsOptions::split("postgres://u@h/db?sslmode=disable");
        assert_eq!(rest, "postgres://u@h/db");
        assert_eq!(wishes.mode.as_deref(), Some("disable"));
        assert_eq!(decoded("50%"), "50%");
        assert_eq!(decoded("%zz%4"), "%zz%4");
    }

    #[test]
    fn modes_mean_what_they_mean_to_postgresql() {
        let apply = |url: &str| {
            let (rest, wishes) = TlsOptions::split(url);
            let mut config: Config = rest.parse().expect("a URL");
            let tls = wishes.apply(&mut config);
            tls.map(|tls| (config.get_ssl_mode(), tls.is_some()))
        };
        for (url, expected) in [
            ("postgres://u@127.0.0.1/db", (SslMode::Disable, false)),
            (
                "postgres://u@localhost/db?sslmode=prefer",
                (SslMode::Disable, false),
            ),
            (
                "postgres://u@localhost/db?sslmode=require",
                (SslMode::Require, true),
            ),
            ("postgres://u@db.example.com/db", (SslMode::Prefer, true)),
            (
                "postgres://u@db.example.com/db?sslmode=disable",
                (SslMode::Disable, false),
            ),
            (
                "postgres://u@db.example.com/db?sslmode=verify-ca",
                (SslMode::Require, true),
            ),
            (
                "postgres://u@db.example.com/db?sslmode=verify-full",
                (SslMode::Require, true),
            ),
        ] {
            assert_eq!(apply(url).expect("a mode"), expected, "{url}");
        }
        assert!(apply("postgres://u@h/db?sslmode=full").is_err());
        assert!(apply("postgres://u@h/db?sslmode=verify-full&sslrootcert=/none.pem").is_err());
    }
}
