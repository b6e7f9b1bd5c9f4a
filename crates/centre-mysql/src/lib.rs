//! MariaDB, 10.11 or later, and MySQL, 8.0 or later, as the consolidated database.
//!
//! Owns everything that knows them: the tables `tidewater_...` in the application's database, how
//! statements are spelled, and how they are run. One file for each concern; here is what its
//! connections share.
//!
//! No publication can be deployed yet: users, remotes and keys are kept, and nothing else.

#![expect(clippy::todo, reason = "the adapter is made step by step")]

mod catalog;
mod connection;
mod database;
mod dialect;
mod driver_error;
mod inspect;
mod numbered_text;
mod publication;
mod quote;
mod recorded_log;
mod rows;
mod state;
mod step_failure;
mod system_statement;
mod table_statement;
mod tracking;
mod values;

use std::sync::Arc;

use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::Mutex;

use tidewater_centre::centre::Centre;
use tidewater_centre::engine::centre::EngineCentre;
use tidewater_centre::engine::served_publications::CentreShared;
use tidewater_centre::error::CentreError;

use crate::connection::{DatabaseAddress, MysqlConnection};
use crate::publication::MysqlTables;

/// A database of MariaDB or MySQL as a centre.
struct MysqlCentre {
    address: DatabaseAddress,
    /// The connection for administration.
    admin: Mutex<MysqlConnection>,
    served: SharedServed,
}

/// What is served now; workers take it, refreshed, at the beginning of each job.
type SharedServed = Arc<CentreShared<MysqlTables>>;

/// Connects to the database that a URL names: `mysql://user:password@host:3306/database`, or the same
/// with `mariadb`.
///
/// # Errors
/// The URL is none, or the database cannot be reached.
pub async fn connect(url: &str) -> Result<Arc<dyn Centre>, CentreError> {
    let address = DatabaseAddress::read(url)?;
    // The first connection tells whether there is a database at all.
    let first = MysqlConnection::first(&address).await?;
    Ok(Arc::new(EngineCentre(MysqlCentre {
        address,
        admin: Mutex::new(first),
        served: Arc::new(CentreShared::new(fill_random)),
    })))
}

/// Fills bytes that nobody can guess.
fn fill_random(bytes: &mut [u8]) -> Result<(), CentreError> {
    let filled = SystemRandom::new().fill(bytes);
    filled.map_err(|_| CentreError::Internal {
        message: "the system has no random numbers".into(),
    })
}
