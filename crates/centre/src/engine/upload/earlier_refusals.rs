//! The rows of a remote that were refused in earlier uploads, and that nobody has settled.
//!
//! Before the rows of an upload are written, [`find_open_parents`] reads those to which others may
//! refer. When they are in, [`close_answered`] closes those of which the upload says something: they
//! were written again and are taken, or have lost, or were given up. Nobody has to see to them any
//! more.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value as Json};

use tidewater_protocol::message::{ForgottenRefusal, GivenUp};
use tidewater_protocol::{Code, Op, PublicationSchema, RemoteId};

use super::dependent_refusals::{RefusedParent, RefusedParents};
use super::foreign_keys::PublishedForeignKey;
use super::incoming_rows::{IncomingTable, UploadedImages};
use super::{UploadRecords, row_json, text};
use crate::engine::connection::DatabaseConnection;
use crate::engine::refusals;
use crate::engine::sql::served_table::TableAdapter;
use crate::engine::sql::system::refusals as sql;
use crate::engine::upload::row_keys::UploadedTable;
use crate::error::CentreError;
use crate::records::{RefusalEnd, RefusalOutcome};
use crate::upload::SyncUpload;

/// So many statements go together.
const AT_ONCE: usize = 500;

type TableAndKey = (String, String);

/// The attempts at rows of a remote that nobody has settled, by table and key.
pub(super) type Open = HashMap<TableAndKey, Vec<i64>>;

/// Closes what was refused before of rows that this upload has brought in, or gives up, for which
/// `records` are what it leaves for people. Gives what is left.
pub(super) async fn close_answered<T: TableAdapter>(
    connection: &mut impl DatabaseConnection,
    upload: &SyncUpload,
    schema: &PublicationSchema,
    tables: &[IncomingTable<'_, T>],
    records: &UploadRecords,
) -> Result<Open, CentreError> {
    let id = upload.context.remote_id;
    let select = sql::list_of_remote(id, &upload.publication);
    let answer = connection
        .run_one("looking for what was refused before", select)
        .await?;
    let mut open = Open::new();
    let mut given_up: HashMap<TableAndKey, Vec<i64>> = HashMap::new();
    let told = upload.given_up.iter();
    let told: HashMap<(&str, &str), u64> = told
        .map(|it| ((&*it.table, &*it.key), it.sequence))
        .collect();
    for row in &answer.rows {
        let (id, sequence): (i64, u64) = (row.get(0)?, row.get(4)?);
        let key: TableAndKey = (row.get(1)?, row.get(2)?);
        let until = told.get(&(&*key.0, &*key.1));
        if until.is_some_and(|until| sequence <= *until) {
            given_up.entry(key).or_default().push(id);
            continue;
        }
        // Of what is not published any more nothing can be taken.
        if row.get::<String>(3)? == Code::RowNotPublished.name() {
            continue;
        }
        open.entry(key).or_default().push(id);
    }
    if open.is_empty() && given_up.is_empty() {
        return Ok(open);
    }
    let mut closed = Vec::new();
    let end = |outcome| RefusalEnd {
        at_ms: upload.context.now_ms,
        by: upload.context.user.clone(),
        outcome,
        row: None,
        reason: None,
    };
    let ends = given_up.into_values();
    closed.extend(ends.map(|ids| (ids, end(RefusalOutcome::GivenUp))));
    let refused = records.refused.iter().map(|it| (&*it.table, &*it.key));
    let refused: HashSet<(&str, &str)> = refused.collect();
    let lost = records.conflicts.iter().map(|it| (&*it.table, &*it.key));
    let lost: HashSet<(&str, &str)> = lost.collect();
    for incoming in tables {
        if open.is_empty() {
            break;
        }
        let table = &schema.tables[incoming.index];
        let mut taken = |uploaded: &UploadedImages<'_, '_>| {
            let key = row_json::key(uploaded.key);
            let row = (&*table.name, &*key);
            if refused.contains(&row) {
                return;
            }
            let outcome = match lost.contains(&row) {
                true => RefusalOutcome::Lost,
                false => RefusalOutcome::Taken,
            };
            let new = uploaded.new.map(|new| {
                let key = table.key.iter().map(|&index| new[index]);
                row_json::key(&key.collect::<Vec<_>>())
            });
            for key in new.into_iter().chain([key]) {
                let ids = open.remove(&(text(&table.name), key));
                closed.extend(ids.map(|ids| (ids, end(outcome))));
            }
        };
        incoming.each(|_, row| {
            incoming.with_images(row, &mut taken);
            Ok(())
        })?;
    }
    for some in closed.chunks(AT_ONCE) {
        let what = "closing what was refused before";
        connection
            .flight(what, &refusals::move_to_settled(some))
            .await?;
    }
    Ok(open)
}

/// A remote of which inserts were refused, and what it says of that itself.
pub(super) struct RemoteRefusals<'u> {
    pub(super) remote_id: RemoteId,
    pub(super) publication: &'u str,
    /// What its user has given up since.
    pub(super) given_up: &'u [GivenUp],
    /// What the centre may have forgotten.
    pub(super) forgotten: &'u [ForgottenRefusal],
}

/// The rows of which the remote was told that their inserts are refused, as far as nobody has settled
/// that, the user has not given them up, and the upload does not have them once more: by the values by
/// which others refer to them. Those that a restored centre has forgotten the remote tells.
pub(super) async fn find_open_parents(
    connection: &mut impl DatabaseConnection,
    of: &RemoteRefusals<'_>,
    schema: &PublicationSchema,
    foreign_keys: &[PublishedForeignKey],
    uploaded: &[UploadedTable<'_>],
) -> Result<RefusedParents, CentreError> {
    let select = sql::list_inserts_of_remote(of.remote_id, of.publication);
    let what = "looking for refused rows to which others may refer";
    let answer = connection.run_one(what, select).await?;
    let mut refused = RefusedParents::new();
    for it in of.forgotten {
        add_parent(
            schema,
            foreign_keys,
            (&it.table, &it.key, &it.values),
            &mut refused,
        );
    }
    for row in &answer.rows {
        let (name, key, values): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let (sequence, code): (u64, String) = (row.get(3)?, row.get(4)?);
        // The row has left the remote: what it refers to by this key is another one.
        if [Code::RowOutOfScope, Code::RowNotPublished]
            .iter()
            .any(|it| it.name() == code)
        {
            continue;
        }
        let mut told = of.given_up.iter();
        if told.any(|it| it.table == name && it.key == key && sequence <= it.sequence) {
            continue;
        }
        add_parent(schema, foreign_keys, (&name, &key, &values), &mut refused);
    }
    if refused.is_empty() {
        return Ok(refused);
    }
    for it in uploaded {
        it.upload.each_row(&it.map.shape, |row, op| {
            if op == Op::Delete {
                return;
            }
            for (number, foreign_key) in foreign_keys
                .iter()
                .enumerate()
                .filter(|foreign_key| foreign_key.1.parent == it.index)
            {
                if let Some(referred) = foreign_key.referred(it.map, &row.new) {
                    refused.remove(&(number, referred));
                }
            }
        })?;
    }
    Ok(refused)
}

/// Adds a refused row, its table by name, by each value by which others refer to it.
fn add_parent(
    schema: &PublicationSchema,
    foreign_keys: &[PublishedForeignKey],
    (name, key, values): (&str, &str, &str),
    refused: &mut RefusedParents,
) {
    let mut tables = schema.tables.iter();
    let Some(table) = tables.position(|it| text(&it.name) == name) else {
        return;
    };
    let Ok(values) = row_json::read(&schema.tables[table], values) else {
        return;
    };
    for (number, foreign_key) in foreign_keys
        .iter()
        .enumerate()
        .filter(|it| it.1.parent == table)
    {
        if let Some(referred) = foreign_key.referred_value(&values.values) {
            let key = key.to_owned();
            refused.insert((number, referred), RefusedParent { table, key });
        }
    }
}

/// Names the parents of rows that are refused because nothing is there that they refer to, and
/// whose parents were refused earlier: these have to go first.
pub(super) fn name_parents(schema: &PublicationSchema, open: &Open, records: &mut UploadRecords) {
    if open.is_empty() {
        return;
    }
    let refused = records.refused.iter_mut();
    let children = refused.filter(|it| it.code == Code::RowForeignKey && it.parent.is_none());
    for child in children {
        let Some(table) = schema.table(&child.table) else {
            continue;
        };
        let Ok(row) = serde_json::from_str::<Map<String, Json>>(&child.row) else {
            continue;
        };
        let parents = table.foreign_keys.iter().filter_map(|key| {
            let parent = schema.table(&key.parent)?;
            let names = parent.key_columns().map(|it| &it.name);
            if !names.eq(&key.parent_columns) {
                return None;
            }
            let values = key.columns.iter();
            let values = values.map(|&at| row.get(&table.columns[at].name).cloned());
            let key = Json::Array(values.collect::<Option<_>>()?).to_string();
            Some((text(&parent.name), key))
        });
        child.parent = parents.into_iter().find(|it| open.contains_key(it));
    }
}
