//! The addresses of the configuration: which are allowed, and the certificate that
//! `tls://` needs. Accepting connections is the server's affair.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair,
};

use tidewater_carrier::listen::TlsServer;
use tidewater_carrier::{CarrierError, ServerUrl, Transport};

use tidewater_server_config::{CertificatesConfig, ConfigError, ServerConfig, TlsConfig};
use tidewater_server_identity::external;
use tidewater_server_jobs::error::ServerError;

/// What is spoken at an address, once it is known whether that is encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpokenProtocols {
    /// Connections as they are.
    pub(crate) tidewater: bool,
    /// Connections in a WebSocket.
    pub(crate) websocket: bool,
    /// Connections in requests of HTTP.
    pub(crate) http: bool,
    /// The web protocol.
    pub(crate) web: bool,
}

impl SpokenProtocols {
    /// Whether HTTP is what is spoken first.
    pub(crate) fn any_http(self) -> bool {
        self.websocket || self.http || self.web
    }

    pub(crate) fn any(self) -> bool {
        self.tidewater || self.any_http()
    }
}

/// An address, and what is spoken there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// `host:port`.
    pub(crate) address: String,
    /// The URLs that it has in the configuration.
    pub(crate) urls: Vec<ServerUrl>,
    pub(crate) plain: SpokenProtocols,
    pub(crate) encrypted: SpokenProtocols,
    /// Whether `server.http` is one of them.
    pub(crate) is_web: bool,
}

/// Every address of a configuration. Several URLs may share one: they are told apart by the first
/// bytes that come.
pub(crate) fn addresses(config: &ServerConfig) -> Result<Vec<Address>, ServerError> {
    let mut addresses: Vec<Address> = Vec::new();
    let web = config.http_url()?;
    let all = config.listen_urls()?.into_iter().map(|it| (it, false));
    for (url, is_web) in all.chain(web.map(|it| (it, true))) {
        let own = url.address();
        let shared = addresses
            .iter_mut()
            .find(|it| it.address == own && url.port > 0);
        let address = match shared {
            Some(address) => address,
            None => {
                addresses.push(Address {
                    address: own,
                    urls: Vec::new(),
                    plain: SpokenProtocols::default(),
                    encrypted: SpokenProtocols::default(),
                    is_web: false,
                });
                let last = addresses.len() - 1;
                &mut addresses[last]
            }
        };
        let spoken = match url.transport.is_encrypted() {
            true => &mut address.encrypted,
            false => &mut address.plain,
        };
        match url.transport {
            _ if is_web => spoken.web = true,
            Transport::Tcp | Transport::Tls => spoken.tidewater = true,
            Transport::Ws | Transport::Wss => spoken.websocket = true,
            Transport::Http | Transport::Https => spoken.http = true,
        }
        address.is_web |= is_web;
        address.urls.push(url);
    }
    Ok(addresses)
}

/// What is spoken over the lines of relays: all that is encrypted. The web protocol only where it is
/// encrypted everywhere.
pub(crate) fn relayed(config: &ServerConfig) -> Result<Address, ServerError> {
    let web = config.http_url()?;
    Ok(Address {
        address: String::new(),
        urls: Vec::new(),
        plain: SpokenProtocols::default(),
        encrypted: SpokenProtocols {
            tidewater: true,
            websocket: true,
            http: true,
            web: web.is_some_and(|it| it.transport.is_encrypted()),
        },
        is_web: false,
    })
}

/// TLS with the configured certificate.
pub(crate) fn tls(config: &TlsConfig) -> Result<TlsServer, ServerError> {
    TlsServer::new(&config.certificate, &config.key).map_err(|error| unusable(&error))
}

/// The same, which asks clients who they are.
pub(crate) fn tls_for_known_clients(
    config: &TlsConfig,
    clients: &CertificatesConfig,
) -> Result<TlsServer, ServerError> {
    let authorities = external::authorities(clients)?;
    let tls = TlsServer::for_known_clients(&config.certificate, &config.key, &authorities);
    tls.map_err(|error| unusable(&error))
}

fn unusable(error: &CarrierError) -> ServerError {
    ServerError::configuration(
        error.to_string(),
        "give [server.tls] a certificate chain and its private key, both as PEM",
    )
}

/// Makes a self-signed certificate for trying out, in `directory`: what to put
/// under `[server.tls]`. Remotes trust it with `--ca` and the certificate's file.
///
/// # Errors
/// A host is no name or address, or the files cannot be written.
pub fn dev_certificate(directory: &Path, hosts: &[String]) -> Result<TlsConfig, ServerError> {
    let made = rcgen::generate_simple_self_signed(hosts.to_vec()).map_err(|error| {
        ServerError::configuration(
            format!(
                "cannot make a certificate for {}: {error}",
                hosts.join(", ")
            ),
            "name hosts or addresses, such as localhost and 127.0.0.1",
        )
    })?;
    let certificate = directory.join("tidewater-dev.pem");
    let key = directory.join("tidewater-dev.key");
    write_file(
        &certificate,
        "certificate",
        made.cert.pem().as_bytes(),
        0o644,
    )?;
    write_file(
        &key,
        "private key",
        made.signing_key.serialize_pem().as_bytes(),
        0o600,
    )?;
    Ok(TlsConfig { certificate, key })
}

/// Makes certificates with which these users sign in, for trying out, in `directory`: `NAME.pem` and
/// `NAME.key`. Gives the file of the authority that has issued them, whose key nobody has: for
/// another user, all are made anew.
///
/// # Errors
/// A name can be none of a file, or the files cannot be written.
pub fn dev_client_certificates(directory: &Path, users: &[String]) -> Result<PathBuf, ServerError> {
    let failed = |error: &dyn std::fmt::Display| {
        ServerError::configuration(
            format!("cannot make certificates of clients: {error}"),
            "name users by letters and digits, such as nancy",
        )
    };
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "._-@".contains(it);
    if let Some(user) = users
        .iter()
        .find(|it| it.is_empty() || it.starts_with('.') || !it.chars().all(is_plain))
    {
        return Err(failed(&format!("{user:?} is no name for a file")));
    }
    let key = || KeyPair::generate().map_err(|error| failed(&error));
    let mut authority = CertificateParams::default();
    authority.distinguished_name = DistinguishedName::new();
    let name = "Tidewater clients, for trials";
    authority.distinguished_name.push(DnType::CommonName, name);
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, key()?);
    let authority = authority.map_err(|error| failed(&error))?;
    let path = directory.join("tidewater-clients.pem");
    write_file(&path, "certificate", authority.pem().as_bytes(), 0o644)?;
    for user in users {
        let mut client = CertificateParams::default();
        client.distinguished_name = DistinguishedName::new();
        client.distinguished_name.push(DnType::CommonName, user);
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let own = key()?;
        let issued = client.signed_by(&own, &authority);
        let issued = issued.map_err(|error| failed(&error))?;
        let file = |extension| directory.join(format!("{user}.{extension}"));
        write_file(&file("pem"), "certificate", issued.pem().as_bytes(), 0o644)?;
        let own = own.serialize_pem();
        write_file(&file("key"), "private key", own.as_bytes(), 0o600)?;
    }
    Ok(path)
}

fn write_file(
    path: &PathBuf,
    what: &'static str,
    bytes: &[u8],
    mode: u32,
) -> Result<(), ServerError> {
    use std::os::unix::fs::OpenOptionsExt;
    let write = || {
        // An existing file would keep its mode.
        match fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(path)?
            .write_all(bytes)
    };
    write().map_err(|source| {
        let path = path.display().to_string();
        ServerError::from(ConfigError::File { what, path, source })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn a_development_certificate_can_be_loaded_and_its_key_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let hosts = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        dev_certificate(directory.path(), &hosts).unwrap();
        let made = dev_certificate(directory.path(), &hosts).unwrap();
        super::tls(&made).unwrap();
        let mode = fs::metadata(&made.key).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn unusable_certificates_are_explained() {
        let directory = tempfile::tempdir().unwrap();
        let made = dev_certificate(directory.path(), &["localhost".to_owned()]).unwrap();
        let swapped = TlsConfig {
            certificate: made.key.clone(),
            key: made.certificate.clone(),
        };
        let error = super::tls(&swapped).err().unwrap();
        assert!(error.to_string().contains("holds no certificate"));
        let missing = TlsConfig {
            certificate: directory.path().join("missing.pem"),
            key: made.key,
        };
        let error = super::tls(&missing).err().unwrap();
        assert!(error.to_string().contains("missing.pem"));
    }
}
