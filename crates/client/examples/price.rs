//! What a sync costs the remote: processor time of its thread, user and system, against a scripted
//! server on loopback that answers at once.
//!
//! `cargo run --release -p tidewater-client --example price -- CASE [COUNT] [FOLDER]`, with the cases
//! `idle` (by token), `credential` (a new token each time), `ten` (rows that the application has
//! inserted), `down` (ten rows that come), `open` (the file alone), `upload` and `download` (COUNT rows in one sync). In `idle-open`,
//! `ten-open` and `down-open` the file stays open from one sync to the next. The times are those that Linux
//! keeps of a thread.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use bytes::BytesMut;
use tidewater_client::Remote;
use tidewater_connection::{ChannelInput, FramedConnection};
use tidewater_protocol::frame::{CONNECTION_CHANNEL, ROWS_PAYLOAD_BYTES, SYNC_CHANNEL};
use tidewater_protocol::message::{
    Control, DownloadEnd, PROTOCOL_VERSION, ResultEnd, SignedIn, SyncEnd, TableBegin, UploadState,
};
use tidewater_protocol::{
    Column, ColumnType, Datum, Direction, Op, PublicationSchema, RowsWriter, Table, ValueRef,
};
use tidewater_testing::purchase::{FIRST_EMP_ID, load_sqlite, purchases};
use tidewater_testing::scripted::{REMOTE_ID, download_begin, result_begin, welcome};

type Anything<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Anything<()> {
    let mut arguments = std::env::args().skip(1);
    let case = arguments.next().unwrap_or_else(|| "idle".into());
    let count = arguments.next().map_or(Ok(2000), |count| count.parse())?;
    let within = arguments.next().unwrap_or_else(|| "/dev/shm".into());
    let folder = tempfile::tempdir_in(within)?;
    let path = folder.path().join("remote.db");
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("tcp://{}", listener.local_addr()?);
    let rows = match case.as_str() {
        "download" => count,
        "upload" => 0,
        _ => 1000,
    };
    let script = Script {
        gives_tokens: case == "credential",
        first: Rows::of(rows),
        later: Rows::of(if case.starts_with("down") { 10 } else { 0 }),
    };
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            serve(&mut socket.expect("a socket"), &script).expect("a sync");
        }
    });
    let mut first = Remote::open(&path)?;
    first.subscribe(&url, "ann", &["sales"])?;
    first.set_password("secret");
    let before = cpu_us()?;
    first.sync(&mut go_on)?;
    if case == "download" {
        let took = cpu_us()? - before;
        println!("download: {:.3} us a row", took / f64::from(count));
        return Ok(());
    }
    drop(first);
    match case.as_str() {
        "upload" => upload(&path, count),
        _ => small(&path, &case, count),
    }
}

fn go_on(_: &tidewater_client::SyncProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// One sync with so many inserted rows.
fn upload(path: &Path, count: i32) -> Anything<()> {
    let before = cpu_us()?;
    insert(path, 0..count)?;
    let inserted = cpu_us()?;
    let mut remote = Remote::open(path)?;
    let report = remote.sync(&mut go_on)?;
    let took = cpu_us()? - inserted;
    assert_eq!(report.uploaded.inserts, count as u64);
    println!(
        "insert, tracked: {:.3} us a row; upload: {:.3} us a row",
        (inserted - before) / f64::from(count),
        took / f64::from(count)
    );
    Ok(())
}

/// Many small syncs.
fn small(path: &Path, case: &str, count: i32) -> Anything<()> {
    let (mut open, mut sync, mut close) = (0.0, 0.0, 0.0);
    let mut kept = None;
    for number in 0..count {
        if case.starts_with("ten") {
            insert(path, 10_000 + number * 10..10_010 + number * 10)?;
        }
        let begin = cpu_us()?;
        let mut remote = match kept.take() {
            Some(remote) => remote,
            None => Remote::open(path)?,
        };
        let opened = cpu_us()?;
        if case != "open" {
            if case == "credential" {
                remote.database()?.forget_token()?;
            }
            remote.sync(&mut go_on)?;
        }
        let synced = cpu_us()?;
        if case.ends_with("-open") {
            kept = Some(remote);
        } else {
            drop(remote);
        }
        open += opened - begin;
        sync += synced - opened;
        close += cpu_us()? - synced;
    }
    let own = own_us()?;
    let each = |sum: f64| sum / f64::from(count) - own;
    let (open, sync, close) = (each(open), each(sync), each(close));
    println!(
        "{case}: {:.1} us a sync: open {open:.1}, sync {sync:.1}, close {close:.1}",
        open + sync + close,
    );
    Ok(())
}

/// What it costs to look at the time.
fn own_us() -> Anything<f64> {
    let begin = cpu_us()?;
    for _ in 0..999 {
        cpu_us()?;
    }
    Ok((cpu_us()? - begin) / 1000.0)
}

fn insert(path: &Path, numbers: std::ops::Range<i32>) -> Anything<()> {
    let mut application = rusqlite::Connection::open(path)?;
    application.pragma_update(None, "synchronous", "NORMAL")?;
    let transaction = application.transaction()?;
    load_sqlite(&transaction, purchases(FIRST_EMP_ID, numbers))?;
    transaction.commit()?;
    Ok(())
}

/// Processor time of this thread so far.
fn cpu_us() -> Anything<f64> {
    // A yield has the kernel count what has passed.
    std::thread::yield_now();
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let first = text.split_whitespace().next();
    let nanoseconds: f64 = first.ok_or("no times of a thread here")?.parse()?;
    Ok(nanoseconds / 1000.0)
}

/// Publication `sales`, of the table `purchase`.
fn schema() -> PublicationSchema {
    let column = |name: &str, column_type| Column {
        name: name.into(),
        column_type,
        nullable: name == "notes",
        default: None,
    };
    PublicationSchema {
        name: "sales".into(),
        tables: vec![Table {
            name: "purchase".into(),
            columns: vec![
                column("emp_id", ColumnType::Integer),
                column("purch_id", ColumnType::Integer),
                column("cust_id", ColumnType::Integer),
                column("cost", ColumnType::Decimal { scale: Some(6) }),
                column("order_date", ColumnType::Timestamp),
                column("notes", ColumnType::Text),
            ],
            key: vec![0, 1],
            partition: vec![0],
            unique: vec![],
            foreign_keys: vec![],
            direction: Direction::Both,
            checks: Vec::new(),
            identity: None,
        }],
        transactional: false,
    }
}

/// What the server says.
struct Script {
    gives_tokens: bool,
    /// The rows of the first download, and of each later one.
    first: Rows,
    later: Rows,
}

/// Packed rows, in pieces.
struct Rows {
    count: i32,
    pieces: Vec<Vec<u8>>,
}

impl Rows {
    fn of(count: i32) -> Rows {
        Rows {
            count,
            pieces: packed(count),
        }
    }
}

fn packed(count: i32) -> Vec<Vec<u8>> {
    let schema = schema();
    let shape = schema.tables[0].shape();
    let mut writer = RowsWriter::new(&shape);
    let mut pieces = Vec::new();
    // Another employee than the one whose rows are uploaded.
    for row in purchases(FIRST_EMP_ID + 1, 0..count) {
        let cost = row.cost();
        let values = [
            Datum::Integer(row.emp_id.into()),
            Datum::Integer(row.purch_id.into()),
            Datum::Integer(row.cust_id.into()),
            ColumnType::Decimal { scale: Some(6) }
                .datum(ValueRef::Text(&cost))
                .0,
            Datum::Timestamp(row.order_date_micros),
            Datum::Text(&row.notes),
        ];
        writer.row(Op::Upsert, &values);
        if writer.len() > ROWS_PAYLOAD_BYTES - 1024 {
            pieces.push(writer.take());
        }
    }
    if !writer.is_empty() {
        pieces.push(writer.take());
    }
    pieces
}

/// A server's side of one connection.
struct Peer<'a> {
    socket: &'a mut TcpStream,
    wire: FramedConnection,
    buffer: Vec<u8>,
}

impl Peer<'_> {
    /// Reads and hands each message to `take`; false at the end.
    fn read(&mut self, take: &mut dyn FnMut(Control)) -> Anything<bool> {
        let count = self.socket.read(&mut self.buffer)?;
        self.wire
            .handle_bytes(&self.buffer[..count], Duration::ZERO)?;
        for channel in [CONNECTION_CHANNEL, SYNC_CHANNEL] {
            while let Some(incoming) = self.wire.receive(channel) {
                self.wire.mark_consumed(channel, incoming.credit());
                if let ChannelInput::Control(control) = incoming {
                    if matches!(control, Control::SignIn(_)) {
                        self.wire.let_in();
                    }
                    take(control);
                }
            }
        }
        self.wire.handle_bytes(&[], Duration::ZERO)?;
        Ok(count > 0)
    }

    fn write(&mut self) -> Anything<()> {
        let mut out = BytesMut::new();
        while self.wire.poll_transmit(&mut out, 64 << 10) {
            self.socket.write_all(&out.split())?;
        }
        Ok(())
    }
}

/// Serves one connection.
fn serve(socket: &mut TcpStream, script: &Script) -> Anything<()> {
    socket.set_nodelay(true)?;
    let wire = FramedConnection::accept("price", None, Duration::ZERO);
    let mut peer = Peer {
        socket,
        wire,
        buffer: vec![0; 256 << 10],
    };
    let (mut upload, mut end, mut is_first) = (None, None, true);
    let mut requested = false;
    while !requested {
        let more = peer.read(&mut |control| match control {
            Control::Hello(hello) => is_first = hello.subscriptions[0].schema_hash.is_empty(),
            Control::UploadBegin(begin) => upload = Some(begin),
            Control::UploadEnd(counts) => end = Some(counts),
            Control::DownloadRequest(_) => requested = true,
            _ => {}
        })?;
        if !more {
            return Ok(());
        }
        peer.write()?;
    }
    let token = match is_first || script.gives_tokens {
        true => vec![5; 80],
        false => Vec::new(),
    };
    let credential = match is_first {
        true => vec![6; 32],
        false => Vec::new(),
    };
    peer.wire.send_control(
        CONNECTION_CHANNEL,
        Control::SignedIn(Box::new(SignedIn {
            protocol_version: PROTOCOL_VERSION,
            remote_id: REMOTE_ID.to_vec(),
            token,
            credential,
            server: "price".into(),
            centre: "scripted".into(),
            user: String::new(),
            above: Vec::new(),
            message_bytes: 0,
        })),
    )?;
    let schema = schema();
    let mut checksum = crc32fast::Hasher::new();
    let mut send = |control| peer.wire.send_control(SYNC_CHANNEL, control);
    send(welcome(
        UploadState::InSequence,
        is_first.then_some(&schema),
    ))?;
    if let (Some(upload), Some(end)) = (&upload, end) {
        send(result_begin(upload))?;
        send(Control::ResultEnd(ResultEnd {
            inserts: end.inserts,
            updates: end.updates,
            deletes: end.deletes,
            ..ResultEnd::default()
        }))?;
    }
    send(download_begin(0))?;
    let rows = if is_first {
        &script.first
    } else {
        &script.later
    };
    if is_first || rows.count > 0 {
        send(Control::TableBegin(TableBegin {
            replace: is_first,
            ..TableBegin::for_table(&schema.tables[0])
        }))?;
    }
    for piece in &rows.pieces {
        checksum.update(piece);
        peer.wire.send_rows(SYNC_CHANNEL, piece.clone());
    }
    let is_idle = !is_first && upload.is_none() && rows.count == 0;
    peer.wire.send_control(
        SYNC_CHANNEL,
        Control::DownloadEnd(DownloadEnd {
            // Nothing has happened: the remote's own is as good.
            checkpoint: vec![4; if is_idle { 0 } else { 200 }],
            upserts: rows.count as u64,
            removals: 0,
            checksum: checksum.finalize(),
        }),
    )?;
    peer.wire
        .send_control(SYNC_CHANNEL, Control::SyncEnd(SyncEnd {}))?;
    loop {
        peer.write()?;
        if !peer.read(&mut |_| {})? {
            return Ok(());
        }
    }
}
