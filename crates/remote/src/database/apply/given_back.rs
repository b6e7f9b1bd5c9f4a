//! The result of an upload that was given back to a centre that had forgotten it.
//!
//! Its changes are not pending here: what became of them in the centre arrives by the compare
//! that follows. A change that lost is a conflict like any other, with its images out of the kept
//! upload; one that is refused is listed with the user's own values out of it, and so is what it
//! says of columns that are not published any more. No row and no pending change is touched.

use rusqlite::Connection;
use tidewater_protocol::message::TableBegin;
use tidewater_protocol::{
    Code, ColumnType, Op, PublicationSchema, RowShape, RowsReader, UnpackError, UnpackedRow,
};

use super::ApplySummary;
use super::ack::{acknowledge_given, note_conflict};
use super::migrate::columns_left;
use crate::database::conflicts::{self, ChangeOutcome};
use crate::database::kept_uploads::{
    self, GivenBackUpload, OwnChange, dropped_changes, own_changes,
};
use crate::database::refused::{self, NewRefusal};
use crate::database::{SubscriptionState, row};
use crate::error::{ErrorContext, RemoteError};

const DOING: &str = "applying the result of a given-back upload";

/// What the centre says of the rows of a given-back upload.
#[derive(Debug)]
pub(super) struct GivenBackResult {
    giving: GivenBackUpload,
    table: Option<GivenBackTable>,
    refused: Vec<GivenBackRefusal>,
    /// By table and key, with the row that the centre has.
    lost: Vec<(kept_uploads::TableAndKey, Option<String>)>,
}

#[derive(Debug)]
struct GivenBackTable {
    name: String,
    columns: Vec<String>,
    shape: RowShape,
    key_types: Vec<ColumnType>,
}

#[derive(Debug)]
struct GivenBackRefusal {
    table: String,
    key_packed: Vec<u8>,
    code: String,
    reason: String,
}

impl GivenBackResult {
    pub(super) fn new(giving: GivenBackUpload) -> GivenBackResult {
        GivenBackResult {
            giving,
            table: None,
            refused: Vec::new(),
            lost: Vec::new(),
        }
    }

    /// Rows of this table follow. It need not be in the schema any more.
    pub(super) fn begin(&mut self, begin: &TableBegin) -> Result<(), RemoteError> {
        let shape = begin.shape().ok_or_else(|| RemoteError::BadLayout {
            table: begin.table.clone(),
            what: "its header names no key, or a type that is not known".into(),
        })?;
        self.table = Some(GivenBackTable {
            name: begin.table.clone(),
            columns: begin.columns.iter().map(|it| it.name.clone()).collect(),
            key_types: shape.key_columns(),
            shape,
        });
        Ok(())
    }

    /// Takes in the complete rows at the beginning of `bytes`; returns how many there were and
    /// how many bytes they took.
    pub(super) fn rows(
        &mut self,
        bytes: &[u8],
        summary: &mut ApplySummary,
    ) -> Result<(u64, usize), RemoteError> {
        let Some(table) = &self.table else {
            return Err(super::out_of_order("rows"));
        };
        let bad = |what: String| RemoteError::BadRows {
            table: table.name.clone(),
            what,
        };
        let mut reader = RowsReader::new(&table.shape, bytes);
        let mut row = UnpackedRow::default();
        let mut count = 0;
        loop {
            match reader.next(&mut row) {
                Ok(true) => {}
                Ok(false) | Err(UnpackError::Truncated) => return Ok((count, reader.consumed())),
                Err(error) => return Err(bad(error.to_string())),
            }
            match row.op {
                Some(Op::Refused) => self.refused.push(GivenBackRefusal {
                    table: table.name.clone(),
                    key_packed: row::pack_key(&table.key_types, &row.key),
                    code: refused::code_name(row.code),
                    reason: row.reason.to_owned(),
                }),
                Some(op @ (Op::ConflictRow | Op::ConflictGone)) => {
                    note_conflict(summary, &table.name, &row.key);
                    let columns = table.columns.iter().map(String::as_str);
                    let theirs =
                        (op == Op::ConflictRow).then(|| conflicts::object(columns.zip(&row.new)));
                    let key_packed = row::pack_key(&table.key_types, &row.key);
                    self.lost.push(((table.name.clone(), key_packed), theirs));
                }
                // It comes with the compare.
                Some(Op::Made | Op::Merged) => {}
                op => return Err(bad(format!("{op:?} has no place here"))),
            }
            count += 1;
        }
    }

    /// Tables and keys of what was refused.
    pub(super) fn refused_keys(&self) -> kept_uploads::RefusedKeys {
        let refused = self.refused.iter();
        refused
            .map(|it| (it.table.clone(), it.key_packed.clone()))
            .collect()
    }

    /// The result is complete: what was refused is written down, and the upload acknowledged.
    /// The schema is the one that the server has.
    pub(super) fn settle(
        self,
        connection: &Connection,
        subscription: &mut SubscriptionState,
        schema: Option<&PublicationSchema>,
        summary: &mut ApplySummary,
    ) -> Result<(), RemoteError> {
        let refused_keys = self.refused_keys();
        let own = own_changes(connection, self.giving, &refused_keys)?;
        let mut note = |(table, key_packed): &kept_uploads::TableAndKey,
                        change: &OwnChange,
                        code: &str,
                        reason: &str| {
            summary.note_refused(table, &change.key, reason);
            let refusal = NewRefusal {
                publication: &subscription.publication,
                table,
                key: &change.key,
                key_packed,
                operation: change.operation,
                code,
                reason,
                sequence: subscription.sequence + 1,
                row_values: Some(&change.values),
            };
            refused::record(connection, &refusal).doing(DOING)
        };
        for refused in &self.refused {
            let key = (refused.table.clone(), refused.key_packed.clone());
            // Otherwise it is not a change of ours: there is nothing to keep.
            if let Some(change) = own.get(&key) {
                note(&key, change, &refused.code, &refused.reason)?;
            }
        }
        for dropped in dropped_changes(connection, self.giving, schema)? {
            if !refused_keys.contains(&dropped.key) {
                let columns: Vec<&str> = dropped.columns.iter().map(String::as_str).collect();
                let code = Code::RowNotPublished.name();
                note(&dropped.key, &dropped.change, code, &columns_left(&columns))?;
            }
        }
        let keys = self.lost.iter().map(|(key, _)| key.clone()).collect();
        let images = kept_uploads::images(connection, self.giving, &keys)?;
        for (key, theirs) in &self.lost {
            if let Some(images) = images.get(key) {
                let place = (&*subscription.publication, &*key.0);
                images
                    .record(connection, place, theirs.as_deref(), ChangeOutcome::Lost)
                    .doing(DOING)?;
            }
        }
        acknowledge_given(connection, subscription, self.giving)
    }
}
