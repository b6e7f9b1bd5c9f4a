//! What applications of remotes write down beside their changes: calls and events in the outbox,
//! and what they want to hear of.

use rusqlite::{OptionalExtension, params};

use super::Application;
use crate::random::SeededRandom;
use crate::scenario::{FETCHED, REPEATED};
use crate::users::{STAFF, USERS};

/// What somebody wants to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A call that leaves a trace in the centre.
    Call,
    /// A call that programs do, and only once.
    Fetched,
    /// The same, but again if one of them dies.
    Repeated,
    /// An event that is kept.
    Event,
    /// One that is not.
    PlainEvent,
    /// Something that the centre or the user's rights do not allow.
    Forbidden,
}

/// A row of the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    /// By which its effects are known: no other has it.
    pub(crate) token: String,
    pub(crate) what: What,
    /// It is not begun any more after some time.
    pub(crate) expires: bool,
}

/// How long a call may wait, where it may not wait for ever.
const PATIENCE_MS: i64 = 20_000;

/// A key for something that is to be done once.
pub(crate) fn new_key(random: &mut SeededRandom) -> [u8; 16] {
    let mut key = [0; 16];
    random.fill(&mut key);
    key
}

impl Application {
    /// From now on it writes calls and events down for this user, at this time.
    pub(crate) fn wishes_for(&mut self, user: &'static str, now_ms: i64) {
        self.wishing = Some((user, now_ms));
    }

    /// What it has written down in the transaction that it last committed.
    pub(crate) fn wishes(&self) -> &[Wish] {
        &self.wishes
    }

    /// Perhaps writes something down, in the transaction of its changes.
    pub(super) fn wish(&mut self) -> rusqlite::Result<()> {
        let Some((user, now_ms)) = self.wishing else {
            return Ok(());
        };
        if self.random.percent(10) {
            self.take_interest(user)?;
        }
        if self.random.percent(50) {
            return Ok(());
        }
        for _ in 0..self.random.between(1, 2) {
            self.write_down(user, now_ms)?;
        }
        Ok(())
    }

    fn write_down(&mut self, user: &str, now_ms: i64) -> rusqlite::Result<()> {
        let is_staff = user == STAFF;
        let someone = self.random.pick(USERS).unwrap_or(user);
        let own = |allowed: bool, what: What| if allowed { what } else { What::Forbidden };
        let (name, what) = match self.random.below(20) {
            0..=6 => ("note".to_owned(), What::Call),
            7 => ("note".to_owned(), What::Forbidden),
            8 => ("confide".to_owned(), own(is_staff, What::Call)),
            9 => ("nothing".to_owned(), What::Forbidden),
            10 | 11 => (FETCHED.to_owned(), What::Fetched),
            12 => (REPEATED.to_owned(), own(is_staff, What::Repeated)),
            13..=15 => ("field/all.news".to_owned(), What::Event),
            16 => {
                let may = someone == user;
                (format!("field/unit.{someone}.news"), own(may, What::Event))
            }
            17 | 18 => ("desk/news".to_owned(), What::Event),
            _ => ("plain/all.news".to_owned(), What::PlainEvent),
        };
        self.count += 1;
        let verb = match (name.as_str(), what) {
            ("note", What::Forbidden) => "refused",
            _ => "wish",
        };
        let token = format!("{verb} {} {}", self.name, self.count);
        let is_event = name.contains('/');
        let arguments = match is_event {
            true => token.clone(),
            false => format!("{{\"token\": \"{token}\"}}"),
        };
        let expires = !is_event && self.random.percent(10);
        let sql = "INSERT INTO tidewater_outbox (kind, name, arguments, deadline, key, created_at)
                   VALUES (?1, ?2, ?3, strftime('%Y-%m-%dT%H:%M:%SZ', ?4, 'unixepoch'), ?5, ?6)";
        let kind = if is_event { "event" } else { "call" };
        let until = expires.then_some((now_ms + PATIENCE_MS) / 1_000);
        // Not SQLite's own chance and time: those are none of the simulation's.
        let key = new_key(&mut self.random);
        let mut insert = self.connection.prepare_cached(sql)?;
        insert.execute(params![kind, name, arguments, until, key, now_ms])?;
        drop(insert);
        self.wishes.push(Wish {
            token,
            what,
            expires,
        });
        Ok(())
    }

    /// Wants to hear of something from now on, be it allowed or not. No two of these have events
    /// in common.
    fn take_interest(&mut self, user: &str) -> rusqlite::Result<()> {
        let (space, subject) = match self.random.below(6) {
            0 | 1 => ("field", "all.>".to_owned()),
            2 | 3 => ("field", format!("unit.{user}.>")),
            4 => ("desk", ">".to_owned()),
            _ => {
                let someone = self.random.pick(USERS).unwrap_or(user);
                ("field", format!("unit.{someone}.>"))
            }
        };
        let sql = "SELECT 1 FROM tidewater_interest WHERE space = ?1 AND subject = ?2";
        let has: Option<i64> = self
            .connection
            .prepare_cached(sql)?
            .query_row(params![space, subject], |row| row.get(0))
            .optional()?;
        if has.is_none() {
            let sql = "INSERT INTO tidewater_interest (space, subject) VALUES (?1, ?2)";
            let mut insert = self.connection.prepare_cached(sql)?;
            insert.execute(params![space, subject])?;
        }
        Ok(())
    }
}
