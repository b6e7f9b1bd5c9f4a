//! The snapshot from which downloads are read: rows of partitions, changes, rows by their keys.

use std::sync::Arc;

use tidewater_protocol::{Code, ColumnType, Datum, Value, ValueRef};

use super::snapshot_driver::{DurableMark, SnapshotDriver};
use super::{KeyOrder, OpenedSubscription, RuleRows, TablePlace, TakeKey};
use crate::engine::assumed_role::AssumedRole;
use crate::engine::connection::{DatabaseConnection, StatementResult, SystemStatement};
use crate::engine::exact::unpack;
use crate::engine::flight::{
    ColumnKind as _, FlightStep, RowParameters as _, RowSource, StatementUse, TableStatement,
    TakeRow, ValueTypes,
};
use crate::engine::publication::Publication;
use crate::engine::scope::ScopeChange;
use crate::engine::scripts::{CompiledScript, ScriptStatement};
use crate::engine::sql::column::SqlColumn as _;
use crate::engine::sql::condition_arguments::ConditionArguments;
use crate::engine::sql::reading::{self, ChangedKeys};
use crate::engine::sql::served_table::{ServedTable, TableAdapter};
use crate::engine::sql::system_table::SystemType;
use crate::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

const READING: &str = "reading rows for a download";

/// A snapshot of the database in which jobs are read.
pub struct DownloadSnapshot<D: SnapshotDriver> {
    driver: D,
    publications: Vec<Arc<Publication<D::Tables>>>,
    opened: Vec<OpenedSubscription>,
    /// By subscription.
    readings: Vec<SubscriptionAccess<D::Seen>>,
    /// Who syncs, by job: user and remote.
    who: Vec<[String; 2]>,
    /// The job whose user the transaction knows.
    said: usize,
}

/// How a subscription is read.
pub(super) struct SubscriptionAccess<S> {
    /// The number of its job.
    pub(super) job: usize,
    /// What its remote has seen of the change logs, if that is known.
    pub(super) seen: Option<S>,
    /// Reads the application's tables.
    pub(super) acting: AssumedRole,
}

/// Which rows are read, as the columns that a statement yields.
struct RowColumns<T: TableAdapter> {
    outputs: String,
    kinds: Vec<T::Kind>,
}

impl<T: TableAdapter> RowColumns<T> {
    /// Rows as they are sent.
    fn sent(table: &ServedTable<T>) -> RowColumns<T> {
        RowColumns {
            outputs: table.outputs(),
            kinds: table.read_columns().map(|it| it.kind()).collect(),
        }
    }
}

impl<D: SnapshotDriver> DownloadSnapshot<D> {
    pub(super) fn new(
        driver: D,
        publications: Vec<Arc<Publication<D::Tables>>>,
        who: Vec<[String; 2]>,
        opened: Vec<OpenedSubscription>,
        readings: Vec<SubscriptionAccess<D::Seen>>,
    ) -> DownloadSnapshot<D> {
        DownloadSnapshot {
            driver,
            publications,
            opened,
            readings,
            // It was opened in the name of one after the other.
            said: who.len().saturating_sub(1),
            who,
        }
    }

    /// What was found out when the snapshot was opened, by subscription; once.
    pub(super) fn take_opened(&mut self) -> Vec<OpenedSubscription> {
        std::mem::take(&mut self.opened)
    }

    /// Sees to it that what the snapshot shows is durable, and notes what became of scopes.
    pub(super) async fn mark(
        &mut self,
        now_ms: i64,
        changes: Vec<ScopeChange>,
    ) -> Result<DurableMark> {
        self.driver.mark(now_ms, changes).await
    }

    /// About how many rows a table has; 0 if that is not known.
    pub(super) fn row_estimate(&self, place: TablePlace) -> u64 {
        self.table(place).row_estimate
    }

    /// Whether the rows of a table may weigh so many bytes. Where that cannot be told cheaply, they
    /// may.
    pub(super) async fn may_weigh(&mut self, place: TablePlace, bytes: u64) -> Result<bool> {
        // So many rows weigh more, and need not be asked for.
        if self.table(place).row_estimate > bytes {
            return Ok(true);
        }
        let publication = Arc::clone(&self.publications[place.subscription]);
        let Some(sql) = D::Tables::weight_sql(&publication.tables[place.table]) else {
            return Ok(true);
        };
        let mut weight = None;
        let mut statement = TableStatement::new("asking for the size of a table", sql);
        statement.yields = vec![<D::Tables as ValueTypes>::Kind::of_system(
            SystemType::Integer,
        )];
        let step = FlightStep::table(statement, |row| {
            weight = row.first().and_then(|it| match it {
                Datum::Integer(bytes) => u64::try_from(*bytes).ok(),
                _ => None,
            });
            Ok(())
        });
        self.driver.connection().run(READING, vec![step]).await?;
        Ok(weight.is_none_or(|it| it >= bytes))
    }

    /// Whether everybody for whom the server's own role reads a table sees the same rows.
    pub(super) async fn is_same_for_all(&mut self, place: TablePlace) -> Result<bool> {
        let publication = Arc::clone(&self.publications[place.subscription]);
        let Some(sql) = D::Tables::policies_sql(&publication.tables[place.table]) else {
            return Ok(true);
        };
        let mut is_same = false;
        let mut statement = TableStatement::new("looking for policies of a table", sql);
        statement.yields = vec![<D::Tables as ValueTypes>::Kind::of_system(
            SystemType::Boolean,
        )];
        let step = FlightStep::table(statement, |row| {
            is_same = row.first() == Some(&Datum::Boolean(false));
            Ok(())
        });
        self.driver.connection().run(READING, vec![step]).await?;
        Ok(is_same)
    }

    /// Runs statements on the server's own tables, in the snapshot.
    pub(super) async fn own(
        &mut self,
        statements: Vec<SystemStatement>,
    ) -> Result<Vec<StatementResult>> {
        let what = "reading a scope that was handed out";
        self.driver.connection().flight(what, &statements).await
    }

    /// Reads rows of a table.
    pub(super) async fn rows(
        &mut self,
        place: TablePlace,
        part: &RuleRows<'_>,
        take: TakeRow<'_>,
    ) -> Result<()> {
        let publication = Arc::clone(&self.publications[place.subscription]);
        let columns = RowColumns::sent(&publication.tables[place.table]);
        self.read_part(place, part, columns, take).await
    }

    /// Reads the same rows, each first as a remote keeps it and then as it is sent.
    pub(super) async fn kept_rows(
        &mut self,
        place: TablePlace,
        part: &RuleRows<'_>,
        take: TakeKey<'_>,
    ) -> Result<()> {
        let publication = Arc::clone(&self.publications[place.subscription]);
        let table = &publication.tables[place.table];
        let mut columns = RowColumns::sent(table);
        let width = columns.kinds.len();
        // By column that a remote may keep otherwise: its text.
        let mut kept = Vec::new();
        for (index, column) in table.columns.iter().enumerate() {
            if let Some(output) = column.kept_output("t.") {
                kept.push(index);
                columns.outputs.push_str(&format!(", {output}"));
                columns.kinds.push(text_kind::<D::Tables>());
            }
        }
        let types = &publication.row_types[place.table];
        let mut take = |row: &[Datum<'_>]| {
            let (sent, texts) = row.split_at(width);
            if texts.iter().all(|it| *it == Datum::Null) {
                return take(sent, Some(sent));
            }
            let mut as_kept = sent.to_vec();
            for (&index, text) in kept.iter().zip(texts) {
                let is_strange = matches!(sent[index], Datum::Loose(_));
                if let Datum::Text(text) = text
                    && is_strange
                {
                    as_kept[index] = types[index].datum(ValueRef::Text(text)).0;
                }
            }
            take(&as_kept, Some(sent))
        };
        self.read_part(place, part, columns, &mut take).await
    }

    /// How many rows of a part, in whatever order, have no key; see
    /// [`keyless_rows`](crate::engine::change_tracking::ChangeTracking::keyless_rows).
    pub(super) async fn keyless_rows(
        &mut self,
        place: TablePlace,
        part: &RuleRows<'_>,
    ) -> Result<u64> {
        let publication = Arc::clone(&self.publications[place.subscription]);
        let table = &publication.tables[place.table];
        let Some(has_no_key) = &table.has_no_key else {
            return Ok(0);
        };
        let begins = reading::keyless_rows(table, part.rule, has_no_key);
        let kinds = vec![<D::Tables as ValueTypes>::Kind::of_system(
            SystemType::Integer,
        )];
        let mut found = 0;
        let mut take = |row: &[Datum<'_>]| {
            if let [Datum::Integer(rows)] = row {
                found += rows.unsigned_abs();
            }
            Ok(())
        };
        self.run_part(place, part, (&begins, &kinds), &mut take)
            .await?;
        Ok(found)
    }

    async fn read_part(
        &mut self,
        place: TablePlace,
        part: &RuleRows<'_>,
        columns: RowColumns<D::Tables>,
        take: TakeRow<'_>,
    ) -> Result<()> {
        let publication = Arc::clone(&self.publications[place.subscription]);
        let table = &publication.tables[place.table];
        let begins = reading::rows_of_rule(table, part.rule, &columns.outputs);
        self.run_part(place, part, (&begins, &columns.kinds), take)
            .await
    }

    /// Runs a query for a part: how it begins, and the kinds of what it yields. Where a database
    /// takes partitions as parameters it is run for one after the other.
    async fn run_part(
        &mut self,
        place: TablePlace,
        part: &RuleRows<'_>,
        (begins, kinds): (&str, &[<D::Tables as ValueTypes>::Kind]),
        take: TakeRow<'_>,
    ) -> Result<()> {
        self.say_who(place).await?;
        let publication = Arc::clone(&self.publications[place.subscription]);
        let table = &publication.tables[place.table];
        let rule = &table.rules[part.rule];
        let windows = &publication.rules[publication.rules_of(place.table)][part.rule].windows;
        let has_partitions = !rule.columns.is_empty();
        let at_once = match D::Tables::SPELLS_PARTITIONS {
            true => part.partitions.len().max(1),
            false => 1,
        };
        if has_partitions && part.partitions.is_empty() {
            return Ok(());
        }
        let everyone: [&[u8]; 1] = [&[]];
        let partitions: &[&[u8]] = match has_partitions {
            true => &part.partitions,
            false => &everyone,
        };
        for some in partitions.chunks(at_once) {
            let mut arguments = ConditionArguments::new(D::Connection::DIALECT);
            let mut sql = begins.to_owned();
            if has_partitions {
                let types: Vec<ColumnType> =
                    rule.columns.iter().map(|it| it.column_type()).collect();
                let values = some.iter().map(|packed| unpack(packed, &types));
                let values = values.collect::<Result<Vec<_>>>()?;
                let condition = D::Tables::is_in_partitions(rule, &values, &mut arguments)?;
                sql.push_str(&format!(" AND {condition}"));
            }
            for bound in &part.bounds {
                let column_type = windows[bound.window].column_type;
                let condition = D::Tables::is_in_window(rule, bound, column_type, &mut arguments);
                sql.push_str(&format!(" AND {condition}"));
            }
            if let Some(order) = &part.order {
                let names = table.key_columns().map(|it| format!("t.{}", it.sql_name()));
                push_order(
                    &mut sql,
                    table,
                    order,
                    &names.collect::<Vec<_>>(),
                    &mut arguments,
                )?;
            }
            let mut statement = TableStatement::new(READING, sql);
            statement.usage = match (D::Tables::SPELLS_PARTITIONS, &part.order) {
                (false, _) => StatementUse::Often,
                (true, None) => StatementUse::Bulk,
                // Each partition's is another one.
                (true, Some(_)) => StatementUse::Once,
            };
            statement.arguments = arguments.into_list();
            statement.yields = kinds.to_vec();
            let step = FlightStep::table(statement, &mut *take);
            let own = AssumedRole::default();
            let acting = match part.leaves {
                true => &own,
                false => &self.readings[place.subscription].acting,
            };
            acting.run(self.driver.connection(), step).await?;
        }
        Ok(())
    }

    /// Reads the keys that have changed since what the remote holds, by each of the table's rules
    /// in these partitions; `None`: of everybody. An order is asked for of one partition, or of everybody,
    /// by one rule, and where the server's own role reads the rows: they come in that of their keys, as
    /// the log has it.
    pub(super) async fn changes(
        &mut self,
        place: TablePlace,
        asked: &[Option<Vec<&[u8]>>],
        order: Option<&KeyOrder<'_>>,
        take: TakeKey<'_>,
    ) -> Result<()> {
        let Some(seen) = self.readings[place.subscription].seen.clone() else {
            return Ok(());
        };
        self.say_who(place).await?;
        let publication = Arc::clone(&self.publications[place.subscription]);
        let table = &publication.tables[place.table];
        let dialect = D::Connection::DIALECT;
        let first = publication.rules_of(place.table).start;
        let rules = table.rules.iter().zip(asked).enumerate();
        let rules = rules.filter(|(_, (rule, partitions))| {
            rule.log.is_some() && !partitions.as_ref().is_some_and(Vec::is_empty)
        });
        let rules: Vec<_> = rules.collect();
        let key_types: Vec<ColumnType> = table.key_columns().map(|it| it.column_type()).collect();
        for (number, (rule, partitions)) in rules {
            let mut arguments = ConditionArguments::new(D::Connection::DIALECT);
            let unseen = D::unseen(&seen, first + number, &mut arguments);
            let kinds: Vec<_> = rule.columns.iter().map(|it| it.kind()).collect();
            let mut rows = <D::Tables as ValueTypes>::Rows::new(&kinds);
            if let Some(partitions) = partitions {
                let types: Vec<ColumnType> =
                    rule.columns.iter().map(|it| it.column_type()).collect();
                for packed in partitions {
                    // A signed value that no longer fits its column's type is in no row.
                    rows.push(&unpack(packed, &types)?);
                }
            }
            let mut after = Vec::new();
            if let Some(order) = order.filter(|it| !it.after.is_empty()) {
                after = push_key::<D::Tables>(&mut arguments, table, &order.after)?;
            }
            let source = match rule.columns.is_empty() {
                true => RowSource::none(),
                false => <D::Tables as ValueTypes>::Rows::source(&kinds, arguments.next()),
            };
            let keys = ChangedKeys {
                table,
                rule,
                source: &source,
                unseen: &unseen,
                after: &after,
                in_order: order.is_some(),
            };
            let is_another = self.readings[place.subscription].acting.is_another();
            let sql = match is_another {
                true => keys.keys_sql(dialect),
                false => keys.rows_sql(dialect),
            };
            let mut statement = TableStatement::new("reading changes for a download", sql);
            statement.arguments = arguments.into_list();
            statement
                .rows
                .extend((!rule.columns.is_empty()).then_some(&rows));
            statement.yields = table.key_columns().map(|it| it.kind()).collect();
            let width = table.key.len();
            if is_another {
                self.changes_by_keys(place, statement, &key_types, &mut *take)
                    .await?;
                continue;
            }
            statement
                .yields
                .extend(table.read_columns().map(|it| it.kind()));
            let step = FlightStep::table(statement, |row| {
                let (key, now) = row.split_at(width);
                let exists = now[table.key[0]] != Datum::Null;
                take(key, exists.then_some(now))
            });
            self.driver.connection().run(READING, vec![step]).await?;
        }
        Ok(())
    }

    /// Reads the rows of the keys that a query on change logs yields: a role that reads the
    /// application's tables for a remote may not, and must not, read the logs.
    async fn changes_by_keys(
        &mut self,
        place: TablePlace,
        keys: TableStatement<'_, D::Tables>,
        types: &[ColumnType],
        take: TakeKey<'_>,
    ) -> Result<()> {
        let kinds = keys.yields.clone();
        let declare = TableStatement {
            sql: format!("DECLARE tidewater_keys CURSOR FOR {}", keys.sql).into(),
            yields: Vec::new(),
            ..keys
        };
        let declare = FlightStep::table(declare, |_| Ok(()));
        self.driver.connection().run(READING, vec![declare]).await?;
        loop {
            let fetch = format!("FETCH {KEYS_AT_ONCE} FROM tidewater_keys");
            let mut statement = TableStatement::new(READING, fetch);
            statement.yields.clone_from(&kinds);
            // The cursor of another table has other columns.
            statement.usage = StatementUse::Once;
            let mut found: Vec<Vec<Value>> = Vec::new();
            let step = FlightStep::table(statement, |key| {
                found.push(key.iter().map(Datum::to_value).collect());
                Ok(())
            });
            self.driver.connection().run(READING, vec![step]).await?;
            if found.is_empty() {
                break;
            }
            let some = found.iter().map(|key| {
                let values = types.iter().zip(key);
                let values = values.map(|(it, value)| it.datum(value.as_ref()).0);
                values.collect::<Vec<Datum<'_>>>()
            });
            self.by_keys(place, &some.collect::<Vec<_>>(), &mut *take)
                .await?;
        }
        let close = FlightStep::run("CLOSE tidewater_keys");
        self.driver.connection().run(READING, vec![close]).await?;
        Ok(())
    }

    /// Reads rows by their keys.
    pub(super) async fn by_keys(
        &mut self,
        place: TablePlace,
        keys: &[Vec<Datum<'_>>],
        take: TakeKey<'_>,
    ) -> Result<()> {
        self.say_who(place).await?;
        let publication = Arc::clone(&self.publications[place.subscription]);
        let table = &publication.tables[place.table];
        let kinds: Vec<_> = table.key_columns().map(|it| it.kind()).collect();
        let mut rows = <D::Tables as ValueTypes>::Rows::new(&kinds);
        let mut asked = Vec::with_capacity(keys.len());
        for (number, key) in keys.iter().enumerate() {
            // NULL, or a value that the column cannot have, is in no key of the centre.
            match !key.contains(&Datum::Null) && rows.push(key) {
                true => asked.push(number),
                false => take(key, None)?,
            }
        }
        let source = <D::Tables as ValueTypes>::Rows::source(&kinds, 1);
        let mut statement = TableStatement::new(
            "reading requested rows",
            reading::by_keys(D::Connection::DIALECT, table, &source),
        );
        statement.rows.push(&rows);
        statement.yields = vec![<D::Tables as ValueTypes>::Kind::of_system(
            SystemType::Integer,
        )];
        statement
            .yields
            .extend(table.read_columns().map(|it| it.kind()));
        let mut is_found = vec![false; asked.len()];
        let step = FlightStep::table(statement, |row| {
            let number = match row[0] {
                Datum::Integer(number) => usize::try_from(number - 1).unwrap_or_default(),
                _ => 0,
            };
            is_found[number] = true;
            take(&keys[asked[number]], Some(&row[1..]))
        });
        let acting = &self.readings[place.subscription].acting;
        acting.run(self.driver.connection(), step).await?;
        let missing = asked.iter().zip(&is_found).filter(|(_, found)| !**found);
        for (&number, _) in missing {
            take(&keys[number], None)?;
        }
        Ok(())
    }

    /// Runs a query of a script, and reads the rows that it yields. An error of the query has the
    /// script's name.
    pub(super) async fn script(
        &mut self,
        place: TablePlace,
        (script, statement): (&CompiledScript, &ScriptStatement),
        values: &[Value],
        take: TakeRow<'_>,
    ) -> Result<()> {
        self.say_who(place).await?;
        let asked = statement.with_values("running a download script", values);
        let step = FlightStep::table(asked, &mut *take);
        let acting = &self.readings[place.subscription].acting;
        let ran = acting.run(self.driver.connection(), step).await;
        ran.map(drop).map_err(|error| script.names(error))
    }

    /// Ends it.
    pub(super) async fn end(&mut self) -> Result<()> {
        self.driver.end().await
    }

    /// Says for whom rows are read from now on: policies and functions of the application may look.
    async fn say_who(&mut self, place: TablePlace) -> Result<()> {
        let job = self.readings[place.subscription].job;
        if self.said == job {
            return Ok(());
        }
        let [user, remote] = &self.who[job];
        let says = D::Connection::DIALECT.say_caller(user, remote, true);
        let what = "saying who syncs";
        self.driver.connection().flight(what, &says).await?;
        self.said = job;
        Ok(())
    }

    fn table(&self, place: TablePlace) -> &ServedTable<D::Tables> {
        &self.publications[place.subscription].tables[place.table]
    }
}

/// So many keys from a change log are looked up at once.
const KEYS_AT_ONCE: usize = 5_000;

/// Has rows come in the order of these columns, behind a key.
fn push_order<'a, T: TableAdapter>(
    sql: &mut String,
    table: &ServedTable<T>,
    order: &'a KeyOrder<'_>,
    names: &[String],
    arguments: &mut ConditionArguments<'a, T::Kind>,
) -> Result<()> {
    let names = names.join(", ");
    if !order.after.is_empty() {
        let after = push_key(arguments, table, &order.after)?;
        let values = after.join(", ");
        sql.push_str(&format!(" AND ({names}) > ({values})"));
    }
    sql.push_str(&format!(" ORDER BY {names}"));
    Ok(())
}

fn push_key<'a, T: TableAdapter>(
    arguments: &mut ConditionArguments<'a, T::Kind>,
    table: &ServedTable<T>,
    key: &[Datum<'a>],
) -> Result<Vec<String>> {
    let pushed = arguments.push_key::<T::Rows, _>(table.key_columns(), key);
    pushed.ok_or_else(behind_no_key)
}

fn behind_no_key() -> CentreError {
    CentreError::Peer {
        message: "a download that goes on behind a key that no row can have".into(),
        code: Code::MalformedMessage,
    }
}

fn text_kind<T: TableAdapter>() -> T::Kind {
    T::Kind::of_system(SystemType::Text)
}
