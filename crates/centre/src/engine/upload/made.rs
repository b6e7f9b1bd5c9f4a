//! What the centre has made of the rows that it took: a trigger stamps them, a generated column is
//! computed, a type rounds a value or spells it otherwise. Their remote is told, so that the next
//! change of such a row finds its pre-image.

use tidewater_protocol::{Datum, Op, RowShape};

use super::Admission;
use super::incoming::{Incoming, RowRef};
use super::outcomes::Outcomes;
use super::rows::{Image, Rows};
use crate::engine::exact::pack_row;
use crate::engine::publication::Publication;
use crate::engine::scripts::Scripts;
use crate::engine::upload::decided::pack_key;
use crate::error::CentreError;

/// So many rows of the centre are read at once.
const ROWS_AT_ONCE: usize = 2_000;

type Result<T> = std::result::Result<T, CentreError>;

/// Adds to the result of an upload what differs from what was uploaded.
pub(super) async fn note<R: Rows>(
    rows: &mut R,
    publication: &Publication<R::Table>,
    tables: &[Incoming<'_, R::Table>],
    (admission, scripts): (&Admission, Option<&Scripts>),
    outcomes: &mut Outcomes<'_>,
) -> Result<()> {
    for table in tables.iter().filter(|it| it.is_open) {
        let are_completed = publication.writes[table.index].are_completed;
        let is_scripted = scripts.is_some_and(|it| it.uploads(table.index));
        let are_all = rows.makes_something(table) || are_completed || is_scripted;
        if !are_all && !outcomes.has_resolved(table) {
            continue;
        }
        let mut membership = admission.held(publication, table.index).of_any_age();
        for (op, taken) in taken(publication, table, outcomes, are_all)? {
            let mut made = |_, central: &[Datum<'_>]| {
                if membership.has(central) {
                    outcomes.made(table, central);
                }
            };
            find(rows, publication, table, (op, &taken), &mut made).await?;
        }
    }
    Ok(())
}

/// Finds those of some rows that took effect which differ in the centre from what was uploaded;
/// `made` gets the centre's, as they are read.
pub(super) async fn find<R: Rows>(
    rows: &mut R,
    publication: &Publication<R::Table>,
    table: &Incoming<'_, R::Table>,
    (op, taken): (Op, &[RowRef]),
    made: &mut (dyn FnMut(RowRef, &[Datum<'_>]) + Send),
) -> Result<()> {
    let shape = &publication.shapes[table.index];
    for some in taken.chunks(ROWS_AT_ONCE) {
        let found = rows.find(table, op, some, Image::New).await?;
        table.images(some, |at, uploaded| {
            // What is gone, or cannot be sent, is the download's affair.
            let Some(met) = found[at].as_ref().filter(|met| met.central.is_whole) else {
                return Ok(());
            };
            let central = met.central.values(&publication.row_types[table.index])?;
            let new = uploaded.new.unwrap_or_default();
            if differs(shape, &table.sent, new, &central) {
                made(some[at], &central);
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// The inserts and updates that took effect; all of them, or those that were resolved.
pub(super) fn taken<T>(
    publication: &Publication<T>,
    table: &Incoming<'_, T>,
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
        let is_meant = are_all || outcomes.is_resolved(&key);
        if is_meant && !builder.is_refused(&key, op) && !builder.is_lost(&key) {
            match op {
                Op::Insert => inserts.push(at),
                _ => updates.push(at),
            }
        }
        Ok(())
    })?;
    Ok([(Op::Insert, inserts), (Op::Update, updates)])
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
