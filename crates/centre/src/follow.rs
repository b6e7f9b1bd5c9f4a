//! Following what is committed: whom it concerns, so that they sync by themselves.
//!
//! An [`Interest`] stands for what a remote may hold by one rule: the rows of one partition, or all
//! that the rule gives. What a remote holds ([`RemoteHolding`]) and what was touched since a position
//! ([`FollowedCommits`]) are told in the same terms. Both are exact by rule and partition. Windows do not
//! count: a row beyond them touches its partition as well. What an upload changes, it touches.
//!
//! Of tables that the queries for partitions read it is told that they were written to, and the
//! queries are asked for who holds other partitions now.
//!
//! Not seen are: time, by which rows leave windows; and tables that are not tracked.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::context::SyncContext;
use crate::scope::Partitions;

/// Stands for the rows of a rule, all of them or those of a partition. The same for as long as the
/// rule is deployed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interest(pub u64);

impl Interest {
    /// All rows of the rule with this number.
    pub(crate) fn all_of(rule: i64) -> Interest {
        Interest(hash(rule, 0, &[]))
    }

    /// Those of a partition.
    pub(crate) fn for_partition(rule: i64, partition: &[u8]) -> Interest {
        Interest(hash(rule, 1, partition))
    }
}

/// FNV-1a, whose bits are mixed once more at the end.
fn hash(rule: i64, kind: u8, partition: &[u8]) -> u64 {
    let rule = rule.to_le_bytes();
    let bytes = rule.iter().chain([&kind]).chain(partition);
    let mut hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// What a remote holds of a publication: the partitions by each rule.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RemoteHolding {
    pub(crate) rules: Vec<(i64, Arc<Partitions>)>,
}

impl RemoteHolding {
    /// What of everything that is touched concerns the remote.
    pub fn interests(&self) -> Vec<Interest> {
        let rules = self.rules.iter().flat_map(|(rule, partitions)| {
            let each = partitions
                .iter()
                .map(|it| Interest::for_partition(*rule, it));
            each.chain([Interest::all_of(*rule)])
        });
        rules.collect()
    }
}

/// How far the commits of the database have been followed, in its own terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowPosition(pub(crate) Vec<u8>);

/// What was committed since a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowedCommits {
    /// From where to follow on.
    pub position: FollowPosition,
    /// What was touched, each once. Whoever has one of these has something to fetch.
    pub touched: BTreeSet<Interest>,
    /// Whether a table was written to that partition queries read, so that users may hold other
    /// partitions: [`crate::Worker::holdings_now`] tells.
    pub scopes: bool,
}

/// Of whom it is asked what he holds now.
#[derive(Clone, Debug)]
pub struct HoldingRequest {
    /// Who that is, as of the last sync.
    pub context: Arc<SyncContext>,
    /// The publications.
    pub publications: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interests_tell_rules_and_partitions_apart() {
        let all: BTreeSet<Interest> = (0..100i64)
            .flat_map(|rule| {
                let each =
                    (0..100u32).map(move |it| Interest::for_partition(rule, &it.to_be_bytes()));
                each.chain([Interest::all_of(rule), Interest::for_partition(rule, &[])])
            })
            .collect();
        assert_eq!(all.len(), 100 * 102);
    }

    #[test]
    fn a_holding_concerns_its_partitions_and_what_concerns_everybody() {
        let partitions = Arc::new(Partitions::from([b"a".to_vec(), b"b".to_vec()]));
        let holding = RemoteHolding {
            rules: vec![(3, partitions), (4, Arc::default())],
        };
        let interests = holding.interests();
        assert_eq!(interests.len(), 4);
        assert!(interests.contains(&Interest::for_partition(3, b"b")));
        assert!(interests.contains(&Interest::all_of(4)));
        assert!(!interests.contains(&Interest::for_partition(4, b"b")));
    }
}
