//! Takes the values of one section of a configuration, each by the name of its key in the grammar,
//! which gives its kind, its range and its default.

use std::path::PathBuf;
use std::time::Duration;

use toml::Value;

use tidewater_centre::nearest;

use super::text;
use crate::error::ConfigError;
use crate::grammar::{KeyDefault, KeyGrammar, SectionGrammar, ValueKind, join};

/// The values of a section that were not taken yet.
pub(crate) struct SectionReader {
    grammar: &'static SectionGrammar,
    /// What stands before the name of a key in messages: `server.limits.`, `space "fleet": `.
    prefix: String,
    values: toml::Table,
}

impl SectionReader {
    /// The values of the section at a path of the grammar.
    pub(crate) fn new(path: &str, values: toml::Table) -> SectionReader {
        let grammar =
            SectionGrammar::find(path).expect("the grammar has every section that is read");
        SectionReader {
            prefix: join(path, ""),
            grammar,
            values,
        }
    }

    /// A section of which nothing is said.
    pub(crate) fn empty(path: &str) -> SectionReader {
        SectionReader::new(path, toml::Table::new())
    }

    /// Has messages name keys as those of a place.
    pub(crate) fn place(&mut self, place: &str) {
        self.prefix = format!("{place}: ");
    }

    /// What messages call a key.
    pub(crate) fn key_name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Whether the key is there.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// Whether the value of the key is a section.
    pub(crate) fn is_section(&self, key: &str) -> bool {
        self.values.get(key).is_some_and(Value::is_table)
    }

    /// Its name, if that was not taken yet, in quotes.
    pub(crate) fn quoted_name(&self) -> Option<String> {
        let name = self.values.get("name")?.as_str()?;
        Some(format!("{name:?}"))
    }

    /// Takes a text.
    pub(crate) fn text(&mut self, key: &str) -> Result<Option<String>, ConfigError> {
        self.take(key, |value| match value {
            Value::String(text) => Some(text),
            _ => None,
        })
    }

    /// Takes a path.
    pub(crate) fn path(&mut self, key: &str) -> Result<Option<PathBuf>, ConfigError> {
        Ok(self.text(key)?.map(PathBuf::from))
    }

    /// Takes a list of texts.
    pub(crate) fn optional_texts(&mut self, key: &str) -> Result<Option<Vec<String>>, ConfigError> {
        self.take(key, into_texts)
    }

    /// Takes a list of texts, which is empty where there is none.
    pub(crate) fn texts(&mut self, key: &str) -> Result<Vec<String>, ConfigError> {
        Ok(self.optional_texts(key)?.unwrap_or_default())
    }

    /// Takes a text, or a list of texts.
    pub(crate) fn one_or_more_texts(
        &mut self,
        key: &str,
    ) -> Result<Option<Vec<String>>, ConfigError> {
        self.take(key, |value| match value {
            Value::String(text) => Some(vec![text]),
            list => into_texts(list),
        })
    }

    /// Takes texts with names, in the order of the names.
    pub(crate) fn named_texts(&mut self, key: &str) -> Result<Vec<(String, String)>, ConfigError> {
        let texts = self.take(key, |value| match value {
            Value::Table(table) => into_named_texts(table),
            _ => None,
        })?;
        Ok(texts.unwrap_or_default())
    }

    /// Takes a flag.
    pub(crate) fn flag(&mut self, key: &str) -> Result<bool, ConfigError> {
        let flag = self.take(key, |value| value.as_bool())?;
        Ok(flag.unwrap_or_default())
    }

    /// Takes a number that may have any sign.
    pub(crate) fn optional_integer(&mut self, key: &str) -> Result<Option<i64>, ConfigError> {
        let known = self.key(key);
        let Some(number) = self.take(key, |value| value.as_integer())? else {
            return Ok(None);
        };
        let ValueKind::Number(least, most) = known.kind else {
            return Err(self.wrong_kind(known));
        };
        match (least..=most).contains(&number) {
            true => Ok(Some(number)),
            false => Err(self.wrong(
                known,
                format!("is {number}"),
                match most {
                    i64::MAX => format!("write a number from {least}"),
                    _ => format!("write a number from {least} to {most}"),
                },
            )),
        }
    }

    /// Takes a number that may be left out.
    pub(crate) fn optional_number(&mut self, key: &str) -> Result<Option<u64>, ConfigError> {
        let number = self.optional_integer(key)?;
        Ok(number.map(|it| u64::try_from(it).unwrap_or_default()))
    }

    /// Takes a number that has a default.
    pub(crate) fn number(&mut self, key: &str) -> Result<u64, ConfigError> {
        Ok(self.optional_number(key)?.expect(HAS_DEFAULT))
    }

    /// Takes a number of things that has a default.
    pub(crate) fn count(&mut self, key: &str) -> Result<usize, ConfigError> {
        Ok(usize::try_from(self.number(key)?).unwrap_or(usize::MAX))
    }

    /// Takes a number of bytes that has a default.
    pub(crate) fn size(&mut self, key: &str) -> Result<u64, ConfigError> {
        let known = self.key(key);
        let bytes = self.take(key, |value| match value {
            Value::Integer(bytes) => Some(u64::try_from(bytes).ok()),
            Value::String(text) => Some(text::parse_size(&text)),
            _ => None,
        })?;
        let ValueKind::Size(least, most) = known.kind else {
            return Err(self.wrong_kind(known));
        };
        let bytes = bytes.expect(HAS_DEFAULT);
        let bytes = bytes.filter(|it| (least..=most).contains(it));
        bytes.ok_or_else(|| {
            let hint = "write a number of bytes, or \"64KiB\", \"256MiB\", \"4GiB\"";
            self.wrong(known, "is not a size that can be".into(), hint.into())
        })
    }

    /// Takes a number of bytes that are in memory, and has a default.
    pub(crate) fn memory_size(&mut self, key: &str) -> Result<usize, ConfigError> {
        Ok(usize::try_from(self.size(key)?).unwrap_or(usize::MAX))
    }

    /// Takes a duration that may be left out.
    pub(crate) fn optional_duration(&mut self, key: &str) -> Result<Option<Duration>, ConfigError> {
        let known = self.key(key);
        let Some(written) = self.text(key)? else {
            return Ok(None);
        };
        let ValueKind::Duration(least_ms) = known.kind else {
            return Err(self.wrong_kind(known));
        };
        let least = Duration::from_millis(least_ms);
        let is_zero = |it: &Duration| it.is_zero() && !least.is_zero();
        let Some(duration) = text::parse_duration(&written).filter(|it| !is_zero(it)) else {
            return Err(ConfigError::new(
                format!(
                    "{} is {written:?}, which is no duration",
                    self.key_name(key)
                ),
                "write a number and a unit: \"250ms\", \"30s\", \"5m\", \"12h\", \"60d\"",
            ));
        };
        if duration < least {
            let least = text::duration_text(least);
            let hint = format!("write at least \"{least}\"");
            return Err(self.wrong(known, format!("is less than {least}"), hint));
        }
        Ok(Some(duration))
    }

    /// Takes a duration that has a default.
    pub(crate) fn duration(&mut self, key: &str) -> Result<Duration, ConfigError> {
        Ok(self.optional_duration(key)?.expect(HAS_DEFAULT))
    }

    /// Takes one of several words, and gives what stands for it: `values` has one for each word, in
    /// the order of the grammar.
    pub(crate) fn optional_choice<T: Copy>(
        &mut self,
        key: &str,
        values: &[T],
    ) -> Result<Option<T>, ConfigError> {
        let known = self.key(key);
        let ValueKind::Choice(names) = known.kind else {
            return Err(self.wrong_kind(known));
        };
        assert_eq!(names.len(), values.len(), "a value for each word of {key}");
        let Some(word) = self.text(key)? else {
            return Ok(None);
        };
        match names.iter().position(|it| *it == word) {
            Some(index) => Ok(Some(values[index])),
            None => Err(unknown_word(&self.key_name(key), &word, names)),
        }
    }

    /// The same of a key that has a default.
    pub(crate) fn choice<T: Copy>(&mut self, key: &str, values: &[T]) -> Result<T, ConfigError> {
        Ok(self.optional_choice(key, values)?.expect(HAS_DEFAULT))
    }

    /// Takes a value that may be of several kinds.
    pub(crate) fn value(&mut self, key: &str) -> Result<Option<Value>, ConfigError> {
        self.take(key, Some)
    }

    /// Takes a section.
    pub(crate) fn section(&mut self, key: &str) -> Result<Option<SectionReader>, ConfigError> {
        let path = join(self.grammar.path, key);
        self.note_taken(key);
        match self.values.remove(key) {
            None => Ok(None),
            Some(Value::Table(values)) => Ok(Some(SectionReader::new(&path, values))),
            Some(_) => Err(ConfigError::new(
                format!("{} is no section", self.key_name(key)),
                format!("write [{path}]"),
            )),
        }
    }

    /// Takes a section, which is empty where there is none.
    pub(crate) fn section_or_empty(&mut self, key: &str) -> Result<SectionReader, ConfigError> {
        let empty = || SectionReader::empty(&join(self.grammar.path, key));
        let empty = empty();
        Ok(self.section(key)?.unwrap_or(empty))
    }

    /// Takes all sections of a name.
    pub(crate) fn sections(&mut self, key: &str) -> Result<Vec<SectionReader>, ConfigError> {
        let path = join(self.grammar.path, key);
        self.note_taken(key);
        let list = match self.values.remove(key) {
            None => Vec::new(),
            Some(Value::Array(list)) => list,
            Some(other) => vec![other],
        };
        let section = |value| match value {
            Value::Table(values) => Ok(SectionReader::new(&path, values)),
            _ => Err(ConfigError::new(
                format!("{path} takes sections of its own"),
                format!("write [[{path}]]"),
            )),
        };
        list.into_iter().map(section).collect()
    }

    fn key(&self, key: &str) -> &'static KeyGrammar {
        self.grammar
            .key(key)
            .expect("the grammar has every key that is read")
    }

    /// Takes a value, or what counts without it.
    fn take<T>(
        &mut self,
        key: &str,
        convert: impl FnOnce(Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let known = self.key(key);
        self.note_taken(key);
        let value = match (self.values.remove(key), known.default) {
            (Some(value), _) => value,
            (None, KeyDefault::Value(default)) => text::toml_value(default),
            (None, _) => return Ok(None),
        };
        let converted = convert(value);
        converted.map(Some).ok_or_else(|| self.wrong_kind(known))
    }

    fn wrong_kind(&self, key: &KeyGrammar) -> ConfigError {
        ConfigError::new(
            format!(
                "{} takes {}",
                self.key_name(key.name),
                key.kind.description(key.example)
            ),
            format!("write {}", key.example_line()),
        )
    }

    fn wrong(&self, key: &KeyGrammar, what: String, hint: String) -> ConfigError {
        let hint = match key.hint {
            "" => hint,
            own => own.to_owned(),
        };
        ConfigError::new(format!("{} {what}", self.key_name(key.name)), hint)
    }

    #[cfg(not(test))]
    fn note_taken(&self, _key: &str) {}

    #[cfg(test)]
    fn note_taken(&self, key: &str) {
        TAKEN.with_borrow_mut(|taken| taken.insert(join(self.grammar.path, key)));
    }
}

#[cfg(test)]
thread_local! {
    /// The paths of the keys and sections that readers of this thread have asked for.
    pub(crate) static TAKEN: std::cell::RefCell<std::collections::BTreeSet<String>> =
        const { std::cell::RefCell::new(std::collections::BTreeSet::new()) };
}

const HAS_DEFAULT: &str = "the grammar has a default of every key that is read like this";

/// The error of a word that is none of those that a key takes.
pub(crate) fn unknown_word(key: &str, word: &str, known: &[&str]) -> ConfigError {
    let hint = match nearest(word, known.iter().copied()) {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("write one of: {}", known.join(", ")),
    };
    ConfigError::new(format!("{key} is {word:?}"), hint)
}

fn into_texts(value: Value) -> Option<Vec<String>> {
    let Value::Array(list) = value else {
        return None;
    };
    let text = |it| match it {
        Value::String(text) => Some(text),
        _ => None,
    };
    list.into_iter().map(text).collect()
}

fn into_named_texts(table: toml::Table) -> Option<Vec<(String, String)>> {
    let text = |(name, value)| match value {
        Value::String(text) => Some((name, text)),
        _ => None,
    };
    table.into_iter().map(text).collect()
}
