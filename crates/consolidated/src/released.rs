//! Values that rows give up while others refer to them, and that other rows take.
//!
//! Where a foreign key acts and refers to another unique value than the key, whoever gives the value
//! up, by a delete or an update, takes along what refers to it, or changes it. On the remote, which
//! wrote its rows in one transaction, the children may have stayed with the value: nothing of them
//! is uploaded. So adapters note what is referred to before they delete or update a row, and when
//! all rows are in, the database is asked whether another row has the value now: it knows by which
//! collation values are equal, and what its own triggers have made of them. If one has, everything
//! is undone and done anew, and that row is refused. So is then the one that wants its value. The
//! same if the row that was to have it lost, or was refused.

use std::collections::HashSet;

use tidewater_protocol::{Code, Datum, Op, Table};

use crate::columns::ColumnMap;
use crate::error::CentreError;
use crate::linked::pack_columns;
use crate::orphans::Uploaded;

/// The code of such a refusal.
pub(crate) const CODE: Code = Code::RowForeignKey;

/// The reason of such a refusal.
pub(crate) const REASON: &str = "other rows refer to a value of this row, which another row of the \
                                 same upload takes: they would go with it";

/// Whether columns that a foreign key refers to are others than the primary key: remotes give rows
/// other keys by a delete and an insert, and what refers to the key is uploaded with them.
pub(crate) fn are_others(referred: &[usize], key: &[usize]) -> bool {
    referred.len() != key.len() || !referred.iter().all(|it| key.contains(it))
}

/// The packed values of some columns of a row, as [`wanted`] compares them.
pub(crate) fn packed(
    table: &Table,
    columns: &[usize],
    map: &ColumnMap,
    row: &[Datum<'_>],
) -> Option<Vec<u8>> {
    let types = columns.iter().map(|&it| table.columns[it].column_type);
    let types: Vec<_> = types.collect();
    pack_columns(columns.iter().zip(&types), map, row)
}

/// The values of these columns that rows of a table were to have and had not. `uploaded` is all
/// that the upload has of the table.
///
/// # Errors
/// The rows of the upload cannot be read.
pub(crate) fn wanted<'u>(
    table: &Table,
    columns: &[usize],
    uploaded: impl Iterator<Item = Uploaded<'u>>,
) -> Result<HashSet<Vec<u8>>, CentreError> {
    let mut wanted = HashSet::new();
    for (upload, _, map) in uploaded {
        upload.each_row(&map.shape, |row, op| {
            if op == Op::Delete {
                return;
            }
            let new = packed(table, columns, map, &row.new);
            if op == Op::Insert || new != packed(table, columns, map, &row.old) {
                wanted.extend(new);
            }
        })?;
    }
    Ok(wanted)
}

/// So often is an upload applied anew before all rows that release anything are refused.
pub(crate) const ROUNDS: u32 = 8;
