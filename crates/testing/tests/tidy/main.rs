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
const NAMES_OF_SEVERAL_TYPES: usize = 41;

/// How many types have a lone participle for a name.
const PARTICIPLES: usize = 84;

#[test]
fn modules_depend_on_each_other_in_one_direction() {
    let ceilings: BTreeMap<&str, usize> = CIRCLES.iter().copied().collect();
    let mut wrong = Vec::new();
    for product in Crate::all() {
        let circles = circles::find(&product);
        let count = circles.iter().map(Vec::len).sum::<usize>();
        let ceiling = ceilings.get(&*product.name).copied().unwrap_or(0);
        if count != ceiling {
            wrong.push(format!(
                "{}: {count} modules are in circles, and the ceiling is {ceiling}\n{}",
                product.name,
                circles::describe(&product, &circles)
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_name_of_a_type_stands_for_one_thing() {
    let all = Crate::all();
    let several = names::of_several_types(&all);
    let count = several.len();
    assert_eq!(count, NAMES_OF_SEVERAL_TYPES, "{several:#?}");
}

#[test]
fn types_are_called_by_nouns() {
    let all = Crate::all();
    let (participles, types) = names::participles(&all);
    let count = participles.len();
    assert_eq!(count, PARTICIPLES, "of {types}: {participles:#?}");
}
