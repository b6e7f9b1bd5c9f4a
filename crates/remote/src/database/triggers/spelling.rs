//! Keys of a synced table that a tool made without our CHECKs. Two spellings of a key would be
//! two rows here, and one in the centre. So triggers take the place of the CHECKs, and keys that
//! are there already are spelled as the centre spells them.

use rusqlite::Connection;
use serde_json::{Map, Value as Json};
use tidewater_protocol::defect::{Defect, is_on};
use tidewater_protocol::{Code, Datum, Fit, Table, Value};

use crate::database::refused::{self, Refusal};
use crate::database::tables::{Names, key_checks};
use crate::database::take::keys_of;
use crate::database::{SubscriptionState, quote, row};
use crate::error::{Doing, RemoteError};

const DOING: &str = "spelling keys as the centre does";

/// Why the values of a row with a misspelt key are among the refused.
const TWICE: &str =
    "the row's key is that of another row here, in another spelling; that one counts";

/// Whether a synced table accepts keys that are not in canonical form.
pub(super) fn is_unchecked(connection: &Connection, table: &Table) -> Result<bool, RemoteError> {
    if is_on(Defect::SpellingUnchecked) {
        return Ok(false);
    }
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
            let told = format!("CHECK constraint failed: {column} in canonical form");
            let told = quote::text(&told);
            format!("  SELECT RAISE(ABORT, {told}) WHERE NOT ({check});\n")
        })
        .collect()
}

/// Spells the keys of a table that nothing tracks at the moment. Where the row of the right
/// spelling is there as well, it counts; the other's values are kept among the refused rows. A key
/// that is none, and one that a rule of the application holds fast, stay as they are.
pub(super) fn respell(
    connection: &Connection,
    subscription: &SubscriptionState,
    table: &Table,
) -> Result<(), RemoteError> {
    let names = Names::of(table);
    let types = row::key_types(table);
    let is_misspelt: Vec<String> = key_checks(table, "")
        .map(|(_, check)| format!("NOT ({check})"))
        .collect();
    let sql = format!(
        "SELECT {} FROM {} WHERE {}",
        names.key.join(", "),
        names.table,
        is_misspelt.join(" OR ")
    );
    for misspelt in keys_of(connection, &sql, &[], table).doing(DOING)? {
        let pairs = types.iter().zip(&misspelt);
        let (key, fits): (Vec<Datum<'_>>, Vec<Fit>) = pairs
            .map(|(column_type, value)| column_type.datum(value.as_ref()))
            .unzip();
        if fits.contains(&Fit::Unfit) {
            continue;
        }
        let right: Vec<Value> = key.iter().map(Datum::to_value).collect();
        if exists(connection, &names, &right).doing(DOING)? {
            keep(connection, subscription, table, (&names, &misspelt, &key)).doing(DOING)?;
            let sql = format!("DELETE FROM {} WHERE {}", names.table, names.key_is_bound());
            unless_forbidden(run(connection, &names, &sql, &misspelt, &[])).doing(DOING)?;
        } else {
            let first = misspelt.len() + 1;
            let set = quote::list(names.key.iter().enumerate(), ", ", |(at, column)| {
                format!("{column} = ?{}", first + at)
            });
            let sql = format!(
                "UPDATE {} SET {set} WHERE {}",
                names.table,
                names.key_is_bound()
            );
            unless_forbidden(run(connection, &names, &sql, &misspelt, &right)).doing(DOING)?;
        }
    }
    Ok(())
}

fn run(
    connection: &Connection,
    names: &Names,
    sql: &str,
    key: &[Value],
    values: &[Value],
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(sql)?;
    names.bind_key(&mut statement, key)?;
    for (index, value) in values.iter().enumerate() {
        statement.raw_bind_parameter(key.len() + 1 + index, row::Bind::of(value.as_ref()))?;
    }
    statement.raw_execute().map(drop)
}

fn exists(connection: &Connection, names: &Names, key: &[Value]) -> rusqlite::Result<bool> {
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

/// A trigger or a unique index of the application's may keep the row as it is.
fn unless_forbidden(done: rusqlite::Result<()>) -> rusqlite::Result<()> {
    match done {
        Err(error)
            if error.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation) =>
        {
            Ok(())
        }
        done => done,
    }
}

fn keep(
    connection: &Connection,
    subscription: &SubscriptionState,
    table: &Table,
    (names, misspelt, key): (&Names, &[Value], &[Datum<'_>]),
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
        &Refusal {
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
