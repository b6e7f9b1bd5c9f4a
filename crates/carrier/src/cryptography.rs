//! Hashes, authentication codes and signatures, from the module that TLS has its cryptography from.

#[cfg(feature = "fips")]
pub use aws_lc_rs::{digest, hmac, signature};
#[cfg(not(feature = "fips"))]
pub use ring::{digest, hmac, signature};
