//! What supervisor and drivers say to each other: one JSON object a line, over TCP.
//!
//! The steps are the gates. A driver prepares its remotes for a step and says that it is ready;
//! when all are, the supervisor lets all of them go at once, and waits until all are done.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::report::TimedOperation;

/// Both must speak the same.
pub(crate) const VERSION: u32 = 1;

/// A report of a driver with a hundred thousand remotes stays far below.
const MAX_LINE_BYTES: u64 = 256 << 20;

/// What the supervisor says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(crate) enum ToDriver {
    /// The first word.
    Setup(Setup),
    /// What is next: the driver prepares for it.
    Prepare(GateStep),
    /// The gate opens.
    Go,
    /// The bench is over.
    Bye,
}

/// What a driver says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(crate) enum ToSupervisor {
    /// The first word.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// What to call it in messages.
        name: String,
        /// Files that it may open.
        open_files: Option<u64>,
    },
    /// It is still there; said every second.
    Alive,
    /// It waits at the gate.
    Ready,
    /// The step is done.
    Done(StepReport),
    /// The step failed, and the driver ends.
    Failed {
        /// What happened, and to which remote.
        message: String,
        /// What to do next, where the user can put it right.
        hint: Option<String>,
    },
}

/// What a driver has to know from the start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// Its number. It has the remotes whose numbers leave this remainder, divided by the number
    /// of drivers.
    pub(crate) driver: u32,
    pub(crate) drivers: u32,
    /// The servers' ports, on the supervisor's machine: drivers take one after the other.
    pub(crate) server_ports: Vec<u16>,
    pub(crate) publications: Vec<String>,
    pub(crate) password: String,
    /// The user of all remotes; each has its own, if it does not say.
    pub(crate) user: Option<String>,
    /// Parameters of all remotes.
    pub(crate) parameters: Vec<(String, String)>,
    /// Whether remotes keep their files open between syncs.
    pub(crate) keep_open: bool,
}

/// One step: groups of remotes that do something at the same time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GateStep {
    pub(crate) groups: Vec<Group>,
    /// Remotes of a driver that are at it at once, in each group; all, if it does not say.
    pub(crate) at_once: Option<u32>,
}

/// Remotes with the same task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Group {
    /// The number of the first remote.
    pub(crate) first: u32,
    pub(crate) count: u32,
    pub(crate) task: Task,
    /// The speed of their lines each way, in bytes a second; as fast as can be, if it does not
    /// say.
    pub(crate) line: Option<u64>,
    /// How long they wait after the gate has opened.
    pub(crate) delay_ms: u64,
}

/// What a remote does.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum Task {
    /// Subscribes, and syncs for the first time.
    Begin {
        /// Whether that is what is measured: all at once then.
        timed: bool,
    },
    /// Goes over to another way to the server, with a sync that moves nothing.
    Aim(Aim),
    /// The application of the remote changes rows.
    Edit {
        operation: TimedOperation,
        rows: u32,
    },
    /// The application of the remote, one of so many, does what was pending in another file.
    Replay {
        tables: Vec<PendingTable>,
        remotes: u32,
    },
    /// One sync.
    Sync(Sync),
    /// Updates its rows, syncs, and again, until the time is over.
    Churn { rows: u32, seconds: f64 },
}

/// Another way to the server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Aim {
    /// What stands before the address.
    pub(crate) scheme: String,
    /// The host, where it is not the supervisor's.
    pub(crate) host: Option<String>,
    pub(crate) port: u16,
    /// The certificate to trust, where there is one.
    pub(crate) certificate: Option<String>,
    /// Whether what TLS goes on from belongs to all remotes of a driver: else each is a program of
    /// its own in this, and shakes hands in full.
    pub(crate) shares: bool,
    /// How what goes there is packed.
    pub(crate) compression: String,
}

/// One sync, and what it has to come to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Sync {
    pub(crate) upload_only: bool,
    /// Whether it has to go back to the server itself, after slow lines.
    pub(crate) home: bool,
    pub(crate) retry: Retry,
    /// How it is packed, if not as by default.
    pub(crate) compression: Option<String>,
    /// Whether TLS has nothing to go on from.
    pub(crate) afresh: bool,
    /// What it moves; anything else fails the step. Nobody looks, if it does not say.
    pub(crate) expected: Option<MovedRows>,
}

/// When a remote that was sent away comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Retry {
    /// When the server has said.
    #[default]
    Advised,
    /// After so many milliseconds, whatever the server said.
    FixedMs(u64),
}

/// Rows that syncs have moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MovedRows {
    pub(crate) inserts: u64,
    pub(crate) updates: u64,
    pub(crate) deletes: u64,
    pub(crate) upserts: u64,
    pub(crate) removals: u64,
}

/// What is pending in a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PendingTable {
    pub(crate) name: String,
    pub(crate) columns: Vec<String>,
    /// Which of the columns are the key.
    pub(crate) key: Vec<usize>,
    /// Columns whose values are those of a column of another table.
    pub(crate) references: Vec<ColumnReference>,
    pub(crate) inserts: Vec<Vec<Cell>>,
    pub(crate) updates: Vec<Vec<Cell>>,
    /// Keys.
    pub(crate) deletes: Vec<Vec<Cell>>,
}

/// A column that refers to a column of another table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ColumnReference {
    pub(crate) column: usize,
    pub(crate) table: String,
    pub(crate) to: String,
}

/// A value of SQLite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Cell {
    Null,
    Integer(i64),
    Real(f64),
    Text(String),
    Blob(Vec<u8>),
}

/// What a step came to in one driver.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct StepReport {
    /// One for each group of the step.
    pub(crate) groups: Vec<GroupReport>,
    /// Processor time of the driver from the gate on.
    pub(crate) cpu_seconds: f64,
}

/// What a group of remotes did in one driver.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct GroupReport {
    /// When each sync began, by the monotonic clock of the driver's machine.
    pub(crate) starts_ns: Vec<u64>,
    /// When it ended.
    pub(crate) ends_ns: Vec<u64>,
    pub(crate) moved: MovedRows,
    /// Rows that lost against the centre.
    pub(crate) conflicts: u64,
    /// Rows that the centre did not take.
    pub(crate) refused: u64,
    pub(crate) retries: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    /// Seconds by phase, summed over all syncs.
    pub(crate) phases: crate::report::Phases,
}

/// The side that talks, for several threads.
#[derive(Clone)]
pub(crate) struct Mouth(Arc<Mutex<TcpStream>>);

impl Mouth {
    pub(crate) fn say(&self, word: &impl Serialize) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(word)?;
        line.push(b'\n');
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stream.write_all(&line)?;
        Ok(())
    }

    /// Ends the conversation, for the other side and for whoever listens here.
    pub(crate) fn hang_up(&self) {
        let stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // It may be gone already.
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

/// The side that listens.
pub(crate) struct Ear(BufReader<TcpStream>);

impl Ear {
    /// The next word; none when the other side has hung up.
    pub(crate) fn hear<T: DeserializeOwned>(&mut self) -> anyhow::Result<Option<T>> {
        let mut line = Vec::new();
        let mut limited = std::io::Read::take(&mut self.0, MAX_LINE_BYTES);
        if limited.read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        anyhow::ensure!(line.ends_with(b"\n"), "a word that was broken off");
        Ok(Some(serde_json::from_slice(&line)?))
    }

    /// From now on the other side may be silent.
    pub(crate) fn wait_for_ever(&mut self) -> std::io::Result<()> {
        self.0.get_ref().set_read_timeout(None)
    }
}

/// Both sides of one end of a conversation.
pub(crate) fn talk(stream: TcpStream) -> std::io::Result<(Mouth, Ear)> {
    stream.set_nodelay(true)?;
    let ear = Ear(BufReader::new(stream.try_clone()?));
    Ok((Mouth(Arc::new(Mutex::new(stream))), ear))
}

impl MovedRows {
    pub(crate) fn add(&mut self, more: MovedRows) {
        self.inserts += more.inserts;
        self.updates += more.updates;
        self.deletes += more.deletes;
        self.upserts += more.upserts;
        self.removals += more.removals;
    }

    /// Of one operation.
    pub(crate) fn by(operation: TimedOperation, rows: u64) -> MovedRows {
        let mut moved = MovedRows::default();
        match operation {
            TimedOperation::Download => moved.upserts = rows,
            TimedOperation::Update => moved.updates = rows,
            TimedOperation::Delete => moved.deletes = rows,
            TimedOperation::Insert => moved.inserts = rows,
            TimedOperation::Empty | TimedOperation::Upload => {}
        }
        moved
    }

    /// The rows that count for an operation: of an upload those that went up, whatever of others
    /// came down with the same sync.
    pub(crate) fn rows(self, operation: TimedOperation) -> u64 {
        let up = self.inserts + self.updates + self.deletes;
        match operation {
            TimedOperation::Upload => up,
            _ => up + self.upserts + self.removals,
        }
    }
}

impl GroupReport {
    pub(crate) fn add(&mut self, more: GroupReport) {
        self.starts_ns.extend(more.starts_ns);
        self.ends_ns.extend(more.ends_ns);
        self.moved.add(more.moved);
        self.conflicts += more.conflicts;
        self.refused += more.refused;
        self.retries += more.retries;
        self.bytes_sent += more.bytes_sent;
        self.bytes_received += more.bytes_received;
        self.phases.add(more.phases);
    }

    /// From the first start to the last end.
    pub(crate) fn span_ns(&self) -> u64 {
        let first = self.starts_ns.iter().min().copied().unwrap_or(0);
        let last = self.ends_ns.iter().max().copied().unwrap_or(first);
        last.saturating_sub(first)
    }
}
