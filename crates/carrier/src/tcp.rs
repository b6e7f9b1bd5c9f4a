//! Reaching a server: its name, its addresses, a socket.
//!
//! Neither a name server nor a silent address can be interrupted, and the former has no
//! deadline either. So another machine is reached on a thread of its own, which is left to
//! itself when nobody wants to wait for it any longer.

#![allow(
    clippy::disallowed_methods,
    reason = "waiting for the network needs real time"
)]

use std::io::{self, ErrorKind};
use std::net::{TcpStream, ToSocketAddrs};
use std::ops::ControlFlow;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::error::CarrierError;
use crate::layer::TICK;
use crate::url::ServerUrl;

/// How long one address may take to answer.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(10);

/// How long it all may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Connects to the first address that answers. This machine's network ends at its host name; a proxy
/// is reached so, too. With `loopback_only`, whatever a name server
/// says that `localhost` is.
pub(crate) fn dial(
    url: &ServerUrl,
    loopback_only: bool,
    timeout: Duration,
    go_on: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<TcpStream, CarrierError> {
    let (host, port) = (url.host.clone(), url.port);
    let address_timeout = timeout.min(ADDRESS_TIMEOUT);
    let job = move || dial_any(&host, port, loopback_only, address_timeout);
    let result = if url.is_loopback() {
        // This machine answers at once.
        Some(job())
    } else {
        wait_for(job, timeout.min(CONNECT_TIMEOUT), go_on)
    };
    result
        .ok_or(CarrierError::Cancelled)?
        .map_err(|source| CarrierError::Unreachable {
            server: url.to_string(),
            source,
        })
}

fn dial_any(
    host: &str,
    port: u16,
    loopback_only: bool,
    timeout: Duration,
) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        if loopback_only && !address.ip().is_loopback() {
            continue;
        }
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Does a job on a thread of its own; `None` when `go_on` breaks before it is done.
fn wait_for<T: Send + 'static>(
    job: impl FnOnce() -> io::Result<T> + Send + 'static,
    timeout: Duration,
    go_on: &mut dyn FnMut() -> ControlFlow<()>,
) -> Option<io::Result<T>> {
    let deadline = Instant::now() + timeout;
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::Builder::new().name("tidewater-connect".into());
    let spawned = thread.spawn(move || {
        // Nobody may be waiting any longer.
        let _ = sender.send(job());
    });
    if let Err(error) = spawned {
        return Some(Err(error));
    }
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match receiver.recv_timeout(left.min(TICK)) {
            Ok(result) => return Some(result),
            Err(RecvTimeoutError::Disconnected) => {
                return Some(Err(io::Error::other("the thread that connects is gone")));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if go_on().is_break() {
            return None;
        }
        if Instant::now() >= deadline {
            return Some(Err(ErrorKind::TimedOut.into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job that is done when the test says so.
    fn stuck() -> (
        mpsc::Sender<()>,
        impl FnOnce() -> io::Result<u8> + Send + 'static,
    ) {
        let (done, wait) = mpsc::channel();
        let job = move || {
            let _ = wait.recv();
            Ok(1)
        };
        (done, job)
    }

    #[test]
    fn a_name_server_that_never_answers_is_given_up() {
        let (_done, job) = stuck();
        let go_on = &mut || ControlFlow::Continue(());
        let result = wait_for(job, Duration::from_millis(50), go_on).unwrap();
        assert_eq!(result.unwrap_err().kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn connecting_can_be_cancelled() {
        let (_done, job) = stuck();
        let go_on = &mut || ControlFlow::Break(());
        assert!(wait_for(job, Duration::from_secs(60), go_on).is_none());
    }

    #[test]
    fn what_is_done_in_time_is_handed_over() {
        let (done, job) = stuck();
        let go_on = &mut || {
            let _ = done.send(());
            ControlFlow::Continue(())
        };
        let result = wait_for(job, Duration::from_secs(60), go_on).unwrap();
        assert_eq!(result.unwrap(), 1);
    }
}
