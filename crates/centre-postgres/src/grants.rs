//! What the role that serves may not do with published tables: told when they are loaded, and not
//! only when the first remote needs it.

use tidewater_centre::error::CentreError;

use super::connection::{Connection, refused};
use super::publication::Publication;
use super::quote::ident;

/// What the role `$3` (NULL: our own) lacks on the tables `$1`, of which those in `$2` are written.
const MISSING: &str = "
SELECT c.oid::regclass::text, string_agg(p.name, ', ' ORDER BY p.number), r.role::text
FROM pg_catalog.pg_class c, (SELECT coalesce($3::text::name, current_user)) AS r (role),
LATERAL (VALUES (1, 'SELECT', pg_catalog.has_any_column_privilege(r.role, c.oid, 'SELECT')),
  (2, 'INSERT', c.oid <> ALL ($2)
    OR pg_catalog.has_any_column_privilege(r.role, c.oid, 'INSERT')),
  (3, 'UPDATE', c.oid <> ALL ($2)
    OR pg_catalog.has_any_column_privilege(r.role, c.oid, 'UPDATE')),
  (4, 'DELETE', c.oid <> ALL ($2) OR pg_catalog.has_table_privilege(r.role, c.oid, 'DELETE')))
  AS p (number, name, is_there)
WHERE c.oid = ANY ($1) AND NOT p.is_there GROUP BY c.oid, r.role ORDER BY 1";

/// Tells the operator what to grant: to the role that serves, and to those under which all remotes
/// of a publication act.
pub(super) async fn tell_missing(
    connection: &mut Connection,
    publications: &[Publication],
) -> Result<(), CentreError> {
    let all = publications.iter().flat_map(|it| &it.tables);
    let mut asked = vec![(None, all.collect::<Vec<_>>())];
    for publication in publications {
        let fixed = publication.act_as.as_ref();
        if let Some(role) = fixed.and_then(|it| it.fixed.as_ref()) {
            asked.push((Some(role), publication.tables.iter().collect()));
        }
    }
    for (role, tables) in asked {
        let all: Vec<u32> = tables.iter().map(|table| table.oid).collect();
        let written = tables.iter().filter(|table| table.direction.uploads());
        let written: Vec<u32> = written.map(|table| table.oid).collect();
        let client = connection.client();
        let rows = client.query(MISSING, &[&all, &written, &role]).await;
        let who = match role {
            None => "the role that serves",
            Some(_) => "the role under which remotes act",
        };
        for row in rows.map_err(refused("reading the catalog"))? {
            let (table, missing, role): (String, String, String) =
                (row.get(0), row.get(1), row.get(2));
            tracing::error!(
                table,
                missing,
                "{who} has not all rights on a published table; its owner can: \
                 GRANT {missing} ON {table} TO {}",
                ident(&role)
            );
        }
    }
    Ok(())
}
