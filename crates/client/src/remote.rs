//! [`Remote`]: the paved path for programs that sync.

use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tidewater_carrier::{CompressionOptions, Pin, ServerUrls};
use tidewater_protocol::Code;
use tidewater_protocol::message::{Answer, CallFailed, MAX_DEVICE_NAME, is_device_name};
use tidewater_remote::database::{
    AdoptionRule, ConflictedChange, EventInterest, LeftTable, ParameterSet, RefusedRow,
    RemoteAccount, RemoteDatabase, RemoteStatus, RowSelection, SettledChange, StaleRow,
    TableDifferences,
};
use tidewater_remote::{RemoteError, Report, SyncDirection, SyncError, SyncProgress, VerifyMode};

use crate::bearer_token::{BearerToken, ClientCertificate};
use crate::clock::unix_ms;
use crate::driver;
use crate::error::ClientError;
use crate::link::Link;
use crate::options::SyncOptions;
use crate::provider::{Handler, ProvidedCall};
use crate::retry_policy::RetryPolicy;

/// What [`Remote::verify`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Verification {
    /// Whether all tables are equal to the centre now, and it has no rows without a key.
    pub is_equal: bool,
    /// Whether something differed and the centre's rows were taken.
    pub repaired: bool,
    /// The tables that were missing, or lacked a column or their key, and were made again.
    pub rebuilt: Vec<String>,
    /// What was found in each table, before the repair.
    pub tables: Vec<TableDifferences>,
    /// Of the rows that differ still, those of which it is known what keeps them as they are.
    pub kept: Vec<StaleRow>,
    /// The sync before the compare.
    pub sync: Report,
}

/// What a server says of parameters that it does not allow, or that a query of it cannot use.
const REFUSES_PARAMETERS: [Code; 3] = [
    Code::ParameterNotAllowed,
    Code::ConsolidatedRefused,
    Code::Internal,
];

/// A remote database and how to sync it.
///
/// While it syncs, any SQLite driver may read and write the file.
pub struct Remote {
    path: PathBuf,
    /// `None` only while a sync has it, or after a progress callback panicked.
    database: Option<RemoteDatabase>,
    options: SyncOptions,
    /// What parameters were before those that no sync has carried yet.
    parameters_before: Option<ParameterSet>,
    /// The connection that the last sync has left open.
    link: Option<Link>,
    keeps: bool,
    /// Where a server has sent it that shut down. It is not remembered.
    elsewhere: Option<String>,
    /// What it does for others while it is live.
    provided: Vec<(String, Handler)>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote")
            .field("path", &self.path)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Remote {
    /// Opens a remote database, or makes one.
    ///
    /// # Errors
    /// The file is no SQLite database, cannot be written, is locked, or was written by a
    /// newer version.
    pub fn open(path: impl AsRef<Path>) -> Result<Remote, RemoteError> {
        let path = path.as_ref().to_owned();
        Ok(Remote {
            database: Some(RemoteDatabase::open(&path)?),
            path,
            options: SyncOptions::default(),
            parameters_before: None,
            link: None,
            keeps: false,
            elsewhere: None,
            provided: Vec::new(),
        })
    }

    /// Subscribes to publications of a server as a user. Repeatable; what the remote
    /// subscribes to already stays as it is. Nothing is sent yet. The user may be empty where a
    /// token or a certificate tells who he is.
    ///
    /// A remote that has signed in may be moved to another address this way. The address is
    /// remembered once the server there has let the remote in. Several addresses, with commas
    /// between them, are tried one after the other; the one that got through is tried first the
    /// next time.
    ///
    /// # Errors
    /// The URL is none, or the remote belongs to another user.
    pub fn subscribe(
        &mut self,
        server: &str,
        user: &str,
        publications: &[&str],
    ) -> Result<(), ClientError> {
        let server = server.parse::<ServerUrls>()?.to_string();
        let database = self.database()?;
        database.subscribe(&server, user, publications)?;
        let account = database.account()?;
        if account.remote_id.is_none()
            && account.device_name.is_empty()
            && let Some(name) = host_name()
        {
            database.store_device_name(&name)?;
        }
        let moves = database.account()?.server != server;
        self.options.server = moves.then_some(server);
        Ok(())
    }

    /// What people call the device, wherever they are told of the remote: the name of the host, unless
    /// this is called. Remembered in the file, and told to the server with the next sign-in. Names
    /// need not be unique.
    ///
    /// # Errors
    /// It is empty, has more than 64 characters or control characters; or SQLite failed.
    pub fn set_device_name(&mut self, name: &str) -> Result<(), RemoteError> {
        self.database()?.store_device_name(name)
    }

    /// The user's password, for the first sync or when the credential is no longer valid.
    /// It is never stored in the file.
    pub fn set_password(&mut self, password: impl Into<String>) {
        self.options.password = Some(password.into());
    }

    /// A token of an identity provider, in place of the password. It is never stored in the file.
    pub fn set_bearer(&mut self, bearer: BearerToken) {
        self.options.bearer = Some(bearer);
    }

    /// The certificate to connect with over `tls://`. Without password and token it says who the
    /// user is. It is not remembered in the file.
    pub fn set_certificate(&mut self, certificate: ClientCertificate) {
        self.options.certificate = Some(certificate);
    }

    /// Lets the next syncs go over to another centre than the one that the file was synced
    /// with: what is pending goes up there, and its rows take the place of the former one's.
    pub fn set_other_centre(&mut self, other_centre: bool) {
        self.options.other_centre = other_centre;
    }

    /// Lets the next syncs adopt tables that the file has already under the names of published
    /// ones: their rows are compared with the centre's, and what differs becomes pending changes,
    /// which go up at once, or gives way.
    pub fn set_adopt(&mut self, adopt: Option<AdoptionRule>) {
        self.options.adopt = adopt;
    }

    /// Whether syncs leave the connection open, for the next one and for calls.
    pub fn set_keep_connected(&mut self, keeps: bool) {
        self.keeps = keeps;
        if !keeps && let Some(link) = self.link.take() {
            link.hang_up();
        }
    }

    /// Provides a procedure while the remote is live: see [`Remote::live`]. `handler` may run
    /// several times at once.
    pub fn provide(
        &mut self,
        name: &str,
        handler: impl Fn(&ProvidedCall) -> Result<Answer, CallFailed> + Send + Sync + 'static,
    ) {
        self.provided.push((name.to_owned(), Arc::new(handler)));
    }

    pub(crate) fn provided(&self) -> &[(String, Handler)] {
        &self.provided
    }

    /// The connection that the last sync has left open: see [`Remote::set_keep_connected`]. While
    /// the remote syncs, others may call over it.
    pub fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    /// Sets a parameter of all publications that the remote subscribes to; `None` drops it. It is
    /// kept in the file, and the next sync brings what follows from it. If the server refuses it, or
    /// can do nothing with it, that sync fails, and the parameters are what they were.
    ///
    /// # Errors
    /// It can be no name or no value, there are too many of them, or SQLite failed.
    pub fn set_parameter(&mut self, name: &str, value: Option<&str>) -> Result<(), RemoteError> {
        if self.parameters_before.is_none() {
            self.parameters_before = Some(self.database()?.parameters()?);
        }
        self.database()?.set_parameter(None, name, value)
    }

    /// Ends a subscription, whose tables leave the file. If something of it is pending, a sync
    /// takes that up first, unless it is to be discarded. If the server has no such publication any
    /// more, it is listed as refused.
    ///
    /// # Errors
    /// There is no such subscription, the sync failed, or the application went on writing.
    pub fn unsubscribe(
        &mut self,
        publication: &str,
        discard_pending: bool,
        progress: &mut dyn FnMut(&SyncProgress) -> ControlFlow<()>,
    ) -> Result<Vec<LeftTable>, ClientError> {
        let waits = !discard_pending && !self.database()?.is_dropped(publication)?;
        if waits && self.database()?.has_pending(publication)? {
            self.sync(progress)?;
            // What was found to be untracked has gone up with a second one.
            if self.database()?.has_pending(publication)? {
                self.sync(progress)?;
            }
        }
        Ok(self.database()?.unsubscribe(publication, discard_pending)?)
    }

    /// Which way the next syncs go.
    pub fn set_direction(&mut self, direction: SyncDirection) {
        self.options.direction = direction;
    }

    /// Trusts the authorities whose certificates are in this PEM file, and no others. The
    /// file's name is remembered in the database; `None` forgets it.
    ///
    /// # Errors
    /// The name is not UTF-8, or SQLite failed.
    pub fn set_ca_file(&mut self, file: Option<&Path>) -> Result<(), RemoteError> {
        let Some(file) = file else {
            return self.database()?.store_ca(None);
        };
        // The next sync may be started from another folder.
        let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        let name = absolute.to_str().ok_or_else(|| RemoteError::Usage {
            what: format!("the file name {} is not UTF-8", file.display()),
            hint: "give the file another name".into(),
        })?;
        self.database()?.store_ca(Some(name))
    }

    /// Trusts whatever server has this key, and no authorities. Remembered in the database in place
    /// of [`Remote::set_ca_file`]; `None` forgets it.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn set_pin(&mut self, pin: Option<Pin>) -> Result<(), RemoteError> {
        let pin = pin.map(|it| it.to_string());
        self.database()?.store_pin(pin.as_deref())
    }

    /// Allows what is not encrypted to other machines: everything travels readable for everybody on the
    /// way, the password included.
    pub fn set_insecure(&mut self, insecure: bool) {
        self.options.insecure = insecure;
    }

    /// The HTTP proxy through which other machines are reached: see [`SyncOptions::proxy`].
    pub fn set_proxy(&mut self, proxy: Option<String>) {
        self.options.proxy = proxy;
    }

    /// How what goes over the network is packed: where it makes syncs faster, unless this is called.
    pub fn set_compression(&mut self, packing: CompressionOptions) {
        self.options.compression = packing;
    }

    /// How long the server may be silent at the most before a sync gives up: two minutes by default.
    /// What was sent over a fast line is given up after about fifteen seconds without an answer.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.options.timeout = timeout;
    }

    /// What becomes of syncs that the server turns away with a time to come back: by default they
    /// are tried again when it said, for five minutes. The file is not locked while a sync waits,
    /// and no connection is open.
    pub fn set_retry(&mut self, retry: RetryPolicy) {
        self.options.retry = retry;
    }

    /// The program that syncs, for the server's logs.
    pub fn set_client(&mut self, client: impl Into<String>) {
        self.options.client = client.into();
    }

    /// Syncs. `progress` is called again and again, at least a few times a second; when it
    /// breaks, the sync is cancelled and the remote is as it was before.
    ///
    /// # Errors
    /// See [`ClientError`]; [`ClientError::hint`] tells what to do next.
    pub fn sync(
        &mut self,
        progress: &mut dyn FnMut(&SyncProgress) -> ControlFlow<()>,
    ) -> Result<Report, ClientError> {
        let uploads = self.options.direction != SyncDirection::DownloadOnly;
        let in_flight = uploads && self.database()?.has_upload_under_way()?;
        let mut report = self.sync_once(progress)?;
        let adopts = uploads && self.options.adopt == Some(AdoptionRule::Mine);
        if in_flight || adopts {
            // An earlier sync broke off: this one brought its upload to an end, and what
            // was changed since is the next upload. So is what an adopted table has otherwise.
            report.add(self.sync_once(progress)?);
        }
        Ok(report)
    }

    /// Syncs, then compares every table with the centre. Unless it is to `repair`, what differs
    /// stays as it is; otherwise the centre's rows take its place, and missing tables and
    /// columns are made again; a file that began from an image which the server refuses is compared
    /// instead. Rows with local changes, pending or refused, are left out.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn verify(
        &mut self,
        repair: bool,
        progress: &mut dyn FnMut(&SyncProgress) -> ControlFlow<()>,
    ) -> Result<Verification, ClientError> {
        let mut rebuilt = Vec::new();
        if repair {
            let database = self.database()?;
            database.leave_image()?;
            rebuilt = database.rebuild_broken_tables(unix_ms())?;
        }
        let direction = std::mem::replace(&mut self.options.direction, SyncDirection::Both);
        let verified = self.verify_all(repair, progress);
        self.options.direction = direction;
        self.options.verify = VerifyMode::No;
        let verification = verified?;
        Ok(Verification {
            rebuilt,
            ..verification
        })
    }

    fn verify_all(
        &mut self,
        repair: bool,
        progress: &mut dyn FnMut(&SyncProgress) -> ControlFlow<()>,
    ) -> Result<Verification, ClientError> {
        let sync = self.sync(progress)?;
        self.options.verify = VerifyMode::Look;
        let mut tables = self.sync_once(progress)?.compared;
        tables.sort_by(|left, right| left.table.cmp(&right.table));
        let differs = |it: &TableDifferences| !it.is_equal();
        let are_equal =
            |tables: &[TableDifferences]| tables.iter().all(|it| !differs(it) && it.keyless == 0);
        let mut is_equal = are_equal(&tables);
        let repaired = repair && tables.iter().any(differs);
        let mut left = Vec::new();
        if repaired {
            self.options.verify = VerifyMode::Repair;
            self.sync_once(progress)?;
            // Something of the application's may keep a row as it is.
            self.options.verify = VerifyMode::Look;
            left = self.sync_once(progress)?.compared;
            is_equal = are_equal(&left);
        }
        let differing = if repaired { &left } else { &tables };
        let kept = match is_equal {
            true => Vec::new(),
            false => self.kept_rows(differing)?,
        };
        Ok(Verification {
            kept,
            is_equal,
            repaired,
            rebuilt: Vec::new(),
            tables,
            sync,
        })
    }

    /// Those of some rows that differ of which it is known what keeps them as they are.
    fn kept_rows(&mut self, differing: &[TableDifferences]) -> Result<Vec<StaleRow>, ClientError> {
        let (_, mut stale) = self.database()?.stale(usize::MAX)?;
        stale.retain(|row| {
            let mut rows = differing
                .iter()
                .filter(|it| it.table == row.table)
                .flat_map(|it| &it.rows);
            rows.any(|it| it.key == row.key)
        });
        Ok(stale)
    }

    fn sync_once(
        &mut self,
        progress: &mut dyn FnMut(&SyncProgress) -> ControlFlow<()>,
    ) -> Result<Report, ClientError> {
        self.database()?;
        let Some(database) = self.database.take() else {
            return Err(SyncError::Defect {
                what: "an open database is gone",
            }
            .into());
        };
        let (database, result) = driver::sync(
            database,
            &self.options,
            self.elsewhere.as_deref(),
            &mut self.link,
            self.keeps,
            progress,
        );
        self.database = Some(database);
        match &result {
            Ok(_) => self.parameters_before = None,
            // Every later sync would fail for them, and what is pending stay where it is.
            Err(error) if REFUSES_PARAMETERS.contains(&error.code()) => {
                if let Some(before) = self.parameters_before.take() {
                    self.database()?.restore_parameters(&before)?;
                }
            }
            Err(_) => {}
        }
        result
    }

    /// Whom the remote belongs to.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn account(&mut self) -> Result<RemoteAccount, RemoteError> {
        self.database()?.account()
    }

    /// The next connection goes there, or to its own address again.
    pub(crate) fn set_elsewhere(&mut self, server: Option<String>) {
        self.elsewhere = server;
    }

    /// The address of the server that it goes to.
    pub(crate) fn connects_to(&mut self) -> Result<String, RemoteError> {
        match self.elsewhere.as_ref().or(self.options.server.as_ref()) {
            Some(server) => Ok(server.clone()),
            None => self.account().map(|it| it.server),
        }
    }

    /// The next sync connects anew; this connection is left to whoever uses it.
    pub(crate) fn take_link(&mut self) -> Option<Link> {
        self.link.take()
    }

    pub(crate) fn version(&mut self) -> Result<i64, RemoteError> {
        self.database()?.version()
    }

    /// What is to be in the inbox of its events; nothing if nothing comes down.
    pub(crate) fn interests(&mut self) -> Result<Vec<EventInterest>, RemoteError> {
        match self.options.direction {
            SyncDirection::UploadOnly => Ok(Vec::new()),
            _ => self.database()?.interests(),
        }
    }

    /// Fills the inbox, over the connection that the last sync has left open.
    pub(crate) fn fill_inbox(
        &mut self,
        progress: &mut dyn FnMut(&SyncProgress) -> ControlFlow<()>,
    ) -> Result<Report, ClientError> {
        let Some(link) = self.link.clone() else {
            return Ok(Report::default());
        };
        driver::fill_inbox(self.database()?, &link, progress)
    }

    pub(crate) fn has_something_to_upload(&mut self) -> Result<bool, RemoteError> {
        self.database()?.has_something_to_upload()
    }

    /// The state of the remote.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn status(&mut self) -> Result<RemoteStatus, RemoteError> {
        self.database()?.status()
    }

    /// The conflicts of this device's changes that are listed, oldest first: of what lost, and of
    /// what was merged.
    ///
    /// # Errors
    /// See [`RemoteDatabase::conflicts`].
    pub fn conflicts(&mut self) -> Result<Vec<ConflictedChange>, RemoteError> {
        self.database()?.conflicts()
    }

    /// Writes the device's own versions again, as ordinary changes; returns how many.
    ///
    /// # Errors
    /// See [`RemoteDatabase::apply_conflicts`].
    pub fn apply_conflicts(&mut self, which: RowSelection<'_>) -> Result<u64, RemoteError> {
        self.database()?.apply_conflicts(which)
    }

    /// Writes an insert that lost as a conflict under a new key; gives the key, as a JSON array.
    ///
    /// # Errors
    /// See [`RemoteDatabase::renumber_conflict`].
    pub fn renumber_conflict(&mut self, id: i64, key: Option<&str>) -> Result<String, RemoteError> {
        self.database()?.renumber_conflict(id, key)
    }

    /// Takes conflicts off the list; returns how many.
    ///
    /// # Errors
    /// See [`RemoteDatabase::dismiss_conflicts`].
    pub fn dismiss_conflicts(&mut self, which: RowSelection<'_>) -> Result<u64, RemoteError> {
        self.database()?.dismiss_conflicts(which)
    }

    /// Every refused change, oldest first.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn refused(&mut self) -> Result<Vec<RefusedRow>, RemoteError> {
        self.database()?.refused()
    }

    /// What was refused and is settled since, or goes up again, oldest first: how, by whom and when.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn settled_refused(&mut self) -> Result<Vec<SettledChange>, RemoteError> {
        self.database()?.settled_refused()
    }

    /// Writes other values into a refused row, as an ordinary change that goes up with the next
    /// sync.
    ///
    /// # Errors
    /// See [`RemoteDatabase::edit_refused`].
    pub fn edit_refused(&mut self, id: i64, values: &str) -> Result<(), RemoteError> {
        self.database()?.edit_refused(id, values)
    }

    /// Makes refused changes pending again, and with them those that were refused because of them;
    /// returns how many.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn retry_refused(&mut self, which: RowSelection<'_>) -> Result<u64, RemoteError> {
        self.database()?.retry_refused(which)
    }

    /// Gives a refused insert, and what refers to it here, a new key; gives the key, as a JSON array.
    ///
    /// # Errors
    /// See [`RemoteDatabase::renumber_refused`].
    pub fn renumber_refused(&mut self, id: i64, key: Option<&str>) -> Result<String, RemoteError> {
        self.database()?.renumber_refused(id, key)
    }

    /// Gives refused changes up; returns how many. The rows go back to what the centre last
    /// had, and the next sync asks for them again.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn discard_refused(&mut self, which: RowSelection<'_>) -> Result<u64, RemoteError> {
        self.database()?.discard_refused(which)
    }

    /// Writes the values of refused changes whose rows left the remote as pending changes;
    /// returns how many.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn restore_refused(&mut self, which: RowSelection<'_>) -> Result<u64, RemoteError> {
        self.database()?.restore_refused(which)
    }

    /// The database itself.
    ///
    /// # Errors
    /// It had to be opened anew, and could not.
    pub fn database(&mut self) -> Result<&mut RemoteDatabase, RemoteError> {
        match &mut self.database {
            Some(database) => Ok(database),
            empty => Ok(empty.insert(RemoteDatabase::open(&self.path)?)),
        }
    }
}

/// What the host is called, as far as that can be the name of a device.
fn host_name() -> Option<String> {
    let host = rustix::system::uname();
    let name = host.nodename().to_string_lossy();
    let shown = name.chars().filter(|it| !it.is_control());
    let name: String = shown.take(MAX_DEVICE_NAME).collect();
    is_device_name(&name).then_some(name)
}
