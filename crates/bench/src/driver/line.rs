//! Slow lines: a relay between remotes and the server that lets bytes pass at a line's speed.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::time::Instant;

/// A line takes so many bytes at once: a twentieth of a second's.
const PIECES_A_SECOND: u64 = 20;

/// A relay; each connection over it is a line of its own.
pub(super) struct Relay {
    address: SocketAddr,
    /// Its tasks end with it.
    _runtime: Runtime,
}

impl Relay {
    /// Lets bytes pass to the server and back, so many a second each way.
    pub(super) fn start(server: SocketAddr, bytes_per_second: u64) -> anyhow::Result<Relay> {
        let runtime = crate::base::runtime()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"));
        let listener = listener.context("a slow line needs a port")?;
        let address = listener.local_addr()?;
        runtime.spawn(async move {
            while let Ok((remote, _)) = listener.accept().await {
                tokio::spawn(async move {
                    // What cannot be reached is told by a connection that ends.
                    let Ok(server) = TcpStream::connect(server).await else {
                        return;
                    };
                    let (from_remote, to_remote) = remote.into_split();
                    let (from_server, to_server) = server.into_split();
                    tokio::spawn(pass(from_remote, to_server, bytes_per_second));
                    pass(from_server, to_remote, bytes_per_second).await;
                });
            }
        });
        Ok(Relay {
            address,
            _runtime: runtime,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Lets bytes pass one way until either side ends it.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, bytes_per_second: u64) {
    let mut piece = vec![0; (bytes_per_second / PIECES_A_SECOND).clamp(1, 64 << 10) as usize];
    let mut free_at = Instant::now();
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        let now = Instant::now();
        let takes = Duration::from_secs_f64(read as f64 / bytes_per_second as f64);
        free_at = free_at.max(now) + takes;
        // A byte has arrived when the line has carried it.
        tokio::time::sleep_until(free_at).await;
        if to.write_all(&piece[..read]).await.is_err() {
            break;
        }
    }
    // The other side may have closed it already.
    let _ = to.shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn bytes_arrive_unchanged_and_no_earlier_than_the_line_allows() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Relay::start(server.local_addr().unwrap(), 2_000).unwrap();
        let sent: Vec<u8> = (0..1_000).map(|number| number as u8).collect();
        let mut remote = std::net::TcpStream::connect(relay.address()).unwrap();
        let begun = Instant::now();
        remote.write_all(&sent).unwrap();
        remote.shutdown(std::net::Shutdown::Write).unwrap();
        let mut arrived = Vec::new();
        server
            .accept()
            .unwrap()
            .0
            .read_to_end(&mut arrived)
            .unwrap();
        assert_eq!(arrived, sent);
        // A line that were too slow would be a busy machine; one that is too fast is wrong.
        assert!(begun.elapsed() >= Duration::from_millis(500));
    }
}
