//! What the scripts of a sync have set, and what is counted for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidewater_protocol::Value;

use crate::scope::Checkpoint;

/// What scripts of a sync have set, and what is known for them: by publication. All that is done for
/// the sync has the same.
#[derive(Clone, Debug, Default)]
pub struct ScriptNotes(Arc<Mutex<HashMap<String, Notes>>>);

#[derive(Debug, Default)]
struct Notes {
    /// `{s.name}`.
    facts: HashMap<&'static str, Value>,
    /// `{u.name}`.
    variables: HashMap<String, Value>,
    /// `{s.name}` that count: by table and name.
    counts: HashMap<(String, &'static str), i64>,
    /// Those of them from before the upload.
    counts_before_upload: HashMap<(String, &'static str), i64>,
    /// How long each part of the sync took, in milliseconds, in order.
    times: Vec<(&'static str, i64)>,
    /// How often scripts ran, and how long that took: by their table, empty for the connection, and
    /// event.
    runs: HashMap<(String, &'static str), RunTimes>,
    /// What went wrong.
    reports: Vec<ScriptReport>,
    /// The scripts of the beginning have run, for a remote that presented this.
    begun: Option<Option<Checkpoint>>,
}

/// How often something ran, and how many milliseconds that took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunTimes {
    /// How often.
    pub calls: i64,
    /// The shortest run.
    pub least: i64,
    /// The longest.
    pub most: i64,
    /// All of them.
    pub total: i64,
}

impl RunTimes {
    /// One run.
    pub fn from_single(millis: i64) -> RunTimes {
        RunTimes {
            calls: 1,
            least: millis,
            most: millis,
            total: millis,
        }
    }

    /// So many runs that took so long together.
    pub fn of_many(runs: usize, millis: i64) -> RunTimes {
        let calls = i64::try_from(runs).unwrap_or(i64::MAX).max(1);
        RunTimes {
            calls,
            least: millis / calls,
            most: millis / calls,
            total: millis,
        }
    }

    /// Both together.
    fn and(self, other: RunTimes) -> RunTimes {
        RunTimes {
            calls: self.calls + other.calls,
            least: self.least.min(other.least),
            most: self.most.max(other.most),
            total: self.total.saturating_add(other.total),
        }
    }
}

/// Something that went wrong, for the operator's scripts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptReport {
    /// The table; empty if it was none.
    pub table: String,
    /// A code's name.
    pub code: String,
    /// The database's own code; empty if it has refused nothing.
    pub database_code: String,
    /// What the database says.
    pub message: String,
    /// What is done about it: 1000 if it is passed over, 3000 if it ends the sync.
    pub action: i64,
}

const DEADLOCKS: &str = "deadlocks";

/// So many are reported of one sync.
const REPORTS: usize = 100;

impl ScriptNotes {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Notes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, publication: &str, with: impl FnOnce(&mut Notes) -> T) -> T {
        let mut all = self.lock();
        match all.get_mut(publication) {
            Some(notes) => with(notes),
            None => with(all.entry(publication.to_owned()).or_default()),
        }
    }

    /// The value of `{s.name}`, where one was set.
    pub fn fact(&self, publication: &str, name: &str) -> Option<Value> {
        self.with(publication, |it| it.facts.get(name).cloned())
    }

    /// Sets `{s.name}`.
    pub fn set_fact(&self, publication: &str, name: &'static str, value: Value) {
        self.with(publication, |it| it.facts.insert(name, value));
    }

    /// The value of `{u.name}`, where a script has set one.
    pub fn variable(&self, publication: &str, name: &str) -> Option<Value> {
        self.with(publication, |it| it.variables.get(name).cloned())
    }

    /// Sets `{u.name}`.
    pub fn set_variable(&self, publication: &str, name: &str, value: Value) {
        self.with(publication, |it| {
            it.variables.insert(name.to_owned(), value)
        });
    }

    /// Every `{u.name}` that scripts have set.
    pub(crate) fn variables(&self, publication: &str) -> Vec<(String, Value)> {
        self.with(publication, |it| {
            let variables = it.variables.iter();
            let mut variables: Vec<_> = variables
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect();
            variables.sort_by(|one, other| one.0.cmp(&other.0));
            variables
        })
    }

    /// Adds to a figure of a table.
    pub fn add_count(&self, publication: &str, table: &str, name: &'static str, count: i64) {
        let key = (table.to_owned(), name);
        self.with(publication, |it| {
            let counted = it.counts.entry(key).or_default();
            *counted = counted.saturating_add(count);
        });
    }

    /// Notes that a script of a table ran, or of the connection if that is empty, how often, and how
    /// long that took.
    pub fn ran(&self, publication: &str, table: &str, event: &'static str, ran: RunTimes) {
        let key = (table.to_owned(), event);
        self.with(publication, |it| {
            let times = it.runs.entry(key);
            times
                .and_modify(|it| *it = it.and(ran))
                .or_insert_with(|| ran);
        });
    }

    /// How often the scripts at an event of a table ran; of the connection and all tables together
    /// if that is empty.
    pub fn runs(&self, publication: &str, table: &str, event: &'static str) -> Option<RunTimes> {
        self.with(publication, |it| {
            let all = it
                .runs
                .iter()
                .filter(|((of, at), _)| *at == event && (table.is_empty() || of == table));
            all.map(|it| *it.1).reduce(RunTimes::and)
        })
    }

    /// Sets what a figure of a table is.
    pub fn set_count(&self, publication: &str, table: &str, name: &'static str, count: i64) {
        let key = (table.to_owned(), name);
        self.with(publication, |it| it.counts.insert(key, count));
    }

    /// A figure of a table; of all tables together if that is empty.
    pub fn count(&self, publication: &str, table: &str, name: &str) -> i64 {
        self.with(publication, |it| {
            let counts = it
                .counts
                .iter()
                .filter(|((of, named), _)| *named == name && (table.is_empty() || of == table));
            counts.map(|(_, count)| count).sum()
        })
    }

    /// Whether both are of the same sync.
    pub fn is_same_sync(&self, other: &ScriptNotes) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Notes that the scripts of the beginning have run.
    pub fn note_beginning(&self, publication: &str, checkpoint: Option<Checkpoint>) {
        self.with(publication, |it| it.begun = Some(checkpoint));
    }

    /// The publications of which the scripts of the beginning have run, by name, with what the remote
    /// presented of each.
    pub fn beginnings(&self) -> Vec<(String, Option<Checkpoint>)> {
        let all = self.lock();
        let begun = all
            .iter()
            .filter_map(|(name, it)| Some((name.clone(), it.begun.clone()?)));
        let mut begun: Vec<_> = begun.collect();
        begun.sort_by(|(one, _), (other, _)| one.cmp(other));
        begun
    }

    /// Keeps something to be reported.
    pub fn report(&self, publication: &str, report: ScriptReport) {
        self.with(publication, |it| {
            if it.reports.len() < REPORTS {
                it.reports.push(report);
            }
        });
    }

    /// Notes that an upload is about to be applied: whatever is counted until then stays, if it has to be
    /// applied again.
    pub fn begin_upload(&self, publication: &str) {
        self.with(publication, |it| {
            it.counts_before_upload = it.counts.clone();
            it.counts_before_upload
                .retain(|(_, name), _| *name != DEADLOCKS);
        });
    }

    /// Notes that a connection to the database had broken, and what runs is run again on another one.
    pub fn count_retry(&self, publication: &str) {
        self.add_count(publication, "", "connection_retries", 1);
    }

    /// Notes how often a transaction was undone that another one was in the way of.
    pub fn count_deadlock(&self, publication: &str) {
        self.add_count(publication, "", DEADLOCKS, 1);
    }

    /// Forgets what is to be reported and was counted of an upload, which is applied again. How often
    /// that was so stays.
    pub fn forget_upload(&self, publication: &str) {
        self.with(publication, |it| {
            it.reports.clear();
            it.counts.retain(|(_, name), _| *name == DEADLOCKS);
            let before = it.counts_before_upload.clone();
            it.counts.extend(before);
        });
    }

    /// Whether something is to be reported.
    pub fn has_reports(&self, publication: &str) -> bool {
        self.with(publication, |it| !it.reports.is_empty())
    }

    /// Whether something that has ended the sync is.
    pub fn has_ending_report(&self, publication: &str) -> bool {
        let ends = |it: &ScriptReport| it.action == ABORT;
        self.with(publication, |it| it.reports.iter().any(ends))
    }

    /// What is to be reported; it is forgotten.
    pub fn take_reports(&self, publication: &str) -> Vec<ScriptReport> {
        self.with(publication, |it| std::mem::take(&mut it.reports))
    }

    /// Notes how long a part of the sync took, in milliseconds.
    pub fn took(&self, publication: &str, part: &'static str, millis: i64) {
        self.with(publication, |it| it.times.push((part, millis)));
    }

    /// What was noted of that, in order.
    pub fn times(&self, publication: &str) -> Vec<(&'static str, i64)> {
        self.with(publication, |it| it.times.clone())
    }
}

/// What is done about a row that the database refuses: the row is refused.
pub const SKIP: i64 = 1000;

/// Or the sync ends, with nothing applied.
pub const ABORT: i64 = 3000;
