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
use crate::publication::Detect;

/// How conflicts of a table are resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolver {
    /// What a conflict is.
    pub detect: Detect,
    /// Columns that get a value from both sides, by their place among the published ones.
    pub computed: Vec<(usize, Computed)>,
    /// Whose the others are.
    pub winner: Winner,
    /// By whose remotes a conflict ends so; for the others the centre's row stands. Empty: by all.
    pub users: Vec<String>,
}

/// A value that is made of those of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Computed {
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
}

/// What a row is to be.
#[derive(Clone, Debug, PartialEq)]
pub enum Resolved {
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

    /// How conflicts of this user's remotes are resolved.
    pub fn of_user(&self, user: &str) -> Cow<'_, Resolver> {
        match self.users.is_empty() || self.users.iter().any(|it| it == user) {
            true => Cow::Borrowed(self),
            false => Cow::Owned(Resolver {
                winner: Winner::Centre,
                ..self.clone()
            }),
        }
    }

    /// What a row is to be that is there, and was changed by both sides.
    pub fn resolve(&self, types: &[ColumnType], sides: Sides<'_, '_>) -> Resolved {
        let Sides {
            old,
            new,
            central,
            written,
        } = sides;
        let differs = |one: &Datum<'_>, other: &Datum<'_>| !same(one, other);
        let changed_by_remote =
            |column: usize| old.is_none_or(|old| differs(&new[column], &old[column]));
        let changed_by_centre =
            |column: usize| old.is_none_or(|old| differs(&central[column], &old[column]));
        let (mut from_remote, mut contended) = (Vec::new(), Vec::new());
        for &column in written {
            if !differs(&new[column], &central[column]) {
                continue;
            }
            match self.detect {
                Detect::Row => contended.push(column),
                Detect::Column => match (changed_by_remote(column), changed_by_centre(column)) {
                    (true, false) => from_remote.push(column),
                    (true, true) => contended.push(column),
                    (false, _) => {}
                },
            }
        }
        let is_conflict = !contended.is_empty();
        if is_conflict && self.winner == Winner::Handler {
            return Resolved::Asked;
        }
        let mut computed = Vec::new();
        for &(column, how) in &self.computed {
            let Some(place) = contended.iter().position(|it| *it == column) else {
                continue;
            };
            let old = old.map(|it| it[column]);
            match (changed_by_remote(column), changed_by_centre(column)) {
                (true, true) => {
                    let (new, central) = (new[column], central[column]);
                    let Some(value) = compute::compute(how, types[column], old, new, central)
                    else {
                        continue;
                    };
                    computed.push((column, value));
                }
                (true, false) => from_remote.push(column),
                (false, _) => {}
            }
            contended.remove(place);
        }
        if !contended.is_empty() && self.winner == Winner::Nobody {
            return Resolved::Parked;
        }
        if self.remote_wins(new, central) {
            from_remote.append(&mut contended);
        }
        match from_remote.is_empty() && computed.is_empty() {
            true => Resolved::Centre,
            false => Resolved::Merged {
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
            Winner::Greater(_) | Winner::Less(_) => true,
        }
    }

    fn remote_wins(&self, new: &[Datum<'_>], central: &[Datum<'_>]) -> bool {
        let order = |column: usize| compare_nullable(&new[column], &central[column]);
        match self.winner {
            Winner::Centre | Winner::Nobody | Winner::Handler | Winner::Script => false,
            Winner::Remote => true,
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
