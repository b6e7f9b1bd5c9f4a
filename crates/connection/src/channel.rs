//! One channel: what came and waits for its handler, what waits to be sent, credit both ways.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use tidewater_protocol::frame::{
    FrameError, HEADER_BYTES, INITIAL_CREDIT_BYTES, MAX_MESSAGE_BYTES, MAX_PAYLOAD_BYTES, Message,
    ROWS_PAYLOAD_BYTES, put_message, rows_header,
};
use tidewater_protocol::message::Control;

use crate::Fault;

/// Encoded control messages that may wait for a channel's handler: those of one sync's
/// comparison, 8 MiB, and a frame more.
pub const MAX_CONTROL_BYTES: usize = 9 << 20;

/// What a channel's handler takes.
#[derive(Clone, Debug, PartialEq)]
pub enum Incoming {
    /// A control message.
    Control(Control),
    /// A piece of a stream of packed rows.
    Rows(Bytes),
    /// A message.
    Message(Message),
}

impl Incoming {
    /// The bytes of credit that it took, to be given back by `Connection::consumed`.
    pub fn credit(&self) -> usize {
        match self {
            Incoming::Control(_) => 0,
            Incoming::Rows(bytes) => bytes.len(),
            Incoming::Message(message) => message.credit(),
        }
    }
}

/// What waits to be sent. A control message waits encoded.
#[derive(Debug)]
enum Outgoing {
    Control(Bytes),
    Message(Message),
    Rows(Bytes),
}

/// The kinds of frames in the order of their priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Control = 0,
    Message = 1,
    Rows = 2,
}

#[derive(Debug)]
pub(crate) struct Channel {
    incoming: VecDeque<(Incoming, usize)>,
    control_bytes: usize,
    outgoing: VecDeque<Outgoing>,
    outgoing_bytes: usize,
    send_credit: u64,
    receive_credit: u64,
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
            send_credit: INITIAL_CREDIT_BYTES,
            receive_credit: INITIAL_CREDIT_BYTES,
            consumed: 0,
        }
    }

    /// Queues what came; whether the queue was empty before.
    pub(crate) fn arrive(
        &mut self,
        channel: u8,
        incoming: Incoming,
        control_bytes: usize,
    ) -> Result<bool, Fault> {
        let credit = incoming.credit() as u64;
        let left = self.receive_credit.checked_sub(credit);
        self.receive_credit = left.ok_or(Fault::TooMuch(channel))?;
        self.control_bytes += control_bytes;
        if self.control_bytes > MAX_CONTROL_BYTES {
            return Err(Fault::TooMuch(channel));
        }
        let first = self.incoming.is_empty();
        self.incoming.push_back((incoming, control_bytes));
        Ok(first)
    }

    pub(crate) fn receive(&mut self) -> Option<Incoming> {
        let (incoming, control_bytes) = self.incoming.pop_front()?;
        self.control_bytes -= control_bytes;
        Some(incoming)
    }

    pub(crate) fn consumed(&mut self, bytes: usize) {
        self.consumed += bytes as u64;
        assert!(
            self.receive_credit + self.consumed <= INITIAL_CREDIT_BYTES,
            "more was consumed than came"
        );
    }

    /// The credit to grant now: not every few bytes, but before the peer has less than half.
    pub(crate) fn take_grant(&mut self) -> Option<u64> {
        if self.consumed < INITIAL_CREDIT_BYTES / 2 {
            return None;
        }
        self.receive_credit += self.consumed;
        Some(std::mem::take(&mut self.consumed))
    }

    pub(crate) fn add_credit(&mut self, bytes: u64) {
        self.send_credit = self.send_credit.saturating_add(bytes);
    }

    pub(crate) fn send_control(&mut self, control: Control) -> Result<(), FrameError> {
        let mut frame = BytesMut::new();
        tidewater_protocol::frame::put_control(&mut frame, 0, control)?;
        self.outgoing_bytes += frame.len();
        self.outgoing.push_back(Outgoing::Control(frame.freeze()));
        Ok(())
    }

    pub(crate) fn send_message(&mut self, message: Message) -> Result<(), FrameError> {
        if message.payload.len() > MAX_MESSAGE_BYTES {
            return Err(FrameError::TooLarge(message.payload.len()));
        }
        self.outgoing_bytes += message.credit();
        self.outgoing.push_back(Outgoing::Message(message));
        Ok(())
    }

    pub(crate) fn send_rows(&mut self, rows: Bytes) {
        if !rows.is_empty() {
            self.outgoing_bytes += rows.len();
            self.outgoing.push_back(Outgoing::Rows(rows));
        }
    }

    pub(crate) fn unsent_bytes(&self) -> usize {
        self.outgoing_bytes
    }

    /// The class of the next frame, if the smaller of the channel's credit and `allowed` lets
    /// it go. A channel's own order is never changed: rows belong to the control message before.
    pub(crate) fn ready(&self, allowed: u64) -> Option<Class> {
        let credit = self.send_credit.min(allowed);
        match self.outgoing.front()? {
            Outgoing::Control(_) => Some(Class::Control),
            Outgoing::Message(message) => {
                (message.credit() as u64 <= credit).then_some(Class::Message)
            }
            Outgoing::Rows(_) => (credit > 0).then_some(Class::Rows),
        }
    }

    /// Appends the next frame, which is [`Self::ready`]; the credit that it took.
    pub(crate) fn transmit(&mut self, channel: u8, allowed: u64, out: &mut BytesMut) -> u64 {
        let credit = self.send_credit.min(allowed);
        let spent = match self.outgoing.pop_front().expect("a frame is ready") {
            Outgoing::Control(frame) => {
                let start = out.len();
                out.extend_from_slice(&frame);
                out[start + HEADER_BYTES - 1] = channel;
                self.outgoing_bytes -= frame.len();
                return 0;
            }
            Outgoing::Message(message) => {
                put_message(out, channel, &message).expect("its size was looked at");
                message.credit()
            }
            Outgoing::Rows(mut rows) => {
                const { assert!(ROWS_PAYLOAD_BYTES <= MAX_PAYLOAD_BYTES) };
                let allowed = usize::try_from(credit).unwrap_or(usize::MAX);
                let piece = rows.split_to(rows.len().min(ROWS_PAYLOAD_BYTES).min(allowed));
                out.extend_from_slice(&rows_header(piece.len(), channel));
                out.extend_from_slice(&piece);
                if !rows.is_empty() {
                    self.outgoing.push_front(Outgoing::Rows(rows));
                }
                piece.len()
            }
        };
        self.outgoing_bytes -= spent;
        self.send_credit -= spent as u64;
        spent as u64
    }
}
