//! The version of a row that an operator has chosen of a conflict: it is sent the way of an upload
//! ([`super::operator_change`]).

use tidewater_protocol::{Code, Datum, Table};

use super::operator_change::{
    self, OperatorChange, OperatorOutcome, RowSender, ServedTablePlace, Values, is_so, refused,
};
use super::row_json;
use super::upload_driver::UploadDriver;
use super::upload_writer::UploadWriter;
use crate::engine::connection::{DatabaseConnection as _, SystemStatement};
use crate::engine::records;
use crate::engine::resolve::{Resolver, Winner};
use crate::engine::sql::system::conflicts;
use crate::error::CentreError;
use crate::records::{ConflictOutcome, ConflictRecord};
use crate::settling::{ConflictChoice, ConflictVersion, SettleOutcome};
use crate::verdict::ContendedOutcome;

type Result<T> = std::result::Result<T, CentreError>;

/// Why a remote's change is not taken that its scripts do not find, or resolve for the centre.
const KEPT_BY_SCRIPTS: &str = "the scripts of the table leave the centre's row as it is";

/// Settles a conflict; see [`crate::Worker::settle_conflict`].
pub async fn settle_conflict(
    rows: &mut UploadWriter<impl UploadDriver>,
    choice: &ConflictChoice,
) -> Result<SettleOutcome> {
    let mut attempts = 0;
    loop {
        match try_settle(rows, choice).await {
            Err(error) => {
                rows.try_again("settling a conflict", error, &mut attempts)
                    .await?
            }
            done => return done,
        }
    }
}

async fn try_settle(
    rows: &mut UploadWriter<impl UploadDriver>,
    choice: &ConflictChoice,
) -> Result<SettleOutcome> {
    rows.begin(0).await?;
    // Of two operators, the second one finds what the first one has done.
    let lock = conflicts::lock(choice.conflict);
    let what = "looking for a conflict";
    rows.connection().run_one(what, lock).await?;
    let outcome = match records::conflict(rows.connection(), choice.conflict).await? {
        None => SettleOutcome::Unknown,
        Some(record) => choose(rows, &record, choice).await?,
    };
    match outcome {
        SettleOutcome::Settled { .. } => rows.store_result(note(choice)).await?,
        _ => rows.undo().await?,
    }
    rows.commit().await?;
    Ok(outcome)
}

fn note(choice: &ConflictChoice) -> SystemStatement {
    conflicts::settle(
        choice.conflict,
        choice.now_ms,
        &choice.by,
        choice.version.name(),
    )
}

/// The chosen version as JSON; `None` if the row goes.
fn chosen<'c>(record: &'c ConflictRecord, version: &'c ConflictVersion) -> Option<&'c str> {
    match version {
        ConflictVersion::Uploaded => record.uploaded.as_deref(),
        ConflictVersion::Centre => record.centre(),
        ConflictVersion::PreImage => record.pre_image.as_deref(),
        ConflictVersion::Given(row) => row.as_deref(),
    }
}

/// What a row is to be, read by its table.
struct ChosenRow {
    key: Values,
    /// `None` if it goes.
    new: Option<Values>,
    /// What it is expected to be; `None` if it is expected not to be there.
    left: Option<Values>,
    /// The pre-image, if that is known.
    old: Option<Values>,
}

impl ChosenRow {
    /// # Errors
    /// It cannot be read: why.
    fn read(
        table: &Table,
        record: &ConflictRecord,
        version: &ConflictVersion,
    ) -> std::result::Result<ChosenRow, String> {
        let key = row_json::read_key(table, &record.key)
            .ok_or_else(|| format!("the table {:?} has another key by now", table.name))?;
        let new = match chosen(record, version) {
            None => None,
            Some(json) => {
                let row = row_json::read(table, json)?;
                if let (ConflictVersion::Given(_), Some(name)) = (version, row.unknown.first()) {
                    return Err(format!("the table has no published column {name:?}"));
                }
                Some(row.values)
            }
        };
        let image = |json: Option<&str>| {
            let read = json.map(|json| row_json::read(table, json)).transpose()?;
            Ok::<_, String>(read.map(|it| it.values))
        };
        Ok(ChosenRow {
            key,
            new,
            left: image(record.winner.as_deref())?,
            old: image(record.pre_image.as_deref())?,
        })
    }

    /// The update that the remote has made, from its pre-image, where its version is chosen.
    fn change_made(&self, table: &Table) -> Result<Option<OperatorChange>> {
        match (&self.old, &self.new) {
            (Some(old), Some(new)) => {
                OperatorChange::of_columns(table, Some(old), Some(new)).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Where the conflict has left a remote's change of sums out, the centre's version does so, too:
    /// what others have added since stays.
    fn leave_sums(&mut self, resolver: &Resolver, central: &[Datum<'_>]) {
        let Some(new) = &mut self.new else { return };
        for column in resolver.sums() {
            if let Some(value) = new.iter_mut().find(|it| it.0 == column) {
                value.1 = central[column].to_value();
            }
        }
    }

    /// Of the remote's version, sums are what its change makes of the centre's: added, if the conflict
    /// has left them out, and as they are if they are in.
    fn add_up(
        &mut self,
        table: &Table,
        resolver: &Resolver,
        outcome: ConflictOutcome,
        central: &[Datum<'_>],
    ) {
        let Some(new) = &mut self.new else { return };
        let is_out = matches!(outcome, ConflictOutcome::Centre | ConflictOutcome::Parked);
        let image = |values: &Values, column: usize| {
            values
                .iter()
                .find(|it| it.0 == column)
                .map(|it| it.1.clone())
        };
        for column in resolver.sums() {
            let Some(mine) = image(new, column) else {
                continue;
            };
            let before = self.old.as_ref().map(|old| image(old, column));
            let column_type = table.columns[column].column_type;
            let sum = match before {
                _ if !is_out => Some(central[column].to_value()),
                Some(None) => None,
                Some(Some(before)) => {
                    let before = column_type.datum(before.as_ref()).0;
                    let mine = column_type.datum(mine.as_ref()).0;
                    Resolver::sum(column_type, Some(before), mine, central[column])
                }
                None => {
                    let mine = column_type.datum(mine.as_ref()).0;
                    Resolver::sum(column_type, None, mine, central[column])
                }
            };
            if let Some(sum) = sum {
                new.retain(|it| it.0 != column);
                new.push((column, sum));
            }
        }
    }
}

/// Whether the remote's change of a row that waits, and not the row that it wanted, is what its scripts
/// or its handler have to get: they may add the difference to what others have made of the row. Where
/// the handler leaves the row to the operator, or the operator insists against it, the row is written
/// as it was wanted.
async fn is_made_of_both<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    place: &ServedTablePlace<R::Tables>,
    sender: &RowSender<'_>,
    choice: &ConflictChoice,
) -> Result<bool> {
    let resolver = &place.publication.resolvers[place.index];
    if resolver.winner == Winner::Handler {
        let mut decided = choice.judgement.resolutions.values();
        let writes_wanted = decided.any(|it| match it.becomes {
            ContendedOutcome::Parked => true,
            ContendedOutcome::Centre => choice.force,
            ContendedOutcome::Remote | ContendedOutcome::Merged(_) => false,
        });
        return Ok(!writes_wanted);
    }
    // Of sums, the difference is added here.
    let has_sums = resolver.sums().next().is_some();
    Ok(!has_sums && operator_change::is_scripted(rows, place, sender).await?)
}

/// Writes what was chosen.
async fn choose<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    record: &ConflictRecord,
    choice: &ConflictChoice,
) -> Result<SettleOutcome> {
    let place = match ServedTablePlace::find(rows, &record.publication, &record.table)? {
        Ok(place) => place,
        Err(outcome) => return Ok(outcome),
    };
    let table = place.table();
    let mut wanted = match ChosenRow::read(table, record, &choice.version) {
        Ok(wanted) => wanted,
        Err(reason) => return Ok(refused(Code::RowBadValue, reason)),
    };
    let found = match place.read(rows, &wanted.key).await? {
        Ok(found) => found,
        Err(outcome) => return Ok(outcome),
    };
    let central = place.values(&found)?;
    let resolver = &place.publication.resolvers[place.index];
    let notes = records::conflict_notes(rows.connection(), record.id).await?;
    let sender = RowSender {
        user: &record.user,
        remote_id: record.remote_id,
        publication: &record.publication,
        notes,
        record: record.id,
        now_ms: choice.now_ms,
    };
    let waits = record.outcome == ConflictOutcome::Parked
        && choice.version == ConflictVersion::Uploaded
        && central.is_some();
    let made = match waits && is_made_of_both(rows, &place, &sender, choice).await? {
        true => wanted.change_made(table)?,
        false => None,
    };
    match (&central, &choice.version) {
        (Some(central), ConflictVersion::Uploaded) => {
            wanted.add_up(table, resolver, record.outcome, central);
        }
        (Some(central), ConflictVersion::Centre) if record.outcome == ConflictOutcome::Parked => {
            wanted.leave_sums(resolver, central);
        }
        _ => {}
    }
    let central = central.as_deref();
    if made.is_none() && is_so(table, wanted.new.as_ref(), central) {
        let row = place.json(&found)?;
        return Ok(SettleOutcome::settled(row));
    }
    // What others have added to sums since stays.
    let keeps_sums = match choice.version {
        ConflictVersion::Uploaded => true,
        ConflictVersion::Centre => record.outcome == ConflictOutcome::Parked,
        _ => false,
    };
    if let Some(left) = wanted.left.as_mut().filter(|_| keeps_sums) {
        left.retain(|it| !resolver.sums().any(|sum| sum == it.0));
    }
    if !is_so(table, wanted.left.as_ref(), central) && !choice.force {
        let row = place.json(&found)?;
        return Ok(SettleOutcome::Changed { row });
    }
    if let Some(change) = made {
        let sent =
            operator_change::send(rows, &place, &sender, change, &choice.judgement, false).await?;
        if let OperatorOutcome::Lost = sent {
            let row = place.json(&found)?;
            return Ok(match resolver.winner {
                Winner::Handler => SettleOutcome::Changed { row },
                _ => refused(Code::RowConstraint, KEPT_BY_SCRIPTS),
            });
        }
        return operator_change::conclude(rows, &place, sent, (&found, &wanted.key), false).await;
    }
    let change = match (central, &wanted.new) {
        (None, None) => return Ok(SettleOutcome::settled(None)),
        (Some(central), None) => OperatorChange::delete(table, central)?,
        (Some(central), Some(new)) => OperatorChange::update(table, central, new)?,
        (None, Some(new)) => OperatorChange::insert(table, &wanted.key, new)?,
    };
    let key = operator_change::key_of(table, wanted.new.as_ref()).unwrap_or(wanted.key);
    let sent = operator_change::send(
        rows,
        &place,
        &sender,
        change,
        &choice.judgement,
        choice.force,
    );
    let sent = sent.await?;
    operator_change::conclude(rows, &place, sent, (&found, &key), wanted.new.is_none()).await
}
