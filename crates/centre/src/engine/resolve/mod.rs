//! What becomes of a row that two sides have changed: whose values it gets, column by column.
//!
//! Pure: it is given the pre-image, what the remote wants and what the centre has, and tells what
//! the row is to be. Which row that is, whether the remote may write it, and how it is written, is
//! the affair of [`super::upload`].

mod compute;
mod merge_text;
mod rules;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cmp::Ordering;

use tidewater_protocol::compare::compare_values;
use tidewater_protocol::{ColumnType, Datum, Value, pack};

pub use self::rules::compile;

use super::exact::canonical;
use crate::publication::ConflictDetection;

/// How conflicts of a table are resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolver {
    /// What a conflict is.
    pub detect: ConflictDetection,
    /// Columns that get a value from both sides, by their place among the published ones.
    pub computed: Vec<(usize, ComputedValue)>,
    /// Whose the others are.
    pub winner: Winner,
    /// The rank of what no upload has written; above all if there is none.
    pub centre_rank: Option<i64>,
    /// By whose remotes a conflict ends so; for the others the centre's row stands. Empty: by all.
    pub users: Vec<String>,
}

/// A value that is made of those of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputedValue {
    /// The centre's, and by how much the remote has changed its own.
    Additive,
    /// In the middle.
    Average,
    /// The lines that either side has changed.
    MergedText,
}

/// Whose values count where both sides have changed something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Winner {
    /// The centre's.
    #[default]
    Centre,
    /// The remote's.
    Remote,
    /// Whose value in this column is greater; the centre's if they are equal.
    Greater(usize),
    /// Whose value in this column is less; the centre's if they are equal.
    Less(usize),
    /// Whose user has the higher rank: that of the remote, or who has written the centre's row.
    Rank,
    /// The centre's, until the operator decides.
    Nobody,
    /// Whose a handler says.
    Handler,
    /// The centre's, but of an update, of which scripts make something.
    Script,
}

/// The images of a row that two sides have changed, in the published columns.
#[derive(Clone, Copy, Debug)]
pub struct Sides<'r, 'a> {
    /// The pre-image of the remote; `None` if it has inserted the row.
    pub old: Option<&'r [Datum<'a>]>,
    /// What it wants.
    pub new: &'r [Datum<'a>],
    /// What the centre has.
    pub central: &'r [Datum<'a>],
    /// The columns that the remote can write.
    pub written: &'r [usize],
    /// The centre may have the remote's change already: the remote's file is a copy, and the
    /// original may have sent it.
    pub may_be_in: bool,
    /// The remote's user has a higher rank than who has written the centre's row.
    pub outranks: bool,
}

/// Who has written a row of the centre.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowWriter {
    /// A user of this rank, by an upload.
    User(Option<i64>),
    /// Somebody else: an application of the centre.
    Centre,
}

impl Sides<'_, '_> {
    /// Whether the remote has changed a column, and whether the centre has.
    fn changed_by(&self, column: usize) -> (bool, bool) {
        let differs =
            |row: &[Datum<'_>]| self.old.is_none_or(|old| !same(&row[column], &old[column]));
        (differs(self.new), differs(self.central))
    }

    fn is_contended(&self, column: usize) -> bool {
        self.changed_by(column) == (true, true)
    }

    fn is_equal(&self, column: usize) -> bool {
        same(&self.new[column], &self.central[column])
    }
}

/// What a row is to be.
#[derive(Clone, Debug, PartialEq)]
pub enum ResolvedRow {
    /// As the centre has it.
    Centre,
    /// The same, until the operator decides.
    Parked,
    /// What a handler says.
    Asked,
    /// These columns as the remote has them, and these computed; the others as in the centre.
    Merged {
        /// By column.
        from_remote: Vec<usize>,
        /// By column, as the remote would store them.
        computed: Vec<(usize, Value)>,
        /// Both sides have changed the same column.
        is_conflict: bool,
    },
}

impl Resolver {
    /// Whether a conflict can end otherwise than as the centre has it.
    pub fn is_default(&self) -> bool {
        *self == Resolver::default()
    }

    /// How conflicts of an upload by this user are resolved. What a restored centre gets back is
    /// older than what the centre has: of that only sums count.
    pub fn for_upload(&self, user: &str, given_back: bool) -> Cow<'_, Resolver> {
        if given_back {
            let sums = self.computed.iter().copied();
            return Cow::Owned(Resolver {
                computed: sums.filter(|it| it.1 == ComputedValue::Additive).collect(),
                ..Resolver::default()
            });
        }
        match self.users.is_empty() || self.users.iter().any(|it| it == user) {
            true => Cow::Borrowed(self),
            false => Cow::Owned(Resolver {
                winner: Winner::Centre,
                ..self.clone()
            }),
        }
    }

    /// How an operator writes a row over whatever the centre has: what he does not change stays, and
    /// of a sum the difference counts.
    pub fn insisting(&self) -> Resolver {
        let sums = self.computed.iter().copied();
        Resolver {
            detect: ConflictDetection::Column,
            computed: sums.filter(|it| it.1 == ComputedValue::Additive).collect(),
            winner: Winner::Remote,
            centre_rank: None,
            users: Vec::new(),
        }
    }

    /// The columns of sums.
    pub fn sums(&self) -> impl Iterator<Item = usize> {
        let sums = self
            .computed
            .iter()
            .filter(|it| it.1 == ComputedValue::Additive);
        sums.map(|it| it.0)
    }

    /// What the centre's value becomes by a remote's change of its own, if all of them are numbers.
    pub fn sum(
        column_type: ColumnType,
        old: Option<Datum<'_>>,
        new: Datum<'_>,
        central: Datum<'_>,
    ) -> Option<Value> {
        compute::compute(ComputedValue::Additive, column_type, old, new, central)
    }

    /// By how much a remote has changed a number, with its sign; `None` if it has not.
    pub fn difference(old: Datum<'_>, new: Datum<'_>) -> Option<String> {
        compute::difference(old, new)
    }

    /// Whether two sides that have given a column the same value have made two changes, and not
    /// one: of sums, and of whatever programs and scripts make of both.
    fn counts_equal(&self, column: usize) -> bool {
        let is_asked = matches!(self.winner, Winner::Handler | Winner::Script);
        is_asked || self.computed.contains(&(column, ComputedValue::Additive))
    }

    /// Whether a row that both sides have made the same has to be resolved all the same.
    pub fn resolves_equal(&self, sides: Sides<'_, '_>) -> bool {
        let mut written = sides.written.iter();
        written.any(|&column| self.counts_equal(column) && sides.is_contended(column))
    }

    /// Whether what this resolver makes of both sides is wrong where the centre has the remote's
    /// change already: a sum would count it twice. Its operator has to decide then.
    pub fn counts_twice(&self, sides: Sides<'_, '_>) -> bool {
        sides.may_be_in && self.resolves_equal(sides)
    }

    /// What a row is to be that is there, and was changed by both sides.
    pub fn resolve(&self, types: &[ColumnType], sides: Sides<'_, '_>) -> ResolvedRow {
        if self.counts_twice(sides) {
            return ResolvedRow::Parked;
        }
        let Sides {
            old, new, central, ..
        } = sides;
        let (mut from_remote, mut contended) = (Vec::new(), Vec::new());
        for &column in sides.written {
            let counts =
                !sides.is_equal(column) || self.counts_equal(column) && sides.is_contended(column);
            match self.detect {
                _ if !counts => {}
                ConflictDetection::Row => contended.push(column),
                ConflictDetection::Column => match sides.changed_by(column) {
                    (true, false) => from_remote.push(column),
                    (true, true) => contended.push(column),
                    (false, _) => {}
                },
            }
        }
        let is_conflict = !contended.is_empty();
        if is_conflict && self.winner == Winner::Handler {
            return ResolvedRow::Asked;
        }
        let mut computed = Vec::new();
        for &(column, how) in &self.computed {
            let Some(place) = contended.iter().position(|it| *it == column) else {
                continue;
            };
            let old = old.map(|it| it[column]);
            match sides.changed_by(column) {
                (true, true) => {
                    let (new, central) = (new[column], central[column]);
                    match compute::compute(how, types[column], old, new, central) {
                        Some(value) => computed.push((column, value)),
                        // There is nothing to decide between the two.
                        None if sides.is_equal(column) => {}
                        None => continue,
                    }
                }
                (true, false) => from_remote.push(column),
                (false, _) => {}
            }
            contended.remove(place);
        }
        if !contended.is_empty() && self.winner == Winner::Nobody {
            return ResolvedRow::Parked;
        }
        if self.remote_wins(sides) {
            from_remote.append(&mut contended);
        }
        match from_remote.is_empty() && computed.is_empty() {
            true => ResolvedRow::Centre,
            false => ResolvedRow::Merged {
                from_remote,
                computed,
                is_conflict,
            },
        }
    }

    /// Whether a row is there in the end that one side has changed and the other one has deleted.
    /// `by_remote`: the remote is the one that has changed it.
    pub fn survives(&self, by_remote: bool) -> bool {
        match self.winner {
            Winner::Centre | Winner::Nobody | Winner::Handler | Winner::Script => !by_remote,
            Winner::Remote => by_remote,
            // There is nothing to compare with: whoever has worked on the row keeps it.
            Winner::Greater(_) | Winner::Less(_) | Winner::Rank => true,
        }
    }

    /// Whether a user of this rank goes before who has written the centre's row. Who has no rank
    /// goes before nobody.
    pub fn outranks(&self, rank: Option<i64>, writer: RowWriter) -> bool {
        match (rank, writer) {
            (None, _) => false,
            (Some(_), RowWriter::User(None)) => true,
            (Some(rank), RowWriter::User(Some(theirs))) => rank > theirs,
            (Some(rank), RowWriter::Centre) => self.centre_rank.is_some_and(|it| rank > it),
        }
    }

    fn remote_wins(&self, sides: Sides<'_, '_>) -> bool {
        let Sides { new, central, .. } = sides;
        let order = |column: usize| compare_nullable(&new[column], &central[column]);
        match self.winner {
            Winner::Centre | Winner::Nobody | Winner::Handler | Winner::Script => false,
            Winner::Remote => true,
            Winner::Rank => sides.outranks,
            Winner::Greater(column) => order(column) == Some(Ordering::Greater),
            Winner::Less(column) => order(column) == Some(Ordering::Less),
        }
    }
}

/// Whether two values of a column are the same to the centre.
fn same(one: &Datum<'_>, other: &Datum<'_>) -> bool {
    pack::same(&canonical(*one), &canonical(*other))
}

/// The order of two values; against NULL any other value wins, whichever way is asked for.
fn compare_nullable(new: &Datum<'_>, central: &Datum<'_>) -> Option<Ordering> {
    match (new, central) {
        (Datum::Null, _) | (_, Datum::Null) => None,
        (new, central) => Some(compare_values(new, central)),
    }
}
