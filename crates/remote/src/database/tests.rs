//! Facts about the remote database, on real files. What the tests share is here.

mod adopting;
mod altered;
mod applying;
mod comparing;
mod conflicts;
mod files;
mod gaps;
mod history;
mod kept;
mod leaving;
mod made;
mod migration;
mod model;
mod new_keys;
mod obstacles;
mod old_library;
mod outbox;
mod refusals;
mod rekeyed;
mod restoring;
mod tracking;
mod uncompared;
mod uploading;
mod ways;

use std::path::PathBuf;

use rusqlite::Connection;
use tempfile::TempDir;
use tidewater_protocol::message::TableBegin;
use tidewater_protocol::{
    Column, ColumnType, Datum, Direction, Op, PublicationSchema, RowsReader, RowsWriter, Table,
    UnpackedRow, UploadId, Value,
};

use super::{Applier, ApplySummary, RemoteDatabase, SubscriptionState, UploadCursor};
use crate::RemoteError;
use crate::session::SyncDirection;

/// A remote with one subscription, and the application beside it.
struct Remote {
    database: Option<RemoteDatabase>,
    schema: PublicationSchema,
    folder: TempDir,
    next_upload_id: u8,
}

/// One change of an upload, with values as the remote stores them.
#[derive(Clone, Debug, PartialEq)]
struct Change {
    table: String,
    op: Op,
    old: Vec<Value>,
    new: Vec<Value>,
}

impl Remote {
    /// A remote that has synced once and holds nothing yet.
    fn new(schema: PublicationSchema) -> Remote {
        Remote::encoded(schema, "UTF-8")
    }

    /// The same, with text in this encoding.
    fn encoded(schema: PublicationSchema, encoding: &str) -> Remote {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("remote.db");
        let application = Connection::open(&path).unwrap();
        // An empty file forgets its encoding.
        application
            .execute_batch(&format!(
                "PRAGMA encoding = '{encoding}'; CREATE TABLE t (x); DROP TABLE t"
            ))
            .unwrap();
        let mut database = RemoteDatabase::open(&path).unwrap();
        database
            .subscribe("tcp://127.0.0.1", "ann", &[&schema.name])
            .unwrap();
        let mut remote = Remote {
            database: Some(database),
            schema: schema.clone(),
            folder,
            next_upload_id: 0,
        };
        remote.download_schema(Some(schema), |_| {});
        assert_eq!(remote.query("PRAGMA encoding"), [encoding]);
        remote
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("remote.db")
    }

    /// A connection as an application has it, foreign keys enforced.
    fn application(&self) -> Connection {
        let connection = Connection::open(self.path()).unwrap();
        connection
            .pragma_update(None, "foreign_keys", true)
            .unwrap();
        connection
    }

    /// Runs SQL as the application.
    fn run(&self, sql: &str) {
        self.application().execute_batch(sql).unwrap();
    }

    /// The error that SQL of the application gets.
    fn fails(&self, sql: &str) -> String {
        self.application()
            .execute_batch(sql)
            .unwrap_err()
            .to_string()
    }

    fn database(&self) -> &RemoteDatabase {
        self.database.as_ref().unwrap()
    }

    fn database_mut(&mut self) -> &mut RemoteDatabase {
        self.database.as_mut().unwrap()
    }

    /// Begins a sync that takes what is pending, also what would wait for a compare.
    fn begin(&mut self) -> SubscriptionState {
        self.begin_in(SyncDirection::UploadOnly)
    }

    fn begin_in(&mut self, direction: SyncDirection) -> SubscriptionState {
        let Remote {
            database,
            next_upload_id,
            ..
        } = self;
        let mut new_upload_id = || {
            *next_upload_id += 1;
            UploadId([*next_upload_id; 16])
        };
        let database = database.as_mut().unwrap();
        let mut states = database
            .begin_sync(direction, false, &mut new_upload_id)
            .unwrap();
        states.remove(0)
    }

    /// What the next upload says; taken, not acknowledged.
    fn upload(&mut self) -> Vec<Change> {
        let state = self.begin();
        self.changes(&state)
    }

    fn packed_upload(&self, state: &SubscriptionState) -> Vec<(TableBegin, Vec<u8>)> {
        let mut cursor = UploadCursor::default();
        let mut tables: Vec<(TableBegin, Vec<u8>)> = Vec::new();
        while let Some(chunk) = self.database().upload_chunk(state, &mut cursor).unwrap() {
            match chunk.begin {
                Some(begin) => tables.push((begin, chunk.rows)),
                None => tables.last_mut().unwrap().1.extend(chunk.rows),
            }
        }
        tables
    }

    fn changes(&self, state: &SubscriptionState) -> Vec<Change> {
        let tables = self.packed_upload(state);
        let mut changes = Vec::new();
        for (begin, packed) in &tables {
            let shape = state
                .schema
                .as_ref()
                .unwrap()
                .table(&begin.table)
                .unwrap()
                .shape();
            let mut reader = RowsReader::new(&shape, packed);
            let mut row = UnpackedRow::default();
            while reader.next(&mut row).unwrap() {
                let values = |datums: &[Datum<'_>]| datums.iter().map(Datum::to_value).collect();
                changes.push(Change {
                    table: begin.table.clone(),
                    op: row.op.unwrap(),
                    old: values(&row.old),
                    new: values(&row.new),
                });
            }
        }
        changes
    }

    fn applier(&mut self, schema: Option<PublicationSchema>) -> Applier {
        let state = self.begin();
        self.applier_of(&state, schema)
    }

    fn applier_of(
        &mut self,
        state: &SubscriptionState,
        schema: Option<PublicationSchema>,
    ) -> Applier {
        let database = self.database.take().unwrap();
        let expected = std::slice::from_ref(state);
        database.begin_apply(expected, &[schema]).unwrap()
    }

    fn commit(&mut self, applier: Applier) -> ApplySummary {
        let (database, summary) = applier.commit(1_000);
        self.database = Some(database);
        summary.unwrap()
    }

    /// Takes and acknowledges what is pending, with what the result says.
    fn acknowledge(&mut self, result: impl FnOnce(&mut Sender<'_>)) -> ApplySummary {
        let mut applier = self.applier(None);
        applier.result_begin(0).unwrap();
        let schema = self.schema.clone();
        result(&mut Sender {
            applier: &mut applier,
            schema: &schema,
        });
        applier.result_end().unwrap();
        self.commit(applier)
    }

    /// The same, where the update of item 1 is refused.
    fn acknowledge_refused_item(&mut self) -> ApplySummary {
        self.acknowledge(|server| {
            server.table("item", |rows| {
                rows.refused(&[Datum::Integer(1)], Op::Update, 703, "no");
            });
        })
    }

    fn download(&mut self, rows: impl FnOnce(&mut Sender<'_>)) -> ApplySummary {
        self.download_schema(None, rows)
    }

    fn download_schema(
        &mut self,
        schema: Option<PublicationSchema>,
        rows: impl FnOnce(&mut Sender<'_>),
    ) -> ApplySummary {
        let state = self.begin();
        self.download_into(&state, schema, rows)
    }

    /// A download of the sync that began with this state.
    fn download_into(
        &mut self,
        state: &SubscriptionState,
        schema: Option<PublicationSchema>,
        rows: impl FnOnce(&mut Sender<'_>),
    ) -> ApplySummary {
        let mut applier = self.applier_of(state, schema.clone());
        if let Some(schema) = schema {
            self.schema = schema;
        }
        applier.download_begin(0, false).unwrap();
        let schema = self.schema.clone();
        rows(&mut Sender {
            applier: &mut applier,
            schema: &schema,
        });
        applier.download_end(b"checkpoint").unwrap();
        self.commit(applier)
    }

    /// The first column of a query, as text.
    fn query(&self, sql: &str) -> Vec<String> {
        let application = self.application();
        let mut statement = application.prepare(sql).unwrap();
        let rows = statement
            .query_map([], |row| {
                let value: rusqlite::types::Value = row.get(0)?;
                Ok(match value {
                    rusqlite::types::Value::Null => "NULL".to_owned(),
                    rusqlite::types::Value::Integer(integer) => integer.to_string(),
                    rusqlite::types::Value::Real(real) => real.to_string(),
                    rusqlite::types::Value::Text(text) => text,
                    rusqlite::types::Value::Blob(blob) => format!("{blob:?}"),
                })
            })
            .unwrap();
        rows.collect::<rusqlite::Result<_>>().unwrap()
    }

    fn state(&self) -> SubscriptionState {
        self.database().subscriptions().unwrap().remove(0)
    }

    /// The values that are kept among the refused rows.
    fn kept_values(&self) -> Vec<String> {
        let refused = self.database().refused().unwrap().into_iter();
        refused.filter_map(|it| it.values).collect()
    }

    /// How many stale rows would be asked for.
    fn requested(&mut self) -> u64 {
        let state = self.begin();
        let requests = self.database().requests(&state).unwrap();
        requests.iter().map(|(begin, _)| begin.expected_rows).sum()
    }
}

/// What the server sends in an apply.
struct Sender<'a> {
    applier: &'a mut Applier,
    schema: &'a PublicationSchema,
}

impl Sender<'_> {
    fn table(&mut self, table: &str, rows: impl FnOnce(&mut RowsWriter<'_>)) {
        self.send(table, false, rows);
    }

    fn replace(&mut self, table: &str, rows: impl FnOnce(&mut RowsWriter<'_>)) {
        self.send(table, true, rows);
    }

    fn send(&mut self, table: &str, replace: bool, rows: impl FnOnce(&mut RowsWriter<'_>)) {
        let table = self.schema.table(table).unwrap();
        let begin = TableBegin {
            replace,
            ..TableBegin::for_table(table)
        };
        self.applier.table_begin(&begin).unwrap();
        let shape = table.shape();
        let mut writer = RowsWriter::new(&shape);
        rows(&mut writer);
        let packed = writer.take();
        // Cut anywhere: the applier puts rows together again.
        for piece in packed.chunks(7) {
            self.applier.rows(piece).unwrap();
        }
    }
}

fn column(name: &str, column_type: ColumnType, nullable: bool) -> Column {
    Column {
        name: name.into(),
        column_type,
        nullable,
        default: None,
    }
}

fn table(name: &str, columns: Vec<Column>, key: Vec<usize>) -> Table {
    Table {
        name: name.into(),
        columns,
        key,
        partition: Vec::new(),
        unique: Vec::new(),
        foreign_keys: Vec::new(),
        direction: Direction::Both,
        checks: Vec::new(),
        identity: None,
    }
}

fn publication(tables: Vec<Table>) -> PublicationSchema {
    PublicationSchema {
        name: "sales".into(),
        tables,
        transactional: false,
    }
}

/// `item(id, name, amount)`, partitioned by `amount`.
fn items() -> PublicationSchema {
    let mut item = table(
        "item",
        vec![
            column("id", ColumnType::Integer, false),
            column("name", ColumnType::Text, true),
            column("amount", ColumnType::Integer, true),
        ],
        vec![0],
    );
    item.partition = vec![2];
    publication(vec![item])
}

/// A row of [`items`].
fn item<'a>(id: i64, name: &'a str, amount: i64) -> [Datum<'a>; 3] {
    [
        Datum::Integer(id),
        Datum::Text(name),
        Datum::Integer(amount),
    ]
}

fn stored(datums: &[Datum<'_>]) -> Vec<Value> {
    datums.iter().map(Datum::to_value).collect()
}

fn insert(new: &[Datum<'_>]) -> Change {
    Change {
        table: "item".into(),
        op: Op::Insert,
        old: Vec::new(),
        new: stored(new),
    }
}

fn update(old: &[Datum<'_>], new: &[Datum<'_>]) -> Change {
    Change {
        table: "item".into(),
        op: Op::Update,
        old: stored(old),
        new: stored(new),
    }
}

fn delete(old: &[Datum<'_>]) -> Change {
    Change {
        table: "item".into(),
        op: Op::Delete,
        old: stored(old),
        new: Vec::new(),
    }
}

/// The same changes by key: a changed key is a row that goes and one that comes.
fn by_key(schema: &PublicationSchema, changes: Vec<Change>) -> Vec<Change> {
    let mut by_key = Vec::new();
    for change in changes {
        let key = &schema.table(&change.table).unwrap().key;
        let is_update = change.op == Op::Update;
        if !is_update || key.iter().all(|&at| change.old[at] == change.new[at]) {
            by_key.push(change);
            continue;
        }
        by_key.push(Change {
            op: Op::Delete,
            new: Vec::new(),
            ..change.clone()
        });
        by_key.push(Change {
            op: Op::Insert,
            old: Vec::new(),
            ..change
        });
    }
    let first = |change: &Change| match (change.old.first(), change.new.first()) {
        (Some(Value::Integer(first)), _) | (None, Some(Value::Integer(first))) => *first,
        _ => 0,
    };
    by_key.sort_by_key(first);
    by_key
}

/// A remote of [`items`] with the rows 1, 2 and 3, named a, b and c, amounts 10, 20, 30.
fn with_items() -> Remote {
    with_items_of(items())
}

fn with_items_of(schema: PublicationSchema) -> Remote {
    let mut remote = Remote::new(schema);
    remote.download(|server| {
        server.table("item", |rows| {
            rows.row(Op::Upsert, &item(1, "a", 10));
            rows.row(Op::Upsert, &item(2, "b", 20));
            rows.row(Op::Upsert, &item(3, "c", 30));
        });
    });
    remote
}
