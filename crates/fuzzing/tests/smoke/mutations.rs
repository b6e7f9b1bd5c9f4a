//! Changes of inputs, the same in every run: what a fuzzer does first.

/// Numbers at which something may turn.
const EDGES: [u64; 8] = [
    0,
    1,
    0x7f,
    0x80,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// The longest input.
const MAX_BYTES: usize = 1 << 16;

/// An endless series of changed inputs.
pub(crate) struct Mutations<'a> {
    inputs: &'a [Vec<u8>],
    state: u64,
}

impl Mutations<'_> {
    pub(crate) fn new(inputs: &[Vec<u8>], seed: u64) -> Mutations<'_> {
        Mutations {
            inputs,
            state: seed,
        }
    }

    /// One input with one to six changes.
    pub(crate) fn next(&mut self) -> Vec<u8> {
        let mut bytes = self.any_input().clone();
        for _ in 0..=self.below(6) {
            self.change(&mut bytes);
        }
        bytes.truncate(MAX_BYTES);
        bytes
    }

    /// SplitMix64: small, and the same everywhere.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.random() % limit as u64) as usize
    }

    fn any_input(&mut self) -> &Vec<u8> {
        let index = self.below(self.inputs.len());
        &self.inputs[index]
    }

    /// A place in the bytes, and how many follow from there, up to sixteen.
    fn piece(&mut self, length: usize) -> (usize, usize) {
        let at = self.below(length + 1);
        let most = (length - at).min(16);
        (at, self.below(most + 1))
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        let (at, count) = self.piece(bytes.len());
        match self.below(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            1 if at < bytes.len() => bytes[at] = self.random() as u8,
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..at + count)),
            4 => {
                let piece = bytes[at..at + count].to_vec();
                let to = self.below(bytes.len() + 1);
                bytes.splice(to..to, piece);
            }
            5 => {
                let edge = EDGES[self.below(EDGES.len())].to_le_bytes();
                let count = count.min(edge.len());
                bytes.splice(at..at + count, edge[..count].iter().copied());
            }
            6 => {
                let random: Vec<u8> = (0..count).map(|_| self.random() as u8).collect();
                bytes.splice(at..at, random);
            }
            _ => {
                let other = self.any_input().clone();
                let from = self.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
    }
}
