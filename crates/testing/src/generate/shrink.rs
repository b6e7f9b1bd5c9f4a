//! A failing case, made smaller: steps, tables, references and columns are taken away as
//! long as it still fails.

use proptest::strategy::ValueTree;

use super::Case;
use super::schema::Leaves;

/// A case and what may be taken away from it.
#[derive(Debug, Clone)]
pub struct CaseTree {
    /// The smallest one that is known to fail.
    best: Case,
    current: Case,
    cursor: Cursor,
}

/// What is tried next: the next `size` steps from `at`; then the parts of the schema.
#[derive(Debug, Clone, Copy)]
enum Cursor {
    Steps { size: usize, at: usize },
    Part(usize),
    Done,
}

impl CaseTree {
    /// Nothing has been taken away yet.
    pub fn new(case: Case) -> CaseTree {
        CaseTree {
            cursor: Cursor::Steps {
                size: (case.steps.len() / 2).max(1),
                at: 0,
            },
            best: case.clone(),
            current: case,
        }
    }

    /// Takes the next thing away from the best case; false when nothing is left to try.
    fn advance(&mut self) -> bool {
        loop {
            match self.cursor {
                Cursor::Steps { size, at } if at < self.best.steps.len() => {
                    self.cursor = Cursor::Steps {
                        size,
                        at: at + size,
                    };
                    let end = (at + size).min(self.best.steps.len());
                    self.current = self.best.clone();
                    self.current.steps.drain(at..end);
                    return true;
                }
                Cursor::Steps { size: 1, .. } => self.cursor = Cursor::Part(0),
                Cursor::Steps { size, .. } => {
                    self.cursor = Cursor::Steps {
                        size: size / 2,
                        at: 0,
                    };
                }
                Cursor::Part(number) => {
                    self.cursor = Cursor::Part(number + 1);
                    match without_part(&self.best, number) {
                        Some(smaller) => {
                            self.current = smaller;
                            return true;
                        }
                        None => self.cursor = Cursor::Done,
                    }
                }
                Cursor::Done => return false,
            }
        }
    }
}

impl ValueTree for CaseTree {
    type Value = Case;

    fn current(&self) -> Case {
        self.current.clone()
    }

    fn simplify(&mut self) -> bool {
        // What was tried last failed as well: the next of the same size stands in its place.
        match &mut self.cursor {
            Cursor::Steps { size, at } if self.current.steps.len() < self.best.steps.len() => {
                *at -= *size;
            }
            Cursor::Part(number) if *number > 0 => *number -= 1,
            _ => {}
        }
        self.best = self.current.clone();
        self.advance()
    }

    fn complicate(&mut self) -> bool {
        self.current = self.best.clone();
        self.advance()
    }
}

/// The case without one table, reference, unique constraint, partition or column; `None` if
/// there are fewer parts than that.
fn without_part(case: &Case, number: usize) -> Option<Case> {
    let mut smaller = case.clone();
    let mut left = number;
    let tables = &mut smaller.schema.tables;
    // A table goes with everything that refers to it; the last one stays.
    if left < tables.len() && tables.len() > 1 {
        let id = tables.remove(left).id;
        for table in tables {
            let refers = table.references.iter().any(|it| it.parent == id);
            table.references.retain(|it| !(refers && it.parent == id));
        }
        let triggers = &mut smaller.schema.triggers;
        triggers.retain(|&(from, to)| from != id && to != id);
        return Some(smaller);
    }
    left = left.saturating_sub(tables.len());
    if left < smaller.schema.triggers.len() {
        smaller.schema.triggers.remove(left);
        return Some(smaller);
    }
    left -= smaller.schema.triggers.len();
    if smaller.schema.as_role {
        if left == 0 {
            smaller.schema.as_role = false;
            return Some(smaller);
        }
        left -= 1;
    }
    let references = tables.iter().flat_map(|it| &it.references);
    let pointed_at: Vec<(usize, Vec<usize>)> = references
        .map(|it| (it.parent, it.parent_columns.clone()))
        .collect();
    for table in tables.iter_mut() {
        if left < table.references.len() {
            table.references.remove(left);
            return Some(smaller);
        }
        left -= table.references.len();
        // References need the constraint that they name.
        let is_free = |it: &Vec<usize>| !pointed_at.contains(&(table.id, it.clone()));
        let mut free = (0..table.uniques.len()).filter(|&it| is_free(&table.uniques[it]));
        let count = free.clone().count();
        if let Some(unique) = free.nth(left) {
            table.uniques.remove(unique);
            return Some(smaller);
        }
        left -= count;
        if !table.partition.is_empty() {
            if left == 0 {
                table.partition.clear();
                return Some(smaller);
            }
            left -= 1;
        }
        if table.leaves != Leaves::None {
            if left == 0 {
                table.leaves = Leaves::None;
                return Some(smaller);
            }
            left -= 1;
        }
    }
    let tables = case.schema.tables.iter().enumerate();
    let columns = tables.flat_map(|(index, table)| {
        let columns = 0..table.columns.len();
        columns.map(move |column| (index, column))
    });
    let mut columns = columns.filter(|&(index, column)| !is_needed(case, index, column));
    let (index, column) = columns.nth(left)?;
    remove_column(&mut smaller, index, column);
    Some(smaller)
}

/// Whether something else names the column.
fn is_needed(case: &Case, index: usize, column: usize) -> bool {
    let table = &case.schema.tables[index];
    let tables = case.schema.tables.iter();
    let mut pointing = tables.flat_map(|it| &it.references);
    table.tag == column
        || table.key.contains(&column)
        || table.partition.contains(&column)
        || table.uniques.iter().any(|it| it.contains(&column))
        || table
            .references
            .iter()
            .any(|it| it.columns.contains(&column))
        || pointing.any(|it| it.parent == table.id && it.parent_columns.contains(&column))
}

fn remove_column(case: &mut Case, index: usize, column: usize) {
    let down = |it: &mut usize| {
        if *it > column {
            *it -= 1;
        }
    };
    let table = &mut case.schema.tables[index];
    let id = table.id;
    table.columns.remove(column);
    down(&mut table.tag);
    table.key.iter_mut().for_each(down);
    table.partition.iter_mut().for_each(down);
    table.uniques.iter_mut().flatten().for_each(down);
    for reference in &mut table.references {
        reference.columns.iter_mut().for_each(down);
    }
    if let Leaves::Hash(column) | Leaves::List(column) = &mut table.leaves {
        down(column);
    }
    for table in &mut case.schema.tables {
        let pointing = table.references.iter_mut().filter(|it| it.parent == id);
        pointing.for_each(|it| it.parent_columns.iter_mut().for_each(down));
    }
}
