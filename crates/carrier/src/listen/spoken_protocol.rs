//! What somebody begins with, before it is decided how to go on.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::ByteStream;
use super::header_reader::PeekedStream;

/// As many bytes as tell protocols apart.
const BYTES: usize = 4;

/// The first bytes of a connection's preface.
const PREFACE: &[u8] = b"TIDE";

/// What is spoken, by the first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpokenProtocol {
    /// A handshake of TLS.
    Tls,
    /// The preface of a connection.
    Preface,
    /// A request of HTTP.
    Http,
    /// Something else.
    Other,
}

impl SpokenProtocol {
    fn from_first_bytes(bytes: &[u8]) -> SpokenProtocol {
        match bytes {
            // A record with a handshake, of any version.
            [0x16, 3, ..] => SpokenProtocol::Tls,
            PREFACE => SpokenProtocol::Preface,
            b"GET " | b"POST" | b"HEAD" | b"PUT " | b"OPTI" | b"CONN" | b"PRI " => {
                SpokenProtocol::Http
            }
            _ => SpokenProtocol::Other,
        }
    }
}

/// Waits for the first bytes, and gives the stream as if nobody had read them.
///
/// # Errors
/// The stream is broken.
pub async fn first(
    mut stream: Box<dyn ByteStream>,
) -> io::Result<(SpokenProtocol, Box<dyn ByteStream>)> {
    let (mut bytes, mut count) = ([0; BYTES], 0);
    read(&mut stream, &mut bytes, &mut count).await?;
    Ok(begun(stream, &bytes[..count]))
}

/// The same, which waits for no longer than this: what has not come by then is something else.
///
/// # Errors
/// The stream is broken.
pub async fn first_within(
    mut stream: Box<dyn ByteStream>,
    wait: Duration,
) -> io::Result<(SpokenProtocol, Box<dyn ByteStream>)> {
    let (mut bytes, mut count) = ([0; BYTES], 0);
    if let Ok(read) = timeout(wait, read(&mut stream, &mut bytes, &mut count)).await {
        read?;
    }
    Ok(begun(stream, &bytes[..count]))
}

/// May be dropped: what has come is counted.
async fn read(
    stream: &mut Box<dyn ByteStream>,
    bytes: &mut [u8; BYTES],
    count: &mut usize,
) -> io::Result<()> {
    while *count < BYTES {
        match stream.read(&mut bytes[*count..]).await? {
            0 => break,
            more => *count += more,
        }
    }
    Ok(())
}

fn begun(stream: Box<dyn ByteStream>, bytes: &[u8]) -> (SpokenProtocol, Box<dyn ByteStream>) {
    let first = SpokenProtocol::from_first_bytes(bytes);
    let seen = match first {
        SpokenProtocol::Preface => Bytes::from_static(PREFACE),
        _ => Bytes::copy_from_slice(bytes),
    };
    (first, Box::new(PeekedStream { seen, stream }))
}
