//! What deploying does in the server's own tables, and what it means to remotes.
//!
//! What has to be made in the database for the change logs is the adapter's affair. Both happen in
//! one transaction, which the adapter begins and ends.

use std::collections::{BTreeMap, HashSet};

use tidewater_protocol::{PublicationSchema, RemoteId};

use super::compile::definition;
use super::connection::{Connection, Own, own};
use crate::error::CentreError;
use crate::evolution::{Change, KnownRemote, PastSchemas, Review};
use crate::publication::{
    ListedTable, PublicationSpec, Tracking, circle_warnings, self_service_warnings,
};

type Result<T> = std::result::Result<T, CentreError>;

/// Random bytes for a database in which nothing was deployed before: the first signing key's, and
/// then the name's.
pub(crate) type Random = [u8; 48];

/// What is deployed, as the server's own tables say.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    publications: BTreeMap<String, Stored>,
    has_key: bool,
}

/// A publication as it is deployed.
#[derive(Debug)]
struct Stored {
    definition: String,
    schema: Vec<u8>,
}

/// One thing to do.
pub(crate) struct Step {
    /// For people.
    pub(crate) description: String,
    pub(crate) statements: Vec<Own>,
}

impl Recorded {
    /// Reads what is deployed; the server's own tables are there.
    pub(crate) async fn read(connection: &mut impl Connection) -> Result<Recorded> {
        let statements = [
            own!("SELECT name, definition, schema FROM tidewater.publication"),
            own!("SELECT 1 FROM tidewater.signing_key LIMIT 1"),
        ];
        let what = "reading the deployed state";
        let answers = connection.flight(what, &statements).await?;
        let publications = answers[0].rows.iter().map(|row| {
            let stored = Stored {
                definition: row.get(1)?,
                schema: row.get(2)?,
            };
            Ok((row.get(0)?, stored))
        });
        Ok(Recorded {
            publications: publications.collect::<Result<_>>()?,
            has_key: !answers[1].rows.is_empty(),
        })
    }

    /// A publication's schema as it is deployed.
    pub(crate) fn schema(&self, publication: &str) -> Option<PublicationSchema> {
        let stored = self.publications.get(publication)?;
        PublicationSchema::decode(&stored.schema).ok()
    }

    /// Whether a publication is deployed as it is configured now; `None` if it is not at all.
    pub(crate) fn fits(&self, spec: &PublicationSpec, schema: &PublicationSchema) -> Option<bool> {
        let stored = self.publications.get(&spec.name)?;
        Some(stored.definition == definition(spec) && stored.schema == schema.encode())
    }

    /// What records the publications as they are configured.
    ///
    /// # Errors
    /// Two have one name, or one cannot be stored.
    pub(crate) fn record<'s>(
        &self,
        specs: &'s [PublicationSpec],
        schemas: impl Iterator<Item = &'s PublicationSchema>,
    ) -> Result<Vec<Step>> {
        let mut names = HashSet::new();
        let mut steps = Vec::new();
        for (spec, schema) in specs.iter().zip(schemas) {
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
            let description = match self.fits(spec, schema) {
                Some(true) => continue,
                Some(false) => format!("change the publication {name:?}"),
                None => format!("record the publication {name:?}"),
            };
            let mut statements = self.keep_schema(name);
            statements.push(own!(
                "INSERT INTO tidewater.publication (name, definition, schema)
                 VALUES (?1, ?2, ?3) ON CONFLICT (name) DO UPDATE
                 SET definition = excluded.definition, schema = excluded.schema",
                name,
                definition(spec),
                schema.encode(),
            ));
            steps.push(Step {
                description,
                statements,
            });
        }
        // Subscriptions stay: their numbers must go on if the publication comes back.
        for name in self.publications.keys().filter(|it| !names.contains(it)) {
            let mut statements = self.keep_schema(name);
            let sql = "DELETE FROM tidewater.publication WHERE name = ?1";
            statements.push(own!(sql, name));
            steps.push(Step {
                description: format!("remove the publication {name:?}"),
                statements,
            });
        }
        Ok(steps)
    }

    /// Keeps a schema that is not deployed any more: some remotes still have it.
    fn keep_schema(&self, publication: &str) -> Vec<Own> {
        let schema = self.schema(publication).map(|schema| {
            own!(
                "INSERT INTO tidewater.past_schema (hash, publication, schema)
                 VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
                schema.hash().to_vec(),
                schema.name,
                schema.encode(),
            )
        });
        schema.into_iter().collect()
    }

    /// What makes the first signing key, and gives the centre its name.
    pub(crate) fn first_key(&self, random: &Random, now_ms: i64) -> Option<Step> {
        let (secret, name) = random.split_at(32);
        let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        (!self.has_key).then(|| Step {
            description: "make the first signing key".into(),
            statements: vec![
                own!(
                    "INSERT INTO tidewater.signing_key (id, secret, created_ms)
                     VALUES (1, ?1, ?2)",
                    secret,
                    now_ms,
                ),
                own!(
                    "UPDATE tidewater.meta SET centre = ?1 WHERE centre = ''",
                    name
                ),
            ],
        })
    }

    /// What the deployment means to remotes.
    pub(crate) async fn review(
        &self,
        connection: &mut impl Connection,
        schemas: &[&PublicationSchema],
    ) -> Result<Review> {
        let before = self.publications.keys();
        let before = before.filter_map(|name| Some((name, self.schema(name)?)));
        let before: Vec<(&String, PublicationSchema)> = before.collect();
        let changes = before.iter().map(|(name, old)| {
            let mut schemas = schemas.iter();
            let new = schemas.find(|it| it.name == **name).copied();
            Change {
                publication: name,
                old,
                new,
            }
        });
        let changes: Vec<Change<'_>> = changes
            .filter(|change| change.new != Some(change.old))
            .collect();
        if changes.is_empty() {
            return Ok(Review::default());
        }
        let remotes = remotes(connection).await?;
        let past = past_schemas(connection).await?;
        Ok(Review::of(&changes, &remotes, &past))
    }
}

async fn remotes(connection: &mut impl Connection) -> Result<Vec<KnownRemote>> {
    let statements = [
        own!(
            "SELECT id, user_name, last_sync_ms, schemas FROM tidewater.remote
             WHERE NOT revoked ORDER BY user_name, id"
        ),
        own!("SELECT remote_id, publication FROM tidewater.subscription"),
    ];
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

async fn past_schemas(connection: &mut impl Connection) -> Result<PastSchemas> {
    let select = own!("SELECT hash, schema FROM tidewater.past_schema");
    let answer = connection.run_one("reading former schemas", select).await?;
    let mut past = PastSchemas::new();
    for row in &answer.rows {
        if let Ok(schema) = PublicationSchema::decode(&row.get::<Vec<u8>>(1)?) {
            past.insert(row.get(0)?, schema);
        }
    }
    Ok(past)
}

/// What works, but not as its operator may think.
pub(crate) fn warnings(specs: &[PublicationSpec], live: &[ListedTable]) -> Vec<String> {
    let mut warnings: Vec<String> = Vec::new();
    for table in specs.iter().flat_map(|it| &it.tables) {
        let warning = format!(
            "{}: tracking is off, every download sends its partitions whole",
            table.name
        );
        if table.tracking == Tracking::Off && !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }
    warnings.extend(self_service_warnings(specs));
    warnings.extend(circle_warnings(specs, live));
    warnings
}
