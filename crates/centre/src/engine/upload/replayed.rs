//! A refused row that an operator settles: written as it was sent or as he corrects it, as an
//! ordinary change ([`super::chosen`]), or given up.

use std::sync::Arc;

use serde_json::{Map, Value as Json};
use tidewater_protocol::{Code, Table};

use super::chosen::{Values, Wanted, put, refused};
use super::row_json;
use super::rows::{Rows, try_again};
use crate::engine::connection::{Connection as _, own};
use crate::engine::refusals;
use crate::engine::scripts::Scripts;
use crate::error::CentreError;
use crate::records::{RefusalEnd, RefusalOutcome, RefusedRecord};
use crate::settling::{RefusedAction, RefusedChoice, SettleOutcome};

type Result<T> = std::result::Result<T, CentreError>;

/// Settles a refused row; see [`crate::Worker::settle_refused`].
pub async fn settle(rows: &mut impl Rows, choice: &RefusedChoice) -> Result<SettleOutcome> {
    let mut attempts = 0;
    loop {
        match try_settle(rows, choice).await {
            Err(error) => try_again(rows, "settling a refused row", error, &mut attempts).await?,
            done => return done,
        }
    }
}

async fn try_settle(rows: &mut impl Rows, choice: &RefusedChoice) -> Result<SettleOutcome> {
    rows.begin(0).await?;
    // Of two operators, and of an operator and the remote, the second one finds what the first one
    // has done.
    let lock = own!(
        "UPDATE tidewater.refused SET code = code WHERE id = ?1",
        choice.refused
    );
    let what = "looking for a refused row";
    rows.connection().run_one(what, lock).await?;
    let record = refusals::row(rows.connection(), choice.refused).await?;
    let outcome = match record.filter(|it| it.settled.is_none()) {
        None => SettleOutcome::Unknown,
        Some(record) => {
            let outcome = act(rows, &record, &choice.action, choice.force).await?;
            if let SettleOutcome::Settled { row } = &outcome {
                note(rows, &record, choice, row.clone()).await?;
                rows.commit().await?;
                return Ok(outcome);
            }
            outcome
        }
    };
    rows.undo().await?;
    rows.commit().await?;
    Ok(outcome)
}

/// Does what is to be done with the row itself.
async fn act(
    rows: &mut impl Rows,
    record: &RefusedRecord,
    action: &RefusedAction,
    force: bool,
) -> Result<SettleOutcome> {
    let given = match action {
        RefusedAction::Discard(_) => return Ok(SettleOutcome::Settled { row: None }),
        RefusedAction::Replay => None,
        RefusedAction::Edit(_) if record.operation == "delete" => {
            let reason = "a delete has no values that could be others: replay or discard it";
            return Ok(refused(Code::RowBadValue, reason));
        }
        RefusedAction::Edit(given) => Some(&**given),
    };
    let place = (&*record.publication, &*record.table);
    let publication = rows.publication(&record.publication)?;
    let mut tables = publication.schema.tables.iter();
    let index = tables.position(|it| it.name == record.table);
    let writes = |it: &Arc<Scripts>| index.is_some_and(|index| it.writes(index));
    if publication.scripts.values().any(writes) {
        let reason = format!(
            "scripts write what is uploaded to the table {:?}: write the row yourself, and discard \
             what was refused",
            record.table
        );
        return Ok(refused(Code::RowConstraint, reason));
    }
    put(rows, place, |table| wanted(table, record, given), force).await
}

/// What the row is to be: the change as it was sent, of an update what it changed, with what is
/// given instead.
///
/// # Errors
/// It cannot be read: why.
fn wanted(
    table: &Table,
    record: &RefusedRecord,
    given: Option<&str>,
) -> std::result::Result<Wanted, String> {
    let key = row_json::read_key(table, &record.key)
        .ok_or_else(|| format!("the table {:?} has another key by now", table.name))?;
    let left = record.pre_image.as_deref();
    let left = left.map(|json| row_json::read(table, json)).transpose()?;
    let left = left.map(|it| it.values);
    if record.operation == "delete" {
        let new = None;
        return Ok(Wanted { key, new, left });
    }
    let row = match given {
        None => record.row.clone(),
        Some(given) => overlay(&record.row, given, table)?,
    };
    let row = row_json::read(table, &row)?;
    if let (None, Some(name)) = (given, row.unknown.first()) {
        return Err(format!(
            "the table has no published column {name:?}: edit the row, or discard it"
        ));
    }
    let mut new = row.values;
    let (key, new) = match &left {
        // A row that is to be there by another key is looked for by that.
        None => (key_of(table, &new).unwrap_or(key), new),
        Some(left) => {
            new.retain(|it| !left.contains(it));
            (key, new)
        }
    };
    let new = Some(new);
    Ok(Wanted { key, new, left })
}

fn key_of(table: &Table, row: &Values) -> Option<Values> {
    let of = |column: &usize| row.iter().find(|it| it.0 == *column).cloned();
    table.key.iter().map(of).collect()
}

/// The kept row with other values. Columns that are not published any more are left out of it.
fn overlay(kept: &str, given: &str, table: &Table) -> std::result::Result<String, String> {
    let object = |json: &str| -> std::result::Result<Map<String, Json>, String> {
        serde_json::from_str(json).map_err(|error| format!("the row is no JSON object: {error}"))
    };
    let (mut row, given) = (object(kept)?, object(given)?);
    row.retain(|name, _| table.column(name).is_some());
    for (name, value) in given {
        if table.column(&name).is_none() {
            return Err(format!("the table has no published column {name:?}"));
        }
        row.insert(name, value);
    }
    Ok(Json::Object(row).to_string())
}

/// Notes how the row is settled.
async fn note(
    rows: &mut impl Rows,
    record: &RefusedRecord,
    choice: &RefusedChoice,
    row: Option<String>,
) -> Result<()> {
    let what = "settling a refused row";
    let connection = rows.connection();
    let answer = connection.run_one(what, refusals::attempts(record)).await?;
    let attempts = answer.rows.iter().map(|row| row.get(0));
    let (outcome, reason) = match &choice.action {
        RefusedAction::Replay => (RefusalOutcome::Replayed, None),
        RefusedAction::Edit(_) => (RefusalOutcome::Edited, None),
        RefusedAction::Discard(reason) => (RefusalOutcome::Discarded, Some(reason.clone())),
    };
    let end = RefusalEnd {
        at_ms: choice.now_ms,
        by: choice.by.clone(),
        outcome,
        row,
        reason: reason.filter(|it| !it.is_empty()),
    };
    let [keep, forget] = refusals::settle(&[(attempts.collect::<Result<_>>()?, end)]);
    connection.run_one(what, keep).await?;
    rows.keep(forget).await
}
