//! What an operator writes: a row that he chooses of a conflict, or a refused row that he has sent
//! again. It goes the way of an upload: the same scripts, handlers and resolvers decide about it, and
//! so do keys and checks. But it is nobody's upload: no number is taken, and no scope and no rights
//! of a remote count.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value as Json};

use tidewater_protocol::message::TableBegin;
use tidewater_protocol::{
    Code, ColumnType, Datum, Op, RemoteId, RowShape, RowsWriter, Table, UploadId, Value, pack,
};

use super::claiming::lock_tables;
use super::column_map::ColumnMap;
use super::handler_decisions::JudgedUpload;
use super::incoming_rows::IncomingTable;
use super::row_batch::CentralRow;
use super::upload_driver::UploadDriver;
use super::upload_writer::UploadWriter;
use super::{Admission, Serials, UploadRecords, row_json};
use crate::context::{Parameters, SyncContext};
use crate::engine::connection::DatabaseConnection;
use crate::engine::exact::canonical;
use crate::engine::publication::Publication;
use crate::engine::records::claims_of;
use crate::engine::scripts::{self, ScriptEnvironment};
use crate::engine::sql::row_statements::RowImage;
use crate::engine::sql::served_table::TableAdapter;
use crate::engine::upload::column_map::AnnouncedColumns;
use crate::engine::upload::key_cascades::KeyCascades;
use crate::engine::upload::row_json::datum;
use crate::engine::upload::sent_before::SentBefore;
use crate::engine::upload::upload_run::{UploadRun, WritePurpose};
use crate::error::CentreError;
use crate::records::ConflictOutcome;
use crate::script_notes::ScriptNotes;
use crate::settling::{Judgement, SettleOutcome, UploadToJudge};
use crate::upload::{SyncUpload, UploadChunk, UploadTable};

type Result<T> = std::result::Result<T, CentreError>;

/// Values by their column.
pub(super) type Values = Vec<(usize, Value)>;

pub(super) fn refused(code: Code, reason: impl Into<String>) -> SettleOutcome {
    SettleOutcome::Refused {
        code,
        reason: reason.into(),
    }
}

/// What scripts of a sync go by, as it is kept with a row that an operator may send again: a JSON
/// object of what the remote has set, what scripts have, and whom they took the user for.
pub(super) fn sync_notes(context: &SyncContext, publication: &str) -> String {
    let parameters = context.parameters.get(publication);
    let variables = context.scripts.variables(publication);
    let username = context.scripts.fact(publication, "username");
    if parameters.is_none_or(BTreeMap::is_empty) && variables.is_empty() && username.is_none() {
        return String::new();
    }
    let json = |value: &Value| match value {
        Value::Integer(integer) => Json::from(*integer),
        Value::Real(real) => Json::from(*real),
        Value::Text(text) => Json::from(text.as_str()),
        Value::Null | Value::Blob(_) => Json::Null,
    };
    let mut notes = Map::new();
    notes.insert(
        "parameters".into(),
        Json::from_iter(
            parameters
                .into_iter()
                .flatten()
                .map(|(name, value)| (name.clone(), Json::from(value.as_str()))),
        ),
    );
    let variables = variables.iter();
    let variables = variables.map(|(name, value)| (name.clone(), json(value)));
    notes.insert("variables".into(), Json::from_iter(variables));
    if let Some(username) = &username {
        notes.insert("username".into(), json(username));
    }
    Json::Object(notes).to_string().replace('\0', "\u{fffd}")
}

/// Whose row it was, and when it is written again.
pub(super) struct RowSender<'s> {
    pub(super) user: &'s str,
    pub(super) remote_id: RemoteId,
    pub(super) publication: &'s str,
    /// As [`sync_notes`] has made them.
    pub(super) notes: String,
    /// The number of the record.
    pub(super) record: i64,
    pub(super) now_ms: i64,
}

impl RowSender<'_> {
    /// The context of a sync of theirs.
    async fn context(&self, connection: &mut impl DatabaseConnection) -> Result<SyncContext> {
        let notes: Map<String, Json> = serde_json::from_str(&self.notes).unwrap_or_default();
        let object = |name: &str| notes.get(name).and_then(Json::as_object).cloned();
        let value = |json: &Json| match json {
            Json::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(integer), _) => Value::Integer(integer),
                (None, real) => real.map_or(Value::Null, Value::Real),
            },
            Json::String(text) => Value::Text(text.clone()),
            _ => Value::Null,
        };
        let scripts = ScriptNotes::default();
        for (name, json) in object("variables").iter().flatten() {
            scripts.set_variable(self.publication, name, value(json));
        }
        if let Some(username) = notes.get("username") {
            scripts.set_fact(self.publication, "username", value(username));
        }
        let parameters = object("parameters").into_iter().flatten();
        let parameters = parameters.filter_map(|(name, json)| {
            let text = json.as_str()?.to_owned();
            Some((name, text))
        });
        Ok(SyncContext {
            user: self.user.to_owned(),
            remote_id: self.remote_id,
            now_ms: self.now_ms,
            parameters: Arc::new(Parameters::from([(
                self.publication.to_owned(),
                parameters.collect(),
            )])),
            claims: claims_of(connection, self.user).await?,
            scripts,
            given: None,
        })
    }

    /// Tells one attempt from another, so that handlers are asked about each.
    fn upload_id(&self) -> UploadId {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.record.to_be_bytes());
        id[8..].copy_from_slice(&self.now_ms.to_be_bytes());
        UploadId(id)
    }
}

/// A table of a publication that is served.
pub(super) struct ServedTablePlace<T: TableAdapter> {
    pub(super) publication: Arc<Publication<T>>,
    pub(super) index: usize,
}

impl<T: TableAdapter> ServedTablePlace<T> {
    /// # Errors
    /// The publication is not served. The reason, if it has no such table any more.
    pub(super) fn find<R: UploadDriver<Tables = T>>(
        rows: &UploadWriter<R>,
        publication: &str,
        table: &str,
    ) -> Result<std::result::Result<ServedTablePlace<T>, SettleOutcome>> {
        let publication = rows.publication(publication)?;
        let mut tables = publication.schema.tables.iter();
        Ok(match tables.position(|it| it.name == table) {
            Some(index) => Ok(ServedTablePlace { publication, index }),
            None => {
                let reason = format!("the table {table:?} is not published any more");
                Err(refused(Code::RowNotPublished, reason))
            }
        })
    }

    pub(super) fn table(&self) -> &Table {
        &self.publication.schema.tables[self.index]
    }

    fn types(&self) -> &[ColumnType] {
        &self.publication.row_types[self.index]
    }

    /// The published values of a row that was found; `None` if there is none.
    pub(super) fn values<'f>(&self, found: &'f CentralRowRead) -> Result<Option<Vec<Datum<'f>>>> {
        let values = found
            .0
            .as_ref()
            .map(|it| it.values(self.types()))
            .transpose()?;
        Ok(values.map(|mut values| {
            values.truncate(self.table().columns.len());
            values
        }))
    }

    /// The same as JSON.
    pub(super) fn json(&self, found: &CentralRowRead) -> Result<Option<String>> {
        let values = self.values(found)?;
        Ok(values.map(|row| whole(self.table(), &row)))
    }
}

impl<T: TableAdapter> ServedTablePlace<T> {
    /// What the centre has under a key, packed.
    ///
    /// # Errors
    /// The database failed. The reason, if the row cannot be read as a whole.
    pub(super) async fn read<R: UploadDriver<Tables = T>>(
        &self,
        rows: &mut UploadWriter<R>,
        key: &Values,
    ) -> Result<std::result::Result<CentralRowRead, SettleOutcome>> {
        let probe = OperatorChange::probe(self.table(), key)?;
        let probed = IncomingTable::of_ours(&self.publication, &probe.upload, 0)?.unrestricted();
        lock_tables(rows, std::slice::from_ref(&probed)).await?;
        let at = probed.find_inserts();
        let found = rows.find(&probed, Op::Insert, &at, RowImage::Old).await?;
        let found = found.into_iter().flatten().next().map(|it| it.central);
        if found.as_ref().is_some_and(|it| !it.is_whole) {
            let reason = "the row has a value that is too long to be synced";
            return Ok(Err(refused(Code::RowBadValue, reason)));
        }
        Ok(Ok(CentralRowRead(found)))
    }
}

/// A row of the centre, if there is one.
pub(super) struct CentralRowRead(Option<CentralRow>);

/// Whether a row is what is said of it, as far as that is published.
pub(super) fn is_so(table: &Table, said: Option<&Values>, central: Option<&[Datum<'_>]>) -> bool {
    match (said, central) {
        (None, None) => true,
        (Some(said), Some(central)) => said.iter().all(|(column, value)| {
            let said = datum(table, *column, value);
            pack::same(&canonical(said), &canonical(central[*column]))
        }),
        _ => false,
    }
}

pub(super) fn datums<'v>(table: &Table, values: &'v Values) -> Vec<Datum<'v>> {
    let values = values.iter();
    values
        .map(|(column, value)| datum(table, *column, value))
        .collect()
}

fn whole(table: &Table, row: &[Datum<'_>]) -> String {
    let names = table.columns.iter().map(|it| it.name.as_str());
    row_json::row(names, row)
}

/// What became of a change.
pub(super) enum OperatorOutcome {
    /// It is in, as far as its scripts and handlers want it to be.
    Taken,
    /// Handlers have to judge it, or to decide between it and what the centre has; or it is refused.
    Untaken(SettleOutcome),
    /// It lost against what the centre has.
    Lost,
}

/// Whether scripts of a table write the updates of a remote, or resolve its conflicts.
pub(super) async fn is_scripted<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    place: &ServedTablePlace<R::Tables>,
    sender: &RowSender<'_>,
) -> Result<bool> {
    let scripts = &place.publication.scripts;
    if scripts.is_empty() {
        return Ok(false);
    }
    let context = sender.context(rows.connection()).await?;
    let scripts = scripts::chosen(scripts, &context, sender.publication)?;
    let has = |event: &&str| {
        let of_table = scripts.as_ref().map(|it| it.of_table(place.index, event));
        of_table.flatten().is_some()
    };
    Ok(["upload_update"].iter().chain(&scripts::RESOLVING).any(has))
}

/// Sends one row the way of an upload, and keeps nothing of it if it is not taken.
pub(super) async fn send<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    place: &ServedTablePlace<R::Tables>,
    sender: &RowSender<'_>,
    change: OperatorChange,
    judgement: &Judgement,
    force: bool,
) -> Result<OperatorOutcome> {
    let publication = &*place.publication;
    let upload = SyncUpload {
        context: sender.context(rows.connection()).await?,
        publication: sender.publication.to_owned(),
        sequence: 0,
        upload_id: sender.upload_id(),
        checkpoint: None,
        given_back: false,
        copied: false,
        retried: Vec::new(),
        given_up: Vec::new(),
        forgotten_refusals: Vec::new(),
        tables: vec![change.upload],
        verdicts: judgement.verdicts.clone(),
        resolutions: judgement.resolutions.clone(),
    };
    if publication.handled[place.index].upload && upload.verdicts.is_empty() {
        let upload = UploadToJudge(Box::new(upload));
        return Ok(OperatorOutcome::Untaken(SettleOutcome::Unjudged { upload }));
    }
    let table = &upload.tables[0];
    let AnnouncedColumns::Published(index, map) =
        ColumnMap::find(&publication.schema, &table.begin)?
    else {
        return Err(CentreError::Internal {
            message: "a published table is not published".into(),
        });
    };
    let mut judged = JudgedUpload::default();
    judged.add(publication, &upload, 0, (index, &map))?;
    let (changed, decisions) = judged.into_decisions();
    let table = changed.get(&0).unwrap_or(table);
    let tables = [IncomingTable::new(publication, table, 0, index, map)?.unrestricted()];
    lock_tables(rows, &tables).await?;
    let uploaded: Vec<_> = tables.iter().map(IncomingTable::uploaded).collect();
    let key_cascades = KeyCascades::from_upload(&publication.schema, &uploaded)?;
    let (admission, serials) = (Admission::of_operator(), Serials::none());
    let sent_before = SentBefore::default();
    let mut run = UploadRun {
        rows,
        publication,
        upload: &upload,
        purpose: WritePurpose::Operator { force },
        serials: &serials,
        admission: &admission,
        tables: &tables,
        unpublished: &[],
        key_cascades: &key_cascades,
        decisions,
        handed_over: Vec::new(),
        leaves_to_download: false,
        sent_before: &sent_before,
        records: UploadRecords::default(),
        scripting: ScriptEnvironment::for_sync(
            &publication.scripts,
            &upload.context,
            sender.publication,
        )?,
    };
    run.handed_over = run.find_handed_over()?;
    run.prepare_session().await?;
    if let Err(contended) = run.apply_in_rounds().await? {
        let (rows, upload) = (contended, UploadToJudge(Box::new(upload.clone())));
        return Ok(OperatorOutcome::Untaken(SettleOutcome::Contended {
            upload,
            rows,
        }));
    }
    let records = std::mem::take(&mut run.records);
    if let Some(it) = records.refused.first() {
        return Ok(OperatorOutcome::Untaken(refused(
            it.code,
            it.reason.clone(),
        )));
    }
    let is_lost = |outcome| matches!(outcome, ConflictOutcome::Centre | ConflictOutcome::Parked);
    Ok(
        match records.conflicts.iter().any(|it| is_lost(it.outcome)) {
            true => OperatorOutcome::Lost,
            false => OperatorOutcome::Taken,
        },
    )
}

/// The key among the values of a row.
pub(super) fn key_of(table: &Table, row: Option<&Values>) -> Option<Values> {
    let of = |column: &usize| row?.iter().find(|it| it.0 == *column).cloned();
    table.key.iter().map(of).collect()
}

/// What has come of a change that was sent: `before`: what the centre had; `key`: where the row is to
/// be.
pub(super) async fn conclude<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    place: &ServedTablePlace<R::Tables>,
    sent: OperatorOutcome,
    (before, key): (&CentralRowRead, &Values),
    is_delete: bool,
) -> Result<SettleOutcome> {
    match sent {
        OperatorOutcome::Untaken(outcome) => return Ok(outcome),
        OperatorOutcome::Taken | OperatorOutcome::Lost => {}
    }
    let now = match place.read(rows, key).await? {
        Ok(now) => now,
        Err(outcome) => return Ok(outcome),
    };
    let row = place.json(&now)?;
    if let OperatorOutcome::Taken = sent {
        return Ok(SettleOutcome::settled(row));
    }
    Ok(match place.values(before)? == place.values(&now)? {
        false => SettleOutcome::Changed { row },
        true if is_delete => {
            let reason = "rows refer to it that would be deleted or changed with it, or a trigger \
                          or a rule of the database keeps it";
            refused(Code::RowForeignKey, reason)
        }
        true => {
            let reason = "a trigger or a rule of the database keeps the row as it is";
            refused(Code::RowConstraint, reason)
        }
    })
}

/// One row, as it would be uploaded.
pub(super) struct OperatorChange {
    pub(super) upload: UploadTable,
}

impl OperatorChange {
    /// Packs a row of all the columns.
    fn for_table(table: &Table, pack: impl FnOnce(&mut RowsWriter<'_>)) -> Result<OperatorChange> {
        OperatorChange::under(TableBegin::for_table(table), &table.shape(), pack)
    }

    fn under(
        begin: TableBegin,
        shape: &RowShape,
        pack: impl FnOnce(&mut RowsWriter<'_>),
    ) -> Result<OperatorChange> {
        let mut writer = RowsWriter::new(shape);
        pack(&mut writer);
        let chunks = vec![UploadChunk::from_packed(shape, writer.take())?];
        Ok(OperatorChange {
            upload: UploadTable { begin, chunks },
        })
    }

    /// A row of which only the key is known, to look for it.
    fn probe(table: &Table, key: &Values) -> Result<OperatorChange> {
        let mut row = vec![Datum::Null; table.columns.len()];
        for (column, value) in key {
            row[*column] = datum(table, *column, value);
        }
        OperatorChange::for_table(table, |writer| writer.row(Op::Insert, &row))
    }

    /// A delete of a row of the centre.
    pub(super) fn delete(table: &Table, central: &[Datum<'_>]) -> Result<OperatorChange> {
        OperatorChange::for_table(table, |writer| writer.delete(central))
    }

    /// A row of the centre with other values; what is not said stays.
    pub(super) fn update(
        table: &Table,
        central: &[Datum<'_>],
        new: &Values,
    ) -> Result<OperatorChange> {
        let mut row = central.to_vec();
        for (column, value) in new {
            row[*column] = datum(table, *column, value);
        }
        OperatorChange::for_table(table, |writer| writer.update(central, &row))
    }

    /// What is not said is as the database has it by default.
    pub(super) fn insert(table: &Table, key: &Values, new: &Values) -> Result<OperatorChange> {
        let mut said = new.clone();
        let others = key.iter().filter(|it| new.iter().all(|new| new.0 != it.0));
        said.extend(others.cloned());
        OperatorChange::of_columns(table, None, Some(&said))
    }

    /// The change of a row of which these columns are known, from `old` to `new`.
    pub(super) fn of_columns(
        table: &Table,
        old: Option<&Values>,
        new: Option<&Values>,
    ) -> Result<OperatorChange> {
        let has = |image: Option<&Values>, column: usize| {
            image.is_none_or(|it| it.iter().any(|it| it.0 == column))
        };
        let columns = 0..table.columns.len();
        let columns: Vec<usize> = columns.filter(|&it| has(old, it) && has(new, it)).collect();
        let known = |image: &Values| -> Values {
            let value = |column: &usize| image.iter().find(|it| it.0 == *column).cloned();
            columns.iter().filter_map(value).collect()
        };
        let (old, new) = (old.map(known), new.map(known));
        let place = |column: &usize| columns.iter().position(|it| it == column);
        let mut begin = TableBegin::for_table(table);
        let mut column = 0..;
        begin
            .columns
            .retain(|_| column.next().is_some_and(|it| place(&it).is_some()));
        let key: Vec<usize> = table.key.iter().filter_map(place).collect();
        begin.key = key.iter().map(|&it| it as u32).collect();
        let types = columns.iter().map(|&it| table.columns[it].column_type);
        let shape = RowShape {
            columns: types.collect(),
            key,
        };
        OperatorChange::under(begin, &shape, |writer| match (&old, &new) {
            (Some(old), Some(new)) => writer.update(&datums(table, old), &datums(table, new)),
            (Some(old), None) => writer.delete(&datums(table, old)),
            (None, Some(new)) => writer.row(Op::Insert, &datums(table, new)),
            (None, None) => {}
        })
    }
}
