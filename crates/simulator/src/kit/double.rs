//! What of a configuration is simulated, and what stands in for the rest: nobody outside is asked.

use std::sync::Arc;

use rusqlite::Connection;
use tidewater_centre::{HandledSpec, PublicationSpec, RuleBy};
use tidewater_server::Config;
use tidewater_server::config::{
    HandlerAddress, HandlerAssignments, HandlerConfig, HandlerFormat, HandlerStandIn,
    TableAssignment,
};

use super::KitError;
use super::answers::HandlerAnswers;

/// Limits that suit a machine which does one thing after the other.
const SERVED: &str = "[server]\nlisten = [\"tcp://127.0.0.1:7439\"]\n\
    consolidated = \"sqlite:simulated\"\n\
    [server.limits]\nsession_workers = 1\nupload_workers = 2\ndownload_workers = 2\n\
    sync_timeout = \"60s\"\nshutdown_timeout = \"1s\"\n\
    [[publication]]\nname = \"none\"\n[[publication.table]]\nname = \"none\"\n\
    partition = \"everyone\"\n";

/// The configuration that simulated servers serve, and what is otherwise in it, for people.
pub(super) fn served_config(
    config: &Config,
    answers: Option<&Arc<HandlerAnswers>>,
) -> Result<(Config, Vec<String>), KitError> {
    let mut served =
        Config::parse(SERVED).map_err(|error| KitError::Internal(error.to_string()))?;
    let mut remarks = Vec::new();
    served.publications = config.publications.clone();
    served.retention = config.retention;
    let limits = &config.server.limits;
    served.server.limits.upload_bytes = limits.upload_bytes;
    served.server.limits.upload_rows = limits.upload_rows;
    served.server.limits.row_bytes = limits.row_bytes;
    if !config.handlers.is_empty() {
        without_handlers(&mut served.publications, answers.is_some());
        let names: Vec<&str> = config.handlers.iter().map(|it| it.name.as_str()).collect();
        let uploads = match answers {
            None => "rows are taken as they are uploaded",
            Some(_) => "the file says what they say of uploaded rows",
        };
        remarks.push(format!(
            "handlers are not asked ({}): {uploads}, conflicts that they decide end for the centre, \
             and tables that they download are read",
            names.join(", ")
        ));
    }
    if let Some(answers) = answers {
        stand_in(config, &mut served, answers)?;
    }
    let signs_in = config.sign_in != served.sign_in;
    if signs_in {
        remarks.push(
            "[sign_in] is left out: users sign in with passwords that the simulation has given them"
                .into(),
        );
    }
    if !config.procedures.is_empty() || !config.spaces.is_empty() {
        remarks.push("calls and events are left out".into());
    }
    if served.publications.iter().any(|it| it.act_as.is_some()) {
        return Err(KitError::Usage {
            what: "act_as needs PostgreSQL, and the simulation runs on SQLite".into(),
            hint: "simulate a configuration without act_as",
        });
    }
    Ok((served, remarks))
}

/// Has a file of answers say what handlers would say of uploaded rows.
fn stand_in(
    config: &Config,
    served: &mut Config,
    answers: &Arc<HandlerAnswers>,
) -> Result<(), KitError> {
    let asks = |table: &str| {
        let mut tables = config.handling.tables.iter();
        tables.any(|((_, name), it)| name == table && it.upload)
    };
    if let Some(table) = answers.tables().find(|it| !asks(it)) {
        return Err(KitError::Usage {
            what: format!(
                "the handlers' answers name {table:?}, whose rows no handler is asked about"
            ),
            hint: "name tables with a handler for uploads, as devices call them",
        });
    }
    let says = answers.clone();
    let stand_in = HandlerStandIn(Arc::new(move |request| says.answer(request)));
    let handlers = config.handlers.iter().map(|it| HandlerConfig {
        to: HandlerAddress::StandIn(stand_in.clone()),
        format: HandlerFormat::Json,
        ..it.clone()
    });
    served.handlers = handlers.collect();
    let tables = config.handling.tables.iter().filter(|it| it.1.upload);
    let tables = tables.map(|(name, it)| {
        let handling = TableAssignment {
            handler: it.handler.clone(),
            upload: true,
            keeps_uploads: false,
            resolve: false,
            download: false,
        };
        (name.clone(), handling)
    });
    served.handling = HandlerAssignments {
        tables: tables.collect(),
        ..HandlerAssignments::default()
    };
    Ok(())
}

/// The queries that say what users hold.
pub(super) fn queries(publications: &[PublicationSpec]) -> Vec<String> {
    let tables = publications.iter().flat_map(|it| &it.tables);
    let rules = tables.flat_map(|it| &it.partition);
    let queries = rules.filter_map(|rule| match &rule.by {
        RuleBy::Columns { values, .. } if values.contains("s.username") => Some(values.clone()),
        _ => None,
    });
    let mut queries: Vec<String> = queries.collect();
    queries.sort();
    queries.dedup();
    queries
}

/// Whether a query yields something for a user, as far as that can be told: nothing else is set.
pub(super) fn yields(connection: &Connection, query: &str, user: &str) -> bool {
    let user = format!("'{}'", user.replace('\'', "''"));
    let sql = filled(query, &|name| match name {
        "s.username" => user.clone(),
        _ => "NULL".into(),
    });
    // A query that yields its user's name says nothing.
    let selects = sql.to_ascii_uppercase().contains("FROM");
    selects
        && connection
            .prepare(&sql)
            .and_then(|mut it| it.exists([]))
            .unwrap_or(false)
}

/// A query with SQL in place of its parameters.
pub(super) fn filled(query: &str, value: &dyn Fn(&str) -> String) -> String {
    let mut sql = String::new();
    let mut rest = query;
    while let Some((before, after)) = rest.split_once('{') {
        sql.push_str(before);
        let Some((name, behind)) = after.split_once('}') else {
            rest = after;
            continue;
        };
        let name = name.trim();
        sql.push_str(&value(name.strip_prefix("ml ").unwrap_or(name).trim()));
        rest = behind;
    }
    sql.push_str(rest);
    sql
}

/// What handlers would have said is what is written; or, with answers, what these say of uploaded
/// rows.
pub(super) fn without_handlers(publications: &mut [PublicationSpec], are_answered: bool) {
    for table in publications.iter_mut().flat_map(|it| &mut it.tables) {
        table.handled = HandledSpec {
            upload: table.handled.upload && are_answered,
            ..HandledSpec::default()
        };
        table.conflict.resolve.retain(|it| it.trim() != "handler");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_replaced_wherever_they_stand() {
        let value = |name: &str| format!("<{name}>");
        assert_eq!(
            filled("SELECT {s.username}, {ml s.remote_id}", &value),
            "SELECT <s.username>, <s.remote_id>"
        );
    }

    #[test]
    fn what_is_simulated_can_be_read() {
        assert!(Config::parse(SERVED).is_ok());
    }
}
