//! Where a server is: `tcp://` and `tls://` URLs.
//!
//! Owns their spelling and the rule that nothing travels unencrypted off this machine
//! unless somebody says so. Leaves resolving names to `tcp`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// The port of servers, where a URL names none.
pub const DEFAULT_PORT: u16 = 7439;

/// How bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// As they are.
    Tcp,
    /// Encrypted, and the server proves who it is.
    Tls,
}

/// A server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    /// How bytes travel.
    pub transport: Transport,
    /// A name, or an address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// Why a text is no server URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{url:?} is not the URL of a server: {what}")]
pub struct UrlError {
    /// The text.
    pub url: String,
    /// What is wrong with it.
    pub what: String,
}

impl ServerUrl {
    /// Reads where to listen: as where to dial, but the scheme has to be there, and port 0
    /// is any that is free.
    ///
    /// # Errors
    /// It is no such URL.
    pub fn to_listen(text: &str) -> Result<ServerUrl, UrlError> {
        match text.contains("://") {
            true => ServerUrl::read(text, 0),
            false => Err(UrlError {
                url: text.to_owned(),
                what: "it does not begin with tls:// or tcp://".into(),
            }),
        }
    }

    /// Whether everything would travel readable over a network.
    pub fn is_exposed(&self) -> bool {
        self.transport == Transport::Tcp && !self.is_loopback()
    }

    /// What a socket is bound to: `host:port`.
    pub fn address(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// Whether the host is this machine by its very name.
    pub fn is_loopback(&self) -> bool {
        let host = self.host.as_str();
        host.eq_ignore_ascii_case("localhost")
            || host
                .parse::<IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    }

    fn read(text: &str, lowest_port: u16) -> Result<ServerUrl, UrlError> {
        let wrong = |what: &str| UrlError {
            url: text.to_owned(),
            what: what.to_owned(),
        };
        let trimmed = text.trim();
        let (transport, rest) = match trimmed.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("tcp") => {
                (Some(Transport::Tcp), rest)
            }
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("tls") => {
                (Some(Transport::Tls), rest)
            }
            Some((scheme, _)) => {
                return Err(wrong(&format!(
                    "unknown scheme {scheme:?}; it is tls:// or tcp://"
                )));
            }
            None => (None, trimmed),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#', '@']) || rest.contains(char::is_whitespace) {
            return Err(wrong("only a host and a port can follow the scheme"));
        }
        let (host, port) = split_port(rest).ok_or_else(|| {
            wrong("an IPv6 address with a port needs brackets, as in tcp://[::1]:7439")
        })?;
        if host.is_empty() {
            return Err(wrong("the host is missing"));
        }
        let port = match port {
            None => DEFAULT_PORT,
            Some(port) => port
                .parse()
                .ok()
                .filter(|&port| port >= lowest_port)
                .ok_or_else(|| {
                    wrong(&format!("the port is a number from {lowest_port} to 65535"))
                })?,
        };
        let mut url = ServerUrl {
            transport: Transport::Tls,
            host: host.to_ascii_lowercase(),
            port,
        };
        url.transport = transport.unwrap_or(if url.is_loopback() {
            Transport::Tcp
        } else {
            Transport::Tls
        });
        Ok(url)
    }
}

/// Without a scheme: `tcp` on this machine, `tls` everywhere else. Without a port: 7439.
impl FromStr for ServerUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<ServerUrl, UrlError> {
        ServerUrl::read(text, 1)
    }
}

/// Splits host and port; `None` when brackets are missing or do not fit.
fn split_port(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest.split_once(']')?;
        return match after.strip_prefix(':') {
            Some(port) => Some((host, Some(port))),
            None if after.is_empty() => Some((host, None)),
            None => None,
        };
    }
    match text.split_once(':') {
        None => Some((text, None)),
        Some((host, port)) if !port.contains(':') => Some((host, Some(port))),
        // More than one colon: an address without a port.
        Some(_) => text.parse::<IpAddr>().ok().map(|_| (text, None)),
    }
}

/// The canonical spelling: scheme, host and port.
impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.transport {
            Transport::Tcp => "tcp",
            Transport::Tls => "tls",
        };
        write!(f, "{scheme}://{}", self.address())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_one_canonical_spelling() {
        for (text, canonical) in [
            ("tcp://127.0.0.1:7439", "tcp://127.0.0.1:7439"),
            ("tls://Sync.Example.com", "tls://sync.example.com:7439"),
            ("TLS://sync.example.com:443/", "tls://sync.example.com:443"),
            ("sync.example.com", "tls://sync.example.com:7439"),
            ("localhost", "tcp://localhost:7439"),
            ("127.0.0.9:80", "tcp://127.0.0.9:80"),
            ("::1", "tcp://[::1]:7439"),
            ("tls://[2001:db8::1]:9", "tls://[2001:db8::1]:9"),
        ] {
            assert_eq!(text.parse::<ServerUrl>().unwrap().to_string(), canonical);
        }
    }

    #[test]
    fn what_is_no_url_is_told() {
        for text in [
            "",
            "tcp://",
            "http://example.com",
            "tcp://host:0",
            "tcp://host:70000",
            "tcp://host:x",
            "tcp://user@host",
            "tcp://host/path",
            "tcp://[::1",
            "tcp://[::1]x",
            "tcp://a:b:c",
            "tcp://a b",
        ] {
            assert!(text.parse::<ServerUrl>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn where_to_listen_needs_a_scheme_but_no_certain_port() {
        for (text, address) in [
            ("tcp://127.0.0.1:0", "127.0.0.1:0"),
            ("tcp://localhost", "localhost:7439"),
            ("tls://[::1]:99/", "[::1]:99"),
            ("tls://[::]", "[::]:7439"),
        ] {
            assert_eq!(ServerUrl::to_listen(text).unwrap().address(), address);
        }
        for wrong in ["127.0.0.1:7439", "http://x:1", "tcp://", "tcp://h:99999"] {
            assert!(ServerUrl::to_listen(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_plain_connections_off_this_machine_are_exposed() {
        for (text, exposed) in [
            ("tcp://127.0.0.1:1", false),
            ("tcp://[::1]:1", false),
            ("tcp://localhost:1", false),
            ("tcp://0.0.0.0:1", true),
            ("tls://0.0.0.0:1", false),
        ] {
            assert_eq!(text.parse::<ServerUrl>().unwrap().is_exposed(), exposed);
        }
    }
}
