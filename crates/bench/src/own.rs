//! A configuration and a synced file of the user's own: what is pending in the file, and how it is
//! multiplied over many remotes.
//!
//! The file is only read. What is pending is read as docs/remote-database.md has it.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Context;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Row, params_from_iter};

use crate::error::BadInput;
use crate::gate::{Cell, ColumnReference, PendingTable};
use crate::options::Options;
use crate::sql_name::quoted;

/// See the module.
pub(crate) struct OwnDatabase {
    configuration: toml::Table,
    pub(crate) user: String,
    pub(crate) publications: Vec<String>,
    pub(crate) parameters: Vec<(String, String)>,
    pub(crate) pending: Vec<PendingTable>,
}

impl OwnDatabase {
    pub(crate) fn read(options: &Options) -> anyhow::Result<OwnDatabase> {
        let missing =
            |what: &str, hint: &str| BadInput::error(format!("{what} is not named"), hint);
        let config = options.config.as_ref();
        let config = config.ok_or_else(|| missing("your configuration", "add: -c FILE"))?;
        let remote = options.remote.as_ref();
        let remote = remote.ok_or_else(|| missing("your synced file", "add: --remote FILE"))?;
        if options.consolidated.is_none() {
            let hint = "add --consolidated URL of a copy of your database: it will be changed";
            return Err(missing("the database", hint));
        }
        let cannot = |error: &dyn std::fmt::Display| {
            let message = format!("cannot read {}: {error}", config.display());
            BadInput::error(
                message,
                "check the path, and the file with: tidewater deploy --dry-run",
            )
        };
        let text = std::fs::read_to_string(config).map_err(|error| cannot(&error))?;
        let configuration: toml::Table = text.parse().map_err(|error| cannot(&error))?;
        let file = File::open(remote)?;
        let own = file.read(configuration).map_err(|error| {
            BadInput::error(
                format!(
                    "{} cannot be read as a synced file: {error:#}",
                    remote.display()
                ),
                "name a file that has synced",
            )
        })?;
        if own.pending.is_empty() {
            return Err(BadInput::error(
                format!("nothing is pending in {}", remote.display()),
                "change rows in it, and do not sync it",
            ));
        }
        Ok(own)
    }

    /// The user's publications and limits, with the listener and the database of another one.
    pub(crate) fn configuration(&self, plain: &str) -> anyhow::Result<String> {
        let mut plain: toml::Table = plain.parse()?;
        let mut own = self.configuration.clone();
        if let Some(toml::Value::Table(server)) = plain.get_mut("server") {
            let limits = own.get("server").and_then(|server| server.get("limits"));
            let theirs = limits.and_then(toml::Value::as_table).cloned();
            if let Some(toml::Value::Table(limits)) = server.get_mut("limits") {
                for (name, value) in theirs.unwrap_or_default() {
                    limits.entry(name).or_insert(value);
                }
            }
        }
        for key in ["server", "log"] {
            if let Some(value) = plain.remove(key) {
                own.insert(key.into(), value);
            }
        }
        Ok(toml::to_string(&own)?)
    }
}

/// A synced file.
struct File(Connection);

impl File {
    fn open(path: &Path) -> anyhow::Result<File> {
        let opened = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY);
        let connection = opened.map_err(|error| {
            BadInput::error(
                format!("cannot open {}: {error}", path.display()),
                "check the path",
            )
        })?;
        Ok(File(connection))
    }

    fn read(&self, configuration: toml::Table) -> anyhow::Result<OwnDatabase> {
        let publications = "SELECT publication FROM tidewater_subscription ORDER BY id";
        let parameters = "SELECT DISTINCT name, value FROM tidewater_parameter ORDER BY name";
        let user = self.all("SELECT user FROM tidewater_state", |row| row.get(0))?;
        let tables = "SELECT substr(name, 18) FROM sqlite_master
                      WHERE type = 'table' AND name LIKE 'tidewater\\_change\\_%' ESCAPE '\\'
                      ORDER BY rowid";
        let tables: Vec<String> = self.all(tables, |row| row.get(0))?;
        let mut pending = Vec::new();
        for name in &tables {
            let table = self.table(name)?;
            if !(table.inserts.is_empty() && table.updates.is_empty() && table.deletes.is_empty()) {
                pending.push(table);
            }
        }
        Ok(OwnDatabase {
            configuration,
            user: user.into_iter().next().context("it has no user")?,
            publications: self.all(publications, |row| row.get(0))?,
            parameters: self.all(parameters, |row| Ok((row.get(0)?, row.get(1)?)))?,
            pending,
        })
    }

    fn all<T>(
        &self,
        sql: &str,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        self.0.prepare(sql)?.query_map([], read)?.collect()
    }

    fn table(&self, name: &str) -> anyhow::Result<PendingTable> {
        let change = format!("tidewater_change_{name}");
        let of_change = format!("SELECT name FROM pragma_table_info({})", text(&change));
        let of_change: Vec<String> = self.all(&of_change, |row| row.get(0))?;
        let with = |prefix: &str| {
            let columns = of_change.iter().filter_map(|it| it.strip_prefix(prefix));
            columns.map(str::to_owned).collect::<Vec<String>>()
        };
        let (keys, others) = (with("key_"), with("pre_"));
        // Columns of the application's own are in no pre-image.
        let is_published = |column: &String| keys.contains(column) || others.contains(column);
        let columns = format!("SELECT name FROM pragma_table_info({})", text(name));
        let columns: Vec<String> = self.all(&columns, |row| row.get(0))?;
        let columns: Vec<String> = columns.into_iter().filter(is_published).collect();
        let position = |column: &str| columns.iter().position(|it| it == column);
        let key: Option<Vec<usize>> = keys.iter().map(|column| position(column)).collect();

        let references = format!(
            "SELECT \"from\", \"table\", \"to\" FROM pragma_foreign_key_list({})",
            text(name)
        );
        let read = |row: &Row<'_>| {
            let (from, table, to): (String, String, Option<String>) =
                (row.get(0)?, row.get(1)?, row.get(2)?);
            let column = position(&from);
            Ok(column
                .zip(to)
                .map(|(column, to)| ColumnReference { column, table, to }))
        };
        let mut table = PendingTable {
            name: name.to_owned(),
            key: key.with_context(|| format!("the table {name} has not all columns of its key"))?,
            references: self.all(&references, read)?.into_iter().flatten().collect(),
            columns,
            inserts: Vec::new(),
            updates: Vec::new(),
            deletes: Vec::new(),
        };
        self.fill(&mut table, &change, &keys)?;
        Ok(table)
    }

    /// Only the first change of a key tells whether there was a row before.
    fn fill(&self, table: &mut PendingTable, change: &str, keys: &[String]) -> anyhow::Result<()> {
        let list = |prefix: &str, names: &[String]| {
            let names = names.iter();
            let names = names.map(|it| quoted(&format!("{prefix}{it}")));
            names.collect::<Vec<_>>().join(", ")
        };
        let same = keys.iter().map(|key| {
            let of_change = quoted(&format!("key_{key}"));
            format!("c.{of_change} = t.{}", quoted(key))
        });
        let same = same.collect::<Vec<_>>().join(" AND ");
        let columns = table.columns.iter().map(|it| format!("t.{}", quoted(it)));
        let sql = format!(
            "SELECT c.present, t.{first} IS NOT NULL, {keys}, {columns}
             FROM (SELECT {keys}, present, min(generation) FROM {change} GROUP BY {keys}) AS c
             LEFT JOIN {name} AS t ON {same}",
            first = quoted(&keys[0]),
            keys = list("key_", keys),
            columns = columns.collect::<Vec<_>>().join(", "),
            change = quoted(change),
            name = quoted(&table.name),
        );
        let (keys, columns) = (keys.len(), table.columns.len());
        let cells = |row: &Row<'_>, from: usize, count: usize| {
            let cells = (from..from + count).map(|column| Ok(cell(row.get_ref(column)?)));
            cells.collect::<rusqlite::Result<Vec<Cell>>>()
        };
        let read = |row: &Row<'_>| {
            let was: bool = row.get(0)?;
            let is: bool = row.get(1)?;
            Ok((
                was,
                is,
                cells(row, 2, keys)?,
                cells(row, 2 + keys, columns)?,
            ))
        };
        for (was, is, key, row) in self.all(&sql, read)? {
            match (was, is) {
                (false, true) => table.inserts.push(row),
                (true, true) => table.updates.push(row),
                (true, false) => table.deletes.push(key),
                (false, false) => {}
            }
        }
        Ok(())
    }
}

fn text(name: &str) -> String {
    format!("'{}'", name.replace('\'', "''"))
}

fn cell(value: ValueRef<'_>) -> Cell {
    match value {
        ValueRef::Null => Cell::Null,
        ValueRef::Integer(number) => Cell::Integer(number),
        ValueRef::Real(number) => Cell::Real(number),
        ValueRef::Text(text) => Cell::Text(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => Cell::Blob(bytes.to_vec()),
    }
}

/// What is pending, as one of many remotes has it: inserted rows have keys of their own, and
/// whatever refers to them follows.
pub(crate) struct MultipliedChanges {
    /// By table and column, what a value of an inserted key has become.
    renamed: HashMap<(String, String), HashMap<String, Cell>>,
}

impl MultipliedChanges {
    /// The same for the remote with this number, one of so many, in a file that has what earlier runs
    /// have left in the centre: with the first keys that the file has not, and that no other remote
    /// of the run takes.
    pub(crate) fn in_file(
        tables: &[PendingTable],
        file: &Connection,
        number: u32,
        remotes: u32,
    ) -> rusqlite::Result<MultipliedChanges> {
        let mut number = number;
        loop {
            let multiplied = MultipliedChanges::new(tables, number);
            if !multiplied.meets_rows(tables, file)? {
                return Ok(multiplied);
            }
            number = match number.checked_add(remotes.max(1)) {
                Some(next) => next,
                None => return Ok(multiplied),
            };
        }
    }

    pub(crate) fn new(tables: &[PendingTable], number: u32) -> MultipliedChanges {
        let mut renamed = HashMap::new();
        for table in tables.iter().filter(|_| number > 0) {
            let Some(column) = own_column(table) else {
                continue;
            };
            let values = table.inserts.iter().map(|row| &row[column]);
            let numbers = values.clone().filter_map(|cell| match cell {
                Cell::Integer(number) => Some(*number),
                _ => None,
            });
            let (least, most) = (numbers.clone().min(), numbers.max());
            let span = most
                .zip(least)
                .map_or(1, |(most, least)| most.wrapping_sub(least));
            let step = span.wrapping_add(1).wrapping_mul(i64::from(number));
            let values = values.map(|cell| (spelled(cell), other(cell, number, step)));
            let key = (table.name.clone(), table.columns[column].clone());
            renamed.insert(key, values.collect());
        }
        MultipliedChanges { renamed }
    }

    /// Whether a file has a row already under a key that is made for it.
    fn meets_rows(&self, tables: &[PendingTable], file: &Connection) -> rusqlite::Result<bool> {
        for table in tables.iter().filter(|it| own_column(it).is_some()) {
            for row in &table.inserts {
                if is_in(table, &self.insert(table, row), file)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// An inserted row.
    pub(crate) fn insert(&self, table: &PendingTable, row: &[Cell]) -> Vec<Cell> {
        let mut row = row.to_vec();
        for (column, cell) in row.iter_mut().enumerate() {
            let reference = table.references.iter().find(|it| it.column == column);
            let key = match reference {
                Some(it) => (it.table.clone(), it.to.clone()),
                None => (table.name.clone(), table.columns[column].clone()),
            };
            let renamed = self.renamed.get(&key);
            if let Some(now) = renamed.and_then(|it| it.get(&spelled(cell))) {
                *cell = now.clone();
            }
        }
        row
    }
}

/// The column of the key that makes inserted rows others: one that refers to another table follows
/// that.
fn own_column(table: &PendingTable) -> Option<usize> {
    let refers = |column: &usize| table.references.iter().any(|it| it.column == *column);
    table.key.iter().rev().find(|it| !refers(it)).copied()
}

/// Whether a file has a row with the key of this one.
pub(crate) fn is_in(
    table: &PendingTable,
    row: &[Cell],
    file: &Connection,
) -> rusqlite::Result<bool> {
    let key = table.key.iter().zip(1..);
    let key = key.map(|(&it, at)| format!("{} = ?{at}", quoted(&table.columns[it])));
    let sql = format!(
        "SELECT 1 FROM {} WHERE {}",
        quoted(&table.name),
        key.collect::<Vec<_>>().join(" AND ")
    );
    let mut found = file.prepare_cached(&sql)?;
    found.exists(params_from_iter(table.key.iter().map(|&it| &row[it])))
}

/// A value as something that can be looked up, which a floating-point number cannot.
fn spelled(cell: &Cell) -> String {
    format!("{cell:?}")
}

/// Another value than this one, of the same form.
fn other(cell: &Cell, number: u32, step: i64) -> Cell {
    match cell {
        Cell::Integer(value) => Cell::Integer(value.wrapping_add(step)),
        Cell::Text(value) if is_uuid(value) => {
            // Its last eight digits count the remotes.
            let (rest, last) = value.split_at(28);
            let last = u32::from_str_radix(last, 16).unwrap_or(0) ^ number;
            Cell::Text(format!("{rest}{last:08x}"))
        }
        Cell::Text(value) => Cell::Text(format!("{value}-{number}")),
        Cell::Blob(bytes) => {
            let mut bytes = bytes.clone();
            for (byte, more) in bytes.iter_mut().rev().zip(number.to_le_bytes()) {
                *byte ^= more;
            }
            Cell::Blob(bytes)
        }
        Cell::Null | Cell::Real(_) => cell.clone(),
    }
}

fn is_uuid(text: &str) -> bool {
    let is_right = |(index, byte): (usize, u8)| match index {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == 36 && text.bytes().enumerate().all(is_right)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders() -> Vec<PendingTable> {
        let table = |name: &str, columns: &[&str], inserts: Vec<Vec<Cell>>| PendingTable {
            name: name.into(),
            columns: columns.iter().map(|&it| it.to_owned()).collect(),
            key: vec![0],
            references: Vec::new(),
            inserts,
            updates: Vec::new(),
            deletes: Vec::new(),
        };
        let mut lines = table(
            "line",
            &["order_id", "number", "note"],
            vec![vec![Cell::Integer(11), Cell::Integer(1), Cell::Integer(11)]],
        );
        lines.key = vec![0, 1];
        lines.references = vec![ColumnReference {
            column: 0,
            table: "order".into(),
            to: "id".into(),
        }];
        let order = |id| vec![Cell::Integer(id)];
        vec![
            table("order", &["id"], vec![order(10), order(12), order(11)]),
            lines,
        ]
    }

    #[test]
    fn a_second_run_takes_keys_that_the_first_one_has_not() {
        let tables = orders();
        let file = Connection::open_in_memory().unwrap();
        file.execute_batch(
            "CREATE TABLE \"order\" (id INTEGER PRIMARY KEY);
             CREATE TABLE line (order_id INT, number INT, note INT, PRIMARY KEY (order_id, number));",
        )
        .unwrap();
        let keys = |number| {
            let multiplied = MultipliedChanges::in_file(&tables, &file, number, 2).unwrap();
            let rows = tables[0].inserts.iter();
            let rows = rows.map(|row| multiplied.insert(&tables[0], row)[0].clone());
            rows.collect::<Vec<Cell>>()
        };
        let integers = |keys: [i64; 3]| keys.map(Cell::Integer);
        assert_eq!(keys(0), integers([10, 12, 11]));
        assert_eq!(keys(1), integers([13, 15, 14]));
        file.execute_batch("INSERT INTO \"order\" VALUES (12), (15)")
            .unwrap();
        assert_eq!(keys(0), integers([16, 18, 17]));
        assert_eq!(keys(1), integers([19, 21, 20]));
    }

    #[test]
    fn inserted_rows_have_keys_of_their_own_and_children_follow() {
        let tables = orders();
        let first = MultipliedChanges::new(&tables, 0);
        assert_eq!(
            first.insert(&tables[0], &tables[0].inserts[0]),
            [Cell::Integer(10)]
        );
        let third = MultipliedChanges::new(&tables, 2);
        assert_eq!(
            third.insert(&tables[0], &tables[0].inserts[0]),
            [Cell::Integer(16)]
        );
        assert_eq!(
            third.insert(&tables[1], &tables[1].inserts[0]),
            [Cell::Integer(17), Cell::Integer(3), Cell::Integer(11)]
        );
    }

    #[test]
    fn other_values_have_the_form_of_the_first() {
        let uuid = Cell::Text("123e4567-e89b-12d3-a456-426614174000".into());
        let text = |text: &str| Cell::Text(text.into());
        assert_eq!(
            other(&uuid, 1, 5),
            text("123e4567-e89b-12d3-a456-426614174001")
        );
        assert_eq!(other(&text("a"), 3, 5), text("a-3"));
        assert_eq!(
            other(&Cell::Blob(vec![1, 2]), 256 + 2, 5),
            Cell::Blob(vec![0, 0])
        );
    }
}
