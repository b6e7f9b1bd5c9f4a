//! What the file knows of remotes and of the schemas that they have; what a changed
//! publication means to them is [`crate::evolution`]'s affair.

use std::collections::BTreeMap;

use rusqlite::{Connection, params};

use tidewater_protocol::{PublicationSchema, RemoteId};

use crate::error::CentreError;
use crate::evolution::{Change, KnownRemote, PastSchemas, Review};
use crate::sqlite::compile::Publication;
use crate::sqlite::{failure, state};

/// The publications as they are deployed, by name.
pub(super) fn deployed(
    connection: &Connection,
) -> Result<BTreeMap<String, PublicationSchema>, CentreError> {
    if !state::check(connection)? {
        return Ok(BTreeMap::new());
    }
    let reading = failure("reading the deployed publications");
    let mut statement = connection
        .prepare_cached("SELECT name, schema FROM tidewater_publication")
        .map_err(reading)?;
    let rows = statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .map_err(reading)?;
    let rows: Vec<(String, Vec<u8>)> = rows.collect::<rusqlite::Result<_>>().map_err(reading)?;
    let decode = |(name, schema): (String, Vec<u8>)| {
        let schema = PublicationSchema::decode(&schema).ok()?;
        Some((name, schema))
    };
    Ok(rows.into_iter().filter_map(decode).collect())
}

/// Keeps a schema that is not deployed any more: some remotes still have it.
pub(super) fn keep_schema(
    connection: &Connection,
    schema: &PublicationSchema,
) -> Result<(), CentreError> {
    connection
        .execute(
            "INSERT INTO tidewater_past_schema (hash, publication, schema) VALUES (?1, ?2, ?3)
             ON CONFLICT DO NOTHING",
            params![schema.hash(), schema.name, schema.encode()],
        )
        .map(drop)
        .map_err(failure("keeping a former schema"))
}

/// What the deployment means to remotes. The state is in the current format.
pub(super) fn review(
    connection: &Connection,
    before: &BTreeMap<String, PublicationSchema>,
    publications: &[Publication],
) -> Result<Review, CentreError> {
    let changes = before.iter().map(|(name, old)| {
        let mut publications = publications.iter();
        let new = publications.find(|it| it.schema.name == *name);
        Change {
            publication: name,
            old,
            new: new.map(|it| &*it.schema),
        }
    });
    let changes: Vec<Change<'_>> = changes
        .filter(|change| change.new != Some(change.old))
        .collect();
    if changes.is_empty() {
        return Ok(Review::default());
    }
    let reading = failure("reading what remotes have");
    let remotes = remotes(connection).map_err(reading)?;
    let past = past_schemas(connection).map_err(reading)?;
    Ok(Review::of(&changes, &remotes, &past))
}

fn remotes(connection: &Connection) -> rusqlite::Result<Vec<KnownRemote>> {
    let mut subscriptions = connection
        .prepare("SELECT publication FROM tidewater_subscription WHERE remote_id = ?1")?;
    let mut statement = connection.prepare(
        "SELECT id, user_name, last_sync_ms, schemas FROM tidewater_remote
         WHERE NOT revoked ORDER BY user_name, id",
    )?;
    let mut rows = statement.query([])?;
    let mut remotes = Vec::new();
    while let Some(row) = rows.next()? {
        let id: Vec<u8> = row.get(0)?;
        let Some(remote_id) = RemoteId::from_slice(&id) else {
            continue;
        };
        let names = subscriptions.query_map([&id], |row| row.get(0))?;
        remotes.push(KnownRemote {
            id: remote_id,
            user: row.get(1)?,
            last_sync_ms: row.get(2)?,
            schemas: row.get(3)?,
            subscriptions: names.collect::<rusqlite::Result<_>>()?,
        });
    }
    Ok(remotes)
}

fn past_schemas(connection: &Connection) -> rusqlite::Result<PastSchemas> {
    let mut statement = connection.prepare("SELECT hash, schema FROM tidewater_past_schema")?;
    let mut rows = statement.query([])?;
    let mut past = PastSchemas::new();
    while let Some(row) = rows.next()? {
        if let Ok(schema) = PublicationSchema::decode(&row.get::<_, Vec<u8>>(1)?) {
            past.insert(row.get(0)?, schema);
        }
    }
    Ok(past)
}
