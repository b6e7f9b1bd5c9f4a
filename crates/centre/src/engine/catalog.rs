//! The application's tables, as far as publishing them is the same for every database.

pub mod checks;
mod defaults;
mod listing;
mod setting;

use tidewater_protocol::{ColumnType, ForeignKeyAction};

use crate::engine::sql::column::{SqlColumn, SqlTable};

pub use self::defaults::{default_of, default_of_sqlite, is_null};
pub use self::listing::{identifier, listed};
pub use self::setting::{SetColumns, SettingTrigger};

/// The application's tables as an adapter reads them.
pub trait CatalogReader: Send + Sync {
    /// A column, as statements need it.
    type Column: SqlColumn;

    /// The tables, by name.
    fn tables(&self) -> &[TableInfo];

    /// The table of an index in [`Self::tables`], as statements need it.
    fn sql_table(&self, index: usize) -> SqlTable<'_, Self::Column>;
}

/// A table.
#[derive(Clone, Debug)]
pub struct TableInfo {
    /// What it is called on remotes.
    pub name: String,
    /// What it is called in a configuration, and for people.
    pub title: String,
    /// The schema that it is in.
    pub schema: String,
    /// Its columns, in order.
    pub columns: Vec<ColumnInfo>,
    /// The primary key, as indexes into `columns`, in key order.
    pub key: Vec<usize>,
    /// Other unique constraints that remotes can have too.
    pub unique: Vec<Vec<usize>>,
    /// Its foreign keys.
    pub references: Vec<ForeignKeyInfo>,
    /// The leading columns of its indexes, the primary key's included.
    pub indexed: Vec<Vec<usize>>,
    /// Whether the case of names means nothing.
    pub ignores_case: bool,
    /// Why the database cannot publish it, and the way out; see [`Self::obstacle`].
    pub own_obstacle: Option<String>,
    /// Why not all that is written to it is noticed, and the way out, if that is so.
    pub unnoticed: Option<String>,
    /// It has a change log already: what is not noticed of it is known, and goes to remotes whole.
    pub is_tracked: bool,
    /// It is a part of another one, which is listed in its place.
    pub is_part: bool,
    /// The rules for its rows that remotes can check.
    pub checks: Vec<CheckInfo>,
    /// The application's triggers that may set a column of a row that is inserted.
    pub setting_triggers: Vec<SettingTrigger>,
}

/// A rule for the values of a row, as remotes check it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckInfo {
    /// The centre's constraint, or what it asks, for people.
    pub name: String,
    /// The columns that it is about, by their index.
    pub columns: Vec<usize>,
    /// The condition, as SQL of remotes.
    pub condition: String,
}

/// What numbers the rows of a table in the centre.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowNumbering {
    /// A sequence that can be moved on; what it is, for people.
    Sequence(&'static str),
    /// The highest number there is: what is handed out is not kept clear of it.
    Highest(&'static str),
}

/// A column.
#[derive(Clone, Debug)]
pub struct ColumnInfo {
    /// Its name.
    pub name: String,
    /// As its owner has declared it.
    pub type_name: String,
    /// The type as remotes see it, or why it cannot be published, and the way out.
    pub column_type: Result<ColumnType, String>,
    /// Whether it takes NULL.
    pub nullable: bool,
    /// The default for remotes, if they can compute it: see [`tidewater_protocol::Column`].
    pub default: Option<String>,
    /// Whether the database gives it a value where an insert does not.
    pub has_default: bool,
    /// The database computes its values.
    pub is_generated: bool,
    /// Whether it is published when the configuration names no columns.
    pub is_by_default: bool,
    /// Whether equal values can be spelled differently, so that partitions cannot be told apart.
    pub is_ambiguous: bool,
    /// Whether equal values are spelled equally, as those of a key have to be.
    pub has_one_spelling: bool,
    /// Whether blanks at the end mean nothing.
    pub is_padded: bool,
    /// What gives numbers to rows that are inserted without.
    pub numbering: Option<RowNumbering>,
}

/// A foreign key.
#[derive(Clone, Debug)]
pub struct ForeignKeyInfo {
    /// The columns that refer, by their index.
    pub columns: Vec<usize>,
    /// The table's index in the catalog.
    pub parent: usize,
    /// The parent's columns, by their index.
    pub parent_columns: Vec<usize>,
    /// What happens when the parent is deleted.
    pub on_delete: ForeignKeyAction,
    /// What happens when its key changes.
    pub on_update: ForeignKeyAction,
    /// Whether a row may be there before the one that it refers to.
    pub is_deferrable: bool,
    /// The statement after which a changed key of the parent reaches the rows that refer to it, if
    /// that needs one and the database has one.
    pub cascading: Option<String>,
}

impl TableInfo {
    /// A column's index by its name; where case means nothing, whatever its case.
    pub fn column(&self, name: &str) -> Option<usize> {
        let exact = self.columns.iter().position(|it| it.name == name);
        exact.or_else(|| {
            let mut columns = self.columns.iter();
            self.ignores_case
                .then(|| columns.position(|it| it.name.eq_ignore_ascii_case(name)))?
        })
    }

    /// Why it cannot be published, and the way out.
    pub fn obstacle(&self) -> Option<String> {
        if self.own_obstacle.is_some() {
            return self.own_obstacle.clone();
        }
        if self.key.is_empty() {
            return Some("it has no primary key; declare one".into());
        }
        let key = || self.key.iter().map(|&index| &self.columns[index]);
        if let Some(obstacle) = key().find_map(|it| it.column_type.as_ref().err()) {
            return Some(obstacle.clone());
        }
        let unfit = key().find(|column| !column.has_one_spelling)?;
        Some(format!(
            "values of the type {} of its key column {:?} can be equal and yet be spelled \
             differently; make the key of integers, text, uuid, dates, bytea or numeric(p,s)",
            unfit.type_name, unfit.name
        ))
    }

    /// That no index begins with some columns, in whatever order, and what that means.
    pub fn lacks_index(&self, columns: &[usize], what: &str) -> Option<String> {
        let begins_so = |index: &Vec<usize>| {
            let first = index.iter().take(columns.len());
            first.clone().count() == columns.len() && first.clone().all(|it| columns.contains(it))
        };
        if columns.is_empty() || self.indexed.iter().any(begins_so) {
            return None;
        }
        let names = columns.iter().map(|&it| &*self.columns[it].name);
        let names: Vec<&str> = names.collect();
        let in_sql: Vec<String> = names.iter().map(|it| identifier(it)).collect();
        Some(format!(
            "{:?} has no index on {}: {what}. Make one: CREATE INDEX {} ON {} ({})",
            self.title,
            names.join(", "),
            identifier(&format!("{}_{}", self.name, names.join("_"))),
            listing::sql_name(self),
            in_sql.join(", "),
        ))
    }
}

/// The tables that a name in a configuration can mean, by their indexes: as they are titled, or
/// with their schema before a point. Names with points of their own can mean two.
pub fn named(catalog: &[TableInfo], name: &str) -> Vec<usize> {
    let meant = |same: fn(&str, &str) -> bool| -> Vec<usize> {
        let has_name = |table: &TableInfo| {
            same(&table.title, name) || same(&format!("{}.{}", table.schema, table.name), name)
        };
        let tables = catalog.iter().enumerate();
        let tables = tables.filter(|(_, table)| has_name(table));
        tables.map(|(index, _)| index).collect()
    };
    let exact = meant(|one, other| one == other);
    if exact.is_empty() && catalog.iter().any(|table| table.ignores_case) {
        return meant(|one, other| one.eq_ignore_ascii_case(other));
    }
    exact
}
