//! Handlers: the operator's own programs, which are asked at events of syncs.
//!
//! Owns who they are, the way of one request to one of them and back (signed, within its time,
//! again if there is no answer, not at all while it is away), and what its answers mean. When they
//! are asked is the session's affair, what becomes of rows the centre's.

mod breaker;
mod document;
pub mod download;
mod operator;
mod password_handler;
pub mod resolve;
mod signature;
mod syncs;
pub mod upload;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use tidewater_carrier::cryptography::digest;
use tidewater_protocol::Code;

use self::breaker::Breaker;
pub use self::document::{About, Document};
pub use self::operator::OperatorHandlers;
pub use self::password_handler::HandlerPasswords;
use self::signature::{RequestSigner, hex};
use tidewater_centre::Caller;
use tidewater_server_config::{
    Config, HandlerAddress, HandlerAssignments, HandlerConfig, HandlerEvent, HandlerFormat,
    TableAssignment,
};
use tidewater_server_identity::web_client::{WebAnswer, WebClient, WebError, WebRequest};
use tidewater_server_jobs::admission::SyncAdmission;
use tidewater_server_jobs::environment::Environment;
use tidewater_server_jobs::error::ServerError;
use tidewater_server_jobs::fault::Fault;
use tidewater_server_jobs::metrics::Metrics;
use tidewater_server_live::calls::Calls;

/// The first pause before a request is sent again; the next ones are twice as long each.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// When a remote comes back whose handler did not answer.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// So much of what a handler says of its own errors is logged.
const TOLD_BYTES: usize = 300;

/// What is sent as rows, one line each, and may be answered so.
pub const LINES: &str = "application/x-ndjson";
const JSON: &str = "application/json";

/// The handlers of a server, and what they are asked.
pub struct Handlers(RwLock<Arc<HandlerSet>>);

/// What a configuration says of them.
#[derive(Default)]
pub struct HandlerSet {
    by_name: HashMap<String, Arc<Handler>>,
    handling: HandlerAssignments,
}

/// One of them.
pub struct Handler {
    /// How it is configured.
    pub config: HandlerConfig,
    /// `None` for a provider.
    client: Option<WebClient>,
    signer: RequestSigner,
    breaker: Breaker,
    /// Requests at the same time, of all syncs together.
    places: Semaphore,
}

/// What a handler has answered.
#[derive(Debug)]
pub struct HandlerReply {
    /// Of what kind it is.
    pub content_type: String,
    /// What is answered.
    pub body: Bytes,
}

/// What handlers need of the server.
pub struct HandlerServices {
    /// Clock and randomness.
    pub environment: Environment,
    /// Where requests are counted.
    pub metrics: Arc<Metrics>,
    /// When whoever has to wait comes back.
    pub admission: Arc<SyncAdmission>,
    /// Where providers are asked.
    pub calls: Arc<Calls>,
}

/// From where handlers are asked.
#[derive(Clone, Copy)]
pub struct HandlerHost<'h> {
    environment: &'h Environment,
    /// `None` for an operator's command.
    services: Option<&'h HandlerServices>,
}

impl<'h> From<&'h HandlerServices> for HandlerHost<'h> {
    fn from(services: &'h HandlerServices) -> HandlerHost<'h> {
        HandlerHost {
            environment: &services.environment,
            services: Some(services),
        }
    }
}

impl HandlerHost<'_> {
    /// Counts what came of a request.
    fn note(self, handler: &str, outcome: &'static str) {
        if let Some(services) = self.services {
            services.metrics.handler(handler, outcome);
        }
    }

    /// When to come again, if it makes no sense before that.
    fn later_ms(self, left: Duration) -> u64 {
        let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        self.services
            .map_or(left_ms, |it| it.admission.later_ms(left))
    }
}

/// Why there is no answer that counts.
#[derive(Debug)]
enum Trouble {
    /// It is away, or takes too long: it may be better later.
    Away(String),
    /// It refuses to answer: somebody has to put something right.
    Wrong(String),
}

impl HandlerSet {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}

impl Handlers {
    /// # Errors
    /// A file cannot be read or used.
    pub fn new(config: &Config) -> Result<Handlers, ServerError> {
        let known = HandlerSet::of(config, &HandlerSet::default())?;
        Ok(Handlers(RwLock::new(Arc::new(known))))
    }

    /// Those that there are now.
    pub fn current(&self) -> Arc<HandlerSet> {
        let known = self.0.read();
        known.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads another configuration; what is known of handlers that stay the same, stays.
    ///
    /// # Errors
    /// A file cannot be read or used.
    pub fn read(&self, config: &Config) -> Result<Arc<HandlerSet>, ServerError> {
        HandlerSet::of(config, &self.current()).map(Arc::new)
    }

    /// Goes by it from now on.
    pub fn replace(&self, known: Arc<HandlerSet>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = known;
    }
}

impl HandlerSet {
    fn of(config: &Config, before: &HandlerSet) -> Result<HandlerSet, ServerError> {
        let handlers = config.handlers.iter().map(|config| {
            let known = before.by_name.get(&config.name);
            let same = known.filter(|it| it.config == *config && !it.has_files());
            let handler = match same {
                Some(same) => same.clone(),
                None => Arc::new(Handler::new(config)?),
            };
            Ok((config.name.clone(), handler))
        });
        Ok(HandlerSet {
            by_name: handlers.collect::<Result<_, ServerError>>()?,
            handling: config.handling.clone(),
        })
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Handler>> {
        self.by_name.values()
    }

    /// The handler of a table, and what it is asked.
    pub fn of_table(
        &self,
        publication: &str,
        table: &str,
    ) -> Option<(&Arc<Handler>, &TableAssignment)> {
        let tables = &self.handling.tables;
        // Most servers have none, and every table of every sync asks.
        if tables.is_empty() {
            return None;
        }
        let handling = tables.get(&(publication.to_owned(), table.to_owned()))?;
        Some((self.by_name.get(&handling.handler)?, handling))
    }

    /// Whether some table of a publication has conflicts of which a handler decides.
    pub fn resolves(&self, publication: &str) -> bool {
        let mut tables = self.handling.tables.iter();
        tables.any(|((of, _), handling)| of == publication && handling.resolve)
    }

    /// The handler of a publication's syncs.
    pub fn of_publication(&self, publication: &str) -> Option<&Arc<Handler>> {
        self.by_name
            .get(self.handling.publications.get(publication)?)
    }

    /// The one that knows passwords.
    pub fn of_passwords(&self) -> Option<&Arc<Handler>> {
        self.by_name.get(self.handling.sign_in.as_ref()?)
    }

    /// How long no sync of a publication can succeed, because one that it needs is left alone.
    pub fn closed_for(&self, publication: &str) -> Option<Duration> {
        let now = Instant::now();
        let tables = self.handling.tables.iter();
        let tables = tables.filter(|((of, _), _)| of == publication);
        let tables = tables.map(|(_, it)| &it.handler);
        let own = self.handling.publications.get(publication);
        let handlers = tables.chain(own).filter_map(|it| self.by_name.get(it));
        handlers.filter_map(|it| it.breaker.closed_for(now)).max()
    }
}

impl Handler {
    fn new(config: &HandlerConfig) -> Result<Handler, ServerError> {
        let client = match &config.to {
            HandlerAddress::Call(_) | HandlerAddress::StandIn(_) => None,
            HandlerAddress::Web(_) => {
                let client = WebClient::new(config.ca.as_deref(), config.parallel);
                Some(client.map_err(|error| {
                    ServerError::configuration(
                        format!("handler {:?}: ca: {error}", config.name),
                        "name a PEM file with the certificate of the authority, or remove ca",
                    )
                })?)
            }
        };
        Ok(Handler {
            client,
            signer: RequestSigner::new(&config.secrets)?,
            breaker: Breaker::new(config.failures, config.pause),
            places: Semaphore::new(config.parallel),
            config: config.clone(),
        })
    }

    /// Whether something else may be in its files by now.
    fn has_files(&self) -> bool {
        let mut secrets = self.config.secrets.iter();
        let in_file =
            secrets.any(|it| matches!(it, tidewater_server_config::HandlerSecret::File(_)));
        in_file || self.config.ca.is_some()
    }

    /// Whether it is left alone at the moment.
    pub fn is_closed(&self) -> bool {
        self.breaker.closed_for(Instant::now()).is_some()
    }

    /// Asks it, and waits for its answer, for so many bytes at most. To drop it is not to ask any
    /// more; what was asked may have been done.
    ///
    /// # Errors
    /// It is away (then the remote may come back later), or refuses to answer.
    pub async fn ask(
        &self,
        host: impl Into<HandlerHost<'_>>,
        caller: &Arc<Caller>,
        document: &Document,
        max_bytes: usize,
    ) -> Result<HandlerReply, Fault> {
        let host = host.into();
        let mut pass = self.breaker.pass(Instant::now());
        let pass = pass
            .as_mut()
            .map_err(|left| self.away(host, *left, "it did not answer"))?;
        let Ok(_place) = self.places.acquire().await else {
            return Err(Fault::internal("a handler has no places"));
        };
        let mut pause = AGAIN_AFTER;
        let mut tries = 0;
        loop {
            let once = self.once(host, caller, document, max_bytes);
            let answered = timeout(self.config.timeout, once).await;
            let answered = answered.unwrap_or_else(|_| {
                let seconds = self.config.timeout.as_secs_f32();
                Err(Trouble::Away(format!("it took longer than {seconds} s")))
            });
            let outcome = match &answered {
                Ok(_) => "answered",
                Err(Trouble::Away(_)) => "away",
                Err(Trouble::Wrong(_)) => "wrong",
            };
            host.note(&self.config.name, outcome);
            match answered {
                Ok(reply) => {
                    pass.succeeded();
                    return Ok(reply);
                }
                Err(Trouble::Wrong(what)) => {
                    pass.succeeded();
                    return Err(self.wrong(document.event, &what));
                }
                Err(Trouble::Away(what)) => {
                    let is_open = pass.failed(Instant::now());
                    let name = &self.config.name;
                    tracing::warn!(handler = name, what, tries, is_open, "a handler is away");
                    if is_open {
                        return Err(self.away(host, self.config.pause, &what));
                    }
                    if tries == self.config.retries {
                        return Err(self.away(host, RETRY_AFTER, &what));
                    }
                    tries += 1;
                }
            }
            sleep(pause).await;
            pause *= 2;
        }
    }

    async fn once(
        &self,
        host: HandlerHost<'_>,
        caller: &Arc<Caller>,
        document: &Document,
        max_bytes: usize,
    ) -> Result<HandlerReply, Trouble> {
        match (&self.config.to, &self.client) {
            (HandlerAddress::Web(address), Some(client)) => {
                let now_ms = host.environment.clock.now_ms();
                let mut headers = self.signer.headers(now_ms, &document.body);
                headers.push(("content-type", document.content_type().to_owned()));
                headers.push(("accept", format!("{JSON}, {LINES}")));
                headers.push(("idempotency-key", document.key.clone()));
                headers.push(("tidewater-event", document.event.name().to_owned()));
                let request = WebRequest {
                    method: Method::POST,
                    headers: &headers,
                    body: document.body.clone(),
                    max_bytes,
                };
                let answer = client.ask(address, request).await;
                reply(answer.map_err(|error| match error {
                    WebError::Lost(_) => Trouble::Away(error.to_string()),
                    WebError::TooLong { .. } => Trouble::Wrong(error.to_string()),
                })?)
            }
            (HandlerAddress::Call(procedure), _) => {
                let services = host.services.ok_or_else(|| {
                    let what = "it is a provider, which only a server can ask: have the device send \
                                the row again";
                    Trouble::Wrong(what.into())
                })?;
                let request = String::from_utf8_lossy(&document.body).into_owned();
                let deadline = Instant::now() + self.config.timeout;
                let calls = &services.calls;
                let asked = calls.ask_provider(procedure, caller, request, deadline);
                let answer = asked.await.map_err(|failed| {
                    let what = failed.to_string();
                    match Code::from_number(failed.code) {
                        Some(code) if code.is_transient() || code == Code::ProviderGone => {
                            Trouble::Away(what)
                        }
                        _ => Trouble::Wrong(what),
                    }
                })?;
                let body = serde_json::to_vec(&answer).unwrap_or_default();
                match body.len() > max_bytes {
                    true => Err(Trouble::Wrong(format!(
                        "it answers with {} bytes, and {max_bytes} may be",
                        body.len()
                    ))),
                    false => Ok(HandlerReply {
                        content_type: JSON.to_owned(),
                        body: body.into(),
                    }),
                }
            }
            (HandlerAddress::StandIn(stand_in), _) => {
                let body = (stand_in.0)(&document.body);
                Ok(HandlerReply {
                    content_type: JSON.to_owned(),
                    body: body.into(),
                })
            }
            (HandlerAddress::Web(_), None) => Err(Trouble::Wrong("it has no client".into())),
        }
    }

    /// It does not answer. What there is to say of it is for the log.
    fn away(&self, host: HandlerHost<'_>, left: Duration, what: &str) -> Fault {
        let mut fault = Fault::handler_away(host.later_ms(left));
        fault.detail = format!("the handler {:?} is away: {what}", self.config.name);
        fault
    }

    /// It answers what it must not. What that is, is for the log.
    pub fn wrong(&self, event: HandlerEvent, what: &str) -> Fault {
        let mut fault = Fault::new(
            Code::HandlerFailed,
            "a program that the server asks answers what it must not",
            "tell the server's operator, who finds what it is in the server's log; nothing is lost",
        );
        let name = &self.config.name;
        fault.detail = format!("the handler {name:?}, asked about {}: {what}", event.name());
        fault
    }

    /// How rows are written for it.
    pub fn format(&self) -> HandlerFormat {
        self.config.format
    }
}

/// What an answer over HTTP says, if it does.
fn reply(answer: WebAnswer) -> Result<HandlerReply, Trouble> {
    let WebAnswer {
        status,
        content_type,
        body,
    } = answer;
    if status.is_success() {
        return Ok(HandlerReply { content_type, body });
    }
    let may_pass = status.is_server_error()
        || status == StatusCode::TOO_MANY_REQUESTS
        || status == StatusCode::REQUEST_TIMEOUT;
    let told = String::from_utf8_lossy(&body[..body.len().min(TOLD_BYTES)]).into_owned();
    let what = match told.trim() {
        "" => format!("it answers with status {status}"),
        told => format!("it answers with status {status}: {told}"),
    };
    Err(match may_pass {
        true => Trouble::Away(what),
        false => Trouble::Wrong(what),
    })
}

/// A key of something that is asked: the same for the same bytes.
fn key_of(parts: &[&[u8]]) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in parts {
        context.update(part);
        context.update(&[0]);
    }
    hex(&context.finish().as_ref()[..16])
}

/// What an answer says as an answer to each question, for `tidewater-fuzzing`.
pub struct Answers {
    /// Of two uploaded rows, an insert and a delete, numbered from 7.
    pub verdicts: Result<tidewater_centre::TableVerdicts, String>,
    /// Of what is new: the rows with all their columns, and removed keys.
    pub page: Result<[Vec<Vec<tidewater_protocol::Value>>; 2], String>,
}

/// Reads bytes as answers about rows of a table whose keys begin with `r/u/0-`.
pub fn read_answers(content_type: &str, body: &[u8], table: &tidewater_protocol::Table) -> Answers {
    use tidewater_protocol::Op;
    let reply = HandlerReply {
        content_type: content_type.to_owned(),
        body: Bytes::copy_from_slice(body),
    };
    let asked = upload::JudgedRows {
        table,
        prefix: "r/u/0-",
        first: 7,
        ops: &[Op::Insert, Op::Delete],
        keeps: false,
    };
    let page = download::page(&reply, table, false);
    Answers {
        verdicts: upload::verdicts(&reply, asked),
        page: page.map(|it| [it.rows, it.removed]),
    }
}
