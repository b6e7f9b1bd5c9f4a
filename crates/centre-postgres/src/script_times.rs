//! The times of scripts, `{s.last_download}` and the like: moments, whatever they are compared with.
//!
//! PostgreSQL gives a parameter the type of what it is compared with. Beside a column without a zone
//! it would be a time of day in no zone; as a `timestamptz` it is compared in the zone of the session,
//! which is that of the database, as for every application that writes the column by `now()`.

use std::borrow::Cow;

use super::values::PostgresType;
use tidewater_centre::engine::flight::TableArgument;

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
