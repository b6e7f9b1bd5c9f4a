//! Providers that speak HTTP: they ask for calls, and send back what comes of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use prost::Message as _;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep, timeout_at};

use tidewater_protocol::identity::format_uuid;
use tidewater_protocol::json;
use tidewater_protocol::message::{Call, CallFailed, CallKind};
use tidewater_protocol::{Code, RemoteId};

use super::caller::IdentifiedCaller;
use super::problem::Problem;
use super::{RequestBody, Web, WebServices, value};
use tidewater_server_live::outgoing_calls::OutgoingCalls;

/// How long a request for a call waits, unless it says so itself, and at most.
const WAIT: Duration = Duration::from_secs(25);

/// A provider that does not ask for so long is gone.
const GONE_AFTER: Duration = Duration::from_secs(30);

/// How often that is looked at.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Those who provide a procedure over HTTP: one for each user and procedure, however many ask.
#[derive(Default)]
pub(super) struct WebProviders(Mutex<Seats>);

#[derive(Default)]
struct Seats {
    last: u64,
    of: HashMap<(String, String), Seat>,
}

struct Seat {
    number: u64,
    post: Arc<OutgoingCalls>,
    /// Requests that wait.
    waiting: usize,
    asked: Instant,
}

impl WebProviders {
    fn all(&self) -> MutexGuard<'_, Seats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn sweep(&self, services: &WebServices) {
        loop {
            sleep(SWEEP_EVERY).await;
            let mut gone = Vec::new();
            self.all().of.retain(|_, seat| {
                let stays = seat.waiting > 0 || seat.asked.elapsed() < GONE_AFTER;
                if !stays {
                    gone.push(seat.post.clone());
                }
                stays
            });
            gone.iter().for_each(|post| services.calls.gone(post));
        }
    }

    /// Takes a seat, or joins those who ask for the same.
    fn sit(
        &self,
        services: &WebServices,
        who: &IdentifiedCaller,
        name: &str,
    ) -> Result<WaitingRequest<'_>, CallFailed> {
        let key = (who.caller.user.clone(), name.to_owned());
        let mut all = self.all();
        if !all.of.contains_key(&key) {
            let post = OutgoingCalls::new(
                who.caller.clone(),
                &services.budget,
                services.limits.answer_bytes,
            );
            services.calls.provide(name, &post)?;
            all.last += 1;
            let seat = Seat {
                number: all.last,
                post,
                waiting: 0,
                asked: Instant::now(),
            };
            all.of.insert(key.clone(), seat);
        } else if let Some(seat) = all.of.get(&key) {
            // Another configuration may have come since.
            services.calls.provide(name, &seat.post)?;
        }
        let seat = all.of.get_mut(&key).expect("it was just taken");
        seat.waiting += 1;
        seat.post.attend(true);
        Ok(WaitingRequest {
            number: seat.number,
            post: seat.post.clone(),
            key,
            providers: self,
        })
    }

    /// The post of a call that this user was given, and its number there.
    fn find(
        &self,
        who: &IdentifiedCaller,
        call: &str,
    ) -> Result<(Arc<OutgoingCalls>, u64), Problem> {
        let parse = || {
            let (seat, id) = call.split_once('-')?;
            Some((seat.parse::<u64>().ok()?, id.parse::<u64>().ok()?))
        };
        let found = parse().and_then(|(number, id)| {
            let all = self.all();
            let mut seats = all.of.iter();
            let (_, seat) = seats
                .find(|((user, _), seat)| seat.number == number && *user == who.caller.user)?;
            seat.post.has(id).then(|| (seat.post.clone(), id))
        });
        found.ok_or_else(|| Problem::not_found("nobody waits for this call, or not any more"))
    }
}

/// A request that waits for a call.
struct WaitingRequest<'p> {
    number: u64,
    post: Arc<OutgoingCalls>,
    key: (String, String),
    providers: &'p WebProviders,
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        // The seat may be another one by now.
        let mut all = self.providers.all();
        let seat = all.of.get_mut(&self.key);
        if let Some(seat) = seat.filter(|it| it.number == self.number) {
            seat.waiting -= 1;
            seat.post.attend(seat.waiting > 0);
            seat.asked = Instant::now();
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Wait {
    /// Seconds.
    wait: Option<u64>,
}

/// A call for a provider.
#[derive(Serialize)]
struct CallForProvider {
    /// Names it to `/v1/answer/` and `/v1/fail/`.
    call: String,
    procedure: String,
    arguments: Map<String, Value>,
    /// Who calls.
    user: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remote_id: Option<String>,
    /// What is left of its time.
    timeout_ms: u32,
}

/// Gives the next call of a procedure, or none when none has come.
pub(super) async fn take(
    State(web): State<Web>,
    Path(name): Path<String>,
    Query(wait): Query<Wait>,
    who: IdentifiedCaller,
) -> Result<Response, Problem> {
    let wait = wait
        .wait
        .map_or(WAIT, |it| Duration::from_secs(it).min(WAIT));
    let until = Instant::now() + wait;
    let waiting = web.providers.sit(&web.services, &who, &name)?;
    loop {
        while let Some(message) = waiting.post.next() {
            // What is cancelled before it was given is not given.
            if CallKind::from_flags(message.flags) != Some(CallKind::Call) {
                continue;
            }
            let call = Call::decode(message.payload).map_err(|error| Problem::internal(&error))?;
            return Ok(Json(CallForProvider {
                call: format!("{}-{}", waiting.number, message.id),
                procedure: call.procedure,
                arguments: json::object(&call.arguments),
                user: call.user,
                remote_id: RemoteId::from_slice(&call.remote_id).map(|it| format_uuid(&it.0)),
                timeout_ms: message.deadline_ms,
            })
            .into_response());
        }
        tokio::select! {
            ready = timeout_at(until, waiting.post.ready()) => {
                if ready.is_err() {
                    return Ok(StatusCode::NO_CONTENT.into_response());
                }
            }
            () = web.services.shutdown.draining() => {
                return Err(tidewater_server_jobs::fault::Fault::shutting_down().into());
            }
        }
    }
}

/// Provides a procedure no longer.
pub(super) async fn leave(
    State(web): State<Web>,
    Path(name): Path<String>,
    who: IdentifiedCaller,
) -> StatusCode {
    let key = (who.caller.user.clone(), name);
    let seat = web.providers.all().of.remove(&key);
    if let Some(seat) = seat {
        web.services.calls.gone(&seat.post);
    }
    StatusCode::NO_CONTENT
}

/// What came of a call.
pub(super) async fn answer(
    State(web): State<Web>,
    Path(call): Path<String>,
    who: IdentifiedCaller,
    headers: HeaderMap,
    RequestBody(body): RequestBody,
) -> Result<StatusCode, Problem> {
    let (post, id) = web.providers.find(&who, &call)?;
    let answer = json::to_answer(&value(&headers, &body)?);
    post.end(id, Ok(answer.into()));
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
struct ProviderFailure {
    message: String,
    #[serde(default)]
    code: String,
    #[serde(default)]
    hint: String,
}

/// That nothing came of a call, and why.
pub(super) async fn fail(
    State(web): State<Web>,
    Path(call): Path<String>,
    who: IdentifiedCaller,
    RequestBody(body): RequestBody,
) -> Result<StatusCode, Problem> {
    let (post, id) = web.providers.find(&who, &call)?;
    let failed: ProviderFailure = serde_json::from_slice(&body).map_err(|error| {
        Problem::bad(
            format!("the body tells no failure: {error}"),
            "write {\"message\": \"out of stock\", \"code\": \"E17\"}",
        )
    })?;
    post.end(
        id,
        Err(CallFailed {
            own_code: failed.code,
            ..CallFailed::new(Code::ProcedureFailed, failed.message, failed.hint)
        }),
    );
    Ok(StatusCode::NO_CONTENT)
}
