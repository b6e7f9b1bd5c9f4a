//! `[upstream]`, `[images]` and `[[images.image]]`.

use super::{KeyGrammar, SectionGrammar, TakesEffect, ValueKind};

pub(super) static UPSTREAM: SectionGrammar = SectionGrammar {
    path: "upstream",
    is_repeated: false,
    takes_effect: TakesEffect::Start,
    keys: &[
        KeyGrammar::new(
            "server",
            ValueKind::Text,
            "\"tls://headquarters.example.com:7439\"",
            "the server of headquarters; several with commas between them",
        )
        .required()
        .details("As `--server` of `tidewater sync` takes it"),
        KeyGrammar::new(
            "user",
            ValueKind::Text,
            "\"north\"",
            "as whom the branch signs in",
        )
        .default_told("required without `token_file` and `certificate`"),
        KeyGrammar::new(
            "password",
            ValueKind::Text,
            "\"${PASSWORD}\"",
            "the user's password",
        )
        .details("For the first sync, and whenever the branch's credential is not valid any more")
        .secret(),
        KeyGrammar::new(
            "password_file",
            ValueKind::Path,
            "\"headquarters.password\"",
            "a file with the user's password",
        ),
        KeyGrammar::new(
            "token_file",
            ValueKind::Path,
            "\"token\"",
            "a file with a token of headquarters' identity provider, instead of a password",
        ),
        KeyGrammar::new(
            "certificate",
            ValueKind::Path,
            "\"FILE.pem\"",
            "PEM file with a client certificate, instead of a password",
        ),
        KeyGrammar::new(
            "key",
            ValueKind::Path,
            "\"FILE.pem\"",
            "PEM file with its key",
        ),
        KeyGrammar::new(
            "publications",
            ValueKind::Texts,
            "[\"main\"]",
            "what the branch subscribes to: publications of headquarters",
        )
        .required(),
        KeyGrammar::new(
            "every",
            ValueKind::Text,
            "\"30s\"",
            "how often it syncs, at least every second",
        )
        .default("\"30s\"")
        .details("Or `\"live\"`: it stays connected, and syncs whenever something has changed"),
        KeyGrammar::new(
            "ca",
            ValueKind::Path,
            "\"FILE.pem\"",
            "a PEM file with the authorities to trust",
        )
        .default_told("public authorities"),
        KeyGrammar::new(
            "pin",
            ValueKind::Text,
            "\"sha256/BASE64\"",
            "the key of headquarters' server, instead of authorities",
        )
        .details("`sha256/BASE64`, as `tidewater cert` prints it"),
        KeyGrammar::new(
            "proxy",
            ValueKind::Text,
            "\"http://proxy.example.com:3128\"",
            "the HTTP proxy to go through, or none",
        )
        .default_told("of the environment"),
        KeyGrammar::new(
            "compression",
            ValueKind::Text,
            "\"auto\"",
            "how what is sent is packed",
        )
        .default("\"auto\"")
        .details("As in `[server]`, for this line"),
        KeyGrammar::new(
            "compression_level",
            ValueKind::Number(1, 19),
            "3",
            "how far it packs",
        )
        .default_told("as is usual"),
        KeyGrammar::new(
            "insecure",
            ValueKind::Flag,
            "true",
            "allows `tcp://`, `ws://` and `http://` off this machine",
        )
        .default("false"),
    ],
};

/// The least time between two of the same image.
const SOONEST_MS: u64 = 1_000;

pub(super) static IMAGES: SectionGrammar = SectionGrammar {
    path: "images",
    is_repeated: false,
    takes_effect: TakesEffect::Start,
    keys: &[
        KeyGrammar::new(
            "folder",
            ValueKind::Path,
            "\"/var/lib/tidewater/images\"",
            "where the files are; made if need be",
        )
        .default("\"images\"")
        .details("Each server has its own"),
        KeyGrammar::new(
            "every",
            ValueKind::Duration(SOONEST_MS),
            "\"6h\"",
            "how old an image becomes before it is made anew",
        )
        .default("\"1h\"")
        .hint("write every = \"1h\", with at least a second"),
    ],
};

pub(super) static IMAGE: SectionGrammar = SectionGrammar {
    path: "images.image",
    is_repeated: true,
    takes_effect: TakesEffect::Start,
    keys: &[
        KeyGrammar::new(
            "name",
            ValueKind::Text,
            "\"north\"",
            "what its files are called: letters, digits, `-` and `_`",
        )
        .required(),
        KeyGrammar::new(
            "publication",
            ValueKind::Text,
            "\"main\"",
            "of which publication it is",
        )
        .required(),
        KeyGrammar::new(
            "user",
            ValueKind::Text,
            "\"north\"",
            "in it is what this user holds",
        ),
        KeyGrammar::new(
            "partitions",
            ValueKind::Texts,
            "[\"region=north\"]",
            "in it are these partitions, and what everybody gets",
        )
        .default("[]")
        .details("`[\"COLUMN=VALUE\"]` with the names of partition columns"),
        KeyGrammar::new(
            "everyone",
            ValueKind::Flag,
            "true",
            "in it is what everybody gets, and no partition",
        )
        .default("false"),
        KeyGrammar::new(
            "public",
            ValueKind::Flag,
            "true",
            "whether anybody may fetch it, without signing in",
        )
        .default("false"),
    ],
};
