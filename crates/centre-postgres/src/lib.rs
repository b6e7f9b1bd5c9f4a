//! PostgreSQL, 13 or later, as the consolidated database.
//!
//! Owns everything that knows PostgreSQL: the schema `tidewater`, change logs and
//! triggers, the binary formats, COPY, snapshots as watermarks. One file for each
//! concern; here are the connections that they share.

mod arguments;
mod array;
mod array_rows;
mod caller;
mod calls;
mod catalog;
mod column;
mod connection;
mod database;
mod decoder;
mod deploy_lock;
mod description;
mod dialect;
mod download;
mod driver_error;
mod entry;
mod existing_triggers;
mod follow;
mod grants;
mod inspect;
mod interrupt;
mod members;
mod numbers;
mod partition_condition;
mod partition_members;
mod pool;
mod pooler;
mod prepared_procedure;
mod publication;
mod quote;
mod rights;
mod route;
mod rows;
mod safe_time;
mod scope_sources;
mod script_times;
mod state;
mod step_failure;
mod system_statement;
mod table_statement;
mod tls;
mod tracked;
mod tracking;
mod translation;
mod trigger_functions;
mod triggers;
mod url;
mod values;
mod waits;
mod watermark;

pub use translation::{SqlNames, SqliteTranslation, TranslatedTable, translate, without_casts};

use crate::publication::PostgresTables;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use ring::rand::{SecureRandom, SystemRandom};

use self::connection::DatabaseAddress;
use self::follow::Follower;
use self::pool::Pool;
use self::publication::Publication;
use self::safe_time::SafeTimes;
use self::triggers::LogSpec;
use self::waits::SyncWaits;
use self::watermark::Marks;
use tidewater_centre::centre::Centre;
use tidewater_centre::engine::centre::EngineCentre;
use tidewater_centre::engine::served_publications::{CentreShared, ServedPublications};
use tidewater_centre::error::CentreError;

/// A PostgreSQL database as a centre.
struct PostgresCentre {
    shared: Arc<PostgresShared>,
}

/// What the centre and its workers share.
struct PostgresShared {
    address: DatabaseAddress,
    pool: Pool,
    marks: Marks,
    centre: CentreShared<PostgresTables>,
    /// When partitions that came could not be tracked the last time.
    adopt_failed_ms: AtomicI64,
    waits: SyncWaits,
    safe_times: SafeTimes,
    follower: Follower,
}

/// What tells that a table is still as it was loaded: its rules, triggers and columns. Then,
/// as of now: whether a trigger can change the key of a row before it is inserted, or keep it
/// out; whether a unique constraint can be deferred; whether row security holds for us; whether
/// what a default, a check or an index computes looks at settings, or depends on a function of the
/// application, which may; whether a trigger can do something else than delete a row; and whether
/// there are policies, for whomever they hold.
const FINGERPRINTS: &str = "
SELECT c.oid::int8 AS oid, c.relhasrules::text
  || ';' || coalesce((SELECT string_agg(t.oid::text || t.tgenabled::text, ',' ORDER BY t.oid)
       FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid), '')
  || ';' || coalesce((SELECT string_agg(concat_ws(':', a.attnum, a.atttypid, a.atttypmod,
       a.attgenerated, a.attisdropped), ',' ORDER BY a.attnum)
       FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0), '') AS fingerprint,
  EXISTS (SELECT FROM pg_catalog.pg_trigger t
    WHERE (t.tgrelid = c.oid OR c.relkind = 'p'
        AND t.tgrelid IN (SELECT p.relid FROM pg_catalog.pg_partition_tree(c.oid) p)) AND (t.tgtype & 7) = 7 AND t.tgenabled IN ('O', 'A')),
  EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND NOT i.indimmediate),
  pg_catalog.row_security_active(c.oid),
  EXISTS (SELECT FROM pg_catalog.pg_attrdef d WHERE d.adrelid = c.oid
    AND (pg_catalog.pg_get_expr(d.adbin, d.adrelid) ~* 'current_setting' OR EXISTS (
      SELECT FROM pg_catalog.pg_depend p WHERE p.classid = 'pg_catalog.pg_attrdef'::regclass
        AND p.objid = d.oid AND p.refclassid = 'pg_catalog.pg_proc'::regclass)))
  OR EXISTS (SELECT FROM pg_catalog.pg_constraint o WHERE o.conrelid = c.oid AND o.contype = 'c'
    AND (pg_catalog.pg_get_constraintdef(o.oid) ~* 'current_setting' OR EXISTS (
      SELECT FROM pg_catalog.pg_depend p WHERE p.classid = 'pg_catalog.pg_constraint'::regclass
        AND p.objid = o.oid AND p.refclassid = 'pg_catalog.pg_proc'::regclass)))
  OR EXISTS (SELECT FROM pg_catalog.pg_depend p JOIN pg_catalog.pg_index i ON i.indexrelid = p.objid
    WHERE i.indrelid = c.oid AND p.classid = 'pg_catalog.pg_class'::regclass
      AND p.refclassid = 'pg_catalog.pg_proc'::regclass),
  EXISTS (SELECT FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
    WHERE (t.tgrelid = c.oid OR c.relkind = 'p'
        AND t.tgrelid IN (SELECT m.relid FROM pg_catalog.pg_partition_tree(c.oid) m))
      AND (t.tgtype & 11) = 11 AND t.tgenabled IN ('O', 'A')
      AND p.pronamespace <> 'tidewater'::regnamespace),
  c.relrowsecurity
FROM pg_catalog.pg_class c WHERE c.oid = ANY($1)";

/// Tells whether anything of tables is not as it was when they were loaded: what [`FINGERPRINTS`]
/// says, names, indexes, and whom they inherit from.
const VERSION: &str = "
SELECT coalesce(pg_catalog.md5(string_agg(concat_ws('|', f.oid, f.fingerprint, c.relname,
  c.relnamespace, c.relpersistence,
  (SELECT string_agg(i.indexrelid::text, ',' ORDER BY i.indexrelid)
     FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indislive),
  (SELECT string_agg(concat_ws('<', h.inhrelid, h.inhparent), ',' ORDER BY h.inhrelid, h.inhparent)
     FROM pg_catalog.pg_inherits h WHERE c.oid IN (h.inhrelid, h.inhparent))),
  ';' ORDER BY f.oid)), '')
FROM ({fingerprints}) AS f JOIN pg_catalog.pg_class c ON c.oid = f.oid";

/// Connects to the database that a URL names.
pub async fn connect(url: &str) -> Result<Arc<dyn Centre>, CentreError> {
    let address = connection::address(url)?;
    // The first connection tells whether there is a database at all.
    let first = connection::PostgresConnection::first(&address).await?;
    let pool = Pool::new(address.clone(), first);
    Ok(Arc::new(EngineCentre(PostgresCentre {
        shared: Arc::new(PostgresShared {
            marks: watermark::start(address.clone()),
            address,
            pool,
            centre: CentreShared::new(fill_random),
            adopt_failed_ms: AtomicI64::new(i64::MIN),
            waits: SyncWaits::default(),
            safe_times: SafeTimes::default(),
            follower: Follower::default(),
        }),
    })))
}

/// Publications as they are served.
type PostgresPublications = ServedPublications<PostgresTables>;

impl PostgresShared {
    /// A publication that is served.
    fn publication(&self, name: &str) -> Result<Arc<Publication>, CentreError> {
        self.centre.served().publication(name).cloned()
    }

    /// The served change log of this number, with the name of a publication that has it.
    fn tracked(&self, log_id: i32) -> Option<(String, LogSpec)> {
        let served = self.centre.served();
        served.publications.iter().find_map(|publication| {
            let mut rules = publication.tables.iter().flat_map(|it| &it.rules);
            let rule = rules.find(|rule| rule.log.is_some() && rule.log_id == i64::from(log_id))?;
            Some((publication.schema.name.clone(), rule.log.clone()?))
        })
    }

    fn may_adopt(&self, now_ms: i64) -> bool {
        let failed_ms = self.adopt_failed_ms.load(Ordering::Relaxed);
        // Neither does a clock that was set back make it wait for years.
        failed_ms.abs_diff(now_ms) >= download::ADOPT_AGAIN_MS
    }

    fn adopt_failed(&self, now_ms: i64) {
        self.adopt_failed_ms.store(now_ms, Ordering::Relaxed);
    }
}

/// Fills bytes that nobody can guess.
fn fill_random(bytes: &mut [u8]) -> Result<(), CentreError> {
    let filled = SystemRandom::new().fill(bytes);
    filled.map_err(|_| CentreError::Internal {
        message: "the system has no random numbers".into(),
    })
}
