//! The differential test of tracking: the same random history of an application's statements
//! on a remote and on a plain copy of it without our triggers. Every statement succeeds or
//! fails alike, the tables end alike, and the uploads are the net changes of the copy.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::select;
use tidewater_protocol::{ForeignKey, ForeignKeyAction};

use super::super::quote;
use super::*;

/// The types of key columns, each with values to choose from.
const KEY_TYPES: [(ColumnType, [&str; 4]); 6] = [
    (ColumnType::Integer, ["0", "1", "-7", "9223372036854775807"]),
    (ColumnType::Text, ["'a'", "'A'", "''", "'\u{e4}'"]),
    (
        ColumnType::Uuid,
        [
            "'00000000-0000-0000-0000-000000000000'",
            "'0f8fad5b-d9cb-469f-a165-70867728950e'",
            "'0f8fad5b-d9cb-469f-a165-70867728950f'",
            "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
        ],
    ),
    (ColumnType::Bytes, ["x''", "x'00'", "x'0001'", "x'ff'"]),
    (
        ColumnType::Decimal { scale: Some(2) },
        ["'0.00'", "'1.50'", "'-1.50'", "'10.00'"],
    ),
    (
        ColumnType::TimestampTz,
        [
            "'1970-01-01T00:00:00.000000Z'",
            "'2024-02-29T12:00:00.000000Z'",
            "'infinity'",
            "'9999-12-31T23:59:59.999999Z'",
        ],
    ),
];

/// Indexes that an application may add, over `name` and `amount`.
const UNIQUE: [&str; 6] = [
    "",
    "(name)",
    "(name, amount)",
    "(lower(name), amount % 2)",
    "(name COLLATE NOCASE DESC)",
    "(amount) WHERE name IS NOT NULL",
];

/// Triggers that an application may have. `A` and `B` are the tables, `k0` is the first column of
/// their key. None gives several rows values of each other: see [`Choice::sql`].
const TRIGGERS: [&str; 8] = [
    "CREATE TRIGGER audit AFTER UPDATE ON A BEGIN INSERT INTO audit VALUES (OLD.name); END",
    "CREATE TRIGGER stock AFTER INSERT ON B BEGIN \
     UPDATE A SET amount = amount - 1000000; END",
    "CREATE TRIGGER before_all BEFORE UPDATE OF name ON A BEGIN \
     UPDATE B SET amount = amount + 1000000 WHERE name IS NEW.name; END",
    "CREATE TRIGGER replaces AFTER DELETE ON B BEGIN \
     INSERT OR REPLACE INTO A (k0, name, amount) VALUES (OLD.k0, OLD.name, OLD.amount); END",
    "CREATE TRIGGER deletes BEFORE INSERT ON A BEGIN DELETE FROM B WHERE name = NEW.name; END",
    "CREATE TRIGGER own AFTER INSERT ON A WHEN NEW.amount = 1 BEGIN \
     UPDATE A SET amount = 3 WHERE k0 = NEW.k0 AND name IS NEW.name AND amount = 1; END",
    "CREATE TRIGGER forbids BEFORE DELETE ON A WHEN OLD.amount = 2 BEGIN \
     SELECT RAISE(ABORT, 'no'); END",
    "CREATE TRIGGER ignores BEFORE UPDATE ON B WHEN NEW.amount = 2 BEGIN \
     SELECT RAISE(IGNORE); END",
];

const ACTIONS: [ForeignKeyAction; 5] = [
    ForeignKeyAction::NoAction,
    ForeignKeyAction::Restrict,
    ForeignKeyAction::Cascade,
    ForeignKeyAction::SetNull,
    ForeignKeyAction::SetDefault,
];

/// How the application's file is made.
#[derive(Clone, Debug)]
struct Shape {
    /// Key types of both tables, as indexes into [`KEY_TYPES`].
    key: Vec<usize>,
    /// `B` refers to `A` (or to itself) by these actions.
    reference: Option<(bool, ForeignKeyAction, ForeignKeyAction)>,
    unique: [&'static str; 2],
    triggers: Vec<&'static str>,
    /// The application has rebuilt `A` with a rowid.
    with_rowid: bool,
    foreign_keys: bool,
    recursive_triggers: bool,
}

fn shape() -> impl Strategy<Value = Shape> {
    let reference = (any::<bool>(), select(&ACTIONS[..]), select(&ACTIONS[..]));
    (
        prop::collection::vec(0..KEY_TYPES.len(), 1..4),
        prop::option::weighted(0.8, reference),
        [select(&UNIQUE[..]), select(&UNIQUE[..])],
        prop::sample::subsequence(TRIGGERS.to_vec(), 0..4),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.9),
        any::<bool>(),
    )
        .prop_map(
            |(key, reference, unique, triggers, with_rowid, foreign_keys, recursive_triggers)| {
                Shape {
                    // Without a BEFORE trigger, SQLite lets REPLACE into a table that refers to
                    // itself by SET NULL or SET DEFAULT leave references to nothing; with one it
                    // does not.
                    reference: reference.map(|(own, on_delete, on_update)| match on_delete {
                        ForeignKeyAction::SetNull | ForeignKeyAction::SetDefault => {
                            (false, on_delete, on_update)
                        }
                        _ => (own, on_delete, on_update),
                    }),
                    // The trigger `replaces` knows no other key. With it and SET NULL, too,
                    // SQLite lets a REPLACE leave references to nothing, unless there are other
                    // triggers.
                    triggers: triggers
                        .into_iter()
                        .filter(|sql| {
                            let sets_null =
                                matches!(reference, Some((_, ForeignKeyAction::SetNull, _)));
                            key.len() == 1 && !sets_null || !sql.contains("replaces")
                        })
                        .collect(),
                    key,
                    unique,
                    with_rowid,
                    foreign_keys,
                    recursive_triggers,
                }
            },
        )
}

impl Shape {
    fn schema(&self) -> PublicationSchema {
        let key_len = self.key.len();
        let columns = |child: bool| {
            let key = self.key.iter().enumerate();
            let mut columns: Vec<Column> = key
                .clone()
                .map(|(n, &kind)| column(&format!("k{n}"), KEY_TYPES[kind].0, false))
                .collect();
            columns.push(column("name", ColumnType::Text, true));
            columns.push(column("amount", ColumnType::Integer, true));
            if child {
                columns.extend(key.map(|(n, &kind)| Column {
                    default: Some(KEY_TYPES[kind].1[0].to_owned()),
                    ..column(&format!("r{n}"), KEY_TYPES[kind].0, true)
                }));
            }
            columns
        };
        let parent = table("A", columns(false), (0..key_len).collect());
        let mut child = table("B", columns(true), (0..key_len).collect());
        if let Some((own, on_delete, on_update)) = self.reference {
            child.foreign_keys = vec![ForeignKey {
                columns: (key_len + 2..2 * key_len + 2).collect(),
                parent: if own { "B" } else { "A" }.into(),
                parent_columns: (0..key_len).map(|n| format!("k{n}")).collect(),
                on_delete,
                on_update,
            }];
        }
        publication(vec![parent, child])
    }

    /// What the application adds to the file.
    fn ddl(&self) -> String {
        let mut ddl = vec![
            "CREATE TABLE audit (x)".to_owned(),
            "CREATE VIEW seen AS SELECT * FROM A".to_owned(),
            "CREATE TRIGGER through_view INSTEAD OF UPDATE ON seen BEGIN \
             UPDATE A SET name = NEW.name WHERE k0 = OLD.k0; END"
                .to_owned(),
        ];
        if self.with_rowid {
            let keys: Vec<String> = (0..self.key.len()).map(|n| format!("k{n}")).collect();
            let columns = quote::list(keys.iter().zip(&self.key), ", ", |(name, &kind)| {
                let declared = KEY_TYPES[kind].0.sqlite_type();
                format!("{name} {declared} NOT NULL")
            });
            ddl.push(format!(
                "PRAGMA foreign_keys = OFF; DROP VIEW seen; DROP TABLE A; CREATE TABLE A ({columns}, name TEXT, \
                 amount INTEGER, PRIMARY KEY ({})); CREATE VIEW seen AS SELECT * FROM A",
                keys.join(", ")
            ));
        }
        for (name, terms) in ["A", "B"].iter().zip(self.unique) {
            if !terms.is_empty() {
                ddl.push(format!("CREATE UNIQUE INDEX own_{name} ON {name} {terms}"));
            }
        }
        ddl.extend(self.triggers.iter().map(|sql| (*sql).to_owned()));
        ddl.join(";\n")
    }

    fn open(&self, path: &std::path::Path) -> Connection {
        let connection = Connection::open(path).unwrap();
        for (pragma, on) in [
            ("foreign_keys", self.foreign_keys),
            ("recursive_triggers", self.recursive_triggers),
        ] {
            connection.pragma_update(None, pragma, on).unwrap();
        }
        connection
    }
}

/// A statement whose values are chosen when the shape is known.
#[derive(Clone, Debug)]
struct Choice {
    kind: usize,
    clause: &'static str,
    child: bool,
    picks: [usize; 8],
}

#[derive(Clone, Debug)]
enum Step {
    Run(Choice),
    /// Several statements in a transaction; how it ends.
    Transaction(Vec<Choice>, &'static str),
    /// Takes an upload; the next step that needs its end acknowledges it.
    Take,
    Acknowledge,
}

fn step() -> impl Strategy<Value = Step> {
    let clauses = [
        "",
        "OR REPLACE",
        "OR IGNORE",
        "OR FAIL",
        "OR ABORT",
        "OR ROLLBACK",
    ];
    let choice = (
        0..STATEMENTS,
        select(clauses.to_vec()),
        any::<bool>(),
        prop::array::uniform8(0..4usize),
    );
    let choice = choice.prop_map(|(kind, clause, child, picks)| Choice {
        kind,
        clause,
        child,
        picks,
    });
    let ends = [
        "COMMIT",
        "ROLLBACK",
        "ROLLBACK TO s; COMMIT",
        "ROLLBACK TO s; RELEASE s; COMMIT",
        "RELEASE s; COMMIT",
    ];
    prop_oneof![
        10 => choice.clone().prop_map(Step::Run),
        3 => (prop::collection::vec(choice, 1..4), select(ends.to_vec()))
            .prop_map(|(choices, end)| Step::Transaction(choices, end)),
        1 => Just(Step::Take),
        1 => Just(Step::Acknowledge),
    ]
}

const STATEMENTS: usize = 17;

impl Choice {
    fn sql(&self, shape: &Shape) -> String {
        let Choice { clause, picks, .. } = self;
        let table = if self.child { "B" } else { "A" };
        let other = if self.child { "A" } else { "B" };
        let key_len = shape.key.len();
        let value = |n: usize, pick: usize| KEY_TYPES[shape.key[n]].1[pick];
        let keys = quote::list(0..key_len, ", ", |n| format!("k{n}"));
        let key = quote::list(0..key_len, ", ", |n| value(n, picks[n]).to_owned());
        let is_key = quote::list(0..key_len, " AND ", |n| {
            format!("k{n} = {}", value(n, picks[n]))
        });
        let last = key_len - 1;
        let new_last = value(last, picks[4]);
        let name = ["'a'", "'A'", "'b'", "NULL"][picks[5]];
        let amount = picks[6];
        let refers = match self.child {
            true => quote::list(0..key_len, "", |n| match picks[7] {
                0 => ", NULL".to_owned(),
                pick => format!(", {}", value(n, pick)),
            }),
            false => String::new(),
        };
        let (columns, values) = match self.child {
            true => (
                format!(
                    "({keys}, name, amount{})",
                    quote::list(0..key_len, "", |n| format!(", r{n}"))
                ),
                format!("({key}, {name}, {amount}{refers})"),
            ),
            false => (
                format!("({keys}, name, amount)"),
                format!("({key}, {name}, {amount})"),
            ),
        };
        match self.kind {
            0 | 1 => format!("INSERT {clause} INTO {table} {columns} VALUES {values}"),
            2 => format!("REPLACE INTO {table} {columns} VALUES {values}"),
            3 => format!(
                "INSERT INTO {table} {columns} VALUES {values} ON CONFLICT ({keys}) \
                 DO UPDATE SET name = excluded.name, amount = {table}.amount + 1"
            ),
            4 => format!(
                "INSERT INTO {table} {columns} VALUES {values} ON CONFLICT DO UPDATE \
                 SET k{last} = {new_last}"
            ),
            5 => format!("INSERT INTO {table} {columns} VALUES {values} ON CONFLICT DO NOTHING"),
            6 => format!("UPDATE {clause} {table} SET name = {name} WHERE {is_key}"),
            7 => format!("UPDATE {clause} {table} SET k{last} = {new_last} WHERE {is_key}"),
            8 => format!(
                "UPDATE {clause} {table} SET k{last} = {new_last}, name = {name} \
                 WHERE amount = {amount} AND {is_key}"
            ),
            // No row gets a value that another one has: which of them gives way would depend on
            // the order in which SQLite visits them, and that on triggers.
            9 => format!(
                "UPDATE {clause} {table} SET amount = amount \
                 + (SELECT max(amount) - min(amount) + 1 FROM {table})"
            ),
            10 => format!("DELETE FROM {table} WHERE {is_key}"),
            11 => format!("DELETE FROM {table} WHERE amount = {amount}"),
            12 => format!("DELETE FROM {table}"),
            // Sorted by what no index has: SQLite by itself may read rows that a trigger of the
            // user writes into the other table meanwhile, and so never come to an end.
            13 => format!(
                "INSERT {clause} INTO {table} ({keys}, name, amount) \
                 SELECT {keys}, {name}, amount FROM {other} ORDER BY {}",
                quote::list(0..key_len, ", ", |n| format!("k{n} || ''"))
            ),
            14 => format!(
                "UPDATE {clause} {table} SET name = o.name, amount = o.amount FROM {other} AS o \
                 WHERE {table}.k0 = o.k0"
            ),
            15 => format!("UPDATE seen SET name = {name} WHERE amount = {amount}"),
            _ => format!(
                "WITH n (x) AS (VALUES ({amount}), (1)) UPDATE {clause} {table} SET amount = \
                 (SELECT max(x) FROM n), name = {name} WHERE {is_key} OR amount > 2 RETURNING *"
            ),
        }
    }
}

impl Step {
    fn sql(&self, shape: &Shape) -> Option<String> {
        match self {
            Step::Run(choice) => Some(choice.sql(shape)),
            Step::Transaction(choices, end) => {
                let mut statements = vec!["BEGIN".to_owned()];
                for (index, choice) in choices.iter().enumerate() {
                    if index == choices.len() / 2 {
                        statements.push("SAVEPOINT s".to_owned());
                    }
                    statements.push(choice.sql(shape));
                }
                statements.push((*end).to_owned());
                Some(statements.join(";\n"))
            }
            Step::Take | Step::Acknowledge => None,
        }
    }
}

/// The rows of all tables, by table and key.
type Rows = BTreeMap<(String, String), Vec<Value>>;

fn rows(connection: &Connection, schema: &PublicationSchema) -> Rows {
    let mut rows = Rows::new();
    for table in &schema.tables {
        let columns = quote::list(&table.columns, ", ", |column| quote::name(&column.name));
        let mut statement = connection
            .prepare(&format!("SELECT {columns} FROM {}", table.name))
            .unwrap();
        let mut found = statement.query([]).unwrap();
        while let Some(row) = found.next().unwrap() {
            let values = super::super::row::owned(row, 0, table.columns.len()).unwrap();
            let key = format!("{:?}", &values[..table.key.len()]);
            assert!(rows.insert((table.name.clone(), key), values).is_none());
        }
    }
    rows
}

fn difference(before: &Rows, after: &Rows) -> Vec<Change> {
    let mut keys: Vec<_> = before.keys().chain(after.keys()).collect();
    keys.sort();
    keys.dedup();
    let changes = keys.into_iter().filter_map(|key| {
        let (op, old, new) = match (before.get(key), after.get(key)) {
            (Some(old), Some(new)) if old != new => (Op::Update, old.clone(), new.clone()),
            (None, Some(new)) => (Op::Insert, Vec::new(), new.clone()),
            (Some(old), None) => (Op::Delete, old.clone(), Vec::new()),
            _ => return None,
        };
        Some(Change {
            table: key.0.clone(),
            op,
            old,
            new,
        })
    });
    sorted(changes.collect())
}

fn sorted(mut changes: Vec<Change>) -> Vec<Change> {
    changes.sort_by_key(|change| format!("{change:?}"));
    changes
}

fn check(shape: &Shape, steps: &[Step]) {
    let schema = shape.schema();
    let mut remote = Remote::new(schema.clone());
    remote.run(&shape.ddl());
    remote.begin();
    let copy = remote.folder.path().join("copy.db");
    remote.run(&format!("VACUUM INTO '{}'", copy.display()));
    let ours = "SELECT 'DROP TRIGGER ' || name FROM sqlite_master WHERE type = 'trigger' \
                AND name GLOB 'tidewater_*'";
    for sql in remote.query(ours) {
        Connection::open(&copy)
            .unwrap()
            .execute_batch(&format!("{sql};"))
            .unwrap();
    }
    let mut synced = Rows::new();
    let mut taken: Option<Rows> = None;
    for step in steps {
        if let Some(sql) = step.sql(shape) {
            let run = |path: &std::path::Path| {
                let result = shape.open(path).execute_batch(&sql);
                result.map_err(|error| error.to_string())
            };
            assert_eq!(run(&remote.path()), run(&copy), "{sql}");
            let now = rows(&remote.application(), &schema);
            assert_eq!(
                now,
                rows(&Connection::open(&copy).unwrap(), &schema),
                "{sql}"
            );
            continue;
        }
        let now = taken
            .take()
            .unwrap_or_else(|| rows(&Connection::open(&copy).unwrap(), &schema));
        let upload = by_key(&schema, remote.upload());
        assert_eq!(sorted(upload), difference(&synced, &now));
        if remote.begin().taken.is_none() {
            assert_eq!(synced, now);
        } else if matches!(step, Step::Take) {
            taken = Some(now);
        } else {
            remote.acknowledge(|_| {});
            synced = now;
        }
    }
    let now = taken.unwrap_or_else(|| rows(&Connection::open(&copy).unwrap(), &schema));
    let upload = by_key(&schema, remote.upload());
    assert_eq!(sorted(upload), difference(&synced, &now));
}

fn cases() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig {
        // PROPTEST_CASES makes more of them.
        cases: usual.cases / 4,
        failure_persistence: None,
        ..usual
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn any_history_over_any_tables_is_uploaded_as_its_net_changes(
        shape in shape(),
        steps in prop::collection::vec(step(), 1..24),
    ) {
        check(&shape, &steps);
    }
}
