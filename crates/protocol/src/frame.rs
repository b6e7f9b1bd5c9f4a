//! Frames: the envelope of everything on a connection.
//!
//! A connection begins with eight bytes from the remote, the [`PREFACE`]. Then both
//! sides send frames: a header of six bytes and a payload. Layout and flow control
//! are specified in `docs/protocol.md`, "Frames".

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::code::Code;
use crate::message::{Control, PROTOCOL_MAJOR, PROTOCOL_MINOR};

/// What a remote sends first: `TIDE`, major and minor protocol version, and two bytes that are the
/// carrier's: what is packed, and how.
pub const PREFACE: [u8; 8] = [
    b'T',
    b'I',
    b'D',
    b'E',
    PROTOCOL_MAJOR as u8,
    PROTOCOL_MINOR as u8,
    0,
    0,
];

/// The size of a frame's header in bytes.
pub const HEADER_BYTES: usize = 6;

/// The largest payload of a frame in bytes.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 20;

/// The payload size that senders of rows aim at.
pub const ROWS_PAYLOAD_BYTES: usize = 64 << 10;

/// How many bytes of rows and messages either side may send on a channel before the
/// first [`Control::Credit`].
pub const INITIAL_CREDIT_BYTES: u64 = 1 << 20;

/// The channel of the connection itself: sign-in, credits, pings.
pub const CONNECTION_CHANNEL: u8 = 0;
/// The channel of syncs.
pub const SYNC_CHANNEL: u8 = 1;
/// The channel of calls, in both directions.
pub const CALL_CHANNEL: u8 = 2;
/// The channel of events, in both directions.
pub const EVENT_CHANNEL: u8 = 3;
/// How many channels a connection has.
pub const CHANNELS: u8 = 4;

const KIND_CONTROL: u8 = 1;
const KIND_ROWS: u8 = 2;
const KIND_MESSAGE: u8 = 3;

/// What precedes a message's payload in its frame: id, deadline, flags.
pub const MESSAGE_HEADER_BYTES: usize = 13;

/// The largest message, unless the server's SignedIn says otherwise.
pub const DEFAULT_MESSAGE_BYTES: usize = MAX_PAYLOAD_BYTES;

/// The largest message that a server may allow.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// A message needs no more credit than this, half of the first; what it takes beyond is owed.
/// So the largest can go once the peer has consumed what came before it.
pub const MESSAGE_CREDIT_BYTES: u64 = INITIAL_CREDIT_BYTES / 2;

/// A frame that arrived.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// A control message.
    Control {
        /// The channel.
        channel: u8,
        /// The message; `None` if this version does not know it.
        control: Option<Control>,
    },
    /// A piece of a stream of packed rows. Where frames end says nothing about
    /// where rows end.
    Rows {
        /// The channel.
        channel: u8,
        /// The piece.
        bytes: Bytes,
    },
    /// A message.
    Message {
        /// The channel.
        channel: u8,
        /// The message.
        message: Message,
    },
}

impl Frame {
    /// The channel.
    pub fn channel(&self) -> u8 {
        match self {
            Frame::Control { channel, .. }
            | Frame::Rows { channel, .. }
            | Frame::Message { channel, .. } => *channel,
        }
    }
}

/// A message that is whole in its frame. What id and flags mean is up to the channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Tells messages of a channel apart.
    pub id: u64,
    /// The milliseconds after which nobody waits for an answer any more; 0 for never.
    pub deadline_ms: u32,
    /// The channel's own.
    pub flags: u8,
    /// At most [`MAX_MESSAGE_BYTES`].
    pub payload: Bytes,
}

impl Message {
    /// The bytes of credit that it takes.
    pub fn credit(&self) -> usize {
        MESSAGE_HEADER_BYTES + self.payload.len()
    }
}

/// What arrived is not the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The first bytes are not a Tidewater preface.
    #[error("the peer does not speak the Tidewater protocol")]
    NotTidewater,
    /// Another major version.
    #[error(
        "the peer speaks protocol version {major}.{minor}, this side {PROTOCOL_MAJOR}.{PROTOCOL_MINOR}"
    )]
    Version {
        /// The peer's major version.
        major: u8,
        /// The peer's minor version.
        minor: u8,
    },
    /// A payload is longer than allowed.
    #[error("a frame of {0} bytes is larger than its kind may be")]
    TooLarge(usize),
    /// Not a kind of frame.
    #[error("unknown kind of frame {0}")]
    UnknownKind(u8),
    /// The message cannot be decoded.
    #[error("malformed message: {0}")]
    Malformed(String),
}

impl FrameError {
    /// The error's stable code.
    pub fn code(&self) -> Code {
        match self {
            FrameError::NotTidewater | FrameError::UnknownKind(_) => Code::MalformedFrame,
            FrameError::Version { .. } => Code::ProtocolVersion,
            FrameError::TooLarge(_) => Code::LimitExceeded,
            FrameError::Malformed(_) => Code::MalformedMessage,
        }
    }
}

/// Looks at the first bytes of a connection. `Ok(None)` while more are needed; the
/// minor version of the peer otherwise, and the preface is taken off the buffer.
///
/// # Errors
/// The bytes are not a preface, or of another major version.
pub fn take_preface(buffer: &mut BytesMut) -> Result<Option<u8>, FrameError> {
    let seen = buffer.len().min(4);
    if buffer[..seen] != PREFACE[..seen] {
        return Err(FrameError::NotTidewater);
    }
    if buffer.len() < PREFACE.len() {
        return Ok(None);
    }
    let (major, minor) = (buffer[4], buffer[5]);
    if u32::from(major) != PROTOCOL_MAJOR {
        return Err(FrameError::Version { major, minor });
    }
    buffer.advance(PREFACE.len());
    Ok(Some(minor))
}

/// The length of the payload and the channel of the frame that begins here, as its header says.
pub fn announced(buffer: &[u8]) -> Option<(usize, u8)> {
    let header = buffer.first_chunk::<HEADER_BYTES>()?;
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    Some((length as usize, header[5]))
}

/// The size of the message that begins here, if it is one, as its header says.
pub fn announced_message(buffer: &[u8]) -> Option<usize> {
    let (length, _) = announced(buffer)?;
    (buffer[4] == KIND_MESSAGE).then(|| length.saturating_sub(MESSAGE_HEADER_BYTES))
}

/// Takes the next whole frame off the buffer; `Ok(None)` while it is incomplete.
///
/// # Errors
/// What is there cannot be a frame; the connection is of no more use.
pub fn take_frame(buffer: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
    let Some((length, channel)) = announced(buffer) else {
        return Ok(None);
    };
    let kind = buffer[4];
    let limit = match kind {
        KIND_CONTROL | KIND_ROWS => MAX_PAYLOAD_BYTES,
        KIND_MESSAGE => MESSAGE_HEADER_BYTES + MAX_MESSAGE_BYTES,
        _ => return Err(FrameError::UnknownKind(kind)),
    };
    if length > limit {
        return Err(FrameError::TooLarge(length));
    }
    if buffer.len() < HEADER_BYTES + length {
        // What is announced may never come.
        let missing = HEADER_BYTES + length - buffer.len();
        buffer.reserve(missing.min(MAX_PAYLOAD_BYTES));
        return Ok(None);
    }
    buffer.advance(HEADER_BYTES);
    let mut payload = buffer.split_to(length).freeze();
    if kind == KIND_ROWS {
        let bytes = payload;
        return Ok(Some(Frame::Rows { channel, bytes }));
    }
    if kind == KIND_MESSAGE {
        if length < MESSAGE_HEADER_BYTES {
            return Err(FrameError::Malformed(format!("{length} bytes")));
        }
        let message = Message {
            id: payload.get_u64_le(),
            deadline_ms: payload.get_u32_le(),
            flags: payload.get_u8(),
            payload,
        };
        return Ok(Some(Frame::Message { channel, message }));
    }
    let control = Control::from_payload(&payload)
        .map_err(|error| FrameError::Malformed(error.to_string()))?;
    Ok(Some(Frame::Control { channel, control }))
}

fn put_header(out: &mut BytesMut, length: usize, kind: u8, channel: u8) {
    out.put_u32_le(length as u32);
    out.put_u8(kind);
    out.put_u8(channel);
}

/// Appends a control frame.
///
/// # Errors
/// [`FrameError::TooLarge`] if the encoded message exceeds [`MAX_PAYLOAD_BYTES`].
pub fn put_control(out: &mut BytesMut, channel: u8, control: Control) -> Result<(), FrameError> {
    let payload = control.to_payload();
    if payload.len() > MAX_PAYLOAD_BYTES {
        return Err(FrameError::TooLarge(payload.len()));
    }
    put_header(out, payload.len(), KIND_CONTROL, channel);
    out.extend_from_slice(&payload);
    Ok(())
}

/// Appends a message.
///
/// # Errors
/// [`FrameError::TooLarge`] if the payload exceeds [`MAX_MESSAGE_BYTES`].
pub fn put_message(out: &mut BytesMut, channel: u8, message: &Message) -> Result<(), FrameError> {
    if message.payload.len() > MAX_MESSAGE_BYTES {
        return Err(FrameError::TooLarge(message.payload.len()));
    }
    put_header(out, message.credit(), KIND_MESSAGE, channel);
    out.put_u64_le(message.id);
    out.put_u32_le(message.deadline_ms);
    out.put_u8(message.flags);
    out.extend_from_slice(&message.payload);
    Ok(())
}

/// Appends packed rows, as many frames as they need.
pub fn put_rows(out: &mut BytesMut, channel: u8, rows: &[u8]) {
    for piece in rows.chunks(MAX_PAYLOAD_BYTES) {
        put_header(out, piece.len(), KIND_ROWS, channel);
        out.extend_from_slice(piece);
    }
}

/// The header of a row frame alone, for senders that write the payload from where
/// it is. `length` is at most [`MAX_PAYLOAD_BYTES`].
pub fn rows_header(length: usize, channel: u8) -> [u8; HEADER_BYTES] {
    debug_assert!(length <= MAX_PAYLOAD_BYTES);
    let [a, b, c, d] = (length as u32).to_le_bytes();
    [a, b, c, d, KIND_ROWS, channel]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Ping;
    use proptest::prelude::*;

    fn ping(nonce: u64) -> Control {
        Control::Ping(Ping { nonce })
    }

    #[test]
    fn frames_arrive_whole_however_the_bytes_are_cut() {
        let mut wire = BytesMut::new();
        put_control(&mut wire, CONNECTION_CHANNEL, ping(7)).unwrap();
        put_rows(&mut wire, SYNC_CHANNEL, &[1, 2, 3]);
        put_control(&mut wire, SYNC_CHANNEL, ping(8)).unwrap();
        for cut in 0..wire.len() {
            let mut buffer = BytesMut::from(&wire[..cut]);
            let mut frames = Vec::new();
            while let Some(frame) = take_frame(&mut buffer).unwrap() {
                frames.push(frame);
            }
            buffer.extend_from_slice(&wire[cut..]);
            while let Some(frame) = take_frame(&mut buffer).unwrap() {
                frames.push(frame);
            }
            assert_eq!(
                frames,
                [
                    Frame::Control {
                        channel: 0,
                        control: Some(ping(7))
                    },
                    Frame::Rows {
                        channel: 1,
                        bytes: Bytes::from_static(&[1, 2, 3])
                    },
                    Frame::Control {
                        channel: 1,
                        control: Some(ping(8))
                    },
                ]
            );
        }
    }

    #[test]
    fn an_oversized_frame_is_refused_by_its_header() {
        let mut buffer = BytesMut::from(&[0xff, 0xff, 0xff, 0xff, 2, 1][..]);
        assert_eq!(
            take_frame(&mut buffer),
            Err(FrameError::TooLarge(0xffff_ffff))
        );
    }

    #[test]
    fn other_protocols_and_versions_are_told_apart() {
        let mut buffer = BytesMut::from(&b"GET / HTTP/1.1\r\n"[..]);
        assert_eq!(take_preface(&mut buffer), Err(FrameError::NotTidewater));
        let mut buffer = BytesMut::from(&b"TIDE\x09\x02\0\0"[..]);
        assert_eq!(
            take_preface(&mut buffer),
            Err(FrameError::Version { major: 9, minor: 2 })
        );
        let mut buffer = BytesMut::from(&PREFACE[..3]);
        assert_eq!(take_preface(&mut buffer), Ok(None));
        buffer.extend_from_slice(&PREFACE[3..]);
        assert_eq!(take_preface(&mut buffer), Ok(Some(PROTOCOL_MINOR as u8)));
        assert!(buffer.is_empty());
    }

    #[test]
    fn a_message_arrives_as_it_was_and_a_cut_one_is_refused() {
        let message = Message {
            id: u64::MAX - 1,
            deadline_ms: 250,
            flags: 5,
            payload: Bytes::from_static(b"price of 7"),
        };
        let mut wire = BytesMut::new();
        put_message(&mut wire, 2, &message).unwrap();
        assert_eq!(wire.len(), HEADER_BYTES + message.credit());
        let frame = take_frame(&mut wire).unwrap();
        assert_eq!(
            frame,
            Some(Frame::Message {
                channel: 2,
                message
            })
        );
        let mut short =
            BytesMut::from(&[12, 0, 0, 0, 3, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..]);
        assert!(matches!(
            take_frame(&mut short),
            Err(FrameError::Malformed(_))
        ));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut buffer = BytesMut::from(&bytes[..]);
            let _ = take_preface(&mut buffer);
            while let Ok(Some(_)) = take_frame(&mut buffer) {}
        }
    }
}
