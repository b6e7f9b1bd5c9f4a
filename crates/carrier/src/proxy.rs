//! Proxies that stand between a client and every other machine: CONNECT of HTTP (RFC 9110).

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::str::FromStr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::BytesMut;

use crate::error::CarrierError;
use crate::handshake::Handshake;
use crate::http_response::take_head;
use crate::tcp;
use crate::url::{ServerUrl, UrlError};

/// An HTTP proxy.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    address: ServerUrl,
    /// Name and password, as they are sent.
    authorization: Option<String>,
}

impl Proxy {
    /// The proxy that the environment names for a server, if any: `HTTPS_PROXY` for what is
    /// encrypted, `HTTP_PROXY` for other servers, or `ALL_PROXY`; `NO_PROXY` has hosts and domains
    /// that are reached without, or `*`. In small letters they count first. `variable` looks one
    /// up.
    ///
    /// # Errors
    /// A variable holds no URL of a proxy.
    pub fn from_environment(
        url: &ServerUrl,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Proxy>, UrlError> {
        let either = |name: &str| {
            let small = variable(&name.to_ascii_lowercase());
            small.or_else(|| variable(name)).filter(|it| !it.is_empty())
        };
        let none = either("NO_PROXY").unwrap_or_default();
        let is_left_out = none.split(',').map(str::trim).any(|it| {
            let domain = it.trim_start_matches("*.").trim_start_matches('.');
            let ends = url.host.strip_suffix(&domain.to_ascii_lowercase());
            let is_of = ends.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
            it == "*" || (!domain.is_empty() && is_of)
        });
        if url.is_loopback() || is_left_out {
            return Ok(None);
        }
        let name = match url.transport.is_encrypted() {
            true => "HTTPS_PROXY",
            false => "HTTP_PROXY",
        };
        let found = either(name).or_else(|| either("ALL_PROXY"));
        found.map(|it| it.parse()).transpose()
    }
}

/// `http://host:port`, with `name:password@` before the host if it asks for that.
impl FromStr for Proxy {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Proxy, UrlError> {
        // A password is not for messages.
        let shown = match text.rsplit_once('@') {
            Some((_, rest)) => format!("...@{rest}"),
            None => text.to_owned(),
        };
        let wrong = |what: &str| UrlError {
            url: shown.clone(),
            what: what.to_owned(),
        };
        let rest = match text.trim().split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some(_) => return Err(wrong("a proxy is http://host:port")),
            None => text.trim(),
        };
        let (user, rest) = match rest.rsplit_once('@') {
            Some((user, rest)) => (Some(user), rest),
            None => (None, rest),
        };
        let mut address: ServerUrl = format!("tcp://{}", rest.trim_end_matches('/'))
            .parse()
            .map_err(|error: UrlError| wrong(&error.what))?;
        if !rest
            .trim_end_matches('/')
            .ends_with(&format!(":{}", address.port))
        {
            address.port = 80;
        }
        let authorization = user.map(|user| {
            let plain = percent_encoding::percent_decode_str(user).collect::<Vec<u8>>();
            format!("Basic {}", BASE64_STANDARD.encode(plain))
        });
        Ok(Proxy {
            address,
            authorization,
        })
    }
}

/// Without name and password.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.address.address())
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({self})")
    }
}

/// Has a proxy connect us with a server.
pub(crate) fn dial(
    proxy: &Proxy,
    handshake: Handshake<'_>,
    go_on: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<TcpStream, CarrierError> {
    let failed = |what: String| CarrierError::Proxy {
        proxy: proxy.to_string(),
        what,
    };
    let mut socket = tcp::dial(&proxy.address, false, handshake.timeout, go_on).map_err(
        |error| match error {
            CarrierError::Unreachable { source, .. } => failed(source.to_string()),
            error => error,
        },
    )?;
    let to = handshake.server.address();
    let mut request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n");
    if let Some(authorization) = &proxy.authorization {
        request += &format!("Proxy-Authorization: {authorization}\r\n");
    }
    request += "\r\n";
    let mut left = request.as_bytes();
    let mut buffer = BytesMut::new();
    let handle = socket
        .try_clone()
        .map_err(|error| failed(error.to_string()))?;
    let head = handshake.agree(&handle, go_on, || {
        while !left.is_empty() {
            let count = socket.write(left)?;
            left = &left[count..];
        }
        // Not a byte more than the head: what follows is the server's.
        let mut byte = [0];
        while socket.read(&mut byte)? == 1 {
            buffer.extend_from_slice(&byte);
            if !buffer.ends_with(b"\n") {
                continue;
            }
            match take_head(&mut buffer) {
                Ok(None) => {}
                Ok(Some(head)) if (100..200).contains(&head.status) => {}
                Ok(Some(head)) => return Ok(Some(head)),
                Err(what) => return Err(io::Error::other(failed(what))),
            }
        }
        Err(io::Error::new(
            ErrorKind::UnexpectedEof,
            failed("it closes the connection".into()),
        ))
    })?;
    match head.status {
        200..300 => Ok(socket),
        407 if proxy.authorization.is_none() => {
            Err(failed("it asks for a name and a password".into()))
        }
        407 => Err(failed("it does not accept this name and password".into())),
        _ => Err(failed(format!(
            "it does not connect us: {}",
            head.summary()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(url: &str, variables: &[(&str, &str)]) -> Option<String> {
        let variable = |name: &str| {
            let mut all = variables.iter();
            all.find(|(it, _)| *it == name)
                .map(|(_, value)| (*value).to_owned())
        };
        let url = url.parse().unwrap();
        Proxy::from_environment(&url, variable)
            .unwrap()
            .map(|it| it.to_string())
    }

    #[test]
    fn the_environment_says_what_servers_are_reached_through() {
        let both = [("HTTPS_PROXY", "http://p:3128"), ("HTTP_PROXY", "q")];
        assert_eq!(of("tls://h", &both).as_deref(), Some("http://p:3128"));
        assert_eq!(of("ws://h", &both).as_deref(), Some("http://q:80"));
        assert_eq!(of("tls://127.0.0.1", &both), None);
        let small = [("HTTPS_PROXY", "http://p:1"), ("https_proxy", "r:7439")];
        assert_eq!(of("wss://h", &small).as_deref(), Some("http://r:7439"));
        assert_eq!(
            of("https://h", &[("ALL_PROXY", "[::1]:9")]).as_deref(),
            Some("http://[::1]:9")
        );
        assert_eq!(of("https://h", &[("HTTPS_PROXY", "")]), None);
        for (none, is_reached) in [
            ("*", false),
            ("example.com", false),
            ("x, .example.com", false),
            ("*.EXAMPLE.com", false),
            ("ample.com", true),
            ("", true),
        ] {
            let variables = [("HTTPS_PROXY", "http://p:1"), ("NO_PROXY", none)];
            assert_eq!(
                of("tls://a.example.com", &variables).is_some(),
                is_reached,
                "{none}"
            );
        }
    }

    #[test]
    fn names_and_passwords_are_sent_and_never_shown() {
        let proxy: Proxy = "http://nancy:p%40ss@proxy:8080".parse().unwrap();
        let sent = BASE64_STANDARD.encode("nancy:p@ss");
        assert_eq!(proxy.authorization, Some(format!("Basic {sent}")));
        assert_eq!(
            format!("{proxy} {proxy:?}"),
            "http://proxy:8080 Proxy(http://proxy:8080)"
        );
        for wrong in ["socks5://h:1", "http://", "nancy:secret@h:x", "http://h/x"] {
            let error = wrong.parse::<Proxy>().unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
