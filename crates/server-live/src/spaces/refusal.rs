//! Who may publish and subscribe to what, and what everybody else is told.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tidewater_protocol::Code;
use tidewater_spaces::{Pattern, PatternTemplate, SubjectError};

use tidewater_server_config::{SpaceConfig, SubjectRule};

/// What somebody does with a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Right {
    Publish,
    Subscribe,
}

impl Right {
    /// Who has the right in a space.
    pub(crate) fn rule(self, space: &SpaceConfig) -> &SubjectRule {
        match self {
            Right::Publish => &space.publish,
            Right::Subscribe => &space.subscribe,
        }
    }
}

/// The query that a rule has (`allow`) yielded a row for this user, or none. Who needs one of whom it
/// was not asked may nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub space: String,
    pub right: Right,
    /// The query: another one has to be asked again.
    pub query: String,
    pub is_given: bool,
}

/// Whoever asks.
#[derive(Debug)]
pub struct User {
    pub(crate) name: String,
    grants: Mutex<Vec<Grant>>,
}

/// Why something is not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no space of this name.
    #[error("there is no space {0:?}")]
    NoSuchSpace(String),
    /// It is no subject, or no pattern.
    #[error(transparent)]
    Subject(#[from] SubjectError),
    /// The user may publish only under these patterns.
    #[error("this user may not publish to {subject:?}")]
    MayNotPublish {
        /// What was published.
        subject: String,
        /// What may be.
        may: Vec<String>,
    },
    /// The user may subscribe only to these patterns.
    #[error("this user may not subscribe to {pattern:?}")]
    MayNotSubscribe {
        /// What was asked for.
        pattern: String,
        /// What may be.
        may: Vec<String>,
    },
    /// The space is durable: it is published to by calls.
    #[error("the space {0:?} is durable: an event of it is published by a call")]
    Durable(String),
    /// An event to be published has a position already.
    #[error("an event that was published to {0:?} has a position")]
    Positioned(String),
    /// The connection has as many subscriptions as it may.
    #[error("more than {0} subscriptions on one connection")]
    TooManySubscriptions(usize),
    /// The server keeps no events.
    #[error("nothing is kept here")]
    NotKept,
    /// The space was restored to an earlier moment.
    #[error("the space {0:?} is not what it was: the consolidated database was restored")]
    Rewound(String),
    /// The connection was too slow for the events of a space.
    #[error("this connection is too slow for the events of the space {0:?}")]
    TooSlow(String),
}

impl Refusal {
    /// The stable code.
    pub fn code(&self) -> Code {
        match self {
            Refusal::NoSuchSpace(_) => Code::NoSuchSpace,
            Refusal::Subject(_) => Code::BadSubject,
            Refusal::MayNotPublish { .. } | Refusal::MayNotSubscribe { .. } => Code::NotAllowed,
            Refusal::Durable(_) | Refusal::Positioned(_) => Code::UnexpectedMessage,
            Refusal::TooManySubscriptions(_) | Refusal::TooSlow(_) => Code::LimitExceeded,
            Refusal::NotKept => Code::Internal,
            Refusal::Rewound(_) => Code::Redeployed,
        }
    }

    /// What to do.
    pub fn hint(&self) -> String {
        let ask = "the server's operator says who may in [[space]]";
        let among = |may: &[String], what: &str| match may {
            [] => format!("{what} nothing of this space; {ask}"),
            may => format!("{what} {}; {ask}", may.join(", ")),
        };
        match self {
            Refusal::NoSuchSpace(_) => {
                "look for a misspelling, or ask the server's operator for a [[space]] of this name"
                    .into()
            }
            Refusal::Subject(error) => error.hint(),
            Refusal::MayNotPublish { may, .. } => among(may, "it may publish to"),
            Refusal::MayNotSubscribe { may, .. } => among(may, "it may subscribe to"),
            Refusal::Durable(_) => {
                "call tidewater.publish, which answers once the event is kept".into()
            }
            Refusal::Positioned(_) => {
                "leave the position out: it is the server that gives one".into()
            }
            Refusal::TooManySubscriptions(_) => {
                "subscribe to fewer, wider patterns, such as \"unit.>\"".into()
            }
            Refusal::NotKept => "this is an error in Tidewater: please report it".into(),
            Refusal::Rewound(_) => {
                "connect again, and subscribe from your position: all that is kept comes again"
                    .into()
            }
            Refusal::TooSlow(_) => {
                "connect and subscribe again, to fewer subjects, or take events faster; the \
                 server's operator can raise queue in [[space]]"
                    .into()
            }
        }
    }
}

impl User {
    /// A user, of whom nothing was asked yet.
    pub fn new(name: &str) -> User {
        User {
            name: name.to_owned(),
            grants: Mutex::default(),
        }
    }

    fn grants(&self) -> MutexGuard<'_, Vec<Grant>> {
        self.grants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what a query has yielded.
    pub(crate) fn grant(&self, grant: Grant) {
        let mut grants = self.grants();
        grants.retain(|it| (&it.space, it.right) != (&grant.space, grant.right));
        grants.push(grant);
    }

    /// Whether there is nothing that has to be asked about this user.
    pub(crate) fn has_asked(&self, space: &SpaceConfig, right: Right) -> bool {
        match right.rule(space) {
            SubjectRule::Patterns {
                allow: Some(query), ..
            } => self.grants().iter().any(|it| it.is_of(space, right, query)),
            _ => true,
        }
    }

    /// Whether this user may publish to a subject of the space.
    pub(crate) fn check_publish(&self, space: &SpaceConfig, subject: &str) -> Result<(), Refusal> {
        let may = self.may(space, Right::Publish);
        match may.permits(|pattern| pattern.matches(subject)) {
            true => Ok(()),
            false => Err(Refusal::MayNotPublish {
                subject: subject.to_owned(),
                may: may.shown(),
            }),
        }
    }

    /// Whether this user may subscribe to a pattern of the space.
    pub(crate) fn check_subscribe(
        &self,
        space: &SpaceConfig,
        pattern: &Pattern,
    ) -> Result<(), Refusal> {
        let may = self.may(space, Right::Subscribe);
        match may.permits(|wide| wide.contains(pattern)) {
            true => Ok(()),
            false => Err(Refusal::MayNotSubscribe {
                pattern: pattern.to_string(),
                may: may.shown(),
            }),
        }
    }

    fn may(&self, space: &SpaceConfig, right: Right) -> May {
        match right.rule(space) {
            SubjectRule::Everyone => May::All,
            SubjectRule::Nobody => May::Some(Vec::new()),
            SubjectRule::Patterns {
                allow: Some(query), ..
            } if !self.is_granted(space, right, query) => May::Some(Vec::new()),
            SubjectRule::Patterns { patterns, .. } => {
                let mine = |it: &PatternTemplate| it.for_user(&self.name);
                May::Some(patterns.iter().filter_map(mine).collect())
            }
        }
    }

    fn is_granted(&self, space: &SpaceConfig, right: Right, query: &str) -> bool {
        let grants = self.grants();
        let mut grants = grants.iter();
        grants.any(|it| it.is_given && it.is_of(space, right, query))
    }
}

impl Grant {
    fn is_of(&self, space: &SpaceConfig, right: Right, query: &str) -> bool {
        self.right == right && self.space == space.name && self.query == query
    }
}

/// What a rule is for one user.
enum May {
    All,
    Some(Vec<Pattern>),
}

impl May {
    fn permits(&self, does: impl Fn(&Pattern) -> bool) -> bool {
        match self {
            May::All => true,
            May::Some(patterns) => patterns.iter().any(does),
        }
    }

    fn shown(&self) -> Vec<String> {
        match self {
            May::All => Vec::new(),
            May::Some(patterns) => patterns.iter().map(Pattern::to_string).collect(),
        }
    }
}
