//! What is known of the subjects that come again and again.

use std::collections::HashMap;

/// A bounded memory of something by subject. What was not asked for since it was half filled
/// anew is forgotten.
#[derive(Debug)]
pub struct SubjectCache<V> {
    /// Those asked for lately, and those before them.
    young: HashMap<Box<str>, V>,
    old: HashMap<Box<str>, V>,
    most: usize,
}

impl<V: Clone> SubjectCache<V> {
    /// An empty one, for at most so many subjects.
    pub fn new(most: usize) -> SubjectCache<V> {
        SubjectCache {
            young: HashMap::new(),
            old: HashMap::new(),
            most: (most / 2).max(1),
        }
    }

    /// What is known of the subject.
    pub fn find(&mut self, subject: &str) -> Option<V> {
        if let Some(value) = self.young.get(subject) {
            return Some(value.clone());
        }
        let (subject, value) = self.old.remove_entry(subject)?;
        self.put(subject, value.clone());
        Some(value)
    }

    /// Remembers it.
    pub fn insert(&mut self, subject: &str, value: V) {
        self.old.remove(subject);
        self.put(subject.into(), value);
    }

    fn put(&mut self, subject: Box<str>, value: V) {
        if self.young.len() >= self.most && !self.young.contains_key(&subject) {
            // The old one's memory, emptied, is the next young one's.
            self.old.clear();
            std::mem::swap(&mut self.young, &mut self.old);
        }
        self.young.insert(subject, value);
    }

    /// Forgets everything, and gives the memory back.
    pub fn clear(&mut self) {
        if !self.is_empty() {
            (self.young, self.old) = (HashMap::new(), HashMap::new());
        }
    }

    /// Of how many subjects something is known.
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_and_keeps_what_is_asked_for() {
        let mut cache = SubjectCache::new(100);
        for number in 0..1000 {
            cache.insert(&format!("n/{number}"), number);
            assert_eq!(cache.find("n/0"), Some(0));
            assert!(cache.len() <= 100);
        }
        assert_eq!(cache.find("n/999"), Some(999));
        assert_eq!(cache.find("n/1"), None);
        cache.insert("n/0", 7);
        assert_eq!(cache.find("n/0"), Some(7));
        cache.clear();
        assert!(cache.is_empty() && cache.find("n/0").is_none());
    }
}
