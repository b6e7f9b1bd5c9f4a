//! The safe time of download scripts: whatever transaction is not in a download's snapshot has begun
//! at this time or later, so its rows are dated so or later.
//!
//! Of open transactions PostgreSQL tells when they began. Of prepared ones it only tells when they
//! were prepared, so the server remembers the last safe time that it found before it first saw each:
//! such a transaction was open by then, and counted, or began later. Where nothing is known from before
//! (the server has just started), a remote's last safe time stands, by the same reason.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use futures_util::future::join;
use tokio_postgres::Client;

use crate::driver_error::statement_failed;
use tidewater_centre::engine::download::snapshot_driver::SafeTime;
use tidewater_centre::error::CentreError;

/// When the oldest open transaction of this database began; now, if there is none. Now is when the
/// statement came, before it looks.
const OPEN: &str = "
SELECT (extract(epoch FROM least(pg_catalog.statement_timestamp(), min(a.xact_start))) * 1000000)::int8
FROM pg_catalog.pg_stat_activity a
WHERE a.datname = pg_catalog.current_database() AND a.pid <> pg_catalog.pg_backend_pid()";

/// The prepared transactions of this database; and when each has begun at the earliest, as far as
/// that follows from when the database was started: what was not prepared by then is gone.
const PREPARED: &str = "
SELECT p.transaction::text || '/' || p.gid,
  CASE WHEN p.prepared > s.started THEN (extract(epoch FROM s.started) * 1000000)::int8 END
FROM pg_catalog.pg_prepared_xacts p, (SELECT pg_catalog.pg_postmaster_start_time() AS started) s
WHERE p.database = pg_catalog.current_database()";

/// Earlier than any row is dated: 1900-01-01, in microseconds since 1970.
const NEVER: i64 = -2_208_988_800_000_000;

/// What the server remembers of safe times.
#[derive(Debug, Default)]
pub(super) struct SafeTimes(Mutex<SafeTimeMemory>);

#[derive(Debug, Default)]
struct SafeTimeMemory {
    /// The last one that was found.
    last: Option<i64>,
    /// When the prepared transactions have begun at the earliest.
    prepared: HashMap<String, i64>,
}

impl SafeTimes {
    /// Finds out the safe time of a snapshot that is taken after this.
    pub(super) async fn look(&self, client: &Client) -> Result<SafeTime, CentreError> {
        // In this order: whoever is prepared between the two is in both.
        let (open, prepared) = join(client.query_one(OPEN, &[]), client.query(PREPARED, &[])).await;
        let error = statement_failed("looking for open transactions");
        let (open, prepared) = (open.map_err(&error)?, prepared.map_err(&error)?);
        let prepared = prepared.iter().map(|row| (row.get(0), row.get(1)));
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(memory.note(open.get(0), prepared.collect()))
    }
}

impl SafeTimeMemory {
    fn note(&mut self, open: i64, prepared: Vec<(String, Option<i64>)>) -> SafeTime {
        let bounds = prepared.into_iter().map(|(name, least)| {
            let known = self.prepared.get(&name).copied();
            let bound = known.or(self.last.max(least)).unwrap_or(NEVER);
            (name, bound)
        });
        self.prepared = bounds.collect();
        let found = SafeTime {
            open,
            prepared: self.prepared.values().copied().min().unwrap_or(i64::MAX),
        };
        self.last = Some(found.for_remote(None));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(names: &[&str]) -> Vec<(String, Option<i64>)> {
        names.iter().map(|it| ((*it).to_owned(), None)).collect()
    }

    #[test]
    fn a_prepared_transaction_holds_the_safe_time_where_it_was_before() {
        let mut memory = SafeTimeMemory::default();
        let mut at = |open, names: &[&str]| memory.note(open, prepared(names)).for_remote(None);
        assert_eq!(at(10, &[]), 10);
        assert_eq!(at(20, &["x"]), 10);
        assert_eq!(at(30, &["x"]), 10);
        // Another one may have begun by then, too: nobody has seen it open.
        assert_eq!(at(40, &["x", "y"]), 10);
        assert_eq!(at(50, &[]), 50);
        assert_eq!(at(60, &["z"]), 50);
        assert_eq!(at(40, &["z"]), 40, "one that is open is older");
    }

    #[test]
    fn a_server_that_knows_nothing_goes_by_the_remote_and_by_the_start_of_the_database() {
        let unknown = SafeTimeMemory::default().note(20, prepared(&["x"]));
        assert_eq!(unknown.for_remote(None), NEVER);
        assert_eq!(unknown.for_remote(Some(7)), 7);
        assert_eq!(unknown.for_remote(Some(70)), 20, "clocks were set back");
        let since_start = vec![("x".to_owned(), Some(5))];
        let started = SafeTimeMemory::default().note(20, since_start);
        assert_eq!(started.for_remote(None), 5);
        assert_eq!(started.for_remote(Some(7)), 7);
    }
}
