//! PostgreSQL databases as the suite's databases: one server for all tests.

use std::sync::Arc;
use tidewater_testing::generate::Dialect;
use tidewater_testing::postgres::{connect, shared_postgres};
use tokio_postgres::{Client, SimpleQueryMessage};

use tidewater_centre::{Centre, CentreError};
pub(crate) use tidewater_centre_conformance::fixture::{Fixture, Transaction};

/// A fresh database of the shared server.
pub(crate) struct PostgresFixture {
    url: String,
}

impl PostgresFixture {
    async fn client(&self) -> Client {
        connect(&self.url).await.unwrap()
    }
}

impl Fixture for PostgresFixture {
    type Transaction = PostgresTransaction;

    const CONCURRENT_WRITERS: bool = true;
    const DIALECT: Dialect = Dialect::Postgres;
    const BYTES: &'static str = "BYTEA";
    const EMPTY_TABLE: &'static str = "TRUNCATE {}";

    async fn new() -> Self {
        // Starting the server takes seconds of this thread.
        let url = tokio::task::spawn_blocking(|| shared_postgres().fresh_database());
        Self {
            url: url.await.unwrap(),
        }
    }

    fn url(&self) -> String {
        self.url.clone()
    }

    async fn connect(url: &str) -> Result<Arc<dyn Centre>, CentreError> {
        tidewater_centre_postgres::connect(url).await
    }

    async fn try_execute(&self, sql: &str) -> Result<(), String> {
        let result = self.client().await.batch_execute(sql).await;
        result.map_err(|error| match error.as_db_error() {
            Some(refusal) => refusal.message().to_owned(),
            None => error.to_string(),
        })
    }

    async fn query(&self, sql: &str) -> Vec<String> {
        let messages = self.client().await.simple_query(sql).await.unwrap();
        let rows = messages.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                let values = (0..row.len()).map(|index| row.get(index).unwrap_or("NULL"));
                Some(values.collect::<Vec<_>>().join("|"))
            }
            _ => None,
        });
        rows.collect()
    }

    async fn begin(&self) -> PostgresTransaction {
        let client = self.client().await;
        client.batch_execute("BEGIN").await.unwrap();
        PostgresTransaction { client }
    }

    fn who_trigger() -> String {
        "CREATE FUNCTION who() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           INSERT INTO seen VALUES (NEW.id, nullif(current_setting('tidewater.username', true), ''),
             nullif(current_setting('tidewater.remote_id', true), ''));
           RETURN NULL; END $$;
         CREATE TRIGGER who AFTER INSERT ON note FOR EACH ROW EXECUTE FUNCTION who();"
            .into()
    }

    fn own_table(name: &str) -> String {
        format!("tidewater.{name}")
    }

    fn stock_trigger() -> String {
        "CREATE FUNCTION stock() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             UPDATE product SET name = 'tea of ' || NEW.name WHERE product_id = 1;
             UPDATE customer SET name = upper(name) WHERE customer_id = NEW.customer_id;
             RETURN NULL;
         END $$;
         CREATE TRIGGER stock AFTER INSERT ON customer FOR EACH ROW EXECUTE FUNCTION stock()"
            .into()
    }

    fn stamp_trigger() -> String {
        "CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN NEW.stamp := NEW.stamp + 100; RETURN NEW; END $$;
         CREATE TRIGGER stamp BEFORE INSERT OR UPDATE OF body ON note
           FOR EACH ROW EXECUTE FUNCTION stamp()"
            .into()
    }

    async fn traces(&self) -> Vec<String> {
        self.query(
            "SELECT nspname::text FROM pg_namespace WHERE nspname LIKE '%tidewater%'
             UNION ALL SELECT tgname::text FROM pg_trigger WHERE tgname LIKE '%tidewater%'
             UNION ALL SELECT proname::text FROM pg_proc WHERE proname LIKE '%tidewater%'
             UNION ALL SELECT relname::text FROM pg_class WHERE relname LIKE '%tidewater%'
             ORDER BY 1",
        )
        .await
    }
}

/// An open transaction.
pub(crate) struct PostgresTransaction {
    client: Client,
}

impl Transaction for PostgresTransaction {
    async fn execute(&mut self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap();
    }

    async fn commit(self) {
        self.client.batch_execute("COMMIT").await.unwrap();
    }
}
