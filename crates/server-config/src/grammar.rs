//! The one grammar of the configuration: every section, every key of it, and what is known of the
//! key.
//!
//! From it come the errors for unknown keys and for values of another kind, the defaults that
//! readers take, the lines of those keys that `tidewater init` writes, and the tables of
//! `docs/configuration.md`. What the values mean is the readers' affair; they take each value by
//! the name of its key (`section_reader`), so that a key that is not here cannot be read.

pub(crate) mod check;
mod handler;
mod kind;
mod live;
mod procedure;
mod publication;
mod reference;
mod relay;
mod server;
mod sign_in;
mod space;
mod upstream;

#[cfg(test)]
mod tests;

pub use self::kind::ValueKind;
pub use self::reference::{first_lines, optional_line, reference_table};

/// The sections in the order of the reference.
pub static SECTIONS: &[&SectionGrammar] = &[
    &server::ROOT,
    &server::SERVER,
    &server::TLS,
    &server::LIMITS,
    &server::RETENTION,
    &server::LOG,
    &publication::PUBLICATION,
    &publication::PARAMETER,
    &publication::ACT_AS,
    &publication::TABLE,
    &publication::PARTITION,
    &publication::WINDOW,
    &publication::IDENTITY,
    &publication::WRITE,
    &publication::CONFLICT,
    &procedure::PROCEDURE,
    &space::SPACE,
    &space::PUBLISH,
    &space::SUBSCRIBE,
    &sign_in::SIGN_IN,
    &sign_in::OIDC,
    &sign_in::LDAP,
    &sign_in::CERTIFICATES,
    &upstream::UPSTREAM,
    &upstream::IMAGES,
    &upstream::IMAGE,
    &live::LIVE,
    &relay::RELAY,
    &live::WAKE,
    &handler::HANDLER,
    &handler::OF_SIGN_IN,
    &handler::OF_PUBLICATION,
    &handler::OF_TABLE,
];

/// A section, and its keys.
#[derive(Debug)]
pub struct SectionGrammar {
    /// Its path without indexes: `publication.table`; empty for the top level.
    pub path: &'static str,
    /// Whether there may be several: `[[publication]]`.
    pub is_repeated: bool,
    /// When a change of it counts, unless a key says otherwise.
    pub takes_effect: TakesEffect,
    /// Its keys, but for the sections below it.
    pub keys: &'static [KeyGrammar],
}

/// When a change of a setting counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakesEffect {
    /// When a running server reads its configuration again.
    Reload,
    /// When the server is started.
    Start,
    /// When the configuration is deployed.
    Deploy,
}

/// A key, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub struct KeyGrammar {
    /// Its name.
    pub name: &'static str,
    /// What its value is.
    pub kind: ValueKind,
    /// What counts without it.
    pub default: KeyDefault,
    /// A value, as TOML.
    pub example: &'static str,
    /// What it says, in one line of plain text.
    pub summary: &'static str,
    /// What else there is to know, in Markdown, for the reference.
    pub details: &'static str,
    /// What to write in place of a number or a size that cannot be; empty: what its kind says.
    pub hint: &'static str,
    /// Whether its value is a secret.
    pub is_secret: bool,
    /// When a change of it counts, if not when that of its section does.
    pub takes_effect: Option<TakesEffect>,
}

/// What counts without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyDefault {
    /// This value, as TOML.
    Value(&'static str),
    /// Something that is told in words, in Markdown.
    Told(&'static str),
    /// Nothing: the key has to be there.
    Required,
}

impl KeyGrammar {
    /// A key that need not be there.
    const fn new(
        name: &'static str,
        kind: ValueKind,
        example: &'static str,
        summary: &'static str,
    ) -> KeyGrammar {
        KeyGrammar {
            name,
            kind,
            default: KeyDefault::Told("none"),
            example,
            summary,
            details: "",
            hint: "",
            is_secret: false,
            takes_effect: None,
        }
    }

    const fn default(mut self, value: &'static str) -> KeyGrammar {
        self.default = KeyDefault::Value(value);
        self
    }

    const fn default_told(mut self, words: &'static str) -> KeyGrammar {
        self.default = KeyDefault::Told(words);
        self
    }

    const fn required(mut self) -> KeyGrammar {
        self.default = KeyDefault::Required;
        self
    }

    const fn details(mut self, details: &'static str) -> KeyGrammar {
        self.details = details;
        self
    }

    const fn hint(mut self, hint: &'static str) -> KeyGrammar {
        self.hint = hint;
        self
    }

    const fn secret(mut self) -> KeyGrammar {
        self.is_secret = true;
        self
    }

    const fn takes_effect(mut self, when: TakesEffect) -> KeyGrammar {
        self.takes_effect = Some(when);
        self
    }

    /// The key with its example, as it stands in a file.
    pub(crate) fn example_line(&self) -> String {
        format!("{} = {}", self.name, self.example)
    }
}

impl SectionGrammar {
    /// Finds a section by its path.
    pub fn find(path: &str) -> Option<&'static SectionGrammar> {
        SECTIONS.iter().copied().find(|it| it.path == path)
    }

    /// Finds a key of the section that is no section below it.
    pub fn key(&self, name: &str) -> Option<&'static KeyGrammar> {
        self.keys.iter().find(|it| it.name == name)
    }

    /// The sections below it, by their names there.
    pub(crate) fn sections(&self) -> impl Iterator<Item = (&'static str, &'static SectionGrammar)> {
        let path = self.path;
        SECTIONS.iter().copied().filter_map(move |it| {
            let name = match path {
                "" => it.path,
                _ => it.path.strip_prefix(path)?.strip_prefix('.')?,
            };
            (!name.is_empty() && !name.contains('.')).then_some((name, it))
        })
    }

    /// Every key that may stand in it.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        let own = self.keys.iter().map(|it| it.name);
        let below = self.sections().map(|(name, _)| name);
        own.chain(below.filter(|it| self.key(it).is_none()))
    }

    /// As a file names it: `[log]`, `[[publication]]`.
    pub(crate) fn heading(&self) -> String {
        match self.is_repeated {
            true => format!("[[{}]]", self.path),
            false => format!("[{}]", self.path),
        }
    }
}

/// The path of a key or section below another.
pub(crate) fn join(path: &str, name: &str) -> String {
    match path {
        "" => name.to_owned(),
        _ => format!("{path}.{name}"),
    }
}
