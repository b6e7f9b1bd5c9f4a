//! Defects in a remote's file: what somebody else does to it around the product's steps.

use std::cell::RefCell;
use std::path::Path;

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params};

use tidewater_centre::Checkpoint;
use tidewater_centre::records::SigningKey;
use tidewater_protocol::{RemoteId, UploadId};
use tidewater_remote::database::AdoptionRule;
use tidewater_server::fuzzing::{CheckpointFor, SigningKeys};

use super::connections;
use super::list::{Defect, current, is_on};
use crate::judge::has_table;
use crate::liar;
use crate::tables::EDITED;

/// Puts everything into the file that stands in the product's way.
pub(crate) fn prepare(remote: &Connection) {
    let Some(defect) = current() else {
        return;
    };
    if defect == Defect::SpellingUnchecked {
        try_to(remote, "PRAGMA ignore_check_constraints = ON");
    }
    for table in EDITED {
        let (name, key) = (table.name, table.key());
        let change = format!("tidewater_change_{name}");
        let same = format!("key_{key} = NEW.key_{key} AND generation = NEW.generation");
        let body = match defect {
            Defect::PreImageDropped => format!(
                "AFTER INSERT ON {change} WHEN NEW.present BEGIN
                   UPDATE {change} SET present = 0 WHERE {same}; END"
            ),
            Defect::PreImageOverwritten => {
                let columns = || table.columns.iter().filter(|it| **it != key);
                let pre: Vec<String> = columns().map(|it| format!("pre_{it}")).collect();
                let old: Vec<String> = columns().map(|it| format!("OLD.{it}")).collect();
                format!(
                    "AFTER UPDATE ON {name} BEGIN
                       UPDATE {change} SET ({}) = ({}) WHERE key_{key} = OLD.{key} AND present
                       AND generation = (SELECT generation FROM tidewater_subscription); END",
                    pre.join(", "),
                    old.join(", "),
                )
            }
            _ => continue,
        };
        if has_table(remote, name).unwrap_or_default() {
            let sql = format!("CREATE TRIGGER IF NOT EXISTS mistake_{name} {body}");
            try_to(remote, &sql);
        }
    }
}

/// A tool has made a table anew.
pub(crate) fn rebuilt(remote: &Connection) {
    if is_on(Defect::TriggersUnchecked) {
        let version = remote.query_row("PRAGMA schema_version", [], |row| row.get::<_, i64>(0));
        let sql = "UPDATE tidewater_state SET checked_schema_version = ?1";
        let _ = version.and_then(|version| remote.execute(sql, [version]));
    }
}

/// What becomes of tables that the file has already.
pub(crate) fn adopt(adopt: Option<AdoptionRule>) -> Option<AdoptionRule> {
    match adopt {
        Some(AdoptionRule::Mine) if is_on(Defect::AdoptedGivesWay) => Some(AdoptionRule::Centre),
        adopt => adopt,
    }
}

/// What one sync of a file has to do with.
pub(crate) struct Meddler<'a> {
    /// The application's own connection.
    remote: &'a RefCell<crate::application::Application>,
    /// Where the product has the file open.
    path: &'a Path,
    /// The subscription as it was when the sync began, and the last kept upload.
    before: Option<(Vec<Value>, i64)>,
    compare_due: i64,
}

const SUBSCRIPTION: &str = "sequence, upload_id, taken_generation, taken_upload_id, checkpoint, \
                            schema, schema_hash";

impl<'a> Meddler<'a> {
    /// Before the session looks at the file. `centre`: a connection to it.
    pub(crate) fn new(
        remote: &'a RefCell<crate::application::Application>,
        path: &'a Path,
        centre: &Connection,
    ) -> Meddler<'a> {
        let meddler = Meddler {
            remote,
            path,
            before: None,
            compare_due: meddler_due(remote.borrow().connection()),
        };
        meddler.with(|remote| {
            prepare(remote);
            match current() {
                Some(Defect::ForgottenRemoteRenamed) => {
                    try_to(remote, "UPDATE tidewater_state SET centre = ''");
                }
                Some(Defect::UploadIdForgotten) => {
                    let _ = follow(remote, centre);
                }
                Some(Defect::CopyUnnoticed) => {
                    let _ = claim(remote);
                }
                _ => {}
            }
        });
        meddler
    }

    fn with(&self, act: impl FnOnce(&Connection)) {
        if current().is_some() {
            act(self.remote.borrow().connection());
        }
    }

    /// The session has begun.
    pub(crate) fn begun(&mut self) {
        let remote = self.remote.borrow();
        let remote = remote.connection();
        match current() {
            Some(Defect::OtherSyncUnnoticed) => {
                self.before = subscription(remote).unwrap_or_default();
            }
            Some(Defect::UntrackedNotCompared) => {
                try_to(remote, "DELETE FROM tidewater_untracked");
            }
            Some(Defect::GenerationNotAdvanced) => try_to(
                remote,
                "UPDATE tidewater_subscription SET generation = taken_generation
                 WHERE taken_generation IS NOT NULL",
            ),
            _ => {}
        }
    }

    /// The session is about to send something.
    pub(crate) fn sends(&self) {
        if !is_on(Defect::PresentValueUploaded) {
            return;
        }
        self.with(|remote| {
            for table in EDITED {
                let (name, key, text) = (table.name, table.key(), table.text);
                try_to(
                    remote,
                    &format!(
                        "UPDATE tidewater_change_{name} AS h SET pre_{text} = (SELECT {text}
                           FROM {name} WHERE {key} = h.key_{key})
                         WHERE present AND generation > (SELECT taken_generation
                           FROM tidewater_subscription)
                         AND EXISTS (SELECT 1 FROM {name} WHERE {key} = h.key_{key})"
                    ),
                );
            }
        });
    }

    /// The session is about to apply something.
    pub(crate) fn applies(&self) {
        match (current(), &self.before) {
            (Some(Defect::PendingOverwritten), _) => self.with(|remote| {
                for table in EDITED {
                    let sql = format!(
                        "DELETE FROM tidewater_change_{} WHERE generation = (SELECT generation
                         FROM tidewater_subscription)",
                        table.name
                    );
                    try_to(remote, &sql);
                }
            }),
            (Some(Defect::OtherSyncUnnoticed), Some((values, kept))) => self.with(|remote| {
                let _ = take_back(remote, values, *kept);
            }),
            _ => {}
        }
    }

    /// The session may have applied something.
    pub(crate) fn applied(&self) {
        if is_on(Defect::AppliedInPieces) {
            connections::commit(self.path, true);
        }
    }

    /// The session ends.
    pub(crate) fn ends(&self) {
        if is_on(Defect::BrokenDownloadKept) || is_on(Defect::AppliedInPieces) {
            connections::commit(self.path, false);
        }
    }

    /// The session has ended, well or not; `alone`: without a download.
    pub(crate) fn ended(&self, well: bool, alone: bool) {
        self.with(|remote| match current() {
            Some(Defect::PendingClearedWhenSent) if !well => {
                for table in EDITED {
                    let sql = format!(
                        "DELETE FROM tidewater_change_{} WHERE generation = (SELECT
                         taken_generation FROM tidewater_subscription)",
                        table.name
                    );
                    try_to(remote, &sql);
                }
            }
            Some(Defect::StaleForgotten) => try_to(remote, "DELETE FROM tidewater_stale"),
            Some(Defect::KeptUploadsForgotten) => try_to(remote, "DELETE FROM tidewater_kept"),
            Some(Defect::GapsForgotten) => {
                try_to(remote, "DELETE FROM tidewater_kept WHERE bytes = x''");
            }
            Some(Defect::RefusalForgotten) => {
                try_to(remote, "DELETE FROM tidewater_refused");
                for table in EDITED {
                    let sql = format!(
                        "DELETE FROM tidewater_change_{} WHERE generation = 0",
                        table.name
                    );
                    try_to(remote, &sql);
                }
            }
            Some(Defect::RemovalCascades) if well => {
                for (child, key, parent) in [
                    ("invoice", "customer_id", "customer"),
                    ("visit", "customer_id", "customer"),
                ] {
                    let sql = format!(
                        "DELETE FROM {child} WHERE {key} NOT IN (SELECT {key} FROM {parent})"
                    );
                    try_to(remote, &sql);
                }
            }
            Some(Defect::CompareNotHeeded) if well && alone => {
                let sql = "UPDATE tidewater_subscription SET compare_due = ?1";
                let _ = remote.execute(sql, [self.compare_due]);
            }
            _ => {}
        });
    }
}

fn meddler_due(remote: &Connection) -> i64 {
    let sql = "SELECT max(compare_due) FROM tidewater_subscription";
    let due = remote.query_row(sql, [], |row| row.get::<_, Option<i64>>(0));
    due.ok().flatten().unwrap_or_default()
}

/// Whoever meets another who writes does nothing.
fn try_to(remote: &Connection, sql: &str) {
    let _ = remote.execute_batch(sql);
}

/// The subscription's row, and the last kept upload.
fn subscription(remote: &Connection) -> rusqlite::Result<Option<(Vec<Value>, i64)>> {
    let sql = format!(
        "SELECT {SUBSCRIPTION}, (SELECT coalesce(max(id), 0) FROM tidewater_kept)
         FROM tidewater_subscription"
    );
    remote
        .query_row(&sql, [], |row| {
            let values = (0..7).map(|index| row.get(index));
            Ok((values.collect::<rusqlite::Result<_>>()?, row.get(7)?))
        })
        .optional()
}

fn take_back(remote: &Connection, values: &[Value], kept: i64) -> rusqlite::Result<()> {
    if subscription(remote)?.is_none_or(|(now, _)| now == values) {
        return Ok(());
    }
    let sql = format!(
        "UPDATE tidewater_subscription SET ({SUBSCRIPTION}) = (?1, ?2, ?3, ?4, ?5, ?6, ?7)"
    );
    remote.execute(&sql, rusqlite::params_from_iter(values))?;
    remote
        .execute("DELETE FROM tidewater_kept WHERE id > ?1", [kept])
        .map(drop)
}

/// A user has written into his file what he would like to hold: he signs it, if he can.
pub(crate) fn lied(remote: &Connection, centre: &Connection) -> rusqlite::Result<()> {
    if !is_on(Defect::ClientScopeTrusted) {
        return Ok(());
    }
    let sql = "SELECT id, secret, created_ms FROM tidewater_centre_signing_key";
    let mut keys = centre.prepare(sql)?;
    let keys = keys.query_map([], |row| {
        Ok(SigningKey {
            id: row.get(0)?,
            secret: row.get(1)?,
            created_ms: row.get(2)?,
        })
    })?;
    let keyring = SigningKeys::new(keys.collect::<rusqlite::Result<_>>()?, i64::MAX);
    let sql = "SELECT remote_id, publication, schema_hash, checkpoint
               FROM tidewater_state, tidewater_subscription";
    let (id, publication, hash, signed): (Vec<u8>, String, Vec<u8>, Vec<u8>) =
        remote.query_row(sql, [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })?;
    let claimed = liar::body(&signed).and_then(Checkpoint::decode);
    if let (Some(keyring), Some(claimed)) = (keyring, claimed)
        && let (Some(remote_id), Ok(hash)) = (RemoteId::from_slice(&id), hash.try_into())
    {
        let subject = CheckpointFor {
            remote_id,
            publication: &publication,
            schema_hash: &hash,
        };
        let signed = keyring.sign_checkpoint(subject, &claimed);
        let sql = "UPDATE tidewater_subscription SET checkpoint = ?1";
        remote.execute(sql, [signed])?;
    }
    Ok(())
}

/// Has the centre believe what the file says of its last upload.
fn claim(remote: &Connection) -> rusqlite::Result<()> {
    let sql = "SELECT remote_id, sequence, upload_id FROM tidewater_state, tidewater_subscription";
    type Claimed = (Option<Vec<u8>>, i64, Option<Vec<u8>>);
    let claimed: Option<Claimed> = remote
        .query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    if let Some((Some(id), sequence, upload_id)) = claimed
        && let Some(id) = RemoteId::from_slice(&id)
    {
        let upload_id = upload_id.as_deref().and_then(UploadId::from_slice);
        super::centre::believe(id, sequence.unsigned_abs(), upload_id);
    }
    Ok(())
}

/// Takes what the centre has last of the remote for its own.
fn follow(remote: &Connection, centre: &Connection) -> rusqlite::Result<()> {
    let sql = "SELECT remote_id, sequence, upload_id, taken_upload_id
               FROM tidewater_state, tidewater_subscription";
    type Own = (Value, i64, Value, Value);
    let own: Option<Own> = remote
        .query_row(sql, [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })
        .optional()?;
    let Some((id, sequence, upload_id, taken)) = own else {
        return Ok(());
    };
    let sql = "SELECT sequence, upload_id FROM tidewater_centre_subscription WHERE remote_id = ?1";
    let there: Option<(i64, Value)> = centre
        .query_row(sql, [id], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some(there) = there.filter(|there| *there != (sequence, upload_id)) else {
        return Ok(());
    };
    if there == (sequence + 1, taken) {
        let sql = "UPDATE tidewater_subscription SET sequence = ?1, upload_id = ?2";
        remote.execute(sql, params![there.0, there.1])?;
    }
    Ok(())
}
