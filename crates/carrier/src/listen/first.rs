//! What somebody begins with, before it is decided how to go on.

use std::io;

use bytes::Bytes;
use tokio::io::AsyncReadExt;

use super::Stream;
use super::fronted::Begun;

/// As many bytes as tell protocols apart.
const BYTES: usize = 4;

/// What is spoken, by the first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// A handshake of TLS.
    Tls,
    /// The preface of a connection.
    Preface,
    /// Something else, HTTP most likely.
    Other,
}

impl First {
    fn of(bytes: &[u8]) -> First {
        match bytes {
            // A record with a handshake, of any version.
            [0x16, 3, ..] => First::Tls,
            b"TIDE" => First::Preface,
            _ => First::Other,
        }
    }
}

/// Waits for the first bytes, and gives the stream as if nobody had read them.
///
/// # Errors
/// The stream is broken.
pub async fn first(mut stream: Box<dyn Stream>) -> io::Result<(First, Box<dyn Stream>)> {
    let (mut bytes, mut count) = ([0; BYTES], 0);
    while count < BYTES {
        match stream.read(&mut bytes[count..]).await? {
            0 => break,
            more => count += more,
        }
    }
    let first = First::of(&bytes[..count]);
    let seen = Bytes::copy_from_slice(&bytes[..count]);
    Ok((first, Box::new(Begun { seen, stream })))
}
