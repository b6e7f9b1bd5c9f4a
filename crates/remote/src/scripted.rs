//! A scripted server and real files: what the tests of the session and of the driver share.

use std::cell::Cell;
use std::path::PathBuf;

use bytes::{Buf, Bytes, BytesMut};
use rusqlite::Connection;
use tempfile::TempDir;
use tidewater_protocol::frame::{
    CONNECTION_CHANNEL, Frame, PREFACE, SYNC_CHANNEL, put_control, put_rows, take_frame,
};
use tidewater_protocol::message::{
    Control, DownloadBegin, DownloadEnd, Hello, PROTOCOL_VERSION, ResultBegin, ResultEnd, SignIn,
    SignedIn, SyncEnd, TableBegin, UploadBegin, UploadState, Welcome, WelcomeSubscription,
};
use tidewater_protocol::{
    Column, ColumnType, Datum, Direction, Op, PublicationSchema, RowsWriter, Table,
};

use crate::database::Database;
use crate::session::{
    Now, Outcome, ProofKind, Session, SessionOptions, SyncDirection, SyncError, Verify,
    message_name,
};
use crate::spool::MemorySpool;

pub(crate) const NOW: Now = Now {
    ticks_ms: 1_000,
    unix_ms: 1_700_000_000_000,
};

pub(crate) const REMOTE_ID: [u8; 16] = [7; 16];

pub(crate) fn schema() -> PublicationSchema {
    let column = |name: &str, column_type, nullable| Column {
        name: name.into(),
        column_type,
        nullable,
        default: None,
    };
    PublicationSchema {
        name: "sales".into(),
        tables: vec![Table {
            name: "item".into(),
            columns: vec![
                column("id", ColumnType::Integer, false),
                column("name", ColumnType::Text, true),
            ],
            key: vec![0],
            partition: vec![],
            unique: vec![],
            foreign_keys: vec![],
            direction: Direction::Both,
        }],
    }
}

/// Packed rows of table `item`.
pub(crate) fn items(op: Op, rows: &[(i64, &str)]) -> Vec<u8> {
    let shape = schema().tables[0].shape();
    let mut writer = RowsWriter::new(&shape);
    for (id, name) in rows {
        match op {
            Op::Remove | Op::ConflictGone => writer.key(op, &[Datum::Integer(*id)]),
            Op::Refused => writer.refused(&[Datum::Integer(*id)], Op::Insert, 703, name),
            _ => writer.row(op, &[Datum::Integer(*id), Datum::Text(name)]),
        }
    }
    writer.take()
}

/// A server's bytes.
#[derive(Clone, Default)]
pub(crate) struct Reply(pub(crate) BytesMut);

impl Reply {
    pub(crate) fn control(mut self, control: Control) -> Reply {
        put_control(&mut self.0, SYNC_CHANNEL, control).unwrap();
        self
    }

    pub(crate) fn connection(mut self, control: Control) -> Reply {
        put_control(&mut self.0, CONNECTION_CHANNEL, control).unwrap();
        self
    }

    pub(crate) fn rows(mut self, rows: &[u8]) -> Reply {
        put_rows(&mut self.0, SYNC_CHANNEL, rows);
        self
    }

    /// The remote is let in.
    pub(crate) fn signed_in(self) -> Reply {
        self.connection(signed_in(REMOTE_ID))
    }

    /// The remote is let in, and its subscription welcome.
    pub(crate) fn welcome(self, state: UploadState, schema: Option<&PublicationSchema>) -> Reply {
        self.signed_in().control(welcome(state, schema))
    }

    pub(crate) fn table(self, replace: bool) -> Reply {
        let begin = TableBegin {
            replace,
            ..TableBegin::of(&schema().tables[0])
        };
        self.control(Control::TableBegin(begin))
    }

    pub(crate) fn result(self, upload: &UploadBegin, rows: &[u8]) -> Reply {
        let reply = self.control(result_begin(upload));
        let reply = if rows.is_empty() {
            reply
        } else {
            reply.table(false).rows(rows)
        };
        reply.control(Control::ResultEnd(ResultEnd {
            inserts: 1,
            checksum: crc32fast::hash(rows),
            ..ResultEnd::default()
        }))
    }

    pub(crate) fn download(self, replace: bool, rows: &[u8], upserts: u64, removals: u64) -> Reply {
        self.control(download_begin(0))
            .table(replace)
            .rows(rows)
            .control(Control::DownloadEnd(DownloadEnd {
                checkpoint: b"checkpoint".to_vec(),
                upserts,
                removals,
                checksum: crc32fast::hash(rows),
            }))
    }

    pub(crate) fn end(self) -> Reply {
        self.control(Control::SyncEnd(SyncEnd {}))
    }
}

pub(crate) fn signed_in(remote_id: [u8; 16]) -> Control {
    Control::SignedIn(SignedIn {
        protocol_version: PROTOCOL_VERSION,
        remote_id: remote_id.to_vec(),
        token: b"token".to_vec(),
        credential: b"credential".to_vec(),
        server: "test".into(),
        centre: "scripted".into(),
    })
}

pub(crate) fn welcome(state: UploadState, schema: Option<&PublicationSchema>) -> Control {
    Control::Welcome(Welcome {
        subscriptions: vec![WelcomeSubscription {
            upload_state: state as i32,
            schema: schema.map(PublicationSchema::encode).unwrap_or_default(),
            ..WelcomeSubscription::default()
        }],
        remote_id: vec![8; usize::from(state == UploadState::NewIdentity) * 16],
        credential: b"credential".to_vec(),
    })
}

pub(crate) fn result_begin(upload: &UploadBegin) -> Control {
    Control::ResultBegin(ResultBegin {
        subscription: upload.subscription,
        sequence: upload.sequence,
        upload_id: upload.upload_id.clone(),
    })
}

pub(crate) fn download_begin(subscription: u32) -> Control {
    Control::DownloadBegin(DownloadBegin {
        subscription,
        scope_changed: false,
    })
}

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
        assert!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
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

    pub(crate) fn open(&self) -> Database {
        Database::open(&self.path()).unwrap()
    }

    /// Makes the remote believe that this was its server all along.
    pub(crate) fn point_at(&self, server: &str) {
        let connection = Connection::open(self.path()).unwrap();
        connection
            .execute("UPDATE tidewater_state SET server = ?1", [server])
            .unwrap();
    }

    pub(crate) fn run(&self, sql: &str) {
        let application = Connection::open(self.path()).unwrap();
        application.execute_batch(sql).unwrap();
    }

    /// A copy of the file as it is.
    pub(crate) fn copy(&self) -> Remote {
        let folder = TempDir::new().unwrap();
        let target = folder.path().join("remote.db");
        let connection = Connection::open(self.path()).unwrap();
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
        let connection = Connection::open(self.path()).unwrap();
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
        let connection = Connection::open(self.path()).unwrap();
        let mut rows = connection
            .prepare("SELECT id, name FROM item ORDER BY id")
            .unwrap();
        let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
        rows.unwrap().map(Result::unwrap).collect()
    }

    pub(crate) fn session(&self, options: SessionOptions) -> Session {
        let number = self.sessions.get().wrapping_add(1);
        self.sessions.set(number);
        Session::new(self.open(), options, [number; 32], NOW)
    }

    /// A whole sync against a server that answers the first flight with a script and then
    /// closes. Returns also what the remote sent.
    pub(crate) fn sync(&self, script: impl FnOnce(&Sent) -> Reply) -> (Outcome, Sent) {
        self.sync_with(options(), script)
    }

    pub(crate) fn sync_with(
        &self,
        options: SessionOptions,
        script: impl FnOnce(&Sent) -> Reply,
    ) -> (Outcome, Sent) {
        let mut session = self.session(options);
        let mut sent = Sent::default();
        sent.take(&mut session);
        let reply = script(&sent);
        answer(&mut session, &reply.0);
        sent.take(&mut session);
        (session.finish().1, sent)
    }

    /// A sync that must fail; returns the error.
    pub(crate) fn fails(&self, script: impl FnOnce(&Sent) -> Reply) -> SyncError {
        match self.sync(script).0 {
            Outcome::Failed(error) => error,
            other => panic!("the sync did not fail: {other:?}"),
        }
    }
}

/// Hands in all bytes of a server, then the end of the connection.
pub(crate) fn answer(session: &mut Session, reply: &[u8]) {
    session.handle_bytes(reply, NOW);
    while session.wants_work() {
        session.handle_work(NOW);
    }
    session.handle_end(None);
}

pub(crate) fn options() -> SessionOptions {
    SessionOptions {
        direction: SyncDirection::Both,
        verify: Verify::No,
        password: Some("secret".into()),
        server: None,
        other_centre: false,
        first_proof: ProofKind::Token,
        client: "test".into(),
        silence_ms: 60_000,
        spool: Box::new(MemorySpool::default()),
    }
}

/// The answer to the first sync: schema, two rows.
pub(crate) fn first_reply() -> Reply {
    let rows = items(Op::Upsert, &[(1, "one"), (2, "two")]);
    Reply::default()
        .welcome(UploadState::InSequence, Some(&schema()))
        .download(true, &rows, 2, 0)
        .end()
}

/// The answer to a sync with an upload: it is applied; one row comes, one goes.
pub(crate) fn later_reply(sent: &Sent) -> Reply {
    let mut rows = items(Op::Upsert, &[(4, "four")]);
    rows.extend(items(Op::Remove, &[(1, "")]));
    Reply::default()
        .welcome(UploadState::InSequence, None)
        .result(&sent.upload(), &[])
        .download(false, &rows, 1, 1)
        .end()
}

/// What a remote sent.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    buffer: BytesMut,
    preface: bool,
    pub(crate) frames: Vec<Frame>,
}

impl Sent {
    /// Takes everything that the session has to send now.
    pub(crate) fn take(&mut self, session: &mut Session) {
        while let Some(bytes) = session.poll_transmit(NOW) {
            self.push(&bytes);
            assert!(self.buffer.is_empty(), "only whole frames are sent");
        }
    }

    /// Takes bytes off a connection.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        if !self.preface {
            if self.buffer.len() < PREFACE.len() {
                return;
            }
            assert_eq!(self.buffer[..PREFACE.len()], PREFACE);
            self.buffer.advance(PREFACE.len());
            self.preface = true;
        }
        while let Some(frame) = take_frame(&mut self.buffer).unwrap() {
            self.frames.push(frame);
        }
    }

    pub(crate) fn controls(&self) -> impl Iterator<Item = &Control> {
        self.frames.iter().filter_map(|frame| match frame {
            Frame::Control { control, .. } => control.as_ref(),
            Frame::Rows { .. } | Frame::Message { .. } => None,
        })
    }

    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.controls().map(message_name).collect()
    }

    pub(crate) fn rows(&self) -> Vec<u8> {
        let pieces = self.frames.iter().filter_map(|frame| match frame {
            Frame::Rows { bytes, .. } => Some(bytes),
            Frame::Control { .. } | Frame::Message { .. } => None,
        });
        pieces.fold(Vec::new(), |mut all, bytes: &Bytes| {
            all.extend_from_slice(bytes);
            all
        })
    }

    pub(crate) fn sign_in(&self) -> &SignIn {
        let sign_in = self.controls().find_map(|control| match control {
            Control::SignIn(sign_in) => Some(sign_in),
            _ => None,
        });
        sign_in.expect("a SignIn was sent")
    }

    pub(crate) fn hello(&self) -> &Hello {
        let hello = self.controls().find_map(|control| match control {
            Control::Hello(hello) => Some(hello),
            _ => None,
        });
        hello.expect("a Hello was sent")
    }

    pub(crate) fn upload(&self) -> UploadBegin {
        let begin = self.controls().find_map(|control| match control {
            Control::UploadBegin(begin) => Some(begin.clone()),
            _ => None,
        });
        begin.expect("an upload was sent")
    }
}
