//! `[[procedure]]`.

use super::{KeyGrammar, SectionGrammar, TakesEffect, ValueKind};

pub(super) static PROCEDURE: SectionGrammar = SectionGrammar {
    path: "procedure",
    is_repeated: true,
    takes_effect: TakesEffect::Reload,
    keys: &[
        KeyGrammar::new(
            "name",
            ValueKind::Text,
            "\"price\"",
            "letters, digits, `_`, `-` and `.`; not beginning with `tidewater.`",
        )
        .required(),
        KeyGrammar::new(
            "sql",
            ValueKind::Text,
            "\"SELECT price FROM product WHERE id = {a.item}\"",
            "what the database runs",
        )
        .details(
            "With `{a.NAME}`, `{s.username}`, `{s.remote_id}` and `{s.claims.NAME}` as values; \
             PostgreSQL takes one statement, SQLite several",
        ),
        KeyGrammar::new(
            "sql_file",
            ValueKind::Path,
            "\"price.sql\"",
            "the same, in a file",
        ),
        KeyGrammar::new(
            "provided_by",
            ValueKind::OneOrMoreTexts,
            "[\"planner\"]",
            "the users whose programs do it: one or a list",
        )
        .details("Either this, or `sql` or `sql_file`, or `on_remotes`"),
        KeyGrammar::new(
            "on_remotes",
            ValueKind::Flag,
            "true",
            "remotes do it, each for itself; a call says which",
        )
        .default("false"),
        KeyGrammar::new(
            "arguments",
            ValueKind::NamedTexts,
            "{ item = \"integer\", since = \"date?\" }",
            "name and type of each argument",
        )
        .details(
            "`integer`, `decimal`, `real`, `boolean`, `text`, `blob`, `date`, `time`, `timestamp`, \
             `timestamptz`, `uuid`, `json`; with `?` behind it it may be left out",
        ),
        KeyGrammar::new(
            "returns",
            ValueKind::Choice(&["nothing", "value", "row", "rows"]),
            "\"value\"",
            "what a statement gives back",
        )
        .default_told("required with `sql`")
        .details("`row` gives one or none"),
        KeyGrammar::new(
            "allow",
            ValueKind::Text,
            "\"everyone\"",
            "everyone, or a query that yields a row for those who may",
        )
        .required(),
        KeyGrammar::new(
            "read_only",
            ValueKind::Flag,
            "true",
            "it changes nothing, and cannot",
        )
        .default("false")
        .details("Calls share round trips to the database then"),
        KeyGrammar::new(
            "idempotent",
            ValueKind::Flag,
            "true",
            "another provider may do it again when one has gone",
        )
        .default("false"),
        KeyGrammar::new(
            "timeout",
            ValueKind::Duration(1),
            "\"2m\"",
            "what a call is given at most",
        )
        .default("\"30s\""),
    ],
};
