//! A consolidated database, opened for one command.
//!
//! Owns the runtime that the asynchronous [`Centre`] needs, so that the commands read
//! from top to bottom.

use std::future::Future;
use std::sync::Arc;

use tidewater_centre::deploy_report::DeployReport;
use tidewater_centre::explain::{ExplainQuestion, Explanation};
use tidewater_centre::preview::{Preview, PreviewRequest};
use tidewater_centre::records::{
    CentreStatus, ConflictFilter, ConflictRecord, ProvenIdentity, RefusedFilter, RefusedRecord,
    RemoteRecord, SigningKey, UserImport, UserRecord,
};
use tidewater_centre::trying::{ScriptTrial, ScriptsToTry, TriedScript};
use tidewater_centre::{
    Centre, CentreError, ConflictChoice, ListedTable, PublicationSpec, RefusedChoice, ScriptFault,
    SettleOutcome,
};
use tidewater_protocol::{Code, RemoteId};
use tidewater_server::{Config, Environment, OperatorHandlers};
use tidewater_terminal::{ConfigArgs, Failure};
use tokio::runtime::{Builder, Runtime};

use crate::clock::now_ms;
use crate::running::ServerStatus;
use crate::serving_lock::ServingLock;
use crate::upstream;

/// A consolidated database with its configuration, if it was opened by one.
pub(crate) struct OpenCentre {
    runtime: Runtime,
    centre: Arc<dyn Centre>,
    config: Option<Config>,
}

impl OpenCentre {
    /// Opens the database that a configuration file names.
    pub(crate) fn open(args: &ConfigArgs) -> Result<OpenCentre, Failure> {
        let config = args.load()?;
        if config.upstream.is_some() && upstream::file_of(&config).is_some_and(|it| !it.exists()) {
            return Err(Failure::new(
                Code::NotDeployed,
                "the branch has fetched nothing from headquarters yet",
                "run: tidewater serve -c FILE, which does that first and then deploys",
            ));
        }
        let mut centre = OpenCentre::connect(&config.server.consolidated)?;
        centre.config = Some(config);
        Ok(centre)
    }

    /// Opens the database that a URL names.
    pub(crate) fn connect(url: &str) -> Result<OpenCentre, Failure> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::start(&error))?;
        let centre = runtime.block_on(tidewater_server::databases::connect(url))?;
        Ok(OpenCentre {
            runtime,
            centre,
            config: None,
        })
    }

    fn wait<T>(&self, future: impl Future<Output = Result<T, CentreError>>) -> Result<T, Failure> {
        Ok(self.runtime.block_on(future)?)
    }

    /// For what needs the server's state: whoever forgot to deploy is told so, and not
    /// which table is missing.
    fn wait_deployed<T>(
        &self,
        future: impl Future<Output = Result<T, CentreError>>,
    ) -> Result<T, Failure> {
        let result = self.runtime.block_on(future);
        let may_be_undeployed = matches!(
            result,
            Err(CentreError::StatementFailed { .. } | CentreError::NotDeployed { .. })
        );
        if let (true, Some(config)) = (may_be_undeployed, &self.config) {
            let loaded = self
                .runtime
                .block_on(self.centre.load(&config.publications));
            if let Err(CentreError::NotDeployed { message }) = loaded {
                let is_prepared = self.runtime.block_on(self.centre.signing_keys()).is_ok();
                let what = match is_prepared {
                    true => format!(
                        "a published table or the configuration was altered since the last \
                         deployment: {message}"
                    ),
                    false => "the database is not prepared for Tidewater yet".to_owned(),
                };
                let hint = "run: tidewater deploy -c FILE";
                return Err(Failure::new(Code::NotDeployed, what, hint));
            }
        }
        Ok(result?)
    }

    /// The file, if it is a branch's.
    pub(crate) fn branch_file(&self) -> Option<std::path::PathBuf> {
        let config = self.config.as_ref()?;
        config.upstream.as_ref()?;
        upstream::file_of(config)
    }

    /// What the server says for which the configuration file is.
    pub(crate) fn server(&self) -> Result<ServerStatus, Failure> {
        match &self.config {
            Some(config) => ServerStatus::ask(config),
            None => Ok(ServerStatus::default()),
        }
    }

    pub(crate) fn tables(&self) -> Result<Vec<ListedTable>, Failure> {
        self.wait(self.centre.tables())
    }

    /// Runs statements of the operator's own in one transaction.
    pub(crate) fn run_statements(&self, sql: &str) -> Result<(), Failure> {
        self.wait(self.centre.run_statements(sql))
    }

    /// How many other sessions of Tidewater are connected to the database.
    pub(crate) fn other_sessions(&self) -> Result<u64, Failure> {
        self.wait(self.centre.other_sessions())
    }

    /// Deploys, or tells what would be done.
    pub(crate) fn deploy(
        &self,
        dry_run: bool,
        refuse_pending: bool,
    ) -> Result<DeployReport, Failure> {
        let config = self.config.as_ref();
        let Some(config) = config.filter(|it| !it.publications.is_empty()) else {
            return Err(Failure::usage(
                "the configuration has no [[publication]]",
                "write one, or let `tidewater init` write the file",
            ));
        };
        let publications = &config.publications;
        let deploy = match refuse_pending && !dry_run {
            true => self.centre.deploy_refusing_pending(publications, now_ms()),
            false => self.centre.deploy(publications, dry_run, now_ms()),
        };
        let deployed = self.runtime.block_on(async {
            // What no server would start with is not deployed either.
            tidewater_server::check_statements(&*self.centre, config).await?;
            deploy.await
        });
        let mut report = deployed.map_err(|error| config.locate_error(error))?;
        for warning in &mut report.warnings {
            *warning = config.locate(std::mem::take(warning));
        }
        report.warnings.extend(config.claim_warnings());
        report.warnings.extend(config.handler_warnings());
        report.warnings.extend(config.image_warnings());
        Ok(report)
    }

    /// Whether the configuration fits the database: what deploying would say, or what is wrong with
    /// its scripts.
    pub(crate) fn check(&self) -> Result<Result<DeployReport, Vec<ScriptFault>>, Failure> {
        let Some(config) = &self.config else {
            return Ok(Ok(DeployReport::default()));
        };
        let checked = self.runtime.block_on(async {
            tidewater_server::check_statements(&*self.centre, config).await?;
            let deploy = self.centre.deploy(&config.publications, true, now_ms());
            deploy.await
        });
        match checked {
            Ok(mut report) => {
                report.warnings.extend(config.image_warnings());
                Ok(Ok(report))
            }
            Err(CentreError::Scripts { faults }) => Ok(Err(faults)),
            Err(error) => Err(config.locate_error(error).into()),
        }
    }

    /// Why a row is, is not, or was removed from a remote.
    pub(crate) fn explain(&self, question: &ExplainQuestion) -> Result<Explanation, Failure> {
        self.wait_deployed(self.centre.explain(question))
    }

    /// What the configuration would mean to the remotes that there are.
    pub(crate) fn preview(&self, asked: &PreviewRequest) -> Result<Preview, Failure> {
        let Some(config) = &self.config else {
            return Ok(Preview::default());
        };
        let preview = self.centre.preview(&config.publications, asked);
        let preview = self.runtime.block_on(preview);
        Ok(preview.map_err(|error| config.locate_error(error))?)
    }

    /// Gives a copy of a database a name of its own; false if it gets one when it is deployed.
    pub(crate) fn rename(&self) -> Result<bool, Failure> {
        self.wait(self.centre.rename(now_ms()))
    }

    /// What tells that a server serves the database, if one does.
    pub(crate) fn serving(&self) -> Result<Option<&'static str>, Failure> {
        if self.server()?.is_reachable() {
            return Ok(Some("a server answers at its admin endpoint"));
        }
        let config = self.config.as_ref();
        if config.is_some_and(|it| ServingLock::is_held(&it.server.consolidated)) {
            return Ok(Some("a server holds the lock beside the file"));
        }
        Ok(match self.other_sessions()? {
            0 => None,
            _ => Some("the database has other sessions of Tidewater"),
        })
    }

    /// Removes what a server has left beside an SQLite file.
    pub(crate) fn remove_serving_lock(&self) {
        if let Some(config) = &self.config {
            ServingLock::remove(&config.server.consolidated);
        }
    }

    pub(crate) fn undeploy(&self, dry_run: bool) -> Result<DeployReport, Failure> {
        self.wait(self.centre.undeploy(dry_run))
    }

    /// What only Tidewater's own tables hold of the users' work.
    pub(crate) fn kept_records(
        &self,
    ) -> Result<(Vec<ConflictRecord>, Vec<RefusedRecord>), Failure> {
        let conflicts = self.wait_deployed(self.centre.conflicts())?;
        Ok((conflicts, self.refused()?))
    }

    /// What was refused, in the order in which it was.
    pub(crate) fn refused(&self) -> Result<Vec<RefusedRecord>, Failure> {
        self.wait_deployed(self.centre.refused())
    }

    /// Those of the refused rows that are asked for, each once, newest first.
    pub(crate) fn find_refused(
        &self,
        filter: &RefusedFilter,
    ) -> Result<Vec<RefusedRecord>, Failure> {
        self.wait_deployed(self.centre.find_refused(filter))
    }

    /// One of the refused rows kept.
    pub(crate) fn refused_row(&self, id: i64) -> Result<Option<RefusedRecord>, Failure> {
        self.wait_deployed(self.centre.refused_row(id))
    }

    /// Settles refused rows, each in a transaction of its own.
    pub(crate) fn settle_refused(
        &self,
        choices: Vec<RefusedChoice>,
    ) -> Result<Vec<SettleOutcome>, Failure> {
        let handlers = self.handlers()?;
        self.wait_deployed(async {
            let mut outcomes = Vec::with_capacity(choices.len());
            for choice in choices {
                // What its scripts leave in a session is for nobody else.
                let mut worker = self.centre.worker().await?;
                outcomes.push(handlers.settle_refused(&mut *worker, choice).await?);
            }
            Ok(outcomes)
        })
    }

    /// Loads the publications, and has their handlers ready to be asked.
    fn handlers(&self) -> Result<OperatorHandlers, Failure> {
        let Some(config) = &self.config else {
            return Err(Failure::new(
                Code::Internal,
                "there is no configuration",
                "",
            ));
        };
        let schemas = self.wait_deployed(self.centre.load(&config.publications))?;
        Ok(OperatorHandlers::new(config, schemas)?)
    }

    /// Those of the kept conflicts that are asked for, newest first.
    pub(crate) fn find_conflicts(
        &self,
        filter: &ConflictFilter,
    ) -> Result<Vec<ConflictRecord>, Failure> {
        self.wait_deployed(self.centre.find_conflicts(filter))
    }

    /// One of the kept conflicts.
    pub(crate) fn conflict(&self, id: i64) -> Result<Option<ConflictRecord>, Failure> {
        self.wait_deployed(self.centre.conflict(id))
    }

    /// Writes the version of a row that an operator has chosen.
    pub(crate) fn settle_conflict(&self, choice: ConflictChoice) -> Result<SettleOutcome, Failure> {
        let handlers = self.handlers()?;
        self.wait_deployed(async {
            let mut worker = self.centre.worker().await?;
            handlers.settle_conflict(&mut *worker, choice).await
        })
    }

    /// Without a password nobody signs in with one. False if the name is taken.
    pub(crate) fn add_user(&self, name: &str, password: Option<&str>) -> Result<bool, Failure> {
        let user = UserRecord {
            name: name.to_owned(),
            password_hash: password.map_or_else(|| Ok(String::new()), hash)?,
            disabled: false,
            created_ms: now_ms(),
            proven: ProvenIdentity::default(),
        };
        self.wait_deployed(self.centre.add_user(&user))
    }

    /// Adds users whose passwords are hashed; all of them or, if names are taken that are to
    /// stay as they are, none.
    pub(crate) fn import_users(
        &self,
        users: &[UserRecord],
        update: bool,
    ) -> Result<UserImport, Failure> {
        self.wait_deployed(self.centre.import_users(users, update))
    }

    /// The publications as they are configured.
    pub(crate) fn publications(&self) -> &[PublicationSpec] {
        self.config.as_ref().map_or(&[], |it| &it.publications)
    }

    /// The scripts of a version of a publication as it is configured.
    pub(crate) fn scripts_to_try(
        &self,
        publication: &PublicationSpec,
        version: &str,
    ) -> Result<ScriptsToTry, Failure> {
        Ok(self
            .runtime
            .block_on(self.centre.scripts_to_try(publication, version))?)
    }

    /// Tries a script, in a transaction that is undone.
    pub(crate) fn try_script(&self, trial: ScriptTrial) -> Result<TriedScript, Failure> {
        let tried = self.runtime.block_on(async {
            // A script of sets needs the table as it is served; any other one does without.
            if let Err(error) = self.centre.load(self.publications()).await {
                tracing::debug!(%error, "the publications are not deployed as they are configured");
            }
            let mut worker = self.centre.worker().await?;
            worker.try_script(trial).await
        });
        Ok(tried?)
    }

    /// The signing keys, newest first.
    pub(crate) fn signing_keys(&self) -> Result<Vec<SigningKey>, Failure> {
        self.wait_deployed(self.centre.signing_keys())
    }

    /// Adds a signing key under the next number, and gives it.
    pub(crate) fn add_signing_key(&self) -> Result<SigningKey, Failure> {
        let environment = Environment::real();
        loop {
            let newest = self.signing_keys()?.iter().map(|key| key.id).max();
            let next = newest.unwrap_or(0).checked_add(1).ok_or_else(|| {
                Failure::new(Code::Internal, "there are no numbers left for keys", "")
            })?;
            let key = tidewater_server::new_signing_key(&environment, next)?;
            // Somebody else may have rotated at the same time.
            if self.wait_deployed(self.centre.add_signing_key(&key))? {
                return Ok(key);
            }
        }
    }

    /// False if there is no such key, or no other.
    pub(crate) fn retire_signing_key(&self, id: u32) -> Result<bool, Failure> {
        self.wait_deployed(self.centre.retire_signing_key(id))
    }

    /// How long a watermark can be of use, in milliseconds.
    pub(crate) fn log_retention_ms(&self) -> i64 {
        let config = self.config.as_ref();
        config.map_or(0, |config| config.retention.keep.log_ms)
    }

    /// False if there is no such user, as with all that follow.
    pub(crate) fn set_password(&self, name: &str, password: &str) -> Result<bool, Failure> {
        let hash = hash(password)?;
        self.wait_deployed(self.centre.set_password(name, &hash))
    }

    pub(crate) fn set_disabled(&self, name: &str, disabled: bool) -> Result<bool, Failure> {
        self.wait_deployed(self.centre.set_disabled(name, disabled))
    }

    pub(crate) fn remove_user(&self, name: &str) -> Result<bool, Failure> {
        self.wait_deployed(self.centre.remove_user(name))
    }

    pub(crate) fn users(&self) -> Result<Vec<UserRecord>, Failure> {
        self.wait_deployed(self.centre.users())
    }

    pub(crate) fn remotes(&self) -> Result<Vec<RemoteRecord>, Failure> {
        self.wait_deployed(self.centre.remotes())
    }

    pub(crate) fn revoke_remote(&self, id: RemoteId) -> Result<bool, Failure> {
        self.wait_deployed(self.centre.revoke_remote(id))
    }

    pub(crate) fn restore_remote(&self, id: RemoteId) -> Result<bool, Failure> {
        self.wait_deployed(self.centre.restore_remote(id))
    }

    pub(crate) fn status(&self) -> Result<CentreStatus, Failure> {
        self.wait_deployed(self.centre.status())
    }
}

/// A password's hash, slow on purpose.
pub(crate) fn hash(password: &str) -> Result<String, Failure> {
    Ok(tidewater_server::hash_password(
        &Environment::real(),
        password,
    )?)
}
