//! What names of users, publications and procedures may be.

/// Names of users, publications and programs have at most so many bytes.
pub const MAX_NAME_BYTES: usize = 512;

/// The names of procedures that the server itself has begin with this.
pub const BUILT_IN_PREFIX: &str = "tidewater.";
