//! What is served now, and noticing that something else was deployed.
//!
//! The publications are those that are deployed in the database, so that all servers of it serve
//! the same ones whatever files they were started with. Each Hello's look-up tells the number of
//! the last deployment; tables that are altered, and connections without syncs, are looked after
//! twice a second.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use tidewater_centre::context::DEFAULT;
use tidewater_centre::engine::scripts::{ScriptTransaction, Scripts, Versions};
use tidewater_centre::{Centre, CentreError, DeployedPublications, PublicationSpec};
use tidewater_protocol::{Code, PublicationSchema};

use crate::fault::{Fault, FaultSubject};

/// How often it is looked whether something else was deployed.
pub const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How often that is tried again which was not understood.
pub const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// After so long without an answer the database is taken to be away.
const SILENT_AFTER: Duration = Duration::from_secs(15);

/// A publication as it is served.
pub struct ServedPublication {
    /// What remotes know of it.
    pub schema: Arc<PublicationSchema>,
    /// The same, encoded.
    pub encoded: Vec<u8>,
    /// The hash of that.
    pub hash: [u8; 32],
    /// The scripts, by version.
    pub scripts: Versions,
}

/// The publications of one deployment.
pub struct DeploymentInService {
    deployed: DeployedPublications,
    /// Another one when something else is deployed, or tables were altered; never 0.
    number: u64,
    by_name: HashMap<String, Arc<ServedPublication>>,
}

impl DeploymentInService {
    fn of(deployed: DeployedPublications) -> Arc<DeploymentInService> {
        let by_name = deployed.schemas.iter().enumerate().map(|(at, schema)| {
            let published = ServedPublication {
                scripts: deployed.scripts.get(at).cloned().unwrap_or_default(),
                encoded: schema.encode(),
                hash: schema.hash(),
                schema: schema.clone(),
            };
            (schema.name.clone(), Arc::new(published))
        });
        let version = crc32fast::hash(deployed.version.as_bytes());
        let number = deployed.number.unsigned_abs() << 32 | u64::from(version);
        Arc::new(DeploymentInService {
            by_name: by_name.collect(),
            number: number.max(1),
            deployed,
        })
    }

    /// See [`DeploymentInService::number`].
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether the remotes of a publication try again what was refused only when somebody says so.
    pub fn keeps_refused(&self, publication: &str) -> bool {
        self.deployed.no_replay.iter().any(|it| it == publication)
    }

    /// A publication whose scripts check passwords, and those scripts.
    pub fn authenticates(&self) -> Option<(String, Arc<Scripts>)> {
        self.by_name.iter().find_map(|(name, published)| {
            let scripts = published.scripts.get(DEFAULT);
            let scripts = scripts.filter(|it| it.has(ScriptTransaction::SigningIn))?;
            Some((name.clone(), scripts.clone()))
        })
    }

    /// The publication of this name.
    pub fn published(&self, name: &str) -> Result<Arc<ServedPublication>, Fault> {
        self.by_name.get(name).cloned().ok_or_else(|| {
            let mut names: Vec<&str> = self.by_name.keys().map(String::as_str).collect();
            names.sort_unstable();
            let hint = match names.first() {
                Some(first) => format!(
                    "it has: {}; subscribe to what you need: --publication {first}",
                    names.join(", ")
                ),
                None => "it has none yet: see tidewater deploy".to_owned(),
            };
            Fault {
                subject: Some(Box::new(FaultSubject(name.to_owned()))),
                ..Fault::new(
                    Code::UnknownPublication,
                    format!("the server has no publication {name:?}"),
                    hint,
                )
            }
        })
    }
}

/// What is served now.
pub struct Publications {
    centre: Arc<dyn Centre>,
    served: Mutex<Arc<DeploymentInService>>,
    /// One look at a time.
    looking: tokio::sync::Mutex<()>,
    /// The last complaint, which is not repeated.
    complaint: Mutex<String>,
    /// When the database last answered, and what was wrong at the last look.
    seen: Mutex<(Instant, Option<String>)>,
}

impl Publications {
    /// Serves what is deployed. Where the configuration says something else, the log tells.
    ///
    /// # Errors
    /// Nothing is deployed, or the database does not fit it.
    pub async fn load(
        centre: Arc<dyn Centre>,
        configured: &[PublicationSpec],
    ) -> Result<Publications, CentreError> {
        let loaded = match centre.load(configured).await {
            Err(error) if !is_disagreement(&error) => return Err(error),
            loaded => loaded,
        };
        let deployed = match (loaded, centre.refresh().await) {
            (Ok(schemas), Ok(None)) => DeployedPublications {
                schemas,
                ..DeployedPublications::default()
            },
            (Ok(_), refreshed) => refreshed?.unwrap_or_default(),
            (Err(error), Ok(Some(deployed))) => {
                tracing::warn!(
                    %error,
                    "the configuration's publications are not those that are deployed, which are \
                     served: run tidewater deploy"
                );
                deployed
            }
            (Err(error), _) => return Err(error),
        };
        Ok(Publications {
            centre,
            served: Mutex::new(DeploymentInService::of(deployed)),
            looking: tokio::sync::Mutex::default(),
            complaint: Mutex::default(),
            seen: Mutex::new((Instant::now(), None)),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Arc<DeploymentInService>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is served now.
    pub fn served(&self) -> Arc<DeploymentInService> {
        self.lock().clone()
    }

    /// What is served, given the number of the last deployment.
    pub async fn as_of(&self, deployment: i64) -> Arc<DeploymentInService> {
        let served = self.served();
        if served.deployed.number == deployment {
            return served;
        }
        self.look().await;
        self.served()
    }

    /// Whether something else is served than was, after a look at what is deployed.
    pub async fn differ_from(&self, served: &Arc<DeploymentInService>) -> bool {
        self.look().await;
        !Arc::ptr_eq(served, &self.served())
    }

    /// Looks whether something else was deployed, or whether tables were altered. False if what
    /// there is cannot be served.
    pub async fn look(&self) -> bool {
        let _one_at_a_time = self.looking.lock().await;
        let refreshed = self.centre.refresh().await;
        self.see(refreshed.as_ref().err());
        match refreshed {
            Ok(None) => true,
            Ok(Some(deployed)) => {
                let mut served = self.lock();
                if served.deployed != deployed {
                    tracing::info!(deployment = deployed.number, "serving what is deployed now");
                    *served = DeploymentInService::of(deployed);
                }
                self.complain(String::new())
            }
            Err(error) if is_disagreement(&error) => self.complain(error.to_string()),
            // The database is away, or somebody deploys: the next look finds out.
            Err(error) => {
                tracing::debug!(%error, "what is deployed is not known");
                true
            }
        }
    }

    fn see(&self, error: Option<&CentreError>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match error {
            Some(error) if is_disagreement(error) => {
                *seen = (Instant::now(), Some(format!("not deployed: {error}")));
            }
            Some(error @ CentreError::Unavailable { .. }) => {
                seen.1 = Some(format!("the database cannot be reached: {error}"));
            }
            Some(_) => {}
            None => *seen = (Instant::now(), None),
        }
    }

    /// Why syncs cannot be served as they should, if that is so.
    pub fn trouble(&self) -> Option<String> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let silent = seen.0.elapsed();
        match &seen.1 {
            None if silent > SILENT_AFTER => Some(format!(
                "the database has not answered for {} s",
                silent.as_secs()
            )),
            trouble => trouble.clone(),
        }
    }

    /// Tells the operator why what is there now cannot be served; nothing if it can.
    fn complain(&self, error: String) -> bool {
        let complaint = self.complaint.lock();
        let mut complaint = complaint.unwrap_or_else(PoisonError::into_inner);
        if !error.is_empty() && *complaint != error {
            tracing::error!(
                error,
                "the database is not as it was deployed; what was served before is served on: run \
                 tidewater deploy"
            );
        }
        let is_well = error.is_empty();
        *complaint = error;
        is_well
    }
}

/// Whether somebody has to put something right.
fn is_disagreement(error: &CentreError) -> bool {
    matches!(
        error,
        CentreError::NotDeployed { .. } | CentreError::Configuration { .. }
    )
}
