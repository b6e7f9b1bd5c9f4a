//! `[live]` and `[[wake]]`.

use super::{KeyGrammar, SectionGrammar, TakesEffect, ValueKind};

pub(super) static LIVE: SectionGrammar = SectionGrammar {
    path: "live",
    is_repeated: false,
    takes_effect: TakesEffect::Start,
    keys: &[
        KeyGrammar::new(
            "nats",
            ValueKind::Text,
            "\"nats://127.0.0.1:4222\"",
            "the URL of a NATS server: events and calls go between the servers that name it",
        )
        .details("`nats://HOST:4222` (`tls://`, and `USER:PASSWORD@` before the host)")
        .secret(),
        KeyGrammar::new(
            "servers",
            ValueKind::Texts,
            "[\"tls://two.example.com:7439\"]",
            "addresses at which live remotes go on when this server shuts down",
        )
        .default("[]")
        .details("Its own may be among them, so that all servers have the same list"),
    ],
};

pub(super) static WAKE: SectionGrammar = SectionGrammar {
    path: "wake",
    is_repeated: true,
    takes_effect: TakesEffect::Start,
    keys: &[
        KeyGrammar::new(
            "url",
            ValueKind::Text,
            "\"https://push.example.com/wake\"",
            "where to tell",
        )
        .required()
        .details(
            "`https://HOST/PATH`, or `http://` on this machine, elsewhere with `server.insecure`",
        ),
        KeyGrammar::new(
            "token",
            ValueKind::Text,
            "\"${PUSH_TOKEN}\"",
            "sent as `Authorization: Bearer TOKEN`",
        )
        .secret(),
        KeyGrammar::new(
            "ca",
            ValueKind::Path,
            "\"FILE.pem\"",
            "a PEM file with the authorities to trust instead",
        )
        .default_told("public authorities"),
        KeyGrammar::new(
            "publications",
            ValueKind::Texts,
            "[\"main\"]",
            "what concerns these only",
        )
        .default_told("all"),
    ],
};
