//! The role under which the application's tables are read and written for a remote.
//!
//! A role is assumed for single statements, within the transaction and in the same flight: our own
//! statements before and after them never run under it, and whatever ends the transaction, or undoes
//! it to a savepoint, ends the role, too.

use std::future::Future;

use futures_util::future::join3;
use tokio_postgres::{Client, Error};

use super::quote::ident;
use crate::driver_error::statement_failed;
use tidewater_centre::engine::assumed_role;
use tidewater_centre::error::CentreError;

/// insufficient_privilege
const DENIED: &str = "42501";

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

impl From<assumed_role::AssumedRole> for AssumedRole {
    fn from(role: assumed_role::AssumedRole) -> AssumedRole {
        match role.is_another() {
            true => AssumedRole::new(role.role().to_owned(), role.publication()),
            false => AssumedRole::default(),
        }
    }
}
