//! A server that follows a script, and what a remote said to it: what the tests of the session and
//! of its driver share.

use bytes::{Buf, Bytes, BytesMut};
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

/// The id that the server gives.
pub const REMOTE_ID: [u8; 16] = [7; 16];

/// Publication `sales`, of one table.
pub fn schema() -> PublicationSchema {
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
            checks: Vec::new(),
            identity: None,
        }],
        transactional: false,
    }
}

/// Packed rows of table `item`.
pub fn items(op: Op, rows: &[(i64, &str)]) -> Vec<u8> {
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
pub struct Reply(pub BytesMut);

impl Reply {
    /// A message on the channel of the sync.
    pub fn control(mut self, control: Control) -> Reply {
        put_control(&mut self.0, SYNC_CHANNEL, control).unwrap();
        self
    }

    /// A message of the connection itself.
    pub fn connection(mut self, control: Control) -> Reply {
        put_control(&mut self.0, CONNECTION_CHANNEL, control).unwrap();
        self
    }

    /// Packed rows.
    pub fn rows(mut self, rows: &[u8]) -> Reply {
        put_rows(&mut self.0, SYNC_CHANNEL, rows);
        self
    }

    /// The remote is let in.
    pub fn signed_in(self) -> Reply {
        self.connection(signed_in(REMOTE_ID))
    }

    /// The remote is let in, and its subscription welcome.
    pub fn welcome(self, state: UploadState, schema: Option<&PublicationSchema>) -> Reply {
        self.signed_in().control(welcome(state, schema))
    }

    /// Rows of table `item` follow.
    pub fn table(self, replace: bool) -> Reply {
        let begin = TableBegin {
            replace,
            ..TableBegin::for_table(&schema().tables[0])
        };
        self.control(Control::TableBegin(begin))
    }

    /// The result of an upload: one row was inserted; these rows come back.
    pub fn result(self, upload: &UploadBegin, rows: &[u8]) -> Reply {
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

    /// A download of table `item` in one piece.
    pub fn download(self, replace: bool, rows: &[u8], upserts: u64, removals: u64) -> Reply {
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

    /// The rest of [`later_reply`] to a remote that was let in.
    pub fn later(self, sent: &SentMessages) -> Reply {
        let mut rows = items(Op::Upsert, &[(4, "four")]);
        rows.extend(items(Op::Remove, &[(1, "")]));
        self.control(welcome(UploadState::InSequence, None))
            .result(&sent.upload(), &[])
            .download(false, &rows, 1, 1)
            .end()
    }

    /// All has been said.
    pub fn end(self) -> Reply {
        self.control(Control::SyncEnd(SyncEnd {}))
    }
}

/// What lets a remote in.
pub fn signed_in(remote_id: [u8; 16]) -> Control {
    Control::SignedIn(Box::new(SignedIn {
        protocol_version: PROTOCOL_VERSION,
        remote_id: remote_id.to_vec(),
        token: b"token".to_vec(),
        credential: b"credential".to_vec(),
        server: "test".into(),
        centre: "scripted".into(),
        user: String::new(),
        above: Vec::new(),
        message_bytes: 0,
    }))
}

/// The answer to the Hello of one subscription.
pub fn welcome(state: UploadState, schema: Option<&PublicationSchema>) -> Control {
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

/// The beginning of an upload's result.
pub fn result_begin(upload: &UploadBegin) -> Control {
    Control::ResultBegin(ResultBegin {
        subscription: upload.subscription,
        sequence: upload.sequence,
        upload_id: upload.upload_id.clone(),
    })
}

/// The beginning of a download.
pub fn download_begin(subscription: u32) -> Control {
    Control::DownloadBegin(DownloadBegin {
        subscription,
        ..DownloadBegin::default()
    })
}

/// The answer to the first sync: schema, two rows.
pub fn first_reply() -> Reply {
    let rows = items(Op::Upsert, &[(1, "one"), (2, "two")]);
    Reply::default()
        .welcome(UploadState::InSequence, Some(&schema()))
        .download(true, &rows, 2, 0)
        .end()
}

/// The answer to a sync with an upload: it is applied; one row comes, one goes.
pub fn later_reply(sent: &SentMessages) -> Reply {
    Reply::default().signed_in().later(sent)
}

/// What a remote sent.
#[derive(Debug, Default)]
pub struct SentMessages {
    buffer: BytesMut,
    preface: bool,
    /// Every whole frame.
    pub frames: Vec<Frame>,
}

impl SentMessages {
    /// Takes everything that there is to send now, piece by piece.
    pub fn take(&mut self, mut transmit: impl FnMut() -> Option<Bytes>) {
        while let Some(bytes) = transmit() {
            self.push(&bytes);
            assert!(self.buffer.is_empty(), "only whole frames are sent");
        }
    }

    /// Takes bytes off a connection.
    pub fn push(&mut self, bytes: &[u8]) {
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

    /// Its control messages.
    pub fn controls(&self) -> impl Iterator<Item = &Control> {
        self.frames.iter().filter_map(|frame| match frame {
            Frame::Control { control, .. } => control.as_ref(),
            Frame::Rows { .. } | Frame::Message { .. } => None,
        })
    }

    /// Their names.
    pub fn names(&self) -> Vec<&'static str> {
        self.controls().map(Control::name).collect()
    }

    /// All packed rows, one after the other.
    pub fn rows(&self) -> Vec<u8> {
        let pieces = self.frames.iter().filter_map(|frame| match frame {
            Frame::Rows { bytes, .. } => Some(bytes),
            Frame::Control { .. } | Frame::Message { .. } => None,
        });
        pieces.fold(Vec::new(), |mut all, bytes: &Bytes| {
            all.extend_from_slice(bytes);
            all
        })
    }

    /// The first SignIn.
    pub fn sign_in(&self) -> &SignIn {
        let sign_in = self.controls().find_map(|control| match control {
            Control::SignIn(sign_in) => Some(sign_in),
            _ => None,
        });
        sign_in.expect("a SignIn was sent")
    }

    /// The first Hello.
    pub fn hello(&self) -> &Hello {
        let hello = self.controls().find_map(|control| match control {
            Control::Hello(hello) => Some(hello),
            _ => None,
        });
        hello.expect("a Hello was sent")
    }

    /// The beginning of the first upload.
    pub fn upload(&self) -> UploadBegin {
        let begin = self.controls().find_map(|control| match control {
            Control::UploadBegin(begin) => Some(begin.clone()),
            _ => None,
        });
        begin.expect("an upload was sent")
    }
}
