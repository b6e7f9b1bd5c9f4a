//! Tidewater from end to end: real servers, remotes that sync with them over loopback, and a
//! network that breaks where a test says, on every adapter.
//!
//! The tests are named after the invariants (`i1_...`) and interleavings that they prove.
//! What one crate can prove alone is proven there; processes that are killed are the
//! affair of the program's own tests.

/// Makes a test of each function, for each kind of consolidated database.
macro_rules! on_both_adapters {
    ($($test:ident),+ $(,)?) => {
        mod sqlite {
            $(#[test] fn $test() { super::$test::<crate::backend::Sqlite>(); })+
        }
        mod postgres {
            $(#[test] fn $test() { super::$test::<crate::backend::Postgres>(); })+
        }
    };
}

use tidewater_testing::generate::random;

mod backend;
mod compare;
mod device;
mod handler;
mod ledger;
mod provider;
mod samples;
mod scenario;
mod web;
mod world;

mod accidents;
mod answers;
mod asking;
mod attack;
mod carriers;
mod changes_up;
mod clocks;
mod compressed;
mod conflicts;
mod convergence;
mod cuts;
mod directory;
mod disks;
mod downloads;
mod events;
mod evolution;
mod examples;
mod families;
mod far;
mod generated;
mod handlers;
mod hierarchy;
mod hostile;
mod images;
mod larger;
mod live;
mod meeting;
mod names;
mod offline;
mod orphans;
mod outbox;
mod partitions;
mod pending;
mod real_input;
mod reconfigured;
mod refusals;
mod republishing;
mod restored;
mod resumed;
mod returned;
mod scripts;
mod servers;
mod signing_in;
mod soft_deletes;
mod sure;
mod transactions;
mod uncompared;
mod verifying;
mod waking;
