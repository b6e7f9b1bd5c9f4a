//! Having the database read the statements of scripts.
//!
//! Times of scripts, `{s.last_download}` and the like, are moments, whatever they are compared with. A
//! database may give a parameter the type of what it is compared with: beside a column without a zone
//! it would be a time of day in no zone.

use tidewater_protocol::ColumnType;

use super::events::parameter_type;
use crate::engine::change_tracking::ChangeTracking;
use crate::engine::connection::{DatabaseConnection as _, each, system_row};
use crate::engine::script::{Script, ScriptParameter};
use crate::engine::statement_check::{check_parameters, refused};
use crate::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

/// What a database says of a statement of a script.
#[derive(Clone, Debug, Default)]
pub(super) struct CheckedScript {
    /// The names of the columns that it yields.
    pub(super) columns: Vec<String>,
    /// Those among them that are times without a zone, where times have one.
    pub(super) zoneless: Vec<String>,
    /// What its operator may not have thought of: each is a sentence about the statement.
    pub(super) warnings: Vec<String>,
}

/// Checks that a statement of a script can be run, which has so many parameters beside its own for a
/// relation of rows. It is named by its file.
///
/// # Errors
/// See [`crate::engine::scope_query::wrong`].
pub(super) async fn check<T: ChangeTracking>(
    connection: &mut T::Connection,
    named: &str,
    script: &Script,
    of_rows: usize,
) -> Result<CheckedScript> {
    let dialect = T::dialect();
    let told = told_types(script);
    let found = connection.describe(&script.sql, &told).await;
    let found = found.map_err(|error| refused(dialect, named, &script.sql, error))?;
    check_parameters(dialect, named, &found, told.len() + of_rows)?;
    let zoneless = found.columns.iter();
    let zoneless = zoneless.filter(|it| is_zoneless(it.column_type));
    let mut checked = CheckedScript {
        zoneless: zoneless.map(|it| it.name.clone()).collect(),
        columns: found.columns.iter().map(|it| it.name.clone()).collect(),
        warnings: Vec::new(),
    };
    let Some(zoneless_sql) = dialect.zoneless_sql() else {
        checked.zoneless.clear();
        return Ok(checked);
    };
    if told.iter().all(Option::is_none) {
        return Ok(checked);
    }
    // Without our types each time has that of what it is compared with. The database may not find one.
    let untold = vec![None; told.len()];
    let asked = connection.describe(&script.sql, &untold).await.ok();
    let inferred = asked.iter().flat_map(|it| &it.parameters);
    let mut compared = script.parameters.iter().zip(inferred);
    if let Some((parameter, _)) = compared.find(|it| is_time(it.0) && is_zoneless(*it.1)) {
        let warning = warning::<T>(connection, zoneless_sql, script, parameter).await?;
        checked.warnings.push(warning);
    }
    Ok(checked)
}

/// The types that the parameters of a script's statement are told to have: times are moments. The others
/// follow from where they stand.
pub fn told_types(script: &Script) -> Vec<Option<ColumnType>> {
    let parameters = script.parameters.iter();
    let told = parameters.map(|it| is_time(it).then_some(ColumnType::TimestampTz));
    told.collect()
}

fn is_time(parameter: &ScriptParameter) -> bool {
    matches!(parameter, ScriptParameter::System(name) if parameter_type(name) == ColumnType::TimestampTz)
}

fn is_zoneless(column_type: Option<ColumnType>) -> bool {
    matches!(column_type, Some(ColumnType::Timestamp | ColumnType::Date))
}

/// What is told of a time that is compared with one without a zone.
async fn warning<T: ChangeTracking>(
    connection: &mut T::Connection,
    zoneless_sql: &'static str,
    script: &Script,
    parameter: &ScriptParameter,
) -> Result<String> {
    let words = script
        .sql
        .split(|it: char| !(it.is_alphanumeric() || it == '_'));
    // Names that stand without quotes are of small letters.
    let words = words.flat_map(|it| [it.to_owned(), it.to_lowercase()]);
    let words = each(zoneless_sql, words.map(|it| system_row![it]).collect());
    let answer = connection.run_one("looking for columns without a zone", words);
    let answer = answer.await?;
    let (zone, columns): (String, String) = match answer.rows.first() {
        Some(row) => (row.get(0)?, row.get(1)?),
        None => Default::default(),
    };
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
