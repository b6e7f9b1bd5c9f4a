//! Refused rows: what the centre did not take, why, and what the user decides about it.
//!
//! A refused change is *parked*: its row in the change table moves to generation 0 and keeps
//! the pre-image, its row in `tidewater_refused` tells why. It goes up again when the row is
//! changed again, when the user says so, or when scope or schema changed. What the very sync
//! that brings such a change refused stays refused, as that sync reports it, and goes up with
//! the next one: `again` is set in its row until then. A refused change whose row had to leave
//! the remote has no parked row any more, only all the values of the row: see [`restore`].

mod edit;
pub(crate) mod forgotten_refusals;
pub(crate) mod linked_refusals;
mod new_key;
mod restore;
pub(crate) mod settled_changes;

use std::collections::HashSet;

use rusqlite::{Connection, params};
use serde::Serialize;
use tidewater_protocol::{Code, Table, UploadId, Value};

pub(crate) use restore::{settle_written, write_pending};

use self::settled_changes::SettledEnd;
use super::apply::{ApplySummary, fire_harmless_triggers};
use super::changes::{self, PARKED, has_change, move_to};
use super::row::read_keys;
use super::row_values::{exists, kept_values, key_in, key_of, row_values, run, value_of};
use super::stale_rows::mark_stale;
use super::subscription::load_all;
use super::tables::QuotedNames;
use super::{RemoteDatabase, SubscriptionState, row};
use crate::error::{ErrorContext, RemoteError};

/// A change that the centre refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusedRow {
    /// Its number, for retrying or discarding it.
    pub id: i64,
    /// The publication.
    pub publication: String,
    /// The table.
    pub table: String,
    /// The key, readable: a JSON array.
    pub key: String,
    /// `insert`, `update` or `delete`.
    pub operation: String,
    /// The name of the code.
    pub code: String,
    /// Why, for people.
    pub reason: String,
    /// The upload that it was part of.
    pub sequence: u64,
    /// When the result was applied here, in milliseconds since 1970.
    pub at_ms: i64,
    /// The row's values, a JSON object, where the row itself had to go.
    pub values: Option<String>,
}

/// The columns of [`read`].
const SELECT: &str = "SELECT id, publication, table_name, key, operation, code, reason, sequence, \
     at, row_values FROM tidewater_refused";

fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<RefusedRow> {
    Ok(RefusedRow {
        id: row.get(0)?,
        publication: row.get(1)?,
        table: row.get(2)?,
        key: row.get(3)?,
        operation: row.get(4)?,
        code: row.get(5)?,
        reason: row.get(6)?,
        sequence: row.get::<_, i64>(7)?.unsigned_abs(),
        at_ms: row.get(8)?,
        values: row.get(9)?,
    })
}

/// Which refused rows or conflicts are meant.
#[derive(Clone, Copy, Debug)]
pub enum RowSelection<'a> {
    /// Every one.
    All,
    /// Those of these numbers.
    Ids(&'a [i64]),
}

impl RowSelection<'_> {
    pub(crate) fn includes(&self, id: i64) -> bool {
        match self {
            RowSelection::All => true,
            RowSelection::Ids(ids) => ids.contains(&id),
        }
    }
}

impl RemoteDatabase {
    /// Every refused change, oldest first.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn refused(&self) -> Result<Vec<RefusedRow>, RemoteError> {
        let read_all = || -> rusqlite::Result<Vec<RefusedRow>> {
            self.connection
                .prepare(&format!("{SELECT} ORDER BY id"))?
                .query_map([], read)?
                .collect()
        };
        read_all().doing("reading refused rows")
    }

    /// Makes refused changes pending again, so that the next sync uploads them, and with them
    /// those that were refused because of them; returns how many. Those whose row left the remote
    /// cannot be: there is nothing to upload.
    ///
    /// # Errors
    /// The file is locked or SQLite failed.
    pub fn retry_refused(&mut self, which: RowSelection<'_>) -> Result<u64, RemoteError> {
        let doing = "retrying refused rows";
        let with = match which {
            RowSelection::All => Vec::new(),
            RowSelection::Ids(ids) => linked_refusals::with(self, ids)?,
        };
        let which = match which {
            RowSelection::All => which,
            RowSelection::Ids(_) => RowSelection::Ids(&with),
        };
        self.decide(which, doing, RowsChange::No, |connection, found| {
            let Some(parked) = &found.parked else {
                return Ok(None);
            };
            if parked.waits_its_turn {
                let sql = "UPDATE tidewater_refused SET again = 1 WHERE id = ?1";
                connection.execute(sql, [found.id])?;
                return Ok(Some(RefusalDecision::Waits));
            }
            move_to(
                connection,
                &parked.names,
                &parked.key,
                PARKED,
                parked.generation,
            )?;
            Ok(Some(RefusalDecision::Settled(SettledEnd::retried(
                parked.generation,
            ))))
        })
    }

    /// Gives refused changes up, and those that were refused because of them: the rows go back to
    /// what the centre last had, and are asked for again. Triggers of the application fire as when
    /// rows arrive. Returns how many.
    ///
    /// # Errors
    /// A row that refers to one of them was not sent yet, the file is locked, such a trigger forbids
    /// it, or SQLite failed.
    pub fn discard_refused(&mut self, which: RowSelection<'_>) -> Result<u64, RemoteError> {
        let doing = "discarding refused rows";
        let with = match which {
            RowSelection::All => Vec::new(),
            RowSelection::Ids(ids) => linked_refusals::with(self, ids)?,
        };
        let which = match which {
            RowSelection::All => which,
            RowSelection::Ids(_) => RowSelection::Ids(&with),
        };
        self.check_left_behind(which)?;
        self.decide(which, doing, RowsChange::Yes, |connection, found| {
            if let Some(parked) = &found.parked {
                give_up(connection, parked)?;
                mark_stale(connection, &parked.table.name, &found.key_packed)?;
            }
            Ok(Some(RefusalDecision::Settled(SettledEnd::given_up())))
        })
    }

    /// Whether rows that were not sent yet refer to inserts that are given up: the centre may have
    /// another row under the key, to which they would belong then.
    fn check_left_behind(&self, which: RowSelection<'_>) -> Result<(), RemoteError> {
        let doing = "looking for rows that refer to refused ones";
        let entries = self.refused()?;
        let subscriptions = load_all(&self.connection)?;
        let (mut given_up, mut inserts) = (HashSet::new(), Vec::new());
        for entry in entries.iter().filter(|entry| which.includes(entry.id)) {
            let found = find(&self.connection, &subscriptions, entry).doing(doing)?;
            let Some(found) = found else { continue };
            given_up.insert((entry.table.clone(), found.key_packed));
            inserts.extend(
                found
                    .parked
                    .filter(|_| entry.operation == "insert")
                    .map(|it| (entry, it)),
            );
        }
        for (entry, parked) in inserts {
            let mut subscriptions = subscriptions.iter();
            let subscription = subscriptions.find(|it| it.publication == entry.publication);
            let Some(schema) = subscription.and_then(|it| it.schema.as_deref()) else {
                continue;
            };
            let family = new_key::RowFamily {
                connection: &self.connection,
                schema,
            };
            let left = family.child_but(parked.table, &parked.key, &given_up);
            if let Some((table, key)) = left.doing(doing)? {
                return Err(RemoteError::Usage {
                    what: format!(
                        "{} {} cannot be given up: {table} {key} refers to it and was not sent yet; \
                         nothing was changed",
                        entry.table, entry.key
                    ),
                    hint: "sync first, or delete that row".into(),
                });
            }
        }
        Ok(())
    }

    /// Goes through refused rows in one transaction, and settles those of which `decision` says
    /// how.
    fn decide(
        &mut self,
        which: RowSelection<'_>,
        doing: &str,
        rows_change: RowsChange,
        decision: impl Fn(
            &Connection,
            &RefusalToDecide<'_>,
        ) -> rusqlite::Result<Option<RefusalDecision>>,
    ) -> Result<u64, RemoteError> {
        let entries: Vec<RefusedRow> = self.refused()?;
        let transaction = self.write(doing)?;
        let subscriptions = load_all(&transaction)?;
        let settle = || -> Result<u64, RemoteError> {
            let mut settled = 0;
            for entry in entries.iter().filter(|entry| which.includes(entry.id)) {
                let decided = find(&transaction, &subscriptions, entry)
                    .and_then(|found| match found {
                        Some(found) => decision(&transaction, &found),
                        None => Ok(None),
                    })
                    .doing(doing)?;
                if let Some(RefusalDecision::Settled(end)) = &decided {
                    settled_changes::settle(&transaction, entry.id, end).doing(doing)?;
                }
                settled += u64::from(decided.is_some());
            }
            settled_changes::drop_oldest(&transaction).doing(doing)?;
            Ok(settled)
        };
        let settled = match rows_change {
            RowsChange::Yes => fire_harmless_triggers(&transaction, &subscriptions, settle)?,
            RowsChange::No => settle()?,
        };
        transaction.commit().doing(doing)?;
        Ok(settled)
    }
}

/// What was decided of a refused change.
enum RefusalDecision {
    /// It is settled.
    Settled(SettledEnd<'static>),
    /// It goes up as a transaction of its own, in its turn.
    Waits,
}

/// Whether a decision writes rows of the application's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowsChange {
    Yes,
    No,
}

/// A refused row with what is parked of it.
struct RefusalToDecide<'a> {
    id: i64,
    key_packed: Vec<u8>,
    parked: Option<ParkedChange<'a>>,
}

struct ParkedChange<'a> {
    table: &'a Table,
    names: QuotedNames,
    key: Vec<Value>,
    /// The subscription's current generation.
    generation: i64,
    /// Whether what is sent again goes up as a transaction of its own.
    waits_its_turn: bool,
}

/// `None` when the entry is gone meanwhile.
fn find<'a>(
    connection: &Connection,
    subscriptions: &'a [SubscriptionState],
    entry: &RefusedRow,
) -> rusqlite::Result<Option<RefusalToDecide<'a>>> {
    let mut statement =
        connection.prepare_cached("SELECT key_packed FROM tidewater_refused WHERE id = ?1")?;
    let mut rows = statement.query([entry.id])?;
    let Some(found) = rows.next()? else {
        return Ok(None);
    };
    let key_packed: Vec<u8> = found.get(0)?;
    let table = subscriptions.iter().find_map(|subscription| {
        let schema = subscription.schema.as_deref()?;
        Some((subscription, schema.table(&entry.table)?))
    });
    let mut parked = None;
    if let Some((subscription, table)) = table
        && let Ok(key) = row::unpack_key(&row::key_types(table), &key_packed)
    {
        let key: Vec<Value> = key.iter().map(|datum| datum.to_value()).collect();
        let names = QuotedNames::for_table(table);
        if entry.values.is_none() && is_parked(connection, &names, &key)? {
            parked = Some(ParkedChange {
                table,
                names,
                key,
                generation: subscription.generation,
                waits_its_turn: subscription.is_transactional(),
            });
        }
    }
    Ok(Some(RefusalToDecide {
        id: entry.id,
        key_packed,
        parked,
    }))
}

fn is_parked(
    connection: &Connection,
    names: &QuotedNames,
    key: &[Value],
) -> rusqlite::Result<bool> {
    has_change(connection, names, key, PARKED)
}

/// Which parked changes are to be tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryScope {
    /// Those of rows that the centre never had.
    Inserts,
    /// Every one.
    All,
}

/// Makes parked changes of a table pending again and forgets their refusals.
pub(crate) fn unpark_all(
    connection: &Connection,
    table: &Table,
    generation: i64,
    which: RetryScope,
) -> Result<(), RemoteError> {
    if !exist(connection, &table.name)? {
        return Ok(());
    }
    let doing = "trying refused rows again";
    let (is_meant, refusal_is_meant) = match which {
        RetryScope::Inserts => (" AND NOT present", " AND operation = 'insert'"),
        RetryScope::All => ("", ""),
    };
    let names = QuotedNames::for_table(table);
    let sql = format!(
        "SELECT {} FROM {} WHERE generation = {PARKED}{is_meant}",
        names.change_key.join(", "),
        names.change
    );
    let fresh = fresh_keys(connection, &table.name).doing(doing)?;
    let types = row::key_types(table);
    for key in read_keys(connection, &sql, &[], table).doing(doing)? {
        // What is recorded under a changed key goes with its other record.
        let pair = changes::rekeyed(connection, &names, PARKED, &key).doing(doing)?;
        let packed = row::pack_key(&types, &row::datums(&types, &key));
        if pair.is_none_or(|pair| pair.old == key) && !fresh.contains(&packed) {
            move_to(connection, &names, &key, PARKED, generation).doing(doing)?;
            settled_changes::retried(connection, &table.name, &packed, generation)?;
        }
    }
    connection
        .execute(
            &format!(
                "DELETE FROM tidewater_refused WHERE table_name = ?1 AND row_values IS NULL \
                 AND at <> {TIME_UNKNOWN}{refusal_is_meant}"
            ),
            [&table.name],
        )
        .map(drop)
        .doing(doing)
}

/// The packed keys of what the sync under way refused.
fn fresh_keys(connection: &Connection, table: &str) -> rusqlite::Result<HashSet<Vec<u8>>> {
    connection
        .prepare_cached(&format!(
            "SELECT key_packed FROM tidewater_refused WHERE table_name = ?1 \
             AND at = {TIME_UNKNOWN}"
        ))?
        .query_map([table], |row| row.get(0))?
        .collect()
}

/// What earlier sessions of the sync under way refused, at this time, is as fresh as what this
/// one refuses.
pub(crate) fn make_fresh(
    connection: &Connection,
    refused_at: Option<i64>,
) -> Result<(), RemoteError> {
    let Some(at) = refused_at else { return Ok(()) };
    connection
        .execute(
            "UPDATE tidewater_refused SET at = ?2 WHERE at = ?1",
            [at, TIME_UNKNOWN],
        )
        .map(drop)
        .doing("looking at what the sync refused before")
}

/// Tells what was refused before the upload that is acknowledged now was sent, before anything
/// else of it is refused.
pub(crate) fn tell_set_aside(
    connection: &Connection,
    subscription: &SubscriptionState,
    summary: &mut ApplySummary,
) -> Result<(), RemoteError> {
    let mut tell = || -> rusqlite::Result<()> {
        let mut statement = connection.prepare_cached(&format!(
            "SELECT table_name, key, reason FROM tidewater_refused WHERE publication = ?1 \
             AND sequence = ?2 AND at = {TIME_UNKNOWN} ORDER BY id"
        ))?;
        let sequence = i64::try_from(subscription.sequence + 1).unwrap_or(i64::MAX);
        let mut rows = statement.query(params![subscription.publication, sequence])?;
        while let Some(row) = rows.next()? {
            let text = |index| -> rusqlite::Result<String> { row.get(index) };
            summary.note_refused(&text(0)?, &text(1)?, &text(2)?);
        }
        Ok(())
    };
    tell().doing("reading refused rows")
}

/// What the sync under way refused goes up again with the next one.
pub(crate) fn try_fresh_again(
    connection: &Connection,
    publication: &str,
) -> Result<(), RemoteError> {
    connection
        .prepare_cached(&format!(
            "UPDATE tidewater_refused SET again = 1 WHERE publication = ?1 \
             AND at = {TIME_UNKNOWN} AND row_values IS NULL"
        ))
        .and_then(|mut statement| statement.execute([publication]))
        .map(drop)
        .doing("marking refused rows for another try")
}

/// All refused changes of a publication go up again with the syncs that follow, but for what the
/// sync under way refused.
pub(crate) fn try_all_again(connection: &Connection, publication: &str) -> Result<(), RemoteError> {
    connection
        .prepare_cached(&format!(
            "UPDATE tidewater_refused SET again = 1 WHERE publication = ?1 \
             AND at <> {TIME_UNKNOWN} AND row_values IS NULL"
        ))
        .and_then(|mut statement| statement.execute([publication]))
        .map(drop)
        .doing("marking refused rows for another try")
}

/// Whether refused changes of a publication wait for another try.
pub(crate) fn wait_for_another_try(
    connection: &Connection,
    publication: &str,
) -> Result<bool, RemoteError> {
    connection
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM tidewater_refused WHERE publication = ?1 \
             AND again = 1 AND row_values IS NULL)",
        )
        .and_then(|mut statement| statement.query_row([publication], |row| row.get(0)))
        .doing("looking for refused rows")
}

/// Makes those pending that wait for another try.
pub(crate) fn unpark_waiting(
    connection: &Connection,
    subscription: &SubscriptionState,
    generation: i64,
    which: RowSelection<'_>,
) -> Result<(), RemoteError> {
    let doing = "trying refused rows again";
    for table in subscription.schema.iter().flat_map(|schema| &schema.tables) {
        let mut statement = connection
            .prepare_cached(
                "SELECT id, key_packed FROM tidewater_refused WHERE table_name = ?1 \
                 AND again = 1 AND row_values IS NULL",
            )
            .doing(doing)?;
        let packed: Vec<(i64, Vec<u8>)> = statement
            .query_map([&table.name], |row| Ok((row.get(0)?, row.get(1)?)))
            .and_then(Iterator::collect)
            .doing(doing)?;
        let names = QuotedNames::for_table(table);
        let meant = packed.iter().filter(|(id, _)| which.includes(*id));
        for (_, packed) in meant {
            let Ok(key) = row::unpack_key(&row::key_types(table), packed) else {
                continue;
            };
            let key: Vec<Value> = key.iter().map(|datum| datum.to_value()).collect();
            if is_parked(connection, &names, &key).doing(doing)? {
                move_to(connection, &names, &key, PARKED, generation).doing(doing)?;
                settled_changes::retried(connection, &table.name, packed, generation)?;
            }
            forget(connection, &table.name, packed)?;
        }
    }
    Ok(())
}

/// Has what waits for another try go up with what is on its way already, as another upload: a centre
/// that knows nothing of refused rows any more would take what refers to them for a part of its own.
/// Where an application's transactions go up one by one, what was refused goes before it.
pub(crate) fn rejoin_taken(
    connection: &Connection,
    new_upload_id: &mut dyn FnMut() -> UploadId,
) -> Result<(), RemoteError> {
    let doing = "trying refused rows again";
    for subscription in load_all(connection)? {
        let Some(taken) = subscription.taken_generation else {
            continue;
        };
        if !wait_for_another_try(connection, &subscription.publication)? {
            continue;
        }
        if subscription.is_transactional() {
            let sql = "UPDATE tidewater_subscription SET taken_generation = NULL, \
                       taken_upload_id = NULL WHERE id = ?1";
            connection.execute(sql, [subscription.id]).doing(doing)?;
            continue;
        }
        unpark_waiting(connection, &subscription, taken, RowSelection::All)?;
        let sql = "UPDATE tidewater_subscription SET taken_upload_id = ?2 WHERE id = ?1";
        connection
            .execute(sql, params![subscription.id, new_upload_id().0])
            .doing(doing)?;
    }
    Ok(())
}

/// Marks refused inserts of families for another try, or to be told where only their values are left:
/// their centre does not know them as this remote's any more.
pub(crate) fn try_families_again(connection: &Connection) -> Result<(), RemoteError> {
    for subscription in load_all(connection)? {
        let tables = subscription.schema.iter().flat_map(|it| &it.tables);
        let is_parent = |table: &Table| {
            let mut keys = tables.clone().flat_map(|it| &it.foreign_keys);
            keys.any(|it| it.parent == table.name)
        };
        for table in tables.clone() {
            if is_parent(table) || !table.foreign_keys.is_empty() {
                let sql = "UPDATE tidewater_refused SET again = 1 WHERE publication = ?1
                           AND table_name = ?2 AND operation = 'insert'";
                connection
                    .execute(sql, params![subscription.publication, table.name])
                    .doing("marking refused rows for another try")?;
            }
        }
    }
    Ok(())
}

/// Puts the pre-image of a parked change back into the user table. Tracking and foreign-key
/// actions are off.
fn give_up(connection: &Connection, parked: &ParkedChange<'_>) -> rusqlite::Result<()> {
    let (names, key) = (&parked.names, &parked.key);
    if let Some(later) = changes::later_than(connection, names, key, PARKED)? {
        // Changed again since: the newer change stays pending, against the centre's row.
        return move_to(connection, names, key, PARKED, later).map(drop);
    }
    if let Some(pair) = changes::rekeyed(connection, names, PARKED, key)? {
        delete_row(connection, names, &pair.new)?;
    }
    restore_row(connection, parked)?;
    changes::forget(connection, names, key, PARKED)
}

fn delete_row(connection: &Connection, names: &QuotedNames, key: &[Value]) -> rusqlite::Result<()> {
    let mut delete = connection.prepare_cached(&format!(
        "DELETE FROM {} WHERE {}",
        names.table,
        names.key_is_bound()
    ))?;
    names.bind_key(&mut delete, key)?;
    delete.raw_execute().map(drop)
}

fn restore_row(connection: &Connection, parked: &ParkedChange<'_>) -> rusqlite::Result<()> {
    let names = &parked.names;
    delete_row(connection, names, &parked.key)?;
    let columns: Vec<&str> = names
        .key
        .iter()
        .map(String::as_str)
        .chain(
            names
                .values
                .iter()
                .map(|&index| names.columns[index].as_str()),
        )
        .collect();
    let images: Vec<&str> = names
        .change_key
        .iter()
        .chain(&names.pre)
        .map(String::as_str)
        .collect();
    let mut insert = connection.prepare_cached(&format!(
        "INSERT OR IGNORE INTO {} ({}) SELECT {} FROM {} WHERE {} AND generation = {PARKED} \
         AND present = 1",
        names.table,
        columns.join(", "),
        images.join(", "),
        names.change,
        names.change_key_is_bound()
    ))?;
    names.bind_key(&mut insert, &parked.key)?;
    insert.raw_execute().map(drop)
}

/// Whether a table has refused rows.
pub(crate) fn exist(connection: &Connection, table: &str) -> Result<bool, RemoteError> {
    connection
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM tidewater_refused WHERE table_name = ?1)")
        .and_then(|mut statement| statement.query_row([table], |row| row.get(0)))
        .doing("looking for refused rows")
}

/// Whether a key is refused with these values already.
pub(crate) fn is_recorded(
    connection: &Connection,
    refusal: &NewRefusal<'_>,
) -> rusqlite::Result<bool> {
    connection
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM tidewater_refused WHERE table_name = ?1 \
             AND key_packed = ?2 AND code = ?3 AND row_values IS ?4)",
        )?
        .query_row(
            params![
                refusal.table,
                refusal.key_packed,
                refusal.code,
                refusal.row_values
            ],
            |row| row.get(0),
        )
}

/// Forgets that a key was refused; entries that hold the user's values stay.
pub(crate) fn forget(
    connection: &Connection,
    table: &str,
    key_packed: &[u8],
) -> Result<(), RemoteError> {
    connection
        .prepare_cached(
            "DELETE FROM tidewater_refused WHERE table_name = ?1 AND key_packed = ?2 \
             AND row_values IS NULL",
        )
        .and_then(|mut statement| statement.execute(params![table, key_packed]))
        .map(drop)
        .doing("forgetting a refusal")
}

/// A key is going to be refused: what was said of it before is superseded.
pub(crate) fn supersede(
    connection: &Connection,
    table: &str,
    key_packed: &[u8],
) -> Result<(), RemoteError> {
    settled_changes::refused_again(connection, table, key_packed).doing("forgetting a refusal")?;
    forget(connection, table, key_packed)
}

/// The name of a code, or its number where this version does not know it.
pub(crate) fn code_name(code: u32) -> String {
    match Code::from_number(code) {
        Some(code) => code.name().to_owned(),
        None => code.to_string(),
    }
}

/// A refusal to be written down.
pub(crate) struct NewRefusal<'a> {
    pub(crate) publication: &'a str,
    pub(crate) table: &'a str,
    pub(crate) key: &'a str,
    pub(crate) key_packed: &'a [u8],
    pub(crate) operation: &'a str,
    pub(crate) code: &'a str,
    pub(crate) reason: &'a str,
    pub(crate) sequence: u64,
    pub(crate) row_values: Option<&'a str>,
}

/// The time of a refusal before the apply that brought it knows its own.
pub(crate) const TIME_UNKNOWN: i64 = -1;

/// Writes a refusal down.
pub(crate) fn record(connection: &Connection, refusal: &NewRefusal<'_>) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO tidewater_refused (publication, table_name, key, key_packed, operation, \
             code, reason, sequence, at, row_values) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        )?
        .execute(params![
            refusal.publication,
            refusal.table,
            refusal.key,
            refusal.key_packed,
            refusal.operation,
            refusal.code,
            refusal.reason,
            i64::try_from(refusal.sequence).unwrap_or(i64::MAX),
            TIME_UNKNOWN,
            refusal.row_values,
        ])
        .map(drop)
}
