//! What stands in for handlers: answers to uploaded rows, from a file of JSON lines.

use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

use super::KitError;

/// What handlers say of uploaded rows: the first line that fits a row; `apply` of any other.
#[derive(Debug, Default)]
pub struct HandlerAnswers(Vec<AnswerLine>);

/// One line of the file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerLine {
    /// The table, as remotes call it.
    table: String,
    /// Of a row with this key, or with these columns of it.
    #[serde(default)]
    key: Map<String, Json>,
    /// Of a row that has these values: as it is to be, of a delete as it was.
    #[serde(default, rename = "where")]
    columns: Map<String, Json>,
    operation: Option<AnswerOperation>,
    verdict: AnswerVerdict,
    reason: Option<String>,
    #[serde(default)]
    new: Map<String, Json>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AnswerOperation {
    Insert,
    Update,
    Delete,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AnswerVerdict {
    Apply,
    Change,
    Refuse,
    Handled,
}

impl AnswerOperation {
    fn name(self) -> &'static str {
        match self {
            AnswerOperation::Insert => "insert",
            AnswerOperation::Update => "update",
            AnswerOperation::Delete => "delete",
        }
    }
}

impl AnswerVerdict {
    fn name(self) -> &'static str {
        match self {
            AnswerVerdict::Apply => "apply",
            AnswerVerdict::Change => "change",
            AnswerVerdict::Refuse => "refuse",
            AnswerVerdict::Handled => "handled",
        }
    }
}

impl HandlerAnswers {
    /// Reads a file's text; empty lines say nothing.
    ///
    /// # Errors
    /// A line is no answer.
    pub fn parse(text: &str) -> Result<HandlerAnswers, KitError> {
        let lines = text.lines().enumerate();
        let lines = lines.filter(|(_, line)| !line.trim().is_empty());
        let read = lines.map(|(at, line)| {
            let wrong = |what: String| KitError::Usage {
                what: format!("line {} of the handlers' answers: {what}", at + 1),
                hint: "write {\"table\":\"orders\",\"where\":{\"quantity\":0},\"verdict\":\"refuse\",\
                       \"reason\":\"..\"}, with verdict apply, change (and new), refuse or handled",
            };
            let line: AnswerLine =
                serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
            let changes = line.verdict == AnswerVerdict::Change;
            if changes == line.new.is_empty() {
                return Err(wrong(match changes {
                    true => "it changes a row and names nothing new".into(),
                    false => "it has new, and does not change the row".into(),
                }));
            }
            Ok(line)
        });
        Ok(HandlerAnswers(read.collect::<Result<_, _>>()?))
    }

    /// The columns that the answers change, as `TABLE.COLUMN`, and the tables of which rows go
    /// elsewhere: what devices have written there is not looked for.
    pub(super) fn made(&self) -> Vec<String> {
        let made = self.0.iter().flat_map(|line| match line.verdict {
            AnswerVerdict::Handled => vec![line.table.clone()],
            _ => {
                let columns = line.new.keys();
                columns.map(|it| format!("{}.{it}", line.table)).collect()
            }
        });
        made.collect()
    }

    /// The tables that they are about.
    pub(super) fn tables(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|it| it.table.as_str())
    }

    /// Answers a request as a handler does.
    pub(super) fn answer(&self, request: &[u8]) -> Vec<u8> {
        let request: Json = serde_json::from_slice(request).unwrap_or_default();
        let table = request["table"].as_str().unwrap_or_default();
        let rows = request["rows"].as_array().map_or(&[][..], Vec::as_slice);
        let rows: Vec<Json> = rows.iter().map(|row| self.of_row(table, row)).collect();
        json!({ "rows": rows }).to_string().into_bytes()
    }

    fn of_row(&self, table: &str, row: &Json) -> Json {
        let mut answer = json!({ "idempotency_key": row["idempotency_key"], "verdict": "apply" });
        if let Some(line) = self.0.iter().find(|it| it.table == table && it.fits(row)) {
            answer["verdict"] = line.verdict.name().into();
            match line.verdict {
                // What is deleted has nothing that could be changed.
                AnswerVerdict::Change if row["operation"] == "delete" => {
                    answer["verdict"] = "apply".into();
                }
                AnswerVerdict::Change => answer["new"] = line.new.clone().into(),
                AnswerVerdict::Refuse => {
                    let reason = line.reason.as_deref().unwrap_or("refused by the handler");
                    answer["reason"] = reason.into();
                }
                AnswerVerdict::Apply | AnswerVerdict::Handled => {}
            }
        }
        answer
    }
}

impl AnswerLine {
    fn fits(&self, row: &Json) -> bool {
        let image = match row["operation"] == "delete" {
            true => &row["old"],
            false => &row["new"],
        };
        let has = |image: &Json, of: &Map<String, Json>| of.iter().all(|it| image[it.0] == *it.1);
        let operation = self.operation.map(AnswerOperation::name);
        operation.is_none_or(|it| row["operation"] == it)
            && has(&row["key"], &self.key)
            && has(image, &self.columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = r#"
        {"table":"orders","where":{"quantity":0},"verdict":"refuse","reason":"none"}
        {"table":"orders","key":{"id":7},"operation":"update","verdict":"change","new":{"quantity":1}}
        {"table":"note","verdict":"handled"}
    "#;

    #[test]
    fn the_first_line_that_fits_a_row_says_what_becomes_of_it() {
        let answers = HandlerAnswers::parse(LINES).unwrap();
        assert_eq!(answers.made(), ["orders.quantity", "note"]);
        let request = json!({"event": "upload", "table": "orders", "rows": [
            {"idempotency_key": "a", "operation": "insert", "key": {"id": 7},
             "new": {"id": 7, "quantity": 0}},
            {"idempotency_key": "b", "operation": "update", "key": {"id": 7},
             "old": {"id": 7, "quantity": 2}, "new": {"id": 7, "quantity": 3}},
            {"idempotency_key": "c", "operation": "delete", "key": {"id": 8},
             "old": {"id": 8, "quantity": 2}},
        ]});
        let answer = answers.answer(request.to_string().as_bytes());
        let answer: Json = serde_json::from_slice(&answer).unwrap();
        assert_eq!(
            answer["rows"],
            json!([
                {"idempotency_key": "a", "verdict": "refuse", "reason": "none"},
                {"idempotency_key": "b", "verdict": "change", "new": {"quantity": 1}},
                {"idempotency_key": "c", "verdict": "apply"},
            ])
        );
    }

    #[test]
    fn a_line_that_is_no_answer_is_named() {
        for (line, what) in [
            ("{}", "line 1"),
            (r#"{"table":"t","verdict":"perhaps"}"#, "unknown variant"),
            (r#"{"table":"t","verdict":"change"}"#, "names nothing new"),
            (
                r#"{"table":"t","verdict":"apply","whre":{}}"#,
                "unknown field",
            ),
        ] {
            let error = HandlerAnswers::parse(line).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
