//! Who of those that provide a procedure is meant, and under which subject of NATS.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use tidewater_centre::Caller;
use tidewater_protocol::message::CallFailed;
use tidewater_protocol::{Code, RemoteId};

/// Who of those that provide a procedure is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallAddress {
    /// Whoever provides it.
    Anybody,
    /// A connection of this user.
    User(String),
    /// A connection of this remote.
    Remote(RemoteId),
}

impl CallAddress {
    /// Reads an address: `user:NAME`, `remote:ID`, or nothing.
    ///
    /// # Errors
    /// It is something else.
    pub fn parse(text: &str) -> Result<CallAddress, CallFailed> {
        let remote = || {
            Some(CallAddress::Remote(
                text.strip_prefix("remote:")?.parse().ok()?,
            ))
        };
        let user = || Some(CallAddress::User(text.strip_prefix("user:")?.to_owned()));
        match text {
            "" => Ok(CallAddress::Anybody),
            _ => remote().or_else(user).ok_or_else(|| {
                CallFailed::new(
                    Code::BadArgument,
                    format!("{text:?} is nobody who can be called"),
                    "write user:NAME or remote:ID",
                )
            }),
        }
    }

    /// Whether somebody who provides is meant.
    pub fn means(&self, caller: &Caller) -> bool {
        match self {
            CallAddress::Anybody => true,
            CallAddress::User(user) => caller.user == *user,
            CallAddress::Remote(id) => caller.remote_id == Some(*id),
        }
    }
}

/// As [`CallAddress::parse`] reads it.
impl fmt::Display for CallAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallAddress::Anybody => Ok(()),
            CallAddress::User(user) => write!(f, "user:{user}"),
            CallAddress::Remote(id) => write!(f, "remote:{id}"),
        }
    }
}

/// What subjects of calls begin with.
const PREFIX: &str = "_tidewater.call";

/// The subject of those who provide a procedure and are meant.
pub fn subject(procedure: &str, to: &CallAddress) -> String {
    // A dot would begin another part of the subject.
    let name = procedure.replace('.', "~");
    match to {
        CallAddress::Anybody => format!("{PREFIX}.{name}"),
        CallAddress::User(user) => format!("{PREFIX}.{name}.user.{}", URL_SAFE_NO_PAD.encode(user)),
        CallAddress::Remote(id) => format!("{PREFIX}.{name}.remote.{id}"),
    }
}

/// All subjects under which somebody who provides a procedure can be meant.
pub fn subjects(procedure: &str, who: &Caller) -> Vec<String> {
    let user = CallAddress::User(who.user.clone());
    let remote = who.remote_id.map(CallAddress::Remote);
    let addresses = [CallAddress::Anybody, user].into_iter().chain(remote);
    addresses.map(|to| subject(procedure, &to)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_is_meant_under_subjects_without_parts_of_its_own() {
        let who = Caller {
            user: "a.b c*>".into(),
            remote_id: Some(RemoteId([7; 16])),
        };
        assert_eq!(
            subjects("print.label", &who),
            [
                "_tidewater.call.print~label",
                "_tidewater.call.print~label.user.YS5iIGMqPg",
                "_tidewater.call.print~label.remote.07070707-0707-0707-0707-070707070707",
            ]
        );
    }
}
