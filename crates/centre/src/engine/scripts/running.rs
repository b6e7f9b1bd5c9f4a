//! Running scripts that are run once, and those that have a transaction of their own.

use std::time::Instant;

use tidewater_protocol::Value;

use super::{
    CompiledScript, EVENTS, ScriptEnvironment, ScriptEvent, ScriptTransaction, of_version,
};
use crate::engine::connection::DatabaseConnection as _;
use crate::engine::row_fault::RefusalReason;
use crate::engine::script::ScriptParameter;
use crate::engine::sql::system::subscriptions;
use crate::engine::upload::row_batch::ScriptOutcome;
use crate::engine::upload::upload_driver::UploadDriver;
use crate::engine::upload::upload_writer::UploadWriter;
use crate::error::CentreError;
use crate::script_notes::{RunTimes, ScriptReport};
use crate::scripting::ScriptRun;

type Result<T> = std::result::Result<T, CentreError>;

/// The status from which on somebody is not let in.
const REFUSED_FROM: i64 = 2000;

/// Runs the scripts of a transaction of their own; see [`crate::Worker::run_scripts`].
pub async fn run(rows: &mut UploadWriter<impl UploadDriver>, asked: &ScriptRun) -> Result<()> {
    let mut attempts = 0;
    loop {
        match try_run(rows, asked).await {
            Err(error) => {
                rows.try_again("running scripts", error, &mut attempts)
                    .await?
            }
            done => return done,
        }
    }
}

async fn try_run<R: UploadDriver>(rows: &mut UploadWriter<R>, asked: &ScriptRun) -> Result<()> {
    let publication = rows.publication(&asked.publication)?;
    let (context, name) = (&asked.context, asked.publication.as_str());
    let versions = &publication.scripts;
    let scripting = match asked.transaction {
        // A password is checked, whatever version the sync after that may have.
        ScriptTransaction::SigningIn
        | ScriptTransaction::Connecting
        | ScriptTransaction::Closing => {
            let scripts = of_version(versions, context, name);
            scripts.map(|it| ScriptEnvironment::with(it.clone(), context, name))
        }
        _ => ScriptEnvironment::for_sync(versions, context, name)?,
    };
    let Some(scripting) = scripting.filter(|it| it.scripts.has(asked.transaction)) else {
        return Ok(());
    };
    let scripting = scripting.since(asked.checkpoint.as_ref());
    if asked.transaction == ScriptTransaction::End {
        let tables = publication.schema.tables.len();
        scripting.note("synchronized_tables", Value::Integer(tables as i64));
    }
    rows.begin(0).await?;
    scripting.look_up(rows, asked.transaction).await?;
    let tables: Vec<&str> = publication
        .schema
        .tables
        .iter()
        .map(|it| &*it.name)
        .collect();
    for event in EVENTS.iter().filter(|it| it.is_in(asked.transaction)) {
        match event.name {
            "time_statistics" => {
                scripting.tell_times(rows, None).await?;
                for table in tables.iter().copied().enumerate() {
                    scripting.tell_times(rows, Some(table)).await?;
                }
            }
            "report_error" => {
                for report in context.scripts.take_reports(name) {
                    scripting.report(rows, &report, &tables).await?;
                }
            }
            _ => scripting.at_everything(rows, event, &tables).await?,
        }
        if event.name == "authenticate_parameters" {
            scripting.check_status()?;
        }
    }
    rows.commit().await
}

impl ScriptEnvironment<'_> {
    /// Runs what stands at an event for the connection and for each table.
    async fn at_everything<R: UploadDriver>(
        &self,
        rows: &mut UploadWriter<R>,
        event: &'static ScriptEvent,
        tables: &[&str],
    ) -> Result<()> {
        if !event.is_ending() {
            self.at(rows, event.name, None).await?;
        }
        for table in tables.iter().copied().enumerate() {
            self.at(rows, event.name, Some(table)).await?;
        }
        if event.is_ending() {
            self.at(rows, event.name, None).await?;
        }
        Ok(())
    }

    /// The script at an event of the connection, or of a table.
    pub fn script(&self, event: &str, table: Option<usize>) -> Option<&CompiledScript> {
        match table {
            None => self.scripts.connection.get(event),
            Some(table) => self.scripts.of_table(table, event),
        }
    }

    /// The script of a table; that of the connection if it has none, or if it is about no table.
    pub fn nearest(&self, event: &str, table: Option<usize>) -> Option<&CompiledScript> {
        let of_table = table.and_then(|it| self.script(event, Some(it)));
        of_table.or_else(|| self.script(event, None))
    }

    /// Runs what stands at an event of the connection, or of a table with this index and name.
    ///
    /// # Errors
    /// The database refuses it: nothing of its transaction counts.
    pub async fn at<R: UploadDriver>(
        &self,
        rows: &mut UploadWriter<R>,
        event: &str,
        table: Option<(usize, &str)>,
    ) -> Result<()> {
        let Some(compiled) = self.script(event, table.map(|it| it.0)) else {
            return Ok(());
        };
        match self
            .once(rows, compiled, table.map_or("", |it| it.1))
            .await?
        {
            None => Ok(()),
            Some(refusal) => Err(failed(compiled, &refusal)),
        }
    }

    /// Runs a script once; gives what the database says against it.
    ///
    /// # Errors
    /// The transaction cannot go on.
    pub async fn once<R: UploadDriver>(
        &self,
        rows: &mut UploadWriter<R>,
        compiled: &CompiledScript,
        table: &str,
    ) -> Result<Option<RefusalReason>> {
        let timed = ScriptTimer::begin();
        let refusal = self.statements(rows, compiled, table).await?;
        timed.end(self, compiled.event.name, table);
        let warned = rows.take_warnings();
        self.add_count(table, "warnings", warned);
        Ok(refusal)
    }

    async fn statements<R: UploadDriver>(
        &self,
        rows: &mut UploadWriter<R>,
        compiled: &CompiledScript,
        table: &str,
    ) -> Result<Option<RefusalReason>> {
        for statement in &compiled.statements {
            let values = self.values(statement, table);
            let statement = std::slice::from_ref(statement);
            let ran = rows.run_script(statement, &[vec![values]]).await;
            let ran = ran.map_err(|error| compiled.names(error))?;
            match ran.into_iter().next().unwrap_or_default() {
                ScriptOutcome::Refused(refusal) => return Ok(Some(refusal)),
                ScriptOutcome::Done { row: Some(row), .. } => {
                    self.set(compiled, &statement[0], row)?;
                }
                ScriptOutcome::Done { .. } => {}
            }
        }
        Ok(None)
    }

    /// Looks up what scripts of a transaction name that only the database knows.
    pub async fn look_up<R: UploadDriver>(
        &self,
        rows: &mut UploadWriter<R>,
        transaction: ScriptTransaction,
    ) -> Result<()> {
        let mut scripts = self.scripts.all().filter(|it| it.event.is_in(transaction));
        let names_it = scripts.any(|it| {
            let mut parameters = it.statements.iter().flat_map(|it| &it.script.parameters);
            parameters.any(|it| *it == ScriptParameter::System("last_upload"))
        });
        if !names_it || self.knows("last_upload") {
            return Ok(());
        }
        let (id, publication) = (self.context().remote_id, self.publication());
        let select = subscriptions::read_upload_time(id, publication);
        let what = "looking for the last upload";
        let answer = rows.connection().run_one(what, select).await?;
        if let Some(row) = answer.rows.first()
            && let Some(at_ms) = row.get::<Option<i64>>(0)?.filter(|it| *it != 0)
        {
            self.note_time("last_upload", at_ms.saturating_mul(1000));
        }
        Ok(())
    }

    /// Has the figures of times be those of a part of the sync.
    fn note_part(&self, part: &str, times: RunTimes) {
        self.note("event_name", Value::Text(part.to_owned()));
        for (name, figure) in [
            ("number_of_calls", times.calls),
            ("minimum_time", times.least),
            ("maximum_time", times.most),
            ("total_time", times.total),
        ] {
            self.note(name, Value::Integer(figure));
        }
    }

    /// Runs what stands at `time_statistics` for each event whose scripts have run for a table; or for
    /// the connection and all tables, and then for the parts of the sync, too.
    async fn tell_times<R: UploadDriver>(
        &self,
        rows: &mut UploadWriter<R>,
        table: Option<(usize, &str)>,
    ) -> Result<()> {
        const EVENT: &str = "time_statistics";
        if self.script(EVENT, table.map(|it| it.0)).is_none() {
            return Ok(());
        }
        let (notes, publication) = (&self.context().scripts, self.publication());
        let parts = match table {
            None => notes.times(publication),
            Some(_) => Vec::new(),
        };
        let parts = parts
            .into_iter()
            .map(|(part, millis)| (part, RunTimes::from_single(millis)));
        let name = table.map_or("", |it| it.1);
        let events = EVENTS.iter().filter(|it| it.name != EVENT);
        let runs = events.filter_map(|it| Some((it.name, notes.runs(publication, name, it.name)?)));
        let all: Vec<(&str, RunTimes)> = parts.chain(runs).collect();
        for (part, times) in all {
            self.note_part(part, times);
            self.at(rows, EVENT, table).await?;
        }
        Ok(())
    }

    /// Has the parameters of errors be those of one.
    pub fn note_error(&self, report: &ScriptReport, action: i64) {
        self.note("error_code", Value::Text(report.code.clone()));
        self.note("database_code", Value::Text(report.database_code.clone()));
        self.note("error_message", Value::Text(report.message.clone()));
        self.note("action_code", Value::Integer(action));
    }

    /// Reports an error to the script of its table, or of the connection.
    async fn report<R: UploadDriver>(
        &self,
        rows: &mut UploadWriter<R>,
        report: &ScriptReport,
        tables: &[&str],
    ) -> Result<()> {
        self.note_error(report, report.action);
        let table = tables.iter().position(|it| *it == report.table);
        let Some(compiled) = self.nearest("report_error", table) else {
            return Ok(());
        };
        match self.once(rows, compiled, &report.table).await? {
            None => Ok(()),
            Some(refusal) => Err(failed(compiled, &refusal)),
        }
    }

    /// Whether the status that a script has set lets the remote go on.
    fn check_status(&self) -> Result<()> {
        match self.fact("authentication_status") {
            None => Ok(()),
            Some(Value::Integer(status)) if (1..REFUSED_FROM).contains(&status) => Ok(()),
            // Whoever says nothing that can be understood lets nobody in.
            Some(Value::Integer(status)) => Err(CentreError::NotAuthenticated { status }),
            Some(_) => Err(CentreError::NotAuthenticated { status: 0 }),
        }
    }
}

/// A script has failed: nothing of its transaction counts.
pub fn failed(compiled: &CompiledScript, refusal: &RefusalReason) -> CentreError {
    CentreError::Script {
        file: compiled.place.clone(),
        message: refusal.reason.clone(),
        database_code: refusal.database_code.clone(),
    }
}

/// How long a script takes.
pub struct ScriptTimer(Instant);

#[allow(
    clippy::disallowed_methods,
    reason = "how long a script takes is measured by the clock, for the operator's own figures; \
              nothing else depends on it"
)]
impl ScriptTimer {
    /// From now on.
    pub fn begin() -> ScriptTimer {
        ScriptTimer(Instant::now())
    }

    /// Notes how long the script at an event took.
    pub fn end(self, scripting: &ScriptEnvironment<'_>, event: &'static str, table: &str) {
        self.end_of_rows(scripting, &[event], table, 1);
    }

    /// Notes how long the scripts at events took that ran together, for so many rows each: the time
    /// is shared among them.
    pub fn end_of_rows(
        self,
        scripting: &ScriptEnvironment<'_>,
        events: &[&'static str],
        table: &str,
        rows: usize,
    ) {
        let millis = i64::try_from(self.0.elapsed().as_millis()).unwrap_or(i64::MAX);
        let share = millis / i64::try_from(events.len()).unwrap_or(1).max(1);
        let notes = &scripting.context().scripts;
        for event in events {
            let ran = RunTimes::of_many(rows, share);
            notes.ran(scripting.publication(), table, event, ran);
        }
    }
}
