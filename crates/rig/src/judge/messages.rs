//! What became of the calls and events that devices have written down.

use std::collections::{HashMap, HashSet};

use rusqlite::Connection;
use serde_json::Value;

use super::{Judge, Witness};

/// A row of an outbox.
struct OutboxRow {
    id: i64,
    name: String,
    tag: String,
    state: String,
    reason: String,
}

impl Judge<'_> {
    /// Each call was executed once, after the upload of what was committed with it; each event is
    /// kept once, and in the inbox of everybody who waits for events, once and in order.
    pub(crate) fn judge_messages(&mut self, witnesses: &[Witness]) -> anyhow::Result<()> {
        let mut noted: HashMap<String, u64> = HashMap::new();
        for tag in self.centre.texts("SELECT tag FROM noted")? {
            *noted.entry(tag).or_default() += 1;
        }
        for tag in self.centre.texts("SELECT tag FROM noted WHERE NOT seen")? {
            self.finding(format!(
                "{tag} was called before what goes before it was there"
            ));
        }
        let kept = self.centre.texts(
            "SELECT convert_from(payload, 'UTF8')::JSON ->> 'tag' FROM tidewater.event ORDER BY id",
        )?;
        let mut wanted = HashSet::new();
        for witness in witnesses {
            let file = witness.device.open()?;
            let name = &witness.device.name;
            for sent in outbox(&file)? {
                self.checked.messages += 1;
                if sent.state != "answered" {
                    self.finding(format!(
                        "{name}: {} {} is {}: {}",
                        sent.name, sent.tag, sent.state, sent.reason
                    ));
                }
                let times = match sent.name.as_str() {
                    "note" => noted.remove(&sent.tag).unwrap_or(0),
                    "stamp" => answers(&file, &sent)?,
                    _ => kept.iter().filter(|it| **it == sent.tag).count() as u64,
                };
                if times != 1 {
                    self.finding(format!(
                        "{name}: {} {} was done {times} times",
                        sent.name, sent.tag
                    ));
                }
                wanted.insert(sent.tag);
            }
            let came = inbox(&file)?;
            self.checked.events += came.len() as u64;
            let first = came
                .first()
                .and_then(|first| kept.iter().position(|it| it == first));
            let due = first.map_or(&[][..], |first| &kept[first..]);
            if came != due {
                self.finding(format!(
                    "{name} has {} events, and should have {}",
                    came.len(),
                    due.len()
                ));
            }
        }
        for tag in noted.keys() {
            self.finding(format!("{tag} was noted, and nobody called for it"));
        }
        for tag in kept.iter().filter(|it| !wanted.contains(*it)) {
            self.finding(format!("{tag} is kept, and nobody published it"));
        }
        Ok(())
    }
}

fn outbox(file: &Connection) -> rusqlite::Result<Vec<OutboxRow>> {
    let mut statement = file.prepare(
        "SELECT id, name, arguments ->> '$.tag', state, coalesce(code || ': ' || reason, '')
         FROM tidewater_outbox ORDER BY id",
    )?;
    let rows = statement.query_map([], |row| {
        Ok(OutboxRow {
            id: row.get(0)?,
            name: row.get(1)?,
            tag: row.get(2)?,
            state: row.get(3)?,
            reason: row.get(4)?,
        })
    })?;
    rows.collect()
}

/// How often the inbox has the answer, which says what was asked.
fn answers(file: &Connection, sent: &OutboxRow) -> anyhow::Result<u64> {
    let mut statement =
        file.prepare("SELECT payload FROM tidewater_inbox WHERE kind = 'answer' AND outbox = ?1")?;
    let rows = statement.query_map([sent.id], |row| row.get::<_, String>(0))?;
    let mut count = 0;
    for payload in rows {
        let payload: Value = serde_json::from_str(&payload?)?;
        count += u64::from(payload.to_string().contains(&sent.tag));
    }
    Ok(count)
}

/// The events, in the order in which they came; whatever else is there is none.
fn inbox(file: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = file.prepare(
        "SELECT CASE kind WHEN 'event' THEN payload ->> '$.tag' ELSE kind END
         FROM tidewater_inbox WHERE kind <> 'answer' ORDER BY id",
    )?;
    let rows = statement.query_map([], |row| row.get(0))?;
    rows.collect()
}
