//! Roles of the database under which remotes act (`act_as`): which one it is, and whether it may be.
//!
//! The server's own tables are read and written by its own role, always; so are the queries that tell
//! who holds what. The application's tables are read and written by the role that is found here, so
//! that row security, rights and audit triggers of the centre hold for the remote.

use crate::engine::change_tracking::ChangeTracking;
use crate::engine::connection::{DatabaseConnection as _, each, system_row};
use crate::engine::role_assumption::RoleAssumption;
use crate::engine::scope_query::{ScopeQuery, wrong};
use crate::engine::script::{Script, ScriptParameter};
use crate::engine::sql::role_sql::{RoleSource, RoleSql};
use crate::engine::sql::served_table::ServedTable;
use crate::engine::statement_check::check_one_column;
use crate::error::CentreError;
use crate::publication::{ActAs, PublicationSpec};

type Result<T> = std::result::Result<T, CentreError>;

/// A role that was asked for, as the database knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseRole {
    /// Its name, as it was asked for.
    pub name: String,
    /// Whether there is such a role.
    pub exists: bool,
    /// Whether it may do what the server's own role may, or everything.
    pub is_privileged: bool,
    /// Whether the server's own role may assume it.
    pub is_assumable: bool,
    /// What its operator has to run so that it may.
    pub grant: String,
}

/// What is wrong with a role, and what to do about it.
pub struct RoleFault {
    /// Why it cannot be.
    pub message: String,
    /// What to do.
    pub hint: String,
}

/// The query for the role of a publication's remotes.
///
/// # Errors
/// [`CentreError::Configuration`], with the place.
pub(super) async fn compile<T: ChangeTracking>(
    connection: &mut T::Connection,
    spec: &PublicationSpec,
    tables: &[ServedTable<T::Tables>],
) -> Result<Option<(RoleAssumption, Vec<String>)>> {
    let Some(act_as) = &spec.act_as else {
        return Ok(None);
    };
    let place = format!("publication {:?}, act_as:", spec.name);
    let (inner, parameters) = match act_as {
        ActAs::Role(role) => (role.clone(), Vec::new()),
        ActAs::Query(query) => {
            let script = Script::parse(query, T::lexing(), T::parameter);
            let script = script.map_err(|error| {
                wrong(
                    &place,
                    &format!("the query is wrong: {error}"),
                    error.hint(),
                )
            })?;
            if let Some(ScriptParameter::User(name)) = script
                .parameters
                .iter()
                .find(|it| matches!(it, ScriptParameter::User(_)))
            {
                let what = format!("the query names {{u.{name}}}: no device says who it is");
                return Err(wrong(&place, &what, "tell the role by {s.username}"));
            }
            let inner = script.sql.trim().trim_end_matches(';').to_owned();
            (inner, script.parameters)
        }
    };
    let Some(roles) = T::dialect().roles() else {
        return Err(wrong(
            &place,
            "needs a consolidated database that has roles",
            format!(
                "remove act_as, or use PostgreSQL: {} has no roles",
                T::dialect().title()
            ),
        ));
    };
    let (source, fixed) = match act_as {
        ActAs::Role(role) => (RoleSource::Named(role), Some(role.clone())),
        ActAs::Query(_) => (RoleSource::Query(&inner), None),
    };
    let query = ScopeQuery {
        sql: (roles.asks)(source),
        inner,
        parameters,
    };
    match &fixed {
        Some(role) => check_role::<T>(connection, &place, roles, role).await?,
        None => {
            let named = format!("{place} the query");
            let hint = "select one column: the name of the role";
            check_one_column::<T>(connection, &named, &query, hint).await?;
        }
    }
    let warnings = check_row_security::<T>(connection, &place, roles, tables).await?;
    Ok(Some((RoleAssumption { query, fixed }, warnings)))
}

/// Checks that a role which is the same for everybody can be assumed.
async fn check_role<T: ChangeTracking>(
    connection: &mut T::Connection,
    place: &str,
    roles: &RoleSql,
    role: &str,
) -> Result<()> {
    // No role has a NUL in its name, and no text of the database.
    let named = Some(role).filter(|it| !it.contains('\0'));
    let asked = each(
        roles.known,
        named.map(|it| system_row![it]).into_iter().collect(),
    );
    let answer = connection.run_one("looking for a role", asked).await?;
    let found = answer.rows.iter().map(|row| {
        Ok(DatabaseRole {
            name: row.get(0)?,
            exists: row.get(1)?,
            is_privileged: row.get(2)?,
            is_assumable: row.get(3)?,
            grant: row.get(4)?,
        })
    });
    let found = found.collect::<Result<Vec<DatabaseRole>>>()?;
    match only(&found) {
        Ok(_) => Ok(()),
        Err(fault) => Err(wrong(place, &fault.message, fault.hint)),
    }
}

/// Checks that the server's own role sees all rows; gives what its operator may not have thought of.
async fn check_row_security<T: ChangeTracking>(
    connection: &mut T::Connection,
    place: &str,
    roles: &RoleSql,
    tables: &[ServedTable<T::Tables>],
) -> Result<Vec<String>> {
    let of_tables = |sql: &'static str| {
        let tables = tables.iter();
        each(sql, tables.map(|it| system_row![it.sql_name]).collect())
    };
    let asked = [roles.hidden, roles.unprotected, roles.by_others].map(of_tables);
    let answers = connection.flight("looking at row security", &asked).await?;
    let [hidden, unprotected, by_others] = &answers[..] else {
        return Ok(Vec::new());
    };
    if let Some(hidden) = hidden.rows.first() {
        let (table, role): (String, String) = (hidden.get(0)?, hidden.get(1)?);
        return Err(wrong(
            place,
            &format!("row security of {table} may hide rows from the server's role"),
            format!(
                "the server itself has to see all of them; run: ALTER ROLE {role} BYPASSRLS, or \
                 CREATE POLICY tidewater ON {table} TO {role} USING (true)"
            ),
        ));
    }
    let mut warnings = Vec::new();
    for row in &unprotected.rows {
        let (child, parent): (String, String) = (row.get(0)?, row.get(1)?);
        warnings.push(format!(
            "{child}: row security may hide rows of {parent} to which its rows refer; give it a \
             policy, too: CREATE POLICY ... ON {child} USING (EXISTS (SELECT FROM {parent} ...))"
        ));
    }
    for row in &by_others.rows {
        let (table, policy, other): (String, String, String) =
            (row.get(0)?, row.get(1)?, row.get(2)?);
        warnings.push(format!(
            "{table}: its policy {policy} reads {other}; where only {other} is changed, remotes keep \
             what they hold of {table} until its own rows are touched, too: UPDATE {table} SET ... in \
             the same transaction. Who holds what is better said with partitions"
        ));
    }
    Ok(warnings)
}

/// The one role that can be assumed. Found are the distinct ones that were asked for, two at least if
/// there are several.
///
/// # Errors
/// There is none.
pub fn only(found: &[DatabaseRole]) -> std::result::Result<String, RoleFault> {
    let unfit = |message: String, hint: &str| {
        Err(RoleFault {
            message,
            hint: hint.to_owned(),
        })
    };
    let hint = "have the query yield one role for each user";
    let role = match found {
        [] => return unfit("the query yields no role".into(), hint),
        [role] => role,
        [one, other, ..] => {
            let message = format!(
                "the query yields several roles: {:?}, {:?}",
                one.name, other.name
            );
            return unfit(message, hint);
        }
    };
    let name = &role.name;
    if !role.exists {
        return unfit(
            format!("there is no role {name:?}"),
            "create it, or name another one",
        );
    }
    if role.is_privileged {
        return unfit(
            format!("{name:?} is a superuser, or may do what the server's own role may"),
            "name a role that has the rights on the published tables only: nobody's row may lift \
             him to more",
        );
    }
    if !role.is_assumable {
        return unfit(
            format!("the server's role may not assume {name:?}"),
            &format!("run: {}", role.grant),
        );
    }
    Ok(name.clone())
}
