//! Scripts: SQL of the operator's that takes the place of what is generated, at named points of a
//! sync.
//!
//! Here is what events there are, and how scripts are read and checked. When those of an upload run,
//! is the affair of [`super::upload`]; of a download, of [`super::download`].

mod compile;
mod events;
mod scripting;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tidewater_protocol::ColumnType;

pub use self::compile::compile;
pub use self::events::{
    COMMON, CONNECTION, EVENTS, Event, Form, Images, Transaction, event, parameters,
};

pub use self::scripting::{Scripting, VERSION, chosen};

use super::script::Script;

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
    /// Whether rows that it does not change tell that it found nothing.
    pub counts: bool,
}

impl Scripts {
    /// The script of a table for an event.
    pub fn of_table(&self, table: usize, event: &str) -> Option<&Compiled> {
        self.tables.get(table)?.get(event)
    }

    /// Whether rows of a table are uploaded by scripts.
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

    /// Whether anything happens by scripts in uploads.
    pub fn has_uploads(&self) -> bool {
        let all = self.tables.iter().flat_map(HashMap::values);
        let mut all = all.chain(self.connection.values());
        all.any(|it| it.event.transaction == Transaction::Upload)
    }
}
