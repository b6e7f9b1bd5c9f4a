//! Roles of the database under which remotes act (`act_as`): which one it is, and whether it may be.
//!
//! The server's own tables are read and written by its own role, always; so are the queries that tell
//! who holds what. The application's tables are read and written by the role that is found here, so
//! that row security, rights and audit triggers of the centre hold for the remote.

use crate::engine::change_tracking::ChangeTracking;
use crate::engine::role_assumption::{RoleAssumption, RoleSource};
use crate::engine::scope_query::{ScopeQuery, wrong};
use crate::engine::script::{Script, ScriptParameter};
use crate::engine::sql::served_table::ServedTable;
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
    let Some(roles) = T::roles() else {
        return Err(wrong(
            &place,
            "needs a consolidated database that has roles",
            format!(
                "remove act_as, or use PostgreSQL: {} has no roles",
                T::dialect().title()
            ),
        ));
    };
    let sql = roles.role_sql(match act_as {
        ActAs::Role(role) => RoleSource::Named(role),
        ActAs::Query(_) => RoleSource::Query(&inner),
    });
    let query = ScopeQuery {
        inner,
        sql,
        parameters,
    };
    let fixed = match act_as {
        ActAs::Role(role) => Some(role.clone()),
        ActAs::Query(_) => None,
    };
    let assumed = RoleAssumption { query, fixed };
    let warnings = roles
        .check_role(connection, &place, &assumed, tables)
        .await?;
    Ok(Some((assumed, warnings)))
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
