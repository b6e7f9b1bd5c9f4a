//! Ports of the loopback for servers that a test ends and starts again.
//!
//! Tests of several programs run at the same time, and while such a server is down nobody listens
//! on its port. So each program claims the ports that it gives to its servers: it binds the UDP
//! port of the same number, which no test uses otherwise, for as long as it runs.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

/// Below what Linux and macOS hand out to outgoing connections, so that none of those takes the
/// port of a server that is down.
const PORTS: Range<u16> = 10_000..32_000;

/// The claims of this program.
static CLAIMS: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());

/// Claims a TCP port of 127.0.0.1 on which nobody listens: no other test gets it before this
/// program ends.
///
/// # Errors
/// No port is free.
pub fn claim_port() -> Result<u16> {
    let mut claims = CLAIMS.lock().unwrap_or_else(PoisonError::into_inner);
    let after_last = claims.last().and_then(|it| it.local_addr().ok());
    let first = match after_last {
        Some(address) => address.port() + 1,
        // Programs that run at the same time begin at different places.
        None => PORTS.start + (std::process::id() * 64 % PORTS.len() as u32) as u16,
    };
    let ports = (first..PORTS.end).chain(PORTS.start..first);
    let (port, claim) = ports
        .filter_map(|port| {
            let address = (Ipv4Addr::LOCALHOST, port);
            let claim = UdpSocket::bind(address).ok()?;
            TcpListener::bind(address).ok()?;
            Some((port, claim))
        })
        .next()
        .context("no port is free on 127.0.0.1")?;
    claims.push(claim);
    Ok(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_once_while_nobody_listens_on_it() {
        let ports = [claim_port().unwrap(), claim_port().unwrap()];
        assert_ne!(ports[0], ports[1]);
        for port in ports {
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
            assert!(UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_err());
        }
    }

    #[test]
    fn a_port_on_which_somebody_listens_is_passed_over() {
        let taken = claim_port().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, taken + 1));
        let next = claim_port().unwrap();
        assert!(listener.is_err() || next != taken + 1);
    }
}
