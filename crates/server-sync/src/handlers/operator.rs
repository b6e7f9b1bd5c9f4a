//! Handlers as an operator's commands ask them: about a row that he writes, which goes the way of an
//! upload and so past the same programs.

use std::sync::Arc;

use tidewater_centre::engine::upload::column_map::{AnnouncedColumns, ColumnMap};
use tidewater_centre::{
    Caller, CentreError, ConflictChoice, ContendedChange, RefusedChoice, Resolutions,
    SettleOutcome, SyncUpload, Verdicts, Worker,
};
use tidewater_protocol::{Code, PublicationSchema};

use super::resolve::ContestedRows;
use super::upload::{Batches, verdicts};
use super::{About, HandlerHost, HandlerSet};
use tidewater_server_config::{Config, HandlerEvent};
use tidewater_server_jobs::environment::Environment;
use tidewater_server_jobs::error::ServerError;
use tidewater_server_jobs::fault::Fault;

/// So often is a handler asked about one row that others change meanwhile.
const MOST_ROUNDS: u32 = 5;

/// The handlers of a configuration, asked without a server.
pub struct OperatorHandlers {
    known: HandlerSet,
    environment: Environment,
    schemas: Vec<Arc<PublicationSchema>>,
}

impl OperatorHandlers {
    /// Those of a configuration, for publications as they are loaded.
    ///
    /// # Errors
    /// A file that the configuration names cannot be read or used.
    pub fn new(
        config: &Config,
        schemas: Vec<Arc<PublicationSchema>>,
    ) -> Result<OperatorHandlers, ServerError> {
        Ok(OperatorHandlers {
            known: HandlerSet::of(config, &HandlerSet::default())?,
            environment: Environment::real(),
            schemas,
        })
    }

    /// Settles a refused row; see [`Worker::settle_refused`]. Handlers are asked before, where the row
    /// is theirs to judge; if they do not answer, nothing is done, and the reason is told.
    ///
    /// # Errors
    /// The database failed.
    pub async fn settle_refused(
        &self,
        worker: &mut dyn Worker,
        mut choice: RefusedChoice,
    ) -> Result<SettleOutcome, CentreError> {
        for _ in 0..MOST_ROUNDS {
            let outcome = worker.settle_refused(choice.clone()).await?;
            let judgement = &mut choice.judgement;
            let asked = self.judge(
                &outcome,
                &mut judgement.verdicts,
                &mut judgement.resolutions,
            );
            match asked.await {
                Ok(true) => {}
                Ok(false) => return Ok(outcome),
                Err(fault) => return Ok(untold(&fault)),
            }
        }
        Ok(changed_meanwhile())
    }

    /// Settles a conflict; see [`Worker::settle_conflict`] and [`Self::settle_refused`].
    ///
    /// # Errors
    /// The database failed.
    pub async fn settle_conflict(
        &self,
        worker: &mut dyn Worker,
        mut choice: ConflictChoice,
    ) -> Result<SettleOutcome, CentreError> {
        for _ in 0..MOST_ROUNDS {
            let outcome = worker.settle_conflict(choice.clone()).await?;
            let judgement = &mut choice.judgement;
            let asked = self.judge(
                &outcome,
                &mut judgement.verdicts,
                &mut judgement.resolutions,
            );
            match asked.await {
                Ok(true) => {}
                Ok(false) => return Ok(outcome),
                Err(fault) => return Ok(untold(&fault)),
            }
        }
        Ok(changed_meanwhile())
    }

    /// Asks handlers what an outcome waits for; whether it waited.
    async fn judge(
        &self,
        outcome: &SettleOutcome,
        verdicts: &mut Verdicts,
        resolutions: &mut Resolutions,
    ) -> Result<bool, Fault> {
        match outcome {
            SettleOutcome::Unjudged { upload } => {
                *verdicts = self.judge_upload(&upload.0).await?;
            }
            SettleOutcome::Contended { upload, rows } => {
                resolutions.extend(self.resolve(&upload.0, rows).await?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn schema(&self, publication: &str) -> Result<&PublicationSchema, Fault> {
        let mut schemas = self.schemas.iter();
        let schema = schemas.find(|it| it.name == publication);
        let schema = schema.ok_or_else(|| Fault::internal("a publication is not loaded"))?;
        Ok(schema)
    }

    fn host(&self) -> HandlerHost<'_> {
        HandlerHost {
            environment: &self.environment,
            services: None,
        }
    }

    async fn judge_upload(&self, upload: &SyncUpload) -> Result<Verdicts, Fault> {
        let schema = self.schema(&upload.publication)?;
        let (about, caller) = (about(upload), caller(upload));
        let mut all = Verdicts::new();
        for (place, table) in upload.tables.iter().enumerate() {
            let name = &table.begin.table;
            let found = self.known.of_table(&upload.publication, name);
            let Some((handler, handling)) = found.filter(|it| it.1.upload) else {
                return Err(Fault::internal(format!(
                    "a handler judges rows of {name:?}, and the configuration names none"
                )));
            };
            let AnnouncedColumns::Published(index, map) = ColumnMap::find(schema, &table.begin)?
            else {
                continue;
            };
            let schema = &schema.tables[index];
            let prefix = format!("{}/{}/{place}-", upload.context.remote_id, upload.upload_id);
            let rows = handler.config.rows;
            let mut batches = Batches::new(table, (schema, &map), prefix.clone(), rows);
            let judged = all.entry(place).or_default();
            while let Some(batch) = batches.next_batch()? {
                let document = batch.document(handler, &about, schema, &prefix);
                let most = batch.max_answer_bytes();
                let reply = handler.ask(self.host(), &caller, &document, most).await?;
                let asked = batch.asked(schema, &prefix, handling.keeps_uploads);
                let event = HandlerEvent::Upload;
                judged.extend(verdicts(&reply, asked).map_err(|what| handler.wrong(event, &what))?);
            }
        }
        Ok(all)
    }

    async fn resolve(
        &self,
        upload: &SyncUpload,
        rows: &[ContendedChange],
    ) -> Result<Resolutions, Fault> {
        let schema = self.schema(&upload.publication)?;
        let (about, caller) = (about(upload), caller(upload));
        let prefix = format!("{}/{}/", upload.context.remote_id, upload.upload_id);
        let mut all = Resolutions::new();
        for row in rows {
            let name = &row.row.table;
            let found = self.known.of_table(&upload.publication, name);
            let found = found.filter(|(_, handling)| handling.resolve);
            let Some(((handler, _), table)) = found.zip(schema.table(name)) else {
                return Err(Fault::internal(format!(
                    "conflicts of {name:?} are a handler's affair, and the configuration has none"
                )));
            };
            let contest = ContestedRows::new(table, std::slice::from_ref(row), &prefix);
            let document = contest.document(handler, &about);
            let most = contest.max_answer_bytes();
            let reply = handler.ask(self.host(), &caller, &document, most).await?;
            let event = HandlerEvent::ResolveConflict;
            let decided = contest.resolutions(&reply);
            all.extend(decided.map_err(|what| handler.wrong(event, &what))?);
        }
        Ok(all)
    }
}

fn about(upload: &SyncUpload) -> About {
    About {
        publication: upload.publication.clone(),
        context: upload.context.clone(),
        device_name: String::new(),
        sync_id: upload.upload_id.to_string(),
    }
}

fn caller(upload: &SyncUpload) -> Arc<Caller> {
    Arc::new(Caller {
        user: upload.context.user.clone(),
        remote_id: Some(upload.context.remote_id),
    })
}

/// A handler does not say what becomes of a row.
fn untold(fault: &Fault) -> SettleOutcome {
    SettleOutcome::Refused {
        code: Code::HandlerFailed,
        reason: match fault.detail.is_empty() {
            true => fault.message.clone(),
            false => fault.detail.clone(),
        },
    }
}

fn changed_meanwhile() -> SettleOutcome {
    SettleOutcome::Refused {
        code: Code::RowConstraint,
        reason: "others change the row again and again while the handler is asked".into(),
    }
}
