//! What the grammar says, for people: the tables of the reference, and lines of a first file.

use std::fmt::Write;

use super::{KeyDefault, KeyGrammar, SectionGrammar, TakesEffect};

/// The table of a section's keys in Markdown, and what counts for some of them.
pub fn reference_table(section: &SectionGrammar) -> String {
    let mut text = String::from("| key | default | meaning |\n|---|---|---|\n");
    for key in section.keys {
        let default = match key.default {
            KeyDefault::Value(value) => format!("`{value}`"),
            KeyDefault::Told(words) => words.to_owned(),
            KeyDefault::Required => "required".to_owned(),
        };
        let meaning = match key.details {
            "" => key.summary.to_owned(),
            details => format!("{}. {details}", key.summary),
        };
        let meaning = meaning.replace('|', "\\|");
        let _ = writeln!(text, "| `{}` | {default} | {meaning} |", key.name);
    }
    text.push('\n');
    text.push_str(&effect_sentence(section));
    let secrets: Vec<&KeyGrammar> = section.keys.iter().filter(|it| it.is_secret).collect();
    if !secrets.is_empty() {
        let names = names_in_code(&secrets);
        let _ = write!(
            text,
            " Keep {names} out of the file: `${{NAME}}` stands for a variable of the environment."
        );
    }
    text.push('\n');
    text
}

/// When changes of a section count.
fn effect_sentence(section: &SectionGrammar) -> String {
    let effect_of = |key: &&KeyGrammar| key.takes_effect.unwrap_or(section.takes_effect);
    let keys = section.keys.iter();
    let (own, others): (Vec<_>, Vec<_>) =
        keys.partition(|it| effect_of(it) == section.takes_effect);
    match others.first() {
        None => format!("A change counts {}.", section.takes_effect.words()),
        Some(other) => format!(
            "A change of {} counts {}, of {} {}.",
            names_in_code(&own),
            section.takes_effect.words(),
            names_in_code(&others),
            effect_of(other).words()
        ),
    }
}

impl TakesEffect {
    fn words(self) -> &'static str {
        match self {
            TakesEffect::Reload => "when a running server reads its configuration again (`SIGHUP`)",
            TakesEffect::Start => "when the server is started",
            TakesEffect::Deploy => "when the configuration is deployed",
        }
    }
}

fn names_in_code(keys: &[&KeyGrammar]) -> String {
    let names: Vec<String> = keys.iter().map(|it| format!("`{}`", it.name)).collect();
    match &names[..] {
        [all @ .., last] if !all.is_empty() => format!("{} and {last}", all.join(", ")),
        _ => names.join(""),
    }
}

/// The lines of a key in a file that a program writes: what it says as a comment, and below it the
/// key with a value, or with its default.
///
/// # Panics
/// There is no such key.
pub fn first_lines(path: &str, name: &str, value: Option<&str>) -> String {
    let key = find_key(path, name);
    let value = value.unwrap_or_else(|| usual_value(key));
    format!("# {}\n{name} = {value}\n", sentence(key.summary))
}

/// The line of a key that need not be said, as a comment of such a file, with what it says.
///
/// # Panics
/// There is no such key.
pub fn optional_line(path: &str, name: &str) -> String {
    let key = find_key(path, name);
    format!("# {name} = {}    # {}\n", usual_value(key), key.summary)
}

fn find_key(path: &str, name: &str) -> &'static KeyGrammar {
    let section = SectionGrammar::find(path).expect("a section of the grammar");
    section.key(name).expect("a key of the section")
}

fn usual_value(key: &KeyGrammar) -> &'static str {
    match key.default {
        KeyDefault::Value(default) => default,
        KeyDefault::Told(_) | KeyDefault::Required => key.example,
    }
}

/// With a capital letter and a full stop.
fn sentence(summary: &str) -> String {
    let mut characters = summary.chars();
    let first = characters.next().map(|it| it.to_uppercase().to_string());
    format!("{}{}.", first.unwrap_or_default(), characters.as_str())
}
