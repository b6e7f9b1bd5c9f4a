//! What some worlds have beside the tables of all: tables of which conflicts end otherwise than
//! as the centre has it, and one whose uploads a handler judges.
//!
//! Owns the tables, what is published of them, and which worlds have them. What applications do
//! with them is [`crate::application`]'s, how a handler judges [`crate::office`]'s.

use std::cell::RefCell;

use crate::random::SeededRandom;
use crate::tables::{HoldingRule, Key, SyncedTable};

/// The procedure by which a handler is asked.
pub(crate) const JUDGED: &str = "judge";

/// Rows of tallies and forms: everybody meets everybody there.
pub(crate) const MEETING: i64 = 5;

/// The columns of a form that are edited, each for itself.
pub(crate) const FIELDS: [&str; 3] = ["a", "b", "c"];

/// How conflicts of tallies are resolved beside their sums, and of forms: of a world one of each.
const TALLIES: [Whole; 6] = [
    Whole::Centre,
    Whole::Greater("maximum(grade)"),
    Whole::Greater("later(at)"),
    Whole::Greater("minimum(debt)"),
    Whole::Remote,
    Whole::Greater("priority(grade)"),
];
const FORMS: [(ConflictGrain, FormWinner); 6] = [
    (ConflictGrain::Column, FormWinner::Centre),
    (ConflictGrain::Column, FormWinner::Nobody),
    (ConflictGrain::Row, FormWinner::Nobody),
    (ConflictGrain::Column, FormWinner::Remote),
    (ConflictGrain::Column, FormWinner::Centre),
    (ConflictGrain::Row, FormWinner::Remote),
];

/// Whose row a tally is, apart from its sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whole {
    Centre,
    Remote,
    /// That with the greater grade, which each edit makes greater; in these words.
    Greater(&'static str),
}

/// What a conflict of forms is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConflictGrain {
    Row,
    Column,
}

/// Whose a form is, or its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FormWinner {
    Centre,
    Remote,
    /// The centre's, until an operator decides.
    Nobody,
}

/// What a world has beside the tables of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Besides {
    /// Which resolvers, if it has tallies and forms.
    resolving: Option<usize>,
    /// Whether it has requests, which a handler judges.
    pub(crate) is_judged: bool,
    /// Whether transactions go up one by one.
    pub(crate) is_transactional: bool,
}

impl Besides {
    /// Of the world of a seed. Only where programs of the office are can one be a handler.
    pub(crate) fn for_world(seed: u64, is_live: bool) -> Besides {
        let mut random = SeededRandom::new(seed ^ 0x6265_7369_6465);
        let resolves = random.percent(28);
        let which = random.below(TALLIES.len() as u64) as usize;
        let is_judged = random.percent(33) && is_live;
        Besides {
            resolving: resolves.then_some(which),
            is_judged,
            // What is refused with its transaction the judges of these tables do not look for.
            is_transactional: random.percent(30) && !resolves && !is_judged,
        }
    }

    /// Whether there are tallies and forms.
    pub(crate) fn resolves(self) -> bool {
        self.resolving.is_some()
    }

    /// Whose row a tally is.
    pub(crate) fn tally(self) -> Option<Whole> {
        self.resolving.map(|it| TALLIES[it])
    }

    /// What a conflict of forms is, and how it ends.
    pub(crate) fn form(self) -> Option<(ConflictGrain, FormWinner)> {
        self.resolving.map(|it| FORMS[it])
    }

    /// What they are in the centre, with what writes down all that happens to them.
    pub(crate) fn schema(self) -> String {
        let mut sql = String::new();
        if self.resolves() {
            sql += TALLY_AND_FORM;
            for (table, column, key) in [("tally", "note", "NEW.tally_id".to_owned())]
                .into_iter()
                .chain(FIELDS.map(|it| ("form", it, format!("NEW.form_id || '.{it}'"))))
            {
                sql += &format!(
                    "CREATE TRIGGER audit_{table}_{column} AFTER UPDATE OF {column} ON {table}
                     WHEN NEW.{column} IS NOT OLD.{column} BEGIN
                         INSERT INTO audit (\"table\", operation, key, text)
                         VALUES ('{table}', 'update', {key}, NEW.{column});
                     END;"
                );
            }
        }
        if self.is_judged {
            sql += REQUEST;
        }
        sql
    }

    /// What is published of them.
    pub(crate) fn config(self) -> String {
        let mut config = String::new();
        let table = |name: &str, rest: &str| {
            format!("[[publication.table]]\nname = \"{name}\"\npartition = \"everyone\"\n{rest}\n")
        };
        if let Some((whole, (detected, winner))) = self.tally().zip(self.form()) {
            let beside = match whole {
                Whole::Centre => "",
                Whole::Remote => ", \"client_wins\"",
                Whole::Greater(said) => &format!(", \"{said}\""),
            };
            config += &table(
                "tally",
                &format!("conflict = {{ resolve = [\"additive(amount)\"{beside}] }}"),
            );
            let detected = match detected {
                ConflictGrain::Row => "row",
                ConflictGrain::Column => "column",
            };
            let winner = match winner {
                FormWinner::Centre => "server_wins",
                FormWinner::Remote => "client_wins",
                FormWinner::Nobody => "park",
            };
            config += &table(
                "form",
                &format!("conflict = {{ detect = \"{detected}\", resolve = \"{winner}\" }}"),
            );
        }
        if self.is_judged {
            let handler = format!(
                "handler = {{ url = \"call:{JUDGED}\", timeout = \"4s\", breaker_pause = \"3s\" }}"
            );
            config += &table("request", &handler);
        }
        config
    }

    /// What is provided for them.
    pub(crate) fn procedures(self) -> String {
        match self.is_judged {
            true => format!(
                "\n[[procedure]]\nname = \"{JUDGED}\"\nprovided_by = \"office\"\n\
                 arguments = {{ request = \"json\" }}\nallow = \"SELECT 1 WHERE 1 = 0\"\n\
                 idempotent = true\n"
            ),
            false => String::new(),
        }
    }
}

const TALLY_AND_FORM: &str = "
    CREATE TABLE tally (
        tally_id INTEGER NOT NULL PRIMARY KEY,
        amount INTEGER NOT NULL,
        grade INTEGER NOT NULL,
        debt INTEGER NOT NULL,
        at TIMESTAMP NOT NULL,
        note TEXT NOT NULL);
    CREATE TABLE form (
        form_id INTEGER NOT NULL PRIMARY KEY,
        a TEXT NOT NULL,
        b TEXT NOT NULL,
        c TEXT NOT NULL);
    WITH RECURSIVE row (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM row WHERE id < 5)
    INSERT INTO tally SELECT id, 0, 0, 0, '1970-01-01T00:00:00.000000', '' FROM row;
    WITH RECURSIVE row (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM row WHERE id < 5)
    INSERT INTO form SELECT id, '', '', '' FROM row;";

const REQUEST: &str = "
    CREATE TABLE request (
        request_id INTEGER NOT NULL PRIMARY KEY,
        note TEXT NOT NULL);
    INSERT INTO request VALUES (1, 'open'), (2, 'ready');
    CREATE TRIGGER audit_request_insert AFTER INSERT ON request BEGIN
        INSERT INTO audit (\"table\", operation, key, text)
        VALUES ('request', 'insert', NEW.request_id, NEW.note);
    END;
    CREATE TRIGGER audit_request_update AFTER UPDATE OF note ON request
    WHEN NEW.note IS NOT OLD.note BEGIN
        INSERT INTO audit (\"table\", operation, key, text)
        VALUES ('request', 'update', NEW.request_id, NEW.note);
    END;
    CREATE TRIGGER audit_request_delete AFTER DELETE ON request BEGIN
        INSERT INTO audit (\"table\", operation, key, text)
        VALUES ('request', 'delete', OLD.request_id, OLD.note);
    END;";

/// All of them.
pub(crate) const TABLES: &[SyncedTable] = &[
    table(
        "tally",
        &["tally_id", "amount", "grade", "debt", "at", "note"],
        "note",
    ),
    table("form", &["form_id", "a", "b", "c"], "a"),
    table("request", &["request_id", "note"], "note"),
];

const fn table(
    name: &'static str,
    columns: &'static [&'static str],
    text: &'static str,
) -> SyncedTable {
    SyncedTable {
        name,
        key_is: Key::Integer,
        columns,
        text,
        held: HoldingRule::All,
        parent: None,
    }
}

/// What is added to tallies: each time a difference that nobody else adds to the row. How often it
/// counts can be read in the sum, for it has a digit of its own to the base of four.
#[derive(Debug, Default)]
pub(crate) struct Differences(RefCell<[u32; MEETING as usize]>);

impl Differences {
    /// So many there are of a row.
    pub(crate) const MOST: u32 = 30;

    /// The number of the next one of a row; `None` if there are no more.
    pub(crate) fn next(&self, row: i64) -> Option<u32> {
        let mut next = self.0.borrow_mut();
        let next = next.get_mut(usize::try_from(row - 1).ok()?)?;
        let number = *next;
        *next += 1;
        (number < Differences::MOST).then_some(number)
    }

    /// What is added.
    pub(crate) fn amount(number: u32) -> i64 {
        1 << (2 * number)
    }

    /// How often it is in a sum: up to three times.
    pub(crate) fn times_in(sum: i64, number: u32) -> i64 {
        (sum >> (2 * number)) & 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_tells_how_often_each_difference_is_in_it() {
        let differences = Differences::default();
        let numbers: Vec<u32> = std::iter::from_fn(|| differences.next(1)).collect();
        assert_eq!(numbers.len(), Differences::MOST as usize);
        assert_eq!(differences.next(2), Some(0));
        let amounts = numbers.iter().copied().map(Differences::amount);
        let sum: i64 = amounts.sum::<i64>() + Differences::amount(29) - Differences::amount(3);
        let times = |number| Differences::times_in(sum, number);
        assert_eq!([times(0), times(3), times(28), times(29)], [1, 0, 1, 2]);
    }
}
