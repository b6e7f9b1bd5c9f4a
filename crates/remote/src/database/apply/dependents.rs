//! What of the application's reads or writes synced tables from outside of them: views, and
//! triggers of its own tables. A new schema leaves them as they are; those that do not
//! compile under it any more are found here, to be told. What belongs to the synced tables
//! themselves is set aside and restored by others.

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::database::layout::PREFIX;
use crate::database::quote;

/// What compiled before a migration.
#[derive(Debug, Default)]
pub(super) struct Dependents {
    /// Statements that need it to compile, and its own SQL.
    sound: Vec<(Vec<String>, String)>,
}

impl Dependents {
    /// Finds out what compiles. `synced`: the tables that are not looked at.
    pub(super) fn read(
        connection: &Connection,
        synced: &dyn Fn(&str) -> bool,
    ) -> rusqlite::Result<Dependents> {
        let mut candidates = Vec::new();
        let mut statement = connection.prepare(
            "SELECT type, name, tbl_name, sql FROM sqlite_master \
             WHERE type IN ('view', 'trigger') ORDER BY rowid",
        )?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (kind, name): (String, String) = (row.get(0)?, row.get(1)?);
            let (table, sql): (String, String) = (row.get(2)?, row.get(3)?);
            if name.starts_with(PREFIX) {
                continue;
            }
            if kind == "view" {
                let name = quote::name(&name);
                candidates.push((vec![format!("SELECT * FROM {name}")], sql));
            } else if !synced(&table) {
                candidates.push((firing(connection, &table)?, sql));
            }
        }
        let triggers = TriggerSwitch::on(connection)?;
        candidates.retain(|(statements, _)| compile(connection, statements));
        triggers.back(connection)?;
        Ok(Dependents { sound: candidates })
    }

    /// The SQL of what does not compile any more.
    pub(super) fn broken(self, connection: &Connection) -> rusqlite::Result<Vec<String>> {
        if self.sound.is_empty() {
            return Ok(Vec::new());
        }
        let triggers = TriggerSwitch::on(connection)?;
        let broken = self.sound.into_iter();
        let broken = broken.filter(|(statements, _)| !compile(connection, statements));
        let broken = broken.map(|(_, sql)| sql).collect();
        triggers.back(connection)?;
        Ok(broken)
    }
}

fn compile(connection: &Connection, statements: &[String]) -> bool {
    statements.iter().all(|sql| connection.prepare(sql).is_ok())
}

/// Whether writing to a table fires something that names a column which is not there.
pub(super) fn lacks_column(connection: &Connection, table: &str) -> rusqlite::Result<bool> {
    let statements = firing(connection, table)?;
    let triggers = TriggerSwitch::on(connection)?;
    let lacks = statements.iter().any(|sql| {
        let error = connection.prepare(sql).err();
        error.is_some_and(|error| error.to_string().contains("no such column"))
    });
    triggers.back(connection)?;
    Ok(lacks)
}

/// Statements that fire every trigger of a table.
fn firing(connection: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    let columns = connection
        .prepare("SELECT name FROM pragma_table_info(?1)")?
        .query_map([table], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<String>>>()?;
    let table = quote::name(table);
    let sets = quote::list(&columns, ", ", |column| {
        let column = quote::name(column);
        format!("{column} = {column}")
    });
    Ok(vec![
        format!("INSERT INTO {table} DEFAULT VALUES"),
        format!("UPDATE {table} SET {sets}"),
        format!("DELETE FROM {table}"),
    ])
}

/// Triggers are only compiled while they are switched on.
struct TriggerSwitch {
    before: bool,
}

impl TriggerSwitch {
    fn on(connection: &Connection) -> rusqlite::Result<TriggerSwitch> {
        let before = connection.db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, true)?;
        Ok(TriggerSwitch { before })
    }

    fn back(self, connection: &Connection) -> rusqlite::Result<()> {
        connection
            .set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, self.before)
            .map(drop)
    }
}
