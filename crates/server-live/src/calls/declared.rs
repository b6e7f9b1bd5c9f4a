//! What a configuration declares of procedures, and of who may do what in spaces, as the database
//! reads it.

use std::collections::HashMap;
use std::sync::Arc;

use tidewater_centre::engine::callable_procedure::CallableProcedure as Script;
use tidewater_centre::procedure_spec::ProcedureSpec;
use tidewater_centre::{Centre, CentreError, procedure};

use super::Procedure;
use tidewater_server_config::{Config, ProcedureConfig, SubjectRule};

/// What a configuration declares, as the database has read it.
pub struct DeclaredProcedures {
    pub(crate) procedures: HashMap<String, Arc<Procedure>>,
    /// By their text.
    pub(crate) rules: HashMap<String, Arc<Script>>,
}

impl DeclaredProcedures {
    /// Has the database read what a configuration declares.
    ///
    /// # Errors
    /// One of the procedures or rules cannot be run.
    pub async fn read(
        centre: &dyn Centre,
        config: &Config,
    ) -> Result<DeclaredProcedures, CentreError> {
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
                let SubjectRule::Patterns {
                    allow: Some(query), ..
                } = rule
                else {
                    continue;
                };
                let script = read_rule(centre, query).await;
                let script =
                    script.map_err(|it| config.locate_error(of_space(it, &space.name, key)));
                rules.insert(query.clone(), script?);
            }
        }
        Ok(DeclaredProcedures { procedures, rules })
    }
}

/// The name under which the database reads rules.
const RULE: &str = "allow";

pub(crate) async fn read_rule(
    centre: &dyn Centre,
    query: &str,
) -> Result<Arc<Script>, CentreError> {
    let spec = ProcedureSpec {
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
    DeclaredProcedures::read(centre, config).await.map(|_| ())
}
