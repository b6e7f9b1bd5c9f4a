//! What the centre holds at the end, all of it.

use std::collections::HashMap;

use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, Row};

use crate::world::JudgedTable;

/// A row of a table: its region, and all values as one text.
pub(crate) type Rows = HashMap<i64, (i64, String)>;

/// A change that lost against the centre's, or was refused.
#[derive(Debug)]
pub(crate) struct LostChange {
    pub(crate) remote: Vec<u8>,
    pub(crate) table: String,
    pub(crate) key: i64,
    pub(crate) is_delete: bool,
    pub(crate) tag: Option<String>,
}

#[derive(Debug)]
pub(crate) struct AuditRow {
    pub(crate) table: String,
    pub(crate) key: i64,
    pub(crate) operation: String,
    pub(crate) tag: String,
}

pub(crate) struct JudgedCentre {
    runtime: Runtime,
    client: Client,
}

impl JudgedCentre {
    pub(crate) fn open(url: &str) -> anyhow::Result<JudgedCentre> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(tidewater_testing::postgres::connect(url))?;
        Ok(JudgedCentre { runtime, client })
    }

    fn query(&self, sql: &str) -> anyhow::Result<Vec<Row>> {
        Ok(self.runtime.block_on(self.client.query(sql, &[]))?)
    }

    pub(crate) fn texts(&self, sql: &str) -> anyhow::Result<Vec<String>> {
        let rows = self.query(sql)?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    pub(crate) fn count(&self, sql: &str) -> anyhow::Result<i64> {
        let rows = self.query(sql)?;
        Ok(rows.first().map_or(0, |row| row.get(0)))
    }

    pub(crate) fn rows(&self, table: JudgedTable) -> anyhow::Result<Rows> {
        let sql = table.select("own::INT");
        let rows = self.query(&sql)?;
        let row = |row: &Row| (row.get(0), (i64::from(row.get::<_, i32>(1)), row.get(2)));
        Ok(rows.iter().map(row).collect())
    }

    pub(crate) fn regions(&self, user: &str) -> anyhow::Result<Vec<i64>> {
        let sql = format!("SELECT region::BIGINT FROM member WHERE login = '{user}'");
        Ok(self.query(&sql)?.iter().map(|row| row.get(0)).collect())
    }

    /// Every row that anybody wrote.
    pub(crate) fn audit(&self) -> anyhow::Result<Vec<AuditRow>> {
        let rows = self.query("SELECT name, key, operation, tag FROM audit ORDER BY id")?;
        let audited = rows.iter().map(|row| AuditRow {
            table: row.get(0),
            key: row.get(1),
            operation: row.get(2),
            tag: row.get(3),
        });
        Ok(audited.collect())
    }

    pub(crate) fn conflicts(&self) -> anyhow::Result<Vec<LostChange>> {
        self.against("tidewater.conflict")
    }

    pub(crate) fn refused(&self) -> anyhow::Result<Vec<LostChange>> {
        // What was given up, or lost when it was sent again, is listed as that.
        self.against(
            "(SELECT remote_id, table_name, row_key, operation, uploaded FROM tidewater.refused
              UNION ALL SELECT remote_id, table_name, row_key, operation, uploaded
              FROM tidewater.settled_refusal WHERE settled_as <> 'taken') AS refused",
        )
    }

    /// What was refused, and taken when its row was sent again.
    pub(crate) fn refused_and_taken(&self) -> anyhow::Result<Vec<LostChange>> {
        self.against(
            "(SELECT remote_id, table_name, row_key, operation, uploaded
              FROM tidewater.settled_refusal WHERE settled_as = 'taken') AS taken",
        )
    }

    fn against(&self, table: &str) -> anyhow::Result<Vec<LostChange>> {
        let rows = self.query(&format!(
            "SELECT remote_id, table_name, row_key, operation, uploaded FROM {table}"
        ))?;
        rows.iter()
            .map(|row| {
                let key: Vec<i64> = serde_json::from_str(row.get(2))?;
                let operation: String = row.get(3);
                let uploaded: Option<String> = row.get(4);
                let values: Value = serde_json::from_str(uploaded.as_deref().unwrap_or("null"))?;
                Ok(LostChange {
                    remote: row.get(0),
                    table: row.get(1),
                    key: key.first().copied().unwrap_or_default(),
                    is_delete: operation == "delete",
                    tag: values["tag"].as_str().map(String::from),
                })
            })
            .collect()
    }
}
