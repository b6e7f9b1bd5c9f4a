//! What the role that serves may not do with published tables: told when they are loaded, and not
//! only when the first remote needs it.

use tidewater_centre::error::CentreError;

use super::connection::{Connection, refused};
use super::publication::Publication;
use super::quote::ident;

/// What is missing on the tables `$1`, of which those in `$2` are written.
const MISSING: &str = "
SELECT c.oid::regclass::text, string_agg(p.name, ', ' ORDER BY p.number), current_user::text
FROM pg_catalog.pg_class c,
LATERAL (VALUES (1, 'SELECT', pg_catalog.has_any_column_privilege(c.oid, 'SELECT')),
  (2, 'INSERT', c.oid <> ALL ($2) OR pg_catalog.has_any_column_privilege(c.oid, 'INSERT')),
  (3, 'UPDATE', c.oid <> ALL ($2) OR pg_catalog.has_any_column_privilege(c.oid, 'UPDATE')),
  (4, 'DELETE', c.oid <> ALL ($2) OR pg_catalog.has_table_privilege(c.oid, 'DELETE')))
  AS p (number, name, is_there)
WHERE c.oid = ANY ($1) AND NOT p.is_there GROUP BY c.oid ORDER BY 1";

/// Tells the operator what to grant.
pub(super) async fn tell_missing(
    connection: &mut Connection,
    publications: &[Publication],
) -> Result<(), CentreError> {
    let tables = || publications.iter().flat_map(|it| &it.tables);
    let all: Vec<u32> = tables().map(|table| table.oid).collect();
    let written = tables().filter(|table| table.direction.uploads());
    let written: Vec<u32> = written.map(|table| table.oid).collect();
    let client = connection.client();
    let rows = client.query(MISSING, &[&all, &written]).await;
    for row in rows.map_err(refused("reading the catalog"))? {
        let (table, missing, role): (String, String, String) = (row.get(0), row.get(1), row.get(2));
        tracing::error!(
            table,
            missing,
            "the role that serves has not all rights on a published table; its owner can: \
             GRANT {missing} ON {table} TO {}",
            ident(&role)
        );
    }
    Ok(())
}
