//! What a changed publication means to the remotes that have the old one.
//!
//! A remote learns of a new schema at its next sync, and until then goes on recording
//! changes under the one that it has. Most changes of a schema are nothing to it: what it
//! has pending is applied, and then its tables are rebuilt. Some *hold up* what is pending:
//! it will be refused, and stays on the remote with its values. Deploying tells both, and
//! refuses the second kind while there are remotes that it concerns. Pure: adapters read what
//! is deployed and what is known of remotes.

use std::collections::HashMap;

use tidewater_protocol::{Column, ColumnType, PublicationSchema, RemoteId, Table};

use crate::deploy_report::{HeldUpRemote, RemoteEffect};
use crate::error::CentreError;

/// How a deployment is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeploymentMode {
    /// To tell what would be done.
    DryRun,
    /// Unless remotes are held up.
    Careful,
    /// Whatever remotes have pending.
    RefusePending,
}

impl DeploymentMode {
    /// Deploys, or only tells.
    pub fn from_dry_run(dry_run: bool) -> DeploymentMode {
        match dry_run {
            true => DeploymentMode::DryRun,
            false => DeploymentMode::Careful,
        }
    }
}

/// A publication before and after.
pub struct PublicationChange<'a> {
    /// Its name.
    pub publication: &'a str,
    /// What remotes have.
    pub old: &'a PublicationSchema,
    /// `None`: it is not published any more.
    pub new: Option<&'a PublicationSchema>,
}

/// A remote, and what it is known to have.
pub struct KnownRemote {
    /// Which one.
    pub id: RemoteId,
    /// Whose it is.
    pub user: String,
    /// When it was last here, in milliseconds since 1970.
    pub last_sync_ms: i64,
    /// As [`encode_known`] wrote it; empty if it has not synced since that is noted.
    pub schemas: String,
    /// The publications that it has a subscription row for.
    pub subscriptions: Vec<String>,
}

/// Former schemas by their hash.
pub type PastSchemas = HashMap<Vec<u8>, PublicationSchema>;

/// What deploying says of remotes.
#[derive(Debug, Default)]
pub struct DeploymentReview {
    /// What remotes notice.
    pub effects: Vec<RemoteEffect>,
    /// Who may have something pending that is refused for it.
    pub held_up: Vec<HeldUpRemote>,
}

impl DeploymentReview {
    /// Judges changes against everything that is known of remotes.
    pub fn new(
        changes: &[PublicationChange<'_>],
        remotes: &[KnownRemote],
        past: &PastSchemas,
    ) -> DeploymentReview {
        let mut review = DeploymentReview::default();
        for change in changes {
            let effects = effects(change.old, change.new);
            let holding: Vec<&SchemaDifference> = effects.iter().filter(|it| it.holds_up).collect();
            for remote in remotes.iter().filter(|_| !holding.is_empty()) {
                if remote.is_concerned(change, &holding, past)
                    && !review.held_up.iter().any(|it| it.id == remote.id)
                {
                    review.held_up.push(HeldUpRemote {
                        id: remote.id,
                        user: remote.user.clone(),
                        last_sync_ms: remote.last_sync_ms,
                    });
                }
            }
            let effects = effects.into_iter().map(|effect| RemoteEffect {
                publication: change.publication.to_owned(),
                description: effect.description,
                holds_up: effect.holds_up,
            });
            review.effects.extend(effects);
        }
        review
    }

    /// Whether a deployment may go ahead.
    ///
    /// # Errors
    /// [`CentreError::RemotesHeldUp`]
    pub fn allow(&self, mode: DeploymentMode) -> Result<(), CentreError> {
        if mode != DeploymentMode::Careful || self.held_up.is_empty() {
            return Ok(());
        }
        let holding = self.effects.iter().filter(|it| it.holds_up);
        Err(CentreError::RemotesHeldUp {
            changes: holding.map(|it| it.description.clone()).collect(),
            remotes: self.held_up.clone(),
        })
    }
}

impl KnownRemote {
    /// Whether it may have something pending that the change holds up.
    fn is_concerned(
        &self,
        change: &PublicationChange<'_>,
        holding: &[&SchemaDifference],
        past: &PastSchemas,
    ) -> bool {
        let known = decode_known(&self.schemas);
        let Some(hash) = known.get(change.publication) else {
            // It has synced before that was noted, or not at all.
            return self.subscriptions.iter().any(|it| it == change.publication);
        };
        match past.get(hash) {
            // It has not even seen the schema that changes now.
            Some(older) => effects(older, change.new).iter().any(|effect| {
                holding
                    .iter()
                    .any(|it| it.subject == effect.subject && effect.holds_up)
            }),
            None => true,
        }
    }
}

/// What is known of a remote's schemas, as text: publication and hash.
pub fn encode_known(schemas: &[(String, Vec<u8>)]) -> String {
    if schemas.is_empty() {
        return String::new();
    }
    let entry = |(publication, hash): &(String, Vec<u8>)| {
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        (publication.clone(), serde_json::Value::String(hash))
    };
    serde_json::Value::Object(schemas.iter().map(entry).collect()).to_string()
}

/// Reads what [`encode_known`] wrote; what is not understood is not known.
fn decode_known(text: &str) -> HashMap<String, Vec<u8>> {
    let known: HashMap<String, String> = serde_json::from_str(text).unwrap_or_default();
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    };
    let hash = |hex: String| {
        hex.as_bytes()
            .chunks(2)
            .map(byte)
            .collect::<Option<Vec<u8>>>()
    };
    let known = known.into_iter();
    known
        .filter_map(|(publication, hex)| Some((publication, hash(hex)?)))
        .collect()
}

/// One difference between two schemas.
#[derive(Debug, PartialEq, Eq)]
struct SchemaDifference {
    /// What it is about, to recognize it between other versions.
    subject: String,
    description: String,
    holds_up: bool,
}

impl SchemaDifference {
    fn new(subject: String, description: String, holds_up: bool) -> SchemaDifference {
        SchemaDifference {
            subject,
            description,
            holds_up,
        }
    }
}

fn effects(old: &PublicationSchema, new: Option<&PublicationSchema>) -> Vec<SchemaDifference> {
    let Some(new) = new else {
        let what = "is not published any more: its remotes cannot sync it";
        return vec![SchemaDifference::new(String::new(), what.to_owned(), true)];
    };
    let mut effects = Vec::new();
    for before in &old.tables {
        match new.table(&before.name) {
            None => effects.push(SchemaDifference::new(
                before.name.clone(),
                format!(
                    "the table {:?} leaves remotes{}",
                    before.name,
                    refused(before)
                ),
                before.direction.uploads(),
            )),
            Some(after) => of_table(before, after, &mut effects),
        }
    }
    for table in &new.tables {
        if old.table(&table.name).is_none() {
            let what = format!("remotes get the table {:?}", table.name);
            effects.push(SchemaDifference::new(table.name.clone(), what, false));
        }
    }
    effects
}

/// What becomes of pending changes of a table, as the end of a sentence.
fn refused(table: &Table) -> &'static str {
    match table.direction.uploads() {
        true => "; what they have pending of it is refused and kept in their lists",
        false => "",
    }
}

fn key(table: &Table) -> Vec<(&str, ColumnType)> {
    let columns = table.key_columns();
    columns
        .map(|it| (it.name.as_str(), it.column_type))
        .collect()
}

fn of_table(old: &Table, new: &Table, effects: &mut Vec<SchemaDifference>) {
    let uploads = old.direction.uploads();
    let name = &new.name;
    if key(old) != key(new) {
        let what = format!("the table {name:?} has another key{}", refused(old));
        effects.push(SchemaDifference::new(format!("{name} key"), what, uploads));
        return;
    }
    if uploads && !new.direction.uploads() {
        let what = format!(
            "the table {name:?} takes no changes any more{}",
            refused(old)
        );
        effects.push(SchemaDifference::new(
            format!("{name} direction"),
            what,
            true,
        ));
    } else if old.direction != new.direction {
        let what = format!("the table {name:?} travels in another direction");
        effects.push(SchemaDifference::new(
            format!("{name} direction"),
            what,
            false,
        ));
    }
    for column in &old.columns {
        if new.column(&column.name).is_none() {
            let what = format!(
                "the column {:?} leaves the table {name:?} of remotes{}",
                column.name,
                refused(old)
            );
            effects.push(SchemaDifference::new(
                format!("{name}.{}", column.name),
                what,
                uploads,
            ));
        }
    }
    for column in &new.columns {
        let before = old.column(&column.name).map(|index| &old.columns[index]);
        of_column(uploads, name, before, column, effects);
    }
    let names = |table: &Table| -> Vec<String> {
        let columns = table.partition.iter();
        columns
            .map(|&index| table.columns[index].name.clone())
            .collect()
    };
    let (before, after) = (names(old), names(new));
    if before != after {
        let unknown = after.iter().any(|column| old.column(column).is_none());
        let by = match after.as_slice() {
            [] => "everyone holds all of it".to_owned(),
            columns => format!("told apart by {}", columns.join(", ")),
        };
        let refused = if unknown { refused(old) } else { "" };
        let what = format!("the table {name:?} has other partitions, {by}{refused}");
        effects.push(SchemaDifference::new(
            format!("{name} partition {}", after.join(", ")),
            what,
            uploads && unknown,
        ));
    }
    if old.unique != new.unique || old.foreign_keys != new.foreign_keys {
        let what = format!("the table {name:?} has other indexes and references");
        effects.push(SchemaDifference::new(
            format!("{name} constraints"),
            what,
            false,
        ));
    }
}

fn of_column(
    uploads: bool,
    table: &str,
    old: Option<&Column>,
    new: &Column,
    effects: &mut Vec<SchemaDifference>,
) {
    let name = &new.name;
    let subject = format!("{table}.{name}");
    let Some(old) = old else {
        let inserts = match !new.nullable && new.default.is_none() && uploads {
            true => "; rows that they have inserted before get an empty value in it",
            false => "",
        };
        let what = format!("remotes get the column {name:?} of {table:?}{inserts}");
        effects.push(SchemaDifference::new(subject, what, false));
        return;
    };
    if old.column_type != new.column_type {
        let fits = is_wider(old.column_type, new.column_type);
        let pending = match (uploads, fits) {
            (false, _) => "",
            (true, true) => "; what they have pending goes up again in it",
            (true, false) => "; what they have pending is refused where it does not fit",
        };
        let what = format!("the column {name:?} of {table:?} has another type{pending}");
        effects.push(SchemaDifference::new(subject, what, uploads && !fits));
    } else if old.nullable && !new.nullable {
        let what = format!("the column {name:?} of {table:?} is NOT NULL on remotes, too");
        effects.push(SchemaDifference::new(subject, what, false));
    }
}

/// Whether every value of the old type is one of the new type, spelled as the centre itself
/// spells it when a column's type is altered.
fn is_wider(old: ColumnType, new: ColumnType) -> bool {
    use ColumnType::{Decimal, Integer, Opaque, Text, Uuid};
    match (old, new) {
        (Integer, Decimal { .. } | Text) | (Uuid | Opaque, Text) => true,
        (Decimal { scale: Some(_) }, Decimal { scale: None }) => true,
        (Decimal { scale: Some(old) }, Decimal { scale: Some(new) }) => old <= new,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
