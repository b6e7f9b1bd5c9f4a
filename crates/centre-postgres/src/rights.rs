//! What the role of a connection may not do of deploying and undeploying, and what gives it the
//! right.
//!
//! What serving needs on published tables is [`super::grants`]' affair.

use std::collections::HashSet;

use tokio_postgres::{GenericClient, Row};

use super::catalog::PostgresCatalog;
use super::connection::PostgresConnection;
use super::state::SCHEMA;
use super::triggers::LogSpec;
use super::{PostgresCentre, existing_triggers, grants};
use crate::driver_error::statement_failed;
use tidewater_centre::deploy_report::MissingRight;
use tidewater_centre::engine::change_tracking::{RightsPurpose, RoleRights};
use tidewater_centre::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

/// Of the tables `$1` and all their partitions: the name, the owner and whether he is a superuser,
/// our role, whether it has the owner's rights, whether it may make triggers; and the schema, unless
/// it may be used.
const TABLES: &str = "
SELECT c.oid::regclass::text, pg_catalog.quote_ident(o.rolname), o.rolsuper,
  pg_catalog.quote_ident(current_user), pg_catalog.pg_has_role(o.oid, 'USAGE'),
  pg_catalog.has_table_privilege(c.oid, 'TRIGGER'),
  CASE WHEN NOT pg_catalog.has_schema_privilege(n.oid, 'USAGE')
    THEN pg_catalog.quote_ident(n.nspname) END,
  c.oid
FROM (SELECT DISTINCT coalesce(t.relid::oid, a.oid) AS oid FROM unnest($1::oid[]) AS a (oid)
  LEFT JOIN LATERAL pg_catalog.pg_partition_tree(a.oid) AS t ON true) AS a
JOIN pg_catalog.pg_class c ON c.oid = a.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_roles o ON o.oid = c.relowner ORDER BY 1";

/// The database, our role, and whether it may make schemas.
const DATABASE: &str = "
SELECT pg_catalog.quote_ident(current_database()), pg_catalog.quote_ident(current_user),
  pg_catalog.has_database_privilege(current_database(), 'CREATE')";

/// The owner of our schema and whether he is a superuser, if our role has not his rights.
const SCHEMA_OWNER: &str = "
SELECT pg_catalog.quote_ident(o.rolname), o.rolsuper, pg_catalog.quote_ident(current_user)
FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_roles o ON o.oid = n.nspowner
WHERE n.nspname = $1 AND NOT pg_catalog.pg_has_role(o.oid, 'USAGE')";

/// What our role may do with a table.
struct TableRights {
    oid: u32,
    table: String,
    owner: String,
    is_superusers: bool,
    role: String,
    is_owner: bool,
    may_make_triggers: bool,
    closed_schema: Option<String>,
}

impl TableRights {
    async fn read(connection: &PostgresConnection, tables: Vec<u32>) -> Result<Vec<TableRights>> {
        let rows = connection.client().query(TABLES, &[&tables]).await;
        let rows = rows.map_err(statement_failed("reading the catalog"))?;
        Ok(rows.iter().map(TableRights::from_row).collect())
    }

    fn from_row(row: &Row) -> TableRights {
        TableRights {
            table: row.get(0),
            owner: row.get(1),
            is_superusers: row.get(2),
            role: row.get(3),
            is_owner: row.get(4),
            may_make_triggers: row.get(5),
            closed_schema: row.get(6),
            oid: row.get(7),
        }
    }

    /// The right to do what only the owner may.
    fn ownership(&self, what: &str) -> MissingRight {
        let TableRights {
            table, owner, role, ..
        } = self;
        MissingRight {
            message: format!(
                "only the owner of {table}, {owner}, may {what} there, and {role} has not his rights"
            ),
            statement: match self.is_superusers {
                true => format!("ALTER TABLE {table} OWNER TO {role};"),
                false => format!("GRANT {owner} TO {role};"),
            },
            is_for_serving: false,
        }
    }

    /// What is missing to make triggers.
    fn lacks_for_triggers(&self, by_row: bool) -> Vec<MissingRight> {
        let TableRights { table, role, .. } = self;
        let mut missing = Vec::new();
        if let Some(schema) = &self.closed_schema {
            missing.push(MissingRight {
                message: format!("{role} may not use the schema of {table}"),
                statement: format!("GRANT USAGE ON SCHEMA {schema} TO {role};"),
                is_for_serving: false,
            });
        }
        if by_row && !self.is_owner {
            let what = "make triggers that fire always (tracking = \"row\")";
            missing.push(self.ownership(what));
        } else if !self.may_make_triggers && !self.is_owner {
            missing.push(MissingRight {
                message: format!("{role} may not make triggers on {table}"),
                statement: format!("GRANT TRIGGER ON {table} TO {role};"),
                is_for_serving: false,
            });
        }
        missing
    }
}

/// See [`tidewater_centre::engine::change_tracking::ChangeTracking::rights`].
pub(super) async fn of_deploying(
    connection: &mut PostgresConnection,
    asked: RightsPurpose<'_, PostgresCentre>,
) -> Result<RoleRights> {
    let mut rights = RoleRights::default();
    if asked.is_first {
        let row = connection.client().query_one(DATABASE, &[]).await;
        let row = row.map_err(statement_failed("reading the catalog"))?;
        let (database, role): (String, String) = (row.get(0), row.get(1));
        if !row.get::<_, bool>(2) {
            rights.missing.push(MissingRight {
                message: format!("{role} may not make the schema {SCHEMA} in {database}"),
                statement: format!("GRANT CREATE ON DATABASE {database} TO {role};"),
                is_for_serving: false,
            });
        }
    } else if !(asked.made.is_empty() && asked.removed.is_empty()) {
        rights.missing.extend(schema_ownership(connection).await?);
    }
    let by_row: HashSet<u32> = oids(asked.made.iter().filter(|it| it.by_row)).collect();
    let made = oids(asked.made.iter()).collect();
    for table in TableRights::read(connection, made).await? {
        let is_by_row = by_row.contains(&table.oid);
        rights.missing.extend(table.lacks_for_triggers(is_by_row));
        if !table.is_owner && table.may_make_triggers && !is_by_row {
            let TableRights {
                table, owner, role, ..
            } = table;
            rights.warnings.push(format!(
                "{table}: {role} may make triggers on it, and only its owner, {owner}, may remove \
                 them. Whoever deploys the table otherwise later, or undeploys, has to be him or to \
                 have his rights: GRANT {owner} TO {role}"
            ));
        }
    }
    if !asked.removed.is_empty() {
        let with_triggers = with_triggers(connection).await?;
        let removed = with_triggers.into_iter();
        let removed = removed.filter(|(_, title)| asked.removed.contains(title));
        let removed = removed.map(|(oid, _)| oid).collect();
        let lacking = removal(connection, removed).await?;
        rights.missing.extend(lacking);
    }
    let serving = grants::missing(connection, asked.publications).await?;
    let serving = serving.iter().map(grants::MissingGrant::to_right);
    rights.missing.extend(serving);
    let mut told = HashSet::new();
    let is_new = |it: &MissingRight| told.insert(it.message.clone());
    rights.missing.retain(is_new);
    Ok(rights)
}

/// See [`tidewater_centre::engine::change_tracking::ChangeTracking::removal_rights`].
pub(super) async fn of_undeploying(
    connection: &mut PostgresConnection,
) -> Result<Vec<MissingRight>> {
    let tables = with_triggers(connection).await?;
    let tables = tables.into_iter().map(|(oid, _)| oid).collect();
    let mut missing = removal(connection, tables).await?;
    missing.extend(schema_ownership(connection).await?);
    Ok(missing)
}

/// The tables on which a log has triggers; of those by row, partitions that are made later come by
/// themselves.
fn oids<'l>(logs: impl Iterator<Item = &'l &'l LogSpec>) -> impl Iterator<Item = u32> {
    logs.flat_map(|log| {
        let above = log.route.steps().iter().map(|it| it.oid);
        std::iter::once(log.table_oid)
            .chain(above)
            .collect::<Vec<_>>()
    })
}

/// The tables that have triggers of ours: their OIDs and names.
async fn with_triggers(connection: &PostgresConnection) -> Result<Vec<(u32, String)>> {
    let catalog = PostgresCatalog::read(connection.client()).await?;
    let tables = catalog.tables.iter();
    let tables = tables.filter(|table| !existing_triggers::drops(table).is_empty());
    Ok(tables.map(|it| (it.oid, it.title.clone())).collect())
}

/// What is missing to remove triggers.
async fn removal(connection: &PostgresConnection, tables: Vec<u32>) -> Result<Vec<MissingRight>> {
    let tables = TableRights::read(connection, tables).await?;
    let others = tables.iter().filter(|table| !table.is_owner);
    Ok(others.map(|it| it.ownership("remove triggers")).collect())
}

/// What is missing to change what is in our schema.
async fn schema_ownership(connection: &PostgresConnection) -> Result<Option<MissingRight>> {
    let row = connection
        .client()
        .query_opt(SCHEMA_OWNER, &[&SCHEMA])
        .await;
    let row = row.map_err(statement_failed("reading the catalog"))?;
    Ok(row.map(|row| {
        let (owner, role): (String, String) = (row.get(0), row.get(2));
        MissingRight {
            message: format!(
                "only {owner}, who deployed first and owns the schema {SCHEMA}, may change what is \
                 in it, and {role} has not his rights"
            ),
            statement: match row.get::<_, bool>(1) {
                // Whoever is made a superuser's equal may do anything: {owner} has to do it.
                true => String::new(),
                false => format!("GRANT {owner} TO {role};"),
            },
            is_for_serving: false,
        }
    }))
}

/// Whether our role may look into our schema at all, if there is one.
///
/// # Errors
/// It may not: nothing can be deployed, undeployed or served.
pub(super) async fn check_schema(client: &impl GenericClient) -> Result<()> {
    let sql = "SELECT pg_catalog.quote_ident(o.rolname), pg_catalog.quote_ident(current_user)
               FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_roles o ON o.oid = n.nspowner
               WHERE n.nspname = $1 AND NOT pg_catalog.has_schema_privilege(n.oid, 'USAGE')";
    let row = client.query_opt(sql, &[&SCHEMA]).await;
    let Some(row) = row.map_err(statement_failed("looking for the server's tables"))? else {
        return Ok(());
    };
    let (owner, role): (String, String) = (row.get(0), row.get(1));
    Err(CentreError::Configuration {
        message: format!("{role} may not use the schema {SCHEMA}, which {owner} owns"),
        hint: format!(
            "to deploy or undeploy, be {owner}, or have a superuser run: GRANT {owner} TO {role}; \
             to serve, have {owner} run: GRANT USAGE ON SCHEMA {SCHEMA} TO {role}; GRANT SELECT, \
             INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {SCHEMA} TO {role}; GRANT USAGE ON ALL \
             SEQUENCES IN SCHEMA {SCHEMA} TO {role} (docs/operations.md, \"Rights in PostgreSQL\")"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_a_superuser_is_given_away_and_no_superuser_is_granted() {
        let rights = |is_superusers| TableRights {
            oid: 1,
            table: "note".into(),
            owner: "boss".into(),
            is_superusers,
            role: "clerk".into(),
            is_owner: false,
            may_make_triggers: false,
            closed_schema: None,
        };
        let statement = |is_superusers| rights(is_superusers).ownership("remove").statement;
        assert_eq!(statement(true), "ALTER TABLE note OWNER TO clerk;");
        assert_eq!(statement(false), "GRANT boss TO clerk;");
        let missing = rights(true).lacks_for_triggers(false);
        assert_eq!(missing[0].statement, "GRANT TRIGGER ON note TO clerk;");
    }
}
