//! Kept conflicts and refused rows as JSON objects, the same in every command's output.

use serde::Serialize;
use serde_json::value::RawValue;
use tidewater_centre::records::{ConflictRecord, RefusedRecord};

/// The text of a JSON value, so that it does not become JSON within a string. It is kept
/// to the letter (a parsed number would lose digits); what is no JSON stays a string.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum JsonText {
    Json(Box<RawValue>),
    Text(String),
}

pub(crate) fn embedded(text: &str) -> JsonText {
    // A line end in JSON is white space, and would end our line.
    match RawValue::from_string(text.replace(['\n', '\r'], " ")) {
        Ok(json) => JsonText::Json(json),
        Err(_) => JsonText::Text(text.to_owned()),
    }
}

/// A change of a row that somebody else has changed, too.
#[derive(Serialize)]
pub(crate) struct ConflictLine<'a> {
    id: i64,
    at_ms: i64,
    remote_id: String,
    user: &'a str,
    publication: &'a str,
    table: &'a str,
    key: JsonText,
    operation: &'a str,
    pre_image: Option<JsonText>,
    uploaded: Option<JsonText>,
    winner: Option<JsonText>,
    replaced: Option<JsonText>,
    outcome: &'static str,
    settled: Option<SettledLine<'a>>,
}

/// What an operator has chosen since.
#[derive(Serialize)]
struct SettledLine<'a> {
    at_ms: i64,
    by: &'a str,
    #[serde(rename = "as")]
    version: &'a str,
}

impl ConflictLine<'_> {
    pub(crate) fn from_record(record: &ConflictRecord) -> ConflictLine<'_> {
        ConflictLine {
            id: record.id,
            at_ms: record.at_ms,
            remote_id: record.remote_id.to_string(),
            user: &record.user,
            publication: &record.publication,
            table: &record.table,
            key: embedded(&record.key),
            operation: &record.operation,
            pre_image: record.pre_image.as_deref().map(embedded),
            uploaded: record.uploaded.as_deref().map(embedded),
            winner: record.winner.as_deref().map(embedded),
            replaced: record.replaced.as_deref().map(embedded),
            outcome: record.outcome.name(),
            settled: record.settled.as_ref().map(|it| SettledLine {
                at_ms: it.at_ms,
                by: &it.by,
                version: &it.version,
            }),
        }
    }
}

/// A change that the centre refused: its last attempt.
#[derive(Serialize)]
pub(crate) struct RefusedLine<'a> {
    id: i64,
    at_ms: i64,
    remote_id: String,
    user: &'a str,
    publication: &'a str,
    table: &'a str,
    key: JsonText,
    operation: &'a str,
    row: JsonText,
    code: &'a str,
    reason: &'a str,
    pre_image: Option<JsonText>,
    sequence: u64,
    attempts: u64,
    parent: Option<ParentLine<'a>>,
    settled: Option<RefusalEndLine<'a>>,
}

/// The refused row that one refers to.
#[derive(Serialize)]
struct ParentLine<'a> {
    table: &'a str,
    key: JsonText,
}

/// How a refused row is settled.
#[derive(Serialize)]
struct RefusalEndLine<'a> {
    at_ms: i64,
    by: &'a str,
    #[serde(rename = "as")]
    outcome: &'static str,
    row: Option<JsonText>,
    reason: Option<&'a str>,
}

impl RefusedLine<'_> {
    pub(crate) fn from_record(record: &RefusedRecord) -> RefusedLine<'_> {
        RefusedLine {
            id: record.id,
            at_ms: record.at_ms,
            remote_id: record.remote_id.to_string(),
            user: &record.user,
            publication: &record.publication,
            table: &record.table,
            key: embedded(&record.key),
            operation: &record.operation,
            row: embedded(&record.row),
            code: &record.code,
            reason: &record.reason,
            pre_image: record.pre_image.as_deref().map(embedded),
            sequence: record.sequence,
            attempts: record.attempts,
            parent: record.parent.as_ref().map(|(table, key)| ParentLine {
                table,
                key: embedded(key),
            }),
            settled: record.settled.as_ref().map(|it| RefusalEndLine {
                at_ms: it.at_ms,
                by: &it.by,
                outcome: it.outcome.name(),
                row: it.row.as_deref().map(embedded),
                reason: it.reason.as_deref(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exported_images_keep_every_digit() {
        let image = "{\"id\":9007199254740993,\n\"cost\":123456789012345678901.120000}";
        let line = serde_json::to_string(&embedded(image)).unwrap();
        assert_eq!(line, image.replace('\n', " "));
        assert_eq!(
            serde_json::to_string(&embedded("not json")).unwrap(),
            "\"not json\""
        );
    }
}
