//! What a remote holds: its partitions and its watermark.
//!
//! The server hands both to the remote for safekeeping in one signed *checkpoint*. Few partitions
//! are in it as they are, of many only a digest: their list is kept in the centre, in pieces that
//! are known by their own digests, so that of a list that changed only some pieces are new.
//! Here is what that looks like; signing is the server's affair.

use std::collections::BTreeSet;
use std::sync::Arc;

use prost::Message;
use sha2::{Digest as _, Sha256};

/// Partitions: the values of a rule's partition columns, packed by
/// [`tidewater_protocol::pack::pack_values`].
pub type Partitions = BTreeSet<Vec<u8>>;

/// What a user holds of one publication now: by each of its rules, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Scope {
    /// One for each rule.
    pub rules: Vec<RuleScope>,
    /// What may be written of each table that has a rule for that, by the tables of the
    /// publication; empty where nothing is to be written.
    pub writes: Vec<RuleScope>,
    /// The rank of the user by the tables of the publication, where conflicts go by it and it is
    /// asked who may write; a user may have none.
    pub ranks: Vec<Option<i64>>,
}

/// What a user holds by one rule.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RuleScope {
    /// The partitions; none for a rule that gives everybody the same.
    pub partitions: Arc<Partitions>,
    /// Where the rule's windows begin, in the terms of their columns (days, microseconds, numbers).
    pub lows: Vec<i64>,
}

/// Stands for bytes.
pub type Digest = [u8; 16];

/// What a checkpoint says that a remote holds by one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldRule {
    /// The partitions.
    pub partitions: HeldPartitions,
    /// As in [`RuleScope`].
    pub lows: Vec<i64>,
}

/// Partitions that were handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeldPartitions {
    /// These.
    Listed(Arc<Partitions>),
    /// Those of the [`PartitionList`] with this digest.
    Digest(Digest),
}

/// So many bytes of partitions are in a checkpoint as they are; what is longer is a digest.
const LISTED_BYTES: usize = 512;

/// About so many partitions are in a piece of a list.
const PIECE: usize = 512;

/// Partitions as they are kept in the centre.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionList {
    /// Of the digests of the pieces.
    pub digest: Digest,
    /// The pieces, by what their partitions have in common.
    pub pieces: Vec<PartitionListPiece>,
}

/// A part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionListPiece {
    /// Of the content.
    pub digest: Digest,
    /// The partitions, encoded.
    pub content: Vec<u8>,
}

/// What a remote presents at its next sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The number under which the server issued this scope to this subscription. It
    /// changes only when the scope changes.
    pub serial: u64,
    /// The adapter's own encoding of its watermark and mark.
    pub watermark: Vec<u8>,
    /// What is held by each rule.
    pub rules: Vec<HeldRule>,
}

#[derive(Clone, PartialEq, Message)]
struct WireCheckpoint {
    #[prost(uint64, tag = "1")]
    serial: u64,
    #[prost(bytes = "vec", tag = "2")]
    watermark: Vec<u8>,
    /// The different sets of partitions.
    #[prost(message, repeated, tag = "3")]
    sets: Vec<WirePartitions>,
    #[prost(message, repeated, tag = "4")]
    rules: Vec<WireRule>,
}

#[derive(Clone, PartialEq, Message)]
struct WirePartitions {
    #[prost(bytes = "vec", repeated, tag = "1")]
    values: Vec<Vec<u8>>,
    #[prost(bytes = "vec", tag = "2")]
    digest: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct WireRule {
    /// Which of the sets.
    #[prost(uint32, tag = "1")]
    set: u32,
    #[prost(sint64, repeated, tag = "2")]
    lows: Vec<i64>,
}

pub(crate) fn digest(bytes: &[u8]) -> Digest {
    let mut digest = Digest::default();
    digest.copy_from_slice(&Sha256::digest(bytes)[..16]);
    digest
}

impl RuleScope {
    /// What is handed out.
    pub fn held(&self) -> HeldRule {
        let bytes: usize = self.partitions.iter().map(|it| it.len() + 2).sum();
        HeldRule {
            partitions: match bytes <= LISTED_BYTES {
                true => HeldPartitions::Listed(self.partitions.clone()),
                false => {
                    HeldPartitions::Digest(PartitionList::from_partitions(&self.partitions).digest)
                }
            },
            lows: self.lows.clone(),
        }
    }
}

impl PartitionList {
    /// The list of some partitions.
    pub fn from_partitions(partitions: &Partitions) -> PartitionList {
        let count = (partitions.len() / PIECE).next_power_of_two();
        let mut parts: Vec<WirePartitions> = vec![WirePartitions::default(); count];
        for partition in partitions {
            let place = mix(partition) as usize % count;
            parts[place].values.push(partition.clone());
        }
        let pieces = parts.into_iter().map(|part| {
            let content = part.encode_to_vec();
            let digest = digest(&content);
            PartitionListPiece { digest, content }
        });
        let pieces: Vec<PartitionListPiece> = pieces.collect();
        PartitionList {
            digest: digest(&PartitionList::contents(pieces.iter().map(|it| it.digest))),
            pieces,
        }
    }

    /// What is kept for the list as a whole: the digests of its pieces.
    pub fn content(&self) -> Vec<u8> {
        PartitionList::contents(self.pieces.iter().map(|it| it.digest))
    }

    fn contents(digests: impl Iterator<Item = Digest>) -> Vec<u8> {
        digests.flatten().collect()
    }

    /// Reads [`Self::content`]; `None` if it is none.
    pub fn digests(content: &[u8]) -> Option<Vec<Digest>> {
        let digests = content.chunks(16).map(|it| it.try_into().ok());
        digests.collect()
    }

    /// Reads a piece's content; `None` if it is none.
    pub fn partitions(content: &[u8]) -> Option<Vec<Vec<u8>>> {
        Some(WirePartitions::decode(content).ok()?.values)
    }
}

/// Spreads partitions over pieces (FNV-1a).
fn mix(bytes: &[u8]) -> u64 {
    let mixed = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mixed ^ (mixed >> 32)
}

impl Checkpoint {
    /// Up to where the remote has what a handler tells of a table, in the handler's own terms.
    pub fn cursor(&self, table: &str) -> Option<Vec<u8>> {
        let watermark = crate::watermark::Watermark::read(&self.watermark)?;
        let mut cursors = watermark.cursors.into_iter();
        cursors.find(|it| it.table == table).map(|it| it.cursor)
    }

    /// The bytes that the server signs.
    pub fn encode(&self) -> Vec<u8> {
        let mut sets: Vec<&HeldPartitions> = Vec::new();
        let rules = self.rules.iter().map(|rule| {
            let found = sets.iter().position(|set| **set == rule.partitions);
            let set = found.unwrap_or_else(|| {
                sets.push(&rule.partitions);
                sets.len() - 1
            });
            WireRule {
                set: set as u32,
                lows: rule.lows.clone(),
            }
        });
        let rules = rules.collect();
        WireCheckpoint {
            serial: self.serial,
            watermark: self.watermark.clone(),
            sets: sets.into_iter().map(HeldPartitions::wire).collect(),
            rules,
        }
        .encode_to_vec()
    }

    /// Reads what [`Self::encode`] wrote; `None` if it is something else.
    pub fn decode(bytes: &[u8]) -> Option<Checkpoint> {
        let wire = WireCheckpoint::decode(bytes).ok()?;
        let sets: Option<Vec<HeldPartitions>> =
            wire.sets.into_iter().map(HeldPartitions::read).collect();
        let sets = sets?;
        let rules = wire.rules.into_iter().map(|rule| {
            Some(HeldRule {
                partitions: sets.get(rule.set as usize)?.clone(),
                lows: rule.lows,
            })
        });
        Some(Checkpoint {
            serial: wire.serial,
            watermark: wire.watermark,
            rules: rules.collect::<Option<_>>()?,
        })
    }
}

impl HeldPartitions {
    fn wire(&self) -> WirePartitions {
        match self {
            HeldPartitions::Listed(partitions) => WirePartitions {
                values: partitions.iter().cloned().collect(),
                digest: Vec::new(),
            },
            HeldPartitions::Digest(digest) => WirePartitions {
                values: Vec::new(),
                digest: digest.to_vec(),
            },
        }
    }

    fn read(wire: WirePartitions) -> Option<HeldPartitions> {
        Some(match wire.digest.is_empty() {
            true => HeldPartitions::Listed(Arc::new(wire.values.into_iter().collect())),
            false => HeldPartitions::Digest(wire.digest.try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partitions(numbers: std::ops::Range<u32>) -> Arc<Partitions> {
        Arc::new(numbers.map(|it| it.to_be_bytes().to_vec()).collect())
    }

    fn held(partitions: &Arc<Partitions>) -> HeldRule {
        RuleScope {
            partitions: partitions.clone(),
            lows: vec![7],
        }
        .held()
    }

    #[test]
    fn a_checkpoint_comes_back() {
        let few = held(&partitions(0..2));
        let checkpoint = Checkpoint {
            serial: 3,
            watermark: b"731:731:".to_vec(),
            rules: vec![few.clone(), held(&partitions(0..0)), few],
        };
        assert_eq!(Checkpoint::decode(&checkpoint.encode()), Some(checkpoint));
        assert_eq!(Checkpoint::decode(b"\xff\xff"), None);
    }

    #[test]
    fn a_checkpoint_with_many_partitions_is_short() {
        let many = held(&partitions(0..100_000));
        let checkpoint = Checkpoint {
            serial: 3,
            watermark: Vec::new(),
            rules: vec![many; 20],
        };
        assert!(checkpoint.encode().len() < 256);
        assert_eq!(Checkpoint::decode(&checkpoint.encode()), Some(checkpoint));
    }

    #[test]
    fn of_a_list_that_changed_by_one_partition_one_piece_is_new() {
        let (before, after) = (
            PartitionList::from_partitions(&partitions(0..20_000)),
            PartitionList::from_partitions(&partitions(0..20_001)),
        );
        assert_ne!(before.digest, after.digest);
        let new = after.pieces.iter().filter(|it| !before.pieces.contains(it));
        assert_eq!(new.count(), 1);
        let digests = PartitionList::digests(&after.content()).unwrap();
        assert_eq!(digests.len(), after.pieces.len());
        let found = after
            .pieces
            .iter()
            .map(|it| PartitionList::partitions(&it.content).unwrap());
        let found: Partitions = found.flatten().collect();
        assert_eq!(found, *partitions(0..20_001));
    }
}
