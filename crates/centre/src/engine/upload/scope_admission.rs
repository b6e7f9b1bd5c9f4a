//! By what rows of an upload are judged: the scope as it is now, and what the remote's checkpoint says.

use crate::engine::connection::DatabaseConnection as _;
use crate::engine::publication::Publication;
use crate::engine::scope::ScopeDifferences;
use crate::engine::sql::served_table::TableAdapter;
use crate::engine::upload::column_map::{AnnouncedColumns, UnpublishedRows};
use crate::engine::upload::upload_driver::UploadDriver;
use crate::engine::upload::upload_writer::UploadWriter;
use crate::engine::upload::{Admission, Serials};
use crate::engine::watermark::held;
use crate::scope::Scope;
use crate::upload::SyncUpload;

use crate::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

/// Rows of an older schema without what tells who may write them cannot be judged.
pub(super) fn judgeable<T: TableAdapter>(
    publication: &Publication<T>,
    announced: AnnouncedColumns,
) -> AnnouncedColumns {
    let AnnouncedColumns::Published(index, map) = announced else {
        return announced;
    };
    let rule = publication.writes[index].rule.as_ref();
    let mut columns = rule.iter().flat_map(|rule| &rule.columns);
    match columns.find(|&&column| map.sources[column].is_none()) {
        None => AnnouncedColumns::Published(index, map),
        Some(&column) => {
            let name = &publication.schema.tables[index].columns[column].name;
            AnnouncedColumns::Unpublished(UnpublishedRows {
                index: Some(index),
                shape: map.shape,
                reason: format!(
                    "the column {name:?} tells who may write the row now, and did not come with it"
                ),
            })
        }
    }
}

/// What the remote may write by a scope.
pub(super) async fn admission<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    publication: &Publication<R::Tables>,
    upload: &SyncUpload,
    serials: &Serials,
    scope: Scope,
) -> Result<Admission> {
    let checkpoint = upload.checkpoint.as_ref();
    let held = held(&publication.rules, checkpoint);
    let mut differences = ScopeDifferences::new(scope.rules.iter().zip(held));
    loop {
        let asked = differences.ask();
        if asked.is_empty() {
            break;
        }
        let what = "reading a scope that was handed out";
        let answers = rows.connection().flight(what, &asked).await?;
        differences.answer(&answers)?;
    }
    let found = differences.found();
    let rules = &publication.rules;
    Ok(Admission::new(rules, checkpoint, serials, found, scope))
}
