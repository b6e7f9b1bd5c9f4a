//! The snapshot from which a download is read: what the change logs tell of it.
//!
//! One flight opens it, looks at the watermarks, runs the queries of operators and asks whether the
//! logs have anything new for what the remotes hold.

use futures_util::FutureExt;

use tidewater_protocol::Datum;

use super::array_rows::ArrayRows;
use super::connection::PostgresConnection;
use super::publication::{PostgresTables, TableRule};
use super::triggers::LogSpec;
use super::values::PostgresType;
use super::watermark::snapshot;
use super::{PostgresShared, members};
use crate::driver_error::statement_failed;
use tidewater_centre::download::DownloadSubscription;
use tidewater_centre::engine::connection::DatabaseConnection;
use tidewater_centre::engine::download::snapshot_driver::{
    DurableMark, HistoryAnswer, HistoryQuestion, OpeningFailure, SafeTime, SnapshotDriver,
};
use tidewater_centre::engine::exact::unpack;
use tidewater_centre::engine::flight::{FlightStep, RowParameters, RowSource, TableStatement};
use tidewater_centre::engine::scope::ScopeChange;
use tidewater_centre::engine::sql::condition_arguments::ConditionArguments;
use tidewater_centre::engine::sql::reading::is_in_source;
use tidewater_centre::error::CentreError;
use tidewater_centre::scope::HeldPartitions;

/// How long nothing is done again about partitions that could not be tracked.
pub(super) const ADOPT_AGAIN_MS: u64 = 60_000;

/// Of subscriptions, with mark and snapshot of the watermark (both NULL without one), remote and
/// publication: the subscription's number from 1; the snapshot; when the mark was made, NULL if there
/// is none or its snapshot is from before the logs begin; the logs of which everything is sent; the
/// serials of the subscription's scopes.
const STATE: &str = "
SELECT v.n, pg_catalog.pg_current_snapshot()::text,
  (SELECT created_ms FROM tidewater.mark WHERE id = v.c1
    AND pg_catalog.pg_snapshot_xmin(v.c2::pg_snapshot) >= (SELECT log_floor FROM tidewater.history)),
  (SELECT string_agg(e.log_id::text, ',') FROM (
    SELECT log_id FROM tidewater.everything
    WHERE version >= pg_catalog.pg_snapshot_xmin(v.c2::pg_snapshot)
      AND NOT pg_catalog.pg_visible_in_snapshot(version, v.c2::pg_snapshot)
    UNION ALL SELECT log_id FROM tidewater.untracked) AS e),
  s.scope_serial, s.previous_serial, s.graced_serial, s.given_back_serial
FROM {rows} LEFT JOIN LATERAL (
  SELECT scope_serial, previous_serial, graced_serial, given_back_serial
  FROM tidewater.subscription WHERE remote_id = v.c3 AND publication = v.c4 OFFSET 0) s ON true";

/// What a remote has seen of the change logs.
#[derive(Clone, Debug)]
pub(super) struct SeenSnapshot {
    /// As text, the snapshot that it knows.
    snapshot: String,
    /// The version that its download leaves out: what it has uploaded itself.
    own_version: String,
}

/// See [`SnapshotDriver`].
pub(super) struct DatabaseSnapshot<'p> {
    pub(super) connection: &'p mut PostgresConnection,
    pub(super) shared: &'p PostgresShared,
    /// Partitions that came or went were taken in for it.
    pub(super) has_adopted: bool,
}

impl SnapshotDriver for DatabaseSnapshot<'_> {
    type Tables = PostgresTables;
    type Connection = PostgresConnection;
    type Seen = SeenSnapshot;

    fn connection(&mut self) -> &mut PostgresConnection {
        self.connection
    }

    async fn find_safe_time(&mut self, _: i64) -> Result<SafeTime, CentreError> {
        self.shared.safe_times.look(self.connection.client()).await
    }

    async fn open(
        &mut self,
        asked: &[HistoryQuestion<'_, PostgresTables>],
        begin: FlightStep<'_, PostgresTables>,
        others: Vec<FlightStep<'_, PostgresTables>>,
    ) -> Result<Option<Vec<HistoryAnswer<SeenSnapshot>>>, OpeningFailure> {
        let seen = asked.iter().map(|asked| {
            let position = &asked.presented.as_ref()?.watermark.position;
            Some(SeenSnapshot {
                snapshot: snapshot(position)?.to_owned(),
                own_version: own_version(asked.subscription),
            })
        });
        let seen: Vec<Option<SeenSnapshot>> = seen.collect();
        let known = state_rows(asked, &seen)?;
        let mut states = vec![HistoryState::default(); asked.len()];
        let news = NewsQuestion::find(asked, &seen)?;
        let mut has_news = vec![false; asked.len()];
        let mut strange = Vec::new();
        let partitioned = partitioned_logs(asked);
        let mut found_news: Vec<Vec<usize>> = vec![Vec::new(); news.len()];
        let mut steps = vec![begin, ask_state(&known, &mut states)];
        let asks = news.iter().zip(&mut found_news);
        steps.extend(asks.map(|(question, found)| question.step(found)));
        if !partitioned.is_empty() {
            steps.push(ask_members(&partitioned, &mut strange));
        }
        let before = steps.len();
        steps.extend(others);
        let opened = self.connection.run("opening a download", steps).await;
        opened.map_err(|failure| OpeningFailure::behind(before, failure))?;
        if !strange.is_empty() && self.adopt(asked, &strange).await? {
            return Ok(None);
        }
        for number in found_news.into_iter().flatten() {
            has_news[number] = true;
        }
        let answers = asked.iter().zip(seen).zip(states).zip(has_news);
        let answers = answers.map(|(((asked, seen), state), has_news)| {
            state.answer(asked, seen, has_news, &strange)
        });
        Ok(Some(answers.collect()))
    }

    fn unseen<'a>(
        seen: &'a SeenSnapshot,
        _: usize,
        arguments: &mut ConditionArguments<'a, PostgresType>,
    ) -> String {
        let mut text = |value: &'a str| arguments.push(PostgresType::Text, Datum::Text(value));
        let known = text(&seen.snapshot);
        let oldest = text(xmin(&seen.snapshot));
        let own = text(&seen.own_version);
        format!(
            "l.version >= (SELECT {oldest}::text::xid8) \
             AND NOT pg_catalog.pg_visible_in_snapshot(l.version, (SELECT {known}::text::pg_snapshot)) \
             AND l.version <> (SELECT {own}::text::xid8)"
        )
    }

    async fn mark(
        &mut self,
        now_ms: i64,
        changes: Vec<ScopeChange>,
    ) -> Result<DurableMark, CentreError> {
        let id = self.shared.marks.ask(now_ms).await?;
        let mut serials = Vec::with_capacity(changes.len());
        if !changes.is_empty() {
            let mut connection = self.shared.pool.get().await?;
            for change in &changes {
                let noted = connection.flight("noting a scope", &change.note()).await?;
                serials.push(change.noted(&noted)?);
            }
        }
        Ok(DurableMark { id, serials })
    }

    async fn end(&mut self) -> Result<(), CentreError> {
        // Nobody waits for the end of a transaction that only read.
        let ended = self.connection.client().batch_execute("COMMIT");
        match ended.now_or_never() {
            Some(ended) => ended.map_err(statement_failed("ending a download")),
            None => Ok(()),
        }
    }
}

impl DatabaseSnapshot<'_> {
    /// Takes in the partitions that came or went, if it can be done at once. If not, their tables go
    /// whole.
    async fn adopt(
        &mut self,
        asked: &[HistoryQuestion<'_, PostgresTables>],
        strange: &[i64],
    ) -> Result<bool, CentreError> {
        let now_ms = asked.first().map_or(0, |it| it.now_ms);
        if self.has_adopted || !self.shared.may_adopt(now_ms) {
            return Ok(false);
        }
        let rules = asked.iter().flat_map(|it| &it.publication.tables);
        let rules = rules.flat_map(|it| &it.rules);
        let strange = rules.filter(|rule| strange.contains(&rule.log_id));
        let logs: Vec<&LogSpec> = strange.filter_map(|rule| rule.log.as_ref()).collect();
        let mut side = self.shared.pool.get().await?;
        let Err(error) = members::adopt(&mut side, &logs).await else {
            self.has_adopted = true;
            return Ok(true);
        };
        if matches!(error, CentreError::Unavailable { .. }) {
            return Err(error);
        }
        self.shared.adopt_failed(now_ms);
        let tables: Vec<&str> = logs.iter().map(|log| log.title.as_str()).collect();
        tracing::warn!(
            %error,
            tables = tables.join(", "),
            "partitions came that could not be tracked: every download sends the whole table \
             until `tidewater deploy` has been run by a role that owns them"
        );
        Ok(false)
    }
}

/// The rows of [`STATE`].
fn state_rows(
    asked: &[HistoryQuestion<'_, PostgresTables>],
    seen: &[Option<SeenSnapshot>],
) -> Result<ArrayRows, CentreError> {
    let mut rows = ArrayRows::new(&STATE_KINDS);
    for (asked, seen) in asked.iter().zip(seen) {
        let mark = asked.presented.as_ref().filter(|_| seen.is_some());
        let mark = mark.map_or(Datum::Null, |it| Datum::Bytes(&it.watermark.mark));
        let known = seen.as_ref();
        let known = known.map_or(Datum::Null, |it| Datum::Text(&it.snapshot));
        rows.push(&[
            mark,
            known,
            Datum::Bytes(&asked.remote_id.0),
            Datum::Text(&asked.publication.schema.name),
        ]);
    }
    Ok(rows)
}

const STATE_KINDS: [PostgresType; 4] = [
    PostgresType::Bytea,
    PostgresType::Text,
    PostgresType::Bytea,
    PostgresType::Text,
];

/// What a row of [`STATE`] tells.
#[derive(Clone, Debug, Default)]
struct HistoryState {
    position: Vec<u8>,
    marked_ms: Option<i64>,
    /// The logs of which everything is sent.
    restarted: Vec<i64>,
    /// Those of the last, the previous, the graced and the given back scope.
    serials: [Option<u64>; 4],
}

fn ask_state<'s>(
    known: &'s ArrayRows,
    states: &'s mut [HistoryState],
) -> FlightStep<'s, PostgresTables> {
    let source = ArrayRows::source(&STATE_KINDS, 1);
    let text = STATE.replace("{rows}", &source.relation);
    let mut statement = TableStatement::new("opening a download", text);
    statement.rows.push(known);
    statement.yields = vec![PostgresType::Int8, PostgresType::Text, PostgresType::Int8];
    statement.yields.push(PostgresType::Text);
    statement.yields.extend([PostgresType::Int8; 4]);
    FlightStep::table(statement, |row| {
        let Some(state) = states.get_mut(ordinal(row)) else {
            return Ok(());
        };
        let logs = match row[3] {
            Datum::Text(logs) => logs.split(',').filter_map(|it| it.parse().ok()).collect(),
            _ => Vec::new(),
        };
        *state = HistoryState {
            position: row[1].to_string().into_bytes(),
            marked_ms: integer(&row[2]),
            restarted: logs,
            serials: [4, 5, 6, 7].map(|at| integer(&row[at])?.try_into().ok()),
        };
        Ok(())
    })
}

impl HistoryState {
    fn answer(
        self,
        asked: &HistoryQuestion<'_, PostgresTables>,
        seen: Option<SeenSnapshot>,
        has_news: bool,
        strange: &[i64],
    ) -> HistoryAnswer<SeenSnapshot> {
        let marked_ms = self.marked_ms;
        let rules = asked.publication.tables.iter().flat_map(|it| &it.rules);
        let rules: Vec<&TableRule> = rules.collect();
        let is_traced = rules.iter().map(|rule| {
            let restarted = self.restarted.iter().chain(strange);
            marked_ms.is_some()
                && rule.log.is_some()
                && !restarted.into_iter().any(|it| *it == rule.log_id)
        });
        let news = seen.is_none() || has_news;
        // Of many partitions it is asked when it is known whether they are still the same.
        let held = rules.iter().zip(&*asked.publication.rules).enumerate();
        let unasked = held.filter(|(_, (of_table, rule))| {
            let held = asked.presented.as_ref().and_then(|it| it.held(rule.id));
            of_table.log.is_some()
                && held.is_some_and(|it| matches!(it.partitions, HeldPartitions::Digest(_)))
        });
        let [last, previous, graced, given_back] = self.serials;
        HistoryAnswer {
            position: self.position,
            marked_ms,
            serials: (|| Some((last?, previous?, graced?, given_back)))(),
            is_traced: is_traced.collect(),
            unasked: match marked_ms {
                Some(_) => unasked.map(|(number, _)| number).collect(),
                None => Vec::new(),
            },
            seen: seen.filter(|_| marked_ms.is_some()),
            news,
        }
    }
}

/// The change logs of partitioned tables.
fn partitioned_logs(asked: &[HistoryQuestion<'_, PostgresTables>]) -> Vec<i64> {
    let rules = asked.iter().flat_map(|it| &it.publication.tables);
    let rules = rules.flat_map(|it| &it.rules);
    let logs = rules.filter(|rule| rule.log.as_ref().is_some_and(|log| log.partitioned));
    let mut logs: Vec<i64> = logs.map(|rule| rule.log_id).collect();
    logs.sort_unstable();
    logs.dedup();
    logs
}

/// Asks whether partitioned tables still have the partitions that are tracked.
fn ask_members<'s>(logs: &[i64], strange: &'s mut Vec<i64>) -> FlightStep<'s, PostgresTables> {
    let logs = logs.iter().map(i64::to_string).collect::<Vec<_>>();
    let text = members::changed(&format!("'{{{}}}'", logs.join(",")));
    let mut statement = TableStatement::new("looking at partitions", text);
    statement.yields = vec![PostgresType::Int4];
    FlightStep::table(statement, |row| {
        strange.extend(integer(&row[0]));
        Ok(())
    })
}

/// The lowest transaction id that a snapshot does not see for certain.
fn xmin(snapshot: &str) -> &str {
    snapshot.split(':').next().unwrap_or("0")
}

/// The version that the download leaves out.
fn own_version(subscription: &DownloadSubscription) -> String {
    let own = subscription.own.as_ref().filter(|own| own.skip_version);
    own.map_or(0, |own| own.version).to_string()
}

fn integer(value: &Datum<'_>) -> Option<i64> {
    match value {
        Datum::Integer(integer) => Some(*integer),
        _ => None,
    }
}

/// The place that a number from 1 on stands for, in the first column.
fn ordinal(row: &[Datum<'_>]) -> usize {
    let number = integer(&row[0]).and_then(|it| usize::try_from(it - 1).ok());
    number.unwrap_or(usize::MAX)
}

/// The question for which of some subscriptions the log of a rule has anything new.
struct NewsQuestion {
    sql: String,
    /// For each partition that one of them holds: its number, the snapshot that it knows, the version
    /// that it leaves out, and the partition.
    rows: ArrayRows,
}

impl NewsQuestion {
    /// The questions that have to be asked.
    fn find(
        asked: &[HistoryQuestion<'_, PostgresTables>],
        seen: &[Option<SeenSnapshot>],
    ) -> Result<Vec<NewsQuestion>, CentreError> {
        let mut questions = Vec::new();
        for (first, of_first) in asked.iter().enumerate() {
            let publication = of_first.publication;
            let is_same = |it: &&HistoryQuestion<'_, PostgresTables>| {
                std::ptr::eq(it.publication, publication)
            };
            if asked[..first].iter().any(|it| is_same(&it)) {
                continue;
            }
            let tables = publication.tables.iter().flat_map(|it| &it.rules);
            for (table, rule) in tables.zip(&*publication.rules) {
                if table.log.is_none() {
                    continue;
                }
                let kinds = news_kinds(table);
                let mut rows = ArrayRows::new(&kinds);
                let known = asked.iter().zip(seen).enumerate();
                for (number, (asked, seen)) in known.filter(|(_, (it, _))| is_same(it)) {
                    let (Some(presented), Some(seen)) = (&asked.presented, seen) else {
                        continue;
                    };
                    let Some(held) = presented.held(rule.id) else {
                        continue;
                    };
                    let mut push = |values: &[Datum<'_>]| {
                        let mut row = vec![
                            Datum::Integer(number as i64),
                            Datum::Text(&seen.snapshot),
                            Datum::Text(&seen.own_version),
                        ];
                        row.extend(values);
                        rows.push(&row)
                    };
                    match &held.partitions {
                        _ if table.columns.is_empty() => drop(push(&[])),
                        HeldPartitions::Listed(partitions) => {
                            for packed in partitions.iter() {
                                push(&unpack(packed, &rule.types)?);
                            }
                        }
                        HeldPartitions::Digest(_) => {}
                    }
                }
                if rows.count() > 0 {
                    let sql = news(table, &ArrayRows::source(&kinds, 1));
                    questions.push(NewsQuestion { sql, rows });
                }
            }
        }
        Ok(questions)
    }

    /// The step that tells the numbers of the subscriptions for which there is something new.
    fn step<'s>(&'s self, found: &'s mut Vec<usize>) -> FlightStep<'s, PostgresTables> {
        let mut statement = TableStatement::new("looking for changes", &*self.sql);
        statement.rows.push(&self.rows);
        statement.yields = vec![PostgresType::Int8];
        FlightStep::table(statement, |row| {
            found.extend(integer(&row[0]).and_then(|it| usize::try_from(it).ok()));
            Ok(())
        })
    }
}

fn news_kinds(rule: &TableRule) -> Vec<PostgresType> {
    let own = [PostgresType::Int8, PostgresType::Text, PostgresType::Text];
    let columns = rule.columns.iter().map(|it| it.kind);
    own.into_iter().chain(columns).collect()
}

/// The text of [`NewsQuestion`]. By the log's index for each partition, however many entries there are:
/// LIMIT keeps PostgreSQL from reading all of the log once instead.
fn news(rule: &TableRule, source: &RowSource) -> String {
    let values = (0..rule.columns.len()).map(|at| format!("s.s{at}"));
    let columns: Vec<String> = values.collect();
    let names = (0..rule.columns.len()).map(|at| format!(", v.c{} AS s{at}", at + 4));
    let partitions = RowSource {
        columns,
        ..RowSource::none()
    };
    format!(
        "SELECT s.n FROM (SELECT v.c1 AS n, v.c2::pg_snapshot AS known, \
         pg_catalog.pg_snapshot_xmin(v.c2::pg_snapshot) AS low, v.c3::xid8 AS own{} \
         FROM {} OFFSET 0) s, LATERAL (SELECT FROM {} l WHERE {}l.version >= s.low \
         AND NOT pg_catalog.pg_visible_in_snapshot(l.version, s.known) \
         AND l.version <> s.own LIMIT 1) l",
        names.collect::<String>(),
        source.relation,
        rule.log_table(),
        is_in_source(rule, &partitions),
    )
}
