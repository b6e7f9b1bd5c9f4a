//! Rows of the centre that wait for a decision of the user: they are below a row under whose key the
//! application has inserted another one.

use rusqlite::{Connection, params};
use tidewater_protocol::{Datum, PublicationSchema};

use super::table::{TableApply, was_present};
use crate::database::row;
use crate::database::row_values::key_of;
use crate::database::tables::QuotedNames;

/// A row of the application of which the user has to decide.
pub(super) struct UndecidedRow {
    pub(super) table: String,
    /// Packed.
    pub(super) key: Vec<u8>,
}

/// Notes what a stale row waits for.
pub(super) fn note(
    connection: &Connection,
    table: &TableApply,
    key: &[Datum<'_>],
    undecided: &UndecidedRow,
) -> rusqlite::Result<()> {
    let packed = row::pack_key(&table.key_types, key);
    let mut statement = connection.prepare_cached(
        "UPDATE tidewater_stale SET waits_for_table = ?3, waits_for_key = ?4 \
         WHERE table_name = ?1 AND key_packed = ?2",
    )?;
    let parameters = params![table.name(), packed, undecided.table, undecided.key];
    statement.execute(parameters).map(drop)
}

/// Has nothing wait any more for rows of which the user has decided. Rows that refer to each other
/// would otherwise wait for each other without an end.
pub(super) fn end_decided(
    connection: &Connection,
    schema: &PublicationSchema,
) -> rusqlite::Result<()> {
    let mut found = connection.prepare_cached(
        "SELECT DISTINCT waits_for_table, waits_for_key FROM tidewater_stale \
         WHERE waits_for_table IS NOT NULL",
    )?;
    let found = found.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    for decided in found.collect::<rusqlite::Result<Vec<(String, Vec<u8>)>>>()? {
        let (table, packed) = &decided;
        let Some(table) = schema.table(table) else {
            continue;
        };
        let names = QuotedNames::for_table(table);
        let present: Option<bool> = match key_of(table, packed) {
            None => None,
            Some(key) => {
                let mut statement = connection.prepare_cached(&was_present(&names))?;
                names.bind_key(&mut statement, &key)?;
                let mut rows = statement.raw_query();
                rows.next()?.map(|row| row.get(0)).transpose()?
            }
        };
        if present != Some(false) {
            connection.execute(
                "UPDATE tidewater_stale SET waits_for_table = NULL, waits_for_key = NULL \
                 WHERE waits_for_table = ?1 AND waits_for_key = ?2",
                params![decided.0, decided.1],
            )?;
        }
    }
    Ok(())
}
