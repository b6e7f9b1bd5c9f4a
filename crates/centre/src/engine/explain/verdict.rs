//! What everything comes to, in one word and one sentence.

use super::LastSync;
use crate::explain::{ExplainVerdict, ExplainedEntry, ExplainedPublication, ExplainedRule, moment};
use crate::records::{RefusedRecord, RemoteRecord};

/// What is known.
pub(super) struct VerdictFacts<'a> {
    pub(super) user: &'a str,
    pub(super) remote: &'a RemoteRecord,
    pub(super) disabled: bool,
    pub(super) is_known_user: bool,
    pub(super) last: LastSync,
    pub(super) row_is_there: bool,
    pub(super) publications: &'a [ExplainedPublication],
    pub(super) refused: &'a [RefusedRecord],
}

/// What it comes to, the same in a sentence, and what else has to be said.
pub(super) fn judge(known: &VerdictFacts<'_>) -> (ExplainVerdict, String, Vec<String>) {
    let (verdict, sentence) = known.verdict();
    (verdict, sentence, known.notes())
}

impl<'a> VerdictFacts<'a> {
    fn verdict(&self) -> (ExplainVerdict, String) {
        let downloaded = |it: &&ExplainedPublication| it.direction != "upload";
        let mut publications = self.publications.iter().filter(downloaded);
        if publications.clone().next().is_none() {
            let sentence = "remotes upload to the table and download nothing of it";
            return (ExplainVerdict::NotDownloaded, self.told(sentence));
        }
        if let Some(by) = publications.find(|it| it.source != "rules") {
            let decides = match &by.download_script {
                Some(script) => format!("the script {script}"),
                None => "the table's handler".to_owned(),
            };
            let sentence = format!(
                "{decides} says what comes down of the table, and the centre keeps no record of what \
                 it said"
            );
            return (ExplainVerdict::NotByRules, self.told(&sentence));
        }
        match self.row_is_there {
            true => self.of_row(),
            false => self.of_none(),
        }
    }

    /// The row is there.
    fn of_row(&self) -> (ExplainVerdict, String) {
        let holding = self.publications.iter().find(|it| it.holds == Some(true));
        if let Some((publication, rule)) = holding.and_then(|it| Some((it, holding_rule(it)?))) {
            let why = format!("{} holds it by {}", self.user, by(rule));
            let news = newest(publication).filter(|it| !it.is_covered);
            return match (self.last.ended_ms, news) {
                (0, _) => (
                    ExplainVerdict::Comes,
                    self.told(&format!("{why}: it comes with the remote's first sync")),
                ),
                (_, Some(_)) => (
                    ExplainVerdict::Comes,
                    self.told(&format!(
                        "{why}, and it was changed since the remote's last sync: it comes with the \
                         next one"
                    )),
                ),
                (_, None) => (
                    ExplainVerdict::Held,
                    self.told(&format!(
                        "{why}, and no change is known since the remote's last sync: as far as the centre \
                         can tell it is there"
                    )),
                ),
            };
        }
        if let Some(unseen) = self.unseen() {
            return (ExplainVerdict::NotHeld, self.told(&unseen));
        }
        if let Some(sentence) = self.unknown() {
            return (ExplainVerdict::Unknown, self.told(&sentence));
        }
        let why = self.why_not();
        match self.was_held() {
            Some(entry) if entry.is_covered => (
                ExplainVerdict::Left,
                self.told(&format!(
                    "it was {}'s in {} and has moved {}: it has left the remote; {why}",
                    self.user,
                    partition(entry),
                    when(entry),
                )),
            ),
            Some(entry) if self.last.ended_ms != 0 => (
                ExplainVerdict::Leaves,
                self.told(&format!(
                    "it was {}'s in {} and has moved {}: it leaves the remote with the next sync; \
                     {why}",
                    self.user,
                    partition(entry),
                    when(entry),
                )),
            ),
            _ => (ExplainVerdict::NotHeld, self.told(&why)),
        }
    }

    /// The row is not there.
    fn of_none(&self) -> (ExplainVerdict, String) {
        let entries = self.publications.iter().filter_map(newest);
        let newest = entries.max_by_key(|it| (it.after_ms, it.is_held));
        let Some(newest) = newest else {
            let mine = self.refused.iter();
            let mut mine = mine.filter(|it| it.remote_id == self.remote.id && it.settled.is_none());
            let refused = mine.find(|it| it.operation == "insert");
            let tracked = self.publications.iter().any(|it| it.is_tracked);
            let sentence = match (refused, tracked) {
                (Some(refused), _) => format!(
                    "the remote's insert of it was refused: {}: {}",
                    refused.code, refused.reason
                ),
                (None, true) => "and the change log, as far back as it goes, knows of none".into(),
                (None, false) => "and changes of the table are not tracked".into(),
            };
            return (
                ExplainVerdict::Absent,
                format!("There is no such row in the centre: {sentence}."),
            );
        };
        let held = self.was_held();
        let (verdict, then) = match held {
            Some(entry) if entry.is_covered => {
                (ExplainVerdict::Gone, "it is not on the remote any more")
            }
            Some(_) if self.last.ended_ms != 0 => (
                ExplainVerdict::Goes,
                "it leaves the remote with the next sync, if it is there",
            ),
            Some(_) => (ExplainVerdict::Gone, "the remote has not synced yet"),
            None if newest.is_held.is_none() => (
                ExplainVerdict::Unknown,
                "whether the user holds the partition that it was in depends on what the remote has set",
            ),
            None => (
                ExplainVerdict::Absent,
                "the user does not hold the partition that it was in",
            ),
        };
        let entry = held.unwrap_or(newest);
        let sentence = format!(
            "The row is not in the centre any more: it was deleted, or got another key, {}{}; \
             {then}.",
            when(entry),
            match entry.partition.is_empty() {
                true => String::new(),
                false => format!(", in {}", partition(entry)),
            },
        );
        (verdict, sentence)
    }

    /// A sentence about a row that is there.
    fn told(&self, what: &str) -> String {
        match self.row_is_there {
            true => format!("The row is in the centre: {what}."),
            false => format!("There is no such row in the centre: {what}."),
        }
    }

    /// The newest entry in a partition that the user holds, and the row is not in now.
    fn was_held(&self) -> Option<&'a ExplainedEntry> {
        let mut publications = self.publications.iter();
        publications.find_map(|publication| {
            // Where the row still is, it has not moved from.
            let is_now = |entry: &ExplainedEntry| {
                let rule = publication.rules.get(entry.rule - 1);
                rule.and_then(|it| it.values.as_ref()) == Some(&entry.partition)
            };
            let mut log = publication.log.iter();
            log.find(|it| it.is_held == Some(true) && !is_now(it))
        })
    }

    /// That the role under which the remote reads does not see it.
    fn unseen(&self) -> Option<String> {
        let held = self.publications.iter();
        let held = held.filter(|it| it.rules.iter().any(|rule| rule.holds == Some(true)));
        let role = held.filter_map(|it| it.role.as_ref()).find(|it| !it.sees)?;
        Some(format!(
            "{} would hold it, but the role {:?}, under which the remote reads, does not see it: \
             row security hides it",
            self.user, role.name
        ))
    }

    /// That it depends on something which nobody here knows.
    fn unknown(&self) -> Option<String> {
        let rules = self.publications.iter().flat_map(|it| &it.rules);
        let rules = rules.filter(|it| it.holds.is_none());
        let names: Vec<String> = rules.flat_map(|it| it.unknown_parameters.clone()).collect();
        let first = names.first()?;
        Some(format!(
            "whether {} holds it depends on the parameter {first:?}, which the remote keeps itself; \
             say it with --parameter {first}=VALUE",
            self.user
        ))
    }

    /// Why no rule holds it.
    fn why_not(&self) -> String {
        let rules = self.publications.iter().flat_map(|it| &it.rules);
        let reasons: Vec<String> = rules.map(|it| self.why_not_by(it)).collect();
        match reasons.is_empty() {
            true => "no rule of the table holds it".to_owned(),
            false => reasons.join("; "),
        }
    }

    fn why_not_by(&self, rule: &ExplainedRule) -> String {
        if let Some(missing) = rule.follows.iter().find(|it| !it.is_there) {
            let refers = missing.refers.iter();
            let refers: Vec<String> = refers.map(|it| format!("{} = {}", it.0, it.1)).collect();
            return format!(
                "it follows {}, and there is no such row ({})",
                missing.table,
                refers.join(", ")
            );
        }
        if let Some(outside) = rule.windows.iter().find(|it| it.is_in == Some(false)) {
            return format!(
                "its {} is {}, and the window of the last {} begins at {}",
                outside.column,
                outside.value.as_deref().unwrap_or("NULL"),
                outside.last,
                outside.from,
            );
        }
        let holds = match (rule.held_count, &rule.held[..]) {
            (0, _) => "nothing".to_owned(),
            (count, held) => {
                let some: Vec<String> = held.iter().map(|it| it.join(", ")).collect();
                match count > held.len() {
                    true => format!("{} and {} more", some.join("; "), count - held.len()),
                    false => some.join("; "),
                }
            }
        };
        format!("its {} and {} holds {holds}", in_words(rule), self.user)
    }

    /// What is to be known besides.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.remote.revoked {
            notes.push("the remote is revoked: it does not sync until it is restored".to_owned());
        }
        if !self.is_known_user {
            notes.push(format!("the user {} is not there any more", self.user));
        } else if self.disabled {
            notes.push(format!(
                "the user {} is disabled: the remote does not sync",
                self.user
            ));
        }
        for publication in self.publications {
            if !publication.uploads_by.is_empty() && publication.direction != "download" {
                notes.push(format!(
                    "{}: what devices upload to the table is decided by {}",
                    publication.name,
                    publication.uploads_by.join(", ")
                ));
            }
            let by_rules = publication.source == "rules";
            if !publication.is_tracked && by_rules && publication.direction != "upload" {
                notes.push(format!(
                    "{}: changes of the table are not tracked, every download sends it whole",
                    publication.name
                ));
            }
        }
        notes.push(
            "up to where the remote has everything, and which partitions it held then, it keeps \
             itself, signed: what its last sync has come behind is told by times. What is pending on \
             it only its file knows: tidewater explain REMOTE.db TABLE KEY"
                .to_owned(),
        );
        notes
    }
}

fn holding_rule(publication: &ExplainedPublication) -> Option<&ExplainedRule> {
    publication.rules.iter().find(|it| it.holds == Some(true))
}

/// The newest entry about the row.
fn newest(publication: &ExplainedPublication) -> Option<&ExplainedEntry> {
    let entries = publication.log.iter();
    entries.max_by_key(|it| (!it.is_covered, it.after_ms))
}

/// By which rule it is held.
fn by(rule: &ExplainedRule) -> String {
    match rule.columns.is_empty() {
        true => format!("rule {}, which gives it to everyone", rule.number),
        false => format!("rule {} ({})", rule.number, in_words(rule)),
    }
}

/// What stands in the partition columns.
fn in_words(rule: &ExplainedRule) -> String {
    let of = match rule.follows.last() {
        None => String::new(),
        Some(parent) => format!("{}'s ", parent.table),
    };
    let values = rule.values.iter().flatten().map(String::as_str);
    let values = values.chain(std::iter::repeat("unknown"));
    let pairs = rule.columns.iter().zip(values);
    let pairs: Vec<String> = pairs
        .map(|(name, value)| format!("{name} is {value}"))
        .collect();
    format!("{of}{}", pairs.join(" and "))
}

fn partition(entry: &ExplainedEntry) -> String {
    match entry.partition.is_empty() {
        true => "what everyone holds".to_owned(),
        false => format!("the partition ({})", entry.partition.join(", ")),
    }
}

/// When an entry was made, as far as that is known.
fn when(entry: &ExplainedEntry) -> String {
    match (entry.after_ms, entry.before_ms) {
        (Some(after), Some(before)) if after == before => format!("on {}", moment(after)),
        (Some(after), Some(before)) => {
            format!("between {} and {}", moment(after), moment(before))
        }
        (Some(after), None) => format!("after {}", moment(after)),
        (None, Some(before)) => format!("before {}", moment(before)),
        (None, None) => "at a time that is not known".to_owned(),
    }
}
