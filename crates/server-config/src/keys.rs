//! Which keys a configuration may hold, and good errors for all others. Looks at
//! the text before anything is read from it, because only the text has lines.

use toml::de::{DeTable, DeValue};

use super::kinds;
use tidewater_centre::nearest;

use crate::error::ConfigError;

/// Of a handler, wherever it stands.
const HANDLER: &[&str] = &[
    "name",
    "url",
    "events",
    "secret",
    "secret_file",
    "ca",
    "timeout",
    "parallel",
    "retries",
    "rows",
    "format",
    "failures",
    "pause",
];

/// Section (as a path without indexes) and its keys.
pub(super) const KEYS: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "server",
            "retention",
            "log",
            "publication",
            "procedure",
            "space",
            "live",
            "wake",
            "scripts",
            "sign_in",
            "handler",
            "relay",
            "upstream",
            "images",
        ],
    ),
    (
        "relay",
        &[
            "connect",
            "name",
            "token",
            "token_file",
            "certificate",
            "key",
            "ca",
            "pin",
            "lines",
        ],
    ),
    (
        "sign_in",
        &[
            "passwords",
            "create_users",
            "again_after",
            "oidc",
            "ldap",
            "certificates",
            "handler",
        ],
    ),
    (
        "upstream",
        &[
            "server",
            "user",
            "password",
            "password_file",
            "token_file",
            "certificate",
            "key",
            "publication",
            "publications",
            "every",
            "ca",
            "pin",
            "proxy",
            "compression",
            "compression_level",
            "insecure",
        ],
    ),
    ("images", &["folder", "every", "image"]),
    (
        "images.image",
        &[
            "name",
            "publication",
            "user",
            "partitions",
            "everyone",
            "public",
        ],
    ),
    ("handler", HANDLER),
    ("sign_in.handler", HANDLER),
    ("publication.handler", HANDLER),
    ("publication.table.handler", HANDLER),
    (
        "sign_in.oidc",
        &[
            "issuer",
            "jwks",
            "audience",
            "algorithms",
            "user_from",
            "prefix",
            "claims",
            "ca",
        ],
    ),
    (
        "sign_in.ldap",
        &[
            "url",
            "starttls",
            "insecure",
            "bind",
            "base",
            "filter",
            "account",
            "password_file",
            "user_from",
            "claims",
            "ca",
            "timeout",
        ],
    ),
    ("sign_in.certificates", &["authority", "user_from"]),
    ("live", &["nats", "servers"]),
    ("wake", &["url", "token", "ca", "publications"]),
    (
        "server",
        &[
            "listen",
            "admin",
            "http",
            "consolidated",
            "insecure",
            "tls",
            "compression",
            "compression_level",
            "proxies",
            "drain_delay",
            "verify_every",
            "limits",
        ],
    ),
    ("server.tls", &["certificate", "key"]),
    (
        "server.limits",
        &[
            "connections",
            "backlog",
            "memory",
            "session_workers",
            "upload_workers",
            "download_workers",
            "call_workers",
            "least_workers",
            "most_workers",
            "upload_bytes",
            "upload_rows",
            "row_bytes",
            "message",
            "answer",
            "answer_stream",
            "subscriptions",
            "password_checks",
            "handshake",
            "idle",
            "sync",
            "shutdown",
            "waiting",
        ],
    ),
    ("retention", &["log", "history", "conflicts", "interval"]),
    ("log", &["format", "level"]),
    (
        "publication",
        &[
            "name",
            "act_as",
            "upload",
            "on_reject",
            "upload_order",
            "script_versions",
            "replay",
            "parameter",
            "table",
            "handler",
        ],
    ),
    ("publication.act_as", &["query"]),
    ("publication.parameter", &["name", "allowed"]),
    (
        "publication.table",
        &[
            "name",
            "partition",
            "direction",
            "columns",
            "tracking",
            "identity",
            "filled_by_centre",
            "on_unseen_children",
            "write",
            "read_only",
            "hand_over",
            "conflict",
            "handler",
            "upload",
            "download",
        ],
    ),
    (
        "publication.table.conflict",
        &["detect", "resolve", "rank", "centre_rank"],
    ),
    ("publication.table.write", &["columns", "values"]),
    (
        "publication.table.identity",
        &["column", "block", "refill_below"],
    ),
    (
        "publication.table.partition",
        &["columns", "values", "follows", "by", "window"],
    ),
    ("publication.table.partition.window", &["column", "last"]),
    (
        "procedure",
        &[
            "name",
            "sql",
            "sql_file",
            "provided_by",
            "on_remotes",
            "arguments",
            "returns",
            "allow",
            "read_only",
            "idempotent",
            "timeout",
        ],
    ),
    (
        "space",
        &[
            "name",
            "publish",
            "subscribe",
            "durable",
            "last_value",
            "slow",
            "queue",
        ],
    ),
    ("space.publish", &["patterns", "allow"]),
    ("space.subscribe", &["patterns", "allow"]),
];

/// Finds the first key that no section has.
///
/// # Errors
/// There is one, or the text is not TOML.
pub(super) fn check(text: &str) -> Result<(), ConfigError> {
    let table = DeTable::parse(text).map_err(|error| not_toml(text, &error))?;
    check_table(text, table.get_ref(), "")
}

/// The error of a text that is not TOML.
pub(super) fn not_toml(text: &str, error: &toml::de::Error) -> ConfigError {
    let place = error
        .span()
        .map(|span| format!("line {}: ", line_of(text, span.start)))
        .unwrap_or_default();
    ConfigError::new(
        format!("{place}{}", error.message()),
        "see docs/configuration.md for an example of every setting",
    )
}

fn check_table(text: &str, table: &DeTable<'_>, path: &str) -> Result<(), ConfigError> {
    let Some((_, known)) = KEYS.iter().find(|(section, _)| *section == path) else {
        return Ok(());
    };
    for (key, value) in table {
        let name: &str = key.get_ref();
        if !known.contains(&name) {
            let line = line_of(text, key.span().start);
            return Err(unknown(name, path, line, known));
        }
        let below = if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        };
        kinds::check(value.get_ref(), &below, line_of(text, value.span().start))?;
        check_value(text, value.get_ref(), &below)?;
    }
    Ok(())
}

fn check_value(text: &str, value: &DeValue<'_>, path: &str) -> Result<(), ConfigError> {
    match value {
        DeValue::Table(table) => check_table(text, table, path),
        DeValue::Array(array) => array
            .iter()
            .try_for_each(|element| check_value(text, element.get_ref(), path)),
        _ => Ok(()),
    }
}

fn unknown(name: &str, path: &str, line: usize, known: &[&str]) -> ConfigError {
    let place = match path {
        "" => "at the top level".to_owned(),
        "publication"
        | "publication.table"
        | "publication.parameter"
        | "procedure"
        | "space"
        | "sign_in.oidc"
        | "wake"
        | "images.image"
        | "handler" => {
            format!("in [[{path}]]")
        }
        _ => format!("in [{path}]"),
    };
    let elsewhere = KEYS
        .iter()
        .find(|(section, keys)| *section != path && keys.contains(&name));
    let hint = match (nearest(name, known.iter().copied()), elsewhere) {
        (Some(near), _) => format!("did you mean {near:?}?"),
        (None, Some(("", _))) => format!("{name:?} belongs at the top level"),
        (None, Some((section, _))) => format!("{name:?} belongs in [{section}]"),
        (None, None) => format!("known here are: {}", known.join(", ")),
    };
    ConfigError::new(format!("line {line}: unknown key {name:?} {place}"), hint)
}

pub(super) fn line_of(text: &str, offset: usize) -> usize {
    let before = &text.as_bytes()[..offset.min(text.len())];
    1 + before.iter().filter(|&&byte| byte == b'\n').count()
}
