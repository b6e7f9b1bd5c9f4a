//! What every database relies on in the tables and the statements.

use super::statement_shape::{SystemInsert, SystemSql, SystemUpdate, TakenKey};
use super::system_dialect::SystemDialect;
use super::system_table::SystemType;
use super::{system, tables};

/// A dialect that says where it is asked.
struct BracketDialect;

impl SystemDialect for BracketDialect {
    fn push_table(&self, sql: &mut String, name: &str) {
        sql.push_str(&format!("[{name}]"));
    }

    fn push_rows(&self, sql: &mut String, types: &mut dyn Iterator<Item = SystemType>) {
        sql.push_str(&format!("{:?}", types.collect::<Vec<_>>()));
    }

    fn push_parameter(&self, sql: &mut String, number: &str) {
        sql.push_str(&format!("<{number}>"));
    }

    fn column_type(&self, _: SystemType) -> &'static str {
        "ANY"
    }
}

fn statements() -> impl Iterator<Item = SystemSql> {
    let groups = system::ALL.iter();
    groups.flat_map(|(_, statements)| statements.iter().map(|(_, statement)| *statement))
}

fn inserts() -> impl Iterator<Item = &'static SystemInsert> {
    statements().filter_map(|it| match it {
        SystemSql::Insert(insert) => Some(insert),
        _ => None,
    })
}

fn updates() -> impl Iterator<Item = &'static SystemUpdate> {
    statements().filter_map(|it| match it {
        SystemSql::Update(update) => Some(update),
        _ => None,
    })
}

#[test]
fn keys_and_indexes_are_of_columns_that_can_be_keys() {
    for table in tables::ALL
        .iter()
        .copied()
        .chain([&tables::DEPLOYMENT_STEP])
    {
        let indexed = table.indexes.iter().flat_map(|it| it.columns);
        for name in table.primary_key.iter().chain(indexed) {
            let long = [SystemType::Text, SystemType::Blob];
            let column_type = table.column_type(name);
            assert!(!long.contains(&column_type), "{}.{name}", table.name);
        }
    }
}

#[test]
fn what_is_given_back_can_be_read_again_by_its_key() {
    for insert in inserts().filter(|it| !it.returning.is_empty()) {
        let mut key = insert.table.primary_key.iter();
        assert!(key.all(|it| insert.columns.contains(it)), "{insert:?}");
    }
    for update in updates().filter(|it| !it.returning.is_empty()) {
        assert_eq!(update.key, update.table.primary_key, "{update:?}");
    }
}

#[test]
fn statements_name_columns_that_their_tables_have() {
    for insert in inserts() {
        let columns = insert.columns.iter().chain(insert.returning);
        for column in columns {
            insert.table.column_type(column);
        }
    }
    for update in updates() {
        let columns = update.set.iter().map(|(column, _)| column);
        let columns = columns.chain(update.key).chain(update.returning);
        for column in columns {
            update.table.column_type(column);
        }
    }
}

#[test]
fn no_column_is_read_after_it_is_set() {
    let is_read = |text: &str, column: &str| {
        let mut words = text.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
        words.any(|word| word == column)
    };
    let in_inserts = inserts().filter_map(|it| match it.taken {
        TakenKey::Updates { set, .. } => Some(set),
        _ => None,
    });
    for set in in_inserts.chain(updates().map(|it| it.set)) {
        for (at, (column, _)) in set.iter().enumerate() {
            for (_, later) in &set[at + 1..] {
                let later = later.replace(&format!("{{new.{column}}}"), "");
                assert!(!is_read(&later, column), "{column} in {later}");
            }
        }
    }
}

#[test]
fn names_parameters_and_rows_of_a_neutral_text_are_the_dialects() {
    let text = SystemSql::Text(
        "SELECT v.n, 't?' FROM {rows BLOB TEXT} JOIN tidewater.space ON last = ?12 + tidewater.once.id",
    );
    assert_eq!(text.row_columns(), Some(2));
    assert_eq!(
        BracketDialect.spell(text),
        "SELECT v.n, 't?' FROM [Blob, Text] JOIN [space] ON last = <12> + [once].id"
    );
}

#[test]
fn statements_are_told_apart_by_their_identity() {
    let all: Vec<SystemSql> = statements().collect();
    for one in &all {
        let same = all.iter().filter(|it| it.identity() == one.identity());
        assert!(same.clone().all(|it| it == one));
    }
}
