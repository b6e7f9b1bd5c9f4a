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
        let range = key.kind.range();
        let told = [key.summary, key.details, &range];
        let told: Vec<&str> = told.into_iter().filter(|it| !it.is_empty()).collect();
        let meaning = told.join(". ").replace('|', "\\|");
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
    let mut effects = vec![section.takes_effect];
    for effect in section.keys.iter().filter_map(|it| it.takes_effect) {
        if !effects.contains(&effect) {
            effects.push(effect);
        }
    }
    if effects.len() == 1 {
        return format!("A change counts {}.", section.takes_effect.words());
    }
    let parts = effects.into_iter().filter_map(|effect| {
        let keys = section.keys.iter();
        let keys: Vec<_> = keys.filter(|it| effect_of(it) == effect).collect();
        (!keys.is_empty()).then(|| (names_in_code(&keys), effect.words()))
    });
    let parts = parts
        .enumerate()
        .map(|(index, (names, words))| match index {
            0 => format!("A change of {names} counts {words}"),
            _ => format!("of {names} {words}"),
        });
    format!("{}.", parts.collect::<Vec<_>>().join(", "))
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
