//! What a remote found when it verified itself, because the server had asked for it.

use prost::Message;

/// So many tables, and so many keys of one, are told; and a name or key of no more than so many
/// bytes.
pub const MAX_VERIFIED_TABLES: usize = 100;
/// See [`MAX_VERIFIED_TABLES`].
pub const MAX_VERIFIED_KEYS: usize = 20;
/// See [`MAX_VERIFIED_TABLES`].
pub const MAX_VERIFIED_BYTES: usize = 1_000;

/// The tables that were not equal to the centre. They are by now.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct VerifiedTables {
    /// Those tables.
    #[prost(message, repeated, tag = "1")]
    pub tables: Vec<VerifiedTable>,
}

/// A table that was not equal.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct VerifiedTable {
    /// Its name.
    #[prost(string, tag = "1")]
    pub table: String,
    /// How many rows only the centre had.
    #[prost(uint64, tag = "2")]
    pub missing: u64,
    /// How many only the remote had.
    #[prost(uint64, tag = "3")]
    pub extra: u64,
    /// How many had other values.
    #[prost(uint64, tag = "4")]
    pub different: u64,
    /// The keys of the first of them, each as a JSON array.
    #[prost(string, repeated, tag = "5")]
    pub keys: Vec<String>,
}

impl VerifiedTables {
    /// As remotes keep it until the server has heard of it.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    /// Reads that; `None` if it is something else.
    pub fn from_bytes(bytes: &[u8]) -> Option<VerifiedTables> {
        VerifiedTables::decode(bytes).ok()
    }

    /// Why it is none, if so: what comes from a remote may be anything.
    pub fn fault(&self) -> Option<&'static str> {
        let is_long = |text: &String| text.len() > MAX_VERIFIED_BYTES;
        let is_wrong = |it: &VerifiedTable| {
            it.keys.len() > MAX_VERIFIED_KEYS || is_long(&it.table) || it.keys.iter().any(is_long)
        };
        match self.tables.len() > MAX_VERIFIED_TABLES || self.tables.iter().any(is_wrong) {
            true => Some("more of what it verified than can be"),
            false => None,
        }
    }
}
