//! One channel: what came and waits for its handler, what waits to be sent, credit both ways.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use tidewater_protocol::frame::{
    FrameError, HEADER_BYTES, INITIAL_CREDIT_BYTES, MAX_PAYLOAD_BYTES, MESSAGE_CREDIT_BYTES,
    Message, ROWS_PAYLOAD_BYTES, put_message, rows_header,
};
use tidewater_protocol::message::Control;

use crate::ConnectionFault;

/// Encoded control messages that may wait for a channel's handler: those of one sync's
/// comparison, 8 MiB, and a frame more.
pub const MAX_CONTROL_BYTES: usize = 9 << 20;

/// What a channel's handler takes.
#[derive(Clone, Debug, PartialEq)]
pub enum ChannelInput {
    /// A control message.
    Control(Control),
    /// A piece of a stream of packed rows.
    Rows(Bytes),
    /// A message.
    Message(Message),
}

impl ChannelInput {
    /// The bytes of credit that it took, to be given back by `FramedConnection::mark_consumed`.
    pub fn credit(&self) -> usize {
        match self {
            ChannelInput::Control(_) => 0,
            ChannelInput::Rows(bytes) => bytes.len(),
            ChannelInput::Message(message) => message.credit(),
        }
    }

    /// The credit without which it may not come: a long message may take more.
    fn needs(&self) -> i64 {
        needs(self.credit(), matches!(self, ChannelInput::Message(_)))
    }
}

/// The credit that must be there for a frame which takes so much.
fn needs(credit: usize, is_message: bool) -> i64 {
    let most = if is_message {
        MESSAGE_CREDIT_BYTES
    } else {
        u64::MAX
    };
    i64::try_from(most.min(credit as u64)).unwrap_or(i64::MAX)
}

/// Gives back the memory of a queue that is empty. Of ten thousand connections most wait.
pub(crate) fn drop_if_empty<T>(queue: &mut VecDeque<T>) {
    if queue.is_empty() {
        *queue = VecDeque::new();
    }
}

/// What waits to be sent. A control message waits encoded.
#[derive(Debug)]
enum ChannelOutput {
    Control(Bytes),
    Message(Message),
    Rows(Bytes),
}

/// The kinds of frames in the order of their priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameClass {
    Control = 0,
    Message = 1,
    Rows = 2,
}

/// Below zero, credit is owed for a message that was longer than it.
#[derive(Debug)]
pub(crate) struct Channel {
    incoming: VecDeque<(ChannelInput, usize)>,
    control_bytes: usize,
    outgoing: VecDeque<ChannelOutput>,
    outgoing_bytes: usize,
    /// How much of it needs credit.
    outgoing_credit: usize,
    send_credit: i64,
    receive_credit: i64,
    /// Consumed by the handler and not yet granted again.
    consumed: u64,
}

impl Channel {
    pub(crate) fn new() -> Channel {
        Channel {
            incoming: VecDeque::new(),
            control_bytes: 0,
            outgoing: VecDeque::new(),
            outgoing_bytes: 0,
            outgoing_credit: 0,
            send_credit: INITIAL_CREDIT_BYTES as i64,
            receive_credit: INITIAL_CREDIT_BYTES as i64,
            consumed: 0,
        }
    }

    /// Queues what came; whether the queue was empty before.
    pub(crate) fn arrive(
        &mut self,
        channel: u8,
        incoming: ChannelInput,
        control_bytes: usize,
    ) -> Result<bool, ConnectionFault> {
        if incoming.credit() > 0 && incoming.needs() > self.receive_credit {
            return Err(ConnectionFault::TooMuch(channel));
        }
        self.receive_credit -= incoming.credit() as i64;
        self.control_bytes += control_bytes;
        if self.control_bytes > MAX_CONTROL_BYTES {
            return Err(ConnectionFault::TooMuch(channel));
        }
        let first = self.incoming.is_empty();
        self.incoming.push_back((incoming, control_bytes));
        Ok(first)
    }

    /// Control messages, and everything, that wait for the handler.
    pub(crate) fn held_bytes(&self) -> [usize; 2] {
        let granted = self.receive_credit + self.consumed as i64;
        let taken = (INITIAL_CREDIT_BYTES as i64 - granted).max(0) as usize;
        [self.control_bytes, self.control_bytes + taken]
    }

    pub(crate) fn receive(&mut self) -> Option<ChannelInput> {
        let (incoming, control_bytes) = self.incoming.pop_front()?;
        self.control_bytes -= control_bytes;
        drop_if_empty(&mut self.incoming);
        Some(incoming)
    }

    pub(crate) fn receive_if(
        &mut self,
        is_wanted: impl FnOnce(&ChannelInput) -> bool,
    ) -> Option<ChannelInput> {
        self.incoming.front().filter(|(next, _)| is_wanted(next))?;
        self.receive()
    }

    pub(crate) fn mark_consumed(&mut self, bytes: usize) {
        self.consumed += bytes as u64;
        assert!(
            self.receive_credit + self.consumed as i64 <= INITIAL_CREDIT_BYTES as i64,
            "more was consumed than came"
        );
    }

    /// Whether to give credit now: not every few bytes, but before the peer has less than half.
    pub(crate) fn owes_grant(&self) -> bool {
        self.consumed >= INITIAL_CREDIT_BYTES / 2
    }

    pub(crate) fn take_grant(&mut self) -> Option<u64> {
        if !self.owes_grant() {
            return None;
        }
        self.receive_credit += self.consumed as i64;
        Some(std::mem::take(&mut self.consumed))
    }

    pub(crate) fn add_credit(&mut self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.send_credit = self.send_credit.saturating_add(bytes);
    }

    pub(crate) fn send_control(&mut self, control: Control) -> Result<(), FrameError> {
        let mut frame = BytesMut::new();
        tidewater_protocol::frame::put_control(&mut frame, 0, control)?;
        self.outgoing_bytes += frame.len();
        self.outgoing
            .push_back(ChannelOutput::Control(frame.freeze()));
        Ok(())
    }

    /// `most`: the largest that the peer takes.
    pub(crate) fn send_message(&mut self, message: Message, most: usize) -> Result<(), FrameError> {
        if message.payload.len() > most {
            return Err(FrameError::TooLarge(message.payload.len()));
        }
        self.outgoing_bytes += message.credit();
        self.outgoing_credit += message.credit();
        self.outgoing.push_back(ChannelOutput::Message(message));
        Ok(())
    }

    pub(crate) fn send_rows(&mut self, rows: Bytes) {
        if !rows.is_empty() {
            self.outgoing_bytes += rows.len();
            self.outgoing_credit += rows.len();
            self.outgoing.push_back(ChannelOutput::Rows(rows));
        }
    }

    pub(crate) fn unsent_bytes(&self) -> usize {
        self.outgoing_bytes
    }

    /// How much more may be queued that needs nothing but the network.
    pub(crate) fn room(&self) -> usize {
        let left = self.send_credit.saturating_sub(self.outgoing_credit as i64);
        usize::try_from(left).unwrap_or(0)
    }

    /// Forgets what waits to be sent.
    pub(crate) fn drop_unsent(&mut self) {
        self.outgoing.clear();
        (self.outgoing_bytes, self.outgoing_credit) = (0, 0);
    }

    /// The class of the next frame, if credit lets it go. A channel's own order is never
    /// changed: rows belong to the control message before.
    pub(crate) fn ready(&self) -> Option<FrameClass> {
        match self.outgoing.front()? {
            ChannelOutput::Control(_) => Some(FrameClass::Control),
            ChannelOutput::Message(message) => {
                (needs(message.credit(), true) <= self.send_credit).then_some(FrameClass::Message)
            }
            ChannelOutput::Rows(_) => (self.send_credit > 0).then_some(FrameClass::Rows),
        }
    }

    /// Appends the next frame, which is [`Self::ready`].
    pub(crate) fn transmit(&mut self, channel: u8, out: &mut BytesMut) {
        let frame = self.outgoing.pop_front().expect("a frame is ready");
        drop_if_empty(&mut self.outgoing);
        let spent = match frame {
            ChannelOutput::Control(frame) => {
                let start = out.len();
                out.extend_from_slice(&frame);
                out[start + HEADER_BYTES - 1] = channel;
                self.outgoing_bytes -= frame.len();
                return;
            }
            ChannelOutput::Message(message) => {
                put_message(out, channel, &message).expect("its size was looked at");
                message.credit()
            }
            ChannelOutput::Rows(mut rows) => {
                const { assert!(ROWS_PAYLOAD_BYTES <= MAX_PAYLOAD_BYTES) };
                let credit = usize::try_from(self.send_credit).unwrap_or(0);
                let piece = rows.split_to(rows.len().min(ROWS_PAYLOAD_BYTES).min(credit));
                out.extend_from_slice(&rows_header(piece.len(), channel));
                out.extend_from_slice(&piece);
                if !rows.is_empty() {
                    self.outgoing.push_front(ChannelOutput::Rows(rows));
                }
                piece.len()
            }
        };
        self.outgoing_bytes -= spent;
        self.outgoing_credit -= spent;
        self.send_credit -= spent as i64;
    }
}
