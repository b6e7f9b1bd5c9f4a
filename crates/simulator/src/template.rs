//! The centre as every simulation finds it: made once in a process, for it is the same for
//! every seed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use argon2::password_hash::{PasswordHasher, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use rusqlite::Connection;
use tokio::time::Instant;

use tidewater_centre::Centre;
use tidewater_centre::records::{ProvenIdentity, UserRecord};

use crate::besides::Besides;
use crate::calendar::BEGIN_MS;
use crate::defects;
use crate::disks::CentreDisk;
use crate::failure::SimulationFailure;
use crate::host::Host;
use crate::intruder::Intruder;
use crate::random::SeededRandom;
use crate::scenario;
use crate::users::PASSWORD;
use crate::users::{OFFICE, USERS};

/// What there is of a centre: whether its references are looked at when a transaction ends, and
/// what it has beside the tables of all.
type Kind = (bool, Besides);

/// The bytes of each kind of centre.
static CENTRES: Mutex<BTreeMap<Kind, &[u8]>> = Mutex::new(BTreeMap::new());

/// Deployed, with users, before anybody has synced. Not to be called in a simulation, the first
/// time takes a runtime of its own.
///
/// # Panics
/// It cannot be made.
pub(crate) fn centre(kind: Kind) -> &'static [u8] {
    let mut centres = CENTRES.lock().unwrap_or_else(PoisonError::into_inner);
    centres
        .entry(kind)
        // Whatever is wrong is not yet.
        .or_insert_with(|| match defects::with(None, || make(kind)) {
            Ok(bytes) => bytes.leak(),
            Err(SimulationFailure(what)) => panic!("no centre to begin with: {what}"),
        })
}

fn make((deferred, besides): Kind) -> Result<Vec<u8>, SimulationFailure> {
    let disk = CentreDisk::new(SeededRandom::new(0));
    let path = disk.path();
    let (schema, triggers) = (scenario::schema(deferred), scenario::triggers());
    let besides_schema = besides.schema();
    let all = format!("{schema}{triggers}{besides_schema}");
    Connection::open(&path)?.execute_batch(&all)?;
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build()?;
    runtime.block_on(deploy(&path, besides))?;
    // With it ends the last connection, and the write-ahead log with that.
    drop(runtime);
    Ok(disk.bytes())
}

async fn deploy(path: &Path, besides: Besides) -> Result<(), SimulationFailure> {
    let intruder = Intruder::new(SeededRandom::new(0));
    intruder.leave();
    let host = Host::new(0, Instant::now(), SeededRandom::new(0), intruder).with(besides);
    let centre = host.deploy(path.to_owned()).await?;
    let users: Vec<&str> = USERS.iter().chain([&OFFICE]).copied().collect();
    add_users(&*centre, &users).await
}

/// Lets users in, all with the same password.
pub(crate) async fn add_users(
    centre: &dyn Centre,
    users: &[&str],
) -> Result<(), SimulationFailure> {
    let password_hash = password_hash()?;
    for user in users {
        let user = UserRecord {
            name: (*user).into(),
            password_hash: password_hash.clone(),
            disabled: false,
            created_ms: BEGIN_MS,
            proven: ProvenIdentity::default(),
        };
        centre.add_user(&user).await?;
    }
    Ok(())
}

/// Hashing is slow on purpose, but not here: at the least cost that there is.
pub(crate) fn password_hash() -> Result<String, SimulationFailure> {
    let impossible =
        |what: String| SimulationFailure(format!("a password cannot be hashed: {what}"));
    let cost = Params::new(Params::MIN_M_COST, 1, 1, None);
    let cost = cost.map_err(|error| impossible(error.to_string()))?;
    let salt = SaltString::encode_b64(b"a simulated salt");
    let salt = salt.map_err(|error| impossible(error.to_string()))?;
    Argon2::new(Algorithm::Argon2id, Version::V0x13, cost)
        .hash_password(PASSWORD.as_bytes(), &salt)
        .map(|hash| hash.to_string())
        .map_err(|error| impossible(error.to_string()))
}
