//! Of what kind the value of each key is, and good errors for all others: with the line, and
//! what to write. What the value says is `raw`'s affair.

use toml::de::DeValue;

use crate::error::ConfigError;

#[derive(Clone, Copy)]
enum Kind {
    Text,
    Texts,
    Flag,
    Number,
    /// A number of bytes, or text with a unit.
    Size,
    /// A time with its unit, or a number.
    Span,
    Section,
    Sections,
}

use Kind::{Flag, Number, Section, Sections, Size, Span, Text, Texts};

/// Of a handler, wherever it stands.
const HANDLER: &[(&str, Kind, &str)] = &[
    ("name", Text, "name = \"orders\""),
    (
        "url",
        Text,
        "url = \"https://orders.example.com/tidewater\"",
    ),
    ("events", Texts, "events = [\"upload\"]"),
    ("ca", Text, "ca = \"FILE.pem\""),
    ("timeout", Text, "timeout = \"10s\""),
    ("parallel", Number, "parallel = 4"),
    ("retries", Number, "retries = 2"),
    ("rows", Number, "rows = 500"),
    ("format", Text, "format = \"lines\""),
    ("failures", Number, "failures = 5"),
    ("pause", Text, "pause = \"10s\""),
];

/// Sections of a handler.
const HANDLERS: [&str; 4] = [
    "handler.",
    "sign_in.handler.",
    "publication.handler.",
    "publication.table.handler.",
];

/// The path of a key without indexes, its kind, and an example.
const KINDS: &[(&str, Kind, &str)] = &[
    ("scripts", Text, "scripts = \"scripts\""),
    ("server", Section, "[server]"),
    (
        "server.listen",
        Texts,
        "listen = [\"tcp://127.0.0.1:7439\"]",
    ),
    ("server.admin", Text, "admin = \"http://127.0.0.1:7440\""),
    ("server.http", Text, "http = \"http://127.0.0.1:7441\""),
    (
        "server.consolidated",
        Text,
        "consolidated = \"postgres://user@host:5432/database\"",
    ),
    ("server.insecure", Flag, "insecure = true"),
    ("server.tls", Section, "[server.tls]"),
    ("server.tls.certificate", Text, "certificate = \"FILE.pem\""),
    ("server.tls.key", Text, "key = \"FILE.pem\""),
    ("server.compression", Text, "compression = \"auto\""),
    ("server.compression_level", Number, "compression_level = 3"),
    (
        "server.proxies",
        Texts,
        "proxies = [\"10.0.0.0/8\", \"127.0.0.1\"]",
    ),
    ("server.drain_delay", Text, "drain_delay = \"10s\""),
    ("server.verify_every", Number, "verify_every = 100"),
    ("server.limits", Section, "[server.limits]"),
    ("server.limits.connections", Number, "connections = 10000"),
    ("server.limits.backlog", Number, "backlog = 5000"),
    ("server.limits.memory", Size, "memory = \"256MiB\""),
    (
        "server.limits.session_workers",
        Number,
        "session_workers = 2",
    ),
    ("server.limits.upload_workers", Number, "upload_workers = 4"),
    (
        "server.limits.download_workers",
        Number,
        "download_workers = 4",
    ),
    ("server.limits.call_workers", Number, "call_workers = 4"),
    ("server.limits.least_workers", Number, "least_workers = 2"),
    ("server.limits.most_workers", Number, "most_workers = 8"),
    (
        "server.limits.upload_bytes",
        Size,
        "upload_bytes = \"4GiB\"",
    ),
    (
        "server.limits.upload_rows",
        Number,
        "upload_rows = 50000000",
    ),
    ("server.limits.row_bytes", Size, "row_bytes = \"80MiB\""),
    ("server.limits.message", Size, "message = \"1MiB\""),
    ("server.limits.answer", Size, "answer = \"16MiB\""),
    (
        "server.limits.answer_stream",
        Size,
        "answer_stream = \"1GiB\"",
    ),
    ("server.limits.subscriptions", Number, "subscriptions = 64"),
    (
        "server.limits.password_checks",
        Number,
        "password_checks = 1",
    ),
    ("server.limits.handshake", Text, "handshake = \"15s\""),
    ("server.limits.idle", Text, "idle = \"60s\""),
    ("server.limits.sync", Text, "sync = \"1h\""),
    ("server.limits.shutdown", Text, "shutdown = \"30s\""),
    ("server.limits.waiting", Text, "waiting = \"5s\""),
    ("retention", Section, "[retention]"),
    ("retention.log", Text, "log = \"60d\""),
    ("retention.history", Text, "history = \"14d\""),
    ("retention.conflicts", Text, "conflicts = \"180d\""),
    ("retention.interval", Text, "interval = \"1h\""),
    ("log", Section, "[log]"),
    ("log.format", Text, "format = \"json\""),
    ("log.level", Text, "level = \"info\""),
    ("publication", Sections, "[[publication]]"),
    ("publication.name", Text, "name = \"main\""),
    ("publication.upload", Text, "upload = \"transactional\""),
    ("publication.on_reject", Text, "on_reject = \"abort\""),
    (
        "publication.upload_order",
        Text,
        "upload_order = \"deletes first\"",
    ),
    (
        "publication.script_versions",
        Texts,
        "script_versions = [\"v2\"]",
    ),
    ("publication.replay", Text, "replay = \"no\""),
    (
        "publication.parameter",
        Sections,
        "[[publication.parameter]]",
    ),
    ("publication.parameter.name", Text, "name = \"month\""),
    (
        "publication.parameter.allowed",
        Text,
        "allowed = \"SELECT store_id FROM manager WHERE login = {s.username}\"",
    ),
    ("publication.table", Sections, "[[publication.table]]"),
    (
        "publication.act_as.query",
        Text,
        "query = \"SELECT role FROM staff WHERE login = {s.username}\"",
    ),
    ("publication.table.name", Text, "name = \"customer\""),
    (
        "publication.table.direction",
        Text,
        "direction = \"download\"",
    ),
    (
        "publication.table.columns",
        Texts,
        "columns = [\"id\", \"name\"]",
    ),
    ("publication.table.tracking", Text, "tracking = \"row\""),
    (
        "publication.table.identity",
        Section,
        "identity = { column = \"invoice_id\", block = 1000, refill_below = 200 }",
    ),
    (
        "publication.table.identity.column",
        Text,
        "column = \"invoice_id\"",
    ),
    ("publication.table.identity.block", Number, "block = 1000"),
    (
        "publication.table.identity.refill_below",
        Number,
        "refill_below = 200",
    ),
    (
        "publication.table.filled_by_centre",
        Texts,
        "filled_by_centre = [\"fulltext\"]",
    ),
    (
        "publication.table.on_unseen_children",
        Text,
        "on_unseen_children = \"cascade\"",
    ),
    (
        "publication.table.write",
        Section,
        "write = { columns = [\"technician\"], values = \"SELECT {s.username}\" }",
    ),
    (
        "publication.table.write.columns",
        Texts,
        "columns = [\"technician\"]",
    ),
    (
        "publication.table.write.values",
        Text,
        "values = \"SELECT {s.username}\"",
    ),
    (
        "publication.table.read_only",
        Texts,
        "read_only = [\"approved_at\"]",
    ),
    ("publication.table.hand_over", Flag, "hand_over = true"),
    (
        "publication.table.conflict",
        Section,
        "conflict = { detect = \"column\", resolve = \"later(changed_at)\" }",
    ),
    (
        "publication.table.conflict.detect",
        Text,
        "detect = \"column\"",
    ),
    (
        "publication.table.conflict.rank",
        Text,
        "rank = \"SELECT level FROM staff WHERE login = {s.username}\"",
    ),
    (
        "publication.table.conflict.centre_rank",
        Number,
        "centre_rank = 5",
    ),
    ("publication.table.upload", Text, "upload = \"handler\""),
    ("publication.table.download", Text, "download = \"handler\""),
    (
        "publication.table.partition.columns",
        Texts,
        "columns = [\"region\"]",
    ),
    (
        "publication.table.partition.values",
        Text,
        "values = \"SELECT region FROM member WHERE login = {s.username}\"",
    ),
    (
        "publication.table.partition.follows",
        Text,
        "follows = \"orders\"",
    ),
    (
        "publication.table.partition.by",
        Texts,
        "by = [\"order_id\"]",
    ),
    (
        "publication.table.partition.window",
        Section,
        "window = { column = \"order_date\", last = \"90 days\" }",
    ),
    (
        "publication.table.partition.window.column",
        Text,
        "column = \"order_date\"",
    ),
    (
        "publication.table.partition.window.last",
        Span,
        "last = \"90 days\"",
    ),
    ("procedure", Sections, "[[procedure]]"),
    ("procedure.name", Text, "name = \"price\""),
    (
        "procedure.sql",
        Text,
        "sql = \"SELECT price FROM product WHERE id = {a.item}\"",
    ),
    ("procedure.sql_file", Text, "sql_file = \"price.sql\""),
    ("procedure.on_remotes", Flag, "on_remotes = true"),
    (
        "procedure.arguments",
        Section,
        "arguments = { item = \"integer\", since = \"date?\" }",
    ),
    ("procedure.returns", Text, "returns = \"value\""),
    ("procedure.allow", Text, "allow = \"everyone\""),
    ("procedure.read_only", Flag, "read_only = true"),
    ("procedure.idempotent", Flag, "idempotent = true"),
    ("procedure.timeout", Text, "timeout = \"30s\""),
    ("space", Sections, "[[space]]"),
    ("space.name", Text, "name = \"fleet\""),
    (
        "space.publish.patterns",
        Texts,
        "patterns = [\"unit.{s.username}.>\"]",
    ),
    (
        "space.publish.allow",
        Text,
        "allow = \"SELECT 1 FROM staff WHERE login = {s.username}\"",
    ),
    ("space.subscribe.patterns", Texts, "patterns = [\"news.>\"]"),
    (
        "space.subscribe.allow",
        Text,
        "allow = \"SELECT 1 FROM staff WHERE login = {s.username}\"",
    ),
    ("space.durable", Text, "durable = \"7d\""),
    ("space.last_value", Flag, "last_value = true"),
    ("space.slow", Text, "slow = \"drop_oldest\""),
    ("space.queue", Size, "queue = \"4MiB\""),
    ("wake", Sections, "[[wake]]"),
    ("wake.url", Text, "url = \"https://push.example.com/wake\""),
    ("wake.token", Text, "token = \"${PUSH_TOKEN}\""),
    ("wake.ca", Text, "ca = \"FILE.pem\""),
    ("wake.publications", Texts, "publications = [\"main\"]"),
    ("sign_in", Section, "[sign_in]"),
    ("sign_in.passwords", Text, "passwords = \"ldap\""),
    ("sign_in.create_users", Flag, "create_users = true"),
    ("sign_in.again_after", Text, "again_after = \"30d\""),
    ("sign_in.oidc", Sections, "[[sign_in.oidc]]"),
    (
        "sign_in.oidc.issuer",
        Text,
        "issuer = \"https://login.example.com\"",
    ),
    (
        "sign_in.oidc.jwks",
        Text,
        "jwks = \"https://login.example.com/keys\"",
    ),
    ("sign_in.oidc.audience", Texts, "audience = [\"tidewater\"]"),
    (
        "sign_in.oidc.algorithms",
        Texts,
        "algorithms = [\"RS256\", \"ES256\"]",
    ),
    ("sign_in.oidc.user_from", Text, "user_from = \"sub\""),
    ("sign_in.oidc.prefix", Text, "prefix = \"partner:\""),
    ("sign_in.oidc.ca", Text, "ca = \"FILE.pem\""),
    ("sign_in.ldap", Section, "[sign_in.ldap]"),
    (
        "sign_in.ldap.url",
        Text,
        "url = \"ldaps://directory.example.com\"",
    ),
    ("sign_in.ldap.starttls", Flag, "starttls = true"),
    ("sign_in.ldap.insecure", Flag, "insecure = true"),
    (
        "sign_in.ldap.bind",
        Text,
        "bind = \"uid={user},ou=people,dc=example,dc=com\"",
    ),
    ("sign_in.ldap.base", Text, "base = \"dc=example,dc=com\""),
    ("sign_in.ldap.filter", Text, "filter = \"(uid={user})\""),
    (
        "sign_in.ldap.account",
        Text,
        "account = \"cn=tidewater,dc=example,dc=com\"",
    ),
    (
        "sign_in.ldap.password_file",
        Text,
        "password_file = \"FILE\"",
    ),
    ("sign_in.ldap.user_from", Text, "user_from = \"uid\""),
    ("sign_in.ldap.ca", Text, "ca = \"FILE.pem\""),
    ("sign_in.ldap.timeout", Text, "timeout = \"10s\""),
    ("sign_in.certificates", Section, "[sign_in.certificates]"),
    (
        "sign_in.certificates.authority",
        Text,
        "authority = \"FILE.pem\"",
    ),
    (
        "sign_in.certificates.user_from",
        Text,
        "user_from = \"common_name\"",
    ),
    ("handler", Sections, "[[handler]]"),
    ("relay", Section, "[relay]"),
    (
        "relay.connect",
        Texts,
        "connect = [\"tls://relay.example.com:7444\"]",
    ),
    ("relay.name", Text, "name = \"sync.example.com\""),
    ("relay.token", Text, "token = \"${RELAY_TOKEN}\""),
    ("relay.token_file", Text, "token_file = \"FILE\""),
    ("relay.certificate", Text, "certificate = \"FILE.pem\""),
    ("relay.key", Text, "key = \"FILE.pem\""),
    ("relay.ca", Text, "ca = \"FILE.pem\""),
    ("relay.pin", Text, "pin = \"sha256/...\""),
    ("relay.lines", Number, "lines = 4"),
    ("upstream", Section, "[upstream]"),
    (
        "upstream.server",
        Text,
        "server = \"tls://headquarters.example.com:7439\"",
    ),
    ("upstream.user", Text, "user = \"north\""),
    ("upstream.password", Text, "password = \"${PASSWORD}\""),
    (
        "upstream.password_file",
        Text,
        "password_file = \"headquarters.password\"",
    ),
    ("upstream.token_file", Text, "token_file = \"token\""),
    ("upstream.certificate", Text, "certificate = \"FILE.pem\""),
    ("upstream.key", Text, "key = \"FILE.pem\""),
    ("upstream.publication", Text, "publication = \"main\""),
    ("upstream.publications", Texts, "publications = [\"main\"]"),
    ("upstream.every", Text, "every = \"30s\""),
    ("upstream.ca", Text, "ca = \"FILE.pem\""),
    ("upstream.pin", Text, "pin = \"sha256/BASE64\""),
    (
        "upstream.proxy",
        Text,
        "proxy = \"http://proxy.example.com:3128\"",
    ),
    ("upstream.compression", Text, "compression = \"auto\""),
    (
        "upstream.compression_level",
        Number,
        "compression_level = 3",
    ),
    ("upstream.insecure", Flag, "insecure = true"),
    ("images", Section, "[images]"),
    ("images.folder", Text, "folder = \"images\""),
    ("images.every", Text, "every = \"1h\""),
    ("images.image", Sections, "[[images.image]]"),
    ("images.image.name", Text, "name = \"north\""),
    ("images.image.publication", Text, "publication = \"main\""),
    ("images.image.user", Text, "user = \"north\""),
    (
        "images.image.partitions",
        Texts,
        "partitions = [\"region=north\"]",
    ),
    ("images.image.everyone", Flag, "everyone = true"),
    ("images.image.public", Flag, "public = true"),
    ("live", Section, "[live]"),
    ("live.nats", Text, "nats = \"nats://127.0.0.1:4222\""),
    (
        "live.servers",
        Texts,
        "servers = [\"tls://two.example.com:7439\"]",
    ),
];

/// Refuses a value of another kind than its key takes.
///
/// # Errors
/// It is of another kind; the error says on which line, and what to write.
pub(super) fn check(value: &DeValue<'_>, path: &str, line: usize) -> Result<(), ConfigError> {
    let Some((_, kind, example)) = known(path).filter(|(_, kind, _)| !kind.takes(value)) else {
        return Ok(());
    };
    Err(ConfigError::new(
        format!(
            "line {line}: {path} is {}, and takes {}",
            called(value),
            kind.called()
        ),
        format!("write {example}"),
    ))
}

/// What is known of a key.
fn known(path: &str) -> Option<&'static (&'static str, Kind, &'static str)> {
    let mut handlers = HANDLERS.iter();
    match handlers.find_map(|section| path.strip_prefix(section)) {
        Some(key) => HANDLER.iter().find(|it| it.0 == key),
        None => KINDS.iter().find(|it| it.0 == path),
    }
}

impl Kind {
    fn takes(self, value: &DeValue<'_>) -> bool {
        let all = |value: &DeValue<'_>, is: fn(&DeValue<'_>) -> bool| match value {
            DeValue::Array(array) => array.iter().all(|element| is(element.get_ref())),
            _ => false,
        };
        match self {
            Text => matches!(value, DeValue::String(_)),
            Texts => all(value, |it| matches!(it, DeValue::String(_))),
            Flag => matches!(value, DeValue::Boolean(_)),
            Number => matches!(value, DeValue::Integer(_)),
            Size | Span => matches!(value, DeValue::Integer(_) | DeValue::String(_)),
            Section => matches!(value, DeValue::Table(_)),
            Sections => all(value, |it| matches!(it, DeValue::Table(_))),
        }
    }

    fn called(self) -> &'static str {
        match self {
            Text => "text in quotes",
            Texts => "a list of texts",
            Flag => "true or false",
            Number => "a number",
            Size => "a number of bytes, or text with a unit",
            Span => "a time with its unit as text, or a number",
            Section => "a section of its own",
            Sections => "sections of its own",
        }
    }
}

/// What kind a value is of.
fn called(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a section",
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::KEYS;
    use super::*;

    #[test]
    fn every_key_has_a_kind_and_an_example_of_it() {
        for (section, keys) in KEYS {
            for key in *keys {
                let path = match *section {
                    "" => (*key).to_owned(),
                    section => format!("{section}.{key}"),
                };
                // These are text, a list or a section, and have errors of their own.
                let own = [
                    "publication.table.partition",
                    "publication.act_as",
                    "publication.table.conflict.resolve",
                    "procedure.provided_by",
                    "space.publish",
                    "space.subscribe",
                    "sign_in.oidc.claims",
                    "sign_in.ldap.claims",
                    "sign_in.handler",
                    "publication.handler",
                    "publication.table.handler",
                ];
                let is_secret = path.ends_with("handler.secret");
                if is_secret || path.ends_with("handler.secret_file") || own.contains(&&*path) {
                    continue;
                }
                let (_, kind, example) =
                    known(&path).unwrap_or_else(|| panic!("{path} has no kind"));
                let table = toml::de::DeTable::parse(example).unwrap();
                let (_, value) = table.get_ref().iter().next().unwrap();
                let nested = example.starts_with('[');
                assert!(nested || kind.takes(value.get_ref()), "{path}: {example}");
            }
        }
    }
}
