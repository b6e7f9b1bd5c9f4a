//! Columns that the application has added to a synced table. They are never synced, and
//! keep their values when a new schema rebuilds the table, or all of its rows arrive anew.

use rusqlite::Connection;
use tidewater_protocol::Table;

use crate::database::quote;
use crate::database::tables::QuotedNames;
use crate::error::{ErrorContext, RemoteError};

const DOING: &str = "looking at the columns of a table";

/// Where values wait while the rows of a table arrive anew.
const ASIDE: &str = "temp.tidewater_aside";

/// What a table has beside what is published.
#[derive(Debug, Default)]
pub(super) struct OwnColumns {
    columns: Vec<OwnColumn>,
    /// What cannot be made again: generated columns, of which SQLite tells no definition.
    pub(super) lost: Vec<String>,
}

#[derive(Debug)]
struct OwnColumn {
    name: String,
    /// Name and type.
    declared: String,
    default: Option<String>,
    definition: String,
}

impl OwnColumns {
    /// Reads those of a table that is about to change.
    ///
    /// # Errors
    /// The publication has a column of that name now.
    pub(super) fn read(
        connection: &Connection,
        publication: &str,
        old: &Table,
        new: &Table,
    ) -> Result<OwnColumns, RemoteError> {
        let has = |table: &Table, name: &str| {
            let mut columns = table.columns.iter();
            columns.any(|column| column.name.eq_ignore_ascii_case(name))
        };
        let mut own = OwnColumns::default();
        for (name, definition) in read(connection, &old.name).doing(DOING)? {
            if has(old, &name) {
                continue;
            }
            if has(new, &name) {
                return Err(RemoteError::ColumnInTheWay {
                    publication: publication.to_owned(),
                    table: new.name.clone(),
                    column: name,
                });
            }
            match definition {
                Some(found) => own.columns.push(OwnColumn { name, ..found }),
                None => own
                    .lost
                    .push(format!("generated column {name:?} of table {:?}", new.name)),
            }
        }
        Ok(own)
    }

    /// Lets rows do without their values, which those of the centre do not have.
    pub(super) fn relax(&mut self) {
        for column in &mut self.columns {
            let constant = column.default.as_ref().is_some_and(|default| {
                let default = default.to_ascii_uppercase();
                !default.contains('(') && !default.starts_with("CURRENT_")
            });
            column.definition = match &column.default {
                Some(default) if constant => format!("{} DEFAULT {default}", column.declared),
                _ => column.declared.clone(),
            };
        }
    }

    /// Their names.
    pub(super) fn names(&self) -> impl Iterator<Item = String> + '_ {
        self.columns.iter().map(|column| quote::name(&column.name))
    }

    /// The statements that add them to an empty table.
    pub(super) fn add_to(&self, table: &str) -> String {
        quote::list(&self.columns, "", |column| {
            format!("ALTER TABLE {table} ADD COLUMN {};", column.definition)
        })
    }

    /// `, a, b`: their names after those of other columns.
    pub(super) fn after_others(&self) -> String {
        quote::list(&self.columns, "", |column| {
            format!(", {}", quote::name(&column.name))
        })
    }
}

/// The values of own columns while the rows of their table arrive anew.
#[derive(Debug)]
pub(super) struct OwnValues {
    put_back: String,
}

impl OwnValues {
    /// Keeps the values of all rows, if the table has such columns.
    pub(super) fn keep(
        connection: &Connection,
        table: &Table,
    ) -> Result<Option<OwnValues>, RemoteError> {
        let names = QuotedNames::for_table(table);
        let published = |name: &str| {
            let mut columns = table.columns.iter();
            columns.any(|column| column.name.eq_ignore_ascii_case(name))
        };
        let columns = read(connection, &table.name).doing(DOING)?;
        let own = columns
            .iter()
            .filter(|(name, definition)| definition.is_some() && !published(name));
        let own: Vec<String> = own.map(|(name, _)| quote::name(name)).collect();
        if own.is_empty() {
            return Ok(None);
        }
        let keys = quote::list(names.key.iter().enumerate(), ", ", |(at, key)| {
            format!("{key} AS key_{at}")
        });
        let values = quote::list(own.iter().enumerate(), ", ", |(at, own)| {
            format!("{own} AS own_{at}")
        });
        let keep = format!(
            "CREATE TABLE {ASIDE} AS SELECT {keys}, {values} FROM {}",
            names.table
        );
        connection.execute_batch(&keep).doing(DOING)?;
        let sets = quote::list(own.iter().enumerate(), ", ", |(at, own)| {
            format!("{own} = o.own_{at}")
        });
        let same = quote::list(names.key.iter().enumerate(), " AND ", |(at, key)| {
            format!("t.{key} = o.key_{at}")
        });
        Ok(Some(OwnValues {
            put_back: format!(
                "UPDATE {} AS t SET {sets} FROM {ASIDE} AS o WHERE {same}; DROP TABLE {ASIDE};",
                names.table
            ),
        }))
    }

    /// Gives the rows that are there again their values.
    pub(super) fn put_back(self, connection: &Connection) -> Result<(), RemoteError> {
        connection
            .execute_batch(&self.put_back)
            .doing("putting back columns of the application")
    }
}

/// All columns of a table: name, and definition unless it is generated.
fn read(
    connection: &Connection,
    table: &str,
) -> rusqlite::Result<Vec<(String, Option<OwnColumn>)>> {
    connection
        .prepare(
            "SELECT name, type, \"notnull\", dflt_value, hidden FROM pragma_table_xinfo(?1, 'main')",
        )?
        .query_map([table], |row| {
            let name: String = row.get(0)?;
            let column_type: String = row.get(1)?;
            let default: Option<String> = row.get(3)?;
            let declared = format!("{} {column_type}", quote::name(&name));
            let mut definition = declared.clone();
            if let Some(default) = &default {
                definition.push_str(&format!(" DEFAULT ({default})"));
            }
            if row.get(2)? {
                definition.push_str(" NOT NULL");
            }
            let generated = row.get::<_, i64>(4)? > 1;
            let column = OwnColumn {
                name: String::new(),
                declared,
                default,
                definition,
            };
            Ok((name, (!generated).then_some(column)))
        })?
        .collect()
}
