//! Servers: whoever dials the relay to have a tunnel, and has to prove to be who he says.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::client::verify_server_name;
use rustls::pki_types::ServerName;
use rustls::server::ParsedCertificate;
use tokio::time::{sleep, timeout};

use tidewater_carrier::listen::{
    IdleTunnel, IncomingStream, PeerCertificates, RegistrationRefusal, ServerRegistration,
    StreamListener, TunnelError,
};

use crate::newcomers::NewcomerCounts;
use crate::relay_state::RelayState;
use crate::tunnel_pool::TunnelSlot;

/// How long TLS may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Takes tunnels until it is dropped.
pub(crate) async fn accept_all(shared: Arc<RelayState>, mut listener: Box<dyn StreamListener>) {
    let newcomers = Arc::new(NewcomerCounts::default());
    loop {
        match listener.accept().await {
            Ok(incoming) => {
                let address = incoming.peer.parse::<IpAddr>().ok();
                let Some(newcomer) = address.and_then(|it| newcomers.enter(it)) else {
                    // It comes again, if it is a server.
                    shared.metrics.refused("crowded");
                    continue;
                };
                let shared = shared.clone();
                tokio::spawn(async move {
                    let line = register(&shared, incoming).await;
                    drop(newcomer);
                    if let Some((line, place)) = line {
                        keep(&shared, line, place).await;
                    }
                });
            }
            Err(error) => {
                // Out of file descriptors, most likely: some will be closed.
                tracing::warn!(%error, "a connection cannot be accepted");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// A tunnel, if whoever dials proves himself.
pub(crate) async fn register(
    shared: &Arc<RelayState>,
    incoming: IncomingStream,
) -> Option<(IdleTunnel, TunnelSlot)> {
    let peer = incoming.peer.clone();
    match try_register(shared, incoming).await {
        Ok(line) => return Some(line),
        Err(TunnelError::Refused(why)) => shared.metrics.refused(why.word()),
        Err(error) => tracing::info!(peer, %error, "no line"),
    }
    None
}

async fn try_register(
    shared: &Arc<RelayState>,
    incoming: IncomingStream,
) -> Result<(IdleTunnel, TunnelSlot), TunnelError> {
    let IncomingStream { mut stream, peer } = incoming;
    let mut shown = PeerCertificates::new();
    if let Some(tls) = shared.tls() {
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        let accepted = timeout(HANDSHAKE, tls.accept(stream)).await;
        (stream, shown) = accepted.map_err(late)??;
    }
    let (name, place) = match IdleTunnel::registration(&mut stream).await {
        Ok(registration) => {
            let place = admit(shared, &registration, &shown);
            (registration.name, place)
        }
        Err(TunnelError::Refused(why)) => (String::new(), Err(why)),
        Err(error) => return Err(error),
    };
    match place {
        Ok(place) => Ok((IdleTunnel::admit(stream).await?, place)),
        Err(why) => {
            let reason = why.word();
            tracing::warn!(peer, name, reason, "a server is refused");
            IdleTunnel::refuse(stream, why).await?;
            Err(TunnelError::Refused(why))
        }
    }
}

/// A place for whoever proves to be who he says.
fn admit(
    shared: &Arc<RelayState>,
    registration: &ServerRegistration,
    shown: &PeerCertificates,
) -> Result<TunnelSlot, RegistrationRefusal> {
    if shared.is_leaving() {
        return Err(RegistrationRefusal::Leaving);
    }
    let name = registration.name.as_str();
    let hash = registration.token.as_ref().map(|it| it.hash());
    let is_proven = shared.lines.is_proof(name, hash.as_deref())?;
    if !is_proven && !is_certified(shared, name, shown) {
        return Err(RegistrationRefusal::Proof);
    }
    shared.lines.enter(name, registration.instance)
}

/// Whether certificates are good, and say that a server has this name.
fn is_certified(shared: &RelayState, name: &str, shown: &PeerCertificates) -> bool {
    let (Some(authority), [own, ..]) = (&shared.authority(), &shown[..]) else {
        return false;
    };
    let parsed = ParsedCertificate::try_from(own);
    let name = ServerName::try_from(name);
    let is_for = match (&parsed, &name) {
        (Ok(parsed), Ok(name)) => verify_server_name(parsed, name).is_ok(),
        _ => false,
    };
    is_for && authority.check(shown, now_s()).is_ok()
}

#[allow(
    clippy::disallowed_methods,
    reason = "certificates are good for a time that is on the calendar"
)]
fn now_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |it| it.as_secs())
}

/// Keeps a tunnel until a device gets it, or it is not there any more.
pub(crate) async fn keep(shared: &RelayState, mut line: IdleTunnel, place: TunnelSlot) {
    let asked = shared.lines.offer(&place);
    tokio::select! {
        biased;
        asked = asked => if let Ok(reply) = asked {
            // Who has asked is still there, or the tunnel ends.
            let _ = reply.send((line, place));
        },
        () = shared.leaving() => {}
        error = line.keep() => tracing::debug!(%error, "a line has ended"),
    }
}
