//! Explaining why a row is, is not, or was removed from a remote: one snapshot of what the centre has
//! anyway, judged by the rules that downloads and uploads are judged by.

mod inspected_row;
mod subject;
mod verdict;

use std::collections::BTreeMap;
use std::sync::Arc;

use tidewater_protocol::{ColumnType, Datum, RemoteId, Value};

use self::inspected_row::{InspectedRow, held_text};
use self::subject::Subject;
use self::verdict::{VerdictFacts, judge};
use super::compile::{CompiledTable, compile};
use super::connection::{DatabaseConnection, TransactionMode};
use super::deploy::deployed;
use super::exact::pack_exact;
use super::inspect::{DatabaseInspection, InspectedCell, KeyedRow, find_seen, read_cells};
use super::publication::Publication;
use super::records::{found_remote, found_user, last_sync, uploads_between};
use super::refusals;
use super::scope::ScopePurpose;
use super::scope::asking::ask_reader_scope;
use super::scripts::chosen;
use super::sql::system::{remotes, subscriptions, users};
use super::upload::row_json;
use crate::context::SyncContext;
use crate::engine::membership::Membership;
use crate::engine::sql::served_table::TableAdapter;
use crate::error::CentreError;
use crate::explain::{
    CandidateUpload, ExplainQuestion, ExplainedEntry, ExplainedPublication, ExplainedRemote,
    ExplainedRole, ExplainedWrites, Explanation, LastChange,
};
use crate::records::{RemoteRecord, UserRecord};
use crate::scope::{RuleScope, Scope};

pub(super) use self::inspected_row::unknown_parameters;

type Result<T> = std::result::Result<T, CentreError>;

/// So many uploads are named that may have changed a row last.
const UPLOADS_NAMED: u64 = 5;

/// See [`crate::Centre::explain`].
pub(super) async fn explain<T: DatabaseInspection>(
    connection: &mut T::Connection,
    question: &ExplainQuestion,
) -> Result<Explanation> {
    connection.begin(TransactionMode::Trying).await?;
    let explained = ExplanationRun::<T>::read(connection, question).await?;
    connection.commit().await?;
    Ok(explained)
}

/// When the remote synced last, and what may be taken as read by then.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastSync {
    /// When it ended; 0 if there was none.
    pub(super) ended_ms: i64,
}

/// What is explained, and everything that it takes.
struct ExplanationRun<'q, T: DatabaseInspection> {
    question: &'q ExplainQuestion,
    remote: RemoteRecord,
    user: Option<UserRecord>,
    catalog: T::Catalog,
}

impl<T: DatabaseInspection> ExplanationRun<'_, T> {
    async fn read(
        connection: &mut T::Connection,
        question: &ExplainQuestion,
    ) -> Result<Explanation> {
        let (specs, publications, catalog) = deployed::<T>(connection).await?;
        let (remote, user) = who(connection, question.remote_id).await?;
        let subscribed = subscribed(connection, question.remote_id).await?;
        let subject = Subject::find::<T>(question, &subscribed, &publications)?;
        let this = ExplanationRun::<T> {
            question,
            remote,
            user,
            catalog,
        };
        let last = last_sync(connection, question.remote_id).await?;
        let last = LastSync {
            ended_ms: last.max(this.remote.last_sync_ms),
        };
        let mut found = Vec::new();
        for &(index, table) in &subject.places {
            let (_, compiled) = compile(&specs[index], this.infos())?;
            let place = (&publications[index], &compiled[table], table);
            found.push(this.publication(connection, place, &subject, last).await?);
        }
        let key = subject.key_json();
        let names: Vec<&str> = found.iter().map(|it| &*it.0.name).collect();
        let last_change = last_change(connection, &found, &names).await?;
        let refused = refusals::of_row(connection, &subject.table, &key).await?;
        let conflicts = super::records::conflicts_of_row(connection, &subject.table, &key).await?;
        let disabled = this.user.as_ref().is_none_or(|it| it.disabled);
        let row = found.iter().find_map(|it| it.1.clone());
        let publications: Vec<ExplainedPublication> = found.into_iter().map(|it| it.0).collect();
        let known = VerdictFacts {
            user: &this.remote.user,
            remote: &this.remote,
            disabled,
            last,
            row_is_there: row.is_some(),
            publications: &publications,
            refused: &refused,
            is_known_user: this.user.is_some(),
        };
        let (verdict, sentence, notes) = judge(&known);
        Ok(Explanation {
            verdict,
            sentence,
            remote: ExplainedRemote {
                id: this.remote.id.to_string(),
                user: this.remote.user.clone(),
                revoked: this.remote.revoked,
                disabled,
                last_sync_ms: (last.ended_ms != 0).then_some(last.ended_ms),
            },
            table: subject.table,
            key,
            row,
            publications,
            last_change,
            notes,
            refused,
            conflicts,
        })
    }

    fn infos(&self) -> &[super::catalog::TableInfo] {
        super::catalog::CatalogReader::tables(&self.catalog)
    }

    /// For whom the queries are run.
    fn context(&self, publication: &str) -> SyncContext {
        let set = self.question.parameters.clone();
        let claims = self.user.as_ref().map(|it| it.proven.claims.clone());
        SyncContext {
            user: self.remote.user.clone(),
            remote_id: self.remote.id,
            now_ms: self.question.now_ms,
            parameters: Arc::new(BTreeMap::from([(publication.to_owned(), set)])),
            claims: claims.unwrap_or_default(),
            scripts: crate::script_notes::ScriptNotes::default(),
            given: None,
        }
    }

    /// What a publication has to say, and its row.
    async fn publication(
        &self,
        connection: &mut T::Connection,
        (publication, compiled, table): (&Publication<T::Tables>, &CompiledTable<'_>, usize),
        subject: &Subject,
        last: LastSync,
    ) -> Result<(ExplainedPublication, Option<String>)> {
        let schema = &publication.schema.tables[table];
        let context = self.context(&publication.schema.name);
        let scope =
            ask_reader_scope(connection, publication, &context, ScopePurpose::Writing).await?;
        let key = subject.datums();
        let keyed = KeyedRow {
            publication,
            table,
            key: &key,
        };
        let looked = self.look(connection, compiled, &keyed).await?;
        let row = looked
            .as_ref()
            .map(|it| it.row(&publication.row_types[table]));
        let role = match row.is_some() {
            true => find_seen(connection, &keyed, &context).await?,
            false => None,
        };
        let role = role.map(|(name, sees)| ExplainedRole { name, sees });
        let of_table = publication.rules_of(table);
        let (rules, scopes) = (&publication.rules[of_table.clone()], &scope.rules[of_table]);
        let mut explained = Vec::with_capacity(rules.len());
        let mut log = Vec::new();
        let logged = publication.tables[table].logs().count();
        for (at, (rule, held)) in rules.iter().zip(scopes).enumerate() {
            let unknown = unknown_parameters(rule, &context, &publication.schema.name);
            let of = (compiled, &compiled.rules[at], at);
            let rule_of = (rule, held);
            explained.push(self.rule(
                of,
                rule_of,
                looked.as_ref(),
                row.as_deref(),
                unknown.clone(),
            ));
            if at < logged {
                let is_known = unknown.is_empty();
                log.extend(entries::<T>(connection, &keyed, at, rule_of, is_known, last).await?);
            }
        }
        let scripts = chosen(&publication.scripts, &context, &publication.schema.name)?;
        let handled = &publication.handled[table];
        let giving = scripts.as_ref().and_then(|it| it.giving(table));
        let download_script = giving.filter(|_| !handled.download);
        let by_script = |event| scripts.as_ref().and_then(|it| it.of_table(table, event));
        let uploads = ["upload_insert", "upload_update", "upload_delete"];
        let uploads = uploads.into_iter().filter_map(by_script);
        let mut uploads_by: Vec<String> = uploads.map(|it| it.place.clone()).collect();
        if handled.upload {
            uploads_by.push("its handler".to_owned());
        }
        let source = match (handled.download, &scripts) {
            (true, _) => "handler",
            (false, Some(scripts)) if scripts.downloads(table) => "script",
            _ => "rules",
        };
        let sees = role.as_ref().is_none_or(|it| it.sees);
        let holds = match any(explained.iter().map(|it| it.holds)) {
            Some(true) if !sees => Some(false),
            holds => holds,
        };
        let writes = writes(
            (publication, table),
            (rules, &scope),
            row.as_deref(),
            &context,
        );
        let names = schema.columns.iter().map(|it| &*it.name);
        let told = row.as_ref();
        let told = told.map(|row| row_json::row(names, &row[..schema.columns.len()]));
        Ok((
            ExplainedPublication {
                name: publication.schema.name.clone(),
                direction: match (schema.direction.downloads(), schema.direction.uploads()) {
                    (true, true) => "both",
                    (true, false) => "download",
                    (false, _) => "upload",
                },
                source,
                download_script: download_script.map(|it| it.place.clone()),
                uploads_by,
                holds,
                rules: explained,
                writes,
                role,
                is_tracked: logged > 0,
                log,
            },
            told,
        ))
    }

    /// Reads the row, what decides beside it, and what it refers to along the routes of its rules.
    async fn look(
        &self,
        connection: &mut T::Connection,
        compiled: &CompiledTable<'_>,
        keyed: &KeyedRow<'_, T::Tables>,
    ) -> Result<Option<InspectedRow>> {
        let infos = self.infos();
        let own = compiled.columns.iter().map(|&column| InspectedCell {
            rule: 0,
            level: 0,
            table: compiled.table,
            column,
        });
        let extras = compiled
            .extras(infos)
            .into_iter()
            .map(|extra| InspectedCell {
                rule: extra.rule,
                level: extra.level,
                table: compiled.rules[extra.rule].table_at(compiled.table, extra.level),
                column: extra.column,
            });
        let mut cells: Vec<InspectedCell> = own.chain(extras).collect();
        let of_row = cells.len();
        for (number, rule) in compiled.rules.iter().enumerate() {
            for (at, reach) in rule.route.iter().enumerate() {
                let below = (at, rule.table_at(compiled.table, at), &reach.columns);
                let above = (at + 1, reach.parent, &reach.parent_columns);
                for (level, table, columns) in [below, above] {
                    cells.extend(columns.iter().map(|&column| InspectedCell {
                        rule: number,
                        level,
                        table,
                        column,
                    }));
                }
            }
        }
        let values = read_cells::<T>(connection, &self.catalog, keyed, &cells).await?;
        Ok(values.map(|values| InspectedRow {
            cells,
            values,
            of_row,
        }))
    }
}

/// What change logs have of the key by one rule.
async fn entries<T: DatabaseInspection>(
    connection: &mut T::Connection,
    keyed: &KeyedRow<'_, T::Tables>,
    at: usize,
    (rule, held): (&super::publication::RowRule, &RuleScope),
    is_known: bool,
    last: LastSync,
) -> Result<Vec<ExplainedEntry>> {
    let entries = T::entries(connection, keyed, at, last.ended_ms).await?;
    let entries = entries.into_iter().map(|entry| {
        let datums = typed(&rule.types, &entry.partition);
        let is_held = match &rule.query {
            None => Some(true),
            Some(_) if !is_known => None,
            Some(_) => Some(held.partitions.contains(&pack_exact(&rule.types, &datums))),
        };
        ExplainedEntry {
            rule: at + 1,
            version: entry.version,
            after_ms: entry.after_ms,
            before_ms: entry.before_ms,
            partition: datums.iter().map(ToString::to_string).collect(),
            is_held,
            is_covered: entry.is_covered && last.ended_ms != 0,
        }
    });
    Ok(entries.collect())
}

/// Values by their columns' types.
pub(in crate::engine) fn typed<'v>(types: &[ColumnType], values: &'v [Value]) -> Vec<Datum<'v>> {
    let values = types.iter().zip(values);
    values
        .map(|(it, value)| it.datum(value.as_ref()).0)
        .collect()
}

/// Whether one of several says yes; not known if one that might is not.
fn any(all: impl Iterator<Item = Option<bool>> + Clone) -> Option<bool> {
    match (
        all.clone().any(|it| it == Some(true)),
        all.clone().any(|it| it.is_none()),
    ) {
        (true, _) => Some(true),
        (false, true) => None,
        (false, false) => Some(false),
    }
}

/// Whether the user's remotes may write the row.
fn writes<T: TableAdapter>(
    (publication, table): (&Publication<T>, usize),
    (rules, scope): (&[super::publication::RowRule], &Scope),
    row: Option<&[Datum<'_>]>,
    context: &SyncContext,
) -> ExplainedWrites {
    let schema = &publication.schema.tables[table];
    let of_table = &publication.writes[table];
    let read_only = of_table.read_only.iter();
    let read_only = read_only
        .map(|&it| schema.columns[it].name.clone())
        .collect();
    let name = &publication.schema.name;
    let mut named = rules.iter().chain(&of_table.rule);
    let is_unknown = named.any(|it| !unknown_parameters(it, context, name).is_empty());
    let (may, reason) = match row {
        _ if !schema.direction.uploads() => (
            Some(false),
            "nothing of the table is taken from remotes".to_owned(),
        ),
        None => (None, "there is no row".to_owned()),
        Some(_) if is_unknown => (None, "it depends on what the remote has set".to_owned()),
        Some(row) => {
            let scopes = &scope.rules[publication.rules_of(table)];
            let nothing = RuleScope::default();
            let written = scope.writes.get(table).unwrap_or(&nothing);
            let membership = Membership::new(rules, scopes);
            let mut membership = membership
                .written_by(of_table.rule.as_ref(), written)
                .of_any_age();
            match membership.barrier(row) {
                None => (Some(true), "it is in the user's partitions".to_owned()),
                Some(barrier) => (Some(false), barrier.reason().to_owned()),
            }
        }
    };
    ExplainedWrites {
        may,
        reason,
        read_only,
    }
}

/// The remote and its user.
async fn who(
    connection: &mut impl DatabaseConnection,
    id: RemoteId,
) -> Result<(RemoteRecord, Option<UserRecord>)> {
    let what = "looking for a remote";
    let remote = connection.gather(what, vec![remotes::find(id)]).await?;
    let remote = remote
        .first()
        .map(|it| found_remote(&it.rows))
        .transpose()?;
    let remote = remote.flatten().ok_or_else(|| CentreError::Configuration {
        message: format!("there is no remote {id}"),
        hint: "see: tidewater remote list -c FILE".into(),
    })?;
    let user = connection
        .gather(what, vec![users::find(&remote.user)])
        .await?;
    let user = user.first().map(|it| found_user(&it.rows)).transpose()?;
    Ok((remote, user.flatten()))
}

/// The publications that a remote has synced.
pub(super) async fn subscribed(
    connection: &mut impl DatabaseConnection,
    id: RemoteId,
) -> Result<Vec<String>> {
    let names = subscriptions::list_of_remote(id);
    let answer = connection.run_one("reading subscriptions", names).await?;
    answer.rows.iter().map(|row| row.get(0)).collect()
}

/// Who may have changed the row last, by the time of the newest entry.
async fn last_change(
    connection: &mut impl DatabaseConnection,
    found: &[(ExplainedPublication, Option<String>)],
    names: &[&str],
) -> Result<Option<LastChange>> {
    let entries = found.iter().filter_map(|it| it.0.log.first());
    let newest = entries.max_by_key(|it| (it.after_ms, it.before_ms));
    let Some(newest) = newest else {
        return Ok(None);
    };
    let between = (
        newest.after_ms.unwrap_or(0),
        newest.before_ms.unwrap_or(i64::MAX),
    );
    let uploads = uploads_between(connection, between, UPLOADS_NAMED).await?;
    let of_ours = uploads.iter().filter(|it| {
        let mut publications = it.publications.split(',');
        publications.any(|name| names.contains(&name))
    });
    Ok(Some(LastChange {
        after_ms: newest.after_ms,
        before_ms: newest.before_ms,
        uploads: of_ours.map(CandidateUpload::from_sync).collect(),
    }))
}

impl<T: DatabaseInspection> ExplanationRun<'_, T> {
    /// What one rule has to say.
    fn rule(
        &self,
        (compiled, rule, at): (&CompiledTable<'_>, &super::compile::CompiledRule, usize),
        (served, held): (&super::publication::RowRule, &RuleScope),
        looked: Option<&InspectedRow>,
        row: Option<&[Datum<'_>]>,
        unknown: Vec<String>,
    ) -> crate::explain::ExplainedRule {
        let infos = self.infos();
        let root = &infos[rule.root(compiled.table)];
        let columns = rule.columns.iter();
        let columns: Vec<String> = columns.map(|&it| root.columns[it].name.clone()).collect();
        let follows = match looked {
            Some(looked) => looked.parents(infos, compiled, at),
            None => Vec::new(),
        };
        let is_reached = follows.iter().all(|it| it.is_there);
        let values = row.filter(|_| is_reached).map(|row| {
            let values = served.columns.iter().map(|&it| row[it].to_string());
            values.collect::<Vec<String>>()
        });
        let is_in_windows = inspected_row::windows(infos, (compiled, rule), (served, held), row);
        let alone = std::slice::from_ref(served);
        let mut membership = Membership::new(alone, std::slice::from_ref(held));
        let is_in = row.map(|row| membership.has(row));
        let holds = match (is_in, unknown.is_empty()) {
            (Some(is_in), true) => Some(is_in),
            (None, true) => None,
            // Outside of a window it is not held, whatever the parameters are.
            (_, false) if is_in_windows.iter().any(|it| it.is_in == Some(false)) => Some(false),
            (_, false) => None,
        };
        crate::explain::ExplainedRule {
            number: at + 1,
            holds,
            follows,
            columns,
            values,
            query: rule.values.clone(),
            unknown_parameters: unknown,
            held_count: held.partitions.len(),
            held: held_text(served, held),
            windows: is_in_windows,
        }
    }
}
