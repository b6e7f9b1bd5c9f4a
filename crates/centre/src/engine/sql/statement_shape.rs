//! The statements on the server's own tables, in the few shapes that databases spell differently.
//!
//! A *neutral text* is SQL with the parameters `?1`, `?2`, the tables `tidewater.name`, and in the
//! place of a relation `{rows BLOB TEXT}`: the rows that the statement is run for, as a relation `v`
//! with columns `c1`, `c2` and so on of these types, and `n`, the row's number from 1. A database may
//! take all of them at once, or one after the other. `CAST(value AS {integer})` makes an integer of 64
//! bits. Names of columns and aliases are reserved words of no database.

use super::system_table::SystemTable;

/// What a statement on the server's own tables does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SystemSql {
    /// This neutral text: a read or a change that every database spells so.
    Text(&'static str),
    /// Inserts rows.
    Insert(&'static SystemInsert),
    /// Updates rows by the rows that the statement is run for.
    Update(&'static SystemUpdate),
    /// Deletes some rows.
    Delete(&'static SystemDelete),
}

/// Inserts rows, and says what becomes of those whose primary key is taken.
#[derive(Debug, PartialEq, Eq)]
pub struct SystemInsert {
    /// The table.
    pub table: &'static SystemTable,
    /// The columns that are written; the others get their defaults.
    pub columns: &'static [&'static str],
    /// Where the values are from.
    pub source: InsertSource,
    /// What becomes of a row whose primary key is taken.
    pub taken: TakenKey,
    /// The columns that it gives back of the rows that it has written; none if it gives nothing.
    /// A database that cannot do that reads them again by the primary key, which then is among
    /// [`Self::columns`]. Nobody has written to them meanwhile: they are locked.
    pub returning: &'static [&'static str],
}

/// Where the values of inserted rows are from.
#[derive(Debug, PartialEq, Eq)]
pub enum InsertSource {
    /// One row of these neutral texts, a text for each column.
    Values(&'static [&'static str]),
    /// The rows that the statement is run for; their columns are those that are written.
    Rows,
    /// The same, and the numbers that the database gives ascend in the order of the rows.
    RowsInOrder,
    /// This neutral query, which has a WHERE if a key may be taken: some take what follows for the
    /// condition of a join.
    Query(&'static str),
}

/// What becomes of an inserted row whose primary key is taken.
#[derive(Debug, PartialEq, Eq)]
pub enum TakenKey {
    /// The statement fails.
    Fails,
    /// The row is passed over. It does not count as written, and is not given back.
    PassesOver,
    /// The row that is there is updated; it counts as written, and is given back.
    Updates {
        /// The columns that are set, and to what: neutral texts in which `{old.column}` is the row
        /// that is there and `{new.column}` the one that was to be inserted. A column that is set is
        /// not read by what follows it, because not every database gives its old value then.
        set: &'static [(&'static str, &'static str)],
        /// The condition under which the row is updated, of the same kind; otherwise it is passed
        /// over.
        only_if: Option<&'static str>,
    },
}

/// Updates the row of each key among the rows that the statement is run for.
#[derive(Debug, PartialEq, Eq)]
pub struct SystemUpdate {
    /// The table.
    pub table: &'static SystemTable,
    /// The types of the rows, as a neutral text names them.
    pub rows: &'static str,
    /// The columns that are equal to `v.c1`, `v.c2` and so on.
    pub key: &'static [&'static str],
    /// What else has to be so, as a neutral text.
    pub only_if: Option<&'static str>,
    /// The columns that are set, and to what. A column that is set is not read by what follows it,
    /// because not every database gives its old value then.
    pub set: &'static [(&'static str, &'static str)],
    /// The columns that it gives back of the rows that it has changed; none if it gives nothing.
    /// A database that cannot do that updates row after row, and reads those again by
    /// [`Self::key`] that it has changed. Nobody has written to them meanwhile: they are locked.
    pub returning: &'static [&'static str],
}

/// Deletes rows by a condition that may read the same table.
#[derive(Debug, PartialEq, Eq)]
pub struct SystemDelete {
    /// The table.
    pub table: &'static SystemTable,
    /// Which rows, as a neutral text.
    pub condition: &'static str,
    /// The parameter that says how many rows go at the most; whichever of them.
    pub limit: Option<&'static str>,
}

/// Tells statements apart as fast as numbers. Two of one identity are equal; two equal ones may have
/// an identity each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StatementIdentity(usize, usize);

impl From<&'static str> for SystemSql {
    fn from(text: &'static str) -> SystemSql {
        SystemSql::Text(text)
    }
}

impl SystemSql {
    /// Where it is in memory: it is there for ever, and nothing else is at that place.
    pub fn identity(self) -> StatementIdentity {
        match self {
            SystemSql::Text(text) => StatementIdentity(text.as_ptr().addr(), text.len()),
            SystemSql::Insert(it) => StatementIdentity(std::ptr::from_ref(it).addr(), 0),
            SystemSql::Update(it) => StatementIdentity(std::ptr::from_ref(it).addr(), 0),
            SystemSql::Delete(it) => StatementIdentity(std::ptr::from_ref(it).addr(), 0),
        }
    }

    /// How many columns the rows have that the statement is run for; `None` if it is run once.
    pub fn row_columns(self) -> Option<usize> {
        let in_text = |text| split_rows(text).map(|(_, types, _)| types.count());
        match self {
            SystemSql::Text(text) => in_text(text),
            SystemSql::Insert(insert) => match insert.source {
                InsertSource::Values(_) => None,
                InsertSource::Rows | InsertSource::RowsInOrder => Some(insert.columns.len()),
                InsertSource::Query(text) => in_text(text),
            },
            SystemSql::Update(update) => Some(update.rows.split(' ').count()),
            SystemSql::Delete(_) => None,
        }
    }
}

/// The place of the rows in a neutral text: what is before it, the types, and what is behind it.
pub(super) fn split_rows(text: &str) -> Option<(&str, impl Iterator<Item = &str>, &str)> {
    let (before, rest) = text.split_once("{rows ")?;
    let (types, behind) = rest.split_once('}')?;
    Some((before, types.split(' '), behind))
}
