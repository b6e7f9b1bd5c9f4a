//! The cookies of a site, by which a balancer sends every request to the same server.

use crate::http_response::ResponseHead;

/// What a site has set, whatever it says about where and how long.
#[derive(Debug, Default)]
pub(crate) struct CookieJar(Vec<(String, String)>);

impl CookieJar {
    /// Takes what an answer sets.
    pub(crate) fn take(&mut self, head: &ResponseHead) {
        for cookie in head.all("set-cookie") {
            let pair = cookie.split(';').next().unwrap_or_default();
            let Some((name, value)) = pair.split_once('=') else {
                continue;
            };
            let (name, value) = (name.trim().to_owned(), value.trim().to_owned());
            self.0.retain(|(it, _)| *it != name);
            self.0.push((name, value));
        }
    }

    /// The value of a request's header `cookie`, if there is one.
    pub(crate) fn header(&self) -> Option<String> {
        let pairs = self.0.iter().map(|(name, value)| format!("{name}={value}"));
        let pairs = pairs.collect::<Vec<_>>().join("; ");
        (!pairs.is_empty()).then_some(pairs)
    }
}
