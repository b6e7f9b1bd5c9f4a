//! What goes over connections that stay: a price that is asked, an event that three hear, and a change
//! that arrives by itself.

use std::ops::ControlFlow;
use std::time::Duration;

use rusqlite::Connection;

use tidewater_client::{Link, LiveEvent, LiveOptions, Remote, Request, SubscriptionStart};
use tidewater_protocol::{Code, json};
use tidewater_server::Environment;
use tidewater_terminal::{Failure, output};

use super::world::{self, TECHNICIANS, Technician};
use super::{Stage, database, say};

/// Long enough for whatever has to happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where anna is.
const POSITION: &[u8] = b"52.52, 13.40";

/// A call, an event, a change.
pub(super) fn show(stage: &Stage, centre: &Connection) -> Result<(), Failure> {
    let [anna, listeners @ .., eli] = &TECHNICIANS;
    let price = ask_for_a_price(&stage.connect(eli)?)?;
    say(&format!(
        "a call:     eli asks the office what a valve costs: {price}"
    ));
    let heard = publish(stage, anna, listeners)?;
    say(&format!(
        "an event:   anna publishes where she is; heard by {}",
        heard.join(", ")
    ));
    let took_ms = change_arrives(stage, eli, centre)?;
    say(&format!(
        "a change:   the office writes a note; eli's file is connected, and has it {} later",
        output::duration(took_ms)
    ));
    Ok(())
}

fn ask_for_a_price(eli: &Remote) -> Result<String, Failure> {
    let request = Request::new("price").with("item", Some("Valve".into()));
    let price = json::answer(&link(eli)?.call(&request)?);
    let price = price.map_err(|_| did_not("the server did not answer"))?;
    Ok(price.as_str().unwrap_or_default().to_owned())
}

/// Who has heard it.
fn publish(
    stage: &Stage,
    anna: &Technician,
    listeners: &[Technician],
) -> Result<Vec<&'static str>, Failure> {
    let mut listening = Vec::new();
    for technician in listeners {
        let remote = stage.connect(technician)?;
        let subscription =
            link(&remote)?.subscribe("fleet", "unit.*.position", SubscriptionStart::Now)?;
        listening.push((technician.login, remote, subscription));
    }
    let anna = stage.connect(anna)?;
    link(&anna)?.publish("fleet", "unit.anna.position", POSITION)?;
    let mut heard = Vec::new();
    for (login, _remote, mut subscription) in listening {
        match subscription.recv(PATIENCE) {
            Some(event) if event.payload() == POSITION => heard.push(login),
            _ => return Err(did_not("an event did not arrive")),
        }
    }
    Ok(heard)
}

/// How long a change in the centre takes to the file, in milliseconds.
fn change_arrives(stage: &Stage, eli: &Technician, centre: &Connection) -> Result<u64, Failure> {
    let clock = Environment::real().clock;
    let begun_ms = clock.now_ms();
    let mut changed_ms = None;
    let mut outcome = None;
    stage
        .remote(eli)?
        .live(&LiveOptions::default(), &mut |event| {
            let now_ms = clock.now_ms();
            match event {
                LiveEvent::Synced { .. } if changed_ms.is_none() => {
                    changed_ms = Some(clock.now_ms());
                    if let Err(error) = world::note_the_gate(centre) {
                        outcome = Some(Err(database(error)));
                    }
                }
                LiveEvent::Synced { report, .. } if report.tables.contains("work_order") => {
                    let took_ms = now_ms - changed_ms.unwrap_or(begun_ms);
                    outcome = Some(Ok(took_ms.unsigned_abs()));
                }
                _ if now_ms - begun_ms > PATIENCE.as_millis() as i64 => {
                    outcome = Some(Err(did_not("a change did not arrive")));
                }
                _ => {}
            }
            match outcome {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        })?;
    outcome.unwrap_or_else(|| Err(did_not("a change did not arrive")))
}

fn link(remote: &Remote) -> Result<&Link, Failure> {
    remote
        .link()
        .ok_or_else(|| did_not("a remote did not stay connected"))
}

fn did_not(what: &str) -> Failure {
    Failure::new(
        Code::Internal,
        what,
        "please report this: the demonstration needs nothing but this machine",
    )
}
