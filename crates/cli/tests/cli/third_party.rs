//! `THIRD-PARTY.md`: the licences of what is linked into the programs, as they demand to be
//! passed on. Made from what cargo knows; a test fails when the file has fallen behind.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Set it to write the file instead of comparing it.
const WRITE: &str = "TIDEWATER_WRITE_THIRD_PARTY";

/// The list is that of one platform, so that it does not depend on who makes it: of the one whose
/// program contains most.
const PLATFORM: &str = "x86_64-unknown-linux-musl";

/// A licence that we choose where a crate leaves the choice, the preferred first.
const CHOICE: [&str; 4] = ["Apache-2.0", "MIT", "ISC", "Zlib"];

/// Packages that were published with a link to their licence in its place, by where they come
/// from, and the text that is at the other end of it.
const LINKED: [(&str, &str); 1] = [(
    "https://github.com/plotters-rs/plotters",
    include_str!("licences/plotters.txt"),
)];

/// Sources of others within a package, and where their licence is in it.
const WITHIN: [(&str, &str); 1] = [("libmimalloc-sys", "c_src/mimalloc/v2/LICENSE")];

/// The packages whose programs users get.
const PROGRAMS: [&str; 3] = ["tidewater-cli", "tidewater-bench", "tidewater-simulator"];

struct Package {
    name: String,
    version: String,
    licence: String,
    /// What of the licence we take.
    taken: String,
    home: String,
    folder: PathBuf,
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(workspace())
        .args(["metadata", "--locked", "--format-version", "1"])
        .args(["--filter-platform", PLATFORM])
        .output()
        .expect("cargo runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).expect("cargo prints JSON")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Everything that the programs depend on for more than their tests and their build, sorted.
fn linked(metadata: &Value) -> Vec<Package> {
    let packages: HashMap<&str, &Value> = list(&metadata["packages"])
        .iter()
        .map(|package| (text(&package["id"]), package))
        .collect();
    let nodes: HashMap<&str, &Value> = list(&metadata["resolve"]["nodes"])
        .iter()
        .map(|node| (text(&node["id"]), node))
        .collect();
    let roots = packages
        .iter()
        .filter(|(_, it)| PROGRAMS.contains(&text(&it["name"])));
    let mut stack: Vec<&str> = roots.map(|(id, _)| *id).collect();
    assert_eq!(stack.len(), PROGRAMS.len());
    let mut seen = BTreeSet::new();
    while let Some(id) = stack.pop() {
        if !seen.insert(id) {
            continue;
        }
        for dependency in list(&nodes[id]["deps"]) {
            let kinds = list(&dependency["dep_kinds"]);
            if kinds.iter().any(|kind| kind["kind"].is_null()) {
                stack.push(text(&dependency["pkg"]));
            }
        }
    }
    let foreign = seen.iter().map(|id| packages[id]);
    let foreign = foreign.filter(|package| !package["source"].is_null());
    let mut linked: Vec<Package> = foreign.map(Package::of).collect();
    linked.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    linked
}

impl Package {
    fn of(package: &Value) -> Package {
        let licence = text(&package["license"]).to_owned();
        let manifest = Path::new(text(&package["manifest_path"]));
        Package {
            name: text(&package["name"]).to_owned(),
            version: text(&package["version"]).to_owned(),
            taken: taken(&licence),
            home: text(&package["repository"]).to_owned(),
            folder: manifest.parent().expect("a folder").to_owned(),
            licence,
        }
    }

    /// The texts that have to be passed on. The Apache License itself stands in LICENSE.
    fn texts(&self) -> Vec<String> {
        let folder = std::fs::read_dir(&self.folder).expect("the package's source is here");
        let mut names: Vec<String> = folder
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| self.is_wanted(&name.to_uppercase()))
            .collect();
        names.sort();
        let within = WITHIN.iter().filter(|(name, _)| *name == self.name);
        names.extend(within.map(|(_, file)| (*file).to_owned()));
        let read = |name: &String| {
            let path = self.folder.join(name);
            let text = std::fs::read_to_string(path).ok()?;
            match text.starts_with("../") {
                true => self.linked_text(),
                false => Some(tidy(&text)),
            }
        };
        names.iter().filter_map(read).collect()
    }

    fn linked_text(&self) -> Option<String> {
        let text = LINKED.iter().find(|(home, _)| self.home.starts_with(home));
        text.map(|(_, text)| tidy(text))
    }

    fn is_wanted(&self, file: &str) -> bool {
        if file.starts_with("NOTICE") {
            return true;
        }
        let is_licence = ["LICENSE", "LICENCE", "COPYING", "UNLICENSE"]
            .iter()
            .any(|it| file.starts_with(it));
        let only = |word: &str| file.contains(word);
        is_licence
            && match self.taken.as_str() {
                "Apache-2.0" => false,
                "MIT" => !only("APACHE") && !only("UNLICENSE"),
                "Apache-2.0 AND Unicode-3.0" => only("UNICODE"),
                _ => true,
            }
    }
}

/// What we take of a licence that may leave a choice.
fn taken(licence: &str) -> String {
    let clauses = licence.split(" AND ").map(|clause| {
        let clause = clause.trim_matches(['(', ')']).replace('/', " OR ");
        let choices: Vec<&str> = clause.split(" OR ").map(str::trim).collect();
        let preferred = CHOICE.iter().find(|it| choices.contains(*it));
        preferred.map_or_else(|| clause.clone(), |it| (*it).to_owned())
    });
    clauses.collect::<Vec<_>>().join(" AND ")
}

/// Without what editors and systems differ in.
fn tidy(text: &str) -> String {
    let lines = text.lines().map(str::trim_end);
    lines
        .collect::<Vec<_>>()
        .join("\n")
        .trim_matches('\n')
        .to_owned()
}

fn document() -> String {
    let packages = linked(&metadata());
    let mut out = String::from(
        "# Third-party licences\n\n\
         What the programs `tidewater`, `tidewater-bench` and `tidewater-simulate` contain of\n\
         others, under which licence, and the texts that these licences want passed on. Where a\n\
         package leaves a choice, the licence that is named is the one that we take; the text of\n\
         the Apache License 2.0 is that of [LICENSE](LICENSE). SQLite, which they contain too, is\n\
         in the public domain.\n\n\
         Made by the test `third_party` of `crates/cli`, for Linux on x86-64. To make it anew:\n\n    \
         TIDEWATER_WRITE_THIRD_PARTY=1 cargo test -p tidewater-cli --test cli third_party\n\n\
         | package | version | licence | taken |\n|---|---|---|---|\n",
    );
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in &packages {
        let Package {
            name,
            version,
            licence,
            taken,
            home,
            ..
        } = package;
        let name_linked = match home.is_empty() {
            true => name.clone(),
            false => format!("[{name}]({home})"),
        };
        out.push_str(&format!(
            "| {name_linked} | {version} | {licence} | {taken} |\n"
        ));
        let found = package.texts();
        let needs_none = taken == "Apache-2.0";
        assert!(
            needs_none || !found.is_empty(),
            "{name} comes without its licence"
        );
        for text in found {
            texts
                .entry(text)
                .or_default()
                .push(format!("{name} {version}"));
        }
    }
    let mut texts: Vec<(Vec<String>, String)> =
        texts.into_iter().map(|(text, of)| (of, text)).collect();
    texts.sort();
    for (of, text) in texts {
        out.push_str(&format!("\n## {}\n\n~~~text\n{text}\n~~~\n", of.join(", ")));
    }
    out
}

#[test]
fn the_licences_of_third_parties_are_passed_on() {
    let path = workspace().join("THIRD-PARTY.md");
    let document = document();
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, &document).expect("the file can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == document,
        "THIRD-PARTY.md has fallen behind Cargo.lock. To make it anew: \
         {WRITE}=1 cargo test -p tidewater-cli --test cli third_party"
    );
}

#[test]
fn where_a_licence_leaves_a_choice_one_is_taken() {
    for (licence, expected) in [
        ("MIT OR Apache-2.0", "Apache-2.0"),
        ("MIT/Apache-2.0", "Apache-2.0"),
        ("Unlicense OR MIT", "MIT"),
        (
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 AND Unicode-3.0",
        ),
        ("Apache-2.0 AND ISC", "Apache-2.0 AND ISC"),
        ("BSD-3-Clause", "BSD-3-Clause"),
    ] {
        assert_eq!(taken(licence), expected);
    }
}
