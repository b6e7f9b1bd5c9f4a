//! The database takes every statement on the server's own tables, as the golden file has it.

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts};

use crate::fixture::{Fixture as _, MysqlFixture};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/golden/system.sql");

#[tokio::test]
async fn every_statement_on_the_servers_own_tables_can_be_prepared() {
    let fixture = MysqlFixture::new().await;
    let centre = MysqlFixture::connect(&fixture.url()).await.unwrap();
    // Makes the tables that are the adapter's own as well.
    centre.deploy_refusing_pending(&[], 0).await.unwrap();
    let mut connection = Conn::new(Opts::from_url(&fixture.url()).unwrap())
        .await
        .unwrap();
    let mut refused = Vec::new();
    let golden = std::fs::read_to_string(GOLDEN).unwrap();
    let statements = golden.split(";\n").map(str::trim);
    for statement in statements.filter(|it| !it.is_empty() && !it.contains("CREATE ")) {
        // Numbers of parameters are the adapter's affair.
        let mut pieces = statement.split('?');
        let mut sql = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            sql.push('?');
            sql.push_str(piece.trim_start_matches(|it: char| it.is_ascii_digit()));
        }
        if let Err(error) = connection.prep(&sql).await {
            refused.push(format!("{statement}\n   {error}"));
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}
