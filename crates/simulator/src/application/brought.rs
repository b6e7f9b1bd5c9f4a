//! Tables that an application had before it ever synced: it brings them along to be adopted.

use rusqlite::{ErrorCode, params};

use super::{Application, FreshKeys};
use crate::scenario::schema;
use crate::tables::{EDITED, HoldingRule, SyncedTable};

/// A row that an application had before it ever synced: its table, its key, its text.
pub(crate) type Brought = (usize, i64, String);

/// How many of a hundred tables that are edited an application does without.
const DOES_WITHOUT: u64 = 30;

impl Application {
    /// Some of the tables as the centre once had them, in a file that has none; with rows of a user
    /// who has these regions: such as everybody began with, changed ones, and others.
    ///
    /// # Errors
    /// Of SQLite.
    pub(crate) fn bring(
        &mut self,
        keys: &FreshKeys,
        regions: &[i64],
    ) -> rusqlite::Result<Vec<Brought>> {
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        self.connection.execute_batch(&schema(false))?;
        for name in ["account", "reserve", "audit", "assignment", "liking"] {
            self.connection
                .execute_batch(&format!("DROP TABLE {name}"))?;
        }
        // Children after their parents, without which they do not stay.
        let mut tables: Vec<usize> = Vec::new();
        let mut without: Vec<usize> = Vec::new();
        for (index, table) in EDITED.iter().enumerate() {
            let has_parent = table
                .reference()
                .is_none_or(|(_, parent)| tables.iter().any(|&it| EDITED[it].name == parent.name));
            match has_parent && !self.random.percent(DOES_WITHOUT) {
                true => tables.push(index),
                false => without.push(index),
            }
        }
        for &index in without.iter().rev() {
            let name = EDITED[index].name;
            self.connection
                .execute_batch(&format!("DROP TABLE {name}"))?;
        }
        for &index in &tables {
            self.make_own(&EDITED[index], keys, regions)?;
        }
        let mut brought = Vec::new();
        for &index in &tables {
            brought.extend(self.brought(index)?);
        }
        self.connection.execute_batch("COMMIT")?;
        Ok(brought)
    }

    /// Changes and deletes rows, and adds one.
    fn make_own(
        &mut self,
        table: &'static SyncedTable,
        keys: &FreshKeys,
        regions: &[i64],
    ) -> rusqlite::Result<()> {
        let (name, key, column) = (table.name, table.key(), table.text);
        let region = match table.columns.contains(&"region") {
            true => "region",
            false => "NULL",
        };
        let sql = format!("SELECT {key}, {region} FROM {name}");
        let rows: Vec<(i64, Option<i64>)> = self
            .connection
            .prepare(&sql)?
            .query_map([], |row| {
                Ok((table.key_is.number(row.get_ref(0)?)?, row.get(1)?))
            })?
            .collect::<rusqlite::Result<_>>()?;
        for (number, region) in rows {
            // What is somebody else's can only be in the file if the application has made it so.
            let is_others = region.is_some_and(|it| !regions.contains(&it));
            // What a window leaves out, and is just as the centre has it, stays: a known limit.
            let must_be_own =
                is_others || matches!(table.held, HoldingRule::Asked | HoldingRule::Recent);
            let value = table.key_is.value(number);
            match self.random.below(100) {
                0..=29 => {
                    let sql = format!("DELETE FROM {name} WHERE {key} = ?1");
                    self.connection.execute(&sql, [value])?;
                }
                chance if chance < 65 || must_be_own => {
                    let text = self.text_that_stays();
                    let sql = format!("UPDATE {name} SET {column} = ?1 WHERE {key} = ?2");
                    self.connection.execute(&sql, params![text, value])?;
                }
                _ => {}
            }
        }
        let key = keys.next();
        if let Some(row) = self.fresh(table, key, None, regions)? {
            match self.write("INSERT", &row, "") {
                // What the centre does not take, these tables do not.
                Err(rusqlite::Error::SqliteFailure(failure, _))
                    if failure.code == ErrorCode::ConstraintViolation => {}
                written => written?,
            }
        }
        Ok(())
    }

    fn text_that_stays(&mut self) -> String {
        self.count += 1;
        format!("by {} {}", self.name, self.count)
    }

    fn brought(&self, index: usize) -> rusqlite::Result<Vec<Brought>> {
        let table = &EDITED[index];
        let (name, key, text) = (table.name, table.key(), table.text);
        self.connection
            .prepare(&format!("SELECT {key}, {text} FROM {name}"))?
            .query_map([], |row| {
                Ok((index, table.key_is.number(row.get_ref(0)?)?, row.get(1)?))
            })?
            .collect()
    }
}
