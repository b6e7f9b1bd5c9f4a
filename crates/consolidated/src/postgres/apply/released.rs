//! What rows release while others refer to it; see [`crate::released`].

use std::collections::HashSet;

use tokio_postgres::types::ToSql;

use tidewater_protocol::{Op, pack};

use super::incoming::{Incoming, RowRef};
use super::statements::{Statements, with_uploaded};
use super::{One, sql};
use crate::error::CentreError;
use crate::postgres::connection::{Connection, refused};
use crate::released;

/// The most values that are looked for by one statement.
const MOST_VALUES: usize = 2_000;

/// A row, and the values of it that were referred to when it was about to be deleted or updated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Released {
    /// Its table's place in the upload.
    place: usize,
    at: RowRef,
    /// Which of the table's acting keys.
    acting: usize,
    /// As text.
    values: Vec<Option<String>>,
    /// As they were uploaded.
    packed: Option<Vec<u8>>,
    /// The row's key, as text.
    key: Vec<Option<String>>,
}

impl Released {
    /// Whether it is about one of these rows, which are in order, of the table in this place.
    pub(super) fn is_of(&self, place: usize, rows: &[RowRef]) -> bool {
        self.place == place && rows.binary_search(&self.at).is_ok()
    }
}

impl Statements<'_, '_, '_, '_> {
    /// Notes what rows are about to release.
    pub(super) async fn note_released(
        &mut self,
        op: Op,
        rows: &[RowRef],
    ) -> Result<(), CentreError> {
        let incoming = self.incoming;
        let acting = incoming.table.acting.iter().enumerate();
        for (number, acting) in acting.filter(|(_, it)| it.acts_on(op)) {
            let releasing = match op {
                Op::Update => changing(incoming, rows, &acting.columns)?,
                _ => rows.to_vec(),
            };
            // What they released when they were tried before, they did not.
            let again: HashSet<RowRef> = releasing.iter().copied().collect();
            self.released.retain(|it| {
                (it.place, it.acting) != (incoming.place, number) || !again.contains(&it.at)
            });
            if releasing.is_empty() {
                continue;
            }
            let text = sql::referred(incoming, acting);
            let statement = self.connection.prepare(&text, &[]).await?;
            for rows in releasing.chunks(MOST_VALUES) {
                let arrays = self.arrays(&sql::keys(incoming), rows)?;
                let parameters: Vec<&(dyn ToSql + Sync)> =
                    arrays.iter().map(|it| it as &(dyn ToSql + Sync)).collect();
                let found = self.connection.client().query(&statement, &parameters);
                let found = found
                    .await
                    .map_err(refused("looking for rows that refer to others"))?;
                // Ordinals count from 1.
                let places = found
                    .iter()
                    .map(|row| rows[row.get::<_, i64>(0) as usize - 1]);
                let places: Vec<RowRef> = places.collect();
                let table = &self.outcomes.schema().tables[incoming.index];
                incoming.rows(&places, |at, row| {
                    let values =
                        |columns| released::packed(table, columns, &incoming.map, &row.old);
                    self.released.push(Released {
                        place: incoming.place,
                        at: places[at],
                        acting: number,
                        values: found[at].get(1),
                        packed: match acting.is_published {
                            true => values(&acting.columns),
                            false => None,
                        },
                        key: found[at].get(2),
                    });
                    Ok(())
                })?;
            }
        }
        Ok(())
    }
}

impl One<'_> {
    /// Which rows have released values that others have now, or were to have. `gives_up`: all that
    /// have released anything.
    pub(super) async fn taken_again(
        &self,
        connection: &mut Connection,
        incoming: &[Incoming<'_>],
        released: &[Released],
        gives_up: bool,
    ) -> Result<Vec<(usize, RowRef)>, CentreError> {
        if gives_up {
            let all = released.iter().map(|of| (of.place, of.at));
            return Ok(all.collect());
        }
        let mut taken = Vec::new();
        for it in incoming {
            for (number, acting) in it.table.acting.iter().enumerate() {
                let mine = released.iter();
                let mine = mine.filter(|of| (of.place, of.acting) == (it.place, number));
                let mine: Vec<&Released> = mine.collect();
                if mine.is_empty() {
                    continue;
                }
                let table = &self.publication.schema.tables[it.index];
                let uploaded = incoming.iter().filter(|of| of.index == it.index);
                let uploaded = uploaded.map(Incoming::uploaded);
                let wanted = released::wanted(table, &acting.columns, uploaded)?;
                let text = sql::holders(it, acting);
                let statement = connection.prepare(&text, &[]).await?;
                for mine in mine.chunks(MOST_VALUES) {
                    let columns = (0..acting.values.len()).map(|at| {
                        let values = mine.iter().map(|of| of.values[at].as_deref());
                        values.collect::<Vec<_>>()
                    });
                    let keys = (0..it.table.key.len()).map(|at| {
                        let keys = mine.iter().map(|of| of.key[at].as_deref());
                        keys.collect::<Vec<_>>()
                    });
                    let texts: Vec<Vec<Option<&str>>> = columns.chain(keys).collect();
                    let parameters: Vec<&(dyn ToSql + Sync)> =
                        texts.iter().map(|it| it as &(dyn ToSql + Sync)).collect();
                    let found = connection.client().query(&statement, &parameters).await;
                    let found = found.map_err(refused("looking for values that were taken"))?;
                    let mut holders = vec![None; mine.len()];
                    for row in &found {
                        // Ordinals count from 1.
                        let at = row.get::<_, i64>(0) as usize - 1;
                        holders[at] = Some(row.get::<_, bool>(1));
                    }
                    for (of, is_another) in mine.iter().zip(holders) {
                        let is_wanted = || of.packed.as_ref().is_some_and(|it| wanted.contains(it));
                        // Who still has it himself has not released it.
                        if is_another.unwrap_or_else(is_wanted) {
                            taken.push((it.place, of.at));
                        }
                    }
                }
            }
        }
        Ok(taken)
    }
}

/// Those of some updates that change one of these columns.
fn changing(
    incoming: &Incoming<'_>,
    rows: &[RowRef],
    columns: &[usize],
) -> Result<Vec<RowRef>, CentreError> {
    let mut changing = Vec::new();
    incoming.rows(rows, |at, row| {
        with_uploaded(incoming, row, |uploaded| {
            let (Some(old), Some(new)) = (uploaded.old, uploaded.new) else {
                return;
            };
            if columns.iter().any(|&it| !pack::same(&old[it], &new[it])) {
                changing.push(rows[at]);
            }
        });
        Ok(())
    })?;
    Ok(changing)
}
