//! Rows of one upload that need each other: a department and its head, two rows that exchange a
//! unique value, a parent whose key changes and the children that have to leave the old one.
//!
//! One after the other none of them can be written, all at once they can. Which rows these are is
//! found from the upload alone, among those that failed: each row points to those without which it
//! cannot be, and a circle is a strongly connected part of that graph (Tarjan). Whatever only waits
//! for a circle is none of it, so that a bad row fails for itself.

use std::collections::HashMap;

use tidewater_protocol::{ColumnType, Op, PublicationSchema, UnpackedRow};

use crate::engine::upload::column_map::ColumnMap;
use crate::engine::upload::foreign_keys::{PublishedForeignKey, pack_sent};

/// Rows by what they need; each has a number, in the order in which they are added.
pub(crate) struct KeyCycles<'s> {
    foreign_keys: &'s [PublishedForeignKey],
    uniques: Vec<UniqueColumns>,
    rows: usize,
    /// Which row brings a value to which others refer, by foreign key.
    brought: HashMap<Value, usize>,
    /// Which row takes such a value away.
    withdrawn: Vec<(Value, usize)>,
    /// Which rows leave the one with such a value.
    left: HashMap<Value, Vec<usize>>,
    /// Which rows begin to refer to a value.
    wanted: Vec<(Value, usize)>,
    /// Which row frees a unique value, by unique constraint.
    freed: HashMap<Value, usize>,
    /// Which rows take one.
    taken: Vec<(Value, usize)>,
}

/// The number of the foreign key or unique constraint, the packed value.
type Value = (usize, Vec<u8>);

/// Columns whose values only one row has.
struct UniqueColumns {
    table: usize,
    columns: Vec<usize>,
    types: Vec<ColumnType>,
}

impl<'s> KeyCycles<'s> {
    pub(crate) fn new(
        schema: &PublicationSchema,
        foreign_keys: &'s [PublishedForeignKey],
    ) -> KeyCycles<'s> {
        let mut uniques = Vec::new();
        for (index, table) in schema.tables.iter().enumerate() {
            for columns in std::iter::once(&table.key).chain(&table.unique) {
                let types = columns.iter().map(|&it| table.columns[it].column_type);
                uniques.push(UniqueColumns {
                    table: index,
                    columns: columns.clone(),
                    types: types.collect(),
                });
            }
        }
        KeyCycles {
            foreign_keys,
            uniques,
            rows: 0,
            brought: HashMap::new(),
            withdrawn: Vec::new(),
            left: HashMap::new(),
            wanted: Vec::new(),
            freed: HashMap::new(),
            taken: Vec::new(),
        }
    }

    /// Adds a row of a table as its remote sent it.
    pub(crate) fn add(&mut self, table: usize, map: &ColumnMap, row: &UnpackedRow<'_>) {
        let number = self.rows;
        self.rows += 1;
        let op = row.op.unwrap_or(Op::Insert);
        let of = |value: &dyn Fn(&[_]) -> Option<Vec<u8>>| {
            let old = (op != Op::Insert).then(|| value(&row.old)).flatten();
            let new = (op != Op::Delete).then(|| value(&row.new)).flatten();
            // What stays as it is waits for nobody.
            (old != new).then_some((old, new))
        };
        for (at, foreign_key) in self.foreign_keys.iter().enumerate() {
            if foreign_key.parent == table
                && let Some((old, new)) = of(&|row| foreign_key.referred(map, row))
            {
                self.withdrawn.extend(old.map(|old| ((at, old), number)));
                self.brought.extend(new.map(|new| ((at, new), number)));
            }
            if foreign_key.child == table
                && let Some((old, new)) = of(&|row| foreign_key.referring(map, row))
            {
                if let Some(old) = old {
                    self.left.entry((at, old)).or_default().push(number);
                }
                self.wanted.extend(new.map(|new| ((at, new), number)));
            }
        }
        for (at, unique) in self.uniques.iter().enumerate() {
            let value = |row: &[_]| pack_sent(&unique.columns, &unique.types, map, row);
            if unique.table == table
                && let Some((old, new)) = of(&value)
            {
                self.freed.extend(old.map(|old| ((at, old), number)));
                self.taken.extend(new.map(|new| ((at, new), number)));
            }
        }
    }

    /// The circles, each in ascending order; whatever a circle needs comes before it.
    pub(crate) fn find(self) -> Vec<Vec<usize>> {
        let mut needs: Vec<Vec<usize>> = vec![Vec::new(); self.rows];
        let mut need = |row: usize, other: usize| {
            if row != other {
                needs[row].push(other);
            }
        };
        for (value, row) in &self.wanted {
            self.brought
                .get(value)
                .iter()
                .for_each(|&&it| need(*row, it));
        }
        for (value, row) in &self.taken {
            self.freed.get(value).iter().for_each(|&&it| need(*row, it));
        }
        for (value, row) in &self.withdrawn {
            let left = self.left.get(value).into_iter().flatten();
            left.for_each(|&it| need(*row, it));
        }
        let mut circles = strongly_connected(&needs);
        circles.retain(|circle| circle.len() > 1);
        for circle in &mut circles {
            circle.sort_unstable();
        }
        circles
    }
}

/// The strongly connected parts of a graph, those that others point to first.
fn strongly_connected(edges: &[Vec<usize>]) -> Vec<Vec<usize>> {
    const NEW: usize = usize::MAX;
    let mut order = vec![NEW; edges.len()];
    let mut low = vec![NEW; edges.len()];
    let mut is_open = vec![false; edges.len()];
    let (mut open, mut found) = (Vec::new(), Vec::new());
    let mut count = 0;
    for root in 0..edges.len() {
        // The path from the root, with the edge that each is looked at along.
        let mut path = vec![(root, 0)];
        while let Some((row, edge)) = path.pop() {
            if edge == 0 {
                if order[row] != NEW {
                    continue;
                }
                (order[row], low[row]) = (count, count);
                count += 1;
                open.push(row);
                is_open[row] = true;
            } else {
                let before = edges[row][edge - 1];
                if is_open[before] {
                    low[row] = low[row].min(low[before]);
                }
            }
            if let Some(&next) = edges[row].get(edge) {
                path.push((row, edge + 1));
                path.push((next, 0));
            } else if low[row] == order[row] {
                let from = open.iter().rposition(|&it| it == row);
                let part = open.split_off(from.unwrap_or_default());
                part.iter().for_each(|&it| is_open[it] = false);
                found.push(part);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(edges: &[&[usize]]) -> Vec<Vec<usize>> {
        let edges: Vec<Vec<usize>> = edges.iter().map(|it| it.to_vec()).collect();
        let mut parts = strongly_connected(&edges);
        parts.iter_mut().for_each(|part| part.sort_unstable());
        parts
    }

    #[test]
    fn what_is_needed_comes_first() {
        assert_eq!(parts(&[&[1], &[0], &[0]]), [vec![0, 1], vec![2]]);
        assert_eq!(
            parts(&[&[2], &[0, 3], &[1], &[4], &[3], &[]]),
            [vec![3, 4], vec![0, 1, 2], vec![5]]
        );
        assert_eq!(parts(&[&[1], &[2], &[]]), [[2], [1], [0]]);
    }

    #[test]
    fn a_long_chain_needs_no_stack() {
        let mut edges: Vec<Vec<usize>> = (1..100_000).map(|it| vec![it]).collect();
        edges.push(vec![0]);
        assert_eq!(strongly_connected(&edges).len(), 1);
    }
}
