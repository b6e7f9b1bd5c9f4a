//! Why PostgreSQL cannot be reached or does not let us in, and what to do about it.
//!
//! Owns the difference between what may be otherwise in a minute and what somebody has to
//! put right in the URL or in the database. Names the place, never the password.

use tokio_postgres::config::Host;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config};

use super::tls;
use crate::driver_error::{chain, statement_failed};
use tidewater_centre::error::CentreError;

/// Host, port, database and user, as far as the URL says them.
fn place(config: &Config) -> String {
    let ports = config.get_ports();
    let hosts = config.get_hosts().iter().enumerate().map(|(index, host)| {
        let port = ports.get(index).or(ports.first()).copied().unwrap_or(5432);
        match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            #[cfg(unix)]
            Host::Unix(folder) => format!("{}/.s.PGSQL.{port}", folder.display()),
        }
    });
    let mut place = hosts.collect::<Vec<_>>().join(" or ");
    if let Some(database) = config.get_dbname() {
        place.push_str(&format!(", database {database:?}"));
    }
    if let Some(user) = config.get_user() {
        place.push_str(&format!(", user {user:?}"));
    }
    place
}

/// The error of a first connection: [`CentreError::Configuration`] for what will not pass by
/// itself.
pub(super) fn error(config: &Config, error: &tokio_postgres::Error) -> CentreError {
    let place = place(config);
    let Some(refusal) = error.as_db_error() else {
        return tls::distrust(error).unwrap_or_else(|| without_answer(&place, &chain(error)));
    };
    let hint = match refusal.code().code() {
        "28P01" => "check user and password in the URL: postgres://user:password@host/database",
        "28000" => {
            "name another user in the URL, or let this one sign in from here (CREATE ROLE ... \
             LOGIN, pg_hba.conf)"
        }
        "3D000" => "name another database in the URL, or create this one first",
        "42501" => "GRANT CONNECT ON DATABASE ... TO the user",
        _ => {
            return CentreError::Unavailable {
                message: format!("{place}: {}", refusal.message()),
            };
        }
    };
    CentreError::Configuration {
        message: format!(
            "PostgreSQL does not let us in ({place}): {}",
            refusal.message()
        ),
        hint: hint.into(),
    }
}

/// Sees to it that what we write is logged: a session that counts as replicating, which a setting
/// of the database or the role can make it, fires no triggers.
///
/// # Errors
/// [`CentreError::Configuration`] if the role may not change that.
pub(super) async fn let_triggers_fire(client: &Client, config: &Config) -> Result<(), CentreError> {
    const ROLE: &str = "SELECT pg_catalog.current_setting('session_replication_role') = 'replica'";
    let asked = client.query_one(ROLE, &[]).await;
    let asked = asked.map_err(statement_failed("reading settings of the database"))?;
    if !asked.get::<_, bool>(0) {
        return Ok(());
    }
    let set = client.batch_execute("SET session_replication_role = origin");
    let Err(error) = set.await else {
        return Ok(());
    };
    let refusal = error.as_db_error();
    let forbidden = refusal.filter(|it| *it.code() == SqlState::INSUFFICIENT_PRIVILEGE);
    let Some(forbidden) = forbidden else {
        return Err(statement_failed("changing a setting of the session")(error));
    };
    let (place, why) = (place(config), forbidden.message());
    Err(CentreError::Configuration {
        message: format!(
            "session_replication_role is replica ({place}), so that nothing of what remotes \
             upload would be logged for the others: {why}"
        ),
        hint: "ALTER DATABASE ... RESET session_replication_role, and the same for the role".into(),
    })
}

/// The driver tells these apart by their texts only.
fn without_answer(place: &str, text: &str) -> CentreError {
    if text.contains("password missing") {
        return CentreError::Configuration {
            message: format!("PostgreSQL asks for a password, and the URL has none ({place})"),
            hint: "write postgres://user:${DB_PASSWORD}@host/database and set DB_PASSWORD in the \
                   environment, with reserved characters as %XX; PGPASSWORD and .pgpass are not \
                   read"
                .into(),
        };
    }
    if text.contains("does not support TLS") {
        return CentreError::Configuration {
            message: format!("PostgreSQL does not support TLS, which sslmode asks for ({place})"),
            hint: "turn ssl on in postgresql.conf, or write sslmode=disable where nobody listens \
                   on the way"
                .into(),
        };
    }
    CentreError::Unavailable {
        message: format!("{place}: {text}"),
    }
}
