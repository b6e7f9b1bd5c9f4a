//! A connection on which both sides take each other for a peer of protocol 1.0.
//!
//! Owns what 1.0 knew, field by field, as it was when 1.1 came: a frame passes without what
//! was added since, which is what a program of 1.0 would have made of it. It knows nothing of
//! the present messages, so it does not change with them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use tidewater_protocol::frame::HEADER_BYTES;

use crate::proxy::{Translate, Way};

/// Version 1.0 in a message.
const VERSION_1_0: u64 = 1 << 16;

/// The number of a message's last field in 1.0, and of those fields that are messages with
/// more fields since, the same.
struct Known(u64, &'static [(u64, Known)]);

/// The envelope: messages 1 to 20.
const ENVELOPE: Known = Known(
    20,
    &[
        (1, Known(8, &[(7, Known(6, &[]))])),
        (2, Known(6, &[(5, Known(2, &[]))])),
        (4, Known(5, &[])),
    ],
);

/// A message that has no other fields since.
const WHOLE: Known = Known(u64::MAX, &[]);

/// What the server makes of a remote's uploads, and the last of its values in 1.0.
const UPLOAD_STATE: ([u64; 3], u64) = ([2, 5, 1], 2);

/// The message and its field that name the version: of a Hello, a Welcome and a Pong.
const VERSIONS: [(u64, u64); 3] = [(1, 1), (2, 1), (18, 3)];

/// What did not pass, because 1.0 does not know it.
#[derive(Clone, Default)]
pub struct Dropped(Arc<Mutex<BTreeSet<String>>>);

impl Dropped {
    /// The fields, as `Way message.field.field`, by their numbers.
    pub fn fields(&self) -> Vec<String> {
        match self.0.lock() {
            Ok(dropped) => dropped.iter().cloned().collect(),
            Err(poisoned) => poisoned.into_inner().iter().cloned().collect(),
        }
    }

    fn note(&self, way: Way, path: &[u64]) {
        let path: Vec<String> = path.iter().map(u64::to_string).collect();
        let line = format!("{way:?} {}", path.join("."));
        if let Ok(mut dropped) = self.0.lock() {
            dropped.insert(line);
        }
    }
}

/// What to give to [`crate::FrameProxy::translate`], and what it will have dropped.
pub fn speak_1_0() -> (Translate, Dropped) {
    let dropped = Dropped::default();
    let notes = dropped.clone();
    let translate = move |way: Way, bytes: &[u8]| match bytes.split_at_checked(HEADER_BYTES) {
        // The preface: the minor version is its sixth byte.
        Some((header, _)) if header.starts_with(b"TIDE") => {
            let mut preface = bytes.to_vec();
            preface[5] = 0;
            preface
        }
        Some((header, payload)) if header[4] == 1 => {
            let mut path = Vec::new();
            let payload = filter(payload, &ENVELOPE, &mut path, &mut |path| {
                notes.note(way, path);
            });
            let mut frame = BytesMut::from(&(payload.len() as u32).to_le_bytes()[..]);
            frame.extend_from_slice(&header[4..]);
            frame.extend_from_slice(&payload);
            frame.to_vec()
        }
        _ => bytes.to_vec(),
    };
    (Arc::new(translate), dropped)
}

/// A message without the fields that are not known.
fn filter(
    message: &[u8],
    known: &Known,
    path: &mut Vec<u64>,
    dropped: &mut dyn FnMut(&[u64]),
) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = message;
    while let Some((field, after)) = Field::take(rest) {
        let whole = &rest[..rest.len() - after.len()];
        rest = after;
        path.push(field.number);
        let has_more = known.1.iter().find(|(number, _)| *number == field.number);
        // Every message of the envelope may have the version in it.
        let inner = match has_more {
            Some((_, inner)) => Some(inner),
            None => (path.len() == 1).then_some(&WHOLE),
        };
        let is_new_state = path[..] == UPLOAD_STATE.0 && field.value > UPLOAD_STATE.1;
        if field.number > known.0 || is_new_state {
            dropped(path);
        } else if let (Some(inner), Some(bytes)) = (inner, field.bytes) {
            let bytes = filter(bytes, inner, path, dropped);
            field.put_bytes(&mut out, &bytes);
        } else if VERSIONS.iter().any(|&(a, b)| path[..] == [a, b]) {
            put_varint(&mut out, field.key);
            put_varint(&mut out, VERSION_1_0);
        } else {
            out.extend_from_slice(whole);
        }
        path.pop();
    }
    out
}

/// A field of a message: <https://protobuf.dev/programming-guides/encoding/>.
struct Field<'a> {
    key: u64,
    number: u64,
    /// If it is a varint; else 0.
    value: u64,
    /// If it is of a type that has a length.
    bytes: Option<&'a [u8]>,
}

impl<'a> Field<'a> {
    /// The first field of a message and what follows it; `None` at the end.
    fn take(message: &'a [u8]) -> Option<(Field<'a>, &'a [u8])> {
        let (key, rest) = take_varint(message)?;
        let mut value = 0;
        let (bytes, rest) = match key & 7 {
            0 => {
                let (varint, rest) = take_varint(rest)?;
                value = varint;
                (None, rest)
            }
            1 => (None, rest.get(8..)?),
            5 => (None, rest.get(4..)?),
            2 => {
                let (length, rest) = take_varint(rest)?;
                let (bytes, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
                (Some(bytes), rest)
            }
            _ => return None,
        };
        let field = Field {
            key,
            number: key >> 3,
            value,
            bytes,
        };
        Some((field, rest))
    }

    fn put_bytes(&self, out: &mut Vec<u8>, bytes: &[u8]) {
        put_varint(out, self.key);
        put_varint(out, bytes.len() as u64);
        out.extend_from_slice(bytes);
    }
}

fn take_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[at + 1..]));
        }
    }
    None
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidewater_protocol::frame::{Frame, PREFACE, SYNC_CHANNEL, put_control, take_frame};
    use tidewater_protocol::message::{
        CompareTable, Control, Hello, HelloSubscription, KeyInterval, PROTOCOL_VERSION, Pong,
        TableBegin, Welcome, WelcomeSubscription,
    };

    fn through(control: Control) -> (Option<Control>, Vec<String>) {
        let (translate, dropped) = speak_1_0();
        let mut frame = BytesMut::new();
        put_control(&mut frame, SYNC_CHANNEL, control).unwrap();
        let mut frame = BytesMut::from(&translate(Way::Up, &frame)[..]);
        let taken = take_frame(&mut frame).unwrap();
        let Some(Frame::Control { control, .. }) = taken else {
            panic!("{taken:?}");
        };
        (control, dropped.fields())
    }

    fn hello(protocol_version: u32, compares: bool) -> Control {
        let subscription = HelloSubscription {
            publication: "main".into(),
            sequence: 300,
            upload_id: vec![1; 16],
            compares,
            ..HelloSubscription::default()
        };
        Control::Hello(Hello {
            protocol_version,
            user: "ada".into(),
            subscriptions: vec![subscription.clone(), subscription],
            ..Hello::default()
        })
    }

    fn welcome(protocol_version: u32, compare: bool) -> Control {
        Control::Welcome(Welcome {
            protocol_version,
            remote_id: vec![7; 16],
            subscriptions: vec![WelcomeSubscription {
                upload_state: if compare { 3 } else { 0 },
                schema: vec![5; 400],
                compare,
                sequence: u64::from(compare),
                ..WelcomeSubscription::default()
            }],
            server: "a server".into(),
            ..Welcome::default()
        })
    }

    #[test]
    fn what_came_with_1_1_does_not_pass_and_the_rest_does() {
        assert_eq!(
            through(hello(PROTOCOL_VERSION, true)),
            (Some(hello(1 << 16, false)), vec!["Up 1.7.7".into()])
        );
        assert_eq!(
            through(welcome(PROTOCOL_VERSION, true)),
            (
                Some(welcome(1 << 16, false)),
                ["Up 2.5.1", "Up 2.5.3", "Up 2.5.6"]
                    .map(String::from)
                    .to_vec()
            )
        );
        let table = |ranges| {
            Control::TableBegin(TableBegin {
                table: "item".into(),
                replace: true,
                key: vec![0, 1],
                ranges,
                ..TableBegin::default()
            })
        };
        assert_eq!(
            through(table(vec![KeyInterval::default()])),
            (Some(table(Vec::new())), vec!["Up 4.6".into()])
        );
        let compare = Control::CompareTable(CompareTable::default());
        assert_eq!(through(compare), (None, vec!["Up 21".into()]));
    }

    #[test]
    fn versions_are_those_of_1_0_and_rows_pass_as_they_are() {
        let pong = |protocol_version| {
            Control::Pong(Pong {
                nonce: 5,
                server: "a server".into(),
                protocol_version,
            })
        };
        assert_eq!(
            through(pong(PROTOCOL_VERSION)),
            (Some(pong(1 << 16)), Vec::new())
        );
        let (translate, dropped) = speak_1_0();
        assert_eq!(translate(Way::Up, &PREFACE)[..6], *b"TIDE\x01\x00");
        let rows = [3, 0, 0, 0, 2, 1, 9, 8, 7];
        assert_eq!(translate(Way::Down, &rows), rows);
        assert_eq!(dropped.fields(), Vec::<String>::new());
    }
}
