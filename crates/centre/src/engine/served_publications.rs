//! The publications that are served.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

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

type FillRandom = dyn Fn(&mut [u8]) -> Result<()> + Send + Sync;

/// What a centre and its workers share: what is served now, and where random bytes come from.
pub struct CentreShared<T: TableAdapter> {
    served: RwLock<Arc<ServedPublications<T>>>,
    random: Box<FillRandom>,
}

impl<T: TableAdapter> CentreShared<T> {
    /// Nothing is served yet; `random` fills bytes that nobody can guess.
    pub fn new(
        random: impl Fn(&mut [u8]) -> Result<()> + Send + Sync + 'static,
    ) -> CentreShared<T> {
        CentreShared {
            served: RwLock::default(),
            random: Box::new(random),
        }
    }

    /// What is served at the moment.
    pub fn served(&self) -> Arc<ServedPublications<T>> {
        let served = self.served.read();
        served.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Serves this from now on.
    pub fn serve(&self, served: Arc<ServedPublications<T>>) {
        *self.served.write().unwrap_or_else(PoisonError::into_inner) = served;
    }

    /// Fills bytes that nobody can guess.
    ///
    /// # Errors
    /// The system has none.
    pub fn random(&self, bytes: &mut [u8]) -> Result<()> {
        (self.random)(bytes)
    }
}

impl<T: TableAdapter> fmt::Debug for CentreShared<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("CentreShared")
            .field("served", &self.served)
            .finish_non_exhaustive()
    }
}
