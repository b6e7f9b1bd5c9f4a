//! One connection's frames: reading, writing, flow control both ways.
//!
//! Three futures of one task share a [`Link`]: [`read`] turns bytes into events,
//! the session takes them and answers, [`write`] sends. Because they are polled in
//! this order in one task, a request that arrives whole is answered with a single
//! wake-up and a single write. Reading never waits for anything but room in a short
//! queue, which the session empties also while it sends. What messages mean is left
//! to the session.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::timeout;

use tidewater_protocol::Code;
use tidewater_protocol::frame::{
    CONNECTION_CHANNEL, Frame, INITIAL_CREDIT_BYTES, SYNC_CHANNEL, put_control, put_rows,
    take_frame, take_preface,
};
use tidewater_protocol::message::{Control, Credit, Hello, PROTOCOL_VERSION, Ping, Pong, SignIn};

use crate::fault::Fault;
use crate::memory::{MemoryBudget, Reservation};

/// What [`Control::Pong`] and Welcome say of this program.
pub(crate) const SERVER_NAME: &str = concat!("tidewater-server ", env!("CARGO_PKG_VERSION"));

/// Events that wait for the session before reading pauses.
const QUEUED_EVENTS: usize = 256;
/// Bytes of rows that wait for the session before reading pauses.
const QUEUED_BYTES: usize = 512 << 10;
/// The same before the remote has signed in.
const QUEUED_BYTES_STRANGER: usize = 64 << 10;
/// The first read of a connection, and the largest.
const READ_BYTES: usize = 2 << 10;
const MAX_READ_BYTES: usize = 256 << 10;
/// A read buffer up to this size needs no reservation.
const FREE_BUFFER_BYTES: usize = 128 << 10;
/// The same before the remote has signed in: a Hello and a small upload.
const FREE_BUFFER_BYTES_STRANGER: usize = 16 << 10;
/// Unsent bytes at which producers wait for the network.
const HIGH_WATER_BYTES: usize = 128 << 10;
/// Unsent bytes at which what has been produced so far leaves.
const FLUSH_BYTES: usize = 64 << 10;
/// The size up to which an empty write buffer is kept for the next message.
const KEEP_BUFFER_BYTES: usize = 2 << 10;

/// Something for the session.
#[derive(Debug)]
pub(crate) enum Event {
    /// On the channel of the connection itself.
    SignIn(SignIn),
    Control(Control),
    Rows(Bytes),
    /// Nothing more comes.
    End(Fault),
}

/// What the three futures of a connection share.
pub(crate) struct Link {
    inbound: Mutex<Inbound>,
    arrived: Notify,
    room: Notify,
    outbound: Mutex<Outbound>,
    to_write: Notify,
    /// Memory for what reading needs beyond a small buffer, and for what the session receives: one
    /// of them may go beyond the budget, and then both may.
    budget: MemoryBudget,
    /// Bytes were written, or credit came.
    progress: Notify,
    signed_in: AtomicBool,
    /// What the remote may still send and what this side may still send, in bytes
    /// of rows.
    receive_credit: AtomicU64,
    send_credit: AtomicU64,
    /// How many events have come.
    events: AtomicU64,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

#[derive(Default)]
struct Inbound {
    events: VecDeque<Event>,
    bytes: usize,
    /// Bytes of rows that the session has consumed and not yet granted again.
    consumed: u64,
}

#[derive(Default)]
struct Outbound {
    buffer: BytesMut,
    /// Bytes that the writer has taken and not yet written.
    writing: usize,
    flush: bool,
    close: bool,
}

impl Outbound {
    fn unsent(&self) -> usize {
        self.buffer.len() + self.writing
    }
}

impl Link {
    pub(crate) fn new(budget: MemoryBudget) -> Link {
        Link {
            budget,
            inbound: Mutex::default(),
            arrived: Notify::new(),
            room: Notify::new(),
            outbound: Mutex::default(),
            to_write: Notify::new(),
            progress: Notify::new(),
            signed_in: AtomicBool::new(false),
            receive_credit: AtomicU64::new(INITIAL_CREDIT_BYTES),
            send_credit: AtomicU64::new(INITIAL_CREDIT_BYTES),
            events: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
        }
    }

    fn inbound(&self) -> MutexGuard<'_, Inbound> {
        self.inbound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outbound(&self) -> MutexGuard<'_, Outbound> {
        self.outbound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes received and sent so far.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        [
            self.received_bytes.load(Ordering::Relaxed),
            self.sent_bytes.load(Ordering::Relaxed),
        ]
    }

    /// Bytes that were produced and not yet handed to the network.
    pub(crate) fn unsent_bytes(&self) -> u64 {
        self.outbound().unsent() as u64
    }

    /// From now on the remote may fill the larger queue.
    pub(crate) fn sign_in(&self) {
        self.signed_in.store(true, Ordering::Relaxed);
        self.room.notify_one();
    }

    /// The next event. When none is there, what was produced leaves first. Safe to
    /// drop.
    pub(crate) async fn event(&self) -> Event {
        loop {
            if let Some(event) = self.try_event() {
                return event;
            }
            self.flush();
            self.arrived.notified().await;
        }
    }

    /// As [`Self::event`], but what was produced stays until somebody flushes it.
    pub(crate) async fn event_without_flush(&self) -> Event {
        loop {
            if let Some(event) = self.try_event() {
                return event;
            }
            self.arrived.notified().await;
        }
    }

    /// A Hello, if that is what came next.
    pub(crate) fn try_hello(&self) -> Option<Hello> {
        let mut inbound = self.inbound();
        match inbound.events.pop_front()? {
            Event::Control(Control::Hello(hello)) => {
                self.room.notify_one();
                Some(hello)
            }
            other => {
                inbound.events.push_front(other);
                None
            }
        }
    }

    fn try_event(&self) -> Option<Event> {
        let mut inbound = self.inbound();
        let event = inbound.events.pop_front()?;
        if let Event::Rows(bytes) = &event {
            inbound.bytes -= bytes.len();
        }
        self.room.notify_one();
        Some(event)
    }

    /// How many events have come so far, taken or not.
    pub(crate) fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    fn push_event(&self, event: Event) {
        self.events.fetch_add(1, Ordering::Relaxed);
        let mut inbound = self.inbound();
        if let Event::Rows(bytes) = &event {
            inbound.bytes += bytes.len();
        }
        inbound.events.push_back(event);
        self.arrived.notify_one();
    }

    fn has_room(&self) -> bool {
        let limit = if self.signed_in.load(Ordering::Relaxed) {
            QUEUED_BYTES
        } else {
            QUEUED_BYTES_STRANGER
        };
        let inbound = self.inbound();
        inbound.events.len() < QUEUED_EVENTS && inbound.bytes < limit
    }

    /// The session has stored or dropped so many bytes of rows: the remote may send
    /// as many again.
    pub(crate) fn consumed(&self, bytes: usize) {
        let mut inbound = self.inbound();
        inbound.consumed += bytes as u64;
        if inbound.consumed < INITIAL_CREDIT_BYTES / 4 {
            return;
        }
        let bytes = std::mem::take(&mut inbound.consumed);
        drop(inbound);
        self.receive_credit.fetch_add(bytes, Ordering::Relaxed);
        let credit = Control::Credit(Credit {
            channel: u32::from(SYNC_CHANNEL),
            bytes,
        });
        self.put(CONNECTION_CHANNEL, credit);
        self.flush();
    }

    /// Adds a message of the sync to what leaves next.
    ///
    /// # Errors
    /// It is larger than a frame.
    pub(crate) fn send(&self, control: Control) -> Result<(), Fault> {
        put_control(&mut self.outbound().buffer, SYNC_CHANNEL, control)
            .map_err(|error| Fault::internal(format!("a message cannot be sent: {error}")))
    }

    /// Adds a message of the connection itself.
    ///
    /// # Errors
    /// It is larger than a frame.
    pub(crate) fn send_own(&self, control: Control) -> Result<(), Fault> {
        put_control(&mut self.outbound().buffer, CONNECTION_CHANNEL, control)
            .map_err(|error| Fault::internal(format!("a message cannot be sent: {error}")))
    }

    fn put(&self, channel: u8, control: Control) {
        // The messages of the connection itself are a few bytes long.
        let _ = put_control(&mut self.outbound().buffer, channel, control);
    }

    /// Lets the remote know that this side is alive.
    pub(crate) fn ping(&self) {
        self.put(CONNECTION_CHANNEL, Control::Ping(Ping { nonce: 0 }));
        self.flush();
    }

    /// Adds rows to what leaves next, as credit and network allow.
    ///
    /// # Errors
    /// The remote takes nothing for `idle`.
    pub(crate) async fn send_rows(&self, mut rows: &[u8], idle: Duration) -> Result<(), Fault> {
        while !rows.is_empty() {
            let credit = self.send_credit.load(Ordering::Relaxed);
            let unsent = self.outbound().unsent();
            let room = HIGH_WATER_BYTES.saturating_sub(unsent);
            // Not in crumbs.
            if credit == 0 || room < rows.len().min(HIGH_WATER_BYTES / 4) {
                self.flush();
                if timeout(idle, self.progress.notified()).await.is_err() {
                    return Err(Fault::timeout("the remote takes no more rows"));
                }
                continue;
            }
            let credit = usize::try_from(credit).unwrap_or(usize::MAX);
            let (piece, rest) = rows.split_at(rows.len().min(credit).min(room));
            self.send_credit
                .fetch_sub(piece.len() as u64, Ordering::Relaxed);
            put_rows(&mut self.outbound().buffer, SYNC_CHANNEL, piece);
            rows = rest;
        }
        if self.outbound().buffer.len() >= FLUSH_BYTES {
            self.flush();
        }
        Ok(())
    }

    /// What was produced leaves.
    pub(crate) fn flush(&self) {
        let mut outbound = self.outbound();
        if !outbound.buffer.is_empty() && !outbound.flush {
            outbound.flush = true;
            self.to_write.notify_one();
        }
    }

    /// What was produced leaves, and then the connection closes.
    pub(crate) fn close(&self) {
        self.outbound().close = true;
        self.to_write.notify_one();
    }

    /// Takes the frames off the buffer for which there is room.
    fn take_frames(&self, buffer: &mut BytesMut, greeted: &mut bool) -> Result<(), Fault> {
        if !*greeted {
            if buffer.is_empty() || take_preface(buffer)?.is_none() {
                return Ok(());
            }
            *greeted = true;
        }
        while self.has_room() {
            let Some(frame) = take_frame(buffer)? else {
                break;
            };
            self.take(frame)?;
        }
        Ok(())
    }

    fn take(&self, frame: Frame) -> Result<(), Fault> {
        match frame {
            // A message of a later minor version.
            Frame::Control { control: None, .. } => {}
            Frame::Control {
                channel,
                control: Some(control),
            } => match control {
                Control::Ping(Ping { nonce }) => self.pong(channel, nonce),
                Control::Pong(_) => {}
                Control::Credit(credit) => self.take_credit(credit),
                Control::SignIn(sign_in) if channel == CONNECTION_CHANNEL => {
                    self.push_event(Event::SignIn(sign_in));
                }
                control if channel == SYNC_CHANNEL => self.push_event(Event::Control(control)),
                _ => return Err(unknown_channel(channel)),
            },
            Frame::Message { .. } => return Err(Fault::unexpected("a message frame")),
            Frame::Rows { channel, bytes } => {
                if channel != SYNC_CHANNEL {
                    return Err(unknown_channel(channel));
                }
                let length = bytes.len() as u64;
                let allowed = self.receive_credit.load(Ordering::Relaxed);
                let Some(left) = allowed.checked_sub(length) else {
                    return Err(Fault::peer(
                        Code::LimitExceeded,
                        "more rows were sent than the flow control allows",
                    ));
                };
                self.receive_credit.store(left, Ordering::Relaxed);
                if !bytes.is_empty() {
                    self.push_event(Event::Rows(bytes));
                }
            }
        }
        Ok(())
    }

    /// The connection's own share of the memory budget.
    pub(crate) fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    /// Reserves memory for a read buffer of this size, and gives back what a smaller
    /// one no longer needs. `is_least`: a frame cannot be completed with less.
    fn reserve(&self, reservation: &mut Reservation, buffer_bytes: usize, is_least: bool) -> bool {
        let signed_in = self.signed_in.load(Ordering::Relaxed);
        let free = match signed_in {
            true => FREE_BUFFER_BYTES,
            false => FREE_BUFFER_BYTES_STRANGER,
        };
        let wanted = buffer_bytes.saturating_sub(free) as u64;
        let reserved = reservation.bytes();
        if wanted <= reserved {
            reservation.shrink(reserved - wanted);
            return true;
        }
        // The rows that came before it, which a file could hold, may have filled the budget.
        match signed_in && is_least {
            true => reservation.grow_anyway(wanted - reserved),
            false => reservation.grow(wanted - reserved),
        }
    }

    fn pong(&self, channel: u8, nonce: u64) {
        // Who asks and takes no answers gets no more of them.
        if self.outbound().unsent() < HIGH_WATER_BYTES {
            let pong = Pong {
                nonce,
                server: SERVER_NAME.into(),
                protocol_version: PROTOCOL_VERSION,
            };
            self.put(channel, Control::Pong(pong));
            self.flush();
        }
    }

    fn take_credit(&self, credit: Credit) {
        if credit.channel == u32::from(SYNC_CHANNEL) {
            let _ =
                self.send_credit
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |allowed| {
                        Some(allowed.saturating_add(credit.bytes))
                    });
            self.progress.notify_one();
        }
    }

    /// What there is to write, if somebody flushed it; `None` for the end.
    fn take_output(&self, empty: BytesMut) -> Option<BytesMut> {
        let mut outbound = self.outbound();
        if outbound.buffer.is_empty() && outbound.close {
            return None;
        }
        if !outbound.flush && !outbound.close {
            return Some(BytesMut::new());
        }
        outbound.flush = false;
        outbound.writing = outbound.buffer.len();
        Some(std::mem::replace(&mut outbound.buffer, empty))
    }
}

fn unknown_channel(channel: u8) -> Fault {
    Fault::peer(
        Code::UnexpectedMessage,
        format!("channel {channel} does not exist"),
    )
}

/// Reads until the end. Afterwards everything is read and dropped, so that unread
/// bytes do not make the system reset the connection before the remote has seen the
/// last message.
pub(crate) async fn read(link: &Link, mut stream: impl AsyncRead + Unpin) {
    let mut buffer = BytesMut::new();
    let mut greeted = false;
    let mut read_bytes = READ_BYTES;
    let mut reservation = link.budget.empty();
    let fault = loop {
        if let Err(fault) = link.take_frames(&mut buffer, &mut greeted) {
            break fault;
        }
        if !link.has_room() {
            link.room.notified().await;
            continue;
        }
        if buffer.is_empty() && buffer.capacity() > READ_BYTES && read_bytes == READ_BYTES {
            buffer = BytesMut::new();
        }
        let wanted = buffer.capacity().max(buffer.len() + read_bytes);
        if !link.reserve(&mut reservation, wanted, read_bytes == READ_BYTES) {
            if read_bytes > READ_BYTES {
                read_bytes = READ_BYTES;
                continue;
            }
            break Fault::busy(2_000);
        }
        buffer.reserve(read_bytes);
        let limit = buffer.capacity() - buffer.len();
        match stream.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => break Fault::gone(),
            Ok(count) => {
                link.received_bytes
                    .fetch_add(count as u64, Ordering::Relaxed);
                // Bulk is read in large pieces; a connection that only chats keeps
                // a small buffer.
                read_bytes = if count == limit {
                    (read_bytes * 4).min(MAX_READ_BYTES)
                } else if count < READ_BYTES {
                    READ_BYTES
                } else {
                    read_bytes
                };
            }
        }
    };
    let gone = fault.is_gone();
    link.push_event(Event::End(fault));
    drop((buffer, reservation));
    if !gone {
        let mut scratch = [0; 1024];
        while !matches!(stream.read(&mut scratch).await, Ok(0) | Err(_)) {}
    }
}

/// Writes what was flushed, until the link is closed.
pub(crate) async fn write(link: &Link, mut stream: impl AsyncWrite + Unpin) {
    if let Err(error) = write_all(link, &mut stream).await {
        tracing::debug!(%error, "a connection cannot be written to");
        link.push_event(Event::End(Fault::gone()));
    }
}

async fn write_all(link: &Link, stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let mut spare = BytesMut::new();
    loop {
        let Some(mut output) = link.take_output(std::mem::take(&mut spare)) else {
            return stream.shutdown().await;
        };
        if output.is_empty() {
            link.to_write.notified().await;
            continue;
        }
        while !output.is_empty() {
            let written = stream.write_buf(&mut output).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            link.sent_bytes.fetch_add(written as u64, Ordering::Relaxed);
            link.outbound().writing = output.len();
            link.progress.notify_one();
        }
        stream.flush().await?;
        if output.capacity() <= KEEP_BUFFER_BYTES {
            spare = output;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(length: usize) -> Frame {
        Frame::Rows {
            channel: SYNC_CHANNEL,
            bytes: vec![0; length].into(),
        }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
    }

    #[test]
    fn more_rows_than_the_credit_allows_are_a_breach() {
        let link = Link::new(MemoryBudget::new(1 << 20));
        link.take(rows(1 << 20)).unwrap();
        let fault = link.take(rows(1)).unwrap_err();
        assert_eq!(fault.code, Code::LimitExceeded);
        // What was consumed may be sent again.
        link.consumed(1 << 19);
        link.take(rows(1 << 19)).unwrap();
        assert!(link.take(rows(1)).is_err());
    }

    #[test]
    fn a_stranger_fills_a_small_queue_and_a_remote_a_larger_one() {
        let link = Link::new(MemoryBudget::new(1 << 20));
        link.take(rows(QUEUED_BYTES_STRANGER)).unwrap();
        assert!(!link.has_room());
        link.sign_in();
        assert!(link.has_room());
        link.take(rows(QUEUED_BYTES)).unwrap();
        assert!(!link.has_room());
        runtime().block_on(async {
            link.event().await;
            link.event().await;
        });
        assert!(link.has_room());
    }

    #[test]
    fn who_takes_no_answers_gets_no_more_of_them() {
        let link = Link::new(MemoryBudget::new(1 << 20));
        for nonce in 0..100_000 {
            link.pong(CONNECTION_CHANNEL, nonce);
        }
        assert!(link.unsent_bytes() < 2 * HIGH_WATER_BYTES as u64);
    }

    #[test]
    fn rows_wait_for_credit_and_a_remote_that_gives_none_is_given_up() {
        runtime().block_on(async {
            let link = Link::new(MemoryBudget::new(1 << 20));
            let (ours, mut theirs) = tokio::io::duplex(4 << 20);
            let rows = vec![0; (1 << 20) + 10];
            let sending = async {
                let sent = link.send_rows(&rows, Duration::from_millis(50)).await;
                link.close();
                sent
            };
            let (sent, ()) = tokio::join!(sending, write(&link, ours));
            assert_eq!(sent.unwrap_err().code, Code::Timeout);
            let mut arrived = Vec::new();
            theirs.read_to_end(&mut arrived).await.unwrap();
            let headers = arrived.len() - (1 << 20);
            assert!(headers < 500, "what needs no credit came: {headers}");
            link.take_credit(Credit {
                channel: u32::from(SYNC_CHANNEL),
                bytes: u64::MAX,
            });
            link.take_credit(Credit {
                channel: u32::from(SYNC_CHANNEL),
                bytes: u64::MAX,
            });
            let small = link.send_rows(&rows[..10], Duration::from_millis(50));
            small.await.unwrap();
        });
    }
}
