//! What every layer of a dialed connection is.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// How often `go_on` is asked.
pub(crate) const TICK: Duration = Duration::from_millis(200);

/// One layer of a connection. Reading only reads from the layer below and writing only
/// writes to it: two sides that wait for each other to read would wait for ever. An error
/// for which [`ErrorKind`] is `WouldBlock`, `TimedOut` or `Interrupted` means: not yet.
pub trait Layer: Read + Write + Send + fmt::Debug {
    /// Whether the two sides are still agreeing on how to go on. Nothing is taken until then.
    fn is_opening(&self) -> bool {
        false
    }

    /// Whether the two sides have gone on from an earlier connection.
    fn is_resumed(&self) -> bool {
        false
    }

    /// Whether it keeps bytes that it still has to send.
    fn owes(&self) -> bool {
        false
    }

    /// Whether something can be read without anything coming.
    fn holds(&self) -> bool {
        false
    }

    /// Bytes that it has given to the layer below, and taken from it, where it counts them.
    fn traffic(&self) -> [u64; 2] {
        [0; 2]
    }

    /// Sends what it owes, as far as the network takes it. Returns whether that was anything.
    ///
    /// # Errors
    /// Nothing could be sent.
    fn write_own(&mut self) -> io::Result<bool> {
        Ok(false)
    }

    /// Says that nothing more will be written.
    ///
    /// # Errors
    /// The socket is broken.
    fn close(&mut self) -> io::Result<()>;

    /// What is at the bottom.
    fn socket(&self) -> &TcpStream;
}

impl Layer for TcpStream {
    fn close(&mut self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }

    fn socket(&self) -> &TcpStream {
        self
    }
}

/// Whether an error only says that it is not time yet.
pub(crate) fn is_patience(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}
