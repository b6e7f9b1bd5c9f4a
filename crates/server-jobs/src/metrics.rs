//! What the server counts and measures, as `/metrics` shows it.
//!
//! Owns the names, the help and the units. Others say in one line each what has happened; what is
//! known elsewhere (lanes, memory) is asked when somebody looks, and what only the database knows is
//! brought by the server's maintenance. Documented in `docs/operations.md`.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};
use tokio::time::Instant;

use tidewater_centre::records::{CentrePulse, SyncRecord};
use tidewater_protocol::Code;

use crate::fault::Fault;
use crate::memory::MemoryGauge;
use crate::upstream::UpstreamFigures;
use crate::worker_pool::LaneFigures;

/// The upper ends of the histograms, in seconds.
const BUCKETS: [f64; 12] = [
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0, 30.0, 120.0,
];

/// One label and its value.
type Label = [(&'static str, &'static str); 1];

/// A gauge that is there while its value is known.
#[derive(Clone, Debug, Default)]
struct OptionalGauge(Arc<Mutex<Option<f64>>>);

impl OptionalGauge {
    fn value(&self) -> MutexGuard<'_, Option<f64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EncodeMetric for OptionalGauge {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match *self.value() {
            Some(value) => encoder.encode_gauge(&value),
            None => Ok(()),
        }
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}

/// What a sync spends its time with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// From the SignIn to the answer.
    SignIn,
    /// Handlers are asked.
    Ask,
    /// For a worker.
    Wait,
    /// A worker applies the uploads.
    Apply,
    /// A worker reads the downloads.
    Read,
    /// From the first row that is there to the last that the network has taken.
    Send,
}

const PHASES: [&str; 6] = ["sign_in", "ask", "wait", "apply", "read", "send"];

type Phases = [Histogram; PHASES.len()];

/// What becomes of events.
const EVENTS: [&str; 3] = ["published", "delivered", "missed"];

/// See the module.
pub struct Metrics {
    registry: Registry,
    syncs: Family<Label, Counter>,
    failed_sign_ins: Family<Label, Counter>,
    turned_away: Counter,
    rows: Family<Label, Counter>,
    bytes: Family<Label, Counter>,
    refused: Counter,
    conflicts: Counter,
    differing_rows: Counter,
    phases: Arc<Phases>,
    connections: Gauge,
    backlog: Family<Label, Gauge>,
    workers: Family<Label, Gauge>,
    busy_workers: Family<Label, Gauge>,
    events: Family<Label, Counter>,
    calls: Family<Label, Counter>,
    handlers: Family<[(&'static str, String); 2], Counter>,
    closed_handlers: Family<[(&'static str, String); 1], Gauge>,
    live: Gauge,
    waking: Gauge,
    waiting_events: Gauge,
    nats: OptionalGauge,
    memory: Gauge,
    spooled: Gauge,
    oldest_transaction: OptionalGauge,
    oldest_watermark: OptionalGauge,
    lock_waits: OptionalGauge,
    log_entries: Family<[(&'static str, String); 1], Gauge>,
    upstream_age: OptionalGauge,
    upstream_failing: OptionalGauge,
    upstream_pending: OptionalGauge,
    upstream_refused: OptionalGauge,
}

/// Registers metrics, and gives them to whoever counts.
struct MetricsBuilder(Registry);

impl MetricsBuilder {
    fn plain<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        let metric = M::default();
        self.0.register(name, help, metric.clone());
        metric
    }

    fn with_unit<M: Metric + Clone + Default>(&mut self, name: &str, unit: Unit, help: &str) -> M {
        let metric = M::default();
        self.0.register_with_unit(name, help, unit, metric.clone());
        metric
    }

    fn phases(&mut self) -> Arc<Phases> {
        let make = || Histogram::new(BUCKETS);
        let family = Family::<Label, Histogram, _>::new_with_constructor(make as fn() -> Histogram);
        let phases = PHASES.map(|name| family.get_or_create_owned(&[("phase", name)]));
        let help = "What syncs spend their time with";
        self.0
            .register_with_unit("phase", help, Unit::Seconds, family);
        Arc::new(phases)
    }
}

impl Metrics {
    /// Metrics of a server with these limits.
    pub fn new(connections: usize, memory_bytes: u64) -> Metrics {
        let mut make = MetricsBuilder(Registry::with_prefix("tidewater"));
        let limit: Gauge = make.plain(
            "connections_limit",
            "Connections that there may be: server.limits.connections",
        );
        limit.set(signed(connections));
        let limit: Gauge = make.with_unit(
            "memory_limit",
            Unit::Bytes,
            "Memory for rows on their way: server.limits.memory",
        );
        limit.set(i64::try_from(memory_bytes).unwrap_or(i64::MAX));
        let metrics = Metrics {
            syncs: make.plain(
                "syncs",
                "Syncs that have ended: done, or the code of what went wrong",
            ),
            failed_sign_ins: make.plain(
                "failed_sign_ins",
                "Connections that were not let in, by the code of what went wrong",
            ),
            turned_away: make.plain(
                "turned_away",
                "Connections over the limit, which were told to come back",
            ),
            rows: make.plain("rows", "Rows uploaded and downloaded"),
            bytes: make.with_unit("traffic", Unit::Bytes, "Bytes received and sent in syncs"),
            refused: make.plain("refused_rows", "Uploaded rows that the centre did not take"),
            conflicts: make.plain("conflicts", "Uploaded changes that lost"),
            differing_rows: make.plain(
                "differing_rows",
                "Rows of remotes that were not equal to the centre when they verified themselves",
            ),
            phases: make.phases(),
            connections: make.plain("connections", "Connections that there are"),
            backlog: make.plain("backlog", "What waits for a worker, by lane"),
            workers: make.plain("workers", "Workers that may be at work, by lane"),
            busy_workers: make.plain("busy_workers", "Workers that are at work, by lane"),
            events: make.plain(
                "events",
                "Events published, put before subscribers, and missed by slow ones",
            ),
            calls: make.plain(
                "calls",
                "Calls that have ended: done, or the code of what went wrong",
            ),
            handlers: make.plain(
                "handler_requests",
                "Requests to handlers: answered, away, or wrong",
            ),
            closed_handlers: make.plain(
                "handler_left_alone",
                "Whether a handler is not asked for a while because it was away: 1, or 0",
            ),
            live: make.plain("live_remotes", "Remotes that are told when to sync"),
            waking: make.plain("waking_remotes", "Live remotes that wait to be told"),
            waiting_events: make.with_unit(
                "waiting_events",
                Unit::Bytes,
                "Events that wait for subscribers",
            ),
            nats: make.plain("nats_connected", "Whether NATS is connected: 1, or 0"),
            memory: make.with_unit("memory", Unit::Bytes, "Memory that rows on their way hold"),
            spooled: make.with_unit(
                "spooled",
                Unit::Bytes,
                "Rows on their way that are in temporary files",
            ),
            oldest_transaction: make.with_unit(
                "oldest_transaction",
                Unit::Seconds,
                "Age of the oldest transaction that is open in the centre",
            ),
            oldest_watermark: make.with_unit(
                "oldest_watermark",
                Unit::Seconds,
                "How long ago the remote synced that has not for the longest time",
            ),
            lock_waits: make.plain("lock_waits", "Sessions of the centre that wait for a lock"),
            upstream_age: make.with_unit(
                "upstream_age",
                Unit::Seconds,
                "How long ago the branch last synced with headquarters",
            ),
            upstream_failing: make.plain(
                "upstream_failing",
                "Whether the last sync with headquarters failed: 1, or 0",
            ),
            upstream_pending: make.plain(
                "upstream_pending",
                "Rows of the branch that wait for headquarters",
            ),
            upstream_refused: make.plain(
                "upstream_refused",
                "Rows of the branch that headquarters has refused",
            ),
            log_entries: make.plain("log_entries", "Entries of the change logs, by table, about"),
            registry: make.0,
        };
        // What has not happened yet is 0 and not missing.
        drop(metrics.syncs.get_or_create(&[("outcome", "done")]));
        drop(metrics.calls.get_or_create(&[("outcome", "done")]));
        for direction in ["uploaded", "downloaded"] {
            drop(metrics.rows.get_or_create(&[("direction", direction)]));
        }
        metrics
    }

    /// A connection that is there until the guard is dropped.
    pub fn connected(&self) -> ConnectionCount<'_> {
        self.connections.inc();
        ConnectionCount(&self.connections)
    }

    /// Somebody was told that there are too many.
    pub fn turned_away(&self) {
        self.turned_away.inc();
    }

    /// A connection is not let in.
    pub fn sign_in_failed(&self, fault: &Fault) {
        let label = [("code", fault.code.name())];
        self.failed_sign_ins.get_or_create(&label).inc();
    }

    /// A sync has ended.
    pub fn sync<T>(&self, result: &Result<T, Fault>, record: &SyncRecord) {
        let outcome = result
            .as_ref()
            .map_or_else(|fault| fault.code.name(), |_| "done");
        self.syncs.get_or_create(&[("outcome", outcome)]).inc();
        self.refused.inc_by(record.refused);
        self.conflicts.inc_by(record.conflicts);
        let [received, sent] = record.bytes;
        let (up, down) = (record.uploaded.iter(), record.downloaded.iter());
        for (family, direction, count) in [
            (&self.rows, "uploaded", up.sum()),
            (&self.rows, "downloaded", down.sum()),
            (&self.bytes, "received", received),
            (&self.bytes, "sent", sent),
        ] {
            let label = [("direction", direction)];
            family.get_or_create(&label).inc_by(count);
        }
    }

    /// So many rows of a remote were not equal to the centre.
    pub fn differed(&self, rows: u64) {
        self.differing_rows.inc_by(rows);
    }

    /// A call has ended, with this code if it came to nothing.
    pub fn call(&self, failed: Option<Option<Code>>) {
        let outcome = match failed {
            None => "done",
            Some(code) => code.map_or("unknown", Code::name),
        };
        self.calls.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// A handler was asked.
    pub fn handler(&self, name: &str, outcome: &'static str) {
        let label = [
            ("handler", name.to_owned()),
            ("outcome", outcome.to_owned()),
        ];
        self.handlers.get_or_create(&label).inc();
    }

    /// Something begins.
    pub fn timer(&self, phase: Phase) -> Timer {
        Timer {
            phases: self.phases.clone(),
            phase,
            begun: Instant::now(),
        }
    }

    /// What the database says; `None`: it does not answer, and what it said before is old.
    pub fn centre(&self, pulse: Option<&CentrePulse>, now_ms: i64) {
        let age = |since_ms: Option<i64>| Some((now_ms - since_ms?).max(0) as f64 / 1_000.0);
        let oldest_ms = pulse.and_then(|it| it.oldest_transaction_ms);
        *self.oldest_transaction.value() = age(oldest_ms);
        *self.oldest_watermark.value() = age(pulse.and_then(|it| it.oldest_sync_ms));
        let waits = pulse.and_then(|it| it.lock_waits);
        *self.lock_waits.value() = waits.map(|count| count as f64);
        // A table that is published no longer has no log.
        self.log_entries.clear();
        let mut logs: Vec<(&str, u64)> = Vec::new();
        for (table, entries) in pulse.iter().flat_map(|it| &it.logs) {
            match logs.iter_mut().find(|it| it.0 == table) {
                Some(known) => known.1 += entries,
                None => logs.push((table, *entries)),
            }
        }
        for (table, entries) in logs {
            let label = [("table", table.to_owned())];
            let entries = i64::try_from(entries).unwrap_or(i64::MAX);
            self.log_entries.get_or_create(&label).set(entries);
        }
    }

    /// All of it as OpenMetrics text, with what is known elsewhere.
    ///
    /// # Errors
    /// There is no text that is no text.
    pub fn render(&self, figures: &ServerFigures) -> Result<String, fmt::Error> {
        for lane in &figures.lanes {
            let label = [("lane", lane.name)];
            self.workers.get_or_create(&label).set(signed(lane.level));
            self.busy_workers
                .get_or_create(&label)
                .set(signed(lane.busy));
            self.backlog.get_or_create(&label).set(signed(lane.waiting));
        }
        for (what, count) in EVENTS.into_iter().zip(figures.events) {
            let counter = self.events.get_or_create(&[("what", what)]);
            counter.inc_by(count.saturating_sub(counter.get()));
        }
        self.closed_handlers.clear();
        for (handler, is_closed) in &figures.handlers {
            let label = [("handler", handler.clone())];
            let gauge = self.closed_handlers.get_or_create(&label);
            gauge.set(i64::from(*is_closed));
        }
        *self.nats.value() = figures.nats.map(|it| f64::from(u8::from(it)));
        self.live.set(signed(figures.live));
        self.waking.set(signed(figures.waking));
        self.waiting_events.set(signed(figures.waiting_event_bytes));
        let upstream = figures.upstream.as_ref();
        *self.upstream_age.value() = upstream.and_then(|it| Some(it.age?.as_secs_f64()));
        *self.upstream_failing.value() = upstream.map(|it| f64::from(u8::from(it.is_failing)));
        *self.upstream_pending.value() = upstream.map(|it| it.pending as f64);
        *self.upstream_refused.value() = upstream.map(|it| it.refused as f64);
        let held = i64::try_from(figures.memory.reserved_bytes()).unwrap_or(i64::MAX);
        self.memory.set(held);
        let spooled = i64::try_from(figures.memory.spooled_bytes()).unwrap_or(i64::MAX);
        self.spooled.set(spooled);
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// What the parts of a server know when somebody looks.
#[derive(Clone, Debug)]
pub struct ServerFigures {
    /// What the workers are doing.
    pub lanes: Vec<LaneFigures>,
    /// Events published, put before subscribers, and missed by slow ones.
    pub events: [u64; 3],
    /// Handlers, and whether each is left alone.
    pub handlers: Vec<(String, bool)>,
    /// Whether NATS is connected; `None` without NATS.
    pub nats: Option<bool>,
    /// Remotes that are told when to sync.
    pub live: usize,
    /// Of these, those that wait to be told.
    pub waking: usize,
    /// Bytes of events that wait for subscribers.
    pub waiting_event_bytes: usize,
    /// The line to headquarters, where the server is a branch's.
    pub upstream: Option<UpstreamFigures>,
    /// Memory and temporary files of rows on their way.
    pub memory: MemoryGauge,
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// See [`Metrics::connected`].
pub struct ConnectionCount<'a>(&'a Gauge);

impl Drop for ConnectionCount<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Measures phases that follow each other, the last one when it is dropped.
#[derive(Debug)]
pub struct Timer {
    phases: Arc<Phases>,
    phase: Phase,
    begun: Instant,
}

impl Timer {
    /// One phase has ended and another one begins.
    pub fn next(&mut self, phase: Phase) {
        self.observe();
        self.phase = phase;
        self.begun = Instant::now();
    }

    fn observe(&self) {
        let took = self.begun.elapsed().as_secs_f64();
        self.phases[self.phase as usize].observe(took);
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.observe();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_database_does_not_say_is_not_there() {
        let metrics = Metrics::new(10, 1_000);
        let text = || {
            let mut text = String::new();
            encode(&mut text, &metrics.registry).unwrap();
            text
        };
        assert!(
            !text().contains("\ntidewater_oldest_transaction_seconds "),
            "{}",
            text()
        );
        let pulse = CentrePulse {
            oldest_transaction_ms: Some(7_500),
            lock_waits: Some(3),
            logs: vec![("shop".into(), 4), ("shop".into(), 5)],
            ..CentrePulse::default()
        };
        metrics.centre(Some(&pulse), 10_000);
        for line in [
            "tidewater_oldest_transaction_seconds 2.5\n",
            "tidewater_lock_waits 3.0\n",
            "tidewater_log_entries{table=\"shop\"} 9\n",
        ] {
            assert!(text().contains(line), "{line}{}", text());
        }
        assert!(
            !text().contains("\ntidewater_oldest_watermark_seconds "),
            "{}",
            text()
        );
        metrics.centre(None, 10_000);
        assert!(!text().contains("shop"), "{}", text());
    }

    #[test]
    fn the_manual_has_every_figure() {
        let page = include_str!("../../../docs/operations.md");
        let mut text = String::new();
        encode(&mut text, &Metrics::new(10, 1_000).registry).unwrap();
        let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        for family in families {
            let (name, kind) = family.split_once(' ').unwrap();
            let end = if kind == "counter" { "_total" } else { "" };
            let told = format!("`{name}{end}");
            let is_told = page.contains(&format!("{told}`")) || page.contains(&format!("{told}{{"));
            assert!(
                is_told,
                "docs/operations.md does not tell what {name}{end} means"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_ends_is_counted_by_how_it_ended_and_how_long_it_took() {
        let metrics = Metrics::new(10, 1_000);
        let record = SyncRecord {
            uploaded: [1, 2, 3],
            refused: 4,
            bytes: [10, 20],
            ..SyncRecord::default()
        };
        metrics.sync(&Ok::<_, Fault>(()), &record);
        metrics.sync(&Err::<(), _>(Fault::busy(1)), &SyncRecord::default());
        metrics.sign_in_failed(&Fault::peer(Code::WrongPassword, "no"));
        let mut timer = metrics.timer(Phase::Wait);
        tokio::time::advance(std::time::Duration::from_secs(2)).await;
        timer.next(Phase::Apply);
        drop(timer);
        drop(metrics.connected());
        let mut text = String::new();
        encode(&mut text, &metrics.registry).unwrap();
        for line in [
            "tidewater_syncs_total{outcome=\"done\"} 1\n",
            "tidewater_syncs_total{outcome=\"busy\"} 1\n",
            "tidewater_failed_sign_ins_total{code=\"wrong_password\"} 1\n",
            "tidewater_rows_total{direction=\"uploaded\"} 6\n",
            "tidewater_traffic_bytes_total{direction=\"sent\"} 20\n",
            "tidewater_refused_rows_total 4\n",
            "tidewater_phase_seconds_sum{phase=\"wait\"} 2.0\n",
            "tidewater_phase_seconds_count{phase=\"apply\"} 1\n",
            "tidewater_connections 0\n",
            "tidewater_connections_limit 10\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }
}
