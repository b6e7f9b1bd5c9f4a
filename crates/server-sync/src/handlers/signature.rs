//! What a handler knows its server by: requests are signed, with the time.
//!
//! The signature is HMAC-SHA256 over the time, a full stop and the body, in hexadecimal digits.
//! With two secrets there are two of them, of which the handler needs to know one.

use std::fmt::Write;

use tidewater_carrier::cryptography::hmac;

use tidewater_server_config::{ConfigError, HandlerSecret};
use tidewater_server_jobs::error::ServerError;

/// Seconds since 1970.
pub(crate) const TIMESTAMP: &str = "tidewater-timestamp";
pub(crate) const SIGNATURE: &str = "tidewater-signature";

/// Signs requests.
pub(crate) struct RequestSigner(Vec<hmac::Key>);

impl RequestSigner {
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn new(secrets: &[HandlerSecret]) -> Result<RequestSigner, ServerError> {
        let keys = secrets.iter().map(|secret| {
            let secret = match secret {
                HandlerSecret::Text(text) => text.clone(),
                HandlerSecret::File(path) => {
                    let read = std::fs::read_to_string(path);
                    let read = read.map_err(|source| ConfigError::File {
                        what: "secret of a handler",
                        path: path.display().to_string(),
                        source,
                    })?;
                    read.trim_end_matches(['\r', '\n']).to_owned()
                }
            };
            Ok(hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()))
        });
        keys.collect::<Result<_, _>>().map(RequestSigner)
    }

    /// The headers of a request.
    pub(crate) fn headers(&self, now_ms: i64, body: &[u8]) -> Vec<(&'static str, String)> {
        let timestamp = (now_ms / 1_000).to_string();
        let signatures = self.0.iter().map(|key| {
            let mut context = hmac::Context::with_key(key);
            context.update(timestamp.as_bytes());
            context.update(b".");
            context.update(body);
            format!("v1={}", hex(context.sign().as_ref()))
        });
        let signatures: Vec<String> = signatures.collect();
        let mut headers = vec![(TIMESTAMP, timestamp)];
        if !signatures.is_empty() {
            headers.push((SIGNATURE, signatures.join(",")));
        }
        headers
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_and_body_are_signed_with_each_secret() {
        let signer = RequestSigner::new(&[
            HandlerSecret::Text("new".into()),
            HandlerSecret::Text("old".into()),
        ]);
        let headers = signer.unwrap().headers(1_700_000_000_123, b"{}");
        assert_eq!(headers[0], (TIMESTAMP, "1700000000".to_owned()));
        // printf '1700000000.{}' | openssl dgst -sha256 -hmac new
        let expected = "v1=29810abc729e7b7322b3ce2c7456a99bca762870c031aa43455fd67b43aab3c0,v1=2b5e6fc3cac3432cb8a3476c75510114966afb97256d20b9198872431b7ceca6";
        assert_eq!(headers[1], (SIGNATURE, expected.to_owned()));
        let unsigned = RequestSigner::new(&[]).unwrap().headers(0, b"");
        assert_eq!(unsigned.len(), 1);
    }
}
