//! The statements of applications: each changes some rows and tells which.

use rusqlite::types::Value;
use rusqlite::{OptionalExtension, Params, params, params_from_iter};

use super::own::TALLIED;
use super::{Application, CommittedRow, FreshKeys, MEETING};
use crate::calendar::{DAYS, day};
use crate::tables::{DENIED, EDITED, HoldingRule, REFUSED, REGIONS, SyncedTable, asked};

/// Which of [`EDITED`] everybody has, and an application's trigger writes.
const PRODUCT: usize = 2;

/// Which of [`EDITED`] is the parent of others.
const PARENT: usize = 0;

/// How a row is inserted.
#[derive(Clone, Copy)]
enum Insert {
    New,
    OrUpdate,
    OrReplace,
}

impl Application {
    fn text(&mut self) -> String {
        self.count += 1;
        let refused = self.is_remote && self.random.percent(6);
        let prefix = match refused {
            true if self.random.percent(50) => REFUSED,
            true => DENIED,
            false => "by",
        };
        format!("{prefix} {} {}", self.name, self.count)
    }

    pub(super) fn statement(
        &mut self,
        keys: &FreshKeys,
        regions: &[i64],
        touched: &mut Vec<CommittedRow>,
    ) -> rusqlite::Result<()> {
        let index = self.random.below(EDITED.len() as u64) as usize;
        let table = &EDITED[index];
        match self.random.below(100) {
            0..=21 => self.insert(Insert::New, index, keys, regions, touched),
            22..=24 => self.insert(Insert::OrUpdate, index, keys, regions, touched),
            25..=60 => self.update(index, regions, touched),
            61 if self.is_remote => self.misspell(table, keys, regions),
            61..=64 => self.update_twice(index, touched),
            65..=72 => self.delete(index, touched),
            73 => self.delete_all(index, touched),
            74..=79 => self.family(keys, regions, touched),
            80..=88 => self.rekey(index, keys, touched),
            89 => self.insert_many(keys, touched),
            _ if table.has_code() && self.may_replace(table)? => {
                self.insert(Insert::OrReplace, index, keys, regions, touched)
            }
            _ => self.update_many(index, touched),
        }
    }

    fn insert(
        &mut self,
        insert: Insert,
        index: usize,
        keys: &FreshKeys,
        regions: &[i64],
        touched: &mut Vec<CommittedRow>,
    ) -> rusqlite::Result<()> {
        let table = &EDITED[index];
        let key = match self.random.percent(70) {
            true => keys.next(),
            false => self.random.between(1, MEETING) as i64,
        };
        let Some(row) = self.fresh(table, key, None, regions)? else {
            return Ok(());
        };
        let (verb, clause) = match insert {
            Insert::New => ("INSERT", String::new()),
            Insert::OrReplace => ("INSERT OR REPLACE", String::new()),
            Insert::OrUpdate => {
                let (key, text) = (table.key(), table.text);
                let clause = format!("ON CONFLICT ({key}) DO UPDATE SET {text} = excluded.{text}");
                ("INSERT", clause)
            }
        };
        let (inserted, mut gone) = (!self.has_row(table, key)?, Vec::new());
        if let (Insert::OrReplace, Some(code)) = (insert, row.value("code")) {
            gone = self.displaced(index, key, code)?;
        }
        self.write(verb, &row, &clause)?;
        touched.extend(gone);
        if inserted {
            self.tallied(table, key, &row.text, touched)?;
        }
        touched.push(CommittedRow::written(index, key, row.text, inserted));
        Ok(())
    }

    /// A row whose key is spelt as none is: nothing happens, for the application hears of it.
    /// What does happen, a judge sees.
    fn misspell(
        &mut self,
        table: &'static SyncedTable,
        keys: &FreshKeys,
        regions: &[i64],
    ) -> rusqlite::Result<()> {
        let key = keys.next();
        let Some(mut row) = self.fresh(table, key, None, regions)? else {
            return Ok(());
        };
        row.values[0] = table.key_is.misspelt(key);
        self.write("INSERT", &row, "")
    }

    /// A row to be inserted; `None` if it needs a parent and there is none.
    pub(super) fn fresh(
        &mut self,
        table: &'static SyncedTable,
        key: i64,
        parent: Option<i64>,
        regions: &[i64],
    ) -> rusqlite::Result<Option<Row>> {
        let text = self.text();
        let mut values = vec![table.key_is.value(key)];
        for column in &table.columns[1..] {
            let value = match (*column, parent, table.reference()) {
                (column, _, _) if column == table.text => text.clone().into(),
                ("stamp", _, _) => 0.into(),
                (column, Some(key), Some((reference, parent))) if column == reference => {
                    parent.key_is.value(key)
                }
                _ => match self.other(table, column, regions)? {
                    Some(value) => value,
                    None => return Ok(None),
                },
            };
            values.push(value);
        }
        Ok(Some(Row {
            table,
            values,
            text,
        }))
    }

    pub(super) fn write(&self, verb: &str, row: &Row, clause: &str) -> rusqlite::Result<()> {
        let (name, columns) = (row.table.name, row.table.columns.join(", "));
        let values = vec!["?"; row.values.len()].join(", ");
        let sql = format!("{verb} INTO {name} ({columns}) VALUES ({values}) {clause}");
        self.connection
            .prepare_cached(&sql)?
            .execute(params_from_iter(&row.values))
            .map(drop)
    }

    /// Many products in one statement.
    fn insert_many(
        &mut self,
        keys: &FreshKeys,
        touched: &mut Vec<CommittedRow>,
    ) -> rusqlite::Result<()> {
        let (product, text) = (&EDITED[PRODUCT], self.text());
        let (name, key, column) = (product.name, product.key(), product.text);
        let many: Vec<i64> = (0..self.random.between(20, 60))
            .map(|_| keys.next())
            .collect();
        let sql = format!(
            "WITH RECURSIVE fresh (key) AS (SELECT ?1 UNION ALL SELECT key + 1 FROM fresh \
             WHERE key < ?2) INSERT INTO {name} ({key}, {column}) \
             SELECT key, ?3 || ' of ' || key FROM fresh"
        );
        self.connection
            .prepare_cached(&sql)?
            .execute(params![many.first(), many.last(), text])?;
        touched.extend(
            many.into_iter()
                .map(|key| CommittedRow::written(PRODUCT, key, format!("{text} of {key}"), true)),
        );
        Ok(())
    }

    /// What the application's own trigger has done at an insert, if there is one.
    fn tallied(
        &self,
        table: &SyncedTable,
        key: i64,
        text: &str,
        touched: &mut Vec<CommittedRow>,
    ) -> rusqlite::Result<()> {
        if table.name == "invoice" && self.has_tally()? {
            touched.push(CommittedRow::written(
                PRODUCT,
                TALLIED + key,
                format!("{text} too"),
                true,
            ));
        }
        Ok(())
    }

    fn has_row(&self, table: &SyncedTable, key: i64) -> rusqlite::Result<bool> {
        let sql = format!("SELECT 1 FROM {} WHERE {} = ?1", table.name, table.key());
        let mut statement = self.connection.prepare_cached(&sql)?;
        statement.exists([table.key_is.value(key)])
    }

    /// A value of a column that says where a row belongs: a region that is mostly one's own, a
    /// code that others may want too, a parent, if there is any.
    fn other(
        &mut self,
        table: &'static SyncedTable,
        column: &str,
        regions: &[i64],
    ) -> rusqlite::Result<Option<Value>> {
        if let Some((reference, parent)) = table.reference()
            && reference == column
        {
            let key = self.any_key(parent)?;
            return Ok(key.map(|key| parent.key_is.value(key)));
        }
        let value = match column {
            "code" => {
                let codes = [None, None, Some("A"), Some("B"), Some("C")];
                let code = self.random.pick(&codes).flatten();
                code.map(str::to_owned).into()
            }
            "day" => {
                let days: Vec<i64> = DAYS.collect();
                day(self.random.pick(&days).unwrap_or_default()).into()
            }
            _ => {
                let anywhere = self.random.between(1, REGIONS) as i64;
                let own = self.random.pick(regions);
                let own = match self.is_remote && table.held == HoldingRule::Asked {
                    true => asked(&self.connection)?.and_then(|it| it.parse().ok()),
                    false => own,
                };
                let own = own.filter(|_| self.random.percent(85));
                own.unwrap_or(anywhere).into()
            }
        };
        Ok(Some(value))
    }

    fn any_key(&mut self, table: &SyncedTable) -> rusqlite::Result<Option<i64>> {
        let count: i64 = self
            .connection
            .prepare_cached(&format!("SELECT count(*) FROM {}", table.name))?
            .query_row([], |row| row.get(0))?;
        if count == 0 {
            return Ok(None);
        }
        let (name, key) = (table.name, table.key());
        let offset = self.random.below(count.unsigned_abs()) as i64;
        self.connection
            .prepare_cached(&format!(
                "SELECT {key} FROM {name} ORDER BY {key} LIMIT 1 OFFSET ?1"
            ))?
            .query_row([offset], |row| Ok(table.key_is.number(row.get_ref(0)?)?))
            .optional()
    }

    fn update(
        &mut self,
        index: usize,
        regions: &[i64],
        touched: &mut Vec<CommittedRow>,
    ) -> rusqlite::Result<()> {
        let table = &EDITED[index];
        let Some(key) = self.any_key(table)? else {
            return Ok(());
        };
        let (text, mut gone, mut moved) = (self.text(), Vec::new(), None);
        if self.random.percent(30)
            && let Some(column) = self.random.pick(&table.places())
            && let Some(value) = self.other(table, column, regions)?
        {
            moved = Some((column, value));
        }
        let (name, key_column, column) = (table.name, table.key(), table.text);
        let mut verb = "UPDATE";
        if let Some(("code", code)) = &moved
            && self.random.percent(50)
            && self.may_replace(table)?
        {
            verb = "UPDATE OR REPLACE";
            gone = self.displaced(index, key, code)?;
        }
        let mut sql = format!("{verb} {name} SET {column} = ?1");
        if let Some(declared) = self.extra(name)? {
            sql += &format!(", extra = {}", of_type(&declared));
        }
        if let Some((column, _)) = &moved {
            sql += &format!(", {column} = ?3");
        }
        sql += &format!(" WHERE {key_column} = ?2");
        let mut values = vec![text.clone().into(), table.key_is.value(key)];
        values.extend(moved.map(|(_, value)| value));
        self.connection
            .prepare_cached(&sql)?
            .execute(params_from_iter(values))?;
        touched.extend(gone);
        touched.push(CommittedRow::written(index, key, text, false));
        Ok(())
    }

    /// The same row two times in one transaction, each time with another clause.
    fn update_twice(
        &mut self,
        index: usize,
        touched: &mut Vec<CommittedRow>,
    ) -> rusqlite::Result<()> {
        let table = &EDITED[index];
        let Some(row) = self.any_key(table)? else {
            return Ok(());
        };
        let (name, key, column) = (table.name, table.key(), table.text);
        let mut last = String::new();
        for verb in ["UPDATE OR FAIL", "UPDATE OR REPLACE"] {
            last = self.text();
            let sql = format!("{verb} {name} SET {column} = ?1 WHERE {key} = ?2");
            self.connection
                .prepare_cached(&sql)?
                .execute(params![last, table.key_is.value(row)])?;
        }
        touched.push(CommittedRow::written(index, row, last, false));
        Ok(())
    }

    /// Some neighbours in one statement.
    fn update_many(
        &mut self,
        index: usize,
        touched: &mut Vec<CommittedRow>,
    ) -> rusqlite::Result<()> {
        let table = &EDITED[index];
        let Some(from) = self.any_key(table)? else {
            return Ok(());
        };
        let text = self.text();
        let (name, key, column) = (table.name, table.key(), table.text);
        let sql = format!(
            "UPDATE {name} SET {column} = ?1 || ' of ' || {key}
             WHERE {key} BETWEEN ?2 AND ?3 RETURNING {key}, {column}"
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let (first, last) = (table.key_is.value(from), table.key_is.value(from + 5));
        let rows = statement.query_map(params![text, first, last], |row| {
            let key = table.key_is.number(row.get_ref(0)?)?;
            Ok(CommittedRow::written(index, key, row.get(1)?, false))
        })?;
        for row in rows {
            touched.push(row?);
        }
        Ok(())
    }

    /// A parent with children.
    fn family(
        &mut self,
        keys: &FreshKeys,
        regions: &[i64],
        touched: &mut Vec<CommittedRow>,
    ) -> rusqlite::Result<()> {
        let parent = keys.next();
        self.member(PARENT, parent, None, regions, touched)?;
        let children: Vec<usize> = EDITED[PARENT].children().collect();
        for _ in 0..self.random.between(1, 3) {
            let (child, key) = (self.random.pick(&children).unwrap_or(PARENT), keys.next());
            self.member(child, key, Some(parent), regions, touched)?;
            for grandchild in EDITED[child].children() {
                self.member(grandchild, keys.next(), Some(key), regions, touched)?;
            }
        }
        Ok(())
    }

    fn member(
        &mut self,
        index: usize,
        key: i64,
        parent: Option<i64>,
        regions: &[i64],
        touched: &mut Vec<CommittedRow>,
    ) -> rusqlite::Result<()> {
        let table = &EDITED[index];
        let Some(row) = self.fresh(table, key, parent, regions)? else {
            return Ok(());
        };
        self.write("INSERT", &row, "")?;
        self.tallied(table, key, &row.text, touched)?;
        touched.push(CommittedRow::written(index, key, row.text, true));
        Ok(())
    }

    /// All rows at once.
    fn delete_all(
        &mut self,
        index: usize,
        touched: &mut Vec<CommittedRow>,
    ) -> rusqlite::Result<()> {
        let table = &EDITED[index];
        let gone = self.falling(index, "1", &[])?;
        let sql = format!("DELETE FROM {}", table.name);
        self.connection.prepare_cached(&sql)?.execute([])?;
        touched.extend(gone);
        Ok(())
    }

    /// The same, with all that goes with them. A child without its parent here stays.
    fn falling(
        &self,
        index: usize,
        condition: &str,
        values: &[&Value],
    ) -> rusqlite::Result<Vec<CommittedRow>> {
        let table = &EDITED[index];
        let mut gone = self.going(index, condition, params_from_iter(values))?;
        for child in table.children() {
            let (column, parent) = EDITED[child].parent.unwrap_or_default();
            let key = table.key();
            let below = format!("{column} IN (SELECT {key} FROM {parent} WHERE {condition})");
            gone.extend(self.falling(child, &below, values)?);
        }
        Ok(gone)
    }

    /// The rows for which this is so, as rows that are about to be gone.
    pub(super) fn going(
        &self,
        index: usize,
        condition: &str,
        values: impl Params,
    ) -> rusqlite::Result<Vec<CommittedRow>> {
        let table = &EDITED[index];
        let (name, key, text) = (table.name, table.key(), table.text);
        let sql = format!("SELECT {key}, {text} FROM {name} WHERE {condition}");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let rows = statement.query_map(values, |row| {
            let key = table.key_is.number(row.get_ref(0)?)?;
            Ok(CommittedRow::removed(index, key, row.get(1)?))
        })?;
        rows.collect()
    }

    /// The declared type of the column that comes and goes, if the table has it.
    pub(super) fn extra(&self, table: &str) -> rusqlite::Result<Option<String>> {
        self.connection
            .prepare_cached("SELECT type FROM pragma_table_info(?1) WHERE name = 'extra'")?
            .query_row([table], |row| row.get(0))
            .optional()
    }

    fn delete(&mut self, index: usize, touched: &mut Vec<CommittedRow>) -> rusqlite::Result<()> {
        let table = &EDITED[index];
        let Some(key) = self.any_key(table)? else {
            return Ok(());
        };
        let (value, column) = (table.key_is.value(key), table.key());
        let gone = self.falling(index, &format!("{column} = ?1"), &[&value])?;
        let sql = format!("DELETE FROM {} WHERE {} = ?1", table.name, table.key());
        self.connection.prepare_cached(&sql)?.execute([value])?;
        touched.extend(gone);
        Ok(())
    }

    /// A row gets another key, and its children go with it: one row less, one more.
    fn rekey(
        &mut self,
        index: usize,
        keys: &FreshKeys,
        touched: &mut Vec<CommittedRow>,
    ) -> rusqlite::Result<()> {
        let table = &EDITED[index];
        let Some(before) = self.any_key(table)? else {
            return Ok(());
        };
        let (after, text) = (keys.next(), self.text());
        let (name, key, column) = (table.name, table.key(), table.text);
        let sql = format!("UPDATE {name} SET {key} = ?1, {column} = ?2 WHERE {key} = ?3");
        let [new, old] = [after, before].map(|number| table.key_is.value(number));
        let gone = self.going(index, &format!("{key} = ?1"), [&old])?;
        // Until the commit nobody asks whether the children have come along.
        self.connection
            .execute_batch("PRAGMA defer_foreign_keys = ON")?;
        self.connection
            .prepare_cached(&sql)?
            .execute(params![&new, text, &old])?;
        touched.extend(gone);
        touched.push(CommittedRow::written(index, after, text, true));
        for index in table.children() {
            let (child, text) = (&EDITED[index], self.text());
            let (name, key, column) = (child.name, child.key(), child.text);
            let (reference, _) = child.parent.unwrap_or_default();
            let sql = format!(
                "UPDATE {name} SET {reference} = ?1, {column} = ?2 || ' of ' || {key}
                 WHERE {reference} = ?3 RETURNING {key}, {column}"
            );
            let mut statement = self.connection.prepare_cached(&sql)?;
            let rows = statement.query_map(params![&new, text, &old], |row| {
                let key = child.key_is.number(row.get_ref(0)?)?;
                Ok(CommittedRow::written(index, key, row.get(1)?, false))
            })?;
            for row in rows {
                touched.push(row?);
            }
        }
        Ok(())
    }
}

/// A row to be written.
pub(super) struct Row {
    table: &'static SyncedTable,
    /// As the table's columns.
    values: Vec<Value>,
    pub(super) text: String,
}

impl Row {
    fn value(&self, column: &str) -> Option<&Value> {
        let columns = &self.table.columns;
        let index = columns.iter().position(|it| *it == column)?;
        self.values.get(index)
    }
}

/// A text, `?1`, as a value of the column that comes and goes.
fn of_type(declared: &str) -> &'static str {
    match declared {
        "INTEGER" => "length(?1)",
        "REAL" => "length(?1) + 0.25",
        "BLOB" => "CAST(?1 AS BLOB)",
        _ => "?1",
    }
}
