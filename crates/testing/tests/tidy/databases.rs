//! Names of databases in the code.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};
use syn::{Ident, ItemMod};

use crate::tree::{Crate, ModulePath, is_for_tests};

/// What databases are called.
const DATABASES: [&str; 5] = ["postgres", "sqlite", "mysql", "mariadb", "duckdb"];

/// The names in which a database is named, by the modules of a crate that are below a place. Texts for
/// people may name one.
pub(crate) fn find(product: &Crate, below: &[&str]) -> BTreeMap<ModulePath, Vec<String>> {
    let modules = product.modules.iter();
    let modules = modules.filter(|(place, _)| below.iter().eq(place.iter().take(below.len())));
    let found = modules.map(|(place, module)| {
        let mut names = Names::default();
        names.visit_file(&module.file);
        names.0.sort();
        names.0.dedup();
        (place.clone(), names.0)
    });
    found.filter(|(_, names)| !names.is_empty()).collect()
}

#[derive(Default)]
struct Names(Vec<String>);

impl<'ast> Visit<'ast> for Names {
    fn visit_item_mod(&mut self, it: &'ast ItemMod) {
        if !is_for_tests(&it.attrs) {
            visit::visit_item_mod(self, it);
        }
    }

    fn visit_ident(&mut self, it: &'ast Ident) {
        let name = it.to_string();
        let lower = name.to_lowercase();
        if DATABASES.iter().any(|database| lower.contains(database)) {
            self.0.push(name);
        }
    }
}
