//! Whom it concerns what change logs tell, and what a remote that presents a checkpoint holds.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::connection::{DatabaseConnection, TransactionMode};
use super::inspect::DatabaseInspection;
use super::publication::RowRule;
use super::scope::ScopePurpose;
use super::scope::asking::ask_reader_scope;
use super::sql::system::scope_pieces;
use crate::context::SyncContext;
use crate::engine::served_publications::ServedPublications;
use crate::engine::sql::served_table::{ServedTable, TableAdapter};
use crate::error::CentreError;
use crate::follow::{FollowPosition, FollowedCommits, HoldingRequest, Interest, RemoteHolding};
use crate::scope::{Checkpoint, Digest, HeldPartitions, PartitionList, Partitions, Scope};
use crate::watermark::Watermark;

type Result<T> = std::result::Result<T, CentreError>;

/// What change logs tell since a position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommittedChanges {
    /// How far they go.
    pub position: Vec<u8>,
    /// The change logs that have something new.
    pub logs: Vec<(i64, LogChanges)>,
    /// Whether something was written that partition queries read.
    pub scopes: bool,
}

/// What a change log tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogChanges {
    /// That anything may have changed.
    Everything,
    /// That something has changed in these partitions.
    Partitions(Partitions),
}

/// The change logs of what is served, each once, with a rule that has it and the rule's table and
/// place among the table's.
pub fn logs<T: TableAdapter>(
    served: &ServedPublications<T>,
) -> Vec<(i64, &RowRule, &ServedTable<T>, usize)> {
    let mut seen = BTreeSet::new();
    let mut logs = of_rules(served);
    logs.retain(|(log, ..)| seen.insert(*log));
    logs
}

/// The rules of what is served whose changes remotes get, with their change logs.
fn of_rules<T: TableAdapter>(
    served: &ServedPublications<T>,
) -> Vec<(i64, &RowRule, &ServedTable<T>, usize)> {
    let mut found = Vec::new();
    for publication in &served.publications {
        for (index, table) in publication.tables.iter().enumerate() {
            if !publication.schema.tables[index].direction.downloads() {
                continue;
            }
            let rules = publication.rules[publication.rules_of(index)].iter();
            for (place, rule) in rules.enumerate() {
                found.extend(table.log(place).map(|log| (log, rule, table, place)));
            }
        }
    }
    found
}

/// Whom it concerns what change logs tell.
pub(super) fn followed<T: TableAdapter>(
    served: &ServedPublications<T>,
    changes: CommittedChanges,
) -> FollowedCommits {
    let scopes = changes.scopes;
    let changed: HashMap<i64, LogChanges> = changes.logs.into_iter().collect();
    let mut touched = BTreeSet::new();
    for (log, rule, ..) in of_rules(served) {
        match changed.get(&log) {
            None => {}
            Some(LogChanges::Partitions(partitions)) if rule.query.is_some() => {
                touched.extend(
                    partitions
                        .iter()
                        .map(|it| Interest::for_partition(rule.id, it)),
                );
            }
            Some(_) => drop(touched.insert(Interest::all_of(rule.id))),
        }
    }
    FollowedCommits {
        position: FollowPosition(changes.position),
        touched,
        scopes,
    }
}

impl RemoteHolding {
    /// Of a scope by these rules.
    pub(super) fn from_scope(rules: &[RowRule], scope: &Scope) -> RemoteHolding {
        let rules = rules.iter().zip(&scope.rules);
        let rules = rules.map(|(rule, scope)| (rule.id, scope.partitions.clone()));
        RemoteHolding {
            rules: rules.collect(),
        }
    }
}

/// See [`crate::Worker::holdings_now`].
pub(super) async fn holdings_now<T: DatabaseInspection>(
    connection: &mut T::Connection,
    served: &ServedPublications<T::Tables>,
    asked: &[HoldingRequest],
) -> Result<Vec<Option<Vec<RemoteHolding>>>> {
    let mut answers = Vec::with_capacity(asked.len());
    for asked in asked {
        connection.begin(TransactionMode::Reading).await?;
        let mut holdings = Vec::with_capacity(asked.publications.len());
        let mut failed = None;
        for name in &asked.publications {
            match holding::<T>(connection, served, name, &asked.context).await {
                Ok(holding) => holdings.push(holding),
                Err(error) => failed = failed.or(Some(error)),
            }
            if failed.is_some() {
                break;
            }
        }
        connection.rollback().await?;
        answers.push(match failed {
            None => Some(holdings),
            // It is the sync's affair to tell what is wrong with a query, or with a parameter.
            Some(CentreError::NotAllowed { .. } | CentreError::Peer { .. }) => Some(Vec::new()),
            Some(CentreError::Configuration { .. }) => None,
            Some(error) => return Err(error),
        });
    }
    Ok(answers)
}

async fn holding<T: DatabaseInspection>(
    connection: &mut T::Connection,
    served: &ServedPublications<T::Tables>,
    publication: &str,
    context: &SyncContext,
) -> Result<RemoteHolding> {
    let publication = served.publication(publication)?;
    let scope = ask_reader_scope(connection, publication, context, ScopePurpose::Reading).await?;
    Ok(RemoteHolding::from_scope(&publication.rules, &scope))
}

/// See [`crate::Worker::holdings`].
pub(super) async fn holdings(
    connection: &mut impl DatabaseConnection,
    checkpoints: &[Checkpoint],
) -> Result<Vec<Option<RemoteHolding>>> {
    let held = checkpoints.iter().flat_map(|it| &it.rules);
    let digests = held.filter_map(|it| match &it.partitions {
        HeldPartitions::Digest(digest) => Some(*digest),
        HeldPartitions::Listed(_) => None,
    });
    let lists = lists(connection, digests.collect()).await?;
    let holdings = checkpoints.iter().map(|checkpoint| {
        let watermark = Watermark::read(&checkpoint.watermark)?;
        if watermark.rules.len() != checkpoint.rules.len() {
            return None;
        }
        let rules = watermark.rules.into_iter().zip(&checkpoint.rules);
        let rules = rules.map(|(rule, held)| {
            let partitions = match &held.partitions {
                HeldPartitions::Listed(partitions) => partitions,
                HeldPartitions::Digest(digest) => lists.get(digest)?,
            };
            Some((rule, partitions.clone()))
        });
        let rules = rules.collect::<Option<_>>()?;
        Some(RemoteHolding { rules })
    });
    Ok(holdings.collect())
}

/// The lists of these digests, as far as they are still there.
async fn lists(
    connection: &mut impl DatabaseConnection,
    digests: BTreeSet<Digest>,
) -> Result<HashMap<Digest, Arc<Partitions>>> {
    let roots = contents(connection, digests).await?;
    let pieces = roots
        .values()
        .filter_map(|it| PartitionList::digests(it))
        .flatten();
    let pieces = contents(connection, pieces.collect()).await?;
    let lists = roots.into_iter().filter_map(|(digest, root)| {
        let mut partitions = Partitions::new();
        for piece in PartitionList::digests(&root)? {
            partitions.extend(PartitionList::partitions(pieces.get(&piece)?)?);
        }
        Some((digest, Arc::new(partitions)))
    });
    Ok(lists.collect())
}

async fn contents(
    connection: &mut impl DatabaseConnection,
    digests: BTreeSet<Digest>,
) -> Result<HashMap<Digest, Vec<u8>>> {
    if digests.is_empty() {
        return Ok(HashMap::new());
    }
    let digests: Vec<Digest> = digests.into_iter().collect();
    let what = "reading a scope that was handed out";
    let find = scope_pieces::find(&digests);
    let answer = connection.run_one(what, find).await?;
    let mut contents = HashMap::new();
    for row in &answer.rows {
        let number: u64 = row.get(0)?;
        if let Some(digest) = digests.get(number as usize - 1) {
            contents.insert(*digest, row.get(1)?);
        }
    }
    Ok(contents)
}
