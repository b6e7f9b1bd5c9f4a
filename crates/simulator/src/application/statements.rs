//! The statements of applications: each changes some rows and tells which.

use rusqlite::{OptionalExtension, params};

use super::{Application, FreshKeys, MEETING, Touched};
use crate::scenario::{DENIED, EDITED, REFUSED, REGIONS, Table};

/// Which of [`EDITED`] everybody has, and an application's trigger writes.
const PRODUCT: usize = 2;

/// What an application's trigger inserts has the key of the invoice, and so much more.
const TALLIED: i64 = 1_000_000;

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
        let refused = self.refusable && self.random.percent(6);
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
        touched: &mut Vec<Touched>,
    ) -> rusqlite::Result<()> {
        let index = self.random.below(EDITED.len() as u64) as usize;
        let table = &EDITED[index];
        match self.random.below(100) {
            0..=21 => self.insert(Insert::New, index, keys, regions, touched),
            22..=24 => self.insert(Insert::OrUpdate, index, keys, regions, touched),
            25..=61 => self.update(index, regions, touched),
            62..=64 => self.update_twice(index, touched),
            65..=72 => self.delete(index, touched),
            73 => self.delete_all(index, touched),
            74..=79 => self.family(keys, regions, touched),
            80..=88 => self.rekey(index, keys, touched),
            89 => self.insert_many(keys, touched),
            _ if table.name == "product" => {
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
        touched: &mut Vec<Touched>,
    ) -> rusqlite::Result<()> {
        let table = &EDITED[index];
        let key = match self.random.percent(70) {
            true => keys.next(),
            false => self.random.between(1, MEETING) as i64,
        };
        let text = self.text();
        let other = self.other_column(table, regions)?;
        let values = match table.name {
            "invoice" => {
                let Some(customer) = self.any_key(&EDITED[0])? else {
                    return Ok(());
                };
                format!("?1, ?2, {customer}, ?3, 0")
            }
            _ => "?1, ?2, ?3".into(),
        };
        let inserted = !self.has_row(table, key)?;
        let (name, columns) = (table.name, table.columns.join(", "));
        let (verb, clause) = match insert {
            Insert::New => ("INSERT", String::new()),
            Insert::OrReplace => ("INSERT OR REPLACE", String::new()),
            Insert::OrUpdate => {
                let (key, text) = (table.key(), table.text);
                let clause = format!("ON CONFLICT ({key}) DO UPDATE SET {text} = excluded.{text}");
                ("INSERT", clause)
            }
        };
        let sql = format!("{verb} INTO {name} ({columns}) VALUES ({values}) {clause}");
        self.connection
            .prepare_cached(&sql)?
            .execute(params![key, other, text])?;
        if inserted {
            self.tallied(table, key, &text, touched)?;
        }
        touched.push(Touched {
            table: index,
            key,
            text: Some(text),
            inserted,
        });
        Ok(())
    }

    /// Many products in one statement.
    fn insert_many(
        &mut self,
        keys: &FreshKeys,
        touched: &mut Vec<Touched>,
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
        touched.extend(many.into_iter().map(|key| Touched {
            table: PRODUCT,
            key,
            text: Some(format!("{text} of {key}")),
            inserted: true,
        }));
        Ok(())
    }

    /// What the application's own trigger has done at an insert, if there is one.
    fn tallied(
        &self,
        table: &Table,
        key: i64,
        text: &str,
        touched: &mut Vec<Touched>,
    ) -> rusqlite::Result<()> {
        if table.name == "invoice" && self.has_tally()? {
            touched.push(Touched {
                table: PRODUCT,
                key: TALLIED + key,
                text: Some(format!("{text} too")),
                inserted: true,
            });
        }
        Ok(())
    }

    fn has_tally(&self) -> rusqlite::Result<bool> {
        self.connection
            .prepare_cached(
                "SELECT 1 FROM sqlite_schema WHERE type = 'trigger' AND name = 'tally'",
            )?
            .exists([])
    }

    /// The application has a trigger of its own from now on: what others insert must not fire it.
    pub(super) fn keep_tally(&self) -> rusqlite::Result<()> {
        if self.has_tally()? {
            return Ok(());
        }
        self.connection.execute_batch(&format!(
            "CREATE TRIGGER tally AFTER INSERT ON invoice BEGIN
                 INSERT INTO product (product_id, name)
                 VALUES ({TALLIED} + NEW.invoice_id, NEW.note || ' too');
             END"
        ))
    }

    fn has_row(&self, table: &Table, key: i64) -> rusqlite::Result<bool> {
        let sql = format!("SELECT 1 FROM {} WHERE {} = ?1", table.name, table.key());
        self.connection.prepare_cached(&sql)?.exists([key])
    }

    /// A value of the second column: a region that is mostly one's own, or a code that
    /// others may want too.
    fn other_column(
        &mut self,
        table: &Table,
        regions: &[i64],
    ) -> rusqlite::Result<rusqlite::types::Value> {
        if table.name == "product" {
            let code = self
                .random
                .pick(&[None, None, Some("A"), Some("B"), Some("C")]);
            return Ok(code.flatten().map(str::to_owned).into());
        }
        let anywhere = self.random.between(1, REGIONS) as i64;
        let own = self
            .random
            .pick(regions)
            .filter(|_| self.random.percent(85));
        Ok(own.unwrap_or(anywhere).into())
    }

    fn any_key(&mut self, table: &Table) -> rusqlite::Result<Option<i64>> {
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
            .query_row([offset], |row| row.get(0))
            .optional()
    }

    fn update(
        &mut self,
        index: usize,
        regions: &[i64],
        touched: &mut Vec<Touched>,
    ) -> rusqlite::Result<()> {
        let table = &EDITED[index];
        let Some(key) = self.any_key(table)? else {
            return Ok(());
        };
        let text = self.text();
        let (name, key_column) = (table.name, table.key());
        let moved = match self.random.percent(30) {
            true => format!(", {} = ?3", table.columns[1]),
            false => String::new(),
        };
        let extra = match self.has_extra(name)? {
            true => ", extra = ?1",
            false => "",
        };
        let column = table.text;
        let sql = format!("UPDATE {name} SET {column} = ?1{extra}{moved} WHERE {key_column} = ?2");
        let other = self.other_column(table, regions)?;
        let mut statement = self.connection.prepare_cached(&sql)?;
        match moved.is_empty() {
            false => statement.execute(params![text, key, other])?,
            true => statement.execute(params![text, key])?,
        };
        touched.push(Touched {
            table: index,
            key,
            text: Some(text),
            inserted: false,
        });
        Ok(())
    }

    /// The same row two times in one transaction, each time with another clause.
    fn update_twice(&mut self, index: usize, touched: &mut Vec<Touched>) -> rusqlite::Result<()> {
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
                .execute(params![last, row])?;
        }
        touched.push(Touched {
            table: index,
            key: row,
            text: Some(last),
            inserted: false,
        });
        Ok(())
    }

    /// Some neighbours in one statement.
    fn update_many(&mut self, index: usize, touched: &mut Vec<Touched>) -> rusqlite::Result<()> {
        let table = &EDITED[index];
        let Some(from) = self.any_key(table)? else {
            return Ok(());
        };
        let text = self.text();
        let (name, key, column) = (table.name, table.key(), table.text);
        let sql = format!(
            "UPDATE {name} SET {column} = ?1 || ' of ' || {key}
             WHERE {key} BETWEEN ?2 AND ?2 + 5 RETURNING {key}, {column}"
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let rows = statement.query_map(params![text, from], |row| {
            Ok(Touched {
                table: index,
                key: row.get(0)?,
                text: row.get(1)?,
                inserted: false,
            })
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
        touched: &mut Vec<Touched>,
    ) -> rusqlite::Result<()> {
        let [customer, invoice] = [&EDITED[0], &EDITED[1]];
        let parent = keys.next();
        for child in 0..=self.random.between(1, 3) {
            let (table, index, key) = match child {
                0 => (customer, 0, parent),
                _ => (invoice, 1, keys.next()),
            };
            let (text, region) = (self.text(), self.other_column(table, regions)?);
            let (name, columns) = (table.name, table.columns.join(", "));
            let values = if index == 0 {
                "?1, ?2, ?3"
            } else {
                "?1, ?2, ?4, ?3, 0"
            };
            let sql = format!("INSERT INTO {name} ({columns}) VALUES ({values})");
            let mut statement = self.connection.prepare_cached(&sql)?;
            match index {
                0 => statement.execute(params![key, region, text])?,
                _ => statement.execute(params![key, region, text, parent])?,
            };
            drop(statement);
            self.tallied(table, key, &text, touched)?;
            touched.push(Touched {
                table: index,
                key,
                text: Some(text),
                inserted: true,
            });
        }
        Ok(())
    }

    /// All rows at once.
    fn delete_all(&mut self, index: usize, touched: &mut Vec<Touched>) -> rusqlite::Result<()> {
        let table = &EDITED[index];
        let mut gone = Vec::new();
        for (index, it) in EDITED.iter().enumerate() {
            // A child without its parent here stays.
            let condition = match it.parent {
                _ if it.name == table.name => "1".to_owned(),
                Some((column, parent)) if parent == table.name => {
                    format!("{column} IN (SELECT {} FROM {parent})", table.key())
                }
                _ => continue,
            };
            let sql = format!("SELECT {} FROM {} WHERE {condition}", it.key(), it.name);
            let mut statement = self.connection.prepare_cached(&sql)?;
            let keys = statement.query_map([], |row| row.get(0))?;
            for key in keys {
                gone.push((index, key?));
            }
        }
        let sql = format!("DELETE FROM {}", table.name);
        self.connection.prepare_cached(&sql)?.execute([])?;
        touched.extend(gone.into_iter().map(|(table, key)| removed(table, key)));
        Ok(())
    }

    /// Whether the table has the column that comes and goes.
    pub(super) fn has_extra(&self, table: &str) -> rusqlite::Result<bool> {
        self.connection
            .prepare_cached("SELECT 1 FROM pragma_table_info(?1) WHERE name = 'extra'")?
            .exists([table])
    }

    fn delete(&mut self, index: usize, touched: &mut Vec<Touched>) -> rusqlite::Result<()> {
        let table = &EDITED[index];
        let Some(key) = self.any_key(table)? else {
            return Ok(());
        };
        let mut gone = vec![(index, key)];
        for (child, it) in EDITED.iter().enumerate() {
            let Some((column, _)) = it.parent.filter(|(_, parent)| *parent == table.name) else {
                continue;
            };
            let sql = format!("SELECT {} FROM {} WHERE {column} = ?1", it.key(), it.name);
            let mut statement = self.connection.prepare_cached(&sql)?;
            for key in statement.query_map([key], |row| row.get(0))? {
                gone.push((child, key?));
            }
        }
        let sql = format!("DELETE FROM {} WHERE {} = ?1", table.name, table.key());
        self.connection.prepare_cached(&sql)?.execute([key])?;
        touched.extend(gone.into_iter().map(|(table, key)| removed(table, key)));
        Ok(())
    }

    /// A row gets another key: one row less, one more.
    fn rekey(
        &mut self,
        index: usize,
        keys: &FreshKeys,
        touched: &mut Vec<Touched>,
    ) -> rusqlite::Result<()> {
        let table = &EDITED[index];
        let Some(before) = self.any_key(table)? else {
            return Ok(());
        };
        let (after, text) = (keys.next(), self.text());
        let (name, key, column) = (table.name, table.key(), table.text);
        let sql = format!("UPDATE {name} SET {key} = ?1, {column} = ?2 WHERE {key} = ?3");
        self.connection
            .prepare_cached(&sql)?
            .execute(params![after, text, before])?;
        for (key, text) in [(before, None), (after, Some(text))] {
            touched.push(Touched {
                table: index,
                key,
                inserted: text.is_some(),
                text,
            });
        }
        Ok(())
    }
}

fn removed(table: usize, key: i64) -> Touched {
    Touched {
        table,
        key,
        text: None,
        inserted: false,
    }
}
