//! A row that the application inserted under a key that is another row's in the centre: it gets a new
//! key, and what refers to it here follows.
//!
//! All is written as an application writes it, so that the triggers record it. Only rows of this
//! remote follow: those that it inserted, or changed to refer. What else refers to the key belongs to
//! the centre's row.

use std::collections::{HashSet, VecDeque};

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use tidewater_protocol::{ColumnType, Fit, ForeignKey, PublicationSchema, Table, Value};

use super::{
    RefusedRow, RemoteDatabase, exists, find, kept_values, key_in, load_all, run, value_of,
};
use crate::database::conflicts::{ConflictedChange, as_application, take_off};
use crate::database::tables::QuotedNames;
use crate::database::{numbers, quote, row};
use crate::error::{ErrorContext, RemoteError};

/// What to do where a key cannot be found by itself.
const SAY_IT: &str = "say which: --new-key KEY, of several columns a JSON array";

/// Why a row cannot have a new key.
enum KeyObstacle {
    /// What is wrong, and what to do.
    Wrong(String, &'static str),
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for KeyObstacle {
    fn from(error: rusqlite::Error) -> KeyObstacle {
        KeyObstacle::Sqlite(error)
    }
}

type KeyResult<T> = Result<T, KeyObstacle>;

impl RemoteDatabase {
    /// Gives a refused insert a new key, and has it and what refers to it go up with the next sync.
    /// `key`: the key, of several columns as a JSON array; `None`: the next number of a table with
    /// numbers, or a random UUID. The key that it got, as a JSON array.
    ///
    /// # Errors
    /// There is no such insert, it cannot have another key, and why; the file is locked, or SQLite
    /// failed.
    pub fn renumber_refused(&mut self, id: i64, key: Option<&str>) -> Result<String, RemoteError> {
        let doing = "giving a refused row a new key";
        let entry = self.refused()?.into_iter().find(|it| it.id == id);
        let entry = entry.ok_or_else(|| RemoteError::Usage {
            what: format!("there is no refused change {id}; nothing was changed"),
            hint: "see: tidewater refused list FILE".into(),
        })?;
        let subscriptions = load_all(&self.connection)?;
        let found = find(&self.connection, &subscriptions, &entry).doing(doing)?;
        let parked = found.and_then(|it| it.parked);
        let parked = parked.filter(|_| entry.operation == "insert");
        let schema = subscriptions.iter().find_map(|it| {
            let is_its = it.publication == entry.publication;
            it.schema.as_deref().filter(|_| is_its)
        });
        let (Some(parked), Some(schema)) = (parked, schema) else {
            let what = "only a row that was inserted here, and is here, can have a new key";
            return Err(entry.cannot_have_new_key(what, "retry it, edit it, or discard it"));
        };
        let mut application = as_application(&self.path).doing(doing)?;
        // What refers to the key may be the centre's row's.
        let unchecked = application.pragma_update(None, "foreign_keys", false);
        unchecked.doing(doing)?;
        let transaction = application
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .doing(doing)?;
        let written = (|| {
            let new = choose(&transaction, parked.table, &parked.key, key)?;
            let family = RowFamily {
                connection: &transaction,
                schema,
            };
            family.renumber(parked.table, parked.key.clone(), new.clone())?;
            Ok(readable(parked.table, &new))
        })();
        match written {
            Ok(new) => transaction.commit().doing(doing).map(|()| new),
            Err(KeyObstacle::Wrong(what, hint)) => Err(entry.cannot_have_new_key(&what, hint)),
            Err(KeyObstacle::Sqlite(error)) => match error.sqlite_error_code() {
                Some(rusqlite::ErrorCode::ConstraintViolation) => Err(entry.cannot_have_new_key(
                    &error.to_string(),
                    "write the rows as the table takes them",
                )),
                _ => Err(RemoteError::sqlite(doing, error)),
            },
        }
    }

    /// Writes an insert that lost as a conflict once more, under a new key, and takes the conflict off
    /// the list; see [`Self::renumber_refused`].
    ///
    /// # Errors
    /// There is no such insert, it cannot have another key, and why; the file is locked, or SQLite
    /// failed.
    pub fn renumber_conflict(&mut self, id: i64, key: Option<&str>) -> Result<String, RemoteError> {
        let doing = "giving a row a new key";
        let conflict = self.conflicts()?.into_iter().find(|it| it.id == id);
        let conflict = conflict.ok_or_else(|| RemoteError::Usage {
            what: format!("there is no conflict {id}; nothing was changed"),
            hint: "see: tidewater conflicts list FILE".into(),
        })?;
        let subscriptions = load_all(&self.connection)?;
        let table = subscriptions.iter().find_map(|subscription| {
            let schema = subscription.schema.as_deref()?;
            schema.table(&conflict.table)
        });
        let mine = conflict.mine.as_deref().and_then(kept_values);
        let mine = mine.filter(|_| conflict.operation == "insert");
        let (Some(table), Some(mine)) = (table, mine) else {
            let what = "only a row that was inserted here can have a new key";
            return Err(conflict.cannot_have_new_key(what, "apply it as it is, or dismiss it"));
        };
        let mut application = as_application(&self.path).doing(doing)?;
        let transaction = application
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .doing(doing)?;
        let written = (|| {
            let old = key_in(table, &mine).ok_or_else(|| {
                let what = "its table has another key now".to_owned();
                KeyObstacle::Wrong(what, "write the row by hand")
            })?;
            let new = choose(&transaction, table, &old, key)?;
            insert(&transaction, table, &mine, &new)?;
            take_off(&transaction, id)?;
            Ok(readable(table, &new))
        })();
        match written {
            Ok(new) => transaction.commit().doing(doing).map(|()| new),
            Err(KeyObstacle::Wrong(what, hint)) => Err(conflict.cannot_have_new_key(&what, hint)),
            Err(KeyObstacle::Sqlite(error)) => match error.sqlite_error_code() {
                Some(rusqlite::ErrorCode::ConstraintViolation) => {
                    Err(conflict.cannot_have_new_key(&error.to_string(), "write the row by hand"))
                }
                _ => Err(RemoteError::sqlite(doing, error)),
            },
        }
    }
}

impl RefusedRow {
    fn cannot_have_new_key(&self, what: &str, hint: &str) -> RemoteError {
        RemoteError::Usage {
            what: format!(
                "refused change {} ({} {} {}) cannot have a new key: {what}; nothing was changed",
                self.id, self.operation, self.table, self.key
            ),
            hint: hint.to_owned(),
        }
    }
}

impl ConflictedChange {
    fn cannot_have_new_key(&self, what: &str, hint: &str) -> RemoteError {
        RemoteError::Usage {
            what: format!(
                "conflict {} ({} {} {}) cannot have a new key: {what}; nothing was changed",
                self.id, self.operation, self.table, self.key
            ),
            hint: hint.to_owned(),
        }
    }
}

fn readable(table: &Table, key: &[Value]) -> String {
    row::readable_key(&row::datums(&row::key_types(table), key))
}

/// The key that a row gets.
fn choose(
    connection: &Connection,
    table: &Table,
    old: &[Value],
    given: Option<&str>,
) -> KeyResult<Vec<Value>> {
    let new = match given {
        Some(given) => read_key(table, given).map_err(|what| KeyObstacle::Wrong(what, SAY_IT))?,
        None => next_key(connection, table, old)?,
    };
    if exists(connection, &QuotedNames::for_table(table), &new)? {
        let what = format!("there is a row {} already", readable(table, &new));
        return Err(KeyObstacle::Wrong(what, SAY_IT));
    }
    Ok(new)
}

/// Reads a key as people write it.
fn read_key(table: &Table, given: &str) -> Result<Vec<Value>, String> {
    let types = row::key_types(table);
    let given: Vec<serde_json::Value> = match types.as_slice() {
        [_] => vec![serde_json::Value::String(given.to_owned())],
        _ => serde_json::from_str(given)
            .map_err(|_| format!("{given:?} is no JSON array of {} values", types.len()))?,
    };
    if given.len() != types.len() {
        return Err(format!("the key has {} columns", types.len()));
    }
    let value = |(&column_type, given): (&ColumnType, &serde_json::Value)| {
        let value = match (column_type, given.as_str().map(str::parse)) {
            (ColumnType::Integer, Some(Ok(number))) => Value::Integer(number),
            _ => value_of(column_type, given),
        };
        let (datum, fit) = column_type.datum(value.as_ref());
        match fit {
            Fit::Unfit => Err(format!("{given} is no value of the key")),
            _ if value == Value::Null => Err("no column of a key is NULL".to_owned()),
            _ => Ok(datum.to_value()),
        }
    };
    types.iter().zip(&given).map(value).collect()
}

/// The key that a table gives by itself: its number, or a random UUID.
fn next_key(connection: &Connection, table: &Table, old: &[Value]) -> KeyResult<Vec<Value>> {
    let mut key = old.to_vec();
    let numbered = table.identity.as_ref().map(|it| it.column);
    if let Some(place) = table.key.iter().position(|it| Some(*it) == numbered) {
        numbers::pass_over_taken(connection, table)?;
        let next = connection
            .query_row(
                "SELECT next FROM tidewater_identity_block WHERE table_name = ?1 \
                 AND next <= last ORDER BY next LIMIT 1",
                [&table.name],
                |row| row.get(0),
            )
            .optional()?;
        let Some(next) = next else {
            let what = "its table has no numbers left".to_owned();
            return Err(KeyObstacle::Wrong(what, "sync to get more, and try again"));
        };
        key[place] = Value::Integer(next);
        return Ok(key);
    }
    let uuids = table.key.iter().enumerate();
    let mut uuids = uuids.filter(|it| table.columns[*it.1].column_type == ColumnType::Uuid);
    let (Some((place, _)), None) = (uuids.next(), uuids.next()) else {
        let what = "its table has neither numbers of its own nor UUIDs".to_owned();
        return Err(KeyObstacle::Wrong(what, SAY_IT));
    };
    let random: String =
        connection.query_row("SELECT hex(randomblob(16))", [], |row| row.get(0))?;
    // The version and the variant of a random UUID: RFC 9562, section 5.4.
    let (ten, rest) = (&random[..12], &random[13..16]);
    let text = format!(
        "{}-{}-4{rest}-a{}-{}",
        &ten[..8],
        &ten[8..12],
        &random[17..20],
        &random[20..]
    );
    let (datum, _) = ColumnType::Uuid.datum(tidewater_protocol::ValueRef::Text(&text));
    key[place] = datum.to_value();
    Ok(key)
}

/// Inserts a row under another key than it had.
fn insert(
    connection: &Connection,
    table: &Table,
    mine: &serde_json::Map<String, serde_json::Value>,
    key: &[Value],
) -> rusqlite::Result<()> {
    let names = QuotedNames::for_table(table);
    let columns = table.columns.iter().enumerate();
    let others: Vec<(usize, Value)> = columns
        .filter(|(at, _)| !table.key.contains(at))
        .filter_map(|(at, column)| {
            let value = mine.get(&column.name)?;
            Some((at, value_of(column.column_type, value)))
        })
        .collect();
    let columns = others.iter().map(|(at, _)| &names.columns[*at]);
    let columns: Vec<&String> = names.key.iter().chain(columns).collect();
    let sql = format!(
        "INSERT INTO {} ({}) VALUES ({})",
        names.table,
        quote::list(&columns, ", ", |it| (*it).clone()),
        quote::list(1..=columns.len(), ", ", |n| format!("?{n}")),
    );
    let values = others.iter().map(|(_, value)| value);
    run(connection, &names, &sql, key, values).map(drop)
}

/// Rows of this remote that refer to each other.
pub(super) struct RowFamily<'f> {
    pub(super) connection: &'f Connection,
    pub(super) schema: &'f PublicationSchema,
}

impl RowFamily<'_> {
    /// Gives a row another key, and has what refers to it follow, to any depth.
    fn renumber(&self, table: &Table, old: Vec<Value>, new: Vec<Value>) -> rusqlite::Result<()> {
        let mut waiting = VecDeque::from([(table, old, new)]);
        while let Some((table, old, new)) = waiting.pop_front() {
            let key: Vec<(usize, &Value)> = table.key.iter().copied().zip(&new).collect();
            self.write(table, &old, &key)?;
            for child in &self.schema.tables {
                let references = child.foreign_keys.iter();
                for reference in references.filter(|it| it.parent == table.name) {
                    let Some(places) = places_in_key(table, reference) else {
                        continue;
                    };
                    for child_key in self.own_children(child, reference, &places, &old)? {
                        let referring = reference.columns.iter().zip(&places);
                        let referring: Vec<(usize, &Value)> =
                            referring.map(|(&column, &at)| (column, &new[at])).collect();
                        let moved: Vec<Value> = child
                            .key
                            .iter()
                            .zip(&child_key)
                            .map(|(column, was)| {
                                let to = referring.iter().find(|it| it.0 == *column);
                                to.map_or(was, |it| it.1).clone()
                            })
                            .collect();
                        match moved == child_key {
                            true => self.write(child, &child_key, &referring)?,
                            false => {
                                let others = referring.iter().copied();
                                let others: Vec<(usize, &Value)> =
                                    others.filter(|it| !child.key.contains(&it.0)).collect();
                                if !others.is_empty() {
                                    self.write(child, &child_key, &others)?;
                                }
                                waiting.push_back((child, child_key, moved));
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Table and key of a row of this remote that refers to one, and is none of `others`.
    pub(super) fn child_but(
        &self,
        table: &Table,
        key: &[Value],
        others: &HashSet<(String, Vec<u8>)>,
    ) -> rusqlite::Result<Option<(String, String)>> {
        for child in &self.schema.tables {
            let references = child.foreign_keys.iter();
            for reference in references.filter(|it| it.parent == table.name) {
                let Some(places) = places_in_key(table, reference) else {
                    continue;
                };
                let types = row::key_types(child);
                for found in self.own_children(child, reference, &places, key)? {
                    let packed = row::pack_key(&types, &row::datums(&types, &found));
                    if !others.contains(&(child.name.clone(), packed)) {
                        return Ok(Some((child.name.clone(), readable(child, &found))));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Writes some columns of a row.
    fn write(
        &self,
        table: &Table,
        key: &[Value],
        columns: &[(usize, &Value)],
    ) -> rusqlite::Result<()> {
        let names = QuotedNames::for_table(table);
        let first = key.len() + 1;
        let set = quote::list(columns.iter().enumerate(), ", ", |(number, (column, _))| {
            format!("{} = ?{}", names.columns[*column], first + number)
        });
        let sql = format!(
            "UPDATE {} SET {set} WHERE {}",
            names.table,
            names.key_is_bound()
        );
        let values = columns.iter().map(|it| it.1);
        run(self.connection, &names, &sql, key, values).map(drop)
    }

    /// The keys of rows that refer to a key, and that this remote has inserted or changed to do so.
    fn own_children(
        &self,
        child: &Table,
        reference: &ForeignKey,
        places: &[usize],
        parent: &[Value],
    ) -> rusqlite::Result<Vec<Vec<Value>>> {
        let names = QuotedNames::for_table(child);
        let refers = quote::list(
            reference.columns.iter().enumerate(),
            " AND ",
            |(n, &column)| format!("c.{} = ?{}", names.columns[column], n + 1),
        );
        // What is of the key was so before, too.
        let differed = reference.columns.iter().filter_map(|column| {
            let place = names.values.iter().position(|it| it == column)?;
            Some(format!(
                " OR h.{} IS NOT c.{}",
                names.pre[place], names.columns[*column]
            ))
        });
        let oldest = names.change_of("o", "c");
        let sql = format!(
            "SELECT {} FROM {} AS c JOIN {change} AS h ON {} WHERE {refers} \
             AND h.generation = (SELECT min(o.generation) FROM {change} AS o WHERE {oldest}) \
             AND (NOT h.present{})",
            quote::list(&names.key, ", ", |key| format!("c.{key}")),
            names.table,
            names.change_of("h", "c"),
            differed.collect::<String>(),
            change = names.change,
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        for (number, &at) in places.iter().enumerate() {
            statement.raw_bind_parameter(number + 1, row::BoundValue::new(parent[at].as_ref()))?;
        }
        let mut found = statement.raw_query();
        let mut keys = Vec::new();
        while let Some(found) = found.next()? {
            keys.push(row::owned(found, 0, child.key.len())?);
        }
        Ok(keys)
    }
}

/// Where the columns that are referred to are in the key; `None` if one of them is not.
fn places_in_key(parent: &Table, reference: &ForeignKey) -> Option<Vec<usize>> {
    let places = reference.parent_columns.iter().map(|name| {
        let mut key = parent.key_columns();
        key.position(|column| column.name == *name)
    });
    places.collect()
}
