//! What the operator's own programs say of uploaded rows.

use std::collections::BTreeMap;

use tidewater_protocol::{Op, Value};

/// What a handler says of the rows of an upload: by the place of their table in it.
pub type Verdicts = BTreeMap<usize, TableVerdicts>;

/// What a handler says of the rows of one uploaded table, by their number: of those that are not
/// among these, that they are taken as they are.
pub type TableVerdicts = BTreeMap<u64, RowVerdict>;

/// What becomes of an uploaded row.
#[derive(Clone, Debug, PartialEq)]
pub enum RowVerdict {
    /// It is taken with these columns, by name, in place of what the remote wrote.
    Change(Vec<(String, Value)>),
    /// It is refused, with this reason for people.
    Refuse(String),
    /// The handler has seen to it. Nothing is written, and the remote gets what the centre has.
    Handled,
}

/// Values by the names of their columns.
pub type Columns = Vec<(String, Value)>;

/// A row that two sides have changed, of which a handler has to decide.
#[derive(Clone, Debug, PartialEq)]
pub struct ContendedChange {
    /// Which.
    pub row: ContendedRow,
    /// What the remote did.
    pub op: Op,
    /// Its key.
    pub key: Columns,
    /// What the remote had before; nothing if it has inserted the row.
    pub old: Option<Columns>,
    /// What it wants; nothing if it has deleted the row.
    pub new: Option<Columns>,
    /// What the centre has; nothing if it is gone there.
    pub theirs: Option<Columns>,
}

/// A row of an upload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContendedRow {
    /// The name of its table.
    pub table: String,
    /// The packed key.
    pub key: Vec<u8>,
}

/// What handlers have decided of contended rows.
pub type Resolutions = BTreeMap<ContendedRow, Resolution>;

/// What a handler has decided of a contended row.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolution {
    /// For what the centre had: if it has something else by now, it is asked again.
    pub theirs: Option<Columns>,
    /// What the row is to be.
    pub becomes: ContendedOutcome,
}

/// What a contended row is to be.
#[derive(Clone, Debug, PartialEq)]
pub enum ContendedOutcome {
    /// As the centre has it.
    Centre,
    /// As the remote wants it.
    Remote,
    /// As the centre has it, but for these columns.
    Merged(Columns),
    /// As the centre has it, until the operator decides.
    Parked,
}
