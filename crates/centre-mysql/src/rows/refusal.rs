//! What the database says of rows that it does not take.

use mysql_async::Error;

use tidewater_centre::engine::row_fault::{RefusalReason, RowFault};
use tidewater_protocol::Code;

/// What an error is of the row of a number, if it is about rows. All others are about the database or
/// about us.
pub(crate) fn fault(error: &Error, row: usize) -> Option<Box<RowFault>> {
    let Error::Server(refusal) = error else {
        return None;
    };
    Some(Box::new(RowFault {
        refusal: RefusalReason {
            code: code(refusal.code)?,
            reason: refusal.message.clone(),
            database_code: Some(refusal.code.to_string()),
        },
        is_certain: true,
        is_denied: false,
        // What ends a transaction is about no row.
        has_ended: false,
        row,
    }))
}

/// The numbers of MariaDB and MySQL; `None` for one that is about no row.
fn code(number: u16) -> Option<Code> {
    Some(match number {
        1048 | 1263 | 1364 => Code::RowNotNull,
        1216 | 1217 | 1451 | 1452 => Code::RowForeignKey,
        1062 | 1169 | 1586 => Code::RowKeyInUse,
        3819 | 4025 => Code::RowCheck,
        // Out of range, cut, no value of the type, too long; no valid JSON.
        1264 | 1265 | 1292 | 1366 | 1367 | 1406 | 1411 | 1525 | 1690 | 3140 | 3141 => {
            Code::RowBadValue
        }
        // SIGNAL in a trigger of the application.
        1644 => Code::RowConstraint,
        _ => return None,
    })
}
