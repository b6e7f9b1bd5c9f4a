//! The parameters of subscriptions: what the remote says of itself at each sync.

use rusqlite::{Connection, params};
use tidewater_protocol::message::{MAX_PARAMETERS, SubscriptionParameter};

use super::RemoteDatabase;
use crate::error::{ErrorContext, RemoteError};

const DOING: &str = "setting a parameter";

/// What all subscriptions have set: publication, name and value of each parameter.
#[derive(Clone, Debug)]
pub struct ParameterSet(Vec<[String; 3]>);

impl RemoteDatabase {
    /// Sets a parameter of every subscription, or of one; `None` drops it. What the remote holds
    /// follows with the next sync.
    ///
    /// # Errors
    /// It can be no name or no value, there are too many of them, the remote does not subscribe to
    /// that publication, or SQLite failed.
    pub fn set_parameter(
        &mut self,
        publication: Option<&str>,
        name: &str,
        value: Option<&str>,
    ) -> Result<(), RemoteError> {
        let usage = |what: String, hint: &str| RemoteError::Usage {
            what,
            hint: hint.into(),
        };
        if !SubscriptionParameter::is_name(name) {
            let what = format!("{name:?} can be no name of a parameter");
            return Err(usage(what, "letters, digits and underscores can"));
        }
        if value.is_some_and(|value| !SubscriptionParameter::is_value(value)) {
            let what = format!("the value of the parameter {name:?} cannot be sent");
            return Err(usage(what, "write at most 1024 bytes, without zero bytes"));
        }
        let transaction = self.write(DOING)?;
        let set = || -> rusqlite::Result<(usize, bool)> {
            transaction.execute(
                "DELETE FROM tidewater_parameter WHERE name = ?2 \
                 AND publication = coalesce(?1, publication)",
                params![publication, name],
            )?;
            if let Some(value) = value {
                transaction.execute(
                    "INSERT INTO tidewater_parameter (publication, name, value) \
                     SELECT publication, ?2, ?3 FROM tidewater_subscription \
                     WHERE publication = coalesce(?1, publication)",
                    params![publication, name, value],
                )?;
            }
            let sql = "SELECT count(*) FROM tidewater_subscription \
                       WHERE publication = coalesce(?1, publication)";
            let meant: i64 = transaction.query_row(sql, [publication], |row| row.get(0))?;
            let sql = "SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n \
                       FROM tidewater_parameter GROUP BY publication)";
            let most: i64 = transaction.query_row(sql, [], |row| row.get(0))?;
            Ok((most.unsigned_abs() as usize, meant > 0))
        };
        let (most, known) = set().doing(DOING)?;
        if most > MAX_PARAMETERS {
            let what = format!("a subscription has at most {MAX_PARAMETERS} parameters");
            return Err(usage(what, "drop one with --parameter NAME="));
        }
        if !known {
            let what = "the remote subscribes to no such publication".to_owned();
            return Err(usage(what, "name a publication that it subscribes to"));
        }
        transaction.commit().doing(DOING)
    }

    /// The parameters of every subscription.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn parameters(&mut self) -> Result<ParameterSet, RemoteError> {
        let read = || -> rusqlite::Result<Vec<[String; 3]>> {
            self.connection
                .prepare_cached("SELECT publication, name, value FROM tidewater_parameter")?
                .query_map([], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?]))?
                .collect()
        };
        Ok(ParameterSet(read().doing("reading parameters")?))
    }

    /// Sets all parameters to what they were.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn restore_parameters(&mut self, before: &ParameterSet) -> Result<(), RemoteError> {
        let transaction = self.write(DOING)?;
        let set = || -> rusqlite::Result<()> {
            transaction.execute("DELETE FROM tidewater_parameter", [])?;
            for parameter in &before.0 {
                transaction.execute(
                    "INSERT INTO tidewater_parameter (publication, name, value) \
                     SELECT publication, ?2, ?3 FROM tidewater_subscription \
                     WHERE publication = ?1",
                    rusqlite::params_from_iter(parameter),
                )?;
            }
            Ok(())
        };
        set().doing(DOING)?;
        transaction.commit().doing(DOING)
    }
}

/// The parameters of a subscription.
pub(super) fn read(
    connection: &Connection,
    publication: &str,
) -> rusqlite::Result<Vec<SubscriptionParameter>> {
    connection
        .prepare_cached(
            "SELECT name, value FROM tidewater_parameter WHERE publication = ?1 ORDER BY name",
        )?
        .query_map([publication], |row| {
            Ok(SubscriptionParameter {
                name: row.get(0)?,
                value: row.get(1)?,
            })
        })?
        .collect()
}
