//! From a subject to whoever subscribed to it: a trie of the parts of patterns.
//!
//! What finding receivers costs depends on the parts of the subject, and on how many of them
//! have wildcards beside their names, not on how many subscriptions there are.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::ops::Deref;
use std::sync::Arc;

use crate::cache::SubjectCache;
use crate::subject::{ONE, Pattern, REST, parts};

/// Subjects whose receivers are remembered, unless somebody says otherwise.
const CACHED_SUBJECTS: usize = 16 << 10;

/// The fewest different receivers that are looked through for those that nobody needs.
const TIDY_AT: usize = 64;

/// Receivers, each once, in their own order. Equal ones of a router are mostly the same.
#[derive(Debug, Eq)]
pub struct Receivers<K>(Arc<[K]>);

impl<K> Clone for Receivers<K> {
    fn clone(&self) -> Self {
        Receivers(Arc::clone(&self.0))
    }
}

impl<K> Deref for Receivers<K> {
    type Target = [K];

    fn deref(&self) -> &[K] {
        &self.0
    }
}

impl<K> Borrow<[K]> for Receivers<K> {
    fn borrow(&self) -> &[K] {
        &self.0
    }
}

impl<K: PartialEq> PartialEq for Receivers<K> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl<K: Hash> Hash for Receivers<K> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// Subscriptions of receivers `K` to patterns.
#[derive(Debug)]
pub struct Router<K> {
    root: RouterNode<K>,
    by_receiver: HashMap<K, HashSet<Pattern>>,
    cache: SubjectCache<Receivers<K>>,
    /// So that equal receivers are the same.
    known: HashSet<Receivers<K>>,
    /// How many of them are looked through for those that nobody needs.
    tidy_at: usize,
    version: u64,
}

#[derive(Debug)]
struct RouterNode<K> {
    named: HashMap<Box<str>, RouterNode<K>>,
    any: Option<Box<RouterNode<K>>>,
    /// Who subscribed to what ends here, and to all that goes on from here; sorted.
    here: Vec<K>,
    beyond: Vec<K>,
}

impl<K> Default for RouterNode<K> {
    fn default() -> Self {
        RouterNode {
            named: HashMap::new(),
            any: None,
            here: Vec::new(),
            beyond: Vec::new(),
        }
    }
}

impl<K: Clone + Ord + Hash> Default for Router<K> {
    fn default() -> Self {
        Router::new(CACHED_SUBJECTS)
    }
}

impl<K: Clone + Ord + Hash> Router<K> {
    /// One that remembers the receivers of at most so many subjects.
    pub fn new(cached_subjects: usize) -> Router<K> {
        Router {
            root: RouterNode::default(),
            by_receiver: HashMap::new(),
            cache: SubjectCache::new(cached_subjects),
            known: HashSet::new(),
            tidy_at: TIDY_AT,
            version: 0,
        }
    }

    /// Adds a subscription. Whether it is a new one.
    pub fn subscribe(&mut self, pattern: &Pattern, receiver: K) -> bool {
        let patterns = self.by_receiver.entry(receiver.clone()).or_default();
        if !patterns.insert(pattern.clone()) {
            return false;
        }
        let mut node = &mut self.root;
        for part in pattern.parts() {
            node = match part {
                REST => {
                    insert(&mut node.beyond, receiver);
                    self.invalidate();
                    return true;
                }
                ONE => node.any.get_or_insert_default(),
                // Looked up first: the name is stored only once.
                _ if node.named.contains_key(part) => {
                    node.named.get_mut(part).expect("it was there")
                }
                _ => node.named.entry(part.into()).or_default(),
            };
        }
        insert(&mut node.here, receiver);
        self.invalidate();
        true
    }

    /// Takes a subscription away. Whether there was one.
    pub fn unsubscribe(&mut self, pattern: &Pattern, receiver: &K) -> bool {
        let Some(patterns) = self.by_receiver.get_mut(receiver) else {
            return false;
        };
        if !patterns.remove(pattern) {
            return false;
        }
        if patterns.is_empty() {
            self.by_receiver.remove(receiver);
        }
        self.root.remove(&mut pattern.parts(), receiver);
        self.invalidate();
        true
    }

    /// Takes all subscriptions of a receiver away.
    pub fn remove_all(&mut self, receiver: &K) {
        let Some(patterns) = self.by_receiver.remove(receiver) else {
            return;
        };
        for pattern in patterns {
            self.root.remove(&mut pattern.parts(), receiver);
        }
        self.invalidate();
    }

    /// The patterns that a receiver has subscribed to, in any order.
    pub fn patterns(&self, receiver: &K) -> impl Iterator<Item = &Pattern> {
        self.by_receiver.get(receiver).into_iter().flatten()
    }

    /// How many patterns a receiver has subscribed to.
    pub fn subscriptions(&self, receiver: &K) -> usize {
        self.by_receiver.get(receiver).map_or(0, HashSet::len)
    }

    /// Another one after each change: what [`Self::matches`] gave under the same version it still
    /// gives.
    pub fn version(&self) -> u64 {
        self.version
    }

    fn invalidate(&mut self) {
        self.version += 1;
        self.cache.clear();
        self.known = HashSet::new();
        self.tidy_at = TIDY_AT;
    }

    /// Who gets what is published to this subject, which is one.
    pub fn matches(&mut self, subject: &str) -> Receivers<K> {
        if let Some(receivers) = self.cache.find(subject) {
            return receivers;
        }
        let mut found = Vec::new();
        let parts: Vec<&str> = parts(subject).collect();
        self.root.find(&parts, &mut found);
        found.sort_unstable();
        found.dedup();
        let receivers = match self.known.get(&found[..]) {
            Some(known) => known.clone(),
            None => Receivers(found.into()),
        };
        self.cache.insert(subject, receivers.clone());
        if self.known.len() >= self.tidy_at {
            // What the cache has forgotten nobody else holds.
            self.known.retain(|it| Arc::strong_count(&it.0) > 1);
            self.tidy_at = TIDY_AT.max(2 * self.known.len());
        }
        self.known.insert(receivers.clone());
        receivers
    }
}

impl<K: Clone + Ord> RouterNode<K> {
    /// Collects receivers; how many nodes were looked at.
    fn find(&self, parts: &[&str], found: &mut Vec<K>) -> usize {
        let Some((part, rest)) = parts.split_first() else {
            found.extend_from_slice(&self.here);
            return 1;
        };
        found.extend_from_slice(&self.beyond);
        let next = [self.named.get(*part), self.any.as_deref()];
        let next = next.into_iter().flatten();
        1 + next.map(|node| node.find(rest, found)).sum::<usize>()
    }

    /// Takes a receiver away that is there, and nodes that nobody needs any more.
    fn remove<'a>(&mut self, parts: &mut impl Iterator<Item = &'a str>, receiver: &K) {
        match parts.next() {
            None => remove(&mut self.here, receiver),
            Some(REST) => remove(&mut self.beyond, receiver),
            Some(ONE) => {
                if let Some(node) = &mut self.any {
                    node.remove(parts, receiver);
                    if node.is_empty() {
                        self.any = None;
                    }
                }
            }
            Some(part) => {
                if let Some(node) = self.named.get_mut(part) {
                    node.remove(parts, receiver);
                    if node.is_empty() {
                        self.named.remove(part);
                    }
                }
                if self.named.is_empty() {
                    self.named = HashMap::new();
                }
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.named.is_empty()
            && self.any.is_none()
            && self.here.is_empty()
            && self.beyond.is_empty()
    }
}

fn insert<K: Ord>(receivers: &mut Vec<K>, receiver: K) {
    if let Err(place) = receivers.binary_search(&receiver) {
        receivers.insert(place, receiver);
    }
}

fn remove<K: Ord>(receivers: &mut Vec<K>, receiver: &K) {
    if let Ok(place) = receivers.binary_search(receiver) {
        receivers.remove(place);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text).unwrap()
    }

    #[test]
    fn receivers_come_once_and_in_order() {
        let mut router = Router::default();
        for (text, receiver) in [
            ("n/a.b", 3),
            ("n/a.*", 1),
            ("n/>", 3),
            ("n/>", 2),
            ("n/b", 9),
        ] {
            assert!(router.subscribe(&pattern(text), receiver));
        }
        assert!(!router.subscribe(&pattern("n/>"), 2));
        assert_eq!(router.matches("n/a.b")[..], [1, 2, 3]);
        assert_eq!(router.matches("n/x.y")[..], [2, 3]);
        // The same ones for another subject.
        let equal = router.matches("n/c");
        assert!(Arc::ptr_eq(&equal.0, &router.matches("n/x.y").0));
        assert!(router.unsubscribe(&pattern("n/>"), &3));
        assert!(!router.unsubscribe(&pattern("n/>"), &3));
        assert_eq!(router.matches("n/a.b")[..], [1, 2, 3]);
        router.remove_all(&3);
        assert_eq!(router.matches("n/a.b")[..], [1, 2]);
        assert_eq!((router.subscriptions(&3), router.subscriptions(&2)), (0, 1));
        for receiver in [1, 2, 9] {
            router.remove_all(&receiver);
        }
        assert!(router.root.is_empty() && router.by_receiver.is_empty());
    }

    #[test]
    fn what_finding_costs_does_not_depend_on_how_many_subscribed() {
        let visited = |subscribers: u32| {
            let mut router = Router::default();
            for number in 0..subscribers {
                router.subscribe(&pattern(&format!("n/unit.{number}.position")), number);
                router.subscribe(&pattern(&format!("n/unit.*.alarm{number}")), number);
                router.subscribe(&pattern(&format!("n/team{number}.>")), number);
            }
            let mut found = Vec::new();
            let visited = router
                .root
                .find(&["n", "unit", "0", "position"], &mut found);
            assert_eq!(found, [0]);
            visited
        };
        assert_eq!(visited(1), visited(2_000));
        assert!(visited(1) <= 6);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_dropped_when_subscriptions_change() {
        let mut router = Router::new(8);
        router.subscribe(&pattern("n/*"), 1);
        for number in 0..1000 {
            router.subscribe(&pattern(&format!("n/{}", number % 50)), 10 + number % 50);
            let subject = format!("n/{number}");
            assert!(router.matches(&subject).contains(&1));
            assert!(router.cache.len() <= 8 && router.known.len() <= TIDY_AT);
        }
        let version = router.version();
        assert_eq!(router.matches("n/x")[..], [1]);
        assert!(router.subscribe(&pattern("n/x"), 2));
        assert_eq!(router.matches("n/x")[..], [1, 2]);
        assert_ne!(router.version(), version);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Subscribe(Pattern, u8),
        Unsubscribe(Pattern, u8),
        RemoveAll(u8),
        Matches(String),
    }

    fn step() -> impl Strategy<Value = Step> {
        let pattern = || "[mn]/([ab*](\\.[ab*]){0,2}(\\.>)?|>)".prop_map(|text| pattern(&text));
        prop_oneof![
            4 => (pattern(), 0..6_u8).prop_map(|(it, who)| Step::Subscribe(it, who)),
            2 => (pattern(), 0..6_u8).prop_map(|(it, who)| Step::Unsubscribe(it, who)),
            1 => (0..6_u8).prop_map(Step::RemoveAll),
            6 => "[mn]/[abc](\\.[abc]){0,3}".prop_map(Step::Matches),
        ]
    }

    proptest! {
        #[test]
        fn it_finds_whom_a_look_at_every_pattern_finds(
            steps in proptest::collection::vec(step(), 1..120),
        ) {
            let mut router = Router::new(6);
            let mut all: BTreeSet<(u8, Pattern)> = BTreeSet::new();
            for step in steps {
                match step {
                    Step::Subscribe(pattern, who) => {
                        let is_new = router.subscribe(&pattern, who);
                        prop_assert_eq!(is_new, all.insert((who, pattern)));
                    }
                    Step::Unsubscribe(pattern, who) => {
                        let was_there = router.unsubscribe(&pattern, &who);
                        prop_assert_eq!(was_there, all.remove(&(who, pattern)));
                    }
                    Step::RemoveAll(who) => {
                        router.remove_all(&who);
                        all.retain(|(it, _)| *it != who);
                    }
                    Step::Matches(subject) => {
                        let matching = all.iter().filter(|(_, it)| it.matches(&subject));
                        let mut expected: Vec<u8> = matching.map(|(who, _)| *who).collect();
                        expected.dedup();
                        prop_assert_eq!(&router.matches(&subject)[..], &expected[..]);
                    }
                }
            }
            for who in 0..6 {
                router.remove_all(&who);
            }
            prop_assert!(router.root.is_empty());
        }
    }
}
