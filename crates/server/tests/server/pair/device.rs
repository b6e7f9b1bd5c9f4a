//! A remote: a real file, an application that edits it, syncs through the simulation.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use rusqlite::{Connection, OptionalExtension};
use tempfile::TempDir;
use tokio::time::sleep;

use tidewater_protocol::frame::{Frame, PREFACE, take_frame};
use tidewater_protocol::message::Control;
use tidewater_remote::database::{RemoteAccount, RemoteDatabase};
use tidewater_remote::session::{
    ProofKind, SessionOptions, SessionOutcome, SyncDirection, UserProof, VerifyMode,
};
use tidewater_remote::spool::{MemorySpool, NoDownloadStore};
use tidewater_remote::{RemoteConnection, Report, SyncError};

use super::simulation::{PASSWORD, Random, Simulation};
use super::wire::{Passed, Weather, pump};

/// How long a remote bears silence.
pub(super) const SILENCE_MS: u64 = 30_000;

/// How often a server may send a remote away at once.
const ROUNDS: usize = 4;

pub(super) struct Device {
    folder: TempDir,
    name: &'static str,
    application: Option<Connection>,
    database: Option<RemoteDatabase>,
    random: Random,
    /// By upload id: what the server said that became of it.
    results: RefCell<HashMap<Vec<u8>, Vec<u8>>>,
    /// How many results were told again.
    pub(super) retold: usize,
    /// The bytes of the last connection.
    pub(super) passed: Passed,
}

impl Device {
    /// One that has never synced; its name is its user.
    pub(super) fn new(name: &'static str, seed: u64) -> Device {
        let folder = folder();
        let mut database = RemoteDatabase::open(&file(&folder)).unwrap();
        database
            .subscribe("tcp://127.0.0.1:7439", name, &["notes"])
            .unwrap();
        drop(database);
        Device::over(folder, name, seed)
    }

    /// One that goes on from a file.
    pub(super) fn copy_of(template: &Path, name: &'static str, seed: u64) -> Device {
        let folder = folder();
        std::fs::copy(template, file(&folder)).unwrap();
        Device::over(folder, name, seed)
    }

    fn over(folder: TempDir, name: &'static str, seed: u64) -> Device {
        Device {
            database: Some(RemoteDatabase::open(&file(&folder)).unwrap()),
            application: None,
            folder,
            name,
            random: Random::new(seed),
            results: RefCell::default(),
            retold: 0,
            passed: Passed::default(),
        }
    }

    /// Closes the file; what is in it, is all in one file.
    pub(super) fn close(mut self) -> (TempDir, PathBuf) {
        self.application = None;
        self.database = None;
        let path = file(&self.folder);
        (self.folder, path)
    }

    fn application(&mut self) -> &Connection {
        let path = file(&self.folder);
        self.application
            .get_or_insert_with(|| Connection::open(path).unwrap())
    }

    /// The application writes a note, or removes it.
    pub(super) fn write(&mut self, id: i64, note: Option<&str>) {
        let application = self.application();
        let done = match note {
            Some(note) => application.execute(
                "INSERT INTO note VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET text = ?2",
                (id, note),
            ),
            None => application.execute("DELETE FROM note WHERE id = ?1", [id]),
        };
        done.unwrap();
    }

    pub(super) fn note(&mut self, id: i64) -> Option<String> {
        self.application()
            .query_row("SELECT text FROM note WHERE id = ?1", [id], |row| {
                row.get(0)
            })
            .optional()
            .unwrap()
    }

    pub(super) fn notes(&mut self) -> Vec<(i64, String)> {
        let mut rows = self
            .application()
            .prepare("SELECT id, text FROM note ORDER BY id")
            .unwrap();
        let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
        rows.unwrap().map(Result::unwrap).collect()
    }

    fn database(&self) -> &RemoteDatabase {
        self.database.as_ref().unwrap()
    }

    pub(super) fn account(&self) -> RemoteAccount {
        self.database().account().unwrap()
    }

    /// The ids of refused notes.
    pub(super) fn refused(&self) -> Vec<i64> {
        let refused = self.database().refused().unwrap().into_iter();
        let ids = refused.map(|row| row.key.trim_matches(['[', ']']).parse().unwrap());
        ids.collect()
    }

    /// Whether nothing waits to be uploaded or asked for. A row whose change was refused
    /// may be asked for until somebody decides about the change.
    pub(super) fn is_settled(&self) -> bool {
        let status = self.database().status().unwrap();
        let mut tables = status.subscriptions.iter().flat_map(|it| &it.tables);
        tables.all(|table| table.pending == 0 && table.stale <= table.refused)
    }

    /// A sync: as many connections as it takes, the first in this weather.
    pub(super) async fn sync(
        &mut self,
        simulation: &Simulation,
        weather: Weather,
    ) -> Result<Report, SyncError> {
        let mut first_proof = ProofKind::Token;
        let mut weather = Some(weather);
        for _ in 0..ROUNDS {
            let weather = weather.take().unwrap_or_else(Weather::fine);
            match self.connection(simulation, weather, first_proof).await {
                SessionOutcome::Done(report) => return Ok(report),
                SessionOutcome::Failed(error) => return Err(error),
                SessionOutcome::Again(proof) => first_proof = proof,
                SessionOutcome::More(_) => first_proof = ProofKind::Token,
                other => panic!("{other:?}"),
            }
        }
        panic!("{} was sent away again and again", self.name);
    }

    async fn connection(
        &mut self,
        simulation: &Simulation,
        weather: Weather,
        first_proof: ProofKind,
    ) -> SessionOutcome {
        let options = SessionOptions {
            direction: SyncDirection::Both,
            verify: VerifyMode::No,
            user_proof: Some(UserProof::Password(PASSWORD.into())),
            server: None,
            other_centre: false,
            adopt: None,
            first_proof,
            spool: Box::new(MemorySpool::default()),
            keep: Box::new(NoDownloadStore),
        };
        let mut seed = [0; 32];
        self.random.fill(&mut seed);
        let database = self.database.take().unwrap();
        let mut connection =
            RemoteConnection::dial("pair", Duration::from_millis(SILENCE_MS), simulation.now());
        connection.sync(database, options, seed);
        self.passed = match simulation.dial() {
            Some(stream) => pump(simulation, &mut connection, stream, weather).await,
            None => {
                connection.handle_end(None);
                Passed::default()
            }
        };
        let (database, outcome) = connection.end_sync().expect("the sync has ended");
        self.database = Some(database);
        self.check_results();
        simulation.note(format!(
            "{} sent {} ({:08x}), received {} ({:08x}): {}",
            self.name,
            self.passed.up.len(),
            crc32fast::hash(&self.passed.up),
            self.passed.down.len(),
            crc32fast::hash(&self.passed.down),
            summary(&outcome),
        ));
        outcome
    }

    /// What the server says of an upload, it says the same every time.
    fn check_results(&mut self) {
        let mut results = self.results.borrow_mut();
        for (upload_id, result) in results_in(&self.passed.down) {
            if let Some(before) = results.insert(upload_id, result.clone()) {
                assert_eq!(before, result, "an upload's result is told differently");
                self.retold += 1;
            }
        }
    }

    /// Syncs until nothing is left to do; sums up what the syncs told.
    pub(super) async fn settle(&mut self, simulation: &Simulation) -> Report {
        let mut sum = Report::default();
        for _ in 0..12 {
            match self.sync(simulation, Weather::fine()).await {
                Ok(report) => {
                    sum.conflicts += report.conflicts;
                    sum.refused += report.refused;
                    let nothing_came = report.uploaded == Default::default()
                        && report.downloaded == Default::default();
                    if nothing_came && self.is_settled() {
                        return sum;
                    }
                }
                Err(error) => {
                    let after_ms = error.retry_after_ms();
                    let after_ms = after_ms.unwrap_or_else(|| panic!("{}: {error}", self.name));
                    sleep(Duration::from_millis(after_ms)).await;
                }
            }
        }
        panic!("{} does not come to rest", self.name);
    }
}

/// In memory where the system offers that: nothing here depends on a disk, and a
/// thousand syncs would spend their time waiting for one.
fn folder() -> TempDir {
    TempDir::new_in("/dev/shm")
        .or_else(|_| TempDir::new())
        .unwrap()
}

fn file(folder: &TempDir) -> PathBuf {
    folder.path().join("remote.db")
}

fn summary(outcome: &SessionOutcome) -> String {
    match outcome {
        SessionOutcome::Done(report) => format!("{report:?}"),
        SessionOutcome::Again(proof) => format!("again with {proof:?}"),
        SessionOutcome::More(report) => format!("more after {report:?}"),
        SessionOutcome::Failed(error) => format!("{} {error}", error.code().name()),
        other => format!("{other:?}"),
    }
}

/// Where the messages of a direction begin and end.
pub(super) fn boundaries(bytes: &[u8], preface: bool) -> Vec<usize> {
    let mut rest = BytesMut::from(bytes);
    let mut ends = vec![0];
    if preface {
        rest.advance(PREFACE.len());
        ends.push(PREFACE.len());
    }
    while let Some(_frame) = take_frame(&mut rest).unwrap() {
        ends.push(bytes.len() - rest.len());
    }
    ends
}

/// The whole results among a server's bytes, by upload id.
fn results_in(bytes: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut results = Vec::new();
    let mut began = None;
    for window in boundaries(bytes, false).windows(2) {
        let mut frame = BytesMut::from(&bytes[window[0]..window[1]]);
        match take_frame(&mut frame).unwrap() {
            Some(Frame::Control {
                control: Some(Control::ResultBegin(begin)),
                ..
            }) => began = Some((begin.upload_id, window[0])),
            Some(Frame::Control {
                control: Some(Control::ResultEnd(_)),
                ..
            }) => {
                let (upload_id, at) = began.take().unwrap();
                results.push((upload_id, bytes[at..window[1]].to_vec()));
            }
            _ => {}
        }
    }
    results
}
