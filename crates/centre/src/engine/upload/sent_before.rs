//! What of an upload the centre may have already, as part of another one: of such a change nobody but
//! the operator can tell whether a sum, a script or a handler would count it twice.
//!
//! - A file that is a copy, or was restored, sends what its original may have sent.
//! - A remote sends again what was refused of it and an operator has written meanwhile.
//! - A branch that was restored is given back what it had brought to its headquarters before, and what
//!   may have come down again from there.

use tidewater_protocol::{Datum, PublicationSchema, Table};

use super::upload_driver::UploadDriver;
use super::upload_writer::UploadWriter;
use super::{row_json, text};
use crate::engine::connection::DatabaseConnection;
use crate::engine::publication::Publication;
use crate::engine::sql::system::settled_refusals;
use crate::engine::upload::row_json::datum;
use crate::engine::upload::row_keys::{RowKeys, pack_key};
use crate::error::CentreError;
use crate::upload::SyncUpload;

/// The changes of an upload that the centre may have already.
#[derive(Debug, Default)]
pub(super) struct SentBefore {
    /// All of them.
    pub(super) all: bool,
    /// Those of these rows.
    rows: RowKeys,
}

impl SentBefore {
    /// Looks for them.
    pub(super) async fn find<R: UploadDriver>(
        rows: &mut UploadWriter<R>,
        upload: &SyncUpload,
        publication: &Publication<R::Tables>,
    ) -> Result<SentBefore, CentreError> {
        let all = upload.copied || upload.given_back && rows.has_headquarters()?;
        let mut resolvers = publication.resolvers.iter();
        let sums = resolvers.any(|it| it.sums().next().is_some());
        Ok(SentBefore {
            all,
            rows: match sums && !all {
                true => sent_by_operators(rows.connection(), upload, &publication.schema).await?,
                false => RowKeys::new(),
            },
        })
    }

    /// Whether the change of a row is one of them.
    pub(super) fn has(&self, index: usize, table: &Table, key: &[Datum<'_>]) -> bool {
        let is_sent = || self.rows.contains(&(index, pack_key(table, key)));
        self.all || !self.rows.is_empty() && is_sent()
    }
}

/// Rows that an operator has sent again for the remote, of those of which the upload has what was
/// refused before: it may be in already.
async fn sent_by_operators(
    connection: &mut impl DatabaseConnection,
    upload: &SyncUpload,
    schema: &PublicationSchema,
) -> Result<RowKeys, CentreError> {
    let mut sent = RowKeys::new();
    let Some(first) = upload.retried.iter().min() else {
        return Ok(sent);
    };
    let (id, publication) = (upload.context.remote_id, &upload.publication);
    let select = settled_refusals::list_sent_again(id, publication, *first);
    let what = "looking for rows that operators have sent again";
    let answer = connection.run_one(what, select).await?;
    for row in &answer.rows {
        let (name, key, sequence): (String, String, u64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        if *first > 0 && !upload.retried.contains(&sequence) {
            continue;
        }
        let mut tables = schema.tables.iter().enumerate();
        let found = tables.find(|(_, it)| text(&it.name) == name);
        if let Some((index, table)) = found
            && let Some(key) = row_json::read_key(table, &key)
        {
            let key = key.iter();
            let key: Vec<Datum<'_>> = key
                .map(|(column, value)| datum(table, *column, value))
                .collect();
            sent.insert((index, pack_key(table, &key)));
        }
    }
    Ok(sent)
}
