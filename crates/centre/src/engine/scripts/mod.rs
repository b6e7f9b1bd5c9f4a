//! Scripts: SQL of the operator's that takes the place of what is generated, at named points of a
//! sync.
//!
//! Here is what events there are, and how scripts are read and checked. When those of an upload run,
//! is the affair of [`super::upload`]; of a download, of [`super::download`].

mod agreement;
mod around;
mod check;
mod compile;
mod events;
mod running;
mod scripting;
mod spelling;
mod statement_text;
mod trial;
mod trying;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tidewater_protocol::ColumnType;

pub use self::around::{ScriptConnection, check_one_version};
pub use self::check::told_types;
pub use self::compile::compile;
pub use self::events::{
    COMMON, CONNECTION, EVENTS, ScriptEvent, ScriptForm, ScriptImages, ScriptTransaction, event,
    parameter_type, parameters,
};

pub use self::running::{ScriptTimer, failed, run};
pub use self::scripting::{ScriptEnvironment, chosen, named, of_version, version};
pub use self::trying::{print_script, scripts_to_try, try_script};

use super::script::{Script, ScriptParameter};
use crate::error::CentreError;

/// The events at which scripts resolve a conflict, in their order.
pub const RESOLVING: [&str; 3] = [
    "upload_old_row_insert",
    "upload_new_row_insert",
    "resolve_conflict",
];

/// How long a statement of a script may take.
pub const SCRIPT_TIMEOUT: Duration = Duration::from_secs(60);

/// The scripts of a publication, by version.
pub type Versions = BTreeMap<String, Arc<Scripts>>;

/// The scripts of one version.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Scripts {
    /// Those of the connection, by event.
    pub connection: HashMap<&'static str, CompiledScript>,
    /// Those of tables, in the order of the publication.
    pub tables: Vec<HashMap<&'static str, CompiledScript>>,
    /// Why no sync may go by them, if none may.
    pub unserved: Option<String>,
}

/// A script that can be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledScript {
    /// Its event.
    pub event: &'static ScriptEvent,
    /// Where it stands, for people.
    pub place: String,
    /// Its statements; none if the event is to do nothing.
    pub statements: Vec<ScriptStatement>,
    /// Of what yields rows of a table: the query that tells whether the row with a key is among them.
    pub lookup: Option<ScriptStatement>,
    /// And the query that yields it, if it is.
    pub by_key: Option<ScriptStatement>,
}

/// A statement of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptStatement {
    /// Its SQL, with positional parameters.
    pub script: Script,
    /// The types of its parameters.
    pub types: Vec<ColumnType>,
    /// The types of what it yields, if that is read.
    pub yields: Vec<ColumnType>,
    /// The parameters that these columns set, if they set any.
    pub sets: Vec<Option<ScriptParameter>>,
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

impl CompiledScript {
    /// Its statements, each with the script itself.
    pub fn each(&self) -> impl Iterator<Item = (&CompiledScript, &ScriptStatement)> {
        self.statements.iter().map(move |it| (self, it))
    }

    /// The same error with the script's name.
    pub fn names(&self, error: CentreError) -> CentreError {
        match error {
            CentreError::StatementFailed {
                message,
                retry: false,
                sqlstate,
                ..
            } => CentreError::Script {
                file: self.place.clone(),
                message,
                database_code: sqlstate,
            },
            other => other,
        }
    }

    /// Whether it can leave something in the session for scripts of the sync after it. Those of rows
    /// that only write tables do not: their syncs can share a transaction.
    fn can_leave_something(&self) -> bool {
        let writes = |it: &ScriptStatement| {
            let word = it.script.sql.split_ascii_whitespace().next();
            let word = word.unwrap_or_default().to_ascii_uppercase();
            ["INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE", "WITH"].contains(&&*word)
        };
        match self.event.form {
            ScriptForm::Once => self.event.is_of_a_sync() && !self.statements.is_empty(),
            ScriptForm::Row(_) => !self.statements.iter().all(writes),
            ScriptForm::Fetch | ScriptForm::Rows | ScriptForm::Keys => false,
        }
    }

    /// Whether its statements are run once for all rows of a kind.
    pub fn is_of_sets(&self) -> bool {
        self.statements.iter().any(|it| !it.set.is_empty())
    }
}

impl Scripts {
    /// The script of a table for an event.
    pub fn of_table(&self, table: usize, event: &str) -> Option<&CompiledScript> {
        self.tables.get(table)?.get(event)
    }

    /// Whether every uploaded row of a table is a conflict: scripts resolve them, and none writes any.
    pub fn forces_conflicts(&self, table: usize) -> bool {
        let has = |event: &str| self.of_table(table, event).is_some();
        let writes = ["upload_insert", "upload_update", "upload_delete"]
            .into_iter()
            .any(has);
        !writes && RESOLVING.into_iter().any(has)
    }

    /// Whether scripts say how uploaded rows are written.
    pub fn has_uploads(&self) -> bool {
        let of_upload = |it: &CompiledScript| it.event.transaction == ScriptTransaction::Upload;
        self.all().any(of_upload)
    }

    /// Whether scripts write uploaded rows of a table, in the place of what is generated.
    pub fn writes(&self, table: usize) -> bool {
        let scripts = self.tables.get(table).into_iter().flat_map(HashMap::values);
        scripts
            .into_iter()
            .any(|it| matches!(it.event.form, ScriptForm::Row(_)))
    }

    /// Whether anything happens by scripts when rows of a table are uploaded.
    pub fn uploads(&self, table: usize) -> bool {
        let scripts = self.tables.get(table);
        scripts.is_some_and(|it| {
            it.values()
                .any(|it| it.event.transaction == ScriptTransaction::Upload)
        })
    }

    /// Whether rows of a table are downloaded by scripts.
    pub fn downloads(&self, table: usize) -> bool {
        self.giving(table).is_some()
    }

    /// The script that says who gets which rows of a table.
    pub fn giving(&self, table: usize) -> Option<&CompiledScript> {
        self.of_table(table, "download_cursor")
    }

    /// What tells whether a script gives the row with a key to whoever syncs, if one says who gets which
    /// rows of a table.
    pub fn lookup(&self, table: usize) -> Option<&ScriptStatement> {
        self.giving(table)?.lookup.as_ref()
    }

    /// Whether a script says that no row of a table is downloaded: what remotes have of it, stays.
    pub fn gives_nothing(&self, table: usize) -> bool {
        self.giving(table)
            .is_some_and(|it| it.statements.is_empty())
    }

    /// What yields the row with a key to whoever syncs, if a script gives it to him; and that script.
    pub fn by_key(&self, table: usize) -> Option<(&CompiledScript, &ScriptStatement)> {
        let script = self.giving(table)?;
        Some((script, script.by_key.as_ref()?))
    }

    /// Whether rows of any table are.
    pub fn has_downloads(&self) -> bool {
        (0..self.tables.len()).any(|it| self.downloads(it))
    }

    /// Every script.
    pub fn all(&self) -> impl Iterator<Item = &CompiledScript> {
        let of_tables = self.tables.iter().flat_map(HashMap::values);
        of_tables.chain(self.connection.values())
    }

    /// Whether anything happens by scripts in a transaction.
    pub fn has(&self, transaction: ScriptTransaction) -> bool {
        self.all().any(|it| it.event.is_in(transaction))
    }

    /// Whether the script that checks passwords also sets them: it names the new one.
    pub fn set_passwords(&self) -> bool {
        let names_new = |it: &ScriptParameter| {
            matches!(
                it,
                ScriptParameter::System("new_password" | "hashed_new_password")
            )
        };
        let of_passwords = self
            .all()
            .filter(|it| it.event.is_in(ScriptTransaction::SigningIn));
        let mut statements = of_passwords.flat_map(|it| &it.statements);
        statements.any(|it| it.script.parameters.iter().any(names_new))
    }

    /// Whether scripts can leave something in the session that others of the same sync find there:
    /// then the sync keeps to one connection.
    pub fn keeps_a_session(&self) -> bool {
        self.all().any(CompiledScript::can_leave_something)
    }

    /// Whether what its scripts leave in the session of a connection, or have put there when it
    /// began, tells it from one of another version.
    pub fn needs_a_session(&self) -> bool {
        let is_set_up =
            self.has(ScriptTransaction::Connecting) || self.has(ScriptTransaction::Closing);
        is_set_up || self.keeps_a_session()
    }

    /// Whether connections that serve the one can serve the other.
    pub fn shares_connections(&self, other: &Scripts) -> bool {
        ["begin_connection", "end_connection"]
            .iter()
            .all(|it| self.connection.get(it) == other.connection.get(it))
    }
}
