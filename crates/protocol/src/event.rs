//! Events: how they lie in the stream of channel 3, one behind the other.
//!
//! Whoever publishes an event packs it once; everybody after that passes the same bytes on. So
//! a reader walks packed events without copying anything, and where frames end says nothing
//! about where events end. What a subject may be, and who gets what, is left to
//! `tidewater-spaces`. Specified in `docs/protocol.md`.

use std::fmt;
use std::str::FromStr;

use bytes::{BufMut, BytesMut};

use crate::code::Code;

/// What precedes a subject: the bytes that follow (u32), those of the subject (u16), flags (u8).
pub const EVENT_HEADER_BYTES: usize = 7;

/// Whole events up to this size are taken where nobody sets another limit.
pub const EVENT_BYTES: usize = 1 << 20;

/// The first field, which counts the bytes behind it.
const LENGTH_BYTES: usize = 4;

/// The event has a position: it is durable.
const FLAG_POSITION: u8 = 1;

const POSITION_BYTES: usize = 16;

/// Where a durable event stands in its space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct EventPosition {
    /// Its number in the space; events are committed in the order of their numbers.
    pub id: u64,
    /// Random: a number with another check is of another history of the space.
    pub check: u64,
}

impl EventPosition {
    /// The 16 bytes that it is on the wire and in databases.
    pub fn to_bytes(self) -> [u8; POSITION_BYTES] {
        let mut bytes = [0; POSITION_BYTES];
        bytes[..8].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..].copy_from_slice(&self.check.to_le_bytes());
        bytes
    }

    /// Reads these bytes; `None` if there are more or fewer.
    pub fn from_bytes(bytes: &[u8]) -> Option<EventPosition> {
        let bytes: [u8; POSITION_BYTES] = bytes.try_into().ok()?;
        let (id, check) = bytes.split_first_chunk()?;
        Some(EventPosition {
            id: u64::from_le_bytes(*id),
            check: u64::from_le_bytes(check.try_into().ok()?),
        })
    }
}

/// Its bytes in hexadecimal digits.
impl fmt::Display for EventPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.to_bytes()))
    }
}

/// A text that is no position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no position: 32 hexadecimal digits")]
pub struct NoPosition;

impl FromStr for EventPosition {
    type Err = NoPosition;

    fn from_str(text: &str) -> Result<EventPosition, NoPosition> {
        let is_hex =
            text.len() == 2 * POSITION_BYTES && text.bytes().all(|it| it.is_ascii_hexdigit());
        let number = is_hex
            .then(|| u128::from_str_radix(text, 16).ok())
            .flatten();
        let bytes = number.ok_or(NoPosition)?.to_be_bytes();
        EventPosition::from_bytes(&bytes).ok_or(NoPosition)
    }
}

/// An event where it lies packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRef<'a> {
    /// `SPACE/a.b.c`, of which only the encoding was looked at.
    pub subject: &'a str,
    /// Of a durable event.
    pub position: Option<EventPosition>,
    /// What it says.
    pub payload: &'a [u8],
    /// The whole of it, packed.
    pub packed: &'a [u8],
}

/// Bytes that are no event, or what cannot become one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// It is longer than is taken.
    #[error("an event of {bytes} bytes is larger than the limit of {most}")]
    TooLong {
        /// Its size, or the size that it announces.
        bytes: u64,
        /// The limit.
        most: usize,
    },
    /// A subject whose size does not fit into its field.
    #[error("a subject of {0} bytes cannot be sent")]
    SubjectTooLong(usize),
    /// Its parts do not fit into its size.
    #[error("an event's parts are longer than the {0} bytes that it announces")]
    Overrun(usize),
    /// The subject is not UTF-8.
    #[error("the subject of an event is not UTF-8")]
    NotText,
    /// Flags of another version.
    #[error("unknown flags {0:#04x} of an event")]
    UnknownFlags(u8),
}

impl EventError {
    /// The error's stable code.
    pub fn code(&self) -> Code {
        match self {
            EventError::TooLong { .. } | EventError::SubjectTooLong(_) => Code::LimitExceeded,
            _ => Code::MalformedMessage,
        }
    }
}

/// The size of an event once it is packed.
pub fn packed_bytes(subject: &str, position: Option<EventPosition>, payload: &[u8]) -> usize {
    let position_bytes = position.map_or(0, |_| POSITION_BYTES);
    EVENT_HEADER_BYTES + subject.len() + position_bytes + payload.len()
}

/// Appends an event.
///
/// # Errors
/// Its size does not fit into the fields for sizes; nothing was appended.
pub fn put_event(
    out: &mut BytesMut,
    subject: &str,
    position: Option<EventPosition>,
    payload: &[u8],
) -> Result<(), EventError> {
    let bytes = packed_bytes(subject, position, payload);
    let subject_bytes =
        u16::try_from(subject.len()).map_err(|_| EventError::SubjectTooLong(subject.len()))?;
    let follow = u32::try_from(bytes - LENGTH_BYTES).map_err(|_| EventError::TooLong {
        bytes: bytes as u64,
        most: u32::MAX as usize,
    })?;
    out.reserve(bytes);
    let mut header = [0; EVENT_HEADER_BYTES];
    header[..4].copy_from_slice(&follow.to_le_bytes());
    header[4..6].copy_from_slice(&subject_bytes.to_le_bytes());
    header[6] = if position.is_some() { FLAG_POSITION } else { 0 };
    out.extend_from_slice(&header);
    out.extend_from_slice(subject.as_bytes());
    if let Some(position) = position {
        out.put_u64_le(position.id);
        out.put_u64_le(position.check);
    }
    out.extend_from_slice(payload);
    Ok(())
}

/// The size that the event which begins here will have, once its first bytes are there.
pub fn announced(bytes: &[u8]) -> Option<u64> {
    let follow = u32::from_le_bytes(*bytes.first_chunk::<LENGTH_BYTES>()?);
    Some(u64::from(follow) + LENGTH_BYTES as u64)
}

/// Walks the whole events at the beginning of some bytes.
#[derive(Clone, Debug)]
pub struct EventsReader<'a> {
    bytes: &'a [u8],
    consumed: usize,
    most: usize,
    /// The subject before: most events repeat it.
    subject: &'a str,
}

impl<'a> EventsReader<'a> {
    /// Begins with the first; `most` is the size of the largest event that is taken.
    pub fn new(bytes: &'a [u8], most: usize) -> EventsReader<'a> {
        EventsReader {
            bytes,
            consumed: 0,
            most,
            subject: "",
        }
    }

    /// The next event; `None` if only a beginning of one is left, or nothing. An event with the
    /// subject of the one before has the very same `subject`, so that comparing addresses will
    /// do.
    ///
    /// # Errors
    /// What is there, or begins there, cannot be an event.
    #[inline]
    pub fn next_event(&mut self) -> Result<Option<EventRef<'a>>, EventError> {
        let bytes = &self.bytes[self.consumed..];
        let Some(announced) = announced(bytes) else {
            return Ok(None);
        };
        if announced > self.most as u64 {
            return Err(EventError::TooLong {
                bytes: announced,
                most: self.most,
            });
        }
        let size = announced as usize;
        if size < EVENT_HEADER_BYTES {
            return Err(EventError::Overrun(size - LENGTH_BYTES));
        }
        let Some(packed) = bytes.get(..size) else {
            return Ok(None);
        };
        let subject_bytes = usize::from(u16::from_le_bytes([packed[4], packed[5]]));
        let overrun = || EventError::Overrun(size - LENGTH_BYTES);
        let rest = &packed[EVENT_HEADER_BYTES..];
        let (subject, rest) = rest.split_at_checked(subject_bytes).ok_or_else(overrun)?;
        let (position, payload) = match packed[6] {
            0 => (None, rest),
            FLAG_POSITION => {
                let (position, payload) = rest
                    .split_first_chunk::<POSITION_BYTES>()
                    .ok_or_else(overrun)?;
                (Some(read_position(position)), payload)
            }
            flags => return Err(EventError::UnknownFlags(flags)),
        };
        if subject != self.subject.as_bytes() {
            self.subject = std::str::from_utf8(subject).map_err(|_| EventError::NotText)?;
        }
        self.consumed += size;
        Ok(Some(EventRef {
            subject: self.subject,
            position,
            payload,
            packed,
        }))
    }

    /// The bytes of the events so far.
    pub fn consumed(&self) -> usize {
        self.consumed
    }

    /// The bytes behind them: once [`Self::next_event`] gave `None`, those of an incomplete event.
    pub fn rest(&self) -> usize {
        self.bytes.len() - self.consumed
    }
}

fn read_position(bytes: &[u8; POSITION_BYTES]) -> EventPosition {
    let mut halves = bytes.chunks_exact(8).map(|half| {
        let half = half.first_chunk::<8>().expect("a half has eight bytes");
        u64::from_le_bytes(*half)
    });
    let mut half = || halves.next().expect("there are two halves");
    EventPosition {
        id: half(),
        check: half(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(events: &[(&str, Option<EventPosition>, &[u8])]) -> BytesMut {
        let mut out = BytesMut::new();
        for (subject, position, payload) in events {
            put_event(&mut out, subject, *position, payload).unwrap();
        }
        out
    }

    #[test]
    fn an_event_is_read_as_it_was_packed_and_a_beginning_is_left() {
        let position = Some(EventPosition { id: 7, check: 9 });
        let bytes = packed(&[
            ("news/a.b", None, b"one"),
            ("news/a.b", position, b""),
            ("news/c", None, b"three"),
        ]);
        let cut = bytes.len() - 1;
        let mut reader = EventsReader::new(&bytes[..cut], EVENT_BYTES);
        let first = reader.next_event().unwrap().unwrap();
        assert_eq!((first.subject, first.payload), ("news/a.b", &b"one"[..]));
        assert_eq!(first.packed, &bytes[..first.packed.len()]);
        let second = reader.next_event().unwrap().unwrap();
        assert!(std::ptr::eq(second.subject, first.subject));
        assert_eq!((second.position, second.payload), (position, &b""[..]));
        assert_eq!(reader.next_event(), Ok(None));
        assert_eq!(reader.consumed() + reader.rest(), cut);
        assert_eq!(announced(&bytes[reader.consumed()..]), Some(18));
        let mut whole = EventsReader::new(&bytes, EVENT_BYTES);
        while whole.next_event().unwrap().is_some() {}
        assert_eq!(whole.rest(), 0);
    }

    #[test]
    fn what_cannot_be_an_event_is_refused() {
        fn read(bytes: &[u8], most: usize) -> Result<Option<EventRef<'_>>, EventError> {
            EventsReader::new(bytes, most).next_event()
        }
        let good = packed(&[("news/a", None, b"x")]);
        let too_long = EventError::TooLong {
            bytes: 14,
            most: 13,
        };
        assert_eq!(read(&good, 13), Err(too_long.clone()));
        // Its size is enough: nobody waits for the rest.
        assert_eq!(read(&good[..4], 13), Err(too_long));
        assert_eq!(read(&good[..4], 14), Ok(None));
        let changed = |at: usize, byte: u8| {
            let mut bytes = good.to_vec();
            bytes[at] = byte;
            bytes
        };
        assert_eq!(read(&changed(0, 2), 99), Err(EventError::Overrun(2)));
        assert_eq!(read(&changed(4, 8), 99), Err(EventError::Overrun(10)));
        assert_eq!(read(&changed(6, 1), 99), Err(EventError::Overrun(10)));
        assert_eq!(read(&changed(6, 2), 99), Err(EventError::UnknownFlags(2)));
        assert_eq!(read(&changed(7, 0xff), 99), Err(EventError::NotText));
        let mut out = BytesMut::new();
        let long = "a".repeat(1 << 16);
        let refused = put_event(&mut out, &long, None, b"");
        assert_eq!(refused, Err(EventError::SubjectTooLong(1 << 16)));
        assert!(out.is_empty());
    }

    proptest! {
        #[test]
        fn any_events_come_back_however_they_are_cut(
            events in proptest::collection::vec(
                ("[a-c]{1,3}/[a-c.é]{0,6}", proptest::option::of(any::<(u64, u64)>()),
                 proptest::collection::vec(any::<u8>(), 0..40)), 0..20),
            cut in 0..1000_usize,
        ) {
            let mut bytes = BytesMut::new();
            let position = |it: Option<(u64, u64)>| it.map(|(id, check)| EventPosition { id, check });
            for (subject, at, payload) in &events {
                put_event(&mut bytes, subject, position(*at), payload).unwrap();
            }
            let cut = cut.min(bytes.len());
            let mut read = Vec::new();
            let mut start = 0;
            for end in [cut, bytes.len()] {
                let mut reader = EventsReader::new(&bytes[start..end], EVENT_BYTES);
                while let Some(event) = reader.next_event().unwrap() {
                    read.push(event);
                }
                start += reader.consumed();
            }
            prop_assert_eq!(start, bytes.len());
            prop_assert_eq!(read.len(), events.len());
            for (event, (subject, at, payload)) in read.iter().zip(&events) {
                prop_assert_eq!(event.subject, subject);
                prop_assert_eq!(event.position, position(*at));
                prop_assert_eq!(event.payload, &payload[..]);
            }
        }

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut reader = EventsReader::new(&bytes, 48);
            while let Ok(Some(event)) = reader.next_event() {
                prop_assert!(event.packed.len() <= 48);
            }
            prop_assert!(reader.consumed() <= bytes.len());
        }
    }
}
