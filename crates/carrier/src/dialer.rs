//! Reaching a server with a new line: how, through which proxy, and whom to trust.

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use crate::compression::CompressionOptions;
use crate::error::CarrierError;
use crate::handshake::Handshake;
use crate::layer::{Layer, is_patience};
use crate::pin::Pin;
use crate::proxy::{self, Proxy};
use crate::tcp;
use crate::tls::{self, ClientCertificate, TlsLayer};
use crate::url::ServerUrl;

/// How to dial.
#[derive(Clone, Copy, Debug)]
pub struct DialOptions<'a> {
    /// A PEM file with the authorities to trust, instead of those that browsers trust.
    pub ca_file: Option<&'a Path>,
    /// The key of the server, which is then trusted for that alone: authorities do not count.
    pub pin: Option<Pin>,
    /// Who we are, for a server that asks.
    pub certificate: Option<&'a ClientCertificate>,
    /// Whether what is not encrypted may go to other machines.
    pub insecure: bool,
    /// The proxy through which other machines are reached; `none` for none. If nothing is said, what
    /// the environment names: see [`Proxy::from_environment`].
    pub proxy: Option<&'a str>,
    /// How what is sent is packed, and what the server may send packed.
    pub compression: CompressionOptions,
    /// How long the server may be silent.
    pub timeout: Duration,
}

/// All that it takes to reach a server, once more too.
#[derive(Clone, Debug)]
pub(crate) struct Dialer {
    pub(crate) url: ServerUrl,
    tls: Option<Arc<ClientConfig>>,
    proxy: Option<Proxy>,
    loopback_only: bool,
    /// How long the server may be silent.
    pub(crate) timeout: Duration,
}

impl Dialer {
    pub(crate) fn new(url: &ServerUrl, options: &DialOptions<'_>) -> Result<Dialer, CarrierError> {
        if url.is_exposed() && !options.insecure {
            let server = url.to_string();
            return Err(CarrierError::Exposed { server });
        }
        let is_encrypted = url.transport.is_encrypted();
        Ok(Dialer {
            url: url.clone(),
            tls: match is_encrypted {
                true => Some(tls::client_with(
                    options.ca_file,
                    options.pin,
                    options.certificate,
                )?),
                false => None,
            },
            proxy: match options.proxy {
                Some("none") => None,
                Some(proxy) => Some(proxy.parse()?),
                None => Proxy::from_environment(url, |name| std::env::var(name).ok())?,
            },
            loopback_only: !options.insecure && !is_encrypted,
            timeout: options.timeout,
        })
    }

    /// A new line to the server, on which nothing has been said yet.
    pub(crate) fn dial(
        &self,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Box<dyn Layer>, CarrierError> {
        let client = match &self.tls {
            None => None,
            Some(config) => {
                let speaks_http = self.url.transport.is_web();
                Some(tls::new_client(config, &self.url.host, speaks_http)?)
            }
        };
        let socket = match &self.proxy {
            None => tcp::dial(&self.url, self.loopback_only, self.timeout, go_on)?,
            Some(proxy) => proxy::dial(proxy, self.handshake(), go_on)?,
        };
        socket
            .set_nodelay(true)
            .map_err(|source| self.handshake().unreachable(source))?;
        Ok(match client {
            None => Box::new(socket),
            Some(client) => Box::new(TlsLayer {
                client,
                below: Box::new(socket),
            }),
        })
    }

    /// Whether the server is on this machine.
    pub(crate) fn is_here(&self, socket: &TcpStream) -> bool {
        self.proxy.is_none() && socket.peer_addr().is_ok_and(|it| it.ip().is_loopback())
    }

    pub(crate) fn handshake(&self) -> Handshake<'_> {
        Handshake {
            server: &self.url,
            timeout: self.timeout,
        }
    }
}

/// Has the two sides of a layer agree on how to go on.
pub(crate) fn open(
    layer: &mut Box<dyn Layer>,
    dialer: &Dialer,
    go_on: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<(), CarrierError> {
    let handle = layer.socket().try_clone().map_err(CarrierError::Lost)?;
    dialer.handshake().agree(&handle, go_on, || {
        if layer.owes() {
            layer.write_own()?;
        }
        if !layer.is_opening() {
            return Ok(Some(()));
        }
        match layer.read(&mut [0]) {
            Ok(0) => Err(io::Error::other(CarrierError::closes(&dialer.url))),
            // Who waits for a request does not speak first.
            Ok(_) => Err(ErrorKind::InvalidData.into()),
            Err(error) if is_patience(&error) => Ok(None),
            Err(error) => Err(error),
        }
    })
}
