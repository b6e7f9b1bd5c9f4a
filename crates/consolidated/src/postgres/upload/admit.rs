//! Admitting an upload: its number is taken, its tables are locked, and the scope by which
//! it is judged is found. What happens to its rows is the affair of the modules beside.

use std::collections::BTreeSet;

use futures_util::future;

use super::One;
use super::incoming::Incoming;
use crate::engine::upload::{self, Admission, HeldPartitions};
use crate::error::CentreError;
use crate::postgres::FINGERPRINTS;
use crate::postgres::connection::{Connection, refused};
use crate::postgres::model::CompiledTable;
use crate::postgres::own::run_all;
use crate::postgres::scope::{Facts, ScopeQueries};
use crate::postgres::watermark::Watermark;
use crate::scope::Scope;

const TRANSACTION: &str = "SELECT pg_catalog.pg_current_xact_id()::text";

/// What is known once the sequence number is taken.
pub(super) struct Admitted {
    pub(super) version: u64,
    pub(super) admission: Admission,
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
        let take = upload::take(self.upload);
        let taking = connection.prepare_own(&take).await?;
        let transaction = connection.prepare(TRANSACTION, &[]).await?;
        let fingerprints = connection.prepare(FINGERPRINTS, &[]).await?;
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
        let (locked, (taken, (transaction, (live, results)))) = future::join(
            client.batch_execute(&lock),
            future::join(
                run_all(client, &taking, &take),
                future::join(
                    client.query_one(&transaction, &[]),
                    future::join(client.query(&fingerprints, &[&oids]), queries.run(client)),
                ),
            ),
        )
        .await;
        locked.map_err(error)?;
        let Some(serials) = upload::taken(&taken.map_err(error)?)? else {
            return Ok(None);
        };
        let version: String = transaction.map_err(error)?.get(0);
        let live = live.map_err(error)?;
        let scope = queries.scope(0, self.publication, &results?)?;
        let checkpoint = self.upload.checkpoint.as_ref();
        let held = self.held(&scope);
        let admission =
            Admission::new(&self.publication.schema, checkpoint, &serials, &held, scope);
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
            admission,
            live: live.collect(),
        }))
    }

    /// What the checkpoint that the remote presents says of each table: nothing, if other tables
    /// were published then, or the same ones otherwise.
    fn held(&self, current: &Scope) -> Vec<HeldPartitions<'_>> {
        let fitting = self.upload.checkpoint.as_ref().filter(|checkpoint| {
            Watermark::decode(&checkpoint.watermark)
                .is_some_and(|watermark| watermark.layout == self.publication.layout)
                && checkpoint.scope.tables.len() == current.tables.len()
        });
        let tables = fitting.map(|checkpoint| checkpoint.scope.tables.iter().map(Some));
        tables.into_iter().flatten().collect()
    }
}
