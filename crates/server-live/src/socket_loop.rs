//! Between the bytes of a socket and the channels of a connection.
//!
//! Four futures of one task share a [`SocketLoop`]: [`SocketLoop::read`] hands bytes to the machine of
//! `tidewater-connection`, the handlers of the channels take what came and answer,
//! [`SocketLoop::keep_time`] pings, [`SocketLoop::write`] sends. Because they are polled in this order in
//! one task, a request that arrives whole is answered with a single wake-up and a single write.
//! What messages mean is left to the handlers.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use tidewater_carrier::block::BlockError;
use tidewater_carrier::listen::{ByteAccount, NoRoom};
use tidewater_connection::{ChannelInput, ConnectionEvent, FramedConnection, PingTimings};
use tidewater_protocol::Code;
use tidewater_protocol::frame::{
    CALL_CHANNEL, CHANNELS, CONNECTION_CHANNEL, EVENT_CHANNEL, Message, SYNC_CHANNEL,
};
use tidewater_protocol::message::Control;

use tidewater_server_config::ServerLimits;
use tidewater_server_jobs::fault::Fault;
use tidewater_server_jobs::memory::{MemoryBudget, Reservation};

/// What Pongs and SignedIn say of this program.
pub const SERVER_NAME: &str = concat!("tidewater-server ", env!("CARGO_PKG_VERSION"));

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

/// What the futures of a connection share.
pub struct SocketLoop {
    state: Mutex<State>,
    opened: Instant,
    /// Something came for a channel, by its number.
    arrived: [Notify; CHANNELS as usize],
    /// Reading may go on.
    room: Notify,
    entered: Notify,
    to_write: Notify,
    /// Bytes were written, or credit came, for a channel, by its number.
    progress: [Notify; CHANNELS as usize],
    /// Memory for what reading needs beyond a small buffer, and for what the handlers receive:
    /// one of them may go beyond the budget, and then both may.
    budget: MemoryBudget,
}

struct State {
    machine: FramedConnection,
    signed_in: bool,
    /// Nothing more comes.
    end: Option<Fault>,
    flush: bool,
    close: bool,
    /// Bytes that the writer has taken and not yet written.
    writing: usize,
    /// As the network had them.
    received_bytes: u64,
    sent_bytes: u64,
}

/// What the network carries for a [`SocketLoop`], for whoever packs it.
pub struct ByteMeter<'a> {
    wire: &'a SocketLoop,
    reservation: Reservation,
}

impl ByteAccount for ByteMeter<'_> {
    fn count_received(&mut self, bytes: usize) {
        self.wire.state().received_bytes += bytes as u64;
    }

    fn count_sent(&mut self, bytes: usize) {
        self.wire.state().sent_bytes += bytes as u64;
    }

    fn hold(&mut self, bytes: usize) -> bool {
        let reserved = self.reservation.bytes();
        if bytes == 0 && reserved == 0 {
            return true;
        }
        self.wire.reserve_beyond_free(&mut self.reservation, bytes)
    }
}

/// One channel, for its handler.
#[derive(Clone, Copy)]
pub struct ConnectionChannel<'a> {
    wire: &'a SocketLoop,
    number: u8,
}

impl SocketLoop {
    /// The loop of a connection that has just come.
    pub fn new(budget: MemoryBudget, limits: &ServerLimits) -> SocketLoop {
        // A remote that applies a download answers nothing meanwhile.
        let pings = PingTimings::for_busy_peer(limits.waiting, limits.waiting + limits.idle);
        let mut machine = FramedConnection::accept(SERVER_NAME, Some(pings), Duration::ZERO);
        machine.set_message_bytes(limits.message_bytes);
        SocketLoop {
            state: Mutex::new(State {
                machine,
                signed_in: false,
                end: None,
                flush: false,
                close: false,
                writing: 0,
                received_bytes: 0,
                sent_bytes: 0,
            }),
            opened: Instant::now(),
            arrived: Default::default(),
            room: Notify::new(),
            entered: Notify::new(),
            to_write: Notify::new(),
            progress: Default::default(),
            budget,
        }
    }

    /// What its bytes are to be carried by.
    pub fn line(&self) -> ByteMeter<'_> {
        ByteMeter {
            wire: self,
            reservation: self.budget.empty(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The channel of the connection itself.
    pub fn own(&self) -> ConnectionChannel<'_> {
        self.channel(CONNECTION_CHANNEL)
    }

    /// The channel of syncs.
    pub fn sync(&self) -> ConnectionChannel<'_> {
        self.channel(SYNC_CHANNEL)
    }

    /// The channel of calls.
    pub fn calls(&self) -> ConnectionChannel<'_> {
        self.channel(CALL_CHANNEL)
    }

    /// The channel of events.
    pub fn events(&self) -> ConnectionChannel<'_> {
        self.channel(EVENT_CHANNEL)
    }

    fn channel(&self, number: u8) -> ConnectionChannel<'_> {
        ConnectionChannel { wire: self, number }
    }

    /// The remote has proved who it is.
    pub fn let_in(&self) {
        let mut state = self.state();
        state.signed_in = true;
        state.machine.let_in();
        self.entered.notify_one();
        self.room.notify_one();
    }

    /// Nothing more is taken from the remote; the handlers are told when they have what came.
    pub fn fail(&self, fault: Fault) {
        // The first reason is as good as the second.
        self.state().end.get_or_insert(fault);
        self.arrived.iter().for_each(Notify::notify_one);
        self.progress.iter().for_each(Notify::notify_one);
    }

    /// What was produced leaves, and then the connection closes.
    pub fn close(&self) {
        self.state().close = true;
        self.to_write.notify_one();
        self.room.notify_one();
    }

    fn flush(&self, state: &mut State) {
        if !state.flush {
            state.flush = true;
            self.to_write.notify_one();
        }
    }

    fn now(&self) -> Duration {
        self.opened.elapsed()
    }

    /// Hands what was read to the machine. Whether more may be read.
    fn take(&self, buffer: &mut BytesMut) -> Result<bool, Fault> {
        let mut state = self.state();
        let taken = state.machine.handle_input(buffer, self.now());
        while let Some(event) = state.machine.poll_event() {
            match event {
                ConnectionEvent::Readable(channel) => {
                    self.arrived[usize::from(channel)].notify_one()
                }
                ConnectionEvent::Writable(channel) => {
                    self.progress[usize::from(channel)].notify_one()
                }
                ConnectionEvent::Pong(_) => {}
            }
        }
        taken?;
        if state.machine.has_own_output() {
            self.flush(&mut state);
        }
        Ok(state.machine.wants_input())
    }

    /// Reserves memory for a read buffer of this size and for messages that wait for their
    /// handlers, and gives back what is no longer needed. `is_least`: a frame cannot be completed
    /// with less.
    fn reserve(&self, reservation: &mut Reservation, buffer_bytes: usize, is_least: bool) -> bool {
        let (signed_in, [control_bytes, _]) = {
            let state = self.state();
            (state.signed_in, state.machine.held_bytes())
        };
        let free = free_bytes(signed_in);
        let wanted = (buffer_bytes + control_bytes).saturating_sub(free) as u64;
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

    /// Reserves memory for a block that comes in.
    fn reserve_beyond_free(&self, reservation: &mut Reservation, bytes: usize) -> bool {
        let signed_in = self.state().signed_in;
        let wanted = bytes.saturating_sub(free_bytes(signed_in)) as u64;
        let reserved = reservation.bytes();
        if wanted <= reserved {
            reservation.shrink(reserved - wanted);
            return true;
        }
        match signed_in {
            // It is bounded, and nothing goes on without it.
            true => reservation.grow_anyway(wanted - reserved),
            false => reservation.grow(wanted - reserved),
        }
    }

    /// Reads until the end. Afterwards everything is read and dropped, so that unread
    /// bytes do not make the system reset the connection before the remote has seen the
    /// last message.
    pub async fn read(&self, mut stream: impl AsyncRead + Unpin) {
        let fault = self.read_frames(&mut stream).await;
        let gone = fault.is_gone();
        self.fail(fault);
        if !gone {
            let mut scratch = BytesMut::new();
            while !matches!(read_little(&mut stream, &mut scratch).await, Ok(0) | Err(_)) {
                scratch.clear();
            }
        }
    }

    async fn read_frames(&self, stream: &mut (impl AsyncRead + Unpin)) -> Fault {
        let mut buffer = BytesMut::new();
        let mut read_bytes = READ_BYTES;
        let mut reservation = self.budget.empty();
        loop {
            match self.take(&mut buffer) {
                Ok(true) => {}
                // A stranger that is not let in: what it goes on to say is dropped.
                Ok(false) if self.state().close => return Fault::cancelled(),
                Ok(false) => {
                    self.room.notified().await;
                    continue;
                }
                Err(fault) => return fault,
            }
            if buffer.is_empty() && read_bytes == READ_BYTES {
                // Most connections wait most of the time, and need no buffer for that.
                buffer = BytesMut::new();
                let count = match read_little(stream, &mut buffer).await {
                    Ok(0) => return Fault::gone(),
                    Err(error) => return of_reading(&error),
                    Ok(count) => count,
                };
                if count == READ_BYTES {
                    read_bytes *= 4;
                }
                continue;
            }
            let wanted = buffer.capacity().max(buffer.len() + read_bytes);
            if !self.reserve(&mut reservation, wanted, read_bytes == READ_BYTES) {
                if read_bytes > READ_BYTES {
                    read_bytes = READ_BYTES;
                    continue;
                }
                return Fault::busy(2_000);
            }
            buffer.reserve(read_bytes);
            let limit = buffer.capacity() - buffer.len();
            let count = match stream.read_buf(&mut buffer).await {
                Ok(0) => return Fault::gone(),
                Err(error) => return of_reading(&error),
                Ok(count) => count,
            };
            // Bulk is read in large pieces; a connection that only chats keeps a small buffer.
            read_bytes = if count == limit {
                (read_bytes * 4).min(MAX_READ_BYTES)
            } else if count < READ_BYTES {
                READ_BYTES
            } else {
                read_bytes
            };
        }
    }

    /// Pings a silent remote, until it is given up.
    pub async fn keep_time(&self) {
        loop {
            let due = self.state().machine.poll_timeout();
            let Some(due) = due else {
                // Nobody is asked before it is let in.
                self.entered.notified().await;
                continue;
            };
            sleep_until(self.opened + due).await;
            let mut state = self.state();
            let timed = state.machine.handle_timeout(self.now());
            if state.machine.has_own_output() {
                self.flush(&mut state);
            }
            drop(state);
            if let Err(fault) = timed {
                return self.fail(fault.into());
            }
        }
    }

    /// Writes what was flushed, until the wire is closed.
    pub async fn write(&self, mut stream: impl AsyncWrite + Unpin) {
        if let Err(error) = self.write_all(&mut stream).await {
            tracing::debug!(%error, "a connection cannot be written to");
            self.fail(Fault::gone());
        }
    }

    async fn write_all(&self, stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let mut output = BytesMut::new();
        loop {
            let closing = self.take_output(&mut output);
            if output.is_empty() {
                if closing {
                    return stream.shutdown().await;
                }
                self.to_write.notified().await;
                continue;
            }
            while !output.is_empty() {
                let written = stream.write_buf(&mut output).await?;
                if written == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                self.state().writing = output.len();
                self.progress.iter().for_each(Notify::notify_one);
            }
            stream.flush().await?;
            // The next message may be long in coming.
            output = BytesMut::new();
        }
    }

    /// What there is to write, if somebody flushed it. Whether the wire is to be closed.
    fn take_output(&self, output: &mut BytesMut) -> bool {
        let mut state = self.state();
        if state.flush || state.close {
            state.machine.poll_transmit(output, HIGH_WATER_BYTES);
            // What did not fit goes with the next write.
            state.flush = !output.is_empty() && output.len() >= HIGH_WATER_BYTES;
            state.writing = output.len();
        }
        state.close
    }
}

/// What a connection may hold without a reservation.
fn free_bytes(signed_in: bool) -> usize {
    match signed_in {
        true => FREE_BUFFER_BYTES,
        false => FREE_BUFFER_BYTES_STRANGER,
    }
}

/// Why nothing can be read any more.
fn of_reading(error: &io::Error) -> Fault {
    let Some(cause) = error.get_ref() else {
        return Fault::gone();
    };
    if cause.is::<NoRoom>() {
        return Fault::busy(2_000);
    }
    match cause.downcast_ref::<BlockError>() {
        Some(error) => Fault::new(
            Code::MalformedFrame,
            error.to_string(),
            "update both programs, and see that nothing on the way changes what they send",
        ),
        None => Fault::gone(),
    }
}

/// Reads a first piece, which has a buffer only once it is there.
async fn read_little(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> io::Result<usize> {
    poll_fn(|context| {
        let mut piece = [MaybeUninit::uninit(); READ_BYTES];
        let mut piece = ReadBuf::uninit(&mut piece);
        ready!(Pin::new(&mut *stream).poll_read(context, &mut piece))?;
        buffer.extend_from_slice(piece.filled());
        Poll::Ready(Ok(piece.filled().len()))
    })
    .await
}

impl<'a> ConnectionChannel<'a> {
    /// What came next. When nothing is there, what was produced leaves first. Safe to drop.
    pub async fn incoming(self) -> Result<ChannelInput, Fault> {
        if let Some(incoming) = self.try_incoming() {
            return incoming;
        }
        self.flush();
        self.incoming_without_flush().await
    }

    /// As [`Self::incoming`], but what was produced stays until somebody flushes it.
    pub async fn incoming_without_flush(self) -> Result<ChannelInput, Fault> {
        loop {
            if let Some(incoming) = self.try_incoming() {
                return incoming;
            }
            self.wire.arrived[usize::from(self.number)].notified().await;
        }
    }

    /// What came next, if something has come.
    pub fn try_incoming(self) -> Option<Result<ChannelInput, Fault>> {
        let mut state = self.wire.state();
        let incoming = state.machine.receive(self.number).map(Ok);
        let incoming = incoming.or_else(|| state.end.clone().map(Err));
        if incoming.is_some() && !state.signed_in {
            self.wire.room.notify_one();
        }
        incoming
    }

    /// What came next, if it has come and is wanted.
    pub fn incoming_if(
        self,
        is_wanted: impl FnOnce(&ChannelInput) -> bool,
    ) -> Option<ChannelInput> {
        self.wire.state().machine.receive_if(self.number, is_wanted)
    }

    /// The handler has stored or dropped so many bytes of rows: the remote may send as many
    /// again.
    pub fn consumed(self, bytes: usize) {
        let mut state = self.wire.state();
        state.machine.mark_consumed(self.number, bytes);
        if state.machine.has_own_output() {
            self.wire.flush(&mut state);
        }
    }

    /// Adds a message to what leaves next.
    ///
    /// # Errors
    /// It is larger than a frame.
    pub fn send(self, control: Control) -> Result<(), Fault> {
        let mut state = self.wire.state();
        let sent = state.machine.send_control(self.number, control);
        sent.map_err(|error| Fault::internal(format!("a message cannot be sent: {error}")))
    }

    /// Adds rows to what leaves next, as credit and network allow.
    ///
    /// # Errors
    /// The remote takes nothing for `idle`.
    pub async fn send_rows(self, mut rows: Bytes, idle: Duration) -> Result<(), Fault> {
        while !rows.is_empty() {
            if !self.send_some(&mut rows) && timeout(idle, self.progress()).await.is_err() {
                return Err(Fault::timeout("the remote takes no more rows"));
            }
        }
        Ok(())
    }

    /// Queues a piece of rows that waits for nothing but the network, if that is not a crumb.
    /// Otherwise there is [`Self::progress`] to wait for.
    pub fn send_some(self, rows: &mut Bytes) -> bool {
        let mut state = self.wire.state();
        let credit = state.machine.room(self.number);
        let unsent = state.machine.unsent_bytes(self.number) + state.writing;
        let room = HIGH_WATER_BYTES.saturating_sub(unsent);
        if credit == 0 || room < rows.len().min(HIGH_WATER_BYTES / 4) {
            self.wire.flush(&mut state);
            return false;
        }
        let piece = rows.split_to(rows.len().min(credit).min(room));
        state.machine.send_rows(self.number, piece);
        if state.machine.unsent_bytes(self.number) >= FLUSH_BYTES {
            self.wire.flush(&mut state);
        }
        true
    }

    /// Ends when more may be sent than before. Safe to drop.
    pub async fn progress(self) {
        self.wire.progress[usize::from(self.number)]
            .notified()
            .await;
    }

    /// Adds a message to what leaves next: beyond credit it waits, and so does all behind it.
    ///
    /// # Errors
    /// It is larger than a frame.
    pub fn send_message(self, message: Message) -> Result<(), Fault> {
        let mut state = self.wire.state();
        let sent = state.machine.send_message(self.number, message);
        sent.map_err(|error| Fault::internal(format!("a message cannot be sent: {error}")))
    }

    /// Whether so much waits to be sent on the channel that its producers should wait for
    /// [`Self::progress`].
    pub fn is_full(self) -> bool {
        self.wire.state().machine.unsent_bytes(self.number) >= HIGH_WATER_BYTES
    }

    /// What was produced leaves.
    pub fn flush(self) {
        let mut state = self.wire.state();
        self.wire.flush(&mut state);
    }

    /// The share of the memory budget that the connection has.
    pub fn budget(self) -> &'a MemoryBudget {
        &self.wire.budget
    }

    /// Bytes received and sent so far, on all channels.
    pub fn bytes(self) -> [u64; 2] {
        let state = self.wire.state();
        [state.received_bytes, state.sent_bytes]
    }

    /// Bytes that were produced and not yet handed to the network.
    pub fn unsent_bytes(self) -> u64 {
        let state = self.wire.state();
        let unsent = (0..CHANNELS).map(|channel| state.machine.unsent_bytes(channel));
        (unsent.sum::<usize>() + state.writing) as u64
    }
}

#[cfg(test)]
mod tests {
    use tidewater_carrier::CompressionOptions;
    use tidewater_carrier::listen::BlockStream;
    use tidewater_protocol::frame::{INITIAL_CREDIT_BYTES, PREFACE, put_control, put_rows};
    use tidewater_protocol::message::Credit;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rows_wait_for_credit_and_a_remote_that_gives_none_is_given_up() {
        let wire = SocketLoop::new(MemoryBudget::new(1 << 20), &ServerLimits::default());
        let (ours, mut theirs) = tokio::io::duplex(4 << 20);
        let credit = INITIAL_CREDIT_BYTES as usize;
        let rows = Bytes::from(vec![0; credit + 10]);
        let idle = Duration::from_millis(50);
        let sending = async {
            let sent = wire.sync().send_rows(rows.clone(), idle).await;
            // The last word waits for nothing.
            let word = Control::SignIn(Box::default());
            wire.sync().send(word).unwrap();
            wire.close();
            sent
        };
        let (sent, ()) = tokio::join!(sending, wire.write(ours));
        assert_eq!(sent.unwrap_err().code, Code::Timeout);
        let mut arrived = Vec::new();
        theirs.read_to_end(&mut arrived).await.unwrap();
        let headers = arrived.len() - credit;
        assert!(headers < 500, "what needs no credit came: {headers}");
        let mut input = BytesMut::from(&PREFACE[..]);
        let granted = Control::Credit(Credit {
            channel: u32::from(SYNC_CHANNEL),
            bytes: 10,
        });
        put_control(&mut input, CONNECTION_CHANNEL, granted).unwrap();
        assert!(wire.take(&mut input).unwrap());
        wire.sync().send_rows(rows.slice(..10), idle).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn little_is_read_of_a_stranger_until_it_is_let_in() {
        let wire = SocketLoop::new(MemoryBudget::new(1 << 20), &ServerLimits::default());
        let (ours, mut theirs) = tokio::io::duplex(16 << 10);
        let mut said = BytesMut::from(&PREFACE[..]);
        let sign_in = Control::SignIn(Box::default());
        put_control(&mut said, CONNECTION_CHANNEL, sign_in).unwrap();
        for _ in 0..INITIAL_CREDIT_BYTES >> 14 {
            put_rows(&mut said, SYNC_CHANNEL, &[0; 1 << 14]);
        }
        let all = said.len() as u64;
        let ours = BlockStream::new(ours, CompressionOptions::default(), wire.line());
        let mut reading = std::pin::pin!(wire.read(ours));
        let mut saying = std::pin::pin!(theirs.write_all(&said));
        let patience = Duration::from_secs(60);
        let both = async { tokio::join!(&mut reading, &mut saying) };
        assert!(timeout(patience, both).await.is_err(), "it is not taken");
        let [received, _] = wire.sync().bytes();
        assert!(received < 512 << 10, "{received}");
        assert!(wire.budget.free() < 1 << 20, "beyond little it is reserved");
        wire.let_in();
        let both = async { tokio::join!(&mut reading, &mut saying) };
        assert!(timeout(patience, both).await.is_err(), "it goes on reading");
        assert_eq!(wire.sync().bytes()[0], all);
    }
}
