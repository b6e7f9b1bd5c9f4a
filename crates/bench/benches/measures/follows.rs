//! Rows that follow others, against the same rows with a partition of their own; and users with many
//! partitions, against users with few. On either database.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::runtime::Runtime;

use tidewater_centre_conformance::world::{everyone, partitioned, publication};
use tidewater_client::Remote;
use tidewater_protocol::RemoteId;
use tidewater_protocol::message::TableBegin;
use tidewater_server::databases::connect;
use tidewater_server::{Config, Environment, Server};

use crate::measure::{Samples, Spread, at_most, line};
use crate::processes::{self, PASSWORD, add_user};
use tidewater_centre::download::{
    DownloadJob, DownloadOutcome, DownloadSink, DownloadStart, DownloadSubscription, MarkFrequency,
};
use tidewater_centre::records::UserClaims;
use tidewater_centre::script_notes::ScriptNotes;
use tidewater_centre::{Centre, CentreError, PublicationSpec, RuleSpec, SyncContext, TableSpec};

const PARENTS: i32 = 1_000;
const CHILDREN: i32 = 100;
const ROWS: i32 = PARENTS * CHILDREN;

/// Rows of the inserts of one each.
const SINGLE: i32 = 5_000;

/// How many partitions the users of idle syncs have.
const MANY: i32 = 100_000;
const FEW: i32 = 10;
const IDLE_SYNCS: usize = 21;

/// The same tables in each database, so that only the rules differ.
const DDL: &str = "
    CREATE TABLE doc (id INTEGER NOT NULL PRIMARY KEY, owner VARCHAR(20) NOT NULL);
    CREATE TABLE line (id INTEGER NOT NULL PRIMARY KEY, owner VARCHAR(20) NOT NULL,
      doc_id INTEGER NOT NULL REFERENCES doc ON UPDATE CASCADE ON DELETE CASCADE,
      body VARCHAR(64) NOT NULL);
    CREATE INDEX doc_owner ON doc (owner);
    CREATE INDEX line_owner ON line (owner);
    CREATE INDEX line_doc ON line (doc_id);
    CREATE TABLE source (id INTEGER NOT NULL PRIMARY KEY, owner VARCHAR(20) NOT NULL,
      doc_id INTEGER NOT NULL, body VARCHAR(64) NOT NULL);
    CREATE TABLE held (login VARCHAR(20) NOT NULL, doc_id INTEGER NOT NULL,
      PRIMARY KEY (login, doc_id));";

/// How the lines are published.
#[derive(Clone, Copy)]
enum Published {
    Not,
    ByOwner,
    Following,
}

/// Where statements run as an application runs them.
enum Application {
    Postgres(tokio_postgres::Client),
    Sqlite(rusqlite::Connection),
}

impl Application {
    async fn open(url: &str) -> anyhow::Result<Application> {
        Ok(match url.strip_prefix("sqlite:") {
            Some(path) => {
                let connection = rusqlite::Connection::open(path)?;
                connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA foreign_keys = ON")?;
                Application::Sqlite(connection)
            }
            None => Application::Postgres(tidewater_testing::postgres::connect(url).await?),
        })
    }

    async fn execute(&self, sql: &str) -> anyhow::Result<()> {
        match self {
            Application::Postgres(client) => client.batch_execute(sql).await?,
            Application::Sqlite(connection) => connection.execute_batch(sql)?,
        }
        Ok(())
    }

    /// How long statements take in one transaction, sent together: a round trip for each would
    /// hide what they cost.
    async fn timed(&self, statements: &[String]) -> anyhow::Result<Duration> {
        let script = format!("BEGIN;{};COMMIT", statements.join(";"));
        let start = Instant::now();
        self.execute(&script).await?;
        Ok(start.elapsed())
    }

    /// Numbers from 0 up, as the column `n` of a relation.
    fn numbers(&self, count: i32) -> String {
        match self {
            Application::Postgres(_) => format!("generate_series(0, {}) AS s(n)", count - 1),
            Application::Sqlite(_) => format!(
                "(WITH RECURSIVE s(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM s WHERE n < {}) \
                 SELECT n FROM s)",
                count - 1
            ),
        }
    }
}

/// Databases of one kind.
struct Databases<'c> {
    postgres: &'c processes::Centre,
    folder: TempDir,
    kind: &'static str,
}

impl Databases<'_> {
    fn url(&self, name: &str) -> anyhow::Result<String> {
        match self.kind {
            "SQLite" => {
                let path = self.folder.path().join(name).with_extension("db");
                Ok(format!("sqlite:{}", path.display()))
            }
            _ => self.postgres.database(&format!("follows_{name}")),
        }
    }

    /// A database with documents and the source of their lines, published or not.
    async fn prepare(&self, name: &str, published: Published) -> anyhow::Result<ChartPoint> {
        let url = self.url(name)?;
        let application = Application::open(&url).await?;
        application.execute(DDL).await?;
        let docs = application.numbers(PARENTS);
        let lines = application.numbers(ROWS);
        let body = "n".repeat(64);
        application
            .execute(&format!(
                "INSERT INTO doc SELECT n, 'anna' FROM {docs};
                 INSERT INTO source SELECT n, 'anna', n / {CHILDREN}, '{body}' FROM {lines}"
            ))
            .await?;
        let rule = match published {
            Published::Not => everyone("line"),
            Published::ByOwner => partitioned("line", &["owner"], OWNED),
            Published::Following => TableSpec {
                partition: vec![RuleSpec::follows("doc")],
                ..everyone("line")
            },
        };
        let doc = partitioned("doc", &["owner"], OWNED);
        let spec = publication("bench", vec![doc, rule]);
        let centre = connect(&url).await?;
        if !matches!(published, Published::Not) {
            centre.deploy(std::slice::from_ref(&spec), false, 0).await?;
        }
        Ok(ChartPoint {
            centre,
            spec,
            application,
        })
    }
}

/// A database, and who writes in it.
struct ChartPoint {
    centre: Arc<dyn Centre>,
    spec: PublicationSpec,
    application: Application,
}

const OWNED: &str = "SELECT {s.username}";

/// Prints the ratios for each database.
pub(crate) fn run(runs: usize) -> anyhow::Result<()> {
    let postgres = processes::Centre::start()?;
    let runtime = Runtime::new()?;
    for kind in ["PostgreSQL", "SQLite"] {
        println!(
            "\nRows that follow, {kind}: {PARENTS} parents of {CHILDREN} children, {runs} runs"
        );
        let databases = Databases {
            postgres: &postgres,
            folder: TempDir::new()?,
            kind,
        };
        runtime.block_on(rows_that_follow(&databases, runs))?;
        println!("\nIdle syncs, {kind}: {runs} runs, each the median of {IDLE_SYNCS}");
        idle_syncs(&runtime, &databases, runs)?;
    }
    Ok(())
}

async fn rows_that_follow(databases: &Databases<'_>, runs: usize) -> anyhow::Result<()> {
    let plain = databases.prepare("plain", Published::Not).await?;
    let own = databases.prepare("own", Published::ByOwner).await?;
    let follows = databases.prepare("follows", Published::Following).await?;
    let places = [&plain, &own, &follows];
    let many = (0..ROWS).step_by(1_000).map(|from| {
        let to = from + 1_000;
        format!("INSERT INTO line SELECT * FROM source WHERE id >= {from} AND id < {to}")
    });
    let many: Vec<String> = many.collect();
    let single = (0..SINGLE).map(|id| {
        let doc = id / CHILDREN;
        format!("INSERT INTO line VALUES ({id}, 'anna', {doc}, 'x')")
    });
    let single: Vec<String> = single.collect();
    let [mut bulk, mut singles]: [[Samples; 3]; 2] = Default::default();
    let mut moved: [Samples; 4] = Default::default();
    let mut downloads: [Samples; 2] = Default::default();
    for run in 0..runs {
        let owner = ["berta", "anna"][run % 2];
        for (number, place) in places.iter().enumerate() {
            let application = &place.application;
            application.execute("DELETE FROM line").await?;
            singles[number].add(application.timed(&single).await?);
            application.execute("DELETE FROM line").await?;
            bulk[number].add(application.timed(&many).await?);
            application.execute("VACUUM").await?;
        }
        let children =
            each_parent(|id| format!("UPDATE line SET owner = '{owner}' WHERE doc_id = {id}"));
        let parents = each_parent(|id| format!("UPDATE doc SET owner = '{owner}' WHERE id = {id}"));
        let moves = [
            (&plain, &children),
            (&own, &children),
            (&plain, &parents),
            (&follows, &parents),
        ];
        for ((place, statements), samples) in moves.into_iter().zip(&mut moved) {
            samples.add(place.application.timed(statements).await?);
        }
        // In the first database the documents are his whose lines move by themselves.
        let statement = format!("UPDATE doc SET owner = '{owner}'");
        own.application.execute(&statement).await?;
        for (place, samples) in [&own, &follows].into_iter().zip(&mut downloads) {
            place.application.execute("VACUUM").await?;
            downloaded(place, owner).await?;
            samples.add(downloaded(place, owner).await?);
        }
    }
    told("insert, 1,000 rows a statement", &bulk, ROWS);
    told("insert, one row a statement", &singles, SINGLE);
    let [own_plain, own, follows_plain, follows] = &moved;
    let [own, follows] = [(own, own_plain), (follows, follows_plain)]
        .map(|(with, without)| added(with, without, ROWS));
    for (name, values) in [("children", &own), ("their parents", &follows)] {
        let what = format!("{name} move, added by tracking");
        line(&what, &Spread::from_values(values.clone()), "us a child");
    }
    at_most("a parent moves, time a child", &ratios(&follows, &own), 2.0);
    let [own, follows] = &downloads;
    for (name, samples) in [("own column", own), ("follows", follows)] {
        let what = format!("download, {name}");
        line(&what, &samples.micros_per_row(ROWS), "us a row");
    }
    at_most("download", &ratios(follows.seconds(), own.seconds()), 1.1);
    Ok(())
}

fn each_parent(statement: impl Fn(i32) -> String) -> Vec<String> {
    (0..PARENTS).map(statement).collect()
}

/// Prints what inserts take, and what tracking adds to them.
fn told(what: &str, samples: &[Samples; 3], rows: i32) {
    for (name, samples) in ["no tracking", "own column", "follows"].iter().zip(samples) {
        line(
            &format!("{what}, {name}"),
            &samples.micros_per_row(rows),
            "us a row",
        );
    }
    let [plain, own, follows] = samples;
    let [own, follows] = [own, follows].map(|it| added(it, plain, rows));
    at_most(&format!("{what}, added"), &ratios(&follows, &own), 1.5);
}

/// Microseconds a row that something takes longer than without, run by run.
fn added(with: &Samples, without: &Samples, rows: i32) -> Vec<f64> {
    let pairs = with.seconds().iter().zip(without.seconds());
    pairs
        .map(|(with, without)| (with - without) * 1e6 / f64::from(rows))
        .collect()
}

/// Run by run.
fn ratios(ours: &[f64], theirs: &[f64]) -> Spread {
    let pairs = ours.iter().zip(theirs);
    Spread::from_values(pairs.map(|(ours, theirs)| ours / theirs).collect())
}

/// How long a first download of all rows takes in the centre.
async fn downloaded(place: &ChartPoint, user: &str) -> anyhow::Result<Duration> {
    let specs = std::slice::from_ref(&place.spec);
    let schemas = place.centre.load(specs).await?;
    let mut worker = place.centre.worker().await?;
    let job = DownloadJob {
        marks: MarkFrequency::default(),
        only_opens: false,
        context: SyncContext {
            user: user.into(),
            remote_id: RemoteId([7; 16]),
            now_ms: 0,
            parameters: Arc::default(),
            claims: UserClaims::default(),
            scripts: ScriptNotes::default(),
            given: None,
        },
        subscriptions: vec![DownloadSubscription {
            schema: schemas[0].clone(),
            before: None,
            publication: "bench".into(),
            checkpoint: None,
            from_image: false,
            requests: Vec::new(),
            compares: Vec::new(),
            kept: None,
            part_of: None,
            own: None,
            refused_from: 0,
            settled_after: 0,
            gained: Vec::new(),
            given: Vec::new(),
        }],
    };
    let mut sink = Counting::default();
    let start = Instant::now();
    worker.download_one(job, &mut sink).await?;
    let elapsed = start.elapsed();
    let expected = u64::from((ROWS + PARENTS).cast_unsigned());
    anyhow::ensure!(sink.rows == expected, "{} rows came", sink.rows);
    Ok(elapsed)
}

/// Counts what comes.
#[derive(Default)]
struct Counting {
    rows: u64,
}

impl DownloadSink for Counting {
    fn begin(&mut self, _index: usize, _: DownloadStart) {}

    fn table(&mut self, _begin: TableBegin) {}

    fn rows(&mut self, _rows: Vec<u8>) -> Result<(), CentreError> {
        Ok(())
    }

    fn end(&mut self, _index: usize, outcome: DownloadOutcome) {
        self.rows += outcome.upserts;
    }
}

/// Whole syncs over a socket in which nothing is new, of a user with many partitions and of one with
/// few.
fn idle_syncs(runtime: &Runtime, databases: &Databases<'_>, runs: usize) -> anyhow::Result<()> {
    let url = databases.url("idle")?;
    let folder = TempDir::new()?;
    let config = Config::parse(&format!(
        "[server]\nlisten = [\"tcp://127.0.0.1:0\"]\nconsolidated = {url:?}\n\
         [[publication]]\nname = \"bench\"\n[[publication.table]]\nname = \"doc\"\n\
         partition = {{ columns = [\"id\"], values = \"SELECT doc_id FROM held \
         WHERE login = {{s.username}}\" }}\n"
    ))?;
    let running = runtime.block_on(async {
        let application = Application::open(&url).await?;
        application.execute(DDL).await?;
        let [many, few] = [MANY, FEW].map(|count| application.numbers(count));
        application
            .execute(&format!(
                "INSERT INTO doc SELECT n, 'x' FROM {many};
                 INSERT INTO held SELECT 'many', n FROM {many};
                 INSERT INTO held SELECT 'few', n FROM {few}"
            ))
            .await?;
        application.execute("VACUUM").await?;
        application.execute("ANALYZE").await?;
        let centre = connect(&url).await?;
        centre.deploy(&config.publications, false, 0).await?;
        for user in ["many", "few"] {
            add_user(&*centre, user).await?;
        }
        anyhow::Ok(Server::start(config, centre, Environment::real()).await?)
    })?;
    let address = running.addresses[0].to_string();
    let mut remotes = Vec::new();
    for user in ["many", "few"] {
        let mut remote = Remote::open(folder.path().join(user))?;
        remote.subscribe(&address, user, &["bench"])?;
        remote.set_password(PASSWORD);
        remote.sync(&mut |_| ControlFlow::Continue(()))?;
        remotes.push(remote);
    }
    let mut times: [Vec<f64>; 2] = Default::default();
    let mut bytes = [0; 2];
    for _ in 0..runs {
        for (number, remote) in remotes.iter_mut().enumerate() {
            let mut samples = Samples::default();
            for _ in 0..IDLE_SYNCS {
                let start = Instant::now();
                let report = remote.sync(&mut |_| ControlFlow::Continue(()))?;
                samples.add(start.elapsed());
                bytes[number] = report.bytes_sent + report.bytes_received;
            }
            let samples = samples.seconds().iter().map(|it| it * 1e3);
            times[number].push(Spread::from_values(samples.collect()).median);
        }
    }
    runtime.block_on(running.shutdown());
    for (number, count) in [MANY, FEW].iter().enumerate() {
        let what = format!("{count} partitions, {} bytes", bytes[number]);
        line(&what, &Spread::from_values(times[number].clone()), "ms");
    }
    at_most("idle sync, time", &ratios(&times[0], &times[1]), 2.0);
    let bytes = ratios(&[bytes[0] as f64], &[bytes[1] as f64]);
    at_most("idle sync, bytes", &bytes, 2.0);
    Ok(())
}
