//! An upload that is applied while it arrives.
//!
//! Rows go in by COPY as they come, in the order in which a complete upload is applied, and
//! in the same transaction, which is committed only when the upload has turned out to be
//! complete. This is a bet: whatever speaks against it (a row that COPY refuses, a lock that
//! is held, a remote that pauses, an order that turns out to be another) undoes all of it,
//! and the complete upload is applied as any other. So nothing is decided here.

use std::borrow::Cow;
use std::pin::Pin;

use bytes::Bytes;
use futures_util::SinkExt;
use tokio_postgres::{CopyInSink, Statement};

use tidewater_protocol::Op;
use tidewater_protocol::message::TableBegin;

use super::copy_in::{self, Encoder};
use super::incoming::{Incoming, malformed};
use super::outcomes::{Outcomes, may_be_data_error};
use super::{Admitted, Filled, One, Order, Patience, Progress, Round, UnpublishedRows, order};
use crate::arriving::{ArrivingUpload, Piece};
use crate::columns::{Announced, ColumnMap};
use crate::error::CentreError;
use crate::postgres::Shared;
use crate::postgres::connection::{Connection, centre_error, refused};
use crate::postgres::model::CompiledTable;
use crate::upload::{UploadOutcome, UploadTable};

/// Who waits for somebody else's lock while a remote sends keeps others waiting for his own.
const BEGIN: &str = "BEGIN; SET LOCAL lock_timeout = 200; SAVEPOINT tidewater_upload";
/// Once the upload is complete, it waits as any other.
const ALL_IS_HERE: &str = "SET LOCAL lock_timeout TO DEFAULT";

/// See [`crate::Worker::apply_arriving`].
pub(in crate::postgres) async fn apply_arriving(
    connection: &mut Connection,
    shared: &Shared,
    mut arriving: ArrivingUpload,
) -> Result<Option<UploadOutcome>, CentreError> {
    let error = |error| refused("applying an upload that arrives")(error);
    let head = arriving.head.clone();
    let publication = shared.publication(&head.publication)?;
    let one = One {
        upload: &head,
        publication: &publication,
        alone: true,
    };
    let begun = connection.client().batch_execute(BEGIN).await;
    begun.map_err(error)?;
    let outcome = one.apply_arriving(connection, &mut arriving).await?;
    let end = match outcome {
        Some(_) => "COMMIT",
        None => "ROLLBACK",
    };
    connection
        .client()
        .batch_execute(end)
        .await
        .map_err(error)?;
    Ok(outcome)
}

impl One<'_> {
    async fn apply_arriving(
        &self,
        connection: &mut Connection,
        arriving: &mut ArrivingUpload,
    ) -> Result<Option<UploadOutcome>, CentreError> {
        // Any of them may come.
        let tables: Vec<&CompiledTable> = self.publication.tables.iter().collect();
        let admitted = self.admit(connection, &tables, Patience::None).await?;
        let Some(admitted) = admitted else {
            return Ok(None);
        };
        if admitted.order != Order::Free {
            return Ok(None);
        }
        let round = Round::default();
        self.begin_rows(connection, &round).await?;
        let mut early = Early {
            one: self,
            admitted: &admitted,
            incoming: Vec::new(),
            unpublished: Vec::new(),
            progress: Progress::new(Outcomes::new(
                self.publication,
                &round.orphans,
                admitted.order,
            )),
            keeps_up: true,
        };
        if !early.receive(connection, arriving).await? {
            return Ok(None);
        }
        let Early {
            incoming,
            unpublished,
            progress,
            ..
        } = early;
        if !is_beginning(&progress.done, &incoming) {
            return Ok(None);
        }
        let waits = connection.client().batch_execute(ALL_IS_HERE).await;
        waits.map_err(refused("applying an upload that arrived"))?;
        let filled = self
            .fill(
                connection,
                &incoming,
                &unpublished,
                &admitted,
                &round,
                progress,
            )
            .await?;
        let Filled::All { result, exact } = filled else {
            return Ok(None);
        };
        let own = self.own(&incoming, &admitted, exact, &result)?;
        Ok(Some(UploadOutcome::Applied { result, own }))
    }
}

/// An upload of which only the beginning is known.
struct Early<'e, 'p> {
    one: &'e One<'p>,
    admitted: &'e Admitted,
    incoming: Vec<Incoming<'p>>,
    unpublished: Vec<UnpublishedRows<'p>>,
    progress: Progress<'e>,
    /// Whether everything so far is applied; if not, the rest has to wait for all of it.
    keeps_up: bool,
}

impl<'e, 'p: 'e> Early<'e, 'p> {
    /// Takes all rows, and applies what can be applied. False: it has to be undone.
    async fn receive(
        &mut self,
        connection: &mut Connection,
        arriving: &mut ArrivingUpload,
    ) -> Result<bool, CentreError> {
        let mut next = arriving.next().await;
        loop {
            next = match next {
                None => return Ok(false),
                Some(Piece::Complete) => return Ok(true),
                Some(Piece::Table(begin)) => self.table(connection, arriving, begin).await?,
                Some(Piece::Rows(_)) => return Err(malformed("rows without a table")),
            }
        }
    }

    /// Takes the rows of a table; gives back what comes after them.
    async fn table(
        &mut self,
        connection: &mut Connection,
        arriving: &mut ArrivingUpload,
        begin: TableBegin,
    ) -> Result<Option<Piece>, CentreError> {
        let publication = self.one.publication;
        let found = ColumnMap::find(&publication.schema, &begin)?;
        let mut table = UploadTable {
            begin,
            chunks: Vec::new(),
        };
        let (index, map) = match found {
            Announced::Published(index, map) => (index, map),
            Announced::Unpublished(refused) => {
                let next = loop {
                    match arriving.next().await {
                        Some(Piece::Rows(chunk)) => table.chunks.push(chunk),
                        next => break next,
                    }
                };
                self.unpublished.push((Cow::Owned(table), refused));
                return Ok(next);
            }
        };
        let mut incoming = Incoming::begin(publication, Cow::Owned(table), index, map);
        incoming.place = self.incoming.len();
        self.admitted.tell(&mut incoming);
        let applies = incoming.table.direction.uploads() && copy_in::is_possible(&incoming);
        self.keeps_up = self.keeps_up && applies;
        if !self.keeps_up && self.progress.done.is_empty() {
            // Nothing would be gained by waiting for the rest.
            return Ok(None);
        }
        let next = match self.keeps_up {
            true => self.copy(connection, arriving, &mut incoming).await?,
            false => collect(arriving, &mut incoming).await?,
        };
        let at = self.incoming.len();
        self.incoming.push(incoming);
        if self.keeps_up && next.is_some() {
            self.progress.done.push((at, Op::Insert));
            let (one, admitted, progress) = (self.one, self.admitted, &mut self.progress);
            one.one_operation(
                connection,
                &self.incoming,
                at,
                Op::Update,
                admitted,
                progress,
            )
            .await?;
            progress.done.push((at, Op::Update));
        }
        Ok(next)
    }

    /// Copies the inserts of a table into it as they come, and notes where its other
    /// changes are; gives back what comes after them, `None` also if this failed.
    async fn copy(
        &mut self,
        connection: &mut Connection,
        arriving: &mut ArrivingUpload,
        incoming: &mut Incoming<'p>,
    ) -> Result<Option<Piece>, CentreError> {
        let statement = copy_in::statement(incoming);
        let statement = connection.prepare(&statement, &[]).await?;
        let mut membership = self.one.membership(incoming, self.admitted);
        let mut encoder = Encoder::new(incoming);
        let mut sink = None;
        let next = loop {
            if arriving.is_dry() && has_little_to_copy(incoming) {
                return Ok(None);
            }
            let chunk = match arriving.next().await {
                Some(Piece::Rows(chunk)) => chunk,
                next => break next,
            };
            let suit = incoming.add(chunk, |incoming, row| {
                encoder.insert(incoming, row, &mut membership)
            })?;
            if !suit || deletes_go_first(incoming) {
                return Ok(None);
            }
            while let Some(piece) = encoder.piece() {
                let sink = open(&mut sink, connection, &statement).await?;
                // The reason comes with the end of it, but nobody asks.
                if sink.feed(piece).await.is_err() {
                    return Ok(None);
                }
            }
        };
        if next.is_none() || incoming.inserts == 0 {
            return Ok(next);
        }
        let sink = open(&mut sink, connection, &statement).await?;
        // A COPY that failed swallows the rest; the reason comes with its end.
        let _ = sink.feed(encoder.end()).await;
        match sink.as_mut().finish().await {
            Ok(rows) if rows == incoming.inserts => {
                self.progress.outcomes.applied(Op::Insert, rows);
                self.progress.exact &= encoder.exact;
                Ok(next)
            }
            // A trigger kept rows out.
            Ok(_) => Ok(None),
            Err(refusal) if may_be_data_error(&refusal) => Ok(None),
            Err(other) => Err(centre_error(COPYING, &other)),
        }
    }
}

const COPYING: &str = "copying rows of an upload that arrives";

type Sink = Pin<Box<CopyInSink<Bytes>>>;

/// Begins a COPY, if none is under way.
async fn open<'s>(
    sink: &'s mut Option<Sink>,
    connection: &Connection,
    statement: &Statement,
) -> Result<&'s mut Sink, CentreError> {
    match sink {
        Some(sink) => Ok(sink),
        none => {
            let begun = connection.copy_in(statement).await;
            Ok(none.insert(Box::pin(begun.map_err(refused(COPYING))?)))
        }
    }
}

/// Takes the rows of a table that have to wait; gives back what comes after them.
async fn collect(
    arriving: &mut ArrivingUpload,
    incoming: &mut Incoming<'_>,
) -> Result<Option<Piece>, CentreError> {
    loop {
        match arriving.next().await {
            Some(Piece::Rows(chunk)) => {
                incoming.add(chunk, |_, _| true)?;
                if deletes_go_first(incoming) {
                    return Ok(None);
                }
            }
            next => return Ok(next),
        }
    }
}

/// Whether most rows so far are others than inserts: they wait for the end of their table
/// anyway, and so can the worker do something else.
fn has_little_to_copy(incoming: &Incoming<'_>) -> bool {
    let others = incoming.updates.len() + incoming.deletes.len();
    incoming.inserts < others as u64
}

/// Whether the table has rows that should have been deleted before anything else.
fn deletes_go_first(incoming: &Incoming<'_>) -> bool {
    incoming.table.deletes_first() && !incoming.deletes.is_empty()
}

/// Whether what is done is what is done first when the upload is known as a whole.
fn is_beginning(done: &[(usize, Op)], incoming: &[Incoming<'_>]) -> bool {
    let has_rows = |&(at, op): &(usize, Op)| match op {
        Op::Insert => incoming[at].inserts > 0,
        Op::Update => !incoming[at].updates.is_empty(),
        _ => !incoming[at].deletes.is_empty(),
    };
    let done = done.iter().copied().filter(has_rows);
    let (first, late) = order(incoming);
    let mut order = first.into_iter().chain(late).filter(has_rows);
    done.into_iter().all(|step| order.next() == Some(step))
}
