//! On which lines of a configuration its publications, their tables, its spaces and procedures are
//! named, and some of its settings, so that errors which are found in them later can say so.

use toml::de::{DeTable, DeValue};

use crate::grammar::check::line_of;

/// The lines by what errors begin with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LineIndex {
    named: Vec<SectionLines>,
    settings: Vec<(&'static str, usize)>,
}

/// Settings whose errors are found after the text is gone.
const SETTINGS: [&str; 2] = ["server.proxies", "server.drain_delay"];

/// The lines of a publication, a space or a procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SectionLines {
    what: &'static str,
    name: String,
    line: usize,
    tables: Vec<(String, usize)>,
}

impl LineIndex {
    /// Those of a text, as far as it is a configuration.
    pub(super) fn from_text(text: &str) -> LineIndex {
        let Ok(table) = DeTable::parse(text) else {
            return LineIndex::default();
        };
        let publications = sections(table.get_ref(), "publication");
        let publications = publications.filter_map(|publication| {
            let (name, line) = named(text, publication)?;
            let tables = sections(publication, "table");
            let tables = tables.filter_map(|table| named(text, table));
            Some(SectionLines {
                what: "publication",
                name,
                line,
                tables: tables.collect(),
            })
        });
        let others = ["space", "procedure"].map(|what| {
            let named = sections(table.get_ref(), what).filter_map(|it| named(text, it));
            let lines = named.map(|(name, line)| SectionLines {
                what,
                name,
                line,
                tables: Vec::new(),
            });
            lines.collect::<Vec<_>>()
        });
        let named = publications.chain(others.into_iter().flatten()).collect();
        let settings = SETTINGS.iter().filter_map(|setting| {
            let (section, key) = setting.split_once('.')?;
            let DeValue::Table(section) = table.get_ref().get(section)?.get_ref() else {
                return None;
            };
            let (key, _) = section.get_key_value(key)?;
            Some((*setting, line_of(text, key.span().start)))
        });
        let settings = settings.collect();
        LineIndex { named, settings }
    }

    /// What is said of one of them, with the line where that is named.
    pub(super) fn locate(&self, message: String) -> String {
        let rest_after = |text: &'_ str, what: &str, name: &str| {
            let rest = text.strip_prefix(&format!("{what} {name:?}"))?;
            Some(rest.trim_start_matches([':', ',', ' ']).to_owned())
        };
        let mut settings = self.settings.iter();
        let setting = settings.find(|(setting, _)| message.starts_with(setting));
        if let Some((_, line)) = setting {
            return format!("line {line}: {message}");
        }
        let found = self.named.iter().find_map(|named| {
            let rest = rest_after(&message, named.what, &named.name)?;
            let mut tables = named.tables.iter();
            let table = tables.find(|(name, _)| rest_after(&rest, "table", name).is_some());
            Some(table.map_or(named.line, |(_, line)| *line))
        });
        match found {
            Some(line) => format!("line {line}: {message}"),
            None => message,
        }
    }
}

/// The sections `[[...]]` of a name.
fn sections<'d>(
    table: &'d DeTable<'_>,
    name: &'d str,
) -> impl Iterator<Item = &'d DeTable<'d>> + use<'d> {
    let array = table.get(name).and_then(|it| match it.get_ref() {
        DeValue::Array(array) => Some(array),
        _ => None,
    });
    array
        .into_iter()
        .flatten()
        .filter_map(|it| match it.get_ref() {
            DeValue::Table(table) => Some(table),
            _ => None,
        })
}

/// The name of a section, and its line.
fn named(text: &str, section: &DeTable<'_>) -> Option<(String, usize)> {
    let name = section.get("name")?;
    match name.get_ref() {
        DeValue::String(value) => Some((value.to_string(), line_of(text, name.span().start))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_table_is_told_with_its_line() {
        let lines = LineIndex::from_text(
            "[server]\nconsolidated = \"sqlite:a.db\"\n\n[[publication]]\nname = \"p\"\n\
             [[publication.table]]\npartition = \"everyone\"\nname = \"t\"\n\
             [[publication]]\nname = \"q\"\n[[publication.table]]\nname = \"t\"\n",
        );
        for (message, line) in [
            ("publication \"p\": table \"t\": no such column", 8),
            ("publication \"q\", table \"t\": columns is empty", 12),
            ("publication \"p\", act_as: there is no role \"r\"", 5),
            ("publication \"p\": table \"other\": is not here", 5),
        ] {
            assert_eq!(
                lines.locate(message.into()),
                format!("line {line}: {message}")
            );
        }
        let other = "the database is gone";
        assert_eq!(lines.locate(other.into()), other);
    }
}
