//! Which rows of a batch that failed are likely to be the bad ones: a query over the table's
//! constraints finds them together, where halving would come to each by a dozen statements that
//! fail. It decides nothing: each of them is tried alone, and told what PostgreSQL says of it.

use tidewater_protocol::Op;

use super::sql::{self, PostgresIncomingTable};
use super::statements::ordinal;
use super::{Result, UploadRows};
use crate::array::Array;
use crate::rows::execute::as_parameters;
use tidewater_centre::engine::upload::incoming_rows::RowRef;

/// Fewer rows are halved.
const FEW: usize = 8;

/// What is true of a row `r` that violates a CHECK or refers to nothing, by the constraints of
/// table `$1` over some of columns `$2`. What refers to rows of its own table may mean others of
/// the batch.
const CONDITION: &str = "
SELECT string_agg(CASE c.contype
  WHEN 'c' THEN format('(%s) IS FALSE', pg_catalog.pg_get_expr(c.conbin, c.conrelid))
  ELSE (SELECT format('(%s AND NOT EXISTS (SELECT FROM %s p WHERE %s))',
      string_agg(format('r.%I IS NOT NULL', a.attname), ' AND '), c.confrelid::regclass,
      string_agg(format('p.%I = r.%I', b.attname, a.attname), ' AND '))
    FROM unnest(c.conkey, c.confkey) AS k (own, other)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.own
    JOIN pg_catalog.pg_attribute b ON b.attrelid = c.confrelid AND b.attnum = k.other)
  END, ' OR ')
FROM pg_catalog.pg_constraint c
WHERE c.conrelid = $1 AND (c.contype = 'c' OR c.contype = 'f' AND c.confrelid <> c.conrelid)
  AND c.conkey <@ ARRAY (SELECT a.attnum FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = $1 AND a.attname::text = ANY ($2))";

impl UploadRows<'_> {
    /// Those of some inserts or updates that violate a constraint as they were uploaded; none if
    /// that cannot be told. `arrays` are the parameters of their statement.
    pub(super) async fn suspects(
        &self,
        table: &PostgresIncomingTable<'_>,
        op: Op,
        changed: &[usize],
        rows: &[RowRef],
        arrays: &[Array],
    ) -> Result<Vec<RowRef>> {
        if op == Op::Delete || rows.len() < FEW {
            return Ok(Vec::new());
        }
        self.savepoint("SAVEPOINT tidewater_suspects").await?;
        let found = self.violating(table, op, changed, arrays).await;
        // Whatever the constraints' own functions say or do, nothing of it stays.
        self.savepoint("ROLLBACK TO tidewater_suspects; RELEASE tidewater_suspects")
            .await?;
        let found = found.unwrap_or_default();
        Ok(found.into_iter().map(|at| rows[at]).collect())
    }

    async fn violating(
        &self,
        table: &PostgresIncomingTable<'_>,
        op: Op,
        changed: &[usize],
        arrays: &[Array],
    ) -> std::result::Result<Vec<usize>, tokio_postgres::Error> {
        let client = self.connection.client();
        let known = sql::known_after(table, op, changed);
        let names = known.iter().map(|&(_, it)| &*table.table.columns[it].name);
        let names: Vec<&str> = names.collect();
        let row = client
            .query_one(CONDITION, &[&table.table.details.oid, &names])
            .await?;
        let Some(condition) = row.get::<_, Option<String>>(0) else {
            return Ok(Vec::new());
        };
        let text = sql::violating(table, op, changed, &condition);
        let parameters = as_parameters(arrays);
        let found = self.acting.run(client, client.query(&text, &parameters));
        Ok(found.await?.iter().map(|row| ordinal(row, 0)).collect())
    }
}
