//! Somebody else who writes the centre while a server's statements run.
//!
//! There is one thread, and a job of a server runs to its end on it. In the real world other
//! processes commit between two steps of a statement: here one does, whenever SQLite looks up
//! from its work. It waits for nobody, and what it writes is its own.

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rusqlite::{Connection, params};

use crate::application;
use crate::random::SeededRandom;

/// SQLite looks up from its work after so many instructions.
const INSTRUCTIONS: i32 = 60;

/// In so many of a thousand times that it does, somebody writes.
const CHANCE: u64 = 4;

/// The keys that it uses begin with this one.
const FIRST_KEY: i64 = 1_000_000;

/// One for all servers of a world.
#[derive(Clone)]
pub(crate) struct Intruder(Arc<Mutex<State>>);

struct State {
    random: SeededRandom,
    /// See [`CHANCE`].
    chance: u64,
    written: i64,
    /// To the file of the server's connection.
    own: Option<(PathBuf, Connection)>,
}

impl Intruder {
    pub(crate) fn new(random: SeededRandom) -> Intruder {
        Intruder(Arc::new(Mutex::new(State {
            written: 0,
            random,
            chance: CHANCE,
            own: None,
        })))
    }

    /// Is there from now on while the connection works.
    pub(crate) fn watch(&self, connection: &Connection) {
        let Some(path) = connection.path().map(PathBuf::from) else {
            return;
        };
        let state = self.0.clone();
        let look_up = AssertUnwindSafe(move || {
            if let Ok(mut state) = state.lock() {
                // Whoever is too late, or meets another who writes, does nothing.
                let _ = state.act(&path);
            }
            false
        });
        connection.progress_handler(INSTRUCTIONS, Some(move || (*look_up)()));
    }

    /// Writes nothing any more.
    pub(crate) fn leave(&self) {
        if let Ok(mut state) = self.0.lock() {
            state.chance = 0;
        }
    }
}

impl State {
    fn act(&mut self, path: &Path) -> rusqlite::Result<()> {
        if self.random.below(1_000) >= self.chance {
            return Ok(());
        }
        if self.own.as_ref().is_none_or(|(open, _)| open != path) {
            self.own = Some((path.to_path_buf(), application::open(path)?));
        }
        let Some((_, connection)) = &self.own else {
            return Ok(());
        };
        self.written += 1;
        // A row of its own, or the one that somebody wrote last.
        let sql = match self.random.percent(50) {
            true => "INSERT INTO product (product_id, name) VALUES (?1, ?2)",
            false => {
                "UPDATE product SET name = ?2 WHERE ?1 AND product_id = (SELECT key FROM audit
                 WHERE \"table\" = 'product' ORDER BY at DESC LIMIT 1)"
            }
        };
        let text = format!("by intruder {}", self.written);
        connection
            .prepare_cached(sql)?
            .execute(params![FIRST_KEY + self.written, text])
            .map(drop)
    }
}
