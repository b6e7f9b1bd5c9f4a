//! Relays: lines that this server keeps idle at them, and the devices that come over these.
//!
//! Owns dialing, and dialing again. What is said on a line is `tidewater_carrier`'s affair; a
//! device that comes is let in as any other (`server::door`), by the name of its address that the
//! relay gives.

use std::io;
use std::mem::replace;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, AlertDescription, ClientConfig};

use tidewater_carrier::listen::{
    BoxFuture, ByteStream, IncomingStream, RegistrationRefusal, RelayTunnel, ServerRegistration,
    StreamListener, TunnelError,
};
use tidewater_carrier::{ServerUrl, tls};

use tidewater_server_config::{RelayConfig, RelayProof};
use tidewater_server_jobs::admission::Shutdown;
use tidewater_server_jobs::environment::{Randomness, random};
use tidewater_server_jobs::error::ServerError;

/// How long a relay may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// How long it is waited before a relay is dialed again that could not be reached: this, then
/// twice as long, up to the other.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_AT_MOST: Duration = Duration::from_secs(30);

/// The same, of a relay that has refused this server: somebody has to change a configuration.
const AGAIN_AFTER_REFUSAL: Duration = Duration::from_secs(60);

/// A line that was idle for so long was a good one.
const GOOD_AFTER: Duration = Duration::from_secs(30);

/// The relays of a configuration.
pub(crate) struct Relays(Vec<Arc<Relay>>);

impl Relays {
    /// Reads what it takes to be known there.
    ///
    /// # Errors
    /// Something of the configuration cannot be used.
    pub(crate) fn load(
        config: &RelayConfig,
        randomness: &dyn Randomness,
    ) -> Result<Relays, ServerError> {
        let drawn = random(randomness).map_err(|error| {
            ServerError::configuration(format!("[relay]: {error}"), "look at the system's log")
        })?;
        config.proof.token()?;
        let relays = config.connect.iter().map(|url| {
            let relay = Relay {
                url: url.clone(),
                config: config.clone(),
                instance: u64::from_be_bytes(drawn),
                told: Mutex::new(ToldState::Nothing),
            };
            relay.client()?;
            Ok(Arc::new(relay))
        });
        relays.collect::<Result<_, _>>().map(Relays)
    }

    /// Keeps lines at all of them from now on, until the server leaves.
    pub(crate) fn keep(
        self,
        shutdown: &Shutdown,
        randomness: &Arc<dyn Randomness>,
    ) -> RelayTunnels {
        let (to, devices) = mpsc::channel(1);
        let mut tasks = JoinSet::new();
        for relay in self.0 {
            for _ in 0..relay.config.lines {
                let (relay, to) = (relay.clone(), to.clone());
                let (shutdown, randomness) = (shutdown.clone(), randomness.clone());
                tasks.spawn(async move {
                    tokio::select! {
                        // Relays send devices to others at once.
                        () = shutdown.leaving() => {}
                        () = relay.keep_one(&to, &*randomness) => {}
                    }
                });
            }
        }
        RelayTunnels {
            devices,
            _tasks: tasks,
        }
    }
}

/// Devices that come over lines.
pub(crate) struct RelayTunnels {
    devices: mpsc::Receiver<IncomingStream>,
    /// They end with this.
    _tasks: JoinSet<()>,
}

impl StreamListener for RelayTunnels {
    fn address(&self) -> String {
        "relay".into()
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<IncomingStream>> {
        Box::pin(async move {
            match self.devices.recv().await {
                Some(incoming) => Ok(incoming),
                // The server leaves: nobody comes any more.
                None => std::future::pending().await,
            }
        })
    }
}

/// How a relay stands, as the log has told it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ToldState {
    Nothing,
    Registered,
    Failing,
}

/// A relay, and how this server appears there.
struct Relay {
    url: ServerUrl,
    config: RelayConfig,
    instance: u64,
    /// There are several lines, and each knows only itself.
    told: Mutex<ToldState>,
}

/// Why there is no line.
#[derive(Debug, thiserror::Error)]
enum NoLine {
    #[error(transparent)]
    Own(#[from] ServerError),
    #[error("it does not answer in time")]
    Late,
    #[error(transparent)]
    Line(#[from] TunnelError),
}

impl From<io::Error> for NoLine {
    fn from(error: io::Error) -> NoLine {
        NoLine::Line(TunnelError::Lost(error))
    }
}

impl NoLine {
    /// Whether it will be the same until somebody changes a configuration.
    fn is_lasting(&self) -> bool {
        match self {
            NoLine::Own(_) | NoLine::Line(TunnelError::NoRelay) => true,
            NoLine::Line(TunnelError::Refused(why)) => why.is_lasting(),
            _ => false,
        }
    }

    fn hint(&self) -> String {
        let hint = match self {
            NoLine::Own(error) => return error.hint(),
            NoLine::Line(TunnelError::Refused(
                RegistrationRefusal::Name | RegistrationRefusal::Proof,
            )) => {
                "compare relay.name and the token with what the relay's configuration has under \
                 [[server]]"
            }
            NoLine::Line(TunnelError::Refused(RegistrationRefusal::Full)) => {
                "raise lines in the relay's configuration, or lower relay.lines here"
            }
            NoLine::Line(TunnelError::Refused(RegistrationRefusal::Leaving)) => "it is tried again",
            NoLine::Line(TunnelError::Refused(_)) => "run the same version of both",
            NoLine::Line(TunnelError::NoRelay) => {
                "relay.connect has to name the address that the relay's configuration has under \
                 servers, not the one for devices"
            }
            NoLine::Line(_) | NoLine::Late => {
                "check that the relay runs, and relay.connect, relay.ca and relay.pin; it is tried \
                 again"
            }
        };
        hint.to_owned()
    }
}

impl Relay {
    /// Keeps one idle line: whenever a device has got it, there is another.
    async fn keep_one(&self, to: &mpsc::Sender<IncomingStream>, randomness: &dyn Randomness) {
        let mut failures = 0;
        loop {
            let pause = match self.open().await {
                Ok(line) => {
                    self.is_registered();
                    let since = Instant::now();
                    match line.taken().await {
                        Ok(incoming) => {
                            failures = 0;
                            if to.send(incoming).await.is_err() {
                                return;
                            }
                            continue;
                        }
                        Err(error) => {
                            tracing::info!(relay = %self.url, %error, "a line to the relay is lost");
                            if since.elapsed() >= GOOD_AFTER {
                                failures = 0;
                            }
                            again(failures)
                        }
                    }
                }
                Err(error) => {
                    self.is_failing(&error);
                    match error.is_lasting() {
                        true => AGAIN_AFTER_REFUSAL,
                        false => again(failures),
                    }
                }
            };
            failures += 1;
            // Not all at once.
            let [jitter] = random(randomness).unwrap_or([128]);
            sleep(pause.mul_f32(0.5 + f32::from(jitter) / 256.0)).await;
        }
    }

    async fn open(&self) -> Result<RelayTunnel, NoLine> {
        let registration = ServerRegistration {
            name: self.config.name.clone(),
            instance: self.instance,
            token: self.config.proof.token().map_err(ServerError::from)?,
        };
        let opening = async {
            let stream = self.dial().await?;
            Ok(RelayTunnel::open(stream, &registration).await?)
        };
        timeout(ANSWER, opening).await.unwrap_or(Err(NoLine::Late))
    }

    async fn dial(&self) -> Result<Box<dyn ByteStream>, NoLine> {
        let client = self.client()?;
        let stream = TcpStream::connect(self.url.address()).await?;
        let _ = stream.set_nodelay(true);
        let Some((client, name)) = client else {
            return Ok(Box::new(stream));
        };
        let stream = TlsConnector::from(client).connect(name, stream).await;
        Ok(Box::new(stream.map_err(objection)?))
    }

    /// With what TLS is begun, by the files as they are now.
    fn client(&self) -> Result<Option<(Arc<ClientConfig>, ServerName<'static>)>, ServerError> {
        if !self.url.transport.is_encrypted() {
            return Ok(None);
        }
        let host = self.url.host.clone();
        let name = ServerName::try_from(host).map_err(|_| {
            ServerError::configuration(
                format!(
                    "relay.connect: {} is not a name that a certificate can have",
                    self.url
                ),
                "write the relay's host name or address",
            )
        })?;
        let own = match &self.config.proof {
            RelayProof::Certificate(own) => Some(own),
            _ => None,
        };
        let client = tls::client_with(self.config.ca.as_deref(), self.config.pin, own);
        let client = client.map_err(|error| {
            let hint = "check relay.ca, relay.certificate and relay.key: PEM files";
            ServerError::configuration(format!("[relay]: {error}"), hint)
        })?;
        Ok(Some((client, name)))
    }

    fn told(&self) -> MutexGuard<'_, ToldState> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_registered(&self) {
        if replace(&mut *self.told(), ToldState::Registered) != ToldState::Registered {
            let name = &self.config.name;
            tracing::info!(relay = %self.url, name, "registered at the relay");
        }
    }

    fn is_failing(&self, error: &NoLine) {
        if replace(&mut *self.told(), ToldState::Failing) != ToldState::Failing {
            let hint = error.hint();
            tracing::warn!(relay = %self.url, %error, hint, "no line to the relay");
        }
    }
}

/// What TLS has against a relay. The address for devices knows no relay's name.
fn objection(error: io::Error) -> TunnelError {
    let what = error.get_ref().and_then(|it| it.downcast_ref());
    match what {
        Some(rustls::Error::AlertReceived(AlertDescription::UnrecognisedName)) => {
            TunnelError::NoRelay
        }
        _ => TunnelError::Lost(error),
    }
}

/// The pause after so many failures one after the other.
fn again(failures: u32) -> Duration {
    AGAIN
        .saturating_mul(1 << failures.min(10))
        .min(AGAIN_AT_MOST)
}
