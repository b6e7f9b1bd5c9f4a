//! Judges by the scope what shows only in the centre: whose the rows are that follow others, before
//! the upload and at its end, and which rows may not be written by the scope at its end.
//!
//! What a row says itself is judged where it is written, by the scope before the upload:
//! - what it is to be, by `UploadRun::sort` ([`super::write_rows`]), which lets it in for the time
//!   being, because the upload itself may bring the row into scope;
//! - the row that the centre has under its key, by `UploadRun::meet` there; of rows that scripts
//!   write, by `UploadRun::judge_central` ([`super::scripted`]).
//!
//! A row that is found to be out of scope here has been taken already. [`super::row_decisions`] keeps
//! it, and refuses it in the next round.
//!
//! A row that is handed over (`hand_over = true`) may become somebody else's. So such updates come
//! after everything else of their upload, and what that did to rows below them is judged by whose
//! they were until then.

use tidewater_protocol::{Datum, Op, pack};

use super::incoming_rows::{IncomingTable, RowRef};
use super::upload_driver::UploadDriver;
use super::{Admission, computed_values};
use crate::engine::membership::{Barrier, Membership};
use crate::engine::publication::{Publication, RowRule};
use crate::engine::scope::ScopePurpose;
use crate::engine::scope::asking::ask_scope;
use crate::engine::sql::row_statements::RowImage;
use crate::engine::sql::served_table::TableAdapter;
use crate::engine::upload::incoming_rows::ROWS_AT_ONCE;
use crate::engine::upload::row_keys::{Barred, RowKey, RowKeys, pack_key};
use crate::engine::upload::scope_admission::admission;
use crate::engine::upload::upload_run::{
    BeforeHandingOver, UploadProgress, UploadRun, WritePurpose,
};
use crate::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

/// Tells which rows of the centre a remote is shown.
pub(super) struct VisibleRows<'r>(Membership<'r>);

impl VisibleRows<'_> {
    /// The row against which a change has lost, and which was another one before the upload's own
    /// parents changed it; `None` if its remote is not to have it: then it is as good as gone until
    /// it is in the window again, and comes with a download.
    pub(super) fn winner<'w, 'd>(
        &mut self,
        central: &'w [Datum<'d>],
        before: &[Datum<'_>],
    ) -> Option<&'w [Datum<'d>]> {
        (self.0.has(central) || self.0.has(before)).then_some(central)
    }
}

/// Whether a query for scopes names a table.
pub(super) fn decides_scopes<T: TableAdapter>(publication: &Publication<T>, table: usize) -> bool {
    let written = publication.writes.iter();
    let written = written.filter_map(|it| it.rule.as_ref());
    let rules = publication.rules.iter().chain(written);
    let mut queries = rules.filter_map(|it| it.query.as_ref());
    let name = &publication.schema.tables[table].name;
    queries.any(|query| query.inner.contains(name.as_str()))
}

impl<'r, R: UploadDriver> UploadRun<'r, R> {
    /// What of a table the remote may write, by the scope before the upload: of rows that the centre
    /// has, and that a script says who gets, only those that it gives.
    pub(super) fn membership(&self, table: &IncomingTable<'_, R::Tables>) -> Membership<'r> {
        let membership = self.membership_of(self.admission, table);
        match self.admission.given.of_table(table.index) {
            None => membership,
            Some(given) => membership.given(&self.publication.schema.tables[table.index], given),
        }
    }

    fn membership_of<'m>(
        &self,
        admission: &'m Admission,
        table: &IncomingTable<'_, R::Tables>,
    ) -> Membership<'m>
    where
        'r: 'm,
    {
        admission.writable(self.publication, table.index)
    }

    /// What of a table the remote is shown: a window limits that, and not what may be written.
    pub(super) fn shown(&self, table: &IncomingTable<'_, R::Tables>) -> VisibleRows<'r> {
        VisibleRows(self.admission.held(self.publication, table.index))
    }

    fn rules(&self, table: &IncomingTable<'_, R::Tables>) -> &'r [RowRule] {
        let publication = self.publication;
        &publication.rules[publication.rules_of(table.index)]
    }

    /// Whether an operation may make rows of a table somebody else's.
    pub(super) fn hands_over(&self, table: &IncomingTable<'_, R::Tables>, op: Op) -> bool {
        op == Op::Update && self.publication.writes[table.index].hand_over
    }

    /// The updates that may make rows somebody else's, by the place of their table.
    pub(super) fn find_handed_over(&self) -> Result<Vec<Vec<RowRef>>> {
        let mut found = vec![Vec::new(); self.tables.len()];
        for table in self.tables {
            if !self.hands_over(table, Op::Update) {
                continue;
            }
            let rules = self.rules(table);
            let refers: Vec<usize> = rules.iter().flat_map(|it| &it.refers).copied().collect();
            let mut membership = self.membership(table);
            let of_table = &mut found[table.place];
            table.images(&table.updates, |at, uploaded| {
                let (Some(old), Some(new)) = (uploaded.old, uploaded.new) else {
                    return Ok(());
                };
                let mut refers = refers.iter();
                if membership.barrier_to_new(new).is_some()
                    || refers.any(|&it| !pack::same(&old[it], &new[it]))
                {
                    of_table.push(table.updates[at]);
                }
                Ok(())
            })?;
        }
        Ok(found)
    }

    /// The updates of a table that are not among those.
    pub(super) fn staying(&self, table: &IncomingTable<'_, R::Tables>) -> Vec<RowRef> {
        let leaving = &self.handed_over[table.place];
        let updates = table.updates.iter();
        let staying = updates.filter(|at| leaving.binary_search(at).is_err());
        staying.copied().collect()
    }

    /// Whether the upload may have written rows that its remote does not hold any more, by what it
    /// says of them itself.
    pub(super) fn lets_rows_go(&self) -> bool {
        self.tables.iter().any(|table| {
            let has_updates = !table.updates.is_empty() || !table.moves.is_empty();
            let has_windows = self.rules(table).iter().any(|it| !it.windows.is_empty());
            has_windows || has_updates && self.hands_over(table, Op::Update)
        })
    }

    /// What the remote may write now.
    async fn admission_now(&mut self) -> Result<Admission> {
        if self.purpose != WritePurpose::Sync {
            return Ok(Admission::of_operator());
        }
        let (publication, upload) = (self.publication, self.upload);
        let scope = ask_scope(
            self.rows.connection(),
            &[],
            publication,
            &upload.context,
            ScopePurpose::Writing,
        )
        .await?;
        let mut now = admission(self.rows, publication, upload, self.serials, scope).await?;
        now.follow(self.admission);
        Ok(now)
    }

    /// What has to be known of the rows that were taken before others are handed over.
    pub(super) async fn before_handing_over(
        &mut self,
        progress: &UploadProgress<'_>,
    ) -> Result<BeforeHandingOver> {
        let admission = self.admission_now().await?;
        let mut own = RowKeys::new();
        for table in self.open_tables() {
            for (op, rows) in
                computed_values::taken(self.publication, table, &progress.outcomes, true)?
            {
                let rows = self.undecided(table, rows)?;
                let images = (op, RowImage::New);
                let (in_scope, _) = self.judged(table, images, &rows, &admission).await?;
                own.extend(in_scope);
            }
        }
        Ok(BeforeHandingOver { admission, own })
    }

    /// The rows that were taken and may not be written, now that all are in; and what the remote
    /// may write now, if that had to be asked.
    pub(super) async fn find_out_of_scope_after(
        &mut self,
        progress: &UploadProgress<'_>,
    ) -> Result<(Option<Admission>, Barred)> {
        if self.purpose != WritePurpose::Sync {
            return Ok((None, Barred::new()));
        }
        let mut later = None;
        let may_differ = progress.may_be_out_of_scope || self.changes_scopes();
        if may_differ && !progress.outcomes.refuses_at_once() {
            later = Some(self.admission_now().await?);
        }
        let mut out_of_scope = match &later {
            Some(later) => self.find_out_of_scope_by_columns(later, progress)?,
            None => Barred::new(),
        };
        let admission = later.as_ref().unwrap_or(self.admission);
        let mut by_parent = self
            .find_out_of_scope_by_parent(admission, progress)
            .await?;
        if !by_parent.is_empty() && later.is_none() {
            let now = self.admission_now().await?;
            by_parent = self.find_out_of_scope_by_parent(&now, progress).await?;
            later = Some(now);
        }
        out_of_scope.extend(by_parent);
        Ok((later, out_of_scope))
    }

    /// The tables that remotes change, with rows of which only the centre knows whose they are.
    fn open_tables(&self) -> Vec<&'r IncomingTable<'r, R::Tables>> {
        let is_meant = |it: &&IncomingTable<'_, R::Tables>| {
            it.is_open && (self.follows(it) || !self.filled(it).is_empty())
        };
        self.tables.iter().filter(is_meant).collect()
    }

    fn follows(&self, table: &IncomingTable<'_, R::Tables>) -> bool {
        self.rules(table).iter().any(|rule| rule.follows)
    }

    /// The columns that tell whose a row is, and that the centre fills where they are NULL.
    fn filled(&self, table: &IncomingTable<'_, R::Tables>) -> Vec<usize> {
        let written = self.publication.writes[table.index].rule.as_ref();
        let rules = self.rules(table).iter().chain(written);
        rules.flat_map(|rule| &rule.filled).copied().collect()
    }

    /// Those of some rows of which only the centre knows whose they are: they follow others, or it
    /// fills what tells that.
    fn undecided(
        &self,
        table: &IncomingTable<'_, R::Tables>,
        rows: Vec<RowRef>,
    ) -> Result<Vec<RowRef>> {
        if self.follows(table) {
            return Ok(rows);
        }
        let filled = self.filled(table);
        let mut undecided = Vec::new();
        table.images(&rows, |at, uploaded| {
            let is_open = |new: &[Datum<'_>]| filled.iter().any(|&it| new[it] == Datum::Null);
            if uploaded.new.is_some_and(is_open) {
                undecided.push(rows[at]);
            }
            Ok(())
        })?;
        Ok(undecided)
    }

    /// Rows to be changed that are out of scope before the upload, by what they follow.
    pub(super) async fn find_out_of_scope_before(&mut self) -> Result<RowKeys> {
        let mut out_of_scope = RowKeys::new();
        let tables = self.open_tables().into_iter();
        let following: Vec<_> = tables.filter(|table| self.follows(table)).collect();
        for table in following {
            let changes = [
                (Op::Update, &table.updates),
                (Op::Update, &table.moves),
                (Op::Delete, &table.deletes),
            ];
            for (op, rows) in changes {
                let images = (op, RowImage::Old);
                let judged = self.judged(table, images, rows, self.admission).await?;
                out_of_scope.extend(judged.1.into_iter().map(|(key, _)| key));
            }
        }
        Ok(out_of_scope)
    }

    /// Rows that were taken, and may not be written by what they follow, or by what the centre has
    /// filled in.
    async fn find_out_of_scope_by_parent(
        &mut self,
        admission: &Admission,
        progress: &UploadProgress<'_>,
    ) -> Result<Barred> {
        let mut found = Barred::new();
        let before = progress.before_handing_over.as_ref();
        for table in self.open_tables() {
            let taken = computed_values::taken(self.publication, table, &progress.outcomes, true)?;
            for (op, rows) in taken {
                if self.hands_over(table, op) {
                    continue;
                }
                let rows = self.undecided(table, rows)?;
                let images = (op, RowImage::New);
                let (_, out_of_scope) = self.judged(table, images, &rows, admission).await?;
                let was_own = |key: &RowKey| before.is_some_and(|it| it.own.contains(key));
                found.extend(out_of_scope.into_iter().filter(|(key, _)| !was_own(key)));
            }
        }
        Ok(found)
    }

    /// Those of some rows whose rows in the centre may be written, and those whose may not; by their
    /// keys in the upload. Of what a trigger makes of a column that tells who may write a row, and
    /// that the centre does not fill, nothing is held against its remote.
    async fn judged(
        &mut self,
        table: &IncomingTable<'_, R::Tables>,
        (op, image): (Op, RowImage),
        rows: &[RowRef],
        admission: &Admission,
    ) -> Result<(Vec<RowKey>, Vec<(RowKey, Barrier)>)> {
        let publication = self.publication;
        let schema = &publication.schema.tables[table.index];
        let types = &publication.row_types[table.index];
        let written = publication.writes[table.index].rule.as_ref();
        let is_judged = written.is_some_and(|rule| !rule.filled.is_empty());
        let (mut in_scope, mut out_of_scope) = (Vec::new(), Vec::new());
        for some in rows.chunks(ROWS_AT_ONCE) {
            let met = self.rows.find(table, op, some, image).await?;
            let mut membership = self.membership_of(admission, table);
            table.rows(some, |at, row| {
                let Some(met) = &met[at] else { return Ok(()) };
                let key = (table.index, pack_key(schema, &row.key));
                let central = met.central.values(types)?;
                let barrier = membership.barrier(&central);
                match barrier.filter(|it| is_judged || *it == Barrier::OutOfScope) {
                    None => in_scope.push(key),
                    Some(barrier) => out_of_scope.push((key, barrier)),
                }
                Ok(())
            })?;
        }
        Ok((in_scope, out_of_scope))
    }

    /// Whether the upload changes a table that a query for scopes names.
    fn changes_scopes(&self) -> bool {
        let mut tables = self.tables.iter();
        tables.any(|table| table.count() > 0 && decides_scopes(self.publication, table.index))
    }

    /// Rows that were taken, and may not be written now by what they say themselves.
    fn find_out_of_scope_by_columns(
        &self,
        later: &Admission,
        progress: &UploadProgress<'_>,
    ) -> Result<Barred> {
        let builder = progress.outcomes.builder();
        let before = progress.before_handing_over.as_ref();
        let mut out_of_scope = Barred::new();
        for table in self.tables.iter().filter(|it| it.is_open) {
            let schema = &self.publication.schema.tables[table.index];
            let mut membership = self.membership_of(later, table);
            let mut before = before.map(|it| self.membership_of(&it.admission, table));
            table.each(|_, row| {
                let op = row.op.unwrap_or(Op::Insert);
                if self.hands_over(table, op) {
                    return Ok(());
                }
                table.with_images(row, |uploaded| {
                    let Some(barrier) = uploaded.new.and_then(|new| membership.barrier_to_new(new))
                    else {
                        return;
                    };
                    let was_barred = |before: &mut Membership<'_>| {
                        let new = uploaded.new.unwrap_or_default();
                        before.barrier_to_new(new).is_some()
                    };
                    if !before.as_mut().is_none_or(was_barred) {
                        return;
                    }
                    let key = (table.index, pack_key(schema, uploaded.key));
                    if !builder.is_lost(&key) && !builder.is_refused(&key, op) {
                        out_of_scope.insert(key, barrier);
                    }
                });
                Ok(())
            })?;
        }
        Ok(out_of_scope)
    }
}
