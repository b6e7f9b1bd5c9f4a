//! What commands share that connect as a program of the office, without a file.

use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::Args;
use tidewater_client::{ArgumentValue, Link, LinkOptions, Pin, Request};
use tidewater_protocol::json;
use tidewater_terminal::{Failure, Interrupt, output};

use crate::command::network::NetworkArgs;
use crate::proof::ProofArgs;

/// How often it is looked for Ctrl-C.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// The pause before it connects again, and the longest.
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Whom to connect to, and as whom.
#[derive(Debug, Clone, Args)]
pub(crate) struct ProgramArgs {
    /// The server: tls://host:port, wss:// or https://, tcp:// on loopback [default port: 7439]
    #[arg(long, value_name = "URL")]
    server: String,
    /// The user who signs in; a token or a certificate tells by itself
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Trust the authorities in this PEM file, and no others
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Trust the server that has this key, sha256/BASE64 as tidewater cert prints it, and no
    /// authorities
    #[arg(long, value_name = "PIN", conflicts_with = "ca")]
    pin: Option<Pin>,
    #[command(flatten)]
    network: NetworkArgs,
    #[command(flatten)]
    pub(crate) proof: ProofArgs,
}

impl ProgramArgs {
    /// How to connect; the password is asked for here.
    pub(crate) fn options(&self) -> Result<LinkOptions, Failure> {
        self.network.addresses(&self.server)?;
        let user = self.user.clone().unwrap_or_default();
        if user.is_empty() && !self.proof.tells_user() {
            return Err(Failure::usage(
                "nobody is named who signs in",
                "add --user NAME, or --token-file FILE, or --certificate FILE with --certificate-key FILE",
            ));
        }
        let prompt = format!("Password of {user}: ");
        let proof = self.proof.obtain(&prompt)?.for_link();
        let mut options = LinkOptions::proven(user, proof);
        options.ca_file.clone_from(&self.ca);
        options.pin = self.pin;
        options.insecure = self.network.insecure;
        options.proxy.clone_from(&self.network.proxy);
        options.client = concat!("tidewater/", env!("CARGO_PKG_VERSION")).into();
        Ok(options)
    }

    pub(crate) fn connect(&self, options: &LinkOptions) -> Result<Link, Failure> {
        Ok(Link::connect(&self.server, options)?)
    }

    /// Connects, begins something and goes on with it until that breaks. When the connection is lost
    /// after it had begun, it begins again, with growing pauses, unless the user interrupts.
    pub(crate) fn stay_connected(
        &self,
        options: &LinkOptions,
        interrupt: &Interrupt,
        staying: &mut impl ConnectionTask,
    ) -> Result<(), Failure> {
        let mut pause = PAUSE;
        let mut has_begun = false;
        while !interrupt.is_raised() {
            let stayed = self.connect(options).and_then(|link| {
                staying.begin(&link)?;
                (pause, has_begun) = (PAUSE, true);
                while staying.go_on(&link)?.is_continue() {}
                Ok(())
            });
            let Err(failure) = stayed else {
                return Ok(());
            };
            if !failure.code.is_transient() || !has_begun {
                return Err(failure);
            }
            output::note(&format!("{failure}: trying again"));
            let mut left = pause;
            while !left.is_zero() && !interrupt.is_raised() {
                thread::sleep(TICK.min(left));
                left = left.saturating_sub(TICK);
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(())
    }
}

/// What a command does over a connection, and over the next one when that is lost.
pub(crate) trait ConnectionTask {
    /// Begins over a new connection.
    fn begin(&mut self, link: &Link) -> Result<(), Failure>;

    /// Goes on for a moment.
    fn go_on(&mut self, link: &Link) -> Result<ControlFlow<()>, Failure>;
}

/// An argument of a call: `item=7`, or `items:=[1,2]` with JSON.
#[derive(Clone, Debug)]
pub(crate) struct CallArgument {
    name: String,
    value: Option<ArgumentValue>,
}

/// Reads `item=7` or `items:=[1,2]`.
pub(crate) fn argument(text: &str) -> Result<CallArgument, String> {
    let hint = "write NAME=VALUE, or NAME:=JSON for null, numbers, lists and objects";
    let Some((name, value)) = text.split_once('=') else {
        return Err(hint.into());
    };
    match name.strip_suffix(':') {
        None => Ok(CallArgument {
            name: name.to_owned(),
            value: Some(value.into()),
        }),
        Some(name) => {
            let value = serde_json::from_str(value).map_err(|error| format!("{error}: {hint}"))?;
            Ok(CallArgument {
                name: name.to_owned(),
                value: json::given(&value),
            })
        }
    }
}

/// Subjects of a space: `fleet/unit.7.position`, or `fleet/unit.>`.
#[derive(Clone, Debug)]
pub(crate) struct SpaceSubject {
    pub(crate) space: String,
    pub(crate) subject: String,
}

impl fmt::Display for SpaceSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.space, self.subject)
    }
}

/// Reads `fleet/unit.7.position`.
pub(crate) fn place(text: &str) -> Result<SpaceSubject, String> {
    match text.split_once('/') {
        Some((space, subject)) if !space.is_empty() && !subject.is_empty() => Ok(SpaceSubject {
            space: space.to_owned(),
            subject: subject.to_owned(),
        }),
        _ => Err("write the name of a space, a slash and a subject: fleet/unit.7".into()),
    }
}

/// Reads `250ms`, `5s` or `2m`.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let found = tidewater_server::parse_duration(text).filter(|it| !it.is_zero());
    found.ok_or_else(|| "write a number and a unit: 250ms, 5s or 2m".into())
}

/// A call as the command line has it.
pub(crate) fn request(procedure: &str, arguments: &[CallArgument]) -> Request {
    let request = Request::new(procedure);
    arguments.iter().fold(request, |request, it| {
        request.with(it.name.as_str(), it.value.clone())
    })
}
