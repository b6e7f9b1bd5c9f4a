//! Numbers for the rows that remotes insert.

use super::connection::PostgresConnection;
use super::publication::ServedTable;
use super::quote::ident;
use crate::driver_error::statement_failed;
use tidewater_centre::engine::change_tracking::NumberBlockRequest;
use tidewater_centre::error::CentreError;

/// The sequence that numbers column `$2` of table `$1`: that of an identity or serial column, or the
/// one that its default names.
pub(super) const SEQUENCE: &str =
    "coalesce(pg_catalog.pg_get_serial_sequence($1, $2)::pg_catalog.regclass::oid,
  (SELECT s.oid FROM pg_catalog.pg_attribute a
   JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
   JOIN pg_catalog.pg_depend p ON p.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass
     AND p.objid = d.oid AND p.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
   JOIN pg_catalog.pg_class s ON s.oid = p.refobjid AND s.relkind = 'S'
   WHERE a.attrelid = $1::pg_catalog.regclass AND a.attname = $2 LIMIT 1))";

/// Rows that are further ahead of the sequence are no reason to set it: one mistyped number would
/// leave nobody any.
const NEAR: i64 = 1_000_000;

/// Sets the sequence `$1` behind the rows that are ahead of it, by `$2` at most.
fn ahead(column: &str, table: &ServedTable) -> String {
    let (column, table) = (ident(column), &table.sql_name);
    format!(
        "SELECT pg_catalog.setval($1::oid::pg_catalog.regclass, h.number)
         FROM (SELECT coalesce(pg_catalog.pg_sequence_last_value($1::oid::pg_catalog.regclass), 0)
           AS last) AS s,
         LATERAL (SELECT max({column})::int8 AS number FROM {table}
           WHERE {column} <= s.last + $2) AS h WHERE h.number > s.last"
    )
}

/// Takes numbers from the column's sequence, one by one as everybody does: then whoever inserts at
/// the same time gets others. Where there is none, those above all that there are.
pub(super) async fn take(
    connection: &mut PostgresConnection,
    asked: NumberBlockRequest<'_>,
    table: &ServedTable,
) -> Result<Vec<(i64, i64)>, CentreError> {
    let error = |error| statement_failed("taking numbers")(error);
    let client = connection.client();
    let found = client
        .query_one(
            &format!("SELECT {SEQUENCE}"),
            &[&table.sql_name, &asked.column],
        )
        .await;
    let sequence: Option<u32> = found.map_err(error)?.get(0);
    let count = i64::from(asked.count);
    // Others who hand out wait, and then see these.
    let lock = "LOCK TABLE tidewater.identity_block IN SHARE ROW EXCLUSIVE MODE";
    client.batch_execute(lock).await.map_err(error)?;
    let Some(sequence) = sequence else {
        let highest = format!(
            "SELECT max({})::int8 FROM {}",
            ident(asked.column),
            table.sql_name
        );
        let highest = client.query_one(&highest, &[]).await.map_err(error)?;
        let highest: Option<i64> = highest.get(0);
        let sql = "SELECT max(last)::int8 FROM tidewater.identity_block WHERE table_name = $1";
        let handed_out = client.query_one(sql, &[&table.title]).await;
        let handed_out: Option<i64> = handed_out.map_err(error)?.get(0);
        let before = highest.max(handed_out).unwrap_or(0).max(0);
        return Ok(match before.checked_add(count) {
            Some(last) => vec![(before + 1, last)],
            None => Vec::new(),
        });
    };
    // Rows that were imported with numbers of their own may be ahead of the sequence.
    client
        .query(&ahead(asked.column, table), &[&sequence, &NEAR])
        .await
        .map_err(error)?;
    let sql = "SELECT pg_catalog.nextval($1::oid::pg_catalog.regclass)
               FROM pg_catalog.generate_series(1, $2::int8)";
    let rows = client.query(sql, &[&sequence, &count]).await;
    let mut taken: Vec<(i64, i64)> = Vec::new();
    for row in rows.map_err(error)? {
        let number: i64 = row.get(0);
        match taken.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => taken.push((number, number)),
        }
    }
    Ok(taken)
}
