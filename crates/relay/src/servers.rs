//! Servers: whoever dials the relay to have a line, and has to prove to be who he says.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::client::verify_server_name;
use rustls::pki_types::ServerName;
use rustls::server::ParsedCertificate;
use tokio::time::{sleep, timeout};

use tidewater_carrier::listen::{
    IdleLine, Incoming, LineError, Listener, Refusal, Registration, Shown,
};

use crate::lines::Place;
use crate::newcomers::Newcomers;
use crate::relay::Shared;

/// How long TLS may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Takes lines until it is dropped.
pub(crate) async fn accept_all(shared: Arc<Shared>, mut listener: Box<dyn Listener>) {
    let newcomers = Arc::new(Newcomers::default());
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

/// A line, if whoever dials proves himself.
pub(crate) async fn register(
    shared: &Arc<Shared>,
    incoming: Incoming,
) -> Option<(IdleLine, Place)> {
    let peer = incoming.peer.clone();
    match try_register(shared, incoming).await {
        Ok(line) => return Some(line),
        Err(LineError::Refused(why)) => shared.metrics.refused(why.word()),
        Err(error) => tracing::info!(peer, %error, "no line"),
    }
    None
}

async fn try_register(
    shared: &Arc<Shared>,
    incoming: Incoming,
) -> Result<(IdleLine, Place), LineError> {
    let Incoming { mut stream, peer } = incoming;
    let mut shown = Shown::new();
    if let Some(tls) = shared.tls() {
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        let accepted = timeout(HANDSHAKE, tls.accept(stream)).await;
        (stream, shown) = accepted.map_err(late)??;
    }
    let (name, place) = match IdleLine::registration(&mut stream).await {
        Ok(registration) => {
            let place = admit(shared, &registration, &shown);
            (registration.name, place)
        }
        Err(LineError::Refused(why)) => (String::new(), Err(why)),
        Err(error) => return Err(error),
    };
    match place {
        Ok(place) => Ok((IdleLine::admit(stream).await?, place)),
        Err(why) => {
            let reason = why.word();
            tracing::warn!(peer, name, reason, "a server is refused");
            IdleLine::refuse(stream, why).await?;
            Err(LineError::Refused(why))
        }
    }
}

/// A place for whoever proves to be who he says.
fn admit(
    shared: &Arc<Shared>,
    registration: &Registration,
    shown: &Shown,
) -> Result<Place, Refusal> {
    if shared.is_leaving() {
        return Err(Refusal::Leaving);
    }
    let name = registration.name.as_str();
    let hash = registration.token.as_ref().map(|it| it.hash());
    let is_proven = shared.lines.is_proof(name, hash.as_deref())?;
    if !is_proven && !is_certified(shared, name, shown) {
        return Err(Refusal::Proof);
    }
    shared.lines.enter(name, registration.instance)
}

/// Whether certificates are good, and say that a server has this name.
fn is_certified(shared: &Shared, name: &str, shown: &Shown) -> bool {
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

/// Keeps a line until a device gets it, or it is not there any more.
pub(crate) async fn keep(shared: &Shared, mut line: IdleLine, place: Place) {
    let asked = shared.lines.offer(&place);
    tokio::select! {
        biased;
        asked = asked => if let Ok(reply) = asked {
            // Who has asked is still there, or the line ends.
            let _ = reply.send((line, place));
        },
        () = shared.leaving() => {}
        error = line.keep() => tracing::debug!(%error, "a line has ended"),
    }
}
