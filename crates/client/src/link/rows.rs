//! Answers of many rows, taken while they come.

use bytes::{Bytes, BytesMut};

use tidewater_protocol::message::{Answer, CallFailed, CallKind, ColumnHeader};
use tidewater_protocol::pack::UnpackError;
use tidewater_protocol::{Code, RowShape, RowsReader, UnpackedRow};

use super::Link;
use super::calls::PendingCall;
use crate::request::{CallError, Request};

/// An answer that comes in pieces. What is not taken, the server keeps: about one MiB is on its way,
/// and whoever takes nothing for long is cut off. While other calls wait on the same link, the rest of
/// the answer is kept here instead. To drop it is to cancel the call.
pub struct AnswerRows {
    pending: PendingCall,
    /// What the rows have, once the first piece is there.
    head: Option<Answer>,
    /// The beginning of a row whose end has not come.
    rest: BytesMut,
    has_given: bool,
    is_over: bool,
}

impl Link {
    /// Calls a procedure and takes its rows while they come: the server sends them while it reads them,
    /// if the procedure is `read_only` and `returns = "rows"`. The answer of any other is one piece.
    ///
    /// # Errors
    /// There is no connection any more, or the request is too large.
    pub fn rows(&self, request: &Request) -> Result<AnswerRows, CallError> {
        let pending = self.shared.begin(request, CallKind::Call, true)?;
        Ok(AnswerRows {
            pending,
            head: None,
            rest: BytesMut::new(),
            has_given: false,
            is_over: false,
        })
    }
}

impl AnswerRows {
    /// The next rows, whole ones, as an answer of their own; `None` behind the last. Of an answer
    /// without rows there is one piece.
    ///
    /// # Errors
    /// The call came to nothing, or its answer does not come to its end.
    pub fn next_piece(&mut self) -> Result<Option<Answer>, CallError> {
        while !self.is_over {
            let Some(piece) = self.pending.shared.next_piece(self.pending.id)? else {
                self.is_over = true;
                let empty = self.head.take().filter(|_| !self.has_given);
                return match self.rest.is_empty() {
                    true => Ok(empty),
                    false => Err(malformed()),
                };
            };
            let head = self.head.get_or_insert_with(|| Answer {
                rows: Bytes::new(),
                ..piece.clone()
            });
            self.rest.extend_from_slice(&piece.rows);
            let whole = whole_rows(&head.columns, &self.rest).ok_or_else(malformed)?;
            if whole > 0 {
                self.has_given = true;
                let rows = self.rest.split_to(whole).freeze();
                return Ok(Some(Answer {
                    rows,
                    ..head.clone()
                }));
            }
        }
        Ok(None)
    }
}

/// How many bytes whole rows take; `None` if these are no rows.
fn whole_rows(columns: &[ColumnHeader], bytes: &[u8]) -> Option<usize> {
    let types = columns.iter().map(ColumnHeader::column_type);
    let shape = RowShape {
        columns: types.collect::<Option<_>>()?,
        key: Vec::new(),
    };
    let mut reader = RowsReader::new(&shape, bytes);
    let mut row = UnpackedRow::default();
    loop {
        match reader.next(&mut row) {
            Ok(true) => {}
            Ok(false) | Err(UnpackError::Truncated) => return Some(reader.consumed()),
            Err(_) => return None,
        }
    }
}

fn malformed() -> CallError {
    CallError::Failed(CallFailed::new(
        Code::MalformedMessage,
        "the answer cannot be read",
        "update the older of the two, this program or the server",
    ))
}
