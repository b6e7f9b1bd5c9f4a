//! PostgreSQL alone: prepared statements with arrays, COPY, one transaction a batch, everything of
//! a transaction on its way before the first answer is back.

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use futures_util::{SinkExt, TryStreamExt};
use tidewater_purchase::{Purchase, purchases};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, Statement};

use super::{Load, TABLE};
use crate::base::{connect, runtime};
use crate::copy::{Micros, Timestamp, encode};
use crate::driver::employee;
use crate::report::TimedOperation;

const COLUMNS: &str = "emp_id, purch_id, cust_id, cost, order_date, notes";

/// Seconds of each operation.
pub(super) fn measure(url: &str, load: Load, cores: usize) -> anyhow::Result<[f64; 4]> {
    let runtime = runtime()?;
    let clients = (0..cores.max(1)).map(|_| runtime.block_on(connect(url)));
    let clients: Vec<Arc<Client>> = clients
        .map(|client| client.map(Arc::new))
        .collect::<anyhow::Result<_>>()?;
    let settle = format!("VACUUM ANALYZE {TABLE}");
    // What is downloaded has to be there.
    run(&runtime, &clients, load, TimedOperation::Insert)?;
    runtime.block_on(clients[0].batch_execute(&settle))?;
    let mut seconds = [0.0; 4];
    for (operation, seconds) in TimedOperation::TIMED.into_iter().zip(&mut seconds) {
        *seconds = run(&runtime, &clients, load, operation)?.as_secs_f64();
    }
    Ok(seconds)
}

/// What a batch needs, made beforehand.
enum PreparedBatch {
    Keys(Vec<i32>),
    Copy(Vec<Bytes>),
    Rows(Box<Arrays>),
}

/// Rows by columns.
#[derive(Default)]
struct Arrays {
    emp_id: Vec<i32>,
    purch_id: Vec<i32>,
    cust_id: Vec<i32>,
    cost: Vec<Micros>,
    order_date: Vec<Timestamp>,
    notes: Vec<String>,
    seen: Vec<Micros>,
}

impl PreparedBatch {
    fn new(operation: TimedOperation, remotes: Range<u32>, rows: u32) -> PreparedBatch {
        let employees = remotes.map(employee);
        let all = |employees: Vec<i32>| {
            let of_one = move |employee| purchases(employee, 0..rows as i32);
            employees.into_iter().flat_map(of_one)
        };
        match operation {
            TimedOperation::Insert => PreparedBatch::Copy(encode(all(employees.collect()))),
            TimedOperation::Update | TimedOperation::Delete => {
                let mut arrays = Arrays::default();
                for row in all(employees.collect()) {
                    // Deletes come after updates.
                    let updated = row.clone().updated();
                    match operation {
                        TimedOperation::Update => arrays.push(updated, row.cost_micros),
                        _ => arrays.push(updated.clone(), updated.cost_micros),
                    }
                }
                PreparedBatch::Rows(Box::new(arrays))
            }
            _ => PreparedBatch::Keys(employees.collect()),
        }
    }
}

impl Arrays {
    fn push(&mut self, row: Purchase, seen: i64) {
        self.emp_id.push(row.emp_id);
        self.purch_id.push(row.purch_id);
        self.cust_id.push(row.cust_id);
        self.cost.push(Micros(row.cost_micros));
        self.order_date.push(Timestamp(row.order_date_micros));
        self.notes.push(row.notes);
        self.seen.push(Micros(seen));
    }
}

fn run(
    runtime: &Runtime,
    clients: &[Arc<Client>],
    load: Load,
    operation: TimedOperation,
) -> anyhow::Result<Duration> {
    let batches = load.batches().into_iter();
    let prepared = batches.map(|remotes| PreparedBatch::new(operation, remotes, load.rows));
    let prepared: Arc<Vec<PreparedBatch>> = Arc::new(prepared.collect());
    let next = Arc::new(AtomicUsize::new(0));
    let statements = clients.iter().map(|it| it.prepare(sql(operation)));
    let statements: Vec<Statement> = statements
        .map(|statement| Ok(runtime.block_on(statement)?))
        .collect::<anyhow::Result<_>>()?;
    let start = Instant::now();
    let done: u64 = runtime.block_on(async {
        let mut tasks = Vec::new();
        for (client, statement) in clients.iter().zip(statements) {
            let (client, prepared, next) = (client.clone(), prepared.clone(), next.clone());
            tasks.push(tokio::spawn(async move {
                let mut done = 0;
                while let Some(batch) = prepared.get(next.fetch_add(1, Ordering::Relaxed)) {
                    done += one(&client, &statement, batch).await?;
                }
                anyhow::Ok(done)
            }));
        }
        let mut done = 0;
        for task in tasks {
            done += task.await??;
        }
        anyhow::Ok(done)
    })?;
    let elapsed = start.elapsed();
    let name = operation.name();
    anyhow::ensure!(
        done == load.all_rows(),
        "PostgreSQL alone: {name} of {done} rows, not of {}",
        load.all_rows()
    );
    Ok(elapsed)
}

fn sql(operation: TimedOperation) -> &'static str {
    match operation {
        TimedOperation::Insert => "SELECT 1",
        TimedOperation::Update => UPDATE,
        TimedOperation::Delete => DELETE,
        _ => DOWNLOAD,
    }
}

const DOWNLOAD: &str = "SELECT emp_id, purch_id, cust_id, cost, order_date, notes \
     FROM bench_limit WHERE emp_id = ANY($1::int[])";
/// Rows as the remote last saw them, and those of the table that are still so.
macro_rules! seen {
    ($change:literal) => {
        concat!(
            $change,
            " unnest($1::int[], $2::int[], $3::int[], $4::numeric[], $5::timestamp[], $6::text[], \
               $7::numeric[]) AS u(emp_id, purch_id, cust_id, cost, order_date, notes, seen) \
             WHERE t.emp_id = u.emp_id AND t.purch_id = u.purch_id \
               AND t.cust_id IS NOT DISTINCT FROM u.cust_id AND t.cost IS NOT DISTINCT FROM u.seen \
               AND t.order_date IS NOT DISTINCT FROM u.order_date \
               AND t.notes IS NOT DISTINCT FROM u.notes"
        )
    };
}
const UPDATE: &str = seen!(
    "UPDATE bench_limit AS t SET cust_id = u.cust_id, cost = u.cost, \
     order_date = u.order_date, notes = u.notes FROM"
);
const DELETE: &str = seen!("DELETE FROM bench_limit AS t USING");

/// One batch; returns its rows.
async fn one(client: &Client, statement: &Statement, batch: &PreparedBatch) -> anyhow::Result<u64> {
    match batch {
        PreparedBatch::Keys(keys) => {
            let rows = client.query_raw(statement, [keys]).await?;
            let mut rows = pin!(rows);
            let mut count = 0;
            while rows.try_next().await?.is_some() {
                count += 1;
            }
            Ok(count)
        }
        PreparedBatch::Copy(pieces) => {
            let copy = format!("COPY {TABLE} ({COLUMNS}) FROM STDIN (FORMAT BINARY)");
            let sink = client.copy_in(&copy).await.context("COPY was refused")?;
            let mut sink = pin!(sink);
            for piece in pieces {
                sink.send(piece.clone()).await?;
            }
            Ok(sink.finish().await?)
        }
        PreparedBatch::Rows(rows) => {
            let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 7] = [
                &rows.emp_id,
                &rows.purch_id,
                &rows.cust_id,
                &rows.cost,
                &rows.order_date,
                &rows.notes,
                &rows.seen,
            ];
            let (begun, changed, committed) = tokio::join!(
                client.batch_execute("BEGIN"),
                client.execute(statement, &parameters),
                client.batch_execute("COMMIT"),
            );
            begun?;
            committed?;
            Ok(changed?)
        }
    }
}
