//! Histories: what remotes, the centre and bad luck do, in which order.
//!
//! Steps name tables and remotes; the rows that they touch are chosen when they run, from
//! those that are there, by the step's own seed. So any step can be taken away from a
//! history, and the rest of it still makes sense.

use super::random::Random;
use super::schema::{Schema, TableId};

/// Where something is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the centre.
    Centre,
    /// On a remote.
    Remote(usize),
}

/// What happens.
#[derive(Debug, Clone)]
pub enum Step {
    /// One transaction of an application.
    Write {
        /// Where.
        place: Place,
        /// On which table.
        table: TableId,
        /// How.
        write: Write,
        /// Chooses rows and values.
        seed: u64,
    },
    /// An application of the centre begins a transaction and inserts a row that nobody else
    /// has anything to do with; it stays open. Only where others can write meanwhile.
    Begin {
        /// The table.
        table: TableId,
        /// Chooses the row.
        seed: u64,
    },
    /// That transaction is committed.
    Commit,
    /// A remote syncs.
    Sync(usize),
    /// A remote syncs, and its connection is cut at a byte.
    CutSync {
        /// The remote.
        remote: usize,
        /// Whether what it sends is cut, or what it receives.
        up: bool,
        /// How many bytes get through.
        byte: usize,
    },
    /// A user is given a partition, or loses one.
    Assign {
        /// The table.
        table: TableId,
        /// The user's number.
        user: usize,
        /// The partition.
        choice: usize,
        /// Whether it is given.
        given: bool,
    },
    /// The server is killed, and another one starts.
    RestartServer,
    /// The same publication is deployed once more.
    Redeploy,
    /// The remote's file is closed and opened.
    Reopen(usize),
    /// A copy of the remote's file is kept.
    Backup(usize),
    /// The copy takes the file's place.
    Restore(usize),
    /// The copy becomes one more remote.
    Clone(usize),
    /// The user gives refused changes up.
    DiscardRefused(usize),
    /// The user tries them once more.
    RetryRefused(usize),
}

/// How an application writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of statements say what they do")]
pub enum Write {
    Insert,
    Update,
    Delete,
    /// Of many rows in one statement.
    UpdateMany,
    DeleteMany,
    /// Changes the key.
    Rekey,
    /// Changes the partition.
    Move,
    /// `INSERT ... ON CONFLICT (key) DO UPDATE`.
    Upsert,
    /// `INSERT OR REPLACE` on SQLite; elsewhere an upsert.
    Replace,
    /// `UPDATE OR REPLACE` of any column on SQLite; elsewhere an update.
    UpdateOrReplace,
    /// A parent with its child.
    Family,
    /// The same key is deleted and inserted.
    Reinsert,
    /// Something, then something else that is rolled back to a savepoint.
    Savepoint,
    /// Written and rolled back.
    RolledBack,
    /// A value that the column's type does not have.
    Nonsense,
    /// A value as the centre would not spell it.
    Respell,
}

const WRITES: &[(Write, u64)] = &[
    (Write::Insert, 10),
    (Write::Update, 8),
    (Write::Delete, 4),
    (Write::UpdateMany, 2),
    (Write::DeleteMany, 1),
    (Write::Rekey, 2),
    (Write::Move, 3),
    (Write::Upsert, 2),
    (Write::Replace, 2),
    (Write::UpdateOrReplace, 2),
    (Write::Family, 3),
    (Write::Reinsert, 2),
    (Write::Savepoint, 1),
    (Write::RolledBack, 1),
    (Write::Nonsense, 1),
    (Write::Respell, 1),
];

/// How many remotes there are at first.
pub const REMOTES: usize = 3;

/// A random history over a schema.
pub(super) fn random_steps(schema: &Schema, random: &mut Random) -> Vec<Step> {
    let count = 20 + random.below(40);
    (0..count).map(|_| step(schema, random)).collect()
}

fn step(schema: &Schema, random: &mut Random) -> Step {
    let remote = random.index(REMOTES);
    match random.weighted(&[60, 22, 6, 4, 1, 1, 1, 2, 1, 1, 1, 1, 2, 2]) {
        0 => Step::Write {
            place: if random.once_in(3) {
                Place::Centre
            } else {
                Place::Remote(remote)
            },
            table: random.one_of(&schema.tables).id,
            write: write(random),
            seed: random.next(),
        },
        1 => Step::Sync(remote),
        2 => Step::CutSync {
            remote,
            up: random.once_in(2),
            byte: random.index(1_500),
        },
        3 => Step::Assign {
            table: random.one_of(&schema.tables).id,
            user: random.index(super::USERS.len()),
            choice: random.index(4),
            given: random.once_in(2),
        },
        4 => Step::RestartServer,
        5 => Step::Redeploy,
        6 => Step::Reopen(remote),
        7 => Step::Backup(remote),
        8 => Step::Restore(remote),
        9 => Step::Clone(remote),
        10 => Step::DiscardRefused(remote),
        11 => Step::RetryRefused(remote),
        12 => Step::Begin {
            table: random.one_of(&schema.tables).id,
            seed: random.next(),
        },
        _ => Step::Commit,
    }
}

fn write(random: &mut Random) -> Write {
    let weights: Vec<u64> = WRITES.iter().map(|(_, weight)| *weight).collect();
    WRITES[random.weighted(&weights)].0
}
