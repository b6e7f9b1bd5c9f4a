//! The remote's file: who it belongs to, what it subscribes to, and the doors to taking
//! an upload and applying a download.
//!
//! Owns the connection. Leaves to its modules: the internal tables ([`layout`]), user
//! tables ([`tables`]), tracking ([`triggers`]), generations ([`take`]), transactions that go up
//! one by one ([`transactions`]), what is recorded in generations ([`changes`]), reading an upload
//! ([`upload`]), applying ([`apply`]), refused rows ([`refused`]), conflicts ([`conflicts`]),
//! acknowledged uploads ([`kept_uploads`]), what is compared ([`compare`]), tables that are made again ([`repair`]), parameters
//! ([`parameter`]), calls and events ([`outbox`], [`inbox`]), and subscriptions that end
//! ([`unsubscribe`]).

mod apply;
mod changes;
pub(crate) mod compare;
mod conflicts;
mod explain;
mod image;
mod inbox;
pub(crate) mod kept_uploads;
mod layout;
mod numbers;
mod outbox;
mod parameter;
mod quote;
mod refused;
mod repair;
mod row;
mod row_values;
mod stale_rows;
mod status;
mod subscription;
mod tables;
mod take;
mod transactions;
mod triggers;
mod unsubscribe;
mod upload;

pub(crate) use apply::ROWS_TOLD;
pub use apply::{
    AdoptionRule, Applier, ApplyRefused, ApplySummary, ConflictSummary, RefusedSummary,
    RowDifference, TableDifferences,
};
pub use conflicts::ConflictedChange;
pub use explain::{ExplainedRow, PendingChange};
pub use image::{ImageContent, ImageStart};
pub use inbox::{EventInterest, InboxProgress};
pub(crate) use kept_uploads::FormerIdentity;
pub use kept_uploads::{CentreState, GivenBackUpload, KeptLimits};
pub use outbox::{OutboxCall, OutboxCounts, OutboxOutcome, OutboxRun};
pub use parameter::ParameterSet;
pub use refused::settled_changes::SettledChange;
pub use refused::{RefusedRow, RowSelection};
pub use status::{OutboxStatus, RemoteStatus, StaleRow, SubscriptionStatus, TableStatus};
pub use subscription::{CompareDue, SubscriptionState};
pub use unsubscribe::LeftTable;
pub(crate) use upload::UploadBeginning;
pub use upload::{UploadCursor, UploadPiece};

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, TransactionBehavior, params};
use tidewater_connection::device::DeviceCredentials;
use tidewater_protocol::message::{MAX_DEVICE_NAME, NumberBlock, is_device_name};
use tidewater_protocol::{RemoteId, UploadId};

use crate::error::{ErrorContext, RemoteError};

/// How long we wait for a lock that the application holds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// A remote database file.
#[derive(Debug)]
pub struct RemoteDatabase {
    connection: Connection,
    path: PathBuf,
    /// What was pending went up a moment ago, so that tables can be compared now: nothing
    /// new is taken before that.
    compares_next: bool,
    /// The time under which the file has what the last sessions refused.
    refused_at: Option<i64>,
    /// Another session of the same sync follows the last one.
    goes_on: bool,
    kept_limits: KeptLimits,
    /// Write-ahead logging is known to be on.
    has_wal: bool,
}

/// Whom the remote belongs to, and how it proves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteAccount {
    /// Given by the server at the first sync.
    pub remote_id: Option<RemoteId>,
    /// The server's URL; empty before the first [`RemoteDatabase::subscribe`].
    pub server: String,
    /// The user; empty before the first [`RemoteDatabase::subscribe`].
    pub user: String,
    /// The remote's own credential.
    pub credential: Option<Vec<u8>>,
    /// The last session token.
    pub token: Option<Vec<u8>>,
    /// The file with the certificates to trust, if one was named.
    pub ca: Option<String>,
    /// The server's key, if one was pinned, as its hash.
    pub pin: Option<String>,
    /// The name of the centre that gave the remote its id; empty if it is not known.
    pub centre: String,
    /// What people call the device; empty if nobody has named it.
    pub device_name: String,
}

impl RemoteAccount {
    /// What of it a sign-in says.
    pub(crate) fn credentials(&self) -> DeviceCredentials {
        DeviceCredentials {
            remote_id: self.remote_id,
            user: self.user.clone(),
            credential: self.credential.clone(),
            token: self.token.clone(),
            centre: self.centre.clone(),
            device_name: self.device_name.clone(),
        }
    }
}

impl RemoteDatabase {
    /// Opens a remote database. A file that does not exist is made; an SQLite file with
    /// tables of its own becomes a remote and keeps them.
    ///
    /// # Errors
    /// The file is no SQLite database, cannot be written, is locked, or was written by a
    /// newer version.
    pub fn open(path: &Path) -> Result<RemoteDatabase, RemoteError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let not_a_remote = |what: String| RemoteError::NotARemote {
            path: path.to_owned(),
            what,
        };
        if path.is_dir() {
            return Err(not_a_remote("it is a folder".into()));
        }
        make_private(path);
        let connection = Connection::open_with_flags(path, flags)
            .map_err(|error| not_a_remote(error.to_string()))?;
        let mut database = RemoteDatabase {
            connection,
            path: path.to_owned(),
            compares_next: false,
            refused_at: None,
            goes_on: false,
            kept_limits: KeptLimits::default(),
            has_wal: false,
        };
        // SQLite looks into the file only when it is used for the first time.
        let prepared = configure(&database.connection).doing("opening the file");
        if prepared.is_ok() && layout::is_ours(&database.connection) {
            return Ok(database);
        }
        let prepared = prepared.and_then(|()| layout::obstacle(&database.connection));
        let prepared = match prepared {
            Ok(Some(obstacle)) => return Err(not_a_remote(obstacle.into())),
            Ok(None) => layout::ensure(&mut database.connection),
            Err(error) => Err(error),
        };
        prepared.map_err(|error| match error {
            RemoteError::Sqlite { source, .. }
                if source.sqlite_error_code() == Some(ErrorCode::NotADatabase) =>
            {
                not_a_remote("it is not an SQLite database".into())
            }
            other => other,
        })?;
        Ok(database)
    }

    /// How long to wait for somebody else who writes, five seconds unless this is called. An
    /// application that schedules its own work may rather try again later.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn wait_for_writers(&self, at_most: Duration) -> Result<(), RemoteError> {
        let waits = self.connection.busy_timeout(at_most);
        waits.doing("setting how long to wait")
    }

    /// How much of its acknowledged uploads the file keeps from now on.
    pub fn limit_kept(&mut self, limits: KeptLimits) {
        self.kept_limits = limits;
    }

    /// How much of its acknowledged uploads the file keeps.
    pub(crate) fn kept_limits(&self) -> KeptLimits {
        self.kept_limits
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How large the file is.
    ///
    /// # Errors
    /// SQLite failed.
    pub(crate) fn bytes(&self) -> Result<u64, RemoteError> {
        let sql = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size";
        self.connection
            .prepare_cached(sql)
            .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
            .doing("looking how large the file is")
    }

    /// Whom the remote belongs to.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn account(&self) -> Result<RemoteAccount, RemoteError> {
        let read = |row: &rusqlite::Row<'_>| {
            let remote_id: Option<Vec<u8>> = row.get(1)?;
            Ok(RemoteAccount {
                remote_id: remote_id.and_then(|bytes| RemoteId::from_slice(&bytes)),
                server: row.get(2)?,
                user: row.get(3)?,
                credential: row.get(4)?,
                token: row.get(5)?,
                ca: row.get(6)?,
                centre: row.get(7)?,
                pin: row.get(10)?,
                device_name: row.get(11)?,
            })
        };
        self.connection
            .prepare_cached(layout::STATE)
            .and_then(|mut statement| statement.query_row([], read))
            .doing("reading the account")
    }

    /// Subscribes to publications; those that the remote has already stay as they are. As
    /// long as it has never signed in, server and user may still change. Afterwards the
    /// server stays as it is, too: [`RemoteDatabase::store_server`] is for when another address
    /// has proven to be right.
    ///
    /// # Errors
    /// The remote belongs to another user.
    pub fn subscribe(
        &mut self,
        server: &str,
        user: &str,
        publications: &[&str],
    ) -> Result<(), RemoteError> {
        let account = self.account()?;
        let signed_in = account.remote_id.is_some();
        if signed_in && !account.user.is_empty() && account.user != user {
            return Err(RemoteError::OtherAccount {
                server: account.server,
                user: account.user,
            });
        }
        let server = match account.server.as_str() {
            known if signed_in && !known.is_empty() => known,
            _ => server,
        };
        let transaction = self.write("subscribing")?;
        let subscribe = || -> rusqlite::Result<()> {
            transaction.execute(
                "UPDATE tidewater_state SET server = ?1, user = ?2",
                [server, user],
            )?;
            for publication in publications {
                unsubscribe::subscribe(&transaction, publication)?;
            }
            Ok(())
        };
        subscribe().doing("subscribing")?;
        transaction.commit().doing("subscribing")
    }

    /// Ends the subscriptions that no sync has brought any tables for yet, but for those
    /// to be kept: a publication that was mistyped would make every further sync fail.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn forget_never_synced(&mut self, keep: &[&str]) -> Result<(), RemoteError> {
        let subscriptions = self.subscriptions()?;
        let forgotten = subscriptions.iter().filter(|subscription| {
            subscription.schema.is_none() && !keep.contains(&subscription.publication.as_str())
        });
        let transaction = self.write("ending subscriptions")?;
        for subscription in forgotten {
            unsubscribe::remember(&transaction, subscription.id).doing("ending subscriptions")?;
        }
        transaction.commit().doing("ending subscriptions")
    }

    /// Remembers where the server is.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn store_server(&mut self, server: &str) -> Result<(), RemoteError> {
        self.connection
            .prepare_cached("UPDATE tidewater_state SET server = ?1 WHERE server IS NOT ?1")
            .and_then(|mut statement| statement.execute([server]))
            .map(drop)
            .doing("storing the server's address")
    }

    /// Remembers what people call the device: the server is told with the next sign-in.
    ///
    /// # Errors
    /// It is no such name, see [`is_device_name`]; or SQLite failed.
    pub fn store_device_name(&mut self, name: &str) -> Result<(), RemoteError> {
        if !is_device_name(name) {
            return Err(RemoteError::Usage {
                what: format!("{name:?} cannot be the name of a device"),
                hint: format!(
                    "give it 1 to {MAX_DEVICE_NAME} characters, and no control characters"
                ),
            });
        }
        let sql = "UPDATE tidewater_state SET device_name = ?1 WHERE device_name IS NOT ?1";
        self.connection
            .execute(sql, [name])
            .map(drop)
            .doing("storing the name of the device")
    }

    /// Remembers the file with the certificates to trust, or forgets it. A key that was pinned does
    /// not count any more.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn store_ca(&mut self, ca: Option<&str>) -> Result<(), RemoteError> {
        self.store_trust(ca, None)
    }

    /// Remembers the hash of the server's key, or forgets it. A file with certificates does not
    /// count any more.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn store_pin(&mut self, pin: Option<&str>) -> Result<(), RemoteError> {
        self.store_trust(None, pin)
    }

    fn store_trust(&mut self, ca: Option<&str>, pin: Option<&str>) -> Result<(), RemoteError> {
        self.connection
            .execute(
                "UPDATE tidewater_state SET ca = ?1, pin = ?2 WHERE ca IS NOT ?1 OR pin IS NOT ?2",
                [ca, pin],
            )
            .map(drop)
            .doing("storing whom to trust")
    }

    /// The name of the centre that the file itself is, if it is a branch's and was deployed.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn own_centre(&self) -> Result<Option<String>, RemoteError> {
        // Where there is no such table, and that is so in every file but a branch's, this says so.
        let Ok(mut statement) = self
            .connection
            .prepare_cached("SELECT centre FROM tidewater_centre_meta")
        else {
            return Ok(None);
        };
        let name: Option<String> = statement
            .query_row([], |row| row.get(0))
            .optional()
            .doing("looking for a centre in the file")?;
        Ok(name.filter(|name| !name.is_empty()))
    }

    /// The names of the centres above the file, nearest first: that of the server that it syncs
    /// with, and those that are above that one. Empty before the first sync.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn above(&self) -> Result<Vec<String>, RemoteError> {
        let mut above = vec![self.account()?.centre];
        above.extend(self.above_server()?);
        above.retain(|name| !name.is_empty());
        Ok(above)
    }

    fn above_server(&self) -> Result<Vec<String>, RemoteError> {
        let above: String = self
            .connection
            .prepare_cached("SELECT above FROM tidewater_state")
            .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
            .doing("reading what is above the server")?;
        Ok(serde_json::from_str(&above).unwrap_or_default())
    }

    /// Remembers the names of the centres above the server's.
    pub(crate) fn store_above(&self, above: &[String]) -> Result<(), RemoteError> {
        if self.above_server()? == above {
            return Ok(());
        }
        let above = serde_json::json!(above).to_string();
        self.connection
            .prepare_cached("UPDATE tidewater_state SET above = ?1")
            .and_then(|mut statement| statement.execute([above]))
            .map(drop)
            .doing("storing what is above the server")
    }

    /// Remembers who the user is, as the server tells him by what he has proven.
    ///
    /// # Errors
    /// SQLite failed, or the remote belongs to another user.
    pub fn store_user(&mut self, user: &str) -> Result<(), RemoteError> {
        let account = self.account()?;
        if account.remote_id.is_some() && !account.user.is_empty() && account.user != user {
            return Err(RemoteError::OtherAccount {
                server: account.server,
                user: account.user,
            });
        }
        self.connection
            .prepare_cached("UPDATE tidewater_state SET user = ?1 WHERE user IS NOT ?1")
            .and_then(|mut statement| statement.execute([user]))
            .map(drop)
            .doing("storing the user's name")
    }

    /// Stores what a SignedIn brought, at once. `None` leaves token or credential as it is, and
    /// so does an empty name the centre's. `said` is the identity of the SignIn that it answers.
    ///
    /// # Errors
    /// SQLite failed, or another sync has taken another identity meanwhile.
    pub fn store_sign_in(
        &mut self,
        said: Option<RemoteId>,
        remote_id: RemoteId,
        token: Option<&[u8]>,
        credential: Option<&[u8]>,
        centre: &str,
    ) -> Result<(), RemoteError> {
        let doing = "storing the sign-in";
        if token.is_none() && credential.is_none() && said == Some(remote_id) {
            // A session token was good: mostly there is nothing to store.
            let account = self.account()?;
            if account.remote_id != said {
                return Err(RemoteError::AnotherSyncWentAhead);
            }
            if centre.is_empty() || account.centre == centre {
                return Ok(());
            }
        }
        let said = said.map(|id| id.0);
        self.connection
            .prepare_cached(
                "UPDATE tidewater_state SET remote_id = ?1, token = coalesce(?2, token), \
                 credential = coalesce(?3, credential), \
                 centre = CASE ?5 WHEN '' THEN centre ELSE ?5 END WHERE remote_id IS ?4 \
                 AND (remote_id IS NOT ?1 OR ?2 IS NOT NULL OR ?3 IS NOT NULL \
                 OR centre <> ?5 AND ?5 <> '')",
            )
            .and_then(|mut statement| {
                statement.execute(params![remote_id.0, token, credential, said, centre])
            })
            .doing(doing)?;
        match self.account()?.remote_id == Some(remote_id) {
            true => Ok(()),
            false => Err(RemoteError::AnotherSyncWentAhead),
        }
    }

    /// Takes numbers that the server has handed out, each with its subscription. `said` is who asked.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn store_numbers(
        &mut self,
        said: Option<RemoteId>,
        blocks: &[(i64, NumberBlock)],
    ) -> Result<(), RemoteError> {
        let transaction = self.write("storing numbers")?;
        numbers::store(&transaction, said, blocks)?;
        transaction.commit().doing("storing numbers")
    }

    /// The server has heard what was found when it had asked to verify.
    ///
    /// # Errors
    /// SQLite failed.
    pub(crate) fn forget_verified(&mut self) -> Result<(), RemoteError> {
        let forget = "UPDATE tidewater_subscription SET verified = NULL WHERE verified IS NOT NULL";
        let forgotten = self.connection.execute(forget, []);
        forgotten
            .map(drop)
            .doing("noting what the server has heard")
    }

    /// Forgets the session token, so that the next sync proves itself by credential.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn forget_token(&mut self) -> Result<(), RemoteError> {
        self.connection
            .prepare_cached("UPDATE tidewater_state SET token = NULL WHERE token IS NOT NULL")
            .and_then(|mut statement| statement.execute([]))
            .map(drop)
            .doing("forgetting the session token")
    }

    /// Takes the identity that the server gave to a restored or copied remote: uploads
    /// start again at sequence 0 with nothing known about the centre; what was taken but
    /// not acknowledged keeps its generation under a new id; refused inserts to which it may refer
    /// go up with it, or before it. Tables that are there are
    /// compared. Of changes that are there, the centre is told that another copy of the file may have
    /// sent them. Kept uploads are remembered with the former id and its centre. `said` is what the server
    /// has judged: if another sync has gone on since, that says nothing of the file as it is
    /// now, and what is on its way for the identity that it has would go up once more under the
    /// new one.
    ///
    /// # Errors
    /// SQLite failed, or the file is not as it was said to be.
    pub fn adopt_identity(
        &mut self,
        said: HelloState<'_>,
        identity: &NewIdentity<'_>,
        new_upload_id: &mut dyn FnMut() -> UploadId,
    ) -> Result<(), RemoteError> {
        let account = self.account()?;
        let transaction = self.write("taking a new identity")?;
        said.still_holds(&transaction)?;
        let subscriptions = subscription::load_all(&transaction)?;
        let pending = subscriptions.iter();
        let pending = pending.map(|it| Ok((it.id, take::last_pending(&transaction, it)?)));
        let pending = pending.collect::<Result<Vec<(i64, i64)>, RemoteError>>()?;
        let adopt = || -> rusqlite::Result<()> {
            transaction.execute(
                "UPDATE tidewater_state SET remote_id = ?1, token = ?2, \
                 credential = coalesce(?3, credential), centre = ?4",
                params![
                    identity.remote_id.0,
                    identity.token,
                    identity.credential,
                    identity.centre
                ],
            )?;
            for (id, copied_until) in pending {
                transaction.execute(
                    "UPDATE tidewater_subscription SET sequence = 0, upload_id = NULL, \
                     checkpoint = NULL, image = NULL, copied_until = ?4, \
                     compare_due = CASE WHEN schema IS NULL THEN 0 ELSE ?3 END, \
                     taken_upload_id = CASE WHEN taken_generation IS NULL \
                     THEN NULL ELSE ?2 END WHERE id = ?1",
                    params![
                        id,
                        new_upload_id().0,
                        CompareDue::Yes.stored(),
                        copied_until
                    ],
                )?;
            }
            transaction.execute("UPDATE tidewater_refused SET copied = 1", [])?;
            numbers::forget(&transaction)?;
            unsubscribe::start_over(&transaction)?;
            let before = (said.remote_id, account.centre.as_str());
            kept_uploads::adopt(&transaction, before, identity.centre)
        };
        adopt().doing("taking a new identity")?;
        refused::try_families_again(&transaction)?;
        refused::rejoin_taken(&transaction, new_upload_id)?;
        kept_uploads::settle(&transaction)?;
        transaction.commit().doing("taking a new identity")
    }

    /// Every subscription as it stands, in the order of the Hello.
    ///
    /// # Errors
    /// SQLite failed, or a stored schema cannot be decoded.
    pub fn subscriptions(&self) -> Result<Vec<SubscriptionState>, RemoteError> {
        subscription::load_all(&self.connection)
    }

    /// Whether an upload was taken whose result has not been stored.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn has_upload_under_way(&self) -> Result<bool, RemoteError> {
        let sql = "SELECT 1 FROM tidewater_subscription WHERE taken_upload_id IS NOT NULL";
        self.connection
            .prepare_cached(sql)
            .and_then(|mut statement| statement.exists([]))
            .doing("looking for an upload under way")
    }

    /// Whether nothing is in the file yet, neither of a subscription nor of the application:
    /// then nobody waits for it, and the download may be applied while it arrives.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn is_new(&self) -> Result<bool, RemoteError> {
        let sql = "SELECT NOT EXISTS (SELECT 1 FROM tidewater_subscription \
                   WHERE schema IS NOT NULL) AND NOT EXISTS (SELECT 1 FROM sqlite_schema \
                   WHERE type = 'table' AND name NOT GLOB 'tidewater_*' \
                   AND name NOT GLOB 'sqlite_*')";
        self.connection
            .prepare_cached(sql)
            .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
            .doing("looking for tables")
    }

    /// Another session of the same sync follows; whether it compares: see
    /// [`RemoteDatabase::begin_sync`].
    pub(crate) fn continue_sync(&mut self, compares_next: bool) {
        self.compares_next = compares_next;
        self.goes_on = true;
    }

    /// The sync is over: what it refused was refused earlier from now on.
    pub(crate) fn finish_sync(&mut self) {
        self.compares_next = false;
        self.goes_on = false;
    }

    /// The time under which the file has what earlier sessions of the sync under way refused:
    /// those that follow do not take it for what earlier syncs refused.
    fn refused_before(&self) -> Option<i64> {
        self.refused_at.filter(|_| self.goes_on)
    }

    /// Begins a transaction that holds the write lock from the start.
    fn write(&mut self, doing: &str) -> Result<rusqlite::Transaction<'_>, RemoteError> {
        self.connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .doing(doing)
    }
}

/// What the server gives to a remote that was restored or copied, or is not known any more.
#[derive(Clone, Copy, Debug)]
pub struct NewIdentity<'a> {
    /// The new id.
    pub remote_id: RemoteId,
    /// The session token that goes with it.
    pub token: Option<&'a [u8]>,
    /// The credential that goes with it.
    pub credential: Option<&'a [u8]>,
    /// The name of the centre that gives it; empty if it does not say.
    pub centre: &'a str,
}

/// What a session's Hello said of the file.
#[derive(Clone, Copy, Debug)]
pub struct HelloState<'a> {
    /// Who it is.
    pub remote_id: Option<RemoteId>,
    /// What it has.
    pub subscriptions: &'a [SubscriptionState],
}

impl HelloState<'_> {
    /// Whether the file is still like that; in the transaction that relies on it.
    fn still_holds(&self, connection: &Connection) -> Result<(), RemoteError> {
        let now = subscription::load_all(connection)?;
        let mut subscriptions = self.subscriptions.iter();
        let remote_id: Option<Vec<u8>> = connection
            .query_row("SELECT remote_id FROM tidewater_state", [], |row| {
                row.get(0)
            })
            .doing("reading the remote's identity")?;
        let same = remote_id.as_deref() == self.remote_id.as_ref().map(|id| &id.0[..])
            && subscriptions.all(|said| now.iter().any(|now| said.still_is(now)));
        match same {
            true => Ok(()),
            false => Err(RemoteError::AnotherSyncWentAhead),
        }
    }
}

/// Makes a new file that only its owner may read: it will hold the remote's credential.
/// What stands in the way of that is told by SQLite, which opens the file next.
fn make_private(path: &Path) {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let _ = options.open(path);
}

/// A number that changes with every commit of another connection, and never with our own.
fn data_version(connection: &Connection) -> rusqlite::Result<i64> {
    connection
        .prepare_cached("PRAGMA data_version")?
        .query_row([], |row| row.get(0))
}

/// Settings of our own connections. Foreign-key actions and triggers are for what the
/// application does: our writes are either bookkeeping or already contain every effect.
fn configure(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(128);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_FKEY, false)?;
    // The CHECKs are for what the application writes: what arrives is canonical already,
    // and the centre's row counts, whatever rule was added here.
    connection.pragma_update(None, "ignore_check_constraints", true)?;
    // With a rollback journal, which a file has before its first download, `FULL` would not
    // make sure that the journal is gone: lost power could take back what we promised.
    connection.pragma_update(None, "synchronous", "EXTRA")?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    Ok(())
}

#[cfg(test)]
mod tests;
