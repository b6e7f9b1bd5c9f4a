//! What the centre makes of rows that it takes.

use std::collections::{BTreeMap, BTreeSet};

use tidewater_centre::{UploadChunk, UploadOutcome, UploadResult, UploadTable};
use tidewater_protocol::message::TableBegin;
use tidewater_protocol::{ColumnType, Fit, Op, RowsReader, RowsWriter, UnpackedRow, Value};
use tidewater_testing::generate::random::Random;
use tidewater_testing::generate::types::{ALL, Type};

use crate::fixture::Fixture;
use crate::remote::{TestRemote, datums, insert, result_text, update};
use crate::world::{DeployedCentre, everyone};

/// Interleaving 29: what a trigger makes of an uploaded row is what the next change of it begins with.
pub async fn what_a_trigger_makes_of_a_row_is_told<F: Fixture>() {
    let ddl = "CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY, body VARCHAR(9),
         stamp INTEGER NOT NULL)";
    let world = DeployedCentre::<F>::new(ddl, vec![everyone("note")]).await;
    world.execute(&F::stamp_trigger()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    let result = anna.upload(&[insert("note", "1|v0|0")]).await;
    assert_eq!(result[1..], ["made note: 1|v0|100"]);
    let result = anna.upload(&[update("note", "1|v0|100", "1|v1|100")]).await;
    let counts = "0 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused";
    assert_eq!(result, [counts, "made note: 1|v1|200"]);
    // Under another key, too.
    let result = anna.upload(&[update("note", "1|v1|200", "2|v2|200")]).await;
    assert_eq!(result, [counts, "made note: 2|v2|300"]);
    // It has that already, and others get it.
    assert_eq!(anna.download().await.rows(), [] as [&str; 0]);
    berta.download().await;
    assert_eq!(berta.rows("note"), ["2|v2|300"]);
}

/// A row of one of the tables that have a column of a type each.
struct TypedRow {
    table: usize,
    id: i64,
    value: Value,
}

/// Rows of any type with values of any other are taken as they can be, and can then be changed and
/// deleted, without a download in between: nobody else has won.
pub async fn a_row_can_be_changed_again_whatever_became_of_it<F: Fixture>() {
    // Those need types that have to be made first.
    let types = ALL
        .iter()
        .filter(|it| !matches!(it, Type::Enum | Type::Domain));
    let types: Vec<Type> = types.copied().collect();
    let tables = types.iter().enumerate().map(|(number, it)| {
        let declared = it.declared(F::DIALECT);
        format!("CREATE TABLE t{number} (id INTEGER NOT NULL PRIMARY KEY, v {declared})")
    });
    let ddl = tables.collect::<Vec<_>>().join("; ");
    let names: Vec<String> = (0..types.len())
        .map(|number| format!("t{number}"))
        .collect();
    let specs = names.iter().map(|name| everyone(name));
    let world = DeployedCentre::<F>::new(&ddl, specs.collect()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut random = Random::seeded(29);
    let of_table = |remote: &TestRemote, table: usize| {
        let columns = &remote.schema.table(&names[table]).unwrap().columns;
        columns[1].column_type
    };
    let mut rows = Vec::new();
    for id in 0..1_500 {
        let table = random.index(types.len());
        // Often of its own type: few of the others fit.
        let of = match random.once_in(2) {
            true => types[table],
            false => *random.one_of(&types),
        };
        let value = of.sample(F::DIALECT, &mut random);
        if fits(of_table(&anna, table), &value) {
            rows.push(TypedRow { table, id, value });
        }
    }
    assert!(rows.len() > 500, "{}", rows.len());
    let inserted = upload(&mut anna, &names, &rows, None).await;
    assert!(inserted.lost.is_empty(), "{:?}", inserted.lost);
    assert!(inserted.made.len() > 10, "{}", inserted.made.len());
    rows.retain(|row| !inserted.refused.contains(&row.id));
    let mut before = current(&rows, &inserted);
    for row in &mut rows {
        let value = types[row.table].sample(F::DIALECT, &mut random);
        if fits(of_table(&anna, row.table), &value) {
            row.value = value;
        }
    }
    let updated = upload(&mut anna, &names, &rows, Some(&before)).await;
    assert!(updated.lost.is_empty(), "{:?}", updated.lost);
    for row in rows.iter().filter(|row| !updated.refused.contains(&row.id)) {
        before.insert(row.id, row.value.clone());
    }
    before.extend(updated.made);
    rows.iter_mut()
        .for_each(|row| row.value = before[&row.id].clone());
    let deleted = upload(&mut anna, &names, &rows, Some(&BTreeMap::new())).await;
    assert!(deleted.lost.is_empty(), "{:?}", deleted.lost);
    for name in &names {
        let count = format!("SELECT count(*) FROM {name}");
        assert_eq!(world.fixture.query(&count).await, ["0"], "{name}");
    }
}

/// Whether a remote's table can have a value.
fn fits(column_type: ColumnType, value: &Value) -> bool {
    column_type.datum(value.as_ref()).1 != Fit::Unfit
}

/// What the rows are after an upload.
fn current(rows: &[TypedRow], outcome: &OutcomeById) -> BTreeMap<i64, Value> {
    let rows = rows.iter().map(|row| {
        let made = outcome.made.get(&row.id);
        (row.id, made.unwrap_or(&row.value).clone())
    });
    rows.collect()
}

/// What came of an upload, by the rows' ids.
#[derive(Default)]
struct OutcomeById {
    refused: BTreeSet<i64>,
    made: BTreeMap<i64, Value>,
    /// Conflicts, as text.
    lost: Vec<String>,
}

/// Uploads rows: inserts, updates of rows with those values before, or deletes of those that have
/// none.
async fn upload(
    remote: &mut TestRemote,
    names: &[String],
    rows: &[TypedRow],
    before: Option<&BTreeMap<i64, Value>>,
) -> OutcomeById {
    let schema = remote.schema.clone();
    let tables = names.iter().enumerate().map(|(number, name)| {
        let table = schema.table(name).unwrap();
        let shape = table.shape();
        let mut writer = RowsWriter::new(&shape);
        for row in rows.iter().filter(|row| row.table == number) {
            let values = |value: &Value| vec![Value::Integer(row.id), value.clone()];
            let now = values(&row.value);
            match before.map(|before| before.get(&row.id)) {
                None => writer.row(Op::Insert, &datums(table, &now)),
                Some(Some(before)) => {
                    writer.update(&datums(table, &values(before)), &datums(table, &now));
                }
                Some(None) => writer.delete(&datums(table, &now)),
            }
        }
        UploadTable {
            begin: TableBegin::for_table(table),
            chunks: vec![UploadChunk::from_packed(&table.shape(), writer.take()).unwrap()],
        }
    });
    let tables = tables.collect();
    let mut upload = remote.next_upload(&[]);
    upload.tables = tables;
    match remote.apply(upload).await {
        UploadOutcome::Applied { result, .. } => outcome(remote, &result),
        other => panic!("{other:?}"),
    }
}

fn outcome(remote: &TestRemote, result: &UploadResult) -> OutcomeById {
    let lines = result_text(&remote.schema, result).into_iter().skip(1);
    let is_lost = |line: &String| line.starts_with("conflict") || line.starts_with("gone");
    let mut outcome = OutcomeById {
        lost: lines.filter(is_lost).collect(),
        ..OutcomeById::default()
    };
    for of_table in &result.tables {
        let shape = remote.schema.table(&of_table.begin.table).unwrap().shape();
        let mut reader = RowsReader::new(&shape, &of_table.rows);
        let mut row = UnpackedRow::default();
        while reader.next(&mut row).unwrap() {
            let Value::Integer(id) = row.key[0].to_value() else {
                panic!("{:?}", row.key);
            };
            match row.op {
                Some(Op::Refused) => {
                    outcome.refused.insert(id);
                }
                Some(Op::Made) => {
                    outcome.made.insert(id, row.new[1].to_value());
                }
                _ => {}
            }
        }
    }
    outcome
}
