//! The Chinook sample database: a music shop, in rows that nobody here wrote.
//!
//! Owns the tables and loads them into a central database; `data/chinook` holds the rows, their
//! licence and what they are good for. They are compiled in, so that a test may run anywhere.

use anyhow::Context;
use bytes::Bytes;
use rusqlite::types::Value;

use crate::copy::copy_in;

/// All tables, parents before children.
pub const TABLES: [&str; 11] = [
    "artist",
    "album",
    "genre",
    "media_type",
    "track",
    "playlist",
    "playlist_track",
    "employee",
    "customer",
    "invoice",
    "invoice_line",
];

const SCHEMA: &str = include_str!("../data/chinook/schema.sql");

/// The statements that create the tables in PostgreSQL.
pub fn postgres_schema() -> &'static str {
    SCHEMA
}

/// The statements that create the tables in SQLite.
pub fn sqlite_schema() -> &'static str {
    SCHEMA
}

/// How many rows a table has after loading.
///
/// # Panics
///
/// When there is no such table.
pub fn row_count(table: &str) -> usize {
    Rows::read(table)
        .expect("a table of TABLES is compiled in")
        .records
        .len()
}

/// Fills the tables, which exist and are empty. Each table is one COPY, so it takes part in an
/// open transaction, or is one of its own.
pub async fn load_postgres(client: &tokio_postgres::Client) -> anyhow::Result<()> {
    for table in TABLES {
        let rows = Rows::read(table)?;
        let columns = rows.columns.join(", ");
        let statement = format!("COPY {table} ({columns}) FROM STDIN (FORMAT csv)");
        copy_in(client, &statement, [rows.into_csv()?]).await?;
    }
    Ok(())
}

/// Fills the tables, which exist and are empty, all or nothing.
///
/// Timestamps become ISO 8601 text with microseconds, `2021-01-01T00:00:00.000000`.
pub fn load_sqlite(connection: &rusqlite::Connection) -> anyhow::Result<()> {
    // A savepoint, because the caller may have a transaction open.
    connection.execute_batch("SAVEPOINT chinook")?;
    let loaded = TABLES
        .iter()
        .try_for_each(|table| load_sqlite_table(connection, table));
    if loaded.is_err() {
        connection.execute_batch("ROLLBACK TO chinook")?;
    }
    connection.execute_batch("RELEASE chinook")?;
    loaded
}

fn load_sqlite_table(connection: &rusqlite::Connection, table: &str) -> anyhow::Result<()> {
    let rows = Rows::read(table)?;
    let columns = rows.columns.join(", ");
    let places = vec!["?"; rows.columns.len()].join(", ");
    let mut insert = connection.prepare(&format!(
        "INSERT INTO {table} ({columns}) VALUES ({places})"
    ))?;
    for record in &rows.records {
        let values = rows.columns.iter().zip(record).map(|(column, text)| {
            match text.as_deref() {
                None => Value::Null,
                Some(text) if column.ends_with("_date") => {
                    Value::Text(format!("{}.000000", text.replace(' ', "T")))
                }
                // Numbers arrive as text; the columns' affinity turns them into numbers.
                Some(text) => Value::Text(text.to_owned()),
            }
        });
        insert
            .execute(rusqlite::params_from_iter(values))
            .with_context(|| format!("cannot insert into {table}"))?;
    }
    Ok(())
}

/// One table's data.
struct Rows {
    columns: Vec<String>,
    records: Vec<Vec<Option<String>>>,
}

impl Rows {
    fn read(table: &str) -> anyhow::Result<Self> {
        let file = file(table).with_context(|| format!("Chinook has no table {table}"))?;
        let mut reader = csv::Reader::from_reader(file.as_bytes());
        let mut columns: Vec<String> = reader.headers()?.iter().map(snake_case).collect();
        let mut records = Vec::new();
        for record in reader.records() {
            // The files hold no empty texts, so an empty field is NULL.
            let field = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            records.push(record?.iter().map(field).collect::<Vec<_>>());
        }
        if table == "employee" {
            let first_name = columns
                .iter()
                .position(|column| column == "first_name")
                .context("employees have first names")?;
            columns.push("login".to_owned());
            for record in &mut records {
                let login = record[first_name].as_deref().map(str::to_lowercase);
                record.push(login);
            }
        }
        Ok(Self { columns, records })
    }

    fn into_csv(self) -> anyhow::Result<Bytes> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        for record in self.records {
            writer.write_record(record.iter().map(|it| it.as_deref().unwrap_or_default()))?;
        }
        Ok(writer.into_inner()?.into())
    }
}

fn file(table: &str) -> Option<&'static str> {
    Some(match table {
        "artist" => include_str!("../data/chinook/Artist.csv"),
        "album" => include_str!("../data/chinook/Album.csv"),
        "genre" => include_str!("../data/chinook/Genre.csv"),
        "media_type" => include_str!("../data/chinook/MediaType.csv"),
        "track" => include_str!("../data/chinook/Track.csv"),
        "playlist" => include_str!("../data/chinook/Playlist.csv"),
        "playlist_track" => include_str!("../data/chinook/PlaylistTrack.csv"),
        "employee" => include_str!("../data/chinook/Employee.csv"),
        "customer" => include_str!("../data/chinook/Customer.csv"),
        "invoice" => include_str!("../data/chinook/Invoice.csv"),
        "invoice_line" => include_str!("../data/chinook/InvoiceLine.csv"),
        _ => return None,
    })
}

/// `SupportRepId` becomes `support_rep_id`.
fn snake_case(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    for character in name.chars() {
        if character.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(character.to_ascii_lowercase());
    }
    snake
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_in_snake_case() {
        assert_eq!(snake_case("SupportRepId"), "support_rep_id");
        assert_eq!(snake_case("Name"), "name");
    }

    #[test]
    fn no_file_holds_an_empty_text() {
        for table in TABLES {
            let file = file(table).unwrap();
            assert!(
                !file.contains(",\"\",") && !file.contains(",\"\"\n"),
                "{table}"
            );
        }
    }
}
