//! The embedded consolidated database: one SQLite file.
