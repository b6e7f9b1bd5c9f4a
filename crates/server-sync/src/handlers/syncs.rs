//! Syncs as a whole: a handler that lets them begin, and is told that they have ended.

use std::sync::Arc;

use serde_json::{Map, Value as Json};

use tidewater_centre::Caller;
use tidewater_centre::records::SyncRecord;
use tidewater_protocol::Code;

use super::document::whole;
use super::upload::reason;
use super::{About, Document, Handler, HandlerReply, HandlerServices, key_of};
use tidewater_server_config::HandlerEvent;
use tidewater_server_jobs::fault::Fault;

/// No answer is longer.
const ANSWER_BYTES: usize = 64 << 10;

impl Handler {
    /// Whether it is asked at an event.
    pub fn wants(&self, event: HandlerEvent) -> bool {
        let events = self.config.events.as_ref();
        events.is_none_or(|it| it.contains(&event))
    }

    /// Asks whether a sync may begin.
    ///
    /// # Errors
    /// It may not, or the handler does not say.
    pub async fn begin(
        &self,
        services: &HandlerServices,
        caller: &Arc<Caller>,
        about: &About,
    ) -> Result<(), Fault> {
        let event = HandlerEvent::BeginSynchronization;
        let mut head = about.head(event);
        let parameters = about.context.parameters.get(&about.publication);
        let parameters = parameters.into_iter().flatten();
        let parameters: Map<String, Json> = parameters
            .map(|(name, value)| (name.clone(), Json::from(value.as_str())))
            .collect();
        head.insert("parameters".into(), parameters.into());
        let document = Document::of(event, head, &about.key(event));
        let reply = self.ask(services, caller, &document, ANSWER_BYTES).await?;
        let refused = read(&reply).map_err(|what| self.wrong(event, &what))?;
        match refused {
            None => Ok(()),
            Some(reason) => Err(Fault::new(
                Code::SyncRefused,
                reason,
                "the server's operator decides who may sync when; nothing is lost",
            )),
        }
    }

    /// Tells that a sync has ended. If nobody listens, the log has it.
    pub async fn end(
        self: Arc<Handler>,
        services: Arc<HandlerServices>,
        caller: Arc<Caller>,
        about: About,
        record: SyncRecord,
    ) {
        let event = HandlerEvent::EndSynchronization;
        let mut head = about.head(event);
        let outcome = match record.error.as_str() {
            "" => "done",
            code => code,
        };
        head.insert("outcome".into(), outcome.into());
        let counts = [
            ("inserts", record.uploaded[0]),
            ("updates", record.uploaded[1]),
            ("deletes", record.uploaded[2]),
            ("conflicts", record.conflicts),
            ("refused", record.refused),
            ("upserts", record.downloaded[0]),
            ("removals", record.downloaded[1]),
            ("duration_ms", record.duration_ms),
        ];
        for (name, count) in counts {
            head.insert(name.into(), count.into());
        }
        let document = Document::of(event, head, &about.key(event));
        let told = self.ask(&*services, &caller, &document, ANSWER_BYTES).await;
        if let Err(fault) = told {
            let (handler, detail) = (&self.config.name, &fault.detail);
            let sync = &about.sync_id;
            tracing::warn!(
                handler,
                sync,
                detail,
                "a handler was not told that a sync has ended"
            );
        }
    }
}

impl About {
    /// The key of what is asked once in a sync.
    fn key(&self, event: HandlerEvent) -> String {
        let parts = [event.name(), &self.sync_id, &self.publication];
        key_of(&parts.map(str::as_bytes))
    }
}

/// Why a sync may not begin; `None`: it may.
fn read(reply: &HandlerReply) -> Result<Option<String>, String> {
    if reply.body.is_empty() {
        return Ok(None);
    }
    let answer = whole(reply)?;
    match answer.get("verdict").map(|it| it.as_str()) {
        None | Some(Some("accept")) => Ok(None),
        Some(Some("refuse")) => reason(&answer).map(Some),
        Some(_) => Err("\"verdict\" has to be \"accept\" or \"refuse\"".into()),
    }
}
