//! A line between remotes and a server that carries so much a second, and breaks now and then.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;

/// What a socket at the line's ends holds: what is in a buffer has not made its sender wait.
const BUFFER_BYTES: u32 = 32 << 10;

/// A line takes so many bytes at once: a hundredth of a second's.
const PIECES_A_SECOND: f64 = 100.0;

/// How a line is.
#[derive(Clone, Copy)]
pub(crate) struct JobKind {
    /// Bytes a second, each way.
    pub(crate) speed: f64,
    /// All connections over it break so often.
    pub(crate) breaks_every: Option<Duration>,
}

/// A line; it is there until it is dropped.
pub(crate) struct ChartLine {
    pub(crate) address: SocketAddr,
    _runtime: Runtime,
}

impl ChartLine {
    /// Lays a line from an address of this machine to a server.
    pub(crate) fn lay(
        from: IpAddr,
        server: SocketAddr,
        kind: JobKind,
    ) -> anyhow::Result<ChartLine> {
        let runtime = Runtime::new()?;
        let listener = runtime.block_on(async {
            let socket = TcpSocket::new_v4()?;
            // The sockets that come inherit it.
            socket.set_recv_buffer_size(BUFFER_BYTES)?;
            socket.bind((from, 0).into())?;
            socket.listen(64)
        })?;
        let address = listener.local_addr()?;
        runtime.spawn(carry(listener, server, kind));
        Ok(ChartLine {
            address,
            _runtime: runtime,
        })
    }
}

async fn carry(listener: TcpListener, server: SocketAddr, kind: JobKind) {
    let laid = Instant::now();
    while let Ok((remote, _)) = listener.accept().await {
        tokio::spawn(async move {
            let both = async {
                let socket = TcpSocket::new_v4()?;
                socket.set_recv_buffer_size(BUFFER_BYTES)?;
                let server = socket.connect(server).await?;
                pass_both(remote, server, kind.speed).await;
                std::io::Result::Ok(())
            };
            // Whoever has lost the line is told by a connection that ends.
            match kind.breaks_every {
                None => drop(both.await),
                Some(every) => {
                    let breaks = (laid.elapsed().as_secs_f64() / every.as_secs_f64()).floor() + 1.0;
                    let at = laid + every.mul_f64(breaks);
                    let _ = tokio::time::timeout_at(at.into(), both).await;
                }
            }
        });
    }
}

async fn pass_both(remote: TcpStream, server: TcpStream, speed: f64) {
    let nodelay = remote.set_nodelay(true).and(server.set_nodelay(true));
    if nodelay.is_ok() {
        let (from_remote, to_remote) = remote.into_split();
        let (from_server, to_server) = server.into_split();
        let up = pass(from_remote, to_server, speed);
        tokio::join!(up, pass(from_server, to_remote, speed));
    }
}

/// Lets bytes pass one way until either side ends it.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, speed: f64) {
    let mut piece = vec![0; (speed / PIECES_A_SECOND).clamp(512.0, 256e3) as usize];
    let mut free_at = Instant::now();
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        let takes = Duration::from_secs_f64(read as f64 / speed);
        free_at = free_at.max(Instant::now()) + takes;
        // The clock of the runtime counts milliseconds: what is due sooner goes at once.
        if free_at > Instant::now() + Duration::from_millis(2) {
            tokio::time::sleep_until(free_at.into()).await;
        }
        if to.write_all(&piece[..read]).await.is_err() {
            break;
        }
    }
    // The other side may have closed it already.
    let _ = to.shutdown().await;
}
