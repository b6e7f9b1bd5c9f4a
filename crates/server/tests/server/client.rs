//! A remote as a script: sends what it is told and collects what comes.

use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use tidewater_protocol::frame::{
    CONNECTION_CHANNEL, Frame, PREFACE, SYNC_CHANNEL, put_control, put_rows, take_frame,
};
use tidewater_protocol::message::{
    Ack, Busy, Control, Credit, DownloadRequest, FailureNotice, Hello, HelloSubscription,
    KeyInterval, PROTOCOL_VERSION, Ping, Proof, ResultEnd, SignIn, SignedIn, TableBegin,
    UploadBegin, UploadEnd, UploadState, Welcome, WelcomeSubscription,
};
use tidewater_protocol::{Code, Datum, Op, RowsReader, RowsWriter, UnpackedRow};
use tidewater_server::environment::ByteStream;

use crate::centre::schema;

/// A test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Client {
    pub(crate) stream: Box<dyn ByteStream>,
    buffer: BytesMut,
    out: BytesMut,
    /// Whether a SignIn was put.
    signed_in: bool,
}

/// How a remote begins.
#[derive(Clone, Default)]
pub(crate) struct Opening {
    pub(crate) sign_in: SignIn,
    pub(crate) subscriptions: Vec<HelloSubscription>,
}

/// What a remote remembers between syncs.
#[derive(Clone, Default)]
pub(crate) struct Remote {
    pub(crate) user: String,
    pub(crate) id: Vec<u8>,
    pub(crate) token: Vec<u8>,
    pub(crate) credential: Vec<u8>,
    pub(crate) sequence: u64,
    pub(crate) upload_id: Vec<u8>,
    pub(crate) checkpoint: Vec<u8>,
    pub(crate) schema_hash: Vec<u8>,
    /// The name of the centre that it presents.
    pub(crate) centre: String,
}

/// Everything that came in answer to one sync.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) signed_in: Option<SignedIn>,
    pub(crate) welcome: Option<Welcome>,
    pub(crate) results: Vec<ResultEnd>,
    /// Downloaded: id and note, `None` for removals.
    pub(crate) rows: Vec<(i64, Option<String>)>,
    /// All of them are what the remote holds.
    pub(crate) replaced: bool,
    /// All of them in these intervals are.
    pub(crate) ranges: Vec<KeyInterval>,
    pub(crate) checkpoint: Vec<u8>,
    pub(crate) complete: bool,
    pub(crate) failure: Option<FailureNotice>,
    pub(crate) busy: Option<Busy>,
}

impl Reply {
    pub(crate) fn code(&self) -> Code {
        let failure = self.failure.as_ref();
        let failure = failure.unwrap_or_else(|| panic!("no failure: {self:?}"));
        Code::from_number(failure.code).unwrap()
    }

    pub(crate) fn state(&self) -> UploadState {
        self.answer().upload_state()
    }

    /// The id that the remote has from now on.
    pub(crate) fn remote_id(&self) -> &[u8] {
        let new = self.welcome.as_ref().map(|welcome| &welcome.remote_id);
        let new = new.filter(|id| !id.is_empty());
        new.unwrap_or(&self.signed_in().remote_id)
    }

    pub(crate) fn signed_in(&self) -> &SignedIn {
        let signed_in = self.signed_in.as_ref();
        signed_in.unwrap_or_else(|| panic!("nobody was let in: {self:?}"))
    }

    /// What the Welcome says of the subscription.
    pub(crate) fn answer(&self) -> &WelcomeSubscription {
        let welcome = self.welcome.as_ref();
        let welcome = welcome.unwrap_or_else(|| panic!("no Welcome: {self:?}"));
        &welcome.subscriptions[0]
    }
}

impl Remote {
    pub(crate) fn new(user: &str) -> Remote {
        Remote {
            user: user.into(),
            ..Remote::default()
        }
    }

    pub(crate) fn opening(&self, proof: Proof) -> Opening {
        Opening {
            sign_in: SignIn {
                protocol_version: PROTOCOL_VERSION,
                remote_id: self.id.clone(),
                user: self.user.clone(),
                proof: Some(proof),
                client: "script".into(),
                centre: self.centre.clone(),
                is_program: false,
                device_name: String::new(),
            },
            subscriptions: vec![HelloSubscription {
                publication: "notes".into(),
                sequence: self.sequence,
                upload_id: self.upload_id.clone(),
                pending_upload_id: Vec::new(),
                checkpoint: self.checkpoint.clone(),
                schema_hash: self.schema_hash.clone(),
                ..Default::default()
            }],
        }
    }

    pub(crate) fn credential(&self) -> Opening {
        self.opening(Proof::Credential(self.credential.clone()))
    }

    pub(crate) fn token(&self) -> Opening {
        self.opening(Proof::Token(self.token.clone()))
    }

    pub(crate) fn password(&self, password: &str) -> Opening {
        self.opening(Proof::Password(password.into()))
    }

    /// Remembers what a sync brought.
    pub(crate) fn learn(&mut self, reply: &Reply) {
        let welcome = reply.welcome.as_ref().expect("a Welcome");
        if let Some(signed_in) = &reply.signed_in {
            self.id.clone_from(&signed_in.remote_id);
            self.centre.clone_from(&signed_in.centre);
            for (mine, theirs) in [
                (&mut self.token, &signed_in.token),
                (&mut self.credential, &signed_in.credential),
            ] {
                if !theirs.is_empty() {
                    mine.clone_from(theirs);
                }
            }
        }
        if !welcome.remote_id.is_empty() {
            self.id.clone_from(&welcome.remote_id);
            self.credential.clone_from(&welcome.credential);
        }
        if !reply.checkpoint.is_empty() {
            self.checkpoint.clone_from(&reply.checkpoint);
        }
        self.schema_hash = schema().hash().to_vec();
    }
}

/// With the id of the upload that follows.
pub(crate) fn pending(mut opening: Opening, id: u8) -> Opening {
    opening.subscriptions[0].pending_upload_id = vec![id; 16];
    opening
}

/// Packed inserts of so many notes.
pub(crate) fn inserts(ids: std::ops::Range<i64>, note: &str) -> Vec<u8> {
    let shape = schema().tables[0].shape();
    let mut writer = RowsWriter::new(&shape);
    for id in ids {
        writer.row(Op::Insert, &[Datum::Integer(id), Datum::Text(note)]);
    }
    writer.take()
}

impl Client {
    pub(crate) async fn connect(address: &str) -> Client {
        let mut client = Client::connect_silent(address).await;
        client.out.extend_from_slice(&PREFACE);
        client
    }

    /// Without a preface.
    pub(crate) async fn connect_silent(address: &str) -> Client {
        let address = address.strip_prefix("tcp://").unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Client::over(Box::new(stream))
    }

    pub(crate) fn over(stream: Box<dyn ByteStream>) -> Client {
        Client {
            stream,
            buffer: BytesMut::new(),
            out: BytesMut::new(),
            signed_in: false,
        }
    }

    pub(crate) fn put(&mut self, control: Control) -> &mut Client {
        put_control(&mut self.out, SYNC_CHANNEL, control).unwrap();
        self
    }

    /// The SignIn, if there was none on this connection, and the Hello.
    pub(crate) fn put_opening(&mut self, opening: Opening) -> &mut Client {
        if !std::mem::replace(&mut self.signed_in, true) {
            let sign_in = Control::SignIn(Box::new(opening.sign_in));
            put_control(&mut self.out, CONNECTION_CHANNEL, sign_in).unwrap();
        }
        self.put(Control::Hello(Hello {
            subscriptions: opening.subscriptions,
        }))
    }

    /// Signs in without a Hello.
    pub(crate) async fn sign_in(&mut self, opening: Opening) -> SignedIn {
        self.signed_in = true;
        let sign_in = Control::SignIn(Box::new(opening.sign_in));
        put_control(&mut self.out, CONNECTION_CHANNEL, sign_in).unwrap();
        self.flush().await;
        match self.control().await {
            Some(Control::SignedIn(signed_in)) => *signed_in,
            other => panic!("{other:?}"),
        }
    }

    /// What the server says to the opening.
    pub(crate) async fn welcome(&mut self) {
        assert!(matches!(self.control().await, Some(Control::SignedIn(_))));
        assert!(matches!(self.control().await, Some(Control::Welcome(_))));
    }

    pub(crate) fn preface(&mut self) -> &mut Client {
        self.put_bytes(&PREFACE)
    }

    pub(crate) fn put_bytes(&mut self, bytes: &[u8]) -> &mut Client {
        self.out.extend_from_slice(bytes);
        self
    }

    pub(crate) fn put_rows(&mut self, rows: &[u8]) -> &mut Client {
        put_rows(&mut self.out, SYNC_CHANNEL, rows);
        self
    }

    /// An upload with these rows, all of them inserts.
    pub(crate) fn put_upload(&mut self, sequence: u64, id: u8, rows: &[u8], count: u64) {
        self.put_upload_begin(sequence, id, rows, count);
        self.put_rows(rows);
        self.put_upload_end(rows, count);
    }

    pub(crate) fn put_upload_begin(&mut self, sequence: u64, id: u8, rows: &[u8], count: u64) {
        self.put(Control::UploadBegin(UploadBegin {
            subscription: 0,
            sequence,
            upload_id: vec![id; 16],
            rows: count,
            bytes: rows.len() as u64,
            given_back: false,
            copied: false,
            given_up: Vec::new(),
            ..UploadBegin::default()
        }));
        let begin = TableBegin::for_table(&schema().tables[0]);
        self.put(Control::TableBegin(begin));
    }

    pub(crate) fn put_upload_end(&mut self, rows: &[u8], count: u64) {
        self.put(Control::UploadEnd(UploadEnd {
            inserts: count,
            checksum: crc32fast::hash(rows),
            ..UploadEnd::default()
        }));
    }

    pub(crate) fn put_request(&mut self) -> &mut Client {
        self.put(Control::DownloadRequest(DownloadRequest {
            upload_only: false,
        }))
    }

    pub(crate) async fn flush(&mut self) {
        let out = self.out.split();
        self.stream.write_all(&out).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    /// Writes as far as the server takes it.
    pub(crate) async fn flush_if_possible(&mut self) {
        let out = self.out.split();
        let _ = self.stream.write_all(&out).await;
        let _ = self.stream.flush().await;
    }

    /// Whatever the server says, to the end of the connection: it may be packed, if that was asked
    /// for.
    pub(crate) async fn hear_to_end(&mut self) {
        loop {
            self.buffer.clear();
            let read = self.stream.read_buf(&mut self.buffer);
            let read = timeout(PATIENCE, read).await.expect("the server is silent");
            // One that was reset has ended, too.
            if matches!(read, Ok(0) | Err(_)) {
                return;
            }
        }
    }

    /// The next frame; `None` at the end of the connection.
    pub(crate) async fn frame(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = take_frame(&mut self.buffer).unwrap() {
                return Some(frame);
            }
            let read = self.stream.read_buf(&mut self.buffer);
            let read = timeout(PATIENCE, read).await.expect("the server is silent");
            if matches!(read, Ok(0) | Err(_)) {
                return None;
            }
        }
    }

    /// The next message, but for pings.
    pub(crate) async fn control(&mut self) -> Option<Control> {
        loop {
            match self.frame().await? {
                Frame::Control {
                    control: Some(Control::Ping(_)),
                    ..
                } => {}
                Frame::Control { control, .. } => return control,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Everything up to the end of the sync or of the connection.
    pub(crate) async fn reply(&mut self) -> Reply {
        let mut reply = Reply::default();
        let mut packed = Vec::new();
        while let Some(frame) = self.frame().await {
            let control = match frame {
                Frame::Rows { bytes, .. } => {
                    packed.extend_from_slice(&bytes);
                    let credit = Control::Credit(Credit {
                        channel: u32::from(SYNC_CHANNEL),
                        bytes: bytes.len() as u64,
                    });
                    put_control(&mut self.out, CONNECTION_CHANNEL, credit).unwrap();
                    self.flush_if_possible().await;
                    continue;
                }
                Frame::Control { control, .. } => control.unwrap(),
                Frame::Message { .. } => panic!("nobody sends messages yet"),
            };
            match control {
                Control::SignedIn(signed_in) => reply.signed_in = Some(*signed_in),
                Control::Welcome(welcome) => reply.welcome = Some(welcome),
                Control::ResultEnd(end) => reply.results.push(end),
                Control::TableBegin(begin) => {
                    reply.replaced |= begin.replace && begin.ranges.is_empty();
                    reply.ranges.extend(begin.ranges);
                }
                Control::DownloadEnd(end) => {
                    assert_eq!(end.checksum, crc32fast::hash(&packed));
                    reply.checkpoint = end.checkpoint;
                    reply.rows = unpack(&packed);
                    assert_eq!(end.upserts + end.removals, reply.rows.len() as u64);
                }
                Control::Waiting(_) => {
                    assert!(reply.results.is_empty(), "Waiting after results");
                }
                Control::SyncEnd(_) => {
                    reply.complete = true;
                    break;
                }
                Control::Failure(failure) => reply.failure = Some(failure),
                Control::Busy(busy) => reply.busy = Some(busy),
                Control::Ping(_)
                | Control::Credit(_)
                | Control::ResultBegin(_)
                | Control::DownloadBegin(_) => {}
                other => panic!("{other:?}"),
            }
        }
        reply
    }

    /// A sync without an upload, in one flight.
    pub(crate) async fn sync(&mut self, opening: Opening) -> Reply {
        self.put_opening(opening).put_request();
        self.flush().await;
        self.reply().await
    }

    /// A sync with an upload, in one flight.
    pub(crate) async fn upload(
        &mut self,
        remote: &Remote,
        opening: Opening,
        id: u8,
        rows: &[u8],
        count: u64,
    ) -> Reply {
        self.put_opening(pending(opening, id));
        self.put_upload(remote.sequence + 1, id, rows, count);
        self.put_request();
        self.flush().await;
        self.reply().await
    }

    pub(crate) fn put_ping(&mut self) -> &mut Client {
        let ping = Control::Ping(Ping { nonce: 42 });
        put_control(&mut self.out, CONNECTION_CHANNEL, ping).unwrap();
        self
    }

    /// Pings, and sees the answer.
    pub(crate) async fn ping(&mut self) {
        self.put_ping().flush().await;
        match self.control().await {
            Some(Control::Pong(pong)) => assert_eq!(pong.nonce, 42),
            other => panic!("{other:?}"),
        }
    }

    /// Sends what was put, and waits until the server says that the sync waits for a
    /// worker (or is turned away). What else it says is kept for [`Self::reply`].
    pub(crate) async fn flush_until_waiting(&mut self) -> Option<Busy> {
        self.flush().await;
        let mut kept = BytesMut::new();
        let mut busy = None;
        while let Some(frame) = self.frame().await {
            match frame {
                Frame::Control {
                    control: Some(Control::Waiting(_)),
                    ..
                } => break,
                Frame::Control {
                    control: Some(Control::Busy(message)),
                    ..
                } => busy = Some(message),
                Frame::Control { control, channel } => {
                    put_control(&mut kept, channel, control.unwrap()).unwrap();
                }
                Frame::Rows { bytes, channel } => put_rows(&mut kept, channel, &bytes),
                Frame::Message { .. } => panic!("nobody sends messages yet"),
            }
        }
        kept.extend_from_slice(&self.buffer);
        self.buffer = kept;
        busy
    }

    pub(crate) async fn ack(&mut self) {
        self.put(Control::Ack(Ack {}));
        self.flush().await;
    }

    /// Whether the server has closed the connection without another byte.
    pub(crate) async fn is_closed(&mut self) -> bool {
        self.frame().await.is_none()
    }
}

fn unpack(packed: &[u8]) -> Vec<(i64, Option<String>)> {
    let shape = schema().tables[0].shape();
    let mut reader = RowsReader::new(&shape, packed);
    let mut row = UnpackedRow::default();
    let mut rows = Vec::new();
    while reader.next(&mut row).unwrap() {
        let Datum::Integer(id) = row.key[0] else {
            panic!("{row:?}");
        };
        rows.push(match row.new.get(1) {
            Some(Datum::Text(text)) => (id, Some((*text).to_owned())),
            _ => (id, None),
        });
    }
    rows
}
