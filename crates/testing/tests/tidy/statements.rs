//! Where SQL statements stand in the code.

use std::collections::BTreeMap;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Lit, LitStr};

use crate::tree::{Crate, ModulePath};

/// The texts that look like SQL statements, by the modules of a crate that are below a place.
pub(crate) fn find(product: &Crate, below: &[&str]) -> BTreeMap<ModulePath, Vec<String>> {
    let modules = product.modules.iter();
    let modules = modules.filter(|(place, _)| below.iter().eq(place.iter().take(below.len())));
    let found = modules.map(|(place, module)| {
        let mut texts = Texts::default();
        texts.visit_file(&module.file);
        (place.clone(), texts.0)
    });
    found.filter(|(_, texts)| !texts.is_empty()).collect()
}

/// The literals that look like statements; documents are none.
#[derive(Default)]
struct Texts(Vec<String>);

impl<'ast> Visit<'ast> for Texts {
    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_lit_str(&mut self, it: &'ast LitStr) {
        self.add(it.value());
    }

    /// What a macro is given has no syntax yet.
    fn visit_macro(&mut self, it: &'ast syn::Macro) {
        self.scan(it.tokens.clone());
        visit::visit_macro(self, it);
    }
}

impl Texts {
    fn add(&mut self, text: String) {
        if is_statement(&text) {
            self.0.push(text);
        }
    }

    fn scan(&mut self, tokens: TokenStream) {
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            match token {
                // An attribute.
                TokenTree::Punct(it) if it.as_char() == '#' => {
                    tokens.next_if(|it| matches!(it, TokenTree::Group(_)));
                }
                TokenTree::Literal(it) => {
                    if let Ok(Lit::Str(text)) = syn::parse_str(&it.to_string()) {
                        self.add(text.value());
                    }
                }
                TokenTree::Group(it) => self.scan(it.stream()),
                _ => {}
            }
        }
    }
}

/// Whether a text has the words of a statement, in capitals.
fn is_statement(text: &str) -> bool {
    let words = text.split(|it: char| !it.is_alphanumeric() && it != '_');
    let words: Vec<&str> = words.filter(|it| !it.is_empty()).collect();
    let follows = |first: &str, second: &str| {
        let mut behind = words.iter().skip_while(|it| **it != first).skip(1);
        behind.any(|it| *it == second)
    };
    let made = ["TABLE", "INDEX", "UNIQUE", "TRIGGER", "TEMPORARY", "VIEW"];
    let removed = ["TABLE", "INDEX", "TRIGGER", "SCHEMA", "FUNCTION", "VIEW"];
    let begins = |pair: &[&str]| match pair {
        ["INSERT", "INTO"] | ["DELETE", "FROM"] | ["ALTER", "TABLE"] => true,
        ["CREATE", what] => made.contains(what),
        ["DROP", what] => removed.contains(what),
        _ => false,
    };
    follows("SELECT", "FROM") || follows("UPDATE", "SET") || words.windows(2).any(begins)
}
