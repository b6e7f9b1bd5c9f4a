//! Publications as an operator writes them down, live tables as `init` sees them,
//! and what deploying reports.

use tidewater_protocol::Direction;

/// A publication of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicationSpec {
    /// Its name.
    pub name: String,
    /// Its tables, in the order of the configuration.
    pub tables: Vec<TableSpec>,
}

/// A table of a publication, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSpec {
    /// Its name in the centre, with or without a schema.
    pub name: String,
    /// Which of its rows a remote holds.
    pub partition: PartitionSpec,
    /// Which way its rows travel.
    pub direction: Direction,
    /// The published columns; all of them if `None`.
    pub columns: Option<Vec<String>>,
    /// How its changes are noticed.
    pub tracking: Tracking,
}

/// Which rows of a table a remote holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionSpec {
    /// All of them.
    Everyone,
    /// Those whose partition columns have one of the values that a query yields.
    Columns {
        /// The partition columns.
        columns: Vec<String>,
        /// A query with one result column for each partition column; `{s.username}`
        /// and the other `{s.name}` parameters stand for facts of the sync.
        values: String,
    },
}

/// How changes of a table in the centre are noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Tracking {
    /// Statement-level triggers and a change log.
    #[default]
    Log,
    /// Row-level triggers that also fire in a replication worker.
    Row,
    /// Not at all: downloads send the remote's partitions whole.
    Off,
}

/// The facts of a sync that `{s.name}` parameters can name.
pub const SYSTEM_PARAMETERS: [&str; 3] = ["username", "remote_id", "publication"];

/// A table that exists in the centre, as `tidewater init` lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveTable {
    /// The name to write into the configuration, schema-qualified where needed.
    pub name: String,
    /// Its columns.
    pub columns: Vec<LiveColumn>,
    /// The primary key's columns; empty if it has none.
    pub primary_key: Vec<String>,
    /// Tables that it refers to.
    pub references: Vec<String>,
    /// Why it cannot be published, if so.
    pub obstacle: Option<String>,
}

/// A column of a [`LiveTable`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveColumn {
    /// Its name.
    pub name: String,
    /// Its type, as the database spells it.
    pub type_name: String,
    /// Whether it may be NULL.
    pub nullable: bool,
}

/// One thing that deploying (or undeploying) does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeployStep {
    /// What, for people: `create change log for public.customer (support_rep_id)`.
    pub description: String,
    /// The lock that it takes and on what, for people; empty for none that matters.
    pub lock: String,
}

/// What deploying did, or would do.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DeployReport {
    /// In the order in which they were done; empty if everything was in place.
    pub steps: Vec<DeployStep>,
    /// What the operator should know: changes that the adapter cannot see, and the
    /// like.
    pub warnings: Vec<String>,
}
