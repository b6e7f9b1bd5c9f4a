//! Scripts: SQL of the operator's that takes the place of what is generated, at named points of a
//! sync.
//!
//! Here is what events there are, and how scripts are read and checked. When those of an upload run,
//! is the affair of [`super::upload`]; of a download, of [`super::download`].

mod around;
mod compile;
mod events;
mod running;
mod scripting;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tidewater_protocol::ColumnType;

pub use self::around::{Connected, after_download, downloaded};
pub use self::compile::compile;
pub use self::events::{
    COMMON, CONNECTION, EVENTS, Event, Form, Images, Transaction, event, parameter_type, parameters,
};

pub use self::running::{ABORT, failed, run};
pub use self::scripting::{DEFAULT, Scripting, VERSION, chosen, named, version};

use super::script::{Parameter, Script};
use crate::error::CentreError;

/// The events at which scripts resolve a conflict, in their order.
pub const RESOLVING: [&str; 3] = [
    "upload_old_row_insert",
    "upload_new_row_insert",
    "resolve_conflict",
];

/// How long a statement of a script may take.
pub const SCRIPT_TIMEOUT: Duration = Duration::from_secs(60);

/// What a database says of a statement of a script.
#[derive(Clone, Debug, Default)]
pub struct CheckedScript {
    /// The names of the columns that it yields.
    pub columns: Vec<String>,
    /// Those among them that are times without a zone.
    pub zoneless: Vec<String>,
    /// What its operator may not have thought of: each is a sentence about the statement.
    pub warnings: Vec<String>,
}

/// The scripts of a publication, by version.
pub type Versions = BTreeMap<String, Arc<Scripts>>;

/// The scripts of one version.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Scripts {
    /// Those of the connection, by event.
    pub connection: HashMap<&'static str, Compiled>,
    /// Those of tables, in the order of the publication.
    pub tables: Vec<HashMap<&'static str, Compiled>>,
}

/// A script that can be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// Its event.
    pub event: &'static Event,
    /// Where it stands, for people.
    pub place: String,
    /// Its statements; none if the event is to do nothing.
    pub statements: Vec<Statement>,
}

/// A statement of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Its SQL, with positional parameters.
    pub script: Script,
    /// The types of its parameters.
    pub types: Vec<ColumnType>,
    /// The types of what it yields, if that is read.
    pub yields: Vec<ColumnType>,
    /// The parameters that these columns set, if they set any.
    pub sets: Vec<Option<Parameter>>,
    /// Whether rows that it does not change tell that it found nothing.
    pub counts: bool,
    /// The columns of the relation of rows that it reads; none if it does not.
    pub set: Arc<[SetColumn]>,
}

/// A column of the relation that `{rows}` stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetColumn {
    /// Its name: that of the table's column, or `old_` before it.
    pub name: String,
    /// Whether it is the pre-image's.
    pub is_old: bool,
    /// The published column.
    pub index: usize,
    /// Its type.
    pub column_type: ColumnType,
}

impl Compiled {
    /// The same error with the script's name.
    pub fn names(&self, error: CentreError) -> CentreError {
        match error {
            CentreError::Refused {
                message,
                retry: false,
                ..
            } => CentreError::Script {
                file: self.place.clone(),
                message,
            },
            other => other,
        }
    }

    /// Whether its statements are run once for all rows of a kind.
    pub fn is_of_sets(&self) -> bool {
        self.statements.iter().any(|it| !it.set.is_empty())
    }
}

impl Scripts {
    /// The script of a table for an event.
    pub fn of_table(&self, table: usize, event: &str) -> Option<&Compiled> {
        self.tables.get(table)?.get(event)
    }

    /// Whether scripts write uploaded rows of a table, in the place of what is generated.
    pub fn writes(&self, table: usize) -> bool {
        let scripts = self.tables.get(table).into_iter().flat_map(HashMap::values);
        scripts
            .into_iter()
            .any(|it| matches!(it.event.form, Form::Row(_)))
    }

    /// Whether anything happens by scripts when rows of a table are uploaded.
    pub fn uploads(&self, table: usize) -> bool {
        let scripts = self.tables.get(table);
        scripts.is_some_and(|it| {
            it.values()
                .any(|it| it.event.transaction == Transaction::Upload)
        })
    }

    /// Whether rows of a table are downloaded by scripts.
    pub fn downloads(&self, table: usize) -> bool {
        self.of_table(table, "download_cursor").is_some()
    }

    /// Whether rows of any table are.
    pub fn has_downloads(&self) -> bool {
        (0..self.tables.len()).any(|it| self.downloads(it))
    }

    /// Every script.
    pub fn all(&self) -> impl Iterator<Item = &Compiled> {
        let of_tables = self.tables.iter().flat_map(HashMap::values);
        of_tables.chain(self.connection.values())
    }

    /// Whether anything happens by scripts in a transaction.
    pub fn has(&self, transaction: Transaction) -> bool {
        self.all().any(|it| it.event.transaction == transaction)
    }
}
