//! Refusals that nobody has to see to any more: their rows were written again, and taken.

use std::collections::{HashMap, HashSet};

use tidewater_protocol::{Code, PublicationSchema};

use super::incoming::{Incoming, Uploaded};
use super::rows::TargetTable;
use super::{Records, row_json, text};
use crate::engine::connection::{Connection, Own, own};
use crate::error::CentreError;
use crate::upload::SyncUpload;

/// So many statements go together.
const AT_ONCE: usize = 500;

type TableAndKey = (String, String);

/// Forgets what was refused before of rows that this upload has brought in, for which `records`
/// are what it leaves for people.
pub(super) async fn forget<T: TargetTable>(
    connection: &mut impl Connection,
    upload: &SyncUpload,
    schema: &PublicationSchema,
    tables: &[Incoming<'_, T>],
    records: &Records,
) -> Result<(), CentreError> {
    let select = own!(
        "SELECT id, table_name, row_key FROM tidewater.refused
         WHERE remote_id = ?1 AND publication = ?2 AND code <> ?3",
        upload.context.remote_id,
        upload.publication,
        // Of what is not published any more nothing can be taken.
        Code::RowNotPublished.name(),
    );
    let answer = connection
        .run_one("looking for what was refused before", select)
        .await?;
    let mut before: HashMap<TableAndKey, Vec<u64>> = HashMap::new();
    for row in &answer.rows {
        let of_row = before.entry((row.get(1)?, row.get(2)?)).or_default();
        of_row.push(row.get(0)?);
    }
    if before.is_empty() {
        return Ok(());
    }
    let refused = records.refused.iter().map(|it| (&*it.table, &*it.key));
    let lost = records.conflicts.iter().map(|it| (&*it.table, &*it.key));
    let vain: HashSet<(&str, &str)> = refused.chain(lost).collect();
    let mut settled = Vec::new();
    for incoming in tables {
        let table = &schema.tables[incoming.index];
        let mut taken = |uploaded: &Uploaded<'_, '_>| {
            let key = row_json::key(uploaded.key);
            if vain.contains(&(&*table.name, &*key)) {
                return;
            }
            let new = uploaded.new.map(|new| {
                let key = table.key.iter().map(|&index| new[index]);
                row_json::key(&key.collect::<Vec<_>>())
            });
            for key in new.into_iter().chain([key]) {
                let ids = before.remove(&(text(&table.name), key));
                settled.extend(ids.into_iter().flatten());
            }
        };
        incoming.each(|_, row| {
            incoming.with_images(row, &mut taken);
            Ok(())
        })?;
    }
    for some in settled.chunks(AT_ONCE) {
        let deletes = some
            .iter()
            .map(|id| own!("DELETE FROM tidewater.refused WHERE id = ?1", *id));
        let deletes: Vec<Own> = deletes.collect();
        connection
            .flight("settling what was refused before", &deletes)
            .await?;
    }
    Ok(())
}
