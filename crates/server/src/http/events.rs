//! Events over HTTP: published by a request, and sent as server-sent events.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::BytesMut;
use futures_util::stream;
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use tidewater_protocol::event::{EventRef, EventsReader, put_event};
use tidewater_protocol::message::CallFailed;

use super::caller::{IdentifiedCaller, key};
use super::problem::Problem;
use super::{RequestBody, Web, text};
use tidewater_centre::Caller;
use tidewater_server_identity::registry::WATCH_EVERY;
use tidewater_server_live::event_requests::After;
use tidewater_server_live::spaces::{Notice, Refusal, SpaceMember, User};

/// A subscriber hears something as often as that, so that neither he nor what is between takes the
/// connection for dead.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Publishes the body under a subject.
pub(super) async fn publish(
    State(web): State<Web>,
    Path((space, subject)): Path<(String, String)>,
    who: IdentifiedCaller,
    headers: HeaderMap,
    RequestBody(body): RequestBody,
) -> Result<Response, Problem> {
    let key = match text(&headers, "idempotency-key")? {
        None => None,
        Some(text) => key(text)?[..].try_into().ok(),
    };
    let mut packed = BytesMut::new();
    let whole = format!("{space}/{subject}");
    put_event(&mut packed, &whole, None, &body).map_err(|error| {
        CallFailed::new(error.code(), error.to_string(), "write a shorter subject")
    })?;
    let user = User::new(&who.caller.user);
    let (requests, packed) = (&web.services.events, packed.freeze());
    let published = requests
        .publish(&user, &who.caller, &space, &packed, key)
        .await;
    Ok(match published? {
        Some(position) => Json(json!({ "position": position.to_string() })).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

#[derive(Deserialize)]
pub(super) struct SubscriptionQuery {
    /// A pattern, without the space.
    subject: Option<String>,
    /// `first`, or a position.
    after: Option<String>,
    /// `json`: with the subject of each.
    format: Option<String>,
}

/// Sends events as they come.
pub(super) async fn subscribe(
    State(web): State<Web>,
    Path(space): Path<String>,
    Query(asked): Query<SubscriptionQuery>,
    who: IdentifiedCaller,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    // Whoever comes back goes on where he was.
    let after = match text(&headers, "last-event-id")? {
        Some(id) if !id.is_empty() => Some(id),
        _ => asked.after.as_deref(),
    };
    let after = after.map(parse_after).transpose()?;
    let with_subjects = match asked.format.as_deref() {
        None | Some("text") => false,
        Some("json") => true,
        Some(other) => {
            return Err(Problem::bad(
                format!("there is no format {other:?}"),
                "write format=json or format=text",
            ));
        }
    };
    let pattern = asked.subject.as_deref().unwrap_or(">");
    let (requests, caller) = (&web.services.events, &who.caller);
    let member = SpaceMember::join(requests.hub(), &caller.user);
    requests
        .subscribe(&member, caller, &space, pattern, after)
        .await?;
    let feed = Feed {
        caller: who.caller,
        member,
        with_subjects,
        heartbeat: Instant::now(),
        watch: Instant::now() + WATCH_EVERY,
        web,
    };
    let stream = stream::unfold(Some(feed), |feed| async move {
        let mut feed = feed?;
        let (text, goes_on) = feed.next().await;
        Some((Ok::<_, Infallible>(text), goes_on.then_some(feed)))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, Body::from_stream(stream)).into_response())
}

/// What one subscriber gets.
struct Feed {
    web: Web,
    caller: Arc<Caller>,
    member: SpaceMember,
    with_subjects: bool,
    /// When it is due.
    heartbeat: Instant,
    /// When it is looked whether the user may stay.
    watch: Instant,
}

impl Feed {
    /// What is sent next, and whether more may follow.
    async fn next(&mut self) -> (String, bool) {
        loop {
            let mut text = String::new();
            let goes_on = tokio::select! {
                biased;
                () = self.web.services.shutdown.draining() => {
                    text.push_str("retry: 1000\n\n");
                    false
                }
                () = sleep_until(self.watch) => {
                    self.watch = Instant::now() + WATCH_EVERY;
                    self.may_stay().await
                }
                slice = self.member.next() => match slice {
                    Ok(slice) => {
                        self.write_all(&slice, &mut text);
                        true
                    }
                    Err(refusal) => {
                        write_refusal(&refusal, &mut text);
                        false
                    }
                },
                notice = self.member.notice() => {
                    write_notice(&notice, &mut text);
                    true
                }
                () = sleep_until(self.heartbeat) => {
                    text.push_str(":\n\n");
                    true
                }
            };
            if !text.is_empty() || !goes_on {
                self.heartbeat = Instant::now() + HEARTBEAT;
                return (text, goes_on);
            }
        }
    }

    /// Whether the user was neither disabled nor removed meanwhile, as far as the centre can be asked.
    async fn may_stay(&self) -> bool {
        match self.web.callers.check(&self.web, &self.caller.user).await {
            Ok(_) => true,
            Err(fault) => fault.code.is_transient(),
        }
    }

    fn write_all(&self, slice: &Bytes, text: &mut String) {
        let mut reader = EventsReader::new(slice, usize::MAX);
        while let Ok(Some(event)) = reader.next_event() {
            self.write(&event, text);
        }
    }

    fn write(&self, event: &EventRef<'_>, out: &mut String) {
        if let Some(position) = event.position {
            let _ = writeln!(out, "id: {position}");
        }
        let as_text = std::str::from_utf8(event.payload).ok();
        if self.with_subjects {
            let (_, subject) = event.subject.split_once('/').unwrap_or_default();
            let data = match as_text {
                Some(text) => json!({ "subject": subject, "text": text }),
                None => json!({ "subject": subject, "base64": STANDARD.encode(event.payload) }),
            };
            let _ = writeln!(out, "data: {data}");
        } else {
            // A carriage return would end a line, and be lost.
            match as_text.filter(|it| !it.contains('\r')) {
                Some(text) => {
                    for line in text.split('\n') {
                        let _ = writeln!(out, "data: {line}");
                    }
                }
                None => {
                    let data = STANDARD.encode(event.payload);
                    let _ = writeln!(out, "event: binary\ndata: {data}");
                }
            }
        }
        out.push('\n');
    }
}

fn write_notice(notice: &Notice, out: &mut String) {
    let (event, data) = match notice {
        Notice::Missed { events, .. } => ("missed", json!({ "events": events })),
        Notice::History { .. } => ("history", json!({})),
        Notice::Unsubscribed { pattern } => {
            let (_, subject) = pattern.split();
            ("unsubscribed", json!({ "subject": subject }))
        }
        // It publishes nothing.
        Notice::Refused { .. } => return,
    };
    let _ = write!(out, "event: {event}\ndata: {data}\n\n");
}

fn write_refusal(refusal: &Refusal, out: &mut String) {
    let data = json!({
        "code": refusal.code().name(),
        "detail": refusal.to_string(),
        "hint": refusal.hint(),
    });
    let _ = write!(out, "event: error\ndata: {data}\n\n");
}

fn parse_after(text: &str) -> Result<After, Problem> {
    match text {
        "first" => Ok(After::Beginning),
        _ => text.parse().map(After::Position).map_err(|_| {
            Problem::bad(
                format!("{text:?} is no position"),
                "write the id of an event, or after=first for all that is kept",
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use tidewater_protocol::event::EventPosition;

    use super::*;

    #[test]
    fn a_position_is_read_as_it_is_written() {
        let position = EventPosition {
            id: 7,
            check: u64::MAX - 3,
        };
        let text = position.to_string();
        assert_eq!(text, "0700000000000000fcffffffffffffff");
        assert_eq!(parse_after(&text).unwrap(), After::Position(position));
        assert_eq!(parse_after("first").unwrap(), After::Beginning);
        for text in ["", "7", "+700000000000000fcffffffffffffff", "x"] {
            assert!(parse_after(text).is_err(), "{text}");
        }
    }
}
