//! What headquarters says of a branch's tables.
//!
//! A branch's file is two things at once: the centre of its devices, and a remote of
//! headquarters, whose program made the tables from the publication that it subscribes to. They
//! are declared as any remote's are, with no more than the four types that SQLite has, and only
//! the remote's own state remembers that a text is a date or a decimal with two places. So it is
//! asked here, and devices get what headquarters has.
//!
//! How the two live in one file:
//! - Names: everything of the centre begins with `tidewater_centre_`, everything of the remote with
//!   `tidewater_` and another word. Neither publishes what begins with `tidewater_`.
//! - Rows that come from headquarters: the remote switches its own triggers off while it applies,
//!   and has those of the change logs fire like an application's that write no synced table.
//! - Rows that come from devices are written as any program writes them, so the remote's triggers
//!   note them, and they go up with its next sync. What the centre makes of a conflict is a row too.
//! - Both write under `BEGIN IMMEDIATE` and wait five seconds for each other; both want the
//!   write-ahead log; each has a connection of its own, so that the switches of one (foreign keys,
//!   triggers) are not the other's.
//! - A new schema of headquarters' rebuilds tables as any migration does: the triggers of the change
//!   logs are put back word for word, and a log whose table has other columns than when it was
//!   deployed is made anew by the next deployment.
//! - A restored file is noticed twice: by headquarters, whose record of the last upload is ahead, and
//!   by devices, whose checkpoint has a mark that the file does not know. Each side gives back what
//!   the file has forgotten, by its own rules. A device's change of a sum may come from both sides:
//!   where the row is another one by now, it waits for the operator of the branch, or of headquarters.
//! - Numbers for the keys of new rows are headquarters'. A branch hands them on out of its own blocks.

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, params};

use tidewater_protocol::{Column, PublicationSchema, Table};

/// What the file subscribes to at headquarters; nothing if it is no branch's.
#[derive(Debug, Default)]
pub(super) struct BranchSubscription(Vec<PublicationSchema>);

impl BranchSubscription {
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<BranchSubscription> {
        let is_remote = connection
            .prepare_cached(
                "SELECT 1 FROM sqlite_schema WHERE type = 'table'
                 AND name = 'tidewater_subscription'",
            )?
            .exists([])?;
        if !is_remote {
            return Ok(BranchSubscription::default());
        }
        let mut statement = connection
            .prepare_cached("SELECT schema FROM tidewater_subscription WHERE schema IS NOT NULL")?;
        let schemas = statement.query_map([], |row| {
            PublicationSchema::decode(&row.get::<_, Vec<u8>>(0)?).map_err(|error| {
                rusqlite::Error::FromSqlConversionFailure(0, Type::Blob, Box::new(error))
            })
        })?;
        schemas
            .collect::<rusqlite::Result<_>>()
            .map(BranchSubscription)
    }

    /// A column, as remotes of headquarters have it.
    pub(super) fn column(&self, table: &str, column: &str) -> Option<&Column> {
        let mut columns = self.table(table)?.columns.iter();
        columns.find(|it| it.name.eq_ignore_ascii_case(column))
    }

    /// Whether the numbers of a column are headquarters'.
    pub(super) fn numbers(&self, table: &str, column: &str) -> bool {
        self.table(table).is_some_and(|table| {
            let numbered = table.identity.map(|it| &table.columns[it.column].name);
            numbered.is_some_and(|it| it.eq_ignore_ascii_case(column))
        })
    }

    fn table(&self, name: &str) -> Option<&Table> {
        let mut tables = self.0.iter().flat_map(|it| &it.tables);
        tables.find(|it| it.name.eq_ignore_ascii_case(name))
    }
}

/// Whether the file is a branch's.
pub(super) fn has_headquarters(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(!BranchSubscription::read(connection)?.0.is_empty())
}

/// A device has given back to the branch what its file has forgotten. Headquarters may have that from
/// before the file was restored, so it goes up as what is pending in a copied file does: sums are not
/// added twice.
pub(super) fn note_given_back(connection: &Connection) -> rusqlite::Result<()> {
    if has_headquarters(connection)? {
        let sql = "UPDATE tidewater_subscription SET copied_until = max(copied_until, generation)";
        connection.prepare_cached(sql)?.execute([])?;
    }
    Ok(())
}

/// Takes numbers out of the branch's own blocks, as many as there are.
pub(super) fn take_numbers(
    connection: &Connection,
    table: &str,
    count: u32,
) -> rusqlite::Result<Vec<(i64, i64)>> {
    let mut wanted = i64::from(count);
    let mut taken = Vec::new();
    while wanted > 0 {
        let block = connection
            .prepare_cached(
                "SELECT id, next, last FROM tidewater_identity_block
                 WHERE table_name = ?1 COLLATE NOCASE AND next <= last ORDER BY next LIMIT 1",
            )?
            .query_row([table], |row| {
                Ok((
                    row.get::<_, i64>(0)?,
                    row.get::<_, i64>(1)?,
                    row.get::<_, i64>(2)?,
                ))
            })
            .optional()?;
        let Some((id, first, last)) = block else {
            break;
        };
        let last = last.min(first.saturating_add(wanted - 1));
        connection.execute(
            "UPDATE tidewater_identity_block SET next = ?2 WHERE id = ?1",
            params![id, last.saturating_add(1)],
        )?;
        wanted -= last - first + 1;
        taken.push((first, last));
    }
    Ok(taken)
}
