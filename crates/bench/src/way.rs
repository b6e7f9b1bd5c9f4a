//! What carries connections in the scenario `protocols`, how they are encrypted and packed, and
//! the certificates for that.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context;
use rcgen::{CertificateParams, KeyPair};
use tidewater_carrier::Compression;

/// The name of the server behind a relay: the only one that every machine knows as its own.
pub(crate) const BEHIND_RELAY: &str = "localhost";

/// rcgen makes keys of elliptic curves alone. This one is known to everybody, and good for
/// nothing but to be measured with.
const RSA_KEY: &str = include_str!("for_measures_only/rsa.key");

/// What carries a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Bytes as they are.
    Tcp,
    /// WebSocket.
    Ws,
    /// Requests of HTTP.
    Http,
    /// TLS, the server's certificate with a key of an elliptic curve. Hands are shaken in full.
    TlsEcc,
    /// The same with an RSA key of 2,048 bits.
    TlsRsa,
    /// TLS that goes on from an earlier connection of the same program.
    TlsResumed,
    /// WebSocket over TLS, elliptic curve, shaken in full.
    Wss,
    /// Requests of HTTP over TLS, elliptic curve, shaken in full.
    Https,
    /// As [`Protocol::TlsEcc`], through a relay.
    Relay,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Protocol; 9] = [
        Protocol::Tcp,
        Protocol::Ws,
        Protocol::Http,
        Protocol::TlsEcc,
        Protocol::TlsRsa,
        Protocol::TlsResumed,
        Protocol::Wss,
        Protocol::Https,
        Protocol::Relay,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Ws => "ws",
            Protocol::Http => "http",
            Protocol::TlsEcc => "tls-ecc",
            Protocol::TlsRsa => "tls-rsa",
            Protocol::TlsResumed => "tls-resumed",
            Protocol::Wss => "wss",
            Protocol::Https => "https",
            Protocol::Relay => "relay",
        }
    }

    /// What stands before the address.
    pub(crate) fn scheme(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Ws => "ws",
            Protocol::Http => "http",
            Protocol::TlsEcc | Protocol::TlsRsa | Protocol::TlsResumed | Protocol::Relay => "tls",
            Protocol::Wss => "wss",
            Protocol::Https => "https",
        }
    }

    /// The key of the server's certificate, where there is one.
    pub(crate) fn key(self) -> Option<Key> {
        match self {
            Protocol::Tcp | Protocol::Ws | Protocol::Http => None,
            Protocol::TlsRsa => Some(Key::Rsa),
            _ => Some(Key::Ecc),
        }
    }

    /// Whether remotes share what TLS goes on from.
    pub(crate) fn resumes(self) -> bool {
        self == Protocol::TlsResumed
    }
}

impl FromStr for Protocol {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Protocol, &'static str> {
        let found = Protocol::ALL.into_iter().find(|it| it.name() == text);
        found.ok_or("there is tcp, ws, http, tls-ecc, tls-rsa, tls-resumed, wss, https and relay")
    }
}

/// What carries connections, and how they are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionWay {
    pub(crate) protocol: Protocol,
    pub(crate) compression: Compression,
}

impl ConnectionWay {
    /// What others are compared with.
    pub(crate) const PLAIN: ConnectionWay = ConnectionWay {
        protocol: Protocol::Tcp,
        compression: Compression::Off,
    };

    /// How it is called in a report.
    pub(crate) fn label(self) -> String {
        format!("{} {}", self.protocol.name(), self.compression)
    }

    /// What it is compared with: what lies below it.
    pub(crate) fn below(self) -> ConnectionWay {
        match self.protocol {
            Protocol::Relay => ConnectionWay {
                protocol: Protocol::TlsEcc,
                ..self
            },
            _ => ConnectionWay::PLAIN,
        }
    }
}

/// Kinds of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Ecc,
    Rsa,
}

impl Key {
    fn name(self) -> &'static str {
        match self {
            Key::Ecc => "ecc",
            Key::Rsa => "rsa",
        }
    }

    /// The certificate in a folder.
    pub(crate) fn certificate(self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.pem", self.name()))
    }

    /// Its private key.
    pub(crate) fn private(self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.key", self.name()))
    }

    /// Makes a certificate for a server at this address.
    pub(crate) fn certify(self, folder: &Path, address: IpAddr) -> anyhow::Result<()> {
        let pair = match self {
            Key::Ecc => KeyPair::generate()?,
            Key::Rsa => KeyPair::from_pem(RSA_KEY)?,
        };
        let names = [address.to_string(), BEHIND_RELAY.to_owned()];
        let certificate = CertificateParams::new(names)?.self_signed(&pair)?;
        let write = |path: PathBuf, text: String| {
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        write(self.certificate(folder), certificate.pem())?;
        write(self.private(folder), pair.serialize_pem())
    }
}

/// The address by which this machine reaches others: on loopback nobody packs anything unless it
/// is told to. Loopback, if there is no other.
pub fn own_address() -> IpAddr {
    let look = || -> std::io::Result<IpAddr> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        // Nothing is sent: an address of RFC 5737 only asks for the way there.
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        Ok(socket.local_addr()?.ip())
    };
    look().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_of_both_kinds_serve() {
        let folder = tempfile::tempdir().unwrap();
        for key in [Key::Ecc, Key::Rsa] {
            key.certify(folder.path(), Ipv4Addr::LOCALHOST.into())
                .unwrap();
            let (certificate, private) =
                (key.certificate(folder.path()), key.private(folder.path()));
            tidewater_carrier::tls::server(&certificate, &private).unwrap();
            tidewater_carrier::tls::client(Some(&certificate)).unwrap();
        }
    }

    #[test]
    fn names_are_what_they_are_read_from() {
        for protocol in Protocol::ALL {
            assert_eq!(protocol.name().parse(), Ok(protocol));
        }
    }
}
