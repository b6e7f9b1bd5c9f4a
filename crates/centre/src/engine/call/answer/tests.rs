use std::sync::Mutex;
use std::time::Duration;

use tidewater_protocol::{RowsReader, UnpackedRow};

use super::*;
use crate::engine::callable_procedure::CallableProcedure;
use crate::procedure::{Caller, Cancel, SinkReply};
use crate::records::UserClaims;

#[derive(Debug, Default)]
struct CountingSink(Mutex<Vec<(Arc<[AnswerColumn]>, usize)>>);

impl AnswerSink for CountingSink {
    fn take(&self, columns: &Arc<[AnswerColumn]>, rows: Vec<u8>) -> SinkReply {
        self.0.lock().unwrap().push((columns.clone(), rows.len()));
        SinkReply::More
    }

    fn has_begun(&self) -> bool {
        !self.0.lock().unwrap().is_empty()
    }
}

fn call(max_bytes: usize, sink: Option<Arc<CountingSink>>) -> ProcedureCall {
    let procedure = CallableProcedure {
        name: "list".into(),
        arguments: Vec::new(),
        returns: Returns::Rows,
        read_only: true,
        statements: Vec::new(),
        allow: None,
    };
    ProcedureCall {
        procedure: Arc::new(procedure),
        caller: Caller {
            user: "anna".into(),
            remote_id: None,
        },
        claims: UserClaims::default(),
        arguments: Vec::new(),
        once: None,
        timeout: Duration::from_secs(1),
        max_bytes,
        sink: sink.map(|it| it as Arc<dyn AnswerSink>),
        cancel: Cancel::default(),
    }
}

/// A column that is declared, and one that is not.
fn shape() -> AnswerShape {
    AnswerShape::new([
        ("id".to_owned(), Some(ColumnType::Integer)),
        ("note".to_owned(), None),
    ])
}

fn push(collector: &mut AnswerCollector<'_>, id: i64, note: Option<Datum<'_>>) {
    assert!(collector.wants_row());
    if note.is_some() {
        collector.column_type(1, ColumnType::Integer);
    }
    collector.push(&[Datum::Integer(id), note.unwrap_or(Datum::Null)]);
}

#[test]
fn an_undeclared_column_has_the_type_of_its_first_value() {
    let (call, shape) = (call(1 << 20, None), shape());
    let mut collector = AnswerCollector::new(&call, StepPurpose::Answer(Returns::Rows), &shape);
    push(&mut collector, 1, None);
    push(&mut collector, 2, Some(Datum::Integer(7)));
    // Those that follow tell nothing any more.
    let later = collector.column_type(1, ColumnType::Real);
    assert_eq!(later, ColumnType::Integer);
    let CallOutcome::Answer(answer) = collector.finish() else {
        panic!("no answer");
    };
    let types: Vec<ColumnType> = answer.columns.iter().map(|it| it.column_type).collect();
    assert_eq!(types, [ColumnType::Integer, ColumnType::Integer]);
    assert_eq!(shape.columns()[1].column_type, ColumnType::Text);
    let unpacked = RowShape {
        columns: types,
        key: Vec::new(),
    };
    let mut reader = RowsReader::new(&unpacked, &answer.rows[0]);
    let mut row = UnpackedRow::default();
    assert!(reader.next(&mut row).unwrap());
    assert_eq!(row.new, [Datum::Integer(1), Datum::Null]);
    assert!(reader.next(&mut row).unwrap());
    assert_eq!(row.new, [Datum::Integer(2), Datum::Integer(7)]);
}

#[test]
fn a_sink_gets_pieces_under_columns_that_stay_the_same() {
    let sink = Arc::new(CountingSink::default());
    // What the sink has taken does not count.
    let (call, shape) = (call(100_000, Some(sink.clone())), shape());
    let mut collector = AnswerCollector::new(&call, StepPurpose::Answer(Returns::Rows), &shape);
    for id in 0..60_000 {
        push(&mut collector, id, None);
    }
    let later = collector.column_type(1, ColumnType::Integer);
    assert_eq!(later, ColumnType::Text);
    let CallOutcome::Answer(rest) = collector.finish() else {
        panic!("no answer");
    };
    let pieces = sink.0.lock().unwrap();
    assert!(pieces.len() > 1, "{} pieces", pieces.len());
    assert!(pieces.iter().all(|it| it.0 == rest.columns));
    assert!(pieces.iter().all(|it| it.1 >= ROWS_PAYLOAD_BYTES));
    assert_eq!(rest.rows.len(), 1);
}

#[test]
fn what_ends_an_answer_depends_on_what_its_rows_are_for() {
    let (call, shape) = (call(100, None), shape());
    let yielding = |purpose, rows: i64| {
        let mut collector = AnswerCollector::new(&call, purpose, &shape);
        for id in 0..rows {
            if collector.wants_row() {
                collector.push(&[Datum::Integer(id), Datum::Null]);
            }
        }
        (collector.has_ended(), collector.finish())
    };
    let nothing = CallOutcome::Answer(CallAnswer::default());
    let permission = StepPurpose::Permission;
    assert_eq!(yielding(permission, 0), (false, CallOutcome::NotAllowed));
    assert_eq!(yielding(permission, 1), (true, nothing.clone()));
    let answer = StepPurpose::Answer;
    assert_eq!(yielding(answer(Returns::Nothing), 9), (false, nothing));
    let several = (false, CallOutcome::SeveralRows);
    assert_eq!(yielding(answer(Returns::Value), 2), several);
    assert_eq!(yielding(answer(Returns::Row), 2), several);
    let too_large = (true, CallOutcome::TooLarge);
    assert_eq!(yielding(answer(Returns::Rows), 99), too_large);
}
