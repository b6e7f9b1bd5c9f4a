//! TLS: the cryptography, whom we trust, who we are, and the layer over a dialed one.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
#[cfg(feature = "fips")]
use rustls::crypto::aws_lc_rs::Ticketer;
#[cfg(not(feature = "fips"))]
use rustls::crypto::ring::Ticketer;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoClientAuth, ProducesTickets, WebPkiClientVerifier};
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, DigitallySignedStruct, DistinguishedName,
    HandshakeKind, RootCertStore, ServerConfig, SignatureScheme,
};

use crate::error::CarrierError;
use crate::layer::{Layer, is_patience};
use crate::pin::{OtherKey, Pin, PinVerifier};

/// The cryptography of all connections: what the program has installed as its default
/// (see [`CryptoProvider::install_default`]), or else that of ring. Built with the feature `fips`
/// it is that of AWS-LC in its FIPS mode, and no other.
pub fn provider() -> Arc<CryptoProvider> {
    #[cfg(feature = "fips")]
    return Arc::new(rustls::crypto::default_fips_provider());
    #[cfg(not(feature = "fips"))]
    match CryptoProvider::get_default() {
        Some(provider) => provider.clone(),
        None => Arc::new(rustls::crypto::ring::default_provider()),
    }
}

/// Random bytes fit for secrets, from the same source as those of TLS.
///
/// # Errors
/// The source has failed.
pub fn random(bytes: &mut [u8]) -> io::Result<()> {
    let filled = provider().secure_random.fill(bytes);
    filled.map_err(|_| io::Error::other("the system's random source failed"))
}

/// Who dials: trusts the authorities of a PEM file, or those that browsers trust. Kept by the
/// process, with what servers have given it to go on from: see [`client_with`].
///
/// # Errors
/// The file holds no certificates.
pub fn client(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, CarrierError> {
    client_with(ca_file, None, None)
}

/// The set-up of clients, for as long as the process and the files are the same: a second
/// connection to a server goes on from the first, and needs neither certificates nor signatures.
/// A pin stands in place of authorities; a client may have a certificate of its own.
///
/// # Errors
/// A file cannot be read, or holds something else.
pub fn client_with(
    ca_file: Option<&Path>,
    pin: Option<Pin>,
    own: Option<&ClientCertificate>,
) -> Result<Arc<ClientConfig>, CarrierError> {
    static KEPT: Mutex<VecDeque<KeptClient>> = Mutex::new(VecDeque::new());
    let ca_file = ca_file.filter(|_| pin.is_none());
    let files = [
        ca_file,
        own.map(|it| &*it.certificate),
        own.map(|it| &*it.key),
    ];
    let mut read: ClientFiles = ClientFiles::default();
    for (file, read) in files.into_iter().zip(&mut read) {
        if let Some(file) = file {
            let bytes = fs::read(file).map_err(|error| CarrierError::file(file, error))?;
            *read = Some((file.to_owned(), bytes));
        }
    }
    let files = read;
    let kept = || KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, _, config)) = kept()
        .iter()
        .find(|(of, pinned, _)| *of == files && *pinned == pin)
    {
        return Ok(config.clone());
    }
    let config = make_client(ca_file, pin, own)?;
    let mut kept = kept();
    while kept.len() >= KEPT_CLIENTS {
        kept.pop_front();
    }
    kept.push_back((files, pin, config.clone()));
    Ok(config)
}

/// What a set-up was made of, and the set-up.
type KeptClient = (ClientFiles, Option<Pin>, Arc<ClientConfig>);

/// The files that make a client, with what is in them.
type ClientFiles = [Option<(PathBuf, Vec<u8>)>; 3];

/// So many set-ups are kept: few programs have more than one.
const KEPT_CLIENTS: usize = 16;

fn make_client(
    ca_file: Option<&Path>,
    pin: Option<Pin>,
    own: Option<&ClientCertificate>,
) -> Result<Arc<ClientConfig>, CarrierError> {
    let provider = provider();
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(CarrierError::Defect)?;
    let config = match pin {
        None => config.with_root_certificates(roots(ca_file)?),
        Some(pin) => config
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(PinVerifier { pin, provider })),
    };
    Ok(Arc::new(match own {
        None => config.with_no_client_auth(),
        Some(own) => config
            .with_client_auth_cert(certificates(&own.certificate)?, private_key(&own.key)?)
            .map_err(|error| CarrierError::file(&own.certificate, error))?,
    }))
}

/// A certificate with which whoever dials says who he is, and its private key: PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate, followed by those that lead to its issuer.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, CarrierError> {
    PrivateKeyDer::from_pem_file(file)
        .map_err(|error| CarrierError::file(file, format!("holds no usable private key: {error}")))
}

/// Who listens: shows the certificates of one PEM file, the server's first, and has the
/// private key of another.
///
/// # Errors
/// A file cannot be read or holds something else, or the two do not belong together.
pub fn server(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, CarrierError> {
    server_config(certificate, key, Arc::new(NoClientAuth))
}

/// The same, which asks whoever dials for a certificate of one of these authorities. Who has none
/// comes in as well, and so does who has another one: [`ClientAuthorities::check`] tells later
/// whether it is worth something, and why not.
///
/// # Errors
/// As [`server`].
pub fn server_for_known_clients(
    certificate: &Path,
    key: &Path,
    authorities: &ClientAuthorities,
) -> Result<Arc<ServerConfig>, CarrierError> {
    let asking = Arc::new(DeferredVerifier(authorities.0.clone()));
    server_config(certificate, key, asking)
}

fn server_config(
    certificate: &Path,
    key: &Path,
    clients: Arc<dyn ClientCertVerifier>,
) -> Result<Arc<ServerConfig>, CarrierError> {
    let chain = certificates(certificate)?;
    let own = chain.first().map(|it| it.to_vec()).unwrap_or_default();
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(CarrierError::Defect)?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, private_key(key)?)
        .map_err(|error| CarrierError::file(certificate, error))?;
    config.ticketer = ticketer(own)?;
    Ok(Arc::new(config))
}

/// What makes the tickets with which clients go on from an earlier connection: the server keeps
/// nothing of them. All servers of the process with the same certificate take each other's; a
/// ticket of another only means that hands are shaken in full. Whoever replaces a certificate
/// wants to be rid of what came with it.
fn ticketer(certificate: Vec<u8>) -> Result<Arc<dyn ProducesTickets>, CarrierError> {
    static KEPT: Mutex<VecDeque<KeptTicketer>> = Mutex::new(VecDeque::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, ticketer)) = kept.iter().find(|(of, _)| *of == certificate) {
        return Ok(ticketer.clone());
    }
    let ticketer = Ticketer::new().map_err(CarrierError::Defect)?;
    while kept.len() >= KEPT_TICKETERS {
        kept.pop_front();
    }
    kept.push_back((certificate, ticketer.clone()));
    Ok(ticketer)
}

/// A certificate, and what makes its tickets.
type KeptTicketer = (Vec<u8>, Arc<dyn ProducesTickets>);

/// So many certificates have tickets at a time.
const KEPT_TICKETERS: usize = 16;

/// The authorities that say who a client is.
#[derive(Clone, Debug)]
pub struct ClientAuthorities(Arc<dyn ClientCertVerifier>);

impl ClientAuthorities {
    /// Those in a PEM file.
    ///
    /// # Errors
    /// The file holds no certificates.
    pub fn load(file: &Path) -> Result<ClientAuthorities, CarrierError> {
        let roots = Arc::new(roots(Some(file))?);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
        let verifier = verifier.map_err(|error| CarrierError::file(file, error))?;
        Ok(ClientAuthorities(verifier))
    }

    /// Whether a client's certificates, its own first, come from them and are good at this time,
    /// in seconds since 1970. That the client has the key, the handshake has shown.
    ///
    /// # Errors
    /// Why they are worth nothing.
    pub fn check(
        &self,
        certificates: &[CertificateDer<'_>],
        now_s: u64,
    ) -> Result<(), rustls::Error> {
        let (own, others) = certificates
            .split_first()
            .ok_or(rustls::Error::NoCertificatesPresented)?;
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now_s));
        self.0.verify_client_cert(own, others, now).map(|_| ())
    }
}

/// Asks for a certificate, and leaves to [`ClientAuthorities::check`] what it is worth: a handshake
/// that fails tells nobody why. It proves that the client has the certificate's key.
#[derive(Debug)]
struct DeferredVerifier(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for DeferredVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// The authorities of a PEM file. They replace the public ones: who runs an authority of
/// his own does not want others to speak for his server.
///
/// # Errors
/// The file holds no certificates.
pub fn roots(file: Option<&Path>) -> Result<RootCertStore, CarrierError> {
    let Some(file) = file else {
        return Ok(RootCertStore {
            roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
        });
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        let added = roots.add(certificate);
        added.map_err(|error| CarrierError::file(file, error))?;
    }
    Ok(roots)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, CarrierError> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let certificates: Vec<_> = read.map_err(|error| CarrierError::file(file, error))?;
    match certificates.is_empty() {
        true => Err(CarrierError::file(file, "holds no certificate")),
        false => Ok(certificates),
    }
}

impl Pin {
    /// That of the first certificate in a PEM file.
    ///
    /// # Errors
    /// The file holds none.
    pub fn from_file(file: &Path) -> Result<Pin, CarrierError> {
        let certificate = CertificateDer::from_pem_file(file);
        let certificate = certificate.map_err(|error| CarrierError::file(file, error))?;
        Pin::from_certificate(&certificate).map_err(|error| CarrierError::file(file, error))
    }
}

/// A client for the server of this name. Its handshake goes along with reading and writing. Whoever
/// `speaks_http` says so: several of its connections may belong together.
pub(crate) fn new_client(
    config: &Arc<ClientConfig>,
    host: &str,
    speaks_http: bool,
) -> Result<ClientConnection, CarrierError> {
    let name = ServerName::try_from(host.to_owned()).map_err(|_| CarrierError::HostName {
        host: host.to_owned(),
    })?;
    let protocols = match speaks_http {
        true => vec![b"http/1.1".to_vec()],
        false => Vec::new(),
    };
    let client = ClientConnection::new_with_alpn(config.clone(), name, protocols);
    client.map_err(CarrierError::Defect)
}

/// TLS over another layer.
#[derive(Debug)]
pub(crate) struct TlsLayer {
    pub(crate) client: ClientConnection,
    pub(crate) below: Box<dyn Layer>,
}

impl Read for TlsLayer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.client.reader().read(buffer) {
            Err(error) if is_patience(&error) => {}
            read => return read,
        }
        if self.client.read_tls(&mut self.below)? == 0 {
            return Ok(0);
        }
        if let Err(error) = self.client.process_new_packets() {
            // The server learns what we do not like about it, if it still listens.
            let _ = self.write_own();
            return Err(io::Error::new(ErrorKind::InvalidData, error));
        }
        self.client.reader().read(buffer)
    }
}

impl Write for TlsLayer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_opening() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let mut count = self.client.writer().write(bytes)?;
        if count == 0 && !bytes.is_empty() {
            // Its buffer is full.
            self.write_own()?;
            count = self.client.writer().write(bytes)?;
        }
        match count {
            0 if !bytes.is_empty() => Err(ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_own().map(|_| ())
    }
}

impl Layer for TlsLayer {
    fn is_opening(&self) -> bool {
        self.client.is_handshaking()
    }

    fn is_resumed(&self) -> bool {
        self.client.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    fn owes(&self) -> bool {
        self.client.wants_write() || self.below.owes()
    }

    fn write_own(&mut self) -> io::Result<bool> {
        let mut any = false;
        while self.client.wants_write() {
            match self.client.write_tls(&mut self.below) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => any = true,
                Err(error) if any && is_patience(&error) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(self.below.write_own()? || any)
    }

    fn close(&mut self) -> io::Result<()> {
        self.client.send_close_notify();
        // A courtesy: the end is told by the layer below too.
        let _ = self.write_own();
        self.below.close()
    }

    fn socket(&self) -> &TcpStream {
        self.below.socket()
    }
}

/// What TLS has against a server, if that is why reading failed.
pub(crate) fn objection(error: &io::Error, server: &str) -> Option<CarrierError> {
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    let server = server.to_owned();
    if let rustls::Error::Other(other) = error
        && let Some(OtherKey(found)) = other.0.downcast_ref()
    {
        return Some(CarrierError::OtherKey {
            server,
            found: *found,
        });
    }
    Some(match error {
        rustls::Error::InvalidCertificate(what) => CarrierError::Certificate {
            server,
            by_the_clock: is_of_the_clock(what),
            what: what.to_string(),
        },
        // Another program, or a line that damages what goes over it, which passes.
        rustls::Error::InvalidMessage(_) => CarrierError::Tls {
            server,
            what: "what it answers is not TLS".into(),
        },
        rustls::Error::AlertReceived(AlertDescription::UnrecognisedName) => {
            CarrierError::NoSuchName { server }
        }
        rustls::Error::AlertReceived(AlertDescription::InternalError) => {
            CarrierError::Away { server }
        }
        other => CarrierError::Tls {
            server,
            what: other.to_string(),
        },
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// `make fips` runs it with the feature.
    #[test]
    fn the_cryptography_is_in_fips_mode_if_it_was_built_for_that() {
        let is_fips = cfg!(feature = "fips");
        assert_eq!(provider().fips(), is_fips);
        let client = client(None).unwrap();
        assert_eq!(client.fips(), is_fips);
    }
}
