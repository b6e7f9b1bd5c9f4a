//! The publications that are served.

use std::sync::Arc;

use tidewater_protocol::Code;

use crate::engine::publication::Publication;
use crate::engine::sql::served_table::{ServedTable, TableAdapter};
use crate::error::CentreError;
use crate::publication::{DeployedPublications, ReplayPolicy};

type Result<T> = std::result::Result<T, CentreError>;

/// Publications as they are served.
#[derive(Debug)]
pub struct ServedPublications<T: TableAdapter> {
    /// The publications.
    pub publications: Vec<Arc<Publication<T>>>,
    /// See [`DeployedPublications::number`].
    pub number: i64,
    /// See [`DeployedPublications::version`].
    pub version: String,
}

impl<T: TableAdapter> Default for ServedPublications<T> {
    fn default() -> ServedPublications<T> {
        ServedPublications {
            publications: Vec::new(),
            number: 0,
            version: String::new(),
        }
    }
}

impl<T: TableAdapter> ServedPublications<T> {
    /// All tables of all publications.
    pub fn tables(&self) -> impl Iterator<Item = &ServedTable<T>> {
        self.publications.iter().flat_map(|it| &it.tables)
    }

    /// What a server serves of it.
    pub fn deployed(&self) -> DeployedPublications {
        let publications = self.publications.iter();
        DeployedPublications {
            number: self.number,
            version: self.version.clone(),
            schemas: publications
                .clone()
                .map(|it| it.announced.clone())
                .collect(),
            scripts: publications.map(|it| it.scripts.clone()).collect(),
            no_replay: self
                .publications
                .iter()
                .filter(|it| it.replay == ReplayPolicy::No)
                .map(|it| it.schema.name.clone())
                .collect(),
        }
    }

    /// Whether any publication has scripts.
    pub fn has_scripts(&self) -> bool {
        self.publications.iter().any(|it| !it.scripts.is_empty())
    }

    /// A publication by its name.
    pub fn publication(&self, name: &str) -> Result<&Arc<Publication<T>>> {
        let mut publications = self.publications.iter();
        let found = publications.find(|publication| publication.schema.name == name);
        found.ok_or_else(|| CentreError::Peer {
            message: format!("a request for the publication {name:?}, which is not served"),
            code: Code::UnknownPublication,
        })
    }
}
