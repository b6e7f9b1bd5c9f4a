//! I1, I2 and the second half of I4: what became of each row that an application of a remote has
//! written last.
//!
//! A ledger reads what the application could read, and the audit of the centre. What a script is
//! for it does not know. It asks of every change that is not pending any more whether it took
//! effect, as it was, when its upload was written; or was refused; or lost against somebody.

use std::collections::BTreeMap;

use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};
use serde_json::Value as Json;

use super::tables::PublishedTable;
use super::values::{Row, quote, retold};
use super::watch::{Audit, WrittenRow};

/// What an application of a remote has written of rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    /// By table and key.
    changes: BTreeMap<(usize, String), Change>,
}

/// The last change of a row.
#[derive(Clone, Debug)]
struct Change {
    key: Vec<Value>,
    /// The row before the first change that was not settled then.
    base: Option<Row>,
    before: Option<Row>,
    after: Option<Row>,
    /// How far the centre was.
    since: i64,
    /// The last conflict that the remote had been told of.
    told: i64,
    is_settled: bool,
    /// Whether the row was written once more since, with nothing else: then it may be pending for
    /// that alone.
    is_rewritten: bool,
    /// Where it took effect, if it did.
    effect: Option<i64>,
}

/// A row that a transaction has touched.
#[derive(Clone, Debug)]
pub(super) struct TouchedRow {
    place: usize,
    named: String,
    key: Vec<Value>,
    before: Option<Row>,
    after: Option<Row>,
}

/// Who can say what became of a change.
pub(super) struct Parties<'a> {
    pub(super) tables: &'a [PublishedTable],
    pub(super) audit: &'a Audit,
    pub(super) remote: &'a Connection,
    pub(super) centre: &'a Connection,
}

/// What became of a change.
enum Fate {
    Pending,
    /// It took effect there, or is told.
    Settled(Option<i64>),
    /// It broke a promise.
    Broken(String),
}

/// The triggers of an application's own connection, which write down what it touches.
pub(super) fn begin(connection: &Connection, tables: &[&PublishedTable]) -> rusqlite::Result<()> {
    let most = |count: &dyn Fn(&PublishedTable) -> usize| {
        let counts = tables.iter().map(|it| count(it));
        counts.max().unwrap_or(1).max(1)
    };
    let keys = names("k", most(&|it| it.key.len()));
    let values = names("v", most(&|it| it.columns.len()));
    let mut sql = format!(
        "CREATE TEMP TABLE simulated_touched (at INTEGER PRIMARY KEY, place INTEGER NOT NULL,
         was_there INTEGER NOT NULL, {keys}, {values});"
    );
    for (place, table) in tables.iter().enumerate() {
        let name = quote(&table.name);
        let keys = names("k", table.key.len());
        let values = names("v", table.columns.len());
        let (new, old) = (table.key_of("NEW."), table.key_of("OLD."));
        let columns = table.columns_of("OLD.");
        let there = format!(
            "INSERT INTO simulated_touched (place, was_there, {keys}, {values})
             VALUES ({place}, 1, {old}, {columns});"
        );
        let new = format!(
            "INSERT INTO simulated_touched (place, was_there, {keys}) VALUES ({place}, 0, {new});"
        );
        sql.push_str(&format!(
            "CREATE TEMP TRIGGER touched_insert_{place} AFTER INSERT ON main.{name} BEGIN {new} END;
             CREATE TEMP TRIGGER touched_update_{place} AFTER UPDATE ON main.{name}
             BEGIN {there} {new} END;
             CREATE TEMP TRIGGER touched_delete_{place} AFTER DELETE ON main.{name}
             BEGIN {there} END;"
        ));
    }
    connection.execute_batch(&sql)
}

/// The rows that the transaction has touched; with that the triggers go.
pub(super) fn end(
    connection: &Connection,
    tables: &[&PublishedTable],
    places: &[usize],
) -> rusqlite::Result<Vec<TouchedRow>> {
    let mut touched: Vec<TouchedRow> = Vec::new();
    for (place, table) in tables.iter().enumerate() {
        let keys = names("k", table.key.len());
        let values = names("v", table.columns.len());
        let sql = format!(
            "SELECT {keys}, {keys}, {values}, was_there FROM temp.simulated_touched
             WHERE place = ?1 ORDER BY at"
        );
        let mut statement = connection.prepare_cached(&sql)?;
        let mut rows = statement.query([place as i64])?;
        while let Some(row) = rows.next()? {
            let named = table.read_key(row, 0)?;
            let length = table.key.len();
            let key: Vec<Value> = (length..2 * length)
                .map(|at| row.get(at))
                .collect::<rusqlite::Result<_>>()?;
            let is_known = |it: &TouchedRow| it.place == places[place] && it.named == named;
            // A number that comes later stands for none.
            if touched.iter().any(is_known) || key.contains(&Value::Null) {
                continue;
            }
            let was_there: bool = row.get(2 * length + table.columns.len())?;
            let before = was_there.then(|| table.read(row, 2 * length)).transpose()?;
            let after = table.row(connection, &key)?;
            touched.push(TouchedRow {
                place: places[place],
                named,
                key,
                before,
                after,
            });
        }
    }
    for place in 0..tables.len() {
        for kind in ["insert", "update", "delete"] {
            connection.execute_batch(&format!("DROP TRIGGER temp.touched_{kind}_{place}"))?;
        }
    }
    connection.execute_batch("DROP TABLE temp.simulated_touched")?;
    Ok(touched)
}

impl Ledger {
    /// The application has committed.
    pub(super) fn committed(&mut self, touched: Vec<TouchedRow>, since: i64, told: i64) {
        for row in touched {
            let TouchedRow {
                place,
                named,
                key,
                before,
                after,
            } = row;
            if before == after {
                if let Some(known) = self.changes.get_mut(&(place, named)) {
                    known.is_rewritten = true;
                }
                continue;
            }
            let known = self.changes.remove(&(place, named.clone()));
            let open = known.filter(|it| !it.is_settled);
            let change = Change {
                base: match &open {
                    Some(open) => open.base.clone(),
                    None => before.clone(),
                },
                since: open.as_ref().map_or(since, |it| it.since),
                told: open.as_ref().map_or(told, |it| it.told),
                key,
                before,
                after,
                is_settled: false,
                is_rewritten: false,
                effect: None,
            };
            self.changes.insert((place, named), change);
        }
    }

    /// What became of changes otherwise than it may; `at_rest`: nothing is pending any more.
    pub(super) fn check(
        &mut self,
        parties: &Parties<'_>,
        at_rest: bool,
    ) -> rusqlite::Result<Option<String>> {
        for ((place, named), change) in &mut self.changes {
            if change.is_settled {
                if at_rest && !parties.is_kept(*place, change)? {
                    let name = &parties.tables[*place].name;
                    return Ok(Some(format!(
                        "I1: the change of {name} {named} took effect, and the centre does not know \
                         of it any more"
                    )));
                }
                continue;
            }
            match parties.fate(*place, named, change)? {
                Fate::Pending => {}
                Fate::Settled(effect) => (change.is_settled, change.effect) = (true, effect),
                Fate::Broken(what) => return Ok(Some(what)),
            }
        }
        Ok(None)
    }
}

impl Parties<'_> {
    fn fate(&self, place: usize, named: &str, change: &Change) -> rusqlite::Result<Fate> {
        let table = &self.tables[place];
        let name = &table.name;
        if !table.is_in(self.remote)? {
            return Ok(Fate::Settled(None));
        }
        if self.is_pending(table, change)? {
            let here = table.row(self.remote, &change.key)?;
            let is_there = is_met(&asked(table, change), here.as_ref(), change);
            return Ok(match is_there || change.is_rewritten {
                true => Fate::Pending,
                false => Fate::Broken(format!(
                    "I4: {name} {named} is pending, and not any more as the application wrote it: \
                     it wrote {}, there is {}",
                    table.told(change.after.as_ref()),
                    table.told(here.as_ref())
                )),
            });
        }
        if !table.is_judged || self.is_refused(table, named)? {
            return Ok(Fate::Settled(None));
        }
        let asked = asked(table, change);
        if is_met(&asked, change.base.as_ref(), change) {
            // It had been taken back before anybody saw it.
            return Ok(Fate::Settled(None));
        }
        let written = self
            .audit
            .of_row(self.centre, (place, &change.key), change.since)?;
        let settled = self.settled(&written)?;
        let mut met = None;
        for one in settled {
            let is_as_made = is_met(&asked, one.row.as_ref(), change);
            if is_as_made || self.is_merged(place, change, &asked, one)? {
                met = Some(one);
                break;
            }
        }
        if let Some(met) = met {
            return Ok(Fate::Settled(Some(met.at)));
        }
        // A row that is marked is as good as gone, if those who download see it so.
        if change.after.is_none() && table.marks_deletes && !written.is_empty() {
            return Ok(Fate::Settled(None));
        }
        let central = table.row(self.centre, &change.key)?;
        if is_met(&asked, central.as_ref(), change) {
            return Ok(Fate::Settled(None));
        }
        if let Some(conflict) = self.conflict(table, named, change.told)? {
            return Ok(match conflict.is_against_nobody {
                false => Fate::Settled(None),
                true => Fate::Broken(format!(
                    "I2: the change of {name} {named} was told to have lost as a conflict, but \
                     nobody else has changed the row: the device made {} of {}, the centre has {}",
                    table.told(change.after.as_ref()),
                    table.told(change.base.as_ref()),
                    table.told(central.as_ref())
                )),
            });
        }
        Ok(Fate::Broken(self.lost(table, named, change, &written)))
    }

    /// Whether what was written met a row that was not any more as the device had it: what a script
    /// makes of both is its own affair.
    fn is_merged(
        &self,
        place: usize,
        change: &Change,
        asked: &[usize],
        written: &WrittenRow,
    ) -> rusqlite::Result<bool> {
        let (Some(_), Some(_)) = (&written.row, &change.after) else {
            return Ok(false);
        };
        let prior = self
            .audit
            .prior(self.centre, (place, &change.key), written.at)?;
        let Some(prior) = prior else {
            return Ok(false);
        };
        let is_other = |image: &Option<Row>| match (&prior, image) {
            (Some(prior), Some(image)) => asked.iter().any(|&at| prior[at] != image[at]),
            (prior, image) => prior.is_some() != image.is_some(),
        };
        Ok(is_other(&change.base) && is_other(&change.before))
    }

    /// Whether the centre still knows of what took effect.
    fn is_kept(&self, place: usize, change: &Change) -> rusqlite::Result<bool> {
        let Some(effect) = change.effect else {
            return Ok(true);
        };
        let since = effect - 1;
        let written = self
            .audit
            .of_row(self.centre, (place, &change.key), since)?;
        Ok(written.first().is_some_and(|it| it.at == effect))
    }

    /// What to say of a change that is nowhere, or is there otherwise.
    fn lost(
        &self,
        table: &PublishedTable,
        named: &str,
        change: &Change,
        written: &[WrittenRow],
    ) -> String {
        let name = &table.name;
        let (wanted, was) = (
            table.told(change.after.as_ref()),
            table.told(change.base.as_ref()),
        );
        let after = match (written.last(), &change.after) {
            (None, _) => {
                return format!(
                    "I2: the change of {name} {named} is nowhere: the device made {wanted} of {was}, \
                     it is neither pending nor refused, and nothing was written to the row in the \
                     centre"
                );
            }
            (Some(last), Some(wanted)) => last.row.as_ref().zip(Some(wanted)),
            (Some(_), None) => None,
        };
        let Some((there, wanted_row)) = after else {
            let there = written.last().and_then(|it| it.row.as_ref());
            return format!(
                "I2: the change of {name} {named} is nowhere: the device made {wanted} of {was}, and \
                 the centre made {} of it",
                table.told(there)
            );
        };
        let asked = asked(table, change);
        let other = asked.iter().filter(|&&at| there[at] != wanted_row[at]);
        let other: Vec<String> = other
            .map(|&at| {
                let column = &table.columns[at].name;
                format!("{column} is {} and not {}", there[at], wanted_row[at])
            })
            .collect();
        format!(
            "I1: the change of {name} {named} did not take effect as it was made, or not only once: \
             in the centre {}; the device made {wanted} of {was}",
            other.join(", ")
        )
    }

    fn is_pending(&self, table: &PublishedTable, change: &Change) -> rusqlite::Result<bool> {
        let changes = quote(&format!("tidewater_change_{}", table.name));
        let sql = format!(
            "SELECT 1 FROM {changes} WHERE generation > 0 AND {}",
            table.has_key("key_")
        );
        let mut statement = self.remote.prepare_cached(&sql)?;
        statement.exists(params_from_iter(&change.key))
    }

    fn is_refused(&self, table: &PublishedTable, named: &str) -> rusqlite::Result<bool> {
        let sql = "SELECT 1 FROM tidewater_refused WHERE table_name = ?1 AND key = ?2
                   UNION ALL SELECT 1 FROM tidewater_settled WHERE table_name = ?1 AND key = ?2";
        self.remote
            .prepare_cached(sql)?
            .exists([table.name.as_str(), named])
    }

    /// The last conflict that was told of a row since another one.
    fn conflict(
        &self,
        table: &PublishedTable,
        named: &str,
        since: i64,
    ) -> rusqlite::Result<Option<Conflict>> {
        let sql = "SELECT operation, pre_image, theirs FROM tidewater_conflicts
                   WHERE table_name = ?1 AND key = ?2 AND id > ?3 ORDER BY id DESC LIMIT 1";
        let mut statement = self.remote.prepare_cached(sql)?;
        let mut rows = statement.query((table.name.as_str(), named, since))?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        let operation: String = row.get(0)?;
        let (before, theirs): (Option<String>, Option<String>) = (row.get(1)?, row.get(2)?);
        let read = |text: Option<String>| text.and_then(|it| serde_json::from_str(&it).ok());
        let (before, theirs): (Option<Json>, Option<Json>) = (read(before), read(theirs));
        let is_same = table.columns.iter().all(|column| {
            let value = |row: &Option<Json>| {
                let value = row.as_ref().and_then(|it| it.get(&column.name));
                value.map(|it| retold(column.column_type, it))
            };
            value(&before) == value(&theirs)
        });
        Ok(Some(Conflict {
            // A row stays also for what belongs to it.
            is_against_nobody: operation != "delete"
                && before.is_some() == theirs.is_some()
                && is_same,
        }))
    }

    /// Of each row that was written, what was there when whoever wrote it had ended. Where several
    /// uploads were written together everything counts.
    fn settled<'w>(&self, written: &'w [WrittenRow]) -> rusqlite::Result<Vec<&'w WrittenRow>> {
        let mut settled = Vec::new();
        for (index, one) in written.iter().enumerate() {
            let (beginnings, next) = Audit::around(self.centre, one.at)?;
            let is_last = written.get(index + 1).is_none_or(|it| it.at > next);
            if is_last || beginnings > 1 {
                settled.push(one);
            }
        }
        Ok(settled)
    }
}

/// A conflict that a remote was told of.
struct Conflict {
    /// Whether the centre had what the remote had last seen there.
    is_against_nobody: bool,
}

/// The columns that the centre must have as they were written: those that were changed and are the
/// remote's to write.
fn asked(table: &PublishedTable, change: &Change) -> Vec<usize> {
    let columns = 0..table.columns.len();
    let columns = columns.filter(|&at| {
        let is_changed = match (&change.before, &change.after) {
            (Some(before), Some(after)) => before[at] != after[at],
            // What it leaves to the centre it does not ask for.
            (None, Some(after)) => !after[at].is_null(),
            _ => false,
        };
        is_changed && !table.is_made[at]
    });
    columns.collect()
}

/// Whether a row is, in these columns, what the change made of it.
fn is_met(asked: &[usize], row: Option<&Row>, change: &Change) -> bool {
    match (row, &change.after) {
        (None, None) => true,
        (Some(row), Some(after)) => asked.iter().all(|&at| row[at] == after[at]),
        _ => false,
    }
}

fn names(prefix: &str, count: usize) -> String {
    let names: Vec<String> = (0..count).map(|at| format!("{prefix}{at}")).collect();
    names.join(", ")
}
