//! What stands in place of a password: a token of an identity provider, or a certificate.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

pub use tidewater_carrier::ClientCertificate;
use tidewater_connection::device::DeviceError;
use tidewater_protocol::message::{MAX_BEARER_BYTES, bearer_too_long};

/// A token of an identity provider (a JWT).
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BearerToken {
    /// The token.
    Token(String),
    /// A file that holds it, and is read each time that it is wanted: whoever fetches tokens
    /// replaces it before the one in it runs out.
    File(PathBuf),
}

/// A token is not for logs.
impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BearerToken::Token(_) => f.write_str("Token"),
            BearerToken::File(file) => f.debug_tuple("File").field(file).finish(),
        }
    }
}

impl BearerToken {
    /// The token as it is now.
    ///
    /// # Errors
    /// There is none in the file.
    pub fn read(&self) -> Result<String, DeviceError> {
        let (text, from) = match self {
            BearerToken::Token(token) => (token.clone(), None),
            BearerToken::File(file) => (read(file)?, Some(file.display().to_string())),
        };
        let token = text.trim();
        if token.is_empty() || token.contains(char::is_whitespace) {
            let from = from.as_deref().unwrap_or("it");
            return Err(unusable(format!("{from} holds no token")));
        }
        match token.len() > MAX_BEARER_BYTES {
            true => Err(unusable(match from {
                Some(file) => format!("{file}: {}", bearer_too_long(token.len())),
                None => bearer_too_long(token.len()),
            })),
            false => Ok(token.to_owned()),
        }
    }
}

fn read(file: &Path) -> Result<String, DeviceError> {
    let mut text = String::new();
    // Whatever is in it, no more is read than tells that it is too long.
    let read = std::fs::File::open(file).and_then(|it| {
        it.take(2 * MAX_BEARER_BYTES as u64)
            .read_to_string(&mut text)
    });
    match read {
        Ok(_) => Ok(text),
        Err(error) => Err(unusable(format!("{}: {error}", file.display()))),
    }
}

fn unusable(what: String) -> DeviceError {
    DeviceError::Usage {
        what: format!("the token cannot be read: {what}"),
        hint: "write the token that the identity provider gave into the file, in one line".into(),
    }
}
