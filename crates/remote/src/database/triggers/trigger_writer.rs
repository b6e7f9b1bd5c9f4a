//! The text of the tracking triggers.

use std::collections::BTreeMap;

use tidewater_protocol::Table;

use super::{UniqueIndex, trigger_name};
use crate::database::tables::QuotedNames;
use crate::database::{numbers, quote};

/// Writes the triggers of one table.
pub(super) struct TriggerWriter<'a> {
    pub(super) names: QuotedNames,
    pub(super) table: &'a Table,
    pub(super) subscription: i64,
    /// See [`super::defaults`].
    pub(super) defaults: BTreeMap<String, String>,
    /// The table has no CHECKs that keep keys in canonical form.
    pub(super) is_unchecked: bool,
}

impl TriggerWriter<'_> {
    pub(super) fn create(&self, kind: &str, event: &str, when: &str, body: &str) -> String {
        let name = quote::name(&trigger_name(kind, &self.table.name));
        let table = &self.names.table;
        format!("CREATE TRIGGER {name} {event} ON {table}\n{when}BEGIN\n{body}END")
    }

    pub(super) fn download_only(&self, kind: &str, event: &str) -> String {
        let message = format!(
            "table \"{}\" is download-only: changes made here would never reach the server",
            self.table.name
        );
        let body = format!("  SELECT RAISE(ABORT, {});\n", quote::text(&message));
        self.create(kind, &format!("BEFORE {event}"), "", &body)
    }

    /// The application gets SQLite's own error for a NULL in the key, not one about our table.
    fn key_is_complete(&self) -> String {
        quote::list(&self.names.key, " AND ", |key| {
            format!("{} IS NOT NULL", self.new_value(key))
        })
    }

    /// What a column (its name in SQL) is going to be in the new row.
    fn new_value(&self, column: &str) -> String {
        match self.defaults.get(column) {
            Some(default) => format!("coalesce(NEW.{column}, {default})"),
            None => format!("NEW.{column}"),
        }
    }

    /// That a row has its number already, where it gets one after it was inserted.
    fn is_numbered(&self, row: &str) -> String {
        let identity = self.table.identity;
        match identity.filter(|it| self.table.key.contains(&it.column)) {
            Some(identity) => {
                let column = &self.names.columns[identity.column];
                format!("{row}.{column} IS NOT NULL AND ")
            }
            None => String::new(),
        }
    }

    /// The triggers of a table with numbers.
    pub(super) fn numbering(&self, column: &str) -> Vec<(&'static str, String)> {
        let (is_null, is_set) = (
            format!("WHEN NEW.{column} IS NULL\n"),
            format!("WHEN NEW.{column} IS NOT NULL\n"),
        );
        let update = |time: &str| format!("{time} UPDATE OF {column}");
        let unset = format!("WHEN NEW.{column} IS NULL AND OLD.{column} IS NOT NULL\n");
        let (give, used) = (
            numbers::give(self.table, column),
            numbers::used(self.table, column),
        );
        let keep = numbers::keep(self.table, column);
        let create = |kind, event: &str, when: &str, body: &str| {
            (kind, self.create(kind, event, when, body))
        };
        vec![
            create("identity", "AFTER INSERT", &is_null, &give),
            create("unset_identity", &update("BEFORE"), &unset, &keep),
            create("use_identity", "AFTER INSERT", &is_set, &used),
            create("move_identity", &update("AFTER"), &is_set, &used),
        ]
    }

    fn generation(&self) -> String {
        format!(
            "(SELECT generation FROM tidewater_subscription WHERE id = {})",
            self.subscription
        )
    }

    fn change_columns(&self) -> String {
        let mut columns = self.names.change_key.clone();
        columns.push("generation".into());
        columns.push("present".into());
        columns.extend(self.names.pre.iter().cloned());
        columns.join(", ")
    }

    /// `row.a, row.b, ...`: the columns outside the key.
    fn values(&self, row: &str) -> String {
        self.names
            .values
            .iter()
            .map(|&index| format!(", {row}.{}", self.names.columns[index]))
            .collect()
    }

    fn key(&self, row: &str) -> String {
        quote::list(&self.names.key, ", ", |key| format!("{row}.{key}"))
    }

    /// The condition that nothing is recorded yet of a key, given column by column.
    fn is_new(&self, value: &dyn Fn(&str) -> String) -> String {
        let pairs = self.names.change_key.iter().zip(&self.names.key);
        let same = quote::list(pairs, " AND ", |(change_key, key)| {
            format!("h.{change_key} = {}", value(key))
        });
        format!(
            "NOT EXISTS (SELECT 1 FROM {} AS h WHERE {same} AND h.generation = {})",
            self.names.change,
            self.generation()
        )
    }

    /// Records OLD as it is.
    pub(super) fn gone(&self, kind: &str, event: &str) -> String {
        let body = format!(
            "  INSERT INTO {} ({})\n  VALUES ({}, {}, 1{});\n",
            self.names.change,
            self.change_columns(),
            self.key("OLD"),
            self.generation(),
            self.values("OLD"),
        );
        let is_new = self.is_new(&|key| format!("OLD.{key}"));
        let when = format!("WHEN {}{is_new}\n", self.is_numbered("OLD"));
        self.create(kind, event, &when, &body)
    }

    /// Records what stands under the key of NEW now: the row that is displaced, or nothing.
    fn under_new_key(&self) -> String {
        let same_key = quote::list(&self.names.key, " AND ", |key| {
            format!("t.{key} = {}", self.new_value(key))
        });
        format!(
            "  INSERT INTO {} ({})\n  SELECT {}, s.generation, t.{} IS NOT NULL{}\n  \
             FROM tidewater_subscription AS s LEFT JOIN {} AS t ON {same_key}\n  \
             WHERE s.id = {};\n",
            self.names.change,
            self.change_columns(),
            quote::list(&self.names.key, ", ", |key| self.new_value(key)),
            self.names.key[0],
            self.values("t"),
            self.names.table,
            self.subscription,
        )
    }

    /// When [`TriggerWriter::under_new_key`] has something to record.
    fn new_key_is_new(&self) -> String {
        format!(
            "{} AND {}",
            self.key_is_complete(),
            self.is_new(&|key| self.new_value(key))
        )
    }

    /// The condition that there is a row under the key of NEW now.
    fn is_over_a_row(&self) -> String {
        let same_key = quote::list(&self.names.key, " AND ", |key| {
            format!("t.{key} = {}", self.new_value(key))
        });
        format!(
            "EXISTS (SELECT 1 FROM {} AS t WHERE {same_key})",
            self.names.table
        )
    }

    /// Records that nothing is under a new key. Apart from [`TriggerWriter::over_insert`], because
    /// SQLite puts what it selects aside first, row by row, where the same trigger has read the
    /// table that it goes to.
    pub(super) fn insert(&self) -> String {
        let body = format!(
            "  INSERT INTO {} ({}, generation, present)\n  VALUES ({}, {}, 0);\n",
            self.names.change,
            self.names.change_key.join(", "),
            quote::list(&self.names.key, ", ", |key| self.new_value(key)),
            self.generation(),
        );
        let when = format!(
            "WHEN {} AND NOT {}\n",
            self.new_key_is_new(),
            self.is_over_a_row()
        );
        self.create("insert", "BEFORE INSERT", &when, &body)
    }

    /// Records the row that is under a new key, and is about to be displaced.
    pub(super) fn over_insert(&self) -> String {
        let when = format!(
            "WHEN {} AND {}\n",
            self.is_over_a_row(),
            self.new_key_is_new()
        );
        self.create("over_insert", "BEFORE INSERT", &when, &self.under_new_key())
    }

    /// Records that a row whose key SQLite assigned was not there.
    pub(super) fn inserted(&self) -> String {
        let body = format!(
            "  INSERT INTO {} ({}, generation, present)\n  VALUES ({}, {}, 0);\n",
            self.names.change,
            self.names.change_key.join(", "),
            self.key("NEW"),
            self.generation(),
        );
        let is_new = self.is_new(&|key| format!("NEW.{key}"));
        let when = format!("WHEN {}{is_new}\n", self.is_numbered("NEW"));
        self.create("inserted", "AFTER INSERT", &when, &body)
    }

    /// What is done before (or after) an update of the key.
    fn update_of_key(&self, time: &str, without_rowid: bool) -> String {
        match without_rowid {
            true => format!("{time} UPDATE OF {}", self.names.key.join(", ")),
            // Setting the rowid names no column, and may be setting the key.
            false => format!("{time} UPDATE"),
        }
    }

    /// An update of the key changes what is under the old one (recorded by `update`) and what is
    /// under the new one.
    pub(super) fn rekey(&self, without_rowid: bool) -> String {
        let changed = quote::list(&self.names.key, " OR ", |key| {
            format!("{} IS NOT OLD.{key}", self.new_value(key))
        });
        let event = self.update_of_key("BEFORE", without_rowid);
        let when = format!("WHEN ({changed}) AND {}\n", self.new_key_is_new());
        self.create("rekey", &event, &when, &self.under_new_key())
    }

    /// Notes from which key of the generation's beginning a row has its new one.
    pub(super) fn rekeyed(&self, without_rowid: bool) -> String {
        let changed = quote::list(&self.names.key, " OR ", |key| {
            format!("NEW.{key} IS NOT OLD.{key}")
        });
        let is = |columns: &[String], row: &str| {
            let pairs = columns.iter().zip(&self.names.key);
            quote::list(pairs, " AND ", |(column, key)| {
                format!("{column} = {row}.{key}")
            })
        };
        let (new_key, old_key) = (&self.names.new_key, &self.names.old_key);
        let set = quote::list(
            new_key.iter().zip(&self.names.key),
            ", ",
            |(column, key)| format!("{column} = NEW.{key}"),
        );
        let (rekeyed, generation) = (&self.names.rekeyed, self.generation());
        let noted = |condition: &str| {
            format!(
                "NOT EXISTS (SELECT 1 FROM {rekeyed} WHERE generation = h.generation \
                 AND {condition})"
            )
        };
        let body = format!(
            "  DELETE FROM {rekeyed} WHERE generation = {generation} AND {};\n  \
             UPDATE {rekeyed} SET {set} WHERE generation = {generation} AND {};\n  \
             INSERT INTO {rekeyed} (generation, {}, {})\n  SELECT h.generation, {}, {}\n  \
             FROM {} AS h WHERE {} AND h.generation = {generation} AND h.present = 1\n  \
             AND {}\n  AND {};\n",
            is(new_key, "NEW"),
            is(new_key, "OLD"),
            new_key.join(", "),
            old_key.join(", "),
            self.key("NEW"),
            self.key("OLD"),
            self.names.change,
            self.names.change_of("h", "OLD"),
            noted(&is(new_key, "NEW")),
            noted(&is(old_key, "OLD")),
        );
        let event = self.update_of_key("AFTER", without_rowid);
        self.create("rekeyed", &event, &format!("WHEN {changed}\n"), &body)
    }

    /// A row that goes takes with it from where it had its key.
    pub(super) fn forget_rekeyed(&self) -> String {
        let pairs = self.names.new_key.iter().zip(&self.names.key);
        let row = quote::list(pairs, " AND ", |(column, key)| {
            format!("{column} = OLD.{key}")
        });
        let noted = format!(
            "FROM {} WHERE generation = {} AND {row}",
            self.names.rekeyed,
            self.generation()
        );
        self.create(
            "forget_rekeyed",
            "BEFORE DELETE",
            &format!("WHEN EXISTS (SELECT 1 {noted})\n"),
            &format!("  DELETE {noted};\n"),
        )
    }

    /// Records the rows that share a unique value with NEW.
    pub(super) fn displaced(&self, index: &UniqueIndex, condition: &str) -> String {
        let row = |column: &str| self.new_value(&quote::name(column));
        let Some(collides) = index.collides("t", &row) else {
            return String::new();
        };
        format!(
            "  INSERT INTO {} ({})\n  SELECT {}, {}, 1{}\n  FROM {} AS t\n  \
             WHERE {collides}{condition}\n  AND {};\n",
            self.names.change,
            self.change_columns(),
            self.key("t"),
            self.generation(),
            self.values("t"),
            self.names.table,
            self.is_new(&|key| format!("t.{key}")),
        )
    }

    pub(super) fn displacing_insert(&self, unique: &[&UniqueIndex]) -> String {
        let body: String = unique
            .iter()
            .map(|index| self.displaced(index, ""))
            .collect();
        self.create("displacing_insert", "BEFORE INSERT", "", &body)
    }

    pub(super) fn displacing_update(&self, unique: &[&UniqueIndex]) -> String {
        let other = quote::list(&self.names.key, " AND ", |key| {
            format!("t.{key} = OLD.{key}")
        });
        let condition = format!(" AND NOT ({other})");
        let body: String = unique
            .iter()
            .map(|index| self.displaced(index, &condition))
            .collect();
        self.create("displacing_update", "BEFORE UPDATE", "", &body)
    }
}
