//! What a sync asks handlers: always between the remote and the database, never while it holds a
//! connection of either.

use std::sync::Arc;
use tidewater_centre::engine::upload::column_map::{AnnouncedColumns, ColumnMap};
use tidewater_centre::packed_rows::{RowsChunk, TableRequest};
use tidewater_centre::{
    Caller, ContendedChange, GivenTable, Resolutions, SyncUpload, TableVerdicts, UploadTable,
    Verdicts,
};

use futures_util::stream::{FuturesUnordered, StreamExt};
use serde_json::{Map, Value as Json};

use tidewater_protocol::frame::ROWS_PAYLOAD_BYTES;
use tidewater_protocol::{PublicationSchema, RemoteId, RowsReader, Table, UnpackedRow};

use super::reply::Watch;
use super::{OpenedSync, Sync};
use crate::handlers::download::{CollectedRows, HandlerQuery, MOST_PAGES, PAGE_BYTES, page};
use crate::handlers::resolve::ContestedRows;
use crate::handlers::upload::{Batch, Batches, KeyObject, verdicts};
use crate::handlers::{About, Handler, HandlerSet};
use tidewater_server_config::{HandlerEvent, TableAssignment};
use tidewater_server_jobs::environment::random;
use tidewater_server_jobs::fault::Fault;
use tidewater_server_jobs::memory::Reservation;
use tidewater_server_jobs::metrics::Phase;

/// What of a sync concerns handlers.
pub(crate) struct SyncHandlers {
    pub(crate) handlers: Arc<HandlerSet>,
    /// Empty where there are none.
    pub(crate) sync_id: String,
}

/// The handlers that are told of the end.
pub(crate) type Began = Vec<(Arc<Handler>, About)>;

impl Sync<'_> {
    /// Whether the handlers of its publications let it begin.
    pub(crate) async fn begin(&mut self, opened: &OpenedSync) -> Result<SyncHandlers, Fault> {
        let known = self.service.handlers.current();
        let names = opened
            .subscriptions
            .iter()
            .map(|it| &it.published.schema.name);
        let closed = names
            .clone()
            .filter_map(|name| known.closed_for(name))
            .max();
        if let Some(left) = closed {
            return Err(Fault {
                detail: "a handler is left alone because it was away".into(),
                ..Fault::handler_away(self.service.admission.later_ms(left))
            });
        }
        if known.is_empty() {
            let sync_id = String::new();
            return Ok(SyncHandlers {
                handlers: known,
                sync_id,
            });
        }
        let random = random(&*self.service.environment.randomness);
        let random = random.map_err(|error| Fault::internal(error.to_string()))?;
        let asking = SyncHandlers {
            sync_id: RemoteId::from_random(random).to_string(),
            handlers: known.clone(),
        };
        for name in names {
            let Some(handler) = known.of_publication(name) else {
                continue;
            };
            let about = self.about(opened, &asking, name);
            if handler.wants(HandlerEvent::BeginSynchronization) {
                let _timer = self.service.metrics.timer(Phase::Ask);
                handler
                    .begin(&self.service.handler_services, &self.caller(), &about)
                    .await?;
            }
            if handler.wants(HandlerEvent::EndSynchronization) {
                self.began.push((handler.clone(), about));
            }
        }
        Ok(asking)
    }

    pub(crate) fn about(
        &self,
        opened: &OpenedSync,
        asking: &SyncHandlers,
        publication: &str,
    ) -> About {
        About {
            publication: publication.to_owned(),
            context: opened.context(self.service.environment.clock.now_ms()),
            device_name: self.guest.device_name.clone(),
            sync_id: asking.sync_id.clone(),
        }
    }

    /// For whom handlers are asked.
    fn caller(&self) -> Arc<Caller> {
        Arc::new(Caller {
            user: self.guest.user.clone(),
            remote_id: Some(self.guest.remote_id),
        })
    }

    /// Tells handlers that it has ended, whoever still listens.
    pub(crate) fn tell_end(&mut self) {
        let caller = self.caller();
        for (handler, about) in std::mem::take(&mut self.began) {
            let services = self.service.handler_services.clone();
            let record = self.record.clone();
            tokio::spawn(handler.end(services, caller.clone(), about, record));
        }
    }

    /// Does something that takes its time after everything has arrived; meanwhile the remote may
    /// give up.
    pub(crate) async fn attended<T>(
        &self,
        work: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let _timer = self.service.metrics.timer(Phase::Ask);
        let mut watch = Watch::new(self.channel, self.service.limits.waiting);
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                fault = watch.interrupted() => return Err(fault),
                () = watch.tick() => watch.waiting_for_handler()?,
            }
        }
    }

    /// Has handlers judge the rows of uploads that are theirs to judge. What each of them says is
    /// attached to the upload.
    pub(crate) async fn judge(
        &self,
        opened: &OpenedSync,
        asking: &SyncHandlers,
        uploads: &mut [SyncUpload],
        indexes: &[usize],
    ) -> Result<(), Fault> {
        for (upload, &index) in uploads.iter_mut().zip(indexes) {
            let schema = &opened.subscriptions[index].published.schema;
            let is_judged = |table: &UploadTable| {
                let found = asking
                    .handlers
                    .of_table(&upload.publication, &table.begin.table);
                found.is_some_and(|(_, handling)| handling.upload)
            };
            if !upload.tables.iter().any(is_judged) {
                continue;
            }
            let about = self.about(opened, asking, &upload.publication);
            let judged = self.judge_upload(asking, &about, schema, upload);
            upload.verdicts = self.attended(judged).await?;
        }
        Ok(())
    }

    async fn judge_upload(
        &self,
        asking: &SyncHandlers,
        about: &About,
        schema: &PublicationSchema,
        upload: &SyncUpload,
    ) -> Result<Verdicts, Fault> {
        let mut all = Verdicts::new();
        let (remote_id, id) = (upload.context.remote_id, upload.upload_id);
        for (place, table) in upload.tables.iter().enumerate() {
            let found = asking
                .handlers
                .of_table(&upload.publication, &table.begin.table);
            let Some((handler, handling)) = found.filter(|it| it.1.upload) else {
                continue;
            };
            // Rows that mean nothing to the publication any more are refused anyway.
            let AnnouncedColumns::Published(index, map) = ColumnMap::find(schema, &table.begin)?
            else {
                continue;
            };
            let schema = &schema.tables[index];
            let prefix = format!("{remote_id}/{id}/{place}-");
            let rows = handler.config.rows;
            let batches = Batches::new(table, (schema, &map), prefix, rows);
            let judging = TableJudge {
                about,
                handler,
                handling,
                table: schema,
            };
            all.insert(place, self.judge_table(judging, batches).await?);
        }
        Ok(all)
    }

    async fn judge_table(
        &self,
        judging: TableJudge<'_>,
        mut batches: Batches<'_>,
    ) -> Result<TableVerdicts, Fault> {
        let prefix = batches.prefix().to_owned();
        let mut under_way = FuturesUnordered::new();
        let mut all = TableVerdicts::new();
        loop {
            while under_way.len() < judging.handler.config.parallel {
                match batches.next_batch()? {
                    Some(batch) => under_way.push(self.judge_batch(judging, batch, &prefix)),
                    None => break,
                }
            }
            match under_way.next().await {
                Some(judged) => all.extend(judged?),
                None => return Ok(all),
            }
        }
    }

    async fn judge_batch(
        &self,
        judging: TableJudge<'_>,
        batch: Batch,
        prefix: &str,
    ) -> Result<TableVerdicts, Fault> {
        let TableJudge {
            about,
            handler,
            handling,
            table,
        } = judging;
        let budget = self.channel.budget();
        // The rows as they are written, and the answer.
        let _held = budget
            .hold(2 * batch.bytes())
            .ok_or_else(|| self.service.admission.busy())?;
        let document = batch.document(handler, about, table, prefix);
        let most = batch.max_answer_bytes();
        let reply = handler
            .ask(
                &*self.service.handler_services,
                &self.caller(),
                &document,
                most,
            )
            .await?;
        let asked = batch.asked(table, prefix, handling.keeps_uploads);
        let judged = verdicts(&reply, asked);
        judged.map_err(|what| handler.wrong(HandlerEvent::Upload, &what))
    }
}

impl Sync<'_> {
    /// Has handlers decide of rows of an upload that others have changed, too.
    pub(crate) async fn resolve(
        &self,
        opened: &OpenedSync,
        asking: &SyncHandlers,
        index: usize,
        (upload, rows): (&SyncUpload, &[ContendedChange]),
    ) -> Result<Resolutions, Fault> {
        let schema = &opened.subscriptions[index].published.schema;
        let about = self.about(opened, asking, &upload.publication);
        let prefix = format!("{}/{}/", upload.context.remote_id, upload.upload_id);
        let (mut all, caller) = (Resolutions::new(), self.caller());
        for of_table in rows.chunk_by(|one, other| one.row.table == other.row.table) {
            let name = &of_table[0].row.table;
            let found = asking.handlers.of_table(&upload.publication, name);
            let found = found.filter(|(_, handling)| handling.resolve);
            let Some(((handler, _), table)) = found.zip(schema.table(name)) else {
                return Err(Fault::internal(format!(
                    "conflicts of {name:?} are a handler's affair, and the configuration has none"
                )));
            };
            for some in of_table.chunks(handler.config.rows) {
                let contest = ContestedRows::new(table, some, &prefix);
                let document = contest.document(handler, &about);
                let most = contest.max_answer_bytes();
                let asked = handler.ask(&*self.service.handler_services, &caller, &document, most);
                let reply = self.attended(asked).await?;
                let decided = contest.resolutions(&reply);
                let event = HandlerEvent::ResolveConflict;
                all.extend(decided.map_err(|what| handler.wrong(event, &what))?);
            }
        }
        Ok(all)
    }

    /// Has handlers tell what is new in the tables of a subscription that are theirs.
    pub(crate) async fn given(
        &self,
        opened: &OpenedSync,
        asking: &SyncHandlers,
        (index, requests): (usize, &[TableRequest]),
        memory: &mut Reservation,
    ) -> Result<Vec<GivenTable>, Fault> {
        let subscription = &opened.subscriptions[index];
        let schema = &subscription.published.schema;
        let mut all = Vec::new();
        for table in schema.tables.iter().filter(|it| it.direction.downloads()) {
            let found = asking.handlers.of_table(&schema.name, &table.name);
            let Some((handler, _)) = found.filter(|it| it.1.download) else {
                continue;
            };
            // What it has under another schema, it gets anew, and what it compares, unless the
            // centre knows the history in which the handler gave the cursor.
            let is_known = subscription.knows_history();
            let goes_on = !subscription.schema_differs && (is_known || !subscription.compares);
            let checkpoint = subscription.checkpoint.as_ref().filter(|_| goes_on);
            let cursor = checkpoint.and_then(|it| it.cursor(&table.name));
            let cursor = cursor.and_then(|it| String::from_utf8(it).ok());
            let again = wanted_again(table, schema, requests)?;
            let about = self.about(opened, asking, &schema.name);
            let compares = subscription.compares && cursor.is_some();
            let asked = (table, cursor, &*again);
            let told = self.table_given(&about, handler, asked, compares, memory);
            all.push(self.attended(told).await?);
        }
        Ok(all)
    }

    /// What is new in a table. Where the remote `compares` it besides what is new, everything is
    /// asked for first: what is new, and told after that, is written over it, so that both are of
    /// one moment.
    async fn table_given(
        &self,
        about: &About,
        handler: &Handler,
        (table, cursor, again): (&Table, Option<String>, &[Map<String, Json>]),
        compares: bool,
        memory: &mut Reservation,
    ) -> Result<GivenTable, Fault> {
        let mut all = match compares {
            true => {
                let everything = (table, None, &[][..]);
                let told = self.pages(about, handler, everything, None, memory);
                Some(told.await?.rows)
            }
            false => None,
        };
        let asked = (table, cursor, again);
        let told = self.pages(about, handler, asked, all.as_mut(), memory);
        let ToldTable {
            rows,
            whole,
            cursor,
        } = told.await?;
        let packed = |rows: CollectedRows<'_>| -> Vec<RowsChunk> {
            let pieces = rows.pack(ROWS_PAYLOAD_BYTES).into_iter();
            pieces.map(|it| RowsChunk::Memory(it.into())).collect()
        };
        Ok(GivenTable {
            table: table.name.clone(),
            whole,
            cursor: cursor.into_bytes(),
            chunks: packed(rows),
            all: all.filter(|_| !whole).map(packed),
        })
    }

    /// Asks for page after page. What they tell is written over `before`, too.
    async fn pages<'t>(
        &self,
        about: &About,
        handler: &Handler,
        (table, mut cursor, again): (&'t Table, Option<String>, &[Map<String, Json>]),
        mut before: Option<&mut CollectedRows<'t>>,
        memory: &mut Reservation,
    ) -> Result<ToldTable<'t>, Fault> {
        let (event, caller) = (HandlerEvent::Download, self.caller());
        let mut whole = cursor.is_none();
        let mut collected = CollectedRows::new(table);
        let mut was_reset = false;
        let mut is_first = true;
        for _ in 0..MOST_PAGES {
            let wanted = HandlerQuery {
                table,
                cursor: cursor.as_deref(),
                again: if is_first { again } else { &[] },
            };
            let document = wanted.document(about);
            let asked = handler.ask(
                &*self.service.handler_services,
                &caller,
                &document,
                PAGE_BYTES,
            );
            let told = page(&asked.await?, table, cursor.is_none());
            let told = told.map_err(|what| handler.wrong(event, &what))?;
            is_first = false;
            if told.reset {
                if std::mem::replace(&mut was_reset, true) {
                    return Err(handler.wrong(event, "it asks to begin anew again and again"));
                }
                collected.clear();
                (cursor, whole) = (None, true);
                continue;
            }
            let (more, next) = (told.more, told.cursor.clone());
            if more && cursor.as_ref() == Some(&next) {
                return Err(handler.wrong(event, "it has more, and the cursor does not go on"));
            }
            let mut bytes = 0;
            if let Some(before) = &mut before {
                bytes += before.add(told.clone());
            }
            bytes += collected.add(told);
            if !memory.grow(bytes as u64) {
                return Err(self.service.admission.busy());
            }
            if !more {
                return Ok(ToldTable {
                    rows: collected,
                    whole,
                    cursor: next,
                });
            }
            cursor = Some(next);
        }
        Err(handler.wrong(event, "it always has more"))
    }
}

/// What a handler has told of a table.
struct ToldTable<'t> {
    rows: CollectedRows<'t>,
    /// It is everything.
    whole: bool,
    /// JSON: up to where it goes.
    cursor: String,
}

/// The keys of rows of a table that the remote wants again.
fn wanted_again(
    table: &Table,
    schema: &PublicationSchema,
    requests: &[TableRequest],
) -> Result<Vec<Map<String, Json>>, Fault> {
    let mut again = Vec::new();
    for request in requests.iter().filter(|it| it.begin.table == table.name) {
        let AnnouncedColumns::Published(_, map) = ColumnMap::find(schema, &request.begin)? else {
            continue;
        };
        let mut reader = RowsReader::new(&map.shape, &request.rows);
        let mut row = UnpackedRow::default();
        while reader.next(&mut row).unwrap_or(false) {
            again.push(table.key_object(&row.key));
        }
    }
    Ok(again)
}

/// Of which table handlers are asked, and who.
#[derive(Clone, Copy)]
struct TableJudge<'a> {
    about: &'a About,
    handler: &'a Arc<Handler>,
    handling: &'a TableAssignment,
    table: &'a Table,
}
