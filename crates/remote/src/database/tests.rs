//! Facts about the remote database.
