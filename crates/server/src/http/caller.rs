//! Who asks: passwords become tokens, tokens become callers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, FromRequestParts, Request, State};
use axum::http::header;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout};

use tidewater_centre::Caller;
use tidewater_centre::records::ShutOutReason;
use tidewater_protocol::identity::parse_uuid;
use tidewater_protocol::message::{PROTOCOL_VERSION, PasswordChange, Proof, SignIn};

use super::problem::Problem;
use super::{SIGN_IN_BYTES, Web, forwarded, receive};
use tidewater_server_identity::registry::{PROGRAM, WATCH_EVERY};
use tidewater_server_identity::sign_in::{Origin, ParsedSignIn, shuts_programs_out};
use tidewater_server_identity::signing::TOKEN_LIFETIME_MS;
use tidewater_server_jobs::fault::Fault;

/// So many users are remembered.
const REMEMBERED: usize = 10_000;

/// The other side of a connection.
#[derive(Clone)]
pub(super) struct Peer(pub(super) String);

/// Whoever sent a token that counts.
pub(super) struct IdentifiedCaller {
    pub(super) caller: Arc<Caller>,
}

/// Whether users may still come in, as far as it was asked within the last second.
#[derive(Default)]
pub(super) struct Callers(Mutex<HashMap<String, CheckedUser>>);

#[derive(Clone)]
struct CheckedUser {
    asked: Instant,
    reason: Option<ShutOutReason>,
    caller: Arc<Caller>,
}

impl Callers {
    fn known(&self) -> MutexGuard<'_, HashMap<String, CheckedUser>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn check(&self, web: &Web, user: &str) -> Result<Arc<Caller>, Fault> {
        let before = self.known().get(user).cloned();
        let known = match before {
            Some(known) if known.asked.elapsed() < WATCH_EVERY => known,
            before => {
                let asked = Instant::now();
                let state = web.services.sign_in.look_up(user, None, Vec::new()).await?;
                let caller = before.map(|it| it.caller).unwrap_or_else(|| {
                    Arc::new(Caller {
                        user: user.to_owned(),
                        remote_id: None,
                    })
                });
                let known = CheckedUser {
                    asked,
                    reason: shuts_programs_out(&state),
                    caller,
                };
                let mut all = self.known();
                if all.len() >= REMEMBERED {
                    all.clear();
                }
                all.insert(user.to_owned(), known.clone());
                known
            }
        };
        match known.reason {
            None => Ok(known.caller),
            Some(reason) => Err(Fault::shut_out(reason)),
        }
    }
}

impl FromRequestParts<Web> for IdentifiedCaller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, web: &Web) -> Result<IdentifiedCaller, Problem> {
        let header = parts.headers.get(header::AUTHORIZATION);
        let token = header.and_then(|it| it.to_str().ok());
        let token = token.and_then(|it| it.strip_prefix("Bearer ").or(it.strip_prefix("bearer ")));
        let token = token.ok_or_else(|| Problem::stranger("the request brings no token"))?;
        let expired = || Problem::stranger("the token is not, or no longer, valid");
        let token = URL_SAFE_NO_PAD
            .decode(token.trim())
            .map_err(|_| expired())?;
        let services = &web.services;
        let now_ms = services.environment.clock.now_ms();
        let keyring = services.signer.keyring(&[&token], now_ms).await;
        let user = keyring
            .token_user(&token, PROGRAM, now_ms)
            .ok_or_else(expired)?;
        let caller = web.callers.check(web, &user).await?;
        Ok(IdentifiedCaller { caller })
    }
}

/// A password with its user, which may be changed, or a token of an identity provider, which says who its user is.
#[derive(Deserialize)]
struct SignInBody {
    #[serde(default)]
    user: String,
    password: Option<String>,
    new_password: Option<String>,
    token: Option<String>,
}

/// What that is exchanged for.
#[derive(Serialize)]
pub(super) struct Token {
    token: String,
    user: String,
    token_type: &'static str,
    /// Seconds.
    expires_in: i64,
}

/// Exchanges a password, or a token of an identity provider, for a token of this server.
pub(super) async fn sign_in(
    State(web): State<Web>,
    Extension(Peer(peer)): Extension<Peer>,
    request: Request,
) -> Result<Json<Token>, Response> {
    let peer = forwarded::client(&peer, request.headers(), &web.services.proxies);
    let body = receive(request, &web, web.services.limits.handshake, SIGN_IN_BYTES).await?;
    let token = exchange(&web, &body, &peer).await;
    token.map_err(IntoResponse::into_response)
}

async fn exchange(web: &Web, body: &[u8], peer: &str) -> Result<Json<Token>, Problem> {
    let hint = "write {\"user\": \"NAME\", \"password\": \"PASSWORD\"}, or {\"token\": \"TOKEN\"} with \
                a token of an identity provider";
    let given: SignInBody = serde_json::from_slice(body)
        .map_err(|error| Problem::bad(format!("the body is no sign-in: {error}"), hint))?;
    let proof = match (given.password, given.new_password, given.token) {
        (Some(password), None, None) if !given.user.is_empty() => Proof::Password(password),
        (Some(password), Some(new_password), None) if !given.user.is_empty() => {
            Proof::PasswordChange(PasswordChange {
                password,
                new_password,
            })
        }
        (None, None, Some(token)) => Proof::Bearer(token),
        _ => {
            return Err(Problem::bad(
                "the body has to have one proof of who signs in",
                hint,
            ));
        }
    };
    let claim = ParsedSignIn::check(SignIn {
        protocol_version: PROTOCOL_VERSION,
        user: given.user,
        proof: Some(proof),
        client: "http".into(),
        is_program: true,
        ..SignIn::default()
    })?;
    let services = &web.services;
    let now_ms = services.environment.clock.now_ms();
    let keyring = services.signer.keyring(&[], now_ms).await;
    let origin = Origin { peer, shown: &[] };
    let entering = services
        .sign_in
        .sign_in(&claim, Vec::new(), &keyring, origin);
    let entered = timeout(services.limits.sync.min(Duration::from_secs(60)), entering).await;
    let entered = entered.unwrap_or_else(|_| Err(Fault::timeout("the sign-in took too long")));
    let entered = entered.inspect_err(|fault| {
        services.metrics.sign_in_failed(fault);
        let (code, user) = (fault.code.name(), &claim.user);
        tracing::warn!(user, peer, code, error = %fault, "sign-in over HTTP failed");
    })?;
    Ok(Json(Token {
        token: URL_SAFE_NO_PAD.encode(entered.token),
        user: entered.user,
        token_type: "Bearer",
        expires_in: TOKEN_LIFETIME_MS / 1_000,
    }))
}

/// The key of a call that may be done once only.
pub(super) fn key(text: &str) -> Result<Bytes, Problem> {
    let bare = text.trim_matches('"');
    let key = parse_uuid(bare).ok_or_else(|| {
        Problem::bad(
            format!("the idempotency key {bare:?} is no UUID"),
            "make a random UUID for each call, and send the same when you repeat it",
        )
    })?;
    Ok(Bytes::copy_from_slice(&key))
}
