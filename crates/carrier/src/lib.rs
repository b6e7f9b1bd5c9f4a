//! Under a connection: what carries its bytes from one machine to another.
//!
//! Owns addresses, TCP, and the one set-up of TLS. [`Carrier`] dials, for a program that
//! blocks; `listen` (with the feature `tokio`) takes connections, for a server. Each is a
//! stack of layers over a socket, of which every layer knows only the one below. Leaves
//! what the bytes mean to those who dial and listen.

mod dial;
mod error;
#[cfg(feature = "tokio")]
pub mod listen;
pub mod proxied;
mod tcp;
pub mod tls;
mod url;

pub use dial::{Carrier, DialOptions, Layer, Received};
pub use error::CarrierError;
pub use tls::ClientCertificate;
pub use url::{DEFAULT_PORT, ServerUrl, Transport, UrlError};
