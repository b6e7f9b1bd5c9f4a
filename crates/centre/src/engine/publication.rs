//! Publications as they are served: compiled, and with the numbers of what is deployed for them.

use std::ops::Range;
use std::sync::Arc;

use tidewater_protocol::{ColumnType, PublicationSchema, RowShape};

use super::evolution::PastSchemas;
use super::resolve::Resolver;
use super::scripts::Versions;
use super::window::Window;
use crate::engine::role_assumption::RoleAssumption;
use crate::engine::scope_query::{Permit, ScopeQuery};
use crate::engine::sql::served_table::{ServedTable, TableAdapter};
use crate::publication::{HandledSpec, OnReject, ReplayPolicy, UploadOrder};

/// A publication, ready to be served.
#[derive(Debug)]
pub struct Publication<T: TableAdapter> {
    /// As the database has it now.
    pub schema: Arc<PublicationSchema>,
    /// As it was deployed, which is what remotes are told. It differs from the other in no table,
    /// column or key.
    pub announced: Arc<PublicationSchema>,
    /// Its former schemas, by their hash, once it is served.
    pub past: Arc<PastSchemas>,
    /// In the order of the schema, as everything here.
    pub shapes: Arc<[RowShape]>,
    /// By which rows of the tables a remote holds, table by table.
    pub rules: Arc<[RowRule]>,
    /// What remotes may write of them.
    pub writes: Vec<Writes>,
    /// What becomes of their rows that two sides have changed.
    pub resolvers: Vec<Resolver>,
    /// Whether rows of another table are whose the row of the table is that they refer to.
    pub followed: Vec<bool>,
    /// What handlers of the server have to say about them.
    pub handled: Arc<[HandledSpec]>,
    /// Which values the parameters of remotes may have, where that is limited.
    pub permits: Vec<Permit>,
    /// The scripts of its remotes, by version.
    pub scripts: Versions,
    /// The role under which its remotes act, if that is not the server's own.
    pub act_as: Option<RoleAssumption>,
    /// What becomes of an upload of which a row is refused.
    pub on_reject: OnReject,
    /// Whether its remotes try refused rows again by themselves.
    pub replay: ReplayPolicy,
    /// What its upload scripts do first.
    pub upload_order: UploadOrder,
    /// The types of the values of the tables' rows as they are read: of the published columns, and
    /// of what decides beside them who holds a row.
    pub row_types: Arc<[Vec<ColumnType>]>,
    /// The queries for the rank of a user, by table, where conflicts go by it.
    pub ranks: Vec<Option<ScopeQuery>>,
    /// Its tables, as statements need them.
    pub tables: Vec<ServedTable<T>>,
    /// What its operator may not have thought of.
    pub warnings: Vec<String>,
}

impl<T: TableAdapter> Publication<T> {
    /// What downloads need of it.
    pub fn published(&self) -> PublishedSchema {
        PublishedSchema {
            schema: self.schema.clone(),
            announced: self.announced.clone(),
            shapes: self.shapes.clone(),
            rules: self.rules.clone(),
            past: self.past.clone(),
            scripts: self.scripts.clone(),
            handled: self.handled.clone(),
        }
    }

    /// The places of a table's rules.
    pub fn rules_of(&self, table: usize) -> Range<usize> {
        rules_of(&self.rules, table)
    }
}

/// The places of a table's rules.
pub fn rules_of(rules: &[RowRule], table: usize) -> Range<usize> {
    let first = rules.partition_point(|rule| rule.table < table);
    let last = rules.partition_point(|rule| rule.table <= table);
    first..last
}

/// What remotes may write of the rows of a table that they hold.
#[derive(Debug)]
pub struct Writes {
    /// By which they are written, if not all of them.
    pub rule: Option<RowRule>,
    /// The published columns that remotes do not write.
    pub read_only: Vec<usize>,
    /// Whether there are columns that the centre fills, or does so where a remote leaves them NULL.
    pub are_completed: bool,
    /// Whether a row may be changed so that its remote does not hold it any more.
    pub hand_over: bool,
}

/// By which rows of a table a remote holds, or writes.
#[derive(Debug)]
pub struct RowRule {
    /// Stands for the rule in checkpoints, as long as it partitions by the same;
    /// known once it is deployed.
    pub id: i64,
    /// The table, by its place in the publication.
    pub table: usize,
    /// The query that yields a user's partitions; `None` for "everyone".
    pub query: Option<ScopeQuery>,
    /// The names of the partition columns in the centre.
    pub names: Vec<String>,
    /// The types of the partition columns.
    pub types: Vec<ColumnType>,
    /// Where their values are in a row as it is read.
    pub columns: Vec<usize>,
    /// Only rows in these.
    pub windows: Vec<Window>,
    /// Whether another table decides.
    pub follows: bool,
    /// The published columns that refer to it, or to a row on the way.
    pub refers: Vec<usize>,
    /// Those of its columns that the centre fills where a remote leaves them NULL: whose such a row
    /// is, shows when it is there.
    pub filled: Vec<usize>,
    /// What makes it another rule, as text.
    pub identity: String,
}

/// A publication as it is served: its schema, and how the rows of its tables are packed.
#[derive(Clone, Debug)]
pub struct PublishedSchema {
    /// As the database has it.
    pub schema: Arc<PublicationSchema>,
    /// As remotes are told of it.
    pub announced: Arc<PublicationSchema>,
    /// How rows are packed, in the order of the tables.
    pub shapes: Arc<[RowShape]>,
    /// The tables' rules.
    pub rules: Arc<[RowRule]>,
    /// What it was before; some remotes still have that.
    pub past: Arc<PastSchemas>,
    /// The scripts, by version.
    pub scripts: Versions,
    /// What handlers have to say of the tables.
    pub handled: Arc<[HandledSpec]>,
}
