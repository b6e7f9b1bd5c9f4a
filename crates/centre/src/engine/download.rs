//! Downloads: what each table of a subscription has to bring, and in which order.
//!
//! All of a sync is read from one snapshot, which the adapter opens. Of each table it tells what the
//! remote holds and whether its changes since then are known; here is decided what that means: the
//! table whole, or partitions that came and went and the changes in those that stayed. Before the
//! first row goes out there is a mark: everything in the snapshot is durable, and the serials of new
//! scopes are noted with it.

mod plan;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tidewater_protocol::frame::ROWS_PAYLOAD_BYTES;
use tidewater_protocol::message::TableBegin;
use tidewater_protocol::{
    Code, Datum, Op, PublicationSchema, Row, RowShape, RowsReader, RowsWriter, Table,
};

use self::plan::{Plan, TablePlan};
use super::exact::{Membership, pack_exact, pack_row, types_of, unpack};
use super::scope::{ScopeChange, Standing};
use super::watermark::Watermark;
use crate::centre::CentreResult;
use crate::download::{
    DownloadJob, DownloadOutcome, DownloadSink, DownloadSubscription, TableRequest,
};
use crate::engine::comparing::{self, Comparison};
use crate::engine::too_long;
use crate::engine::upload::columns::{Announced, ColumnMap};
use crate::error::CentreError;
use crate::scope::{Checkpoint, Scope};
use crate::upload::OwnUpload;
use prost::Message;

type Result<T> = std::result::Result<T, CentreError>;

/// Takes rows: all published columns. An error ends the reading.
pub type TakeRow<'t> = &'t mut (dyn FnMut(&[Datum<'_>]) -> Result<()> + Send);

/// Takes keys (or rows), each with the row that is there now.
pub type TakeKey<'t> = &'t mut (dyn FnMut(&[Datum<'_>], Option<&[Datum<'_>]>) -> Result<()> + Send);

/// A table of a download: the subscription's place in the job, the table's in the publication.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Index of the subscription.
    pub subscription: usize,
    /// Index of the table in its publication.
    pub table: usize,
}

/// A publication as it is served: its schema, and how the rows of its tables are packed.
#[derive(Clone, Debug)]
pub struct PublishedSchema {
    /// As remotes see it.
    pub schema: Arc<PublicationSchema>,
    /// How rows are packed, in the order of the tables.
    pub shapes: Arc<[RowShape]>,
    /// The numbers of the tables' rules.
    pub rules: Vec<i64>,
}

/// A snapshot of the database in which a job is read.
pub trait Snapshot: Send {
    /// What was found out when the snapshot was opened, by subscription; once.
    fn take_opened(&mut self) -> Vec<Opened>;

    /// Sees to it that what the snapshot shows is durable, and notes what became of scopes, in one
    /// transaction if the database can.
    fn mark(&mut self, now_ms: i64, changes: Vec<ScopeChange>) -> CentreResult<'_, Mark>;

    /// About how many rows a table has; 0 if that is not known.
    fn row_estimate(&self, place: Place) -> u64;

    /// Reads partitions of a table whole; all of it if everybody has all.
    fn rows<'s>(
        &'s mut self,
        place: Place,
        partitions: &'s [&'s [u8]],
        take: TakeRow<'s>,
    ) -> CentreResult<'s, ()>;

    /// Reads the same rows, each first as a remote keeps it and then as it is sent.
    fn kept_rows<'s>(
        &'s mut self,
        place: Place,
        partitions: &'s [&'s [u8]],
        take: TakeKey<'s>,
    ) -> CentreResult<'s, ()> {
        Box::pin(async move {
            let mut take = |row: &[Datum<'_>]| take(row, Some(row));
            self.rows(place, partitions, &mut take).await
        })
    }

    /// Reads the keys that have changed in partitions since what the remote holds.
    fn changes<'s>(
        &'s mut self,
        place: Place,
        partitions: &'s [&'s [u8]],
        take: TakeKey<'s>,
    ) -> CentreResult<'s, ()>;

    /// Reads rows by their keys.
    fn by_keys<'s>(
        &'s mut self,
        place: Place,
        keys: &'s [Vec<Datum<'s>>],
        take: TakeKey<'s>,
    ) -> CentreResult<'s, ()>;

    /// Ends it.
    fn end(&mut self) -> CentreResult<'_, ()>;
}

/// What is known of a subscription in the snapshot.
#[derive(Debug)]
pub struct Opened {
    /// The publication.
    pub published: PublishedSchema,
    /// Where the snapshot is in the change logs.
    pub position: Vec<u8>,
    /// What the user holds now.
    pub scope: Scope,
    /// What the remote holds of each table, as far as its checkpoint is understood.
    pub held: Vec<Held>,
    /// What the presented serial is worth.
    pub standing: Standing,
    /// Whether the change logs have anything new for the partitions held.
    pub news: bool,
    /// When the mark that the remote presents was made; `None` if this is another history.
    pub marked_ms: Option<i64>,
}

/// What a remote holds of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The table's place in the checkpoint's scope.
    pub place: Option<usize>,
    /// Whether all changes since then are in the change log.
    pub is_traced: bool,
}

/// A mark that is durable, and the serials in the order of the changes.
#[derive(Clone, Debug)]
pub struct Mark {
    /// The random id.
    pub id: Vec<u8>,
    /// The serials of the scopes that were noted with it, in their order.
    pub serials: Vec<u64>,
}

/// Reads the downloads of a job.
pub async fn download(
    snapshot: &mut dyn Snapshot,
    job: &DownloadJob,
    sink: &mut dyn DownloadSink,
) -> Result<()> {
    let opened = snapshot.take_opened().into_iter().zip(&job.subscriptions);
    let plans = opened.map(|(opened, it)| Plan::new(it, opened, job.context.now_ms));
    let plans: Vec<Plan> = plans.collect();
    let mut mark = None;
    if plans.iter().any(|plan| plan.is_due) {
        let due = plans.iter().zip(&job.subscriptions);
        let due = due.filter(|(plan, _)| plan.is_due && plan.serial.is_none());
        let changes = due.map(|(plan, subscription)| ScopeChange {
            remote_id: job.context.remote_id,
            publication: subscription.publication.clone(),
            presented: subscription.checkpoint.as_ref().map(|it| it.serial),
            arrived: plan.arrived,
        });
        mark = Some(snapshot.mark(job.context.now_ms, changes.collect()).await?);
    }
    let serials: Vec<u64> = mark.iter().flat_map(|it| it.serials.clone()).collect();
    let mut serials = serials.into_iter();
    for (index, (plan, subscription)) in plans.into_iter().zip(&job.subscriptions).enumerate() {
        let mut counts = Counts::default();
        let mut checkpoint = None;
        sink.begin(index, plan.scope_changed);
        if let Some(mark) = mark.as_ref().filter(|_| plan.is_due) {
            let noted = match plan.serial {
                Some(serial) => Some(serial),
                None => serials.next(),
            };
            let serial = noted.ok_or_else(|| CentreError::Internal {
                message: "a scope has got no serial".into(),
            })?;
            let reading = Reading {
                snapshot: &mut *snapshot,
                subscription,
                index,
                plan: &plan,
            };
            reading.read(&mut counts, sink).await?;
            let watermark = Watermark {
                mark: mark.id.clone(),
                rules: plan.published.rules,
                position: plan.position,
            };
            checkpoint = Some(Checkpoint {
                serial,
                watermark: watermark.encode_to_vec(),
                scope: plan.scope,
            });
        }
        let outcome = DownloadOutcome {
            checkpoint,
            upserts: counts.upserts,
            removals: counts.removals,
        };
        sink.end(index, outcome);
    }
    snapshot.end().await
}

/// What was sent.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    upserts: u64,
    removals: u64,
}

/// Packs the rows of one table into the sink.
struct Output<'a> {
    schema: &'a Table,
    begin: Option<TableBegin>,
    writer: RowsWriter<'a>,
    counts: &'a mut Counts,
    sink: &'a mut dyn DownloadSink,
}

impl<'a> Output<'a> {
    fn new(
        schema: &'a Table,
        shape: &'a RowShape,
        counts: &'a mut Counts,
        sink: &'a mut dyn DownloadSink,
    ) -> Output<'a> {
        Output {
            schema,
            begin: Some(TableBegin::of(schema)),
            writer: RowsWriter::new(shape),
            counts,
            sink,
        }
    }

    fn upsert(&mut self, row: &[Datum<'_>]) -> Result<()> {
        let before = self.writer.len();
        self.writer.row(Op::Upsert, row);
        too_long::check(self.schema, row, self.writer.len() - before)?;
        self.counts.upserts += 1;
        self.flush(ROWS_PAYLOAD_BYTES)
    }

    /// Nothing of a table that is not downloaded has to be removed.
    fn remove(&mut self, key: &[Datum<'_>]) -> Result<()> {
        if !self.schema.direction.downloads() {
            return Ok(());
        }
        self.writer.key(Op::Remove, key);
        self.counts.removals += 1;
        self.flush(ROWS_PAYLOAD_BYTES)
    }

    fn remove_partition(&mut self, values: &[Datum<'_>]) -> Result<()> {
        self.writer.remove_partition(values);
        self.counts.removals += 1;
        self.flush(ROWS_PAYLOAD_BYTES)
    }

    fn announce(&mut self) {
        if let Some(begin) = self.begin.take() {
            self.sink.table(begin);
        }
    }

    /// Hands over what is packed if it is at least so much; the table's header goes before its
    /// first rows.
    fn flush(&mut self, least: usize) -> Result<()> {
        if self.writer.len() >= least.max(1) {
            self.announce();
            self.sink.rows(self.writer.take())?;
        }
        Ok(())
    }
}

/// One subscription as it is read.
struct Reading<'a> {
    snapshot: &'a mut dyn Snapshot,
    subscription: &'a DownloadSubscription,
    index: usize,
    plan: &'a Plan,
}

impl Reading<'_> {
    async fn read(self, counts: &mut Counts, sink: &mut dyn DownloadSink) -> Result<()> {
        let PublishedSchema { schema, shapes, .. } = &self.plan.published;
        let mut requests = requests_by_table(schema, &self.subscription.requests)?;
        let compares = comparing::by_table(schema, &self.subscription.compares);
        for (index, table) in schema.tables.iter().enumerate() {
            let asked = requests.remove(&index);
            let what = &self.plan.tables[index];
            if *what == TablePlan::Nothing && asked.is_none() {
                continue;
            }
            let place = Place {
                subscription: self.index,
                table: index,
            };
            let shape = &shapes[index];
            let only_compared = *what == TablePlan::Whole && compares[index].is_some();
            let whole = *what == TablePlan::Whole && !only_compared;
            let mut output = Output::new(table, shape, counts, &mut *sink);
            if let Some(begin) = output.begin.as_mut().filter(|_| whole) {
                begin.replace = true;
                if shape.partition.is_empty() {
                    begin.expected_rows = self.snapshot.row_estimate(place);
                }
            }
            let mut reading = TableReading {
                snapshot: &mut *self.snapshot,
                place,
                shape,
                scope: &self.plan.scope.tables[index],
                output: &mut output,
            };
            if !only_compared {
                let own = self.subscription.own.as_ref().filter(|it| !it.skip_version);
                reading.planned(what, own).await?;
            }
            // A table that is sent whole has the requested rows already.
            if !whole {
                for (map, request) in asked.into_iter().flatten() {
                    reading.answer(&map, request).await?;
                }
            }
            output.flush(1)?;
        }
        for (index, theirs) in compares.into_iter().enumerate() {
            let Some(theirs) = theirs else { continue };
            let shape = &shapes[index];
            let mut output = Output::new(&schema.tables[index], shape, counts, &mut *sink);
            let mut reading = TableReading {
                snapshot: &mut *self.snapshot,
                place: Place {
                    subscription: self.index,
                    table: index,
                },
                shape,
                scope: &self.plan.scope.tables[index],
                output: &mut output,
            };
            // Of a table that would go whole, nobody knows what changed in it.
            let follows = matches!(self.plan.tables[index], TablePlan::Changes { .. });
            reading
                .compare(Comparison::new(shape, theirs)?, follows)
                .await?;
            output.flush(1)?;
        }
        Ok(())
    }
}

type Requests<'r> = HashMap<usize, Vec<(ColumnMap, &'r TableRequest)>>;

/// The requests of a subscription, by the table's index.
fn requests_by_table<'r>(
    schema: &PublicationSchema,
    requests: &'r [TableRequest],
) -> Result<Requests<'r>> {
    let mut by_table = Requests::new();
    for request in requests {
        // What does not fit the publication any more is sent anew as a whole, or gone.
        let announced = ColumnMap::find(schema, &request.begin)?;
        if let Announced::Published(index, map) = announced {
            by_table.entry(index).or_default().push((map, request));
        }
    }
    Ok(by_table)
}

/// One table as it is read.
struct TableReading<'a, 'o> {
    snapshot: &'a mut dyn Snapshot,
    place: Place,
    shape: &'a RowShape,
    scope: &'a BTreeSet<Vec<u8>>,
    output: &'a mut Output<'o>,
}

fn bytes(partitions: &[Vec<u8>]) -> Vec<&[u8]> {
    partitions.iter().map(Vec::as_slice).collect()
}

impl TableReading<'_, '_> {
    /// Sends what is planned for a table: removals before rows, so that a row that moved
    /// between partitions stays.
    async fn planned(&mut self, what: &TablePlan, own: Option<&OwnUpload>) -> Result<()> {
        match what {
            TablePlan::Nothing => Ok(()),
            TablePlan::Whole => {
                // An empty table, too, replaces what the remote has.
                self.output.announce();
                let all: Vec<&[u8]> = self.scope.iter().map(Vec::as_slice).collect();
                self.rows(&all).await
            }
            TablePlan::Changes { gained, lost, kept } => {
                let types = types_of(self.shape, &self.shape.partition);
                // What the remote uploaded into a partition before it held that, and somebody has
                // deleted since, is in no log that it reads: gained partitions replace, too.
                for packed in lost.iter().chain(gained) {
                    self.output.remove_partition(&unpack(packed, &types)?)?;
                }
                if !gained.is_empty() {
                    self.rows(&bytes(gained)).await?;
                }
                if self.shape.partition.is_empty() || !kept.is_empty() {
                    self.changes(&bytes(kept), own).await?;
                }
                Ok(())
            }
        }
    }

    async fn rows(&mut self, partitions: &[&[u8]]) -> Result<()> {
        let mut membership = Membership::new(self.shape, self.scope);
        let output = &mut *self.output;
        // A collation may take other values for equal than partitions are told apart by.
        let mut take = |row: &[Datum<'_>]| match membership.has(row) {
            true => output.upsert(row),
            false => Ok(()),
        };
        self.snapshot.rows(self.place, partitions, &mut take).await
    }

    /// Sends what changed since the watermark.
    async fn changes(&mut self, kept: &[&[u8]], own: Option<&OwnUpload>) -> Result<()> {
        let mut membership = Membership::new(self.shape, self.scope);
        let output = &mut *self.output;
        let (table, shape) = (self.place.table, self.shape);
        let key_types = types_of(shape, &shape.key);
        let own = own.filter(|own| !own.rows.is_empty());
        let mut take = |key: &[Datum<'_>], row: Option<&[Datum<'_>]>| {
            let there = row.filter(|row| membership.has(row));
            if let Some(own) = own {
                let key = (table, pack_exact(&key_types, key));
                let is_own = match (own.rows.get(&key), there, row) {
                    (Some(None), None, None) => true,
                    (Some(Some(uploaded)), Some(row), _) => {
                        *uploaded == pack_row(&shape.columns, row)
                    }
                    _ => false,
                };
                if is_own {
                    return Ok(());
                }
            }
            match there {
                Some(row) => output.upsert(row),
                None => output.remove(key),
            }
        };
        self.snapshot.changes(self.place, kept, &mut take).await
    }

    /// Sends the rows of keys that the remote asked for.
    async fn answer(&mut self, map: &ColumnMap, request: &TableRequest) -> Result<()> {
        let mut keys = Vec::new();
        let mut reader = RowsReader::new(&map.shape, &request.rows);
        let mut row = Row::default();
        while reader.next(&mut row).map_err(malformed)? {
            keys.push(row.key.clone());
        }
        let mut membership = Membership::new(self.shape, self.scope);
        let output = &mut *self.output;
        let mut take = |key: &[Datum<'_>], row: Option<&[Datum<'_>]>| match row
            .filter(|row| membership.has(row))
        {
            Some(row) => output.upsert(row),
            None => output.remove(key),
        };
        self.snapshot.by_keys(self.place, &keys, &mut take).await
    }

    /// Compares a table, and sends the rows where it differs.
    async fn compare(&mut self, mut comparison: Comparison<'_>, follows: bool) -> Result<()> {
        let all: Vec<&[u8]> = self.scope.iter().map(Vec::as_slice).collect();
        let mut membership = Membership::new(self.shape, self.scope);
        {
            let sink = &mut *self.output.sink;
            let mut take = |kept: &[Datum<'_>], row: Option<&[Datum<'_>]>| {
                let is_in = row.is_some_and(|row| membership.has(row));
                match is_in && comparison.add(kept) {
                    true => sink.comparing(),
                    false => Ok(()),
                }
            };
            self.snapshot.kept_rows(self.place, &all, &mut take).await?;
        }
        let Some(differences) = comparison.outcome() else {
            return Ok(());
        };
        let selection = differences.selection()?;
        if let Some(begin) = &mut self.output.begin {
            differences.announce(begin, follows);
        }
        self.output.announce();
        let output = &mut *self.output;
        let mut take = |kept: &[Datum<'_>], row: Option<&[Datum<'_>]>| match row {
            Some(row) if membership.has(row) && selection.has(kept) => output.upsert(row),
            _ => Ok(()),
        };
        self.snapshot.kept_rows(self.place, &all, &mut take).await
    }
}

fn malformed(error: tidewater_protocol::UnpackError) -> CentreError {
    CentreError::Peer {
        message: format!("rows that cannot be read: {error}"),
        code: Code::MalformedMessage,
    }
}
