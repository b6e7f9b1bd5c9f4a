//! The order in which the rows of one upload go to the centre, and what is collected
//! on the way.
//!
//! Deletes of tables with secondary unique keys go first, so that the values that they
//! free can be taken, unless foreign keys act on them; then inserts and updates, parents
//! before children; then the other deletes, children before parents. What fails is tried
//! again at the end until nothing moves any more, which settles cycles and exchanges; what
//! needs each other is `together`'s affair. If a deferred foreign key is violated at the
//! end, everything is rolled back and done again with the key checked after each row.

mod together;

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use rusqlite::Connection;

use tidewater_protocol::{Code, Datum, Op, Row, RowShape, RowsReader};

use super::compile::Publication;
use super::download::next_row;
use super::row::{Fate, Refusal, RowError, RowPlace, Stop, TableWork};
use super::{deferred_violations, failure, row_error, types};
use crate::columns::{Announced, ColumnMap, Unpublished};
use crate::engine::exact::unpack;
use crate::engine::upload::{Conflict, Records, Refused};
use crate::error::CentreError;
use crate::orphans::{self, Orphans};
use crate::result::ResultBuilder;
use crate::row_json;
use crate::scope::Scope;
use crate::unpublished;
use crate::upload::{OwnUpload, SyncUpload, UploadResult, UploadTable};

/// What an upload did.
#[derive(Default)]
pub(super) struct Effects {
    pub(super) result: UploadResult,
    pub(super) own: OwnUpload,
    pub(super) records: Records,
}

/// How foreign keys that are deferred to the commit are checked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeferredKeys {
    AtTheEnd,
    AfterEachRow,
}

/// One upload on its way into the centre.
pub(super) struct UploadRun<'a> {
    connection: &'a Connection,
    publication: &'a Publication,
    /// The upload's index in its list.
    index: usize,
    given_back: bool,
    endings: &'a HashMap<RowPlace, Refusal>,
    /// The tables of the upload that are published.
    uploaded: Vec<&'a UploadTable>,
    /// One for each of them.
    tables: Vec<TableWork<'a>>,
    /// The others.
    unpublished: Vec<(&'a UploadTable, Unpublished)>,
    /// Rows that refer to refused ones.
    orphans: Orphans,
}

/// A row that failed and is tried again.
struct Pending {
    /// Index in [`UploadRun::tables`], number of the row there.
    place: (usize, usize),
    bytes: Bytes,
    refusal: Refusal,
}

/// What is collected while an upload runs.
struct Collected<'a> {
    result: ResultBuilder<'a>,
    own: OwnUpload,
    records: Records,
    pending: Vec<Pending>,
    /// Deletes (as [`Pending::place`]) that are settled before their turn.
    settled: HashSet<(usize, usize)>,
}

/// Reads the rows of a table with their numbers, and what gives their bytes.
fn each_row(
    upload: &UploadTable,
    shape: &RowShape,
    mut take: impl FnMut(usize, &Row<'_>, &dyn Fn() -> Bytes) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let mut number = 0;
    for chunk in &upload.chunks {
        let bytes = chunk.read().map_err(|error| CentreError::Internal {
            message: format!("the spool file cannot be read: {error}"),
        })?;
        let mut reader = RowsReader::new(shape, &bytes);
        let mut row = Row::default();
        loop {
            let start = reader.consumed();
            if !next_row(&mut reader, &mut row)? {
                break;
            }
            let end = reader.consumed();
            take(number, &row, &|| bytes.slice(start..end))?;
            number += 1;
        }
    }
    Ok(())
}

/// The one row that was put aside.
fn unpacked<'b>(shape: &'b RowShape, bytes: &'b [u8]) -> Result<Row<'b>, CentreError> {
    let mut row = Row::default();
    next_row(&mut RowsReader::new(shape, bytes), &mut row)?;
    Ok(row)
}

/// The tables of an upload with how they are read.
fn uploaded<'w>(
    tables: &[&'w UploadTable],
    works: &'w [TableWork<'_>],
) -> Vec<orphans::Uploaded<'w>> {
    let pairs = tables.iter().zip(works);
    pairs
        .map(|(&table, work)| (table, work.index, &work.map))
        .collect()
}

impl<'a> UploadRun<'a> {
    pub(super) fn new(
        connection: &'a Connection,
        publication: &'a Publication,
        scope: &'a Scope,
        upload: &'a SyncUpload,
        index: usize,
        endings: &'a HashMap<RowPlace, Refusal>,
    ) -> Result<UploadRun<'a>, CentreError> {
        let mut run = UploadRun {
            connection,
            publication,
            index,
            given_back: upload.given_back,
            endings,
            uploaded: Vec::with_capacity(upload.tables.len()),
            tables: Vec::with_capacity(upload.tables.len()),
            unpublished: Vec::new(),
            orphans: Orphans::default(),
        };
        for table in &upload.tables {
            match ColumnMap::find(&publication.schema, &table.begin)? {
                Announced::Published(number, map) => {
                    let work = TableWork::new(connection, publication, scope, number, map);
                    run.tables.push(work);
                    run.uploaded.push(table);
                }
                Announced::Unpublished(unpublished) => run.unpublished.push((table, unpublished)),
            }
        }
        Ok(run)
    }

    /// Applies the rows.
    pub(super) fn run(mut self) -> Result<Effects, Stop> {
        self.savepoint("SAVEPOINT tidewater_rows")?;
        let uploaded = uploaded(&self.uploaded, &self.tables);
        self.orphans = Orphans::of(&self.publication.schema, &uploaded)?;
        let mut keys = DeferredKeys::AtTheEnd;
        loop {
            let collected = self.rows(keys)?;
            let anew = if keys == DeferredKeys::AtTheEnd && deferred_violations(self.connection)? {
                keys = DeferredKeys::AfterEachRow;
                true
            } else {
                self.find_orphans(&collected)?
            };
            if !anew {
                self.savepoint("RELEASE tidewater_rows")?;
                return Ok(Effects {
                    result: collected.result.finish(),
                    own: collected.own,
                    records: collected.records,
                });
            }
            self.savepoint("ROLLBACK TO tidewater_rows")?;
        }
    }

    /// Whether rows were taken that refer to refused ones: then all is to be done anew.
    fn find_orphans(&mut self, collected: &Collected<'_>) -> Result<bool, CentreError> {
        let uploaded = uploaded(&self.uploaded, &self.tables);
        let schema = &self.publication.schema;
        self.orphans.find(schema, &uploaded, &collected.result)
    }

    fn savepoint(&self, sql: &str) -> Result<(), CentreError> {
        let result = self.connection.prepare_cached(sql);
        result
            .and_then(|mut statement| statement.execute([]).map(drop))
            .map_err(failure("a savepoint"))
    }

    fn rows(&mut self, keys: DeferredKeys) -> Result<Collected<'a>, Stop> {
        let publication = self.publication;
        let mut collected = Collected {
            result: ResultBuilder::new(&publication.schema, &publication.shapes),
            own: OwnUpload::default(),
            records: Records::default(),
            pending: Vec::new(),
            settled: HashSet::new(),
        };
        self.refuse_unpublished(&mut collected)?;
        let mut parents_first: Vec<_> = (0..self.tables.len()).collect();
        parents_first.sort_by_key(|&table| self.tables[table].index);
        let (early, late): (Vec<_>, Vec<_>) = parents_first
            .iter()
            .rev()
            .partition(|&&table| publication.tables[self.tables[table].index].deletes_first);
        for table in early {
            self.pass(table, keys, &mut collected, |op| op == Op::Delete)?;
        }
        for &table in &parents_first {
            self.pass(table, keys, &mut collected, |op| op != Op::Delete)?;
        }
        if !self.leave_first(&late, keys, &mut collected)? {
            return Ok(collected);
        }
        for table in late {
            self.pass(table, keys, &mut collected, |op| op == Op::Delete)?;
        }
        self.retry(keys, &mut collected)?;
        Ok(collected)
    }

    fn refuse_unpublished(&self, collected: &mut Collected<'_>) -> Result<(), CentreError> {
        let Collected {
            result, records, ..
        } = collected;
        for (table, unpublished) in &self.unpublished {
            unpublished::refuse(table, unpublished, result, records)?;
        }
        for (table, work) in self.uploaded.iter().zip(&self.tables) {
            unpublished::record_dropped(table, &work.map, records)?;
        }
        Ok(())
    }

    /// Applies those rows of a table that a pass is about.
    fn pass(
        &mut self,
        table: usize,
        keys: DeferredKeys,
        collected: &mut Collected<'_>,
        is_meant: impl Fn(Op) -> bool,
    ) -> Result<(), Stop> {
        let shape = self.tables[table].map.shape.clone();
        each_row(self.uploaded[table], &shape, |number, row, bytes| {
            let place = (table, number);
            if !row.op.is_some_and(&is_meant) || collected.settled.contains(&place) {
                return Ok(());
            }
            let fate = self.row(place, keys, row)?;
            if let Fate::Failed(refusal) = fate {
                collected.pending.push(Pending {
                    place,
                    bytes: bytes(),
                    refusal,
                });
                return Ok(());
            }
            Ok(self.collect(table, row, fate, collected)?)
        })
    }

    /// Applies one row, so that nothing is left behind if it fails.
    fn row(
        &mut self,
        (table, number): (usize, usize),
        keys: DeferredKeys,
        row: &Row<'_>,
    ) -> Result<Fate, Stop> {
        if !matches!(row.op, Some(Op::Insert | Op::Update | Op::Delete)) {
            return Err(Stop::Centre(CentreError::Peer {
                message: "an operation that an upload cannot have".into(),
                code: Code::MalformedMessage,
            }));
        }
        let place = (self.index, table, number);
        if let Some(refusal) = self.endings.get(&place) {
            return Ok(Fate::Refused(refusal.clone()));
        }
        let work = &self.tables[table];
        let op = row.op.unwrap_or(Op::Insert);
        let schema = &self.publication.schema;
        if let Some(reason) = self.orphans.reason(schema, work.index, op, &row.key) {
            return Ok(Fate::Refused(Refusal {
                code: orphans::CODE,
                reason: reason.into(),
            }));
        }
        let guarded =
            keys == DeferredKeys::AfterEachRow || self.publication.tables[work.index].guarded;
        if guarded {
            self.savepoint("SAVEPOINT tidewater_row")?;
        }
        let mut fate = self.tables[table].apply(row).map_err(|error| match error {
            RowError::Ended(refusal) => Stop::Ended { place, refusal },
            RowError::Centre(error) => Stop::Centre(error),
        })?;
        if keys == DeferredKeys::AfterEachRow
            && matches!(fate, Fate::Applied)
            && deferred_violations(self.connection)?
        {
            let name = &self.publication.schema.tables[self.tables[table].index].name;
            fate = Fate::Failed(Refusal {
                code: Code::RowForeignKey,
                reason: row_error::foreign_key_reason(name, row.op == Some(Op::Delete)),
            });
        }
        if guarded {
            if matches!(fate, Fate::Failed(_)) {
                self.savepoint("ROLLBACK TO tidewater_row")?;
            }
            self.savepoint("RELEASE tidewater_row")?;
        }
        Ok(fate)
    }

    /// Tries failed rows again, in the order in which they were sent, as long as some
    /// of them succeed, alone or together; what is left is refused.
    fn retry(&mut self, keys: DeferredKeys, collected: &mut Collected<'_>) -> Result<(), Stop> {
        let mut pending = std::mem::take(&mut collected.pending);
        pending.sort_by_key(|pending| pending.place);
        loop {
            pending = self.one_by_one(pending, keys, collected)?;
            let before = pending.len();
            pending = self.together(pending, keys, collected)?;
            if pending.is_empty() || pending.len() == before {
                break;
            }
        }
        for row in pending {
            let shape = self.tables[row.place.0].map.shape.clone();
            let unpacked = unpacked(&shape, &row.bytes)?;
            let fate = Fate::Refused(row.refusal);
            self.collect(row.place.0, &unpacked, fate, collected)?;
        }
        Ok(())
    }

    /// Tries failed rows again as long as some of them succeed; gives back the others.
    fn one_by_one(
        &mut self,
        mut pending: Vec<Pending>,
        keys: DeferredKeys,
        collected: &mut Collected<'_>,
    ) -> Result<Vec<Pending>, Stop> {
        loop {
            let before = pending.len();
            let mut left = Vec::with_capacity(before);
            for mut row in pending {
                if let Some(refusal) = self.again(&row, keys, collected)? {
                    row.refusal = refusal;
                    left.push(row);
                }
            }
            if left.is_empty() || left.len() == before {
                return Ok(left);
            }
            pending = left;
        }
    }

    /// Tries one failed row again; the reason if it fails again.
    fn again(
        &mut self,
        pending: &Pending,
        keys: DeferredKeys,
        collected: &mut Collected<'_>,
    ) -> Result<Option<Refusal>, Stop> {
        let shape = self.tables[pending.place.0].map.shape.clone();
        let row = unpacked(&shape, &pending.bytes)?;
        match self.row(pending.place, keys, &row)? {
            Fate::Failed(refusal) => Ok(Some(refusal)),
            // The rest of the upload has done that to its row: nobody else has won.
            Fate::Conflict(_) if row.op == Some(Op::Update) => Ok(Some(pending.refusal.clone())),
            fate => {
                self.collect(pending.place.0, &row, fate, collected)?;
                Ok(None)
            }
        }
    }

    /// Notes what became of a row.
    fn collect(
        &self,
        table: usize,
        row: &Row<'_>,
        fate: Fate,
        collected: &mut Collected<'_>,
    ) -> Result<(), CentreError> {
        let work = &self.tables[table];
        let index = work.index;
        let schema = &self.publication.schema.tables[index];
        let op = row.op.unwrap_or(Op::Insert);
        let images = || {
            let image = |values: &[Datum<'_>]| {
                (!values.is_empty()).then(|| {
                    let columns = self.uploaded[table].begin.columns.iter();
                    row_json::row(columns.map(|column| column.name.as_str()), values)
                })
            };
            (image(&row.old), image(&row.new))
        };
        let fate = match fate {
            // Whoever made the row may give it back later.
            Fate::Needless if self.given_back && op == Op::Delete => Fate::Conflict(None),
            fate => fate,
        };
        match fate {
            Fate::Applied | Fate::Needless | Fate::Succeeded => {
                if matches!(fate, Fate::Succeeded) {
                    collected.result.succeeded(index, &row.key);
                }
                collected.result.applied(op, 1);
                let compiled = &self.publication.tables[index];
                let key = (index, types::pack_exact(&compiled.key_types, &row.key));
                if op == Op::Delete {
                    collected.own.rows.insert(key, None);
                } else if let Some(packed) = work.own_row(row) {
                    collected.own.rows.insert(key, Some(packed));
                }
            }
            Fate::Conflict(winner) => {
                let types = &self.publication.shapes[index].columns;
                let winner = match &winner {
                    Some(packed) => {
                        let winner = unpack(packed, types)?;
                        collected.result.conflict_row(index, &winner);
                        let names = schema.columns.iter().map(|column| column.name.as_str());
                        Some(row_json::row(names, &winner))
                    }
                    None => {
                        collected.result.conflict_gone(index, &row.key);
                        None
                    }
                };
                let (pre_image, uploaded) = images();
                collected.records.conflicts.push(Conflict {
                    table: schema.name.clone(),
                    key: row_json::key(&row.key),
                    op,
                    pre_image,
                    uploaded,
                    winner,
                });
            }
            Fate::Refused(refusal) | Fate::Failed(refusal) => {
                let reason = &refusal.reason;
                collected
                    .result
                    .refused(index, &row.key, op, refusal.code, reason);
                let (old, new) = images();
                collected.records.refused.push(Refused {
                    table: schema.name.clone(),
                    key: row_json::key(&row.key),
                    op,
                    row: new.or(old).unwrap_or_default(),
                    code: refusal.code,
                    reason: refusal.reason,
                });
            }
        }
        Ok(())
    }
}
