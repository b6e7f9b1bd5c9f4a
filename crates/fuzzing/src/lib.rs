//! What must hold for any bytes: the bodies of the fuzz targets.
//!
//! Each body is an ordinary function over bytes that panics when a promise is broken:
//! not only when the code under it panics, but when something that was read does not
//! come back, differs by how the bytes were cut, or is accepted though nobody signed
//! it. Whoever generates the bytes is left to others: `fuzz/` has a target of
//! cargo-fuzz for each body, the smoke run of this crate's tests mutates the committed
//! corpora, and [`seeds`] writes the bytes that everything begins with.

mod bearer;
mod blocks;
mod calls;
mod config;
mod events;
mod frames;
mod handlers;
mod house;
mod input;
mod mend;
mod messages;
mod panics;
mod proxied;
mod ranges;
mod relay;
mod remote_session;
mod rows;
mod scripts;
pub mod seeds;
mod server_session;
mod signed;
mod values;

pub use bearer::bearer;
pub use blocks::blocks;
pub use calls::calls;
pub use config::config;
pub use events::events;
pub use frames::frames;
pub use handlers::handlers;
pub use messages::messages;
pub use proxied::proxied;
pub use ranges::ranges;
pub use relay::relay;
pub use remote_session::remote_session;
pub use rows::rows;
pub use scripts::scripts;
pub use server_session::server_session;
pub use signed::signed;
pub use values::values;

/// A body, by the name of its target and its corpus.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of the cargo-fuzz target, and of the folder of its corpus.
    pub name: &'static str,
    /// The body.
    pub run: fn(&[u8]),
}

/// Every target there is.
pub const TARGETS: &[Target] = &[
    Target {
        name: "frames",
        run: frames,
    },
    Target {
        name: "blocks",
        run: blocks,
    },
    Target {
        name: "messages",
        run: messages,
    },
    Target {
        name: "calls",
        run: calls,
    },
    Target {
        name: "events",
        run: events,
    },
    Target {
        name: "rows",
        run: rows,
    },
    Target {
        name: "values",
        run: values,
    },
    Target {
        name: "ranges",
        run: ranges,
    },
    Target {
        name: "signed",
        run: signed,
    },
    Target {
        name: "bearer",
        run: bearer,
    },
    Target {
        name: "proxied",
        run: proxied,
    },
    Target {
        name: "relay",
        run: relay,
    },
    Target {
        name: "handlers",
        run: handlers,
    },
    Target {
        name: "config",
        run: config,
    },
    Target {
        name: "scripts",
        run: scripts,
    },
    Target {
        name: "server_session",
        run: server_session,
    },
    Target {
        name: "remote_session",
        run: remote_session,
    },
];
