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

use crate::auth::external;
use crate::config::{CertificatesConfig, ServerConfig, TlsConfig};
use crate::error::ServerError;

/// What is spoken at an address, once it is known whether that is encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spoken {
    /// Connections as they are.
    pub(crate) tidewater: bool,
    /// Connections in a WebSocket.
    pub(crate) websocket: bool,
    /// Connections in requests of HTTP.
    pub(crate) http: bool,
    /// The web protocol.
    pub(crate) web: bool,
}

impl Spoken {
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
    pub(crate) plain: Spoken,
    pub(crate) encrypted: Spoken,
    /// Whether `server.http` is one of them.
    pub(crate) is_web: bool,
}

/// Every address of a configuration. Several URLs may share one: they are told apart by the first
/// bytes that come.
pub(crate) fn addresses(config: &ServerConfig) -> Result<Vec<Address>, ServerError> {
    let mut addresses: Vec<Address> = Vec::new();
    let web = http(config)?;
    let all = urls(config)?.into_iter().map(|it| (it, false));
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
                    plain: Spoken::default(),
                    encrypted: Spoken::default(),
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
    let web = http(config)?;
    Ok(Address {
        address: String::new(),
        urls: Vec::new(),
        plain: Spoken::default(),
        encrypted: Spoken {
            tidewater: true,
            websocket: true,
            http: true,
            web: web.is_some_and(|it| it.transport.is_encrypted()),
        },
        is_web: false,
    })
}

/// Every URL of a configuration, if it allows them all.
pub(crate) fn urls(config: &ServerConfig) -> Result<Vec<ServerUrl>, ServerError> {
    config.listen.iter().map(|url| read(url, config)).collect()
}

/// The port of the admin endpoint, where its URL names none.
const ADMIN_PORT: u16 = 7440;

/// Where the admin endpoint is, if the configuration has one and allows it.
pub(crate) fn admin(config: &ServerConfig) -> Result<Option<ServerUrl>, ServerError> {
    let Some(text) = &config.admin else {
        return Ok(None);
    };
    let wrong = |what: String, hint: &str| {
        let what = format!("server.admin: {what}");
        Err(ServerError::configuration(what, hint))
    };
    let hint = "write admin = \"http://127.0.0.1:7440\"";
    let Some(rest) = text.trim().strip_prefix("http://") else {
        return wrong(format!("{text:?} does not begin with http://"), hint);
    };
    let Ok(mut url) = ServerUrl::to_listen(&format!("tcp://{rest}")) else {
        return wrong(format!("{text:?} is no http://host:port"), hint);
    };
    if !names_port(rest, &url) {
        url.port = ADMIN_PORT;
    }
    if url.is_exposed() && !config.insecure {
        return wrong(
            format!("{text} would tell everybody on the network how the server goes"),
            "listen on 127.0.0.1, behind something that asks who is there, or write \
             insecure = true under [server]",
        );
    }
    Ok(Some(url))
}

/// The port of the web protocol, where its URL names none.
const HTTP_PORT: u16 = 7441;

/// Where the web protocol is, if the configuration has it and allows it.
pub(crate) fn http(config: &ServerConfig) -> Result<Option<ServerUrl>, ServerError> {
    let Some(text) = &config.http else {
        return Ok(None);
    };
    let wrong = |what: String, hint: &str| {
        let what = format!("server.http: {what}");
        Err(ServerError::configuration(what, hint))
    };
    let hint = "write http = \"http://127.0.0.1:7441\" or \"https://0.0.0.0:7441\"";
    let trimmed = text.trim();
    let (scheme, rest) = match (
        trimmed.strip_prefix("http://"),
        trimmed.strip_prefix("https://"),
    ) {
        (Some(rest), _) => ("http", rest),
        (_, Some(rest)) => ("https", rest),
        _ => {
            return wrong(
                format!("{text:?} begins with neither http:// nor https://"),
                hint,
            );
        }
    };
    let Ok(mut url) = ServerUrl::to_listen(&format!("{scheme}://{rest}")) else {
        return wrong(format!("{text:?} is no http://host:port"), hint);
    };
    if !names_port(rest, &url) {
        url.port = HTTP_PORT;
    }
    if url.transport.is_encrypted() && config.tls.is_none() {
        return wrong(
            format!("{text} needs a certificate"),
            "write [server.tls] with certificate and key",
        );
    }
    if url.is_exposed() && !config.insecure {
        return wrong(
            format!("{text} would send passwords and everything else unencrypted"),
            "write https://, or insecure = true under [server]",
        );
    }
    Ok(Some(url))
}

/// Whether the port of a URL is written in it.
pub(crate) fn names_port(rest: &str, url: &ServerUrl) -> bool {
    let rest = rest.trim_end_matches('/');
    rest.ends_with(&format!(":{}", url.port))
}

fn read(url: &str, config: &ServerConfig) -> Result<ServerUrl, ServerError> {
    let wrong = |what: String, hint: &str| {
        Err(ServerError::configuration(
            format!("server.listen: {what}"),
            hint,
        ))
    };
    let url = match ServerUrl::to_listen(url) {
        Ok(url) => url,
        Err(error) => {
            let hint = "write tcp://127.0.0.1:7439 or tls://0.0.0.0:7439";
            return wrong(error.to_string(), hint);
        }
    };
    if url.transport.is_encrypted() && config.tls.is_none() {
        return wrong(
            format!("{url} needs a certificate"),
            "write [server.tls] with certificate and key; to try it out, make them: tidewater \
             cert --out . --host NAME",
        );
    }
    if url.is_exposed() && !config.insecure {
        return wrong(
            format!("{url} would send everything unencrypted"),
            "listen on tls://, wss:// or https://, or write insecure = true under [server]",
        );
    }
    Ok(url)
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
    write().map_err(|source| ServerError::File {
        what,
        path: path.display().to_string(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn server(text: &str) -> ServerConfig {
        Config::parse(&format!("[server]\nconsolidated = \"sqlite:x\"\n{text}"))
            .unwrap()
            .server
    }

    #[test]
    fn unencrypted_addresses_off_loopback_need_a_word() {
        let careful = server("");
        for url in ["tcp://127.0.0.1:1", "tcp://[::1]:1", "tcp://localhost:1"] {
            read(url, &careful).unwrap();
        }
        let error = read("tcp://0.0.0.0:1", &careful).unwrap_err();
        assert!(error.hint().contains("insecure = true"));
        read("tcp://0.0.0.0:1", &server("insecure = true")).unwrap();
        assert!(read("tls://0.0.0.0:1", &careful).is_err(), "no certificate");
    }

    #[test]
    fn the_admin_endpoint_is_plain_http_on_this_machine_unless_somebody_says_so() {
        let admin = |text: &str| super::admin(&server(text));
        assert_eq!(admin("").unwrap(), None);
        let address = |text: &str| admin(text).unwrap().unwrap().address();
        assert_eq!(address("admin = \"http://127.0.0.1\""), "127.0.0.1:7440");
        assert_eq!(address("admin = \"http://[::1]:9/\""), "[::1]:9");
        assert_eq!(address("admin = \"http://localhost:0\""), "localhost:0");
        let exposed = "admin = \"http://0.0.0.0:7440\"";
        let error = admin(exposed).unwrap_err();
        assert!(error.hint().contains("insecure = true"));
        assert_eq!(
            address(&format!("{exposed}\ninsecure = true")),
            "0.0.0.0:7440"
        );
        for wrong in [
            "https://127.0.0.1:1",
            "127.0.0.1:1",
            "http://",
            "http://h:1/x",
        ] {
            let error = admin(&format!("admin = {wrong:?}")).unwrap_err();
            assert!(error.to_string().contains("server.admin"), "{error}");
            assert!(error.hint().contains("http://127.0.0.1:7440"));
        }
    }

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
