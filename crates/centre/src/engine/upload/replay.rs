//! A refused row that an operator settles: sent once more as it was or as he corrects it, the way of an
//! upload ([`super::operator_change`]), or given up.

use serde_json::{Map, Value as Json};

use tidewater_protocol::{Code, Op, Table, pack};

use super::column_map::{AnnouncedColumns, ColumnMap};
use super::foreign_keys::PublishedForeignKey;
use super::operator_change::{
    self, CentralRowRead, OperatorChange, OperatorOutcome, RowSender, ServedTablePlace, Values,
    is_so, refused as refused_with,
};
use super::row_decisions::RowDecisions;
use super::upload_driver::UploadDriver;
use super::upload_writer::UploadWriter;
use super::{earlier_refusals, row_json};
use crate::engine::connection::DatabaseConnection as _;
use crate::engine::exact::canonical;
use crate::engine::refusals;
use crate::engine::resolve::Resolver;
use crate::engine::row_fault::RefusalReason;
use crate::engine::sql::served_table::TableAdapter;
use crate::engine::sql::system::refusals as sql;
use crate::engine::upload::refusal_reason::RowDecision;
use crate::engine::upload::row_keys::UploadedTable;
use crate::error::CentreError;
use crate::records::{RefusalEnd, RefusalOutcome, RefusedRecord};
use crate::settling::{AddedSum, RefusedChoice, RefusedRowAction, SettleOutcome};

type Result<T> = std::result::Result<T, CentreError>;

/// Settles a refused row; see [`crate::Worker::settle_refused`].
pub async fn settle_refused(
    rows: &mut UploadWriter<impl UploadDriver>,
    choice: &RefusedChoice,
) -> Result<SettleOutcome> {
    let mut attempts = 0;
    loop {
        match try_settle(rows, choice).await {
            Err(error) => {
                rows.try_again("settling a refused row", error, &mut attempts)
                    .await?
            }
            done => return done,
        }
    }
}

async fn try_settle(
    rows: &mut UploadWriter<impl UploadDriver>,
    choice: &RefusedChoice,
) -> Result<SettleOutcome> {
    rows.begin(0).await?;
    // Of two operators, and of an operator and the remote, the second one finds what the first one
    // has done.
    let lock = sql::lock(choice.refused);
    let what = "looking for a refused row";
    rows.connection().run_one(what, lock).await?;
    let record = refusals::row(rows.connection(), choice.refused).await?;
    let outcome = match record.filter(|it| it.settled.is_none()) {
        None => SettleOutcome::Unknown,
        Some(record) => {
            let outcome = act(rows, &record, choice).await?;
            if let SettleOutcome::Settled { row, .. } = &outcome {
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
async fn act<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    record: &RefusedRecord,
    choice: &RefusedChoice,
) -> Result<SettleOutcome> {
    let given = match &choice.action {
        RefusedRowAction::Discard(_) => return Ok(SettleOutcome::settled(None)),
        RefusedRowAction::Replay => None,
        RefusedRowAction::Edit(_) if record.operation == "delete" => {
            let reason = "a delete has no values that could be others: replay or discard it";
            return Ok(refused_with(Code::RowBadValue, reason));
        }
        RefusedRowAction::Edit(given) => Some(&**given),
    };
    let place = match ServedTablePlace::find(rows, &record.publication, &record.table)? {
        Ok(place) => place,
        Err(outcome) => return Ok(outcome),
    };
    let table = place.table();
    let wanted = match RefusedChange::read(table, record, given) {
        Ok(wanted) => wanted,
        Err(reason) => return Ok(refused_with(Code::RowBadValue, reason)),
    };
    let found = match place.read(rows, &wanted.key).await? {
        Ok(found) => found,
        Err(outcome) => return Ok(outcome),
    };
    if given.is_some()
        && let Some(outcome) = wanted.leaves_rows_behind(rows, record, &place).await?
    {
        return Ok(outcome);
    }
    let change = OperatorChange::of_columns(table, wanted.old.as_ref(), wanted.new.as_ref())?;
    if let Some(outcome) = wanted
        .waits_for_parent(rows, record, &place, &change)
        .await?
    {
        return Ok(outcome);
    }
    if let Some(outcome) = wanted.is_in_effect(&place, &found)? {
        return Ok(outcome);
    }
    let sender = RowSender {
        user: &record.user,
        remote_id: record.remote_id,
        publication: &record.publication,
        notes: refusals::sync_notes(rows.connection(), record.id).await?,
        record: record.id,
        now_ms: choice.now_ms,
    };
    let sent = operator_change::send(
        rows,
        &place,
        &sender,
        change,
        &choice.judgement,
        choice.force,
    );
    let sent = sent.await?;
    let is_delete = wanted.new.is_none();
    if let OperatorOutcome::Lost = sent
        && !is_so(table, wanted.old.as_ref(), place.values(&found)?.as_deref())
    {
        let row = place.json(&found)?;
        return Ok(SettleOutcome::Changed { row });
    }
    let key = operator_change::key_of(table, wanted.new.as_ref());
    let key = key.unwrap_or_else(|| wanted.key.clone());
    let outcome = operator_change::conclude(rows, &place, sent, (&found, &key), is_delete).await?;
    wanted.tell_sums(&place, &found, outcome)
}

/// A refused change, read by its table.
struct RefusedChange {
    /// The key under which the row was.
    key: Values,
    /// `None` of an insert.
    old: Option<Values>,
    /// With what is given instead; `None` of a delete.
    new: Option<Values>,
}

impl RefusedChange {
    /// # Errors
    /// It cannot be read: why.
    fn read(
        table: &Table,
        record: &RefusedRecord,
        given: Option<&str>,
    ) -> std::result::Result<RefusedChange, String> {
        let key = row_json::read_key(table, &record.key)
            .ok_or_else(|| format!("the table {:?} has another key by now", table.name))?;
        let old = record.pre_image.as_deref();
        let old = old.map(|json| row_json::read(table, json)).transpose()?;
        let old = old.map(|it| it.values);
        if record.operation == "delete" {
            let new = None;
            return Ok(RefusedChange { key, old, new });
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
        let new = row.values;
        // A row that is to be there by another key is looked for by that.
        let key = match &old {
            None => operator_change::key_of(table, Some(&new)).unwrap_or(key),
            Some(_) => key,
        };
        let new = Some(new);
        Ok(RefusedChange { key, old, new })
    }

    /// Says of sums which differences were added, where that has made something else of them than they
    /// were to be, or tried in vain.
    fn tell_sums<T: TableAdapter>(
        &self,
        place: &ServedTablePlace<T>,
        found: &CentralRowRead,
        outcome: SettleOutcome,
    ) -> Result<SettleOutcome> {
        let (table, central) = (place.table(), place.values(found)?);
        let (Some(old), Some(new), Some(central)) = (&self.old, &self.new, central) else {
            return Ok(outcome);
        };
        let value = |row: &Values, column: usize| {
            let found = row.iter().find(|it| it.0 == column);
            found.map(|it| it.1.clone())
        };
        let mut changes = Vec::new();
        for column in place.publication.resolvers[place.index].sums() {
            let (Some(old), Some(new)) = (value(old, column), value(new, column)) else {
                continue;
            };
            let column_type = table.columns[column].column_type;
            let (before, after) = (
                column_type.datum(old.as_ref()).0,
                column_type.datum(new.as_ref()).0,
            );
            if let Some(difference) = Resolver::difference(before, after)
                && !pack::same(&canonical(before), &canonical(central[column]))
            {
                changes.push((column, difference));
            }
        }
        let name = |column: usize| table.columns[column].name.clone();
        Ok(match outcome {
            SettleOutcome::Settled { row, .. } => SettleOutcome::Settled {
                row,
                added: changes
                    .into_iter()
                    .map(|(column, difference)| AddedSum {
                        column: name(column),
                        difference,
                    })
                    .collect(),
            },
            SettleOutcome::Refused { code, reason } => {
                let tried = changes.iter().map(|(column, difference)| {
                    let central = row_json::json(central[*column]);
                    format!(
                        "; {} is a sum: {difference} was added to {central}",
                        name(*column)
                    )
                });
                let reason = reason + &tried.collect::<String>();
                SettleOutcome::Refused { code, reason }
            }
            outcome => outcome,
        })
    }

    /// A row that refers to a refused one waits for that, whatever the centre has: under the same key may
    /// be somebody else's row, with an equal row below it.
    async fn waits_for_parent<R: UploadDriver>(
        &self,
        rows: &mut UploadWriter<R>,
        record: &RefusedRecord,
        place: &ServedTablePlace<R::Tables>,
        change: &OperatorChange,
    ) -> Result<Option<SettleOutcome>> {
        let schema = &place.publication.schema;
        let foreign_keys = PublishedForeignKey::all(schema);
        if self.new.is_none() || foreign_keys.iter().all(|it| it.child != place.index) {
            return Ok(None);
        }
        let AnnouncedColumns::Published(index, map) =
            ColumnMap::find(schema, &change.upload.begin)?
        else {
            return Ok(None);
        };
        let uploaded = [UploadedTable {
            upload: &change.upload,
            index,
            map: &map,
            has_moves: false,
        }];
        let of = earlier_refusals::RemoteRefusals {
            remote_id: record.remote_id,
            publication: &record.publication,
            given_up: &[],
            forgotten: &[],
        };
        let refused = earlier_refusals::find_open_parents(
            rows.connection(),
            &of,
            schema,
            &foreign_keys,
            &uploaded,
        )
        .await?;
        let mut decided = RowDecisions::default();
        decided.refuse_children(schema, &foreign_keys, &uploaded, refused)?;
        let op = match self.old {
            None => Op::Insert,
            Some(_) => Op::Update,
        };
        let key = operator_change::datums(place.table(), &self.key);
        Ok(match decided.find_decision(schema, index, op, &key) {
            Some(RowDecision::Refused(RefusalReason { code, reason, .. })) => {
                Some(refused_with(code, reason))
            }
            _ => None,
        })
    }

    /// An operator gives a row other values than those by which others refer to it. What its remote has
    /// below it would stay under the old ones, which may be those of somebody else's row: only the
    /// remote can take all of it along.
    async fn leaves_rows_behind<R: UploadDriver>(
        &self,
        rows: &mut UploadWriter<R>,
        record: &RefusedRecord,
        place: &ServedTablePlace<R::Tables>,
    ) -> Result<Option<SettleOutcome>> {
        let schema = &place.publication.schema;
        let (Some(new), Ok(sent)) = (&self.new, row_json::read(place.table(), &record.row)) else {
            return Ok(None);
        };
        let foreign_keys = PublishedForeignKey::all(schema);
        let left = foreign_keys.iter().filter(|it| it.parent == place.index);
        let left = left.filter_map(|foreign_key| {
            let value = foreign_key.referred_value(&sent.values)?;
            (foreign_key.referred_value(new).as_ref() != Some(&value))
                .then_some((foreign_key, value))
        });
        let left: Vec<_> = left.collect();
        if left.is_empty() {
            return Ok(None);
        }
        let select = sql::list_writes_of_remote(record.remote_id, &record.publication);
        let what = "looking for refused rows below one";
        let answer = rows.connection().run_one(what, select).await?;
        for row in &answer.rows {
            let (name, key, values): (String, String, String) =
                (row.get(0)?, row.get(1)?, row.get(2)?);
            let mut tables = schema.tables.iter();
            let Some(table) = tables.position(|it| it.name == name) else {
                continue;
            };
            let Ok(values) = row_json::read(&schema.tables[table], &values) else {
                continue;
            };
            let mut left = left.iter().filter(|it| it.0.child == table);
            if left.any(|(foreign_key, value)| {
                foreign_key.referring_value(&values.values).as_ref() == Some(value)
            }) {
                return Ok(Some(left_behind(&format!("{name} {key}"))));
            }
        }
        // The remote may have some that it has not sent yet.
        let is_another_row = record.code == Code::RowKeyInUse.name();
        Ok(is_another_row.then(|| left_behind("others")))
    }

    /// Whether the centre has the row so, as far as the change is about it. A sum is never known to be
    /// in, and what scripts and handlers write they decide.
    fn is_in_effect<T: TableAdapter>(
        &self,
        place: &ServedTablePlace<T>,
        found: &CentralRowRead,
    ) -> Result<Option<SettleOutcome>> {
        let (publication, table) = (&place.publication, place.table());
        let mut scripts = publication.scripts.values();
        let is_others =
            publication.handled[place.index].upload || scripts.any(|it| it.writes(place.index));
        let mut wanted = self.new.clone();
        if let (Some(new), Some(old)) = (&mut wanted, &self.old) {
            new.retain(|it| !old.contains(it));
        }
        let resolver = &publication.resolvers[place.index];
        let is_sum = |it: &Values| resolver.sums().any(|sum| it.iter().any(|it| it.0 == sum));
        if is_others || wanted.as_ref().is_some_and(is_sum) {
            return Ok(None);
        }
        let central = place.values(found)?;
        let is_so = is_so(table, wanted.as_ref(), central.as_deref());
        let row = place.json(found)?;
        Ok(is_so.then(|| SettleOutcome::settled(row)))
    }
}

/// Nothing is done: rows of the remote would be left behind.
fn left_behind(rows: &str) -> SettleOutcome {
    let reason = format!(
        "{rows} of the device may refer to it, and would be left under a row of somebody else's; \
         only the device can give it another key and take these along"
    );
    refused_with(Code::RowKeyInUse, reason)
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
    rows: &mut UploadWriter<impl UploadDriver>,
    record: &RefusedRecord,
    choice: &RefusedChoice,
    row: Option<String>,
) -> Result<()> {
    let what = "settling a refused row";
    let connection = rows.connection();
    let answer = connection.run_one(what, refusals::attempts(record)).await?;
    let attempts = answer.rows.iter().map(|row| row.get(0));
    let (outcome, reason) = match &choice.action {
        RefusedRowAction::Replay => (RefusalOutcome::Replayed, None),
        RefusedRowAction::Edit(_) => (RefusalOutcome::Edited, None),
        RefusedRowAction::Discard(reason) => (RefusalOutcome::Discarded, Some(reason.clone())),
    };
    let end = RefusalEnd {
        at_ms: choice.now_ms,
        by: choice.by.clone(),
        outcome,
        row,
        reason: reason.filter(|it| !it.is_empty()),
    };
    let [keep, forget] = refusals::move_to_settled(&[(attempts.collect::<Result<_>>()?, end)]);
    connection.run_one(what, keep).await?;
    rows.store_result(forget).await
}
