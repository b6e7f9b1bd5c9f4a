//! The certificate of a server, which may be another one while it runs.

use std::sync::{Arc, PoisonError, RwLock};

use tidewater_carrier::ServerUrl;
use tidewater_carrier::listen::TlsServer;

use crate::listener;
use tidewater_server_config::Config;
use tidewater_server_jobs::error::ServerError;

/// The certificate of `tls://` and `https://`, which can be replaced.
pub(super) struct Certificate(RwLock<Option<ServedCertificates>>);

/// What TLS is set up with at the addresses of each protocol.
#[derive(Clone)]
pub(super) struct ServedCertificates {
    tidewater: TlsServer,
    /// Browsers would ask their users for a certificate.
    http: TlsServer,
}

impl Certificate {
    pub(super) fn load(config: &Config) -> Result<Arc<Certificate>, ServerError> {
        let certificate = RwLock::new(Certificate::read(config)?);
        Ok(Arc::new(Certificate(certificate)))
    }

    /// The configured one, if there is an address for it.
    pub(super) fn read(config: &Config) -> Result<Option<ServedCertificates>, ServerError> {
        let server = &config.server;
        let mut urls = server.listen_urls()?;
        let is_relayed = config.relay.is_some();
        let encrypts = urls.iter().any(is_tls) || is_relayed;
        urls.extend(server.http_url()?);
        if config.sign_in.certificates.is_some() && !encrypts {
            return Err(ServerError::configuration(
                "sign_in.certificates: the server listens on no tls:// address",
                "write one into server.listen: without TLS nobody shows a certificate",
            ));
        }
        let is_used = is_relayed || urls.iter().any(is_tls);
        let Some(tls) = server.tls.as_ref().filter(|_| is_used) else {
            return Ok(None);
        };
        let http = listener::tls(tls)?;
        Ok(Some(ServedCertificates {
            tidewater: match &config.sign_in.certificates {
                None => http.clone(),
                Some(clients) => listener::tls_for_known_clients(tls, clients)?,
            },
            http,
        }))
    }

    /// Connections that are accepted from now on get this one.
    pub(super) fn replace(&self, tls: Option<ServedCertificates>) {
        if tls.is_some() {
            *self.0.write().unwrap_or_else(PoisonError::into_inner) = tls;
        }
    }

    pub(super) fn current(&self, is_web: bool) -> Option<TlsServer> {
        let current = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let served = current.clone()?;
        Some(if is_web {
            served.http
        } else {
            served.tidewater
        })
    }
}

fn is_tls(url: &ServerUrl) -> bool {
    url.transport.is_encrypted()
}
