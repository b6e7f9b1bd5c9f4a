//! Where a server is, and how it is reached: `tls://`, `wss://`, `https://`, and the same without
//! encryption.
//!
//! Owns their spelling and the rule that nothing travels unencrypted off this machine
//! unless somebody says so. Leaves resolving names to `tcp`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// The port of servers, where a URL names none.
pub const DEFAULT_PORT: u16 = 7439;

/// The path of servers over WebSocket and HTTP, where a URL names none.
pub const DEFAULT_PATH: &str = "/tidewater";

/// The schemes that there are, for people.
const SCHEMES: &str = "tls://, wss://, https://, tcp://, ws:// or http://";

/// How bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// As they are.
    Tcp,
    /// Encrypted, and the server proves who it is.
    Tls,
    /// In messages of a WebSocket.
    Ws,
    /// The same, encrypted.
    Wss,
    /// In numbered requests and their answers.
    Http,
    /// The same, encrypted.
    Https,
}

impl Transport {
    const ALL: [Transport; 6] = [
        Transport::Tcp,
        Transport::Tls,
        Transport::Ws,
        Transport::Wss,
        Transport::Http,
        Transport::Https,
    ];

    /// As URLs begin.
    pub fn scheme(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Tls => "tls",
            Transport::Ws => "ws",
            Transport::Wss => "wss",
            Transport::Http => "http",
            Transport::Https => "https",
        }
    }

    /// Whether nobody on the way can read it.
    pub fn is_encrypted(self) -> bool {
        matches!(self, Transport::Tls | Transport::Wss | Transport::Https)
    }

    /// Whether what is spoken first is HTTP.
    pub fn is_web(self) -> bool {
        !matches!(self, Transport::Tcp | Transport::Tls)
    }

    fn default_port(self) -> u16 {
        match self {
            Transport::Tcp | Transport::Tls => DEFAULT_PORT,
            Transport::Ws | Transport::Http => 80,
            Transport::Wss | Transport::Https => 443,
        }
    }
}

/// A server's address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerUrl {
    /// How bytes travel.
    pub transport: Transport,
    /// A name, or an address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Where at the host, for WebSocket and HTTP: it begins with a slash. Empty for others.
    pub path: String,
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
        let wrong = |what: String| UrlError {
            url: text.to_owned(),
            what,
        };
        if !text.contains("://") {
            return Err(wrong(format!("it does not begin with {SCHEMES}")));
        }
        let url = ServerUrl::read(text, 0)?;
        match url.path.as_str() {
            "" | DEFAULT_PATH => Ok(url),
            _ => Err(wrong(format!(
                "a server is at {DEFAULT_PATH}; a proxy before it may have it elsewhere"
            ))),
        }
    }

    /// Whether everything would travel readable over a network.
    pub fn is_exposed(&self) -> bool {
        !self.transport.is_encrypted() && !self.is_loopback()
    }

    /// What a socket is bound to: `host:port`.
    pub fn address(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// As the `Host` of a request has it: without the port that goes without saying.
    pub fn authority(&self) -> String {
        let address = self.address();
        let usual = format!(":{}", self.transport.default_port());
        match address.strip_suffix(&usual) {
            Some(host) => host.to_owned(),
            None => address,
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
            Some((scheme, rest)) => {
                let is_meant = |it: &Transport| it.scheme().eq_ignore_ascii_case(scheme);
                let transport = Transport::ALL
                    .into_iter()
                    .find(is_meant)
                    .ok_or_else(|| wrong(&format!("unknown scheme {scheme:?}; it is {SCHEMES}")))?;
                (Some(transport), rest)
            }
            None => (None, trimmed),
        };
        let (rest, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let path = path.trim_end_matches('/');
        if rest.contains(['?', '#', '@', '\\']) || rest.contains(|it: char| !is_printable(it)) {
            return Err(wrong("only a host and a port can follow the scheme"));
        }
        let (host, port) = split_port(rest).ok_or_else(|| {
            wrong("an IPv6 address with a port needs brackets, as in tcp://[::1]:7439")
        })?;
        if host.is_empty() {
            return Err(wrong("the host is missing"));
        }
        let port = port.map(|port| {
            let port = port.parse().ok().filter(|&port| port >= lowest_port);
            port.ok_or_else(|| wrong(&format!("the port is a number from {lowest_port} to 65535")))
        });
        let mut url = ServerUrl {
            transport: transport.unwrap_or(Transport::Tls),
            host: host.to_ascii_lowercase(),
            port: 0,
            path: String::new(),
        };
        if transport.is_none() && url.is_loopback() {
            url.transport = Transport::Tcp;
        }
        url.port = port.unwrap_or_else(|| Ok(url.transport.default_port()))?;
        if !url.transport.is_web() {
            return match path.is_empty() {
                true => Ok(url),
                false => Err(wrong("only a host and a port can follow the scheme")),
            };
        }
        if path.contains(['?', '#', '\\']) || path.contains(|it: char| !is_printable(it)) {
            return Err(wrong("only a path can follow host and port"));
        }
        url.path = if path.is_empty() { DEFAULT_PATH } else { path }.to_owned();
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

/// Whether a character may stand in a URL as it is.
fn is_printable(character: char) -> bool {
    character.is_ascii_graphic()
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

/// The canonical spelling: scheme, host and port, and a path that is not the usual one.
impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.transport.scheme(), self.address())?;
        match self.path == DEFAULT_PATH {
            true => Ok(()),
            false => f.write_str(&self.path),
        }
    }
}

/// The addresses at which a server, or one of a farm, can be reached, in the order in which they
/// are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrls(Vec<ServerUrl>);

/// So many addresses are tried.
const MAX_URLS: usize = 16;

impl ServerUrls {
    /// At least one.
    pub fn urls(&self) -> &[ServerUrl] {
        &self.0
    }

    /// The same, of which this one is tried first if it is among them.
    #[must_use]
    pub fn beginning_with(mut self, first: &ServerUrl) -> ServerUrls {
        if let Some(at) = self.0.iter().position(|it| it == first) {
            self.0[..=at].rotate_right(1);
        }
        self
    }
}

impl ServerUrls {
    /// The same, in the order of others if they are the same ones.
    #[must_use]
    pub fn in_the_order_of(self, others: ServerUrls) -> ServerUrls {
        let is_same =
            self.0.len() == others.0.len() && self.0.iter().all(|it| others.0.contains(it));
        if is_same { others } else { self }
    }

    /// Whether all that is sent to one of them could be read on the way.
    pub fn exposed(&self) -> Option<&ServerUrl> {
        self.0.iter().find(|it| it.is_exposed())
    }
}

impl From<ServerUrl> for ServerUrls {
    fn from(url: ServerUrl) -> ServerUrls {
        ServerUrls(vec![url])
    }
}

/// One URL or several, with commas or blanks between them.
impl FromStr for ServerUrls {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<ServerUrls, UrlError> {
        let each = text.split(|it: char| it == ',' || it.is_whitespace());
        let each = each.filter(|it| !it.is_empty()).map(str::parse);
        let urls: Vec<ServerUrl> = each.collect::<Result<_, _>>()?;
        let what = match urls.len() {
            0 => "the host is missing".to_owned(),
            1..=MAX_URLS => return Ok(ServerUrls(urls)),
            more => format!("of {more} addresses, at most {MAX_URLS} can be tried"),
        };
        Err(UrlError {
            url: text.to_owned(),
            what,
        })
    }
}

/// With a comma between two.
impl fmt::Display for ServerUrls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, url) in self.0.iter().enumerate() {
            write!(f, "{}{url}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
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
            ("https://sync.example.com", "https://sync.example.com:443"),
            ("ws://h/", "ws://h:80"),
            ("wss://h/tidewater", "wss://h:443"),
            ("https://H:8443/a/b/", "https://h:8443/a/b"),
        ] {
            assert_eq!(text.parse::<ServerUrl>().unwrap().to_string(), canonical);
        }
    }

    #[test]
    fn what_is_no_url_is_told() {
        for text in [
            "",
            "tcp://",
            "ftp://example.com",
            "https://h/a?b",
            "https://h/a b",
            "https://h/\r\nx:y",
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
        for wrong in ["127.0.0.1:7439", "http://x:1/y", "tcp://", "tcp://h:99999"] {
            assert!(ServerUrl::to_listen(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn several_addresses_are_tried_in_their_order_or_from_one_that_got_through() {
        let urls: ServerUrls = " tls://a, wss://b https://c:1 ".parse().unwrap();
        assert_eq!(urls.to_string(), "tls://a:7439,wss://b:443,https://c:1");
        let urls = urls.beginning_with(&"https://c:1".parse().unwrap());
        assert_eq!(urls.to_string(), "https://c:1,tls://a:7439,wss://b:443");
        let urls = urls.beginning_with(&"tls://elsewhere:1".parse().unwrap());
        assert_eq!(urls.urls()[0].to_string(), "https://c:1");
        let given: ServerUrls = "tls://a,wss://b,https://c:1".parse().unwrap();
        assert_eq!(given.in_the_order_of(urls.clone()), urls);
        let other: ServerUrls = "tls://a,wss://b,https://d".parse().unwrap();
        assert_eq!(other.clone().in_the_order_of(urls), other);
        for wrong in [" ", ",", "tls://a,x://b"] {
            assert!(wrong.parse::<ServerUrls>().is_err(), "{wrong:?}");
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
            ("ws://h", true),
            ("wss://h", false),
            ("http://h", true),
            ("https://h", false),
        ] {
            assert_eq!(text.parse::<ServerUrl>().unwrap().is_exposed(), exposed);
        }
    }
}
