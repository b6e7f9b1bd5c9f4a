//! Cuts a chunk of packed events into slices that go to the same receivers.
//!
//! A slice shares the chunk's memory: an event is packed by whoever publishes it, and never
//! copied for a subscriber.

use bytes::Bytes;

use tidewater_protocol::event::{EventError, EventRef, EventsReader};

/// Consecutive events with one route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteRun<R> {
    /// The events, packed.
    pub bytes: Bytes,
    /// Where they go.
    pub route: R,
    /// How many they are.
    pub events: u32,
}

/// The runs of a chunk, one after the other.
#[derive(Debug)]
pub struct RouteRuns<'a, R, F> {
    chunk: &'a Bytes,
    reader: EventsReader<'a>,
    find: F,
    /// Where the next run begins, and the route of its first event, which was read.
    begun: Option<(usize, LastEvent<'a, R>)>,
}

/// What the last event had, which mostly the next one has too.
#[derive(Clone, Debug)]
struct LastEvent<'a, R> {
    subject: &'a str,
    is_durable: bool,
    route: R,
}

impl<'a, R> LastEvent<'a, R> {
    #[inline]
    fn fits(&self, event: &EventRef<'a>) -> bool {
        // The reader gives an equal subject as the same one.
        std::ptr::eq(self.subject, event.subject) && self.is_durable == event.position.is_some()
    }
}

impl<'a, R, F> RouteRuns<'a, R, F>
where
    R: Clone + PartialEq,
    F: FnMut(&EventRef<'a>) -> R,
{
    /// Begins a chunk. `most` is the size of the largest event that is taken. `find` gives the
    /// route of an event by its subject and by whether it has a position; it is only asked when
    /// these are others than those of the event before.
    pub fn new(chunk: &'a Bytes, most: usize, find: F) -> RouteRuns<'a, R, F> {
        RouteRuns {
            chunk,
            reader: EventsReader::new(chunk, most),
            find,
            begun: None,
        }
    }

    /// The next run; `None` if no whole event is left.
    ///
    /// # Errors
    /// What comes next cannot be an event. What was before it was given.
    pub fn next_run(&mut self) -> Result<Option<RouteRun<R>>, EventError> {
        let (start, mut last) = match self.begun.take() {
            Some(begun) => begun,
            None => {
                let start = self.reader.consumed();
                let Some(event) = self.reader.next_event()? else {
                    return Ok(None);
                };
                (start, self.last(&event))
            }
        };
        let mut events = 1;
        let mut end = self.reader.consumed();
        // A broken event is met again by the next call.
        while let Ok(Some(event)) = self.reader.next_event() {
            if !last.fits(&event) {
                let next = self.last(&event);
                if next.route != last.route {
                    self.begun = Some((end, next));
                    break;
                }
                // Keeps the route, which may be the same to compare with sooner.
                (last.subject, last.is_durable) = (next.subject, next.is_durable);
            }
            events += 1;
            end = self.reader.consumed();
        }
        Ok(Some(RouteRun {
            bytes: self.chunk.slice(start..end),
            route: last.route,
            events,
        }))
    }

    fn last(&mut self, event: &EventRef<'a>) -> LastEvent<'a, R> {
        LastEvent {
            subject: event.subject,
            is_durable: event.position.is_some(),
            route: (self.find)(event),
        }
    }

    /// The bytes of the events that were given. Once [`Self::next_run`] has given `None`, an
    /// incomplete event follows, or nothing.
    pub fn consumed(&self) -> usize {
        match &self.begun {
            Some((start, _)) => *start,
            None => self.reader.consumed(),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use proptest::prelude::*;
    use tidewater_protocol::event::{EVENT_BYTES, EventPosition, put_event};

    use super::*;
    use crate::{Pattern, Router};

    fn chunk(subjects: &[&str]) -> Bytes {
        let mut out = BytesMut::new();
        for subject in subjects {
            put_event(&mut out, subject, None, subject.as_bytes()).unwrap();
        }
        out.freeze()
    }

    #[test]
    fn events_with_the_same_receivers_are_one_slice_of_the_chunk() {
        let mut router = Router::default();
        router.subscribe(&Pattern::parse("n/*").unwrap(), 1);
        router.subscribe(&Pattern::parse("n/c").unwrap(), 2);
        let chunk = chunk(&["n/a", "n/a", "n/b", "n/c", "n/c", "m/a", "n/a"]);
        let mut asked = 0;
        let mut runs = RouteRuns::new(&chunk, EVENT_BYTES, |event| {
            asked += 1;
            router.matches(event.subject)
        });
        let mut end = chunk.as_ptr();
        for (receivers, events) in [(&[1][..], 3), (&[1, 2], 2), (&[], 1), (&[1], 1)] {
            let run = runs.next_run().unwrap().unwrap();
            assert_eq!((&run.route[..], run.events), (receivers, events));
            assert_eq!(run.bytes.as_ptr(), end, "nothing is copied");
            end = run.bytes.as_ptr_range().end;
        }
        assert_eq!(runs.next_run(), Ok(None));
        assert_eq!(runs.consumed(), chunk.len());
        assert_eq!(asked, 5, "the same subject is looked up once");
    }

    #[test]
    fn a_position_makes_another_run_where_the_route_says_so() {
        let mut out = BytesMut::new();
        put_event(&mut out, "n/a", None, b"").unwrap();
        put_event(&mut out, "n/a", Some(EventPosition::default()), b"").unwrap();
        let chunk = out.freeze();
        let mut runs = RouteRuns::new(&chunk, EVENT_BYTES, |event| event.position.is_some());
        let mut next = || runs.next_run().unwrap().map(|run| (run.route, run.events));
        assert_eq!(
            [next(), next(), next()],
            [Some((false, 1)), Some((true, 1)), None]
        );
    }

    #[test]
    fn what_is_before_a_broken_event_is_given_and_a_beginning_is_left() {
        let whole = chunk(&["n/a", "n/a", "n/b"]);
        let mut broken = BytesMut::from(&whole[..]);
        let third = 2 * whole.len() / 3;
        broken[third + 6] = 0x80;
        for (bytes, is_broken) in [(broken.freeze(), true), (whole.slice(..third + 8), false)] {
            let mut runs = RouteRuns::new(&bytes, EVENT_BYTES, |_| ());
            assert_eq!(runs.next_run().unwrap().unwrap().events, 2);
            assert_eq!(runs.consumed(), third);
            assert_eq!(runs.next_run().is_err(), is_broken);
            assert_eq!(runs.consumed(), third);
        }
    }

    proptest! {
        #[test]
        fn runs_hold_every_event_in_order(
            subjects in proptest::collection::vec("n/[a-c]", 0..30),
        ) {
            let subjects: Vec<&str> = subjects.iter().map(String::as_str).collect();
            let chunk = chunk(&subjects);
            let mut runs = RouteRuns::new(&chunk, EVENT_BYTES, |event| event.subject == "n/a");
            let (mut joined, mut events, mut before) = (BytesMut::new(), 0, None);
            while let Some(run) = runs.next_run().unwrap() {
                prop_assert_ne!(before, Some(run.route));
                before = Some(run.route);
                joined.extend_from_slice(&run.bytes);
                events += run.events as usize;
            }
            prop_assert_eq!(&joined[..], &chunk[..]);
            prop_assert_eq!(events, subjects.len());
        }
    }
}
