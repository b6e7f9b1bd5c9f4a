//! What can go wrong at the consolidated database, split by whose fault it is.

use futures_util::future::BoxFuture;

use tidewater_protocol::Code;

use crate::deploy_report::HeldUpRemote;
use crate::records::ShutOutReason;

/// How many remotes an error names.
const NAMED: usize = 20;

/// What is wrong with a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptFault {
    /// Where, and what.
    pub message: String,
    /// What to do next.
    pub hint: String,
}

/// Faults, one in a line; of several each with what to do.
fn listed(faults: &[ScriptFault]) -> String {
    if let [fault] = faults {
        return fault.message.clone();
    }
    let lines = faults
        .iter()
        .map(|it| format!("{}; {}", it.message, it.hint));
    lines.collect::<Vec<_>>().join("\n")
}

/// Counts and names remotes.
fn remotes_held_up(remotes: &[HeldUpRemote]) -> String {
    let named = remotes.iter().take(NAMED);
    let mut names: Vec<String> = named
        .map(|remote| format!("{} of {}", remote.id, remote.user))
        .collect();
    if remotes.len() > NAMED {
        names.push(format!("{} more", remotes.len() - NAMED));
    }
    let count = match remotes.len() {
        1 => "1 remote".to_owned(),
        count => format!("{count} remotes"),
    };
    format!("{count} ({})", names.join(", "))
}

/// An error of a consolidated database or of its use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CentreError {
    /// The database cannot be reached, or the connection to it broke.
    #[error("the consolidated database cannot be reached: {message}")]
    Unavailable {
        /// What the driver says.
        message: String,
    },
    /// A statement of ours failed in the database. A row that the database does not take is no
    /// error: see [`crate::engine::row_fault::RefusalReason`].
    #[error("the consolidated database refused {what}: {message}")]
    StatementFailed {
        /// What was being done.
        what: String,
        /// What the database says.
        message: String,
        /// SQLSTATE or the database's own code.
        sqlstate: Option<String>,
        /// Whether the same transaction may succeed when it is run again
        /// (deadlock, serialization failure).
        retry: bool,
    },
    /// Others have changed rows of a table faster than their conflicts could be resolved. Nothing
    /// was changed; the same may succeed when it is tried again.
    #[error("others have changed rows of table {table:?} again and again while they were resolved")]
    Overtaken {
        /// The table.
        table: String,
    },
    /// The configuration asks for something that the database does not have or that
    /// cannot be done.
    #[error("{message}")]
    Configuration {
        /// What is wrong, and where.
        message: String,
        /// What to do next.
        hint: String,
    },
    /// Somebody else has held a lock for longer than we wait. Nothing was changed.
    #[error("{message}")]
    Locked {
        /// What could not be done.
        message: String,
    },
    /// Remotes may have changes pending that would be refused.
    #[error(
        "nothing was changed: {} may have changes pending that would be refused, because {}",
        remotes_held_up(remotes),
        changes.join(", and ")
    )]
    RemotesHeldUp {
        /// What would have them refused.
        changes: Vec<String>,
        /// The remotes.
        remotes: Vec<HeldUpRemote>,
    },
    /// What is deployed is not what the configuration says.
    #[error("the configuration and the database disagree: {message}")]
    NotDeployed {
        /// What differs.
        message: String,
    },
    /// The publication was deployed otherwise while a remote synced it.
    #[error("the publication {publication:?} was deployed otherwise during the sync")]
    Redeployed {
        /// Its name.
        publication: String,
    },
    /// The remote sent something that cannot be.
    #[error("the remote sent {message}")]
    Peer {
        /// What is wrong with it.
        message: String,
        /// The code to answer with.
        code: Code,
    },
    /// The operator's script has said that a sync ends, because the database refuses a row.
    #[error(
        "the script {file} ends the sync, because the centre refuses a row of {table:?}: {reason}"
    )]
    EndedByScript {
        /// Where the script stands.
        file: String,
        /// The table of the row.
        table: String,
        /// Why the row is refused.
        reason: String,
        /// The database's own code, if it says one.
        database_code: Option<String>,
    },
    /// The remote asks for what its user may not ask for.
    #[error("{value:?} is not allowed for the parameter {parameter:?} of {publication:?}")]
    NotAllowed {
        /// The publication.
        publication: String,
        /// The parameter.
        parameter: String,
        /// Its value, shortened.
        value: String,
    },
    /// There is no role of the database under which the user's remotes could act.
    #[error("publication {publication:?}, act_as: {message}")]
    NoRole {
        /// The publication.
        publication: String,
        /// Why.
        message: String,
        /// What its operator can do.
        hint: String,
    },
    /// A row of the centre has a value that is longer than a remote may get.
    #[error("{message}")]
    TooLong {
        /// Which one.
        message: String,
    },
    /// A script of the operator's has failed: nothing of its transaction counts.
    #[error("the script {file} failed: {message}")]
    Script {
        /// Its file.
        file: String,
        /// What the database says.
        message: String,
        /// The database's own code, if it has refused something.
        database_code: Option<String>,
    },
    /// Scripts of the operator's are wrong.
    #[error("{}", listed(faults))]
    Scripts {
        /// What is wrong with each.
        faults: Vec<ScriptFault>,
    },
    /// A script lets the remote not in.
    #[error("the script authenticate_parameters does not let the remote in: status {status}")]
    NotAuthenticated {
        /// The status that it set.
        status: i64,
    },
    /// The remote may go on no longer.
    #[error("the remote was shut out: {0:?}")]
    ShutOut(ShutOutReason),
    /// The consumer of a download went away.
    #[error("cancelled")]
    Cancelled,
    /// A defect of Tidewater.
    #[error("internal error: {message}")]
    Internal {
        /// What was found to be impossible.
        message: String,
    },
}

impl CentreError {
    /// What to do when remotes may have something pending that would be refused.
    pub const HELD_UP_HINT: &str = "undo the change; or let them sync, revoke those that are \
        gone (tidewater remote revoke), and then go ahead with tidewater deploy \
        --refuse-pending. They stay listed: nobody here knows what a remote has pending. What is \
        refused stays there, listed by tidewater refused list";

    /// The database's own code, if a statement of it failed: the SQLSTATE, or the extended result code
    /// of SQLite.
    pub fn database_code(&self) -> Option<&str> {
        match self {
            CentreError::StatementFailed { sqlstate: code, .. }
            | CentreError::Script {
                database_code: code,
                ..
            }
            | CentreError::EndedByScript {
                database_code: code,
                ..
            } => code.as_deref(),
            _ => None,
        }
    }

    /// The error's stable code.
    pub fn code(&self) -> Code {
        match self {
            CentreError::Unavailable { .. } => Code::ConsolidatedUnavailable,
            _ if self.is_out_of_resources() => Code::ConsolidatedUnavailable,
            CentreError::StatementFailed { .. } | CentreError::Overtaken { .. } => {
                Code::ConsolidatedRefused
            }
            CentreError::Configuration { .. }
            | CentreError::Scripts { .. }
            | CentreError::RemotesHeldUp { .. } => Code::Usage,
            CentreError::Locked { .. } => Code::Busy,
            CentreError::NotDeployed { .. } => Code::NotDeployed,
            CentreError::Redeployed { .. } => Code::Redeployed,
            CentreError::Peer { code, .. } => *code,
            CentreError::NotAllowed { .. } => Code::ParameterNotAllowed,
            CentreError::NoRole { .. } => Code::NoRole,
            CentreError::Script { .. } | CentreError::EndedByScript { .. } => Code::ScriptFailed,
            CentreError::NotAuthenticated { .. } => Code::ParameterNotAllowed,
            CentreError::TooLong { .. } => Code::LimitExceeded,
            CentreError::ShutOut(ShutOutReason::UserDisabled) => Code::UserDisabled,
            CentreError::ShutOut(ShutOutReason::RemoteRevoked) => Code::RemoteRevoked,
            CentreError::ShutOut(ShutOutReason::Removed) => Code::CredentialInvalid,
            CentreError::Cancelled => Code::Cancelled,
            CentreError::Internal { .. } => Code::Internal,
        }
    }

    /// What to do next, for people.
    pub fn hint(&self) -> String {
        match self {
            CentreError::Unavailable { .. } => {
                "check that the database runs, and host and port in its URL".into()
            }
            // insufficient_privilege
            CentreError::StatementFailed {
                sqlstate: Some(state),
                message,
                ..
            } if state == "42501" && message.contains("schema tidewater") => {
                "serving needs rights on the server's own tables; whoever deploys can give them: \
                 GRANT USAGE ON SCHEMA tidewater TO the role of the consolidated URL; GRANT \
                 SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tidewater TO it; GRANT \
                 USAGE ON ALL SEQUENCES IN SCHEMA tidewater TO it"
                    .into()
            }
            CentreError::StatementFailed {
                sqlstate: Some(state),
                ..
            } if state == "42501" => "deploying needs CREATE on the database, and ownership of \
                                      the published tables or the TRIGGER privilege on them; \
                                      serving needs SELECT, INSERT, UPDATE and DELETE on them, \
                                      and on all tables in the schema tidewater, with USAGE on \
                                      its sequences; \
                                      undeploying, and deploying a table otherwise than before, \
                                      need ownership of the tables and of the schema tidewater. \
                                      tidewater check -c FILE prints the statement that gives each \
                                      right that is missing"
                .into(),
            CentreError::StatementFailed { .. } => {
                "see the server's log and the database's own".into()
            }
            CentreError::Overtaken { .. } => {
                "run it again when fewer changes are made to the same rows".into()
            }
            CentreError::Configuration { hint, .. } | CentreError::NoRole { hint, .. } => {
                hint.clone()
            }
            CentreError::RemotesHeldUp { .. } => CentreError::HELD_UP_HINT.into(),
            CentreError::Locked { .. } => {
                "run it again when no other session holds the lock (PostgreSQL: see \
                 pg_stat_activity for long transactions)"
                    .into()
            }
            CentreError::NotDeployed { .. } => "run: tidewater deploy -c FILE".into(),
            CentreError::Peer {
                code: Code::ParameterNotAllowed,
                ..
            } => "nothing was changed; sync with --script-version NAME, one that there is for all \
                  publications of the sync"
                .into(),
            CentreError::Peer { .. } => "update the remote's Tidewater".into(),
            CentreError::NotAllowed { parameter, .. } => format!(
                "nothing was changed; sync with --parameter {parameter}=VALUE, or \
                 --parameter {parameter}= to have none; which values a user may ask for is the \
                 server's operator's to say"
            ),
            CentreError::TooLong { .. } => {
                "shorten the value in the centre, or name the published columns without this one"
                    .into()
            }
            CentreError::Script { .. } => {
                "mend the script, and deploy again: nothing is lost, and the next sync tries again"
                    .into()
            }
            CentreError::EndedByScript { .. } => {
                "nothing was changed in the centre; change or delete the row, and sync again".into()
            }
            CentreError::Scripts { faults } => match &faults[..] {
                [fault] => fault.hint.clone(),
                _ => "mend each; tidewater check -c FILE looks again".into(),
            },
            CentreError::NotAuthenticated { .. } => {
                "nothing was changed; set the parameters that the server's operator asks for, with \
                 --parameter NAME=VALUE"
                    .into()
            }
            CentreError::Redeployed { .. } => "sync again".into(),
            CentreError::ShutOut(_) | CentreError::Cancelled => String::new(),
            CentreError::Internal { .. } => "please report this with the server's log".into(),
        }
    }

    /// Whether running the same transaction again may succeed.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            CentreError::StatementFailed { retry: true, .. } | CentreError::Overtaken { .. }
        )
    }

    /// Whether the database says that it lacks room, memory or connections (SQLSTATE class 53), or
    /// that its system fails (58): not what it was asked is wrong, and it will do when somebody has
    /// seen to that.
    pub fn is_out_of_resources(&self) -> bool {
        matches!(
            self,
            CentreError::StatementFailed { sqlstate: Some(state), .. }
                if state.starts_with("53") || state.starts_with("58")
        )
    }
}

/// The result of everything that talks to the consolidated database.
pub type CentreResult<'a, T> = BoxFuture<'a, Result<T, CentreError>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_database_lacks_it_may_have_later() {
        let code = |sqlstate: &str| {
            let failed = CentreError::StatementFailed {
                what: "deploying".into(),
                message: "no".into(),
                sqlstate: Some(sqlstate.into()),
                retry: false,
            };
            failed.code()
        };
        for sqlstate in ["53100", "53200", "58030", "58P01"] {
            assert_eq!(code(sqlstate), Code::ConsolidatedUnavailable, "{sqlstate}");
        }
        assert_eq!(code("54001"), Code::ConsolidatedRefused);
    }

    #[test]
    fn missing_privileges_are_named() {
        let error = CentreError::StatementFailed {
            what: "deploying".into(),
            message: "permission denied for table customer".into(),
            sqlstate: Some("42501".into()),
            retry: false,
        };
        assert!(error.hint().contains("TRIGGER privilege"));
    }
}
