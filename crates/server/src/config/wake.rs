//! `[[wake]]`: where to tell who is not connected and has something to fetch, as it is configured.

use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;

use tidewater_carrier::ServerUrl;

use crate::error::ServerError;
use crate::listener::names_port;

/// An address of the operator's.
#[derive(Clone, PartialEq, Eq)]
pub struct WakeConfig {
    /// As it was written.
    pub url: String,
    /// The part of it that is a server.
    pub host: ServerUrl,
    /// And the rest.
    pub path: String,
    /// What it is told to let us in.
    pub token: Option<String>,
    /// A PEM file with the authorities to trust, instead of public ones.
    pub ca: Option<PathBuf>,
    /// Only what concerns these; `None`: all.
    pub publications: Option<Vec<String>>,
}

/// The token is a secret.
impl fmt::Debug for WakeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakeConfig")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
pub(super) struct RawWake {
    url: Option<String>,
    token: Option<String>,
    ca: Option<PathBuf>,
    publications: Option<Vec<String>>,
}

impl RawWake {
    pub(super) fn read(
        self,
        insecure: bool,
        published: &[&str],
    ) -> Result<WakeConfig, ServerError> {
        let wrong = |what: &str, hint: &str| {
            let url = self.url.as_deref().unwrap_or_default();
            ServerError::configuration(format!("wake.url {url:?} {what}"), hint)
        };
        let hint = "write url = \"https://push.example.com/wake\"";
        let url = self.url.as_deref().unwrap_or_default();
        let (scheme, rest, port) = match (url.strip_prefix("https://"), url.strip_prefix("http://"))
        {
            (Some(rest), _) => ("tls", rest, 443),
            (_, Some(rest)) => ("tcp", rest, 80),
            _ => return Err(wrong("does not begin with https:// or http://", hint)),
        };
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, format!("/{path}")),
            None => (rest, "/".to_owned()),
        };
        let host = ServerUrl::to_listen(&format!("{scheme}://{authority}"));
        let mut host = host.map_err(|_| wrong("names no host", hint))?;
        if !names_port(authority, &host) {
            host.port = port;
        }
        if !path.chars().all(|it| it.is_ascii_graphic()) {
            return Err(wrong("has a path that can be none", hint));
        }
        if host.is_exposed() && !insecure {
            let hint = "write https://, or insecure = true under [server]";
            return Err(wrong("would send what it tells unencrypted", hint));
        }
        let is_plain = |it: &String| it.chars().all(|it| it.is_ascii_graphic());
        if self.token.as_ref().is_some_and(|it| !is_plain(it)) {
            return Err(ServerError::configuration(
                "wake.token has characters that cannot be in a header",
                "write what the address expects behind Authorization: Bearer",
            ));
        }
        let mut publications = self.publications.iter().flatten();
        let unknown = publications.find(|it| !published.contains(&it.as_str()));
        // A configuration without publications is of a server that serves what others deploy.
        if let Some(unknown) = unknown.filter(|_| !published.is_empty()) {
            return Err(super::raw::choice("wake.publications", unknown, published));
        }
        Ok(WakeConfig {
            url: url.to_owned(),
            host,
            path,
            token: self.token,
            ca: self.ca,
            publications: self.publications,
        })
    }
}
