//! What an upload itself does to rows by foreign keys that act: a parent that gets another key takes
//! its children along (`ON UPDATE CASCADE`), a deleted one is forgotten by them (`SET NULL`).
//!
//! A child that the upload changes, too, has as its pre-image what it was before all that. If it
//! is not found so, but as the upload's own parents have made it, nobody else has won.

use std::collections::HashMap;

use tidewater_protocol::{Datum, ForeignKeyAction, Op, PublicationSchema, Table};

use crate::engine::upload::foreign_keys::PublishedForeignKey;
use crate::engine::upload::row_keys::{RowKeys, UploadedTable, pack_key};
use crate::error::CentreError;

/// What becomes of values to which children refer.
#[derive(Debug)]
pub(crate) struct KeyCascades {
    pub(crate) foreign_keys: Vec<PublishedForeignKey>,
    /// By the number of a foreign key and the packed value, what the upload makes of it.
    parent_fates: HashMap<(usize, Vec<u8>), ParentFate>,
    /// Keys that rows leave for others.
    left_keys: RowKeys,
}

#[derive(Debug)]
enum ParentFate {
    /// The row that has it is deleted.
    Deleted,
    /// The row has this one.
    Becomes(Option<Vec<u8>>),
}

impl KeyCascades {
    /// Looks through an upload.
    ///
    /// # Errors
    /// Its rows cannot be read.
    pub(crate) fn from_upload(
        schema: &PublicationSchema,
        uploaded: &[UploadedTable<'_>],
    ) -> Result<KeyCascades, CentreError> {
        let foreign_keys = PublishedForeignKey::all(schema);
        let mut parent_fates = HashMap::new();
        let mut left_keys = RowKeys::new();
        for it in uploaded {
            let acting: Vec<(usize, &PublishedForeignKey)> = foreign_keys
                .iter()
                .enumerate()
                .filter(|(_, foreign_key)| foreign_key.parent == it.index)
                .filter(|(_, foreign_key)| {
                    foreign_key.on_update.acts() || foreign_key.on_delete.changes_rows()
                })
                .collect();
            if acting.is_empty() && !it.has_moves {
                continue;
            }
            let table = &schema.tables[it.index];
            it.upload.each_row(&it.map.shape, |row, op| {
                if op == Op::Insert {
                    return;
                }
                if op == Op::Update && it.moves(row) {
                    left_keys.insert((it.index, pack_key(table, &row.key)));
                }
                for &(number, foreign_key) in &acting {
                    let Some(old) = foreign_key.referred(it.map, &row.old) else {
                        continue;
                    };
                    let fate = match op {
                        Op::Delete => ParentFate::Deleted,
                        _ => ParentFate::Becomes(foreign_key.referred(it.map, &row.new)),
                    };
                    let stays = matches!(&fate, ParentFate::Becomes(Some(new)) if *new == old);
                    if !stays {
                        parent_fates.insert((number, old), fate);
                    }
                }
            })?;
        }
        Ok(KeyCascades {
            foreign_keys,
            parent_fates,
            left_keys,
        })
    }

    /// Whether published tables refer to a table.
    pub(crate) fn has_children(&self, table: usize) -> bool {
        self.foreign_keys
            .iter()
            .any(|foreign_key| foreign_key.parent == table)
    }

    /// Whether a row of the upload leaves this key for another one.
    pub(crate) fn leaves_key(&self, index: usize, table: &Table, key: &[Datum<'_>]) -> bool {
        !self.left_keys.is_empty() && self.left_keys.contains(&(index, pack_key(table, key)))
    }

    /// What a row of the centre was before the upload's own parents changed it, if they did. `old`
    /// is what the remote says it was; both are in the published columns.
    pub(crate) fn before<'d>(
        &self,
        table: usize,
        old: &[Datum<'d>],
        central: &[Datum<'d>],
    ) -> Option<Vec<Datum<'d>>> {
        if self.parent_fates.is_empty() {
            return None;
        }
        let mut before = None;
        for (number, foreign_key) in self.foreign_keys.iter().enumerate() {
            if foreign_key.child == table && self.has_acted(number, foreign_key, old, central) {
                let before = before.get_or_insert_with(|| central.to_vec());
                for &column in &foreign_key.columns {
                    before[column] = old[column];
                }
            }
        }
        before
    }

    /// Whether a foreign key has done to a row what it does when the upload's parent changes.
    fn has_acted(
        &self,
        number: usize,
        foreign_key: &PublishedForeignKey,
        old: &[Datum<'_>],
        central: &[Datum<'_>],
    ) -> bool {
        let Some(fate) = foreign_key
            .referring_whole(old)
            .and_then(|value| self.parent_fates.get(&(number, value)))
        else {
            return false;
        };
        let (action, new) = match fate {
            ParentFate::Deleted => (foreign_key.on_delete, None),
            ParentFate::Becomes(new) => (foreign_key.on_update, new.as_ref()),
        };
        match action {
            ForeignKeyAction::Cascade => foreign_key.referring_whole(central).as_ref() == new,
            ForeignKeyAction::SetNull => foreign_key
                .columns
                .iter()
                .all(|&column| central[column] == Datum::Null),
            ForeignKeyAction::SetDefault => true,
            _ => false,
        }
    }
}
