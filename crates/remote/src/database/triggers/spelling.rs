//! Keys of a synced table that a tool made without our CHECKs. Two spellings of a key would be
//! two rows here, and one in the centre. So triggers take the place of the CHECKs, and keys that
//! are there already are spelled as the centre spells them.

use std::collections::BTreeSet;

use rusqlite::Connection;
use serde_json::{Map, Value as Json};
use tidewater_protocol::{Code, Datum, Fit, Table, Value};

use crate::database::changes::PARKED;
use crate::database::refused::{self, NewRefusal};
use crate::database::row::read_keys;
use crate::database::tables::{QuotedNames, canonical, canonical_name, key_checks};
use crate::database::{SubscriptionState, quote, row};
use crate::error::{ErrorContext, RemoteError};

use super::altered_tables;

const DOING: &str = "spelling keys as the centre does";

/// Why the values of a row with a misspelt key are among the refused.
const TWICE: &str =
    "the row's key is that of another row here, in another spelling; that one counts";

/// Whether a synced table accepts keys that are not in canonical form.
pub(super) fn is_unchecked(connection: &Connection, table: &Table) -> Result<bool, RemoteError> {
    let sql: String = connection
        .prepare_cached(
            "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?1 COLLATE NOCASE",
        )
        .and_then(|mut statement| statement.query_row([&table.name], |row| row.get(0)))
        .doing(DOING)?;
    Ok(key_checks(table, "").any(|(_, check)| !sql.contains(&check)))
}

/// The statements of a trigger that tells the application, as a CHECK would; `new` is the row.
pub(super) fn tell_misspelt(table: &Table) -> String {
    key_checks(table, "NEW.")
        .map(|(column, check)| {
            let told = format!("CHECK constraint failed: {}", canonical_name(column));
            let told = quote::text(&told);
            let new = format!("NEW.{}", quote::name(&column.name));
            // In the place of NULL, REPLACE puts the default.
            format!("  SELECT RAISE(ABORT, {told}) WHERE {new} IS NOT NULL AND NOT ({check});\n")
        })
        .collect()
}

/// Spells the keys of a table that nothing tracks at the moment, of what is recorded of its rows,
/// and of the rows that refer to them. Where the row of the right spelling is there as well, it
/// counts; the other's values are kept among the refused rows. A key that is none, and one that a
/// rule of the application holds fast, stay as they are. Whether there was anything to spell.
pub(super) fn respell(
    connection: &Connection,
    subscription: &SubscriptionState,
    table: &Table,
) -> Result<bool, RemoteError> {
    let names = QuotedNames::for_table(table);
    let types = row::key_types(table);
    let is_misspelt = |keys: &[String]| {
        quote::list(types.iter().zip(keys), " OR ", |(column_type, key)| {
            format!("NOT ({})", canonical::check(*column_type, key))
        })
    };
    let sql = format!(
        "SELECT {} FROM {} WHERE {} UNION SELECT {} FROM {} WHERE {}",
        names.key.join(", "),
        names.table,
        is_misspelt(&names.key),
        names.change_key.join(", "),
        names.change,
        is_misspelt(&names.change_key),
    );
    let mut respelt = false;
    for misspelt in read_keys(connection, &sql, &[], table).doing(DOING)? {
        let pairs = types.iter().zip(&misspelt);
        let (key, fits): (Vec<Datum<'_>>, Vec<Fit>) = pairs
            .map(|(column_type, value)| column_type.datum(value.as_ref()))
            .unzip();
        if fits.contains(&Fit::Unfit) {
            continue;
        }
        let right: Vec<Value> = key.iter().map(Datum::to_value).collect();
        if right == misspelt {
            continue;
        }
        let is_twin = exists(connection, &names, &right).doing(DOING)?;
        let spelled = if is_twin {
            keep(connection, subscription, table, (&names, &misspelt, &key)).doing(DOING)?;
            let sql = format!("DELETE FROM {} WHERE {}", names.table, names.key_is_bound());
            run(connection, &names, &sql, &misspelt, &[])
        } else {
            let set = assign(&names.key);
            let key_is = names.key_is_bound();
            let sql = format!("UPDATE {} SET {set} WHERE {key_is}", names.table);
            run(connection, &names, &sql, &misspelt, &right)
        };
        if is_forbidden(&spelled) {
            continue;
        }
        spelled.doing(DOING)?;
        move_changes(connection, &names, (&misspelt, &right), is_twin).doing(DOING)?;
        respelt = true;
    }
    if respelt {
        respell_references(connection, subscription, table)?;
    }
    Ok(respelt)
}

/// `a = ?3, b = ?4`, after as many parameters for the columns' old values.
fn assign(columns: &[String]) -> String {
    let first = columns.len() + 1;
    quote::list(columns.iter().enumerate(), ", ", |(at, column)| {
        format!("{column} = ?{}", first + at)
    })
}

/// What is recorded of a row goes with it. Where the row of the right spelling counts, nothing of
/// the other goes up; what was refused of it stays so.
fn move_changes(
    connection: &Connection,
    names: &QuotedNames,
    (misspelt, right): (&[Value], &[Value]),
    is_twin: bool,
) -> rusqlite::Result<()> {
    let (change, key_is) = (&names.change, names.change_key_is_bound());
    let refused = match is_twin {
        true => format!(" AND generation = {PARKED}"),
        false => String::new(),
    };
    let set = assign(&names.change_key);
    let sql = format!("UPDATE OR IGNORE {change} SET {set} WHERE {key_is}{refused}");
    run(connection, names, &sql, misspelt, right)?;
    let sql = format!("DELETE FROM {change} WHERE {key_is}");
    run(connection, names, &sql, misspelt, &[])?;
    // What is left of a changed key whose records are gone means nothing.
    for key in [&names.new_key, &names.old_key] {
        let (rekeyed, set) = (&names.rekeyed, assign(key));
        let key_is = quote::list(key.iter().enumerate(), " AND ", |(at, column)| {
            format!("{column} = ?{}", at + 1)
        });
        let sql = format!("UPDATE OR REPLACE {rekeyed} SET {set} WHERE {key_is}");
        run(connection, names, &sql, misspelt, right)?;
    }
    Ok(())
}

/// Spells the columns of synced tables that refer to a table, but for those that are in their own
/// keys: these are spelled in their turn.
fn respell_references(
    connection: &Connection,
    subscription: &SubscriptionState,
    parent: &Table,
) -> Result<(), RemoteError> {
    let schema = subscription.schema.iter();
    for child in schema.flat_map(|schema| &schema.tables) {
        let references = child.foreign_keys.iter();
        let columns: BTreeSet<usize> = references
            .filter(|it| it.parent == parent.name)
            .flat_map(|it| it.columns.iter().copied())
            .filter(|column| !child.key.contains(column))
            .collect();
        if columns.is_empty() {
            continue;
        }
        super::is_without_rowid(connection, &child.name)?;
        altered_tables::check(connection, child)?;
        for column in columns {
            respell_values(connection, child, column).doing(DOING)?;
        }
    }
    Ok(())
}

/// Spells the values of a column that is not in the key.
fn respell_values(connection: &Connection, table: &Table, column: usize) -> rusqlite::Result<()> {
    let names = QuotedNames::for_table(table);
    let (name, column_type) = (&names.columns[column], table.columns[column].column_type);
    let (keys, key_is) = (names.key.join(", "), names.key_is_bound());
    let (table, count) = (&names.table, names.key.len());
    let check = canonical::check(column_type, name);
    let misspelt: Vec<Vec<Value>> = connection
        .prepare(&format!(
            "SELECT {keys}, {name} FROM {table} WHERE {name} IS NOT NULL AND NOT ({check})"
        ))?
        .query_map([], |found| row::owned(found, 0, count + 1))?
        .collect::<rusqlite::Result<_>>()?;
    let sql = format!("UPDATE {table} SET {name} = ?{} WHERE {key_is}", count + 1);
    for row in misspelt {
        let (datum, fit) = column_type.datum(row[count].as_ref());
        if fit == Fit::Unfit {
            continue;
        }
        let right = datum.to_value();
        let spelled = run(connection, &names, &sql, &row[..count], &[right]);
        if !is_forbidden(&spelled) {
            spelled?;
        }
    }
    Ok(())
}

fn run(
    connection: &Connection,
    names: &QuotedNames,
    sql: &str,
    key: &[Value],
    values: &[Value],
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(sql)?;
    names.bind_key(&mut statement, key)?;
    for (index, value) in values.iter().enumerate() {
        statement
            .raw_bind_parameter(key.len() + 1 + index, row::BoundValue::new(value.as_ref()))?;
    }
    statement.raw_execute().map(drop)
}

fn exists(connection: &Connection, names: &QuotedNames, key: &[Value]) -> rusqlite::Result<bool> {
    let sql = format!(
        "SELECT 1 FROM {} WHERE {}",
        names.table,
        names.key_is_bound()
    );
    let mut statement = connection.prepare_cached(&sql)?;
    names.bind_key(&mut statement, key)?;
    let found = statement.raw_query().next()?.is_some();
    Ok(found)
}

/// A rule or a unique index of the application's may keep a row as it is.
fn is_forbidden(done: &rusqlite::Result<()>) -> bool {
    let code = done.as_ref().err().and_then(|it| it.sqlite_error_code());
    code == Some(rusqlite::ErrorCode::ConstraintViolation)
}

fn keep(
    connection: &Connection,
    subscription: &SubscriptionState,
    table: &Table,
    (names, misspelt, key): (&QuotedNames, &[Value], &[Datum<'_>]),
) -> rusqlite::Result<()> {
    let sql = format!(
        "SELECT {} FROM {} WHERE {}",
        names.columns.join(", "),
        names.table,
        names.key_is_bound()
    );
    let mut statement = connection.prepare_cached(&sql)?;
    names.bind_key(&mut statement, misspelt)?;
    let mut rows = statement.raw_query();
    let Some(found) = rows.next()? else {
        return Ok(());
    };
    let mut values = Map::new();
    for (index, column) in table.columns.iter().enumerate() {
        let (datum, _) = row::datum(column.column_type, found.get_ref(index)?);
        values.insert(column.name.clone(), row::json(&datum));
    }
    refused::record(
        connection,
        &NewRefusal {
            publication: &subscription.publication,
            table: &table.name,
            key: &row::readable_key(key),
            key_packed: &row::pack_key(&row::key_types(table), key),
            operation: "update",
            code: Code::RowUntracked.name(),
            reason: TWICE,
            sequence: subscription.sequence,
            row_values: Some(&Json::Object(values).to_string()),
        },
    )
}
