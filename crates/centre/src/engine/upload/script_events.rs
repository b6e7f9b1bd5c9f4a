//! What stands at the events around uploaded rows: of the connection, and of each table.

use super::incoming_rows::IncomingTable;
use super::outcomes::VainChanges;
use super::upload_driver::UploadDriver;
use crate::engine::scripts::{self, ScriptEnvironment, ScriptTransaction};
use crate::engine::upload::refusal_reason::FailedRow;
use crate::engine::upload::step_order::{ApplyStep, Steps, order, rows_first, with_events};
use crate::engine::upload::upload_run::{UploadProgress, UploadRun};
use crate::error::CentreError;
use crate::publication::UploadOrder;
use crate::script_notes::{ABORT, SKIP, ScriptReport};
use crate::upload::UploadChunk;

type Result<T> = std::result::Result<T, CentreError>;

impl<'r, R: UploadDriver> UploadRun<'r, R> {
    /// Runs what stands at an event of the connection, or of a table.
    ///
    /// # Errors
    /// It has failed, and `handle_error` does not say to go on without it.
    pub(super) async fn at_event(&mut self, event: &str, table: Option<usize>) -> Result<()> {
        let Some(scripting) = &self.scripting else {
            return Ok(());
        };
        let Some(compiled) = scripting.script(event, table) else {
            return Ok(());
        };
        let name = self.name(table);
        let Some(refusal) = scripting.once(&mut *self.rows, compiled, name).await? else {
            return Ok(());
        };
        let failed = scripts::failed(compiled, &refusal);
        let mut report = ScriptReport {
            table: name.to_owned(),
            code: failed.code().name().to_owned(),
            database_code: refusal.database_code.clone().unwrap_or_default(),
            message: failed.to_string(),
            action: ABORT,
        };
        self.decide(table, &mut report).await?;
        if report.action != SKIP {
            return Err(failed);
        }
        self.keep_report(report);
        Ok(())
    }

    /// The name of a table; empty for the connection.
    pub(super) fn name(&self, table: Option<usize>) -> &'r str {
        let publication = self.publication;
        table.map_or("", |it| &publication.schema.tables[it].name)
    }

    /// Asks `handle_error` what is to be done about an error, which is reported and counted.
    async fn decide(&mut self, table: Option<usize>, report: &mut ScriptReport) -> Result<()> {
        let Some(scripting) = &self.scripting else {
            return Ok(());
        };
        let name = self.name(table);
        scripting.note_error(report, report.action);
        scripting.add_count(name, "errors", 1);
        if let Some(compiled) = scripting.nearest("handle_error", table) {
            if let Some(refusal) = scripting.once(&mut *self.rows, compiled, name).await? {
                return Err(scripts::failed(compiled, &refusal));
            }
            report.action = match scripting.number("action_code") {
                Some(action) if action >= ABORT => ABORT,
                Some(SKIP) => SKIP,
                _ => report.action,
            };
        }
        Ok(())
    }

    fn keep_report(&self, report: ScriptReport) {
        if let Some(scripting) = &self.scripting {
            scripting.keep_report(report);
        }
    }

    /// Runs what a sync's session has before its upload: an operator's write has no sync around it.
    pub(super) async fn prepare_session(&mut self) -> Result<()> {
        self.at_event("begin_connection", None).await?;
        self.at_event("begin_synchronization", None).await?;
        for table in 0..self.publication.schema.tables.len() {
            self.at_event("begin_synchronization", Some(table)).await?;
        }
        self.at_event("begin_publication", None).await
    }

    /// The published tables of which the upload has rows, parents first.
    fn with_rows(&self) -> Vec<usize> {
        let with_rows = self
            .tables
            .iter()
            .filter(|it| it.counts().iter().any(|&it| it > 0));
        let mut indexes: Vec<usize> = with_rows.map(|it| it.index).collect();
        indexes.sort_unstable();
        indexes.dedup();
        indexes
    }

    /// Runs what stands at an event of the tables of which the upload has rows.
    async fn at_tables(&mut self, event: &str) -> Result<()> {
        for table in self.with_rows() {
            self.at_event(event, Some(table)).await?;
        }
        Ok(())
    }

    /// What is done with the rows, in order, with what stands around them.
    pub(super) fn order(&self) -> [Steps; 3] {
        let Some(scripting) = self
            .scripting
            .as_ref()
            .filter(|it| it.scripts.has_uploads())
        else {
            return order(self.tables);
        };
        let is_handed_over = |place: usize| !self.handed_over[place].is_empty();
        let mut steps = match self.publication.upload_order {
            UploadOrder::RowsFirst => rows_first(self.tables, is_handed_over),
            UploadOrder::DeletesFirst => with_events(order(self.tables)),
        };
        let with_rows = self.with_rows();
        let happens = |&(place, step): &(usize, ApplyStep)| match step {
            ApplyStep::Event(event) => {
                let table = self.tables[place].index;
                with_rows.contains(&table) && scripting.script(event, Some(table)).is_some()
            }
            _ => true,
        };
        for some in &mut steps {
            some.retain(happens);
        }
        steps
    }

    /// Runs what stands before the rows of an upload.
    pub(super) async fn before_rows(&mut self) -> Result<()> {
        let Some(scripting) = &self.scripting else {
            return Ok(());
        };
        let upload = ScriptTransaction::Upload;
        scripting.look_up(&mut *self.rows, upload).await?;
        scripting.forget_upload();
        self.at_event("begin_upload", None).await?;
        self.at_tables("begin_upload").await
    }

    /// And behind them.
    pub(super) async fn after_rows(&mut self, progress: &UploadProgress<'_>) -> Result<()> {
        let Some(scripting) = &self.scripting else {
            return Ok(());
        };
        for table in self.tables {
            self.count(scripting, table, progress);
        }
        self.at_tables("end_upload").await?;
        self.at_event("end_upload", None).await?;
        self.at_tables("upload_statistics").await?;
        self.at_event("upload_statistics", None).await
    }

    /// Counts what the database has warned of since it was last asked, as of a table.
    pub(super) fn count_warnings(&mut self, table: usize) {
        let warned = self.rows.take_warnings();
        if let Some(scripting) = &self.scripting {
            scripting.add_count(self.name(Some(table)), "warnings", warned);
        }
    }

    /// Notes the figures of a table.
    fn count(
        &self,
        scripting: &ScriptEnvironment<'_>,
        incoming: &IncomingTable<'_, R::Tables>,
        progress: &UploadProgress<'_>,
    ) {
        let table = &*self.publication.schema.tables[incoming.index].name;
        let VainChanges {
            conflicts,
            lost,
            refused,
        } = progress.outcomes.vain(table);
        let sent = incoming.counts();
        let names = [
            ("inserted_rows", "conflicted_inserts", "ignored_inserts"),
            ("updated_rows", "conflicted_updates", "ignored_updates"),
            ("deleted_rows", "conflicted_deletes", "ignored_deletes"),
        ];
        for (at, (applied, conflicted, ignored)) in names.into_iter().enumerate() {
            let taken = sent[at].saturating_sub(lost[at] + refused[at]);
            for (name, count) in [
                (applied, taken),
                (conflicted, conflicts[at]),
                (ignored, refused[at]),
            ] {
                scripting.count(table, name, count);
            }
        }
        let bytes: usize = incoming
            .upload()
            .chunks
            .iter()
            .map(UploadChunk::length)
            .sum();
        scripting.count(table, "bytes", bytes as u64);
    }

    /// Asks scripts what is to be done about rows that the database refuses.
    pub(super) async fn handle_errors(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        failed: &[FailedRow],
    ) -> Result<()> {
        let Some(scripting) = self.scripting.as_ref() else {
            return Ok(());
        };
        let script = scripting.nearest("handle_error", Some(table.index));
        let place = script.map(|it| it.place.clone()).unwrap_or_default();
        for failed in failed {
            let refusal = &failed.refusal;
            let mut report = ScriptReport {
                table: self.name(Some(table.index)).to_owned(),
                code: refusal.code.name().to_owned(),
                database_code: refusal.database_code.clone().unwrap_or_default(),
                message: refusal.reason.clone(),
                action: SKIP,
            };
            self.decide(Some(table.index), &mut report).await?;
            let is_over = report.action == ABORT;
            self.keep_report(report);
            if is_over {
                return Err(CentreError::EndedByScript {
                    file: place,
                    table: self.name(Some(table.index)).to_owned(),
                    reason: refusal.reason.clone(),
                    database_code: refusal.database_code.clone(),
                });
            }
        }
        Ok(())
    }
}
