//! The role under which the application's tables are read and written for a remote.
//!
//! A role is assumed for single statements, within the transaction and in the same flight: our own
//! statements before and after them never run under it, and whatever ends the transaction, or undoes
//! it to a savepoint, ends the role, too.

use std::future::Future;

use futures_util::future::join3;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Statement};

use super::connection::PostgresConnection;
use super::publication::{PostgresTables, Publication, ServedTable};
use super::quote::{ident, literal};
use crate::driver_error::statement_failed;
use tidewater_centre::SyncContext;
use tidewater_centre::engine::acting::{DatabaseRole, only};
use tidewater_centre::engine::role_assumption::{RoleAdapter, RoleAssumption, RoleSource};
use tidewater_centre::engine::scope::values_of;
use tidewater_centre::engine::scope_query::wrong;
use tidewater_centre::error::{CentreError, CentreResult};

/// insufficient_privilege
const DENIED: &str = "42501";

/// What is known of roles `{asked}`: the name, whether there is one, whether it may do everything or
/// what the owner of our schema may, whether we may assume it, and what lets us. Who logged in
/// counts for that, whatever role is set.
const ROLES: &str = "
SELECT q.role, r.oid IS NOT NULL,
  coalesce(r.rolsuper OR pg_catalog.pg_has_role(r.oid, coalesce((SELECT n.nspowner
    FROM pg_catalog.pg_namespace n WHERE n.nspname = 'tidewater'),
    (SELECT s.oid FROM pg_catalog.pg_roles s WHERE s.rolname = current_user)), 'MEMBER'), false),
  coalesce(pg_catalog.pg_has_role(session_user, r.oid,
    CASE WHEN pg_catalog.current_setting('server_version_num')::int >= 160000 THEN 'SET'
    ELSE 'MEMBER' END), false),
  pg_catalog.format('GRANT %I TO %I', q.role, session_user)
FROM (SELECT DISTINCT a.role::text COLLATE \"C\" FROM (\n{asked}\n) AS a (role)
  WHERE a.role IS NOT NULL LIMIT 2) AS q (role)
LEFT JOIN pg_catalog.pg_roles r ON r.rolname = q.role";

/// Those of the tables `$1` of which row security hides rows from us, as far as can be told: no
/// policy lets us read all of them.
const HIDDEN: &str = "
SELECT c.oid::regclass::text, current_user::text FROM pg_catalog.pg_class c
WHERE c.oid = ANY ($1) AND pg_catalog.row_security_active(c.oid)
  AND (EXISTS (SELECT FROM pg_catalog.pg_policy p WHERE p.polrelid = c.oid AND NOT p.polpermissive)
    OR NOT EXISTS (SELECT FROM pg_catalog.pg_policy p
      WHERE p.polrelid = c.oid AND p.polpermissive AND p.polcmd IN ('*', 'r')
        AND pg_catalog.pg_get_expr(p.polqual, p.polrelid) = 'true'
        AND EXISTS (SELECT FROM unnest(p.polroles) AS o (role)
          WHERE CASE o.role WHEN 0 THEN true
            ELSE pg_catalog.pg_has_role(current_user, o.role, 'USAGE') END)))
ORDER BY 1";

/// Those of the tables `$1` that refer to others of them of which row security may hide rows, and
/// have none themselves.
const BARE: &str = "
SELECT DISTINCT c.oid::regclass::text, p.oid::regclass::text FROM pg_catalog.pg_constraint k
JOIN pg_catalog.pg_class c ON c.oid = k.conrelid JOIN pg_catalog.pg_class p ON p.oid = k.confrelid
WHERE k.contype = 'f' AND c.oid = ANY ($1) AND p.oid = ANY ($1)
  AND p.relrowsecurity AND NOT c.relrowsecurity ORDER BY 1, 2";

/// The policies of the tables `$1` that say who sees their rows by other tables: nothing is logged of a
/// row when those change.
const BY_OTHERS: &str = "
SELECT DISTINCT c.oid::regclass::text, p.polname::text, d.refobjid::regclass::text
FROM pg_catalog.pg_policy p JOIN pg_catalog.pg_class c ON c.oid = p.polrelid
JOIN pg_catalog.pg_depend d ON d.objid = p.oid
WHERE c.oid = ANY ($1) AND c.relrowsecurity AND p.polcmd IN ('*', 'r')
  AND d.classid = 'pg_catalog.pg_policy'::regclass
  AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid <> c.oid ORDER BY 1, 2, 3";

/// A role that is assumed for statements on the application's tables; our own one if there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AssumedRole {
    /// Its name; empty for our own.
    role: String,
    /// The publication that is synced under it.
    publication: String,
    /// The statement that assumes it, with which others can follow; empty for our own.
    enter: String,
}

impl AssumedRole {
    fn new(role: String, publication: &str) -> AssumedRole {
        AssumedRole {
            publication: publication.to_owned(),
            enter: format!("SET LOCAL ROLE {}; ", ident(&role)),
            role,
        }
    }

    /// Its name; empty for our own.
    pub(super) fn role(&self) -> &str {
        &self.role
    }

    /// Whether it is not our own.
    pub(super) fn is_another(&self) -> bool {
        !self.role.is_empty()
    }

    /// Assumes the role, as statements that others can follow; nothing for our own.
    pub(super) fn enter(&self) -> &str {
        &self.enter
    }

    /// Gives the role up, likewise.
    pub(super) fn leave(&self) -> &'static str {
        match self.is_another() {
            true => "RESET ROLE; ",
            false => "",
        }
    }

    /// Runs a statement under the role, in one flight. After an error the transaction is none any
    /// more, and with it the role.
    pub(super) async fn run<T>(
        &self,
        client: &Client,
        statement: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        if !self.is_another() {
            return statement.await;
        }
        let (entered, done, left) = join3(
            client.batch_execute(&self.enter),
            statement,
            client.batch_execute("RESET ROLE"),
        )
        .await;
        entered?;
        let done = done?;
        left?;
        Ok(done)
    }

    /// Whether the database refuses what the role may not do.
    pub(super) fn is_denied(&self, error: &Error) -> bool {
        let state = error.code().map(|code| code.code());
        self.is_another() && state == Some(DENIED)
    }

    /// What it means that the application's tables cannot be read.
    pub(super) fn unreadable(&self, what: &'static str, error: Error) -> CentreError {
        if !self.is_denied(&error) {
            return statement_failed(what)(error);
        }
        let message = error.as_db_error().map(|refusal| refusal.message());
        CentreError::NoRole {
            publication: self.publication.clone(),
            message: format!(
                "{:?} may not read what is published: {}",
                self.role,
                message.unwrap_or_default()
            ),
            hint: format!(
                "grant {} SELECT on the published tables, and on those that they follow",
                ident(&self.role)
            ),
        }
    }
}

/// The query for a role, prepared.
pub(super) struct RoleQuery {
    statement: Option<(Statement, Vec<Option<String>>)>,
    publication: String,
}

impl RoleQuery {
    /// Prepares the query of a publication; it has none for our own role.
    pub(super) async fn prepare(
        connection: &mut PostgresConnection,
        context: &SyncContext,
        publication: &Publication,
    ) -> Result<RoleQuery, CentreError> {
        let name = &publication.schema.name;
        let statement = match &publication.act_as {
            None => None,
            Some(RoleAssumption { query, .. }) => {
                let types = vec![Type::TEXT; query.parameters.len()];
                let prepared = connection.prepare(&query.sql, &types).await?;
                Some((prepared, values_of(query, context, name)))
            }
        };
        Ok(RoleQuery {
            statement,
            publication: name.clone(),
        })
    }

    /// Asks for the role.
    ///
    /// # Errors
    /// [`CentreError::NoRole`] if there is none that can be assumed.
    pub(super) async fn ask(&self, client: &Client) -> Result<AssumedRole, CentreError> {
        let Some((statement, parameters)) = &self.statement else {
            return Ok(AssumedRole::default());
        };
        let parameters = parameters.iter().map(|it| it as &(dyn ToSql + Sync));
        let parameters: Vec<_> = parameters.collect();
        let rows = client.query(statement, &parameters);
        let rows = rows.await.map_err(|error| {
            match statement_failed("looking for the role of a user")(error) {
                CentreError::StatementFailed {
                    retry: false,
                    message,
                    ..
                } => CentreError::NoRole {
                    publication: self.publication.clone(),
                    message: format!("the query fails: {message}"),
                    hint: "correct the query, or the data that it reads".into(),
                },
                other => other,
            }
        })?;
        let role = only(&found(&rows)).map_err(|unfit| CentreError::NoRole {
            publication: self.publication.clone(),
            message: unfit.message,
            hint: unfit.hint,
        })?;
        Ok(AssumedRole::new(role, &self.publication))
    }
}

fn found(rows: &[tokio_postgres::Row]) -> Vec<DatabaseRole> {
    let found = rows.iter().map(|row| DatabaseRole {
        name: row.get(0),
        exists: row.get(1),
        is_privileged: row.get(2),
        is_assumable: row.get(3),
        grant: row.get(4),
    });
    found.collect()
}

/// The roles of PostgreSQL.
pub(super) struct PostgresRoles;

impl RoleAdapter<PostgresConnection, PostgresTables> for PostgresRoles {
    fn role_sql(&self, role: RoleSource<'_>) -> String {
        role_sql(role)
    }

    fn check_role<'a>(
        &'a self,
        connection: &'a mut PostgresConnection,
        named: &'a str,
        assumed: &'a RoleAssumption,
        tables: &'a [ServedTable],
    ) -> CentreResult<'a, Vec<String>> {
        Box::pin(check_role(connection, named, assumed, tables))
    }
}

fn role_sql(asked: RoleSource<'_>) -> String {
    let asked = match asked {
        RoleSource::Named(role) => {
            // A name with a NUL is none.
            let role = literal(role).unwrap_or_else(|| "NULL".into());
            format!("SELECT {role}::text")
        }
        RoleSource::Query(query) => query.to_owned(),
    };
    ROLES.replace("{asked}", &asked)
}

async fn check_role(
    connection: &mut PostgresConnection,
    named: &str,
    assumed: &RoleAssumption,
    tables: &[ServedTable],
) -> Result<Vec<String>, CentreError> {
    let (query, is_fixed) = (&assumed.query, assumed.fixed.is_some());
    let client = connection.client();
    let refusal = |error: Error| match error.as_db_error() {
        Some(refusal) => wrong(
            named,
            &format!("the query is refused by PostgreSQL: {}", refusal.message()),
            "write a query that yields the name of one role, in the schema public",
        ),
        None => statement_failed("checking a query for roles")(error),
    };
    let types = vec![Type::TEXT; query.parameters.len()];
    if !is_fixed {
        let inner = client.prepare_typed(&query.inner, &types).await;
        let inner = inner.map_err(refusal)?;
        if inner.columns().len() != 1 {
            let what = format!("the query yields {} columns", inner.columns().len());
            return Err(wrong(
                named,
                &what,
                "select one column: the name of the role",
            ));
        }
    }
    let whole = client.prepare_typed(&query.sql, &types).await;
    let whole = whole.map_err(refusal)?;
    if is_fixed {
        let rows = client.query(&whole, &[]).await;
        let rows = rows.map_err(statement_failed("looking for a role"))?;
        only(&found(&rows)).map_err(|unfit| wrong(named, &unfit.message, unfit.hint))?;
    }
    let oids: Vec<u32> = tables.iter().map(|table| table.details.oid).collect();
    let hidden = client
        .query_opt(&format!("{HIDDEN} LIMIT 1"), &[&oids])
        .await;
    let hidden = hidden.map_err(statement_failed("looking at row security"))?;
    let Some(hidden) = hidden else {
        let bare = client.query(BARE, &[&oids]).await;
        let bare = bare.map_err(statement_failed("looking at row security"))?;
        let bare = bare.iter().map(|row| {
            let (child, parent): (String, String) = (row.get(0), row.get(1));
            format!(
                "{child}: row security may hide rows of {parent} to which its rows refer; give it \
                 a policy, too: CREATE POLICY ... ON {child} USING (EXISTS (SELECT FROM {parent} ...))"
            )
        });
        let by_others = client.query(BY_OTHERS, &[&oids]).await;
        let by_others = by_others.map_err(statement_failed("looking at row security"))?;
        let by_others = by_others.iter().map(|row| {
            let (table, policy, other): (String, String, String) =
                (row.get(0), row.get(1), row.get(2));
            format!(
                "{table}: its policy {} reads {other}; where only {other} is changed, remotes keep \
                 what they hold of {table} until its own rows are touched, too: UPDATE {table} SET \
                 ... in the same transaction. Who holds what is better said with partitions",
                ident(&policy)
            )
        });
        return Ok(bare.chain(by_others).collect());
    };
    let (table, role): (String, String) = (hidden.get(0), hidden.get(1));
    let role = ident(&role);
    Err(wrong(
        named,
        &format!("row security of {table} may hide rows from the server's role"),
        format!(
            "the server itself has to see all of them; run: ALTER ROLE {role} BYPASSRLS, or \
             CREATE POLICY tidewater ON {table} TO {role} USING (true)"
        ),
    ))
}
