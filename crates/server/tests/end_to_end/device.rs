//! A remote, the application that uses it, and the network between it and the server.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rusqlite::Connection;
use tidewater_client::{
    ClientError, RefusedRow, Remote, Report, RetryPolicy, RowSelection, SyncDirection,
};
use tidewater_testing::FrameProxy;

use crate::backend::{execute_sqlite, open_sqlite, rows_sqlite};
use crate::scenario::PUBLICATION;
use crate::world::PASSWORD;

/// How long a server may be silent.
const SILENCE: Duration = Duration::from_secs(60);

/// A remote database with its network.
pub(crate) struct Device {
    pub(crate) user: String,
    pub(crate) path: PathBuf,
    pub(crate) network: Arc<FrameProxy>,
    pub(crate) remote: Remote,
    application: Connection,
}

impl Device {
    pub(crate) fn new(folder: &Path, user: &str, server: SocketAddr) -> Device {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{user}-{number}.db"));
        Device::in_file(&path, user, server)
    }

    /// In this file, whether it is there or not.
    pub(crate) fn in_file(path: &Path, user: &str, server: SocketAddr) -> Device {
        let network = Arc::new(FrameProxy::start(server).expect("a port is free"));
        Device {
            remote: open(path, &network.url(), user),
            application: open_sqlite(path),
            user: user.to_owned(),
            path: path.to_owned(),
            network,
        }
    }

    /// A copy of another remote's file, on the same network.
    pub(crate) fn at(path: &Path, original: &Device) -> Device {
        let network = original.network.clone();
        Device {
            remote: open(path, &network.url(), &original.user),
            application: open_sqlite(path),
            user: original.user.clone(),
            path: path.to_owned(),
            network,
        }
    }

    /// Closes the file, does something with it, and opens it again.
    pub(crate) fn reopen(&mut self, meanwhile: impl FnOnce()) {
        // Nothing of the old handles may touch the file any more.
        self.application = Connection::open_in_memory().expect("memory is there");
        let spare = self.path.with_extension("spare");
        self.remote = Remote::open(&spare).expect("a file can be made");
        meanwhile();
        self.remote = open(&self.path, &self.network.url(), &self.user);
        self.application = open_sqlite(&self.path);
    }

    /// Another handle of the same file, as another process has it.
    pub(crate) fn second_handle(&self) -> Remote {
        open(&self.path, &self.network.url(), &self.user)
    }

    /// Syncs without an accident.
    #[track_caller]
    pub(crate) fn sync(&mut self) -> Report {
        match self.try_sync() {
            Ok(report) => report,
            Err(error) => panic!(
                "{} cannot sync: {error:?}\nhint: {}",
                self.user,
                error.hint()
            ),
        }
    }

    /// Syncs in one direction only, without an accident.
    #[track_caller]
    pub(crate) fn sync_only(&mut self, direction: SyncDirection) -> Report {
        self.remote.set_direction(direction);
        let report = self.sync();
        self.remote.set_direction(SyncDirection::Both);
        report
    }

    /// Syncs, whatever comes of it.
    pub(crate) fn try_sync(&mut self) -> Result<Report, ClientError> {
        self.remote.sync(&mut |_| ControlFlow::Continue(()))
    }

    /// Changes rows, as the application does.
    #[track_caller]
    pub(crate) fn edit(&self, sql: &str) {
        execute_sqlite(&self.application, sql);
    }

    /// Changes rows, unless a constraint of the remote is against it.
    pub(crate) fn try_edit(&self, sql: &str) {
        try_edit(&self.application, sql);
    }

    /// Another application that uses the file.
    pub(crate) fn another_application(&self) -> Application {
        Application(open_sqlite(&self.path))
    }

    /// What the application is told when the remote database itself refuses a change.
    #[track_caller]
    pub(crate) fn remote_refuses(&self, sql: &str) -> String {
        let refused = self.application.execute_batch(sql);
        refused.expect_err("the change is refused").to_string()
    }

    /// Reads rows, as the application does.
    #[track_caller]
    pub(crate) fn rows(&self, sql: &str) -> Vec<String> {
        rows_sqlite(&self.application, sql)
    }

    /// The only value of the only row.
    #[track_caller]
    pub(crate) fn value(&self, sql: &str) -> String {
        let mut rows = self.rows(sql);
        assert_eq!(rows.len(), 1, "{rows:?} of {sql}");
        rows.remove(0)
    }

    /// What the centre refused.
    pub(crate) fn refused(&mut self) -> Vec<RefusedRow> {
        self.remote.refused().expect("refused rows can be read")
    }

    /// Gives up everything that was refused.
    pub(crate) fn discard_refused(&mut self) -> u64 {
        self.remote
            .discard_refused(RowSelection::All)
            .expect("refused rows can be discarded")
    }

    /// Changes that wait for an acknowledgement, over all tables.
    pub(crate) fn pending(&mut self) -> u64 {
        let status = self.remote.status().expect("the state can be read");
        let tables = status.subscriptions.iter().flat_map(|it| &it.tables);
        tables.map(|table| table.pending).sum()
    }
}

fn open(path: &Path, url: &str, user: &str) -> Remote {
    let mut remote = Remote::open(path).expect("a file can be made");
    remote
        .subscribe(url, user, &[PUBLICATION])
        .expect("a new remote can subscribe");
    remote.set_password(PASSWORD);
    remote.set_timeout(SILENCE);
    // Tests look at every single answer.
    remote.set_retry(RetryPolicy::Off);
    remote
}

/// An application that uses a remote's file while the remote syncs.
pub(crate) struct Application(Connection);

impl Application {
    /// Changes rows.
    #[track_caller]
    pub(crate) fn edit(&self, sql: &str) {
        execute_sqlite(&self.0, sql);
    }

    /// Changes rows, unless a constraint of the remote is against it.
    #[track_caller]
    pub(crate) fn try_edit(&self, sql: &str) {
        try_edit(&self.0, sql);
    }

    /// Reads rows.
    #[track_caller]
    pub(crate) fn rows(&self, sql: &str) -> Vec<String> {
        rows_sqlite(&self.0, sql)
    }
}

#[track_caller]
fn try_edit(connection: &Connection, sql: &str) {
    if let Err(error) = connection.execute_batch(sql) {
        let code = error.sqlite_error_code();
        let expected = rusqlite::ErrorCode::ConstraintViolation;
        assert_eq!(code, Some(expected), "{error}\nin: {sql}");
    }
}
