//! Uploaded rows go into the file one by one, through prepared statements: SQLite is in the same
//! process. What one row does is in [`super::row`]; what is written and in which order is the
//! engine's affair.

mod missing_parents;
pub(crate) mod refusal;
pub(super) mod script;
mod together;
mod watch;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rusqlite::params_from_iter;
use rusqlite::types::Value as Native;

use tidewater_protocol::{Datum, Op, Value};

use self::refusal::RowError;
use self::script::EndingScripts;
use super::connection::SqliteConnection;
use super::dialect::SqliteDialect;
use super::publication::{Publication, ServedTable, SqliteTables};
use super::row::{RowFate, SqliteIncomingTable, TableWriter, savepoint};
use super::served::SqlitePublications;
use super::{deferred_violations, failure, upstream};
use tidewater_centre::engine::assumed_role::AssumedRole;
use tidewater_centre::engine::connection::{DatabaseConnection as _, SystemStatement};
use tidewater_centre::engine::scripts;
use tidewater_centre::engine::sql::sql_dialect::SqlDialect as _;
use tidewater_centre::engine::upload::incoming_rows::RowRef;
use tidewater_centre::engine::upload::refusal_reason::{FailedRow, RefusalReason};
use tidewater_centre::engine::upload::upload_writer::{
    BatchOutcome, CyclePart, MayWrite, MetRow, ParentReference, RowBatch, RowImage, RowSet,
    ScriptOutcome, UploadWriter,
};
use tidewater_centre::error::CentreError;
use tidewater_centre::trying::ChangedTable;

/// How often a list is tried when other writers are in the way.
const ATTEMPTS: u32 = 10;

/// How often a list is tried that has rows which end the transaction.
const TRIALS: u32 = 100;

/// Where a list is after a row has ended the transaction: nothing of it stays.
const TRIAL: &str = "BEGIN IMMEDIATE; SAVEPOINT tidewater_upload; SAVEPOINT tidewater_rows";

type Result<T> = std::result::Result<T, CentreError>;

/// Which row of a list of uploads: upload, place of the table, row.
type Place = (usize, usize, RowRef);

/// Writes uploads on a connection.
pub(super) struct UploadRows<'c> {
    connection: &'c mut SqliteConnection,
    served: &'c SqlitePublications,
    publication: Option<&'c Publication>,
    /// The transaction has begun.
    has_begun: bool,
    /// The number of what was begun.
    number: usize,
    /// Whether keys that could wait are checked after each row.
    immediate: bool,
    /// Rows that were found to end the transaction (RAISE(ROLLBACK), ON CONFLICT ROLLBACK): refused
    /// without being tried when the list is run again.
    endings: HashMap<Place, RefusalReason>,
    /// Runs of scripts that were found to do so.
    ending_scripts: EndingScripts,
    /// Whether one was found since the list began.
    has_ended: bool,
    /// Tables of the upload, by their index, that keep some value otherwise than it came.
    inexact: HashSet<usize>,
}

impl<'c> UploadRows<'c> {
    pub(super) fn new(
        connection: &'c mut SqliteConnection,
        served: &'c SqlitePublications,
    ) -> UploadRows<'c> {
        UploadRows {
            connection,
            served,
            publication: None,
            has_begun: false,
            number: 0,
            immediate: false,
            endings: HashMap::new(),
            ending_scripts: EndingScripts::default(),
            has_ended: false,
            inexact: HashSet::new(),
        }
    }

    fn writer<'t>(&'t self, table: &'t SqliteIncomingTable<'t>) -> Result<TableWriter<'t>> {
        let publication = self.publication.ok_or_else(|| CentreError::Internal {
            message: "rows before their upload was admitted".into(),
        })?;
        let (connection, immediate) = (&*self.connection, self.immediate);
        Ok(TableWriter::new(connection, publication, table, immediate))
    }

    /// What scripts came to; `None` if one of them has ended the transaction: the list is to be run
    /// again without it.
    fn unless_ended<T>(&mut self, ran: Option<T>) -> Result<T> {
        self.has_ended |= ran.is_none();
        ran.ok_or_else(ended)
    }

    /// Why a row is not tried.
    fn ending(&self, table: &SqliteIncomingTable<'_>, at: RowRef) -> Option<&RefusalReason> {
        match self.endings.is_empty() {
            true => None,
            false => self.endings.get(&(self.number, table.place, at)),
        }
    }

    /// Notes that a row has ended the transaction: the list is to be run again without it.
    fn note_ending(&mut self, table: &SqliteIncomingTable<'_>, at: RowRef, refusal: RefusalReason) {
        self.has_ended = true;
        let place = (self.number, table.place, at);
        self.endings.insert(place, refusal);
    }

    /// Whether rows refer to the one with this key that are not among those with the others.
    fn has_other_children(
        &self,
        table: &SqliteIncomingTable<'_>,
        key: &[Native],
        others: &HashSet<String>,
    ) -> Result<bool> {
        let looking = failure("looking for the children of a row");
        let of_table = table.table;
        for (children, select) in of_table.children.iter().zip(&of_table.details.child_keys) {
            let mut statement = self.connection.prepare_cached(select).map_err(looking)?;
            let columns = statement.column_count();
            let mut rows = statement.query(params_from_iter(key)).map_err(looking)?;
            while let Some(row) = rows.next().map_err(looking)? {
                let child = (0..columns).map(|at| row.get::<_, Native>(at));
                let child = child.collect::<rusqlite::Result<Vec<_>>>();
                let child = key_text(&child.map_err(looking)?);
                if !children.is_same_table || !others.contains(&child) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn savepoint(&self, sql: &str) -> Result<()> {
        savepoint(self.connection, sql)
    }

    fn run(&self, what: &'static str, sql: &str) -> Result<()> {
        self.connection.execute_batch(sql).map_err(failure(what))
    }
}

/// A key as text that tells keys apart.
fn key_text(key: &[Native]) -> String {
    format!("{key:?}")
}

/// The error of a list in which a row ended the transaction.
fn ended() -> CentreError {
    CentreError::StatementFailed {
        what: "an upload with rows that end the transaction one after the other".into(),
        message: "the list is to be applied without them".into(),
        sqlstate: None,
        retry: true,
    }
}

impl<'c> UploadWriter for UploadRows<'c> {
    type Connection = SqliteConnection;
    type Tables = SqliteTables;
    type LiveTables = ();

    fn has_headquarters(&mut self) -> Result<bool> {
        let looking = "looking whether this is a branch";
        upstream::has_headquarters(self.connection).map_err(failure(looking))
    }

    fn note_given_back(&mut self) -> Result<()> {
        let noting = "noting what was given back to a branch";
        upstream::note_given_back(self.connection).map_err(failure(noting))
    }

    /// A row may have ended the transaction.
    fn is_usable(&self) -> bool {
        !self.connection.is_autocommit()
    }

    fn connection(&mut self) -> &mut SqliteConnection {
        self.connection
    }

    fn publication(&self, name: &str) -> Result<Arc<Publication>> {
        self.served.publication(name).cloned()
    }

    async fn begin(&mut self, number: usize) -> Result<()> {
        self.number = number;
        if !std::mem::replace(&mut self.has_begun, true) {
            self.has_ended = false;
            self.run("beginning to apply uploads", "BEGIN IMMEDIATE")?;
        }
        self.savepoint("SAVEPOINT tidewater_upload")
    }

    async fn store_result(&mut self, result: SystemStatement) -> Result<()> {
        let storing = "storing the result of an upload";
        self.connection.run_one(storing, result).await?;
        self.savepoint("RELEASE tidewater_upload")
    }

    async fn undo(&mut self) -> Result<()> {
        self.savepoint("ROLLBACK TO tidewater_upload")?;
        self.savepoint("RELEASE tidewater_upload")
    }

    async fn commit(&mut self) -> Result<()> {
        if self.has_ended {
            return Err(ended());
        }
        let nobody = SqliteDialect.forget_caller();
        self.connection
            .flight("committing uploads", &nobody)
            .await?;
        self.run("committing uploads", "COMMIT")
    }

    async fn rollback_for_retry(&mut self, error: &CentreError, attempts: u32) -> Result<bool> {
        self.has_begun = false;
        if !self.connection.is_autocommit() {
            self.run("rolling back uploads", "ROLLBACK")?;
        }
        let most = if self.has_ended { TRIALS } else { ATTEMPTS };
        Ok(error.is_retryable() && attempts <= most)
    }

    fn open_tables(&mut self, publication: &Publication, (): (), _: AssumedRole) -> Result<()> {
        self.publication = Some(self.served.publication(&publication.schema.name)?);
        Ok(())
    }

    fn is_shared(&self, table: &SqliteIncomingTable<'_>) -> bool {
        let takes_along = !table.deletes.is_empty() && !table.table.children.is_empty();
        !table.table.details.guarded && !takes_along
    }

    async fn begin_rows(&mut self, immediate: bool) -> Result<()> {
        self.immediate = immediate;
        self.inexact.clear();
        self.savepoint("SAVEPOINT tidewater_rows")
    }

    async fn undo_rows(&mut self) -> Result<()> {
        self.savepoint("ROLLBACK TO tidewater_rows")?;
        self.savepoint("RELEASE tidewater_rows")
    }

    async fn is_violated(&mut self, _: bool) -> Result<bool> {
        deferred_violations(self.connection)
    }

    /// SQLite only counts.
    fn can_check_single_rows(&mut self) -> Result<bool> {
        Ok(!deferred_violations(self.connection)?)
    }

    /// It shows when they are written.
    fn misfit_reason(
        &mut self,
        _: &SqliteIncomingTable<'_>,
        _: RowImage,
        _: &[Datum<'_>],
    ) -> Option<String> {
        None
    }

    async fn insert_in_bulk(
        &mut self,
        _: &SqliteIncomingTable<'_>,
        _: &mut MayWrite<'_>,
    ) -> Result<bool> {
        Ok(false)
    }

    async fn write(
        &mut self,
        batch: &RowBatch<'_, '_, SqliteTables>,
        rows: &[RowRef],
    ) -> Result<BatchOutcome> {
        let table = batch.table;
        let mut written = BatchOutcome::default();
        let mut ended = Vec::new();
        let mut writer = self.writer(table)?;
        writer.insists = batch.insists;
        writer.by = batch.key;
        table.rows(rows, |number, row| {
            let at = rows[number];
            let ending = self.ending(table, at).cloned();
            let fate = match ending {
                Some(refusal) => Ok(RowFate::Refused(refusal)),
                None => writer.write(row),
            };
            match fate {
                Ok(RowFate::Applied) => written.applied += 1,
                Ok(RowFate::Kept) => written.kept.push(at),
                Ok(RowFate::PassedOver | RowFate::Missing) => written.passed_over.push(at),
                Ok(RowFate::Refused(refusal)) => written.refused.push(FailedRow::new(at, refusal)),
                Ok(RowFate::Failed(refusal)) => written.failed.push(FailedRow::new(at, refusal)),
                Err(RowError::Centre(error)) => return Err(error),
                Err(RowError::Ended(refusal)) => {
                    ended.push((at, refusal));
                    // The rest is only tried, to find all such rows at once.
                    self.run("going on after a row that ended the transaction", TRIAL)?;
                }
            }
            Ok(())
        })?;
        let is_exact = writer.is_exact;
        drop(writer);
        if !is_exact {
            self.inexact.insert(table.index);
        }
        for (at, refusal) in ended {
            self.note_ending(table, at, refusal);
        }
        Ok(written)
    }

    async fn find(
        &mut self,
        table: &SqliteIncomingTable<'_>,
        _: Op,
        rows: &[RowRef],
        key: RowImage,
    ) -> Result<Vec<Option<MetRow>>> {
        let mut writer = self.writer(table)?;
        writer.by = key;
        let mut found = Vec::with_capacity(rows.len());
        table.rows(rows, |_, row| {
            found.push(writer.find(row)?);
            Ok(())
        })?;
        Ok(found)
    }

    /// A transaction that writes has the whole database.
    async fn lock_rows(&mut self, _: &SqliteIncomingTable<'_>, _: &[RowRef]) -> Result<()> {
        Ok(())
    }

    async fn find_rows_with_children(
        &mut self,
        table: &SqliteIncomingTable<'_>,
        rows: &[RowRef],
        insists: bool,
    ) -> Result<Vec<RowRef>> {
        let mut writer = self.writer(table)?;
        writer.insists = insists;
        let mut deletable = Vec::with_capacity(rows.len());
        let mut keys = HashSet::with_capacity(rows.len());
        table.rows(rows, |at, row| {
            if let Some(key) = writer.deletable(row)? {
                keys.insert(key_text(&key));
                deletable.push((rows[at], key));
            }
            Ok(())
        })?;
        let mut parents = Vec::new();
        for (at, key) in &deletable {
            if self.has_other_children(table, key, &keys)? {
                parents.push(*at);
            }
        }
        Ok(parents)
    }

    async fn run_script(
        &mut self,
        statements: &[scripts::ScriptStatement],
        rows: &[Vec<Vec<Value>>],
    ) -> Result<Vec<ScriptOutcome>> {
        let (connection, number) = (&*self.connection, self.number);
        let ran = script::run(
            connection,
            statements,
            rows,
            &mut self.ending_scripts,
            number,
        );
        self.unless_ended(ran?)
    }

    async fn run_set(
        &mut self,
        _: &ServedTable,
        statements: &[scripts::ScriptStatement],
        set: &RowSet,
    ) -> Result<ScriptOutcome> {
        let (connection, number) = (&*self.connection, self.number);
        let ran = script::run_set(
            connection,
            statements,
            set,
            &mut self.ending_scripts,
            number,
        );
        self.unless_ended(ran?)
    }

    async fn find_rows_without_parent(
        &mut self,
        table: &SqliteIncomingTable<'_>,
        reference: &ParentReference<'_, SqliteTables>,
        rows: &[RowRef],
    ) -> Result<Vec<RowRef>> {
        self.select_rows_without_parent(table, reference, rows)
    }

    async fn write_cycle(&mut self, parts: &[CyclePart<'_, '_, SqliteTables>]) -> Result<bool> {
        self.apply_together(parts)
    }

    fn may_compute_values(&self, table: &SqliteIncomingTable<'_>) -> bool {
        table.table.details.guarded || table.table.fills() || self.inexact.contains(&table.index)
    }

    /// By temporary triggers, which go with the transaction.
    async fn watch_changes(&mut self) -> Result<()> {
        let connection = &*self.connection;
        watch::begin(connection).map_err(failure("watching what is changed"))
    }

    async fn changed_tables(&mut self) -> Result<Vec<ChangedTable>> {
        let connection = &*self.connection;
        watch::changed(connection).map_err(failure("counting what was changed"))
    }

    /// Triggers of the application may do anything, so each row is compared.
    fn version(&self, _: &[SqliteIncomingTable<'_>], _: bool) -> (u64, bool) {
        (0, false)
    }
}
