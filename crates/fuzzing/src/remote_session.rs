//! The remote's session: whatever a server sends, a sync that fails changes nothing of the
//! user's, and the file stays one that can be synced.

use std::cell::RefCell;
use std::path::Path;

use rusqlite::Connection;
use rusqlite::types::ValueRef;

use tidewater_protocol::frame::PREFACE;
use tidewater_remote::RemoteConnection;
use tidewater_remote::database::RemoteDatabase;
use tidewater_remote::session::{Now, SessionOutcome};

use crate::house::{Begin, House, dial, now, sync_on};
use crate::input::Input;
use crate::mend::{Mender, upload_id};

/// More than any remote of this size says.
const MAX_SAID_BYTES: usize = 4 << 20;

thread_local! {
    static SCENE: RefCell<Option<Scene>> = const { RefCell::new(None) };
}

struct Scene {
    house: House,
    mender: Mender,
    /// What a user sees of each of the house's files before a sync.
    told: Vec<VisibleState>,
}

impl Scene {
    fn set() -> Scene {
        let mut house = House::start();
        let mender = Mender::new(&mut house);
        let told = |file| {
            let path = house.work_on(file);
            VisibleState::of(&RemoteDatabase::open(&path).expect("it is a remote"), &path)
        };
        let told = (0..House::FILES).map(told).collect();
        Scene {
            house,
            mender,
            told,
        }
    }
}

/// The first byte says which remote begins which sync, and how the others come: as they
/// are, or mended. The second says in which pieces.
///
/// # Panics
/// A promise is broken.
pub fn remote_session(data: &[u8]) {
    listen_to(data);
}

/// How the sync ended.
fn listen_to(data: &[u8]) -> SessionOutcome {
    SCENE.with_borrow_mut(|slot| {
        let scene = slot.get_or_insert_with(Scene::set);
        let mut input = Input::new(data);
        let (flags, piece) = (input.byte(), usize::from(input.byte()) * 16 + 1);
        let file = usize::from(flags & 3) % House::FILES;
        let path = scene.house.work_on(file);
        let begin = match flags >> 2 & 7 {
            1 => Begin::UploadOnly,
            2 => Begin::DownloadOnly,
            3 => Begin::Look,
            4 => Begin::Repair,
            _ => Begin::Both,
        };
        let database = RemoteDatabase::open(&path).expect("it is a remote");
        let mut connection = dial();
        sync_on(&mut connection, database, begin);
        let mut said = Vec::new();
        listen(&mut connection, &mut said);
        let bytes = match flags & 32 == 0 {
            true => {
                let upload_id = said.get(PREFACE.len()..).map(upload_id);
                scene
                    .mender
                    .mend_down(input.rest(), &upload_id.unwrap_or_default())
            }
            false => input.rest().to_vec(),
        };
        let mut ended = None;
        for piece in bytes.chunks(piece) {
            connection.handle_bytes(piece, now());
            connection.work(now());
            listen(&mut connection, &mut said);
            if connection.is_syncing() {
                continue;
            }
            let (database, outcome) = connection.end_sync().expect("the sync has ended");
            if connection.can_sync() && matches!(outcome, SessionOutcome::Again(_)) {
                sync_on(&mut connection, database, begin);
            } else {
                ended = Some((database, outcome));
                break;
            }
        }
        if connection.is_syncing() {
            let late = Now {
                ticks_ms: now().ticks_ms + 60_000,
                ..now()
            };
            match flags & 64 == 0 {
                true => connection.handle_end(None),
                false => connection.handle_timeout(late),
            }
            connection.work(now());
        }
        assert!(
            !connection.is_syncing(),
            "a dead connection keeps a sync alive"
        );
        let ended = ended.or_else(|| connection.end_sync());
        let (database, outcome) = ended.expect("the sync has ended");
        drop(database);
        judge(&outcome, &path, &scene.told[file]);
        outcome
    })
}

fn listen(connection: &mut RemoteConnection, said: &mut Vec<u8>) {
    while let Some(bytes) = connection.poll_transmit() {
        said.extend_from_slice(&bytes);
        assert!(said.len() <= MAX_SAID_BYTES, "a remote that does not stop");
    }
}

fn judge(outcome: &SessionOutcome, path: &Path, before: &VisibleState) {
    let database = RemoteDatabase::open(path).expect("it is still a remote");
    match outcome {
        SessionOutcome::Done(_) | SessionOutcome::More(_) => {
            let connection = Connection::open(path).expect("it is a database");
            // The centre's row counts, also if its key is no value of the key's type.
            connection
                .pragma_update(None, "ignore_check_constraints", true)
                .expect("SQLite knows it");
            let sound: String = connection
                .query_row("PRAGMA integrity_check", [], |row| row.get(0))
                .expect("SQLite checks");
            assert_eq!(sound, "ok");
        }
        // Another try, or none: the user's tables are what they were, and as much waits.
        SessionOutcome::Again(_) | SessionOutcome::Failed(_) => {
            assert_eq!(
                VisibleState::of(&database, path),
                *before,
                "I4: after {outcome:?}"
            );
        }
        _ => {}
    }
    if let SessionOutcome::Failed(error) = outcome {
        assert!(!error.to_string().is_empty());
        let _ = (error.code(), error.hint(), error.retry_after_ms());
    }
    sync_on(&mut dial(), database, Begin::Both);
}

/// What a user sees of a remote.
#[derive(Debug, PartialEq)]
struct VisibleState {
    /// Every table of the user's, with its rows.
    tables: Vec<String>,
    pending: u64,
    refused: u64,
}

impl VisibleState {
    fn of(database: &RemoteDatabase, path: &Path) -> VisibleState {
        let status = database.status().expect("it is a remote");
        let tables = status.subscriptions.iter().flat_map(|it| &it.tables);
        VisibleState {
            pending: tables.map(|table| table.pending).sum(),
            refused: status.refused,
            tables: tables_of(path).expect("it is a database"),
        }
    }
}

fn tables_of(path: &Path) -> rusqlite::Result<Vec<String>> {
    let connection = Connection::open(path)?;
    let mut schema = connection.prepare(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'table'
         AND name NOT LIKE 'tidewater\\_%' ESCAPE '\\' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
         ORDER BY name",
    )?;
    let names = schema.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let names: Vec<(String, String)> = names.collect::<rusqlite::Result<_>>()?;
    let mut tables = Vec::new();
    for (name, sql) in names {
        let mut told = sql;
        let quoted = name.replace('"', "\"\"");
        let mut rows = connection.prepare(&format!("SELECT * FROM \"{quoted}\" ORDER BY 1, 2"))?;
        let columns = rows.column_count();
        let mut rows = rows.query([])?;
        while let Some(row) = rows.next()? {
            for column in 0..columns {
                told += &match row.get_ref(column)? {
                    ValueRef::Real(real) => format!(" {:x}", real.to_bits()),
                    other => format!(" {other:?}"),
                };
            }
            told.push('\n');
        }
        tables.push(told);
    }
    Ok(tables)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds;

    #[test]
    fn the_seeds_are_applied_again_and_again() {
        let seeds = seeds::of("remote_session");
        let undisturbed = |name: &str| name.ends_with("-0-0") && !name.starts_with("blank");
        let recorded: Vec<_> = seeds.iter().filter(|(name, _)| undisturbed(name)).collect();
        assert_eq!(recorded.len(), 3);
        for (name, bytes) in recorded.iter().chain(&recorded) {
            let outcome = listen_to(bytes);
            let (SessionOutcome::Done(report) | SessionOutcome::More(report)) = &outcome else {
                panic!("{name}: {outcome:?}");
            };
            let uploaded = (report.uploaded.inserts, report.refused);
            match name.split('-').next() {
                Some("changed") => assert_eq!(uploaded, (3, 1)),
                Some("forgotten") => assert_eq!(uploaded, (3, 0)),
                _ => {}
            }
        }
    }
}
