//! Numbers for the rows that remotes insert: who has which.
//!
//! They are taken from what numbers the rows in the centre, in the transaction that writes down
//! who has them. What an answer carries that never arrives is nobody's: to hand it out again
//! would give it to two, if it did arrive.

use tidewater_protocol::message::NumberBlock;

use super::connection::{DatabaseConnection, StatementResult, SystemStatement, TransactionMode};
use super::sql::system::number_blocks;
use crate::engine::change_tracking::{ChangeTracking, NumberBlockRequest};
use crate::engine::served_publications::ServedPublications;
use crate::engine::sql::served_table::ServedTable;
use crate::error::CentreError;
use crate::records::{BlockRecord, NumbersRequest, NumbersStatus};

/// What has to be asked to tell what was handed out; [`told`] reads the answers.
pub(super) fn ask() -> [SystemStatement; 2] {
    [number_blocks::count(), number_blocks::list_last()]
}

/// What was handed out, by table, and the last blocks of it.
pub(super) fn told(
    tables: &StatementResult,
    blocks: &StatementResult,
) -> Result<(Vec<NumbersStatus>, Vec<BlockRecord>), CentreError> {
    let tables = tables.rows.iter().map(|row| {
        Ok(NumbersStatus {
            table: row.get(0)?,
            column: row.get(1)?,
            count: row.get(2)?,
            highest: row.get(3)?,
            remotes: row.get(4)?,
        })
    });
    let blocks = blocks.rows.iter().map(|row| {
        Ok(BlockRecord {
            table: row.get(0)?,
            remote_id: row.get(1)?,
            user: row.get(2)?,
            first: row.get(3)?,
            last: row.get(4)?,
            at_ms: row.get(5)?,
        })
    });
    let tables: Result<_, CentreError> = tables.collect();
    let blocks: Result<_, CentreError> = blocks.collect();
    Ok((tables?, blocks?))
}

/// See [`crate::Worker::hand_out`].
pub(super) async fn hand_out<T: ChangeTracking>(
    connection: &mut T::Connection,
    served: &ServedPublications<T::Tables>,
    wanted: &NumbersRequest,
) -> Result<Vec<NumberBlock>, CentreError> {
    let publication = served.publication(&wanted.publication)?;
    let tables = publication.schema.tables.iter().zip(&publication.tables);
    let mut blocks = Vec::new();
    for (table, of_centre) in tables {
        let identity = table.identity.as_ref();
        let Some(identity) = identity.filter(|_| wanted.tables.contains(&table.name)) else {
            continue;
        };
        // A table that has no numbers left must not keep the others from theirs.
        connection.begin(TransactionMode::WRITING).await?;
        let column = &table.columns[identity.column].name;
        match hand_out_of::<T>(connection, wanted, of_centre, (column, identity.block)).await {
            Ok(taken) => {
                connection.commit().await?;
                blocks.extend(taken.into_iter().map(|(first, last)| NumberBlock {
                    table: table.name.clone(),
                    first,
                    last,
                }));
            }
            Err(error) => {
                connection.rollback().await?;
                tracing::error!(table = table.name, %error, "numbers cannot be handed out");
            }
        }
    }
    Ok(blocks)
}

/// Takes `count` numbers of a column, or as many as there are, and notes who has them.
async fn hand_out_of<T: ChangeTracking>(
    connection: &mut T::Connection,
    wanted: &NumbersRequest,
    of_centre: &ServedTable<T::Tables>,
    (column, count): (&str, u32),
) -> Result<Vec<(i64, i64)>, CentreError> {
    let name = &*of_centre.title;
    let highest = number_blocks::read_highest(name);
    let highest = connection
        .run_one("looking for what was handed out", highest)
        .await?;
    let highest = highest.rows.first().map(|row| row.get::<Option<i64>>(0));
    let asked = NumberBlockRequest {
        column,
        count,
        handed_out: highest.transpose()?.flatten().unwrap_or(0),
    };
    let taken = T::take_numbers(connection, asked, of_centre).await?;
    let notes = taken.iter();
    let notes = notes.map(|block| number_blocks::insert((name, column), wanted, *block));
    let notes: Vec<_> = notes.collect();
    connection.flight("handing out numbers", &notes).await?;
    Ok(taken)
}
