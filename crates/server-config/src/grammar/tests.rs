//! The grammar is what the readers read, what the manual says, and consistent in itself.

use std::collections::BTreeSet;
use std::path::Path;

use toml::de::DeTable;

use super::*;
use crate::section_reader::TAKEN;
use crate::{Config, text};

fn all_keys() -> impl Iterator<Item = (&'static SectionGrammar, &'static KeyGrammar)> {
    let sections = SECTIONS.iter().copied();
    sections.flat_map(|section| section.keys.iter().map(move |key| (section, key)))
}

/// Whether a value, as TOML, is one that the key takes.
fn takes(key: &KeyGrammar, value: &str) -> bool {
    let line = format!("value = {value}");
    let table = DeTable::parse(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
    let is_of_kind = key.kind.takes(table.get_ref()["value"].get_ref());
    let value = text::toml_value(value);
    is_of_kind
        && match (key.kind, &value) {
            (ValueKind::Number(least, most), value) => {
                (least..=most).contains(&value.as_integer().unwrap())
            }
            (ValueKind::Size(least, most), toml::Value::String(size)) => {
                text::parse_size(size).is_some_and(|it| (least..=most).contains(&it))
            }
            (ValueKind::Duration(least_ms), value) => {
                let duration = text::parse_duration(value.as_str().unwrap()).unwrap();
                duration.as_millis() >= u128::from(least_ms)
            }
            (ValueKind::Choice(names), value) => names.contains(&value.as_str().unwrap()),
            _ => true,
        }
}

#[test]
fn every_example_and_every_default_is_a_value_of_its_key() {
    for (section, key) in all_keys() {
        let path = join(section.path, key.name);
        assert!(takes(key, key.example), "{path}: {}", key.example);
        if let KeyDefault::Value(default) = key.default {
            assert!(takes(key, default), "{path}: {default}");
            assert_ne!(default, "", "{path}");
        }
        let is_one_line = |it: &str| !it.is_empty() && !it.contains('\n') && !it.ends_with('.');
        assert!(is_one_line(key.summary), "{path}: {}", key.summary);
        assert!(!key.details.ends_with('.'), "{path}: {}", key.details);
    }
}

#[test]
fn no_section_and_no_key_is_there_twice() {
    let paths: BTreeSet<&str> = SECTIONS.iter().map(|it| it.path).collect();
    assert_eq!(paths.len(), SECTIONS.len());
    for section in SECTIONS {
        let names: BTreeSet<&str> = section.keys.iter().map(|it| it.name).collect();
        assert_eq!(names.len(), section.keys.len(), "{}", section.path);
    }
}

/// A text with every section, each with enough for its reader to come to its end.
const EVERY_SECTION: &str = r#"
[server]
consolidated = "sqlite:x"
[server.tls]
certificate = "c"
key = "k"
[server.limits]
[retention]
[log]
[live]
[[publication]]
name = "main"
act_as = { query = "SELECT role" }
handler = { url = "http://127.0.0.1/p" }
[[publication.parameter]]
name = "month"
[[publication.table]]
name = "t"
partition = { columns = ["a"], values = "SELECT 1", window = { column = "d", last = "90 days" } }
identity = { column = "id" }
write = { columns = ["a"], values = "SELECT 1" }
conflict = { resolve = "park" }
handler = { url = "http://127.0.0.1/t" }
[[procedure]]
name = "price"
sql = "SELECT 1"
returns = "value"
allow = "everyone"
[[space]]
name = "fleet"
publish = { patterns = [">"], allow = "SELECT 1" }
subscribe = { patterns = [">"], allow = "SELECT 1" }
[sign_in]
passwords = "ldap"
[[sign_in.oidc]]
issuer = "https://login.example.com"
audience = ["tidewater"]
[sign_in.ldap]
url = "ldaps://directory.example.com"
user_dn = "uid={user}"
[sign_in.certificates]
authority = "FILE.pem"
[upstream]
server = "tls://headquarters.example.com:7439"
user = "north"
publications = ["main"]
[images]
[[images.image]]
name = "north"
publication = "main"
everyone = true
[relay]
connect = ["tls://relay.example.com"]
name = "sync.example.com"
token = "abcdefgh"
[[wake]]
url = "https://push.example.com"
[[handler]]
name = "orders"
url = "http://127.0.0.1/o"
"#;

const SIGN_IN_BY_HANDLER: &str = r#"
[server]
consolidated = "sqlite:x"
[sign_in]
passwords = "handler"
handler = { url = "http://127.0.0.1/s" }
"#;

#[test]
fn every_key_of_the_grammar_is_read() {
    TAKEN.with_borrow_mut(BTreeSet::clear);
    for text in [EVERY_SECTION, SIGN_IN_BY_HANDLER] {
        Config::parse(text).unwrap_or_else(|error| panic!("{error}: {}", error.hint()));
    }
    let taken = TAKEN.with_borrow(Clone::clone);
    let unread: Vec<String> = all_keys()
        .map(|(section, key)| join(section.path, key.name))
        .filter(|path| !taken.contains(path))
        .collect();
    assert!(unread.is_empty(), "nothing reads {unread:?}");
    let sections = SECTIONS
        .iter()
        .map(|it| it.path)
        .filter(|it| !it.is_empty());
    let unread: Vec<&str> = sections.filter(|it| !taken.contains(*it)).collect();
    assert!(unread.is_empty(), "nothing reads {unread:?}");
}

#[test]
fn what_is_said_in_full_is_what_counts_anyway() {
    let plain = Config::parse(EVERY_SECTION).unwrap();
    let mut full: toml::Table = EVERY_SECTION.parse().unwrap();
    write_defaults(&mut full, "");
    let text = toml::to_string(&full).unwrap();
    assert!(text.contains("keepalive_interval = \"5s\"") && text.contains("tracking = \"log\""));
    let full = Config::parse(&text).unwrap_or_else(|error| panic!("{error}: {}", error.hint()));
    let said = [plain, full].map(|it| {
        format!(
            "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
            it.server.limits,
            it.server,
            it.retention,
            it.log,
            it.publications,
            it.procedures,
            it.spaces,
            it.sign_in,
            it.images,
            it.relay
        )
    });
    assert_eq!(said[0], said[1]);
}

/// Writes every default that is not said.
fn write_defaults(table: &mut toml::Table, path: &str) {
    let section = SectionGrammar::find(path).unwrap();
    for key in section.keys {
        let KeyDefault::Value(default) = key.default else {
            continue;
        };
        let default = text::toml_value(default);
        table.entry(key.name).or_insert(default);
    }
    for (name, value) in table.iter_mut() {
        let below = join(path, name);
        if SectionGrammar::find(&below).is_none() {
            continue;
        }
        match value {
            toml::Value::Table(table) => write_defaults(table, &below),
            toml::Value::Array(list) => {
                for element in list.iter_mut().filter_map(toml::Value::as_table_mut) {
                    write_defaults(element, &below);
                }
            }
            _ => {}
        }
    }
}

const BEGIN: &str = "<!-- keys of ";
const END: &str = "<!-- end -->";

/// The page with the tables of the grammar between its marks, and the paths of these.
fn with_tables(page: &str) -> (String, Vec<String>) {
    let mut text = String::new();
    let mut paths = Vec::new();
    let mut rest = page;
    while let Some(at) = rest.find(BEGIN) {
        let mark_end = at + rest[at..].find("-->").expect("a mark ends") + 3;
        let path = rest[at + BEGIN.len()..mark_end - 3].trim();
        let path = if path == "the top level" { "" } else { path };
        let section = SectionGrammar::find(path)
            .unwrap_or_else(|| panic!("docs/configuration.md: there is no section {path:?}"));
        let end = mark_end + rest[mark_end..].find(END).expect("a table ends");
        text.push_str(&rest[..mark_end]);
        text.push_str(&format!("\n\n{}\n", reference_table(section)));
        text.push_str(END);
        paths.push(path.to_owned());
        rest = &rest[end + END.len()..];
    }
    text.push_str(rest);
    (text, paths)
}

#[test]
fn the_manual_has_the_tables_of_the_grammar() {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let page = std::fs::read_to_string(&place).unwrap();
    let (text, paths) = with_tables(&page);
    if std::env::var_os("TIDEWATER_WRITE_CONFIGURATION").is_some() {
        std::fs::write(&place, &text).unwrap();
    } else {
        assert!(
            page == text,
            "docs/configuration.md differs from the grammar; write its tables anew: \
             TIDEWATER_WRITE_CONFIGURATION=1 cargo test -p tidewater-server-config manual"
        );
    }
    // The keys of a handler are the same wherever it stands.
    let documented = SECTIONS.iter().map(|it| it.path);
    let documented = documented.filter(|it| !it.ends_with(".handler") && *it != "space.subscribe");
    let missing: Vec<&str> = documented
        .filter(|it| !paths.iter().any(|path| path == it))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/configuration.md has no table of {missing:?}"
    );
}
