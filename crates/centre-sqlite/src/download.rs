//! A snapshot of the file, from which a download is read.

use prost::Message;
use rusqlite::types::Value as Native;
use rusqlite::{Row, params_from_iter};

use tidewater_protocol::{Code, ColumnType, Datum, Value, ValueRef};

use super::connection::{SqliteConnection, run};
use super::publication::{
    Publication, ServedTable, TableRule, is_in_partition, is_in_window, key_outputs,
    select_changes, select_rows,
};
use super::served::SqlitePublications;
use super::watermark::{self, LogPosition, LogPositions as Logs, Marker};
use super::{arguments, failure, state, values};
use tidewater_centre::SyncContext;
use tidewater_centre::download::{DownloadJob, DownloadSubscription};
use tidewater_centre::engine::connection::{StatementResult, SystemStatement};
use tidewater_centre::engine::download::{
    DownloadSnapshot, DurableMark, KeyOrder, OpenedSubscription, RuleHolding, RuleRows, TablePlace,
    TakeKey,
};
use tidewater_centre::engine::exact::unpack;
use tidewater_centre::engine::flight::TakeRow;
use tidewater_centre::engine::scope::asking::ask_scope;
use tidewater_centre::engine::scope::{ScopeChange, ScopePurpose, SerialValidity};
use tidewater_centre::engine::scripts::ScriptStatement;
use tidewater_centre::engine::thread::at_once;
use tidewater_centre::engine::watermark::PresentedCheckpoint;
use tidewater_centre::engine::window::Window;
use tidewater_centre::error::{CentreError, CentreResult};
use tidewater_centre::scope::Partitions;

type Result<T> = std::result::Result<T, CentreError>;

const DAY_MICROS: i64 = 86_400_000_000;

/// See [`DownloadSnapshot`].
pub(super) struct FileSnapshot<'p> {
    connection: &'p mut SqliteConnection,
    served: &'p SqlitePublications,
    marker: &'p Marker,
    publications: Vec<&'p Publication>,
    opened: Vec<OpenedSubscription>,
    /// By subscription and rule, the position in the change log that the remote knows.
    since: Vec<Vec<i64>>,
}

impl<'p> FileSnapshot<'p> {
    /// Takes the snapshot, and looks what each subscription has.
    pub(super) fn open<'j>(
        connection: &'p mut SqliteConnection,
        served: &'p SqlitePublications,
        marker: &'p Marker,
        jobs: impl Iterator<Item = &'j DownloadJob>,
    ) -> Result<FileSnapshot<'p>> {
        let reading = failure("reading a download");
        let jobs: Vec<&DownloadJob> = jobs.collect();
        if jobs.iter().any(|it| has_scripts(served, it)) {
            // Who writes now has begun before, and what it writes may be dated so: it is awaited.
            let awaited = connection.execute_batch("BEGIN IMMEDIATE; COMMIT");
            awaited.map_err(failure("waiting for writers"))?;
        }
        connection.execute_batch("BEGIN").map_err(reading)?;
        // The first read takes the snapshot.
        connection
            .prepare_cached("SELECT format_version FROM tidewater_centre_meta")
            .and_then(|mut statement| statement.query_row([], |_| Ok(())))
            .map_err(reading)?;
        let mut snapshot = FileSnapshot {
            connection,
            served,
            marker,
            publications: Vec::new(),
            opened: Vec::new(),
            since: Vec::new(),
        };
        for job in jobs {
            for subscription in &job.subscriptions {
                snapshot.look(subscription, &job.context)?;
            }
        }
        Ok(snapshot)
    }

    fn look(&mut self, subscription: &DownloadSubscription, context: &SyncContext) -> Result<()> {
        let publication = self.served.publication(&subscription.publication)?;
        let reading = ScopePurpose::Reading;
        let scope = at_once(ask_scope(
            self.connection,
            &[],
            publication,
            context,
            reading,
        ))?;
        let checkpoint = subscription.checkpoint.as_ref();
        let presented = checkpoint.and_then(PresentedCheckpoint::from_checkpoint);
        let marked_ms = match &presented {
            Some(presented) => watermark::mark_created(self.connection, &presented.watermark.mark)?,
            None => None,
        };
        let known = presented.as_ref().filter(|_| marked_ms.is_some());
        let known = known.and_then(|it| Logs::decode(&*it.watermark.position).ok());
        let known = known.unwrap_or_default();
        let mut held = Vec::with_capacity(publication.rules.len());
        let mut logs: Vec<LogPosition> = Vec::new();
        let mut since = vec![0; publication.rules.len()];
        let mut news = false;
        let tables = publication.tables.iter().flat_map(|it| &it.rules);
        for (index, (table, rule)) in tables.zip(&*publication.rules).enumerate() {
            let mut is_traced = false;
            if table.log.is_some() {
                let log = table.log_id;
                let position = state::log_position(self.connection, log)?;
                if logs.iter().all(|it| it.log != log) {
                    logs.push(LogPosition { log, position });
                }
                let known = known.logs.iter().find(|it| it.log == log);
                if let Some(known) = known
                    && known.position <= position
                    && self.goes_back_to(known)?
                {
                    is_traced = true;
                    since[index] = known.position;
                    // If other partitions are held, there is something to do anyway.
                    let now = &scope.rules[index].partitions;
                    let is_held = presented
                        .as_ref()
                        .is_some_and(|it| it.held(rule.id).is_some());
                    if is_held && known.position < position {
                        news = news || self.has_news(table, now, known.position)?;
                    }
                }
            }
            let place = presented.as_ref().and_then(|it| it.place(rule.id));
            held.push(RuleHolding { place, is_traced });
        }
        let issued = SerialValidity::ask(context.remote_id, &publication.schema.name);
        let issued = run(self.connection, &issued).map_err(failure("reading a subscription"))?;
        let presented_serial = checkpoint.map(|it| it.serial);
        self.opened.push(OpenedSubscription {
            published: publication.published(),
            position: Logs { logs }.encode_to_vec(),
            role: String::new(),
            scope,
            held,
            standing: SerialValidity::read(presented_serial, &issued)?,
            news,
            marked_ms,
            safe_until: context.now_ms.saturating_mul(1000),
        });
        self.publications.push(publication);
        self.since.push(since);
        Ok(())
    }

    /// Whether a log has everything since a position.
    fn goes_back_to(&self, position: &LogPosition) -> Result<bool> {
        state::goes_back_to(self.connection, position.log, position.position)
    }

    /// Whether the log has anything new for some partitions.
    fn has_news(&self, table: &TableRule, partitions: &Partitions, since: i64) -> Result<bool> {
        let looking = failure("looking for changes");
        let columns = table.log_columns.partition.iter().zip(2..);
        let columns = columns.map(|(column, at)| format!(" AND {column} = ?{at}"));
        let sql = format!(
            "SELECT 1 FROM {} WHERE id > ?1{}",
            table.log_table(),
            columns.collect::<String>()
        );
        let mut statement = self.connection.prepare_cached(&sql).map_err(looking)?;
        let everyone = Partitions::from([Vec::new()]);
        let partitions = match table.columns.is_empty() {
            true => &everyone,
            false => partitions,
        };
        for partition in partitions {
            let values = partition_values(table, partition)?;
            let parameters = std::iter::once(Native::Integer(since)).chain(values);
            if statement
                .exists(params_from_iter(parameters))
                .map_err(looking)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A query for the rows of a part of one partition, which begins so; and its parameters behind the
    /// partition's.
    fn of_part(
        &self,
        place: TablePlace,
        part: &RuleRows<'_>,
        begins: &str,
    ) -> Result<(String, Vec<Native>)> {
        let rule = &self.table(place).rules[part.rule];
        let publication = self.publications[place.subscription];
        let windows = &publication.rules[publication.rules_of(place.table)][part.rule].windows;
        let mut sql = begins.to_owned();
        let mut bounds = Vec::new();
        sql.push_str(&is_in_partition(rule));
        for bound in &part.bounds {
            let window = &windows[bound.window];
            let ends = [(Some(bound.from), false), (bound.to, true)];
            for (position, is_less) in ends {
                let Some(position) = position.filter(|it| *it > i64::MIN) else {
                    continue;
                };
                bounds.push(window_value(window, position, is_less));
                let number = rule.columns.len() + bounds.len();
                sql.push_str(&is_in_window(rule, bound.window, is_less, number));
            }
        }
        if let Some(order) = &part.order {
            let names = key_outputs(self.table(place));
            if !order.after.is_empty() {
                let first = rule.columns.len() + bounds.len() + 1;
                bounds.extend(behind(publication, place.table, &order.after)?);
                let numbers =
                    (first..=rule.columns.len() + bounds.len()).map(|it| format!("?{it}"));
                let numbers = numbers.collect::<Vec<_>>().join(", ");
                sql.push_str(&format!(" AND ({names}) > ({numbers})"));
            }
            sql.push_str(&format!(" ORDER BY {names}"));
        }
        Ok((sql, bounds))
    }

    fn each_row(
        &self,
        place: TablePlace,
        part: &RuleRows<'_>,
        take: impl FnMut(&[Datum<'_>]) -> Result<()>,
    ) -> Result<()> {
        let table = self.table(place);
        let select = select_rows(table, part.rule, &table.outputs());
        self.each(place, part, (&select, self.types(place)), take)
    }

    /// Runs a query for each partition of a part: how it begins, and the types of what it yields.
    fn each(
        &self,
        place: TablePlace,
        part: &RuleRows<'_>,
        (begins, types): (&str, &[ColumnType]),
        mut take: impl FnMut(&[Datum<'_>]) -> Result<()>,
    ) -> Result<()> {
        let (sql, bounds) = self.of_part(place, part, begins)?;
        let rule = &self.table(place).rules[part.rule];
        if rule.columns.is_empty() {
            return query_rows(self.connection, &sql, bounds, types, take);
        }
        for partition in &part.partitions {
            let mut values = partition_values(rule, partition)?;
            values.extend(bounds.iter().cloned());
            query_rows(self.connection, &sql, values, types, &mut take)?;
        }
        Ok(())
    }

    fn table(&self, place: TablePlace) -> &'p ServedTable {
        &self.publications[place.subscription].tables[place.table]
    }

    fn types(&self, place: TablePlace) -> &'p [ColumnType] {
        &self.publications[place.subscription].row_types[place.table]
    }
}

impl DownloadSnapshot for FileSnapshot<'_> {
    fn take_opened(&mut self) -> Vec<OpenedSubscription> {
        std::mem::take(&mut self.opened)
    }

    fn mark(&mut self, now_ms: i64, changes: Vec<ScopeChange>) -> CentreResult<'_, DurableMark> {
        Box::pin(async move { self.marker.mark(now_ms, changes) })
    }

    fn row_estimate(&self, _: TablePlace) -> u64 {
        0
    }

    fn rows<'s>(
        &'s mut self,
        place: TablePlace,
        part: &'s RuleRows<'s>,
        take: TakeRow<'s>,
    ) -> CentreResult<'s, ()> {
        Box::pin(async move { self.each_row(place, part, take) })
    }

    fn own(&mut self, statements: Vec<SystemStatement>) -> CentreResult<'_, Vec<StatementResult>> {
        Box::pin(async move {
            let answers = statements.iter().map(|it| run(self.connection, it));
            let answers: rusqlite::Result<_> = answers.collect();
            answers.map_err(failure("reading a scope that was handed out"))
        })
    }

    fn kept_rows<'s>(
        &'s mut self,
        place: TablePlace,
        part: &'s RuleRows<'s>,
        take: TakeKey<'s>,
    ) -> CentreResult<'s, ()> {
        Box::pin(async move {
            let types = self.types(place);
            self.each_row(place, part, |row| {
                with_kept(self.connection, types, row, |kept| take(kept, Some(row)))?
            })
        })
    }

    fn keyless_rows<'s>(
        &'s mut self,
        place: TablePlace,
        part: &'s RuleRows<'s>,
    ) -> CentreResult<'s, u64> {
        Box::pin(async move {
            let table = self.table(place);
            let Some(has_no_key) = &table.details.has_no_key else {
                return Ok(0);
            };
            let from = &table.rules[part.rule].from;
            let count = format!("SELECT count(*) FROM {from} WHERE {has_no_key}");
            let mut found = 0;
            self.each(place, part, (&count, &[ColumnType::Integer]), |row| {
                if let [Datum::Integer(rows)] = row {
                    found += rows.unsigned_abs();
                }
                Ok(())
            })?;
            Ok(found)
        })
    }

    fn script<'s>(
        &'s mut self,
        _: TablePlace,
        statement: &'s ScriptStatement,
        values: &'s [Value],
        take: TakeRow<'s>,
    ) -> CentreResult<'s, ()> {
        Box::pin(async move {
            let reading = failure("running a download script");
            let sql = &statement.script.sql;
            let mut prepared = self.connection.prepare_cached(sql).map_err(reading)?;
            let natives = arguments::of_script(statement, values);
            let mut rows = prepared.query(params_from_iter(natives)).map_err(reading)?;
            while let Some(row) = rows.next().map_err(reading)? {
                take(&self::values(row, 0, &statement.yields).map_err(reading)?)?;
            }
            Ok(())
        })
    }

    fn changes<'s>(
        &'s mut self,
        place: TablePlace,
        asked: &'s [Option<Vec<&'s [u8]>>],
        order: Option<&'s KeyOrder<'s>>,
        take: TakeKey<'s>,
    ) -> CentreResult<'s, ()> {
        Box::pin(async move {
            let reading = failure("reading a change log");
            let (table, types) = (self.table(place), self.types(place));
            let publication = self.publications[place.subscription];
            let schema = &publication.schema.tables[place.table];
            let since = &self.since[place.subscription][publication.rules_of(place.table)];
            for ((rule, asked), &since) in table.rules.iter().zip(asked).zip(since) {
                if rule.log.is_none() {
                    continue;
                }
                let mut sql = select_changes(table, rule);
                let mut after = Vec::new();
                if let Some(order) = order {
                    let names = &rule.log_columns.key;
                    let names: Vec<String> = names.iter().map(|it| format!("l.{it}")).collect();
                    let names = names.join(", ");
                    if !order.after.is_empty() {
                        after = behind(publication, place.table, &order.after)?;
                        let first = 2 + rule.columns.len();
                        let numbers = (first..first + after.len()).map(|it| format!("?{it}"));
                        let numbers = numbers.collect::<Vec<_>>().join(", ");
                        sql.push_str(&format!(" WHERE ({names}) > ({numbers})"));
                    }
                    sql.push_str(&format!(" ORDER BY {names}"));
                }
                let mut statement = self.connection.prepare_cached(&sql).map_err(reading)?;
                let everyone: [&[u8]; 1] = [&[]];
                for partition in asked.as_deref().unwrap_or(&everyone) {
                    let values = partition_values(rule, partition)?;
                    let parameters = std::iter::once(Native::Integer(since)).chain(values);
                    let parameters = parameters.chain(after.iter().cloned());
                    let mut rows = statement
                        .query(params_from_iter(parameters))
                        .map_err(reading)?;
                    while let Some(row) = rows.next().map_err(reading)? {
                        let key_types = &table.details.key_types;
                        let key = self::values(row, 0, key_types).map_err(reading)?;
                        let now = self::values(row, key.len(), types).map_err(reading)?;
                        let exists = now[schema.key[0]] != Datum::Null;
                        take(&key, exists.then_some(&now[..]))?;
                    }
                }
            }
            Ok(())
        })
    }

    fn by_keys<'s>(
        &'s mut self,
        place: TablePlace,
        keys: &'s [Vec<Datum<'s>>],
        take: TakeKey<'s>,
    ) -> CentreResult<'s, ()> {
        Box::pin(async move {
            let reading = failure("reading a requested row");
            let publication = self.publications[place.subscription];
            let (table, types) = (self.table(place), self.types(place));
            let mut statement = self
                .connection
                .prepare_cached(&table.details.read_key)
                .map_err(reading)?;
            for key in keys {
                let Some(parameters) = key_parameters(publication, place.table, key) else {
                    take(key, None)?;
                    continue;
                };
                let mut rows = statement
                    .query(params_from_iter(parameters))
                    .map_err(reading)?;
                match rows.next().map_err(reading)? {
                    Some(row) => take(key, Some(&values(row, 0, types).map_err(reading)?))?,
                    None => take(key, None)?,
                }
            }
            Ok(())
        })
    }

    fn end(&mut self) -> CentreResult<'_, ()> {
        Box::pin(async move {
            if self.connection.is_autocommit() {
                return Ok(());
            }
            let ended = self.connection.execute_batch("COMMIT");
            ended.map_err(failure("ending a download"))
        })
    }
}

fn query_rows(
    connection: &SqliteConnection,
    sql: &str,
    parameters: Vec<Native>,
    types: &[ColumnType],
    mut take: impl FnMut(&[Datum<'_>]) -> Result<()>,
) -> Result<()> {
    let reading = failure("reading a table");
    let mut statement = connection.prepare_cached(sql).map_err(reading)?;
    let mut rows = statement
        .query(params_from_iter(parameters))
        .map_err(reading)?;
    while let Some(row) = rows.next().map_err(reading)? {
        take(&values(row, 0, types).map_err(reading)?)?;
    }
    Ok(())
}

/// A row as a remote keeps it: a number in a column that is text there becomes text, as
/// SQLite spells it, and may be a value of the column's type then.
fn with_kept<R>(
    connection: &SqliteConnection,
    types: &[ColumnType],
    row: &[Datum<'_>],
    take: impl FnOnce(&[Datum<'_>]) -> R,
) -> Result<R> {
    let number = |(value, column_type): (&Datum<'_>, &ColumnType)| {
        match value {
            Datum::Loose(ValueRef::Integer(integer)) => Some(Native::Integer(*integer)),
            Datum::Loose(ValueRef::Real(real)) => Some(Native::Real(*real)),
            _ => None,
        }
        .filter(|_| column_type.sqlite_type() == "TEXT")
    };
    if row.iter().zip(types).all(|pair| number(pair).is_none()) {
        return Ok(take(row));
    }
    let mut texts = Vec::with_capacity(row.len());
    for pair in row.iter().zip(types) {
        let spelled = number(pair).map(|number| {
            connection
                .prepare_cached("SELECT CAST(?1 AS TEXT)")
                .and_then(|mut statement| statement.query_row([number], |row| row.get(0)))
                .map_err(failure("spelling a number"))
        });
        let spelled: Option<String> = spelled.transpose()?;
        texts.push(spelled);
    }
    let kept = row.iter().zip(types).zip(&texts);
    let kept = kept.map(|((value, column_type), text)| match text {
        Some(text) => column_type.datum(ValueRef::Text(text)).0,
        None => *value,
    });
    Ok(take(&kept.collect::<Vec<_>>()))
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

/// The key behind which a download goes on.
fn behind(publication: &Publication, table: usize, key: &[Datum<'_>]) -> Result<Vec<Native>> {
    key_parameters(publication, table, key).ok_or_else(|| CentreError::Peer {
        message: "a download that goes on behind a key that no row can have".into(),
        code: Code::MalformedMessage,
    })
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

/// Whether scripts yield what a job gets.
fn has_scripts(served: &SqlitePublications, job: &DownloadJob) -> bool {
    let names = job.subscriptions.iter().map(|it| &it.publication);
    let mut publications = names.filter_map(|it| served.publication(it).ok());
    publications.any(|it| it.scripts.values().any(|it| it.has_downloads()))
}

/// A partition's values as parameters.
pub(super) fn partition_values(rule: &TableRule, packed: &[u8]) -> Result<Vec<Native>> {
    if rule.columns.is_empty() {
        return Ok(Vec::new());
    }
    let types: Vec<ColumnType> = rule.columns.iter().map(|it| it.column_type).collect();
    let values = unpack(packed, &types)?;
    let values = values.iter().zip(&rule.columns).map(|(value, column)| {
        let bound = values::bind(column.column_type, column.is_kept_as_text, value);
        bound.map_err(|why| CentreError::Configuration {
            message: format!("the partition value {value:.40} {why}"),
            hint: "correct the values query, or the data that it reads".into(),
        })
    });
    values.collect()
}

/// Where a window begins or ends, as a parameter. Applications spell a moment as they like: the day
/// it is of comes before, and the next one behind it, in whatever spelling.
pub(super) fn window_value(window: &Window, position: i64, is_end: bool) -> Native {
    let days = match window.column_type {
        ColumnType::Integer => return Native::Integer(position),
        ColumnType::Date => position,
        _ => position.div_euclid(DAY_MICROS) + i64::from(is_end),
    };
    Native::Text(Datum::Date(days).to_string())
}
