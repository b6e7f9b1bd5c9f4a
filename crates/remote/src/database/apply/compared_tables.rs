//! Tables that were compared: of the intervals of keys in which the centre has something else,
//! all rows arrive. What is equal stays as it is, what did not arrive goes.
//!
//! A table that was changed while nothing tracked it, or of which a restored centre has forgotten
//! more than was kept, is *untracked* until its compare is applied. What differs there may be the
//! user's: it becomes a pending change against the centre's row. Where the centre has changed the
//! row too, the centre's row wins, and the user's differing values stay among the refused rows. So
//! they do for all that differs where the server does not say that the changes since the
//! checkpoint have come before (it may not know the history of the checkpoint, or not what happened
//! in a table that was truncated): what the centre changed meanwhile would go back to it as the
//! user's changes, new rows of others as deletes. So do rows that only the remote has, where nobody
//! tells it of deletes: they may be deleted in the centre.
//!
//! The server may leave tables out of the compare. They stay untracked, and a compare stays due.

use rusqlite::{Connection, params};
use serde_json::Map;
use tidewater_protocol::compare::Intervals;
use tidewater_protocol::message::{
    KeyInterval, MAX_VERIFIED_BYTES, MAX_VERIFIED_KEYS, MAX_VERIFIED_TABLES, UncomparedReason,
    UncomparedTable, VerifiedTable, VerifiedTables,
};
use tidewater_protocol::pack::same;
use tidewater_protocol::{Code, Datum, Fit, UnpackedRow, Value};

use super::rows::RowSink;
use super::summary::ROWS_TOLD;
use super::table::TableApply;
use super::{ApplySummary, RowDifference, TableDifferences};
use crate::database::changes::PARKED;
use crate::database::refused::{self, NewRefusal};
use crate::database::tables::QuotedNames;
use crate::database::{CompareDue, SubscriptionState, compare, quote, row};
use crate::error::{ErrorContext, RemoteError};

const DOING: &str = "applying what was compared";

/// Why the values of an untracked row are among the refused.
const BOTH: &str = "the row may have been changed here while its table had no tracking triggers, \
                    or by an upload that was too large to be kept and that a restored centre has \
                    forgotten, and it is another one in the centre; the centre's row counts";

/// Why a row that came is among the refused.
const CAME_BACK: &str = "the centre was restored and has forgotten an upload that was too large to \
                         be kept; it may have deleted this row, which has come back: delete it \
                         again if it is not wanted";

/// The keys that were here in the intervals and have not arrived yet. It is the connection's
/// own and goes with the transaction.
const UNSEEN: &str = "temp.tidewater_unseen";

/// What a comparing download brought is all applied: no compare is due any more, unless an
/// untracked table is among those that the server did not compare. Whether a table had been
/// untracked.
pub(super) fn settle(
    connection: &Connection,
    subscription: &SubscriptionState,
    uncompared: &[UncomparedTable],
) -> Result<bool, RemoteError> {
    let settle = || -> rusqlite::Result<bool> {
        connection.execute(
            "UPDATE tidewater_subscription SET compare_due = ?2 WHERE id = ?1",
            params![subscription.id, CompareDue::No.stored()],
        )?;
        let mut was_untracked = false;
        for table in subscription.schema.iter().flat_map(|schema| &schema.tables) {
            if uncompared.iter().all(|it| it.table != table.name) {
                was_untracked |= compare::forget_untracked(connection, &table.name)?;
            } else if compare::is_untracked(connection, &table.name)? {
                compare::make_due(connection, subscription.id)?;
            }
        }
        Ok(was_untracked)
    };
    settle().doing(DOING)
}

const MISSING: &str = "missing";
const EXTRA: &str = "extra";
const DIFFERENT: &str = "different";

/// What is told of a table so far.
fn differences<'s>(summary: &'s mut ApplySummary, table: &str) -> &'s mut TableDifferences {
    let known = summary.compared.iter().position(|it| it.table == table);
    let at = known.unwrap_or_else(|| {
        summary.compared.push(TableDifferences {
            table: table.to_owned(),
            ..TableDifferences::default()
        });
        summary.compared.len() - 1
    });
    &mut summary.compared[at]
}

/// Tells of rows of the centre that have no key.
pub(super) fn tell_keyless(summary: &mut ApplySummary, table: &str, rows: u64) {
    differences(summary, table).keyless = rows;
}

/// Keeps what was not equal, so that the server hears of it with the next Hello.
pub(super) fn tell_server(
    connection: &Connection,
    subscription: &SubscriptionState,
    summary: &mut ApplySummary,
) -> Result<(), RemoteError> {
    let of_subscription = |it: &&TableDifferences| {
        let mut schema = subscription.schema.iter();
        !it.is_equal() && schema.any(|schema| schema.table(&it.table).is_some())
    };
    let tables = summary.compared.iter().filter(of_subscription);
    let tables = tables.take(MAX_VERIFIED_TABLES).map(|it| VerifiedTable {
        table: it.table.clone(),
        missing: it.missing,
        extra: it.extra,
        different: it.different,
        keys: {
            let keys = it.rows.iter().map(|row| row.key.clone());
            let keys = keys.filter(|key| key.len() <= MAX_VERIFIED_BYTES);
            keys.take(MAX_VERIFIED_KEYS).collect()
        },
    });
    let verified = VerifiedTables {
        tables: tables.collect(),
    };
    if verified.tables.is_empty() {
        return Ok(());
    }
    summary.has_verified = true;
    connection
        .execute(
            "UPDATE tidewater_subscription SET verified = ?2 WHERE id = ?1",
            params![subscription.id, verified.to_bytes()],
        )
        .map(drop)
        .doing(DOING)
}

/// Counts the rows of all compared tables that are equal: those without local changes that
/// were not found to differ. Of the others, tells why they were not compared.
pub(super) fn tell_equal(
    connection: &Connection,
    subscription: &SubscriptionState,
    uncompared: &[UncomparedTable],
    summary: &mut ApplySummary,
) -> Result<(), RemoteError> {
    let schema = subscription.schema.iter();
    for table in schema.flat_map(|schema| compare::compared(schema)) {
        if let Some(left_out) = uncompared.iter().find(|it| it.table == table.name) {
            let told = differences(summary, &table.name);
            told.uncompared = Some(match left_out.reason() {
                UncomparedReason::Script => "script",
                UncomparedReason::Handler => "handler",
                UncomparedReason::Unknown => "unknown",
            });
            continue;
        }
        let names = QuotedNames::for_table(table);
        let sql = format!(
            "SELECT count(*) FROM {} AS p WHERE NOT EXISTS (SELECT 1 FROM {} AS h WHERE {})",
            names.table,
            names.change,
            names.change_of("h", "p")
        );
        let rows: i64 = connection
            .query_row(&sql, [], |found| found.get(0))
            .doing(DOING)?;
        let told = differences(summary, &table.name);
        told.equal = rows
            .unsigned_abs()
            .saturating_sub(told.extra + told.different);
    }
    Ok(())
}

/// The rows of these intervals follow; without any, those of the whole table.
pub(super) fn begin(
    connection: &Connection,
    table: &mut TableApply,
    intervals: &[KeyInterval],
) -> Result<(), RemoteError> {
    table.is_compared = true;
    let shape = table.table().shape();
    let bounded = match intervals {
        [] => None,
        _ => {
            let intervals = Intervals::new(&shape, intervals);
            Some(intervals.map_err(|error| RemoteError::BadRows {
                table: table.name().to_owned(),
                what: error.to_string(),
            })?)
        }
    };
    let collect = || -> rusqlite::Result<()> {
        connection.execute_batch(&format!(
            "DROP TABLE IF EXISTS {UNSEEN}; \
             CREATE TABLE {UNSEEN} (key_packed BLOB PRIMARY KEY) WITHOUT ROWID"
        ))?;
        let mut insert = connection.prepare(&format!(
            "INSERT INTO {UNSEEN} VALUES (?1) ON CONFLICT DO NOTHING"
        ))?;
        let names = &table.names;
        let mut sql = format!("SELECT {} FROM {}", names.key.join(", "), names.table);
        if table.is_untracked {
            // What was deleted here may never have been in the centre.
            let keys = names.change_key.join(", ");
            sql += &format!(" UNION ALL SELECT {keys} FROM {}", names.change);
        }
        let mut keys = connection.prepare(&sql)?;
        let mut keys = keys.raw_query();
        while let Some(found) = keys.next()? {
            let key = datums(found, &table.key_types)?;
            if bounded
                .as_ref()
                .is_none_or(|intervals| intervals.contains(&key))
            {
                insert.execute([row::pack_key(&table.key_types, &key)])?;
            }
        }
        Ok(())
    };
    collect().doing(DOING)
}

fn datums<'r>(
    found: &'r rusqlite::Row<'_>,
    types: &[tidewater_protocol::ColumnType],
) -> rusqlite::Result<Vec<Datum<'r>>> {
    let types = types.iter().enumerate();
    types
        .map(|(index, &column_type)| Ok(row::datum(column_type, found.get_ref(index)?).0))
        .collect()
}

impl RowSink<'_> {
    /// The centre has a row of this key in a compared interval.
    pub(super) fn note_arrived(&mut self, key: &[Datum<'_>]) -> Result<(), RemoteError> {
        let packed = row::pack_key(&self.table.key_types, key);
        self.connection
            .prepare_cached(&format!("DELETE FROM {UNSEEN} WHERE key_packed = ?1"))
            .and_then(|mut statement| statement.execute([packed]))
            .map(drop)
            .doing(DOING)
    }

    /// A row of the centre, whose key has no local change, against the one that is here;
    /// false if it is to be written.
    pub(super) fn settle_compared(
        &mut self,
        arrived: &UnpackedRow<'_>,
    ) -> Result<bool, RemoteError> {
        let here = self.row_here(&arrived.key).doing(DOING)?;
        if let Some((values, Fit::Canonical)) = &here
            && self.are_same(values, &arrived.new)
        {
            if self.table.has_stale {
                self.clear_stale(&arrived.key)?;
            }
            self.note_written(&arrived.key);
            return Ok(true);
        }
        if self.table.is_compared && self.table.only_tells {
            self.tell(&arrived.key, here.map_or(MISSING, |_| DIFFERENT));
            return Ok(true);
        }
        if self.expects_equal(&arrived.key)? {
            self.tell(&arrived.key, here.as_ref().map_or(MISSING, |_| DIFFERENT));
        }
        if !self.table.is_untracked {
            return Ok(false);
        }
        if here.is_some() && !self.table.added.is_empty() {
            self.fill_added_columns(arrived)?;
            let filled = self.row_here(&arrived.key).doing(DOING)?;
            if filled.is_some_and(|(values, _)| self.are_same(&values, &arrived.new)) {
                return Ok(false);
            }
        }
        let is_stale = self.is_stale(&arrived.key).doing(DOING)?;
        // A row that left, and whose values are kept with a refusal, is no delete.
        let is_known = here.is_some() || !self.gave_way(&arrived.key).doing(DOING)?;
        let follows = self.table.is_compared && self.table.follows_changes;
        if follows && is_known && !is_stale {
            self.make_pending(arrived).doing(DOING)?;
            return Ok(true);
        }
        let may_be_deleted = here.is_none() && is_known && !is_stale;
        if self.table.is_forgotten && self.table.is_compared && may_be_deleted {
            let table = self.table.table();
            let key = table.key_columns().zip(&arrived.key);
            let key = key.map(|(column, datum)| (column.name.clone(), row::json(datum)));
            self.tell_untracked(&arrived.key, "delete", &key.collect(), CAME_BACK)?;
        }
        self.keep_untracked(&arrived.key, Some(&arrived.new))?;
        Ok(false)
    }

    /// Whether the row here has given way to the centre's since the table was noted.
    fn gave_way(&self, key: &[Datum<'_>]) -> rusqlite::Result<bool> {
        let packed = row::pack_key(&self.table.key_types, key);
        self.connection
            .prepare_cached(
                "SELECT EXISTS (SELECT 1 FROM tidewater_gave_way WHERE table_name = ?1 \
                 AND key_packed = ?2)",
            )?
            .query_row(params![self.table.name(), packed], |row| row.get(0))
    }

    /// A row of an untracked table gives way to the centre's, which may come later: that it is gone
    /// here is no delete of the user's. Whether this was not known.
    pub(super) fn note_gave_way(&self, key_packed: &[u8]) -> Result<bool, RemoteError> {
        let noted = self
            .connection
            .prepare_cached("INSERT INTO tidewater_gave_way VALUES (?1, ?2) ON CONFLICT DO NOTHING")
            .and_then(|mut statement| statement.execute((self.table.name(), key_packed)));
        noted.map(|noted| noted > 0).doing(DOING)
    }

    /// After the last row of a compared table: what did not arrive is not in the centre.
    pub(super) fn end_compared(&mut self) -> Result<(), RemoteError> {
        let unseen: Vec<Vec<u8>> = self
            .connection
            .prepare(&format!("SELECT key_packed FROM {UNSEEN}"))
            .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
            .doing(DOING)?;
        let types = self.table.key_types.clone();
        for packed in unseen {
            let Ok(key) = row::unpack_key(&types, &packed) else {
                continue;
            };
            self.forget_idle(&key)?;
            let is_changed = self.table.has_changes && self.newest_change(&key)?.is_some();
            if self.table.only_tells {
                if !is_changed {
                    self.tell(&key, EXTRA);
                }
                continue;
            }
            if !is_changed && self.expects_equal(&key)? {
                self.tell(&key, EXTRA);
            }
            let may_be_deleted = self.table.deletes_unknown;
            if is_changed && !may_be_deleted && self.rebase(&key, None)? {
                continue;
            }
            let is_stale = self.is_stale(&key).doing(DOING)?;
            let is_own = self.table.is_untracked && !is_changed && !is_stale;
            if is_own && self.table.follows_changes && !may_be_deleted {
                self.make_pending_insert(&key).doing(DOING)?;
            } else {
                self.keep_untracked(&key, None)?;
                self.summary.removals += self.take_away(&key)?;
            }
        }
        self.connection
            .execute_batch(&format!("DROP TABLE {UNSEEN}"))
            .doing(DOING)
    }

    /// Whether nothing explains that a row of a compared table differs: all changes since the
    /// checkpoint have come before, and nothing of it waits here.
    fn expects_equal(&self, key: &[Datum<'_>]) -> Result<bool, RemoteError> {
        let table = &self.table;
        let is_explained = !table.follows_changes || table.is_untracked || !table.is_compared;
        if !table.verifies || is_explained {
            return Ok(false);
        }
        Ok(!self.is_stale(key).doing(DOING)?)
    }

    /// Counts a row that differs.
    fn tell(&mut self, key: &[Datum<'_>], what: &'static str) {
        let told = differences(self.summary, self.table.name());
        match what {
            MISSING => told.missing += 1,
            EXTRA => told.extra += 1,
            _ => told.different += 1,
        }
        if told.rows.len() < ROWS_TOLD {
            let key = row::readable_key(key);
            told.rows.push(RowDifference { key, what });
        }
    }

    /// The row under a key as it is here, and how well its values fit.
    fn row_here(&mut self, key: &[Datum<'_>]) -> rusqlite::Result<Option<(Vec<Value>, Fit)>> {
        let names = &self.table.names;
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT {} FROM {} WHERE {}",
            names.columns.join(", "),
            names.table,
            names.key_is_bound()
        ))?;
        row::bind_key(&mut statement, key, &mut self.scratch)?;
        let mut rows = statement.raw_query();
        let Some(found) = rows.next()? else {
            return Ok(None);
        };
        let mut worst = Fit::Canonical;
        for (index, column) in self.table.table().columns.iter().enumerate() {
            let (_, fit) = row::datum(column.column_type, found.get_ref(index)?);
            worst = worst.max(fit);
        }
        let values = row::owned(found, 0, names.columns.len())?;
        Ok(Some((values, worst)))
    }

    fn are_same(&self, here: &[Value], arrived: &[Datum<'_>]) -> bool {
        let columns = self.table.table().columns.iter();
        let here = columns.zip(here).map(|(column, value)| {
            let (datum, _) = column.column_type.datum(value.as_ref());
            datum
        });
        here.zip(arrived)
            .all(|(here, arrived)| same(&here, arrived))
    }

    pub(super) fn is_stale(&self, key: &[Datum<'_>]) -> rusqlite::Result<bool> {
        if !self.table.has_stale {
            return Ok(false);
        }
        let packed = row::pack_key(&self.table.key_types, key);
        self.connection
            .prepare_cached(
                "SELECT EXISTS (SELECT 1 FROM tidewater_stale WHERE table_name = ?1 \
                 AND key_packed = ?2)",
            )?
            .query_row(params![self.table.name(), packed], |row| row.get(0))
    }

    /// What differs here becomes a change of the current generation, with the centre's row as
    /// pre-image.
    fn make_pending(&mut self, arrived: &UnpackedRow<'_>) -> rusqlite::Result<()> {
        let names = &self.table.names;
        let columns = names.change_key.iter().chain(&names.pre);
        let columns = quote::list(columns, ", ", String::clone);
        let count = names.change_key.len() + names.pre.len();
        let mut statement = self.connection.prepare_cached(&format!(
            "INSERT INTO {} ({columns}, generation, present) VALUES ({}, ?{}, 1)",
            names.change,
            quote::list(1..=count, ", ", |n| format!("?{n}")),
            count + 1,
        ))?;
        row::bind_key(&mut statement, &arrived.key, &mut self.scratch)?;
        let first = names.change_key.len() + 1;
        let values: Vec<Datum<'_>> = names.values.iter().map(|&at| arrived.new[at]).collect();
        row::bind(&mut statement, first, &values, &mut self.scratch)?;
        statement.raw_bind_parameter(count + 1, self.subscription.generation)?;
        statement.raw_execute()?;
        self.table.has_changes = true;
        Ok(())
    }

    /// A row with a local change differs from the centre's, which is `arrived` or gone. Where the
    /// table was untracked, the row may have been changed before anybody recorded what it was:
    /// then the pre-image is what the user made of it, and would lose as a conflict with nobody.
    /// What the centre has had since the last sync is what the change was made from. Whether it
    /// is so: not where the centre has changed the row, nor of an upload that was sent already.
    pub(super) fn rebase(
        &mut self,
        key: &[Datum<'_>],
        arrived: Option<&[Datum<'_>]>,
    ) -> Result<bool, RemoteError> {
        let table = &self.table;
        let knows = table.is_untracked && table.is_compared && table.follows_changes;
        if !knows || table.only_tells || self.is_stale(key).doing(DOING)? {
            return Ok(false);
        }
        let taken = self.subscription.taken_generation;
        let first = self.oldest_change(key).doing(DOING)?;
        let Some(first) = first.filter(|&first| Some(first) != taken) else {
            return Ok(false);
        };
        let names = &self.table.names;
        let base = key.len() + 3;
        let pre = quote::list(names.pre.iter().enumerate(), "", |(number, column)| {
            format!(", {column} = ?{}", base + number)
        });
        let sql = format!(
            "UPDATE {} SET present = ?{}{pre} WHERE {} AND generation = ?{}",
            names.change,
            key.len() + 2,
            names.change_key_is_bound(),
            key.len() + 1,
        );
        let values: Vec<Datum<'_>> = match arrived {
            Some(arrived) => names.values.iter().map(|&at| arrived[at]).collect(),
            None => vec![Datum::Null; names.pre.len()],
        };
        let scratch = &mut self.scratch;
        let mut rebase = || -> rusqlite::Result<()> {
            let mut statement = self.connection.prepare_cached(&sql)?;
            row::bind_key(&mut statement, key, scratch)?;
            statement.raw_bind_parameter(key.len() + 1, first)?;
            statement.raw_bind_parameter(key.len() + 2, arrived.is_some())?;
            row::bind(&mut statement, base, &values, scratch)?;
            statement.raw_execute().map(drop)
        };
        rebase().doing(DOING)?;
        Ok(true)
    }

    /// A statement that changed nothing wrote down, in an untracked table, what the user had made
    /// of the row before: that it would go up as no change must not let it go.
    pub(super) fn forget_idle(&mut self, key: &[Datum<'_>]) -> Result<(), RemoteError> {
        if !self.table.is_untracked || !self.table.has_changes {
            return Ok(());
        }
        let taken = self.subscription.taken_generation;
        let first = self.oldest_change(key).doing(DOING)?;
        let Some(first) = first.filter(|&it| it != PARKED && Some(it) != taken) else {
            return Ok(());
        };
        let names = &self.table.names;
        let same = names.values.iter().zip(&names.pre);
        let same = quote::list(same, "", |(&index, pre)| {
            format!(" AND h.{pre} IS p.{}", names.columns[index])
        });
        let sql = format!(
            "SELECT 1 FROM {change} AS h LEFT JOIN {} AS p ON {} WHERE {} AND h.generation = ?{} \
             AND CASE h.present WHEN 1 THEN p.{key} IS NOT NULL{same} ELSE p.{key} IS NULL END",
            names.table,
            names.change_of("h", "p"),
            names.change_key_is_bound_in("h"),
            key.len() + 1,
            change = names.change,
            key = names.key[0],
        );
        let is_idle = |scratch: &mut String| -> rusqlite::Result<bool> {
            let mut statement = self.connection.prepare_cached(&sql)?;
            row::bind_key(&mut statement, key, scratch)?;
            statement.raw_bind_parameter(key.len() + 1, first)?;
            let found = statement.raw_query().next()?.is_some();
            Ok(found)
        };
        if !is_idle(&mut self.scratch).doing(DOING)? {
            return Ok(());
        }
        while let Some(generation) = self.newest_change(key)? {
            self.delete_change(key, generation).doing(DOING)?;
        }
        Ok(())
    }

    /// A row that is only here becomes an insert of the current generation.
    fn make_pending_insert(&mut self, key: &[Datum<'_>]) -> rusqlite::Result<()> {
        let names = &self.table.names;
        let mut statement = self.connection.prepare_cached(&format!(
            "INSERT INTO {} ({}, generation, present) VALUES ({}, ?{}, 0)",
            names.change,
            names.change_key.join(", "),
            quote::list(1..=key.len(), ", ", |n| format!("?{n}")),
            key.len() + 1,
        ))?;
        row::bind_key(&mut statement, key, &mut self.scratch)?;
        statement.raw_bind_parameter(key.len() + 1, self.subscription.generation)?;
        statement.raw_execute()?;
        self.table.has_changes = true;
        Ok(())
    }

    /// A row of an untracked table gives way to what the centre made of it; `None` where it is
    /// gone. The values in which it differs are kept among the refused rows.
    pub(super) fn keep_untracked(
        &mut self,
        key: &[Datum<'_>],
        arrived: Option<&[Datum<'_>]>,
    ) -> Result<(), RemoteError> {
        self.forget_idle(key)?;
        if !self.table.is_untracked
            || (self.table.has_changes && self.newest_change(key)?.is_some())
        {
            return Ok(());
        }
        let Some((here, _)) = self.row_here(key).doing(DOING)? else {
            return Ok(());
        };
        let mut own = Map::new();
        let table = self.table.table();
        for (index, column) in table.columns.iter().enumerate() {
            let (datum, _) = column.column_type.datum(here[index].as_ref());
            let differs = arrived.is_none_or(|arrived| !same(&datum, &arrived[index]));
            if table.key.contains(&index) || (differs && !self.table.added.contains(&index)) {
                own.insert(column.name.clone(), row::json(&datum));
            }
        }
        if own.len() <= table.key.len() && arrived.is_some() {
            return Ok(());
        }
        self.tell_untracked(key, "update", &own, BOTH)
    }

    /// Keeps what may have been the user's among the refused rows.
    fn tell_untracked(
        &mut self,
        key: &[Datum<'_>],
        operation: &str,
        own: &Map<String, serde_json::Value>,
        reason: &str,
    ) -> Result<(), RemoteError> {
        let readable = row::readable_key(key);
        let table = self.table.table();
        let refusal = NewRefusal {
            publication: &self.subscription.publication,
            table: &table.name,
            key: &readable,
            key_packed: &row::pack_key(&self.table.key_types, key),
            operation,
            code: match operation {
                "delete" => Code::RowForgotten.name(),
                _ => Code::RowUntracked.name(),
            },
            reason,
            sequence: self.subscription.sequence,
            row_values: Some(&serde_json::Value::Object(own.clone()).to_string()),
        };
        let is_first = self.note_gave_way(refusal.key_packed)?;
        // It may have had to stay all the same, and be in the way once more.
        if !is_first && refused::is_recorded(self.connection, &refusal).doing(DOING)? {
            return Ok(());
        }
        self.summary.note_refused(&table.name, &readable, reason);
        refused::record(self.connection, &refusal).doing(DOING)
    }
}
