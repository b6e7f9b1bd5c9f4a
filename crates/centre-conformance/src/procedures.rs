//! Procedures that cases declare and call, and what comes of it as text.

use std::sync::Arc;
use std::time::Duration;

use tidewater_protocol::{ColumnType, Op, RowShape, RowsReader, UnpackedRow, Value};
use tidewater_testing::generate::Dialect;

use crate::fixture::Fixture;
use crate::remote::text;
use crate::world::{DeployedCentre, NOW_MS, everyone};
use tidewater_centre::engine::callable_procedure::CallableProcedure;
use tidewater_centre::procedure_spec::{ArgumentSpec, ProcedureSpec};
use tidewater_centre::records::UserClaims;
use tidewater_centre::{CallAnswer, CallOutcome, Caller, Cancel, ProcedureCall, Returns, Worker};

const DDL: &str = "CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, name TEXT UNIQUE,
        price NUMERIC(12,2), stock INTEGER NOT NULL DEFAULT 0 CHECK (stock >= 0));
    CREATE TABLE clerk (login TEXT NOT NULL PRIMARY KEY);
    CREATE TABLE done (id INTEGER NOT NULL, what TEXT);
    INSERT INTO item VALUES (1, 'tea', 1.50, 10), (2, 'coffee', 2.25, 20), (3, NULL, NULL, 0);
    INSERT INTO clerk VALUES ('anna');";

pub async fn world<F: Fixture>() -> DeployedCentre<F> {
    DeployedCentre::<F>::new(DDL, vec![everyone("item")]).await
}

/// A procedure with arguments that are integers, but for those that begin with `t`.
pub fn spec(name: &str, sql: &str, arguments: &[&str], returns: Returns) -> ProcedureSpec {
    let arguments = arguments.iter().map(|name| ArgumentSpec {
        name: (*name).into(),
        column_type: match name.starts_with('t') {
            true => ColumnType::Text,
            false => ColumnType::Integer,
        },
        optional: false,
    });
    ProcedureSpec {
        name: name.into(),
        sql: Some(sql.into()),
        arguments: arguments.collect(),
        returns,
        allow: None,
        read_only: false,
    }
}

pub(crate) fn reading(
    name: &str,
    sql: &str,
    arguments: &[&str],
    returns: Returns,
) -> ProcedureSpec {
    ProcedureSpec {
        read_only: true,
        ..spec(name, sql, arguments, returns)
    }
}

pub async fn procedures<F: Fixture, const N: usize>(
    world: &DeployedCentre<F>,
    specs: [ProcedureSpec; N],
) -> [Arc<CallableProcedure>; N] {
    let procedures = world.centre.procedures(&specs).await.unwrap();
    procedures.try_into().unwrap()
}

pub fn call(procedure: &Arc<CallableProcedure>, arguments: &[Value]) -> ProcedureCall {
    ProcedureCall {
        procedure: procedure.clone(),
        caller: Caller {
            user: "anna".into(),
            remote_id: None,
        },
        claims: UserClaims::default(),
        arguments: arguments.to_vec(),
        once: None,
        timeout: Duration::from_secs(600),
        max_bytes: 1 << 20,
        sink: None,
        cancel: Cancel::default(),
    }
}

pub(crate) fn under(key: [u8; 16], call: ProcedureCall) -> ProcedureCall {
    ProcedureCall {
        once: Some(key),
        ..call
    }
}

pub(crate) fn integer(number: i64) -> Value {
    Value::Integer(number)
}

pub(crate) fn words(text: &str) -> Value {
    Value::Text(text.into())
}

pub(crate) async fn run(worker: &mut dyn Worker, calls: Vec<ProcedureCall>) -> Vec<String> {
    let outcomes = worker.call(calls, NOW_MS).await.unwrap();
    outcomes.iter().map(told).collect()
}

pub(crate) async fn run_one(worker: &mut dyn Worker, call: ProcedureCall) -> String {
    run(worker, vec![call]).await.remove(0)
}

/// The rows of an answer as text.
pub(crate) fn rows(answer: &CallAnswer) -> Vec<String> {
    let all = unpacked(answer);
    assert_eq!(all.len() as u64, answer.count);
    all
}

/// The same of a piece, which does not say how many there are.
pub(crate) fn unpacked(answer: &CallAnswer) -> Vec<String> {
    let shape = RowShape {
        columns: answer.columns.iter().map(|it| it.column_type).collect(),
        key: Vec::new(),
    };
    let mut all = Vec::new();
    for piece in &answer.rows {
        let mut reader = RowsReader::new(&shape, piece);
        let mut row = UnpackedRow::default();
        while reader.next(&mut row).unwrap() {
            assert_eq!(row.op, Some(Op::Upsert));
            all.push(text(&row.new));
        }
    }
    all
}

/// An outcome as text: the rows of an answer, and of a failure the word that tells it.
pub(crate) fn told(outcome: &CallOutcome) -> String {
    match outcome {
        CallOutcome::Answer(answer) => rows(answer).join("; "),
        CallOutcome::NotAllowed => "not allowed".into(),
        CallOutcome::Failed { code, .. } => format!("failed {code}"),
        CallOutcome::TooLarge => "too large".into(),
        CallOutcome::SeveralRows => "several rows".to_owned(),
        CallOutcome::Interrupted => "interrupted".into(),
        CallOutcome::Busy { .. } => "busy".into(),
        CallOutcome::KeyTaken => "key taken".into(),
    }
}

pub(crate) fn failed(unique: bool, dialect: Dialect) -> String {
    let code = match (dialect, unique) {
        (Dialect::Postgres, true) => "23505",
        (Dialect::Postgres, false) => "23514",
        (Dialect::Sqlite, true) => "SQLITE_CONSTRAINT_UNIQUE",
        (Dialect::Sqlite, false) => "SQLITE_CONSTRAINT_CHECK",
        (Dialect::Mysql, true) => "1062",
        (Dialect::Mysql, false) => "4025",
    };
    format!("failed {code}")
}
