//! `[sign_in]` and the sections below it.

use super::{KeyGrammar, SectionGrammar, TakesEffect, ValueKind};

pub(super) static SIGN_IN: SectionGrammar = SectionGrammar {
    path: "sign_in",
    is_repeated: false,
    takes_effect: TakesEffect::Reload,
    keys: &[
        KeyGrammar::new(
            "passwords",
            ValueKind::Choice(&["built_in", "ldap", "script", "handler", "off"]),
            "\"ldap\"",
            "who knows passwords",
        )
        .default("\"built_in\"")
        .details(
            "`\"built_in\"`, this database; `\"ldap\"`, the directory of `[sign_in.ldap]`; \
             `\"script\"`, a [script](scripts.md#passwords); `\"handler\"`, the program under \
             `handler`; `\"off\"`, nobody",
        ),
        KeyGrammar::new(
            "handler",
            ValueKind::TextOrSection,
            "\"https://people.example.com/tidewater\"",
            "the program that is asked then",
        )
        .details("See [handlers.md](handlers.md)"),
        KeyGrammar::new(
            "create_users",
            ValueKind::Flag,
            "true",
            "whether a user who is new here, but proven by others, is added at the first sign-in",
        )
        .default("false")
        .details("Otherwise the operator adds users (`tidewater user add NAME --no-password`)"),
        KeyGrammar::new(
            "reauthenticate_after",
            ValueKind::Duration(1),
            "\"30d\"",
            "after how long a user whom others have proven has to be proven again",
        )
        .default_told("never")
        .details(
            "Credentials count no more until one of the user's devices or programs has signed in \
             anew; connections that are open stay",
        ),
    ],
};

pub(super) static OIDC: SectionGrammar = SectionGrammar {
    path: "sign_in.oidc",
    is_repeated: true,
    takes_effect: TakesEffect::Reload,
    keys: &[
        KeyGrammar::new(
            "issuer",
            ValueKind::Text,
            "\"https://login.example.com\"",
            "the URL of the provider, exactly as its tokens have it in `iss`",
        )
        .required()
        .details(
            "`https://`, or `http://` on this machine, elsewhere with `server.insecure`. It tells \
             where its keys are at `ISSUER/.well-known/openid-configuration`",
        ),
        KeyGrammar::new(
            "jwks_url",
            ValueKind::Text,
            "\"https://login.example.com/keys\"",
            "the URL of its keys, for a provider that does not tell",
        ),
        KeyGrammar::new(
            "audience",
            ValueKind::Texts,
            "[\"tidewater\"]",
            "a token counts that has one of these in `aud`",
        )
        .required(),
        KeyGrammar::new(
            "algorithms",
            ValueKind::Texts,
            "[\"RS256\"]",
            "how tokens may be signed",
        )
        .default("[\"RS256\", \"ES256\"]")
        .details("RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA"),
        KeyGrammar::new(
            "user_from",
            ValueKind::Text,
            "\"preferred_username\"",
            "the claim that is the user's name",
        )
        .default("\"sub\""),
        KeyGrammar::new(
            "prefix",
            ValueKind::Text,
            "\"partner:\"",
            "what is put before that name: so that those of two issuers differ",
        ),
        claims(
            "names of claims, or names with what they come from, `{ region = \"custom:region\", \
             roles = \"realm_access.roles\" }`",
        ),
        ca("For the issuer's own address"),
    ],
};

pub(super) static LDAP: SectionGrammar = SectionGrammar {
    path: "sign_in.ldap",
    is_repeated: false,
    takes_effect: TakesEffect::Reload,
    keys: &[
        KeyGrammar::new(
            "url",
            ValueKind::Text,
            "\"ldaps://directory.example.com\"",
            "where the directory is",
        )
        .required()
        .details(
            "`ldaps://HOST`, or `ldap://HOST` with `starttls`; the port may be left out (636 or \
             389)",
        ),
        KeyGrammar::new(
            "starttls",
            ValueKind::Flag,
            "true",
            "whether a connection by `ldap://` is encrypted before anything is said",
        )
        .default("false"),
        KeyGrammar::new(
            "insecure",
            ValueKind::Flag,
            "true",
            "allow `ldap://` without it to another machine: passwords are readable on the way",
        )
        .default("false"),
        KeyGrammar::new(
            "user_dn",
            ValueKind::Text,
            "\"uid={user},ou=people,dc=example,dc=com\"",
            "the name of a user's entry, with `{user}` for what the user types",
        )
        .details("Either this, or `base_dn` and `filter`"),
        KeyGrammar::new(
            "base_dn",
            ValueKind::Text,
            "\"ou=people,dc=example,dc=com\"",
            "where entries are searched for",
        ),
        KeyGrammar::new(
            "filter",
            ValueKind::Text,
            "\"(uid={user})\"",
            "with which filter; `{user}` stands for what the user types",
        )
        .details("It has to find one entry"),
        KeyGrammar::new(
            "bind_dn",
            ValueKind::Text,
            "\"cn=tidewater,dc=example,dc=com\"",
            "as whom is searched: the name of an entry",
        )
        .default_told("nobody"),
        KeyGrammar::new(
            "bind_password_file",
            ValueKind::Path,
            "\"directory-password\"",
            "the file with its password, read at each sign-in",
        ),
        KeyGrammar::new(
            "user_from",
            ValueKind::Text,
            "\"sAMAccountName\"",
            "the attribute that is the user's name",
        )
        .default("\"uid\"")
        .details("With `user_dn` a user must be allowed to read that of the own entry"),
        claims("names of attributes, or names with the attributes that they come from"),
        ca(""),
        KeyGrammar::new(
            "timeout",
            ValueKind::Duration(1),
            "\"5s\"",
            "how long all of it may take",
        )
        .default("\"10s\""),
    ],
};

pub(super) static CERTIFICATES: SectionGrammar = SectionGrammar {
    path: "sign_in.certificates",
    is_repeated: false,
    takes_effect: TakesEffect::Reload,
    keys: &[
        KeyGrammar::new(
            "authority",
            ValueKind::Path,
            "\"FILE.pem\"",
            "a PEM file with the authorities whose certificates count",
        )
        .required(),
        KeyGrammar::new(
            "user_from",
            ValueKind::Choice(&["common_name", "email", "uri"]),
            "\"email\"",
            "what in a certificate is the user's name",
        )
        .default("\"common_name\"")
        .details(
            "`\"common_name\"` of the subject, or the `\"email\"` or `\"uri\"` among its alternative \
             names",
        ),
    ],
};

const fn claims(details: &'static str) -> KeyGrammar {
    KeyGrammar::new(
        "claims",
        ValueKind::Several,
        "[\"region\"]",
        "what is kept of the user",
    )
    .details(details)
}

const fn ca(details: &'static str) -> KeyGrammar {
    KeyGrammar::new(
        "ca",
        ValueKind::Path,
        "\"FILE.pem\"",
        "a PEM file with the authorities to trust instead",
    )
    .default_told("public authorities")
    .details(details)
}
