//! What the centre has made of the rows that it took: a trigger stamps them, a generated column is
//! computed, a type rounds a value or spells it otherwise; or it keeps a row that was deleted. Their
//! remote is told, so that the next change of such a row finds its pre-image.

use tidewater_protocol::{Datum, Op, RowShape};

use super::Admission;
use super::given_rows::RowsToTell;
use super::incoming_rows::{IncomingTable, RowRef, UploadedImages};
use super::outcomes::{Outcomes, SumComparison};
use super::upload_driver::UploadDriver;
use super::upload_writer::UploadWriter;
use crate::engine::exact::pack_row;
use crate::engine::publication::Publication;
use crate::engine::scripts::ScriptEnvironment;
use crate::engine::sql::row_statements::RowImage;
use crate::engine::sql::served_table::TableAdapter;
use crate::engine::upload::row_keys::pack_key;
use crate::error::CentreError;

/// So many rows of the centre are read at once.
const ROWS_AT_ONCE: usize = 2_000;

type Result<T> = std::result::Result<T, CentreError>;

/// Adds to the result of an upload what differs from what was uploaded.
pub(super) async fn note<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    publication: &Publication<R::Tables>,
    tables: &[IncomingTable<'_, R::Tables>],
    (admission, scripting): (&Admission, Option<&ScriptEnvironment<'_>>),
    outcomes: &mut Outcomes<'_>,
) -> Result<()> {
    for table in tables.iter().filter(|it| it.is_open) {
        let are_completed = publication.writes[table.index].are_completed;
        let is_scripted = scripting.is_some_and(|it| it.scripts.uploads(table.index));
        let are_all = rows.may_compute_values(table) || are_completed || is_scripted;
        let are_changed = outcomes.handler_decisions().has_changed_some(table.index);
        // Where a script says what comes down, it says so of these rows, too.
        let by_script = scripting.is_some_and(|it| it.scripts.downloads(table.index));
        let kept = match by_script {
            true => Vec::new(),
            false => outcomes.kept(table),
        };
        if !are_all && !are_changed && !outcomes.has_resolved(table) && kept.is_empty() {
            continue;
        }
        let mut membership = admission.held(publication, table.index).of_any_age();
        if !kept.is_empty() {
            let mut made = |_, _: &UploadedImages<'_, '_>, central: Option<&[Datum<'_>]>| {
                if let Some(central) = central.filter(|it| membership.has(it)) {
                    outcomes.made(table, central, SumComparison::Alike);
                }
            };
            find_all(rows, publication, table, (Op::Delete, &kept), &mut made).await?;
        }
        let schema = &publication.schema.tables[table.index];
        let lookup = scripting.and_then(|it| Some((it, it.scripts.lookup(table.index)?)));
        let mut to_tell = RowsToTell::new(publication, table.index);
        for (op, taken) in taken(publication, table, outcomes, are_all)? {
            let (changed, taken) = match are_changed {
                true => split(publication, table, outcomes, taken)?,
                false => (Vec::new(), taken),
            };
            let mut made = |_, uploaded: &UploadedImages<'_, '_>, central: Option<&[Datum<'_>]>| {
                match central.filter(|it| membership.has(it)) {
                    Some(central) if lookup.is_some() => to_tell.add(schema, central),
                    Some(central) => {
                        let sums = compare_sums(publication, table, uploaded, central);
                        outcomes.made(table, central, sums);
                    }
                    // A script has written it elsewhere, or not at all: of the rows that the remote
                    // has now it is none. Where a script gives rows, it says so.
                    None if is_scripted && lookup.is_none() => outcomes.asks(table, uploaded),
                    None => {}
                }
            };
            find(rows, publication, table, (op, &taken), &mut made).await?;
            find_all(rows, publication, table, (op, &changed), &mut made).await?;
        }
        if let Some((scripting, lookup)) = lookup {
            let mut made =
                |central: &[Datum<'_>]| outcomes.made(table, central, SumComparison::Alike);
            let of = (lookup, &*schema.name);
            to_tell.tell(rows, scripting, of, &mut made).await?;
        }
    }
    Ok(())
}

/// Finds those of some rows that took effect which differ in the centre from what was uploaded;
/// `made` gets the centre's, as they are read.
pub(super) async fn find<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    publication: &Publication<R::Tables>,
    table: &IncomingTable<'_, R::Tables>,
    (op, taken): (Op, &[RowRef]),
    made: Take<'_>,
) -> Result<()> {
    let shape = &publication.shapes[table.index];
    let is_other =
        |new: &[Datum<'_>], central: &[Datum<'_>]| differs(shape, &table.sent, new, central);
    find_some(rows, publication, table, (op, taken), (&is_other, made)).await
}

/// Finds rows that handlers have changed, or that are kept.
pub(super) async fn find_all<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    publication: &Publication<R::Tables>,
    table: &IncomingTable<'_, R::Tables>,
    (op, taken): (Op, &[RowRef]),
    made: Take<'_>,
) -> Result<()> {
    let is_meant = |_: &[Datum<'_>], _: &[Datum<'_>]| true;
    find_some(rows, publication, table, (op, taken), (&is_meant, made)).await
}

/// Gets rows with what was uploaded, as the centre has them; `None` of what it has not.
type Take<'t> = &'t mut (dyn FnMut(RowRef, &UploadedImages<'_, '_>, Option<&[Datum<'_>]>) + Send);

/// Whether an uploaded row is told as the centre has it, given both.
type IsTold<'t> = &'t (dyn Fn(&[Datum<'_>], &[Datum<'_>]) -> bool + Send + Sync);

async fn find_some<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    publication: &Publication<R::Tables>,
    table: &IncomingTable<'_, R::Tables>,
    (op, taken): (Op, &[RowRef]),
    (is_told, made): (IsTold<'_>, Take<'_>),
) -> Result<()> {
    for some in taken.chunks(ROWS_AT_ONCE) {
        let found = rows.find(table, op, some, RowImage::New).await?;
        table.images(some, |at, uploaded| {
            let Some(met) = found[at].as_ref() else {
                made(some[at], uploaded, None);
                return Ok(());
            };
            // What cannot be sent is the download's affair.
            if !met.central.is_whole {
                return Ok(());
            }
            let central = met.central.values(&publication.row_types[table.index])?;
            if is_told(uploaded.new.unwrap_or_default(), &central) {
                made(some[at], uploaded, Some(&central));
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// The inserts and updates that took effect; all of them, or those that were resolved.
pub(super) fn taken<T: TableAdapter>(
    publication: &Publication<T>,
    table: &IncomingTable<'_, T>,
    outcomes: &Outcomes<'_>,
    are_all: bool,
) -> Result<[(Op, Vec<RowRef>); 2]> {
    let schema = &publication.schema.tables[table.index];
    let builder = outcomes.builder();
    let (mut inserts, mut updates) = (Vec::new(), Vec::new());
    table.each(|at, row| {
        let op = row.op.unwrap_or(Op::Insert);
        if op == Op::Delete {
            return Ok(());
        }
        let key = (table.index, pack_key(schema, &row.key));
        let decisions = outcomes.handler_decisions();
        let is_meant = are_all || outcomes.is_resolved(&key) || decisions.has_changed(&key);
        let is_written = decisions.find_decision(&key, op).is_none();
        if is_meant && is_written && !builder.is_refused(&key, op) && !builder.is_lost(&key) {
            match op {
                Op::Insert => inserts.push(at),
                _ => updates.push(at),
            }
        }
        Ok(())
    })?;
    Ok([(Op::Insert, inserts), (Op::Update, updates)])
}

/// Those of some rows that handlers have changed, and the others.
fn split<T: TableAdapter>(
    publication: &Publication<T>,
    table: &IncomingTable<'_, T>,
    outcomes: &Outcomes<'_>,
    rows: Vec<RowRef>,
) -> Result<(Vec<RowRef>, Vec<RowRef>)> {
    let schema = &publication.schema.tables[table.index];
    let (mut changed, mut others) = (Vec::new(), Vec::new());
    table.rows(&rows, |at, row| {
        let key = (table.index, pack_key(schema, &row.key));
        match outcomes.handler_decisions().has_changed(&key) {
            true => changed.push(rows[at]),
            false => others.push(rows[at]),
        }
        Ok(())
    })?;
    Ok((changed, others))
}

/// Compares the sums of a row that was uploaded with what the centre has made of it.
pub(super) fn compare_sums<T: TableAdapter>(
    publication: &Publication<T>,
    table: &IncomingTable<'_, T>,
    uploaded: &UploadedImages<'_, '_>,
    central: &[Datum<'_>],
) -> SumComparison {
    let sums = publication.resolvers[table.index].sums();
    let sums: Vec<usize> = sums.filter(|it| table.sent.contains(it)).collect();
    let shape = &publication.shapes[table.index];
    let new = uploaded.new.unwrap_or_default();
    match !new.is_empty() && differs(shape, &sums, new, central) {
        true => SumComparison::Differ,
        false => SumComparison::Alike,
    }
}

/// Whether a row is not in the centre as the remote has it, in one of the columns that it sends.
fn differs(
    shape: &RowShape,
    sent: &[usize],
    uploaded: &[Datum<'_>],
    central: &[Datum<'_>],
) -> bool {
    sent.iter().any(|&column| {
        let types = [shape.columns[column]];
        pack_row(&types, &[uploaded[column]]) != pack_row(&types, &[central[column]])
    })
}
