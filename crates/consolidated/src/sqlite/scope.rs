//! Which partitions a user holds now, and which ones a checkpoint speaks of.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use rusqlite::{Connection, params_from_iter};

use tidewater_protocol::{Datum, RemoteId};

use super::compile::{Compiled, Publication};
use super::watermark::Watermark;
use super::{failure, types};
use crate::engine::upload::HeldPartitions;
use crate::error::CentreError;
use crate::scope::{Checkpoint, Scope};

/// For whom a scope is evaluated.
pub(super) struct Holder<'a> {
    pub(super) user: &'a str,
    pub(super) remote_id: RemoteId,
}

/// The partitions that the user holds now, in the connection's snapshot.
pub(super) fn current(
    connection: &Connection,
    publication: &Publication,
    holder: &Holder<'_>,
) -> Result<Scope, CentreError> {
    // Tables often share their query.
    let mut known: BTreeMap<(&str, String), BTreeSet<Vec<u8>>> = BTreeMap::new();
    let mut scope = Scope::default();
    for (index, table) in publication.tables.iter().enumerate() {
        let Some(script) = &table.values else {
            scope.tables.push(BTreeSet::new());
            continue;
        };
        let same = (script.sql.as_str(), format!("{:?}", table.partition_types));
        let values = match known.get(&same) {
            Some(values) => values.clone(),
            None => evaluate(connection, publication, index, holder)?,
        };
        known.insert(same, values.clone());
        scope.tables.push(values);
    }
    Ok(scope)
}

fn evaluate(
    connection: &Connection,
    publication: &Publication,
    index: usize,
    holder: &Holder<'_>,
) -> Result<BTreeSet<Vec<u8>>, CentreError> {
    let table = &publication.tables[index];
    let Some(script) = &table.values else {
        return Ok(BTreeSet::new());
    };
    let running = |error: rusqlite::Error| match failure("running a values query")(error) {
        // Its own fault and not the list's in which it is run.
        CentreError::Refused {
            retry: false,
            message,
            ..
        } => CentreError::Configuration {
            message: format!(
                "the values query of {:?} fails: {message}",
                publication.schema.tables[index].name
            ),
            hint: "correct the query, or the data that it reads".into(),
        },
        other => other,
    };
    let parameters = script.parameters.iter().map(|&name| match name {
        "username" => holder.user.to_owned(),
        "remote_id" => holder.remote_id.to_string(),
        _ => publication.schema.name.clone(),
    });
    let mut statement = connection.prepare_cached(&script.sql).map_err(running)?;
    let mut rows = statement
        .query(params_from_iter(parameters))
        .map_err(running)?;
    let mut values = BTreeSet::new();
    while let Some(row) = rows.next().map_err(running)? {
        let mut partition = Vec::with_capacity(table.partition_types.len());
        for (position, &column_type) in table.partition_types.iter().enumerate() {
            let stored = row.get_ref(position).map_err(running)?;
            let value = types::coerce(column_type, stored).ok_or_else(|| {
                CentreError::Configuration {
                    message: format!(
                        "the values query of {:?} yields {:.40}, which is no {column_type:?} as {:?} is",
                        publication.schema.tables[index].name,
                        types::read(column_type, stored).to_string(),
                        table.partition_names[position],
                    ),
                    hint: "correct the query, or the data that it reads".into(),
                }
            })?;
            partition.push(types::settled(column_type, value));
        }
        // NULL is in no partition.
        if !partition.contains(&Datum::Null) {
            values.insert(types::pack_exact(&table.partition_types, &partition));
        }
    }
    Ok(values)
}

/// What a checkpoint says of each table of the publication as it is deployed now.
pub(super) struct Presented<'a> {
    pub(super) watermark: Watermark,
    checkpoint: &'a Checkpoint,
}

impl<'a> Presented<'a> {
    /// Understands a checkpoint; `None` if another adapter wrote it.
    pub(super) fn of(checkpoint: &'a Checkpoint) -> Option<Presented<'a>> {
        let watermark = Watermark::decode(checkpoint.watermark.as_slice()).ok()?;
        let fits = watermark.tables.len() == checkpoint.scope.tables.len();
        fits.then_some(Presented {
            watermark,
            checkpoint,
        })
    }

    /// The table's place in the checkpoint, if it was published then with the same
    /// partition columns.
    pub(super) fn place(&self, table: &Compiled) -> Option<usize> {
        let mut tables = self.watermark.tables.iter();
        tables.position(|position| position.table == table.deployed.id)
    }

    /// The partitions that the remote was given of a table.
    pub(super) fn partitions(&self, table: &Compiled) -> Option<&'a BTreeSet<Vec<u8>>> {
        self.place(table)
            .map(|place| &self.checkpoint.scope.tables[place])
    }
}

/// What a checkpoint says of each table of the publication.
pub(super) fn held<'c>(
    publication: &Publication,
    checkpoint: Option<&'c Checkpoint>,
) -> Vec<HeldPartitions<'c>> {
    let presented = checkpoint.and_then(Presented::of);
    let tables = publication.tables.iter();
    tables
        .map(|table| presented.as_ref()?.partitions(table))
        .collect()
}
