//! What applications do to the tables that only some worlds have: all meet in the same rows.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use rusqlite::{OptionalExtension, params};

use super::{Application, FreshKeys};
use crate::besides::{Besides, Differences, FIELDS, MEETING};

/// With what an application takes part.
#[derive(Clone)]
pub(crate) struct ContestSetup {
    pub(crate) besides: Besides,
    pub(crate) differences: Rc<Differences>,
}

/// One of its changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContestChange {
    /// A difference was added, and the row given another note with a greater grade.
    Tally {
        row: i64,
        difference: u32,
        grade: i64,
        note: String,
    },
    /// One of [`FIELDS`] was written.
    Form {
        row: i64,
        field: usize,
        text: String,
    },
    /// A request was written; `None`: it was deleted.
    Request { key: i64, text: Option<String> },
}

/// What one application has committed of all that.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contests {
    /// By row.
    pub(crate) differences: BTreeSet<(i64, u32)>,
    /// Row, grade and note.
    pub(crate) grades: BTreeSet<(i64, i64, String)>,
    /// The last text of each field.
    pub(crate) fields: BTreeMap<(i64, usize), String>,
    /// What each request was last made.
    pub(crate) requests: BTreeMap<i64, Option<String>>,
    /// All texts of fields and requests.
    pub(crate) texts: BTreeSet<String>,
}

impl Contests {
    /// Adds what was committed.
    pub(crate) fn committed(&mut self, contests: &[ContestChange]) {
        for contest in contests.iter().cloned() {
            match contest {
                ContestChange::Tally {
                    row,
                    difference,
                    grade,
                    note,
                } => {
                    self.differences.insert((row, difference));
                    self.grades.insert((row, grade, note));
                }
                ContestChange::Form { row, field, text } => {
                    self.texts.insert(text.clone());
                    self.fields.insert((row, field), text);
                }
                ContestChange::Request { key, text } => {
                    self.texts.extend(text.clone());
                    self.requests.insert(key, text);
                }
            }
        }
    }

    /// What was committed since a copy was made of this.
    pub(crate) fn since(&self, copy: &Contests) -> Contests {
        Contests {
            differences: &self.differences - &copy.differences,
            grades: &self.grades - &copy.grades,
            texts: &self.texts - &copy.texts,
            ..Contests::default()
        }
    }

    /// Adds all that another one has written, but not what it was that came last.
    pub(crate) fn add_written(&mut self, other: Contests) {
        self.differences.extend(other.differences);
        self.grades.extend(other.grades);
        self.texts.extend(other.texts);
    }
}

impl Application {
    /// From now on it takes part.
    pub(crate) fn contends(&mut self, contending: ContestSetup) {
        self.contending = Some(contending);
    }

    /// What it has done in the transaction that it last committed.
    pub(crate) fn contests(&self) -> &[ContestChange] {
        &self.contests
    }

    /// Perhaps changes some of these rows.
    pub(super) fn contend(&mut self, keys: &FreshKeys) -> rusqlite::Result<()> {
        let Some(ContestSetup {
            besides,
            differences,
        }) = self.contending.clone()
        else {
            return Ok(());
        };
        if besides.resolves() && self.has("table", "tally")? {
            if self.random.percent(25) {
                self.count_up(&differences)?;
            }
            for _ in 0..self.random.below(3) {
                self.fill_in()?;
            }
        }
        if besides.is_judged && self.is_remote && self.has("table", "request")? {
            for _ in 0..self.random.below(3) {
                self.request(keys)?;
            }
        }
        Ok(())
    }

    fn count_up(&mut self, differences: &Differences) -> rusqlite::Result<()> {
        let row = self.random.between(1, MEETING as u64) as i64;
        let Some(difference) = differences.next(row) else {
            return Ok(());
        };
        let (note, step) = (self.plain_text(), self.random.between(1, 9) as i64);
        let grade: i64 = self
            .connection
            .prepare_cached(
                "UPDATE tally SET amount = amount + ?2, note = ?3, grade = grade + ?4,
                     debt = -(grade + ?4),
                     at = strftime('%Y-%m-%dT%H:%M:%S.000000', grade + ?4, 'unixepoch')
                 WHERE tally_id = ?1 RETURNING grade",
            )?
            .query_row(
                params![row, Differences::amount(difference), note, step],
                |row| row.get(0),
            )?;
        self.contests.push(ContestChange::Tally {
            row,
            difference,
            grade,
            note,
        });
        Ok(())
    }

    fn fill_in(&mut self) -> rusqlite::Result<()> {
        let row = self.random.between(1, MEETING as u64) as i64;
        let field = self.random.below(FIELDS.len() as u64) as usize;
        let text = self.plain_text();
        let sql = format!("UPDATE form SET {} = ?2 WHERE form_id = ?1", FIELDS[field]);
        self.connection
            .prepare_cached(&sql)?
            .execute(params![row, text])?;
        self.contests.push(ContestChange::Form { row, field, text });
        Ok(())
    }

    fn request(&mut self, keys: &FreshKeys) -> rusqlite::Result<()> {
        let any = "SELECT request_id FROM request ORDER BY (request_id * ?1) % 97 LIMIT 1";
        let shuffle = self.random.between(1, 96) as i64;
        let found: Option<i64> = self
            .connection
            .prepare_cached(any)?
            .query_row([shuffle], |row| row.get(0))
            .optional()?;
        let text = self.plain_text();
        let (key, text) = match (self.random.below(10), found) {
            (0..=4, Some(key)) => {
                self.connection
                    .prepare_cached("UPDATE request SET note = ?2 WHERE request_id = ?1")?
                    .execute(params![key, text])?;
                (key, Some(text))
            }
            (5, Some(key)) => {
                self.connection
                    .prepare_cached("DELETE FROM request WHERE request_id = ?1")?
                    .execute([key])?;
                (key, None)
            }
            _ => {
                let key = keys.next();
                self.connection
                    .prepare_cached("INSERT INTO request VALUES (?1, ?2)")?
                    .execute(params![key, text])?;
                (key, Some(text))
            }
        };
        self.contests.push(ContestChange::Request { key, text });
        Ok(())
    }

    /// A text that nobody refuses.
    fn plain_text(&mut self) -> String {
        self.count += 1;
        format!("by {} {}", self.name, self.count)
    }
}
