//! Syncs against small scripted servers on loopback.
