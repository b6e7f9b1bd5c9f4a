//! Unique values that one row of an upload gives up and another one takes, while foreign keys that
//! act refer to them.
//!
//! Whoever gives such a value up, by a delete or an update, takes along what refers to it, or
//! changes it. On the remote, which wrote its rows in one transaction, the children may have stayed
//! with the value: nothing of them is uploaded. A row that is deleted and inserted under another key
//! is a [`crate::engine::upload::linked::Succession`], which keeps its children; where the database could not do it
//! as one, its delete is refused. All other handovers are refused. Which rows these are is found
//! from the upload alone, by the values as they are spelled there.

use std::collections::{HashMap, HashSet};

use tidewater_protocol::{ColumnType, Op, PublicationSchema, Row};

use crate::engine::upload::columns::ColumnMap;
use crate::engine::upload::linked::pack_columns;
use crate::engine::upload::orphans::{RowKeys, Uploaded, pack_key};
use crate::engine::upload::result::ResultBuilder;
use crate::error::CentreError;

/// The reason of such a refusal.
pub(crate) const REASON: &str = "other rows refer to a value of this row, which another row of the \
                                 same upload takes or gives up: they could go with it";

/// What is handed over in an upload.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handovers {
    /// Rows that are not taken, each with what was to be done to it, by table.
    refused: HashMap<usize, HashSet<Party>>,
    /// Deleted rows in whose place others come.
    succeeded: RowKeys,
}

/// Columns with a value that only one row has, and to which foreign keys refer that act.
struct Tie {
    columns: Vec<usize>,
    types: Vec<ColumnType>,
    on_delete: bool,
    on_update: bool,
}

/// A row: what is done with it, and its packed key.
type Party = (Op, Vec<u8>);

impl Handovers {
    /// Finds them.
    ///
    /// # Errors
    /// The rows of the upload cannot be read.
    pub(crate) fn of(
        schema: &PublicationSchema,
        uploaded: &[Uploaded<'_>],
    ) -> Result<Handovers, CentreError> {
        let mut found = Handovers::default();
        for table in 0..schema.tables.len() {
            for tie in Tie::of(schema, table) {
                let (mut givers, mut takers) = (HashMap::new(), HashMap::new());
                for &(upload, index, map) in uploaded.iter().filter(|it| it.1 == table) {
                    upload.each_row(&map.shape, |row, op| {
                        let party = (op, pack_key(&schema.tables[index], &row.key));
                        let (old, new) = tie.handed(map, row, op);
                        if let Some(value) = old {
                            givers
                                .entry(value)
                                .or_insert_with(Vec::new)
                                .push(party.clone());
                        }
                        if let Some(value) = new {
                            takers.entry(value).or_insert_with(Vec::new).push(party);
                        }
                    })?;
                }
                found.pair(table, givers, &takers);
            }
        }
        Ok(found)
    }

    fn pair(
        &mut self,
        table: usize,
        givers: HashMap<Vec<u8>, Vec<Party>>,
        takers: &HashMap<Vec<u8>, Vec<Party>>,
    ) {
        for (value, givers) in givers {
            match (&givers[..], takers.get(&value).map(Vec::as_slice)) {
                (_, None) => {}
                ([(Op::Delete, deleted)], Some([(Op::Insert, _)])) => {
                    self.succeeded.insert((table, deleted.clone()));
                }
                (givers, Some(takers)) => {
                    let parties = givers.iter().chain(takers).cloned();
                    self.refused.entry(table).or_default().extend(parties);
                }
            }
        }
    }

    /// Whether there are any rows of a table that are not taken.
    pub(crate) fn are_in(&self, table: usize) -> bool {
        self.refused.contains_key(&table)
    }

    /// Whether a row is not taken.
    pub(crate) fn refuse(&self, table: usize, op: Op, key: Vec<u8>) -> bool {
        let refused = self.refused.get(&table);
        refused.is_some_and(|refused| refused.contains(&(op, key)))
    }

    /// Refuses the deletes in whose place others were to come and did not; true if there are any
    /// new ones, which have to be undone.
    pub(crate) fn find(&mut self, builder: &ResultBuilder<'_>) -> bool {
        let mut anew = false;
        for row in &self.succeeded {
            if !builder.successions().contains(row) && !builder.is_lost(row) {
                let refused = self.refused.entry(row.0).or_default();
                anew |= refused.insert((Op::Delete, row.1.clone()));
            }
        }
        anew
    }
}

impl Tie {
    fn of(schema: &PublicationSchema, table: usize) -> Vec<Tie> {
        let parent = &schema.tables[table];
        let mut ties: Vec<Tie> = Vec::new();
        for key in schema.tables.iter().flat_map(|it| &it.foreign_keys) {
            let acts = key.on_delete.acts() || key.on_update.acts();
            if key.parent != parent.name || !acts {
                continue;
            }
            let columns = key.parent_columns.iter().map(|name| parent.column(name));
            let Some(columns) = columns.collect::<Option<Vec<usize>>>() else {
                continue;
            };
            // Remotes give rows other keys by a delete and an insert, and what refers to the key is
            // uploaded with them.
            let is_key = columns.len() == parent.key.len()
                && columns.iter().all(|it| parent.key.contains(it));
            if !is_key {
                ties.push(Tie {
                    types: columns
                        .iter()
                        .map(|&it| parent.columns[it].column_type)
                        .collect(),
                    columns,
                    on_delete: key.on_delete.acts(),
                    on_update: key.on_update.acts(),
                });
            }
        }
        ties
    }

    /// What a row gives up, and what it takes.
    fn handed(&self, map: &ColumnMap, row: &Row<'_>, op: Op) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
        let values = |row| pack_columns(self.columns.iter().zip(&self.types), map, row);
        match op {
            Op::Insert => (None, values(&row.new)),
            Op::Delete => (values(&row.old).filter(|_| self.on_delete), None),
            _ => {
                let (old, new) = (values(&row.old), values(&row.new));
                if old == new {
                    return (None, None);
                }
                (old.filter(|_| self.on_update), new)
            }
        }
    }
}
