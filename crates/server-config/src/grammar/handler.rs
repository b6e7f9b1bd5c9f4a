//! `[[handler]]`, and the same keys where a handler is asked.

use super::{KeyGrammar, SectionGrammar, TakesEffect, ValueKind};

pub(super) static HANDLER: SectionGrammar = SectionGrammar {
    is_repeated: true,
    ..section("handler")
};

pub(super) static OF_SIGN_IN: SectionGrammar = section("sign_in.handler");

pub(super) static OF_PUBLICATION: SectionGrammar = section("publication.handler");

pub(super) static OF_TABLE: SectionGrammar = section("publication.table.handler");

const fn section(path: &'static str) -> SectionGrammar {
    SectionGrammar {
        path,
        is_repeated: false,
        takes_effect: TakesEffect::Reload,
        keys: KEYS,
    }
}

const KEYS: &[KeyGrammar] = &[
    KeyGrammar::new(
        "name",
        ValueKind::Text,
        "\"orders\"",
        "what it is called where it is asked, in messages and in metrics",
    )
    .default_told("its address, where it is asked"),
    KeyGrammar::new(
        "url",
        ValueKind::Text,
        "\"https://orders.example.com/tidewater\"",
        "where it is",
    )
    .required()
    .details(
        "`https://HOST/PATH`; `http://` on this machine, or with `insecure = true` under \
         `[server]`; or `call:PROCEDURE`, which a provider does: [calls.md](calls.md)",
    ),
    KeyGrammar::new(
        "events",
        ValueKind::Texts,
        "[\"upload\"]",
        "at which events it is asked",
    )
    .default_told("all")
    .details(
        "`authenticate_user`, `begin_synchronization`, `end_synchronization`, `upload`, \
         `resolve_conflict`, `download`",
    ),
    KeyGrammar::new(
        "secret",
        ValueKind::OneOrMoreTexts,
        "\"${ORDERS_SECRET}\"",
        "what requests are signed with; a list of two while one takes the place of the other",
    )
    .details("Only on this machine, and for providers, there may be none")
    .secret(),
    KeyGrammar::new(
        "secret_file",
        ValueKind::OneOrMoreTexts,
        "\"FILE\"",
        "the same in a file, or in two",
    )
    .details("They are read again when the server reads its configuration again"),
    KeyGrammar::new(
        "ca",
        ValueKind::Path,
        "\"FILE.pem\"",
        "a PEM file with the authorities to trust instead",
    )
    .default_told("public authorities"),
    KeyGrammar::new(
        "timeout",
        ValueKind::Duration(1),
        "\"30s\"",
        "for one answer",
    )
    .default("\"10s\""),
    KeyGrammar::new(
        "parallel",
        ValueKind::Number(1, 1_000),
        "8",
        "requests at the same time, of all syncs together",
    )
    .default("4"),
    KeyGrammar::new(
        "retries",
        ValueKind::Number(0, 10),
        "0",
        "how often a request is sent again that got no answer",
    )
    .default("2"),
    KeyGrammar::new(
        "batch_rows",
        ValueKind::Number(1, 10_000),
        "100",
        "rows of one request; less if they have more than 768 KiB",
    )
    .default("500"),
    KeyGrammar::new(
        "format",
        ValueKind::Choice(&["json", "lines"]),
        "\"lines\"",
        "how rows are written",
    )
    .default("\"json\"")
    .details("`\"lines\"`: newline-delimited JSON"),
    KeyGrammar::new(
        "breaker_failures",
        ValueKind::Number(1, 1_000),
        "10",
        "after so many failures in a row the handler is left alone",
    )
    .default("5"),
    KeyGrammar::new(
        "breaker_pause",
        ValueKind::Duration(1),
        "\"30s\"",
        "for so long",
    )
    .default("\"10s\""),
];
