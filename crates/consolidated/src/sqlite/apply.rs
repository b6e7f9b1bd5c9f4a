//! Applies lists of uploads: one transaction, one commit, each upload in a savepoint.
//!
//! SQLite is in the same process, so rows go one by one through prepared statements;
//! what one row does is in [`super::row`].

use std::collections::HashMap;

use rusqlite::Connection;

use tidewater_protocol::Code;

use super::database::at_once;
use super::deploy::Served;
use super::row::{Refusal, RowPlace, Stop};
use super::scope::{self, Holder, held};
use super::upload::{Effects, UploadRun};
use super::{failure, row_error};
use crate::engine;
use crate::engine::connection::Connection as _;
use crate::engine::upload::Admission;
use crate::error::CentreError;
use crate::upload::{SyncUpload, UploadOutcome};

/// How often a list is tried when other writers are in the way.
const ATTEMPTS: u32 = 10;

/// How many rows of a list may each end the transaction before the list is given up.
const MAX_ENDINGS: usize = 1000;

/// Applies a list of uploads.
pub(super) fn apply(
    connection: &mut Connection,
    served: &Served,
    uploads: &[SyncUpload],
) -> Result<Vec<UploadOutcome>, CentreError> {
    // Rows that were found to end the transaction (RAISE(ROLLBACK), ON CONFLICT
    // ROLLBACK): refused without being tried when the list is run again.
    let mut endings: HashMap<RowPlace, Refusal> = HashMap::new();
    let mut attempts = 0;
    loop {
        match run(connection, served, uploads, &endings) {
            Ok(outcomes) => return Ok(outcomes),
            Err(Stop::Ended { place, refusal }) if endings.len() < MAX_ENDINGS => {
                endings.insert(place, refusal);
            }
            Err(Stop::Ended { refusal, .. }) => {
                return Err(CentreError::Refused {
                    what: "an upload whose rows end the transaction one after the other".into(),
                    message: refusal.reason,
                    sqlstate: None,
                    retry: false,
                });
            }
            Err(Stop::Centre(error)) if error.is_retryable() && attempts < ATTEMPTS => {
                attempts += 1;
            }
            Err(Stop::Centre(error)) => return Err(error),
        }
    }
}

fn run(
    connection: &mut Connection,
    served: &Served,
    uploads: &[SyncUpload],
    endings: &HashMap<RowPlace, Refusal>,
) -> Result<Vec<UploadOutcome>, Stop> {
    connection
        .execute_batch("BEGIN IMMEDIATE")
        .map_err(failure("beginning to apply uploads"))?;
    let result = run_list(connection, served, uploads, endings).and_then(|outcomes| {
        connection
            .execute_batch("COMMIT")
            .map_err(failure("committing uploads"))?;
        Ok(outcomes)
    });
    if !connection.is_autocommit() {
        connection
            .execute_batch("ROLLBACK")
            .map_err(failure("rolling back uploads"))?;
    }
    result
}

fn run_list(
    connection: &mut Connection,
    served: &Served,
    uploads: &[SyncUpload],
    endings: &HashMap<RowPlace, Refusal>,
) -> Result<Vec<UploadOutcome>, Stop> {
    let savepoint = |connection: &Connection, sql: &str| {
        let result = connection.execute_batch(sql);
        result.map_err(failure("an upload's savepoint"))
    };
    let mut outcomes = Vec::with_capacity(uploads.len());
    for (index, upload) in uploads.iter().enumerate() {
        savepoint(connection, "SAVEPOINT tidewater_upload")?;
        let outcome = match one(connection, served, upload, index, endings) {
            Ok(outcome) => outcome,
            // The fault of this upload alone.
            Err(Stop::Centre(
                error @ (CentreError::Peer { .. }
                | CentreError::Internal { .. }
                | CentreError::Configuration { .. }),
            )) => {
                savepoint(connection, "ROLLBACK TO tidewater_upload")?;
                UploadOutcome::Failed { error }
            }
            Err(stop) => return Err(stop),
        };
        savepoint(connection, "RELEASE tidewater_upload")?;
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

fn one(
    connection: &mut Connection,
    served: &Served,
    upload: &SyncUpload,
    index: usize,
    endings: &HashMap<RowPlace, Refusal>,
) -> Result<UploadOutcome, Stop> {
    let publication = served.publication(&upload.publication)?;
    let take = engine::upload::take(upload);
    let answers = at_once(connection.flight("taking an upload's number", &take))?;
    let Some(serials) = engine::upload::taken(&answers)? else {
        return Ok(at_once(engine::upload::last(connection, upload))?);
    };
    let counts =
        !upload.given_back || at_once(engine::upload::note_given_back(connection, upload))?;
    let nothing;
    let upload = match counts {
        true => upload,
        false => {
            nothing = SyncUpload {
                tables: Vec::new(),
                ..upload.clone()
            };
            &nothing
        }
    };
    let holder = Holder {
        user: &upload.user,
        remote_id: upload.remote_id,
    };
    let scope = scope::current(connection, publication, &holder)?;
    let checkpoint = upload.checkpoint.as_ref();
    let held = held(publication, checkpoint);
    let admission = Admission::new(&publication.schema, checkpoint, &serials, &held, scope);
    let run = UploadRun::new(
        connection,
        publication,
        &admission.scope,
        upload,
        index,
        endings,
    )?;
    let Effects {
        mut result,
        own,
        records,
    } = run.run()?;
    at_once(records.store(connection, upload))?;
    let store = admission.store(upload, &mut result);
    at_once(connection.run_one("storing the result of an upload", store))?;
    Ok(UploadOutcome::Applied { result, own })
}

/// What a failed statement means for its row; `None` if it is not the row's fault.
pub(super) fn refusal(error: &rusqlite::Error, table: &str, deleting: bool) -> Option<Refusal> {
    let (code, reason) = row_error::classify(error, table, deleting)?;
    debug_assert!((700..800).contains(&Code::number(code)));
    Some(Refusal { code, reason })
}
