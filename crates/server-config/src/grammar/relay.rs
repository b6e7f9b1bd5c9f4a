//! `[relay]`: the relays of a server. The configuration of a relay itself is the relay's affair.

use super::{KeyGrammar, SectionGrammar, TakesEffect, ValueKind};

pub(super) static RELAY: SectionGrammar = SectionGrammar {
    path: "relay",
    is_repeated: false,
    takes_effect: TakesEffect::Start,
    keys: &[
        KeyGrammar::new(
            "connect",
            ValueKind::Texts,
            "[\"tls://relay.example.com:7444\"]",
            "where relays wait for servers",
        )
        .required()
        .details("The port may be left out (7444); `tcp://` on this machine, elsewhere with `server.insecure`"),
        KeyGrammar::new(
            "name",
            ValueKind::Text,
            "\"sync.example.com\"",
            "the host name by which devices know this server",
        )
        .required(),
        KeyGrammar::new(
            "token",
            ValueKind::Text,
            "\"${RELAY_TOKEN}\"",
            "what `tidewater relay token` has made",
        )
        .secret(),
        KeyGrammar::new(
            "token_file",
            ValueKind::Path,
            "\"FILE\"",
            "a file with it, which is read again for each line",
        ),
        KeyGrammar::new(
            "certificate",
            ValueKind::Path,
            "\"FILE.pem\"",
            "in place of a token: PEM file with a certificate for `name`",
        )
        .details("Of the relay's `authority`"),
        KeyGrammar::new("key", ValueKind::Path, "\"FILE.pem\"", "PEM file with its key"),
        KeyGrammar::new(
            "ca",
            ValueKind::Path,
            "\"FILE.pem\"",
            "a PEM file with the authorities to trust instead when the relay says who it is",
        )
        .default_told("public authorities"),
        KeyGrammar::new(
            "pin",
            ValueKind::Text,
            "\"sha256/BASE64\"",
            "the key of the relay, in place of authorities, as `tidewater cert` prints it",
        ),
        KeyGrammar::new(
            "lines",
            ValueKind::Number(1, 256),
            "16",
            "lines that are kept idle at each relay",
        )
        .default("4")
        .details("As many devices may come at one moment without waiting")
        .hint("write a number from 1 to 256: so many lines are kept idle at each relay"),
    ],
};
