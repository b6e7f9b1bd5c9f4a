//! Which rows of the centre a script that says who gets which rows (`download_cursor`) gives to a
//! remote: of others it is shown nothing, whatever it uploads under their keys.
//!
//! As scopes do, it counts as of the beginning of the upload. The query runs for the remote's user as
//! for somebody who has nothing yet: when a row was changed does not matter.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tidewater_protocol::{ColumnType, Datum, Op, Table, Value, pack};

use super::incoming_rows::{IncomingTable, RowRef};
use super::row_batch::ScriptOutcome;
use super::upload_driver::UploadDriver;
use super::upload_writer::UploadWriter;
use crate::engine::exact::{canonical, pack_row, unpack};
use crate::engine::publication::Publication;
use crate::engine::scripts::{ScriptEnvironment, ScriptStatement};
use crate::engine::sql::row_statements::RowImage;
use crate::engine::sql::served_table::TableAdapter;
use crate::engine::upload::incoming_rows::ROWS_AT_ONCE;
use crate::engine::upload::row_keys::pack_key;
use crate::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

/// Of tables whose rows a script gives, the packed keys of rows of the centre that it gives.
#[derive(Default)]
pub(crate) struct GivenRows(HashMap<usize, Arc<HashSet<Vec<u8>>>>);

impl GivenRows {
    /// Those of a table; `None` if no script says who gets its rows.
    pub(crate) fn of_table(&self, table: usize) -> Option<Arc<HashSet<Vec<u8>>>> {
        self.0.get(&table).cloned()
    }
}

/// Finds which of the rows that an upload meets a remote is given. Rows that are as the remote says
/// need not be asked about: it knows them.
pub(super) async fn find_given<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    publication: &Publication<R::Tables>,
    tables: &[IncomingTable<'_, R::Tables>],
    scripting: Option<&ScriptEnvironment<'_>>,
) -> Result<GivenRows> {
    let mut given = GivenRows::default();
    let Some(scripting) = scripting else {
        return Ok(given);
    };
    for table in tables {
        let Some(lookup) = scripting.scripts.lookup(table.index) else {
            continue;
        };
        let mut keys = MetKeys::default();
        let inserts = table.find_inserts();
        let uploaded = [
            (Op::Insert, &inserts, RowImage::New),
            (Op::Update, &table.updates, RowImage::Old),
            (Op::Update, &table.moves, RowImage::Old),
            (Op::Update, &table.moves, RowImage::New),
            (Op::Delete, &table.deletes, RowImage::Old),
        ];
        for (op, refs, image) in uploaded {
            for some in refs.chunks(ROWS_AT_ONCE) {
                keys.find(rows, publication, table, (op, some, image))
                    .await?;
            }
        }
        let schema = &publication.schema.tables[table.index];
        let found = are_given(rows, scripting, (lookup, &schema.name), &keys.asked).await?;
        let found = keys.asked.iter().zip(found).filter(|it| it.1);
        let found = found.map(|it| it.0).chain(&keys.known);
        let of_key = |key: &Vec<Value>| {
            let types = schema.key_columns().map(|it| it.column_type);
            let key = key.iter().zip(types);
            let key: Vec<Datum<'_>> = key.map(|(it, of)| of.datum(it.as_ref()).0).collect();
            pack_key(schema, &key)
        };
        let found = found.map(of_key).collect();
        given.0.insert(table.index, Arc::new(found));
    }
    Ok(given)
}

/// The keys of rows of the centre that uploaded ones meet.
#[derive(Default)]
struct MetKeys {
    /// Of those that are as their remote says.
    known: Vec<Vec<Value>>,
    /// Of the others.
    asked: Vec<Vec<Value>>,
}

impl MetKeys {
    /// Adds those that some rows meet.
    async fn find<R: UploadDriver>(
        &mut self,
        rows: &mut UploadWriter<R>,
        publication: &Publication<R::Tables>,
        table: &IncomingTable<'_, R::Tables>,
        (op, refs, image): (Op, &[RowRef], RowImage),
    ) -> Result<()> {
        let schema = &publication.schema.tables[table.index];
        let types = &publication.row_types[table.index];
        let met = rows.find(table, op, refs, image).await?;
        table.images(refs, |at, uploaded| {
            let Some(met) = &met[at] else { return Ok(()) };
            let central = met.central.values(types)?;
            let is_as_before = |old: &[Datum<'_>]| {
                let mut written = table.written.iter();
                written.all(|&it| pack::same(&canonical(old[it]), &canonical(central[it])))
            };
            let is_known = image == RowImage::Old && uploaded.old.is_some_and(is_as_before);
            let key = schema.key.iter().map(|&it| central[it].to_value());
            match is_known {
                true => self.known.push(key.collect()),
                false => self.asked.push(key.collect()),
            }
            Ok(())
        })
    }
}

/// Rows of the centre of which only those are told that a script gives.
pub(super) struct RowsToTell {
    types: Vec<ColumnType>,
    rows: Vec<Vec<u8>>,
    keys: Vec<Vec<Value>>,
}

impl RowsToTell {
    pub(super) fn new<T: TableAdapter>(publication: &Publication<T>, table: usize) -> RowsToTell {
        RowsToTell {
            types: publication.row_types[table].clone(),
            rows: Vec::new(),
            keys: Vec::new(),
        }
    }

    /// Adds one, as it is read.
    pub(super) fn add(&mut self, table: &Table, central: &[Datum<'_>]) {
        self.rows.push(pack_row(&self.types, central));
        let key = table.key.iter().map(|&it| central[it].to_value());
        self.keys.push(key.collect());
    }

    /// Tells those that are given.
    pub(super) async fn tell<R: UploadDriver>(
        self,
        rows: &mut UploadWriter<R>,
        scripting: &ScriptEnvironment<'_>,
        of: (&ScriptStatement, &str),
        tell: &mut (dyn FnMut(&[Datum<'_>]) + Send),
    ) -> Result<()> {
        let given = are_given(rows, scripting, of, &self.keys).await?;
        for (row, _) in self.rows.iter().zip(given).filter(|it| it.1) {
            tell(&unpack(row, &self.types)?);
        }
        Ok(())
    }
}

/// Whether a script gives the rows with some keys. What the database refuses is given to nobody.
async fn are_given<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    scripting: &ScriptEnvironment<'_>,
    (lookup, table): (&ScriptStatement, &str),
    keys: &[Vec<Value>],
) -> Result<Vec<bool>> {
    let mut given = Vec::with_capacity(keys.len());
    for some in keys.chunks(ROWS_AT_ONCE) {
        let values = some
            .iter()
            .map(|key| vec![scripting.lookup_values(lookup, table, key)]);
        let values: Vec<_> = values.collect();
        let ran = rows
            .run_script(std::slice::from_ref(lookup), &values)
            .await?;
        given.extend(ran.into_iter().map(|it| match it {
            ScriptOutcome::Done { row, .. } => row.is_some(),
            ScriptOutcome::Refused(_) => false,
        }));
    }
    Ok(given)
}
