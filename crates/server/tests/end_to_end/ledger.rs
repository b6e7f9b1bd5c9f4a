//! A ledger of what a remote's application committed, and what became of each change.
//!
//! Works on worlds with an audit. Every change carries a text of its own (or deletes a key
//! that is never used again), so that it can be told from all others.

use std::collections::HashMap;

use crate::backend::Backend;
use crate::device::Device;
use crate::world::World;

/// A committed local change.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) table: &'static str,
    /// The key column.
    pub(crate) key_column: &'static str,
    pub(crate) key: i64,
    pub(crate) operation: &'static str,
    /// The text that the row got; empty for deletes.
    pub(crate) text: String,
}

/// Where a change is, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fate {
    applied: usize,
    conflicts: usize,
    refused: usize,
    /// The remote knows of the refusal.
    refused_here: bool,
    pending: bool,
}

impl Fate {
    fn decided(self) -> usize {
        self.applied + self.conflicts + self.refused
    }
}

/// Every change that the application has committed.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    changes: Vec<Change>,
}

impl Ledger {
    /// A product is inserted, updated or deleted.
    pub(crate) fn product(&mut self, operation: &'static str, key: i64, text: &str) {
        self.changes.push(Change {
            table: "product",
            key_column: "product_id",
            key,
            operation,
            text: text.to_owned(),
        });
    }

    /// At any moment: every change is in the centre, decided there against, or pending; and
    /// nothing twice.
    #[track_caller]
    pub(crate) fn assert_somewhere<B: Backend>(&self, world: &World<B>, device: &mut Device) {
        for (change, fate) in self.fates(world, device) {
            assert!(fate.decided() <= 1, "{change:?} twice: {fate:?}");
            assert!(fate.decided() == 1 || fate.pending, "{change:?} is lost");
        }
    }

    /// After a complete sync: every change has met its fate once, and both sides know.
    #[track_caller]
    pub(crate) fn assert_settled<B: Backend>(&self, world: &World<B>, device: &mut Device) {
        for (change, fate) in self.fates(world, device) {
            assert_eq!(fate.decided(), 1, "{change:?}: {fate:?}");
            assert!(!fate.pending, "{change:?}: {fate:?}");
            assert_eq!(fate.refused == 1, fate.refused_here, "{change:?}: {fate:?}");
        }
    }

    fn fates<B: Backend>(&self, world: &World<B>, device: &mut Device) -> Vec<(&Change, Fate)> {
        let mut applied: HashMap<String, usize> = HashMap::new();
        for line in world.rows("SELECT line FROM audit") {
            *applied.entry(line).or_default() += 1;
        }
        let conflicts = world.server.conflicts();
        let refused = world.server.refused();
        let refused_here = device.refused();
        let fate = |change: &Change| {
            let Change {
                table,
                key,
                operation,
                text,
                ..
            } = change;
            let json_key = format!("[{key}]");
            let quoted = format!("{text:?}");
            let same_row =
                |their_table: &str, their_key: &str| their_table == *table && their_key == json_key;
            let same_text = |image: Option<&str>| image.is_none_or(|json| json.contains(&quoted));
            Fate {
                applied: applied
                    .get(&format!("{table}|{operation}|{key}|{text}"))
                    .copied()
                    .unwrap_or_default(),
                conflicts: conflicts
                    .iter()
                    .filter(|it| {
                        same_row(&it.table, &it.key)
                            && it.operation == *operation
                            && same_text(it.uploaded.as_deref())
                    })
                    .count(),
                refused: refused
                    .iter()
                    .filter(|it| {
                        same_row(&it.table, &it.key)
                            && it.operation == *operation
                            && (*operation == "delete" || same_text(Some(&it.row)))
                    })
                    .count(),
                refused_here: refused_here
                    .iter()
                    .any(|it| same_row(&it.table, &it.key) && it.operation == *operation),
                pending: device.value(&format!(
                    "SELECT EXISTS (SELECT 1 FROM tidewater_change_{table}
                     WHERE key_{} = {key} AND generation > 0)",
                    change.key_column
                )) == "1",
            }
        };
        self.changes
            .iter()
            .map(|change| (change, fate(change)))
            .collect()
    }
}
