//! Identities that travel on the wire: remote ids and upload ids.

use std::fmt;
use std::str::FromStr;

macro_rules! identity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub [u8; 16]);

        impl $name {
            /// Reads 16 bytes as they travel on the wire.
            pub fn from_slice(bytes: &[u8]) -> Option<Self> {
                bytes.try_into().ok().map(Self)
            }

            /// Makes a version 4 UUID out of 16 random bytes.
            pub fn from_random(mut bytes: [u8; 16]) -> Self {
                bytes[6] = (bytes[6] & 0x0f) | 0x40;
                bytes[8] = (bytes[8] & 0x3f) | 0x80;
                Self(bytes)
            }

            /// The bytes as they travel on the wire.
            pub fn to_vec(self) -> Vec<u8> {
                self.0.to_vec()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&format_uuid(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl FromStr for $name {
            type Err = NotAUuid;
            fn from_str(text: &str) -> Result<Self, NotAUuid> {
                parse_uuid(text).map(Self).ok_or(NotAUuid)
            }
        }
    };
}

identity! {
    /// The identity of one remote database, given to it by the server at its first sync.
    RemoteId
}

identity! {
    /// The random id of one upload. Together with the sequence number it tells a
    /// retry from an upload of a restored or copied remote.
    UploadId
}

/// The text is not a UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a UUID of the form xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx")]
pub struct NotAUuid;

/// Writes a UUID in its canonical form: lower case, 8-4-4-4-12.
pub fn format_uuid(bytes: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    push_uuid(bytes, &mut text);
    text
}

/// Appends the canonical form of a UUID to `text`.
pub fn push_uuid(bytes: &[u8; 16], text: &mut String) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push(HEX[usize::from(byte >> 4)] as char);
        text.push(HEX[usize::from(byte & 15)] as char);
    }
}

/// Reads a UUID in any of the usual spellings: either case, with or without
/// hyphens and braces.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let text = text.trim();
    let text = text
        .strip_prefix('{')
        .and_then(|inner| inner.strip_suffix('}'))
        .unwrap_or(text);
    let mut bytes = [0u8; 16];
    let mut nibbles = 0;
    for character in text.bytes() {
        let nibble = match character {
            b'-' => continue,
            b'0'..=b'9' => character - b'0',
            b'a'..=b'f' => character - b'a' + 10,
            b'A'..=b'F' => character - b'A' + 10,
            _ => return None,
        };
        if nibbles == 32 {
            return None;
        }
        bytes[nibbles / 2] = (bytes[nibbles / 2] << 4) | nibble;
        nibbles += 1;
    }
    (nibbles == 32).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_text_is_lower_case_and_hyphenated_whatever_was_read() {
        let canonical = "0f8fad5b-d9cb-469f-a165-70867728950e";
        for text in [
            canonical,
            "0F8FAD5B-D9CB-469F-A165-70867728950E",
            "{0f8fad5bd9cb469fa16570867728950e}",
        ] {
            assert_eq!(format_uuid(&parse_uuid(text).unwrap()), canonical);
        }
        assert_eq!(parse_uuid("0f8fad5b"), None);
        assert_eq!(parse_uuid("0f8fad5b-d9cb-469f-a165-70867728950e0"), None);
        assert_eq!(parse_uuid("zf8fad5b-d9cb-469f-a165-70867728950e"), None);
    }
}
