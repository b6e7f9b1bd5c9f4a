//! Poolers between us and PostgreSQL, such as PgBouncer.
//!
//! Owns finding out whether there is one, and of what kind. One that gives each of our connections
//! a session of its own only does not know our settings, which are set one by one then. One that
//! gives a session to whoever begins the next transaction is refused: what we have set and
//! prepared would be another's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::{Client, Config, SimpleQueryMessage};

use super::connection::{DatabaseAddress, WarningCount};
use super::entry;
use super::quote::literal;
use crate::driver_error::statement_failed;
use tidewater_centre::error::CentreError;

/// A setting of ours that tells whether the others are set.
pub(super) const MARK: &str = "tidewater.session";

/// How long a pooler may take to give two connections their sessions.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often two connections are asked which session they have.
const LOOKS: usize = 4;

/// What is known of a pooler, and what is done about it.
#[derive(Clone, Debug)]
pub(super) struct Pooler {
    /// The database without options of a session.
    plain: Config,
    /// There is one, and it gives sessions.
    is_there: Arc<AtomicBool>,
    /// Sets what the options of a session say.
    set: String,
    timeout: String,
}

impl Pooler {
    /// Before a database, for sessions with these options.
    pub(super) fn from_options(plain: Config, options: &str) -> Pooler {
        let mut set = String::new();
        let mut timeout = String::new();
        for (name, value) in settings(options) {
            // A text that can be no value is refused as an option of a session, too.
            let (Some(setting), Some(value)) = (literal(&name), literal(&value)) else {
                continue;
            };
            let one = format!("SELECT pg_catalog.set_config({setting}, {value}, false); ");
            if name == "statement_timeout" {
                timeout.clone_from(&one);
            }
            set.push_str(&one);
        }
        Pooler {
            plain,
            is_there: Arc::default(),
            set,
            timeout,
        }
    }

    fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Relaxed)
    }

    /// Sets the time that a statement may take to what it was in the beginning.
    pub(super) fn timeout(&self) -> String {
        match self.is_there() {
            true => self.timeout.clone(),
            false => "RESET statement_timeout; ".to_owned(),
        }
    }

    /// Connects, with our settings.
    ///
    /// # Errors
    /// [`CentreError::Configuration`] for a pooler that gives no sessions, and as
    /// [`super::connection::PostgresConnection::first`].
    pub(super) async fn enter(
        &self,
        address: &DatabaseAddress,
        warnings: &WarningCount,
    ) -> Result<Client, CentreError> {
        if !self.is_there() {
            let client = match address.dial(address.config(), warnings).await {
                Ok(client) => Some(client),
                Err(error) if knows_no_options(&error) => None,
                Err(error) => return Err(entry::error(address.config(), &error)),
            };
            if let Some(client) = client
                && has_options(&client).await?
            {
                return Ok(client);
            }
            self.check(address).await?;
            self.is_there.store(true, Ordering::Relaxed);
        }
        let client = self.dial(address, warnings).await?;
        let set = client.batch_execute(&self.set).await;
        set.map_err(statement_failed("the settings of a session"))?;
        Ok(client)
    }

    /// Connects without options.
    async fn dial(
        &self,
        address: &DatabaseAddress,
        warnings: &WarningCount,
    ) -> Result<Client, CentreError> {
        let dialed = address.dial(&self.plain, warnings).await;
        dialed.map_err(|error| entry::error(&self.plain, &error))
    }

    /// Two connections have two sessions, each always the same. A pooler of transactions gives both
    /// the one that is free, or changes those that they have.
    async fn check(&self, address: &DatabaseAddress) -> Result<(), CentreError> {
        let look = async {
            let of_nobody = WarningCount::default();
            let one = self.dial(address, &of_nobody).await?;
            let other = self.dial(address, &of_nobody).await?;
            let first = (session(&one).await?, session(&other).await?);
            for _ in 0..LOOKS {
                let now = (session(&one).await?, session(&other).await?);
                if now != first || now.0 == now.1 {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        match timeout(PATIENCE, look).await {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err(CentreError::Configuration {
                message: "the database's URL leads to a pooler that shares sessions between \
                          transactions (PgBouncer: pool_mode = transaction or statement): \
                          settings, prepared statements and locks would be another's"
                    .into(),
                hint: "write pool_mode = session for this database in pgbouncer.ini, or the URL \
                       of PostgreSQL itself: Tidewater keeps its connections and needs no pooler"
                    .into(),
            }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(CentreError::Unavailable {
                message: "the pooler before PostgreSQL has no session free \
                          (PgBouncer: default_pool_size)"
                    .into(),
            }),
        }
    }
}

/// The process that serves a connection now. Nothing is prepared for that.
async fn session(client: &Client) -> Result<Option<String>, CentreError> {
    ask(client, "SELECT pg_catalog.pg_backend_pid()").await
}

/// Whether the options of a session were looked at.
async fn has_options(client: &Client) -> Result<bool, CentreError> {
    let sql = format!("SELECT pg_catalog.current_setting('{MARK}', true)");
    let mark = ask(client, &sql).await?;
    Ok(mark.as_deref() == Some("on"))
}

async fn ask(client: &Client, sql: &str) -> Result<Option<String>, CentreError> {
    let answer = client.simple_query(sql).await;
    let answer = answer.map_err(statement_failed("asking for a session"))?;
    let mut rows = answer.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    Ok(rows.next())
}

/// PgBouncer names the parameter that it does not know.
fn knows_no_options(error: &tokio_postgres::Error) -> bool {
    let refusal = error.as_db_error();
    refusal.is_some_and(|it| it.message().contains("unsupported startup parameter"))
}

/// Names and values of `-c name=value` and `--name=value`; a backslash stands before what is meant
/// as it is.
fn settings(options: &str) -> Vec<(String, String)> {
    let mut words = vec![String::new()];
    let mut characters = options.chars();
    while let Some(character) = characters.next() {
        let last = words.len() - 1;
        match character {
            '\\' => words[last].extend(characters.next()),
            it if it.is_whitespace() => words.push(String::new()),
            it => words[last].push(it),
        }
    }
    let mut is_next = false;
    let pairs = words.iter().filter_map(|word| {
        let follows = std::mem::replace(&mut is_next, word == "-c");
        let setting = word.strip_prefix("--").or(word.strip_prefix("-c"));
        let setting = setting.or(follows.then_some(word));
        let (name, value) = setting?.split_once('=')?;
        Some((name.replace('-', "_"), value.to_owned()))
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_a_session_are_set_one_by_one() {
        let options = "-c tidewater.session=on \
                       -c default_transaction_isolation=read\\ committed \
                       -cstatement_timeout=5 --work-mem=1MB -c x='y -B 7";
        let expected = [
            ("tidewater.session", "on"),
            ("default_transaction_isolation", "read committed"),
            ("statement_timeout", "5"),
            ("work_mem", "1MB"),
            ("x", "'y"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(settings(options), expected);
        let pooler = Pooler::from_options(Config::new(), options);
        assert_eq!(pooler.timeout(), "RESET statement_timeout; ");
        pooler.is_there.store(true, Ordering::Relaxed);
        let set = "SELECT pg_catalog.set_config('statement_timeout', '5', false); ";
        assert_eq!(pooler.timeout(), set);
        assert!(pooler.set.contains(set));
    }
}
