//! The PROXY protocol: what a balancer says, in front of all other bytes, about whom a connection
//! comes from; and which addresses are balancers.
//!
//! The format is that of HAProxy's `doc/proxy-protocol.txt`: reads versions 1 and 2, and writes 2.
//! Reads bytes that somebody else has read: sockets and deadlines are the affair of `listen`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// What a header of version 2 begins with.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// What a header of version 1 begins with.
const WORD: &[u8] = b"PROXY ";

/// A header of version 2 up to what its length counts.
const HEAD: usize = 16;

/// The longest line of version 1, its end included.
const LINE: usize = 107;

/// The longest header that is read. The addresses take some fifty bytes, certificates of clients
/// that a balancer adds some hundred.
pub const MAX_HEADER_BYTES: usize = 4_096;

/// What bytes begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderScan {
    /// The header goes on.
    Unfinished,
    /// They are no header.
    Other,
    /// A whole header.
    Header {
        /// How long it is.
        bytes: usize,
        /// Whom the connection comes from.
        from: ConnectionOrigin,
    },
}

/// Whom a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionOrigin {
    /// This address.
    Client(IpAddr),
    /// The balancer itself, which looks whether we are there, or does not tell.
    Proxy,
}

/// Why a header is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// It would be too long.
    #[error("the PROXY header is longer than {MAX_HEADER_BYTES} bytes")]
    TooLong,
    /// Another version, command or kind of address than there is.
    #[error("the PROXY header is of a kind that is not known")]
    Unknown,
    /// It is shorter than its addresses, or they are none.
    #[error("the PROXY header holds no addresses where it has to")]
    Malformed,
}

/// Whether bytes begin a header, as soon as they tell.
pub fn is_header(bytes: &[u8]) -> Option<bool> {
    let mut undecided = false;
    for start in [SIGNATURE, WORD] {
        if bytes.starts_with(start) {
            return Some(true);
        }
        undecided |= start.starts_with(bytes);
    }
    (!undecided).then_some(false)
}

/// Reads the first bytes of a connection.
///
/// # Errors
/// They begin a header, and go on as none.
pub fn read(bytes: &[u8]) -> Result<HeaderScan, HeaderError> {
    match is_header(bytes) {
        None => Ok(HeaderScan::Unfinished),
        Some(false) => Ok(HeaderScan::Other),
        Some(true) if bytes.starts_with(WORD) => read_line(bytes),
        Some(true) => read_binary(bytes),
    }
}

/// Version 2: signature, version and command, family and transport, length, addresses.
fn read_binary(bytes: &[u8]) -> Result<HeaderScan, HeaderError> {
    let Some((head, rest)) = bytes.split_at_checked(HEAD) else {
        return Ok(HeaderScan::Unfinished);
    };
    let length = usize::from(u16::from_be_bytes([head[14], head[15]]));
    if HEAD + length > MAX_HEADER_BYTES {
        return Err(HeaderError::TooLong);
    }
    let is_local = match head[12] {
        0x20 => true,
        0x21 => false,
        _ => return Err(HeaderError::Unknown),
    };
    let Some(body) = rest.get(..length) else {
        return Ok(HeaderScan::Unfinished);
    };
    let from = match head[13] {
        _ if is_local => ConnectionOrigin::Proxy,
        // Unspecified, or sockets of the balancer's own machine.
        0x00 | 0x31 => ConnectionOrigin::Proxy,
        0x11 => ConnectionOrigin::Client(IpAddr::from(source::<4, 12>(body)?)),
        0x21 => ConnectionOrigin::Client(IpAddr::from(source::<16, 36>(body)?).to_canonical()),
        _ => return Err(HeaderError::Unknown),
    };
    Ok(HeaderScan::Header {
        bytes: HEAD + length,
        from,
    })
}

/// The source, of two addresses and two ports that take so many bytes.
fn source<const ADDRESS: usize, const ALL: usize>(
    body: &[u8],
) -> Result<[u8; ADDRESS], HeaderError> {
    let addresses = body.get(..ALL).ok_or(HeaderError::Malformed)?;
    addresses
        .first_chunk()
        .copied()
        .ok_or(HeaderError::Malformed)
}

/// A header of version 2 that says that a connection comes from this address. Of its port, and of
/// where it has come to, nothing is said: those are zeros.
pub fn header(client: IpAddr) -> Vec<u8> {
    let (family, addresses) = match client.to_canonical() {
        IpAddr::V4(address) => (0x11, [&address.octets()[..], &[0; 8]].concat()),
        IpAddr::V6(address) => (0x21, [&address.octets()[..], &[0; 20]].concat()),
    };
    // 12 or 36.
    let length = [0, addresses.len() as u8];
    [SIGNATURE, &[0x21, family], &length, &addresses].concat()
}

/// Version 1: `PROXY TCP4 SOURCE DESTINATION PORT PORT` and an end of line.
fn read_line(bytes: &[u8]) -> Result<HeaderScan, HeaderError> {
    let seen = &bytes[..bytes.len().min(LINE)];
    let Some(end) = seen.windows(2).position(|it| it == b"\r\n") else {
        return match seen.len() < LINE {
            true => Ok(HeaderScan::Unfinished),
            false => Err(HeaderError::Malformed),
        };
    };
    let line = std::str::from_utf8(&seen[WORD.len()..end]).map_err(|_| HeaderError::Malformed)?;
    let header = |from| {
        Ok(HeaderScan::Header {
            bytes: end + 2,
            from,
        })
    };
    let words: Vec<&str> = line.split(' ').collect();
    let (is_v4, source, others) = match words[..] {
        ["UNKNOWN", ..] => return header(ConnectionOrigin::Proxy),
        ["TCP4", source, destination, from, to] => (true, source, (destination, from, to)),
        ["TCP6", source, destination, from, to] => (false, source, (destination, from, to)),
        _ => return Err(HeaderError::Unknown),
    };
    let address = |text: &str| {
        let address: Option<IpAddr> = text.parse().ok();
        address
            .filter(|it| it.is_ipv4() == is_v4)
            .ok_or(HeaderError::Malformed)
    };
    let (destination, from, to) = others;
    address(destination)?;
    if from.parse::<u16>().is_err() || to.parse::<u16>().is_err() {
        return Err(HeaderError::Malformed);
    }
    header(ConnectionOrigin::Client(address(source)?.to_canonical()))
}

/// Addresses, single ones and networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpNetworks(Vec<IpNetwork>);

impl IpNetworks {
    /// Whether an address is one of them.
    pub fn contain(&self, address: IpAddr) -> bool {
        self.0.iter().any(|it| it.contains(address))
    }

    /// The same for an address that is text; what is none is not one of them.
    pub fn contain_text(&self, address: &str) -> bool {
        address.parse().is_ok_and(|it| self.contain(it))
    }
}

impl FromIterator<IpNetwork> for IpNetworks {
    fn from_iter<I: IntoIterator<Item = IpNetwork>>(networks: I) -> IpNetworks {
        IpNetworks(networks.into_iter().collect())
    }
}

/// An address, or all that begin with the same bits: `127.0.0.1`, `10.0.0.0/8`, `fd00::/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpNetwork {
    address: IpAddr,
    bits: u32,
}

impl IpNetwork {
    fn contains(self, address: IpAddr) -> bool {
        let (own, length) = number(self.address);
        let (other, of) = number(address.to_canonical());
        let beyond = length - self.bits;
        // All of them, if no bit counts.
        length == of && own.checked_shr(beyond) == other.checked_shr(beyond)
    }
}

/// An address as a number, and how many bits it has.
fn number(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(address) => (address.to_bits().into(), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

/// Why a text is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IpNetworkError {
    /// There is no address in it.
    #[error("is neither an address nor a network")]
    Address,
    /// A network has more bits than there are.
    #[error("has no length from 0 to {most} after its /")]
    Length {
        /// How many there are.
        most: u32,
    },
    /// It has an address inside of a network.
    #[error("has bits beyond its length: the network is {network}")]
    Beyond {
        /// What is meant, most likely.
        network: IpNetwork,
    },
}

impl FromStr for IpNetwork {
    type Err = IpNetworkError;

    fn from_str(text: &str) -> Result<IpNetwork, IpNetworkError> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| IpNetworkError::Address)?;
        let address = match bits {
            Some(_) => address,
            None => address.to_canonical(),
        };
        let (own, most) = number(address);
        let bits = match bits {
            None => most,
            Some(bits) => {
                let bits = bits.parse().ok().filter(|it| *it <= most);
                bits.ok_or(IpNetworkError::Length { most })?
            }
        };
        let beyond = most - bits;
        let first = own.checked_shr(beyond).unwrap_or(0).checked_shl(beyond);
        let first = first.unwrap_or(0);
        if first == own {
            return Ok(IpNetwork { address, bits });
        }
        let address = match address {
            IpAddr::V4(_) => IpAddr::V4(u32::try_from(first).unwrap_or(0).into()),
            IpAddr::V6(_) => IpAddr::V6(first.into()),
        };
        let network = IpNetwork { address, bits };
        Err(IpNetworkError::Beyond { network })
    }
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, most) = number(self.address);
        match self.bits == most {
            true => write!(f, "{}", self.address),
            false => write!(f, "{}/{}", self.address, self.bits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header of version 2.
    fn binary(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        [SIGNATURE, &[command, family], &length, body].concat()
    }

    fn v4() -> Vec<u8> {
        binary(
            0x21,
            0x11,
            &[192, 0, 2, 7, 10, 0, 0, 1, 0xc0, 0, 0x1d, 0x0f],
        )
    }

    fn client(text: &str) -> ConnectionOrigin {
        ConnectionOrigin::Client(text.parse().unwrap())
    }

    #[test]
    fn a_header_tells_whom_a_connection_comes_from() {
        let v6: [u8; 16] = "2001:db8::7"
            .parse::<std::net::Ipv6Addr>()
            .unwrap()
            .octets();
        let v6 = [&v6[..], &[0; 20]].concat();
        let mut mapped = [&[0; 10][..], &[255, 255, 192, 0, 2, 7], &[0; 20]].concat();
        // A balancer may add more.
        mapped.extend([0x03, 0, 4, 1, 2, 3, 4]);
        for (header, from) in [
            (v4(), client("192.0.2.7")),
            (binary(0x21, 0x21, &v6), client("2001:db8::7")),
            (binary(0x21, 0x21, &mapped), client("192.0.2.7")),
            (binary(0x20, 0x00, &[]), ConnectionOrigin::Proxy),
            (binary(0x20, 0x11, &v4()[16..]), ConnectionOrigin::Proxy),
            (binary(0x21, 0x00, &[9]), ConnectionOrigin::Proxy),
            (binary(0x21, 0x31, &[0; 216]), ConnectionOrigin::Proxy),
            (
                b"PROXY TCP4 192.0.2.7 10.0.0.1 49152 7439\r\n".to_vec(),
                client("192.0.2.7"),
            ),
            (
                b"PROXY TCP6 2001:db8::7 ::1 49152 7439\r\n".to_vec(),
                client("2001:db8::7"),
            ),
            (b"PROXY UNKNOWN\r\n".to_vec(), ConnectionOrigin::Proxy),
            (
                b"PROXY UNKNOWN a b c d\r\n".to_vec(),
                ConnectionOrigin::Proxy,
            ),
        ] {
            let bytes = header.len();
            for end in 0..bytes {
                assert_eq!(read(&header[..end]), Ok(HeaderScan::Unfinished), "{end}");
            }
            let with_more = [&header[..], b"PROXY TCP4"].concat();
            for read in [read(&header), read(&with_more)] {
                assert_eq!(read, Ok(HeaderScan::Header { bytes, from }));
            }
        }
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        for address in ["192.0.2.7", "2001:db8::7", "::ffff:192.0.2.7"] {
            let address: IpAddr = address.parse().unwrap();
            let header = header(address);
            let from = ConnectionOrigin::Client(address.to_canonical());
            let bytes = header.len();
            assert_eq!(read(&header), Ok(HeaderScan::Header { bytes, from }));
        }
    }

    #[test]
    fn what_is_no_header_is_told_by_its_first_bytes() {
        for other in [
            &b"\x16\x03\x01"[..],
            b"GET / HTTP/1.1",
            b"POST /",
            b"PROXX",
            b"\r\n\r\n\r",
            b"TDWR",
        ] {
            assert_eq!(read(other), Ok(HeaderScan::Other), "{other:?}");
        }
        for (wrong, error) in [
            (binary(0x11, 0x11, &[0; 12]), HeaderError::Unknown),
            (binary(0x22, 0x11, &[0; 12]), HeaderError::Unknown),
            (binary(0x21, 0x12, &[0; 12]), HeaderError::Unknown),
            (binary(0x21, 0x41, &[0; 12]), HeaderError::Unknown),
            (binary(0x21, 0x11, &[0; 11]), HeaderError::Malformed),
            (binary(0x21, 0x21, &[0; 35]), HeaderError::Malformed),
            (binary(0x21, 0x11, &[0; 4_081]), HeaderError::TooLong),
            (
                b"PROXY TCP4 ::1 ::1 1 2\r\n".to_vec(),
                HeaderError::Malformed,
            ),
            (
                b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n".to_vec(),
                HeaderError::Unknown,
            ),
            (
                b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n".to_vec(),
                HeaderError::Malformed,
            ),
            (b"PROXY \xff\r\n".to_vec(), HeaderError::Malformed),
            (
                [&b"PROXY "[..], &[b'A'; 101]].concat(),
                HeaderError::Malformed,
            ),
        ] {
            assert_eq!(read(&wrong), Err(error), "{wrong:?}");
        }
    }

    #[test]
    fn networks_hold_the_addresses_that_begin_like_them() {
        let networks =
            |texts: &[&str]| -> IpNetworks { texts.iter().map(|it| it.parse().unwrap()).collect() };
        let some = networks(&[
            "10.0.0.0/8",
            "127.0.0.1",
            "fd00::/8",
            "::1",
            "::ffff:192.0.2.1",
        ]);
        for inside in [
            "10.1.2.3",
            "127.0.0.1",
            "fd12::1",
            "::1",
            "::ffff:10.0.0.1",
            "192.0.2.1",
        ] {
            assert!(some.contain_text(inside), "{inside}");
        }
        for outside in [
            "11.0.0.0",
            "127.0.0.2",
            "fe80::1",
            "::2",
            "",
            "device-1",
            "0.0.0.1",
        ] {
            assert!(!some.contain_text(outside), "{outside}");
        }
        let all = networks(&["0.0.0.0/0"]);
        assert!(all.contain_text("203.0.113.9") && !all.contain_text("::2"));
        assert!(networks(&["::/0"]).contain_text("::2"));
        assert!(!IpNetworks::default().contain_text("127.0.0.1"));
    }

    #[test]
    fn what_is_no_network_says_why() {
        for (text, why) in [
            ("balancer", "is neither an address nor a network"),
            ("", "is neither an address nor a network"),
            ("10.0.0/8", "is neither an address nor a network"),
            ("10.0.0.0/33", "has no length from 0 to 32 after its /"),
            ("::/x", "has no length from 0 to 128 after its /"),
            (
                "10.1.2.3/8",
                "has bits beyond its length: the network is 10.0.0.0/8",
            ),
            (
                "fd00::1/8",
                "has bits beyond its length: the network is fd00::/8",
            ),
            (
                "1.0.0.0/0",
                "has bits beyond its length: the network is 0.0.0.0/0",
            ),
        ] {
            assert_eq!(text.parse::<IpNetwork>().unwrap_err().to_string(), why);
        }
    }
}
