//! Applying what a sync brought, in one transaction: the results of uploads, then the
//! downloads.
//!
//! Owns the transaction and its phases. Leaves to its modules: its end ([`commit`]), one table's
//! rows ([`arriving`], [`rows`]), tables that were compared ([`compared`]), what leaves ([`remove`]), results
//! ([`ack`], [`made`], [`given`]), the application's own triggers ([`user_triggers`]), new schemas
//! ([`migrate`]), what these break ([`dependents`]), and the columns of its own that they leave
//! it ([`own_columns`]), tables of the application's that are adopted ([`adopt`]); what is told of it all ([`summary`]).

mod ack;
mod adopt;
mod arriving_rows;
mod commit;
mod compared_tables;
mod dependents;
mod given_back;
mod made_rows;
mod migrate;
mod own_columns;
mod remove;
mod rows;
mod summary;
mod table;
mod undecided_rows;
mod user_triggers;

use rusqlite::Connection;
use tidewater_protocol::PublicationSchema;
use tidewater_protocol::message::{DownloadBegin, UncomparedTable};
use tidewater_protocol::pack::MAX_VALUE_BYTES;

use self::adopt::AdoptedTable;
pub use self::adopt::AdoptionRule;
use self::dependents::Dependents;
use self::given_back::GivenBackResult;
pub(super) use self::migrate::keep_values;
pub(crate) use self::summary::ROWS_TOLD;
pub use self::summary::{
    ApplySummary, ConflictSummary, RefusedSummary, RowDifference, TableDifferences,
};
use self::table::TableApply;
pub(super) use self::table::referring_row;
use self::user_triggers::UserTriggers;
pub(super) use self::user_triggers::fire_harmless_triggers;
use super::kept_uploads::{self, UploadCopies, UploadToKeep};
use super::refused::{self, RetryScope};
use super::subscription::load_all;
use super::transactions;
use super::triggers::MissedChanges;
use super::{CompareDue, RemoteDatabase, SubscriptionState, compare, tables, triggers};
use crate::error::{ErrorContext, RemoteError};

/// The largest packed row that is put together out of pieces.
const MAX_ROW_BYTES: usize = 4 * MAX_VALUE_BYTES;

/// An apply could not begin; here is the database back.
#[derive(Debug)]
pub struct ApplyRefused {
    /// The database, unchanged.
    pub database: RemoteDatabase,
    /// Why.
    pub error: RemoteError,
}

/// An apply under way. It owns the database so that a session can hold it from message to
/// message; dropping it rolls everything back and closes the file.
///
/// After an error only [`Applier::abort`] is of use.
#[derive(Debug)]
pub struct Applier {
    database: RemoteDatabase,
    subscriptions: Vec<SubscriptionApply>,
    phase: ApplyPhase,
    table: Option<Box<TableApply>>,
    /// The beginning of a row whose rest has not arrived.
    partial: Vec<u8>,
    /// The table at which the download broke off: see [`Applier::download_goes_on`].
    halted: Option<Box<TableApply>>,
    summary: Box<ApplySummary>,
    user_triggers: UserTriggers,
    /// What of the application depends on synced tables.
    dependents: Option<Dependents>,
    /// Statements that create what waits for the rows: indexes of new tables, and those of
    /// the application on rebuilt ones.
    indexes: Vec<String>,
    /// Tables, triggers or indexes were made or dropped.
    schema_changed: bool,
    uploads: Box<UploadOutcomes>,
    /// Differences of compared tables are only told.
    only_tells: bool,
    /// What becomes of tables of the application's that are in the way.
    adopt: Option<AdoptionRule>,
}

/// What becomes of uploads beside their rows.
#[derive(Debug, Default)]
struct UploadOutcomes {
    /// Those that this sync has sent.
    copies: UploadCopies,
    /// What the centre says of the one that was given back.
    given: Option<GivenBackResult>,
    /// What the result under way refused.
    refused: kept_uploads::RefusedKeys,
    /// Rows of a result or a download came.
    had_rows: bool,
    /// Those that are acknowledged, to be kept at the end.
    kept: Vec<UploadToKeep>,
}

#[derive(Debug)]
struct SubscriptionApply {
    state: SubscriptionState,
    new_schema: Option<PublicationSchema>,
    /// What was changed in columns that the new schema drops is written down.
    kept_dropped: bool,
    /// What the result of its upload acknowledged counted as pending in the compare.
    acknowledged: bool,
    /// Something differs, and the server does not know what happened since the checkpoint.
    lacks_history: bool,
    /// Columns that the new schema added, by table: pending rows get the centre's values.
    added_columns: Vec<(String, Vec<String>)>,
    /// Tables whose rows are not compared with the centre's yet.
    adopted: Vec<AdoptedTable>,
    checkpoint: Option<Vec<u8>>,
    synced: bool,
    /// Scope or schema changed. What earlier syncs refused is tried again: inserts whatever
    /// the download brings, since the centre never had them; other changes if their rows are
    /// still there after it, since a row that leaves takes its refused change with it.
    tries_again: bool,
    /// Something else is deployed than at the last download.
    redeployed: bool,
    /// What was refused is tried again only when somebody says so.
    keeps_refused: bool,
    /// What the server does not compare of the download under way.
    uncompared: Vec<UncomparedTable>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ApplyPhase {
    Idle,
    Result(usize),
    /// The result of an upload that was given back.
    Given(usize),
    Download(usize),
}

impl RemoteDatabase {
    /// Begins to apply a sync. `expected` are the subscriptions as [`RemoteDatabase::begin_sync`]
    /// gave them; `new_schemas` has one entry for each of them.
    ///
    /// # Errors
    /// The file is locked, or another sync changed it meanwhile.
    pub fn begin_apply(
        self,
        expected: &[SubscriptionState],
        new_schemas: &[Option<PublicationSchema>],
    ) -> Result<Applier, Box<ApplyRefused>> {
        match begin(&self, expected) {
            Ok(states) => Ok(Applier {
                database: self,
                subscriptions: states
                    .into_iter()
                    .enumerate()
                    .map(|(index, state)| SubscriptionApply {
                        state,
                        new_schema: new_schemas.get(index).cloned().flatten(),
                        kept_dropped: false,
                        acknowledged: false,
                        lacks_history: false,
                        added_columns: Vec::new(),
                        adopted: Vec::new(),
                        checkpoint: None,
                        synced: false,
                        tries_again: false,
                        redeployed: false,
                        keeps_refused: false,
                        uncompared: Vec::new(),
                    })
                    .collect(),
                phase: ApplyPhase::Idle,
                table: None,
                partial: Vec::new(),
                halted: None,
                summary: Box::default(),
                user_triggers: UserTriggers::default(),
                dependents: None,
                indexes: Vec::new(),
                schema_changed: false,
                uploads: Box::default(),
                only_tells: false,
                adopt: None,
            }),
            Err(error) => {
                roll_back(&self.connection);
                Err(Box::new(ApplyRefused {
                    database: self,
                    error,
                }))
            }
        }
    }
}

/// Takes the write lock and checks that the file still is what the Hello said about it.
fn begin(
    database: &RemoteDatabase,
    expected: &[SubscriptionState],
) -> Result<Vec<SubscriptionState>, RemoteError> {
    let connection = &database.connection;
    connection
        .execute_batch("BEGIN IMMEDIATE")
        .doing("beginning to apply")?;
    let now = load_all(connection)?;
    check_tracking(connection, &now)?;
    refused::make_fresh(connection, database.refused_before())?;
    expected
        .iter()
        .map(|expected| {
            let found = now.iter().find(|now| expected.still_is(now));
            let found = found.ok_or(RemoteError::AnotherSyncWentAhead)?;
            Ok(SubscriptionState {
                compares: expected.compares,
                ..found.clone()
            })
        })
        .collect()
}

/// A tool may have rebuilt a table since the sync began. What was changed in it is not to be
/// overwritten: it waits for the next sync, which compares it.
fn check_tracking(
    connection: &Connection,
    subscriptions: &[SubscriptionState],
) -> Result<(), RemoteError> {
    if triggers::are_checked(connection)? {
        return Ok(());
    }
    let untracked = triggers::ensure(connection, subscriptions)?;
    let doing = "beginning to apply";
    compare::note_untracked(connection, &untracked).doing(doing)?;
    // A compare that is under way does not know of rows that were pushed out since it began.
    let compares = |id: i64| subscriptions.iter().any(|it| it.id == id && it.compares);
    let first = untracked
        .iter()
        .find(|it| it.missed == MissedChanges::Anything || compares(it.subscription));
    let Some(first) = first else {
        return Ok(());
    };
    connection.execute_batch("COMMIT").doing(doing)?;
    Err(RemoteError::TrackingWasOff {
        table: first.table.clone(),
    })
}

/// Ends the transaction, if one is open, without keeping anything.
fn roll_back(connection: &Connection) {
    if !connection.is_autocommit() {
        // A failure leaves the transaction to be undone when the file is closed.
        let _ = connection.execute_batch("ROLLBACK");
    }
}

impl Applier {
    /// Has the summary tell how each compared table differs, and leaves them as they are.
    pub fn only_tell_differences(&mut self) {
        self.only_tells = true;
    }

    /// Tables of the application's that have the names of published ones are adopted.
    pub fn adopt(&mut self, adopt: Option<AdoptionRule>) {
        self.adopt = adopt;
    }

    /// The database as it is inside of the transaction.
    pub(crate) fn database(&self) -> &RemoteDatabase {
        &self.database
    }

    /// What the sync has sent need not be read again to be kept.
    pub(crate) fn keep_copies(&mut self, copies: UploadCopies) {
        self.uploads.copies = copies;
    }

    /// The result of a subscription's upload follows.
    ///
    /// # Errors
    /// Nothing was uploaded for this subscription.
    pub fn result_begin(&mut self, subscription: usize) -> Result<(), RemoteError> {
        self.expect_idle()?;
        let state = self.subscription(subscription)?.state.clone();
        if state.next_upload().is_none() {
            return Err(RemoteError::BadRows {
                table: state.publication,
                what: "a result came for an upload that was not sent".into(),
            });
        }
        // Its changes are as they were sent only until their result is applied.
        let copies = &mut self.uploads.copies;
        let keep = UploadToKeep::for_result(&self.database, subscription, &state, copies)?;
        self.uploads.kept.extend(keep);
        if let Some(giving) = state.giving {
            self.uploads.given = Some(GivenBackResult::new(giving));
            self.phase = ApplyPhase::Given(subscription);
            return Ok(());
        }
        if state.any_refused {
            refused::tell_set_aside(&self.database.connection, &state, &mut self.summary)?;
        }
        self.keep_dropped_columns(subscription)?;
        self.phase = ApplyPhase::Result(subscription);
        Ok(())
    }

    /// The result is complete: what was taken is acknowledged.
    ///
    /// # Errors
    /// SQLite failed, or a row is incomplete.
    pub fn result_end(&mut self) -> Result<(), RemoteError> {
        self.finish_table()?;
        let connection = &self.database.connection;
        let subscription = match self.phase {
            ApplyPhase::Result(index) => {
                let subscription = &mut self.subscriptions[index];
                ack::acknowledge(connection, &mut subscription.state)?;
                subscription
            }
            ApplyPhase::Given(index) => {
                let subscription = &mut self.subscriptions[index];
                if let Some(given) = self.uploads.given.take() {
                    self.uploads.refused = given.refused_keys();
                    let present = subscription.state.schema.clone();
                    let schema = subscription.new_schema.as_ref().or(present.as_deref());
                    let state = &mut subscription.state;
                    given.settle(connection, state, schema, &mut self.summary)?;
                }
                subscription
            }
            ApplyPhase::Idle | ApplyPhase::Download(_) => {
                return Err(out_of_order("the end of a result"));
            }
        };
        subscription.synced = true;
        subscription.acknowledged = true;
        let refused = std::mem::take(&mut self.uploads.refused);
        if let Some(upload) = self.uploads.kept.last_mut() {
            upload.leave_out(connection, &refused)?;
        }
        self.phase = ApplyPhase::Idle;
        Ok(())
    }

    /// The next download has to compare the tables of the subscription whose result this is.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn make_compare_due(&self) -> Result<(), RemoteError> {
        let (ApplyPhase::Result(index) | ApplyPhase::Given(index)) = self.phase else {
            return Err(out_of_order("a compare"));
        };
        let id = self.subscriptions[index].state.id;
        compare::make_due(&self.database.connection, id).doing("making a compare due")
    }

    /// The server wants to be sure that everything is equal: the next sync compares.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn make_verify_due(&self) -> Result<(), RemoteError> {
        let ApplyPhase::Download(index) = self.phase else {
            return Err(out_of_order("the wish to verify"));
        };
        let id = self.subscriptions[index].state.id;
        compare::make_verify_due(&self.database.connection, id).doing("making a compare due")
    }

    /// The download of a subscription follows. Its new schema, if any, is put in place.
    ///
    /// # Errors
    /// The schema cannot be put in place, or SQLite failed.
    pub fn download_begin(
        &mut self,
        subscription: usize,
        scope_changed: bool,
    ) -> Result<(), RemoteError> {
        self.expect_idle()?;
        self.keep_dropped_columns(subscription)?;
        let new_schema = self.subscription(subscription)?.new_schema.take();
        let migrated = new_schema.is_some();
        if let Some(schema) = new_schema {
            self.migrate(subscription, schema)?;
        }
        let found = &mut self.subscriptions[subscription];
        let may_be_taken = scope_changed || migrated || found.redeployed;
        if may_be_taken && !found.keeps_refused {
            found.tries_again = true;
            self.unpark(subscription, RetryScope::Inserts)?;
        }
        if let Some(schema) = &self.subscriptions[subscription].state.schema {
            undecided_rows::end_decided(&self.database.connection, schema)
                .doing("beginning to apply")?;
        }
        self.phase = ApplyPhase::Download(subscription);
        Ok(())
    }

    /// What the beginning of a download says of what was refused, and of tables that are not
    /// compared, before [`Self::download_begin`].
    ///
    /// # Errors
    /// There is no such subscription, or SQLite failed.
    pub fn take_refused_terms(&mut self, begin: &DownloadBegin) -> Result<(), RemoteError> {
        self.expect_idle()?;
        self.subscription(begin.subscription as usize)?;
        let found = &mut self.subscriptions[begin.subscription as usize];
        let state = &mut found.state;
        state.settled_after = begin.settled_after;
        found.keeps_refused = begin.keeps_refused;
        found.uncompared.clone_from(&begin.uncompared);
        if begin.deployment != 0 {
            let deployment = begin.deployment.cast_signed();
            let before = std::mem::replace(&mut state.deployment, deployment);
            found.redeployed = before != 0 && before != deployment;
        }
        if !begin.settled.is_empty() {
            let connection = &self.database.connection;
            refused::settled_changes::told(connection, state, &begin.settled)?;
        }
        Ok(())
    }

    fn unpark(&self, subscription: usize, which: RetryScope) -> Result<(), RemoteError> {
        let state = &self.subscriptions[subscription].state;
        if state.is_transactional() {
            return refused::try_all_again(&self.database.connection, &state.publication);
        }
        for table in state.schema.iter().flat_map(|schema| &schema.tables) {
            refused::unpark_all(&self.database.connection, table, state.generation, which)?;
        }
        Ok(())
    }

    /// The download is complete. An empty checkpoint leaves the old one.
    ///
    /// # Errors
    /// SQLite failed, or a row is incomplete.
    pub fn download_end(&mut self, checkpoint: &[u8]) -> Result<(), RemoteError> {
        self.finish_table()?;
        if let Some(halted) = self.halted.take() {
            self.finish_halted(halted)?;
        }
        let ApplyPhase::Download(index) = self.phase else {
            return Err(out_of_order("the end of a download"));
        };
        let subscription = &mut self.subscriptions[index];
        if !checkpoint.is_empty() {
            subscription.checkpoint = Some(checkpoint.to_vec());
        }
        subscription.synced = true;
        for adopted in std::mem::take(&mut subscription.adopted) {
            let adopt = self.adopt.unwrap_or(AdoptionRule::Centre);
            adopted.finish(&self.database.connection, &subscription.state, adopt)?;
        }
        if subscription.state.compares {
            let connection = &self.database.connection;
            let uncompared = std::mem::take(&mut subscription.uncompared);
            match self.only_tells {
                true => compared_tables::tell_equal(
                    connection,
                    &subscription.state,
                    &uncompared,
                    &mut self.summary,
                )?,
                false => {
                    let untracked =
                        compared_tables::settle(connection, &subscription.state, &uncompared)?;
                    if subscription.state.compare_due == CompareDue::Verify {
                        let (state, summary) = (&subscription.state, &mut self.summary);
                        compared_tables::tell_server(connection, state, summary)?;
                    }
                    self.summary.tracks_again |= untracked;
                    // What waited was made from what the centre may have forgotten: it goes up as
                    // that, and then it is compared once more. So is what was acknowledged.
                    if untracked && subscription.lacks_history || subscription.acknowledged {
                        compare::make_due(connection, subscription.state.id)
                            .doing("applying what was compared")?;
                    }
                }
            }
        }
        self.phase = ApplyPhase::Idle;
        if self.subscriptions[index].tries_again {
            self.unpark(index, RetryScope::All)?;
            let publication = &self.subscriptions[index].state.publication;
            refused::try_fresh_again(&self.database.connection, publication)?;
        }
        Ok(())
    }

    /// What was done so far.
    pub fn summary(&self) -> &ApplySummary {
        &self.summary
    }

    fn subscription(&mut self, index: usize) -> Result<&mut SubscriptionApply, RemoteError> {
        self.subscriptions
            .get_mut(index)
            .ok_or_else(|| out_of_order("a subscription that this remote does not have"))
    }

    fn given(&mut self) -> Result<&mut GivenBackResult, RemoteError> {
        self.uploads
            .given
            .as_mut()
            .ok_or_else(|| out_of_order("the result of a given-back upload"))
    }

    fn expect_idle(&self) -> Result<(), RemoteError> {
        if self.phase == ApplyPhase::Idle {
            Ok(())
        } else {
            Err(out_of_order("the next part before the end of the last"))
        }
    }

    /// Before the first row is written: tracking triggers, and those of the application that
    /// would repeat what arrives anyway, go out of the way.
    fn switch_triggers(&mut self) -> Result<(), RemoteError> {
        let schemas = self
            .subscriptions
            .iter()
            .filter_map(|subscription| subscription.state.schema.clone());
        let schemas: Vec<_> = schemas.collect();
        self.user_triggers
            .switch_off(&self.database.connection, &schemas)
    }

    /// What was changed in columns that a new schema does not have is written down, once,
    /// before the changes go.
    fn keep_dropped_columns(&mut self, index: usize) -> Result<(), RemoteError> {
        let subscription = &mut self.subscriptions[index];
        let Some(schema) = &subscription.new_schema else {
            return Ok(());
        };
        if std::mem::replace(&mut subscription.kept_dropped, true) {
            return Ok(());
        }
        migrate::keep_dropped_columns(
            &self.database.connection,
            &subscription.state,
            schema,
            &mut self.summary,
        )
    }

    fn migrate(&mut self, index: usize, schema: PublicationSchema) -> Result<(), RemoteError> {
        tables::check_schema(&schema)?;
        if self.dependents.is_none() {
            let tables = self
                .subscriptions
                .iter()
                .filter_map(|it| it.state.schema.as_ref());
            let tables: Vec<&str> = tables
                .flat_map(|schema| schema.tables.iter().map(|table| table.name.as_str()))
                .collect();
            let synced = |name: &str| tables.iter().any(|it| it.eq_ignore_ascii_case(name));
            let dependents = Dependents::read(&self.database.connection, &synced)
                .doing("looking at what depends on the synced tables")?;
            self.dependents = Some(dependents);
        }
        self.switch_triggers()?;
        let state = &self.subscriptions[index].state;
        if let Some(old) = state.schema.as_ref().filter(|old| old.transactional) {
            transactions::make_one(&self.database.connection, state, old)?;
        }
        let others: Vec<SubscriptionState> = self
            .subscriptions
            .iter()
            .map(|subscription| subscription.state.clone())
            .collect();
        let connection = &self.database.connection;
        let migration = migrate::migrate(
            connection,
            (&others, index),
            schema,
            self.adopt.is_some(),
            &mut self.user_triggers,
            &mut self.summary,
        )?;
        self.indexes.extend(migration.indexes);
        self.schema_changed = true;
        let subscription = &mut self.subscriptions[index];
        subscription.added_columns = migration.added_columns;
        subscription.adopted = migration.adopted;
        subscription.state.schema_hash = migration.schema.hash().to_vec();
        subscription.state.schema = Some(migration.schema);
        Ok(())
    }
}

fn out_of_order(what: &str) -> RemoteError {
    RemoteError::BadRows {
        table: String::new(),
        what: format!("{what} came out of order"),
    }
}

/// Write-ahead logging lets the application read and write while we sync. It cannot be
/// switched on while somebody else uses the file; the next sync tries again. Whether it is on:
/// nobody switches it off while the file is open here.
fn prefer_wal(connection: &Connection) -> bool {
    let mode = connection.query_row("PRAGMA journal_mode", [], |row| row.get::<_, String>(0));
    match mode.as_deref() {
        Ok("wal") => true,
        Ok("memory") | Err(_) => false,
        Ok(_) => {
            let _ = connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()));
            false
        }
    }
}
