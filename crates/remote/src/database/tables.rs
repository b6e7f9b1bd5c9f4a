//! User tables and their change tables.
