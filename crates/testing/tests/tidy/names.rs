//! What types are called.

use std::collections::BTreeMap;

use syn::{Item, Visibility};

use crate::tree::Crate;

/// Adjectives and participles that do not end like others, and stand alone as names.
const ODD: &[&str] = &[
    "Begun", "Broken", "Chosen", "Done", "Drawn", "Found", "Given", "Gone", "Held", "Kept",
    "Known", "Left", "Lost", "Made", "Met", "Own", "Read", "Said", "Seen", "Sent", "Set", "Shown",
    "Spoken", "Taken", "Told", "Unknown", "Woken", "Written",
];

/// Nouns that end like participles.
const NOUNS: &[&str] = &[
    "Bed", "Feed", "Seed", "Speed", "Need", "Embed", "Standing", "Ping", "String",
];

/// The types of a crate by name, and whether other crates see one of that name.
fn types(product: &Crate) -> BTreeMap<String, bool> {
    let mut types = BTreeMap::new();
    for item in product.modules.values().flat_map(|it| &it.file.items) {
        let (ident, visibility) = match item {
            Item::Struct(it) => (&it.ident, &it.vis),
            Item::Enum(it) => (&it.ident, &it.vis),
            Item::Trait(it) => (&it.ident, &it.vis),
            _ => continue,
        };
        let is_public = matches!(visibility, Visibility::Public(_));
        *types.entry(ident.to_string()).or_default() |= is_public;
    }
    types
}

/// The names that stand in several crates and are public in one of them, with all those crates.
pub(crate) fn of_several_types(all: &[Crate]) -> BTreeMap<String, Vec<&str>> {
    let mut crates: BTreeMap<String, (Vec<&str>, bool)> = BTreeMap::new();
    for product in all {
        for (name, is_public) in types(product) {
            let known = crates.entry(name).or_default();
            known.0.push(&product.name);
            known.1 |= is_public;
        }
    }
    crates.retain(|_, (crates, is_public)| crates.len() > 1 && *is_public);
    crates
        .into_iter()
        .map(|(name, (crates, _))| (name, crates))
        .collect()
}

/// The names that are one participle, and how many types there are.
pub(crate) fn participles(all: &[Crate]) -> (Vec<String>, usize) {
    let types: Vec<(String, &str)> = all
        .iter()
        .flat_map(|it| types(it).into_keys().map(|name| (name, it.name.as_str())))
        .collect();
    let lone = types.iter().filter(|(name, _)| is_participle(name));
    let lone = lone.map(|(name, of)| format!("{of}: {name}"));
    (lone.collect(), types.len())
}

fn is_participle(name: &str) -> bool {
    let is_one_word = name.chars().filter(char::is_ascii_uppercase).count() == 1;
    let ends_so = (name.ends_with("ed") || name.ends_with("ing")) && !NOUNS.contains(&name);
    is_one_word && (ends_so || ODD.contains(&name))
}
