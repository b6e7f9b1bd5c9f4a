//! The application's tables as `tidewater init` lists them.

use tidewater_protocol::{ColumnType, ForeignKeyAction};

use super::{RowNumbering, TableInfo};
use crate::publication::{
    ListedColumn, ListedNumbering, ListedReference, ListedTable, TriggeredColumn,
};

/// The tables as `tidewater init` lists them.
pub fn listed(catalog: &[TableInfo]) -> Vec<ListedTable> {
    let tables = catalog.iter().filter(|table| !table.is_part);
    tables.map(|table| list(table, catalog)).collect()
}

fn list(table: &TableInfo, catalog: &[TableInfo]) -> ListedTable {
    let columns = table.columns.iter().filter(|column| column.is_by_default);
    let unpublishable = columns
        .clone()
        .find_map(|column| column.column_type.as_ref().err().cloned());
    let listed = columns.clone().map(|column| ListedColumn {
        name: column.name.clone(),
        type_name: column.type_name.clone(),
        nullable: column.nullable,
        is_integer: column.column_type == Ok(ColumnType::Integer),
        is_text: column.column_type == Ok(ColumnType::Text),
        has_default: column.has_default,
        has_default_on_remotes: column.default.is_some(),
        is_generated: column.is_generated,
        numbering: match &column.numbering {
            None => ListedNumbering::None,
            Some(RowNumbering::Highest(_)) => ListedNumbering::Highest,
            Some(RowNumbering::Sequence(_)) => ListedNumbering::Sequence,
        },
    });
    ListedTable {
        name: table.title.clone(),
        sql_name: sql_name(table),
        columns: listed.collect(),
        primary_key: names(table, &table.key),
        references: references(table, catalog),
        set_by_triggers: set_by_triggers(table),
        obstacle: table
            .obstacle()
            .or_else(|| table.unnoticed.clone())
            .or(unpublishable),
    }
}

/// The name in SQL: with the schema where the title has it.
pub(super) fn sql_name(table: &TableInfo) -> String {
    let name = identifier(&table.name);
    match table.title == table.name {
        true => name,
        false => format!("{}.{name}", identifier(&table.schema)),
    }
}

/// A name in SQL, quoted unless every database reads it as it is.
pub fn identifier(name: &str) -> String {
    const RESERVED: [&str; 24] = [
        "all",
        "and",
        "any",
        "as",
        "case",
        "check",
        "column",
        "default",
        "desc",
        "end",
        "from",
        "grant",
        "group",
        "in",
        "index",
        "limit",
        "not",
        "order",
        "references",
        "select",
        "table",
        "to",
        "user",
        "where",
    ];
    let mut characters = name.chars();
    let is_plain = characters
        .next()
        .is_some_and(|it| it.is_ascii_lowercase() || it == '_')
        && characters.all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '_');
    match is_plain && !RESERVED.contains(&name) {
        true => name.to_owned(),
        false => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}

fn names(table: &TableInfo, columns: &[usize]) -> Vec<String> {
    let names = columns.iter().map(|&it| table.columns[it].name.clone());
    names.collect()
}

fn references(table: &TableInfo, catalog: &[TableInfo]) -> Vec<ListedReference> {
    let references = table.references.iter().map(|reference| {
        let parent = &catalog[reference.parent];
        ListedReference {
            columns: names(table, &reference.columns),
            parent: parent.title.clone(),
            parent_columns: names(parent, &reference.parent_columns),
            cascades: reference.on_delete == ForeignKeyAction::Cascade,
            follows_key: reference.on_update == ForeignKeyAction::Cascade,
            cascading: reference.cascading.clone(),
        }
    });
    references.collect()
}

/// The columns that a row needs and that a trigger gives it.
fn set_by_triggers(table: &TableInfo) -> Vec<TriggeredColumn> {
    let columns = table.columns.iter().enumerate();
    let needed = columns.filter(|(index, column)| {
        let has_value = column.nullable || column.has_default || column.is_generated;
        !has_value && !table.key.contains(index)
    });
    let found = needed.filter_map(|(_, column)| {
        let trigger = table.setting_trigger(&column.name)?;
        Some(TriggeredColumn {
            column: column.name.clone(),
            trigger: trigger.name.clone(),
            is_known: trigger.is_known(),
        })
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_every_database_reads_as_they_are_go_without_quotes() {
        for plain in ["employee", "order_details", "_x1"] {
            assert_eq!(identifier(plain), plain);
        }
        for (name, quoted) in [
            ("order", "\"order\""),
            ("Employee", "\"Employee\""),
            ("a \"b\"", "\"a \"\"b\"\"\""),
            ("1st", "\"1st\""),
            ("", "\"\""),
        ] {
            assert_eq!(identifier(name), quoted);
        }
    }
}
