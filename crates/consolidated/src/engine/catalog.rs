//! The application's tables, as far as publishing them is the same for every database.

use tidewater_protocol::{ColumnType, ForeignKeyAction};

use crate::publication::{ListedColumn, ListedTable};

/// A table.
#[derive(Clone, Debug)]
pub(crate) struct TableInfo {
    /// What it is called on remotes.
    pub(crate) name: String,
    /// What it is called in a configuration, and for people.
    pub(crate) title: String,
    pub(crate) columns: Vec<ColumnInfo>,
    /// The primary key, as indexes into `columns`, in key order.
    pub(crate) key: Vec<usize>,
    /// Other unique constraints that remotes can have too.
    pub(crate) unique: Vec<Vec<usize>>,
    /// Whether there is any unique constraint besides the primary key.
    pub(crate) has_secondary_unique: bool,
    pub(crate) references: Vec<Reference>,
    /// Whether the case of names means nothing.
    pub(crate) ignores_case: bool,
    /// Why it cannot be published, and the way out.
    pub(crate) obstacle: Option<String>,
}

/// A column.
#[derive(Clone, Debug)]
pub(crate) struct ColumnInfo {
    pub(crate) name: String,
    /// As its owner has declared it.
    pub(crate) type_name: String,
    /// The type as remotes see it, or why it cannot be published, and the way out.
    pub(crate) column_type: Result<ColumnType, String>,
    pub(crate) nullable: bool,
    /// The default as an SQL literal for remotes, if it is one.
    pub(crate) default: Option<String>,
    /// The database computes its values.
    pub(crate) is_generated: bool,
    /// Whether it is published when the configuration names no columns.
    pub(crate) is_by_default: bool,
    /// Whether equal values can be spelled differently.
    pub(crate) is_ambiguous: bool,
}

/// A foreign key.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    pub(crate) columns: Vec<usize>,
    /// The table's index in the catalog.
    pub(crate) parent: usize,
    pub(crate) parent_columns: Vec<usize>,
    pub(crate) on_delete: ForeignKeyAction,
    pub(crate) on_update: ForeignKeyAction,
}

impl TableInfo {
    /// The table as `tidewater init` lists it.
    fn listed(&self, catalog: &[TableInfo]) -> ListedTable {
        let columns = self.columns.iter().filter(|column| column.is_by_default);
        let mut references: Vec<String> = Vec::new();
        for reference in &self.references {
            let parent = &catalog[reference.parent].title;
            if !references.contains(parent) {
                references.push(parent.clone());
            }
        }
        let unpublishable = columns
            .clone()
            .find_map(|column| column.column_type.as_ref().err().cloned());
        ListedTable {
            name: self.title.clone(),
            columns: columns
                .map(|column| ListedColumn {
                    name: column.name.clone(),
                    type_name: column.type_name.clone(),
                    nullable: column.nullable,
                })
                .collect(),
            primary_key: self
                .key
                .iter()
                .map(|&index| self.columns[index].name.clone())
                .collect(),
            references,
            obstacle: self.obstacle.clone().or(unpublishable),
        }
    }
}

/// The tables as `tidewater init` lists them.
pub(crate) fn listed(catalog: &[TableInfo]) -> Vec<ListedTable> {
    let tables = catalog.iter();
    tables.map(|table| table.listed(catalog)).collect()
}
