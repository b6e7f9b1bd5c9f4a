//! What a remote holds: its partitions and its watermark.
//!
//! The server hands both to the remote for safekeeping in one signed *checkpoint*.
//! Here is its content and its encoding; signing is the server's affair.

use prost::Message;

use std::collections::BTreeSet;

/// The partitions that a remote holds of one publication.
///
/// One set per table of the publication, in the order of its schema; each element
/// is the partition columns' values packed by
/// [`tidewater_protocol::pack::pack_values`]. The set of a table that everyone
/// holds is empty.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Scope {
    /// One set per table.
    pub tables: Vec<BTreeSet<Vec<u8>>>,
}

/// What a remote presents at its next sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The number under which the server issued this scope to this subscription. It
    /// changes only when the scope changes.
    pub serial: u64,
    /// The adapter's own encoding of its watermark and mark.
    pub watermark: Vec<u8>,
    /// The partitions held.
    pub scope: Scope,
}

#[derive(Clone, PartialEq, Message)]
struct WireCheckpoint {
    #[prost(uint64, tag = "1")]
    serial: u64,
    #[prost(bytes = "vec", tag = "2")]
    watermark: Vec<u8>,
    #[prost(message, repeated, tag = "3")]
    tables: Vec<WirePartitions>,
}

#[derive(Clone, PartialEq, Message)]
struct WirePartitions {
    #[prost(bytes = "vec", repeated, tag = "1")]
    values: Vec<Vec<u8>>,
}

impl Checkpoint {
    /// The bytes that the server signs.
    pub fn encode(&self) -> Vec<u8> {
        WireCheckpoint {
            serial: self.serial,
            watermark: self.watermark.clone(),
            tables: self
                .scope
                .tables
                .iter()
                .map(|values| WirePartitions {
                    values: values.iter().cloned().collect(),
                })
                .collect(),
        }
        .encode_to_vec()
    }

    /// Reads what [`Self::encode`] wrote; `None` if it is something else.
    pub fn decode(bytes: &[u8]) -> Option<Checkpoint> {
        let wire = WireCheckpoint::decode(bytes).ok()?;
        let tables = wire.tables.into_iter();
        Some(Checkpoint {
            serial: wire.serial,
            watermark: wire.watermark,
            scope: Scope {
                tables: tables
                    .map(|table| table.values.into_iter().collect())
                    .collect(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_comes_back() {
        let checkpoint = Checkpoint {
            serial: 3,
            watermark: b"731:731:".to_vec(),
            scope: Scope {
                tables: vec![BTreeSet::from([vec![1], vec![2, 3]]), BTreeSet::new()],
            },
        };
        assert_eq!(Checkpoint::decode(&checkpoint.encode()), Some(checkpoint));
        assert_eq!(Checkpoint::decode(b"\xff\xff"), None);
    }
}
