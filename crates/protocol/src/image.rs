//! What is told of an image beside its file: an SQLite file from which new remotes begin.
//!
//! Owns the manifest, a JSON document. What its checkpoint is worth is for a server to say, which
//! has signed it together with the hash of the file.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

/// The format that this program reads and writes.
const FORMAT: u64 = 1;

/// So many digits of its hash stand in the name of an image's file.
pub const HASH_DIGITS: usize = 16;

/// Describes the file of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The name of the file, beside the manifest. It is another one for every other content.
    pub file: String,
    /// Of which centre it is, by the centre's name.
    pub centre: String,
    /// The publication that it holds.
    pub publication: String,
    /// The hash of the publication's schema.
    pub schema_hash: [u8; 32],
    /// The SHA-256 of the file.
    pub sha256: [u8; 32],
    /// The size of the file.
    pub bytes: u64,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: i64,
    /// What a new remote presents at its first sync: signed by a server for the hash of the file.
    pub checkpoint: Vec<u8>,
}

/// What was to be a manifest is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoManifest(String);

impl Manifest {
    /// The document.
    pub fn to_json(&self) -> String {
        let document = json!({
            "format": FORMAT,
            "file": self.file,
            "centre": self.centre,
            "publication": self.publication,
            "schema_hash": hex(&self.schema_hash),
            "sha256": hex(&self.sha256),
            "bytes": self.bytes,
            "created_ms": self.created_ms,
            "checkpoint": STANDARD.encode(&self.checkpoint),
        });
        format!("{document:#}\n")
    }

    /// Reads the document.
    ///
    /// # Errors
    /// It is none, or of a newer program.
    pub fn from_json(document: &[u8]) -> Result<Manifest, NoManifest> {
        let none = |what: &str| NoManifest(what.to_owned());
        let document: Map<String, Value> = serde_json::from_slice(document)
            .map_err(|error| NoManifest(format!("it is no JSON object: {error}")))?;
        let missing = |name: &str| NoManifest(format!("it says no {name}, or nonsense"));
        let text = |name: &str| {
            let value = document.get(name).and_then(Value::as_str);
            value.ok_or_else(|| missing(name))
        };
        match document.get("format").and_then(Value::as_u64) {
            Some(FORMAT) => {}
            Some(newer) => return Err(none(&format!("it has format {newer}, which is newer"))),
            None => return Err(missing("format")),
        }
        let hash = |name: &str| unhex(text(name)?).ok_or_else(|| missing(name));
        let bytes = document.get("bytes").and_then(Value::as_u64);
        let created_ms = document.get("created_ms").and_then(Value::as_i64);
        let file = text("file")?;
        if !is_file_name(file) {
            return Err(missing("file"));
        }
        Ok(Manifest {
            file: file.to_owned(),
            centre: text("centre")?.to_owned(),
            publication: text("publication")?.to_owned(),
            schema_hash: hash("schema_hash")?,
            sha256: hash("sha256")?,
            bytes: bytes.ok_or_else(|| missing("bytes"))?,
            created_ms: created_ms.ok_or_else(|| missing("created_ms"))?,
            checkpoint: STANDARD
                .decode(text("checkpoint")?)
                .map_err(|_| missing("checkpoint"))?,
        })
    }
}

/// Whether it names a file in the same folder, here and on the web.
fn is_file_name(name: &str) -> bool {
    let fits = |it: u8| it.is_ascii_alphanumeric() || b"-_.".contains(&it);
    name.bytes().all(fits) && !name.starts_with('.') && name.ends_with(".db")
}

/// Bytes in hexadecimal, small letters.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let text = text.as_bytes();
    let mut bytes = [0; 32];
    if text.len() != 64 {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.chunks(2)) {
        let digit = |at: usize| char::from(digits[at]).to_digit(16);
        *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_comes_back_and_nonsense_is_told() {
        let manifest = Manifest {
            file: "main-1.db".into(),
            centre: "c".into(),
            publication: "main".into(),
            schema_hash: [1; 32],
            sha256: [0xfe; 32],
            bytes: 7,
            created_ms: 3,
            checkpoint: vec![1, 2, 3],
        };
        let document = manifest.to_json();
        assert_eq!(Manifest::from_json(document.as_bytes()), Ok(manifest));
        for (wrong, told) in [
            ("", "no JSON"),
            ("[]", "no JSON"),
            ("{}", "format"),
            (&document.replace("\"format\": 1", "\"format\": 2"), "newer"),
            (&document.replace("main-1.db", "../1.db"), "file"),
            (&document.replace("main-1.db", ".db"), "file"),
            (&document.replace("fe", "fx"), "sha256"),
            (&document.replace("\"bytes\": 7", "\"bytes\": -7"), "bytes"),
            (&document.replace("AQID", "*"), "checkpoint"),
        ] {
            let error = Manifest::from_json(wrong.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(told), "{error}");
        }
    }
}
