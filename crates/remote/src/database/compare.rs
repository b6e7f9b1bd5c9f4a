//! What this remote and the centre agree on, as checksums of ranges of keys.
//!
//! Owns the *agreed view* of a table: each row as it was when remote and centre last agreed on
//! it. Where a row has local changes, pending or refused, that is the pre-image of the first of
//! them. The application does not change it, whatever it writes; only a sync does.

use rusqlite::{Connection, Row};
use tidewater_protocol::compare::{CompareError, Ranges, pack_key, rows_per_range, sort_keys};
use tidewater_protocol::message::KeyRange;
use tidewater_protocol::{ColumnType, Datum, PublicationSchema, Table};

use super::tables::QuotedNames;
use super::triggers::{MissedChanges, UntrackedTable};
use super::{CompareDue, RemoteDatabase, SubscriptionState, quote, row};
use crate::error::{ErrorContext, RemoteError};

/// A longer key is no bound: it would have to travel.
const MAX_BOUND_BYTES: usize = 2 << 10;

/// What a range takes on the way beside its bound.
const RANGE_BYTES: usize = 24;

const DOING: &str = "comparing tables";

impl RemoteDatabase {
    /// The ranges of a table's agreed view. They take about `limit_bytes` on the way at most.
    ///
    /// # Errors
    /// The table is not as the schema says, or SQLite failed.
    pub fn agreed_ranges(
        &self,
        table: &Table,
        limit_bytes: usize,
    ) -> Result<Vec<KeyRange>, RemoteError> {
        let snapshot = self.connection.unchecked_transaction().doing(DOING)?;
        let view = AgreedView::new(&snapshot, table);
        let mut bounds = view.bounds().doing(DOING)?;
        let unusable = |error: CompareError| RemoteError::BadRows {
            table: table.name.clone(),
            what: error.to_string(),
        };
        sort_keys(&row::key_types(table), &mut bounds).map_err(unusable)?;
        thin_out(&mut bounds, limit_bytes);
        let shape = table.shape();
        let bounds = bounds.iter().map(Vec::as_slice);
        let mut ranges = Ranges::at(&shape, bounds).map_err(unusable)?;
        view.add_to(&mut ranges).doing(DOING)?;
        let wire = ranges.to_wire();
        snapshot.commit().doing(DOING)?;
        Ok(wire)
    }

    /// Whether a table was changed while nothing tracked it, and is not compared yet.
    ///
    /// # Errors
    /// SQLite failed.
    pub(crate) fn is_untracked(&self, table: &Table) -> Result<bool, RemoteError> {
        is_untracked(&self.connection, &table.name).doing(DOING)
    }

    /// Makes a compare due for every subscription that has tables.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn make_compare_due(&mut self) -> Result<(), RemoteError> {
        self.connection
            .execute(
                "UPDATE tidewater_subscription SET compare_due = max(compare_due, ?1) \
                 WHERE schema IS NOT NULL",
                [CompareDue::Yes.stored()],
            )
            .map(drop)
            .doing(DOING)
    }
}

/// The tables of a subscription are compared by its next download.
pub(crate) fn make_due(connection: &Connection, subscription: i64) -> rusqlite::Result<()> {
    connection
        .execute(
            "UPDATE tidewater_subscription SET compare_due = max(compare_due, ?2) WHERE id = ?1",
            [subscription, CompareDue::Yes.stored()],
        )
        .map(drop)
}

/// The server wants to be sure that everything is equal.
pub(crate) fn make_verify_due(connection: &Connection, subscription: i64) -> rusqlite::Result<()> {
    connection
        .execute(
            "UPDATE tidewater_subscription SET compare_due = max(compare_due, ?2) WHERE id = ?1",
            [subscription, CompareDue::Verify.stored()],
        )
        .map(drop)
}

/// Tables were not tracked: they are compared, and what differs in them may be the user's.
///
/// Not so where only `REPLACE` through a new unique index was missed. Every row that is here is
/// tracked, and of one that is not, nobody can tell whether `REPLACE` pushed it out here or it
/// was made in the centre meanwhile: to take it for the user's delete might destroy, in the
/// centre, what somebody else wrote, which I2 holds for as well. So the centre's row comes back.
/// Where it collides with the row that took its place, one of the two waits, marked as stale and
/// counted; both are in the centre, and the user decides which goes.
pub(crate) fn note_untracked(
    connection: &Connection,
    untracked: &[UntrackedTable],
) -> rusqlite::Result<()> {
    for table in untracked {
        make_due(connection, table.subscription)?;
        if table.uploads && table.missed == MissedChanges::Anything {
            connection.execute(
                "INSERT INTO tidewater_untracked (table_name) VALUES (?1) ON CONFLICT DO NOTHING",
                [&table.table],
            )?;
        }
    }
    Ok(())
}

/// A restored centre has forgotten changes of these tables that were not kept: they are compared
/// like untracked ones. All rows of a table that is never compared go up: what the centre has
/// already is nothing new to it.
pub(crate) fn note_forgotten(
    connection: &Connection,
    subscription: &SubscriptionState,
) -> rusqlite::Result<()> {
    let tables = subscription.schema.iter().flat_map(|schema| &schema.tables);
    for table in tables.filter(|table| table.direction.uploads()) {
        if table.direction.downloads() {
            connection.execute(
                "INSERT INTO tidewater_untracked (table_name, forgotten) VALUES (?1, 1) \
                 ON CONFLICT DO UPDATE SET forgotten = 1",
                [&table.name],
            )?;
            continue;
        }
        let names = QuotedNames::for_table(table);
        connection.execute(
            &format!(
                "INSERT INTO {change} ({}, generation, present) SELECT {}, ?1, 0 FROM {} AS p \
                 WHERE NOT EXISTS (SELECT 1 FROM {change} AS h WHERE {})",
                names.change_key.join(", "),
                quote::list(&names.key, ", ", |key| format!("p.{key}")),
                names.table,
                names.change_of("h", "p"),
                change = names.change,
            ),
            [subscription.generation],
        )?;
    }
    make_due(connection, subscription.id)
}

/// Whether a restored centre has forgotten changes of a table that were not kept.
pub(crate) fn is_forgotten(connection: &Connection, table: &str) -> rusqlite::Result<bool> {
    connection
        .prepare_cached(
            "SELECT 1 FROM tidewater_untracked WHERE table_name = ?1 AND forgotten = 1",
        )?
        .exists([table])
}

/// Nothing of a table is untracked any more: it was compared, or is gone.
pub(crate) fn forget_untracked(connection: &Connection, table: &str) -> rusqlite::Result<bool> {
    connection.execute(
        "DELETE FROM tidewater_gave_way WHERE table_name = ?1",
        [table],
    )?;
    let noted = connection.execute(
        "DELETE FROM tidewater_untracked WHERE table_name = ?1",
        [table],
    )?;
    Ok(noted > 0)
}

/// These columns of an untracked table were made again: what they hold is nobody's.
pub(crate) fn note_fillers(
    connection: &Connection,
    table: &str,
    columns: &[String],
) -> rusqlite::Result<()> {
    let mut insert = connection.prepare_cached(
        "UPDATE tidewater_untracked SET fillers = json_insert(fillers, '$[#]', ?2) \
         WHERE table_name = ?1",
    )?;
    for column in columns {
        insert.execute([table, column])?;
    }
    Ok(())
}

/// The columns of an untracked table that were made again.
pub(crate) fn fillers(connection: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    connection
        .prepare_cached(
            "SELECT value FROM tidewater_untracked, json_each(fillers) WHERE table_name = ?1",
        )?
        .query_map([table], |row| row.get(0))?
        .collect()
}

/// Whether a table was changed while nothing tracked it.
pub(crate) fn is_untracked(connection: &Connection, table: &str) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM tidewater_untracked WHERE table_name = ?1)")?
        .query_row([table], |row| row.get(0))
}

/// The tables of a schema that are compared: those that remotes are sent rows of.
pub(crate) fn compared(schema: &PublicationSchema) -> impl Iterator<Item = &Table> {
    let tables = schema.tables.iter();
    tables.filter(|table| table.direction.downloads())
}

/// Leaves out every other bound until they are few enough.
fn thin_out(bounds: &mut Vec<Vec<u8>>, limit_bytes: usize) {
    bounds.retain(|bound| bound.len() <= MAX_BOUND_BYTES);
    let bytes = |bounds: &[Vec<u8>]| -> usize {
        bounds.iter().map(|bound| bound.len() + RANGE_BYTES).sum()
    };
    while bytes(bounds) > limit_bytes {
        let mut keep = true;
        bounds.retain(|_| {
            keep = !keep;
            keep
        });
    }
}

struct AgreedView<'a> {
    connection: &'a Connection,
    table: &'a Table,
    names: QuotedNames,
    types: Vec<ColumnType>,
}

impl<'a> AgreedView<'a> {
    fn new(connection: &'a Connection, table: &'a Table) -> AgreedView<'a> {
        AgreedView {
            connection,
            table,
            names: QuotedNames::for_table(table),
            types: table.shape().columns,
        }
    }

    /// Selects columns of the rows without local changes, then of the first pre-images.
    fn select(&self, rows: &str, images: &str) -> String {
        let names = &self.names;
        let same = quote::list(&names.change_key, " AND ", |key| {
            format!("m.{key} = h.{key}")
        });
        format!(
            "SELECT {rows} FROM {} AS p WHERE NOT EXISTS (SELECT 1 FROM {change} AS h WHERE {}) \
             UNION ALL SELECT {images} FROM {change} AS h WHERE h.present = 1 \
             AND NOT EXISTS (SELECT 1 FROM {change} AS m WHERE {same} \
             AND m.generation < h.generation)",
            names.table,
            names.change_of("h", "p"),
            change = names.change,
        )
    }

    /// The columns of a row and of an image, for these indexes of the schema.
    fn columns(&self, indexes: &[usize]) -> (String, String) {
        let names = &self.names;
        let rows = quote::list(indexes, ", ", |&index| {
            format!("p.{}", names.columns[index])
        });
        let images = quote::list(indexes, ", ", |index| {
            let key = self.table.key.iter().position(|key| key == index);
            let value = names.values.iter().position(|value| value == index);
            let column = match (key, value) {
                (Some(key), _) => &names.change_key[key],
                (None, Some(value)) => &names.pre[value],
                (None, None) => unreachable!("a column is in the key or it is not"),
            };
            format!("h.{column}")
        });
        (rows, images)
    }

    /// Every so many-th key, packed.
    fn bounds(&self) -> rusqlite::Result<Vec<Vec<u8>>> {
        let count = format!(
            "SELECT sum(n) FROM ({})",
            self.select("count(*) AS n", "count(*)")
        );
        let count: i64 = self
            .connection
            .prepare_cached(&count)?
            .query_row([], |found| found.get(0))?;
        let step = rows_per_range(count.unsigned_abs());
        let (rows, images) = self.columns(&self.table.key);
        let mut statement = self
            .connection
            .prepare_cached(&self.select(&rows, &images))?;
        let mut found = statement.raw_query();
        let types = row::key_types(self.table);
        let mut bounds = Vec::new();
        let mut number = 0;
        while let Some(found) = found.next()? {
            number += 1;
            if number % step == 0 {
                let key = datums(found, &types)?;
                let mut packed = Vec::new();
                pack_key(&mut packed, &types, &key);
                bounds.push(packed);
            }
        }
        Ok(bounds)
    }

    /// Adds every row of the view.
    fn add_to(&self, ranges: &mut Ranges<'_>) -> rusqlite::Result<()> {
        let all: Vec<usize> = (0..self.types.len()).collect();
        let (rows, images) = self.columns(&all);
        let mut statement = self
            .connection
            .prepare_cached(&self.select(&rows, &images))?;
        let mut found = statement.raw_query();
        while let Some(found) = found.next()? {
            let values = datums(found, &self.types)?;
            let key: Vec<Datum<'_>> = self.table.key.iter().map(|&index| values[index]).collect();
            ranges.add(&key, &values);
        }
        Ok(())
    }
}

fn datums<'r>(found: &'r Row<'_>, types: &[ColumnType]) -> rusqlite::Result<Vec<Datum<'r>>> {
    let types = types.iter().enumerate();
    types
        .map(|(index, &column_type)| Ok(row::datum(column_type, found.get_ref(index)?).0))
        .collect()
}
