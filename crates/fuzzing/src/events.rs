//! Events: however they are cut, the same ones are read; and subjects meet the same patterns
//! whoever looks.

use std::collections::BTreeSet;

use bytes::{Bytes, BytesMut};

use tidewater_protocol::event::{EVENT_BYTES, EventError, EventsReader, put_event};
use tidewater_spaces::{EventPieces, Pattern, Router, check_subject};

use crate::input::Input;

/// The first byte says whether the others are a stream of events or subjects and patterns.
///
/// # Panics
/// A promise is broken.
pub fn events(data: &[u8]) {
    let mut input = Input::new(data);
    match input.byte() % 2 {
        0 => {
            let cut = usize::from(input.byte()) + 1;
            stream(input.rest(), cut);
        }
        _ => subjects(input),
    }
}

/// A stream that arrives in pieces of this size.
fn stream(bytes: &[u8], cut: usize) {
    let mut reader = EventsReader::new(bytes, EVENT_BYTES);
    let mut again = BytesMut::new();
    let whole = loop {
        match reader.next_event() {
            Ok(Some(event)) => {
                put_event(&mut again, event.subject, event.position, event.payload)
                    .expect("it was just read");
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    assert_eq!(again, bytes[..reader.consumed()]);
    let mut pieces = EventPieces::default();
    let mut came = BytesMut::new();
    let mut take = |piece: &[u8]| {
        pieces.take(Bytes::copy_from_slice(piece), EVENT_BYTES, |chunk| {
            let mut reader = EventsReader::new(chunk, EVENT_BYTES);
            while reader.next_event()?.is_some() {}
            came.extend_from_slice(&chunk[..reader.consumed()]);
            Ok::<usize, EventError>(reader.consumed())
        })
    };
    let taken = bytes.chunks(cut).try_for_each(&mut take);
    match (taken, whole) {
        (Ok(()), Ok(())) => assert_eq!(came, again),
        // What cannot be the beginning of an event is noticed with what comes behind it.
        (Ok(()), Err(error)) => assert!(take(&[0; 8]).is_err(), "{error}"),
        (Err(error), whole) => assert!(whole.is_err(), "{error}"),
    }
}

/// Lines, each a pattern or a subject.
fn subjects(input: Input<'_>) {
    let Ok(text) = std::str::from_utf8(input.rest()) else {
        return;
    };
    let mut router = Router::new(4);
    let mut patterns = Vec::new();
    let mut subjects = Vec::new();
    for (number, line) in text.lines().take(64).enumerate() {
        if let Ok((space, rest)) = check_subject(line) {
            assert_eq!(format!("{space}/{rest}"), line);
            assert!(Pattern::parse(line).is_ok(), "a subject stands for itself");
            subjects.push(line);
        }
        if let Ok(pattern) = Pattern::parse(line) {
            assert_eq!(pattern.as_str(), line);
            let (space, rest) = pattern.split();
            assert_eq!(Pattern::in_space(space, rest).as_ref(), Ok(&pattern));
            assert!(pattern.contains(&pattern));
            router.subscribe(&pattern, number);
            patterns.push((number, pattern));
        }
    }
    for subject in subjects {
        let meant = patterns.iter().filter(|(_, it)| it.matches(subject));
        let meant: BTreeSet<usize> = meant.map(|(number, _)| *number).collect();
        // Twice: the second time it may be remembered.
        for _ in 0..2 {
            let found: BTreeSet<usize> = router.matches(subject).iter().copied().collect();
            assert_eq!(found, meant, "{subject}");
        }
        for (_, narrow) in patterns.iter().filter(|(_, it)| it.matches(subject)) {
            let wide = patterns.iter().filter(|(_, it)| it.contains(narrow));
            for (_, wide) in wide {
                assert!(wide.matches(subject), "{wide} contains {narrow}");
            }
        }
    }
}
