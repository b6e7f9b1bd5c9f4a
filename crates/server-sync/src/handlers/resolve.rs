//! Rows that two sides have changed: what a handler is told of them, and what it decides.

use serde_json::{Map, Value as Json};

use tidewater_centre::{Columns, ContendedChange, ContendedOutcome, Resolution, Resolutions};
use tidewater_protocol::{Op, Table, json};

use super::document::{Document, kind, objects};
use super::upload::{columns, operation};
use super::{About, Handler, HandlerReply, key_of};
use tidewater_server_config::HandlerEvent;

/// How much longer an answer may be than what it answers.
const ANSWER_BYTES: usize = 1 << 20;

/// Some contended rows of one table.
pub struct ContestedRows<'c> {
    table: &'c Table,
    rows: &'c [ContendedChange],
    keys: Vec<String>,
    written: Vec<String>,
}

impl<'c> ContestedRows<'c> {
    /// Of an upload whose rows' keys begin so.
    pub fn new(table: &'c Table, rows: &'c [ContendedChange], prefix: &str) -> ContestedRows<'c> {
        let mut contest = ContestedRows {
            table,
            rows,
            keys: Vec::with_capacity(rows.len()),
            written: Vec::with_capacity(rows.len()),
        };
        for row in rows {
            let mut object = Map::new();
            object.insert("operation".into(), operation(row.op).into());
            object.insert("key".into(), written(table, &row.key).into());
            let images = [
                ("old", &row.old),
                ("new", &row.new),
                ("theirs", &row.theirs),
            ];
            for (name, image) in images {
                if let Some(image) = image {
                    object.insert(name.into(), written(table, image).into());
                }
            }
            // Against another row of the centre it is another question.
            let asked = Json::from(object.clone()).to_string();
            let key = format!(
                "{prefix}{}",
                key_of(&[table.name.as_bytes(), asked.as_bytes()])
            );
            object.insert("idempotency_key".into(), key.as_str().into());
            contest.written.push(Json::Object(object).to_string());
            contest.keys.push(key);
        }
        contest
    }

    /// The request.
    pub fn document(&self, handler: &Handler, about: &About) -> Document {
        let event = HandlerEvent::ResolveConflict;
        let mut head = about.head(event);
        head.insert("table".into(), self.table.name.as_str().into());
        let ends = self.keys.first().zip(self.keys.last());
        let ends = ends.map_or(("", ""), |(first, last)| (first.as_str(), last.as_str()));
        Document::with_rows(event, head, handler.format(), &self.written, ends)
    }

    /// The longest answer.
    pub fn max_answer_bytes(&self) -> usize {
        let bytes: usize = self.written.iter().map(String::len).sum();
        ANSWER_BYTES + 2 * bytes
    }

    /// Reads what the handler decides: of each row once, and of no others.
    ///
    /// # Errors
    /// It does not: what it says instead, and what was expected.
    pub fn resolutions(&self, reply: &HandlerReply) -> Result<Resolutions, String> {
        let mut found = Resolutions::new();
        for object in objects(reply, "rows")? {
            let key = object.get("idempotency_key").and_then(Json::as_str);
            let key = key.ok_or("a row has no idempotency_key: it tells which row is meant")?;
            let place = self.keys.iter().position(|it| it == key);
            let place = place.ok_or_else(|| format!("the row {key:?} was not asked about"))?;
            let row = &self.rows[place];
            let becomes = self.becomes(row, &object);
            let becomes = becomes.map_err(|what| format!("the row {key:?}: {what}"))?;
            let theirs = row.theirs.clone();
            let decided = Resolution { theirs, becomes };
            if found.insert(row.row.clone(), decided).is_some() {
                return Err(format!("the row {key:?} is answered twice"));
            }
        }
        match self.rows.iter().position(|it| !found.contains_key(&it.row)) {
            None => Ok(found),
            Some(missing) => Err(format!(
                "{} of {} rows are not answered, the first is {:?}",
                self.rows.len() - found.len(),
                self.rows.len(),
                self.keys[missing]
            )),
        }
    }

    fn becomes(
        &self,
        row: &ContendedChange,
        object: &Map<String, Json>,
    ) -> Result<ContendedOutcome, String> {
        let expected = "\"centre\", \"remote\", \"merge\" or \"park\" is expected";
        match object.get("verdict") {
            Some(Json::String(verdict)) => match verdict.as_str() {
                "centre" => Ok(ContendedOutcome::Centre),
                "remote" => Ok(ContendedOutcome::Remote),
                "park" => Ok(ContendedOutcome::Parked),
                "merge" if row.op == Op::Delete => Err(
                    "a delete cannot be merged: answer \"centre\", \"remote\" or \"park\"".into(),
                ),
                "merge" => {
                    let columns = columns(self.table, object.get("new"))?;
                    let key =
                        |it: &&(String, _)| self.table.key_columns().any(|key| key.name == it.0);
                    match columns.iter().find(key) {
                        Some((name, _)) => {
                            Err(format!("{name:?} belongs to the key: leave it out"))
                        }
                        None => Ok(ContendedOutcome::Merged(columns)),
                    }
                }
                other => Err(format!("its verdict is {other:?}: {expected}")),
            },
            Some(other) => Err(format!("its verdict is {}: {expected}", kind(other))),
            None => Err(format!("it has no verdict: {expected}")),
        }
    }
}

fn written(table: &Table, columns: &Columns) -> Map<String, Json> {
    let columns = columns.iter().filter_map(|(name, value)| {
        let column = &table.columns[table.column(name)?];
        Some((name.clone(), json::from_value(column.column_type, value)))
    });
    columns.collect()
}
