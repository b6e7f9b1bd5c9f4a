//! What is deployed, as the server's own tables say, and what another deployment means to remotes.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use tidewater_protocol::{PublicationSchema, RemoteId};

use super::catalog::TableInfo;
use super::compile::{definition, recorded_spec, with_columns_of};
use super::connection::{DatabaseConnection, Durability, SystemStatement};
use super::publication::Publication;
use super::sql::system::{
    given_back, meta, publications, remotes, rules, signing_keys, subscriptions,
};
use crate::engine::deployment_step::DeploymentStep;
use crate::engine::evolution::{DeploymentReview, KnownRemote, PastSchemas, PublicationChange};
use crate::engine::sql::served_table::TableAdapter;
use crate::error::CentreError;
use crate::publication::PublicationSpec;

type Result<T> = std::result::Result<T, CentreError>;

/// Random bytes for a database in which nothing was deployed before: the first signing key's, and
/// then the name's.
pub type Random = [u8; 48];

/// What is deployed, as the server's own tables say.
#[derive(Debug, Default)]
pub struct DeploymentRecord {
    publications: BTreeMap<String, StoredPublication>,
    rules: Vec<RecordedRule>,
    has_key: bool,
}

/// A publication as it is deployed.
#[derive(Debug)]
struct StoredPublication {
    definition: String,
    schema: Vec<u8>,
}

/// A rule as it is deployed.
#[derive(Debug)]
struct RecordedRule {
    id: i64,
    publication: String,
    table: String,
    identity: String,
}

impl DeploymentRecord {
    /// Reads what is deployed; the server's own tables are there.
    pub async fn read(connection: &mut impl DatabaseConnection) -> Result<DeploymentRecord> {
        let statements = [
            publications::list(),
            signing_keys::find_any(),
            rules::list(),
        ];
        let what = "reading the deployed state";
        let answers = connection.flight(what, &statements).await?;
        let publications = answers[0].rows.iter().map(|row| {
            let stored = StoredPublication {
                definition: row.get(1)?,
                schema: row.get(2)?,
            };
            Ok((row.get(0)?, stored))
        });
        let rules = answers[2].rows.iter().map(|row| {
            Ok(RecordedRule {
                id: row.get(0)?,
                publication: row.get(1)?,
                table: row.get(2)?,
                identity: row.get(3)?,
            })
        });
        Ok(DeploymentRecord {
            publications: publications.collect::<Result<_>>()?,
            rules: rules.collect::<Result<_>>()?,
            has_key: !answers[1].rows.is_empty(),
        })
    }

    /// A publication's schema as it is deployed.
    pub fn schema(&self, publication: &str) -> Option<PublicationSchema> {
        let stored = self.publications.get(publication)?;
        PublicationSchema::decode(&stored.schema).ok()
    }

    /// The tables that are deployed, as remotes call them, each once.
    pub fn tables(&self) -> Vec<String> {
        let schemas = self.publications.keys().filter_map(|it| self.schema(it));
        let tables = schemas.flat_map(|schema| schema.tables.into_iter().map(|it| it.name));
        let tables: BTreeSet<String> = tables.collect();
        tables.into_iter().collect()
    }

    /// The publications that are deployed, with the columns that remotes know of them.
    ///
    /// # Errors
    /// There are none.
    pub fn specs(&self, catalog: &[TableInfo]) -> Result<Vec<PublicationSpec>> {
        let specs = self.publications.iter().map(|(name, stored)| {
            let spec = recorded_spec(&stored.definition)?;
            let schema = self.schema(name);
            Ok(match &schema {
                Some(schema) => with_columns_of(&spec, schema, catalog),
                None => spec,
            })
        });
        let specs: Vec<PublicationSpec> = specs.collect::<Result<_>>()?;
        match specs.is_empty() {
            true => Err(CentreError::NotDeployed {
                message: "no publication is deployed".into(),
            }),
            false => Ok(specs),
        }
    }

    /// Fills in the numbers of a publication's rules; false if one is not deployed.
    pub fn number<T: TableAdapter>(&self, publication: &mut Publication<T>) -> bool {
        let schema = &publication.schema;
        // Nobody serves it before it has its numbers.
        let rules = Arc::get_mut(&mut publication.rules).into_iter().flatten();
        for rule in rules {
            let table = &schema.tables[rule.table].name;
            let recorded = self.rules.iter().find(|it| {
                it.publication == schema.name && it.table == *table && it.identity == rule.identity
            });
            rule.id = recorded.map_or(0, |it| it.id);
        }
        publication.rules.iter().all(|rule| rule.id != 0)
    }

    /// What records the publications as they are configured.
    ///
    /// # Errors
    /// Two have one name, or one cannot be stored.
    pub fn record<T: TableAdapter>(
        &self,
        specs: &[PublicationSpec],
        publications: &mut [Publication<T>],
    ) -> Result<Vec<DeploymentStep>> {
        let mut names = HashSet::new();
        let mut steps = Vec::new();
        for (spec, publication) in specs.iter().zip(publications) {
            let name = &spec.name;
            let wrong = match (names.insert(name), name.contains('\0')) {
                (false, _) => Some("there is another publication of this name"),
                (_, true) => Some("a name cannot have NUL in it"),
                _ => None,
            };
            if let Some(wrong) = wrong {
                return Err(CentreError::Configuration {
                    message: format!("publication {name:?}: {wrong}"),
                    hint: "give it another name".into(),
                });
            }
            let is_numbered = self.number(publication);
            let (definition, schema) = (definition(spec)?, publication.schema.encode());
            let description = match self.publications.get(name) {
                Some(it) if it.definition == definition && it.schema == schema && is_numbered => {
                    continue;
                }
                Some(_) => format!("change the publication {name:?}"),
                None => format!("record the publication {name:?}"),
            };
            let mut statements = self.keep_schema(name);
            statements.push(publications::save(name, &definition, &schema));
            statements.extend(self.record_rules(publication));
            steps.push(DeploymentStep::record(description, statements));
        }
        // Subscriptions stay: their numbers must go on if the publication comes back.
        for name in self.publications.keys().filter(|it| !names.contains(it)) {
            let mut statements = self.keep_schema(name);
            statements.push(publications::delete(name));
            statements.push(rules::delete_of_publication(name));
            let description = format!("remove the publication {name:?}");
            steps.push(DeploymentStep::record(description, statements).unneeded());
        }
        Ok(steps)
    }

    /// Forgets the rules that a publication has no more, and records those that are new.
    fn record_rules<T: TableAdapter>(&self, publication: &Publication<T>) -> Vec<SystemStatement> {
        let name = &publication.schema.name;
        let kept = &publication.rules;
        let gone = self.rules.iter().filter(|it| it.publication == *name);
        let gone = gone.filter(|it| kept.iter().all(|rule| rule.id != it.id));
        let forget = gone.map(|it| rules::delete(it.id));
        let new = kept.iter().filter(|rule| rule.id == 0);
        let insert = new.map(|rule| {
            let table = &publication.schema.tables[rule.table];
            rules::insert(name, &table.name, &rule.identity)
        });
        forget.chain(insert).collect()
    }

    /// Keeps a schema that is not deployed any more: some remotes still have it.
    fn keep_schema(&self, publication: &str) -> Vec<SystemStatement> {
        let schema = self.schema(publication);
        let keep = schema.map(|schema| publications::insert_past_schema(&schema));
        keep.into_iter().collect()
    }

    /// What makes the first signing key, and gives the centre its name.
    pub fn first_key(&self, random: &Random, now_ms: i64) -> Option<DeploymentStep> {
        let (secret, name) = random.split_at(32);
        let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        let make = || {
            vec![
                signing_keys::insert_first(secret, now_ms),
                meta::name(&name),
            ]
        };
        (!self.has_key).then(|| DeploymentStep::record("make the first signing key".into(), make()))
    }

    /// What the deployment means to remotes.
    pub async fn review(
        &self,
        connection: &mut impl DatabaseConnection,
        schemas: &[&PublicationSchema],
    ) -> Result<DeploymentReview> {
        let before = self.publications.keys();
        let before = before.filter_map(|name| Some((name, self.schema(name)?)));
        let before: Vec<(&String, PublicationSchema)> = before.collect();
        let changes = before.iter().map(|(name, old)| {
            let mut schemas = schemas.iter();
            let new = schemas.find(|it| it.name == **name).copied();
            PublicationChange {
                publication: name,
                old,
                new,
            }
        });
        let changes: Vec<PublicationChange<'_>> = changes
            .filter(|change| change.new != Some(change.old))
            .collect();
        if changes.is_empty() {
            return Ok(DeploymentReview::default());
        }
        let remotes = remotes(connection).await?;
        let past = past_schemas(connection).await?;
        Ok(DeploymentReview::new(&changes, &remotes, &past))
    }
}

/// See [`crate::Centre::rename`].
pub(super) async fn rename(
    connection: &mut impl DatabaseConnection,
    random: &Random,
    now_ms: i64,
) -> Result<bool> {
    let (secret, name) = random.split_at(32);
    let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    let statements = [
        signing_keys::insert_next(secret, now_ms),
        signing_keys::delete_others(secret),
        remotes::delete_all(),
        remotes::delete_all_removed(),
        subscriptions::delete_all(),
        given_back::delete_all(),
        meta::rename(&name),
    ];
    let what = "giving the centre another name";
    connection
        .transact(what, Durability::Durable, &statements)
        .await?;
    Ok(true)
}

async fn remotes(connection: &mut impl DatabaseConnection) -> Result<Vec<KnownRemote>> {
    let statements = [remotes::list_schemas(), subscriptions::list()];
    let what = "reading what remotes have";
    let answers = connection.flight(what, &statements).await?;
    let mut subscriptions: BTreeMap<RemoteId, Vec<String>> = BTreeMap::new();
    for row in &answers[1].rows {
        subscriptions
            .entry(row.get(0)?)
            .or_default()
            .push(row.get(1)?);
    }
    let remotes = answers[0].rows.iter().map(|row| {
        let id = row.get(0)?;
        Ok(KnownRemote {
            id,
            user: row.get(1)?,
            last_sync_ms: row.get(2)?,
            schemas: row.get(3)?,
            subscriptions: subscriptions.remove(&id).unwrap_or_default(),
        })
    });
    remotes.collect()
}

/// Schemas that are not deployed any more, of all publications.
pub(super) async fn past_schemas(connection: &mut impl DatabaseConnection) -> Result<PastSchemas> {
    let select = publications::list_past_schemas();
    let answer = connection.run_one("reading former schemas", select).await?;
    let mut past = PastSchemas::new();
    for row in &answer.rows {
        if let Ok(schema) = PublicationSchema::decode(&row.get::<Vec<u8>>(1)?) {
            past.insert(row.get(0)?, schema);
        }
    }
    Ok(past)
}
