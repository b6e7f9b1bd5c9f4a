//! What the database knows of remotes and of the schemas that they have; what a changed
//! publication means to them is [`crate::evolution`]'s affair.

use std::collections::HashMap;

use tokio_postgres::Transaction;

use tidewater_protocol::{PublicationSchema, RemoteId};

use super::Deployed;
use crate::error::CentreError;
use crate::evolution::{Change, KnownRemote, PastSchemas, Review};
use crate::postgres::connection::refused;
use crate::postgres::model::Compiled;

/// SQL that keeps a schema which is not deployed any more: some remotes still have it.
pub(super) fn keep_schema(schema: Option<&[u8]>) -> String {
    let Some(decoded) = schema.and_then(|bytes| PublicationSchema::decode(bytes).ok()) else {
        return String::new();
    };
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|it| format!("{it:02x}"))
            .collect::<String>()
    };
    let name = super::literal(&decoded.name).unwrap_or_else(|| "''".into());
    format!(
        "INSERT INTO tidewater.past_schema (hash, publication, schema) \
         VALUES (decode('{}', 'hex'), {name}, decode('{}', 'hex')) ON CONFLICT DO NOTHING;\n",
        hex(&decoded.hash()),
        hex(schema.unwrap_or_default()),
    )
}

/// What the deployment means to remotes.
pub(super) async fn review(
    transaction: &Transaction<'_>,
    deployed: &Deployed,
    compiled: &[Compiled],
) -> Result<Review, CentreError> {
    let decode = |bytes: &Vec<u8>| PublicationSchema::decode(bytes).ok();
    let before: HashMap<&String, PublicationSchema> = deployed
        .publications
        .iter()
        .filter_map(|(name, (_, schema))| Some((name, decode(schema)?)))
        .collect();
    let mut changes: Vec<Change<'_>> = before
        .iter()
        .map(|(name, old)| {
            let mut publications = compiled.iter();
            let new = publications.find(|it| it.schema.name == **name);
            Change {
                publication: name,
                old,
                new: new.map(|it| &*it.schema),
            }
        })
        .filter(|change| change.new != Some(change.old))
        .collect();
    changes.sort_by_key(|change| change.publication);
    if changes.is_empty() {
        return Ok(Review::default());
    }
    let remotes = remotes(transaction).await?;
    let past = past_schemas(transaction).await?;
    Ok(Review::of(&changes, &remotes, &past))
}

async fn remotes(transaction: &Transaction<'_>) -> Result<Vec<KnownRemote>, CentreError> {
    let sql = "SELECT r.id, r.user_name, r.last_sync_ms, r.schemas,
           array(SELECT s.publication::text FROM tidewater.subscription s WHERE s.remote_id = r.id)
         FROM tidewater.remote r WHERE NOT r.revoked ORDER BY r.user_name, r.id";
    let rows = transaction.query(sql, &[]).await;
    let rows = rows.map_err(refused("reading the remotes"))?;
    let remote = |row: tokio_postgres::Row| {
        Some(KnownRemote {
            id: RemoteId::from_slice(row.get(0))?,
            user: row.get(1),
            last_sync_ms: row.get(2),
            schemas: row.get(3),
            subscriptions: row.get(4),
        })
    };
    Ok(rows.into_iter().filter_map(remote).collect())
}

async fn past_schemas(transaction: &Transaction<'_>) -> Result<PastSchemas, CentreError> {
    let sql = "SELECT hash, schema FROM tidewater.past_schema";
    let rows = transaction.query(sql, &[]).await;
    let rows = rows.map_err(refused("reading former schemas"))?.into_iter();
    let schema =
        |row: tokio_postgres::Row| Some((row.get(0), PublicationSchema::decode(row.get(1)).ok()?));
    Ok(rows.filter_map(schema).collect())
}
