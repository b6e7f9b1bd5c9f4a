//! Golden texts: every statement on the server's own tables, and the tables, as a database spells
//! them; and those that write uploaded rows.

use std::fmt::Write as _;
use std::path::Path;

use tidewater_centre::engine::sql::column::SqlTable;
use tidewater_centre::engine::sql::row_statements::{
    FoundBy, ImageColumn, ImageParameters, JointPart, PreImage, RowImage, TakenRow, joint,
    key_columns,
};
use tidewater_centre::engine::sql::served_table::{ChildKey, LogColumns, TableAdapter, TableRule};
use tidewater_centre::engine::sql::sql_dialect::{RowLock, SqlDialect, WriteStrategy};
use tidewater_centre::engine::sql::system_dialect::SystemDialect;
use tidewater_centre::engine::sql::{system, tables};
use tidewater_protocol::Op;

/// Writes the golden file instead of comparing with it, if it is 1.
const WRITE: &str = "TIDEWATER_WRITE_GOLDEN";

/// Compares how a database spells everything with a golden file.
///
/// # Panics
/// They differ.
pub fn check_spelling(dialect: &dyn SystemDialect, golden: &Path) {
    compare(spell_all(dialect), golden);
}

/// The same for the statements that write uploaded rows of a table, and look for what these meet. Its
/// first columns are its key, and the second one is its partition.
///
/// # Panics
/// They differ.
pub fn check_row_statements<T: TableAdapter>(
    dialect: &dyn SqlDialect,
    table: SqlTable<'_, T::Column>,
    golden: &Path,
) {
    let mut all = String::new();
    for (name, sql) in spell_row_statements::<T>(dialect, table) {
        let _ = writeln!(all, "-- {name}\n{sql};\n");
    }
    compare(all, golden);
}

fn compare(spelled: String, golden: &Path) {
    if std::env::var(WRITE).is_ok_and(|it| it == "1") {
        let folder = golden.parent().expect("a golden file is in a folder");
        std::fs::create_dir_all(folder).expect("the folder of the golden file");
        std::fs::write(golden, spelled).expect("the golden file is written");
        return;
    }
    let expected = std::fs::read_to_string(golden).unwrap_or_default();
    let mut lines = expected.lines().zip(spelled.lines());
    let differing = lines.find(|(expected, spelled)| expected != spelled);
    assert!(
        expected == spelled,
        "{} has other texts, the first at {differing:?}; look at what {WRITE}=1 makes of it",
        golden.display()
    );
}

fn spell_all(dialect: &dyn SystemDialect) -> String {
    let mut all = String::new();
    let journal = &tables::DEPLOYMENT_STEP;
    for table in tables::ALL.iter().copied().chain([journal]) {
        for statement in dialect.create_table(table) {
            all.push_str(&statement);
            all.push_str(";\n");
        }
        all.push('\n');
    }
    for (group, statements) in system::ALL {
        for (name, statement) in *statements {
            // Where lines are broken says nothing.
            let spelled = dialect.spell(*statement);
            let words: Vec<&str> = spelled.split_whitespace().collect();
            let _ = writeln!(all, "-- {group}::{name}\n{};\n", words.join(" "));
        }
    }
    all
}

fn spell_row_statements<T: TableAdapter>(
    dialect: &dyn SqlDialect,
    table: SqlTable<'_, T::Column>,
) -> Vec<(&'static str, String)> {
    let columns = 0..table.columns.len();
    let all: Vec<usize> = columns.clone().collect();
    let rest: Vec<usize> = columns.skip(table.key.len()).collect();
    let of = |image: RowImage, columns: &[usize]| -> Vec<ImageColumn> {
        columns.iter().map(|&it| (image, it)).collect()
    };
    let source = |columns: Vec<ImageColumn>| ImageParameters::new::<T::Rows>(table, columns, 1);
    let key = source(key_columns(&table));
    let inserted = source(of(RowImage::New, &all));
    let updated = source([of(RowImage::Old, &all), of(RowImage::New, &rest)].concat());
    let moved = source([of(RowImage::Old, &all), of(RowImage::New, &all)].concat());
    let deleted = source(of(RowImage::Old, &all));
    let compared = source([key_columns(&table), of(RowImage::New, &rest)].concat());
    let mut filled = vec![None; table.columns.len()];
    filled[rest[0]] = Some("7".to_owned());
    let pre_image = PreImage {
        sent: &all,
        read_only: &[],
    };
    let referring = source(of(RowImage::New, table.key));
    let joined = format!("{} t", table.sql_name);
    let mut spelled = vec![(
        "without_parent",
        referring.without_parent(&table, table.key),
    )];
    if let Some(lock) = dialect.row_lock(RowLock::Change) {
        spelled.push(("lock_by_key", key.lock_by_key(lock)));
    }
    let clause = dialect.insert_clause();
    match dialect.write_strategy() {
        WriteStrategy::Sets => {
            let lock = dialect.row_lock(RowLock::Reference).unwrap_or_default();
            let part = |op| JointPart {
                source: match op {
                    Op::Insert => source(of(RowImage::New, &all)),
                    Op::Update => {
                        source([of(RowImage::Old, &all), of(RowImage::New, &rest)].concat())
                    }
                    _ => source(of(RowImage::Old, &all)),
                },
                op,
                changed: &rest,
                filled: &filled,
                pre_image,
            };
            let by_pre_image = FoundBy::PreImage(pre_image);
            let old = FoundBy::Key(RowImage::Old);
            spelled.extend([
                ("read_by_key", compared.read_by_key(&joined, "t.*", &rest)),
                (
                    "insert",
                    inserted.insert(&filled, clause, TakenRow::PassedOver),
                ),
                (
                    "insert strictly",
                    inserted.insert(&filled, clause, TakenRow::Fails),
                ),
                (
                    "log_moved",
                    inserted.log_moved(&moved_rule::<T>()).unwrap_or_default(),
                ),
                ("update", updated.update(&rest, by_pre_image)),
                ("update by key", updated.update(&rest, old)),
                ("update the key", moved.update(&all, by_pre_image)),
                ("violating", updated.violating(&rest, "r.x < 0")),
                ("delete", deleted.delete(Some(pre_image))),
                ("delete by key", deleted.delete(None)),
                ("deletable", deleted.deletable(Some(pre_image), lock)),
                ("parents", key.parents(&children())),
                (
                    "joint",
                    joint(
                        &[part(Op::Delete), part(Op::Update), part(Op::Insert)],
                        clause,
                    ),
                ),
            ]);
        }
        WriteStrategy::Rows => {
            let updated = source([key_columns(&table), of(RowImage::New, &rest)].concat());
            spelled.extend([
                ("read_by_key", key.read_by_key(&joined, "t.*", &[])),
                ("insert", inserted.insert_one(&filled, "")),
                ("update", updated.update_one(&rest, "")),
                ("delete", key.delete_one()),
                ("children", key.children(&children()).join(";\n")),
            ]);
        }
    }
    spelled
}

/// Children in another table, and in the same one.
fn children() -> [ChildKey; 2] {
    [false, true].map(|is_same_table| ChildKey {
        table: "child".into(),
        refers: "t.a = c.parent".into(),
        key: vec!["c.id".into()],
        is_same_table,
    })
}

fn moved_rule<T: TableAdapter>() -> TableRule<T> {
    TableRule {
        log: None,
        log_id: 5,
        log_columns: LogColumns {
            partition: vec!["c0".into()],
            key: vec!["c1".into()],
        },
        alias: "t".into(),
        columns: Vec::new(),
        own: vec![1],
        windows: Vec::new(),
        from: "t".into(),
    }
}
