//! Addresses of others on the web, at which this server asks or tells something.

use tidewater_carrier::ServerUrl;

/// An `http://` or `https://` address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebAddress {
    /// As it was written.
    pub url: String,
    /// The part of it that is a server.
    pub host: ServerUrl,
    /// And the rest.
    pub path: String,
}

/// What is wrong with an address, as the end of a sentence, and what to write.
pub(crate) type AddressObjection = (&'static str, &'static str);

impl WebAddress {
    /// Reads one. Without encryption it has to be on this machine, unless that is allowed.
    ///
    /// # Errors
    /// It is none.
    pub fn read(url: &str, insecure: bool) -> Result<WebAddress, AddressObjection> {
        let hint = "write https://HOST/PATH";
        let (scheme, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(rest), _) => ("https", rest),
            (_, Some(rest)) => ("http", rest),
            _ => return Err(("does not begin with https:// or http://", hint)),
        };
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, format!("/{path}")),
            None => (rest, "/".to_owned()),
        };
        let host = ServerUrl::to_listen(&format!("{scheme}://{authority}"));
        let host = host.map_err(|_| ("names no host", hint))?;
        if !path.chars().all(|it| it.is_ascii_graphic()) {
            return Err(("has a path that can be none", hint));
        }
        if host.is_exposed() && !insecure {
            let hint = "write https://, or insecure = true under [server]";
            return Err(("would have everything sent unencrypted", hint));
        }
        Ok(WebAddress {
            url: url.to_owned(),
            host,
            path,
        })
    }
}
