//! What waits for one receiver: bounded by bytes, fair to those who publish.

use std::collections::{BTreeSet, HashMap, VecDeque};

use bytes::Bytes;

/// Bytes that may wait where nobody says otherwise.
pub const OUTLET_BYTES: usize = 4 << 20;

/// What happens when more comes than may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum WhenFull {
    /// The oldest slices go of the publisher whose slices hold the most, and are counted.
    #[default]
    DropOldest,
    /// Nothing more is taken: whoever is too slow is cut off.
    Disconnect,
}

/// More came than may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {0} bytes of events wait for a receiver")]
pub struct QueueFull(pub usize);

/// The queue of one receiver. An empty one holds no memory beside itself.
#[derive(Debug)]
pub struct ReceiverQueue {
    queues: HashMap<u64, PublisherQueue>,
    /// Publishers in the order of their turns.
    turns: VecDeque<u64>,
    /// Bytes and publishers: who holds the most is the last. Where only one waits, nobody is
    /// compared, and nobody is here.
    sizes: BTreeSet<(usize, u64)>,
    bytes: usize,
    most: usize,
    when_full: WhenFull,
    missed: u64,
}

/// What waits of one publisher.
#[derive(Debug, Default)]
struct PublisherQueue {
    slices: VecDeque<(Bytes, u32)>,
    bytes: usize,
}

impl Default for ReceiverQueue {
    fn default() -> Self {
        ReceiverQueue::new(OUTLET_BYTES, WhenFull::default())
    }
}

impl ReceiverQueue {
    /// An empty one in which at most so many bytes wait.
    pub fn new(most: usize, when_full: WhenFull) -> ReceiverQueue {
        ReceiverQueue {
            queues: HashMap::new(),
            turns: VecDeque::new(),
            sizes: BTreeSet::new(),
            bytes: 0,
            most,
            when_full,
            missed: 0,
        }
    }

    /// Lets another number of bytes wait; what waits beyond goes with the next that comes.
    pub fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    /// Adds a slice of so many events. Whether nothing waited before.
    ///
    /// # Errors
    /// [`QueueFull`] where the receiver is to be cut off; the slice was not taken.
    pub fn push(&mut self, publisher: u64, slice: Bytes, events: u32) -> Result<bool, QueueFull> {
        if self.when_full == WhenFull::Disconnect && self.bytes + slice.len() > self.most {
            return Err(QueueFull(self.most));
        }
        let was_empty = self.is_empty();
        let added = slice.len();
        let queue = self.queues.entry(publisher).or_default();
        let before = queue.bytes;
        let is_new = queue.slices.is_empty();
        queue.slices.push_back((slice, events));
        queue.bytes += added;
        self.bytes += added;
        if is_new {
            self.turns.push_back(publisher);
        }
        self.resize(publisher, (!is_new).then_some(before), Some(before + added));
        while self.bytes > self.most {
            self.drop_one();
        }
        Ok(was_empty)
    }

    /// The next slice and its events. Publishers take turns; the slices of each come in their
    /// order.
    pub fn pop(&mut self) -> Option<(Bytes, u32)> {
        let publisher = self.turns.pop_front()?;
        let (slice, is_last) = self.take_from_publisher(publisher);
        if !is_last {
            self.turns.push_back(publisher);
        }
        self.forget_if_empty();
        Some(slice)
    }

    /// Events that were dropped since this was last asked.
    pub fn take_missed(&mut self) -> u64 {
        std::mem::take(&mut self.missed)
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// How many bytes wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the oldest slice of a publisher of whom some wait; whether it was the last.
    fn take_from_publisher(&mut self, publisher: u64) -> ((Bytes, u32), bool) {
        let queue = self.queues.get_mut(&publisher).expect("it has a turn");
        let slice = queue.slices.pop_front().expect("a queue is not empty");
        let before = queue.bytes;
        queue.bytes -= slice.0.len();
        self.bytes -= slice.0.len();
        let (left, is_last) = (queue.bytes, queue.slices.is_empty());
        if is_last {
            self.queues.remove(&publisher);
        }
        self.resize(publisher, Some(before), (!is_last).then_some(left));
        (slice, is_last)
    }

    fn drop_one(&mut self) {
        let largest = self.sizes.last().map(|(_, publisher)| *publisher);
        let largest = largest.or_else(|| self.turns.front().copied());
        let publisher = largest.expect("who holds bytes has a turn");
        let ((_, events), is_last) = self.take_from_publisher(publisher);
        self.missed += u64::from(events);
        if is_last {
            self.turns.retain(|it| *it != publisher);
        }
        self.forget_if_empty();
    }

    /// Keeps the sizes of queues in order, once there are several. Called when a queue has just
    /// grown, shrunk, come or gone.
    fn resize(&mut self, publisher: u64, before: Option<usize>, after: Option<usize>) {
        if self.queues.len() < 2 {
            self.sizes = BTreeSet::new();
            return;
        }
        if self.sizes.is_empty() {
            let sizes = self
                .queues
                .iter()
                .map(|(publisher, it)| (it.bytes, *publisher));
            self.sizes = sizes.collect();
            return;
        }
        if let Some(before) = before {
            self.sizes.remove(&(before, publisher));
        }
        if let Some(after) = after {
            self.sizes.insert((after, publisher));
        }
    }

    fn forget_if_empty(&mut self) {
        if self.turns.is_empty() {
            debug_assert!(self.queues.is_empty() && self.sizes.is_empty() && self.bytes == 0);
            (self.queues, self.turns) = (HashMap::new(), VecDeque::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slice(byte: u8, bytes: usize) -> Bytes {
        vec![byte; bytes].into()
    }

    fn popped(outlet: &mut ReceiverQueue) -> Vec<u8> {
        std::iter::from_fn(|| outlet.pop())
            .map(|(slice, _)| slice[0])
            .collect()
    }

    #[test]
    fn publishers_take_turns_and_each_keeps_its_order() {
        let mut outlet = ReceiverQueue::default();
        assert_eq!(outlet.push(1, slice(10, 5), 1), Ok(true));
        for byte in 11..15 {
            assert_eq!(outlet.push(1, slice(byte, 5), 1), Ok(false));
        }
        outlet.push(2, slice(20, 5), 1).unwrap();
        outlet.push(3, slice(30, 5), 1).unwrap();
        outlet.push(2, slice(21, 5), 1).unwrap();
        assert_eq!(popped(&mut outlet), [10, 20, 30, 11, 21, 12, 13, 14]);
        assert_eq!((outlet.bytes(), outlet.take_missed()), (0, 0));
    }

    #[test]
    fn a_flood_drops_only_its_own_and_is_counted() {
        let mut outlet = ReceiverQueue::new(1000, WhenFull::DropOldest);
        outlet.push(1, slice(1, 100), 1).unwrap();
        for byte in 100..200 {
            outlet.push(2, slice(byte, 50), 3).unwrap();
            assert!(outlet.bytes() <= 1000);
        }
        outlet.push(3, slice(3, 100), 1).unwrap();
        assert_eq!(outlet.take_missed(), (100 - 16) * 3);
        assert_eq!(outlet.take_missed(), 0);
        let mut expected = vec![1, 184, 3];
        expected.extend(185..200);
        assert_eq!(popped(&mut outlet), expected);
        // What is larger than all that may wait is missed itself.
        outlet.push(1, slice(1, 1001), 7).unwrap();
        assert!(outlet.is_empty());
        assert_eq!(outlet.take_missed(), 7);
    }

    #[test]
    fn who_is_to_be_cut_off_gets_nothing_more() {
        let mut outlet = ReceiverQueue::new(100, WhenFull::Disconnect);
        outlet.push(1, slice(1, 60), 1).unwrap();
        assert_eq!(outlet.push(2, slice(2, 60), 1), Err(QueueFull(100)));
        assert_eq!(outlet.push(2, slice(3, 40), 1), Ok(false));
        assert_eq!(popped(&mut outlet), [1, 3]);
        assert_eq!(outlet.take_missed(), 0);
    }

    #[test]
    fn an_empty_one_holds_no_memory() {
        let mut outlet = ReceiverQueue::new(100, WhenFull::DropOldest);
        for publisher in 0..10 {
            for _ in 0..10 {
                outlet.push(publisher, slice(1, 30), 1).unwrap();
            }
        }
        while outlet.pop().is_some() {}
        assert_eq!(outlet.queues.capacity() + outlet.turns.capacity(), 0);
        assert!(outlet.sizes.is_empty());
    }

    proptest! {
        #[test]
        fn what_was_pushed_is_popped_in_order_or_missed(
            steps in proptest::collection::vec((0..4_u64, 1..60_usize, any::<bool>()), 1..200),
        ) {
            let mut outlet = ReceiverQueue::new(300, WhenFull::DropOldest);
            let (mut pushed, mut arrived) = (0_u64, 0_u64);
            let mut seen = [0_u32; 4];
            let mut take = |outlet: &mut ReceiverQueue| {
                let Some((slice, events)) = outlet.pop() else { return false };
                arrived += u64::from(events);
                let number = u32::from_le_bytes(*slice.first_chunk().unwrap());
                let publisher = usize::from(slice[4]);
                assert!(number > seen[publisher], "the order of a publisher");
                seen[publisher] = number;
                true
            };
            for (number, (publisher, bytes, pops)) in (1_u32..).zip(steps) {
                let mut slice = number.to_le_bytes().to_vec();
                slice.push(publisher as u8);
                slice.resize(5 + bytes, 0);
                let events = bytes as u32;
                pushed += u64::from(events);
                outlet.push(publisher, slice.into(), events).unwrap();
                prop_assert!(outlet.bytes() <= 300);
                let largest = outlet.queues.values().map(|it| it.bytes).max();
                let known = outlet.sizes.last().map(|(bytes, _)| *bytes);
                prop_assert!(known.is_none_or(|it| Some(it) == largest));
                prop_assert_eq!(outlet.sizes.len() < 2, outlet.queues.len() < 2);
                if pops {
                    take(&mut outlet);
                }
            }
            while take(&mut outlet) {}
            prop_assert_eq!(pushed, arrived + outlet.take_missed());
            prop_assert_eq!(outlet.bytes(), 0);
        }
    }
}
