//! The end of an apply: everything is committed, or nothing.

use rusqlite::config::DbConfig;
use rusqlite::params;

use super::summary::ApplySummary;
use super::user_triggers::is_impossible;
use super::{Applier, prefer_wal, roll_back};
use crate::database::conflicts;
use crate::database::kept_uploads;
use crate::database::refused::{self, TIME_UNKNOWN};
use crate::database::subscription::load_all;
use crate::database::{RemoteDatabase, SubscriptionState, triggers};
use crate::error::{ErrorContext, RemoteError};

impl Applier {
    /// Commits everything, and gives the database back, also when that failed: then nothing
    /// is changed.
    pub fn commit(mut self, now_ms: i64) -> (RemoteDatabase, Result<ApplySummary, RemoteError>) {
        let result = self.finish(now_ms);
        let summary = std::mem::take(&mut self.summary);
        let mut database = self.abort();
        if result.is_ok() && !database.has_wal {
            database.has_wal = prefer_wal(&database.connection);
        }
        (database, result.map(|()| *summary))
    }

    /// Rolls everything back and gives the database back.
    pub fn abort(self) -> RemoteDatabase {
        let connection = &self.database.connection;
        roll_back(connection);
        // Cannot fail: it only sets a flag of the connection.
        let _ = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false);
        self.database
    }

    /// Whether anything may be among the refused changes: from before, or because a row came or
    /// left, or columns did.
    fn may_have_refused(&self) -> bool {
        let mut subscriptions = self.subscriptions.iter();
        self.uploads.had_rows || subscriptions.any(|it| it.state.any_refused || it.kept_dropped)
    }

    fn finish(&mut self, now_ms: i64) -> Result<(), RemoteError> {
        self.expect_idle()?;
        let connection = &self.database.connection;
        for sql in &self.indexes {
            if let Err(error) = connection.execute_batch(sql) {
                // Ours fit their tables; one of the application may use a column that went.
                if !is_impossible(&error) {
                    return Err(RemoteError::sqlite("creating an index", error));
                }
                self.summary.not_restored.push(sql.clone());
            }
        }
        let lost = self
            .user_triggers
            .restore(connection, self.schema_changed)?;
        self.summary.not_restored.extend(lost);
        if let Some(dependents) = self.dependents.take() {
            let broken = dependents
                .broken(connection)
                .doing("looking at what depends on the synced tables")?;
            self.summary.not_restored.extend(broken);
        }
        if self.schema_changed || self.user_triggers.were_dropped() {
            let states: Vec<SubscriptionState> = load_all(connection)?;
            triggers::put_back(connection, &states)?;
        }
        let doing = "committing what the sync brought";
        let refused_before = self.database.refused_before().is_some();
        // Values that were kept before there was a session have no time either. What was set aside
        // because it is too long gets its own with the result of its upload.
        let all = self.summary.refused > 0 || self.schema_changed || refused_before;
        if all || self.may_have_refused() {
            connection
                .prepare_cached(
                    "UPDATE tidewater_refused SET at = ?1 WHERE at = ?2 \
                     AND (?3 OR row_values IS NOT NULL)",
                )
                .and_then(|mut statement| statement.execute(params![now_ms, TIME_UNKNOWN, all]))
                .doing(doing)?;
        }
        if self.summary.conflicts > 0 {
            conflicts::settle(connection, now_ms)?;
        }
        let mut subscriptions = self.subscriptions.iter();
        if self.uploads.had_rows
            || subscriptions.any(|it| it.state.any_refused || it.state.any_unsettled)
        {
            refused::settled_changes::settle_times(connection, now_ms)?;
        }
        for subscription in self.subscriptions.iter().filter(|each| each.synced) {
            connection
                .prepare_cached(
                    "UPDATE tidewater_subscription SET last_sync_at = ?2, \
                     checkpoint = coalesce(?3, checkpoint), \
                     image = CASE WHEN ?3 IS NULL THEN image END, \
                     deployment = ?4, settled_after = ?5 \
                     WHERE id = ?1",
                )
                .and_then(|mut statement| {
                    statement.execute(params![
                        subscription.state.id,
                        now_ms,
                        subscription.checkpoint,
                        subscription.state.deployment,
                        subscription.state.settled_after.cast_signed(),
                    ])
                })
                .doing(doing)?;
        }
        kept_uploads::keep(
            connection,
            &self.uploads.kept,
            self.database.kept_limits(),
            now_ms,
        )?;
        connection.execute_batch("COMMIT").doing(doing)?;
        let refused = self.summary.refused > 0 || refused_before;
        self.database.refused_at = refused.then_some(now_ms);
        Ok(())
    }
}
