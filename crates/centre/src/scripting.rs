//! Scripts as a sync runs them: what is asked for, and what they have set.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidewater_protocol::Value;

use crate::context::SyncContext;
use crate::engine::scripts::Transaction;
use crate::scope::Checkpoint;

/// Scripts that run in a transaction of their own, those of a publication for a sync.
#[derive(Clone, Debug)]
pub struct ScriptRun {
    /// For whom.
    pub context: SyncContext,
    /// The publication.
    pub publication: String,
    /// What the remote presents of it.
    pub checkpoint: Option<Checkpoint>,
    /// The transaction, which says which events happen.
    pub transaction: Transaction,
}

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
    /// How long each part of the sync took, in milliseconds, in order.
    times: Vec<(&'static str, i64)>,
    /// What went wrong.
    reports: Vec<Report>,
    /// The scripts of the beginning have run, for a remote that presented this.
    begun: Option<Option<Checkpoint>>,
}

/// Something that went wrong, for the operator's scripts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The table; empty if it was none.
    pub table: String,
    /// A code's name.
    pub code: String,
    /// What the database says.
    pub message: String,
}

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
    pub fn report(&self, publication: &str, report: Report) {
        self.with(publication, |it| {
            if it.reports.len() < REPORTS {
                it.reports.push(report);
            }
        });
    }

    /// Whether something is to be reported.
    pub fn has_reports(&self, publication: &str) -> bool {
        self.with(publication, |it| !it.reports.is_empty())
    }

    /// What is to be reported; it is forgotten.
    pub fn take_reports(&self, publication: &str) -> Vec<Report> {
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
