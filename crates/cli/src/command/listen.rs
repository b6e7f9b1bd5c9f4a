//! `tidewater listen`: events as they come.

use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tidewater_client::{CallError, Link, SpaceEvent, SpaceSubscription, SubscriptionStart};
use tidewater_protocol::argument::to_base64;
use tidewater_terminal::output::{self, printable};
use tidewater_terminal::{CommandOutcome, Failure, Interrupt, with_exit_codes};

use super::program::{self, ConnectionTask, ProgramArgs, SpaceSubject, TICK};

/// Events that wait to be printed.
const WAITING: usize = 1_000;

/// Print events as they come, until Ctrl-C
///
/// In a pattern * stands for one part of a subject, and > at the end for one or more. A line for
/// each event: its subject and what it says, base64 where that is not text. When the connection is
/// lost, it connects again; in a durable space it goes on with the next event, in others what was
/// published meanwhile is lost. On standard error it tells what it missed.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater listen 'fleet/unit.*.position' --server tcp://127.0.0.1:7439 --user office
  tidewater listen 'fleet/>' 'orders/>' --server ... --user office --json | jq -r '.text // empty'
  tidewater listen 'orders/>' --after first --count 10 --server ... --user office

The lines of --json:
  {\"event\":\"published\",\"space\",\"subject\",\"text\" or \"base64\",\"position\": if it is durable}
  {\"event\":\"missed\",\"space\",\"pattern\",\"count\"}   too slow, or not kept any more
  {\"event\":\"anew\",\"space\",\"pattern\"}   the centre was restored: all that it keeps comes again
or, when it failed:
  {\"error\":{\"code\",\"message\",\"hint\",\"retry_after_ms\"}}"))]
pub(crate) struct ListenArgs {
    /// Which subjects of which spaces; an event that several match comes for each
    #[arg(value_name = "SPACE/PATTERN", value_parser = program::place, required = true)]
    places: Vec<SpaceSubject>,
    #[command(flatten)]
    program: ProgramArgs,
    /// Of durable spaces, begin behind this position; first: with all that is kept
    #[arg(long, value_name = "POSITION", value_parser = since)]
    after: Option<SubscriptionStart>,
    /// End after so many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print one JSON object a line, see below
    #[arg(long)]
    pub(crate) json: bool,
}

fn since(text: &str) -> Result<SubscriptionStart, String> {
    if text == "first" {
        return Ok(SubscriptionStart::First);
    }
    let position = text.parse().map(SubscriptionStart::Position);
    position.map_err(|_| "write first, or a position as an event has it".into())
}

pub(crate) fn run(args: &ListenArgs) -> Result<CommandOutcome, Failure> {
    let of_one_space = args.places.windows(2).all(|it| it[0].space == it[1].space);
    if matches!(args.after, Some(SubscriptionStart::Position(_))) && !of_one_space {
        return Err(Failure::usage(
            "a position is of one space, and the patterns are of several",
            "listen to each space by a command of its own",
        ));
    }
    let options = args.program.options()?;
    let interrupt = Interrupt::listen()?;
    let mut listening = ListenTask {
        args,
        interrupt: &interrupt,
        since: vec![args.after.unwrap_or_default(); args.places.len()],
        told: None,
        left: args.count,
    };
    let program = &args.program;
    program.stay_connected(&options, &interrupt, &mut listening)?;
    Ok(CommandOutcome::Complete)
}

/// What one subscription tells.
enum SubscriptionNews {
    Event(SpaceEvent),
    Missed(u64),
    Anew,
    /// Nothing more comes.
    Ended(CallError),
}

struct ListenTask<'a> {
    args: &'a ListenArgs,
    interrupt: &'a Interrupt,
    /// Where each subscription goes on after a connection was lost.
    since: Vec<SubscriptionStart>,
    /// What the subscriptions of this connection tell, by their number.
    told: Option<Receiver<(usize, SubscriptionNews)>>,
    /// Events until it ends.
    left: Option<u64>,
}

impl ConnectionTask for ListenTask<'_> {
    fn begin(&mut self, link: &Link) -> Result<(), Failure> {
        let (tell, told) = sync_channel(WAITING);
        for (number, place) in self.args.places.iter().enumerate() {
            let since = &mut self.since[number];
            let subscription = link.subscribe(&place.space, &place.subject, *since)?;
            if let (SubscriptionStart::Now, Some(started)) = (*since, subscription.started()) {
                *since = SubscriptionStart::Position(started);
            }
            let tell = tell.clone();
            thread::spawn(move || forward(subscription, number, &tell));
        }
        let places: Vec<String> = self
            .args
            .places
            .iter()
            .map(SpaceSubject::to_string)
            .collect();
        output::note(&format!("listening to {}; Ctrl-C ends", places.join(", ")));
        self.told = Some(told);
        Ok(())
    }

    fn go_on(&mut self, _: &Link) -> Result<ControlFlow<()>, Failure> {
        let told = self.told.as_ref().map(|it| it.recv_timeout(TICK));
        let is_read = match told {
            Some(Ok((number, told))) => self.print(number, told)?,
            Some(Err(_)) | None => true,
        };
        match !is_read || self.left == Some(0) || self.interrupt.is_raised() {
            true => Ok(ControlFlow::Break(())),
            false => Ok(ControlFlow::Continue(())),
        }
    }
}

impl ListenTask<'_> {
    /// Whether somebody still reads.
    fn print(&mut self, number: usize, told: SubscriptionNews) -> Result<bool, Failure> {
        let place = &self.args.places[number];
        match told {
            SubscriptionNews::Ended(error) => Err(error.into()),
            SubscriptionNews::Event(event) => {
                if let Some(position) = event.position() {
                    self.since[number] = SubscriptionStart::Position(position);
                }
                self.left = self.left.map(|left| left - 1);
                match self.args.json {
                    true => output::json_to_reader(&object(&event)),
                    false => output::text_to_reader(&line(&event)),
                }
            }
            SubscriptionNews::Missed(count) => {
                let events = output::counted(count, "event", "events");
                self.note(
                    &format!("missed {events} of {place}"),
                    &json!({
                        "event": "missed",
                        "space": place.space,
                        "pattern": place.subject,
                        "count": count,
                    }),
                )
            }
            SubscriptionNews::Anew => self.note(
                &format!("the centre was restored: all that it keeps of {place} comes again"),
                &json!({
                    "event": "anew",
                    "space": place.space,
                    "pattern": place.subject,
                }),
            ),
        }
    }

    fn note(&self, text: &str, object: &Value) -> Result<bool, Failure> {
        output::note(text);
        match self.args.json {
            true => output::json_to_reader(object),
            false => Ok(true),
        }
    }
}

/// Tells all that a subscription gets, until it ends or nobody listens.
fn forward(
    mut subscription: SpaceSubscription,
    number: usize,
    tell: &SyncSender<(usize, SubscriptionNews)>,
) {
    loop {
        // What came before the end is told, too.
        let ended = subscription.ended();
        let patience = match ended {
            Some(_) => Duration::ZERO,
            None => TICK,
        };
        let event = subscription.recv(patience);
        let missed = subscription.take_missed();
        let end = ended.filter(|_| event.is_none());
        let has_ended = end.is_some();
        let all = [
            subscription
                .take_begun_anew()
                .then_some(SubscriptionNews::Anew),
            (missed > 0).then_some(SubscriptionNews::Missed(missed)),
            event.map(SubscriptionNews::Event),
            end.map(SubscriptionNews::Ended),
        ];
        for told in all.into_iter().flatten() {
            if tell.send((number, told)).is_err() {
                return;
            }
        }
        if has_ended {
            return;
        }
    }
}

fn object(event: &SpaceEvent) -> Value {
    let (space, subject) = event.subject().split_once('/').unwrap_or_default();
    let mut object = json!({ "event": "published", "space": space, "subject": subject });
    match std::str::from_utf8(event.payload()) {
        Ok(text) => object["text"] = text.into(),
        Err(_) => object["base64"] = to_base64(event.payload()).into(),
    }
    if let Some(position) = event.position() {
        object["position"] = position.to_string().into();
    }
    object
}

fn line(event: &SpaceEvent) -> String {
    let says = match std::str::from_utf8(event.payload()) {
        Ok(text) => printable(text),
        Err(_) => to_base64(event.payload()),
    };
    format!("{} {says}\n", event.subject())
}
