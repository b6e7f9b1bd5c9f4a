//! The modules of the product, read with the parser that macros use.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::{Attribute, Item, UseTree};

/// A module's place in its crate: `["engine", "scripts"]`, and nothing for the root.
pub(crate) type ModulePath = Vec<String>;

/// A crate's modules. What is there for tests alone is left out.
pub(crate) struct Crate {
    pub(crate) name: String,
    pub(crate) modules: BTreeMap<ModulePath, Module>,
}

/// A file.
pub(crate) struct Module {
    pub(crate) file: syn::File,
    /// What it defines, by name.
    pub(crate) items: BTreeSet<String>,
    /// The names that it takes from elsewhere, with their paths as they are written.
    pub(crate) imports: BTreeMap<String, Vec<String>>,
    /// The modules of which it takes all names.
    pub(crate) globs: Vec<Vec<String>>,
}

impl Crate {
    /// Those of the workspace that are more than tests.
    pub(crate) fn all() -> Vec<Crate> {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut folders: Vec<PathBuf> = fs::read_dir(crates)
            .expect("the folder of the crates")
            .map(|it| it.expect("an entry").path())
            .filter(|it| it.join("src").is_dir())
            .collect();
        folders.sort();
        folders.iter().map(|it| Crate::read(it)).collect()
    }

    fn read(folder: &Path) -> Crate {
        let source = folder.join("src");
        let mut read = Crate {
            name: folder.file_name().unwrap().to_string_lossy().into_owned(),
            modules: BTreeMap::new(),
        };
        for root in ["lib.rs", "main.rs"] {
            if source.join(root).is_file() {
                read.add(&source, &source.join(root), Vec::new());
            }
        }
        read
    }

    /// Reads a module and those below it. `folder` is where its children are.
    fn add(&mut self, folder: &Path, path: &Path, place: ModulePath) {
        let text = fs::read_to_string(path).expect("a module");
        let mut file = syn::parse_file(&text).expect("Rust");
        file.items.retain(|it| !is_for_tests(attributes(it)));
        let mut module = Module {
            items: BTreeSet::new(),
            imports: BTreeMap::new(),
            globs: Vec::new(),
            file,
        };
        let mut children = Vec::new();
        for item in &module.file.items {
            match item {
                Item::Use(it) => {
                    let (imports, globs) = (&mut module.imports, &mut module.globs);
                    collect(&it.tree, &mut Vec::new(), imports, globs);
                }
                Item::Mod(it) if it.content.is_none() => children.push(it.ident.to_string()),
                _ => {}
            }
            module.items.extend(defined(item));
        }
        // A crate with both roots has one tree.
        match self.modules.entry(place.clone()) {
            std::collections::btree_map::Entry::Vacant(free) => drop(free.insert(module)),
            std::collections::btree_map::Entry::Occupied(mut taken) => {
                let known = taken.get_mut();
                known.file.items.extend(module.file.items);
                known.items.extend(module.items);
                known.imports.extend(module.imports);
                known.globs.extend(module.globs);
            }
        }
        for child in children {
            let (flat, below) = (folder.join(format!("{child}.rs")), folder.join(&child));
            let path = match flat.is_file() {
                true => flat,
                false => below.join("mod.rs"),
            };
            let place = place.iter().cloned().chain([child]).collect();
            self.add(&below, &path, place);
        }
    }

    /// The module in which what a path of a module leads to is defined; `None` if that is elsewhere.
    pub(crate) fn resolve(&self, from: &ModulePath, path: &[String]) -> Option<ModulePath> {
        self.resolve_within(from, path, &mut BTreeSet::new())
    }

    fn resolve_within(
        &self,
        from: &ModulePath,
        path: &[String],
        seen: &mut BTreeSet<(ModulePath, String)>,
    ) -> Option<ModulePath> {
        let mut at = from.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => {
                at.clear();
                rest = &path[1..];
            }
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|it| it == "super") {
                    at.pop()?;
                    rest = &rest[1..];
                }
            }
            _ => {}
        }
        while let Some(name) = rest.first() {
            let below: ModulePath = at.iter().chain([name]).cloned().collect();
            if self.modules.contains_key(&below) {
                at = below;
                rest = &rest[1..];
                continue;
            }
            return self.definition(&at, name, seen);
        }
        Some(at)
    }

    /// Where a module has a name from.
    fn definition(
        &self,
        at: &ModulePath,
        name: &str,
        seen: &mut BTreeSet<(ModulePath, String)>,
    ) -> Option<ModulePath> {
        let module = self.modules.get(at)?;
        if !seen.insert((at.clone(), name.to_owned())) {
            return None;
        }
        if module.items.contains(name) {
            return Some(at.clone());
        }
        if let Some(path) = module.imports.get(name) {
            return self.resolve_within(at, path, seen);
        }
        module.globs.iter().find_map(|glob| {
            let of = self.resolve_within(at, glob, seen)?;
            self.definition(&of, name, seen)
        })
    }
}

/// Collects what a `use` says.
fn collect(
    tree: &UseTree,
    before: &mut Vec<String>,
    imports: &mut BTreeMap<String, Vec<String>>,
    globs: &mut Vec<Vec<String>>,
) {
    let mut name = |name: String, last: String| {
        let mut path = before.clone();
        if last != "self" {
            path.push(last);
        }
        imports.insert(name, path);
    };
    match tree {
        UseTree::Path(it) => {
            before.push(it.ident.to_string());
            collect(&it.tree, before, imports, globs);
            before.pop();
        }
        UseTree::Name(it) => match it.ident == "self" {
            true => name(before.last().cloned().unwrap_or_default(), "self".into()),
            false => name(it.ident.to_string(), it.ident.to_string()),
        },
        UseTree::Rename(it) => name(it.rename.to_string(), it.ident.to_string()),
        UseTree::Glob(_) => globs.push(before.clone()),
        UseTree::Group(it) => {
            for tree in &it.items {
                collect(tree, before, imports, globs);
            }
        }
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(it) => &it.attrs,
        Item::Enum(it) => &it.attrs,
        Item::Fn(it) => &it.attrs,
        Item::Impl(it) => &it.attrs,
        Item::Macro(it) => &it.attrs,
        Item::Mod(it) => &it.attrs,
        Item::Static(it) => &it.attrs,
        Item::Struct(it) => &it.attrs,
        Item::Trait(it) => &it.attrs,
        Item::Type(it) => &it.attrs,
        Item::Use(it) => &it.attrs,
        _ => &[],
    }
}

pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|it| {
        let condition = it.meta.require_list().ok();
        let condition = condition.filter(|it| it.path.is_ident("cfg"));
        condition.is_some_and(|it| it.tokens.to_string() == "test")
    })
}

fn defined(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(it) => &it.ident,
        Item::Enum(it) => &it.ident,
        Item::Fn(it) => &it.sig.ident,
        Item::Macro(it) => it.ident.as_ref()?,
        Item::Static(it) => &it.ident,
        Item::Struct(it) => &it.ident,
        Item::Trait(it) => &it.ident,
        Item::Type(it) => &it.ident,
        _ => return None,
    };
    Some(ident.to_string())
}
