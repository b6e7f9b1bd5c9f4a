//! What handlers have said of uploaded rows, made of it what an upload can be applied by: changed
//! rows stand in place of those that came, and of refused ones and of those that are seen to it is
//! decided what becomes of them.
//!
//! Whatever a handler says, rights, scopes and constraints are what they are.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use tidewater_protocol::{Code, Datum, Op, RowsWriter, pack};

use super::column_map::ColumnMap;
use crate::engine::exact::canonical;
use crate::engine::publication::Publication;
use crate::engine::row_fault::RefusalReason;
use crate::engine::sql::served_table::TableAdapter;
use crate::engine::upload::refusal_reason::RowDecision;
use crate::engine::upload::row_keys::{RowKey, RowKeys, pack_key};
use crate::error::CentreError;
use crate::upload::{SyncUpload, UploadChunk, UploadTable};
use crate::verdict::{RowVerdict, TableVerdicts};

type Result<T> = std::result::Result<T, CentreError>;

/// An upload as handlers have judged it.
#[derive(Default)]
pub(super) struct JudgedUpload {
    /// Its tables with changed rows, by their place.
    tables: BTreeMap<usize, UploadTable>,
    /// What is decided.
    decisions: HandlerDecisions,
}

/// What handlers have decided of rows.
#[derive(Debug, Default)]
pub(crate) struct HandlerDecisions {
    inserts: HashMap<RowKey, RowDecision>,
    others: HashMap<RowKey, RowDecision>,
    /// Those that they have changed.
    changed: RowKeys,
}

impl HandlerDecisions {
    /// What is decided of a row.
    pub(crate) fn find_decision(&self, row: &RowKey, op: Op) -> Option<&RowDecision> {
        match op {
            Op::Insert => self.inserts.get(row),
            _ => self.others.get(row),
        }
    }

    /// Whether a row was changed.
    pub(crate) fn has_changed(&self, row: &RowKey) -> bool {
        self.changed.contains(row)
    }

    /// Whether one of a table was.
    pub(crate) fn has_changed_some(&self, table: usize) -> bool {
        self.changed.iter().any(|it| it.0 == table)
    }

    /// The tables of which something is decided.
    pub(crate) fn tables(&self) -> HashSet<usize> {
        let all = self.inserts.keys().chain(self.others.keys());
        all.map(|it| it.0).collect()
    }

    fn decide(&mut self, row: RowKey, op: Op, decision: RowDecision) {
        match op {
            Op::Insert => self.inserts.insert(row, decision),
            _ => self.others.insert(row, decision),
        };
    }
}

/// Whether handlers have, or should have, judged some rows of an upload.
pub(super) fn concern<T: TableAdapter>(publication: &Publication<T>, upload: &SyncUpload) -> bool {
    let is_judged = |name: &String| {
        let mut tables = publication.schema.tables.iter().zip(&*publication.handled);
        tables.any(|(it, handled)| handled.upload && it.name == *name)
    };
    let mut names = upload.tables.iter().map(|it| &it.begin.table);
    !upload.verdicts.is_empty() || names.any(is_judged)
}

impl JudgedUpload {
    /// The same after this.
    pub(super) fn into_decisions(self) -> (BTreeMap<usize, UploadTable>, Arc<HandlerDecisions>) {
        (self.tables, Arc::new(self.decisions))
    }

    /// Takes what is said of the rows of the table at a place.
    ///
    /// # Errors
    /// Nothing is said of rows that a handler has to see, or they cannot be read.
    pub(super) fn add<T: TableAdapter>(
        &mut self,
        publication: &Publication<T>,
        upload: &SyncUpload,
        place: usize,
        (index, map): (usize, &ColumnMap),
    ) -> Result<()> {
        let verdicts = upload.verdicts.get(&place);
        let handled = publication.handled[index];
        let schema = &publication.schema.tables[index];
        let Some(verdicts) = verdicts else {
            return match handled.upload {
                false => Ok(()),
                // No row passes that its handler has not seen.
                true => Err(CentreError::NotDeployed {
                    message: format!(
                        "the table {:?} is deployed with a handler for uploaded rows, and this \
                         server's configuration names none",
                        schema.name
                    ),
                }),
            };
        };
        let mut judging = JudgementReader {
            publication,
            index,
            map,
            verdicts,
            decisions: &mut self.decisions,
            writer: RowsWriter::new(&map.shape),
            changes: false,
            unseen: false,
        };
        let table = &upload.tables[place];
        let mut number = 0;
        table.each_row(&map.shape, |row, op| {
            judging.take(row, op, number);
            number += 1;
        })?;
        if judging.unseen && handled.keeps_uploads {
            return Err(CentreError::Internal {
                message: format!("a row of {:?} is to be kept by nobody", schema.name),
            });
        }
        if judging.changes {
            let table = UploadTable {
                begin: table.begin.clone(),
                chunks: vec![UploadChunk::from_packed(&map.shape, judging.writer.take())?],
            };
            self.tables.insert(place, table);
        }
        Ok(())
    }
}

struct JudgementReader<'j, T: TableAdapter> {
    publication: &'j Publication<T>,
    index: usize,
    map: &'j ColumnMap,
    verdicts: &'j TableVerdicts,
    decisions: &'j mut HandlerDecisions,
    /// The rows as they are to be applied.
    writer: RowsWriter<'j>,
    /// They are others than those that came.
    changes: bool,
    /// There are some that are taken as they came, or changed.
    unseen: bool,
}

impl<T: TableAdapter> JudgementReader<'_, T> {
    fn take(&mut self, row: &tidewater_protocol::UnpackedRow<'_>, op: Op, number: u64) {
        let schema = &self.publication.schema.tables[self.index];
        let key = || (self.index, pack_key(schema, &row.key));
        let refused = |reason: String| {
            RowDecision::Refused(RefusalReason {
                code: Code::RowHandler,
                reason,
                database_code: None,
            })
        };
        match self.verdicts.get(&number) {
            None => self.unseen = true,
            Some(RowVerdict::Refuse(reason)) => {
                self.decisions.decide(key(), op, refused(reason.clone()))
            }
            Some(RowVerdict::Handled) => self.decisions.decide(key(), op, RowDecision::Handled),
            Some(RowVerdict::Change(columns)) => {
                self.unseen = true;
                let mut new = row.new.clone();
                match self.change(&mut new, columns) {
                    Err(reason) => self.decisions.decide(key(), op, refused(reason)),
                    Ok(()) => {
                        self.changes = true;
                        self.decisions.changed.insert(key());
                        match op {
                            Op::Insert => self.writer.row(Op::Insert, &new),
                            _ => self.writer.update(&row.old, &new),
                        }
                        return;
                    }
                }
            }
        }
        match op {
            Op::Insert => self.writer.row(Op::Insert, &row.new),
            Op::Delete => self.writer.delete(&row.old),
            _ => self.writer.update(&row.old, &row.new),
        }
    }

    /// Changes a row as the remote sends it; or tells why it cannot be changed so.
    fn change<'v>(
        &self,
        new: &mut [Datum<'v>],
        columns: &'v [(String, tidewater_protocol::Value)],
    ) -> std::result::Result<(), String> {
        let schema = &self.publication.schema.tables[self.index];
        let write = self.publication.writes[self.index].rule.as_ref();
        for (name, value) in columns {
            let Some(column) = schema.column(name) else {
                return Err(format!(
                    "the handler changes {name}, which is no column of the table"
                ));
            };
            let Some(source) = self.map.sources[column] else {
                return Err(format!(
                    "the handler changes {name}, which the remote does not have yet"
                ));
            };
            let (datum, _) = schema.columns[column].column_type.datum(value.as_ref());
            let differs = !pack::same(&canonical(datum), &canonical(new[source]));
            if differs && schema.key.contains(&column) {
                return Err(format!("the handler gives the row another key ({name})"));
            }
            let tells_whose = schema.partition.contains(&column)
                || write.is_some_and(|rule| rule.columns.contains(&column));
            if differs && tells_whose {
                return Err(format!(
                    "the handler gives the row to somebody else ({name})"
                ));
            }
            new[source] = datum;
        }
        Ok(())
    }
}
