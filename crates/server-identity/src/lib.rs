//! Who may come in: passwords, credentials, tokens, what others say of users, the signatures on what
//! remotes keep for the server, and who is connected.

pub mod credential;
pub mod external;
pub mod password;
pub mod registry;
pub mod sign_in;
pub mod signing;
mod throttle;
pub mod web_client;
