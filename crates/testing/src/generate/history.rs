//! Histories: what remotes, the centre and bad luck do, in which order.
//!
//! Steps name tables and remotes; the rows that they touch are chosen when they run, from
//! those that are there, by the step's own seed. So any step can be taken away from a
//! history, and the rest of it still makes sense.

use super::random::Random;
use super::schema::{LEAVES, Schema, TableId};

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
        /// Whether it is prepared for two-phase commit, and its connection is gone.
        prepared: bool,
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
    /// A remote syncs, and the application writes while a frame is on its way.
    EditInFlight {
        /// The remote.
        remote: usize,
        /// Whether the frame is one that it sends, or one that it receives.
        up: bool,
        /// The number of the frame.
        frame: usize,
        /// The table that is written to.
        table: TableId,
        /// How.
        write: Write,
        /// Chooses rows and values.
        seed: u64,
    },
    /// Two processes sync the same file at once.
    TwoSyncs(usize),
    /// The server is killed while a frame of a remote's sync is on its way, and another one
    /// starts.
    KillServer {
        /// The remote.
        remote: usize,
        /// Whether the frame is one that it sends, or one that it receives.
        up: bool,
        /// The number of the frame.
        frame: usize,
    },
    /// The centre itself is killed while a frame of a remote's sync is on its way, and comes
    /// back with what it had committed.
    CrashCentre {
        /// The remote.
        remote: usize,
        /// Whether the frame is one that it sends, or one that it receives.
        up: bool,
        /// The number of the frame.
        frame: usize,
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
    /// A leaf of a partitioned table leaves it, with its rows. (PostgreSQL)
    Detach {
        /// The table.
        table: TableId,
        /// The number of the leaf.
        leaf: usize,
    },
    /// A leaf comes back, with rows that were written meanwhile. (PostgreSQL)
    Attach {
        /// The table.
        table: TableId,
        /// The number of the leaf.
        leaf: usize,
    },
    /// A copy of the whole centre is kept.
    BackUpCentre,
    /// The copy takes the centre's place, as operators are told to do it.
    RestoreCentre,
    /// What the servers' clock says is wrong by so many days from now on.
    Clock(i64),
    /// The change logs are cut off: what they say is older than anybody may rely on.
    Prune,
    /// Another key signs; the older ones are retired or not.
    RotateKey {
        /// Whether what they signed counts for nothing any more.
        retire: bool,
    },
    /// A user is kept out, or let in again.
    Admit {
        /// The user's number.
        user: usize,
        /// Whether he may come in.
        admitted: bool,
    },
    /// A tool of the application makes a synced table anew, and its triggers vanish; the remote
    /// syncs.
    Rebuild {
        /// The remote.
        remote: usize,
        /// The table.
        table: TableId,
    },
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
    /// Savepoints in savepoints, released and rolled back.
    NestedSavepoints,
    /// Written and rolled back.
    RolledBack,
    /// `INSERT OR IGNORE`, `ON CONFLICT DO NOTHING`.
    Ignore,
    /// All rows: `TRUNCATE ... CASCADE` where there is such a thing.
    Truncate,
    /// `COPY ... FROM` on PostgreSQL; elsewhere inserts.
    Copy,
    /// `MERGE` on PostgreSQL; elsewhere an upsert.
    Merge,
    /// Several tables' rows in one statement with `WITH` on PostgreSQL; elsewhere an update.
    With,
    /// Subtransactions of a procedural block on PostgreSQL; elsewhere savepoints.
    Block,
    /// Names a leaf instead of its partitioned table; elsewhere an update.
    Leaf,
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
    (Write::NestedSavepoints, 1),
    (Write::RolledBack, 1),
    (Write::Ignore, 1),
    (Write::Truncate, 1),
    (Write::Copy, 2),
    (Write::Merge, 2),
    (Write::With, 1),
    (Write::Block, 1),
    (Write::Leaf, 2),
    (Write::Nonsense, 1),
    (Write::Respell, 1),
];

/// How many remotes there are at first.
pub const REMOTES: usize = 3;

/// A random history over a schema.
pub(super) fn random_steps(schema: &Schema, random: &mut Random) -> Vec<Step> {
    let count = 20 + random.index(40);
    let mut steps: Vec<Step> = (0..count).map(|_| step(schema, random)).collect();
    if random.once_in(4) {
        let (one, other) = (random.index(count), random.index(count));
        steps.insert(one.max(other), Step::RestoreCentre);
        steps.insert(one.min(other), Step::BackUpCentre);
    }
    // It takes seconds to come back, and a server of the case's own.
    if random.once_in(25) {
        for _ in 0..2 {
            let crash = Step::CrashCentre {
                remote: random.index(REMOTES),
                up: random.once_in(2),
                frame: random.index(10),
            };
            steps.insert(random.index(steps.len()), crash);
        }
    }
    steps
}

fn step(schema: &Schema, random: &mut Random) -> Step {
    let remote = random.index(REMOTES);
    match random.weighted(&[64, 22, 6, 4, 4, 4]) {
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
        2 => broken_sync(remote, schema, random),
        3 => Step::Assign {
            table: random.one_of(&schema.tables).id,
            user: random.index(super::USERS.len()),
            choice: random.index(4),
            given: random.once_in(2),
        },
        4 => in_the_field(remote, schema, random),
        _ => in_the_centre(schema, random),
    }
}

/// A sync with an accident, or with something beside it.
fn broken_sync(remote: usize, schema: &Schema, random: &mut Random) -> Step {
    let up = random.once_in(2);
    let frame = random.index(10);
    match random.weighted(&[6, 4, 1, 1]) {
        0 => Step::CutSync {
            remote,
            up,
            byte: random.index(1_500),
        },
        1 => Step::EditInFlight {
            remote,
            up,
            frame,
            table: random.one_of(&schema.tables).id,
            write: write(random),
            seed: random.next(),
        },
        2 => Step::TwoSyncs(remote),
        _ => Step::KillServer { remote, up, frame },
    }
}

/// What happens to a remote's file, and what its user decides.
fn in_the_field(remote: usize, schema: &Schema, random: &mut Random) -> Step {
    match random.weighted(&[1, 2, 1, 1, 1, 1, 1]) {
        0 => Step::Reopen(remote),
        1 => Step::Backup(remote),
        2 => Step::Restore(remote),
        3 => Step::Clone(remote),
        4 => Step::DiscardRefused(remote),
        5 => Step::RetryRefused(remote),
        _ => Step::Rebuild {
            remote,
            table: random.one_of(&schema.tables).id,
        },
    }
}

/// What happens to the centre and its servers.
fn in_the_centre(schema: &Schema, random: &mut Random) -> Step {
    let table = random.one_of(&schema.tables).id;
    match random.weighted(&[2, 2, 4, 4, 2, 2, 1, 1, 1, 2]) {
        0 => Step::RestartServer,
        1 => Step::Redeploy,
        2 => Step::Begin {
            table,
            seed: random.next(),
            prepared: random.once_in(2),
        },
        3 => Step::Commit,
        4 => Step::Detach {
            table,
            leaf: random.index(LEAVES),
        },
        5 => Step::Attach {
            table,
            leaf: random.index(LEAVES),
        },
        6 => Step::Clock(*random.one_of(&[-10_000, -1, 0, 1, 10_000])),
        7 => Step::Prune,
        8 => Step::RotateKey {
            retire: random.once_in(2),
        },
        _ => Step::Admit {
            user: random.index(super::USERS.len()),
            admitted: random.once_in(2),
        },
    }
}

fn write(random: &mut Random) -> Write {
    let weights: Vec<u64> = WRITES.iter().map(|(_, weight)| *weight).collect();
    WRITES[random.weighted(&weights)].0
}
