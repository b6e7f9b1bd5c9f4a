//! What is asked about: the table as people name it, and the key as people write it.

use serde_json::Value as Json;
use tidewater_protocol::{ColumnType, Datum, Fit, Table, Value};

use crate::engine::inspect::DatabaseInspection;
use crate::engine::publication::Publication;
use crate::engine::upload::row_json;
use crate::error::CentreError;
use crate::explain::ExplainQuestion;
use crate::nearest::nearest;

type Result<T> = std::result::Result<T, CentreError>;

/// The table and the key that are meant.
pub(super) struct Subject {
    /// Its name on remotes.
    pub(super) table: String,
    /// Where it is: the publication's and the table's place.
    pub(super) places: Vec<(usize, usize)>,
    /// The types of the key's columns, and their values.
    types: Vec<ColumnType>,
    values: Vec<Value>,
}

fn wrong(message: String, hint: impl Into<String>) -> CentreError {
    CentreError::Configuration {
        message,
        hint: hint.into(),
    }
}

impl Subject {
    /// # Errors
    /// The remote has no such table, or the table no such key.
    pub(super) fn find<T: DatabaseInspection>(
        question: &ExplainQuestion,
        subscribed: &[String],
        publications: &[Publication<T::Tables>],
    ) -> Result<Subject> {
        let meant = |publication: &Publication<T::Tables>| {
            let tables = publication.schema.tables.iter().zip(&publication.tables);
            let mut tables = tables.map(|(table, served)| [&*table.name, &*served.title]);
            tables.position(|names| names.contains(&&*question.table))
        };
        let all = publications.iter().enumerate();
        let all = all.filter_map(|(at, it)| Some((at, meant(it)?)));
        let all: Vec<(usize, usize)> = all.collect();
        let is_subscribed = |at: usize| subscribed.contains(&publications[at].schema.name);
        let mut places = all.clone();
        places.retain(|&(at, _)| is_subscribed(at));
        let Some(&(publication, table)) = places.first() else {
            return Err(unknown::<T>(question, (&all, subscribed), publications));
        };
        let table = &publications[publication].schema.tables[table];
        let shape = table.shape();
        let types: Vec<ColumnType> = table.key.iter().map(|&it| shape.columns[it]).collect();
        let values = read_key(table, &types, &question.key)?;
        Ok(Subject {
            table: table.name.clone(),
            places,
            types,
            values,
        })
    }

    /// The key's values.
    pub(super) fn datums(&self) -> Vec<Datum<'_>> {
        super::typed(&self.types, &self.values)
    }

    /// The key as a JSON array.
    pub(super) fn key_json(&self) -> String {
        row_json::key(&self.datums())
    }
}

/// Why the table is none of the remote's.
fn unknown<T: DatabaseInspection>(
    question: &ExplainQuestion,
    (all, subscribed): (&[(usize, usize)], &[String]),
    publications: &[Publication<T::Tables>],
) -> CentreError {
    let (table, remote) = (&question.table, question.remote_id);
    if let Some(&(at, _)) = all.first() {
        let name = &publications[at].schema.name;
        return wrong(
            format!(
                "the table {table:?} is in the publication {name:?}, which the remote {remote} has \
                 not synced"
            ),
            match subscribed {
                [] => "it has not synced anything yet".to_owned(),
                some => format!("it has synced {}", some.join(", ")),
            },
        );
    }
    let tables = publications.iter().flat_map(|it| &it.schema.tables);
    let names: Vec<&str> = tables.map(|it| &*it.name).collect();
    wrong(
        format!("no publication that is deployed has a table {table:?}"),
        match nearest(table, names.iter().copied()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("there are {}", names.join(", ")),
        },
    )
}

/// Reads a key: a JSON array, or values separated by commas; of one column the value as it is.
fn read_key(table: &Table, types: &[ColumnType], text: &str) -> Result<Vec<Value>> {
    let names: Vec<&str> = table.key_columns().map(|it| &*it.name).collect();
    let example = match types.len() {
        1 => "write the value, or a JSON array: '[1]'".to_owned(),
        _ => "write the values separated by commas, or a JSON array: '[1,\"a\"]'".to_owned(),
    };
    let array = text.trim_start().starts_with('[');
    let parts: Vec<Json> = if array {
        serde_json::from_str(text).map_err(|error| {
            wrong(
                format!("the key {text:?} is no JSON array: {error}"),
                &example,
            )
        })?
    } else {
        let parts: Vec<&str> = match types.len() {
            1 => vec![text],
            _ => text.split(',').map(str::trim).collect(),
        };
        let parts = parts.iter().enumerate();
        parts
            .map(|(at, part)| spelled(types.get(at), part))
            .collect()
    };
    if parts.len() != types.len() {
        return Err(wrong(
            format!(
                "the key of {:?} is ({}), and {} {} given",
                table.name,
                names.join(", "),
                match parts.len() {
                    1 => "1 value".to_owned(),
                    count => format!("{count} values"),
                },
                if parts.len() == 1 { "is" } else { "are" },
            ),
            example,
        ));
    }
    let whole = Json::Array(parts).to_string();
    let values = row_json::read_key(table, &whole);
    let values =
        values.ok_or_else(|| wrong(format!("{text:?} is no key of {:?}", table.name), &example))?;
    let mut read = Vec::with_capacity(values.len());
    for (((_, value), column_type), name) in values.into_iter().zip(types).zip(names) {
        let (datum, fit) = column_type.datum(value.as_ref());
        if fit == Fit::Unfit || datum == Datum::Null {
            return Err(wrong(
                format!(
                    "{datum} is no value of {name:?}, a column of the key of {:?}",
                    table.name
                ),
                &example,
            ));
        }
        read.push(datum.to_value());
    }
    Ok(read)
}

/// A value as it is typed, as JSON.
fn spelled(column_type: Option<&ColumnType>, text: &str) -> Json {
    match column_type {
        Some(ColumnType::Integer) => text
            .trim()
            .parse::<i64>()
            .map_or_else(|_| text.into(), Json::from),
        Some(ColumnType::Boolean) => match text.trim() {
            "true" | "1" => true.into(),
            "false" | "0" => false.into(),
            other => other.into(),
        },
        _ => text.into(),
    }
}
