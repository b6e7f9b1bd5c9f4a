//! Under a connection: what carries its bytes from one machine to another.
//!
//! Owns addresses, TCP, the one set-up of TLS, and compression. [`Carrier`] dials, for a program that
//! blocks; `listen` (with the feature `tokio`) takes connections, for a server. Each is a
//! stack of layers over a socket, of which every layer knows only the one below. Leaves
//! what the bytes mean to those who dial and listen.

mod auto;
pub mod block;
mod compression;
mod dial;
mod error;
#[cfg(feature = "tokio")]
pub mod listen;
mod packed;
mod pin;
mod tcp;
mod ticks;
pub mod tls;
mod url;

pub use compression::{Compression, NoCompression, Packing};
pub use dial::{Carrier, DialOptions, Layer, Received};
pub use error::CarrierError;
pub use pin::{NoPin, Pin};
pub use tls::ClientCertificate;
pub use url::{DEFAULT_PORT, ServerUrl, Transport, UrlError};
