//! The newest event of each subject of a space, for those who subscribe later.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use crate::subject::Pattern;

/// What a subject takes beside its event and its name.
const OVERHEAD_BYTES: usize = 128;

/// The newest event of each subject, packed. Bounded: what got no event for the longest time
/// goes first.
#[derive(Debug)]
pub struct LastValues {
    by_subject: HashMap<Arc<str>, u64>,
    /// In order of arrival.
    events: BTreeMap<u64, (Arc<str>, Bytes)>,
    arrivals: u64,
    bytes: usize,
    most_bytes: usize,
    most_subjects: usize,
    dropped: u64,
}

impl LastValues {
    /// An empty one for at most so many bytes and subjects.
    pub fn new(most_bytes: usize, most_subjects: usize) -> LastValues {
        LastValues {
            by_subject: HashMap::new(),
            events: BTreeMap::new(),
            arrivals: 0,
            bytes: 0,
            most_bytes,
            most_subjects,
            dropped: 0,
        }
    }

    /// Keeps the event as the newest of its subject. It is copied: what it was cut out of may be
    /// large.
    pub fn insert(&mut self, subject: &str, packed: &[u8]) {
        self.arrivals += 1;
        let arrival = self.arrivals;
        let subject = match self.by_subject.get_mut(subject) {
            Some(known) => {
                let (subject, before) = self.events.remove(known).expect("it is of a subject");
                *known = arrival;
                self.bytes -= cost(&subject, &before);
                subject
            }
            None => {
                let subject: Arc<str> = subject.into();
                self.by_subject.insert(Arc::clone(&subject), arrival);
                subject
            }
        };
        self.bytes += cost(&subject, packed);
        let packed = Bytes::copy_from_slice(packed);
        self.events.insert(arrival, (subject, packed));
        while self.bytes > self.most_bytes || self.events.len() > self.most_subjects {
            let (_, (subject, packed)) = self.events.pop_first().expect("something has the bytes");
            self.by_subject.remove(&subject);
            self.bytes -= cost(&subject, &packed);
            self.dropped += 1;
        }
    }

    /// The subjects of a pattern and their events, packed, in the order in which these arrived.
    pub fn matching<'a>(
        &'a self,
        pattern: &'a Pattern,
    ) -> impl Iterator<Item = (&'a str, &'a Bytes)> {
        let events = self.events.values();
        let matching = events.filter(|(subject, _)| pattern.matches(subject));
        matching.map(|(subject, packed)| (&**subject, packed))
    }

    /// Subjects whose event is kept.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether no event is kept.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The memory that is taken, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Subjects whose event was dropped because there was no place.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

fn cost(subject: &str, packed: &[u8]) -> usize {
    subject.len() + packed.len() + OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matching(values: &LastValues, pattern: &str) -> Vec<u8> {
        let pattern = Pattern::parse(pattern).unwrap();
        values
            .matching(&pattern)
            .map(|(_, packed)| packed[0])
            .collect()
    }

    #[test]
    fn the_newest_of_each_subject_comes_in_order_of_arrival() {
        let mut values = LastValues::new(1 << 20, 100);
        for (subject, byte) in [("n/a", 1), ("n/b.c", 2), ("n/d", 3), ("n/a", 4)] {
            values.insert(subject, &[byte; 10]);
        }
        assert_eq!(matching(&values, "n/>"), [2, 3, 4]);
        assert_eq!(matching(&values, "n/*"), [3, 4]);
        assert_eq!(matching(&values, "n/b.c"), [2]);
        assert_eq!((values.len(), values.dropped()), (3, 0));
    }

    #[test]
    fn what_has_no_place_is_what_is_the_oldest() {
        let cost = cost("n/0", &[0; 10]);
        for mut values in [LastValues::new(1 << 20, 3), LastValues::new(3 * cost, 100)] {
            for byte in 0..5 {
                values.insert(&format!("n/{byte}"), &[byte; 10]);
                values.insert("n/0", &[byte; 10]);
            }
            assert_eq!(matching(&values, "n/>"), [3, 4, 4]);
            assert_eq!((values.len(), values.dropped()), (3, 2));
            assert_eq!(values.bytes(), 3 * cost);
            // One that fits nowhere takes all others with it, and is not kept.
            values.insert("n/0", &vec![0; 2 << 20]);
            assert!(values.is_empty() && values.by_subject.is_empty());
            assert_eq!(values.bytes(), 0);
        }
    }
}
