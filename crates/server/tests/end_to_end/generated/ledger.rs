//! What became of every committed local change, in any schema.
//!
//! A change is settled when a sync has succeeded: then the centre has had the row, or the
//! centre has a conflict for it, or it is refused on both sides.

use std::collections::{BTreeMap, HashMap, HashSet};

use tidewater_client::RefusedRow;
use tidewater_protocol::{Code, Value};
use tidewater_testing::generate::schema::{Schema, Table, TableId};
use tidewater_testing::generate::triggers::THEN;

use super::field::Field;
use super::rows::{Rows, Snapshot, same, same_row};
use super::session::Centre;

/// A row that the application of a remote has changed since it last synced.
#[derive(Debug, Clone)]
struct Change {
    /// As it was before.
    old: Option<Vec<Value>>,
    /// As it is now; `None` if it is gone.
    new: Option<Vec<Value>>,
    /// The centre's past from then on counts.
    since: usize,
}

/// The changes of one remote that are not settled.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger {
    changes: BTreeMap<(TableId, String), Change>,
    /// Conflicts and refusals that there were when everything was settled last.
    seen: HashMap<(String, String), usize>,
    /// The tables and keys of rows that the centre may not have, or has otherwise: what is
    /// refused, and what was changed while a sync decided against an earlier change of it.
    disputed: HashSet<(String, String)>,
    /// What has been settled since the centre was backed up, if it was.
    history: Option<BTreeMap<(TableId, String), Change>>,
    /// [`Ledger::seen`] when it was backed up, and how much of the centre's past there was.
    seen_then: HashMap<(String, String), usize>,
    past_then: usize,
    /// The numbers of refusals that the centre has forgotten, and that cannot go up again: the
    /// rows have left the remote.
    forgotten: HashSet<i64>,
}

impl Ledger {
    /// The application has committed a transaction.
    pub(crate) fn note(
        &mut self,
        schema: &Schema,
        before: &Snapshot,
        after: &Snapshot,
        now: usize,
    ) {
        for table in &schema.tables {
            for key in before.differences(after, table) {
                let new = after.table(table.id).get(key).cloned();
                let change = self.changes.entry((table.id, key.clone()));
                let agreed = !self.disputed.contains(&(table.name.clone(), key.clone()));
                let change = change.or_insert_with(|| Change {
                    old: before.table(table.id).get(key).cloned().filter(|_| agreed),
                    new: None,
                    since: now,
                });
                change.new = new;
            }
        }
    }

    /// From now on what is settled may be forgotten by the centre.
    pub(crate) fn begin_history(&mut self, past: usize) {
        self.past_then = past;
        self.history = Some(BTreeMap::new());
        self.seen_then = self.seen.clone();
    }

    /// A change is settled, but the centre may be restored.
    fn settled(&mut self, row: (TableId, String), change: Change) {
        if let Some(history) = &mut self.history {
            let first = history.get(&row).map(|it| it.old.clone());
            let old = first.unwrap_or_else(|| change.old.clone());
            history.insert(row, Change { old, ..change });
        }
    }

    /// Takes the changes out.
    pub(crate) fn take(&mut self) -> Ledger {
        let changes = std::mem::take(&mut self.changes);
        Ledger {
            changes,
            ..self.clone()
        }
    }

    /// Puts other changes in the place of those that there are, which are returned.
    pub(crate) fn replace(&mut self, other: Ledger) -> Ledger {
        let changes = std::mem::replace(&mut self.changes, other.changes);
        Ledger {
            changes,
            ..Ledger::default()
        }
    }

    /// The user has given up the change of a row.
    pub(crate) fn forget(&mut self, schema: &Schema, table: &str, key: &str) {
        let tables = schema.tables.iter().filter(|it| it.name == table);
        for table in tables {
            self.changes.remove(&(table.id, key.to_owned()));
            if let Some(history) = &mut self.history {
                history.remove(&(table.id, key.to_owned()));
            }
        }
    }
}

/// The centre was restored: what was settled since has to be settled once more.
pub(crate) fn unsettle<C: Centre>(field: &mut Field<C>, number: usize) {
    let now = field.past.len() - 1;
    let player = &mut field.players[number];
    let gone = player.device.refused().into_iter();
    let gone = gone.filter(|it| it.values.is_some()).map(|it| it.id);
    let ledger = &mut player.ledger;
    ledger.forgotten.extend(gone);
    // A decision that nobody had seen then counts still.
    ledger.seen = ledger.seen_then.clone();
    for (row, mut change) in ledger.history.take().into_iter().flatten() {
        let later = ledger.changes.remove(&row);
        change.new = later.map_or(change.new, |later| later.new);
        ledger.changes.insert(row, change);
    }
    let before = &field.past[..ledger.past_then];
    ledger.changes.retain(|(id, key), change| {
        let table = field.schema.table(*id);
        // What the copy has been told of before, it is not told again.
        let past = before.iter().skip(change.since).map(|it| it.table(*id));
        let is_known = table.is_some_and(|table| came_true(table, key, change, past));
        change.since = now;
        !is_known
    });
}

/// How many conflicts and refusals of a user the centre has, by table and key.
fn decisions<C: Centre>(field: &Field<C>, user: &str) -> HashMap<(String, String), usize> {
    let mut seen: HashMap<(String, String), usize> = HashMap::new();
    let (conflicts, refused) = (field.server().conflicts(), field.server().refused());
    let of_conflicts = conflicts.iter().filter(|it| it.user == user);
    let of_conflicts = of_conflicts.map(|it| (&it.table, &it.key, it.uploaded.as_deref()));
    let of_refused = refused.iter().filter(|it| it.user == user);
    let of_refused = of_refused.map(|it| (&it.table, &it.key, Some(&*it.row)));
    for (table, key, image) in of_conflicts.chain(of_refused) {
        *seen.entry((table.clone(), key.clone())).or_default() += 1;
        let new_key = image.and_then(|image| key_of_image(&field.schema, table, image));
        if let Some(new_key) = new_key.filter(|it| it != key) {
            *seen.entry((table.clone(), new_key)).or_default() += 1;
        }
    }
    seen
}

/// The tables' names and keys of rows that are refused on a remote: of a changed key both.
pub(crate) fn refused_rows<C: Centre>(
    field: &Field<C>,
    user: &str,
    here: &[RefusedRow],
) -> HashSet<(String, String)> {
    let mut rows: HashSet<(String, String)> = here
        .iter()
        .map(|it| (it.table.clone(), it.key.clone()))
        .collect();
    for it in field.server().refused().iter().filter(|it| it.user == user) {
        let is_here = |row: &RefusedRow| row.table == it.table && row.key == it.key;
        if here.iter().any(is_here) {
            let new_key = key_of_image(&field.schema, &it.table, &it.row);
            rows.extend(new_key.map(|key| (it.table.clone(), key)));
        }
    }
    rows
}

/// The key that an image, a JSON object, gives its row: a changed key is known by the old one.
fn key_of_image(schema: &Schema, table: &str, image: &str) -> Option<String> {
    let table = schema.tables.iter().find(|it| it.name == table)?;
    let image: serde_json::Value = serde_json::from_str(image).ok()?;
    let key = table.key.iter();
    let key: Option<Vec<serde_json::Value>> = key
        .map(|&index| image.get(&table.columns[index].name).cloned())
        .collect();
    Some(serde_json::Value::Array(key?).to_string())
}

/// After a sync that succeeded: every change has met its fate.
pub(crate) fn settle<C: Centre>(field: &mut Field<C>, number: usize) {
    settle_beside(field, number, Ledger::default());
}

/// After a sync that succeeded, while the application went on: what it changed meanwhile may
/// have gone up with the rest if the sync took two connections, and is settled by the next
/// sync at the latest.
pub(crate) fn settle_beside<C: Centre>(field: &mut Field<C>, number: usize, mut later: Ledger) {
    let refused = field.server().refused();
    let user = field.players[number].device.user.clone();
    let seen = decisions(field, &user);
    let player = &mut field.players[number];
    let refused_here = player.device.refused();
    let of_refused = refused_rows(field, &user, &refused_here);
    let player = &mut field.players[number];
    let changes = std::mem::take(&mut player.ledger.changes);
    let mut disputed = HashSet::new();
    for ((id, key), mut change) in changes {
        let Some(table) = field.schema.table(id) else {
            continue;
        };
        let name = (table.name.clone(), key.clone());
        let decided = seen.get(&name) > player.ledger.seen.get(&name);
        let is_refused_here = of_refused.contains(&name);
        let past = || field.past[change.since..].iter().map(|it| it.table(id));
        let row = (id, key.clone());
        let overtaken = later.changes.get(&row);
        let overtaken = overtaken.is_some_and(|it| came_true(table, &key, it, past()));
        if decided && let Some(later) = later.changes.remove(&row) {
            disputed.insert(name);
            change.new = later.new;
        }
        if decided || overtaken || is_refused_here || came_true(table, &key, &change, past()) {
            player.ledger.settled((id, key), change);
            continue;
        }
        // What was refused is tried again when the scope has changed: with the next sync.
        if player
            .ledger
            .disputed
            .contains(&(table.name.clone(), key.clone()))
        {
            later.changes.entry(row).or_insert(change);
            continue;
        }
        panic!(
            "a change of {user} is lost: {:?} {key}\nwas {:?}\nis {:?}\nthe centre has {:?}",
            table.name,
            change.old,
            change.new,
            field.past.last().map(|it| it.table(id).get(&key))
        );
    }
    disputed.extend(of_refused);
    player.ledger.disputed = disputed;
    let forgotten = &player.ledger.forgotten;
    // Of what was changed here without tracking, only the remote knows.
    let told =
        |it: &RefusedRow| it.code != Code::RowUntracked.name() && !forgotten.contains(&it.id);
    for refused_here in refused_here.into_iter().filter(told) {
        let both = refused
            .iter()
            .any(|it| it.table == refused_here.table && it.key == refused_here.key);
        assert!(both, "refused on the remote only: {refused_here:?}");
    }
    player.ledger.seen = seen;
    player.ledger.changes.extend(later.changes);
}

/// Whether the centre has been as the change wants it.
fn came_true<'a>(
    table: &Table,
    key: &str,
    change: &Change,
    past: impl Iterator<Item = &'a Rows>,
) -> bool {
    let unchanged = match (&change.old, &change.new) {
        (None, None) => true,
        (Some(old), Some(new)) => same_row(table, old, new),
        _ => false,
    };
    let mut past = past;
    unchanged
        || past.any(|rows| match (rows.get(key), &change.new) {
            (None, None) => true,
            (Some(there), Some(new)) => {
                let retagged = change
                    .old
                    .as_ref()
                    .is_none_or(|old| !same(&old[table.tag], &new[table.tag]));
                let goes_on = starts_with(&there[table.tag], &new[table.tag]);
                same_row(table, there, new)
                    || goes_on && (retagged || same_but_tag(table, there, new))
            }
            _ => false,
        })
}

/// Whether a tag is this one, or this one and what triggers put behind it.
fn starts_with(there: &Value, new: &Value) -> bool {
    let (Value::Text(there), Value::Text(new)) = (there, new) else {
        return same(there, new);
    };
    let rest = there.strip_prefix(new.as_str());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(THEN))
}

fn same_but_tag(table: &Table, there: &[Value], new: &[Value]) -> bool {
    let mut new = new.to_vec();
    new[table.tag] = there[table.tag].clone();
    same_row(table, there, &new)
}

/// Nothing that had left the centre has come back: every row that is written has a tag of
/// its own.
pub(crate) fn assert_nothing_came_twice<C: Centre>(field: &Field<C>) {
    for table in &field.schema.tables {
        if table.key_follows() || field.twins || field.unsure.contains(&table.id) {
            continue;
        }
        // When a row was last there, by key and tag.
        let mut last: HashMap<(String, String), usize> = HashMap::new();
        // What the centre forgot when it was restored, remotes may give back.
        for (now, snapshot) in field.past.iter().enumerate().skip(field.begins) {
            for (key, row) in snapshot.table(table.id) {
                let Value::Text(tag) = &row[table.tag] else {
                    continue;
                };
                let name = (key.clone(), tag.clone());
                let before = last.insert(name, now);
                assert!(
                    before.is_none_or(|before| before + 1 == now),
                    "applied twice: {:?} {key} {tag}",
                    table.name
                );
            }
        }
    }
}
