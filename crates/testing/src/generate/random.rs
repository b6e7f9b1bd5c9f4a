//! Random choices that a printed seed repeats.

/// Sebastiano Vigna's SplitMix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The choices of a seed: always the same ones.
    pub fn seeded(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    #[allow(
        clippy::should_implement_trait,
        reason = "an endless source is no iterator"
    )]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 up to, but not including, `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// An index of something with so many parts; there must be one.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// True once in `times` times.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of several choices; there must be one.
    pub fn one_of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.index(choices.len())]
    }

    /// The index of one of several choices, by how often each is wanted.
    pub fn weighted(&mut self, weights: &[u64]) -> usize {
        let mut left = self.below(weights.iter().sum());
        for (index, weight) in weights.iter().enumerate() {
            match left.checked_sub(*weight) {
                Some(rest) => left = rest,
                None => return index,
            }
        }
        weights.len() - 1
    }
}
