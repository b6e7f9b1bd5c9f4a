//! Reads downloads from one snapshot.

mod compare;
mod read;

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use rusqlite::types::Value as Native;
use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};

use tidewater_protocol::defect::{Defect, is_on};
use tidewater_protocol::frame::ROWS_PAYLOAD_BYTES;
use tidewater_protocol::message::TableBegin;
use tidewater_protocol::pack::unpack_values;
use tidewater_protocol::{
    Code, ColumnType, Datum, Op, Row as PackedRow, RowsReader, RowsWriter, Table,
};

use self::read::{all_rows, partition_rows};
use super::compile::{Compiled, Publication};
use super::deploy::Served;
use super::scope::{self, Holder, Presented};
use super::watermark::{self, Mark, Marker, Position, ScopeChange, Watermark};
use super::{failure, state, types};
use crate::columns::{Announced, ColumnMap};
use crate::comparing::{self, Comparison};
use crate::download::{DownloadJob, DownloadOutcome, DownloadSubscription, TableRequest};
use crate::error::CentreError;
use crate::scope::{Checkpoint, Scope};
use crate::too_long;
use crate::upload::{GainedPartitions, OwnUpload};

/// A watermark older than this is made new even if there is nothing to send, so that
/// it outlives the retention of the logs. A day.
const RENEW_AFTER_MS: i64 = 24 * 60 * 60 * 1000;

/// A step of a download, for the sink.
pub(super) enum Event {
    Begin(usize, bool),
    Table(TableBegin),
    Rows(Vec<u8>),
    Comparing,
    End(usize, DownloadOutcome),
}

/// Where the steps go. An error ends the download.
pub(super) type Emit<'a> = &'a mut dyn FnMut(Event) -> Result<(), CentreError>;

/// Reads all downloads of a sync.
pub(super) fn download(
    connection: &mut Connection,
    served: &Served,
    marker: &Marker,
    job: DownloadJob,
    emit: Emit<'_>,
) -> Result<(), CentreError> {
    let reading = failure("reading a download");
    let snapshot = connection.transaction().map_err(reading)?;
    // The first read takes the snapshot.
    snapshot
        .prepare_cached("SELECT format_version FROM tidewater_meta")
        .and_then(|mut statement| statement.query_row([], |_| Ok(())))
        .map_err(reading)?;
    if is_on(Defect::WatermarkAfterReads) {
        snapshot.execute_batch("COMMIT").map_err(reading)?;
    }
    let holder = Holder {
        user: &job.user,
        remote_id: job.remote_id,
    };
    let mut plans = Vec::with_capacity(job.subscriptions.len());
    for subscription in &job.subscriptions {
        plans.push(Plan::new(
            &snapshot,
            served,
            subscription,
            &holder,
            job.now_ms,
        )?);
    }
    let mut download = Download {
        connection: &snapshot,
        served,
        marker,
        now_ms: job.now_ms,
        plans: &plans,
        holder,
        mark: None,
        emit,
    };
    for (index, subscription) in job.subscriptions.iter().enumerate() {
        download.subscription(index, subscription)?;
    }
    Ok(())
}

/// What one subscription's download has to bring.
struct Plan<'a> {
    publication: &'a Publication,
    scope: Scope,
    tables: Vec<TablePlan>,
    /// Partitions were gained or lost.
    scope_changed: bool,
    /// The serial that stays; `None` for one that is noted with the mark.
    serial: Option<u64>,
    presented: Option<u64>,
    /// The remote presents the newest scope for the first time.
    arrived: bool,
    /// A new checkpoint is due whether or not there are rows.
    renew: bool,
}

/// What a table's download has to bring; empty for tables that are not downloaded.
#[derive(Default)]
struct TablePlan {
    downloads: bool,
    whole: bool,
    gained: Vec<Vec<u8>>,
    lost: Vec<Vec<u8>>,
    /// Partitions that the remote has up to `since`.
    kept: Vec<Vec<u8>>,
    since: i64,
    position: i64,
}

impl<'a> Plan<'a> {
    fn new(
        connection: &Connection,
        served: &'a Served,
        subscription: &DownloadSubscription,
        holder: &Holder<'_>,
        now_ms: i64,
    ) -> Result<Plan<'a>, CentreError> {
        let publication = served.publication(&subscription.publication)?;
        let scope = scope::current(connection, publication, holder)?;
        let checkpoint = subscription.checkpoint.as_ref();
        let presented = checkpoint.and_then(Presented::of);
        let marked = match &presented {
            Some(presented) => watermark::mark_created(connection, &presented.watermark.mark)?,
            None => None,
        };
        let serial = checkpoint.map(|checkpoint| checkpoint.serial);
        let standing = match serial {
            Some(serial) => standing(connection, holder, &publication.schema.name, serial)?,
            None => Standing::Replaced,
        };
        // What a remote compares, it gets to know all the same.
        let is_outdated = standing == Standing::Outdated && subscription.compares.is_empty();
        let mut scope_changed = presented.is_none();
        let mut tables = Vec::with_capacity(publication.tables.len());
        let mut renew = marked.is_none_or(|created| now_ms - created > RENEW_AFTER_MS);
        for (index, table) in publication.tables.iter().enumerate() {
            let held = presented.as_ref().and_then(|held| held.partitions(table));
            scope_changed |= held != Some(&scope.tables[index]);
            let known = presented
                .as_ref()
                .filter(|_| marked.is_some() && !is_outdated);
            let mut plan = table_plan(connection, publication, index, &scope, held, known)?;
            if plan.downloads && !plan.whole {
                let (name, now) = (&publication.schema.tables[index].name, &scope.tables[index]);
                let gained = &subscription.gained;
                let lost = GainedPartitions::lost(gained, name, &table.partition_types, now);
                plan.lost.extend(lost.cloned());
            }
            renew |= !plan.gained.is_empty() || !plan.lost.is_empty();
            renew |= plan.whole && table.is_logged(&publication.schema.tables[index]);
            tables.push(plan);
        }
        let stays = standing == Standing::Known && !scope_changed;
        Ok(Plan {
            publication,
            scope,
            tables,
            scope_changed,
            serial: serial.filter(|_| stays),
            presented: serial,
            arrived: standing == Standing::Arrived && !scope_changed,
            renew: renew || !stays || !subscription.compares.is_empty(),
        })
    }

    fn change(&self, holder: &Holder<'_>) -> Option<ScopeChange> {
        self.serial.is_none().then(|| ScopeChange {
            remote_id: holder.remote_id,
            publication: self.publication.schema.name.clone(),
            presented: self.presented,
            arrived: self.arrived,
        })
    }
}

/// What a presented serial is to its subscription.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It stays.
    Known,
    /// It stays, and that the remote has it is news: the one before does not count any more.
    Arrived,
    /// It is none of the last two, or is spent: changes could not be taken under it.
    Replaced,
    /// It is from before the remote gave back what the restored centre had forgotten, and so is
    /// the file: an older copy of the one that was told what became of that.
    Outdated,
}

fn standing(
    connection: &Connection,
    holder: &Holder<'_>,
    publication: &str,
    serial: u64,
) -> Result<Standing, CentreError> {
    let found: Option<(bool, bool, bool)> = connection
        .prepare_cached(
            "SELECT given_back_serial IS NOT NULL
                 AND NOT (?3 > given_back_serial AND ?3 <= scope_serial),
                 ?3 IN (scope_serial, previous_serial) AND ?3 > graced_serial,
                 scope_serial = ?3 AND graced_serial < previous_serial
             FROM tidewater_subscription WHERE remote_id = ?1 AND publication = ?2",
        )
        .and_then(|mut statement| {
            let parameters = rusqlite::params![holder.remote_id.0, publication, serial as i64];
            let found = statement.query_row(parameters, |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            });
            found.optional()
        })
        .map_err(failure("reading a subscription"))?;
    Ok(match found {
        Some((true, _, _)) => Standing::Outdated,
        Some((_, true, true)) => Standing::Arrived,
        Some((_, true, false)) => Standing::Known,
        _ => Standing::Replaced,
    })
}

/// Compares what a remote holds of a table with what it should hold. `held` is what
/// it was given, `known` the checkpoint if its watermark belongs to this history.
fn table_plan(
    connection: &Connection,
    publication: &Publication,
    index: usize,
    scope: &Scope,
    held: Option<&BTreeSet<Vec<u8>>>,
    known: Option<&Presented<'_>>,
) -> Result<TablePlan, CentreError> {
    let table = &publication.tables[index];
    let current = &scope.tables[index];
    if !publication.schema.tables[index].direction.downloads() {
        return Ok(TablePlan::default());
    }
    let mut plan = TablePlan {
        downloads: true,
        whole: true,
        ..TablePlan::default()
    };
    let Some(log) = table.deployed.log else {
        return Ok(plan);
    };
    plan.position = state::log_position(connection, log)?;
    let (Some(held), Some(known)) = (held, known) else {
        return Ok(plan);
    };
    let position = known
        .place(table)
        .map(|place| known.watermark.tables[place]);
    let Some(floor) = watermark::floor(connection, log)? else {
        return Ok(plan);
    };
    let usable = position.filter(|position| {
        position.generation == table.deployed.generation
            && position.log == log
            && (floor..=plan.position).contains(&position.position)
    });
    if let Some(position) = usable {
        plan.whole = false;
        plan.since = position.position;
        plan.gained = current.difference(held).cloned().collect();
        plan.lost = held.difference(current).cloned().collect();
        plan.kept = current.intersection(held).cloned().collect();
        if is_on(Defect::GainedPartitionsNotWhole) {
            plan.kept.append(&mut plan.gained);
        }
        if is_on(Defect::LostPartitionsNotRemoved) {
            plan.lost.clear();
        }
    }
    Ok(plan)
}

/// A download under way.
struct Download<'a, 'e> {
    connection: &'a Connection,
    served: &'a Served,
    marker: &'a Marker,
    now_ms: i64,
    plans: &'a [Plan<'a>],
    holder: Holder<'a>,
    mark: Option<Mark>,
    emit: Emit<'e>,
}

/// The rows of one table on their way to the sink.
struct Output<'a> {
    schema: &'a Table,
    begin: Option<TableBegin>,
    writer: RowsWriter<'a>,
    upserts: u64,
    removals: u64,
}

impl<'a> Output<'a> {
    fn new(plan: &'a Plan<'_>, table: usize) -> Output<'a> {
        let schema = &plan.publication.schema.tables[table];
        Output {
            schema,
            begin: Some(TableBegin::of(schema)),
            writer: RowsWriter::new(&plan.publication.shapes[table]),
            upserts: 0,
            removals: 0,
        }
    }

    fn upsert(&mut self, row: &[Datum<'_>]) -> Result<(), CentreError> {
        let before = self.writer.len();
        self.writer.row(Op::Upsert, row);
        self.upserts += 1;
        too_long::check(self.schema, row, self.writer.len() - before)
    }
}

impl<'a> Download<'a, '_> {
    /// The mark of this download: everything in the snapshot is durable.
    fn mark(&mut self) -> Result<&Mark, CentreError> {
        if self.mark.is_none() {
            let plans = self.plans.iter();
            let changes = plans.filter_map(|plan| plan.change(&self.holder)).collect();
            self.mark = Some(self.marker.mark(self.now_ms, changes)?);
        }
        self.mark.as_ref().ok_or_else(|| CentreError::Internal {
            message: "a mark that was made is gone".into(),
        })
    }

    fn subscription(
        &mut self,
        index: usize,
        subscription: &DownloadSubscription,
    ) -> Result<(), CentreError> {
        let plan = &self.plans[index];
        if plan.renew {
            self.mark()?;
        }
        (self.emit)(Event::Begin(index, plan.scope_changed))?;
        let own = subscription.own.as_ref();
        let mut requests = requests_by_table(plan.publication, &subscription.requests)?;
        let compares = comparing::by_table(&plan.publication.schema, &subscription.compares);
        let mut new_checkpoint = plan.renew;
        let (mut upserts, mut removals) = (0, 0);
        for (table, table_plan) in plan.tables.iter().enumerate() {
            let mut output = Output::new(plan, table);
            let only_compared = table_plan.whole && compares[table].is_some();
            if table_plan.downloads && !only_compared {
                new_checkpoint |= self.table(plan, table, own, &mut output)?;
            }
            for request in requests.remove(&table).unwrap_or_default() {
                self.request(plan, table, request, &mut output)?;
            }
            self.flush(&mut output)?;
            upserts += output.upserts;
            removals += output.removals;
        }
        for (table, theirs) in compares.into_iter().enumerate() {
            if let Some(theirs) = theirs {
                let comparison = Comparison::new(&plan.publication.shapes[table], theirs)?;
                upserts += self.compare(plan, table, comparison)?;
            }
        }
        let checkpoint = match new_checkpoint {
            true => Some(self.checkpoint(index)?),
            false => None,
        };
        let outcome = DownloadOutcome {
            checkpoint,
            upserts,
            removals,
        };
        (self.emit)(Event::End(index, outcome))
    }

    fn checkpoint(&mut self, index: usize) -> Result<Checkpoint, CentreError> {
        let plan = &self.plans[index];
        let new_before = self.plans[..index].iter();
        let new_before = new_before.filter(|plan| plan.serial.is_none()).count();
        let mark = self.mark()?;
        let serial = match plan.serial {
            Some(serial) => serial,
            None => *mark
                .serials
                .get(new_before)
                .ok_or_else(|| CentreError::Internal {
                    message: "a scope has got no serial".into(),
                })?,
        };
        let mark_id = mark.id.to_vec();
        let mut tables = Vec::with_capacity(plan.tables.len());
        for (table, plan) in plan.publication.tables.iter().zip(&plan.tables) {
            let position = match table.deployed.log {
                Some(log) if is_on(Defect::WatermarkAfterReads) => {
                    state::log_position(self.connection, log)?
                }
                _ => plan.position,
            };
            tables.push(Position {
                table: table.deployed.id,
                generation: table.deployed.generation,
                log: table.deployed.log.unwrap_or_default(),
                position,
            });
        }
        let watermark = Watermark {
            mark: mark_id,
            tables,
        };
        Ok(Checkpoint {
            serial,
            watermark: watermark.encode_to_vec(),
            scope: plan.scope.clone(),
        })
    }

    /// Sends what is packed; the table's header goes before its first rows.
    fn flush(&mut self, output: &mut Output<'_>) -> Result<(), CentreError> {
        let begin = match &output.begin {
            Some(begin) if begin.replace || !output.writer.is_empty() => output.begin.take(),
            _ => None,
        };
        if let Some(begin) = begin {
            self.mark()?;
            (self.emit)(Event::Table(begin))?;
        }
        if !output.writer.is_empty() {
            (self.emit)(Event::Rows(output.writer.take()))?;
        }
        Ok(())
    }

    fn flush_if_full(&mut self, output: &mut Output<'_>) -> Result<(), CentreError> {
        if output.writer.len() < ROWS_PAYLOAD_BYTES {
            return Ok(());
        }
        self.flush(output)
    }

    /// Reads one table. True if the remote's watermark must move.
    fn table(
        &mut self,
        plan: &Plan<'_>,
        index: usize,
        own: Option<&OwnUpload>,
        output: &mut Output<'_>,
    ) -> Result<bool, CentreError> {
        let table = &plan.publication.tables[index];
        let table_plan = &plan.tables[index];
        if table_plan.whole {
            if let Some(begin) = &mut output.begin {
                begin.replace = true;
            }
            self.flush(output)?;
            let connection = self.connection;
            all_rows(connection, plan, index, |row| {
                output.upsert(row)?;
                self.flush_if_full(output)
            })?;
            return Ok(false);
        }
        // What the remote uploaded into a partition before it held that, and somebody has
        // deleted since, is in no log that it reads: gained partitions replace, too.
        for partition in table_plan.lost.iter().chain(&table_plan.gained) {
            let values = unpack(partition, &table.partition_types)?;
            output.writer.remove_partition(&values);
            output.removals += 1;
            self.flush_if_full(output)?;
        }
        for partition in &table_plan.gained {
            let connection = self.connection;
            partition_rows(connection, plan, index, partition, |row| {
                output.upsert(row)?;
                self.flush_if_full(output)
            })?;
        }
        let mut moved = false;
        if table.partition_types.is_empty() {
            moved |= self.changes(plan, index, Vec::new(), own, output)?;
        }
        for partition in &table_plan.kept {
            let values = partition_values(table, partition)?;
            moved |= self.changes(plan, index, values, own, output)?;
        }
        Ok(moved)
    }

    /// Sends what changed in one partition since the watermark. True if anything did,
    /// sent or not.
    fn changes(
        &mut self,
        plan: &Plan<'_>,
        index: usize,
        partition: Vec<Native>,
        own: Option<&OwnUpload>,
        output: &mut Output<'_>,
    ) -> Result<bool, CentreError> {
        let reading = failure("reading a change log");
        let table = &plan.publication.tables[index];
        let schema = &plan.publication.schema.tables[index];
        let Some(log) = table.deployed.log.and_then(|id| self.served.logs.get(&id)) else {
            return Ok(false);
        };
        let types = &plan.publication.shapes[index].columns;
        let sql = table.select_changes(schema, log);
        let connection = self.connection;
        let mut statement = connection.prepare_cached(&sql).map_err(reading)?;
        let since = Native::Integer(plan.tables[index].since);
        let parameters = std::iter::once(since).chain(partition);
        let mut rows = statement
            .query(params_from_iter(parameters))
            .map_err(reading)?;
        let mut moved = false;
        while let Some(row) = rows.next().map_err(reading)? {
            moved = true;
            let key = values(row, 0, &table.key_types).map_err(reading)?;
            let now = values(row, key.len(), types).map_err(reading)?;
            let exists = now[schema.key[0]] != Datum::Null;
            let in_scope = exists && self.in_scope(plan, index, &now);
            if is_own(
                table,
                index,
                types,
                &key,
                exists.then_some(&now),
                in_scope,
                own,
            ) {
                continue;
            }
            if in_scope {
                output.upsert(&now)?;
            } else if !(exists && is_on(Defect::RemovalNotSent)) {
                output.writer.key(Op::Remove, &key);
                output.removals += 1;
            }
            self.flush_if_full(output)?;
        }
        Ok(moved)
    }

    fn in_scope(&self, plan: &Plan<'_>, index: usize, row: &[Datum<'_>]) -> bool {
        let columns = &plan.publication.schema.tables[index].partition;
        let partition: Vec<_> = columns.iter().map(|&column| row[column]).collect();
        let table = &plan.publication.tables[index];
        scope::contains(table, &plan.scope.tables[index], &partition)
    }

    /// Answers the requests for rows of one table.
    fn request(
        &mut self,
        plan: &Plan<'_>,
        index: usize,
        (map, request): (ColumnMap, &TableRequest),
        output: &mut Output<'_>,
    ) -> Result<(), CentreError> {
        let reading = failure("reading a requested row");
        let table = &plan.publication.tables[index];
        let types = &plan.publication.shapes[index].columns;
        let connection = self.connection;
        let mut statement = connection
            .prepare_cached(&table.select_key)
            .map_err(reading)?;
        let mut reader = RowsReader::new(&map.shape, &request.rows);
        let mut packed = PackedRow::default();
        while next_row(&mut reader, &mut packed)? {
            let sent = match key_parameters(plan.publication, index, &packed.key) {
                Some(key) => {
                    let mut rows = statement.query(params_from_iter(key)).map_err(reading)?;
                    match rows.next().map_err(reading)? {
                        Some(row) => {
                            let now = values(row, 0, types).map_err(reading)?;
                            let in_scope = self.in_scope(plan, index, &now);
                            if in_scope {
                                output.upsert(&now)?;
                            }
                            in_scope
                        }
                        None => false,
                    }
                }
                None => false,
            };
            if !sent && plan.tables[index].downloads {
                output.writer.key(Op::Remove, &packed.key);
                output.removals += 1;
            }
            self.flush_if_full(output)?;
        }
        Ok(())
    }
}

/// Whether a change is what the same sync uploaded, still as it was uploaded.
fn is_own(
    table: &Compiled,
    index: usize,
    types: &[ColumnType],
    key: &[Datum<'_>],
    now: Option<&Vec<Datum<'_>>>,
    in_scope: bool,
    own: Option<&OwnUpload>,
) -> bool {
    let Some(own) = own.filter(|own| !own.rows.is_empty()) else {
        return false;
    };
    let key = (index, types::pack_exact(&table.key_types, key));
    match (own.rows.get(&key), now) {
        (Some(Some(uploaded)), Some(now)) => {
            in_scope && (*uploaded == types::pack_row(types, now) || is_on(Defect::OwnRowsNotSent))
        }
        (Some(None), None) => true,
        _ => false,
    }
}

/// The requests of a subscription, by the table's index.
#[expect(clippy::type_complexity, reason = "a map of pairs, used once")]
fn requests_by_table<'r>(
    publication: &Publication,
    requests: &'r [TableRequest],
) -> Result<BTreeMap<usize, Vec<(ColumnMap, &'r TableRequest)>>, CentreError> {
    let mut by_table: BTreeMap<usize, Vec<_>> = BTreeMap::new();
    for request in requests {
        // What does not fit the publication any more is sent anew as a whole, or gone.
        let announced = ColumnMap::find(&publication.schema, &request.begin)?;
        if let Announced::Published(index, map) = announced {
            by_table.entry(index).or_default().push((map, request));
        }
    }
    Ok(by_table)
}

/// Reads the next packed row of a remote.
pub(super) fn next_row<'b>(
    reader: &mut RowsReader<'b>,
    row: &mut PackedRow<'b>,
) -> Result<bool, CentreError> {
    reader.next(row).map_err(|error| CentreError::Peer {
        message: format!("rows that cannot be read: {error}"),
        code: Code::MalformedMessage,
    })
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
        match types::bind(table.key_types[position], as_text, value) {
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
        values.push(types::read(column_type, row.get_ref(from + index)?));
    }
    Ok(values)
}

/// Unpacks what this adapter packed itself.
pub(super) fn unpack<'p>(
    packed: &'p [u8],
    types: &[ColumnType],
) -> Result<Vec<Datum<'p>>, CentreError> {
    unpack_values(packed, types).map_err(|error| CentreError::Internal {
        message: format!("packed values cannot be read: {error}"),
    })
}

/// A partition's values as parameters.
fn partition_values(table: &Compiled, packed: &[u8]) -> Result<Vec<Native>, CentreError> {
    let values = unpack(packed, &table.partition_types)?;
    let values = values.iter().zip(&table.partition_types);
    values
        .zip(&table.partition_as_text)
        .map(|((value, &column_type), &as_text)| {
            types::bind(column_type, as_text, value).map_err(|why| CentreError::Configuration {
                message: format!("the partition value {value:.40} {why}"),
                hint: "correct the values query, or the data that it reads".into(),
            })
        })
        .collect()
}
