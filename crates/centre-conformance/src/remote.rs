//! A remote as the suite needs it: uploads and downloads as values, its rows as text.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidewater_centre::engine::scripts::ScriptTransaction;
use tidewater_centre::packed_rows::TableRequest;
use tidewater_centre::records::{SessionRequest, SessionState, SubscriptionRequest, UserClaims};
use tidewater_centre::script_notes::ScriptNotes;
use tidewater_centre::{
    CentreError, Checkpoint, DownloadJob, DownloadOutcome, DownloadSink, DownloadStart,
    DownloadSubscription, GainedPartitions, GivenTable, MarkFrequency, OwnUpload, Parameters,
    RemoteHolding, Resolutions, RunningDownloads, ScriptRun, SyncContext, SyncUpload, TableCompare,
    ToldSettled, UploadChunk, UploadOutcome, UploadResult, UploadTable, Verdicts, Worker,
};
use tidewater_protocol::compare::{Intervals, Ranges, sort_keys};
use tidewater_protocol::message::{GivenUp, TableBegin};
use tidewater_protocol::pack::{pack_values, unpack_values};
use tidewater_protocol::{
    ColumnType, Datum, Op, PublicationSchema, RemoteId, RowsReader, RowsWriter, Table, UnpackedRow,
    UploadId, Value,
};

use crate::fixture::Fixture;
use crate::world::{DeployedCentre, NOW_MS};

/// A remote database, reduced to what the centre sees of it.
pub struct TestRemote {
    pub id: RemoteId,
    pub user: String,
    pub schema: Arc<PublicationSchema>,
    pub worker: Box<dyn Worker>,
    /// The number of the last upload made.
    pub sequence: u64,
    pub checkpoint: Option<Checkpoint>,
    /// The hash of the schema that it has had until now.
    pub before: Option<Vec<u8>>,
    /// What the last applied upload leaves out of the next download.
    pub own: Option<OwnUpload>,
    /// What the result that it comes with says of gained partitions.
    pub gained: Vec<GainedPartitions>,
    /// What it says of rows that the download has to answer.
    pub asked: Vec<TableRequest>,
    /// What the next download is given by handlers.
    pub given: Vec<GivenTable>,
    /// What the next download compares.
    pub compares: Vec<TableCompare>,
    pub now_ms: i64,
    /// What it has set.
    pub parameters: BTreeMap<String, String>,
    /// What is known of the user.
    pub claims: UserClaims,
    /// What its next upload gives up.
    pub given_up: Vec<GivenUp>,
    /// See [`tidewater_centre::DownloadSubscription`].
    pub refused_from: u64,
    pub settled_after: u64,
    /// What scripts have set.
    pub scripts: ScriptNotes,
    /// Whether its sink takes no rows.
    pub refuse_rows: bool,
    /// What happens when the first rows of the next download come, and its snapshot is open.
    pub meanwhile: Option<Box<dyn FnOnce() + Send>>,
    /// By table, by packed key: the row as text.
    rows: Vec<BTreeMap<Vec<u8>, Vec<Value>>>,
}

/// What a download brought.
#[derive(Debug, Default)]
pub struct ReceivedDownload {
    pub scope_changed: bool,
    /// `table: a|b|c` for each row, in the order of arrival.
    pub upserts: Vec<String>,
    /// `table [key]` for each key, `table {partition}` for each partition.
    pub removals: Vec<String>,
    /// Tables that were sent whole.
    pub replaced: Vec<String>,
    /// Tables of which ranges of keys were sent, and how many intervals.
    pub differing: Vec<(String, usize)>,
    /// Tables of which ranges were sent, with the changes since the checkpoint before them.
    pub followed: Vec<String>,
    pub outcome: Option<DownloadOutcome>,
    /// What it was told of its refused rows.
    pub settled: ToldSettled,
    /// What it holds by now.
    pub holding: Option<RemoteHolding>,
}

impl ReceivedDownload {
    /// Everything that arrived, sorted.
    pub fn rows(&self) -> Vec<String> {
        let removals = self.removals.iter().map(|removal| format!("-{removal}"));
        let mut rows: Vec<_> = self.upserts.iter().cloned().chain(removals).collect();
        rows.sort();
        rows
    }

    /// The checkpoint handed out, if any.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        self.outcome.as_ref()?.checkpoint.as_ref()
    }
}

/// A change to upload; rows are text, values separated by `|`.
#[derive(Clone, Debug)]
pub enum RowChange {
    Insert(String, String),
    Update(String, String, String),
    Delete(String, String),
}

/// A new row.
pub fn insert(table: &str, row: &str) -> RowChange {
    RowChange::Insert(table.into(), row.into())
}

/// A changed row, from its pre-image.
pub fn update(table: &str, old: &str, new: &str) -> RowChange {
    RowChange::Update(table.into(), old.into(), new.into())
}

/// A removed row.
pub fn delete(table: &str, old: &str) -> RowChange {
    RowChange::Delete(table.into(), old.into())
}

impl RowChange {
    fn table(&self) -> &str {
        match self {
            RowChange::Insert(table, _)
            | RowChange::Update(table, ..)
            | RowChange::Delete(table, _) => table,
        }
    }
}

/// A value of text as a remote would store it; what does not fit stays text.
fn value(column_type: ColumnType, text: &str) -> Value {
    if text == "NULL" {
        return Value::Null;
    }
    let number = match column_type {
        ColumnType::Integer | ColumnType::Boolean => text.parse().ok().map(Value::Integer),
        ColumnType::Real => text.parse().ok().map(Value::Real),
        ColumnType::Bytes => Some(Value::Blob(text.as_bytes().to_vec())),
        _ => None,
    };
    number.unwrap_or_else(|| Value::Text(text.into()))
}

/// A value as a remote's column keeps it: a number in a column of texts becomes one.
fn kept(value: &Datum<'_>, column_type: ColumnType) -> Value {
    match value.to_value() {
        Value::Integer(integer) if column_type.sqlite_type() == "TEXT" => {
            Value::Text(integer.to_string())
        }
        value => value,
    }
}

/// The values of a row of text.
pub fn values(table: &Table, row: &str) -> Vec<Value> {
    let texts: Vec<_> = row.split('|').collect();
    assert_eq!(texts.len(), table.columns.len(), "{row} in {}", table.name);
    let columns = table.columns.iter().zip(texts);
    columns
        .map(|(column, text)| value(column.column_type, text))
        .collect()
}

/// Stored values understood by their columns' types.
pub fn datums<'a>(table: &Table, values: &'a [Value]) -> Vec<Datum<'a>> {
    let columns = table.columns.iter().zip(values);
    columns
        .map(|(column, value)| column.column_type.datum(value.as_ref()).0)
        .collect()
}

/// Values as text, separated by `|`.
pub fn text(values: &[Datum<'_>]) -> String {
    let texts: Vec<_> = values.iter().map(Datum::to_string).collect();
    texts.join("|")
}

/// Packs changes, a table after the other in the order given.
pub fn upload_tables(schema: &PublicationSchema, changes: &[RowChange]) -> Vec<UploadTable> {
    let mut tables = Vec::new();
    let same_table = |left: &RowChange, right: &RowChange| left.table() == right.table();
    for group in changes.chunk_by(same_table) {
        let name = group[0].table();
        let table = schema.table(name);
        let table = table.unwrap_or_else(|| panic!("no table {name}"));
        let shape = table.shape();
        let mut writer = RowsWriter::new(&shape);
        for change in group {
            match change {
                RowChange::Insert(_, new) => {
                    writer.row(Op::Insert, &datums(table, &values(table, new)));
                }
                RowChange::Update(_, old, new) => {
                    let (old, new) = (values(table, old), values(table, new));
                    writer.update(&datums(table, &old), &datums(table, &new));
                }
                RowChange::Delete(_, old) => writer.delete(&datums(table, &values(table, old))),
            }
        }
        tables.push(UploadTable {
            begin: TableBegin::for_table(table),
            chunks: vec![UploadChunk::from_packed(&table.shape(), writer.take()).unwrap()],
        });
    }
    tables
}

/// An upload's result as text: counts, then a line for each row.
pub fn result_text(schema: &PublicationSchema, result: &UploadResult) -> Vec<String> {
    let mut lines = vec![format!(
        "{} inserted, {} updated, {} deleted, {} conflicts, {} refused",
        result.inserts, result.updates, result.deletes, result.conflicts, result.refused
    )];
    for result in &result.tables {
        let table = schema.table(&result.begin.table).unwrap();
        let shape = table.shape();
        let mut reader = RowsReader::new(&shape, &result.rows);
        let mut row = UnpackedRow::default();
        while reader.next(&mut row).unwrap() {
            let name = &table.name;
            let key = text(&row.key);
            lines.push(match row.op.unwrap() {
                Op::ConflictRow => format!("conflict {name}: {}", text(&row.new)),
                Op::Made => format!("made {name}: {}", text(&row.new)),
                Op::Merged => format!("merged {name}: {}", text(&row.new)),
                Op::ConflictGone => format!("gone {name} [{key}]"),
                Op::Refused => {
                    let code = tidewater_protocol::Code::from_number(row.code).unwrap();
                    let op = row.refused_op.unwrap();
                    format!("refused {name} [{key}] {op:?} {code}: {}", row.reason)
                }
                other => panic!("{other:?} in an upload's result"),
            });
        }
    }
    lines
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

pub fn fresh_id() -> [u8; 16] {
    let mut bytes = [7; 16];
    bytes[..8].copy_from_slice(&NEXT_ID.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    bytes
}

impl TestRemote {
    /// A new remote of the user, subscribed to the first publication of the world.
    pub async fn new<F: Fixture>(world: &DeployedCentre<F>, user: &str) -> TestRemote {
        TestRemote::with_worker(world.schema(), world.worker().await, user)
    }

    /// A new remote of the user that is served by this worker.
    pub fn with_worker(
        schema: Arc<PublicationSchema>,
        worker: Box<dyn Worker>,
        user: &str,
    ) -> TestRemote {
        TestRemote {
            id: RemoteId::from_random(fresh_id()),
            user: user.into(),
            worker,
            sequence: 0,
            checkpoint: None,
            before: None,
            own: None,
            gained: Vec::new(),
            asked: Vec::new(),
            given: Vec::new(),
            compares: Vec::new(),
            now_ms: NOW_MS,
            parameters: BTreeMap::new(),
            claims: UserClaims::default(),
            given_up: Vec::new(),
            refused_from: 0,
            settled_after: 0,
            scripts: ScriptNotes::default(),
            refuse_rows: false,
            meanwhile: None,
            rows: vec![BTreeMap::new(); schema.tables.len()],
            schema,
        }
    }

    /// Subscribes to another publication instead.
    pub fn subscribe_to(&mut self, schema: Arc<PublicationSchema>) {
        self.rows = vec![BTreeMap::new(); schema.tables.len()];
        self.schema = schema;
    }

    /// Takes over the schema of another deployment, and keeps the rows of tables that are in both.
    pub fn migrate_to(&mut self, schema: Arc<PublicationSchema>) {
        let mut rows = vec![BTreeMap::new(); schema.tables.len()];
        for (former, kept) in self.schema.tables.iter().zip(&mut self.rows) {
            let mut tables = schema.tables.iter();
            if let Some(index) = tables.position(|it| it.name == former.name) {
                rows[index] = std::mem::take(kept);
            }
        }
        self.before = Some(self.schema.hash().to_vec());
        (self.rows, self.schema) = (rows, schema);
    }

    /// A new remote that has downloaded for the first time.
    pub async fn synced<F: Fixture>(world: &DeployedCentre<F>, user: &str) -> TestRemote {
        let mut remote = TestRemote::new(world, user).await;
        remote.download().await;
        remote
    }

    /// The rows that the remote holds of a table, sorted by key.
    pub fn rows(&self, table: &str) -> Vec<String> {
        let index = self.index(table);
        let table = &self.schema.tables[index];
        let mut rows: Vec<_> = self.rows[index].values().cloned().collect();
        let by_text = |row: &Vec<Value>| text(&datums(table, row));
        rows.sort_by_cached_key(by_text);
        rows.iter().map(by_text).collect()
    }

    /// The same as values, in the order of their packed keys.
    pub fn values(&self, table: &str) -> Vec<Vec<Value>> {
        self.rows[self.index(table)].values().cloned().collect()
    }

    fn index(&self, table: &str) -> usize {
        let mut tables = self.schema.tables.iter();
        tables.position(|each| each.name == table).unwrap()
    }

    pub fn context(&self) -> SyncContext {
        SyncContext {
            user: self.user.clone(),
            remote_id: self.id,
            now_ms: self.now_ms,
            parameters: Arc::new(Parameters::from([(
                self.schema.name.clone(),
                self.parameters.clone(),
            )])),
            claims: self.claims.clone(),
            scripts: self.scripts.clone(),
            given: None,
        }
    }

    /// Runs the scripts of a transaction of their own.
    pub async fn run_scripts(&mut self, transaction: ScriptTransaction) -> Result<(), CentreError> {
        let asked = ScriptRun {
            context: self.context(),
            publication: self.schema.name.clone(),
            checkpoint: self.checkpoint.clone(),
            transaction,
        };
        self.worker.run_scripts(asked).await
    }

    /// The next upload, not yet applied.
    pub fn next_upload(&mut self, changes: &[RowChange]) -> SyncUpload {
        self.sequence += 1;
        SyncUpload {
            context: self.context(),
            publication: self.schema.name.clone(),
            sequence: self.sequence,
            upload_id: UploadId::from_random(fresh_id()),
            checkpoint: self.checkpoint.clone(),
            given_back: false,
            copied: false,
            retried: Vec::new(),
            given_up: std::mem::take(&mut self.given_up),
            forgotten_refusals: Vec::new(),
            tables: upload_tables(&self.schema, changes),
            verdicts: Verdicts::new(),
            resolutions: Resolutions::new(),
        }
    }

    /// Applies one upload alone.
    pub async fn apply(&mut self, upload: SyncUpload) -> UploadOutcome {
        let mut outcomes = self.worker.apply(vec![upload]).await.unwrap();
        assert_eq!(outcomes.len(), 1);
        outcomes.remove(0)
    }

    /// Uploads changes that are applied; gives the result as text. The next download
    /// knows them as its own.
    pub async fn upload(&mut self, changes: &[RowChange]) -> Vec<String> {
        let upload = self.next_upload(changes);
        match self.apply(upload).await {
            UploadOutcome::Applied { result, own } => {
                self.own = Some(own);
                self.gained.clone_from(&result.gained);
                self.asked.extend(result.requests());
                self.take_what_was_made(&result);
                result_text(&self.schema, &result)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Makes changes, as an application does before they are uploaded.
    pub fn write(&mut self, changes: &[RowChange]) {
        for change in changes {
            let index = self.index(change.table());
            let table = &self.schema.tables[index];
            let of = |row: &str| {
                let values = values(table, row);
                let key = table.key.iter().map(|&it| datums(table, &values)[it]);
                let types: Vec<_> = table.key_columns().map(|it| it.column_type).collect();
                let mut packed = Vec::new();
                pack_values(&mut packed, &types, &key.collect::<Vec<_>>());
                (packed, values.clone())
            };
            let (old, new) = match change {
                RowChange::Insert(_, new) => (None, Some(of(new))),
                RowChange::Update(_, old, new) => (Some(of(old)), Some(of(new))),
                RowChange::Delete(_, old) => (Some(of(old)), None),
            };
            if let Some((key, _)) = old {
                self.rows[index].remove(&key);
            }
            self.rows[index].extend(new);
        }
    }

    /// Keeps what the centre has made of uploaded rows.
    fn take_what_was_made(&mut self, result: &UploadResult) {
        for of_table in &result.tables {
            let index = self.index(&of_table.begin.table);
            let table = &self.schema.tables[index];
            let shape = table.shape();
            let mut reader = RowsReader::new(&shape, &of_table.rows);
            let mut row = UnpackedRow::default();
            while reader.next(&mut row).unwrap() {
                if let Some(Op::Made | Op::Merged) = row.op {
                    let types: Vec<_> = table.key_columns().map(|it| it.column_type).collect();
                    let mut key = Vec::new();
                    pack_values(&mut key, &types, &row.key);
                    let columns = row.new.iter().zip(&table.columns);
                    let values = columns.map(|(value, column)| kept(value, column.column_type));
                    self.rows[index].insert(key, values.collect());
                }
            }
        }
    }

    /// What the remote has of these tables, in ranges of so many rows.
    pub fn sums(&self, tables: &[&str], rows_per_range: usize) -> Vec<TableCompare> {
        let compare = |&name: &&str| {
            let index = self.index(name);
            let table = &self.schema.tables[index];
            let shape = table.shape();
            let rows = &self.rows[index];
            let mut keys: Vec<_> = rows.keys().cloned().collect();
            sort_keys(&shape.key_columns(), &mut keys).unwrap();
            let bounds = keys.iter().skip(rows_per_range - 1).step_by(rows_per_range);
            let mut ranges = Ranges::at(&shape, bounds.map(Vec::as_slice)).unwrap();
            for row in rows.values() {
                let row = datums(table, row);
                let key: Vec<_> = table.key.iter().map(|&index| row[index]).collect();
                ranges.add(&key, &row);
            }
            TableCompare {
                table: name.into(),
                ranges: ranges.to_wire().into(),
                untracked: false,
            }
        };
        tables.iter().map(compare).collect()
    }

    /// Downloads comparing these tables, in ranges of so many rows.
    pub async fn compare(&mut self, tables: &[&str], rows_per_range: usize) -> ReceivedDownload {
        self.compares = self.sums(tables, rows_per_range);
        self.download().await
    }

    /// Forgets or changes a row behind everybody's back: the row with this key becomes
    /// this one.
    pub fn tamper(&mut self, table: &str, key: &str, row: Option<&str>) {
        let index = self.index(table);
        let table = self.schema.tables[index].clone();
        let types: Vec<_> = table.key_columns().map(|key| key.column_type).collect();
        let values_of_key: Vec<_> = key
            .split('|')
            .zip(&types)
            .map(|(text, &column_type)| value(column_type, text))
            .collect();
        let key = values_of_key.iter().zip(&types);
        let key: Vec<_> = key.map(|(it, of)| of.datum(it.as_ref()).0).collect();
        let mut packed = Vec::new();
        pack_values(&mut packed, &types, &key);
        self.rows[index].remove(&packed);
        if let Some(row) = row {
            self.rows[index].insert(packed, values(&table, row));
        }
    }

    /// Downloads, and applies what comes.
    pub async fn download(&mut self) -> ReceivedDownload {
        self.download_requesting(&[]).await
    }

    /// Downloads with requests: `(table, row)`, of whose row only the key counts.
    pub async fn download_requesting(&mut self, requests: &[(&str, &str)]) -> ReceivedDownload {
        self.try_download(requests).await.unwrap()
    }

    /// Downloads; what comes is applied only if it comes whole.
    pub async fn try_download(
        &mut self,
        requests: &[(&str, &str)],
    ) -> Result<ReceivedDownload, CentreError> {
        let job = self.download_job(requests);
        let mut sink = self.sink();
        self.worker.download_one(job, &mut sink).await?;
        // A sync ends with its download.
        self.scripts = ScriptNotes::default();
        Ok(self.take(sink))
    }

    fn download_job(&mut self, requests: &[(&str, &str)]) -> DownloadJob {
        let asked = std::mem::take(&mut self.asked);
        let requests = requests.iter().map(|(name, row)| {
            let table = self.schema.table(name).unwrap();
            let values = values(table, row);
            let datums = datums(table, &values);
            let key: Vec<_> = table.key.iter().map(|&index| datums[index]).collect();
            let shape = table.shape();
            let mut writer = RowsWriter::new(&shape);
            writer.key(Op::Request, &key);
            TableRequest {
                begin: TableBegin::for_table(table),
                rows: writer.take().into(),
            }
        });
        DownloadJob {
            marks: MarkFrequency::default(),
            only_opens: false,
            context: self.context(),
            subscriptions: vec![DownloadSubscription {
                schema: self.schema.clone(),
                before: self.before.clone(),
                publication: self.schema.name.clone(),
                checkpoint: self.checkpoint.clone(),
                from_image: false,
                requests: requests.chain(asked).collect(),
                compares: std::mem::take(&mut self.compares),
                kept: None,
                part_of: None,
                own: self.own.take(),
                gained: std::mem::take(&mut self.gained),
                refused_from: self.refused_from,
                settled_after: self.settled_after,
                given: std::mem::take(&mut self.given),
            }],
        }
    }

    /// Whether the user may have what is in an image with this checkpoint.
    pub async fn covers_image(&mut self, checkpoint: &Checkpoint) -> bool {
        let mut job = self.download_job(&[]);
        job.only_opens = true;
        job.subscriptions[0].checkpoint = Some(checkpoint.clone());
        job.subscriptions[0].from_image = true;
        let mut opens = Opens(None);
        let opened = self.worker.download_one(job, &mut opens).await;
        opened.unwrap();
        opens.0.expect("it has begun")
    }

    fn sink(&mut self) -> Sink {
        Sink {
            schema: self.schema.clone(),
            rows: self.rows.clone(),
            table: None,
            refuse_rows: self.refuse_rows,
            meanwhile: self.meanwhile.take(),
            expected_rows: None,
            received: ReceivedDownload::default(),
        }
    }

    /// Applies a download that has come whole.
    fn take(&mut self, sink: Sink) -> ReceivedDownload {
        let outcome = sink.received.outcome.as_ref().expect("end() was called");
        if let Some(checkpoint) = &outcome.checkpoint {
            // What a remote presents has gone over the wire.
            self.checkpoint = Checkpoint::decode(&checkpoint.encode());
            assert_eq!(self.checkpoint.as_ref(), Some(checkpoint));
        }
        self.rows = sink.rows;
        sink.received
    }
}

/// Downloads for several remotes at once, by the worker of the first one; again for those of which
/// nothing was read.
pub async fn download_together(
    remotes: &mut [TestRemote],
) -> Vec<Result<ReceivedDownload, CentreError>> {
    let mut results: Vec<Option<Result<ReceivedDownload, CentreError>>> = Vec::new();
    results.resize_with(remotes.len(), || None);
    while results.iter().any(Option::is_none) {
        let mut waiting = Vec::new();
        for (place, remote) in remotes.iter_mut().enumerate() {
            if results[place].is_none() {
                waiting.push((place, remote.download_job(&[]), remote.sink()));
            }
        }
        let downloads = waiting.iter_mut().map(|(_, job, sink)| RunningDownloads {
            job: job.clone(),
            sink,
        });
        let downloads = downloads.collect();
        let outcomes = remotes[0].worker.download(downloads).await.unwrap();
        assert_eq!(outcomes.len(), waiting.len());
        assert!(outcomes[0].is_some(), "the first one is always read");
        for (outcome, (place, _, sink)) in outcomes.into_iter().zip(waiting) {
            results[place] = outcome.map(|outcome| outcome.map(|()| remotes[place].take(sink)));
        }
    }
    results.into_iter().flatten().collect()
}

/// Applies a download to rows in memory.
struct Sink {
    schema: Arc<PublicationSchema>,
    rows: Vec<BTreeMap<Vec<u8>, Vec<Value>>>,
    table: Option<usize>,
    refuse_rows: bool,
    meanwhile: Option<Box<dyn FnOnce() + Send>>,
    /// The rows that are announced and have not come, of ranges of keys.
    expected_rows: Option<u64>,
    received: ReceivedDownload,
}

impl Sink {
    fn all_came(&mut self) {
        assert_eq!(self.expected_rows.take().unwrap_or(0), 0);
    }
}

/// Takes what is told when a download begins; nothing else may come.
struct Opens(Option<bool>);

impl DownloadSink for Opens {
    fn begin(&mut self, _: usize, start: DownloadStart) {
        self.0 = Some(start.covers_image);
    }

    fn table(&mut self, begin: TableBegin) {
        panic!("rows of {:?} come", begin.table);
    }

    fn rows(&mut self, _: Vec<u8>) -> Result<(), CentreError> {
        panic!("rows come");
    }

    fn end(&mut self, _: usize, outcome: DownloadOutcome) {
        assert_eq!(outcome.checkpoint, None);
    }
}

impl DownloadSink for Sink {
    fn begin(&mut self, index: usize, start: DownloadStart) {
        assert_eq!(index, 0);
        self.received.scope_changed = start.scope_changed;
    }

    fn settled(&mut self, told: ToldSettled) {
        self.received.settled = told;
    }

    fn table(&mut self, begin: TableBegin) {
        let mut tables = self.schema.tables.iter();
        let index = tables.position(|table| table.name == begin.table).unwrap();
        let expected = TableBegin::for_table(&self.schema.tables[index]);
        assert_eq!(begin.columns, expected.columns);
        self.all_came();
        if !begin.ranges.is_empty() {
            assert!(begin.replace);
            let shape = self.schema.tables[index].shape();
            let intervals = Intervals::new(&shape, &begin.ranges).unwrap();
            let types = shape.key_columns();
            let differs = |key: &[u8]| intervals.contains(&unpack_values(key, &types).unwrap());
            self.rows[index].retain(|key, _| !differs(key));
            if begin.follows_changes {
                self.received.followed.push(begin.table.clone());
            }
            let differing = (begin.table, begin.ranges.len());
            self.received.differing.push(differing);
            self.expected_rows = Some(begin.expected_rows);
        } else if begin.replace {
            assert!(!begin.follows_changes);
            self.received.replaced.push(begin.table);
            self.rows[index].clear();
        }
        self.table = Some(index);
    }

    fn rows(&mut self, rows: Vec<u8>) -> Result<(), CentreError> {
        if self.refuse_rows {
            return Err(CentreError::Cancelled);
        }
        if let Some(meanwhile) = self.meanwhile.take() {
            meanwhile();
        }
        let index = self.table.expect("rows come after a table");
        let table = &self.schema.tables[index];
        let shape = table.shape();
        let mut reader = RowsReader::new(&shape, &rows);
        let mut row = UnpackedRow::default();
        let types: Vec<_> = table.key_columns().map(|key| key.column_type).collect();
        let packed = |key: &[Datum<'_>]| {
            let mut packed = Vec::new();
            pack_values(&mut packed, &types, key);
            packed
        };
        while reader.next(&mut row).unwrap() {
            let name = &table.name;
            match row.op.unwrap() {
                Op::Upsert => {
                    if let Some(expected) = &mut self.expected_rows {
                        *expected = expected.checked_sub(1).expect("as many as announced");
                    }
                    self.received
                        .upserts
                        .push(format!("{name}: {}", text(&row.new)));
                    let values = row.new.iter().zip(&table.columns);
                    let values = values.map(|(value, column)| kept(value, column.column_type));
                    self.rows[index].insert(packed(&row.key), values.collect());
                }
                Op::Remove => {
                    self.received
                        .removals
                        .push(format!("{name} [{}]", text(&row.key)));
                    self.rows[index].remove(&packed(&row.key));
                }
                other => panic!("{other:?} in a download"),
            }
        }
        Ok(())
    }

    fn comparing(&mut self) -> Result<(), CentreError> {
        match self.refuse_rows {
            true => Err(CentreError::Cancelled),
            false => Ok(()),
        }
    }

    fn holds(&mut self, index: usize, holding: RemoteHolding) {
        assert_eq!(index, 0);
        self.received.holding = Some(holding);
    }

    fn end(&mut self, index: usize, outcome: DownloadOutcome) {
        assert_eq!(index, 0);
        self.all_came();
        self.received.outcome = Some(outcome);
    }
}

/// Looks up what one session needs.
pub async fn session_state(
    worker: &mut Box<dyn Worker>,
    user: &str,
    remote_id: Option<RemoteId>,
    subscriptions: &[SubscriptionRequest],
) -> Result<SessionState, CentreError> {
    let asked = SessionRequest {
        user: user.to_owned(),
        remote_id,
        subscriptions: subscriptions.to_vec(),
    };
    let mut states = worker.session_states(vec![asked]).await?;
    assert_eq!(states.len(), 1);
    Ok(states.remove(0))
}
