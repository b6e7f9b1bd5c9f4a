//! The version of a row that an operator has chosen, written as an ordinary change.
//!
//! It goes through the adapter's rows as an uploaded one does, so that the change is tracked, keys
//! and checks hold and what the database says against it is told by its reason; but it is
//! nobody's upload: no number is taken, and no scope and no rights of a remote count.

use tidewater_protocol::message::TableBegin;
use tidewater_protocol::{Code, ColumnType, Datum, Op, RowShape, RowsWriter, Table, Value, pack};

use super::incoming::{Incoming, RowRef};
use super::row_json;
use super::rows::{Batch, Central, Image, OnDelete, Refusal, Rows, TargetTable, try_again};
use super::settle::{find_changed, obstacle};
use crate::engine::connection::{Connection as _, Own, own};
use crate::engine::exact::canonical;
use crate::engine::publication::Publication;
use crate::engine::records;
use crate::error::CentreError;
use crate::records::ConflictRecord;
use crate::settling::{Choice, SettleOutcome, Version};
use crate::upload::{RowsChunk, UploadTable};

type Result<T> = std::result::Result<T, CentreError>;

/// Settles a conflict; see [`crate::Worker::settle_conflict`].
pub async fn settle(rows: &mut impl Rows, choice: &Choice) -> Result<SettleOutcome> {
    let mut attempts = 0;
    loop {
        match try_settle(rows, choice).await {
            Err(error) => try_again(rows, "settling a conflict", error, &mut attempts).await?,
            done => return done,
        }
    }
}

async fn try_settle(rows: &mut impl Rows, choice: &Choice) -> Result<SettleOutcome> {
    rows.begin(0).await?;
    // Of two operators, the second one finds what the first one has done.
    let lock = own!(
        "UPDATE tidewater.conflict SET outcome = outcome WHERE id = ?1",
        choice.conflict
    );
    let what = "looking for a conflict";
    rows.connection().run_one(what, lock).await?;
    let outcome = match records::conflict(rows.connection(), choice.conflict).await? {
        None => SettleOutcome::Unknown,
        Some(record) => choose(rows, &record, choice).await?,
    };
    match outcome {
        SettleOutcome::Settled { .. } => rows.keep(note(choice)).await?,
        _ => rows.undo().await?,
    }
    rows.commit().await?;
    Ok(outcome)
}

fn note(choice: &Choice) -> Own {
    own!(
        "UPDATE tidewater.conflict SET settled_ms = ?2, settled_by = ?3, settled_as = ?4
         WHERE id = ?1",
        choice.conflict,
        choice.now_ms,
        choice.by,
        choice.version.name(),
    )
}

pub(super) fn refused(code: Code, reason: impl Into<String>) -> SettleOutcome {
    SettleOutcome::Refused {
        code,
        reason: reason.into(),
    }
}

/// The chosen version as JSON; `None` if the row goes.
fn chosen<'c>(record: &'c ConflictRecord, version: &'c Version) -> Option<&'c str> {
    match version {
        Version::Uploaded => record.uploaded.as_deref(),
        Version::Centre => record.centre(),
        Version::PreImage => record.pre_image.as_deref(),
        Version::Given(row) => row.as_deref(),
    }
}

/// Values by their column.
pub(super) type Values = Vec<(usize, Value)>;

/// What a row is to be, read by its table.
pub(super) struct Wanted {
    /// Its key.
    pub(super) key: Values,
    /// What it is to be; `None` if it goes.
    pub(super) new: Option<Values>,
    /// What it is expected to be; `None` if it is expected not to be there.
    pub(super) left: Option<Values>,
}

impl Wanted {
    /// # Errors
    /// It cannot be read: why.
    fn read(
        table: &Table,
        record: &ConflictRecord,
        version: &Version,
    ) -> std::result::Result<Wanted, String> {
        let key = row_json::read_key(table, &record.key)
            .ok_or_else(|| format!("the table {:?} has another key by now", table.name))?;
        let new = match chosen(record, version) {
            None => None,
            Some(json) => {
                let row = row_json::read(table, json)?;
                if let (Version::Given(_), Some(name)) = (version, row.unknown.first()) {
                    return Err(format!("the table has no published column {name:?}"));
                }
                Some(row.values)
            }
        };
        let left = record.winner.as_deref();
        let left = left.map(|json| row_json::read(table, json)).transpose()?;
        Ok(Wanted {
            key,
            new,
            left: left.map(|it| it.values),
        })
    }
}

/// Writes what was chosen.
async fn choose<R: Rows>(
    rows: &mut R,
    record: &ConflictRecord,
    choice: &Choice,
) -> Result<SettleOutcome> {
    let place = (&*record.publication, &*record.table);
    let read = |table: &Table| Wanted::read(table, record, &choice.version);
    put(rows, place, read, choice.force).await
}

/// Writes a row of a publication's table as it is wanted, unless it is not any more what it is
/// expected to be.
pub(super) async fn put<R: Rows>(
    rows: &mut R,
    (publication, table): (&str, &str),
    read: impl FnOnce(&Table) -> std::result::Result<Wanted, String>,
    force: bool,
) -> Result<SettleOutcome> {
    let publication = rows.publication(publication)?;
    let mut tables = publication.schema.tables.iter();
    let Some(index) = tables.position(|it| it.name == table) else {
        let reason = format!("the table {table:?} is not published any more");
        return Ok(refused(Code::RowNotPublished, reason));
    };
    let schema = &publication.schema.tables[index];
    let wanted = match read(schema) {
        Ok(wanted) => wanted,
        Err(reason) => return Ok(refused(Code::RowBadValue, reason)),
    };
    let probe = Change::probe(schema, &wanted.key);
    let probed = probe.incoming(&publication)?;
    let tables = std::slice::from_ref(&probed);
    rows.enter(&publication, tables).await?;
    rows.begin_rows(true).await?;
    let at = probed.find_inserts()?;
    let Some(found) = Found::read(rows, &probed, (Op::Insert, &at), Image::Old).await? else {
        let reason = "the row has a value that is too long to be synced";
        return Ok(refused(Code::RowBadValue, reason));
    };
    let types = &publication.row_types[index];
    let central = found.values(types, schema)?;
    let central = central.as_deref();
    let is = |said: &Option<Values>| match (said, central) {
        (None, None) => true,
        (Some(said), Some(central)) => is_so(schema, said, central),
        _ => false,
    };
    if is(&wanted.new) {
        let row = central.map(|it| whole(schema, it));
        return Ok(SettleOutcome::Settled { row });
    }
    if !is(&wanted.left) && !force {
        let row = central.map(|it| whole(schema, it));
        return Ok(SettleOutcome::Changed { row });
    }
    let change = match (central, &wanted.new) {
        (None, None) => return Ok(SettleOutcome::Settled { row: None }),
        (Some(central), None) => Change::delete(schema, central),
        (Some(central), Some(new)) => Change::update(schema, central, new),
        (None, Some(new)) => Change::insert(schema, &wanted.key, new),
    };
    let table = change.incoming(&publication)?;
    let refs = change.refs(&table)?;
    match write(rows, &publication, &table, (change.op, &refs), force).await? {
        Done::Written => {}
        Done::Refused(Refusal { code, reason }) => return Ok(refused(code, reason)),
        Done::PassedOver => {
            // Either somebody was faster, or the database does not let it go.
            let now = Found::read(rows, &probed, (Op::Insert, &at), Image::Old).await?;
            let now = now.unwrap_or_default();
            let now = now.values(types, schema)?;
            if now.as_deref() != central {
                let row = now.map(|it| whole(schema, &it));
                return Ok(SettleOutcome::Changed { row });
            }
            let reason = "a trigger or a rule of the database keeps the row as it is";
            return Ok(refused(Code::RowConstraint, reason));
        }
    }
    let row = match change.op {
        Op::Delete => None,
        op => {
            let written = Found::read(rows, &table, (op, &refs), Image::New).await?;
            let written = written.unwrap_or_default();
            let written = written.values(types, schema)?;
            written.map(|it| whole(schema, &it))
        }
    };
    Ok(SettleOutcome::Settled { row })
}

/// What became of the one row.
enum Done {
    Written,
    Refused(Refusal),
    /// It was not as it was read a moment before, or something has kept it so.
    PassedOver,
}

/// Writes the one row of a change.
async fn write<R: Rows>(
    rows: &mut R,
    publication: &Publication<R::Table>,
    table: &Incoming<'_, R::Table>,
    (op, refs): (Op, &[RowRef]),
    force: bool,
) -> Result<Done> {
    let (mut changed, mut barrier) = (Vec::new(), None);
    table.images(refs, |_, image| {
        find_changed(table, image, &mut changed);
        barrier = obstacle(rows, publication, table, image, &changed);
        Ok(())
    })?;
    if let Some(refusal) = barrier {
        return Ok(Done::Refused(refusal));
    }
    if op == Op::Update && changed.is_empty() {
        return Ok(Done::Written);
    }
    if op == Op::Delete && table.table.on_delete() != OnDelete::Nothing && !force {
        let with_children = rows.with_children(table, refs, false).await?;
        if !with_children.is_empty() {
            let code = Code::RowForeignKey;
            let reason = "rows refer to it that would be deleted or changed with it".into();
            return Ok(Done::Refused(Refusal { code, reason }));
        }
    }
    let batch = Batch {
        // The name of the constraint that is in the way of an insert is told.
        insists: op == Op::Insert,
        ..Batch::new(table, op, &changed)
    };
    let written = rows.write(&batch, refs).await?;
    let failed = written.failed.into_iter().chain(written.refused).next();
    if let Some(failed) = failed {
        return Ok(Done::Refused(failed.refusal));
    }
    if !written.passed_over.is_empty() {
        return Ok(Done::PassedOver);
    }
    if rows.is_violated(true).await? {
        let code = Code::RowConstraint;
        let reason = "a constraint of the database is violated".into();
        return Ok(Done::Refused(Refusal { code, reason }));
    }
    Ok(Done::Written)
}

/// A row of the centre; `None` if it is not there.
#[derive(Default)]
struct Found(Option<Central>);

impl Found {
    /// `None` if it cannot be read as a whole.
    async fn read<R: Rows>(
        rows: &mut R,
        table: &Incoming<'_, R::Table>,
        (op, refs): (Op, &[RowRef]),
        key: Image,
    ) -> Result<Option<Found>> {
        let found = rows.find(table, op, refs, key).await?;
        let found = found.into_iter().flatten().next().map(|it| it.central);
        let is_whole = found.as_ref().is_none_or(|it| it.is_whole);
        Ok(is_whole.then_some(Found(found)))
    }

    /// Its published values.
    fn values(&self, types: &[ColumnType], table: &Table) -> Result<Option<Vec<Datum<'_>>>> {
        let values = self.0.as_ref().map(|it| it.values(types)).transpose()?;
        Ok(values.map(|mut values| {
            values.truncate(table.columns.len());
            values
        }))
    }
}

/// Whether a row is what is said of it, as far as that is published.
fn is_so(table: &Table, said: &Values, central: &[Datum<'_>]) -> bool {
    said.iter().all(|(column, value)| {
        let said = datum(table, *column, value);
        pack::same(&canonical(said), &canonical(central[*column]))
    })
}

fn datum<'v>(table: &Table, column: usize, value: &'v Value) -> Datum<'v> {
    table.columns[column].column_type.datum(value.as_ref()).0
}

fn whole(table: &Table, row: &[Datum<'_>]) -> String {
    let names = table.columns.iter().map(|it| it.name.as_str());
    row_json::row(names, row)
}

/// One row, as it would be uploaded.
struct Change {
    op: Op,
    upload: UploadTable,
}

impl Change {
    /// Packs a row of all the columns.
    fn of(table: &Table, op: Op, pack: impl FnOnce(&mut RowsWriter<'_>)) -> Change {
        Change::under(TableBegin::of(table), &table.shape(), op, pack)
    }

    fn under(
        begin: TableBegin,
        shape: &RowShape,
        op: Op,
        pack: impl FnOnce(&mut RowsWriter<'_>),
    ) -> Change {
        let mut writer = RowsWriter::new(shape);
        pack(&mut writer);
        let chunks = vec![RowsChunk::Memory(writer.take().into())];
        let upload = UploadTable { begin, chunks };
        Change { op, upload }
    }

    /// A row of which only the key is known, to look for it.
    fn probe(table: &Table, key: &Values) -> Change {
        let mut row = vec![Datum::Null; table.columns.len()];
        for (column, value) in key {
            row[*column] = datum(table, *column, value);
        }
        Change::of(table, Op::Insert, |writer| writer.row(Op::Insert, &row))
    }

    fn delete(table: &Table, central: &[Datum<'_>]) -> Change {
        Change::of(table, Op::Delete, |writer| writer.delete(central))
    }

    /// What is not said stays.
    fn update(table: &Table, central: &[Datum<'_>], new: &Values) -> Change {
        let mut row = central.to_vec();
        for (column, value) in new {
            row[*column] = datum(table, *column, value);
        }
        Change::of(table, Op::Update, |writer| writer.update(central, &row))
    }

    /// What is not said is as the database has it by default.
    fn insert(table: &Table, key: &Values, new: &Values) -> Change {
        let said = |column: usize| {
            let said = new.iter().chain(key).find(|it| it.0 == column);
            said.map(|(_, value)| (column, datum(table, column, value)))
        };
        let said: Vec<(usize, Datum<'_>)> = (0..table.columns.len()).filter_map(said).collect();
        let place = |column: &usize| said.iter().position(|it| it.0 == *column);
        let row: Vec<Datum<'_>> = said.iter().map(|it| it.1).collect();
        let mut begin = TableBegin::of(table);
        let mut column = 0..;
        begin
            .columns
            .retain(|_| column.next().is_some_and(|it| place(&it).is_some()));
        let key: Vec<usize> = table.key.iter().filter_map(place).collect();
        begin.key = key.iter().map(|&it| it as u32).collect();
        let columns = said.iter().map(|it| table.columns[it.0].column_type);
        let shape = RowShape {
            columns: columns.collect(),
            key,
        };
        Change::under(begin, &shape, Op::Insert, |writer| {
            writer.row(Op::Insert, &row);
        })
    }

    /// The row as one of the publication that anybody may write.
    fn incoming<'u, T: TargetTable>(
        &'u self,
        publication: &'u Publication<T>,
    ) -> Result<Incoming<'u, T>> {
        Ok(Incoming::of_ours(publication, &self.upload, 0)?.unrestricted())
    }

    fn refs<T>(&self, table: &Incoming<'_, T>) -> Result<Vec<RowRef>> {
        Ok(match self.op {
            Op::Insert => table.find_inserts()?,
            Op::Delete => table.deletes.clone(),
            _ => [&*table.updates, &*table.moves].concat(),
        })
    }
}
