//! A snapshot of the file, from which a download is read.

use std::collections::BTreeSet;

use prost::Message;
use rusqlite::types::Value as Native;
use rusqlite::{Row, params_from_iter};

use tidewater_protocol::{ColumnType, Datum, ValueRef};

use super::connection::{Connection, run};
use super::publication::{Publication, PublishedTable};
use super::scope;
use super::served::Served;
use super::triggers::Log;
use super::watermark::{self, Marker, Position, Positions as Logs};
use super::{failure, quote, state, values};
use tidewater_centre::SyncContext;
use tidewater_centre::centre::CentreResult;
use tidewater_centre::download::{DownloadJob, DownloadSubscription};
use tidewater_centre::engine::download::{Held, Mark, Opened, Place, Snapshot, TakeKey, TakeRow};
use tidewater_centre::engine::exact::unpack;
use tidewater_centre::engine::scope::{ScopeChange, Standing};
use tidewater_centre::engine::watermark::Presented;
use tidewater_centre::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

/// See [`Snapshot`].
pub(super) struct FileSnapshot<'p> {
    connection: &'p mut Connection,
    served: &'p Served,
    marker: &'p Marker,
    publications: Vec<&'p Publication>,
    opened: Vec<Opened>,
    /// By subscription and table, the position in the change log that the remote knows.
    since: Vec<Vec<i64>>,
}

impl<'p> FileSnapshot<'p> {
    /// Takes the snapshot, and looks what each subscription has.
    pub(super) fn open(
        connection: &'p mut Connection,
        served: &'p Served,
        marker: &'p Marker,
        job: &DownloadJob,
    ) -> Result<FileSnapshot<'p>> {
        let reading = failure("reading a download");
        connection.execute_batch("BEGIN").map_err(reading)?;
        // The first read takes the snapshot.
        connection
            .prepare_cached("SELECT format_version FROM tidewater_meta")
            .and_then(|mut statement| statement.query_row([], |_| Ok(())))
            .map_err(reading)?;
        let mut snapshot = FileSnapshot {
            connection,
            served,
            marker,
            publications: Vec::with_capacity(job.subscriptions.len()),
            opened: Vec::with_capacity(job.subscriptions.len()),
            since: Vec::with_capacity(job.subscriptions.len()),
        };
        for subscription in &job.subscriptions {
            snapshot.look(subscription, &job.context)?;
        }
        Ok(snapshot)
    }

    fn look(&mut self, subscription: &DownloadSubscription, context: &SyncContext) -> Result<()> {
        let publication = self.served.publication(&subscription.publication)?;
        let scope = scope::current(self.connection, publication, context)?;
        let checkpoint = subscription.checkpoint.as_ref();
        let presented = checkpoint.and_then(Presented::of);
        let marked_ms = match &presented {
            Some(presented) => watermark::mark_created(self.connection, &presented.watermark.mark)?,
            None => None,
        };
        let known = presented.as_ref().filter(|_| marked_ms.is_some());
        let known = known.and_then(|it| Logs::decode(&*it.watermark.position).ok());
        let known = known.unwrap_or_default();
        let mut held = Vec::with_capacity(publication.tables.len());
        let mut logs = Vec::new();
        let mut since = vec![0; publication.tables.len()];
        let mut news = false;
        for (index, (table, rule)) in publication
            .tables
            .iter()
            .zip(&publication.rules)
            .enumerate()
        {
            let mut is_traced = false;
            if let Some(log) = &table.log {
                let position = state::log_position(self.connection, log.id)?;
                logs.push(Position {
                    log: log.id,
                    position,
                });
                let known = known.logs.iter().find(|it| it.log == log.id);
                if let Some(known) = known
                    && known.position <= position
                    && self.goes_back_to(known)?
                {
                    is_traced = true;
                    since[index] = known.position;
                    let partitions = presented.as_ref().and_then(|it| it.partitions(rule.id));
                    if let Some(partitions) = partitions {
                        news = news || self.has_news(table, log, partitions, known.position)?;
                    }
                }
            }
            let place = presented.as_ref().and_then(|it| it.place(rule.id));
            held.push(Held { place, is_traced });
        }
        let issued = Standing::ask(context.remote_id, &publication.schema.name);
        let issued = run(self.connection, &issued).map_err(failure("reading a subscription"))?;
        let presented_serial = checkpoint.map(|it| it.serial);
        self.opened.push(Opened {
            published: publication.published(),
            position: Logs { logs }.encode_to_vec(),
            scope,
            held,
            standing: Standing::read(presented_serial, &issued)?,
            news,
            marked_ms,
        });
        self.publications.push(publication);
        self.since.push(since);
        Ok(())
    }

    /// Whether a log has everything since a position.
    fn goes_back_to(&self, position: &Position) -> Result<bool> {
        self.connection
            .prepare_cached(
                "SELECT 1 FROM tidewater_change_log
                 WHERE id = ?1 AND floor <= ?2 AND everything <= ?2",
            )
            .and_then(|mut statement| statement.exists([position.log, position.position]))
            .map_err(failure("reading a change log's floor"))
    }

    /// Whether the log has anything new for some partitions.
    fn has_news(
        &self,
        table: &PublishedTable,
        log: &Log,
        partitions: &BTreeSet<Vec<u8>>,
        since: i64,
    ) -> Result<bool> {
        let looking = failure("looking for changes");
        let columns = log.partition_columns().into_iter().zip(2..);
        let columns = columns.map(|(column, at)| format!(" AND {column} = ?{at}"));
        let sql = format!(
            "SELECT 1 FROM {} WHERE id > ?1{}",
            quote(&state::log_table(log.id)),
            columns.collect::<String>()
        );
        let mut statement = self.connection.prepare_cached(&sql).map_err(looking)?;
        let everyone = BTreeSet::from([Vec::new()]);
        let partitions = match table.partition_types.is_empty() {
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

    fn each_row(
        &self,
        place: Place,
        partitions: &[&[u8]],
        mut take: impl FnMut(&[Datum<'_>]) -> Result<()>,
    ) -> Result<()> {
        let (table, types) = (self.table(place), self.types(place));
        if table.partition_types.is_empty() {
            return query_rows(self.connection, &table.select_all, Vec::new(), types, take);
        }
        for partition in partitions {
            let values = partition_values(table, partition)?;
            let sql = &table.select_partition;
            query_rows(self.connection, sql, values, types, &mut take)?;
        }
        Ok(())
    }

    fn table(&self, place: Place) -> &'p PublishedTable {
        &self.publications[place.subscription].tables[place.table]
    }

    fn types(&self, place: Place) -> &'p [ColumnType] {
        &self.publications[place.subscription].shapes[place.table].columns
    }
}

impl Snapshot for FileSnapshot<'_> {
    fn take_opened(&mut self) -> Vec<Opened> {
        std::mem::take(&mut self.opened)
    }

    fn mark(&mut self, now_ms: i64, changes: Vec<ScopeChange>) -> CentreResult<'_, Mark> {
        Box::pin(async move { self.marker.mark(now_ms, changes) })
    }

    fn row_estimate(&self, _: Place) -> u64 {
        0
    }

    fn rows<'s>(
        &'s mut self,
        place: Place,
        partitions: &'s [&'s [u8]],
        take: TakeRow<'s>,
    ) -> CentreResult<'s, ()> {
        Box::pin(async move { self.each_row(place, partitions, take) })
    }

    fn kept_rows<'s>(
        &'s mut self,
        place: Place,
        partitions: &'s [&'s [u8]],
        take: TakeKey<'s>,
    ) -> CentreResult<'s, ()> {
        Box::pin(async move {
            let types = self.types(place);
            self.each_row(place, partitions, |row| {
                with_kept(self.connection, types, row, |kept| take(kept, Some(row)))?
            })
        })
    }

    fn changes<'s>(
        &'s mut self,
        place: Place,
        partitions: &'s [&'s [u8]],
        take: TakeKey<'s>,
    ) -> CentreResult<'s, ()> {
        Box::pin(async move {
            let reading = failure("reading a change log");
            let (table, types) = (self.table(place), self.types(place));
            let schema = &self.publications[place.subscription].schema.tables[place.table];
            let Some(log) = &table.log else {
                return Ok(());
            };
            let sql = table.select_changes(schema, log);
            let mut statement = self.connection.prepare_cached(&sql).map_err(reading)?;
            let since = self.since[place.subscription][place.table];
            let everyone: [&[u8]; 1] = [&[]];
            let partitions = match table.partition_types.is_empty() {
                true => &everyone[..],
                false => partitions,
            };
            for partition in partitions {
                let values = partition_values(table, partition)?;
                let parameters = std::iter::once(Native::Integer(since)).chain(values);
                let mut rows = statement
                    .query(params_from_iter(parameters))
                    .map_err(reading)?;
                while let Some(row) = rows.next().map_err(reading)? {
                    let key = self::values(row, 0, &table.key_types).map_err(reading)?;
                    let now = self::values(row, key.len(), types).map_err(reading)?;
                    let exists = now[schema.key[0]] != Datum::Null;
                    take(&key, exists.then_some(&now[..]))?;
                }
            }
            Ok(())
        })
    }

    fn by_keys<'s>(
        &'s mut self,
        place: Place,
        keys: &'s [Vec<Datum<'s>>],
        take: TakeKey<'s>,
    ) -> CentreResult<'s, ()> {
        Box::pin(async move {
            let reading = failure("reading a requested row");
            let publication = self.publications[place.subscription];
            let (table, types) = (self.table(place), self.types(place));
            let mut statement = self
                .connection
                .prepare_cached(&table.select_key)
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
    connection: &Connection,
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
    connection: &Connection,
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
    let table = &publication.tables[index];
    let columns = &publication.schema.tables[index].key;
    let mut parameters = Vec::with_capacity(key.len());
    for (position, value) in key.iter().enumerate() {
        let (_, as_text) = table.declared[columns[position]];
        match values::bind(table.key_types[position], as_text, value) {
            Ok(Native::Null) | Err(_) => return None,
            Ok(native) => parameters.push(native),
        }
    }
    Some(parameters)
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

/// A partition's values as parameters.
fn partition_values(table: &PublishedTable, packed: &[u8]) -> Result<Vec<Native>> {
    if table.partition_types.is_empty() {
        return Ok(Vec::new());
    }
    let values = unpack(packed, &table.partition_types)?;
    let values = values.iter().zip(&table.partition_types);
    values
        .zip(&table.partition_as_text)
        .map(|((value, &column_type), &as_text)| {
            values::bind(column_type, as_text, value).map_err(|why| CentreError::Configuration {
                message: format!("the partition value {value:.40} {why}"),
                hint: "correct the values query, or the data that it reads".into(),
            })
        })
        .collect()
}
