//! What was refused before a restored or copied file got an identity of its own.
//!
//! The centre knows by the remote's id which inserts it has refused, and refuses with them what
//! refers to their keys. It has refused nothing of the new id yet: what the file adds under a refused
//! row would go to the other row that has the key in the centre. So the refused inserts go up again.

use rusqlite::{Connection, params};

use crate::database::SubscriptionState;
use crate::database::transactions;
use crate::error::{Doing, RemoteError};

const DOING: &str = "taking refused rows to a new identity";

/// Has the refused inserts of all subscriptions go up again, and notes that the centre may have had
/// all refused rows from another copy of the file. An upload under way goes up with the next one: what
/// refers to a refused insert must not go before it.
pub(crate) fn take_along(
    connection: &Connection,
    subscriptions: &[SubscriptionState],
) -> Result<(), RemoteError> {
    let run = |sql: &str| connection.execute(sql, []).doing(DOING);
    run("UPDATE tidewater_refused SET copied = 1")?;
    let sent_again = run(
        "UPDATE tidewater_refused SET again = 1 WHERE operation = 'insert' AND row_values IS NULL",
    )?;
    if sent_again == 0 {
        return Ok(());
    }
    for subscription in subscriptions {
        let (Some(schema), Some(taken)) = (&subscription.schema, subscription.taken_generation)
        else {
            continue;
        };
        let current = subscription.generation;
        // Transactions of the application go up one by one, and what was refused before them.
        if !subscription.is_transactional() {
            transactions::unite(connection, schema, (taken - 1, current))?;
            connection
                .execute(
                    "UPDATE tidewater_settled SET generation = ?3 \
                     WHERE publication = ?1 AND generation = ?2",
                    params![subscription.publication, taken, current],
                )
                .doing(DOING)?;
        }
        connection
            .execute(
                "UPDATE tidewater_subscription SET taken_generation = NULL, \
                 taken_upload_id = NULL WHERE id = ?1",
                [subscription.id],
            )
            .doing(DOING)?;
    }
    Ok(())
}
