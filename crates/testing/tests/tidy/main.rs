//! What keeps the tree one in which strangers find their way: modules depend on each other in one
//! direction, and a type's name stands for one thing.
//!
//! Each figure has a ceiling, which is today's. A change that makes a figure smaller lowers its ceiling.

mod circles;
mod names;
mod tree;

use std::collections::BTreeMap;

use tree::Crate;

/// How many modules of each crate are in circles; of all others none is.
const CIRCLES: &[(&str, usize)] = &[("centre-postgres", 5)];

/// How many names of public types stand in several crates.
const NAMES_OF_SEVERAL_TYPES: usize = 3;

/// How many types have a lone participle for a name.
const PARTICIPLES: usize = 0;

/// One test, because the tree is read once.
#[test]
fn strangers_find_their_way_through_the_tree() {
    let all = Crate::all();
    let mut findings = find_circles(&all);
    findings.extend(find_names_of_several_types(&all));
    findings.extend(find_participles(&all));
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
