//! Real files and a scripted server: what the tests of the session share.

use std::cell::Cell;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tidewater_protocol::frame::ROWS_PAYLOAD_BYTES;
pub(crate) use tidewater_testing::scripted::*;

use crate::RemoteConnection;
use crate::database::RemoteDatabase;
use crate::session::{
    Now, ProofKind, SessionOptions, SessionOutcome, SyncDirection, SyncError, UserProof, VerifyMode,
};
use crate::spool::{MemorySpool, NoDownloadStore};

/// How long a server may be silent.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

pub(crate) const NOW: Now = Now {
    ticks_ms: 1_000,
    unix_ms: 1_700_000_000_000,
};

/// A remote's file.
pub(crate) struct Remote {
    folder: TempDir,
    /// How many sessions it had: each has other chance, so that no two uploads have one id. A
    /// copy goes on like the original.
    sessions: Cell<u8>,
}

impl Remote {
    /// One that has never synced.
    pub(crate) fn new() -> Remote {
        let remote = Remote {
            folder: TempDir::new().unwrap(),
            sessions: Cell::new(0),
        };
        remote
            .open()
            .subscribe("tcp://127.0.0.1:7439", "ann", &["sales"])
            .unwrap();
        remote
    }

    /// One that holds the rows (1, one) and (2, two).
    pub(crate) fn synced() -> Remote {
        let remote = Remote::new();
        let (outcome, _) = remote.sync(|_| first_reply());
        assert!(matches!(outcome, SessionOutcome::Done(_)), "{outcome:?}");
        remote
    }

    /// The same, with (3, three) inserted by the application.
    pub(crate) fn changed() -> Remote {
        let remote = Remote::synced();
        remote.run("INSERT INTO item VALUES (3, 'three')");
        remote
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("remote.db")
    }

    pub(crate) fn open(&self) -> RemoteDatabase {
        RemoteDatabase::open(&self.path()).unwrap()
    }

    pub(crate) fn run(&self, sql: &str) {
        let application = rusqlite::Connection::open(self.path()).unwrap();
        application.execute_batch(sql).unwrap();
    }

    /// A copy of the file as it is.
    pub(crate) fn copy(&self) -> Remote {
        let folder = TempDir::new().unwrap();
        let target = folder.path().join("remote.db");
        let connection = rusqlite::Connection::open(self.path()).unwrap();
        connection
            .execute("VACUUM INTO ?1", [target.to_str().unwrap()])
            .unwrap();
        Remote {
            folder,
            sessions: self.sessions.clone(),
        }
    }

    /// Everything in the file but how it signs in, as text.
    pub(crate) fn dump(&self) -> String {
        let connection = rusqlite::Connection::open(self.path()).unwrap();
        let mut text = String::new();
        let mut tables = connection
            .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
            .unwrap();
        let tables = tables.query_map([], |row| row.get::<_, String>(0)).unwrap();
        for table in tables.map(Result::unwrap) {
            if table == "tidewater_state" {
                continue;
            }
            let mut rows = connection
                .prepare(&format!("SELECT * FROM \"{table}\""))
                .unwrap();
            let width = rows.column_count();
            let mut rows = rows.query([]).unwrap();
            while let Some(row) = rows.next().unwrap() {
                let values: Vec<_> = (0..width)
                    .map(|index| row.get_ref(index).unwrap())
                    .collect();
                text.push_str(&format!("{table} {values:?}\n"));
            }
        }
        text
    }

    /// The rows of table `item`.
    pub(crate) fn items(&self) -> Vec<(i64, String)> {
        let connection = rusqlite::Connection::open(self.path()).unwrap();
        let mut rows = connection
            .prepare("SELECT id, name FROM item ORDER BY id")
            .unwrap();
        let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
        rows.unwrap().map(Result::unwrap).collect()
    }

    pub(crate) fn session(&self, options: SessionOptions) -> RemoteConnection {
        let number = self.sessions.get().wrapping_add(1);
        self.sessions.set(number);
        let mut connection = RemoteConnection::dial("test", SILENCE, NOW);
        connection.sync(self.open(), options, [number; 32]);
        connection
    }

    /// A whole sync against a server that answers the first flight with a script and then
    /// closes. Returns also what the remote sent.
    pub(crate) fn sync(
        &self,
        script: impl FnOnce(&SentMessages) -> Reply,
    ) -> (SessionOutcome, SentMessages) {
        self.sync_with(options(), script)
    }

    pub(crate) fn sync_with(
        &self,
        options: SessionOptions,
        script: impl FnOnce(&SentMessages) -> Reply,
    ) -> (SessionOutcome, SentMessages) {
        let mut connection = self.session(options);
        let mut sent = SentMessages::default();
        sent.take(|| connection.poll_transmit());
        let reply = script(&sent);
        answer(&mut connection, &reply.0);
        sent.take(|| connection.poll_transmit());
        (connection.end_sync().unwrap().1, sent)
    }

    /// A sync that must fail; returns the error.
    pub(crate) fn fails(&self, script: impl FnOnce(&SentMessages) -> Reply) -> SyncError {
        match self.sync(script).0 {
            SessionOutcome::Failed(error) => error,
            other => panic!("the sync did not fail: {other:?}"),
        }
    }
}

/// Hands in all bytes of a server, then the end of the connection.
pub(crate) fn answer(connection: &mut RemoteConnection, reply: &[u8]) {
    // A server sends what it has credit for.
    for piece in reply.chunks(ROWS_PAYLOAD_BYTES) {
        connection.handle_bytes(piece, NOW);
        if reply.len() > piece.len() {
            connection.poll_transmit();
        }
    }
    connection.work(NOW);
    connection.handle_end(None);
}

pub(crate) fn options() -> SessionOptions {
    SessionOptions {
        direction: SyncDirection::Both,
        verify: VerifyMode::No,
        user_proof: Some(UserProof::Password("secret".into())),
        server: None,
        other_centre: false,
        adopt: None,
        first_proof: ProofKind::Token,
        spool: Box::new(MemorySpool::default()),
        keep: Box::new(NoDownloadStore),
    }
}
