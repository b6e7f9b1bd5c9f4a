//! Signing in: a handler that knows passwords.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value as Json};

use tidewater_protocol::Code;

use super::document::{kind, whole};
use super::{Document, Handler, HandlerReply, HandlerServices, Handlers};
use tidewater_centre::Caller;
use tidewater_protocol::RemoteId;
use tidewater_server_config::HandlerEvent;
use tidewater_server_identity::external::{Identity, kept, user_name};
use tidewater_server_identity::sign_in::{GivenPassword, PasswordHandler, passwords_set_elsewhere};
use tidewater_server_jobs::environment::random;
use tidewater_server_jobs::fault::Fault;

/// No answer is longer.
const ANSWER_BYTES: usize = 64 << 10;

impl Handler {
    /// Who has this password, according to the handler; `None` if nobody has.
    ///
    /// # Errors
    /// It does not say.
    async fn authenticate(
        &self,
        services: &HandlerServices,
        user: &str,
        given: GivenPassword<'_>,
        peer: &str,
    ) -> Result<Option<Identity>, Fault> {
        let event = HandlerEvent::AuthenticateUser;
        let random = random(&*services.environment.randomness);
        let random = random.map_err(|error| Fault::internal(error.to_string()))?;
        let mut head = Map::new();
        head.insert("event".into(), event.name().into());
        head.insert("user".into(), user.into());
        head.insert("password".into(), given.password.into());
        if let Some(new) = given.new {
            head.insert("new_password".into(), new.into());
        }
        head.insert("peer".into(), peer.into());
        // Each attempt is one of its own.
        let key = RemoteId::from_random(random).to_string();
        let document = Document::of(event, head, &key);
        let caller = Arc::new(Caller {
            user: user.to_owned(),
            remote_id: None,
        });
        let reply = self.ask(services, &caller, &document, ANSWER_BYTES).await;
        let reply = reply.map_err(|fault| match fault.code {
            Code::HandlerAway => Fault {
                detail: fault.detail,
                retry_after_ms: fault.retry_after_ms,
                ..Fault::new(
                    Code::IdentityUnavailable,
                    "the program that knows the users does not answer the server",
                    "try again in a while; whoever has signed in before can sync meanwhile",
                )
            },
            _ => fault,
        })?;
        let said = read(&reply, user).map_err(|what| self.wrong(event, &what))?;
        let Some(said) = said else {
            return Ok(None);
        };
        let by = format!("the handler {:?}", self.config.name);
        if given.new.is_some() && !said.has_set_password {
            return Err(passwords_set_elsewhere(&by));
        }
        Ok(Some(Identity {
            user: user_name(&said.user, "the name that the handler gives")?,
            by,
            claims: Some(kept(said.claims.into_iter())?),
        }))
    }
}

/// The handler of passwords, as the sign-in asks it.
pub struct HandlerPasswords {
    /// The handlers that there are.
    pub handlers: Arc<Handlers>,
    /// What they need.
    pub services: Arc<HandlerServices>,
}

impl PasswordHandler for HandlerPasswords {
    fn authenticate<'a>(
        &'a self,
        user: &'a str,
        given: GivenPassword<'a>,
        peer: &'a str,
    ) -> BoxFuture<'a, Result<Option<Identity>, Fault>> {
        Box::pin(async move {
            let current = self.handlers.current();
            let handler = current
                .of_passwords()
                .ok_or_else(|| Fault::internal("passwords = \"handler\" without a handler"))?;
            handler
                .authenticate(&self.services, user, given, peer)
                .await
        })
    }
}

/// What a handler says of somebody whom it lets in.
#[derive(Debug, PartialEq, Eq)]
struct Acceptance {
    user: String,
    claims: Vec<(String, String)>,
    /// It has taken the new password.
    has_set_password: bool,
}

fn read(reply: &HandlerReply, user: &str) -> Result<Option<Acceptance>, String> {
    let answer = whole(reply)?;
    match answer.get("verdict").and_then(Json::as_str) {
        Some("accept") => {}
        Some("refuse") => return Ok(None),
        _ => {
            return Err(
                "\"verdict\" has to be \"accept\" or \"refuse\": {\"verdict\": \"accept\", \
                 \"user\": \"anna\", \"claims\": {\"region\": \"north\"}}"
                    .into(),
            );
        }
    }
    let user = match answer.get("user") {
        None | Some(Json::Null) => user.to_owned(),
        Some(Json::String(user)) => user.clone(),
        Some(other) => {
            return Err(format!(
                "its \"user\" is {}, and text is expected",
                kind(other)
            ));
        }
    };
    let nothing = Map::new();
    let claims = match answer.get("claims") {
        None | Some(Json::Null) => &nothing,
        Some(Json::Object(claims)) => claims,
        Some(other) => {
            return Err(format!(
                "its \"claims\" are {}, and an object is expected",
                kind(other)
            ));
        }
    };
    let claims = claims.iter().filter(|it| !it.1.is_null());
    let claims = claims.map(|(name, value)| match value {
        Json::String(text) => Ok((name.clone(), text.clone())),
        Json::Number(_) | Json::Bool(_) => Ok((name.clone(), value.to_string())),
        other => Err(format!(
            "the claim {name:?} is {}, and text, a number or a boolean is expected",
            kind(other)
        )),
    });
    Ok(Some(Acceptance {
        user,
        claims: claims.collect::<Result<_, _>>()?,
        has_set_password: answer.get("password_set") == Some(&Json::Bool(true)),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_accepted_has_a_name_and_claims() {
        let said = |body: &str| {
            let reply = HandlerReply {
                content_type: String::new(),
                body: body.to_owned().into(),
            };
            read(&reply, "anna")
        };
        let claims = |pairs: &[(&str, &str)]| {
            let pairs = pairs
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()));
            pairs.collect::<Vec<(String, String)>>()
        };
        let accepted = |user: &str, pairs: &[(&str, &str)], has_set_password| {
            Ok(Some(Acceptance {
                user: user.into(),
                claims: claims(pairs),
                has_set_password,
            }))
        };
        assert_eq!(said(r#"{"verdict": "refuse"}"#), Ok(None));
        assert_eq!(
            said(r#"{"verdict": "accept"}"#),
            accepted("anna", &[], false)
        );
        assert_eq!(
            said(r#"{"verdict": "accept", "user": "a1", "claims": {"r": "n", "l": 3, "x": null}}"#),
            accepted("a1", &[("l", "3"), ("r", "n")], false)
        );
        assert_eq!(
            said(r#"{"verdict": "accept", "password_set": true}"#),
            accepted("anna", &[], true)
        );
        for wrong in [
            "{}",
            "true",
            r#"{"verdict": "yes"}"#,
            r#"{"verdict": "accept", "user": 1}"#,
            r#"{"verdict": "accept", "claims": {"r": []}}"#,
        ] {
            assert!(said(wrong).is_err(), "{wrong}");
        }
    }
}
