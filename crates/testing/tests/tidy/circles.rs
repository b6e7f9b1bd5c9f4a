//! Modules that depend on each other in a circle. A module and those below it may.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use crate::tree::{Crate, ModulePath};

/// The circles of a crate, each with its modules.
pub(crate) fn find(product: &Crate) -> Vec<Vec<ModulePath>> {
    let arrows = arrows(product);
    let reach: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> = product
        .modules
        .keys()
        .map(|from| (from, reachable(&arrows, from)))
        .collect();
    let mut circles: Vec<Vec<ModulePath>> = Vec::new();
    for (module, reached) in &reach {
        if !reached.contains(module) || circles.iter().flatten().any(|it| it == *module) {
            continue;
        }
        let circle = reached.iter().filter(|it| reach[**it].contains(module));
        circles.push(circle.map(|it| (*it).clone()).collect());
    }
    circles
}

/// The arrows within circles, for people.
pub(crate) fn describe(product: &Crate, circles: &[Vec<ModulePath>]) -> String {
    let mut text = String::new();
    for circle in circles {
        for (from, to) in arrows(product) {
            let to: Vec<String> = to
                .iter()
                .filter(|it| circle.contains(it) && circle.contains(&from))
                .map(|it| it.join("::"))
                .collect();
            if !to.is_empty() {
                let _ = writeln!(text, "  {} -> {}", from.join("::"), to.join(", "));
            }
        }
        text.push('\n');
    }
    text
}

type Arrows = BTreeMap<ModulePath, BTreeSet<ModulePath>>;

fn reachable<'a>(arrows: &'a Arrows, from: &ModulePath) -> BTreeSet<&'a ModulePath> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&ModulePath> = arrows[from].iter().collect();
    while let Some(module) = open.pop() {
        if reached.insert(module) {
            open.extend(&arrows[module]);
        }
    }
    reached
}

/// What each module depends on, but for those above and below it.
fn arrows(product: &Crate) -> Arrows {
    let of = |(place, module): (&ModulePath, &crate::tree::Module)| {
        let mut paths = Paths::default();
        paths.visit_file(&module.file);
        let imports = module.imports.values().cloned();
        let all = imports.chain(module.globs.iter().cloned()).chain(paths.0);
        let targets = all.filter_map(|path| product.resolve(place, &path));
        let targets = targets.filter(|it| !(it.starts_with(place) || place.starts_with(it)));
        (place.clone(), targets.collect())
    };
    product.modules.iter().map(of).collect()
}

/// The paths in code that begin at the crate, or at a module above.
#[derive(Default)]
struct Paths(Vec<Vec<String>>);

const BEGINNINGS: [&str; 3] = ["crate", "super", "self"];

impl<'ast> Visit<'ast> for Paths {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.add(
            path.segments
                .iter()
                .map(|it| it.ident.to_string())
                .collect(),
        );
        visit::visit_path(self, path);
    }

    /// What a macro is given has no syntax yet.
    fn visit_macro(&mut self, it: &'ast syn::Macro) {
        self.scan(it.tokens.clone());
        visit::visit_macro(self, it);
    }
}

impl Paths {
    fn add(&mut self, path: Vec<String>) {
        // A local name is an import, or is in the module.
        if path.len() > 1 && BEGINNINGS.contains(&&*path[0]) {
            self.0.push(path);
        }
    }

    fn scan(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        for token in tokens {
            match token {
                TokenTree::Ident(it) => {
                    if !path.last().is_some_and(String::is_empty) {
                        self.add(std::mem::take(&mut path));
                    }
                    path.retain(|it| !it.is_empty());
                    path.push(it.to_string());
                }
                // Two colons leave an empty end.
                TokenTree::Punct(it) if it.as_char() == ':' && !path.is_empty() => {
                    if !path.last().is_some_and(String::is_empty) {
                        path.push(String::new());
                    }
                }
                other => {
                    path.retain(|it| !it.is_empty());
                    self.add(std::mem::take(&mut path));
                    if let TokenTree::Group(it) = other {
                        self.scan(it.stream());
                    }
                }
            }
        }
        path.retain(|it| !it.is_empty());
        self.add(path);
    }
}
