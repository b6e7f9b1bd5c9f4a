//! Uploaded rows: what a handler is told of them, and what it says.

use std::collections::VecDeque;

use serde_json::{Map, Value as Json};

use tidewater_centre::engine::upload::column_map::ColumnMap;
use tidewater_centre::upload::each_packed;
use tidewater_centre::{CentreError, RowVerdict, TableVerdicts, UploadTable, nearest};
use tidewater_protocol::argument::{coerce, type_name};
use tidewater_protocol::{Datum, Op, Table, UnpackedRow, Value, json};

use super::document::{Document, kind, objects};
use super::{About, Handler, HandlerReply};
use tidewater_server_config::HandlerEvent;

/// The bytes of rows in one request, if it has more than one: the arguments of a call have less
/// than 1 MiB.
const BATCH_BYTES: usize = 768 << 10;

/// How much longer an answer may be than what it answers.
const ANSWER_BYTES: usize = 1 << 20;

/// A reason for people has so many characters at most.
const REASON_CHARS: usize = 500;

/// The rows of an uploaded table, request by request.
pub struct Batches<'u> {
    upload: &'u UploadTable,
    table: &'u Table,
    map: &'u ColumnMap,
    /// What the keys of its rows begin with.
    prefix: String,
    rows: usize,
    /// The next chunk to be read, and what is read and not sent yet.
    chunk: usize,
    read: VecDeque<(Op, String)>,
    /// The number of the first of these.
    number: u64,
    /// How many rows were read: the number of the next one, in whatever chunk it is.
    rows_read: u64,
}

/// The rows of one request.
pub struct Batch {
    first: u64,
    ops: Vec<Op>,
    rows: Vec<String>,
    bytes: usize,
}

/// What was asked, to know what may be answered.
#[derive(Clone, Copy)]
pub struct JudgedRows<'a> {
    /// The table.
    pub table: &'a Table,
    /// What the keys of the rows begin with, before their number.
    pub prefix: &'a str,
    /// The number of the first row.
    pub first: u64,
    /// What is to be done with each.
    pub ops: &'a [Op],
    /// The handler is the only one who keeps the rows.
    pub keeps: bool,
}

impl<'u> Batches<'u> {
    /// Of the table at a place of an upload, whose id this is.
    pub fn new(
        upload: &'u UploadTable,
        (table, map): (&'u Table, &'u ColumnMap),
        prefix: String,
        rows: usize,
    ) -> Batches<'u> {
        Batches {
            upload,
            table,
            map,
            prefix,
            rows,
            chunk: 0,
            read: VecDeque::new(),
            number: 0,
            rows_read: 0,
        }
    }

    /// What keys of its rows begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The rows of the next request.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn next_batch(&mut self) -> Result<Option<Batch>, CentreError> {
        let mut batch = Batch {
            first: self.number,
            ops: Vec::new(),
            rows: Vec::new(),
            bytes: 0,
        };
        while batch.rows.len() < self.rows {
            if self.read.is_empty() && !self.read_chunk()? {
                break;
            }
            let Some((_, next)) = self.read.front() else {
                continue;
            };
            if !batch.rows.is_empty() && batch.bytes + next.len() > BATCH_BYTES {
                break;
            }
            let Some((op, row)) = self.read.pop_front() else {
                break;
            };
            batch.bytes += row.len() + 1;
            batch.ops.push(op);
            batch.rows.push(row);
        }
        self.number += batch.rows.len() as u64;
        Ok((!batch.rows.is_empty()).then_some(batch))
    }

    /// Reads a chunk; false if there is none.
    fn read_chunk(&mut self) -> Result<bool, CentreError> {
        let Some(chunk) = self.upload.chunks.get(self.chunk) else {
            return Ok(false);
        };
        self.chunk += 1;
        each_packed(&self.map.shape, &chunk.packed()?, |_, row| {
            let op = row.op.unwrap_or(Op::Insert);
            let written = self.written(op, row, self.rows_read);
            self.rows_read += 1;
            self.read.push_back((op, written));
            Ok(())
        })?;
        Ok(true)
    }

    fn written(&self, op: Op, row: &UnpackedRow<'_>, number: u64) -> String {
        let mut object = Map::new();
        object.insert(
            "idempotency_key".into(),
            format!("{}{number}", self.prefix).into(),
        );
        object.insert("operation".into(), operation(op).into());
        object.insert("key".into(), self.table.key_object(&row.key).into());
        if op != Op::Insert {
            object.insert("old".into(), self.image(&row.old).into());
        }
        if op != Op::Delete {
            object.insert("new".into(), self.image(&row.new).into());
        }
        Json::Object(object).to_string()
    }

    /// The columns that the remote sends, by their names.
    fn image(&self, values: &[Datum<'_>]) -> Map<String, Json> {
        let columns = self.table.columns.iter().zip(&self.map.sources);
        let sent = columns.filter_map(|(column, source)| {
            let value = values.get((*source)?)?.to_value();
            Some((
                column.name.clone(),
                json::from_value(column.column_type, &value),
            ))
        });
        sent.collect()
    }
}

/// Rows as handlers see them.
pub trait KeyObject {
    /// A key as an object.
    fn key_object(&self, key: &[Datum<'_>]) -> Map<String, Json>;
}

impl KeyObject for Table {
    fn key_object(&self, key: &[Datum<'_>]) -> Map<String, Json> {
        let columns = self.key_columns().zip(key);
        let columns = columns.map(|(column, datum)| {
            let value = json::from_value(column.column_type, &datum.to_value());
            (column.name.clone(), value)
        });
        columns.collect()
    }
}

/// What an operation is called.
pub fn operation(op: Op) -> &'static str {
    match op {
        Op::Insert => "insert",
        Op::Delete => "delete",
        _ => "update",
    }
}

impl Batch {
    /// How much there is of it.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What is asked, so that the answer can be understood.
    pub fn asked<'a>(&'a self, table: &'a Table, prefix: &'a str, keeps: bool) -> JudgedRows<'a> {
        JudgedRows {
            table,
            prefix,
            first: self.first,
            ops: &self.ops,
            keeps,
        }
    }

    /// The request.
    pub fn document(
        &self,
        handler: &Handler,
        about: &About,
        table: &Table,
        prefix: &str,
    ) -> Document {
        let mut head = about.head(HandlerEvent::Upload);
        head.insert("table".into(), table.name.as_str().into());
        let last = self.first + self.rows.len() as u64;
        let ends = (format!("{prefix}{}", self.first), format!("{prefix}{last}"));
        let ends = (ends.0.as_str(), ends.1.as_str());
        Document::with_rows(
            HandlerEvent::Upload,
            head,
            handler.format(),
            &self.rows,
            ends,
        )
    }

    /// The longest answer.
    pub fn max_answer_bytes(&self) -> usize {
        ANSWER_BYTES + 2 * self.bytes
    }
}

/// Reads what a handler says of rows: of each once, and of no others.
///
/// # Errors
/// It does not: what it says instead, and what was expected.
pub fn verdicts(reply: &HandlerReply, asked: JudgedRows<'_>) -> Result<TableVerdicts, String> {
    let answered = objects(reply, "rows")?;
    let mut seen = vec![false; asked.ops.len()];
    let mut verdicts = TableVerdicts::new();
    for object in answered {
        let key = match object.get("idempotency_key") {
            Some(Json::String(key)) => key,
            Some(other) => {
                return Err(format!(
                    "an idempotency_key is {}, and the text that it was sent is expected",
                    kind(other)
                ));
            }
            None => return Err("a row has no idempotency_key: it tells which row is meant".into()),
        };
        let number = key.strip_prefix(asked.prefix);
        let number = number.and_then(|it| it.parse::<u64>().ok());
        let place = number.and_then(|it| it.checked_sub(asked.first));
        let place = place.and_then(|it| usize::try_from(it).ok());
        let place = place.filter(|it| *it < seen.len());
        let Some(place) = place.filter(|it| *key == asked.key(*it)) else {
            return Err(format!("the row {key:?} was not asked about"));
        };
        if std::mem::replace(&mut seen[place], true) {
            return Err(format!("the row {key:?} is answered twice"));
        }
        let verdict = asked.verdict(place, &object);
        let verdict = verdict.map_err(|what| format!("the row {key:?}: {what}"))?;
        if let Some(verdict) = verdict {
            verdicts.insert(asked.first + place as u64, verdict);
        }
    }
    match seen.iter().position(|seen| !seen) {
        None => Ok(verdicts),
        Some(missing) => {
            let (count, key) = (seen.iter().filter(|it| !**it).count(), asked.key(missing));
            Err(format!(
                "{count} of {} rows are not answered, the first is {key:?}",
                seen.len()
            ))
        }
    }
}

impl JudgedRows<'_> {
    fn key(&self, place: usize) -> String {
        format!("{}{}", self.prefix, self.first + place as u64)
    }

    /// `None`: as it is.
    fn verdict(
        &self,
        place: usize,
        object: &Map<String, Json>,
    ) -> Result<Option<RowVerdict>, String> {
        let expected = match self.keeps {
            true => "\"handled\" or \"refuse\"",
            false => "\"apply\", \"change\", \"refuse\" or \"handled\"",
        };
        let verdict = match object.get("verdict") {
            Some(Json::String(verdict)) => verdict.as_str(),
            Some(other) => {
                return Err(format!(
                    "its verdict is {}: {expected} is expected",
                    kind(other)
                ));
            }
            None => return Err(format!("it has no verdict: {expected} is expected")),
        };
        match verdict {
            "apply" if !self.keeps => Ok(None),
            "change" if !self.keeps && self.ops[place] == Op::Delete => Err(
                "a delete cannot be changed: answer \"apply\", \"refuse\" or \"handled\"".into(),
            ),
            "change" if !self.keeps => {
                let columns = columns(self.table, object.get("new"))?;
                Ok(Some(RowVerdict::Change(columns)))
            }
            "refuse" => Ok(Some(RowVerdict::Refuse(reason(object)?))),
            "handled" => Ok(Some(RowVerdict::Handled)),
            other => Err(format!("its verdict is {other:?}: {expected} is expected")),
        }
    }
}

/// The reason of a refusal.
///
/// # Errors
/// There is none.
pub fn reason(object: &Map<String, Json>) -> Result<String, String> {
    match object.get("reason") {
        Some(Json::String(reason)) if !reason.trim().is_empty() => {
            let visible = reason.chars().filter(|it| !it.is_control());
            Ok(visible.take(REASON_CHARS).collect())
        }
        Some(other) if !other.is_string() => Err(format!(
            "its reason is {}, and text is expected",
            kind(other)
        )),
        _ => Err("it is refused without a reason: add \"reason\", which its user is shown".into()),
    }
}

/// The columns of an object.
///
/// # Errors
/// It is none, or has something that can be in no such column.
pub fn columns(table: &Table, object: Option<&Json>) -> Result<Vec<(String, Value)>, String> {
    let object = match object {
        Some(Json::Object(object)) => object,
        other => {
            return Err(format!(
                "its \"new\" is {}, and an object with the changed columns is expected",
                other.map_or("missing", kind)
            ));
        }
    };
    let columns = object.iter().map(|(name, given)| {
        let Some(column) = table.column(name) else {
            let names = table.columns.iter().map(|it| it.name.as_str());
            return Err(match nearest(name, names) {
                Some(near) => format!("there is no column {name:?}: did you mean {near:?}?"),
                None => format!("there is no column {name:?}"),
            });
        };
        let column_type = table.columns[column].column_type;
        let value = match json::given(given) {
            None => Some(Value::Null),
            Some(given) => coerce(column_type, &given),
        };
        let value = value.ok_or_else(|| {
            let name_of_type = type_name(column_type);
            format!("the column {name:?} is {given}, which can be no {name_of_type}")
        })?;
        Ok((name.clone(), value))
    });
    columns.collect()
}

#[cfg(test)]
mod tests {
    use tidewater_protocol::{Column, ColumnType, Direction};

    use super::*;

    fn table() -> Table {
        let columns = [
            ("id", ColumnType::Integer),
            ("cost", ColumnType::Decimal { scale: Some(2) }),
        ];
        let columns = columns.map(|(name, column_type)| Column {
            name: name.into(),
            column_type,
            nullable: true,
            default: None,
        });
        Table {
            name: "t".into(),
            columns: columns.into(),
            key: vec![0],
            partition: vec![],
            unique: vec![],
            foreign_keys: vec![],
            direction: Direction::Both,
            checks: Vec::new(),
            identity: None,
        }
    }

    fn read(keeps: bool, content_type: &str, body: &str) -> Result<TableVerdicts, String> {
        let reply = HandlerReply {
            content_type: content_type.into(),
            body: body.to_owned().into(),
        };
        let table = table();
        let asked = JudgedRows {
            table: &table,
            prefix: "r/u/0-",
            first: 7,
            ops: &[Op::Insert, Op::Delete],
            keeps,
        };
        verdicts(&reply, asked)
    }

    const GOOD: &str = r#"{"rows": [
        {"idempotency_key": "r/u/0-8", "verdict": "refuse", "reason": "no\nmore"},
        {"idempotency_key": "r/u/0-7", "verdict": "change", "new": {"cost": 1.5}, "note": 1}]}"#;

    #[test]
    fn every_row_is_answered_once_in_any_order() {
        let found = read(false, "application/json", GOOD).unwrap();
        let change = vec![("cost".to_owned(), Value::Text("1.50".into()))];
        assert_eq!(found[&7], RowVerdict::Change(change));
        assert_eq!(found[&8], RowVerdict::Refuse("nomore".into()));
        let lines = "{\"idempotency_key\": \"r/u/0-7\", \"verdict\": \"apply\"}\n\n\
                     {\"idempotency_key\": \"r/u/0-8\", \"verdict\": \"handled\"}\n";
        let found = read(false, "application/x-ndjson; charset=utf-8", lines).unwrap();
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            [(8, RowVerdict::Handled)]
        );
    }

    #[test]
    fn nonsense_is_told_with_its_row_and_what_was_expected() {
        let with = |from: &str, to: &str| GOOD.replace(from, to);
        for (body, told) in [
            (String::new(), "answers with nothing"),
            ("[]".into(), "an object is expected"),
            ("{}".into(), "nothing as \"rows\""),
            (
                r#"{"rows": [1]}"#.into(),
                "number 1 of its rows is a number",
            ),
            (GOOD[..GOOD.len() - 4].into(), "no JSON"),
            (
                r#"{"rows": []}"#.into(),
                "2 of 2 rows are not answered, the first is \"r/u/0-7\"",
            ),
            (
                with("r/u/0-8", "r/u/0-9"),
                "\"r/u/0-9\" was not asked about",
            ),
            (
                with("r/u/0-8", "r/u/0-6"),
                "\"r/u/0-6\" was not asked about",
            ),
            (
                with("r/u/0-8", "r/u/0-08"),
                "\"r/u/0-08\" was not asked about",
            ),
            (with("r/u/0-8", "r/u/0-7"), "answered twice"),
            (with("\"r/u/0-8\"", "8"), "an idempotency_key is a number"),
            (
                with("\"verdict\": \"refuse\", ", ""),
                "\"r/u/0-8\": it has no verdict",
            ),
            (
                with("\"refuse\"", "\"refused\""),
                "is \"refused\": \"apply\",",
            ),
            (with("no\\nmore", " "), "without a reason"),
            (with("\"cost\"", "\"costs\""), "did you mean \"cost\""),
            (with("1.5", "\"much\""), "which can be no decimal"),
            (with("{\"cost\": 1.5}", "1"), "its \"new\" is a number"),
            (
                with(
                    "0-8\", \"verdict\": \"refuse\"",
                    "0-8\", \"verdict\": \"change\"",
                ),
                "a delete cannot be changed",
            ),
        ] {
            let error = read(false, "application/json", &body).unwrap_err();
            assert!(error.contains(told), "{error} has no {told}");
        }
        let error = read(true, "", GOOD).unwrap_err();
        assert!(
            error.contains("\"handled\" or \"refuse\" is expected"),
            "{error}"
        );
    }
}
