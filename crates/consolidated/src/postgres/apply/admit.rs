//! Admitting an upload: its number is taken, its tables are locked, and the scope by which
//! it is judged is found. What happens to its rows is the affair of the modules beside.

use std::collections::BTreeSet;

use futures_util::future;
use tokio_postgres::Row;

use super::One;
use super::incoming::{self, Incoming};
use crate::error::CentreError;
use crate::postgres::FINGERPRINTS;
use crate::postgres::connection::{Connection, refused};
use crate::postgres::model::CompiledTable;
use crate::postgres::scope::{Facts, ScopeQueries};
use crate::postgres::watermark::Watermark;
use crate::scope::{Checkpoint, Scope};
use crate::upload::GainedPartitions;

const ENSURE_SUBSCRIPTION: &str = "
INSERT INTO tidewater.subscription (remote_id, publication) VALUES ($1, $2) ON CONFLICT DO NOTHING";

/// Whoever comes second finds the number used.
const TAKE_SEQUENCE: &str = "
UPDATE tidewater.subscription SET sequence = $3::int8, upload_id = $4
WHERE remote_id = $1 AND publication = $2 AND sequence = $3::int8 - 1
RETURNING scope_serial, previous_serial, graced_serial, pg_catalog.pg_current_xact_id()::text";

/// What is known once the sequence number is taken.
pub(super) struct Admitted {
    pub(super) version: u64,
    pub(super) scope: Scope,
    /// The last signed scope, if it still counts.
    pub(super) signed: Option<Scope>,
    /// Becomes the subscription's graced serial.
    pub(super) graced: i64,
    /// Becomes the result's.
    pub(super) gained: Vec<GainedPartitions>,
    /// The tables as they are now.
    live: Vec<Live>,
}

/// A table as it is now; nobody can change it before the transaction ends.
struct Live {
    oid: u32,
    /// Whether table and triggers are still those that were loaded.
    as_loaded: bool,
    /// See the fields of [`Incoming`] with these names.
    edits_inserts: bool,
    defers_unique: bool,
    row_security: bool,
}

impl Admitted {
    /// Puts down what is known of a table beside its uploaded rows.
    pub(super) fn tell(&self, incoming: &mut Incoming<'_>) {
        let found = self.live.iter().find(|it| it.oid == incoming.table.oid);
        if let Some(live) = found {
            incoming.edits_inserts = live.edits_inserts;
            incoming.defers_unique = live.defers_unique;
            incoming.row_security = live.row_security;
        }
    }

    pub(super) fn is_as_loaded(&self, table: &CompiledTable) -> bool {
        let found = self.live.iter().find(|it| it.oid == table.oid);
        found.is_some_and(|live| live.as_loaded)
    }
}

impl One<'_> {
    /// Takes the sequence number and evaluates the scope, in one flight; `None` if the
    /// number does not follow. The tables are those that the upload may write.
    pub(super) async fn admit(
        &self,
        connection: &mut Connection,
        tables: &[&CompiledTable],
    ) -> Result<Option<Admitted>, CentreError> {
        let error = |error| refused("admitting an upload")(error);
        let facts = Facts {
            user: &self.upload.user,
            remote_id: self.upload.remote_id.to_string(),
        };
        let queries = ScopeQueries::prepare(connection, &facts, &[self.publication]).await?;
        let ensure = connection.prepare(ENSURE_SUBSCRIPTION, &[]).await?;
        let take = connection.prepare(TAKE_SEQUENCE, &[]).await?;
        let fingerprints = connection.prepare(FINGERPRINTS, &[]).await?;
        let sequence = i64::try_from(self.upload.sequence)
            .map_err(|_| incoming::malformed("a sequence number out of range"))?;
        let (remote, publication) = self.key();
        let upload_id = self.upload.upload_id.0.as_slice();
        let oids: Vec<u32> = tables.iter().map(|it| it.oid).collect();
        let written = tables.iter().filter(|it| it.direction.uploads());
        let names: BTreeSet<&str> = written.map(|it| it.sql_name.as_str()).collect();
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        // With this lock nobody can change the tables or add a trigger before we end.
        let lock = match names.is_empty() {
            true => String::new(),
            false => format!("LOCK TABLE {names} IN ROW EXCLUSIVE MODE"),
        };
        let client = connection.client();
        let (locked, (ensured, (taken, (live, results)))) = future::join(
            client.batch_execute(&lock),
            future::join(
                client.execute(&ensure, &[&remote, publication]),
                future::join(
                    client.query_opt(&take, &[&remote, publication, &sequence, &upload_id]),
                    future::join(client.query(&fingerprints, &[&oids]), queries.run(client)),
                ),
            ),
        )
        .await;
        locked.map_err(error)?;
        ensured.map_err(error)?;
        let Some(taken) = taken.map_err(error)? else {
            return Ok(None);
        };
        let live = live.map_err(error)?;
        let scope = queries.scope(0, self.publication, &results?)?;
        let version: String = taken.get(3);
        let (signed, graced) = self.signed_scope(&taken, &scope);
        let gained = self.gained(&scope);
        let table = |oid: u32| tables.iter().find(|it| it.oid == oid);
        let live = live.iter().map(|row| Live {
            oid: row.get(0),
            as_loaded: table(row.get(0))
                .is_some_and(|table| row.get::<_, &str>(1) == table.fingerprint),
            edits_inserts: row.get(2),
            defers_unique: row.get(3),
            row_security: row.get(4),
        });
        Ok(Some(Admitted {
            version: version.parse().unwrap_or(0),
            scope,
            signed,
            graced,
            gained,
            live: live.collect(),
        }))
    }

    /// The last signed scope, if it still counts: issued to this subscription as the
    /// last or the one before, and (if partitions of it are lost since) not yet used
    /// for an upload. The one before counts until the last was presented: the answer with
    /// the last may have been lost.
    fn signed_scope(&self, subscription: &Row, current: &Scope) -> (Option<Scope>, i64) {
        let (last, before, graced): (i64, i64, i64) = (
            subscription.get(0),
            subscription.get(1),
            subscription.get(2),
        );
        let Some(checkpoint) = &self.upload.checkpoint else {
            return (None, graced);
        };
        // Who presents the newest scope has it: the one before is spent.
        let has_last = i64::try_from(checkpoint.serial) == Ok(last);
        let graced = if has_last { graced.max(before) } else { graced };
        let issued = i64::try_from(checkpoint.serial)
            .ok()
            .filter(|&serial| serial > 0 && (serial == last || serial == before));
        let (Some(serial), true) = (issued, self.fits(checkpoint, current)) else {
            return (None, graced);
        };
        let mut pairs = checkpoint.scope.tables.iter().zip(&current.tables);
        let lost = pairs.any(|(held, now)| !held.is_subset(now));
        if !lost || serial <= graced {
            return (None, graced);
        }
        (Some(checkpoint.scope.clone()), serial)
    }

    /// Whether a checkpoint's partitions are those of the publication's tables as they are now.
    fn fits(&self, checkpoint: &Checkpoint, current: &Scope) -> bool {
        Watermark::decode(&checkpoint.watermark)
            .is_some_and(|watermark| watermark.layout == self.publication.layout)
            && checkpoint.scope.tables.len() == current.tables.len()
    }

    /// What came into the scope since the checkpoint that the remote presents.
    fn gained(&self, current: &Scope) -> Vec<GainedPartitions> {
        let Some(checkpoint) = &self.upload.checkpoint else {
            return Vec::new();
        };
        if !self.fits(checkpoint, current) {
            return Vec::new();
        }
        let names = self.publication.schema.tables.iter().map(|it| &it.name);
        let pairs = checkpoint.scope.tables.iter().zip(&current.tables);
        let gained = names
            .zip(pairs)
            .map(|(name, (held, now))| GainedPartitions {
                table: name.clone(),
                partitions: now.difference(held).cloned().collect(),
            });
        gained.filter(|it| !it.partitions.is_empty()).collect()
    }
}
