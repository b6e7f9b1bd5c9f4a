//! What the server says of its own accord.

use std::time::Duration;

use tidewater_protocol::message::{ArgumentValue, Call};

/// Something that the server says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerNotice {
    /// Somebody has changed what the remote holds: sync.
    Changed,
    /// The server shuts down: connect again, to one of these if there are any, after a pause.
    Leaving {
        /// Their addresses.
        servers: Vec<String>,
        /// How long to wait before.
        pause: Duration,
    },
    /// Events have come that the program only wants to know of, and fetches otherwise.
    Heard,
    /// Events of a space did not fit, and are lost.
    Missed {
        /// The space.
        space: String,
        /// How many.
        count: u64,
    },
}

impl ServerNotice {
    /// What a call of the server's says, if it is one of these.
    pub fn from_call(call: &Call) -> Option<ServerNotice> {
        let argument = |name: &str| {
            let mut arguments = call.arguments.iter();
            arguments.find(|it| it.name == name)?.given.as_ref()
        };
        let number = |name: &str| match argument(name) {
            Some(ArgumentValue::Integer(number)) => u64::try_from(*number).unwrap_or(0),
            _ => 0,
        };
        Some(match call.procedure.as_str() {
            "tidewater.changed" => ServerNotice::Changed,
            "tidewater.leaving" => ServerNotice::Leaving {
                servers: match argument("servers") {
                    Some(ArgumentValue::Text(list)) => {
                        list.split_whitespace().map(str::to_owned).collect()
                    }
                    _ => Vec::new(),
                },
                pause: Duration::from_millis(number("pause_ms")),
            },
            "tidewater.missed" => ServerNotice::Missed {
                space: match argument("space") {
                    Some(ArgumentValue::Text(space)) => space.clone(),
                    _ => String::new(),
                },
                count: number("count"),
            },
            _ => return None,
        })
    }
}
