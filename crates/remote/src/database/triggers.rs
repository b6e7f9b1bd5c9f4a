//! Tracking triggers.
