//! Rows of the centre that uploaded ones mean: read, locked, and looked at for what refers to them.

use std::collections::HashSet;

use tidewater_protocol::{ColumnType, Datum, Op, UnpackedRow};

use super::incoming_rows::{IncomingTable, RowRef};
use super::missing_parent_reason::is_own_parent;
use super::row_batch::{CentralRow, MetRow, ParentReference, batch_size};
use super::upload_driver::UploadDriver;
use super::upload_writer::UploadWriter;
use crate::engine::connection::DatabaseConnection as _;
use crate::engine::exact::pack_exact;
use crate::engine::flight::{
    ColumnKind as _, FlightStep, RowParameters, TableStatement, ValueTypes,
};
use crate::engine::sql::column::SqlColumn as _;
use crate::engine::sql::row_statements::{ImageParameters, PreImage, RowImage, key_columns};
use crate::engine::sql::served_table::TableAdapter;
use crate::engine::sql::sql_dialect::{RowLock, WriteStrategy};
use crate::engine::sql::system_table::SystemType;
use crate::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

const SAVE_QUESTION: &str = "SAVEPOINT tidewater_missing_parents";
const UNDO_QUESTION: &str = "ROLLBACK TO SAVEPOINT tidewater_missing_parents";
const RELEASE_QUESTION: &str = "RELEASE SAVEPOINT tidewater_missing_parents";

/// The source of a table's rows.
pub(super) type Source<'t, D> =
    ImageParameters<'t, <<D as UploadDriver>::Tables as TableAdapter>::Column>;

/// How a value travels to a database.
pub(super) type Kind<D> = <<D as UploadDriver>::Tables as ValueTypes>::Kind;

/// Rows of values as parameters of a database.
pub(super) type Rows<D> = <<D as UploadDriver>::Tables as ValueTypes>::Rows;

impl<D: UploadDriver> UploadWriter<D> {
    /// Reads the rows of the centre with the keys of uploaded ones, as these are or are to be.
    pub(super) async fn find(
        &mut self,
        table: &IncomingTable<'_, D::Tables>,
        op: Op,
        rows: &[RowRef],
        key: RowImage,
    ) -> Result<Vec<Option<MetRow>>> {
        let is_compared_here = Self::dialect().write_strategy() == WriteStrategy::Rows;
        let compared = match op {
            Op::Delete => [].as_slice(),
            _ if is_compared_here => &[],
            _ => &table.written,
        };
        let mut met: Vec<Option<MetRow>> = Vec::new();
        met.resize_with(rows.len(), || None);
        let source = key_source::<D>(table, compared);
        let keys = KeyRows::<D>::new(&source, table, rows, key, compared)?;
        let text = read_text(&source, table, compared);
        let types = row_types(table);
        self.read_central(&keys, &text, &read_kinds::<D>(table), |place, row| {
            met[place] = Some(MetRow {
                is_as_uploaded: row[1] == Datum::Boolean(true),
                central: CentralRow::pack(&types, &row[2..]),
            });
        })
        .await?;
        if is_compared_here {
            table.rows(rows, |at, row| {
                let Some(met) = &mut met[at] else {
                    return Ok(());
                };
                let now = met.central.values(&types)?;
                met.is_as_uploaded = met.central.is_whole && has_values(table, &row.new, &now);
                Ok(())
            })?;
        }
        Ok(met)
    }

    /// Reads rows of the centre by keys; `take` gets each with the place of its key's row.
    pub(super) async fn read_central(
        &mut self,
        keys: &KeyRows<D>,
        text: &str,
        kinds: &[Kind<D>],
        mut take: impl FnMut(usize, &[Datum<'_>]) + Send,
    ) -> Result<()> {
        if keys.places.is_empty() {
            return Ok(());
        }
        let mut statement = TableStatement::new("reading rows that an upload met", text);
        statement.rows = vec![&keys.rows];
        statement.yields = kinds.to_vec();
        let step = FlightStep::table(statement, |row| {
            take(keys.places[number(&row[0])], row);
            Ok(())
        });
        self.role.run(self.driver.connection(), step).await?;
        Ok(())
    }

    /// Locks the rows of the centre with the keys of uploaded ones, as these are: until the
    /// transaction ends, nobody else changes them.
    pub(super) async fn lock_rows(
        &mut self,
        table: &IncomingTable<'_, D::Tables>,
        rows: &[RowRef],
    ) -> Result<()> {
        let Some(lock) = Self::dialect().row_lock(RowLock::Change) else {
            return Ok(());
        };
        let source = key_source::<D>(table, &[]);
        let keys = KeyRows::<D>::new(&source, table, rows, RowImage::Old, &[])?;
        let text = source.lock_by_key(lock);
        let mut statement = TableStatement::new("locking rows that a script is to change", text);
        statement.rows = vec![&keys.rows];
        let step = FlightStep::table(statement, |_| Ok(()));
        self.role.run(self.driver.connection(), step).await?;
        Ok(())
    }

    /// Those of some deletes that find their rows as their pre-images say (or with `insists`, find
    /// them), and would do something to published rows which refer to these and are none of them:
    /// by foreign keys that act. Nobody adds such a row before the transaction ends.
    pub(super) async fn find_rows_with_children(
        &mut self,
        table: &IncomingTable<'_, D::Tables>,
        rows: &[RowRef],
        insists: bool,
    ) -> Result<Vec<RowRef>> {
        let found = match Self::dialect().write_strategy() {
            WriteStrategy::Sets => self.lock_deletable(table, rows, insists).await?,
            WriteStrategy::Rows => self.find_deletable(table, rows, insists).await?,
        };
        if found.is_empty() {
            return Ok(found);
        }
        // Only now, when nobody can add children any more.
        let source = key_source::<D>(table, &[]);
        let keys = KeyRows::<D>::new(&source, table, &found, RowImage::Old, &[])?;
        let parents = match source.is_one() {
            true => self.ask_for_children(&source, table, &found, &keys).await?,
            false => {
                let text = source.parents(&table.table.children);
                let what = "looking for children of rows to delete";
                self.numbers(what, text, &keys.rows).await?
            }
        };
        let parents = parents.into_iter().map(|it| found[keys.places[it]]);
        Ok(parents.collect())
    }

    /// Of rows for which a statement is run one after the other, those that others refer to which are
    /// none of them.
    async fn ask_for_children(
        &mut self,
        source: &Source<'_, D>,
        table: &IncomingTable<'_, D::Tables>,
        rows: &[RowRef],
        keys: &KeyRows<D>,
    ) -> Result<Vec<usize>> {
        let what = "looking for the children of a row";
        let types: Vec<ColumnType> = table
            .table
            .key_columns()
            .map(|it| it.column_type())
            .collect();
        let kinds = table.table.key_columns().map(|it| it.kind());
        let kinds: Vec<_> = kinds.collect();
        let mut gone = HashSet::new();
        table.rows(rows, |_, row| {
            gone.insert(pack_exact(&types, &row.key));
            Ok(())
        })?;
        let mut parents = HashSet::new();
        let texts = source.children(&table.table.children);
        for (children, text) in table.table.children.iter().zip(texts) {
            let mut statement = TableStatement::new(what, text);
            statement.rows = vec![&keys.rows];
            statement.yields = vec![Kind::<D>::of_system(SystemType::Integer)];
            if children.is_same_table {
                statement.yields.extend(&kinds);
            }
            let step = FlightStep::table(statement, |row| {
                let is_gone =
                    children.is_same_table && gone.contains(&pack_exact(&types, &row[1..]));
                if !is_gone {
                    parents.insert(number(&row[0]));
                }
                Ok(())
            });
            self.connection().run(what, vec![step]).await?;
        }
        let mut parents: Vec<usize> = parents.into_iter().collect();
        parents.sort_unstable();
        Ok(parents)
    }

    /// Locks those of some rows that a delete finds as it expects them.
    pub(super) async fn lock_deletable(
        &mut self,
        table: &IncomingTable<'_, D::Tables>,
        rows: &[RowRef],
        insists: bool,
    ) -> Result<Vec<RowRef>> {
        let source = images::<D>(table, Op::Delete, &[]);
        let lock = Self::dialect().row_lock(RowLock::Reference);
        let text = source.deletable(
            (!insists).then(|| pre_image(table)),
            lock.unwrap_or_default(),
        );
        let mut found = Vec::new();
        let mut rest = rows;
        while !rest.is_empty() {
            let (some, after) = rest.split_at(batch_size(rest));
            rest = after;
            let values = values::<D>(&source, table, some)?;
            let what = "looking for rows to delete";
            let numbers = self.numbers(what, text.clone(), &values).await?;
            found.extend(numbers.into_iter().map(|it| some[it]));
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Those of some rows that a delete finds as it expects them, where nobody else writes.
    async fn find_deletable(
        &mut self,
        table: &IncomingTable<'_, D::Tables>,
        rows: &[RowRef],
        insists: bool,
    ) -> Result<Vec<RowRef>> {
        let types = row_types(table);
        let met = self.find(table, Op::Delete, rows, RowImage::Old).await?;
        let mut found = Vec::new();
        table.rows(rows, |at, row| {
            let Some(central) = met[at].as_ref().map(|it| &it.central) else {
                return Ok(());
            };
            if central.is_whole
                && (insists || has_values(table, &row.old, &central.values(&types)?))
            {
                found.push(rows[at]);
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Those of some rows that refer to a row which is not in the centre, as they are to be, whoever
    /// may see that row. One that cannot be looked for counts as there.
    pub(super) async fn find_rows_without_parent(
        &mut self,
        table: &IncomingTable<'_, D::Tables>,
        reference: &ParentReference<'_, D::Tables>,
        rows: &[RowRef],
    ) -> Result<Vec<RowRef>> {
        let what = "looking for what rows refer to";
        let columns = reference.columns.iter();
        let columns = columns.map(|&it| (RowImage::New, it)).collect();
        let source = ImageParameters::new::<Rows<D>>(table.table.as_sql(), columns, 1);
        let text =
            source.without_parent(&reference.parent_table.as_sql(), reference.parent_columns);
        let mut parentless = Vec::new();
        let mut rest = rows;
        while !rest.is_empty() {
            let (some, after) = rest.split_at(batch_size(rest));
            rest = after;
            let (asked, values) = referring::<D>(&source, table, reference, some)?;
            if asked.is_empty() {
                continue;
            }
            // As the server itself, as the foreign key is checked. Types that cannot be compared so
            // tell nothing.
            let mut found = Vec::new();
            let mut statement = TableStatement::new(what, &*text);
            statement.rows = vec![&values];
            statement.yields = vec![Kind::<D>::of_system(SystemType::Integer)];
            let ask = FlightStep::table(statement, |row| {
                found.push(number(&row[0]));
                Ok(())
            });
            // By itself: a statement may fail before its flight begins.
            self.run(what, [SAVE_QUESTION]).await?;
            let ran = self.connection().run(what, vec![ask]).await;
            self.run(what, [UNDO_QUESTION, RELEASE_QUESTION]).await?;
            if ran.is_ok() {
                parentless.extend(found.into_iter().map(|it| asked[it]));
            }
        }
        parentless.sort_unstable();
        Ok(parentless)
    }

    /// The numbers of rows, from 0 on, that a statement yields.
    async fn numbers(
        &mut self,
        what: &'static str,
        text: String,
        rows: &Rows<D>,
    ) -> Result<Vec<usize>> {
        let mut numbers = Vec::new();
        let mut statement = TableStatement::new(what, text);
        statement.rows = vec![rows];
        statement.yields = vec![Kind::<D>::of_system(SystemType::Integer)];
        let step = FlightStep::table(statement, |row| {
            numbers.push(number(&row[0]));
            Ok(())
        });
        self.connection().run(what, vec![step]).await?;
        Ok(numbers)
    }
}

/// Keys of uploaded rows, as parameters; a key that no row of the centre can have is left out.
pub(super) struct KeyRows<D: UploadDriver> {
    pub(super) rows: Rows<D>,
    /// Which of the uploaded rows have them.
    pub(super) places: Vec<usize>,
}

/// The source of keys, and of the values of some columns that are compared.
pub(super) fn key_source<'t, D: UploadDriver>(
    table: &'t IncomingTable<'_, D::Tables>,
    compared: &[usize],
) -> Source<'t, D> {
    let sql_table = table.table.as_sql();
    let mut columns = key_columns(&sql_table);
    columns.extend(compared.iter().map(|&it| (RowImage::New, it)));
    ImageParameters::new::<Rows<D>>(sql_table, columns, 1)
}

/// The statement that reads rows of the centre by keys.
pub(super) fn read_text<T: TableAdapter>(
    source: &ImageParameters<'_, T::Column>,
    table: &IncomingTable<'_, T>,
    compared: &[usize],
) -> String {
    let (joined, outputs) = (table.table.joined(), table.table.outputs());
    source.read_by_key(&joined, &outputs, compared)
}

/// The kinds of what it yields.
pub(super) fn read_kinds<D: UploadDriver>(table: &IncomingTable<'_, D::Tables>) -> Vec<Kind<D>> {
    let first = [SystemType::Integer, SystemType::Boolean].map(Kind::<D>::of_system);
    let columns = table.table.read_columns().map(|it| it.kind());
    first.into_iter().chain(columns).collect()
}

impl<D: UploadDriver> KeyRows<D> {
    /// The keys of an image, and the values of some columns that are compared.
    pub(super) fn new(
        source: &Source<'_, D>,
        table: &IncomingTable<'_, D::Tables>,
        rows: &[RowRef],
        image: RowImage,
        compared: &[usize],
    ) -> Result<KeyRows<D>> {
        let kinds = source.kinds();
        let mut keys: KeyRows<D> = KeyRows {
            rows: Rows::<D>::new(&kinds),
            places: Vec::with_capacity(rows.len()),
        };
        // Where statements are run for one row after the other, it shows when they are bound.
        let is_tried = !source.is_one();
        let mut room = Vec::new();
        table.rows(rows, |at, row| {
            let mut values = key_of(table, row, image);
            let pairs = table.table.key_columns().zip(&values);
            room.clear();
            let mut pairs = pairs.map(|(column, value)| {
                *value != Datum::Null
                    && (!is_tried || column.misfit(true, value, &mut room).is_none())
            });
            if !pairs.all(|it| it) {
                return Ok(());
            }
            let mut buffer = Vec::new();
            if !compared.is_empty() {
                let uploaded = match row.new.is_empty() {
                    true => &row.old,
                    false => &row.new,
                };
                let uploaded = table.arranged(uploaded, &mut buffer);
                values.extend(compared.iter().map(|&it| uploaded[it]));
            }
            if !keys.rows.push(&values) {
                if compared.is_empty() {
                    return Ok(());
                }
                // New images were looked at; an unfit old one is not compared.
                for (value, &kind) in values.iter_mut().zip(&kinds).skip(table.table.key.len()) {
                    if !Rows::<D>::new(&[kind]).push(std::slice::from_ref(value)) {
                        *value = Datum::Null;
                    }
                }
                keys.rows.push(&values);
            }
            keys.places.push(at);
            Ok(())
        })?;
        Ok(keys)
    }
}

/// The key of an uploaded row as it is, or as it is to be.
pub(super) fn key_of<'a, T: TableAdapter>(
    table: &IncomingTable<'_, T>,
    row: &UnpackedRow<'a>,
    image: RowImage,
) -> Vec<Datum<'a>> {
    if image == RowImage::Old || row.new.is_empty() {
        return row.key.clone();
    }
    let key = table.map.shape.key.iter();
    key.map(|&column| row.new[column]).collect()
}

/// Whether a row of the centre has all the values that a remote names; what remotes do not write is as
/// good as not sent.
pub(super) fn has_values<T: TableAdapter>(
    table: &IncomingTable<'_, T>,
    uploaded: &[Datum<'_>],
    central: &[Datum<'_>],
) -> bool {
    let mut sources = table.map.sources.iter().enumerate();
    sources.all(|(index, source)| {
        let value = source.and_then(|at| uploaded.get(at));
        let Some(value) = value.filter(|_| !table.read_only.contains(&index)) else {
            return true;
        };
        let column = &table.table.columns[index];
        column.is_equal(&column.normalize(*value), &central[index])
    })
}

/// The types of a row of a table as it is read.
pub(super) fn row_types<T: TableAdapter>(table: &IncomingTable<'_, T>) -> Vec<ColumnType> {
    table
        .table
        .read_columns()
        .map(|it| it.column_type())
        .collect()
}

/// By what a table's rows are told from each other.
pub(super) fn pre_image<'i, T: TableAdapter>(table: &'i IncomingTable<'_, T>) -> PreImage<'i> {
    PreImage {
        sent: &table.sent,
        read_only: &table.read_only,
    }
}

/// The images that an operation's statement needs.
pub(super) fn images<'t, D: UploadDriver>(
    table: &'t IncomingTable<'_, D::Tables>,
    op: Op,
    changed: &[usize],
) -> Source<'t, D> {
    images_from::<D>(table, op, changed, 1)
}

/// The same, of parameters from this number on.
pub(super) fn images_from<'t, D: UploadDriver>(
    table: &'t IncomingTable<'_, D::Tables>,
    op: Op,
    changed: &[usize],
    first: usize,
) -> Source<'t, D> {
    let columns = match op {
        Op::Insert => {
            let written = table.written.iter();
            written.map(|&index| (RowImage::New, index)).collect()
        }
        _ => {
            let old = table.sent.iter().map(|&index| (RowImage::Old, index));
            let new = changed.iter().map(|&index| (RowImage::New, index));
            old.chain(new).collect()
        }
    };
    ImageParameters::new::<Rows<D>>(table.table.as_sql(), columns, first)
}

/// The values of images of rows, as parameters.
pub(super) fn values<D: UploadDriver>(
    source: &Source<'_, D>,
    table: &IncomingTable<'_, D::Tables>,
    rows: &[RowRef],
) -> Result<Rows<D>> {
    let mut values = Rows::<D>::new(&source.kinds());
    table.images(rows, |_, uploaded| {
        let row = source.columns().iter().map(|&(image, index)| {
            let values = match image {
                RowImage::Old => uploaded.old,
                RowImage::New => uploaded.new,
            };
            values.map_or(Datum::Null, |values| values[index])
        });
        let row: Vec<Datum<'_>> = row.collect();
        match values.push(&row) {
            true => Ok(()),
            false => Err(CentreError::Internal {
                message: format!("an unfit row of {} was to be sent", table.table.title),
            }),
        }
    })?;
    Ok(values)
}

/// Those of some rows that refer to others by a foreign key, and the values by which they do.
fn referring<D: UploadDriver>(
    source: &Source<'_, D>,
    table: &IncomingTable<'_, D::Tables>,
    reference: &ParentReference<'_, D::Tables>,
    rows: &[RowRef],
) -> Result<(Vec<RowRef>, Rows<D>)> {
    let mut values = Rows::<D>::new(&source.kinds());
    let mut asked = Vec::new();
    table.images(rows, |at, uploaded| {
        let Some(new) = uploaded.new else {
            return Ok(());
        };
        let refers_to_itself = reference.parent == table.index
            && is_own_parent(reference.columns, reference.parent_columns, new);
        let row = reference.columns.iter();
        let row = row.map(|&it| table.table.columns[it].normalize(new[it]));
        let row: Vec<Datum<'_>> = row.collect();
        if !refers_to_itself && !row.contains(&Datum::Null) && values.push(&row) {
            asked.push(rows[at]);
        }
        Ok(())
    })?;
    Ok((asked, values))
}

/// The number that a statement yields for a row, from 0 on.
pub(super) fn number(value: &Datum<'_>) -> usize {
    match value {
        Datum::Integer(number) => usize::try_from(*number - 1).unwrap_or_default(),
        _ => 0,
    }
}
