//! Errors as `application/problem+json` (RFC 9457).

use std::fmt;

use axum::body::to_bytes;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use tidewater_protocol::Code;
use tidewater_protocol::message::CallFailed;

use tidewater_server_jobs::fault::Fault;

pub(super) const CONTENT_TYPE: &str = "application/problem+json";

/// As much of what a library says is repeated.
const DETAIL_BYTES: usize = 4 << 10;

/// Errors that the libraries tell in their own way, as all others.
pub(super) async fn of_response(response: Response) -> Response {
    let status = response.status();
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_error = status.is_client_error() || status.is_server_error();
    if !is_error || kind.is_some_and(|it| it == CONTENT_TYPE) {
        return response;
    }
    let detail = to_bytes(response.into_body(), DETAIL_BYTES).await;
    let detail = String::from_utf8_lossy(&detail.unwrap_or_default()).into_owned();
    let (code, hint) = match status {
        StatusCode::PAYLOAD_TOO_LARGE => (
            Code::LimitExceeded,
            "send less at once: the server's limits.message_size says how much".to_owned(),
        ),
        _ => (Code::Usage, "see /openapi.json for what there is".into()),
    };
    Problem::new(code, status, detail, hint).into_response()
}

/// What is told of an error.
#[derive(Clone, Debug)]
pub(crate) struct Problem(Box<Details>);

#[derive(Clone, Debug, Serialize)]
struct Details {
    /// Tells kinds of errors apart: `urn:tidewater:error:` and the code.
    #[serde(rename = "type")]
    kind: String,
    title: String,
    status: u16,
    detail: String,
    /// The stable code's name.
    code: String,
    /// What to do about it.
    hint: String,
    /// The argument that is to blame.
    #[serde(skip_serializing_if = "String::is_empty")]
    argument: String,
    /// The code of an error that is the procedure's own.
    #[serde(skip_serializing_if = "String::is_empty")]
    own_code: String,
    #[serde(skip)]
    retry_after_ms: u64,
}

impl Problem {
    fn new(code: Code, status: StatusCode, detail: String, hint: String) -> Problem {
        Problem(Box::new(Details {
            kind: format!("urn:tidewater:error:{code}"),
            title: code.name().replace('_', " "),
            status: status.as_u16(),
            detail,
            code: code.name().to_owned(),
            hint,
            argument: String::new(),
            own_code: String::new(),
            retry_after_ms: 0,
        }))
    }

    /// The request says what cannot be.
    pub(crate) fn bad(detail: impl Into<String>, hint: impl Into<String>) -> Problem {
        Problem::new(
            Code::Usage,
            StatusCode::BAD_REQUEST,
            detail.into(),
            hint.into(),
        )
    }

    pub(crate) fn not_found(detail: &str) -> Problem {
        let hint = "see /openapi.json for what there is";
        Problem::new(
            Code::Usage,
            StatusCode::NOT_FOUND,
            detail.into(),
            hint.into(),
        )
    }

    pub(crate) fn method() -> Problem {
        let detail = "this path takes another method";
        let hint = "see /openapi.json for what there is";
        Problem::new(
            Code::Usage,
            StatusCode::METHOD_NOT_ALLOWED,
            detail.into(),
            hint.into(),
        )
    }

    /// The request does not go with what was before.
    pub(crate) fn conflict(detail: String, hint: &str) -> Problem {
        let (code, status) = (Code::UnexpectedMessage, StatusCode::CONFLICT);
        Problem::new(code, status, detail, hint.into())
    }

    /// The part that is asked for is not there.
    pub(crate) fn out_of_range(length: u64) -> Problem {
        let (code, status) = (Code::Usage, StatusCode::RANGE_NOT_SATISFIABLE);
        let detail = "nothing is there in this range".to_owned();
        let hint = format!("ask for bytes of the {length} that there are");
        Problem::new(code, status, detail, hint)
    }

    /// The body is longer than it may be.
    pub(crate) fn too_long(most: usize) -> Problem {
        Problem::new(
            Code::LimitExceeded,
            StatusCode::PAYLOAD_TOO_LARGE,
            "the body of the request is too long".into(),
            format!("send at most {most} bytes at once"),
        )
    }

    /// The body does not come.
    pub(crate) fn late() -> Problem {
        Problem::new(
            Code::Timeout,
            StatusCode::REQUEST_TIMEOUT,
            "the body of the request took too long".into(),
            "send it at once".into(),
        )
    }

    /// Whoever asks has not said who he is.
    pub(crate) fn stranger(detail: &str) -> Problem {
        Problem::new(
            Code::TokenExpired,
            StatusCode::UNAUTHORIZED,
            detail.into(),
            "get a token with POST /v1/sign-in and send it as Authorization: Bearer TOKEN".into(),
        )
    }

    /// As it is sent.
    pub(super) fn body(&self) -> Vec<u8> {
        serde_json::to_vec(&self.0).unwrap_or_default()
    }

    pub(crate) fn internal(error: &dyn fmt::Display) -> Problem {
        tracing::error!(%error, "an answer cannot be told");
        Fault::internal("").into()
    }
}

fn status(code: Code) -> StatusCode {
    match code {
        Code::BadArgument | Code::BadSubject | Code::MalformedMessage | Code::Usage => {
            StatusCode::BAD_REQUEST
        }
        Code::WrongPassword
        | Code::TokenExpired
        | Code::CredentialInvalid
        | Code::ProofRejected
        | Code::SignInAgain => StatusCode::UNAUTHORIZED,
        Code::NotAllowed | Code::UserDisabled | Code::UnknownUser | Code::RemoteRevoked => {
            StatusCode::FORBIDDEN
        }
        Code::NoSuchProcedure | Code::NoSuchSpace => StatusCode::NOT_FOUND,
        Code::NameTaken | Code::OutcomeUnknown => StatusCode::CONFLICT,
        Code::LimitExceeded => StatusCode::PAYLOAD_TOO_LARGE,
        Code::ProcedureFailed => StatusCode::UNPROCESSABLE_ENTITY,
        Code::TooManyAttempts => StatusCode::TOO_MANY_REQUESTS,
        Code::ProviderGone => StatusCode::BAD_GATEWAY,
        Code::NoProvider
        | Code::Busy
        | Code::ShuttingDown
        | Code::IdentityUnavailable
        | Code::HandlerAway
        | Code::ConsolidatedUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded | Code::Timeout => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl From<CallFailed> for Problem {
    fn from(failed: CallFailed) -> Problem {
        let code = failed.code().unwrap_or(Code::Internal);
        let mut problem = Problem::new(code, status(code), failed.message, failed.hint);
        problem.0.argument = failed.argument;
        problem.0.own_code = failed.own_code;
        problem.0.retry_after_ms = failed.retry_after_ms;
        problem
    }
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Problem {
        let status = status(fault.code);
        let mut problem = Problem::new(fault.code, status, fault.message, fault.hint);
        problem.0.retry_after_ms = fault.retry_after_ms;
        problem
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::BAD_REQUEST);
        let mut response = (status, self.body()).into_response();
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static(CONTENT_TYPE);
        headers.insert(header::CONTENT_TYPE, kind);
        if status == StatusCode::REQUEST_TIMEOUT {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if status == StatusCode::UNAUTHORIZED {
            let bearer = HeaderValue::from_static("Bearer");
            headers.insert(header::WWW_AUTHENTICATE, bearer);
        }
        if self.0.retry_after_ms > 0 {
            let seconds = HeaderValue::from(self.0.retry_after_ms.div_ceil(1_000));
            headers.insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}
