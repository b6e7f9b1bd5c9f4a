//! What became of changes in tables of which conflicts end otherwise than as the centre has it.
//!
//! I1: each difference counts in its sum, once. I2: every change is in the centre, or listed as
//! lost against another one as the table's resolver has it.

use std::collections::BTreeSet;

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, ToSql, params};

use super::settled::OperatorWrites;
use crate::application::Contests;
use crate::besides::{Besides, ConflictGrain, Differences, FIELDS, FormWinner, MEETING, Whole};

/// What may stand in the place of something that was not seen.
pub(crate) fn may_overwrite(besides: Besides, table: &str) -> bool {
    match table {
        "tally" => besides.tally().is_some_and(|it| it != Whole::Centre),
        "form" => besides.form().is_some_and(|it| it.1 == FormWinner::Remote),
        _ => false,
    }
}

/// Whether what others wrote may come again with a row that wins as a whole.
pub(super) fn may_come_again(besides: Besides, table: &str) -> bool {
    table == "form" && besides.form() == Some((ConflictGrain::Row, FormWinner::Remote))
}

/// What is wrong with sums and grades. `all`: what everybody has committed; `doubtful`: what was on
/// devices that are gone, or forgot it.
pub(crate) fn miscounted(
    centre: &Connection,
    besides: Besides,
    all: &Contests,
    doubtful: &Contests,
) -> rusqlite::Result<Option<String>> {
    let Some(whole) = besides.tally() else {
        return Ok(None);
    };
    for row in 1..=MEETING {
        let sql = "SELECT amount, grade, note, debt = -grade
                       AND at = strftime('%Y-%m-%dT%H:%M:%S.000000', grade, 'unixepoch')
                   FROM tally WHERE tally_id = ?1";
        let (sum, grade, note, is_whole): (i64, i64, String, bool) =
            centre.prepare_cached(sql)?.query_row([row], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
            })?;
        for number in 0..Differences::MOST {
            let times = Differences::times_in(sum, number);
            let is_certain = all.differences.contains(&(row, number));
            let may_be = doubtful.differences.contains(&(row, number));
            let is_right = match times {
                0 => !is_certain || may_be,
                1 => is_certain || may_be,
                _ => false,
            };
            if !is_right {
                return Ok(Some(format!(
                    "I1: in the sum of tally {row}, {sum}, the difference {number} counts {times} \
                     times{}",
                    evidence(centre, "tally", row)?
                )));
            }
        }
        let grades: BTreeSet<&(i64, i64, String)> =
            all.grades.iter().filter(|it| it.0 == row).collect();
        let greatest = grades.iter().filter(|it| !doubtful.grades.contains(**it));
        let greatest = greatest.map(|it| it.1).max().unwrap_or_default();
        if matches!(whole, Whole::Greater(_)) && grade < greatest {
            return Ok(Some(format!(
                "I2: tally {row} has the grade {grade}, and {greatest} was written"
            )));
        }
        let written = (row, grade, note);
        let is_one = grade == 0 || grades.contains(&written) || doubtful.grades.contains(&written);
        if !is_whole || !is_one {
            return Ok(Some(format!(
                "I2: tally {row} is {written:?}, as nobody has written it"
            )));
        }
    }
    Ok(None)
}

/// A field of a form that is nowhere, or lost where it must not. `doubtful`: see [`miscounted`].
pub(crate) fn lost_field(
    centre: &Connection,
    besides: Besides,
    own: &Contests,
    doubtful: &Contests,
) -> rusqlite::Result<Option<String>> {
    let Some((detected, winner)) = besides.form() else {
        return Ok(None);
    };
    for ((row, field), text) in &own.fields {
        let column = FIELDS[*field];
        if doubtful.texts.contains(text) {
            continue;
        }
        let in_centre = centre
            .prepare_cached(
                "SELECT 1 FROM audit WHERE \"table\" = 'form' AND key = ?1 AND text = ?2",
            )?
            .exists(params![format!("{row}.{column}"), text])?;
        if in_centre {
            continue;
        }
        // The fields that the remote had changed, and those that others had.
        let changed = |image: &str| {
            FIELDS.map(|it| format!("({image} ->> '{it}' IS NOT pre_image ->> '{it}')"))
        };
        let (by_remote, by_others) = (changed("uploaded"), changed("coalesce(replaced, winner)"));
        let both: Vec<String> = by_remote
            .iter()
            .zip(&by_others)
            .map(|(one, other)| format!("{one} AND {other}"))
            .collect();
        let is_conflict = match (detected, winner) {
            (_, FormWinner::Remote) => "0".to_owned(),
            (ConflictGrain::Row, _) => by_others.join(" OR "),
            (ConflictGrain::Column, FormWinner::Centre) => both[*field].clone(),
            (ConflictGrain::Column, FormWinner::Nobody) => both.join(" OR "),
        };
        let sql = format!(
            "SELECT {is_conflict} FROM tidewater_centre_conflict WHERE table_name = 'form'
             AND row_key = ?1 AND uploaded ->> '{column}' = ?2
             AND uploaded ->> '{column}' IS NOT pre_image ->> '{column}' ORDER BY 1 DESC"
        );
        let told: Option<bool> = centre
            .prepare_cached(&sql)?
            .query_row(params![format!("[{row}]"), text], |row| row.get(0))
            .optional()?;
        match told {
            Some(true) => {}
            Some(false) => {
                return Ok(Some(format!(
                    "I2: {text:?} in {column} of form {row} lost, and nobody else had changed what \
                     it stands against{}",
                    evidence(centre, "form", *row)?
                )));
            }
            None => {
                return Ok(Some(format!(
                    "I2: {text:?} in {column} of form {row} is nowhere{}",
                    evidence(centre, "form", *row)?
                )));
            }
        }
    }
    Ok(None)
}

/// A form that is told to stand as the centre had it, and of which something took effect without an
/// operator.
pub(crate) fn stood_for_nothing(
    centre: &Connection,
    settled: &OperatorWrites,
) -> rusqlite::Result<Option<String>> {
    for column in FIELDS {
        let sql = format!(
            "SELECT row_key, uploaded ->> '{column}', outcome FROM tidewater_centre_conflict AS c
             WHERE table_name = 'form' AND outcome IN ('centre', 'parked')
             AND uploaded ->> '{column}' IS NOT pre_image ->> '{column}'
             AND EXISTS (SELECT 1 FROM audit WHERE \"table\" = 'form'
                 AND key = (c.row_key ->> 0) || '.{column}'
                 AND text = c.uploaded ->> '{column}')"
        );
        let mut statement = centre.prepare_cached(&sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (key, text, outcome): (String, String, String) =
                (row.get(0)?, row.get(1)?, row.get(2)?);
            if !settled.has(&text) {
                return Ok(Some(format!(
                    "I2: {text:?} in {column} of form {key} is told as {outcome}, and took effect"
                )));
            }
        }
    }
    Ok(None)
}

/// All that the centre knows of a row, for people.
pub(super) fn evidence(
    centre: &Connection,
    table: &str,
    row: impl ToSql,
) -> rusqlite::Result<String> {
    let audited = "SELECT 'audit', at, operation, key, text FROM audit
                   WHERE \"table\" = ?1 AND (key = ?2 OR key LIKE CAST(?2 AS INTEGER) || '.%')";
    let told = "SELECT 'conflict', id, at_ms, operation, outcome, pre_image, uploaded, winner,
                    replaced, settled_as
                FROM tidewater_centre_conflict WHERE table_name = ?1 AND row_key = '[' || CAST(?2 AS INTEGER) || ']'";
    let mut evidence = String::new();
    for sql in [audited, told] {
        let mut statement = centre.prepare_cached(sql)?;
        let count = statement.column_count();
        let mut rows = statement.query(params![table, row])?;
        while let Some(row) = rows.next()? {
            let values = (0..count).map(|index| row.get::<_, Value>(index));
            let values: Vec<Value> = values.collect::<rusqlite::Result<_>>()?;
            evidence += &format!("\n  {values:?}");
        }
    }
    Ok(evidence)
}

/// How conflicts ended that did not end as the centre had it: so many of each kind.
pub(crate) fn resolved(centre: &Connection) -> rusqlite::Result<Vec<(&'static str, u64)>> {
    let mut counts = Vec::new();
    for (kind, condition) in [
        (ADDED, "table_name = 'tally' AND outcome = 'merged'"),
        (
            TAKEN,
            "table_name IN ('tally', 'form') AND outcome = 'remote'",
        ),
        (MERGED, "table_name = 'form' AND outcome = 'merged'"),
        (PARKED, "outcome = 'parked'"),
    ] {
        let sql = format!("SELECT count(*) FROM tidewater_centre_conflict WHERE {condition}");
        let mut statement = centre.prepare_cached(&sql)?;
        let count: i64 = statement.query_row([], |row| row.get(0))?;
        counts.push((kind, count.unsigned_abs()));
    }
    Ok(counts)
}

const ADDED: &str = "conflict resolved by adding up";
const TAKEN: &str = "conflict resolved with the remote's row";
const MERGED: &str = "conflict resolved column by column";
const PARKED: &str = "conflict parked";

/// Every way in which a conflict ends otherwise.
pub(crate) const KINDS: &[&str] = &[ADDED, TAKEN, MERGED, PARKED];
