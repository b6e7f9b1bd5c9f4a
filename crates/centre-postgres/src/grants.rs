//! What the role that serves may not do with published tables: told when they are loaded, and not
//! only when the first remote needs it.

use super::connection::PostgresConnection;
use super::numbers::SEQUENCE;
use super::publication::Publication;
use super::quote::ident;
use crate::driver_error::statement_failed;
use tidewater_centre::deploy_report::MissingRight;
use tidewater_centre::error::CentreError;

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

/// What the role that serves lacks on the sequence of column `$2` of table `$1`: numbers are taken
/// from it, and it is set behind rows that came with numbers of their own.
fn missing_on_sequence() -> String {
    format!(
        "SELECT s.oid::regclass::text, string_agg(p.name, ', ' ORDER BY p.name DESC),
           current_user::text
         FROM (SELECT {SEQUENCE}) AS s (oid), (VALUES ('USAGE'), ('UPDATE')) AS p (name)
         WHERE NOT pg_catalog.has_sequence_privilege(s.oid, p.name) GROUP BY s.oid"
    )
}

/// Schemas in which names are looked for, and everybody may create something.
const OPEN: &str = "
SELECT n.nspname::text FROM pg_catalog.pg_namespace n
WHERE n.nspname = ANY (pg_catalog.current_schemas(false))
  AND pg_catalog.has_schema_privilege('public', n.oid, 'CREATE') ORDER BY 1";

/// What a role lacks on a table or sequence.
pub(super) struct MissingGrant {
    /// The table, or `SEQUENCE` and its name, in SQL.
    on: String,
    /// The privileges, by commas.
    missing: String,
    /// Who has not all rights, and on what.
    told: &'static str,
    /// In SQL.
    role: String,
}

impl MissingGrant {
    /// The statement that gives what is missing.
    fn grant(&self) -> String {
        let MissingGrant {
            on, missing, role, ..
        } = self;
        format!("GRANT {missing} ON {on} TO {role}")
    }

    /// For a report of what is missing.
    pub(super) fn to_right(&self) -> MissingRight {
        MissingRight {
            message: format!("{}: {} on {}", self.told, self.missing, self.on),
            statement: format!("{};", self.grant()),
            is_for_serving: true,
        }
    }
}

/// Tells the operator what to grant, and what nobody should have been granted.
pub(super) async fn tell_missing(
    connection: &mut PostgresConnection,
    publications: &[Publication],
) -> Result<(), CentreError> {
    for lack in missing(connection, publications).await? {
        let (on, missing, told) = (&lack.on, &lack.missing, lack.told);
        tracing::error!(on, missing, "{told}; its owner can: {}", lack.grant());
    }
    let open = connection.client().query(OPEN, &[]).await;
    for row in open.map_err(statement_failed("reading the catalog"))? {
        let schema = ident(row.get(0));
        tracing::warn!(
            schema,
            "everybody may create functions and operators in a schema in which the server's own \
             statements find theirs, and could do with them what its role may; its owner can end \
             that: REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC"
        );
    }
    Ok(())
}

/// What the role that serves lacks, and those under which all remotes of a publication act.
pub(super) async fn missing(
    connection: &mut PostgresConnection,
    publications: &[Publication],
) -> Result<Vec<MissingGrant>, CentreError> {
    let all = publications.iter().flat_map(|it| &it.tables);
    let mut asked = vec![(None, all.collect::<Vec<_>>())];
    for publication in publications {
        let fixed = publication.act_as.as_ref();
        if let Some(role) = fixed.and_then(|it| it.fixed.as_ref()) {
            asked.push((Some(role), publication.tables.iter().collect()));
        }
    }
    let mut found = Vec::new();
    for (role, tables) in asked {
        let all: Vec<u32> = tables.iter().map(|table| table.details.oid).collect();
        let written = tables.iter().filter(|table| table.direction.uploads());
        let written: Vec<u32> = written.map(|table| table.details.oid).collect();
        let client = connection.client();
        let rows = client.query(MISSING, &[&all, &written, &role]).await;
        for row in rows.map_err(statement_failed("reading the catalog"))? {
            found.push(MissingGrant {
                on: row.get(0),
                missing: row.get(1),
                told: match role {
                    None => "the role that serves has not all rights on a published table",
                    Some(_) => {
                        "the role under which remotes act has not all rights on a published table"
                    }
                },
                role: ident(row.get(2)),
            });
        }
    }
    for publication in publications {
        found.extend(missing_on_sequences(connection, publication).await?);
    }
    Ok(found)
}

async fn missing_on_sequences(
    connection: &mut PostgresConnection,
    publication: &Publication,
) -> Result<Vec<MissingGrant>, CentreError> {
    let mut found = Vec::new();
    let tables = publication.schema.tables.iter().zip(&publication.tables);
    for (table, of_centre) in tables {
        let Some(identity) = table.identity else {
            continue;
        };
        let column = &table.columns[identity.column].name;
        let client = connection.client();
        let row = client
            .query_opt(&missing_on_sequence(), &[&of_centre.sql_name, column])
            .await;
        if let Some(row) = row.map_err(statement_failed("reading the catalog"))? {
            found.push(MissingGrant {
                on: format!("SEQUENCE {}", row.get::<_, String>(0)),
                missing: row.get(1),
                told: "the role that serves cannot give remotes numbers",
                role: ident(row.get(2)),
            });
        }
    }
    Ok(found)
}
