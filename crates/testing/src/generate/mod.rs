//! Generated schemas and histories: whatever people have, and whatever happens to them.
//!
//! Owns the choice: which tables, which values, which writes and accidents in which order,
//! all from one number. Whoever runs a case (a test, a benchmark) owns what has to be true
//! at its end.

pub mod history;
mod leaves;
pub mod random;
pub mod render;
pub mod schema;
mod shrink;
pub mod spelling;
pub mod triggers;
pub mod types;

use history::Step;
use random::Random;
use schema::Schema;
pub use shrink::CaseTree;

/// How the centre writes SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// PostgreSQL.
    Postgres,
    /// SQLite.
    Sqlite,
    /// MariaDB and MySQL.
    Mysql,
}

/// Who has remotes.
pub const USERS: &[&str] = &["ada", "bob"];

/// The role of PostgreSQL as which applications write that may do nothing else.
pub const ROLE: &str = "an_application";

/// A schema and what happens to it.
#[derive(Clone)]
pub struct Case {
    /// The number that it was made from.
    pub seed: u64,
    /// The tables.
    pub schema: Schema,
    /// The history.
    pub steps: Vec<Step>,
}

impl Case {
    /// The case of a number: always the same one.
    pub fn of(seed: u64) -> Case {
        let mut random = Random::seeded(seed);
        let schema = Schema::random(&mut random);
        let steps = history::random_steps(&schema, &mut random);
        Case {
            seed,
            schema,
            steps,
        }
    }
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "seed {}", self.seed)?;
        writeln!(f, "{}", self.schema.create(Dialect::Postgres))?;
        writeln!(f, "{}", self.schema.publication(Dialect::Postgres))?;
        for (number, step) in self.steps.iter().enumerate() {
            writeln!(f, "{number}: {step:?}")?;
        }
        Ok(())
    }
}

/// A name in SQL.
pub fn name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
