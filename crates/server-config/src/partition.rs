//! Which rows of a table a remote holds, as it is configured.

use serde::Deserialize;

use tidewater_centre::{RuleBy, RuleSpec, WindowLength, WindowSpec};

use super::value::check_columns;
use crate::error::ConfigError;

#[derive(Deserialize)]
struct RawRule {
    columns: Option<Vec<String>>,
    values: Option<String>,
    follows: Option<String>,
    by: Option<Vec<String>>,
    window: Option<RawWindow>,
}

#[derive(Deserialize)]
struct RawWindow {
    column: Option<String>,
    last: Option<RawLast>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawLast {
    Number(u64),
    Text(String),
}

pub(super) const HINT: &str = "write partition = \"everyone\" to give every row to every remote, \
partition = { columns = [\"...\"], values = \"SELECT ... WHERE login = {s.username}\" } to give \
each remote the rows whose columns have one of the values that the query yields, or \
partition = { follows = \"orders\" } for the rows that refer to one of another table; a list of \
these gives the rows that any of them gives";

const WINDOW_HINT: &str = "write window = { column = \"order_date\", last = \"90 days\" }, with \
hours, days, weeks, months or years, or a number for a column of numbers";

/// Reads the rules of a table.
///
/// # Errors
/// There are none, or one means nothing.
pub(super) fn read(place: &str, value: Option<toml::Value>) -> Result<Vec<RuleSpec>, ConfigError> {
    let wrong = |what: &str| ConfigError::new(format!("{place}: {what}"), HINT);
    match value {
        None => Err(wrong("partition is missing")),
        Some(toml::Value::Array(rules)) if rules.is_empty() => Err(wrong("partition is empty")),
        Some(toml::Value::Array(rules)) => {
            let rules = rules.into_iter().map(|rule| one(place, rule));
            rules.collect()
        }
        Some(rule) => Ok(vec![one(place, rule)?]),
    }
}

fn one(place: &str, value: toml::Value) -> Result<RuleSpec, ConfigError> {
    let wrong = |what: String| ConfigError::new(format!("{place}: {what}"), HINT);
    let raw: RawRule = match value {
        toml::Value::String(text) if text == "everyone" => return Ok(RuleSpec::everyone()),
        value @ toml::Value::Table(_) => value
            .try_into()
            .map_err(|error: toml::de::Error| wrong(format!("partition: {}", error.message())))?,
        other => return Err(wrong(format!("partition is {other}"))),
    };
    let place = format!("{place}: partition");
    let window = raw.window.map(|it| it.read(&place)).transpose()?;
    let by = match (raw.columns, raw.values, raw.follows) {
        (Some(columns), Some(values), None) if raw.by.is_none() => {
            if columns.is_empty() || values.trim().is_empty() {
                return Err(wrong("partition needs columns and values".into()));
            }
            check_columns(&format!("{place}.columns"), &columns)?;
            RuleBy::Columns { columns, values }
        }
        (None, None, Some(table)) => {
            check_columns(&format!("{place}.by"), raw.by.iter().flatten())?;
            let by = raw.by.filter(|by| !by.is_empty());
            RuleBy::Follows { table, by }
        }
        (None, None, None) if window.is_some() && raw.by.is_none() => RuleBy::Everyone,
        (columns, values, None) if columns.is_some() != values.is_some() => {
            return Err(wrong("partition needs columns and values".into()));
        }
        _ => {
            let what = "a rule of partition has columns with values, or follows (with by), or a \
                        window alone";
            return Err(wrong(what.into()));
        }
    };
    Ok(RuleSpec { by, window })
}

impl RawWindow {
    fn read(self, place: &str) -> Result<WindowSpec, ConfigError> {
        let wrong = |what: String| ConfigError::new(format!("{place}: {what}"), WINDOW_HINT);
        let (Some(column), Some(last)) = (self.column, self.last) else {
            return Err(wrong("window needs column and last".into()));
        };
        let last = match last {
            RawLast::Number(0) => return Err(wrong("window.last is 0".into())),
            RawLast::Number(number) => WindowLength::Number(number),
            RawLast::Text(text) => text
                .parse()
                .map_err(|()| wrong(format!("window.last is {text:?}")))?,
        };
        Ok(WindowSpec { column, last })
    }
}
