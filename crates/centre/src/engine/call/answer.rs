//! The answer of a call: which rows of a statement count, and how they are packed and handed out.

use std::sync::Arc;

use tidewater_protocol::frame::ROWS_PAYLOAD_BYTES;
use tidewater_protocol::pack::too_long;
use tidewater_protocol::{ColumnType, Datum, Op, RowShape, RowsWriter};

use super::step::StepPurpose;
use crate::procedure::{AnswerColumn, AnswerSink, CallAnswer, CallOutcome, ProcedureCall, Returns};

/// What the rows of a statement have.
#[derive(Clone, Debug)]
pub struct AnswerShape {
    columns: Arc<[AnswerColumn]>,
    /// Whether the first value of a column tells its type; empty if that is so for none.
    undeclared: Vec<bool>,
    /// How rows are packed; the types of undeclared columns are left open, on which no byte of a row
    /// depends.
    rows: RowShape,
}

impl AnswerShape {
    /// The shape of rows with columns of these names and types. Where there is no type, the first
    /// value tells it; without one it is text.
    pub fn new(columns: impl IntoIterator<Item = (String, Option<ColumnType>)>) -> AnswerShape {
        let columns: Vec<(String, Option<ColumnType>)> = columns.into_iter().collect();
        let undeclared = match columns.iter().all(|(_, declared)| declared.is_some()) {
            true => Vec::new(),
            false => columns.iter().map(|it| it.1.is_none()).collect(),
        };
        let columns = columns.into_iter().map(|(name, declared)| AnswerColumn {
            name,
            column_type: declared.unwrap_or(ColumnType::Text),
        });
        let columns: Arc<[AnswerColumn]> = columns.collect();
        AnswerShape {
            rows: RowShape {
                columns: columns.iter().map(|it| it.column_type).collect(),
                key: Vec::new(),
            },
            undeclared,
            columns,
        }
    }

    /// The columns.
    pub fn columns(&self) -> &[AnswerColumn] {
        &self.columns
    }
}

/// Makes an answer of the rows of one statement, while they come.
///
/// Of each row it is asked whether it [`wants_row`](Self::wants_row), and given the values if so, with
/// [`push`](Self::push). As soon as it [`has_ended`](Self::has_ended), the rest is of no use, and the
/// statement can be ended. [`finish`](Self::finish) gives what it came to.
#[derive(Debug)]
pub struct AnswerCollector<'a> {
    purpose: StepPurpose,
    max_bytes: usize,
    sink: Option<&'a dyn AnswerSink>,
    undeclared: Vec<bool>,
    writer: RowsWriter<'a>,
    answer: CallAnswer,
    /// How many rows the statement has yielded.
    yielded: u64,
    /// How many bytes of rows no sink has taken.
    held_bytes: usize,
    ended: Option<CallOutcome>,
}

impl<'a> AnswerCollector<'a> {
    /// A collector for what a step of a call yields.
    pub fn new(
        call: &'a ProcedureCall,
        purpose: StepPurpose,
        shape: &'a AnswerShape,
    ) -> AnswerCollector<'a> {
        AnswerCollector {
            purpose,
            max_bytes: call.max_bytes,
            sink: call.streams_to(),
            undeclared: shape.undeclared.clone(),
            writer: RowsWriter::new(&shape.rows),
            answer: CallAnswer {
                columns: shape.columns.clone(),
                rows: Vec::new(),
                count: 0,
            },
            yielded: 0,
            held_bytes: 0,
            ended: None,
        }
    }

    /// Counts another row; whether its values are wanted.
    pub fn wants_row(&mut self) -> bool {
        self.yielded += 1;
        let is_wanted = match self.purpose {
            StepPurpose::Permission => {
                self.ended = Some(CallOutcome::Answer(CallAnswer::default()));
                false
            }
            StepPurpose::Answer(Returns::Nothing) => false,
            StepPurpose::Answer(Returns::Value | Returns::Row) => self.yielded == 1,
            StepPurpose::Answer(Returns::Rows) => true,
        };
        is_wanted && self.ended.is_none()
    }

    /// The type of a column, of which a value is at hand that by itself is of the type `own`.
    pub fn column_type(&mut self, column: usize, own: ColumnType) -> ColumnType {
        if self.undeclared.get(column) == Some(&true) {
            self.undeclared[column] = false;
            Arc::make_mut(&mut self.answer.columns)[column].column_type = own;
        }
        self.answer.columns[column].column_type
    }

    /// Packs a row that is wanted.
    pub fn push(&mut self, values: &[Datum<'_>]) {
        let before = self.writer.len();
        self.writer.row(Op::Upsert, values);
        self.answer.count += 1;
        self.held_bytes += self.writer.len() - before;
        if self.held_bytes > self.max_bytes || too_long(values).is_some() {
            self.ended = Some(CallOutcome::TooLarge);
        } else if self.writer.len() >= ROWS_PAYLOAD_BYTES {
            let rows = self.writer.take();
            let Some(sink) = self.sink else {
                self.answer.rows.push(rows.into());
                return;
            };
            // Whoever has seen the columns does not see them change.
            self.undeclared.clear();
            self.held_bytes -= rows.len();
            self.answer.count = 0;
            self.ended = sink.take(&self.answer.columns, rows).ends();
        }
    }

    /// Whether it is settled what becomes of the call, whatever else the statement yields.
    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// What the statement came to.
    pub fn finish(mut self) -> CallOutcome {
        if let Some(ended) = self.ended {
            return ended;
        }
        match self.purpose {
            StepPurpose::Permission => return CallOutcome::NotAllowed,
            StepPurpose::Answer(Returns::Nothing) => self.answer = CallAnswer::default(),
            StepPurpose::Answer(Returns::Value | Returns::Row) if self.yielded > 1 => {
                return CallOutcome::SeveralRows;
            }
            StepPurpose::Answer(_) => {}
        }
        if !self.writer.is_empty() {
            self.answer.rows.push(self.writer.take().into());
        }
        CallOutcome::Answer(self.answer)
    }
}

#[cfg(test)]
mod tests;
