//! For whom a transaction runs, as triggers and row security of the application read it.

/// Says who syncs, for the application's policies and the operator's queries.
pub(super) const WHO: &str = "SELECT pg_catalog.set_config('tidewater.username', $1, true),
  pg_catalog.set_config('tidewater.remote_id', $2, true)";
