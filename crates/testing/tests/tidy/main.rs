//! What keeps the tree one in which strangers find their way: modules depend on each other in one
//! direction, a type's name stands for one thing, and SQL stands where a dialect spells it.
//!
//! Each figure has a ceiling, which is today's. A change that makes a figure smaller lowers its ceiling.

mod circles;
mod databases;
mod names;
mod statements;
mod tree;

use std::collections::{BTreeMap, BTreeSet};

use tree::Crate;

/// How many modules of each crate are in circles; of all others none is.
const CIRCLES: &[(&str, usize)] = &[("centre-postgres", 5)];

/// How many names of public types stand in several crates.
const NAMES_OF_SEVERAL_TYPES: usize = 3;

/// How many types have a lone participle for a name.
const PARTICIPLES: usize = 0;

/// How many SQL statements stand in modules of the engine that are not below [`DIALECT_SQL`].
const SQL_OF_THE_ENGINE: &[(&str, usize)] = &[
    // Hints for people.
    ("acting", 2),
    // A hint for people.
    ("catalog", 1),
    // A hint for people.
    ("compile::rules", 1),
    // The operator's queries for scopes, and the highest value of a window.
    ("publication_compiler", 3),
    // A hint for people.
    ("resolve::rules", 1),
    // The text that begins the DDL of an adapter's own tables.
    ("state", 1),
    // What scripts write is put into a query.
    ("scripts::statement_text", 2),
    // The operator's script is tried on rows of the application's tables, or is begun for him.
    ("scripts::trying", 8),
];

/// The names in the engine in which a database is named: remotes have SQLite.
const DATABASES_OF_THE_ENGINE: &[&str] = &["default_of_sqlite", "is_of_sqlite", "sqlite_type"];

/// Where the engine's statements stand: a database spells them by its dialect.
const DIALECT_SQL: &str = "sql";

/// One test, because the tree is read once.
#[test]
fn strangers_find_their_way_through_the_tree() {
    let all = Crate::all();
    let mut findings = find_circles(&all);
    findings.extend(find_names_of_several_types(&all));
    findings.extend(find_participles(&all));
    findings.extend(find_sql_of_the_engine(&all));
    findings.extend(find_databases_of_the_engine(&all));
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// Modules depend on each other in one direction.
fn find_circles(all: &[Crate]) -> Vec<String> {
    let ceilings: BTreeMap<&str, usize> = CIRCLES.iter().copied().collect();
    let finding = |product: &Crate| {
        let circles = circles::find(product);
        let count = circles.iter().map(Vec::len).sum::<usize>();
        let ceiling = ceilings.get(&*product.name).copied().unwrap_or(0);
        (count != ceiling).then(|| {
            format!(
                "{}: {count} modules are in circles, and the ceiling is {ceiling}\n{}",
                product.name,
                circles::describe(product, &circles)
            )
        })
    };
    all.iter().filter_map(finding).collect()
}

/// A name of a type stands for one thing.
fn find_names_of_several_types(all: &[Crate]) -> Option<String> {
    let several = names::of_several_types(all);
    let count = several.len();
    (count != NAMES_OF_SEVERAL_TYPES).then(|| {
        format!(
            "{count} names of types stand in several crates, and the ceiling is \
             {NAMES_OF_SEVERAL_TYPES}: {several:#?}"
        )
    })
}

/// Types are called by nouns.
fn find_participles(all: &[Crate]) -> Option<String> {
    let (participles, types) = names::participles(all);
    let count = participles.len();
    (count != PARTICIPLES).then(|| {
        format!(
            "{count} of {types} types are called by a participle, and the ceiling is \
             {PARTICIPLES}: {participles:#?}"
        )
    })
}

/// The engine's SQL stands where dialects spell it.
fn find_sql_of_the_engine(all: &[Crate]) -> Vec<String> {
    let centre = all.iter().find(|it| it.name == "centre");
    let found = statements::find(centre.expect("the engine's crate"), &["engine"]);
    let found = found
        .into_iter()
        .map(|(place, texts)| (place[1..].join("::"), texts));
    let mut found: BTreeMap<String, Vec<String>> = found.collect();
    found.retain(|place, _| place.split("::").next() != Some(DIALECT_SQL));
    let ceilings: BTreeMap<&str, usize> = SQL_OF_THE_ENGINE.iter().copied().collect();
    let places = ceilings.keys().map(|it| (*it).to_owned());
    let places: BTreeSet<String> = places.chain(found.keys().cloned()).collect();
    let finding = |place: String| {
        let texts = found.get(&place).map(Vec::as_slice).unwrap_or_default();
        let ceiling = ceilings.get(&*place).copied().unwrap_or(0);
        (texts.len() != ceiling).then(|| {
            format!(
                "engine::{place}: {} SQL statements outside of engine::{DIALECT_SQL}, and the \
                 ceiling is {ceiling}: {texts:#?}",
                texts.len()
            )
        })
    };
    places.into_iter().filter_map(finding).collect()
}

/// The engine does the same whatever database it is: differences are the dialect's to tell.
fn find_databases_of_the_engine(all: &[Crate]) -> Vec<String> {
    let centre = all.iter().find(|it| it.name == "centre");
    let found = databases::find(centre.expect("the engine's crate"), &["engine"]);
    let finding = |(place, mut names): (tree::ModulePath, Vec<String>)| {
        names.retain(|it| !DATABASES_OF_THE_ENGINE.contains(&&**it));
        let place = place.join("::");
        (!names.is_empty()).then(|| format!("{place} names a database: {}", names.join(", ")))
    };
    found.into_iter().filter_map(finding).collect()
}
