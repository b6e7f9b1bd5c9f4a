//! What a changed configuration would mean to the remotes that there are: the rows that each holds by
//! what is deployed against those that it would hold, in one snapshot, counted by the database.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidewater_protocol::{PublicationSchema, Value};

use super::connection::{DatabaseConnection, TransactionMode};
use super::deploy::deployed;
use super::explain::{subscribed, typed, unknown_parameters};
use super::inspect::{ConfigurationSide, DatabaseInspection, RowsDiffer};
use super::publication::Publication;
use super::records;
use super::scope::ScopePurpose;
use super::scope::asking::ask_reader_scope;
use super::scripts::{chosen, version};
use super::upload::row_json;
use crate::context::SyncContext;
use crate::engine::publication_compiler::compile_all;
use crate::engine::sql::served_table::TableAdapter;
use crate::error::CentreError;
use crate::preview::{Preview, PreviewRequest, PreviewedRemote, PreviewedTable, SchemaChange};
use crate::publication::PublicationSpec;
use crate::records::{RemoteRecord, UserClaims};
use crate::scope::{Digest, PartitionList, RuleScope, Scope};
use crate::script_notes::ScriptNotes;

type Result<T> = std::result::Result<T, CentreError>;

/// See [`crate::Centre::preview`].
pub(super) async fn preview<T: DatabaseInspection>(
    connection: &mut T::Connection,
    specs: &[PublicationSpec],
    asked: &PreviewRequest,
) -> Result<Preview> {
    connection.begin(TransactionMode::Trying).await?;
    let (_, before, catalog) = deployed::<T>(connection).await?;
    let now = compile_all::<T>(connection, specs, &catalog).await?;
    let remotes = remotes(connection, asked).await?;
    let mut previewing = PreviewRun::<T> {
        asked,
        before: &before,
        now: &now,
        known: BTreeMap::new(),
        notes: BTreeSet::new(),
    };
    let mut preview = Preview {
        remotes_looked_at: remotes.len(),
        changes: changes(&before, &now),
        ..Preview::default()
    };
    for (remote, claims) in &remotes {
        let tables = previewing.remote(connection, remote, claims).await?;
        preview.added += tables.iter().map(|it| it.added).sum::<u64>();
        preview.removed += tables.iter().map(|it| it.removed).sum::<u64>();
        if !tables.is_empty() {
            preview.remotes.push(PreviewedRemote {
                id: remote.id.to_string(),
                user: remote.user.clone(),
                tables,
            });
        }
    }
    preview.notes = previewing.notes.into_iter().collect();
    // Nothing was written, and nothing is to be.
    connection.rollback().await?;
    Ok(preview)
}

/// The remotes that may sync, with what is known of their users.
async fn remotes(
    connection: &mut impl DatabaseConnection,
    asked: &PreviewRequest,
) -> Result<Vec<(RemoteRecord, UserClaims)>> {
    let users = records::users(connection).await?;
    let users: BTreeMap<String, _> = users.into_iter().map(|it| (it.name.clone(), it)).collect();
    let mut remotes = records::remotes(connection).await?;
    if let Some(id) = asked.remote_id {
        remotes.retain(|it| it.id == id);
        if remotes.is_empty() {
            return Err(CentreError::Configuration {
                message: format!("there is no remote {id}"),
                hint: "see: tidewater remote list -c FILE".into(),
            });
        }
    } else {
        remotes.retain(|it| !it.revoked);
    }
    let with_claims = remotes.into_iter().filter_map(|remote| {
        let user = users.get(&remote.user)?;
        Some((remote, user.proven.claims.clone()))
    });
    Ok(with_claims.collect())
}

/// The partitions and windows of a table's rules, in short.
type Short = Vec<(Digest, Vec<i64>)>;

/// What makes two differences one: the table, what is held of it before and now, and for whom, if
/// the database sees remotes under roles.
type Same = (String, String, Option<Short>, Option<Short>, String);

struct PreviewRun<'p, T: DatabaseInspection> {
    asked: &'p PreviewRequest,
    before: &'p [Publication<T::Tables>],
    now: &'p [Publication<T::Tables>],
    /// Remotes that hold the same differ in the same.
    known: BTreeMap<Same, RowsDiffer>,
    notes: BTreeSet<String>,
}

/// A publication under one configuration, and what somebody holds of it.
struct PreviewSide<'p, T: TableAdapter> {
    publication: &'p Publication<T>,
    scope: Scope,
    context: SyncContext,
}

impl<'p, T: DatabaseInspection> PreviewRun<'p, T> {
    /// The tables of which rows come to a remote, or go.
    async fn remote(
        &mut self,
        connection: &mut T::Connection,
        remote: &RemoteRecord,
        claims: &UserClaims,
    ) -> Result<Vec<PreviewedTable>> {
        let mut tables = Vec::new();
        for name in subscribed(connection, remote.id).await? {
            let named =
                |all: &'p [Publication<T::Tables>]| all.iter().find(|it| it.schema.name == name);
            let Some(before) = named(self.before) else {
                continue;
            };
            let context = self.context(remote, claims, &name);
            let before = held::<T>(connection, before, &context).await?;
            let now = match named(self.now) {
                Some(now) => Some(held::<T>(connection, now, &context).await?),
                None => None,
            };
            let of_schema = |held: &PreviewSide<'p, T::Tables>| {
                let tables = held.publication.schema.tables.iter();
                tables.map(|it| it.name.clone()).collect::<Vec<_>>()
            };
            let mut names = of_schema(&before);
            for table in now.iter().flat_map(of_schema) {
                if !names.contains(&table) {
                    names.push(table);
                }
            }
            for table in names {
                let differ = self
                    .table(connection, &table, (&before, now.as_ref()))
                    .await?;
                tables.extend(differ.filter(|it| it.added + it.removed > 0));
            }
        }
        Ok(tables)
    }

    fn context(
        &self,
        remote: &RemoteRecord,
        claims: &UserClaims,
        publication: &str,
    ) -> SyncContext {
        let set = self.asked.parameters.clone();
        SyncContext {
            user: remote.user.clone(),
            remote_id: remote.id,
            now_ms: self.asked.now_ms,
            parameters: Arc::new(BTreeMap::from([(publication.to_owned(), set)])),
            claims: claims.clone(),
            scripts: ScriptNotes::default(),
            given: None,
        }
    }

    /// How a table differs for a remote; `None` if that cannot be told.
    async fn table(
        &mut self,
        connection: &mut T::Connection,
        table: &str,
        (before, now): (
            &PreviewSide<'p, T::Tables>,
            Option<&PreviewSide<'p, T::Tables>>,
        ),
    ) -> Result<Option<PreviewedTable>> {
        let name = &before.publication.schema.name;
        let mut sides = [None, None];
        let mut is_told = true;
        for (side, held) in sides.iter_mut().zip([Some(before), now]) {
            let Some(held) = held else { continue };
            match held.side(table)? {
                Ok(found) => {
                    if let Some(note) = found.as_ref().and_then(|it| held.other_version(it.table)) {
                        self.notes.insert(format!("{name}: {table}: {note}"));
                    }
                    *side = found;
                }
                Err(why) => {
                    self.notes
                        .insert(format!("{name}: {table}: not counted: {why}"));
                    is_told = false;
                }
            }
        }
        if !is_told || sides.iter().all(Option::is_none) || is_same(&sides) {
            return Ok(None);
        }
        let acts = sides
            .iter()
            .flatten()
            .any(|it| it.publication.act_as.is_some());
        let for_whom = match acts {
            true => before.context.user.clone(),
            false => String::new(),
        };
        let [first, second] = sides.map(|side| side.map(|it| short(it.scope)));
        let same: Same = (name.clone(), table.to_owned(), first, second, for_whom);
        let differ = match self.known.get(&same) {
            Some(known) => known.clone(),
            None => {
                let found = difference::<T>(connection, &before.context, sides, self.asked.rows);
                let Some(found) = found.await? else {
                    let note = "not counted: the role under which remotes read changes";
                    self.notes.insert(format!("{name}: {table}: {note}"));
                    return Ok(None);
                };
                self.known.insert(same, found.clone());
                found
            }
        };
        let described = sides.iter().flatten().next();
        let keys = |keys: &[Vec<Value>]| match described {
            Some(side) => keys.iter().map(|it| key_json(side, it)).collect(),
            None => Vec::new(),
        };
        Ok(Some(PreviewedTable {
            publication: name.clone(),
            table: table.to_owned(),
            added: differ.added,
            removed: differ.removed,
            added_keys: keys(&differ.added_keys),
            removed_keys: keys(&differ.removed_keys),
        }))
    }
}

/// What somebody holds of a publication.
async fn held<'p, T: DatabaseInspection>(
    connection: &mut T::Connection,
    publication: &'p Publication<T::Tables>,
    context: &SyncContext,
) -> Result<PreviewSide<'p, T::Tables>> {
    Ok(PreviewSide {
        publication,
        scope: ask_reader_scope(connection, publication, context, ScopePurpose::Reading).await?,
        context: context.clone(),
    })
}

impl<T: TableAdapter> PreviewSide<'_, T> {
    /// The rows of a table, if it has the table and remotes download of it; the inner error says why
    /// they cannot be counted.
    fn side(
        &self,
        table: &str,
    ) -> Result<std::result::Result<Option<ConfigurationSide<'_, T>>, String>> {
        let publication = self.publication;
        let (schema, name) = (&publication.schema, &publication.schema.name);
        let found = schema.tables.iter().position(|it| it.name == table);
        let found = found.filter(|&it| schema.tables[it].direction.downloads());
        let Some(table) = found else {
            return Ok(Ok(None));
        };
        if publication.handled[table].download {
            return Ok(Err("a handler says which rows come down".into()));
        }
        let scripts = match chosen(&publication.scripts, &self.context, name) {
            Ok(scripts) => scripts,
            Err(CentreError::Peer { message, .. }) => return Ok(Err(message)),
            Err(error) => return Err(error),
        };
        if let Some(script) = scripts.and_then(|it| Some(it.giving(table)?.place.clone())) {
            return Ok(Err(format!("{script} says which rows come down")));
        }
        let of_table = publication.rules_of(table);
        let rules = publication.rules[of_table.clone()].iter();
        let mut unknown = rules.flat_map(|it| unknown_parameters(it, &self.context, name));
        if let Some(unknown) = unknown.next() {
            return Ok(Err(format!(
                "it depends on the parameter {unknown:?}, which remotes keep themselves; say it with \
                 --parameter {unknown}=VALUE"
            )));
        }
        Ok(Ok(Some(ConfigurationSide {
            publication,
            table,
            scope: &self.scope.rules[of_table],
        })))
    }
}

impl<T: TableAdapter> PreviewSide<'_, T> {
    /// What is to be said of a table whose rows a script gives to remotes of another version than the
    /// one that is looked at: which one a remote asks for, only it knows.
    fn other_version(&self, table: usize) -> Option<String> {
        let publication = self.publication;
        let looked_at = version(&self.context, &publication.schema.name);
        let mut others = publication.scripts.iter();
        let (other, script) = others.find_map(|(version, scripts)| {
            let script = scripts.giving(table).filter(|_| version != looked_at)?;
            Some((version, &script.place))
        })?;
        Some(format!(
            "counted as for script version {looked_at:?}: of {other:?}, {script} says which rows come \
             down"
        ))
    }
}

/// Whether two sides have the same rows by the same rules, so that nothing has to be counted.
fn is_same<T: TableAdapter>(sides: &[Option<ConfigurationSide<'_, T>>; 2]) -> bool {
    let [Some(before), Some(now)] = sides else {
        return false;
    };
    let rules = |side: &ConfigurationSide<'_, T>| {
        let of_table = side.publication.rules_of(side.table);
        let rules = side.publication.rules[of_table].iter();
        rules
            .map(|it| (it.identity.clone(), it.query.is_none()))
            .collect::<Vec<_>>()
    };
    let role = |side: &ConfigurationSide<'_, T>| {
        side.publication
            .act_as
            .as_ref()
            .map(|it| it.query.sql.clone())
    };
    rules(before) == rules(now) && before.scope == now.scope && role(before) == role(now)
}

fn short(scope: &[RuleScope]) -> Short {
    let rules = scope.iter();
    let rules = rules.map(|it| {
        (
            PartitionList::from_partitions(&it.partitions).digest,
            it.lows.clone(),
        )
    });
    rules.collect()
}

/// How two sides differ. A name can mean another table of the database than before: then all rows of
/// the one go, and all of the other come.
async fn difference<T: DatabaseInspection>(
    connection: &mut T::Connection,
    context: &SyncContext,
    sides: [Option<ConfigurationSide<'_, T::Tables>>; 2],
    rows: usize,
) -> Result<Option<RowsDiffer>> {
    let title = |side: Option<ConfigurationSide<'_, T::Tables>>| {
        side.map(|it| it.publication.tables[it.table].title.clone())
    };
    let [before, now] = sides;
    if before.is_none() || now.is_none() || title(before) == title(now) {
        return T::difference(connection, context, sides, rows).await;
    }
    let gone = T::difference(connection, context, [before, None], rows).await?;
    let come = T::difference(connection, context, [None, now], rows).await?;
    Ok(gone.zip(come).map(|(gone, come)| RowsDiffer {
        added: come.added,
        added_keys: come.added_keys,
        ..gone
    }))
}

fn key_json<T: TableAdapter>(side: &ConfigurationSide<'_, T>, key: &[Value]) -> String {
    let table = &side.publication.schema.tables[side.table];
    let types: Vec<_> = table.key_columns().map(|it| it.column_type).collect();
    row_json::key(&typed(&types, key))
}

/// The tables and columns that come and go.
fn changes<T: TableAdapter>(
    before: &[Publication<T>],
    now: &[Publication<T>],
) -> Vec<SchemaChange> {
    let mut changes = Vec::new();
    for (ours, others, comes) in [(before, now, false), (now, before, true)] {
        for publication in ours {
            let schema = &publication.schema;
            let mut change = |table: Option<&str>, column: Option<&str>| {
                changes.push(SchemaChange {
                    publication: schema.name.clone(),
                    table: table.map(str::to_owned),
                    column: column.map(str::to_owned),
                    comes,
                });
            };
            let others = others.iter().map(|it| &*it.schema);
            let mut others = others.filter(|it: &&PublicationSchema| it.name == schema.name);
            let Some(other) = others.next() else {
                change(None, None);
                continue;
            };
            for table in &schema.tables {
                let Some(same) = other.table(&table.name) else {
                    change(Some(&table.name), None);
                    continue;
                };
                let columns = table.columns.iter().map(|it| &*it.name);
                for column in columns.filter(|it| same.column(it).is_none()) {
                    change(Some(&table.name), Some(column));
                }
            }
        }
    }
    changes
}
