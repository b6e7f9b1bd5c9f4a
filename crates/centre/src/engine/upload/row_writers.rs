//! Who has written the rows of the centre, where conflicts go by the rank of users.
//!
//! What an upload has made of a row is remembered by its image: as long as the row is that, the user
//! who uploaded it has written it. Any other image is the centre's own doing, whoever did it and
//! however, and so is a row of which nothing is remembered.

use std::collections::{BTreeMap, HashMap};

use tidewater_protocol::{Datum, RowShape, Table};

use super::computed_values;
use super::incoming_rows::{IncomingTable, RowRef, UploadedImages};
use super::outcomes::Outcomes;
use super::row_batch::MetRow;
use super::upload_driver::UploadDriver;
use super::upload_writer::UploadWriter;
use crate::engine::connection::DatabaseConnection as _;
use crate::engine::exact::pack_row;
use crate::engine::publication::Publication;
use crate::engine::resolve::{RowWriter, Winner};
use crate::engine::sql::system::row_writers::{self as sql, WriterRow};
use crate::engine::upload::row_keys::pack_key;
use crate::error::CentreError;
use crate::scope::{Digest, digest};
use crate::upload::SyncUpload;

/// So many are written at once.
const AT_ONCE: usize = 500;

type Result<T> = std::result::Result<T, CentreError>;

/// Who has written some rows of a table, by key: the rank, and what the row was then.
#[derive(Default)]
pub(super) struct RowWriters(HashMap<Vec<u8>, (Option<i64>, Vec<u8>)>);

impl RowWriters {
    /// Who has written a row of the centre, of which the published columns are given.
    pub(super) fn find_writer(
        &self,
        table: &Table,
        shape: &RowShape,
        central: &[Datum<'_>],
    ) -> RowWriter {
        match self.0.get(&key_of(table, central)) {
            Some((rank, seen)) if seen[..] == image(shape, central)[..] => RowWriter::User(*rank),
            _ => RowWriter::Centre,
        }
    }
}

/// Finds who has written rows that were met.
pub(super) async fn find<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    publication: &Publication<R::Tables>,
    index: usize,
    met: &[Option<MetRow>],
) -> Result<RowWriters> {
    let schema = &publication.schema.tables[index];
    let mut keys = Vec::with_capacity(met.len());
    for met in met.iter().flatten() {
        let central = met.central.values(&publication.row_types[index])?;
        keys.push(key_of(schema, &central));
    }
    let find = sql::find(&publication.schema.name, &schema.name, &keys);
    let what = "looking who has written rows";
    let answer = rows.connection().run_one(what, find).await?;
    let mut writers = RowWriters::default();
    for row in &answer.rows {
        let (number, rank, image): (u64, Option<i64>, Vec<u8>) =
            (row.get(0)?, row.get(1)?, row.get(2)?);
        if let Some(key) = keys.get(number as usize - 1) {
            writers.0.insert(key.clone(), (rank, image));
        }
    }
    Ok(writers)
}

/// Remembers who has written the rows that took effect.
pub(super) async fn record<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    publication: &Publication<R::Tables>,
    tables: &[IncomingTable<'_, R::Tables>],
    (upload, ranks): (&SyncUpload, &[Option<i64>]),
    outcomes: &Outcomes<'_>,
) -> Result<()> {
    for table in tables.iter().filter(|it| it.is_open) {
        if publication.resolvers[table.index].winner != Winner::Rank {
            continue;
        }
        let schema = &publication.schema.tables[table.index];
        let shape = &publication.shapes[table.index];
        let mut written = BTreeMap::new();
        for (op, taken) in computed_values::taken(publication, table, outcomes, true)? {
            let mut take =
                |_: RowRef, _: &UploadedImages<'_, '_>, central: Option<&[Datum<'_>]>| {
                    if let Some(central) = central.map(|it| &it[..shape.columns.len()]) {
                        written.insert(key_of(schema, central), image(shape, central));
                    }
                };
            computed_values::find_all(rows, publication, table, (op, &taken), &mut take).await?;
        }
        let rank = ranks.get(table.index).copied().flatten();
        let records = written.into_iter().map(|(key, image)| {
            let row = WriterRow {
                publication: &upload.publication,
                table: &schema.name,
                key,
                user: &upload.context.user,
                rank,
                image: &image,
                now_ms: upload.context.now_ms,
            };
            row.values()
        });
        let records: Vec<_> = records.collect();
        for some in records.chunks(AT_ONCE) {
            let what = "recording who has written rows";
            let save = sql::save(some.to_vec());
            rows.connection().run_one(what, save).await?;
        }
    }
    Ok(())
}

fn key_of(table: &Table, row: &[Datum<'_>]) -> Vec<u8> {
    let key: Vec<Datum<'_>> = table.key.iter().map(|&column| row[column]).collect();
    pack_key(table, &key)
}

fn image(shape: &RowShape, row: &[Datum<'_>]) -> Digest {
    digest(&pack_row(&shape.columns, &row[..shape.columns.len()]))
}
