//! A snapshot of the file, from which a download is read: what the change logs tell of it.

use prost::Message;
use rusqlite::Row;
use rusqlite::types::Value as Native;

use tidewater_protocol::{ColumnType, Datum};

use super::connection::{SqliteConnection, run};
use super::publication::{Publication, SqliteTables};
use super::values::{self, SqliteKind};
use super::watermark::{self, LogPosition, LogPositions as Logs, Marker};
use super::{failure, state};
use tidewater_centre::engine::connection::DatabaseConnection as _;
use tidewater_centre::engine::download::snapshot_driver::{
    DurableMark, HistoryAnswer, HistoryQuestion, OpeningFailure, SafeTime, SnapshotDriver,
    read_serials,
};
use tidewater_centre::engine::flight::{ColumnKind as _, FlightFailure, FlightStep};
use tidewater_centre::engine::scope::{ScopeChange, SerialValidity};
use tidewater_centre::engine::sql::condition_arguments::ConditionArguments;
use tidewater_centre::engine::sql::system_table::SystemType;
use tidewater_centre::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

/// See [`SnapshotDriver`].
pub(super) struct FileSnapshot<'p> {
    pub(super) connection: &'p mut SqliteConnection,
    pub(super) marker: &'p Marker,
}

impl FileSnapshot<'_> {
    /// What the change logs tell of a subscription.
    fn look(&self, asked: &HistoryQuestion<'_, SqliteTables>) -> Result<HistoryAnswer<Vec<i64>>> {
        let (connection, publication) = (&*self.connection, asked.publication);
        let presented = asked.presented.as_ref();
        let marked_ms = match presented {
            Some(presented) => watermark::mark_created(connection, &presented.watermark.mark)?,
            None => None,
        };
        let known = presented.filter(|_| marked_ms.is_some());
        let known = known.and_then(|it| Logs::decode(&*it.watermark.position).ok());
        let known = known.unwrap_or_default();
        let mut logs: Vec<LogPosition> = Vec::new();
        let count = publication.rules.len();
        let (mut since, mut is_traced) = (vec![0; count], vec![false; count]);
        let mut unasked = Vec::new();
        let tables = publication.tables.iter().flat_map(|it| &it.rules);
        for (index, (table, rule)) in tables.zip(&*publication.rules).enumerate() {
            if table.log.is_none() {
                continue;
            }
            let log = table.log_id;
            let position = state::log_position(connection, log)?;
            if logs.iter().all(|it| it.log != log) {
                logs.push(LogPosition { log, position });
            }
            let known = known.logs.iter().find(|it| it.log == log);
            let Some(known) = known.filter(|it| it.position <= position) else {
                continue;
            };
            if state::goes_back_to(connection, log, known.position)? {
                is_traced[index] = true;
                since[index] = known.position;
                let is_held = presented.is_some_and(|it| it.held(rule.id).is_some());
                if is_held && known.position < position {
                    unasked.push(index);
                }
            }
        }
        let issued = SerialValidity::ask(asked.remote_id, &publication.schema.name);
        let issued = run(connection, &issued).map_err(failure("reading a subscription"))?;
        Ok(HistoryAnswer {
            position: Logs { logs }.encode_to_vec(),
            marked_ms,
            serials: read_serials(&issued)?,
            is_traced,
            seen: Some(since),
            news: false,
            unasked,
        })
    }
}

impl SnapshotDriver for FileSnapshot<'_> {
    type Tables = SqliteTables;
    type Connection = SqliteConnection;
    /// By rule, the position in its change log.
    type Seen = Vec<i64>;

    fn connection(&mut self) -> &mut SqliteConnection {
        self.connection
    }

    /// Who writes now has begun before, and what it writes may be dated so: it is awaited.
    async fn find_safe_time(&mut self, now_ms: i64) -> Result<SafeTime> {
        let awaited = self.connection.execute_batch("BEGIN IMMEDIATE; COMMIT");
        awaited.map_err(failure("waiting for writers"))?;
        Ok(SafeTime {
            open: now_ms.saturating_mul(1000),
            prepared: i64::MAX,
        })
    }

    async fn open(
        &mut self,
        asked: &[HistoryQuestion<'_, SqliteTables>],
        begin: FlightStep<'_, SqliteTables>,
        others: Vec<FlightStep<'_, SqliteTables>>,
    ) -> std::result::Result<Option<Vec<HistoryAnswer<Vec<i64>>>>, OpeningFailure> {
        let begun = self.connection.run("reading a download", vec![begin]).await;
        begun.map_err(|FlightFailure { error, .. }| error)?;
        let answers = asked.iter().map(|it| self.look(it));
        let answers = answers.collect::<Result<Vec<_>>>()?;
        let ran = self.connection.run("reading a download", others).await;
        ran.map_err(|failure| OpeningFailure::behind(0, failure))?;
        Ok(Some(answers))
    }

    fn unseen(
        seen: &Vec<i64>,
        rule: usize,
        arguments: &mut ConditionArguments<'_, SqliteKind>,
    ) -> String {
        let integer = SqliteKind::of_system(SystemType::Integer);
        let since = arguments.push(integer, Datum::Integer(seen[rule]));
        format!("l.id > {since}")
    }

    async fn mark(&mut self, now_ms: i64, changes: Vec<ScopeChange>) -> Result<DurableMark> {
        self.marker.mark(now_ms, changes)
    }

    async fn end(&mut self) -> Result<()> {
        match self.connection.is_autocommit() {
            true => Ok(()),
            false => self.connection.commit().await,
        }
    }
}

/// The values of a row, from a column on.
pub(super) fn values<'r>(
    row: &'r Row<'_>,
    from: usize,
    types: &[ColumnType],
) -> rusqlite::Result<Vec<Datum<'r>>> {
    let mut values = Vec::with_capacity(types.len());
    for (index, &column_type) in types.iter().enumerate() {
        values.push(values::read(column_type, row.get_ref(from + index)?));
    }
    Ok(values)
}

/// A key as parameters; `None` if no row can have it.
pub(super) fn key_parameters(
    publication: &Publication,
    index: usize,
    key: &[Datum<'_>],
) -> Option<Vec<Native>> {
    let columns = publication.tables[index].key_columns();
    let mut parameters = Vec::with_capacity(key.len());
    for (column, value) in columns.zip(key) {
        match values::bind(column.column_type, column.is_kept_as_text, value) {
            Ok(Native::Null) | Err(_) => return None,
            Ok(native) => parameters.push(native),
        }
    }
    Some(parameters)
}
