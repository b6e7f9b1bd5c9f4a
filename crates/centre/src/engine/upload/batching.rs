//! Uploads of several remotes that share their statements: what ten rows cost the database is mostly
//! what any statement costs.
//!
//! Only uploads of which every row goes in as it is. Whatever else happens to one of them (a conflict,
//! a refused row, a row of a table whose triggers look at who uploads) sets it apart: all is undone,
//! the others are tried again without it, and it is applied by itself, as [`super::apply`] says.
//! In what order they take effect among each other is not said: they came at the same time.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use tidewater_protocol::{Datum, Op};

use super::authorization::decides_scopes;
use super::claiming::claim_sequence;
use super::column_map::{AnnouncedColumns, ColumnMap};
use super::incoming_rows::{FEW_INSERTS, IncomingTable, RowRef, UploadedImages};
use super::outcomes::SumComparison;
use super::result::ResultBuilder;
use super::row_batch::{BatchOutcome, RowBatch};
use super::upload_driver::UploadDriver;
use super::upload_writer::UploadWriter;
use super::{Admission, computed_values, echo_filter, handler_decisions};
use crate::engine::connection::DatabaseConnection as _;
use crate::engine::exact::{pack_exact, types_of};
use crate::engine::membership::Membership;
use crate::engine::publication::{Publication, RowRule};
use crate::engine::resolve::Winner;
use crate::engine::scripts::chosen;
use crate::engine::sql::row_statements::RowImage;
use crate::engine::sql::served_table::{OnDelete, TableAdapter};
use crate::engine::sql::system::{refusals, subscriptions};
use crate::engine::upload::incoming_rows::ROWS_AT_ONCE;
use crate::engine::upload::ready_rows::{ReadyRows, find_changed, obstacle};
use crate::engine::upload::scope_admission::{admission, judgeable};
use crate::engine::upload::step_order::{ApplyStep, order};
use crate::engine::upload::upload_writer::fails_alone;
use crate::error::CentreError;
use crate::scope::RuleScope;
use crate::upload::{OwnUpload, SyncUpload, UploadOutcome, UploadResult, UploadTable};

type Result<T> = std::result::Result<T, CentreError>;

/// So many partitions of all remotes together are looked at to tell that no two of them hold the
/// same.
const FEW_PARTITIONS: usize = 10_000;

/// So often it is tried; those that are left are applied one by one.
const MOST_TRIES: usize = 8;

/// What trying to apply some uploads came to.
enum SharedTryOutcome {
    /// They are applied: what became of each.
    Applied(Vec<UploadOutcome>),
    /// Something is in the way of these, by their places.
    Apart(BTreeSet<usize>),
    /// Something is in the way, and nobody knows of which.
    Some,
}

/// Applies those of a list that can share statements; what became of them, by their places in the
/// list. The others are as they were.
pub(super) async fn apply<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    uploads: &[SyncUpload],
) -> Result<BTreeMap<usize, UploadOutcome>> {
    let mut outcomes = BTreeMap::new();
    // Behind those of the uploads.
    let mut numbers = uploads.len()..uploads.len() + MOST_TRIES;
    let mut waiting = groups(uploads);
    while let (Some(mut group), Some(number)) = (waiting.pop(), numbers.next()) {
        if group.len() < 2 {
            continue;
        }
        rows.begin(number).await?;
        let list: Vec<&SyncUpload> = group.iter().map(|&at| &uploads[at]).collect();
        let is_alone = list.len() == uploads.len();
        let tried = match try_all(rows, &list, is_alone).await {
            Ok(SharedTryOutcome::Applied(applied)) => {
                outcomes.extend(group.into_iter().zip(applied));
                continue;
            }
            Ok(tried) => {
                rows.undo().await?;
                tried
            }
            // By itself, the one that it is about will say so.
            Err(error) if fails_alone(&error) && rows.is_usable() => {
                rows.undo_failed(&error).await?;
                SharedTryOutcome::Some
            }
            Err(error) => return Err(error),
        };
        match tried {
            SharedTryOutcome::Apart(apart) => {
                let mut place = 0..;
                group.retain(|_| place.next().is_none_or(|place| !apart.contains(&place)));
                waiting.push(group);
            }
            _ => {
                let rest = group.split_off(group.len() / 2);
                waiting.extend([group, rest]);
            }
        }
    }
    Ok(outcomes)
}

/// The places of uploads of the same publication.
fn groups(uploads: &[SyncUpload]) -> Vec<Vec<usize>> {
    let mut groups: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (place, upload) in uploads.iter().enumerate() {
        let says_of_refused = !upload.given_up.is_empty() || !upload.forgotten_refusals.is_empty();
        if !upload.given_back && !says_of_refused {
            groups.entry(&upload.publication).or_default().push(place);
        }
    }
    groups.into_values().collect()
}

/// Nothing else is applied in the same transaction if they are `alone`.
async fn try_all<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    uploads: &[&SyncUpload],
    is_alone: bool,
) -> Result<SharedTryOutcome> {
    let publication = rows.publication(&uploads[0].publication)?;
    if publication.act_as.is_some() {
        return Ok(SharedTryOutcome::Apart((0..uploads.len()).collect()));
    }
    let (merged, mut apart) = merge(&publication, uploads);
    for (place, upload) in uploads.iter().enumerate() {
        // What is wrong with the choice, it is told alone.
        let chosen = chosen(&publication.scripts, &upload.context, &upload.publication);
        if !matches!(chosen, Ok(None)) {
            apart.insert(place);
        }
    }
    let judged = uploads.iter().enumerate();
    let judged = judged.filter(|(_, it)| handler_decisions::concern(&publication, it));
    apart.extend(judged.map(|(place, _)| place));
    if !apart.is_empty() {
        return Ok(SharedTryOutcome::Apart(apart));
    }
    let tables = merged.iter().enumerate();
    let tables = tables.map(|(place, it)| {
        IncomingTable::new(&publication, &it.rows, place, it.index, it.map.clone())
    });
    let tables = tables.collect::<Result<Vec<_>>>()?;
    let mut sharing = SharedUploads {
        rows,
        publication: &publication,
        uploads,
        merged: &merged,
        tables: &tables,
        admissions: Vec::new(),
        apart: BTreeSet::new(),
        is_alone,
    };
    sharing.run().await
}

/// The rows of several uploads for a table, chunk behind chunk.
struct MergedRows {
    /// The table's index in the publication.
    index: usize,
    map: ColumnMap,
    rows: UploadTable,
    /// By the number of a chunk: the place of its upload.
    owners: Vec<usize>,
}

/// Puts rows of the same table and the same columns together. Gives also the places of uploads
/// that have rows which are not those of the publication as it is now.
fn merge<T: TableAdapter>(
    publication: &Publication<T>,
    uploads: &[&SyncUpload],
) -> (Vec<MergedRows>, BTreeSet<usize>) {
    let (mut merged, mut apart) = (Vec::<MergedRows>::new(), BTreeSet::new());
    for (owner, upload) in uploads.iter().enumerate() {
        for table in &upload.tables {
            let announced = ColumnMap::find(&publication.schema, &table.begin);
            let announced = announced.map(|it| judgeable(publication, it));
            let (index, map) = match announced {
                Ok(AnnouncedColumns::Published(index, map)) if !map.has_dropped() => (index, map),
                _ => {
                    apart.insert(owner);
                    continue;
                }
            };
            let mut same = merged.iter_mut();
            let same = same.find(|it| it.index == index && it.map == map);
            let of_table = match same {
                Some(of_table) => of_table,
                None => {
                    let rows = UploadTable {
                        begin: table.begin.clone(),
                        chunks: Vec::new(),
                    };
                    merged.push(MergedRows {
                        index,
                        map,
                        rows,
                        owners: Vec::new(),
                    });
                    merged.last_mut().expect("it was pushed a moment ago")
                }
            };
            of_table.rows.chunks.extend(table.chunks.iter().cloned());
            of_table.owners.resize(of_table.rows.chunks.len(), owner);
        }
    }
    (merged, apart)
}

/// The rows that are there afterwards.
fn written<T: TableAdapter>(table: &IncomingTable<'_, T>) -> [(Op, Vec<RowRef>); 2] {
    let updates = [&*table.updates, &*table.moves].concat();
    [(Op::Insert, table.find_inserts()), (Op::Update, updates)]
}

/// Uploads on their way into the centre together.
struct SharedUploads<'s, R: UploadDriver> {
    rows: &'s mut UploadWriter<R>,
    publication: &'s Publication<R::Tables>,
    uploads: &'s [&'s SyncUpload],
    merged: &'s [MergedRows],
    /// In the same order.
    tables: &'s [IncomingTable<'s, R::Tables>],
    /// By the uploads' places, as everything here.
    admissions: Vec<Admission>,
    /// Of which something is in the way.
    apart: BTreeSet<usize>,
    /// Nothing else is applied in the same transaction.
    is_alone: bool,
}

impl<'s, R: UploadDriver> SharedUploads<'s, R> {
    async fn run(&mut self) -> Result<SharedTryOutcome> {
        if !self.claim_sequences().await? {
            return Ok(self.stop());
        }
        self.rows.begin_rows(false).await?;
        for (place, step) in order(self.tables).into_iter().flatten() {
            if !self.step(place, step).await? {
                return Ok(self.stop());
            }
        }
        if self.rows.is_violated(false).await? {
            return Ok(SharedTryOutcome::Some);
        }
        if !self.follow_their_own().await? {
            return Ok(self.stop());
        }
        let results = self.results().await?;
        if !self.apart.is_empty() {
            return Ok(self.stop());
        }
        let own = self.own(&results)?;
        let mut completed = Vec::with_capacity(results.len());
        let mut applied = Vec::with_capacity(results.len());
        let admitted = self.admissions.iter().zip(self.uploads);
        for (((admission, upload), mut result), own) in admitted.zip(results).zip(own) {
            completed.push(admission.complete(upload, &mut result));
            applied.push(UploadOutcome::Applied { result, own });
        }
        let store = subscriptions::store_results(completed);
        self.rows.store_result(store).await?;
        Ok(SharedTryOutcome::Applied(applied))
    }

    fn stop(&mut self) -> SharedTryOutcome {
        match std::mem::take(&mut self.apart) {
            apart if apart.is_empty() => SharedTryOutcome::Some,
            apart => SharedTryOutcome::Apart(apart),
        }
    }

    fn owner(&self, table: &IncomingTable<'_, R::Tables>, row: RowRef) -> usize {
        self.merged[table.place].owners[row.chunk()]
    }

    fn set_apart(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        rows: impl IntoIterator<Item = RowRef>,
    ) {
        for row in rows {
            let owner = self.owner(table, row);
            self.apart.insert(owner);
        }
    }

    /// Takes the numbers of all uploads; false if something is in the way of some.
    async fn claim_sequences(&mut self) -> Result<bool> {
        for table in self.tables {
            let is_in_the_way = !table.is_open
                || decides_scopes(self.publication, table.index)
                || self.publication.resolvers[table.index].winner == Winner::Rank;
            if is_in_the_way && table.count() > 0 {
                let owners = self.merged[table.place].owners.iter();
                self.apart.extend(owners);
            }
        }
        if !self.apart.is_empty() {
            return Ok(false);
        }
        let (publication, uploads) = (self.publication, self.uploads);
        let admitted = claim_sequence(self.rows, publication, uploads, self.tables).await?;
        for (place, (admitted, upload)) in admitted.into_iter().zip(uploads).enumerate() {
            let Some(admitted) = admitted else {
                self.apart.insert(place);
                continue;
            };
            let (serials, scope) = (admitted.serials, admitted.scope);
            let of_upload = admission(self.rows, publication, upload, &serials, scope);
            self.admissions.push(of_upload.await?);
        }
        for table in self.tables {
            if table.count() > 0 && !self.rows.is_shared(table) {
                let owners = self.merged[table.place].owners.iter();
                self.apart.extend(owners);
            }
        }
        self.find_refused().await?;
        Ok(self.apart.is_empty())
    }

    /// Sets uploads apart that may close what was refused of their remotes before.
    async fn find_refused(&mut self) -> Result<()> {
        let remotes = self.uploads.iter();
        let remotes = remotes.map(|it| (it.context.remote_id, &*it.publication));
        let select = refusals::find_remotes(remotes);
        let what = "looking for what was refused before";
        let answer = self.rows.connection().run_one(what, select).await?;
        for row in &answer.rows {
            let id = row.get(0)?;
            let places = self.uploads.iter().enumerate();
            let places = places.filter(|(_, it)| it.context.remote_id == id);
            self.apart.extend(places.map(|(place, _)| place));
        }
        Ok(())
    }

    /// What each upload's remote may write of a table.
    fn memberships<'m>(
        admissions: &'m [Admission],
        publication: &'m Publication<R::Tables>,
        table: usize,
    ) -> Vec<Membership<'m>> {
        let admissions = admissions.iter();
        let memberships = admissions.map(|it| it.writable(publication, table));
        memberships.collect()
    }

    /// Does what is done first with rows of a table; false if something is in the way.
    async fn step(&mut self, place: usize, step: ApplyStep) -> Result<bool> {
        let table = &self.tables[place];
        let (op, refs) = match step {
            ApplyStep::Delete => (Op::Delete, table.deletes.clone()),
            ApplyStep::Move => (Op::Update, table.moves.clone()),
            ApplyStep::Update => (Op::Update, table.updates.clone()),
            // Nothing is handed over here, and no script is run.
            ApplyStep::HandOver | ApplyStep::Event(_) => return Ok(true),
            ApplyStep::Insert if self.insert_in_bulk(table).await? => return Ok(true),
            ApplyStep::Insert => (Op::Insert, table.find_inserts()),
        };
        if refs.is_empty() {
            return Ok(true);
        }
        let ready = self.sort(table, op, &refs).await?;
        if !self.apart.is_empty() {
            return Ok(false);
        }
        if op == Op::Delete && table.table.on_delete == OnDelete::Looks {
            let parents = self
                .rows
                .find_rows_with_children(table, &refs, false)
                .await?;
            self.set_apart(table, parents);
        }
        for (changed, refs) in &ready.sets {
            let batch = RowBatch::new(table, op, changed);
            let written = self.rows.write(&batch, refs).await?;
            let is_all = written.applied == refs.len() as u64;
            let BatchOutcome {
                passed_over,
                failed,
                refused,
                elsewhere,
                kept,
                ..
            } = written;
            let failed = failed.into_iter().chain(refused).map(|it| it.at);
            self.set_apart(
                table,
                passed_over
                    .into_iter()
                    .chain(elsewhere)
                    .chain(kept)
                    .chain(failed),
            );
            if !is_all {
                return Ok(false);
            }
        }
        Ok(self.apart.is_empty())
    }

    async fn insert_in_bulk(&mut self, table: &IncomingTable<'_, R::Tables>) -> Result<bool> {
        if table.inserts <= FEW_INSERTS {
            return Ok(false);
        }
        let owners = &self.merged[table.place].owners;
        let (admissions, publication) = (&self.admissions, self.publication);
        let mut memberships = Self::memberships(admissions, publication, table.index);
        let mut may_write = |chunk: usize, values: &[Datum<'_>]| {
            let membership = &mut memberships[owners[chunk]];
            membership.barrier_to_new(values).is_none()
        };
        self.rows.insert_in_bulk(table, &mut may_write).await
    }

    /// Sorts rows of one operation by what is written of them; sets apart whose are not ready.
    async fn sort(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        op: Op,
        refs: &[RowRef],
    ) -> Result<ReadyRows> {
        let mut ready = ReadyRows::default();
        let SharedUploads {
            rows,
            publication,
            merged,
            admissions,
            apart,
            ..
        } = &mut *self;
        let owners = &merged[table.place].owners;
        let mut memberships = Self::memberships(admissions, publication, table.index);
        let mut changed = Vec::new();
        // By their keys an insert tells which rows it has passed over: each may be there once.
        let mut keys: HashSet<Vec<u8>> = HashSet::new();
        let key_types = types_of(&table.map.shape, &table.map.shape.key);
        table.images(refs, |at, uploaded| {
            let owner = owners[refs[at].chunk()];
            if op == Op::Insert && !keys.insert(pack_exact(&key_types, uploaded.key)) {
                apart.insert(owner);
                return Ok(());
            }
            let membership = &mut memberships[owner];
            find_changed(table, uploaded, &mut changed);
            let mut is_well = op != Op::Update || !changed.is_empty();
            if let Some(new) = uploaded.new {
                is_well &= membership.barrier_to_new(new).is_none();
            }
            is_well &= obstacle(*rows, publication, table, uploaded, &changed).is_none();
            if let Some(old) = uploaded.old {
                is_well &= membership.barrier(old).is_none();
                is_well &= rows.misfit_reason(table, RowImage::Old, old).is_none();
            }
            match is_well {
                true => ready.add(table, &mut changed, refs[at]),
                false => drop(apart.insert(owner)),
            }
            Ok(())
        })?;
        if op != Op::Insert && self.apart.is_empty() && self.is_asked(table) {
            self.judge(table, (op, RowImage::Old), refs).await?;
        }
        Ok(ready)
    }

    fn rules(&self, table: &IncomingTable<'_, R::Tables>) -> &'s [RowRule] {
        &self.publication.rules[self.publication.rules_of(table.index)]
    }

    /// Whether only the centre knows whose the rows of a table are.
    fn is_asked(&self, table: &IncomingTable<'_, R::Tables>) -> bool {
        let written = self.publication.writes[table.index].rule.as_ref();
        let mut rules = self.rules(table).iter().chain(written);
        rules.any(|rule| rule.follows || !rule.filled.is_empty())
    }

    /// Whether all rows are what their remotes may write, by what they follow in the end.
    async fn follow_their_own(&mut self) -> Result<bool> {
        for table in self.tables {
            if !self.is_asked(table) {
                continue;
            }
            for (op, refs) in written(table) {
                self.judge(table, (op, RowImage::New), &refs).await?;
            }
        }
        Ok(self.apart.is_empty())
    }

    /// Sets apart whose rows may not be written as they are in the centre.
    async fn judge(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        (op, image): (Op, RowImage),
        refs: &[RowRef],
    ) -> Result<()> {
        let types = &self.publication.row_types[table.index];
        for some in refs.chunks(ROWS_AT_ONCE) {
            let met = self.rows.find(table, op, some, image).await?;
            let (admissions, publication) = (&self.admissions, self.publication);
            let mut memberships = Self::memberships(admissions, publication, table.index);
            let owners = &self.merged[table.place].owners;
            for (met, row) in met.iter().zip(some) {
                let Some(met) = met else { continue };
                let owner = owners[row.chunk()];
                let central = met.central.values(types)?;
                if memberships[owner].barrier(&central).is_some() {
                    self.apart.insert(owner);
                }
            }
        }
        Ok(())
    }

    /// What is told of each upload.
    async fn results(&mut self) -> Result<Vec<UploadResult>> {
        let publication = self.publication;
        let builders = self.uploads.iter();
        let builder = |_| ResultBuilder::new(&publication.schema, &publication.shapes);
        let mut builders: Vec<ResultBuilder<'_>> = builders.map(builder).collect();
        for table in self.tables {
            let owners = &self.merged[table.place].owners;
            for (chunk, op) in table.operations() {
                builders[owners[chunk]].applied(op, 1);
            }
            let are_completed = publication.writes[table.index].are_completed;
            if !self.rows.may_compute_values(table) && !are_completed {
                continue;
            }
            let columns = publication.schema.tables[table.index].columns.len();
            let admissions = self.admissions.iter();
            let held = admissions.map(|it| it.held(publication, table.index).of_any_age());
            let mut memberships: Vec<Membership<'_>> = held.collect();
            for (op, refs) in written(table) {
                let apart = &mut self.apart;
                let mut made = |row: RowRef,
                                uploaded: &UploadedImages<'_, '_>,
                                central: Option<&[Datum<'_>]>| {
                    let owner = owners[row.chunk()];
                    let Some(central) = central.filter(|it| memberships[owner].has(it)) else {
                        return;
                    };
                    if computed_values::compare_sums(publication, table, uploaded, central)
                        == SumComparison::Differ
                    {
                        apart.insert(owner);
                    }
                    builders[owner].made(table.index, Op::Made, &central[..columns]);
                };
                let taken = (op, &*refs);
                computed_values::find(self.rows, publication, table, taken, &mut made).await?;
            }
        }
        Ok(builders.into_iter().map(ResultBuilder::finish).collect())
    }

    /// What the downloads of the same syncs have to know. All have the same version: it is left
    /// out whole if nobody has rows of another one's.
    fn own(&self, results: &[UploadResult]) -> Result<Vec<OwnUpload>> {
        let (version, is_all) = self.rows.version(self.tables, self.is_alone);
        let skip_version = is_all && !self.lets_rows_go() && self.hold_nothing_together();
        let rows = match skip_version {
            true => results.iter().map(|_| HashMap::new()).collect(),
            false => {
                let (shapes, results) = (&self.publication.shapes, results.iter());
                let owner = |table: &IncomingTable<'_, _>, row| self.owner(table, row);
                echo_filter::rows(shapes, self.tables, owner, &results.collect::<Vec<_>>())?
            }
        };
        let own = rows.into_iter().map(|rows| OwnUpload {
            version,
            skip_version,
            rows,
        });
        Ok(own.collect())
    }

    /// Whether rows may have been written that their remotes do not hold any more.
    fn lets_rows_go(&self) -> bool {
        let mut rules = self.tables.iter().flat_map(|table| self.rules(table));
        rules.any(|rule| !rule.windows.is_empty())
    }

    /// Whether it is sure that no two of the remotes hold a partition of the written tables both.
    fn hold_nothing_together(&self) -> bool {
        let mut left = FEW_PARTITIONS;
        let written: BTreeSet<usize> = self.tables.iter().map(|table| table.index).collect();
        for table in written {
            let mut rules = self.publication.rules_of(table);
            // What one holds by one rule another one may hold by another.
            let (Some(place), None) = (rules.next(), rules.next()) else {
                return false;
            };
            if self.publication.rules[place].query.is_none() {
                return false;
            }
            let mut seen: HashSet<&[u8]> = HashSet::new();
            let scopes = self.admissions.iter().map(|it| &it.scope.rules[place]);
            for RuleScope { partitions, .. } in scopes {
                if partitions.len() > left {
                    return false;
                }
                left -= partitions.len();
                if !partitions.iter().all(|it| seen.insert(it)) {
                    return false;
                }
            }
        }
        true
    }
}
