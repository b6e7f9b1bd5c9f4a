//! The bytes of one connection of a remote that only syncs.

use std::io;
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep_until, timeout};

use tidewater_remote::Connection;
use tidewater_remote::session::Now;

/// How long a client bears silence.
const SILENCE: Duration = Duration::from_secs(30);

/// A connection, and how its bytes go.
pub(super) struct Line {
    pub(super) connection: Connection,
    /// `None` if the server cannot be reached.
    stream: Option<(ReadHalf<DuplexStream>, WriteHalf<DuplexStream>)>,
    output: Bytes,
    /// Whether what it says last does not arrive.
    pub(super) last_is_lost: bool,
}

impl Line {
    pub(super) fn new(stream: Option<DuplexStream>, last_is_lost: bool, now: Now) -> Line {
        Line {
            connection: Connection::dial("simulator", SILENCE, now),
            stream: stream.map(tokio::io::split),
            output: Bytes::new(),
            last_is_lost,
        }
    }

    /// Nothing more comes or goes.
    pub(super) fn cut(&mut self) {
        self.stream = None;
    }

    /// Has ready what is to be sent next.
    pub(super) fn fill(&mut self) {
        if self.output.is_empty()
            && let Some(bytes) = self.connection.poll_transmit()
        {
            self.output = bytes;
        }
    }

    /// Waits until bytes come or go, or it is time for something.
    ///
    /// # Errors
    /// The connection has ended, which it has not been told yet.
    pub(super) async fn turn(
        &mut self,
        began: Instant,
        now: &dyn Fn() -> Now,
    ) -> Result<(), Option<io::Error>> {
        self.fill();
        let Some((reader, writer)) = &mut self.stream else {
            return Err(None);
        };
        let connection = &mut self.connection;
        // Longer than any simulation, and short enough to be a time.
        let deadline = connection.poll_timeout().unwrap_or(u64::MAX).min(1 << 40);
        let deadline = began + Duration::from_millis(deadline);
        let mut buffer = [0; 2_048];
        tokio::select! {
            biased;
            read = reader.read(&mut buffer) => match read {
                Ok(count) if count > 0 => connection.handle_bytes(&buffer[..count], now()),
                Ok(_) => return Err(None),
                Err(error) => return Err(Some(error)),
            },
            written = writer.write(&self.output), if !self.output.is_empty() => match written {
                Ok(count) => {
                    self.output.advance(count);
                    connection.handle_sent(now());
                }
                Err(error) => return Err(Some(error)),
            },
            () = sleep_until(deadline) => connection.handle_timeout(now()),
        }
        Ok(())
    }

    /// Says what is left; whether it is lost, if there was anything.
    pub(super) async fn hang_up(mut self) -> bool {
        let mut rest = self.output.to_vec();
        while let Some(bytes) = self.connection.poll_transmit() {
            rest.extend_from_slice(&bytes);
        }
        if !rest.is_empty() && self.last_is_lost {
            return true;
        }
        if let Some((_reader, mut writer)) = self.stream {
            // A courtesy: the server may have closed first.
            let farewell = async {
                let _ = writer.write_all(&rest).await;
                let _ = writer.shutdown().await;
            };
            let _ = timeout(Duration::from_secs(10), farewell).await;
        }
        false
    }
}
