//! The addresses of the configuration: what they mean, which are allowed, and the
//! certificate that `tls://` needs. Accepting connections is the server's affair.

use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig as RustlsConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::config::{ServerConfig, TlsConfig};
use crate::error::ServerError;

/// The port of addresses that name none.
pub const DEFAULT_PORT: u16 = 7439;

/// One address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListenUrl {
    pub(crate) tls: bool,
    host: String,
    port: u16,
}

impl ListenUrl {
    /// Reads `tcp://host:port` or `tls://host:port`.
    pub(crate) fn parse(url: &str) -> Result<ListenUrl, ServerError> {
        let wrong = |what: &str| {
            ServerError::configuration(
                format!("server.listen: {url:?} {what}"),
                "write tcp://127.0.0.1:7439 or tls://0.0.0.0:7439",
            )
        };
        let (tls, authority) = match url.split_once("://") {
            Some(("tcp", authority)) => (false, authority),
            Some(("tls", authority)) => (true, authority),
            _ => return Err(wrong("does not begin with tcp:// or tls://")),
        };
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
            let (host, rest) = rest
                .split_once(']')
                .ok_or_else(|| wrong("has no closing bracket"))?;
            (host, rest.strip_prefix(':'))
        } else {
            match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            }
        };
        if host.is_empty() || host.contains(['/', '@', '?']) {
            return Err(wrong("names no host"));
        }
        let port = match port {
            None => DEFAULT_PORT,
            Some(port) => port.parse().map_err(|_| wrong("has an impossible port"))?,
        };
        Ok(ListenUrl {
            tls,
            host: host.to_owned(),
            port,
        })
    }

    /// Every URL of a configuration that is allowed by it.
    pub(crate) fn all(config: &ServerConfig) -> Result<Vec<ListenUrl>, ServerError> {
        let urls = config.listen.iter().map(|url| ListenUrl::parse(url));
        let urls = urls.collect::<Result<Vec<_>, _>>()?;
        urls.iter().try_for_each(|url| url.check(config))?;
        Ok(urls)
    }

    /// Refuses what the configuration does not allow.
    fn check(&self, config: &ServerConfig) -> Result<(), ServerError> {
        if self.tls && config.tls.is_none() {
            return Err(ServerError::configuration(
                format!("server.listen: {self} needs a certificate"),
                "write [server.tls] with certificate and key; to try it out, make them: tidewater \
                 cert --out . --host NAME",
            ));
        }
        if !self.tls && !config.insecure && !self.is_loopback() {
            return Err(ServerError::configuration(
                format!("server.listen: {self} would send everything unencrypted"),
                "listen on tls://, or write insecure = true under [server]",
            ));
        }
        Ok(())
    }

    fn is_loopback(&self) -> bool {
        self.host == "localhost"
            || self
                .host
                .parse::<IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    }

    /// What to bind to.
    pub(crate) fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl std::fmt::Display for ListenUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.tls { "tls" } else { "tcp" };
        write!(f, "{scheme}://{}", self.address())
    }
}

/// What accepts TLS connections with the configured certificate.
pub(crate) fn tls_acceptor(tls: &TlsConfig) -> Result<TlsAcceptor, ServerError> {
    let pem = |what: &'static str, path: &Path| {
        fs::read(path).map_err(|source| ServerError::File {
            what,
            path: path.display().to_string(),
            source,
        })
    };
    let unusable = |path: &Path, why: String| {
        ServerError::configuration(
            format!("{}: {why}", path.display()),
            "give [server.tls] a certificate chain and its private key, both as PEM",
        )
    };
    let chain = pem("certificate", &tls.certificate)?;
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&chain)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(&tls.certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(unusable(&tls.certificate, "holds no certificate".into()));
    }
    let key = PrivateKeyDer::from_pem_slice(&pem("private key", &tls.key)?)
        .map_err(|error| unusable(&tls.key, format!("holds no usable private key: {error}")))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = RustlsConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| unusable(&tls.certificate, error.to_string()))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
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
    fn addresses_are_read() {
        for (url, address) in [
            ("tcp://127.0.0.1:0", "127.0.0.1:0"),
            ("tcp://localhost", "localhost:7439"),
            ("tls://[::1]:99/", "[::1]:99"),
            ("tls://[::]", "[::]:7439"),
        ] {
            assert_eq!(ListenUrl::parse(url).unwrap().address(), address);
        }
        for wrong in [
            "127.0.0.1:7439",
            "http://x:1",
            "tcp://",
            "tcp://h:99999",
            "tcp://[::1",
            "tcp://a@b:1",
        ] {
            assert!(ListenUrl::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn unencrypted_addresses_off_loopback_need_a_word() {
        let careful = server("");
        for url in ["tcp://127.0.0.1:1", "tcp://[::1]:1", "tcp://localhost:1"] {
            ListenUrl::parse(url).unwrap().check(&careful).unwrap();
        }
        let everywhere = ListenUrl::parse("tcp://0.0.0.0:1").unwrap();
        let error = everywhere.check(&careful).unwrap_err();
        assert!(error.hint().contains("insecure = true"));
        everywhere.check(&server("insecure = true")).unwrap();
        let tls = ListenUrl::parse("tls://0.0.0.0:1").unwrap();
        assert!(tls.check(&careful).is_err(), "no certificate");
    }

    #[test]
    fn a_development_certificate_can_be_loaded_and_its_key_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let hosts = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        dev_certificate(directory.path(), &hosts).unwrap();
        let tls = dev_certificate(directory.path(), &hosts).unwrap();
        tls_acceptor(&tls).unwrap();
        let mode = fs::metadata(&tls.key).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn unusable_certificates_are_explained() {
        let directory = tempfile::tempdir().unwrap();
        let tls = dev_certificate(directory.path(), &["localhost".to_owned()]).unwrap();
        let swapped = TlsConfig {
            certificate: tls.key.clone(),
            key: tls.certificate.clone(),
        };
        let error = tls_acceptor(&swapped).err().unwrap();
        assert!(error.to_string().contains("holds no certificate"));
        let missing = TlsConfig {
            certificate: directory.path().join("missing.pem"),
            key: tls.key,
        };
        let error = tls_acceptor(&missing).err().unwrap();
        assert!(error.to_string().contains("missing.pem"));
    }
}
