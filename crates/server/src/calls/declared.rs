//! What a configuration declares of procedures, and of who may do what in spaces, as the database
//! reads it.

use std::collections::HashMap;
use std::sync::Arc;

use tidewater_protocol::message::Returns;

use super::Procedure;
use crate::config::{Allow, Config, ProcedureConfig, Rule, Sql, Work};
use tidewater_centre::engine::callable_procedure::CallableProcedure as Script;
use tidewater_centre::{Centre, CentreError, procedure};

/// What a configuration declares, as the database has read it.
pub(super) struct Declared {
    pub(super) procedures: HashMap<String, Arc<Procedure>>,
    /// By their text.
    pub(super) rules: HashMap<String, Arc<Script>>,
}

/// Has the database read what a configuration declares.
pub(super) async fn read(centre: &dyn Centre, config: &Config) -> Result<Declared, CentreError> {
    let asked = config.procedures.iter().map(ProcedureConfig::to_spec);
    let specs: Vec<_> = asked.clone().flatten().collect();
    let scripts = centre.procedures(&specs).await;
    let mut scripts = scripts.map_err(|it| config.locate_error(it))?.into_iter();
    let procedures = config.procedures.iter().zip(asked).map(|(config, spec)| {
        let procedure = Procedure {
            config: config.clone(),
            script: spec.and_then(|_| scripts.next()),
            pace: Arc::default(),
        };
        (config.name.clone(), Arc::new(procedure))
    });
    let procedures = procedures.collect();
    let mut rules = HashMap::new();
    for space in &config.spaces {
        for (key, rule) in [("publish", &space.publish), ("subscribe", &space.subscribe)] {
            let Rule::Patterns {
                allow: Some(query), ..
            } = rule
            else {
                continue;
            };
            let script = read_rule(centre, query).await;
            let script = script.map_err(|it| config.locate_error(of_space(it, &space.name, key)));
            rules.insert(query.clone(), script?);
        }
    }
    Ok(Declared { procedures, rules })
}

/// The name under which the database reads rules.
const RULE: &str = "allow";

pub(super) async fn read_rule(
    centre: &dyn Centre,
    query: &str,
) -> Result<Arc<Script>, CentreError> {
    let spec = tidewater_centre::procedure_spec::ProcedureSpec {
        name: RULE.into(),
        sql: None,
        arguments: Vec::new(),
        returns: procedure::Returns::Nothing,
        allow: Some(query.to_owned()),
        read_only: true,
    };
    let scripts = centre.procedures(&[spec]).await?;
    let script = scripts.into_iter().next();
    script.ok_or_else(|| CentreError::Internal {
        message: "a rule was not read".into(),
    })
}

/// What is wrong with a rule, told of its space.
fn of_space(error: CentreError, space: &str, key: &str) -> CentreError {
    match error {
        CentreError::Configuration { message, hint } => {
            let rest = message.strip_prefix(&format!("procedure {RULE:?}"));
            let message = match rest {
                Some(rest) => format!("space {space:?}: {key}{rest}"),
                None => format!("space {space:?}: {key}: {message}"),
            };
            CentreError::Configuration { message, hint }
        }
        other => other,
    }
}

/// Has the database read the procedures and the rules of spaces, as a server does at its start.
///
/// # Errors
/// One of them cannot be run; the message names the place.
pub async fn check(centre: &dyn Centre, config: &Config) -> Result<(), CentreError> {
    read(centre, config).await.map(|_| ())
}

impl ProcedureConfig {
    /// What the database has to know of it, if that is anything.
    fn to_spec(&self) -> Option<tidewater_centre::procedure_spec::ProcedureSpec> {
        let allow = match &self.allow {
            Allow::Everyone => None,
            Allow::Query(query) => Some(query.clone()),
        };
        let (sql, returns, read_only) = match &self.work {
            Work::Sql {
                sql,
                returns,
                read_only,
            } => {
                let Sql::Text(text) = sql else {
                    return None;
                };
                (Some(text.clone()), *returns, *read_only)
            }
            Work::Provided(_) => (None, Returns::Nothing, true),
        };
        let arguments =
            self.arguments
                .iter()
                .map(|it| tidewater_centre::procedure_spec::ArgumentSpec {
                    name: it.name.clone(),
                    column_type: it.column_type,
                    optional: it.optional,
                });
        (sql.is_some() || allow.is_some()).then(|| {
            tidewater_centre::procedure_spec::ProcedureSpec {
                name: self.name.clone(),
                sql,
                arguments: arguments.collect(),
                returns,
                allow,
                read_only,
            }
        })
    }
}
