//! Prints the events of a space: a program without a file, and without SQLite.
//!
//! `TIDEWATER_PASSWORD=... cargo run -p tidewater-client --no-default-features --example listener --
//! SERVER USER SPACE SUBJECT [EVENTS]` ends after so many events.

use tidewater_client::{Link, LinkOptions, SubscriptionStart};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |name| arguments.next().ok_or(format!("{name} is missing"));
    let (server, user) = (next("SERVER")?, next("USER")?);
    let (space, subject) = (next("SPACE")?, next("SUBJECT")?);
    let events = arguments.next().map_or(Ok(usize::MAX), |it| it.parse())?;

    let password = std::env::var("TIDEWATER_PASSWORD")?;
    let link = Link::connect(&server, &LinkOptions::password(user, password))?;
    let mut subscription = link.subscribe(&space, &subject, SubscriptionStart::Now)?;
    for event in subscription.by_ref().take(events) {
        println!("{} {}", event.subject(), event.payload().escape_ascii());
    }
    if let Some(error) = subscription.ended() {
        eprintln!("{error}\nhint: {}", error.hint());
    }
    Ok(())
}
