//! The sample data arrives complete and equal in both kinds of central database.

use rusqlite::Connection;
use tidewater_testing::postgres::connect;
use tidewater_testing::purchase::{FIRST_EMP_ID, Purchase, purchases};
use tidewater_testing::{chinook, purchase, shared_postgres};
use tokio_postgres::Client;

async fn database_with(schema: &str) -> Client {
    let client = connect(&shared_postgres().fresh_database()).await.unwrap();
    client.batch_execute(schema).await.unwrap();
    client
}

fn file_with(schema: &str) -> Connection {
    let connection = Connection::open_in_memory().unwrap();
    connection
        .pragma_update(None, "foreign_keys", true)
        .unwrap();
    connection.execute_batch(schema).unwrap();
    connection
}

async fn text(client: &Client, sql: &str) -> Option<String> {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

fn sqlite_text(connection: &Connection, sql: &str) -> Option<String> {
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn chinook_loads_completely_everywhere() {
    let client = database_with(chinook::postgres_schema()).await;
    chinook::load_postgres(&client).await.unwrap();
    let connection = file_with(chinook::sqlite_schema());
    chinook::load_sqlite(&connection).unwrap();

    for table in chinook::TABLES {
        let rows = chinook::row_count(table).to_string();
        let count = format!("SELECT CAST(count(*) AS text) FROM {table}");
        assert_eq!(text(&client, &count).await, Some(rows.clone()), "{table}");
        assert_eq!(sqlite_text(&connection, &count), Some(rows), "{table}");
    }
    assert_eq!(chinook::row_count("track"), 3503);
    assert_eq!(chinook::row_count("playlist_track"), 8715);
}

#[tokio::test]
async fn chinook_is_the_same_everywhere() {
    let client = database_with(chinook::postgres_schema()).await;
    chinook::load_postgres(&client).await.unwrap();
    let connection = file_with(chinook::sqlite_schema());
    chinook::load_sqlite(&connection).unwrap();

    for (sql, expected) in [
        ("SELECT company FROM customer WHERE customer_id = 2", None),
        (
            "SELECT city FROM customer WHERE customer_id = 1",
            Some("São José dos Campos"),
        ),
        (
            "SELECT login FROM employee WHERE employee_id = 3",
            Some("jane"),
        ),
        (
            "SELECT CAST(total AS text) FROM invoice WHERE invoice_id = 1",
            Some("1.98"),
        ),
        (
            "SELECT name FROM track WHERE track_id = 210",
            Some("Texto \"Verdade Tropical\""),
        ),
        (
            "SELECT m.login FROM employee e JOIN employee m ON m.employee_id = e.reports_to \
             WHERE e.login = 'laura'",
            Some("michael"),
        ),
    ] {
        let expected = expected.map(str::to_owned);
        assert_eq!(text(&client, sql).await, expected, "{sql}");
        assert_eq!(sqlite_text(&connection, sql), expected, "{sql}");
    }
}

#[tokio::test]
async fn chinook_dates_are_timestamps_in_postgres_and_iso_text_in_sqlite() {
    let client = database_with(chinook::postgres_schema()).await;
    chinook::load_postgres(&client).await.unwrap();
    let date = "SELECT to_char(invoice_date, 'YYYY-MM-DD HH24:MI:SS') \
                FROM invoice WHERE invoice_id = 2";
    let expected = Some("2021-01-02 00:00:00".to_owned());
    assert_eq!(text(&client, date).await, expected);

    let connection = file_with(chinook::sqlite_schema());
    chinook::load_sqlite(&connection).unwrap();
    let date = "SELECT invoice_date FROM invoice WHERE invoice_id = 2";
    let expected = Some("2021-01-02T00:00:00.000000".to_owned());
    assert_eq!(sqlite_text(&connection, date), expected);
    let date = "SELECT birth_date FROM employee WHERE employee_id = 3";
    let expected = Some("1973-08-29T00:00:00.000000".to_owned());
    assert_eq!(sqlite_text(&connection, date), expected);
}

#[test]
fn sqlite_stores_numbers_as_numbers() {
    let connection = file_with(chinook::sqlite_schema());
    chinook::load_sqlite(&connection).unwrap();
    let types = "SELECT typeof(track_id) || typeof(unit_price) || typeof(name) FROM track LIMIT 1";
    assert_eq!(sqlite_text(&connection, types).unwrap(), "integerrealtext");
}

#[test]
fn failed_load_leaves_sqlite_as_it_was() {
    let connection = file_with(chinook::sqlite_schema());
    connection.execute_batch("DROP TABLE invoice_line").unwrap();
    assert!(chinook::load_sqlite(&connection).is_err());
    assert!(connection.is_autocommit());
    let count = "SELECT CAST(count(*) AS text) FROM artist";
    assert_eq!(sqlite_text(&connection, count).unwrap(), "0");
}

#[tokio::test]
async fn purchases_arrive_unchanged() {
    let rows = || purchases(FIRST_EMP_ID, 0..2_000).chain(purchases(FIRST_EMP_ID + 1, 0..10));
    let client = database_with(purchase::postgres_schema()).await;
    assert_eq!(
        purchase::load_postgres(&client, rows()).await.unwrap(),
        2_010
    );
    let connection = file_with(purchase::sqlite_schema());
    assert_eq!(purchase::load_sqlite(&connection, rows()).unwrap(), 2_010);

    let expected = Purchase::new(FIRST_EMP_ID, 1_234);
    let row = client
        .query_one(
            "SELECT emp_id, purch_id, cust_id, cost::text, \
             to_char(order_date, 'YYYY-MM-DD\"T\"HH24:MI:SS.US'), notes \
             FROM purchase WHERE emp_id = $1 AND purch_id = $2",
            &[&expected.emp_id, &expected.purch_id],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, i32>(2), expected.cust_id);
    assert_eq!(row.get::<_, String>(3), expected.cost());
    assert_eq!(row.get::<_, String>(4), expected.order_date());
    assert_eq!(row.get::<_, String>(5), expected.notes);

    let (cust_id, date, notes): (i32, String, String) = connection
        .query_row(
            "SELECT cust_id, order_date, notes FROM purchase WHERE emp_id = ?1 AND purch_id = ?2",
            [expected.emp_id, expected.purch_id],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .unwrap();
    assert_eq!(
        (cust_id, date, notes),
        (expected.cust_id, expected.order_date(), expected.notes)
    );
}

#[tokio::test]
async fn no_purchases_are_no_rows() {
    let client = database_with(purchase::postgres_schema()).await;
    let none = purchases(FIRST_EMP_ID, 0..0);
    assert_eq!(purchase::load_postgres(&client, none).await.unwrap(), 0);
}
