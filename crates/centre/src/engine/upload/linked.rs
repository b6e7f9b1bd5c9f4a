//! Rows of one upload that need each other, found from the upload alone.
//!
//! A parent under another key is a delete, an insert, and updates of its children. Where it has a
//! unique value besides its key, the insert needs what the delete frees, the children need the
//! insert, and the delete takes the children along that have not gone yet: one after another none
//! of them can be applied, together all can. So it is with rows that refer to each other, and
//! with rows that exchange unique values. How an adapter does it together is its own affair.
//!
//! Where children refer to such a unique value, they stay on the remote, and nothing of them is
//! uploaded. A delete would take them along for good, so the deleted row has to become the inserted
//! one: that is a [`Succession`]. Where that cannot be done, see
//! [`crate::engine::upload::handovers`].

use std::collections::{BTreeSet, HashMap, HashSet};

use tidewater_protocol::pack::pack_values;
use tidewater_protocol::{Code, ColumnType, Datum, Op, PublicationSchema, Row, Table};

use crate::engine::upload::columns::ColumnMap;

/// Groups of more rows are not taken apart.
const MOST_UNITS: usize = 1_000;

/// Whether a row that was refused so may have waited for another one.
pub(crate) fn may_wait(code: Code) -> bool {
    matches!(code, Code::RowForeignKey | Code::RowKeyInUse)
}

/// Rows by what links them; each has a number, in the order in which they are added.
pub(crate) struct Links<'s> {
    ties: Vec<Tie<'s>>,
    rows: Vec<Op>,
    /// Which of them failed because others have their unique values.
    lack_value: HashSet<usize>,
    /// Which row makes a value, or frees it, by tie.
    offers: HashMap<Offer, usize>,
    /// Which rows have to wait for that.
    wants: Vec<(Offer, usize)>,
}

/// Rows that may need each other.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Group {
    /// Their numbers, ascending.
    pub(crate) rows: Vec<usize>,
    /// Those of them for which others wait; each of the rest can be left out.
    pub(crate) needed: HashSet<usize>,
    /// Those that take the place of others.
    pub(crate) successions: Vec<Succession>,
    /// Which row cannot be applied without which other one.
    needs: Vec<(usize, usize)>,
    /// Whether a row among them leaves another that is deleted.
    leaves_a_deleted_row: bool,
}

impl Group {
    /// For each row, it and what it cannot be applied without, ascending; those last that delete.
    /// None where the group is large.
    pub(crate) fn units(&self, is_delete: impl Fn(usize) -> bool) -> Vec<Vec<usize>> {
        if self.rows.len() > MOST_UNITS {
            return Vec::new();
        }
        let mut needs: HashMap<usize, Vec<usize>> = HashMap::new();
        for &(row, needed) in &self.needs {
            needs.entry(row).or_default().push(needed);
        }
        let (deletes, others): (Vec<usize>, Vec<usize>) =
            self.rows.iter().partition(|&&row| is_delete(row));
        let units = others.into_iter().chain(deletes).map(|row| {
            let mut unit = BTreeSet::from([row]);
            let mut waiting = vec![row];
            while let Some(row) = waiting.pop() {
                let needed = needs.get(&row).into_iter().flatten();
                waiting.extend(needed.filter(|&&it| unit.insert(it)));
            }
            unit.into_iter().collect()
        });
        units.collect()
    }

    /// Whether deletes that act would do what cannot be mended afterwards.
    pub(crate) fn precedes_deletes(&self) -> bool {
        self.leaves_a_deleted_row || !self.successions.is_empty()
    }
}

/// A row that is deleted, and one that is inserted in its place: with a unique value of it to which
/// foreign keys refer that act on deletes. By their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Succession {
    pub(crate) deleted: usize,
    pub(crate) inserted: usize,
}

/// A foreign key between tables of the publication, or a unique constraint.
struct Tie<'s> {
    child: usize,
    columns: &'s [usize],
    parent: usize,
    parent_columns: Vec<usize>,
    is_unique: bool,
    /// Whether foreign keys refer to the columns of a unique constraint, and act on deletes.
    is_referred_to: bool,
    /// Whether the database itself sees to what still refers to a row that is deleted, or updated.
    acts: [bool; 2],
    /// What values are compared as.
    types: Vec<ColumnType>,
}

/// What a row does to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Side {
    Gone,
    Come,
}

/// A row that waits for another one.
struct Want<'a> {
    offering: usize,
    wanting: usize,
    tie: &'a Tie<'a>,
    /// It has to leave that one.
    is_left: bool,
}

/// Tie, side, packed value.
type Offer = (usize, Side, Vec<u8>);

impl<'s> Links<'s> {
    pub(crate) fn new(schema: &'s PublicationSchema) -> Links<'s> {
        let mut ties = Vec::new();
        for (child, table) in schema.tables.iter().enumerate() {
            for foreign_key in &table.foreign_keys {
                let mut tables = schema.tables.iter();
                let Some(parent) = tables.position(|it| it.name == foreign_key.parent) else {
                    continue;
                };
                let columns = &schema.tables[parent].columns;
                let position =
                    |name: &String| columns.iter().position(|column| column.name == *name);
                let parent_columns = foreign_key.parent_columns.iter().map(position);
                let Some(parent_columns) = parent_columns.collect::<Option<Vec<_>>>() else {
                    continue;
                };
                ties.push(Tie {
                    child,
                    columns: &foreign_key.columns,
                    parent,
                    types: parent_columns
                        .iter()
                        .map(|&it| columns[it].column_type)
                        .collect(),
                    parent_columns,
                    is_unique: false,
                    is_referred_to: false,
                    acts: [foreign_key.on_delete.acts(), foreign_key.on_update.acts()],
                });
            }
            for columns in &table.unique {
                ties.push(Tie {
                    child,
                    columns,
                    parent: child,
                    parent_columns: columns.clone(),
                    is_unique: true,
                    is_referred_to: is_referred_to(schema, table, columns),
                    acts: [false; 2],
                    types: columns
                        .iter()
                        .map(|&it| table.columns[it].column_type)
                        .collect(),
                });
            }
        }
        Links {
            ties,
            rows: Vec::new(),
            lack_value: HashSet::new(),
            offers: HashMap::new(),
            wants: Vec::new(),
        }
    }

    /// Whether rows of a table can be linked to anything.
    pub(crate) fn concern(&self, table: usize) -> bool {
        let mut ties = self.ties.iter();
        ties.any(|tie| tie.child == table || tie.parent == table)
    }

    /// Adds a row of a table as its remote sent it; `failed` is why it failed, as the centre is now.
    pub(crate) fn add_failed(
        &mut self,
        table: usize,
        map: &ColumnMap,
        row: &Row<'_>,
        failed: Code,
    ) {
        if failed == Code::RowKeyInUse {
            self.lack_value.insert(self.rows.len());
        }
        self.add(table, map, row);
    }

    /// The same of one that was not tried.
    pub(crate) fn add(&mut self, table: usize, map: &ColumnMap, row: &Row<'_>) {
        let number = self.rows.len();
        let op = row.op.unwrap_or(Op::Insert);
        self.rows.push(op);
        let has_old = op != Op::Insert;
        let has_new = op != Op::Delete;
        for (index, tie) in self.ties.iter().enumerate() {
            let values = |columns: &[usize]| {
                let old = has_old
                    .then(|| tie.values(columns, map, &row.old))
                    .flatten();
                let new = has_new
                    .then(|| tie.values(columns, map, &row.new))
                    .flatten();
                // What stays as it is waits for nobody.
                (old != new).then_some((old, new))
            };
            if tie.parent == table
                && let Some((old, new)) = values(&tie.parent_columns)
            {
                if let Some(old) = old {
                    self.offers.insert((index, Side::Gone, old), number);
                }
                if let Some(new) = new.filter(|_| !tie.is_unique) {
                    self.offers.insert((index, Side::Come, new), number);
                }
            }
            if tie.child == table
                && let Some((old, new)) = values(tie.columns)
            {
                if tie.is_unique {
                    let wanted = new.map(|new| ((index, Side::Gone, new), number));
                    self.wants.extend(wanted);
                    continue;
                }
                let left = old.map(|old| ((index, Side::Gone, old), number));
                self.wants.extend(left);
                let entered = new.map(|new| ((index, Side::Come, new), number));
                self.wants.extend(entered);
            }
        }
    }

    /// The groups of at least two rows.
    pub(crate) fn groups(self) -> Vec<Group> {
        let mut chiefs: Vec<usize> = (0..self.rows.len()).collect();
        let mut leavers = Vec::new();
        let mut needed = HashSet::new();
        let mut needs = Vec::new();
        let hopeful = self.hopeful();
        for Want {
            offering,
            wanting,
            tie,
            is_left,
        } in self.met()
        {
            if !hopeful[offering] || !hopeful[wanting] {
                continue;
            }
            needed.insert(offering);
            let [on_delete, on_update] = tie.acts;
            if is_left && self.rows[offering] == Op::Delete {
                if self.rows[wanting] == Op::Update {
                    leavers.push(offering);
                }
                if !on_delete {
                    needed.insert(wanting);
                    needs.push((offering, wanting));
                }
            } else if is_left && !on_update {
                needed.insert(wanting);
                needs.push((offering, wanting));
            }
            if !is_left {
                needs.push((wanting, offering));
            }
            let (a, b) = (chief(&mut chiefs, offering), chief(&mut chiefs, wanting));
            // The lowest number leads, so that groups come in the order of their first rows.
            chiefs[a.max(b)] = a.min(b);
        }
        let mut groups: Vec<Group> = Vec::new();
        let mut places: HashMap<usize, usize> = HashMap::new();
        for row in 0..self.rows.len() {
            let place = *places
                .entry(chief(&mut chiefs, row))
                .or_insert(groups.len());
            if place == groups.len() {
                groups.push(Group::default());
            }
            groups[place].rows.push(row);
            if needed.contains(&row) {
                groups[place].needed.insert(row);
            }
        }
        for need in needs {
            groups[places[&chief(&mut chiefs, need.0)]].needs.push(need);
        }
        for row in leavers {
            groups[places[&chief(&mut chiefs, row)]].leaves_a_deleted_row = true;
        }
        let mut paired = HashSet::new();
        for want in self.met().filter(|want| want.tie.is_referred_to) {
            let (deleted, inserted) = (want.offering, want.wanting);
            let is_pair = self.rows[deleted] == Op::Delete && self.rows[inserted] == Op::Insert;
            let can_be = is_pair && hopeful[inserted];
            if can_be && !paired.contains(&deleted) && paired.insert(inserted) {
                paired.insert(deleted);
                let group = &mut groups[places[&chief(&mut chiefs, inserted)]];
                group.successions.push(Succession { deleted, inserted });
                group.needed.insert(inserted);
                group.needs.push((deleted, inserted));
            }
        }
        groups.retain(|group| group.rows.len() > 1);
        groups
    }

    /// The wants for which there is an offer.
    fn met(&self) -> impl Iterator<Item = Want<'_>> {
        self.wants.iter().filter_map(|(offer, wanting)| {
            let offering = self.offers.get(offer).filter(|it| *it != wanting)?;
            let (tie, side, _) = offer;
            let tie = &self.ties[*tie];
            Some(Want {
                offering: *offering,
                wanting: *wanting,
                tie,
                is_left: *side == Side::Gone && !tie.is_unique,
            })
        })
    }

    /// Which rows another one can help: deletes, which are still to come; what wants something
    /// that is offered; and what others have to leave. All the rest fails for itself, as does what
    /// lacks a unique value that nobody offers.
    fn hopeful(&self) -> Vec<bool> {
        let mut hopeful = vec![true; self.rows.len()];
        loop {
            let mut next: Vec<bool> = self.rows.iter().map(|op| *op == Op::Delete).collect();
            for want in self.met() {
                if hopeful[want.offering] && hopeful[want.wanting] {
                    let helped = if want.is_left {
                        want.offering
                    } else {
                        want.wanting
                    };
                    next[helped] |= want.tie.is_unique || !self.lack_value.contains(&helped);
                }
            }
            if next == hopeful {
                return hopeful;
            }
            hopeful = next;
        }
    }
}

/// Whether foreign keys refer to some columns of a table, and act on deletes.
fn is_referred_to(schema: &PublicationSchema, table: &Table, columns: &[usize]) -> bool {
    let is_meant = |name: &String| columns.iter().any(|&it| table.columns[it].name == *name);
    let mut keys = schema.tables.iter().flat_map(|it| &it.foreign_keys);
    keys.any(|key| {
        key.parent == table.name
            && key.on_delete.acts()
            && key.parent_columns.len() == columns.len()
            && key.parent_columns.iter().all(is_meant)
    })
}

/// The row that leads the group of another.
fn chief(chiefs: &mut [usize], mut row: usize) -> usize {
    while chiefs[row] != row {
        chiefs[row] = chiefs[chiefs[row]];
        row = chiefs[row];
    }
    row
}

impl Tie<'_> {
    fn values(&self, columns: &[usize], map: &ColumnMap, row: &[Datum<'_>]) -> Option<Vec<u8>> {
        pack_columns(columns.iter().zip(&self.types), map, row)
    }
}

/// The packed values of some columns, each with the type that it is compared as; `None` if one is
/// NULL, or not sent.
pub(crate) fn pack_columns<'c>(
    columns: impl Iterator<Item = (&'c usize, &'c ColumnType)>,
    map: &ColumnMap,
    row: &[Datum<'_>],
) -> Option<Vec<u8>> {
    let mut packed = Vec::new();
    for (&column, &column_type) in columns {
        let value = row.get(map.sources[column]?)?.to_value();
        let datum = column_type.datum(value.as_ref()).0;
        if datum == Datum::Null {
            return None;
        }
        pack_values(&mut packed, &[column_type], &[datum]);
    }
    Some(packed)
}
