//! Syncs on a server's connections: their stages, the handlers that are asked in them, and images.

pub mod handlers;
pub mod images;
pub mod session;
