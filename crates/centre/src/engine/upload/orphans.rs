//! Children of refused parents, and of rows that go.
//!
//! When the insert of a row is refused, a row of the same upload that refers to it must
//! not be taken either: its key may be that of somebody else's row, and the child would
//! attach itself to that. And when a row was to leave a parent that the upload deletes, and that is
//! refused, the row goes with the parent (`ON DELETE CASCADE`), and what the upload has made refer
//! to it would go along, as if it had been taken. Which rows these are is found from the upload
//! alone, when something was refused: the adapter undoes what it did and applies the upload again
//! without them.

use std::collections::HashSet;

use tidewater_protocol::pack::pack_values;
use tidewater_protocol::{
    Code, ColumnType, Datum, ForeignKey, ForeignKeyAction, Op, PublicationSchema, Row, Table,
};

use crate::engine::upload::columns::ColumnMap;
use crate::engine::upload::handovers::{self, Handovers};
use crate::engine::upload::result::ResultBuilder;
use crate::error::CentreError;
use crate::upload::UploadTable;

/// Rows, by the index of the table in the publication and the packed key.
pub(crate) type RowKeys = HashSet<(usize, Vec<u8>)>;

/// The code of the refusal.
pub(crate) const CODE: Code = Code::RowForeignKey;
/// Its reason.
const REASON: &str = "the row that it refers to was refused";

/// So often is an upload applied anew before all rows that refer to others are given up.
const ROUNDS: u32 = 8;

/// The packed key of a row.
pub(crate) fn pack_key(table: &Table, key: &[Datum<'_>]) -> Vec<u8> {
    let types: Vec<ColumnType> = table.key_columns().map(|key| key.column_type).collect();
    let mut packed = Vec::new();
    pack_values(&mut packed, &types, key);
    packed
}

/// The rows of an upload that are not taken whatever the centre says to them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Orphans {
    handovers: Handovers,
    rows: RowKeys,
    tables: HashSet<usize>,
    rounds: u32,
}

/// An uploaded table that is published: its index, and how its rows are read.
pub(crate) type Uploaded<'u> = (&'u UploadTable, usize, &'u ColumnMap);

impl Orphans {
    /// Those that the upload itself tells.
    ///
    /// # Errors
    /// The rows of the upload cannot be read.
    pub(crate) fn of(
        schema: &PublicationSchema,
        uploaded: &[Uploaded<'_>],
    ) -> Result<Orphans, CentreError> {
        Ok(Orphans {
            handovers: Handovers::of(schema, uploaded)?,
            ..Orphans::default()
        })
    }

    /// Whether a table has such rows.
    pub(crate) fn are_in(&self, table: usize) -> bool {
        self.tables.contains(&table) || self.handovers.are_in(table)
    }

    /// Why a row is not taken, if it is one of them.
    pub(crate) fn reason(
        &self,
        schema: &PublicationSchema,
        table: usize,
        op: Op,
        key: &[Datum<'_>],
    ) -> Option<&'static str> {
        if !self.are_in(table) {
            return None;
        }
        let row = (table, pack_key(&schema.tables[table], key));
        // Deletes attach nothing.
        if op != Op::Delete && self.rows.contains(&row) {
            return Some(REASON);
        }
        let is_handed = self.handovers.refuse(table, op, row.1);
        is_handed.then_some(handovers::REASON)
    }

    /// Adds the rows that refer to what was refused or goes; true if the upload has to be applied
    /// anew without them, because they were taken.
    ///
    /// # Errors
    /// The rows of the upload cannot be read.
    pub(crate) fn find(
        &mut self,
        schema: &PublicationSchema,
        uploaded: &[Uploaded<'_>],
        builder: &ResultBuilder<'_>,
    ) -> Result<bool, CentreError> {
        let mut anew = self.handovers.find(builder);
        let mut refused = builder.refused_inserts().clone();
        // And in time what stays below these.
        let mut gone = deleted_parents(schema, uploaded, builder)?;
        if refused.is_empty() && gone.is_empty() {
            return Ok(anew);
        }
        let mut found = RowKeys::new();
        self.rounds += 1;
        loop {
            let before = (found.len(), gone.len());
            for &(upload, index, map) in uploaded {
                let references = References::of(schema, index, map);
                let gives_up =
                    self.rounds > ROUNDS && !schema.tables[index].foreign_keys.is_empty();
                if !gives_up && !references.concern(&refused) && !references.concern(&gone) {
                    continue;
                }
                upload.each_row(&map.shape, |row, op| {
                    if op == Op::Delete {
                        return;
                    }
                    let key = (index, pack_key(&schema.tables[index], &row.key));
                    let is_orphan = gives_up
                        || references.attach(row, op, &refused)
                        || references.goes_with(&row.new, &gone)
                        || references.attach(row, op, &gone);
                    let is_refused = is_orphan || builder.refused_rows().contains(&key);
                    if is_refused && op == Op::Update && references.goes_with(&row.old, &gone) {
                        gone.insert(key.clone());
                    }
                    if is_orphan {
                        if op == Op::Insert {
                            refused.insert(key.clone());
                        }
                        found.insert(key);
                    }
                })?;
            }
            if (found.len(), gone.len()) == before {
                break;
            }
        }
        for row in found {
            if !builder.refused_rows().contains(&row) && !self.rows.contains(&row) {
                anew = true;
            }
            self.tables.insert(row.0);
            self.rows.insert(row);
        }
        Ok(anew)
    }
}

/// The rows that an upload deletes, of tables whose children go with them, if the update of such a
/// child was refused.
fn deleted_parents(
    schema: &PublicationSchema,
    uploaded: &[Uploaded<'_>],
    builder: &ResultBuilder<'_>,
) -> Result<RowKeys, CentreError> {
    let refused = builder.refused_rows();
    let is_insert = |row| builder.refused_inserts().contains(row);
    let children: HashSet<usize> = refused
        .iter()
        .filter(|row| !is_insert(*row))
        .map(|row| row.0)
        .collect();
    let mut parents = HashSet::new();
    for &(_, index, map) in uploaded {
        if children.contains(&index) {
            let references = References::of(schema, index, map).0;
            let cascading = references.iter().filter(|it| it.cascades);
            parents.extend(cascading.map(|it| it.parent));
        }
    }
    let (mut deleted, mut inserted) = (RowKeys::new(), RowKeys::new());
    for &(upload, index, map) in uploaded {
        if parents.contains(&index) {
            upload.each_row(&map.shape, |row, op| {
                let key = (index, pack_key(&schema.tables[index], &row.key));
                match op {
                    Op::Delete if !refused.contains(&key) => deleted.insert(key),
                    Op::Insert => inserted.insert(key),
                    _ => false,
                };
            })?;
        }
    }
    deleted.retain(|row| !inserted.contains(row));
    Ok(deleted)
}

/// The references of a table to primary keys of the publication.
struct References<'s>(Vec<Reference<'s>>);

struct Reference<'s> {
    parent: usize,
    /// Whether the row goes with the parent.
    cascades: bool,
    /// For each column of the parent's key, in key order: where the value that refers to
    /// it is in the remote's rows, and the type to compare it in.
    columns: Vec<(usize, ColumnType)>,
    parent_table: &'s Table,
}

impl<'s> References<'s> {
    fn of(schema: &'s PublicationSchema, table: usize, map: &ColumnMap) -> References<'s> {
        let foreign_keys = schema.tables[table].foreign_keys.iter();
        References(
            foreign_keys
                .filter_map(|foreign_key| Reference::of(schema, foreign_key, map))
                .collect(),
        )
    }

    fn concern(&self, refused: &RowKeys) -> bool {
        let mut references = self.0.iter();
        references.any(|it| refused.iter().any(|(table, _)| *table == it.parent))
    }

    /// Whether a row begins to refer to one of these.
    fn attach(&self, row: &Row<'_>, op: Op, refused: &RowKeys) -> bool {
        self.0.iter().any(|reference| {
            let Some(key) = reference.key(&row.new) else {
                return false;
            };
            let moved = op == Op::Insert || reference.key(&row.old).as_ref() != Some(&key);
            moved && refused.contains(&(reference.parent, key))
        })
    }

    /// Whether a row with these values goes with one of those that go.
    fn goes_with(&self, row: &[Datum<'_>], gone: &RowKeys) -> bool {
        let mut cascading = self.0.iter().filter(|it| it.cascades);
        cascading.any(|reference| {
            let key = reference.key(row);
            key.is_some_and(|key| gone.contains(&(reference.parent, key)))
        })
    }
}

impl<'s> Reference<'s> {
    /// `None` if it is not to the parent's primary key, or the remote does not send it.
    fn of(
        schema: &'s PublicationSchema,
        foreign_key: &ForeignKey,
        map: &ColumnMap,
    ) -> Option<Reference<'s>> {
        let mut tables = schema.tables.iter();
        let parent = tables.position(|table| table.name == foreign_key.parent)?;
        let parent_table = &schema.tables[parent];
        if foreign_key.parent_columns.len() != parent_table.key.len() {
            return None;
        }
        let columns = parent_table.key_columns().map(|key| {
            let mut names = foreign_key.parent_columns.iter();
            let at = names.position(|name| *name == key.name)?;
            let source = map.sources[*foreign_key.columns.get(at)?]?;
            Some((source, key.column_type))
        });
        let columns = columns.collect::<Option<Vec<_>>>()?;
        Some(Reference {
            parent,
            cascades: foreign_key.on_delete == ForeignKeyAction::Cascade,
            columns,
            parent_table,
        })
    }

    /// The packed key that a row refers to; `None` if it refers to nothing.
    fn key(&self, row: &[Datum<'_>]) -> Option<Vec<u8>> {
        let mut values = Vec::with_capacity(self.columns.len());
        for &(source, column_type) in &self.columns {
            let value = row.get(source)?.to_value();
            if column_type.datum(value.as_ref()).0 == Datum::Null {
                return None;
            }
            values.push((value, column_type));
        }
        let key: Vec<Datum<'_>> = values
            .iter()
            .map(|(value, column_type)| column_type.datum(value.as_ref()).0)
            .collect();
        Some(pack_key(self.parent_table, &key))
    }
}
