//! What a device begins with: the ClientHello of TLS, of which the name is read and nothing else.
//!
//! Reads bytes that somebody else has read: sockets and deadlines are the affair of `devices`.

use bytes::BytesMut;
use rustls::server::Acceptor;

use tidewater_carrier::listen::ServerRegistration;

/// The longest ClientHello that is read.
pub const MAX_HELLO_BYTES: usize = 16 << 10;

/// The first bytes of a device.
pub struct ClientHelloReader {
    seen: BytesMut,
    acceptor: Acceptor,
}

/// Whom a device wants to reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedServer {
    /// The name of the server, in lower case, if it says one.
    pub name: Option<String>,
    /// Whether it is going to speak HTTP, of which several connections may belong together.
    pub is_web: bool,
}

/// Why something is no ClientHello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoHello {
    /// A request of HTTP.
    #[error("what it speaks is HTTP, and not TLS")]
    Http,
    /// Something else that is not TLS.
    #[error("what it speaks is not TLS")]
    Other,
    /// It begins as TLS does and goes on otherwise.
    #[error("what it begins with is no handshake of TLS")]
    Malformed,
    /// It does not end.
    #[error("its handshake is longer than {MAX_HELLO_BYTES} bytes")]
    TooLong,
}

/// What requests begin with.
const METHODS: [&[u8]; 8] = [
    b"GET ",
    b"POST ",
    b"HEAD ",
    b"PUT ",
    b"DELETE ",
    b"OPTIONS ",
    b"PATCH ",
    b"CONNECT ",
];

impl Default for ClientHelloReader {
    fn default() -> ClientHelloReader {
        ClientHelloReader {
            seen: BytesMut::new(),
            acceptor: Acceptor::default(),
        }
    }
}

impl ClientHelloReader {
    /// Everything that has come so far, for the server.
    pub fn bytes(&self) -> &[u8] {
        &self.seen
    }

    /// More has come. `None` if that is not all yet. Nothing may come once all is there, or wrong.
    ///
    /// # Errors
    /// It is no ClientHello.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<Option<RequestedServer>, NoHello> {
        let room = MAX_HELLO_BYTES.saturating_sub(self.seen.len());
        let is_too_long = bytes.len() > room;
        self.seen.extend_from_slice(bytes);
        self.begins_as_tls()?;
        bytes = &bytes[..bytes.len().min(room)];
        while !bytes.is_empty() {
            let read = self.acceptor.read_tls(&mut bytes);
            if !read.is_ok_and(|count| count > 0) {
                return Err(NoHello::Malformed);
            }
            match self.acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    let hello = accepted.client_hello();
                    let mut protocols = hello.alpn().into_iter().flatten();
                    return Ok(Some(RequestedServer {
                        name: hello.server_name().and_then(ServerRegistration::name),
                        is_web: protocols.any(|it| it == b"http/1.1" || it == b"h2"),
                    }));
                }
                Err(_) => return Err(NoHello::Malformed),
            }
        }
        match is_too_long {
            true => Err(NoHello::TooLong),
            false => Ok(None),
        }
    }

    fn begins_as_tls(&self) -> Result<(), NoHello> {
        match &self.seen[..] {
            [] | [0x16] | [0x16, 3, ..] => Ok(()),
            other => {
                let is_begun = |it: &&[u8]| it.starts_with(other) || other.starts_with(it);
                match METHODS.iter().any(is_begun) {
                    false => Err(NoHello::Other),
                    true => Err(NoHello::Http),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    fn hello(name: &str, protocols: &[&[u8]]) -> Vec<u8> {
        let provider = tidewater_carrier::tls::provider();
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|it| it.to_vec()).collect();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_name_is_found_however_the_bytes_come() {
        for (bytes, name, is_web) in [
            (
                hello("sync.example.com", &[]),
                Some("sync.example.com"),
                false,
            ),
            (
                hello("Sync.Example.COM", &[b"http/1.1"]),
                Some("sync.example.com"),
                true,
            ),
            (hello("192.0.2.7", &[]), None, false),
        ] {
            let wanted = RequestedServer {
                name: name.map(Into::into),
                is_web,
            };
            for size in [1, 2, 5, 100, bytes.len()] {
                let mut hello = ClientHelloReader::default();
                let mut pieces = bytes.chunks(size).peekable();
                while let Some(piece) = pieces.next() {
                    let expected = pieces.peek().is_none().then(|| wanted.clone());
                    assert_eq!(hello.push(piece), Ok(expected), "{size}");
                }
                assert_eq!(hello.bytes(), bytes);
            }
        }
    }

    #[test]
    fn what_is_no_handshake_is_told_apart() {
        let endless = [&[0x16, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff][..], &[0; 16_379]].concat();
        let endless = [&endless[..], &endless[..]].concat();
        for (bytes, why) in [
            (&b"GET / HTTP/1.1"[..], NoHello::Http),
            (b"POST /tidewater", NoHello::Http),
            (b"TIDE\0\0\0\0", NoHello::Other),
            (b"SSH-2.0-x\r\n", NoHello::Other),
            (&[0x16, 2, 0], NoHello::Other),
            (&[0x16, 3, 1, 0, 4, 2, 0, 0, 0], NoHello::Malformed),
            (&[0x16, 3, 1, 0, 4, 1, 0, 0, 0], NoHello::Malformed),
            (&endless, NoHello::TooLong),
        ] {
            assert_eq!(ClientHelloReader::default().push(bytes), Err(why), "{why}");
        }
    }
}
