//! The times of scripts, `{s.last_download}` and the like: moments, whatever they are compared with.
//!
//! PostgreSQL gives a parameter the type of what it is compared with. Beside a column without a zone
//! it would be a time of day in no zone; as a `timestamptz` it is compared in the zone of the session,
//! which is that of the database, as for every application that writes the column by `now()`.

use std::borrow::Cow;

use tokio_postgres::Statement;
use tokio_postgres::types::Type;

use tidewater_protocol::ColumnType;

use super::connection::PostgresConnection;
use super::statement_check::refused_by_database;
use super::values::PostgresType;
use crate::driver_error::statement_failed;
use tidewater_centre::engine::flight::TableArgument;
use tidewater_centre::engine::script::{Script, ScriptParameter};
use tidewater_centre::engine::scripts::{CheckedScript, parameter_type};
use tidewater_centre::error::CentreError;

/// The columns without a zone that these words name, and the zone of the session.
const ZONELESS: &str = "
SELECT pg_catalog.current_setting('TimeZone'), coalesce((
  SELECT string_agg(DISTINCT a.attname::text, ', ') FROM pg_catalog.pg_attribute a
  JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
  WHERE a.attname::text = ANY ($1) AND a.atttypid IN (1082, 1114) AND NOT a.attisdropped
    AND c.relname::text = ANY ($1)), '')";

fn is_time(parameter: &ScriptParameter) -> bool {
    matches!(parameter, ScriptParameter::System(name) if parameter_type(name) == ColumnType::TimestampTz)
}

/// The types that a script's times are told to have; the others follow from where they stand.
fn types(script: &Script) -> Vec<Type> {
    let parameters = &script.parameters;
    let last = parameters.iter().rposition(is_time);
    let typed = parameters.iter().take(last.map_or(0, |it| it + 1));
    let types = typed.map(|it| match is_time(it) {
        true => Type::TIMESTAMPTZ,
        false => Type::UNKNOWN,
    });
    types.collect()
}

/// The text of a statement with moments among its parameters: statements are known by their texts, and
/// another script may have the same text with a parameter that is no time.
pub(super) fn told_apart<'s>(
    sql: &'s str,
    arguments: &[TableArgument<'_, PostgresType>],
) -> Cow<'s, str> {
    let is_moment = |it: &TableArgument<'_, PostgresType>| matches!(it, TableArgument::Moment(_));
    if !arguments.iter().any(is_moment) {
        return sql.into();
    }
    let kinds = arguments.iter().map(|it| match is_moment(it) {
        true => "time",
        false => "other",
    });
    format!("{sql}\n-- {}", kinds.collect::<Vec<_>>().join(", ")).into()
}

/// The statement of a script.
pub(super) async fn prepare(
    connection: &mut PostgresConnection,
    script: &Script,
) -> Result<Statement, CentreError> {
    let types = types(script);
    // Statements are known by their texts, and another script may have the same text with a parameter
    // that is no time.
    let sql = match types.is_empty() {
        true => Cow::from(&script.sql),
        false => {
            let typed = types.iter().map(|it| it.name()).collect::<Vec<_>>();
            Cow::from(format!("{}\n-- {}", script.sql, typed.join(", ")))
        }
    };
    connection.prepare(&sql, &types).await
}

/// See [`check_script`](tidewater_centre::engine::change_tracking::ChangeTracking::check_script).
pub(super) async fn check_script(
    connection: &mut PostgresConnection,
    named: &str,
    script: &Script,
) -> Result<CheckedScript, CentreError> {
    let types = types(script);
    let prepared = connection.client().prepare_typed(&script.sql, &types).await;
    let prepared = prepared.map_err(|error| refused_by_database(named, error))?;
    let mut checked = CheckedScript::default();
    for column in prepared.columns() {
        if is_zoneless(column.type_()) {
            checked.zoneless.push(column.name().to_owned());
        }
        checked.columns.push(column.name().to_owned());
    }
    // Without our types each time has that of what it is compared with. PostgreSQL may not find one.
    let asked = match types.is_empty() {
        true => None,
        false => connection.client().prepare(&script.sql).await.ok(),
    };
    let inferred = asked.iter().flat_map(|it| it.params());
    let compared = script.parameters.iter().zip(inferred);
    let compared = compared.filter(|it| is_time(it.0) && is_zoneless(it.1));
    if let Some((parameter, _)) = compared.into_iter().next() {
        let warning = warning(connection, script, parameter).await?;
        checked.warnings.push(warning);
    }
    Ok(checked)
}

fn is_zoneless(of: &Type) -> bool {
    matches!(*of, Type::TIMESTAMP | Type::DATE)
}

/// What is told of a time that is compared with one without a zone.
async fn warning(
    connection: &PostgresConnection,
    script: &Script,
    parameter: &ScriptParameter,
) -> Result<String, CentreError> {
    let words = script
        .sql
        .split(|it: char| !(it.is_alphanumeric() || it == '_'));
    // Names that stand without quotes are of small letters.
    let words: Vec<String> = words
        .flat_map(|it| [it.to_owned(), it.to_lowercase()])
        .collect();
    let found = connection.client().query_one(ZONELESS, &[&words]).await;
    let found = found.map_err(statement_failed("looking for columns without a zone"))?;
    let (zone, columns): (String, String) = (found.get(0), found.get(1));
    let columns = match columns.is_empty() {
        true => String::new(),
        false => format!(" ({columns})"),
    };
    Ok(format!(
        "compares {{{parameter}}} with a time without a zone{columns}, which is taken as one of the \
         database's time zone, {zone}: rows that a program writes in another zone are missed, or \
         come again with every sync; make the column a timestamptz, or see that all write in {zone}"
    ))
}
