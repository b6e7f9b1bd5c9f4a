//! Which rows of a table a remote holds, as it is configured.

use tidewater_centre::{RuleBy, RuleSpec, WindowLength, WindowSpec};

use super::names::check_columns;
use crate::error::ConfigError;
use crate::section_reader::SectionReader;

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
    let mut section = match value {
        toml::Value::String(text) if text == "everyone" => return Ok(RuleSpec::everyone()),
        toml::Value::Table(table) => SectionReader::new("publication.table.partition", table),
        other => return Err(wrong(format!("partition is {other}"))),
    };
    let place = format!("{place}: partition");
    section.place(&place);
    let window = section.section("window")?;
    let window = window.map(|it| read_window(it, &place)).transpose()?;
    let foreign_key = section.optional_texts("by")?;
    let (columns, values) = (section.optional_texts("columns")?, section.text("values")?);
    let by = match (columns, values, section.text("follows")?) {
        (Some(columns), Some(values), None) if foreign_key.is_none() => {
            if columns.is_empty() || values.trim().is_empty() {
                return Err(wrong("partition needs columns and values".into()));
            }
            check_columns(&format!("{place}.columns"), &columns)?;
            RuleBy::Columns { columns, values }
        }
        (None, None, Some(table)) => {
            check_columns(&format!("{place}.by"), foreign_key.iter().flatten())?;
            let by = foreign_key.filter(|by| !by.is_empty());
            RuleBy::Follows { table, by }
        }
        (None, None, None) if window.is_some() && foreign_key.is_none() => RuleBy::Everyone,
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

fn read_window(mut section: SectionReader, place: &str) -> Result<WindowSpec, ConfigError> {
    let wrong = |what: String| ConfigError::new(format!("{place}: {what}"), WINDOW_HINT);
    let (column, last) = (section.text("column")?, section.value("last")?);
    let (column, last) = column
        .zip(last)
        .ok_or_else(|| wrong("window needs column and last".into()))?;
    let last = match &last {
        toml::Value::Integer(number @ 1..) => WindowLength::Number(number.unsigned_abs()),
        toml::Value::String(text) => text
            .parse()
            .map_err(|()| wrong(format!("window.last is {text:?}")))?,
        other => return Err(wrong(format!("window.last is {other}"))),
    };
    Ok(WindowSpec { column, last })
}
