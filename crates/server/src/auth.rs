//! Who may come in: passwords, credentials, tokens, what others say of users, and the
//! signatures on what remotes keep for the server.
//!
//! Nothing here talks to the consolidated database except for signing keys; the
//! session looks users and remotes up and asks here what they are worth.

pub(crate) mod credential;
pub(crate) mod external;
pub(crate) mod password;
pub(crate) mod signing;
pub(crate) mod throttle;

pub use password::{check_password_hash, hash_password};
pub use signing::{KEY_SIGNS_AFTER_MS, new_signing_key};
