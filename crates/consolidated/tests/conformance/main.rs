//! The conformance suite of consolidated databases: every case runs on every
//! database, through the public traits alone.
//!
//! A case is a generic function named after the fact that it checks; it is listed
//! once, in `suite!`. What differs between databases is behind
//! [`fixture::Fixture`].

// Cases are `pub` for the macro that lists them; nothing outside sees this binary.
#![allow(unreachable_pub)]
// What one database does not need, another does.
#![allow(dead_code, unused_macros)]

mod fixture;
mod remote;
mod sqlite;
mod world;

mod deploying;

/// Runs every case of the suite on one database.
macro_rules! suite {
    ($backend:ident, $fixture:ty) => {
        suite!(@cases $backend, $fixture;
            deploying::deploying_twice_does_nothing_the_second_time,
        );
    };
    (@cases $backend:ident, $fixture:ty; $($topic:ident::$case:ident,)*) => {
        mod $backend {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    crate::$topic::$case::<$fixture>().await;
                }
            )*
        }
    };
}
