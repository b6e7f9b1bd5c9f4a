//! What rules of one's own cost: scripts and a handler against the generated path, resolvers against the same rows
//! without a conflict, and a download by time against the script's own query.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio_postgres::Client;

use tidewater_centre::ScriptSpec;
use tidewater_client::Remote;
use tidewater_server::databases::connect;
use tidewater_server::{Config, Environment, RunningServer, Server};

use crate::measure::{Samples, at_most, goal, line, of_rates};
use crate::processes::{self, PASSWORD, add_user};

/// Rows of an upload by scripts.
const UPLOADED: i32 = 1_000;
/// Rows of an upload of conflicts.
const FOUGHT: i32 = 10_000;
/// Rows of the table that is downloaded by time, and how many of them are changed.
const STAMPED: i32 = 100_000;
const CHANGED: i32 = STAMPED / 100;

/// What each resolver is written as, beside none.
const RESOLVERS: [&str; 11] = [
    "server_wins",
    "client_wins",
    "later(stamp)",
    "earlier(stamp)",
    "maximum(level)",
    "minimum(level)",
    "priority(level)",
    "additive(stock)",
    "average(stock)",
    "merge_text(body)",
    "park",
];

/// A server of a database that was just made, in which the tables are published to everybody.
struct ChartPoint<'r> {
    runtime: &'r Runtime,
    client: Client,
    running: RunningServer,
    remotes: TempDir,
}

impl<'r> ChartPoint<'r> {
    fn open(
        runtime: &'r Runtime,
        url: &str,
        ddl: &str,
        publications: &str,
        scripts: &[(&str, &str, &str)],
    ) -> anyhow::Result<ChartPoint<'r>> {
        let mut config = Config::parse(&format!(
            "[server]\nlisten = [\"tcp://127.0.0.1:0\"]\nconsolidated = {url:?}\n{publications}"
        ))?;
        for publication in &mut config.publications {
            let own = scripts.iter().filter(|it| it.0 == publication.name);
            publication.scripts = own
                .map(|(table, event, sql)| {
                    ScriptSpec::at("scripts", ["default", table, event], *sql)
                })
                .collect();
        }
        let (client, running) = runtime.block_on(async {
            let client = tidewater_testing::postgres::connect(url).await?;
            client.batch_execute(ddl).await?;
            let centre = connect(url).await?;
            centre.deploy(&config.publications, false, 0).await?;
            add_user(&*centre, "anna").await?;
            let running = Server::start(config, centre, Environment::real()).await?;
            anyhow::Ok((client, running))
        })?;
        Ok(ChartPoint {
            runtime,
            client,
            running,
            remotes: TempDir::new()?,
        })
    }

    fn execute(&self, sql: &str) -> anyhow::Result<()> {
        Ok(self.runtime.block_on(self.client.batch_execute(sql))?)
    }

    /// A remote that has everything.
    fn remote(&self, publication: &str) -> anyhow::Result<(Remote, rusqlite::Connection)> {
        let path = self.remotes.path().join(format!("{publication}.db"));
        let mut remote = Remote::open(&path)?;
        remote.subscribe(
            &self.running.addresses[0].to_string(),
            "anna",
            &[publication],
        )?;
        remote.set_password(PASSWORD);
        sync(&mut remote)?;
        Ok((remote, rusqlite::Connection::open(&path)?))
    }

    fn close(self) {
        self.runtime.block_on(self.running.shutdown());
    }
}

/// A sync, and how long it took.
fn sync(remote: &mut Remote) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let report = remote.sync(&mut |_| ControlFlow::Continue(()))?;
    anyhow::ensure!(report.refused == 0, "{} rows were refused", report.refused);
    Ok(start.elapsed())
}

/// Measures all of it.
pub(crate) fn run(runs: usize) -> anyhow::Result<()> {
    let postgres = processes::Centre::start()?;
    let runtime = Runtime::new()?;
    println!("Rules of one's own, PostgreSQL");
    uploads(&runtime, &postgres.database("rules_scripts")?, runs)?;
    resolved(&runtime, &postgres.database("rules_resolved")?, runs)?;
    by_time(&runtime, &postgres.database("rules_time")?, runs)
}

/// Uploads of inserted rows by scripts, against generated ones.
fn uploads(runtime: &Runtime, url: &str, runs: usize) -> anyhow::Result<()> {
    const WAYS: [&str; 4] = ["generated", "by_row", "by_set", "by_handler"];
    let handler = format!("handler = {:?}", handler()?);
    let (mut ddl, mut publications) = (String::new(), String::new());
    for name in WAYS {
        writeln!(
            ddl,
            "CREATE TABLE {name} (id INTEGER PRIMARY KEY, name TEXT NOT NULL, price NUMERIC(10,2));"
        )?;
        writeln!(
            publications,
            "[[publication]]\nname = \"{name}\"\n[[publication.table]]\nname = \"{name}\"\n\
             partition = \"everyone\"\n{}",
            if name == "by_handler" { &*handler } else { "" }
        )?;
    }
    let scripts = [
        (
            "by_row",
            "upload_insert",
            "INSERT INTO by_row (id, name, price) VALUES ({r.id}, {r.name}, {r.price})",
        ),
        (
            "by_set",
            "upload_insert",
            "INSERT INTO by_set (id, name, price) SELECT id, name, price FROM {rows} AS r",
        ),
    ];
    let place = ChartPoint::open(runtime, url, &ddl, &publications, &scripts)?;
    let mut remotes = Vec::new();
    for name in WAYS {
        remotes.push(place.remote(name)?);
    }
    let mut times: [Samples; 4] = Default::default();
    for run in 0..i32::try_from(runs)? {
        for (number, (remote, application)) in remotes.iter_mut().enumerate() {
            let from = run * UPLOADED;
            application.execute_batch(&format!(
                "WITH RECURSIVE s(n) AS (SELECT {from} UNION ALL SELECT n + 1 FROM s
                   WHERE n < {from} + {UPLOADED} - 1)
                 INSERT INTO {} SELECT n, 'name of ' || n, '19.90' FROM s",
                WAYS[number]
            ))?;
            times[number].add(sync(remote)?);
        }
    }
    place.close();
    let [generated, by_row, by_set, by_handler] = &times;
    for (name, samples) in WAYS.iter().zip(&times) {
        let what = format!("sync of {UPLOADED} inserts, {name}");
        line(&what, &samples.micros_per_row(UPLOADED), "us a row");
    }
    goal(
        "row-form scripts to generated",
        &of_rates(by_row, generated),
        0.4,
    );
    goal(
        "set-form scripts to generated",
        &of_rates(by_set, generated),
        0.8,
    );
    goal(
        "a local HTTP handler to generated",
        &of_rates(by_handler, generated),
        0.3,
    );
    Ok(())
}

/// A handler that has every row applied as it is; its address. It lives as long as the program.
fn handler() -> anyhow::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}/", listener.local_addr()?);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut reader = BufReader::new(&stream);
                while let Some(body) = request(&mut reader) {
                    let rows = body["rows"].as_array().into_iter().flatten();
                    let rows = rows.map(|row| {
                        let key = &row["idempotency_key"];
                        serde_json::json!({ "idempotency_key": key, "verdict": "apply" })
                    });
                    let said = serde_json::json!({ "rows": rows.collect::<Vec<_>>() }).to_string();
                    let answer = format!(
                        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\
                         content-length: {}\r\n\r\n{said}",
                        said.len()
                    );
                    if (&stream).write_all(answer.as_bytes()).is_err() {
                        break;
                    }
                }
            });
        }
    });
    Ok(url)
}

/// The body of the next request; `None` if there is none.
fn request(reader: &mut BufReader<&TcpStream>) -> Option<serde_json::Value> {
    let mut length = 0;
    let mut line = String::new();
    while reader.read_line(&mut line).ok()? > 2 {
        let header = line.to_ascii_lowercase();
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    serde_json::from_slice(&body).ok()
}

/// Uploads of rows that somebody else has changed, against the same without.
fn resolved(runtime: &Runtime, url: &str, runs: usize) -> anyhow::Result<()> {
    let (mut ddl, mut publications) = (String::new(), String::new());
    let names: Vec<String> = (0..=RESOLVERS.len() + 1)
        .map(|at| format!("t{at}"))
        .collect();
    for (at, name) in names.iter().enumerate() {
        writeln!(
            ddl,
            "CREATE TABLE {name} (id INTEGER PRIMARY KEY, body TEXT, stock INTEGER, level INTEGER,
               stamp TIMESTAMP);
             INSERT INTO {name} SELECT n, E'one\\ntwo\\nthree', 10, 1, '2026-01-01'
               FROM generate_series(1, {FOUGHT}) AS s(n);"
        )?;
        // The first one has no conflicts, the second one edits of different columns.
        let conflict = match at {
            0 => "",
            1 => "conflict = { detect = \"column\" }",
            at => &format!("conflict = {{ resolve = \"{}\" }}", RESOLVERS[at - 2]),
        };
        writeln!(
            publications,
            "[[publication]]\nname = \"{name}\"\n[[publication.table]]\nname = \"{name}\"\n\
             partition = \"everyone\"\n{conflict}"
        )?;
    }
    let place = ChartPoint::open(runtime, url, &ddl, &publications, &[])?;
    let mut remotes = Vec::new();
    for name in &names {
        remotes.push(place.remote(name)?);
    }
    let mut times: Vec<Samples> = names.iter().map(|_| Samples::default()).collect();
    for run in 1..=runs {
        for (at, (remote, application)) in remotes.iter_mut().enumerate() {
            let name = &names[at];
            match at {
                0 => {}
                1 => place.execute(&format!("UPDATE {name} SET stock = stock + 1"))?,
                _ => place.execute(&format!(
                    "UPDATE {name} SET stock = stock + 1, level = level + {run},
                       stamp = stamp + interval '1 day', body = replace(body, 'three', 'three{run}')"
                ))?,
            }
            let mine = match at {
                1 => format!("UPDATE {name} SET body = body || 'x'"),
                _ => format!(
                    "UPDATE {name} SET stock = stock + 2, level = level + {run} + 1,
                       stamp = strftime('%Y-%m-%dT%H:%M:%S.000000', stamp, '+2 days'),
                       body = replace(body, 'one', 'one{run}')"
                ),
            };
            application.execute_batch(&mine)?;
            times[at].add(sync(remote)?);
        }
    }
    place.close();
    for (at, samples) in times.iter().enumerate() {
        let what = match at {
            0 => "no conflict".to_owned(),
            1 => "edits of different columns, merged".to_owned(),
            at => RESOLVERS[at - 2].to_owned(),
        };
        let named = format!("sync of {FOUGHT} updates, {what}");
        line(&named, &samples.micros_per_row(FOUGHT), "us a row");
        if at > 0 {
            let ratio = of_rates(samples, &times[0]);
            goal(
                &format!("{what}, to no conflict"),
                &ratio,
                if at == 1 { 0.9 } else { 0.5 },
            );
        }
    }
    Ok(())
}

/// A download by a script's time, against the script's query.
fn by_time(runtime: &Runtime, url: &str, runs: usize) -> anyhow::Result<()> {
    const CURSOR: &str = "SELECT id, body FROM stamped WHERE modified >= {s.last_download}";
    let ddl = format!(
        "CREATE TABLE stamped (id INTEGER PRIMARY KEY, body TEXT NOT NULL,
           modified TIMESTAMPTZ NOT NULL);
         CREATE INDEX ON stamped (modified);
         INSERT INTO stamped SELECT n, 'body of ' || n, now() FROM generate_series(1, {STAMPED}) AS s(n);
         CREATE TABLE logged (id INTEGER PRIMARY KEY, body TEXT NOT NULL);
         INSERT INTO logged SELECT id, body FROM stamped"
    );
    let publications = "[[publication]]\nname = \"stamped\"\n[[publication.table]]\n\
         name = \"stamped\"\npartition = \"everyone\"\ncolumns = [\"id\", \"body\"]\n\
         direction = \"download\"\ntracking = \"off\"\n\
         [[publication]]\nname = \"logged\"\n[[publication.table]]\nname = \"logged\"\n\
         partition = \"everyone\"\ndirection = \"download\"\n";
    let scripts = [("stamped", "download_cursor", CURSOR)];
    let place = ChartPoint::open(runtime, url, &ddl, publications, &scripts)?;
    let (mut stamped, _file) = place.remote("stamped")?;
    let (mut logged, _other) = place.remote("logged")?;
    let (mut by_script, mut by_log, mut query) =
        (Samples::default(), Samples::default(), Samples::default());
    for run in 0..runs {
        let changed = format!("id % {} = {}", STAMPED / CHANGED, run % 100);
        place.execute(&format!(
            "UPDATE logged SET body = body || 'x' WHERE {changed}"
        ))?;
        by_log.add(sync(&mut logged)?);
        let start = runtime.block_on(place.client.query_one("SELECT clock_timestamp()", &[]))?;
        let start: std::time::SystemTime = start.get(0);
        place.execute(&format!(
            "UPDATE stamped SET body = body || 'x', modified = now() WHERE {changed}"
        ))?;
        by_script.add(sync(&mut stamped)?);
        let sql = "SELECT id, body FROM stamped WHERE modified >= $1";
        let begun = Instant::now();
        let rows = runtime.block_on(place.client.query(sql, &[&start]))?;
        query.add(begun.elapsed());
        let expected = usize::try_from(CHANGED)?;
        anyhow::ensure!(rows.len() == expected, "{} rows were changed", rows.len());
    }
    place.close();
    for (what, samples) in [
        ("the script's query alone", &query),
        ("sync by the script", &by_script),
        ("sync by the change log", &by_log),
    ] {
        let what = format!("{CHANGED} of {STAMPED} rows changed, {what}");
        line(&what, &samples.micros_per_row(CHANGED), "us a row");
    }
    at_most(
        "sync by the script to sync by the log",
        &of_rates(&by_log, &by_script),
        1.5,
    );
    at_most(
        "sync by the script to its query",
        &of_rates(&query, &by_script),
        1.5,
    );
    Ok(())
}
