//! What came into a scope and what left it since a checkpoint.
//!
//! Where the checkpoint has only a digest, the list that it stands for is in the centre. Pieces that
//! the list of now has too need not be read.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::super::connection::{StatementResult, SystemStatement};
use super::super::sql::system::scope_pieces;
use crate::error::CentreError;
use crate::scope::{Digest, HeldPartitions, HeldRule, PartitionList, Partitions, RuleScope};

type Result<T> = std::result::Result<T, CentreError>;

/// How the partitions of a rule differ from those held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleDifference {
    /// Those that came.
    pub gained: Vec<Vec<u8>>,
    /// Those that left.
    pub lost: Vec<Vec<u8>>,
}

impl RuleDifference {
    /// Whether the partitions are the same.
    pub fn is_none(&self) -> bool {
        self.gained.is_empty() && self.lost.is_empty()
    }

    fn between(held: &Partitions, now: &Partitions) -> RuleDifference {
        RuleDifference {
            gained: now.difference(held).cloned().collect(),
            lost: held.difference(now).cloned().collect(),
        }
    }
}

/// Finds out how rules differ. What it asks for has to be answered until it asks for nothing more.
pub struct ScopeDifferences<'s> {
    rules: Vec<ComparedRule<'s>>,
    lists: HashMap<Digest, PartitionList>,
    /// Contents by their digests; `None` for what the centre does not have any more.
    known: BTreeMap<Digest, Option<Vec<u8>>>,
    asked: Vec<Digest>,
}

struct ComparedRule<'s> {
    now: &'s RuleScope,
    held: Option<&'s HeldRule>,
    /// The digest of the partitions of now, if those held are one.
    digest: Option<Digest>,
}

impl<'s> ScopeDifferences<'s> {
    /// Of what a user has now by each rule from what is held; `None` for a rule of which nothing
    /// is known.
    pub fn new(
        rules: impl Iterator<Item = (&'s RuleScope, Option<&'s HeldRule>)>,
    ) -> ScopeDifferences<'s> {
        let mut lists: HashMap<Digest, PartitionList> = HashMap::new();
        // Rules that follow the same table share their partitions.
        let mut made: HashMap<*const Partitions, Digest> = HashMap::new();
        let rules = rules.map(|(now, held)| {
            let is_digest =
                held.is_some_and(|it| matches!(it.partitions, HeldPartitions::Digest(_)));
            let digest = is_digest.then(|| {
                let partitions = std::sync::Arc::as_ptr(&now.partitions);
                *made.entry(partitions).or_insert_with(|| {
                    let list = PartitionList::from_partitions(&now.partitions);
                    let digest = list.digest;
                    lists.insert(digest, list);
                    digest
                })
            });
            ComparedRule { now, held, digest }
        });
        let rules = rules.collect();
        ScopeDifferences {
            rules,
            lists,
            known: BTreeMap::new(),
            asked: Vec::new(),
        }
    }

    /// What has to be read next.
    pub fn ask(&mut self) -> Vec<SystemStatement> {
        let mut wanted = BTreeSet::new();
        for rule in &self.rules {
            let (Some(now), Some(held)) = (rule.digest, rule.held) else {
                continue;
            };
            let HeldPartitions::Digest(held) = held.partitions else {
                continue;
            };
            if held == now {
                continue;
            }
            match self.known.get(&held) {
                None => drop(wanted.insert(held)),
                Some(root) => {
                    let pieces = root
                        .as_deref()
                        .and_then(PartitionList::digests)
                        .unwrap_or_default();
                    let has = self.pieces_of(now);
                    let missing = pieces.into_iter().filter(|it| !has.contains(it));
                    wanted.extend(missing.filter(|it| !self.known.contains_key(it)));
                }
            }
        }
        self.asked = wanted.into_iter().collect();
        self.asked.iter().map(scope_pieces::read).collect()
    }

    /// Takes the answers, in their order.
    ///
    /// # Errors
    /// One is none.
    pub fn answer(&mut self, answers: &[StatementResult]) -> Result<()> {
        for (digest, answer) in std::mem::take(&mut self.asked).into_iter().zip(answers) {
            let row = answer.rows.first();
            let content = row.map(|row| row.get(0)).transpose()?;
            self.known.insert(digest, content);
        }
        Ok(())
    }

    /// By rule how it differs; `None` where nobody knows what is held.
    pub fn found(&self) -> Vec<Option<RuleDifference>> {
        self.rules.iter().map(|rule| self.one(rule)).collect()
    }

    fn one(&self, rule: &ComparedRule<'_>) -> Option<RuleDifference> {
        let now = &rule.now.partitions;
        let digest = match &rule.held?.partitions {
            HeldPartitions::Listed(held) => return Some(RuleDifference::between(held, now)),
            HeldPartitions::Digest(digest) => *digest,
        };
        let own = rule.digest?;
        if own == digest {
            return Some(RuleDifference::default());
        }
        let pieces = PartitionList::digests(self.known.get(&digest)?.as_deref()?)?;
        let own_pieces = self.pieces_of(own);
        let held_pieces: HashSet<&Digest> = pieces.iter().collect();
        let mut held = Partitions::new();
        for piece in pieces.iter().filter(|it| !own_pieces.contains(*it)) {
            held.extend(PartitionList::partitions(
                self.known.get(piece)?.as_deref()?,
            )?);
        }
        let mut here = Partitions::new();
        let list = self.lists.get(&own)?;
        for piece in list
            .pieces
            .iter()
            .filter(|it| !held_pieces.contains(&it.digest))
        {
            here.extend(PartitionList::partitions(&piece.content)?);
        }
        Some(RuleDifference::between(&held, &here))
    }

    fn pieces_of(&self, list: Digest) -> HashSet<Digest> {
        let pieces = self.lists.get(&list).into_iter().flat_map(|it| &it.pieces);
        pieces.map(|piece| piece.digest).collect()
    }
}

/// What keeps the lists of a scope in the centre, for checkpoints that have only their digests.
pub fn keep(rules: &[RuleScope], now_ms: i64) -> Vec<SystemStatement> {
    let mut kept: HashSet<Digest> = HashSet::new();
    let mut statements = Vec::new();
    let mut seen: HashSet<*const Partitions> = HashSet::new();
    for rule in rules {
        let is_new = seen.insert(std::sync::Arc::as_ptr(&rule.partitions));
        if !is_new || !matches!(rule.held().partitions, HeldPartitions::Digest(_)) {
            continue;
        }
        let list = PartitionList::from_partitions(&rule.partitions);
        let root = (list.digest, list.content());
        let pieces = list.pieces.into_iter().map(|it| (it.digest, it.content));
        for (digest, content) in pieces.chain([root]) {
            if kept.insert(digest) {
                statements.push(scope_pieces::save(&digest, now_ms, &content));
            }
        }
    }
    statements
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::connection::ResultRow;
    use tidewater_protocol::Value;

    fn scope(numbers: std::ops::Range<u32>) -> RuleScope {
        RuleScope {
            partitions: Arc::new(numbers.map(|it| it.to_be_bytes().to_vec()).collect()),
            lows: Vec::new(),
        }
    }

    /// The difference, and how many contents were read for it.
    fn difference(held: &RuleScope, now: &RuleScope) -> (Option<RuleDifference>, usize) {
        let kept = keep(std::slice::from_ref(held), 1);
        let handed_out = held.held();
        let mut differences = ScopeDifferences::new([(now, Some(&handed_out))].into_iter());
        let mut read = 0;
        loop {
            let asked = differences.ask();
            if asked.is_empty() {
                return (differences.found().remove(0), read);
            }
            read += asked.len();
            let answers = asked.iter().map(|own| {
                let mut found = kept
                    .iter()
                    .filter(|it| it.parameters[0] == own.parameters[0]);
                let rows = found
                    .next()
                    .map(|it| ResultRow(vec![it.parameters[2].clone()]));
                StatementResult {
                    rows: rows.into_iter().collect(),
                    changed: 0,
                }
            });
            differences.answer(&answers.collect::<Vec<_>>()).unwrap();
        }
    }

    #[test]
    fn a_difference_is_found_whatever_the_number_of_partitions() {
        let sizes = [0, 1, 3, 700, 5_000, 20_000];
        for held in sizes {
            for now in sizes {
                let (found, read) = difference(&scope(0..held), &scope(1..now + 1));
                let found = found.unwrap();
                let gained: Vec<Vec<u8>> = (held.max(1)..now + 1)
                    .map(|it| it.to_be_bytes().to_vec())
                    .collect();
                assert_eq!(found.gained, gained, "{held} {now}");
                let lost = (0..held).filter(|it| !(1..now + 1).contains(it));
                let lost: Vec<_> = lost.map(|it| it.to_be_bytes().to_vec()).collect();
                assert_eq!(found.lost, lost, "{held} {now}");
                if held == now && held == 20_000 {
                    assert!(read <= 3, "{read} contents were read");
                }
            }
        }
    }

    #[test]
    fn what_is_not_kept_any_more_is_not_guessed() {
        let (held, now) = (scope(0..5_000).held(), scope(0..5_001));
        let mut differences = ScopeDifferences::new([(&now, Some(&held))].into_iter());
        let asked = differences.ask();
        assert_eq!(asked.len(), 1);
        differences.answer(&[StatementResult::default()]).unwrap();
        assert!(differences.ask().is_empty());
        assert_eq!(differences.found(), [None]);
        assert!(matches!(asked[0].parameters[0], Value::Blob(_)));
    }
}
