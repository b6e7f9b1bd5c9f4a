//! Refused inserts of which only the values are left, and which the centre may have forgotten.
//!
//! A restored centre refuses an insert that is given back where somebody else's row has the key by
//! then. The remote lists its values, and has nothing left that could go up again. What refers to the
//! insert is refused by the centre as long as it remembers the refusal. A centre that is restored once
//! more does not, and would take these rows for children of the other row: so every upload tells it.

use rusqlite::{Connection, params};
use tidewater_protocol::message::{ForgottenRefusal, MAX_FORGOTTEN_REFUSALS};
use tidewater_protocol::{Code, PublicationSchema};

use super::settled_changes::{MOST_BYTES, told_size};
use crate::database::row_values::kept_values;
use crate::database::{RemoteDatabase, SubscriptionState};
use crate::error::{ErrorContext, RemoteError};

impl RemoteDatabase {
    /// What an upload tells of refused inserts that the centre may have forgotten, the newest first.
    pub(crate) fn forgotten_refusals(
        &self,
        subscription: &SubscriptionState,
    ) -> Result<Vec<ForgottenRefusal>, RemoteError> {
        match &subscription.schema {
            Some(schema) if subscription.any_refused => {
                read(&self.connection, &subscription.publication, schema)
                    .doing("reading refused rows that the centre may have forgotten")
            }
            _ => Ok(Vec::new()),
        }
    }
}

fn read(
    connection: &Connection,
    publication: &str,
    schema: &PublicationSchema,
) -> rusqlite::Result<Vec<ForgottenRefusal>> {
    // Under these keys the row that the user's other rows refer to is the centre's.
    let of_centre = [
        Code::RowOutOfScope,
        Code::RowNotPublished,
        Code::RowUntracked,
    ]
    .map(|it| it.name());
    let mut statement = connection.prepare_cached(
        "SELECT table_name, key, row_values FROM tidewater_refused WHERE publication = ?1 \
         AND again = 1 AND operation = 'insert' AND row_values IS NOT NULL \
         AND code NOT IN (?2, ?3, ?4) ORDER BY id DESC",
    )?;
    let parameters = params![publication, of_centre[0], of_centre[1], of_centre[2]];
    let mut rows = statement.query(parameters)?;
    let (mut told, mut bytes) = (Vec::new(), 0);
    while let Some(row) = rows.next()?
        && told.len() < MAX_FORGOTTEN_REFUSALS
    {
        let (table, key, values): (String, String, String) =
            (row.get(0)?, row.get(1)?, row.get(2)?);
        let tables = schema.tables.iter();
        let referred = tables.flat_map(|it| &it.foreign_keys);
        let referred = referred.filter(|it| it.parent == table);
        let referred: Vec<&String> = referred.flat_map(|it| &it.parent_columns).collect();
        let mut values = kept_values(&values).unwrap_or_default();
        values.retain(|name, _| referred.contains(&name));
        if values.is_empty() {
            continue;
        }
        let values = serde_json::Value::Object(values).to_string();
        let size = told_size(&[&table, &key, &values]);
        // One that no message has room for does not keep others from being told.
        if size > MOST_BYTES {
            continue;
        }
        if bytes + size > MOST_BYTES {
            break;
        }
        bytes += size;
        told.push(ForgottenRefusal { table, key, values });
    }
    Ok(told)
}
