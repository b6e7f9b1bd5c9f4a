//! A connection's syncs, one after the other: Hello, Welcome, uploads, results,
//! downloads, the end. Who syncs is known by then.
//!
//! The stages are in the modules below; here is their order, and their deadlines. Sockets
//! belong to `tidewater_server_live::socket_loop`, database connections to
//! `tidewater_server_jobs::lanes`; a session owns neither.

mod compare;
mod download_job;
mod ended;
mod handled;
mod hello;
pub mod kept_uploads;
mod opening;
mod reply;
mod scripted;
mod sync_service;
mod upload;

use std::pin::pin;
use std::sync::Arc;

use tidewater_connection::ChannelInput;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use tidewater_centre::engine::scripts::ScriptTransaction;
use tidewater_centre::packed_rows::TableRequest;
use tidewater_centre::records::{SessionState, SyncRecord};
use tidewater_centre::{
    GivenTable, RemoteHolding, ScriptRun, SyncContext, SyncUpload, TableCompare, UploadOutcome,
};
use tidewater_protocol::Code;
use tidewater_protocol::message::{Control, DownloadRequest, Hello, SyncEnd, UploadState};

use self::compare::CompareReader;
use self::download_job::AppliedUploads;
use self::handled::{Began, SyncHandlers};
pub use self::hello::ParsedHello;
use self::kept_uploads::UploadName;
use self::opening::OpenedSync;
use self::reply::Watch;
use self::scripted::{SyncScripts, run_acknowledged};
pub use self::sync_service::SyncService;
use self::upload::{ExpectedUpload, ReceivedRows, Receiver, place_of};
use tidewater_server_identity::registry::Registration;
use tidewater_server_identity::sign_in::Principal;
use tidewater_server_identity::signing::SigningKeys;
use tidewater_server_jobs::download_lane::DownloadTask;
use tidewater_server_jobs::fault::Fault;
use tidewater_server_jobs::memory::Reservation;
use tidewater_server_jobs::metrics::Phase;
use tidewater_server_jobs::script_sessions::ScriptUse;
use tidewater_server_jobs::session_validity::SessionValidity;
use tidewater_server_jobs::spool::download_spool;
use tidewater_server_jobs::upload_lane::UploadTask;
use tidewater_server_live::socket_loop::ConnectionChannel;

/// What was looked up for a Hello.
pub struct LookedUp {
    /// The signing keys.
    pub keyring: SigningKeys,
    /// What the centre knows.
    pub state: SessionState,
}

/// A Hello that has come.
pub struct PendingHello {
    /// Whoever is in is told what is wrong with it.
    pub greeting: Result<ParsedHello, Fault>,
    /// Together with the sign-in.
    pub looked_up: Option<LookedUp>,
    publications: String,
    started: Instant,
    /// Bytes that had been received by then.
    received: u64,
}

impl PendingHello {
    /// In a box: several futures hold it one after the other, and would each be as large.
    pub fn new(
        hello: Hello,
        service: &SyncService,
        channel: ConnectionChannel<'_>,
    ) -> Box<PendingHello> {
        let names = hello.subscriptions.iter().map(|it| it.publication.as_str());
        Box::new(PendingHello {
            publications: names.collect::<Vec<_>>().join(","),
            greeting: ParsedHello::check(hello, service.limits.subscriptions),
            looked_up: None,
            started: Instant::now(),
            received: channel.bytes()[0],
        })
    }
}

/// Serves the syncs of a connection until it ends. The fault is one that no sync was told of.
pub async fn run(
    service: &SyncService,
    channel: ConnectionChannel<'_>,
    guest: &Principal,
    stay: &Registration<'_>,
    mut arrival: Option<Box<PendingHello>>,
) -> Result<(), Fault> {
    let mut before = Before::Nothing;
    let mut counted = [0; 2];
    let mut acknowledges = Vec::new();
    loop {
        let arrival = match arrival.take() {
            Some(arrival) => arrival,
            None => {
                // As the sync below: while one waits, nothing is held for the other.
                let hello = next_hello(service, channel, stay, before, acknowledges);
                let hello = Box::pin(hello).await?;
                PendingHello::new(hello, service, channel)
            }
        };
        let sync = sync(service, channel, guest, stay, arrival, before, counted);
        // On the heap, where it takes no room between syncs.
        let Some(ended) = Box::pin(sync).await else {
            return Ok(());
        };
        (before, counted, acknowledges) = ended;
    }
}

/// One sync: with what the next one has to know, unless there is none after this.
async fn sync(
    service: &SyncService,
    channel: ConnectionChannel<'_>,
    guest: &Principal,
    stay: &Registration<'_>,
    arrival: Box<PendingHello>,
    before: Before,
    counted: [u64; 2],
) -> Option<(Before, [u64; 2], Vec<ScriptRun>)> {
    let mut sync = Sync::new(service, channel, guest, stay, &arrival, before, counted);
    service.wakes.syncing(stay.number());
    let served = service.publications.served();
    let mut result = tokio::select! {
        biased;
        () = service.shutdown.aborted() => Err(Fault::shutting_down()),
        reason = stay.shut_out() => Err(Fault::shut_out(reason)),
        result = timeout(service.limits.sync, sync.run(arrival)) => {
            result.unwrap_or_else(|_| Err(Fault::timeout("the sync took too long")))
        }
    };
    if let Err(fault) = &result
        && fault.may_be_outdated()
        && service.publications.differ_from(&served).await
    {
        tracing::debug!(%fault, detail = fault.detail, "overtaken by a deployment");
        result = Err(Fault::redeployed());
    }
    if let Err(fault) = &result
        && !fault.silent
        && fault.code != Code::Cancelled
    {
        // A message of a few hundred bytes fits into a frame.
        let _ = channel.send(fault.to_control());
    }
    channel.flush();
    let held = match &result {
        Ok(_) => std::mem::take(&mut sync.held),
        Err(_) => Vec::new(),
    };
    service.wakes.synced(
        stay.number(),
        held,
        sync.downloading_since,
        sync.context.take(),
    );
    let acknowledges = std::mem::take(&mut sync.acknowledges);
    let counted = sync.conclude(&result);
    match result {
        Ok(end) => Some((end, counted, acknowledges)),
        Err(fault) if fault.code == Code::Cancelled => {
            Some((Before::AbandonedSync, counted, Vec::new()))
        }
        Err(_) => None,
    }
}

/// A program syncs nothing: it stays until it is shut out, or the server shuts down.
pub async fn refuse_sync(
    service: &SyncService,
    channel: ConnectionChannel<'_>,
    stay: &Registration<'_>,
) -> Result<(), Fault> {
    tokio::select! {
        biased;
        reason = stay.shut_out() => Err(Fault::shut_out(reason)),
        incoming = channel.incoming() => {
            incoming.and_then(|_| Err(Fault::unexpected("a sync of a program without a file")))
        }
        () = service.shutdown.draining() => Err(Fault::shutting_down()),
    }
}

/// What went before a Hello.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// It is the first of its connection.
    Nothing,
    /// A sync that is complete but for the acknowledgement.
    CompleteSync,
    /// A sync of which the remote may still have been sending.
    AbandonedSync,
}

/// The next Hello. What is left of an abandoned sync before it is dropped.
async fn next_hello(
    service: &SyncService,
    channel: ConnectionChannel<'_>,
    stay: &Registration<'_>,
    before: Before,
    mut acknowledges: Vec<ScriptRun>,
) -> Result<Hello, Fault> {
    let wait = async {
        loop {
            match channel.incoming().await? {
                ChannelInput::Control(Control::Hello(hello)) => return Ok(hello),
                ChannelInput::Control(Control::Failure(_)) => return Err(Fault::gone()),
                ChannelInput::Rows(bytes) if before == Before::AbandonedSync => {
                    channel.consumed(bytes.len());
                }
                ChannelInput::Control(_) if before == Before::AbandonedSync => {}
                ChannelInput::Control(Control::Ack(_)) if before == Before::CompleteSync => {
                    Box::pin(run_acknowledged(
                        &service.lanes,
                        std::mem::take(&mut acknowledges),
                    ))
                    .await;
                }
                _ => return Err(Fault::unexpected("a message before the Hello")),
            }
        }
    };
    let within_idle = async {
        let mut wait = pin!(wait);
        loop {
            match timeout(service.limits.idle, &mut wait).await {
                Ok(result) => return Some(result),
                Err(_) if stay.is_kept() => {}
                Err(_) => return None,
            }
        }
    };
    tokio::select! {
        biased;
        reason = stay.shut_out() => Err(Fault::shut_out(reason)),
        // Nothing was asked, nothing is to be told.
        result = within_idle => result.unwrap_or_else(|| Err(Fault::gone())),
        () = service.shutdown.draining() => Err(Fault::shutting_down()),
    }
}

/// One sync.
struct Sync<'a> {
    service: &'a SyncService,
    channel: ConnectionChannel<'a>,
    guest: &'a Principal,
    stay: &'a Registration<'a>,
    started: Instant,
    /// Bytes that had been received by then.
    received_before: u64,
    /// It is the first of its connection, which counts with it.
    is_first: bool,
    /// What the syncs before it took, received and sent.
    bytes_before: [u64; 2],
    record: SyncRecord,
    /// The Hello was looked into.
    counts: bool,
    /// What the remote holds with the download, by publication.
    held: Vec<(String, RemoteHolding)>,
    /// For whom the download is read.
    context: Option<Arc<SyncContext>>,
    /// Who is told of its end.
    began: Began,
    /// Before the download began.
    downloading_since: Instant,
    /// What is run when the remote says that it has everything.
    acknowledges: Vec<ScriptRun>,
}

/// Everything that came up to the request for the download.
struct ReceivedSync {
    received: ReceivedRows,
    compares: Vec<Vec<TableCompare>>,
    /// The memory that these hold.
    reservation: Reservation,
    request: DownloadRequest,
    validity: SessionValidity,
}

/// How often conflicts are decided anew because somebody else was faster than the decision.
const RESOLVING_ROUNDS: usize = 5;

/// Uploads on their way into the centre.
struct SubmittedUploads {
    /// With the indexes of their subscriptions.
    uploads: Vec<(usize, SyncUpload)>,
    validity: SessionValidity,
    rows: u64,
    bytes: u64,
    /// The memory that the rows hold.
    reservation: Arc<Reservation>,
    scripts: ScriptUse,
}

/// What is asked for besides the changes.
struct DownloadRequests {
    /// Per subscription, in the order of the Hello.
    requests: Vec<Vec<TableRequest>>,
    compares: Vec<Vec<TableCompare>>,
    reservation: Reservation,
    upload_only: bool,
    scripts: ScriptUse,
}

impl<'a> Sync<'a> {
    fn new(
        service: &'a SyncService,
        channel: ConnectionChannel<'a>,
        guest: &'a Principal,
        stay: &'a Registration<'a>,
        arrival: &PendingHello,
        before: Before,
        bytes_before: [u64; 2],
    ) -> Sync<'a> {
        Sync {
            service,
            channel,
            guest,
            stay,
            started: arrival.started,
            received_before: arrival.received,
            is_first: before == Before::Nothing,
            bytes_before,
            record: SyncRecord {
                remote_id: Some(guest.remote_id),
                user: guest.user.clone(),
                publications: arrival.publications.clone(),
                started_ms: service.environment.clock.now_ms(),
                ..SyncRecord::default()
            },
            counts: false,
            held: Vec::new(),
            context: None,
            began: Began::new(),
            downloading_since: Instant::now(),
            acknowledges: Vec::new(),
        }
    }

    // Stages wait in boxes of their own, so that a sync that waits costs no more than its stage.
    async fn run(&mut self, arrival: Box<PendingHello>) -> Result<Before, Fault> {
        if arrival.looked_up.is_none() && self.service.admission.is_full() {
            return Err(self.service.admission.busy());
        }
        let Some(mut opened) = Box::pin(self.open(arrival)).await? else {
            self.channel.send(Control::SyncEnd(SyncEnd {}))?;
            return Ok(Before::AbandonedSync);
        };
        let scripts = SyncScripts::new(&opened, self.service)?;
        let asking = Box::pin(self.begin(&opened)).await?;
        let begun = Instant::now();
        Box::pin(self.run_scripts(&opened, &scripts, ScriptTransaction::Begin)).await?;
        opened.took("begin", begun.elapsed());
        let ReceivedSync {
            received,
            compares,
            reservation: comparing,
            request,
            validity,
        } = Box::pin(self.receive(&mut opened)).await?;
        let ReceivedRows {
            uploads,
            requests,
            rows,
            bytes,
            reservation,
        } = received;
        let mut applied = AppliedUploads::default();
        // Nothing waits for the remote from here until the download is read.
        let scripts_use = Box::pin(self.script_use(&scripts)).await?;
        if uploads.is_empty() {
            drop(reservation);
        } else {
            let indexes: Vec<usize> = uploads.iter().map(|it| place_of(&it.begin)).collect();
            let context = opened.context(self.service.environment.clock.now_ms());
            let uploads = uploads.into_iter();
            let uploads = uploads.map(|upload| opened.job(upload, context.clone()));
            let mut uploads: Vec<SyncUpload> = uploads.collect();
            Box::pin(self.judge(&opened, &asking, &mut uploads, &indexes)).await?;
            let given = SubmittedUploads {
                uploads: indexes.into_iter().zip(uploads).collect(),
                validity,
                rows,
                bytes,
                reservation: Arc::new(reservation),
                scripts: scripts_use.clone(),
            };
            let begun = Instant::now();
            applied = Box::pin(self.upload(&opened, &asking, given)).await?;
            opened.took("upload", begun.elapsed());
            // Before the download begins, or the remote would be told of what it did itself.
            if self.service.wakes.awaits_look(self.stay.number()) {
                self.service.hub.tell_changed();
                Box::pin(self.service.wakes.look()).await;
            } else {
                self.service.wakes.look_soon();
            }
        }
        let now_ms = self.service.environment.clock.now_ms();
        self.context = Some(Arc::new(opened.context(now_ms)));
        let downloads = !request.upload_only;
        let wanted = DownloadRequests {
            requests,
            compares,
            reservation: comparing,
            upload_only: request.upload_only,
            scripts: scripts_use,
        };
        let begun = Instant::now();
        Box::pin(self.download((&opened, &asking), applied, wanted, validity)).await?;
        opened.took("download", begun.elapsed());
        Box::pin(self.run_scripts(&opened, &scripts, ScriptTransaction::End)).await?;
        let now_ms = self.service.environment.clock.now_ms();
        self.acknowledges = opened.scripts(ScriptTransaction::Acknowledged, now_ms)?;
        self.channel.send(Control::SyncEnd(SyncEnd {}))?;
        if downloads {
            self.record.verified = opened.verifies();
            let published = opened.subscriptions.iter().map(|it| &it.published);
            let known = published.map(|it| (it.schema.name.clone(), it.hash.to_vec()));
            self.record.schemas = known.collect();
        }
        Ok(Before::CompleteSync)
    }

    /// How certain it is that the remote may go on.
    fn validity(&self) -> SessionValidity {
        if self.channel.bytes()[0] == self.received_before {
            SessionValidity::known_since(self.started)
        } else {
            SessionValidity::doubtful()
        }
    }

    /// Receives everything up to the request for the download. If all of it was there with
    /// the Hello, what was looked up for the Hello is still certain.
    async fn receive(&self, opened: &mut OpenedSync) -> Result<ReceivedSync, Fault> {
        let broken = opened.subscriptions.iter_mut();
        let broken = broken.map(|it| it.broken.take()).collect();
        let limits = &self.service.limits;
        let expected = opened
            .subscriptions
            .iter()
            .map(|subscription| ExpectedUpload {
                schema: &subscription.published.schema,
                state: subscription.state,
                sequence: subscription.sequence,
                upload_id: subscription.pending,
            });
        let budget = self.channel.budget();
        let mut receiver = Receiver::new(limits, budget, expected.collect(), broken);
        let expected =
            opened
                .subscriptions
                .iter()
                .map(|subscription| compare::ComparedSubscription {
                    schema: &subscription.published.schema,
                    compares: subscription.compares,
                    schema_differs: subscription.schema_differs,
                });
        let mut comparing = CompareReader::new(expected.collect(), budget);
        match self.take_all(&mut receiver, &mut comparing).await {
            Ok(request) => {
                let (compares, reservation) = comparing.finish()?;
                Ok(ReceivedSync {
                    received: receiver.finish()?,
                    compares,
                    reservation,
                    request,
                    validity: self.validity(),
                })
            }
            Err(fault) => {
                if fault.code == Code::ConnectionLost || fault.code == Code::Timeout {
                    self.keep_uploads(opened, receiver);
                }
                Err(fault)
            }
        }
    }

    /// Keeps what has come of an upload whose line broke.
    fn keep_uploads(&self, opened: &OpenedSync, receiver: Receiver<'_>) {
        for (index, broken) in receiver.into_broken(kept_uploads::LEAST_BYTES) {
            let subscription = &opened.subscriptions[index];
            let name = UploadName {
                remote_id: opened.remote_id,
                publication: subscription.published.schema.name.clone(),
                sequence: subscription.sequence,
                upload_id: subscription.upload_id(),
                schema_hash: subscription.published.hash,
            };
            self.service.kept_uploads.keep(name, broken);
        }
    }

    /// Takes what comes up to and with the request for the download.
    async fn take_all(
        &self,
        receiver: &mut Receiver<'_>,
        comparing: &mut CompareReader<'_>,
    ) -> Result<DownloadRequest, Fault> {
        let limits = &self.service.limits;
        loop {
            let incoming = timeout(limits.idle, self.channel.incoming()).await;
            match incoming.map_err(|_| Fault::timeout("the remote is silent"))?? {
                ChannelInput::Rows(bytes) => {
                    receiver.rows(&bytes)?;
                    self.channel.consumed(bytes.len());
                }
                ChannelInput::Control(control) => match control {
                    Control::UploadBegin(begin) => receiver.upload_begin(begin)?,
                    Control::TableBegin(begin) => receiver.table_begin(begin)?,
                    Control::UploadEnd(end) => receiver.upload_end(end)?,
                    Control::RequestBegin(begin) => receiver.request_begin(begin)?,
                    Control::CompareTable(compare) => {
                        receiver.pause("a comparison")?;
                        comparing.table(compare)?;
                    }
                    Control::DownloadRequest(request) => return Ok(request),
                    Control::Cancel(_) => return Err(Fault::cancelled()),
                    Control::Failure(_) => return Err(Fault::gone()),
                    _ => return Err(Fault::unexpected("a message")),
                },
                ChannelInput::Message(_) => return Err(Fault::unexpected("a message frame")),
            }
        }
    }

    /// Has uploads applied. Where handlers decide of conflicts, these are found first, and the
    /// uploads are given again with what was decided.
    async fn upload(
        &mut self,
        opened: &OpenedSync,
        asking: &SyncHandlers,
        given: SubmittedUploads,
    ) -> Result<AppliedUploads, Fault> {
        let SubmittedUploads {
            mut uploads,
            validity,
            rows,
            bytes,
            reservation,
            scripts,
        } = given;
        let mut applied = AppliedUploads::default();
        for _ in 0..RESOLVING_ROUNDS {
            let is_kept = |it: &SyncUpload| asking.handlers.resolves(&it.publication);
            let kept = uploads.iter();
            let kept: Vec<_> = kept
                .map(|it| is_kept(&it.1).then(|| it.1.clone()))
                .collect();
            let (indexes, uploading): (Vec<usize>, Vec<SyncUpload>) = uploads.into_iter().unzip();
            let (reply, answer) = oneshot::channel();
            let task = UploadTask {
                validity,
                uploads: uploading,
                rows,
                bytes,
                reservation: reservation.clone(),
                scripts: scripts.clone(),
                timer: self.service.metrics.timer(Phase::Wait),
                reply,
            };
            let outcomes = self.apply(task, answer).await?;
            uploads = Vec::new();
            for ((index, outcome), kept) in indexes.into_iter().zip(outcomes).zip(kept) {
                match (outcome, kept) {
                    (UploadOutcome::Contended { rows }, Some(mut upload)) => {
                        let contended = (&upload, &*rows);
                        let decided =
                            Box::pin(self.resolve(opened, asking, index, contended)).await?;
                        upload.resolutions.extend(decided);
                        uploads.push((index, upload));
                    }
                    (outcome, _) => {
                        let published = &opened.subscriptions[index].published;
                        let noted = self.note(&mut applied, index, outcome);
                        noted.map_err(|fault| fault.of_upload(&published.schema.name))?;
                    }
                }
            }
            if uploads.is_empty() {
                return Ok(applied);
            }
        }
        // Somebody was always faster.
        Err(self.service.admission.busy())
    }

    /// Waits in the backlog and for the worker that applies the uploads.
    async fn apply(
        &mut self,
        task: UploadTask,
        answer: oneshot::Receiver<Result<Vec<UploadOutcome>, tidewater_centre::CentreError>>,
    ) -> Result<Vec<UploadOutcome>, Fault> {
        let lane = &self.service.lanes.uploads;
        if self.service.admission.exceeds_backlog(lane.waiting()) {
            return Err(self.service.admission.busy());
        }
        let ticket = lane.submit(task);
        let mut watch = Watch::new(self.channel, self.service.limits.waiting);
        let mut answer = pin!(lane.answered(answer));
        loop {
            tokio::select! {
                biased;
                outcomes = &mut answer => return outcomes,
                fault = watch.interrupted() => return Err(fault),
                () = watch.tick() => watch.waiting(lane.ahead(ticket))?,
            }
        }
    }

    /// What became of the upload of a subscription.
    fn note(
        &mut self,
        applied: &mut AppliedUploads,
        index: usize,
        outcome: UploadOutcome,
    ) -> Result<(), Fault> {
        match outcome {
            UploadOutcome::Applied { result, own } => {
                self.record.uploaded[0] += result.inserts;
                self.record.uploaded[1] += result.updates;
                self.record.uploaded[2] += result.deletes;
                self.record.conflicts += result.conflicts;
                self.record.refused += result.refused;
                applied.results.push((index, result));
                applied.own.push((index, own));
            }
            UploadOutcome::AlreadyApplied { result } => applied.results.push((index, result)),
            // What the other subscriptions uploaded is applied all the same; their
            // results follow at the next sync.
            UploadOutcome::Failed { error } => return Err(error.into()),
            UploadOutcome::Contended { .. } => {
                return Err(Fault::internal(
                    "conflicts are a handler's affair, and the configuration has none",
                ));
            }
            UploadOutcome::OutOfSequence => {
                return Err(Fault {
                    retry_after_ms: 1_000,
                    ..Fault::new(
                        Code::SyncInProgress,
                        "another sync of this remote went ahead",
                        "sync again",
                    )
                });
            }
        }
        Ok(())
    }

    /// Has the downloads read, and sends results and downloads as they come.
    async fn download(
        &mut self,
        (opened, asking): (&OpenedSync, &SyncHandlers),
        mut applied: AppliedUploads,
        wanted: DownloadRequests,
        validity: SessionValidity,
    ) -> Result<(), Fault> {
        let stored: Vec<(usize, String)> = opened
            .subscriptions
            .iter()
            .enumerate()
            .filter(|(_, subscription)| subscription.state == UploadState::AlreadyApplied)
            .map(|(index, subscription)| (index, subscription.published.schema.name.clone()))
            .collect();
        if wanted.upload_only && stored.is_empty() {
            let sent = reply::send_results(self, opened, applied.results, true);
            return Box::pin(sent).await;
        }
        // Until the download is sent.
        let mut memory = self.service.budget.empty();
        let DownloadRequests {
            requests,
            compares,
            reservation,
            upload_only,
            scripts,
        } = wanted;
        let job = match upload_only {
            true => None,
            false => {
                let asked = (&*requests, &mut memory);
                let given = Box::pin(self.all_given(opened, asking, asked)).await?;
                let besides = requests.into_iter().zip(compares).zip(given);
                Some(self.download_job(opened, &mut applied, besides))
            }
        };
        self.downloading_since = Instant::now();
        let (writer, reader) = download_spool(&self.service.budget);
        let lane = &self.service.lanes.downloads;
        // Whoever has waited for the upload keeps the place: turned away now, the remote
        // would come back only to wait a second time.
        let is_new = applied.results.is_empty();
        if is_new && self.service.admission.exceeds_backlog(lane.waiting()) {
            return Err(self.service.admission.busy());
        }
        let ticket = lane.submit(DownloadTask {
            remote_id: opened.remote_id,
            validity,
            stored,
            job,
            reservation,
            scripts,
            timer: self.service.metrics.timer(Phase::Wait),
            spool: writer,
        });
        reply::send_all(self, opened, applied.results, upload_only, reader, ticket).await
    }

    /// What handlers give of the tables of which they say what is new, by subscription.
    async fn all_given(
        &mut self,
        opened: &OpenedSync,
        asking: &SyncHandlers,
        (requests, memory): (&[Vec<TableRequest>], &mut Reservation),
    ) -> Result<Vec<Vec<GivenTable>>, Fault> {
        let mut given = Vec::with_capacity(requests.len());
        for of in requests.iter().map(Vec::as_slice).enumerate() {
            given.push(self.given(opened, asking, of, memory).await?);
        }
        Ok(given)
    }
}
