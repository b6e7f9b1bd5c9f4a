//! Uploads of parents and children of which a part is bad: what it costs to tell good rows from bad
//! ones, on either database.

use std::time::{Duration, Instant};

use tempfile::TempDir;

use tidewater_centre::{PublicationSpec, UploadOutcome};
use tidewater_centre_conformance::remote::{RowChange, TestRemote, insert, update};
use tidewater_centre_conformance::world::{everyone, publication};
use tidewater_server::databases::connect;

use crate::measure::{Samples, line};
use crate::processes::Centre;

/// How many children, of which each third is bad.
const CHILDREN: i64 = 4_000;

const DDL: &str = "
    CREATE TABLE kind (id INTEGER NOT NULL PRIMARY KEY);
    CREATE TABLE parent (id INTEGER NOT NULL PRIMARY KEY, code VARCHAR(9) UNIQUE);
    CREATE TABLE child (id INTEGER NOT NULL PRIMARY KEY,
      parent INTEGER NOT NULL REFERENCES parent ON UPDATE CASCADE ON DELETE CASCADE,
      kind INTEGER REFERENCES kind, amount INTEGER CHECK (abs(amount) = amount));
    INSERT INTO kind VALUES (1);
    INSERT INTO parent VALUES (1, 'one');";

/// What makes a row a bad one.
#[derive(Clone, Copy)]
enum Bad {
    /// It refers to what there is not.
    Reference,
    /// It breaks a rule of its own.
    Check,
}

/// Prints milliseconds for each kind of upload on each database.
pub(crate) fn run(runs: usize) -> anyhow::Result<()> {
    println!("\nFamilies: uploads of {CHILDREN} children, a third of them bad, {runs} runs");
    let centre = Centre::start()?;
    let runtime = tokio::runtime::Runtime::new()?;
    for database in ["PostgreSQL", "SQLite"] {
        for (name, bad) in [("reference", Bad::Reference), ("check", Bad::Check)] {
            let [mut inserted, mut followed]: [Samples; 2] = Default::default();
            for run in 0..runs {
                let folder = TempDir::new()?;
                let url = match database {
                    "SQLite" => format!("sqlite:{}", folder.path().join("centre.db").display()),
                    _ => centre.database(&format!("families_{name}_{run}"))?,
                };
                let [insert, follow] = runtime.block_on(measure(&url, bad))?;
                inserted.add(insert);
                followed.add(follow);
            }
            for (what, samples) in [("inserted", inserted), ("under a new key", followed)] {
                let millis = samples.seconds().iter().map(|it| it * 1e3);
                let spread = crate::measure::Spread::from_values(millis.collect());
                line(&format!("{database}, bad {name}, {what}"), &spread, "ms");
            }
        }
    }
    Ok(())
}

/// Children come with a new parent; then their parent gets another key, and they follow it.
async fn measure(url: &str, bad: Bad) -> anyhow::Result<[Duration; 2]> {
    if let Some(path) = url.strip_prefix("sqlite:") {
        rusqlite::Connection::open(path)?.execute_batch(DDL)?;
    } else {
        let client = tidewater_testing::postgres::connect(url).await?;
        client.batch_execute(DDL).await?;
    }
    let centre = connect(url).await?;
    let tables = ["kind", "parent", "child"].map(everyone);
    let specs: [PublicationSpec; 1] = [publication("bench", tables.to_vec())];
    centre.deploy(&specs, false, 0).await?;
    let schemas = centre.load(&specs).await?;
    let mut remote = TestRemote::with_worker(schemas[0].clone(), centre.worker().await?, "anna");
    let kind_and_amount = |id: i64| match bad {
        _ if id % 3 != 0 => "1|7",
        Bad::Reference => "9|7",
        Bad::Check => "1|-7",
    };
    let good = (CHILDREN - (CHILDREN + 2) / 3).cast_unsigned();
    let mut changes = vec![insert("parent", "2|two")];
    changes.extend((0..CHILDREN).map(|id| {
        let rest = kind_and_amount(id);
        insert("child", &format!("{id}|2|{rest}"))
    }));
    let inserted = timed(&mut remote, &changes, [good + 1, 0]).await?;
    let is_good = |id: &i64| id % 3 != 0;
    let mut changes = vec![update("parent", "2|two", "3|two")];
    changes.extend(
        (0..CHILDREN)
            .filter(is_good)
            .enumerate()
            .map(|(number, id)| {
                let rest = kind_and_amount(number as i64);
                update("child", &format!("{id}|2|1|7"), &format!("{id}|3|{rest}"))
            }),
    );
    let bad = good.div_ceil(3);
    let followed = timed(&mut remote, &changes, [0, good - bad + 1]).await?;
    Ok([inserted, followed])
}

/// Uploads; `taken` are the inserts and updates that have to be.
async fn timed(
    remote: &mut TestRemote,
    changes: &[RowChange],
    taken: [u64; 2],
) -> anyhow::Result<Duration> {
    let upload = remote.next_upload(changes);
    let start = Instant::now();
    let outcome = remote.apply(upload).await;
    let elapsed = start.elapsed();
    let UploadOutcome::Applied { result, .. } = outcome else {
        anyhow::bail!("{outcome:?}");
    };
    anyhow::ensure!(
        [result.inserts, result.updates] == taken && result.conflicts == 0,
        "{} inserts, {} updates and {} conflicts in place of {taken:?}",
        result.inserts,
        result.updates,
        result.conflicts
    );
    Ok(elapsed)
}
