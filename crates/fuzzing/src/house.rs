//! Whom the fuzzed sessions talk to: a server over an SQLite centre, and remotes of it, on
//! one thread, with a network in memory and time that passes only when everybody waits.
//!
//! Everything is put back to the same state before each input, and time and chance begin
//! anew, so that an input does the same whenever it comes.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use argon2::password_hash::{PasswordHasher, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use bytes::BytesMut;
use rusqlite::Connection;
use rusqlite::backup::Backup;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use tidewater_centre::Centre;
use tidewater_centre::records::{ProvenIdentity, UserRecord};
use tidewater_centre_sqlite::{Jobs, SqliteEnvironment, connect_in};
use tidewater_protocol::PublicationSchema;
use tidewater_protocol::frame::{CONNECTION_CHANNEL, Frame, PREFACE, put_control, take_frame};
use tidewater_protocol::message::{Control, Ping};
use tidewater_remote::RemoteConnection;
use tidewater_remote::database::RemoteDatabase;
use tidewater_remote::session::{
    Now, ProofKind, SessionOptions, SessionOutcome, SyncDirection, UserProof, VerifyMode,
};
use tidewater_remote::spool::{MemorySpool, NoDownloadStore};
use tidewater_server::environment::{
    BlockingRunner, BoxFuture, Clock, Environment, IncomingStream, Randomness, ServerNetwork,
    StreamListener,
};
use tidewater_server::{Config, RunningServer, Server};

/// When every input begins, in milliseconds since 1970.
const BEGIN_MS: i64 = 1_700_000_000_000;

/// What the network holds of each direction.
const WIRE_BYTES: usize = 1 << 16;

/// Ada's password, which inputs know. Bob's they do not.
pub(crate) const PASSWORD: &str = "correct horse";

/// The rows that Ada has nothing to do with: those of other regions than 1 and 2.
const FOREIGN: &str = "
    SELECT group_concat(row, ' ') FROM (
        SELECT 'customer ' || quote(customer_id) || quote(region) || quote(name) AS row
            FROM customer WHERE region NOT IN (1, 2)
        UNION ALL
        SELECT 'sample ' || quote(sample_id) || quote(price) || quote(code)
            FROM sample WHERE region NOT IN (1, 2)
        ORDER BY 1)";

const SCHEMA: &str = "
    CREATE TABLE assignment (
        login TEXT NOT NULL, region INTEGER NOT NULL, PRIMARY KEY (login, region));
    CREATE TABLE customer (
        customer_id INTEGER NOT NULL PRIMARY KEY,
        region INTEGER NOT NULL,
        name TEXT NOT NULL CHECK (lower(name) <> 'refused'));
    CREATE TABLE sample (
        sample_id INTEGER NOT NULL,
        code TEXT NOT NULL,
        region INTEGER NOT NULL,
        customer_id INTEGER REFERENCES customer (customer_id),
        price DECIMAL(12, 2), ratio REAL, done BOOLEAN, photo BLOB, day DATE,
        opens TIME, seen TIMESTAMP, sent TIMESTAMPTZ, tag UUID, extra JSON,
        PRIMARY KEY (code, sample_id));
    CREATE TABLE product (
        product_id INTEGER NOT NULL PRIMARY KEY, code TEXT UNIQUE, name TEXT NOT NULL);
    INSERT INTO assignment VALUES ('ada', 1), ('ada', 2), ('bob', 3);
    INSERT INTO customer VALUES (1, 1, 'one'), (2, 2, 'two'), (3, 3, 'three'), (4, 1, 'four');
    INSERT INTO sample (sample_id, code, region, customer_id, price, ratio, done, tag) VALUES
        (1, 'a', 1, 1, '1.50', 0.5, 1, '0f8fad5b-d9cb-469f-a165-70867728950e'),
        (2, 'b', 2, 2, NULL, NULL, 0, NULL), (3, 'c', 3, 3, '9.00', 2.0, 0, NULL);
    INSERT INTO product VALUES (1, 'P', 'pen'), (2, 'I', 'ink'), (3, NULL, 'cap');";

const CONFIG: &str = r#"
    [server]
    listen = ["tcp://127.0.0.1:7439"]
    consolidated = "sqlite:fuzzed"
    [server.limits]
    session_workers = 1
    upload_workers = 1
    download_workers = 1
    memory = "8MiB"
    [[publication]]
    name = "main"
    [[publication.table]]
    name = "customer"
    partition = { columns = ["region"], values = "SELECT region FROM assignment WHERE login = {s.username}" }
    [[publication.table]]
    name = "sample"
    partition = { columns = ["region"], values = "SELECT region FROM assignment WHERE login = {s.username}" }
    [[publication.table]]
    name = "product"
    partition = "everyone"
"#;

/// What Ada changes before the sync that seeds are made of.
const EDITS: &str = "
    INSERT INTO customer VALUES (10, 1, 'inserted'), (11, 2, 'refused');
    UPDATE customer SET name = 'updated' WHERE customer_id = 1;
    DELETE FROM customer WHERE customer_id = 4;
    INSERT INTO sample (sample_id, code, region, price, day, opens, seen, sent, extra) VALUES
        (7, 'Zoë', 1, '12.30', '2026-02-28', '07:05:00.000000', '2026-02-28T07:05:06.500000',
         '2026-02-28T07:05:06.500000Z', '{\"a\": 1}');
    UPDATE sample SET photo = x'00ff' WHERE code = 'a';
    INSERT INTO product VALUES (10, 'X', 'new');";

/// A server, its centre, and the files of Ada's remote.
pub(crate) struct House {
    runtime: Runtime,
    _running: RunningServer,
    address: Address,
    time: Arc<Time>,
    chance: Arc<Chance>,
    /// The centre, as whoever judges sees it.
    centre: Connection,
    /// The centre as it is before every input.
    before: Connection,
    /// What SQLite counts when another connection commits.
    version: i64,
    foreign: String,
    pub(crate) schema: PublicationSchema,
    files: Files,
    _folder: TempDir,
}

/// The files of remotes that a session may begin with.
struct Files {
    /// Has never synced.
    blank: Vec<u8>,
    /// Has synced, and has changes that are pending.
    changed: Vec<u8>,
    /// Like it; the next sync compares.
    compares: Vec<u8>,
    /// Was told that the centre has forgotten an upload, and is about to give it back; something
    /// else is pending.
    forgotten: Vec<u8>,
    /// Where a copy of one of them is worked on.
    work: PathBuf,
}

/// The bytes that passed in both directions.
pub(crate) struct PassedBytes {
    pub(crate) up: Vec<u8>,
    pub(crate) down: Vec<u8>,
}

impl House {
    /// How many files there are that a session may begin with.
    pub(crate) const FILES: usize = 4;

    pub(crate) fn start() -> House {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime without threads needs nothing of the system");
        let folder = folder();
        let path = folder.path().join("centre.db");
        let centre = Connection::open(&path).expect("the folder is writable");
        centre.execute_batch(SCHEMA).expect("the schema is SQL");
        let time = runtime.block_on(async { Arc::new(Time::new()) });
        let chance = Arc::new(Chance::default());
        let address = Address::default();
        let environment = Environment {
            clock: time.clone(),
            randomness: chance.clone(),
            blocking: Arc::new(Inline),
            network: Arc::new(address.clone()),
        };
        let sqlite = SqliteEnvironment {
            jobs: Jobs::Tasks(Arc::new(|| Duration::ZERO)),
            randomness: {
                let chance = chance.clone();
                Arc::new(move |bytes| chance.fill(bytes).is_ok())
            },
            ..SqliteEnvironment::real()
        };
        let running = runtime.block_on(serve(path, sqlite, environment));
        let work = folder.path().join("remote.db");
        let before = Connection::open_in_memory().expect("memory is there");
        let mut house = House {
            runtime,
            _running: running,
            address,
            time,
            chance,
            centre,
            before,
            version: -1,
            foreign: String::new(),
            schema: PublicationSchema {
                name: String::new(),
                tables: Vec::new(),
                transactional: false,
            },
            files: Files {
                blank: Vec::new(),
                changed: Vec::new(),
                compares: Vec::new(),
                forgotten: Vec::new(),
                work,
            },
            _folder: folder,
        };
        house.prepare();
        house
    }

    /// Ada's remote syncs, and everything begins; what it syncs then is forgotten again.
    fn prepare(&mut self) {
        let work = self.files.work.clone();
        let mut database = RemoteDatabase::open(&work).expect("the folder is writable");
        let subscribed = database.subscribe("tcp://127.0.0.1:7439", "ada", &["main"]);
        subscribed.expect("the file is new");
        drop(database);
        self.files.blank = read(&work);
        self.sync(&work);
        let edit = |sql: &str| {
            let application = Connection::open(&work).expect("it is a database");
            application
                .execute_batch(sql)
                .expect("the tables are there");
        };
        edit("UPDATE product SET name = 'quill' WHERE product_id = 1");
        self.sync(&work);
        let database = RemoteDatabase::open(&work).expect("it is a remote");
        let subscriptions = database.subscriptions().expect("it has subscribed");
        let schema = subscriptions[0].schema.as_deref();
        self.schema = schema.expect("it has synced").clone();
        drop(database);
        let synced = read(&work);
        // A tool has made a table anew, without what tracks it, and changed it.
        edit(&self.untracked_edit(&work));
        let mut database = RemoteDatabase::open(&work).expect("it is a remote");
        database.make_compare_due().expect("it has synced");
        drop(database);
        self.files.compares = read(&work);
        std::fs::write(&work, synced).expect("the folder is writable");
        edit(EDITS);
        self.files.changed = read(&work);
        let copy = Backup::new(&self.centre, &mut self.before);
        let copied = copy.and_then(|copy| copy.run_to_completion(1_000, Duration::ZERO, None));
        copied.expect("nobody else uses the copy");
        self.foreign = self.foreign_rows();
        self.version = self.centre_version();
        self.sync(&work);
        edit("UPDATE product SET name = 'pending' WHERE product_id = 1");
        self.reset();
        let database = RemoteDatabase::open(&work).expect("it is a remote");
        let (_, database, outcome) = self.session(database);
        assert!(matches!(outcome, SessionOutcome::Again(_)), "{outcome:?}");
        drop(database);
        self.files.forgotten = read(&work);
        self.reset();
    }

    /// SQL that changes a table whose triggers are gone.
    fn untracked_edit(&self, work: &Path) -> String {
        let application = Connection::open(work).expect("it is a database");
        let triggers = application.query_row(
            "SELECT group_concat('DROP TRIGGER ' || quote(name), ';') FROM sqlite_schema
             WHERE type = 'trigger' AND tbl_name = 'product'",
            [],
            |row| row.get::<_, String>(0),
        );
        let triggers = triggers.expect("a synced table has triggers");
        format!("{triggers}; UPDATE product SET name = 'odd' WHERE product_id = 2;")
    }

    /// Puts everything back to where every input begins.
    pub(crate) fn reset(&mut self) {
        self.runtime.block_on(async { self.time.reset() });
        self.chance.reset();
        if self.version == self.centre_version() {
            return;
        }
        let copy = Backup::new(&self.before, &mut self.centre);
        let copied = copy.and_then(|copy| copy.run_to_completion(1_000, Duration::ZERO, None));
        copied.expect("no transaction is open when nobody syncs");
        self.version = self.centre_version();
    }

    fn centre_version(&self) -> i64 {
        let version = self
            .centre
            .pragma_query_value(None, "data_version", |row| row.get(0));
        version.expect("SQLite knows it")
    }

    fn foreign_rows(&self) -> String {
        let rows = self.centre.query_row(FOREIGN, [], |row| row.get(0));
        rows.expect("there are such rows")
    }

    /// What must hold of the server and its centre after any input.
    pub(crate) fn judge(&mut self) {
        assert_eq!(
            self.foreign_rows(),
            self.foreign,
            "I5: rows of other users changed"
        );
        let dialled = self.address.dial().expect("the server listens");
        let answered = self.runtime.block_on(ping(dialled));
        assert!(answered, "I8: the server does not answer any more");
    }

    /// Sends the bytes, in pieces, and takes all that the server says until it closes.
    pub(crate) fn converse(&self, bytes: &[u8], piece: usize, ends: bool) -> Vec<u8> {
        let stream = self.address.dial().expect("the server listens");
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut heard = Vec::new();
        self.runtime.block_on(async {
            let saying = async {
                for piece in bytes.chunks(piece) {
                    if writer.write_all(piece).await.is_err() {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
                if ends {
                    let _ = writer.shutdown().await;
                }
            };
            let hearing = reader.read_to_end(&mut heard);
            // Longer than any deadline of the server's.
            let patience = Duration::from_secs(2 * 60 * 60);
            let both = async { tokio::join!(saying, hearing).1 };
            let ended = tokio::time::timeout(patience, both).await;
            assert!(
                ended.is_ok(),
                "I8: the server does not end a dead connection"
            );
        });
        heard
    }

    /// A sync of the remote at a path, with nothing in its way: what passed on each of its
    /// connections.
    fn sync(&self, path: &Path) -> Vec<PassedBytes> {
        let mut all = Vec::new();
        let mut database = RemoteDatabase::open(path).expect("it is a remote");
        while all.len() < 6 {
            let (passed, given_back, outcome) = self.session(database);
            all.push(passed);
            match outcome {
                SessionOutcome::Done(_) => return all,
                SessionOutcome::Again(_) | SessionOutcome::More(_) => database = given_back,
                other => panic!("an undisturbed sync ended with {other:?}"),
            }
        }
        panic!("a sync that does not end")
    }

    /// One connection of a sync, with nothing in its way.
    fn session(&self, database: RemoteDatabase) -> (PassedBytes, RemoteDatabase, SessionOutcome) {
        let mut connection = dial();
        sync_on(&mut connection, database, Begin::Both);
        let stream = self.address.dial().expect("the server listens");
        let passed = self.runtime.block_on(pump(&mut connection, stream));
        let (database, outcome) = connection.end_sync().expect("the sync has ended");
        (passed, database, outcome)
    }

    /// What passes in a sync of one of the files.
    pub(crate) fn record(&mut self, file: usize) -> Vec<PassedBytes> {
        self.reset();
        let work = self.work_on(file);
        self.sync(&work)
    }

    /// A copy of one of the files.
    pub(crate) fn work_on(&self, file: usize) -> PathBuf {
        let Files {
            changed,
            blank,
            compares,
            forgotten,
            work,
        } = &self.files;
        let files: [_; House::FILES] = [changed, blank, compares, forgotten];
        for leftover in ["-wal", "-shm", "-journal"] {
            let mut name = work.clone().into_os_string();
            name.push(leftover);
            let removed = std::fs::remove_file(name);
            let missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
            assert!(removed.as_ref().err().is_none_or(missing), "{removed:?}");
        }
        std::fs::write(work, files[file]).expect("the folder is writable");
        work.clone()
    }
}

/// Which way a session goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    Both,
    UploadOnly,
    DownloadOnly,
    Look,
    Repair,
}

/// Whether the server answers somebody else.
async fn ping(mut stream: DuplexStream) -> bool {
    let mut out = BytesMut::from(&PREFACE[..]);
    let ping = Control::Ping(Ping { nonce: 42 });
    put_control(&mut out, CONNECTION_CHANNEL, ping).expect("a ping fits into a frame");
    let mut heard = Vec::new();
    let said = stream.write_all(&out).await.is_ok() && stream.shutdown().await.is_ok();
    let heard_all = stream.read_to_end(&mut heard).await.is_ok();
    let mut heard = BytesMut::from(&heard[..]);
    let pong = take_frame(&mut heard);
    let is_pong = |frame: &Frame| matches!(frame, Frame::Control { control: Some(Control::Pong(pong)), .. } if pong.nonce == 42);
    said && heard_all && matches!(&pong, Ok(Some(frame)) if is_pong(frame))
}

/// A remote's side of a connection.
pub(crate) fn dial() -> RemoteConnection {
    RemoteConnection::dial("fuzzing", Duration::from_secs(30), now())
}

/// Begins a sync as an undisturbed remote does.
pub(crate) fn sync_on(connection: &mut RemoteConnection, database: RemoteDatabase, begin: Begin) {
    let options = SessionOptions {
        direction: match begin {
            Begin::UploadOnly => SyncDirection::UploadOnly,
            Begin::DownloadOnly => SyncDirection::DownloadOnly,
            _ => SyncDirection::Both,
        },
        verify: match begin {
            Begin::Look => VerifyMode::Look,
            Begin::Repair => VerifyMode::Repair,
            _ => VerifyMode::No,
        },
        user_proof: Some(UserProof::Password(PASSWORD.into())),
        server: None,
        other_centre: false,
        adopt: None,
        first_proof: ProofKind::Token,
        spool: Box::new(MemorySpool::default()),
        keep: Box::new(NoDownloadStore),
    };
    // Uploads are known again by their ids, which no two sessions of a file may share.
    let subscriptions = database.subscriptions().unwrap_or_default();
    let uploads = subscriptions.first().map_or(0, |it| it.sequence);
    connection.sync(database, options, [1 + uploads as u8; 32]);
}

/// The time of every session.
pub(crate) fn now() -> Now {
    Now {
        ticks_ms: 1_000,
        unix_ms: BEGIN_MS,
    }
}

async fn pump(connection: &mut RemoteConnection, stream: DuplexStream) -> PassedBytes {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let (mut up, mut down) = (Vec::new(), Vec::new());
    let mut waiting = VecDeque::new();
    let mut buffer = [0; 4_096];
    while connection.is_syncing() {
        connection.work(now());
        while let Some(bytes) = connection.poll_transmit() {
            waiting.push_back(bytes);
        }
        if let Some(bytes) = waiting.pop_front() {
            writer.write_all(&bytes).await.expect("the server listens");
            up.extend_from_slice(&bytes);
            continue;
        }
        if !connection.is_syncing() {
            break;
        }
        let count = reader
            .read(&mut buffer)
            .await
            .expect("memory does not fail");
        down.extend_from_slice(&buffer[..count]);
        match count {
            0 => connection.handle_end(None),
            _ => connection.handle_bytes(&buffer[..count], now()),
        }
    }
    while let Some(bytes) = connection.poll_transmit() {
        up.extend_from_slice(&bytes);
        let _ = writer.write_all(&bytes).await;
    }
    PassedBytes { up, down }
}

/// Deploys, adds the users, and serves.
async fn serve(
    path: PathBuf,
    sqlite: SqliteEnvironment,
    environment: Environment,
) -> RunningServer {
    let config = Config::parse(CONFIG).expect("the configuration is right");
    let centre = connect_in(path, sqlite).await.expect("it is a database");
    prepare_centre(&*centre, &config).await;
    let started = Server::start(config, centre, environment).await;
    started.expect("the configuration fits the centre")
}

async fn prepare_centre(centre: &dyn Centre, config: &Config) {
    let deployed = centre.deploy(&config.publications, false, BEGIN_MS).await;
    deployed.expect("the configuration fits the centre");
    for (name, password) in [("ada", PASSWORD), ("bob", "nobody's guess")] {
        // What a password costs is no matter here.
        let cost = Params::new(Params::MIN_M_COST, 1, 1, None).expect("the least cost is one");
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, cost);
        let salt = SaltString::encode_b64(b"a salt for fuzz").expect("it is short enough");
        let hash = argon2.hash_password(password.as_bytes(), &salt);
        let user = UserRecord {
            name: name.into(),
            password_hash: hash.expect("the password is not too long").to_string(),
            disabled: false,
            created_ms: BEGIN_MS,
            proven: ProvenIdentity::default(),
        };
        centre.add_user(&user).await.expect("the centre works");
    }
}

fn read(path: &Path) -> Vec<u8> {
    // What is still in the log moves into the file.
    let connection = Connection::open(path).expect("it is a database");
    let checkpoint = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    checkpoint.expect("nobody else uses it");
    drop(connection);
    std::fs::read(path).expect("it is a file")
}

/// In memory where the system offers that: nothing here depends on a disk.
fn folder() -> TempDir {
    let folder = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new());
    folder.expect("there is room for temporary files")
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time since the input began.
struct Time(Mutex<Instant>);

impl Time {
    fn new() -> Time {
        Time(Mutex::new(Instant::now()))
    }

    fn reset(&self) {
        *locked(&self.0) = Instant::now();
    }
}

impl Clock for Time {
    fn now_ms(&self) -> i64 {
        let elapsed = locked(&self.0).elapsed().as_millis();
        BEGIN_MS + i64::try_from(elapsed).unwrap_or(i64::MAX - BEGIN_MS)
    }
}

/// SplitMix64: the same for every input.
#[derive(Default)]
struct Chance(Mutex<u64>);

impl Chance {
    fn reset(&self) {
        *locked(&self.0) = 0x7eed;
    }
}

impl Randomness for Chance {
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        let mut state = locked(&self.0);
        for piece in bytes.chunks_mut(8) {
            *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = *state;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^= mixed >> 31;
            piece.copy_from_slice(&mixed.to_le_bytes()[..piece.len()]);
        }
        Ok(())
    }
}

/// There is one thread only.
struct Inline;

impl BlockingRunner for Inline {
    fn run(&self, job: Box<dyn FnOnce() + Send>) {
        job();
    }
}

/// Where connections to the server go.
#[derive(Clone, Default)]
struct Address(Arc<Mutex<Option<UnboundedSender<DuplexStream>>>>);

impl Address {
    fn dial(&self) -> Option<DuplexStream> {
        let (ours, theirs) = tokio::io::duplex(WIRE_BYTES);
        locked(&self.0).as_ref()?.send(theirs).ok()?;
        Some(ours)
    }
}

impl ServerNetwork for Address {
    fn listen<'a>(&'a self, _: &'a str) -> BoxFuture<'a, io::Result<Box<dyn StreamListener>>> {
        let (sender, connections) = unbounded_channel();
        *locked(&self.0) = Some(sender);
        Box::pin(async move { Ok(Box::new(Door(connections)) as Box<dyn StreamListener>) })
    }
}

struct Door(UnboundedReceiver<DuplexStream>);

impl StreamListener for Door {
    fn address(&self) -> String {
        "127.0.0.1:7439".into()
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<IncomingStream>> {
        Box::pin(async {
            match self.0.recv().await {
                Some(stream) => Ok(IncomingStream {
                    stream: Box::new(stream),
                    peer: "device".into(),
                }),
                None => std::future::pending().await,
            }
        })
    }
}
