//! `[[space]]`: who may publish and subscribe to what, and what is kept, as it is configured.

use std::time::Duration;

use tidewater_spaces::{PatternTemplate, SubjectError, WhenFull, check_space};

use crate::error::ConfigError;
use crate::section_reader::SectionReader;

/// A space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceConfig {
    /// What subjects of the space begin with.
    pub name: String,
    /// Who may publish to what.
    pub publish: SubjectRule,
    /// Who may subscribe to what.
    pub subscribe: SubjectRule,
    /// How long events are kept in the centre; `None`: they are for those who listen now.
    pub durable: Option<Duration>,
    /// Whether who subscribes gets the newest event of each subject first.
    pub last_value: bool,
    /// What happens when a subscriber is slower than the events.
    pub slow: WhenFull,
    /// Bytes of events that may wait for a subscriber.
    pub queue_bytes: usize,
}

/// Who may do something with which subjects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubjectRule {
    /// All users, all subjects.
    Everyone,
    /// Only the server itself.
    Nobody,
    /// Subjects of one of these patterns.
    Patterns {
        /// In which the user's name may be a part.
        patterns: Vec<PatternTemplate>,
        /// A query that must yield a row for the user.
        allow: Option<String>,
    },
}

/// Reads the spaces.
///
/// # Errors
/// One means nothing, or two have one name.
pub(super) fn read(sections: Vec<SectionReader>) -> Result<Vec<SpaceConfig>, ConfigError> {
    let mut read: Vec<SpaceConfig> = Vec::with_capacity(sections.len());
    for (index, section) in sections.into_iter().enumerate() {
        let space = SpaceConfig::read(section, index)?;
        if read.iter().any(|it| it.name == space.name) {
            return Err(ConfigError::new(
                format!("two spaces are named {:?}", space.name),
                "give each [[space]] a name of its own",
            ));
        }
        read.push(space);
    }
    Ok(read)
}

impl SpaceConfig {
    fn read(mut section: SectionReader, index: usize) -> Result<SpaceConfig, ConfigError> {
        let name = section
            .text("name")?
            .filter(|name| !name.is_empty())
            .ok_or_else(|| {
                ConfigError::new(
                    format!("[[space]] number {} has no name", index + 1),
                    "write name = \"...\" below it",
                )
            })?;
        let place = format!("space {name:?}");
        let wrong =
            |error: SubjectError| ConfigError::new(format!("{place}: {error}"), error.hint());
        check_space(&name).map_err(wrong)?;
        section.place(&place);
        Ok(SpaceConfig {
            publish: read_rule(&name, "publish", section.value("publish")?)?,
            subscribe: read_rule(&name, "subscribe", section.value("subscribe")?)?,
            durable: section.optional_duration("durable")?,
            last_value: section.flag("last_value")?,
            slow: section.choice("overflow", &[WhenFull::DropOldest, WhenFull::Disconnect])?,
            queue_bytes: section.memory_size("queue_size")?,
            name,
        })
    }
}

fn read_rule(
    space: &str,
    key: &str,
    value: Option<toml::Value>,
) -> Result<SubjectRule, ConfigError> {
    let hint = format!(
        "write {key} = \"everyone\", {key} = \"nobody\", or patterns of subjects such as \
         {key} = [\"unit.{{s.username}}.>\", \"news.>\"]; {key} = {{ patterns = [\">\"], allow = \
         \"SELECT 1 FROM staff WHERE login = {{s.username}}\" }} asks the consolidated database, too"
    );
    let wrong = |what: &str| {
        let message = format!("space {space:?}: {key} {what}");
        ConfigError::new(message, hint.as_str())
    };
    match value {
        None => Err(wrong("is missing")),
        Some(toml::Value::String(text)) => match text.as_str() {
            "everyone" => Ok(SubjectRule::Everyone),
            "nobody" => Ok(SubjectRule::Nobody),
            other => Err(wrong(&format!("is {other:?}"))),
        },
        Some(list @ toml::Value::Array(_)) => Ok(SubjectRule::Patterns {
            patterns: patterns(space, key, list, &wrong)?,
            allow: None,
        }),
        Some(toml::Value::Table(table)) => {
            let mut section = SectionReader::new(&format!("space.{key}"), table);
            let list = section.value("patterns")?;
            let list = list.ok_or_else(|| wrong("has no patterns"))?;
            let allow = section.text("allow")?;
            if allow.as_ref().is_some_and(|it| it.trim().is_empty()) {
                return Err(wrong("has no query in allow"));
            }
            Ok(SubjectRule::Patterns {
                patterns: patterns(space, key, list, &wrong)?,
                allow,
            })
        }
        Some(other) => Err(wrong(&format!("is {other}"))),
    }
}

fn patterns(
    space: &str,
    key: &str,
    list: toml::Value,
    wrong: &dyn Fn(&str) -> ConfigError,
) -> Result<Vec<PatternTemplate>, ConfigError> {
    let toml::Value::Array(list) = list else {
        return Err(wrong("has patterns that are no list"));
    };
    if list.is_empty() {
        return Err(wrong("has no patterns"));
    }
    let read = |it: &toml::Value| {
        let text = it
            .as_str()
            .ok_or_else(|| wrong("has patterns that are no texts"))?;
        PatternTemplate::parse(space, text).map_err(|error| {
            ConfigError::new(format!("space {space:?}: {key}: {error}"), error.hint())
        })
    };
    list.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn parse(text: &str) -> Result<Vec<SpaceConfig>, ConfigError> {
        let text = format!("[server]\nconsolidated = \"sqlite:x\"\n[[space]]\n{text}");
        Config::parse_with(&text, &|_| None).map(|config| config.spaces)
    }

    #[test]
    fn a_space_is_what_its_keys_say() {
        let read = parse(
            "name = \"fleet\"\npublish = [\"unit.{s.username}.>\", \"news\"]\n\
             subscribe = \"everyone\"\ndurable = \"7d\"\nlast_value = true\n\
             overflow = \"disconnect\"\nqueue_size = \"1MiB\"\n\
             [[space]]\nname = \"log\"\npublish = \"nobody\"\n\
             subscribe = { patterns = [\">\"], allow = \"SELECT 1\" }\n",
        );
        let template = |space, text| PatternTemplate::parse(space, text).unwrap();
        let fleet = SpaceConfig {
            name: "fleet".into(),
            publish: SubjectRule::Patterns {
                patterns: vec![
                    template("fleet", "unit.{s.username}.>"),
                    template("fleet", "news"),
                ],
                allow: None,
            },
            subscribe: SubjectRule::Everyone,
            durable: Some(Duration::from_secs(7 * 86_400)),
            last_value: true,
            slow: WhenFull::Disconnect,
            queue_bytes: 1 << 20,
        };
        let log = SpaceConfig {
            name: "log".into(),
            publish: SubjectRule::Nobody,
            subscribe: SubjectRule::Patterns {
                patterns: vec![template("log", ">")],
                allow: Some("SELECT 1".into()),
            },
            durable: None,
            last_value: false,
            slow: WhenFull::DropOldest,
            queue_bytes: 4 << 20,
        };
        assert_eq!(read.unwrap(), [fleet, log]);
    }

    #[test]
    fn what_a_space_cannot_be_is_told_with_its_line_and_what_to_write() {
        let good = "name = \"fleet\"\npublish = \"everyone\"\nsubscribe = \"everyone\"\n";
        for (from, to, message, hint) in [
            (
                "publish = \"everyone\"\n",
                "",
                "line 4: space \"fleet\": publish is missing",
                "write publish = \"everyone\"",
            ),
            (
                "publish = \"everyone\"",
                "publish = \"anyone\"",
                "line 4: space \"fleet\": publish is \"anyone\"",
                "write publish = \"everyone\"",
            ),
            (
                "publish = \"everyone\"",
                "publish = []",
                "line 4: space \"fleet\": publish has no patterns",
                "write publish = ",
            ),
            (
                "publish = \"everyone\"",
                "publish = [\"a..b\"]",
                "line 4: space \"fleet\": publish: part 2 of \"a..b\" is empty",
                "write something",
            ),
            (
                "subscribe = \"everyone\"",
                "subscribe = { patterns = [\"a.x{s.username}\"] }",
                "line 4: space \"fleet\": subscribe: part 2 of the pattern",
                "let {s.username} be a part of its own",
            ),
            (
                "subscribe = \"everyone\"",
                "subscribe = { allow = \"SELECT 1\" }",
                "line 4: space \"fleet\": subscribe has no patterns",
                "write subscribe = ",
            ),
            (
                "subscribe = \"everyone\"",
                "subscribe = { patterns = [\">\"], query = \"SELECT 1\" }",
                "line 6: unknown key \"query\" in [space.subscribe]",
                "",
            ),
            (
                "\"fleet\"",
                "\"the fleet\"",
                "line 4: space \"the fleet\": \"the fleet\" cannot be the name of a space",
                "name the space with ASCII letters",
            ),
            (
                "name = \"fleet\"\n",
                "",
                "[[space]] number 1 has no name",
                "write name",
            ),
            (
                "name",
                "durable = \"5s\"\nname",
                "line 5: space \"fleet\": durable is less than 1m",
                "write how long",
            ),
            (
                "name",
                "durable = \"soon\"\nname",
                "line 5: space \"fleet\": durable is \"soon\", which is no duration",
                "write a number and a unit",
            ),
            (
                "name",
                "overflow = \"drop\"\nname",
                "line 5: space \"fleet\": overflow is \"drop\"",
                "",
            ),
            (
                "name",
                "queue_size = \"1KiB\"\nname",
                "line 5: space \"fleet\": queue_size is not a size",
                "write a number of bytes from \"64KiB\"",
            ),
            (
                "name",
                "last_value = 1\nname",
                "line 4: space.last_value is a number, and takes true or false",
                "write last_value = true",
            ),
            (
                "name",
                "durabel = \"7d\"\nname",
                "line 4: unknown key \"durabel\" in [[space]]",
                "did you mean \"durable\"?",
            ),
        ] {
            let error = parse(&good.replacen(from, to, 1)).unwrap_err();
            assert!(error.to_string().starts_with(message), "{error}");
            assert!(error.hint().starts_with(hint), "{}", error.hint());
        }
        let twice = parse(&format!("{good}[[space]]\n{good}")).unwrap_err();
        assert!(
            twice.to_string().contains("two spaces are named \"fleet\""),
            "{twice}"
        );
    }
}
