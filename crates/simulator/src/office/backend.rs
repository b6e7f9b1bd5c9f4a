//! The backend that judges requests: a handler of the operator's, asked through a provider.
//!
//! It goes by what a row says, and remembers every key with what it has done under it. Now and then
//! it is slow, or away, or answers nonsense, or answers and is not heard.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use crate::chronicle::Chronicle;
use crate::defects;
use crate::random::SeededRandom;

const CHANGED: &str = "row changed by a handler";
const REFUSED: &str = "row refused by a handler";
const HANDLED: &str = "row that a handler has seen to";
const ASKED_AGAIN: &str = "handler asked again under the same key";
const NONSENSE: &str = "handler answered nonsense";
const SLOW: &str = "handler too slow";

/// Every kind of thing that happens with a handler.
pub(crate) const KINDS: &[&str] = &[CHANGED, REFUSED, HANDLED, ASKED_AGAIN, NONSENSE, SLOW];

/// What a row says begins so once the backend has changed it.
const EASED: &str = "eased";

/// What it says of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackendVerdict {
    Apply,
    Change,
    Refuse,
    Handled,
}

/// What it says of a row with this text.
pub(crate) fn says(text: &str, is_delete: bool) -> BackendVerdict {
    let number = text
        .rsplit(' ')
        .next()
        .and_then(|it| it.parse::<u64>().ok());
    match number.unwrap_or_default() % 8 {
        1 => BackendVerdict::Handled,
        2 => BackendVerdict::Refuse,
        3 | 4 if !is_delete => BackendVerdict::Change,
        _ => BackendVerdict::Apply,
    }
}

/// What it makes of a text that it changes.
pub(crate) fn eased(text: &str) -> String {
    match text.split_once(' ') {
        Some((_, rest)) => format!("{EASED} {rest}"),
        None => EASED.to_owned(),
    }
}

/// Whether it has changed a text.
pub(crate) fn is_eased(text: &str) -> bool {
    text.starts_with(EASED)
}

/// What it has done under a key.
#[derive(Clone, Debug)]
pub(crate) struct Effect {
    /// The number of the row.
    pub(crate) key: i64,
    /// What the row was to be; `None`: it was to go.
    pub(crate) new: Option<String>,
    pub(crate) said: BackendVerdict,
}

/// All that it remembers.
#[derive(Debug, Default)]
pub(crate) struct Backend(BTreeMap<String, Effect>);

impl Backend {
    pub(crate) fn effects(&self) -> impl Iterator<Item = &Effect> {
        self.0.values()
    }
}

/// Whether it takes longer than anybody waits.
pub(super) fn dawdles(chronicle: &Chronicle, may_fail: bool, random: &mut SeededRandom) -> bool {
    let is_slow = may_fail && random.percent(10);
    if is_slow {
        chronicle.fault(SLOW);
    }
    is_slow
}

/// Judges what it is asked; the answer, JSON.
pub(super) fn judge(
    backend: &mut Backend,
    request: &str,
    (chronicle, may_fail): (&Chronicle, bool),
    random: &mut SeededRandom,
) -> String {
    let request: Json = serde_json::from_str(request).unwrap_or_default();
    let rows = request["rows"].as_array().cloned().unwrap_or_default();
    let mut answers: Vec<Json> = rows
        .iter()
        .map(|row| judge_row(backend, row, chronicle))
        .collect();
    if may_fail && random.percent(8) {
        chronicle.fault(NONSENSE);
        match random.below(4) {
            0 => return json!("what?").to_string(),
            1 => answers.truncate(answers.len() - 1),
            2 => answers.extend(answers.first().cloned()),
            _ => answers[0]["verdict"] = "perhaps".into(),
        }
    }
    // In any order.
    if random.percent(50) {
        answers.reverse();
    }
    json!({ "rows": answers }).to_string()
}

fn judge_row(backend: &mut Backend, row: &Json, chronicle: &Chronicle) -> Json {
    let key = row["idempotency_key"].as_str().unwrap_or_default();
    let note = |image: &str| row[image]["note"].as_str().map(str::to_owned);
    let (old, new) = (note("old"), note("new"));
    let asked_as = defects::key_as_heard(key, backend.0.len());
    let effect = match backend.0.get(&asked_as) {
        Some(effect) => {
            chronicle.fault(ASKED_AGAIN);
            effect.clone()
        }
        None => {
            let text = new.as_ref().or(old.as_ref()).cloned();
            let effect = Effect {
                key: row["key"]["request_id"].as_i64().unwrap_or_default(),
                said: says(&text.unwrap_or_default(), new.is_none()),
                new,
            };
            backend.0.insert(asked_as, effect.clone());
            effect
        }
    };
    chronicle.note(&format!("the backend: {effect:?}"));
    let mut answer = Map::new();
    answer.insert("idempotency_key".into(), key.into());
    let verdict = match effect.said {
        BackendVerdict::Apply => "apply",
        BackendVerdict::Change => {
            chronicle.fault(CHANGED);
            let text = effect.new.as_deref().map(eased);
            answer.insert("new".into(), json!({ "note": text }));
            "change"
        }
        BackendVerdict::Refuse => {
            chronicle.fault(REFUSED);
            answer.insert("reason".into(), "not so".into());
            "refuse"
        }
        BackendVerdict::Handled => {
            chronicle.fault(HANDLED);
            "handled"
        }
    };
    answer.insert("verdict".into(), verdict.into());
    Json::Object(answer)
}
