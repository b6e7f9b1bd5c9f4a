//! What was done in worlds, in figures; and which rows the centre refused, for that is what a user
//! learns of his constraints.

use std::collections::BTreeMap;

use serde::Serialize;

/// What was done in one world, or in several.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tally {
    /// Remotes that synced.
    pub remotes: u64,
    /// Connections that carried a sync.
    pub connections: u64,
    /// Syncs that came to their end.
    pub syncs: u64,
    /// Rows that applications of remotes inserted, updated and deleted.
    pub changes_of_remotes: u64,
    /// The same of the centre's.
    pub changes_of_centre: u64,
    /// Statements that the file itself did not take.
    pub impossible: u64,
    /// Changes that lost against somebody else's, or were merged.
    pub conflicts: u64,
    /// Changes of remotes that the centre refused, by table and reason.
    pub refused: BTreeMap<String, RefusedRows>,
    /// How often each kind of fault came about.
    pub faults: BTreeMap<&'static str, u64>,
    /// How long it took in its own time.
    pub simulated_ms: u64,
}

/// Rows that were refused for one reason.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RefusedRows {
    /// Their table.
    pub table: String,
    /// Why, for people.
    pub reason: String,
    /// How many.
    pub count: u64,
    /// One of them, a JSON object.
    pub example: String,
}

impl Tally {
    /// Adds what was done in another world.
    pub fn add(&mut self, other: &Tally) {
        self.remotes += other.remotes;
        self.connections += other.connections;
        self.syncs += other.syncs;
        self.changes_of_remotes += other.changes_of_remotes;
        self.changes_of_centre += other.changes_of_centre;
        self.impossible += other.impossible;
        self.conflicts += other.conflicts;
        self.simulated_ms += other.simulated_ms;
        for (name, refused) in &other.refused {
            self.refuse(name, refused);
        }
        for (kind, count) in &other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
    }

    /// A row was refused.
    pub(super) fn refused(&mut self, table: &str, reason: &str, example: String) {
        let reason = general(reason);
        let refused = RefusedRows {
            table: table.to_owned(),
            count: 1,
            example,
            reason,
        };
        let name = format!("{table}: {}", refused.reason);
        self.refuse(&name, &refused);
    }

    fn refuse(&mut self, name: &str, more: &RefusedRows) {
        let first = || RefusedRows {
            count: 0,
            ..more.clone()
        };
        let refused = self.refused.entry(name.to_owned()).or_insert_with(first);
        refused.count += more.count;
    }
}

/// A reason without the keys that it names.
fn general(reason: &str) -> String {
    let mut text = String::new();
    let mut depth = 0;
    for letter in reason.chars() {
        match letter {
            '[' => {
                if depth == 0 {
                    text.push_str("[..]");
                }
                depth += 1;
            }
            ']' if depth > 0 => depth -= 1,
            _ if depth == 0 => text.push(letter),
            _ => {}
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_refused_for_one_reason_whatever_their_keys() {
        let mut tally = Tally::default();
        for key in ["[60]", "[\"a\",1]"] {
            let reason = format!("the row that it refers to was refused: customer {key}");
            tally.refused("orders", &reason, key.to_owned());
        }
        let refused: Vec<_> = tally.refused.values().collect();
        assert_eq!(refused.len(), 1);
        assert_eq!((refused[0].count, refused[0].example.as_str()), (2, "[60]"));
        assert!(refused[0].reason.ends_with("customer [..]"));
    }
}
