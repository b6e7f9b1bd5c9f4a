//! Which rows of a group ([`crate::engine::upload::linked`]) are left out where not all of it can be applied: found
//! by trying, whatever an adapter's way to try is.
//!
//! Nobody waits for the rows that may be left out, so most of them fail for themselves. Each part
//! of them is therefore tried with what is needed alone, however many are known to be good: that
//! takes a number of tries for each bad row, and not all good rows once more in each. Only where the
//! good ones turn out to be in each other's way they are tried on top of each other.
//!
//! Where what is needed cannot be applied, a row is to blame for which others wait. Then each row is
//! tried with what it cannot go without, on top of what went before.

use std::collections::HashSet;
use std::hash::Hash;

/// Trying ends after so many rows, most of which are tried again and again: what is not known to be
/// good then is left out. A peer could keep its centre busy for hours.
const MOST_TRIED: usize = 1_000_000;

/// Rows that are to be applied, all or none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Trial<T> {
    pub(crate) rows: Vec<T>,
    /// Whether they stay applied, and nothing else is tried then. Otherwise it is only asked
    /// whether they could be.
    pub(crate) stays: bool,
}

/// The tries, one after the other: [`Sift::next`], and then [`Sift::told`].
#[derive(Debug)]
pub(crate) struct Sift<T> {
    needed: Vec<T>,
    good: Vec<T>,
    /// Parts of the others that are to be tried, the next one last.
    waiting: Vec<Vec<T>>,
    /// Each row with what it needs, the next one last.
    units: Vec<Vec<T>>,
    /// Rows that cannot be applied, although nothing is missing that they need.
    bad: HashSet<T>,
    /// The part that is being tried.
    part: Vec<T>,
    stage: Stage,
    /// How many rows have been tried.
    tried: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// What is needed, alone.
    Needed,
    /// Each unit with what was good before.
    Units,
    /// Each part with what is needed.
    Parts,
    /// All that is good so.
    Good,
    /// Each part with what is needed and what was good before.
    Piled,
    /// All that is good so.
    GoodPiled,
    End,
}

impl<T: Copy + Eq + Hash> Sift<T> {
    /// Looks for those of the other rows that can be applied with the needed ones, or for the units
    /// that can be applied without them. All of them together cannot.
    pub(crate) fn new(needed: Vec<T>, others: &[T], mut units: Vec<Vec<T>>) -> Sift<T> {
        units.reverse();
        let stage = match (needed.is_empty(), others.is_empty()) {
            (true, _) => Stage::End,
            // That it cannot be applied alone is known.
            (false, true) => Stage::Units,
            (false, false) => Stage::Needed,
        };
        Sift {
            needed: if stage == Stage::Units {
                Vec::new()
            } else {
                needed
            },
            good: Vec::new(),
            waiting: halves(others),
            part: Vec::new(),
            units,
            bad: HashSet::new(),
            stage,
            tried: 0,
        }
    }

    /// What is to be tried next. `None`: no more can be done.
    pub(crate) fn next(&mut self) -> Option<Trial<T>> {
        if matches!(self.stage, Stage::Parts | Stage::Piled) {
            match self.waiting.pop() {
                Some(part) => self.part = part,
                None if self.stage == Stage::Parts => self.stage = Stage::Good,
                None => self.stage = Stage::GoodPiled,
            }
        }
        if self.stage == Stage::Units {
            match self.next_unit() {
                Some(unit) => self.part = unit,
                None => self.stage = Stage::GoodPiled,
            }
        }
        if self.stage == Stage::GoodPiled && self.needed.is_empty() && self.good.is_empty() {
            self.stage = Stage::End;
        }
        let (good, part): (&[T], &[T]) = match self.stage {
            Stage::Needed => (&[], &[]),
            Stage::Parts => (&[], &self.part),
            Stage::Piled | Stage::Units => (&self.good, &self.part),
            Stage::Good | Stage::GoodPiled => (&self.good, &[]),
            Stage::End => return None,
        };
        let rows = [&self.needed, good, part].concat();
        self.tried += rows.len();
        Some(Trial {
            rows,
            stays: matches!(self.stage, Stage::Good | Stage::GoodPiled),
        })
    }

    /// What is not known to be good of the next unit, unless it needs a row that is bad.
    fn next_unit(&mut self) -> Option<Vec<T>> {
        let good: HashSet<&T> = self.good.iter().collect();
        while let Some(mut unit) = self.units.pop() {
            unit.retain(|row| !good.contains(row));
            if !unit.is_empty() && !unit.iter().any(|row| self.bad.contains(row)) {
                return Some(unit);
            }
        }
        None
    }

    /// How the last try ended.
    pub(crate) fn told(&mut self, is_well: bool) {
        match (self.stage, is_well) {
            (Stage::Needed, true) => self.stage = Stage::Parts,
            (Stage::Needed, false) => {
                self.needed.clear();
                self.stage = Stage::Units;
            }
            (Stage::Units, true) => self.good.append(&mut self.part),
            (Stage::Units, false) if self.tried < MOST_TRIED => {
                if let [row] = self.part[..] {
                    self.bad.insert(row);
                }
            }
            (Stage::Units, false) => self.units.clear(),
            (Stage::Parts | Stage::Piled, true) => self.good.append(&mut self.part),
            (Stage::Parts | Stage::Piled, false) if self.tried < MOST_TRIED => {
                self.waiting.extend(halves(&self.part));
            }
            (Stage::Parts | Stage::Piled, false) => {}
            (Stage::Good, false) => {
                self.waiting = halves(&std::mem::take(&mut self.good));
                self.stage = Stage::Piled;
            }
            _ => self.stage = Stage::End,
        }
    }
}

/// Both halves, the left one last; of a single row nothing.
fn halves<T: Copy>(rows: &[T]) -> Vec<Vec<T>> {
    if rows.len() < 2 {
        return Vec::new();
    }
    let (left, right) = rows.split_at(rows.len() / 2);
    vec![right.to_vec(), left.to_vec()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What stays, and how many rows were tried for it.
    fn sifted(
        needed: &[u32],
        others: &[u32],
        is_well: impl Fn(&[u32]) -> bool,
    ) -> (Vec<u32>, usize) {
        sifted_with_units(needed, others, Vec::new(), is_well)
    }

    fn sifted_with_units(
        needed: &[u32],
        others: &[u32],
        units: Vec<Vec<u32>>,
        is_well: impl Fn(&[u32]) -> bool,
    ) -> (Vec<u32>, usize) {
        let mut sift = Sift::new(needed.to_vec(), others, units);
        let mut tried = 0;
        while let Some(Trial { mut rows, stays }) = sift.next() {
            tried += rows.len();
            let well = is_well(&rows);
            sift.told(well);
            if stays && well {
                assert_eq!(sift.next(), None);
                rows.sort_unstable();
                return (rows, tried);
            }
        }
        (Vec::new(), tried)
    }

    #[test]
    fn what_fails_for_itself_is_left_out_and_good_rows_are_hardly_tried_again() {
        let others: Vec<u32> = (10..1_010).collect();
        let is_good = |row: &u32| *row < 10 || !row.is_multiple_of(3);
        let (rows, tried) = sifted(&[1, 3], &others, |rows| rows.iter().all(is_good));
        let good = [1, 3].into_iter().chain(others).filter(is_good);
        assert_eq!(rows, good.collect::<Vec<u32>>());
        assert!(tried < 20_000, "{tried} rows were tried");
    }

    #[test]
    fn of_what_is_in_each_others_way_one_stays() {
        let is_well = |rows: &[u32]| !(rows.contains(&12) && rows.contains(&17));
        let others: Vec<u32> = (10..20).collect();
        let (rows, _) = sifted(&[1], &others, is_well);
        assert_eq!(rows, [1, 10, 11, 12, 13, 14, 15, 16, 18, 19]);
    }

    #[test]
    fn nothing_stays_without_what_is_needed() {
        assert_eq!(sifted(&[1], &[2, 3], |_| false), (vec![], 1));
        assert_eq!(sifted(&[1], &[], |_| true), (vec![], 0));
        assert_eq!(sifted(&[], &[1], |_| true), (vec![], 0));
        assert_eq!(sifted(&[1], &[2], |rows| rows == [1]).0, [1]);
    }

    #[test]
    fn a_bad_row_for_which_others_wait_takes_only_these_along() {
        // 1 and 2 are needed by what follows them with the same tens; 2 is bad.
        let units = vec![
            vec![1],
            vec![2],
            vec![1, 11],
            vec![2, 21],
            vec![1, 12],
            vec![22, 2],
        ];
        let is_well = |rows: &[u32]| !rows.contains(&2);
        let (rows, tried) = sifted_with_units(&[1, 2], &[11, 21, 12, 22], units, is_well);
        assert_eq!(rows, [1, 11, 12]);
        assert!(tried < 15, "{tried} rows were tried");
    }

    #[test]
    fn trying_ends() {
        let needed: Vec<u32> = (0..10_000).collect();
        let others: Vec<u32> = (10_000..20_000).collect();
        let (rows, tried) = sifted(&needed, &others, |rows| rows.len() <= 10_000);
        assert_eq!(rows, needed);
        assert!(tried < 2 * MOST_TRIED, "{tried} rows were tried");
    }
}
