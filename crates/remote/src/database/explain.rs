//! What a remote knows of one row: what is pending, refused, lost and stale of it.

use rusqlite::Connection;
use serde::Serialize;
use serde_json::Value as Json;
use tidewater_protocol::{ColumnType, Datum, Fit, Table, Value};

use super::changes::PARKED;
use super::conflicts::ChangeImages;
use super::row_values::{exists, row_values, value_of};
use super::subscription::load_all;
use super::tables::QuotedNames;
use super::{
    ConflictedChange, RefusedRow, RemoteDatabase, SettledChange, StaleRow, SubscriptionState, row,
};
use crate::error::{ErrorContext, RemoteError};

const DOING: &str = "looking for a row";

/// What is known of a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedRow {
    /// The publication that has the table.
    pub publication: String,
    /// The table.
    pub table: String,
    /// The key, a JSON array.
    pub key: String,
    /// The row as it is here, a JSON object; `None` if it is not.
    pub row: Option<String>,
    /// Whether remotes upload changes of the table, and download its rows.
    pub uploads: bool,
    /// See [`Self::uploads`].
    pub downloads: bool,
    /// Changes that wait for a sync, or are on their way, oldest first.
    pub pending: Vec<PendingChange>,
    /// Changes that the centre has refused.
    pub refused: Vec<RefusedRow>,
    /// Those among the refused that are settled.
    pub settled: Vec<SettledChange>,
    /// Changes that met somebody else's, and lost or were merged.
    pub conflicts: Vec<ConflictedChange>,
    /// Why the centre's row is not here yet, if it came and could not be applied.
    pub stale: Option<String>,
    /// When the publication last synced, in milliseconds since 1970.
    pub last_sync_ms: Option<i64>,
    /// Whether the next sync compares everything with the centre.
    pub compare_due: bool,
}

/// A change that has not come to an end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PendingChange {
    /// `insert`, `update` or `delete`.
    pub operation: &'static str,
    /// Whether an upload with it was taken, whose acknowledgement is missing.
    pub in_flight: bool,
    /// The row as it was when the remote last agreed with the centre, a JSON object; `None` for
    /// inserts.
    pub pre_image: Option<String>,
    /// The row as it is to be; `None` for deletes.
    pub row: Option<String>,
}

impl RemoteDatabase {
    /// What is known of a row. The key is a JSON array, or the values separated by commas.
    ///
    /// # Errors
    /// There is no such table, the key is none of it, or SQLite failed.
    pub fn explain(&self, table: &str, key: &str) -> Result<ExplainedRow, RemoteError> {
        let snapshot = self.connection.unchecked_transaction().doing(DOING)?;
        let subscriptions = load_all(&snapshot)?;
        let (subscription, table) = find(&subscriptions, table)?;
        let values = read_key(table, key)?;
        let types = row::key_types(table);
        let key = row::readable_key(&row::datums(&types, &values));
        let is_meant = |other: &str, of: &str| other == table.name && of == key;
        let (_, stale) = self.stale(usize::MAX)?;
        let stale = stale.into_iter();
        let stale = stale.filter(|it: &StaleRow| is_meant(&it.table, &it.key));
        let refused = self.refused()?.into_iter();
        let settled = self.settled_refused()?.into_iter();
        let conflicts = self.conflicts()?.into_iter();
        let names = QuotedNames::for_table(table);
        let is_here = exists(&snapshot, &names, &values).doing(DOING)?;
        let row = is_here.then(|| row_values(&snapshot, table, &values));
        Ok(ExplainedRow {
            publication: subscription.publication.clone(),
            table: table.name.clone(),
            row: row.transpose().doing(DOING)?,
            uploads: table.direction.uploads(),
            downloads: table.direction.downloads(),
            pending: pending(&snapshot, subscription, table, &values).doing(DOING)?,
            refused: refused.filter(|it| is_meant(&it.table, &it.key)).collect(),
            settled: settled
                .filter(|it| is_meant(&it.refused.table, &it.refused.key))
                .collect(),
            conflicts: conflicts
                .filter(|it| is_meant(&it.table, &it.key))
                .collect(),
            stale: stale.map(|it| it.reason).next(),
            last_sync_ms: subscription.last_sync_ms,
            compare_due: subscription.compare_due != super::CompareDue::No,
            key,
        })
    }
}

/// The table that is meant, and the subscription that has it.
fn find<'s>(
    subscriptions: &'s [SubscriptionState],
    name: &str,
) -> Result<(&'s SubscriptionState, &'s Table), RemoteError> {
    let all = || {
        subscriptions.iter().flat_map(|subscription| {
            let tables = subscription.schema.iter().flat_map(|it| &it.tables);
            tables.map(move |table| (subscription, table))
        })
    };
    // As the centre calls it, with a schema before it, will do.
    let bare = name.rsplit('.').next().unwrap_or(name);
    let found = all().find(|it| it.1.name == name);
    found
        .or_else(|| all().find(|it| it.1.name == bare))
        .ok_or_else(|| {
            let names: Vec<&str> = all().map(|it| &*it.1.name).collect();
            RemoteError::Usage {
                what: format!("the remote has no synced table {name:?}"),
                hint: match names.is_empty() {
                    true => "it has none at all: sync it first".to_owned(),
                    false => format!("it has {}", names.join(", ")),
                },
            }
        })
}

/// The changes of a row that are not settled.
fn pending(
    connection: &Connection,
    subscription: &SubscriptionState,
    table: &Table,
    key: &[Value],
) -> rusqlite::Result<Vec<PendingChange>> {
    let names = QuotedNames::for_table(table);
    let mut statement = connection.prepare(&format!(
        "SELECT generation FROM {} WHERE {} AND generation > {PARKED} ORDER BY generation",
        names.change,
        names.change_key_is_bound()
    ))?;
    names.bind_key(&mut statement, key)?;
    let mut rows = statement.raw_query();
    let mut generations: Vec<i64> = Vec::new();
    while let Some(row) = rows.next()? {
        generations.push(row.get(0)?);
    }
    let mut pending = Vec::new();
    for generation in generations {
        let Some(images) = ChangeImages::from_taken(connection, table, key, generation)? else {
            continue;
        };
        // A row that came and went between two syncs is nothing to anybody.
        if images.pre_image.is_none() && images.mine.is_none() {
            continue;
        }
        pending.push(PendingChange {
            operation: images.operation(),
            in_flight: subscription
                .taken_generation
                .is_some_and(|taken| taken >= generation),
            pre_image: images.pre_image,
            row: images.mine,
        });
    }
    Ok(pending)
}

/// Reads a key: a JSON array, or values separated by commas; of one column the value as it is.
fn read_key(table: &Table, text: &str) -> Result<Vec<Value>, RemoteError> {
    let types = row::key_types(table);
    let wrong = |what: String| RemoteError::Usage {
        what,
        hint: match types.len() {
            1 => "write the value, or a JSON array: '[1]'".to_owned(),
            _ => "write the values separated by commas, or a JSON array: '[1,\"a\"]'".to_owned(),
        },
    };
    let parts: Vec<Json> = if text.trim_start().starts_with('[') {
        serde_json::from_str(text)
            .map_err(|error| wrong(format!("the key {text:?} is no JSON array: {error}")))?
    } else {
        let parts: Vec<&str> = match types.len() {
            1 => vec![text],
            _ => text.split(',').map(str::trim).collect(),
        };
        let parts = parts.into_iter().enumerate();
        parts
            .map(|(at, part)| spelled(types.get(at), part))
            .collect()
    };
    if parts.len() != types.len() {
        let names: Vec<&str> = table.key_columns().map(|it| &*it.name).collect();
        return Err(wrong(format!(
            "the key of {:?} is ({}), which {} {} not fit",
            table.name,
            names.join(", "),
            match parts.len() {
                1 => "1 value".to_owned(),
                count => format!("{count} values"),
            },
            if parts.len() == 1 { "does" } else { "do" },
        )));
    }
    let mut values = Vec::with_capacity(parts.len());
    for ((part, &column_type), column) in parts.iter().zip(&types).zip(table.key_columns()) {
        let value = value_of(column_type, part);
        let (datum, fit) = column_type.datum(value.as_ref());
        if fit == Fit::Unfit || datum == Datum::Null {
            return Err(wrong(format!(
                "{datum} is no value of {:?}, a column of the key of {:?}",
                column.name, table.name
            )));
        }
        values.push(datum.to_value());
    }
    Ok(values)
}

/// A value as it is typed, as JSON.
fn spelled(column_type: Option<&ColumnType>, text: &str) -> Json {
    match column_type {
        Some(ColumnType::Integer) => {
            let integer = text.trim().parse::<i64>();
            integer.map_or_else(|_| text.into(), Json::from)
        }
        Some(ColumnType::Boolean) => match text.trim() {
            "true" | "1" => true.into(),
            "false" | "0" => false.into(),
            other => other.into(),
        },
        _ => text.into(),
    }
}
