//! Under a connection: what carries its bytes from one machine to another.
//!
//! Owns addresses, TCP, the one set-up of TLS, compression, and WebSocket and HTTP as carriers.
//! [`Carrier`] dials, for a program that
//! blocks; `listen` (with the feature `tokio`) takes connections, for a server. Each is a
//! stack of layers over a socket, of which every layer knows only the one below. Leaves
//! what the bytes mean to those who dial and listen.

mod auto_packing;
pub mod block;
mod block_layer;
mod compression;
mod cookies;
pub mod cryptography;
mod dial;
mod dialer;
mod error;
#[doc(hidden)]
pub mod exchange_client;
mod exchange_stream;
mod handshake;
mod http_response;
mod layer;
#[cfg(feature = "tokio")]
pub mod listen;
mod pin;
mod proxy;
pub mod proxy_header;
mod tcp;
mod ticks;
pub mod tls;
mod url;
mod web;
mod websocket;

pub use compression::{Compression, CompressionOptions, NoCompression};
pub use dial::{Carrier, ReceiveOutcome};
pub use dialer::DialOptions;
pub use error::{CarrierError, SCHEME_HEADER};
pub use exchange_client::MAX_BODY_BYTES;
pub use exchange_stream::{END, HOLD, NUMBER, SESSION};
#[doc(hidden)]
pub use exchange_stream::{LATE, TRIES, pause_after};
pub use layer::Layer;
pub use pin::{NoPin, Pin};
pub use proxy::Proxy;
pub use tls::ClientCertificate;
pub use url::{DEFAULT_PATH, DEFAULT_PORT, ServerUrl, ServerUrls, Transport, UrlError};
pub use web::{WebPage, WebSite, WebSiteRequest};
