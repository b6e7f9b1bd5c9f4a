//! A file of a simulated disk: its bytes, and which changes of them the disk does not surely
//! have yet.
//!
//! Reads see every write at once, as they do where an operating system keeps pages in its
//! cache. A sync makes everything before it sure; when power is lost, each later change has
//! arrived, has not, or has in part, in any order. That is what SQLite assumes of disks
//! ("powersafe overwrite": no byte outside of what was written changes).

use crate::random::SeededRandom;

/// A disk writes so many bytes at once, or none of them, or, seldom, the first of them.
const SECTOR: usize = 512;

/// What a file holds.
#[derive(Debug, Default)]
pub(super) struct Content {
    bytes: Vec<u8>,
    /// Since the last sync, oldest first.
    unsynced: Vec<Change>,
}

/// A change that can be taken back and made again.
#[derive(Debug)]
enum Change {
    /// Other bytes at a place. While the change is made, those from before, as far as the
    /// file reached; while it is taken back, those that were written.
    Write {
        at: usize,
        other: Vec<u8>,
        length_before: usize,
    },
    /// The end of the file cut off.
    Cut { length: usize, tail: Vec<u8> },
}

/// What becomes of the changes that the disk did not surely have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// They had arrived by chance.
    Kept,
    /// None of them had.
    Lost,
    /// Chance decides for each of them.
    Mixed,
}

impl Content {
    /// These bytes, all of them on the disk.
    pub(super) fn from_bytes(bytes: Vec<u8>) -> Content {
        Content {
            bytes,
            unsynced: Vec::new(),
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Fills the buffer from a place; whether the file reached that far. The rest is zeros.
    pub(super) fn read(&self, at: usize, buffer: &mut [u8]) -> bool {
        let found = self.bytes.get(at..).unwrap_or_default();
        let count = found.len().min(buffer.len());
        buffer[..count].copy_from_slice(&found[..count]);
        buffer[count..].fill(0);
        count == buffer.len()
    }

    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        let length_before = self.bytes.len();
        let end = at + bytes.len();
        let before = self.bytes.get(at..end.min(length_before));
        let other = before.unwrap_or_default().to_vec();
        if at == length_before {
            self.bytes.extend_from_slice(bytes);
        } else {
            self.bytes.resize(end.max(length_before), 0);
            self.bytes[at..end].copy_from_slice(bytes);
        }
        self.unsynced.push(Change::Write {
            at,
            other,
            length_before,
        });
    }

    pub(super) fn truncate(&mut self, length: usize) {
        if length < self.bytes.len() {
            let tail = self.bytes.split_off(length);
            self.unsynced.push(Change::Cut { length, tail });
        }
    }

    /// The disk has everything now.
    pub(super) fn sync(&mut self) {
        self.unsynced.clear();
    }

    /// What the disk has when power is lost now.
    pub(super) fn after_power_loss(mut self, fate: Fate, random: &mut SeededRandom) -> Content {
        if fate != Fate::Kept {
            let mut changes = std::mem::take(&mut self.unsynced);
            for change in changes.iter_mut().rev() {
                self.take_back(change);
            }
            if fate == Fate::Mixed {
                for change in changes {
                    self.redo(change, random);
                }
            }
        }
        self.unsynced.clear();
        self
    }

    fn take_back(&mut self, change: &mut Change) {
        match change {
            Change::Write {
                at,
                other,
                length_before,
            } => {
                // Everything after it is taken back already: what it wrote beyond the end
                // of the file is the end now.
                let written_to = if self.bytes.len() > *length_before {
                    self.bytes.len()
                } else {
                    *at + other.len()
                };
                let written = self.bytes[*at..written_to].to_vec();
                self.bytes[*at..*at + other.len()].copy_from_slice(other);
                self.bytes.truncate(*length_before);
                *other = written;
            }
            Change::Cut { tail, .. } => self.bytes.extend_from_slice(tail),
        }
    }

    fn redo(&mut self, change: Change, random: &mut SeededRandom) {
        match change {
            Change::Write { at, other, .. } => match random.below(5) {
                0 | 1 => self.arrive(at, &other, random),
                2 | 3 => {}
                _ => self.redo_torn(at, &other, random),
            },
            Change::Cut { length, .. } => {
                if random.percent(50) {
                    self.bytes.truncate(length);
                }
            }
        }
    }

    fn redo_torn(&mut self, at: usize, bytes: &[u8], random: &mut SeededRandom) {
        for (index, sector) in bytes.chunks(SECTOR).enumerate() {
            let count = match random.below(5) {
                0 | 1 => sector.len(),
                2 | 3 => 0,
                _ => random.below(sector.len() as u64) as usize,
            };
            if count > 0 {
                self.arrive(at + index * SECTOR, &sector[..count], random);
            }
        }
    }

    /// Bytes that the disk has after all. What lies between them and the end of the file is
    /// zeros or, as SQLite expects, anything.
    fn arrive(&mut self, at: usize, bytes: &[u8], random: &mut SeededRandom) {
        let length = self.bytes.len();
        if at + bytes.len() > length {
            self.bytes.resize(at + bytes.len(), 0);
            if at > length && random.percent(50) {
                random.fill(&mut self.bytes[length..at]);
            }
        }
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_synced_is_lost_and_what_was_synced_stays() {
        let mut content = Content::default();
        content.write(0, b"synced for good");
        content.sync();
        content.write(0, b"SYNCED");
        content.write(20, b"beyond the end");
        content.truncate(3);
        content.write(10, b"x");
        content.write(2, b"across");
        let mut random = SeededRandom::new(1);
        let content = content.after_power_loss(Fate::Lost, &mut random);
        assert_eq!(content.bytes, b"synced for good");
    }

    #[test]
    fn what_arrived_by_chance_is_part_of_what_was_written() {
        let (mut kept, mut lost, mut torn) = (0, 0, 0);
        for seed in 0..500 {
            let mut content = Content::default();
            content.write(0, &[1; 4 * SECTOR]);
            content.sync();
            content.write(SECTOR / 2, &[2; 2 * SECTOR]);
            let content = content.after_power_loss(Fate::Mixed, &mut SeededRandom::new(seed));
            let (inside, outside) = (SECTOR / 2..SECTOR * 5 / 2, SECTOR * 5 / 2..4 * SECTOR);
            assert!(content.bytes[outside].iter().all(|byte| *byte == 1));
            let written = &content.bytes[inside];
            match written.iter().filter(|byte| **byte == 2).count() {
                0 => lost += 1,
                all if all == written.len() => kept += 1,
                _ => torn += 1,
            }
        }
        assert!(
            kept > 100 && lost > 100 && torn > 20,
            "{kept} {lost} {torn}"
        );
    }
}
