//! What the suite needs of a database: an empty one, and applications that use it.

use std::sync::Arc;

use tidewater_centre::{Centre, CentreError};
use tidewater_testing::generate::Dialect;

/// A fresh empty database, gone when dropped.
///
/// Everything here is done as an *application* would do it, on connections that know
/// nothing of Tidewater. Failures panic: the test cannot go on.
pub trait Fixture: Sized + Send + Sync + 'static {
    /// An application's open transaction.
    type Transaction: ApplicationTransaction;

    /// Whether two applications can have uncommitted changes at the same time. If
    /// not, whoever writes waits for the open transaction.
    const CONCURRENT_WRITERS: bool;
    /// How its SQL is written.
    const DIALECT: Dialect;
    /// The type of binary columns.
    const BYTES: &'static str;
    /// Deletes every row of the table `{}` in the fastest way that there is.
    const EMPTY_TABLE: &'static str;
    /// The declaration of a key that the database numbers.
    const NUMBERED_KEY: &'static str;

    /// Makes an empty database.
    fn new() -> impl Future<Output = Self> + Send;

    /// Its URL.
    fn url(&self) -> String;

    /// Connects the adapter to the database that a URL names.
    fn connect(url: &str) -> impl Future<Output = Result<Arc<dyn Centre>, CentreError>> + Send;

    /// Runs SQL statements (separated by semicolons) on a connection of their own.
    fn try_execute(&self, sql: &str) -> impl Future<Output = Result<(), String>> + Send;

    /// Runs a query; every value as text, NULL as `NULL`, joined by `|`, rows in the
    /// query's order.
    fn query(&self, sql: &str) -> impl Future<Output = Vec<String>> + Send;

    /// Begins a transaction on a connection of its own.
    fn begin(&self) -> impl Future<Output = Self::Transaction> + Send;

    /// What there is in the database besides the user's own: schemas, tables,
    /// triggers, functions, by name. Empty before deploying and after undeploying.
    fn traces(&self) -> impl Future<Output = Vec<String>> + Send;

    /// A trigger of the application on `customer` of the shop: after an insert it names
    /// the product 1 `tea of NAME` and turns the name into capitals.
    fn stock_trigger() -> String;

    /// A trigger of the application on `note (id, body, stamp)`: whenever a row is inserted, or an
    /// update sets its body, its stamp is a hundred more.
    fn stamp_trigger() -> String;

    /// A trigger of the application on `note (id, body, owner)`: what is inserted without an owner
    /// is owned by its body.
    fn fill_trigger() -> String;

    /// A trigger of the application on `note`: after an insert it writes the key, who uploads and
    /// from which remote into `seen`, NULL if nobody does.
    fn who_trigger() -> String;

    /// A table of the server's own, in SQL.
    fn own_table(name: &str) -> String;

    /// Runs SQL statements that must succeed.
    fn execute(&self, sql: &str) -> impl Future<Output = ()> + Send {
        async move {
            if let Err(error) = self.try_execute(sql).await {
                panic!("{error}\nin: {sql}");
            }
        }
    }
}

/// An application's open transaction.
pub trait ApplicationTransaction: Send + 'static {
    /// Runs SQL statements that must succeed.
    fn execute(&mut self, sql: &str) -> impl Future<Output = ()> + Send;

    /// Commits.
    fn commit(self) -> impl Future<Output = ()> + Send;
}
