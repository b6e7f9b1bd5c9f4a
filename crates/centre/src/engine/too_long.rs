//! Rows of the centre that cannot be sent, because a value is longer than the protocol carries.

use tidewater_protocol::pack::{self, MAX_VALUE_BYTES};
use tidewater_protocol::{Datum, Table};

use crate::engine::upload::row_json;
use crate::error::CentreError;

/// Whether a row that was packed into so many bytes can be sent. Nobody gets less than what is
/// there: the download ends, and says which row has to be changed.
///
/// # Errors
/// [`CentreError::TooLong`].
pub fn check(table: &Table, row: &[Datum<'_>], bytes: usize) -> Result<(), CentreError> {
    if bytes <= MAX_VALUE_BYTES {
        return Ok(());
    }
    let Some((column, length)) = pack::too_long(row) else {
        return Ok(());
    };
    let key: Vec<_> = table.key.iter().map(|&index| row[index]).collect();
    Err(CentreError::TooLong {
        message: format!(
            "the row {} of the table {:?} has {} in the column {:?}, and a value that is synced \
             has at most {}",
            row_json::key(&key),
            table.name,
            mebibytes(length),
            table.columns[column].name,
            mebibytes(MAX_VALUE_BYTES)
        ),
    })
}

fn mebibytes(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
