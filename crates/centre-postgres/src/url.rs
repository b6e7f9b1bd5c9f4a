//! URLs of PostgreSQL whose user or password holds characters that a URL needs for itself.
//!
//! Owns the advice, and taking a part out: what a URL means is the driver's affair.

use tokio_postgres::Config;
use tokio_postgres::config::Host;

/// What ends a user or a password in a URL, or begins an escape.
const RESERVED: [char; 9] = ['@', '/', '?', '#', '[', ']', ' ', '%', '\\'];

/// The parameters that may follow the database's name.
pub(super) const PARAMETERS: [&str; 18] = [
    "sslmode",
    "sslrootcert",
    "application_name",
    "channel_binding",
    "connect_timeout",
    "dbname",
    "host",
    "hostaddr",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "load_balance_hosts",
    "options",
    "port",
    "target_session_attrs",
    "tcp_user_timeout",
    "user",
];

/// The first parameter that does not exist. Only what can be no piece of a password is
/// given: a name before a `=`, with no account behind it.
pub(super) fn unknown_parameter(url: &str) -> Option<&str> {
    let (_, query) = url
        .split_once('?')
        .filter(|(_, query)| !query.contains('@'))?;
    let names = query
        .split('&')
        .filter_map(|it| Some(it.split_once('=')?.0));
    let mut unknown = names.filter(|name| !PARAMETERS.contains(name) && *name != "password");
    unknown.find(|name| {
        name.bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    })
}

/// A URL without the options of a session.
pub(super) fn without_options(url: &str) -> String {
    let Some((base, query)) = url.split_once('?') else {
        return url.to_owned();
    };
    let others = query.split('&').filter(|it| !it.starts_with("options="));
    let others: Vec<&str> = others.collect();
    format!("{base}?{}", others.join("&"))
}

/// What tells that the driver understood a URL otherwise than it is meant: it takes the
/// first '@' for the end of the password, the next '/' for the end of the host, and a '%'
/// without digits as it is.
pub(super) fn misread(url: &str, config: &Config) -> Option<&'static str> {
    let wrong = |host: &Host| matches!(host, Host::Tcp(name) if name.contains('@'));
    if config.get_hosts().iter().any(wrong) {
        return Some("the database's URL has an '@' too many");
    }
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let place = rest.split_once('@').map_or("", |(_, place)| place);
    let place = place.split('?').next().unwrap_or(place);
    if place.contains('@') {
        return Some("the database's URL has an '@' too many");
    }
    match first_reserved(url) {
        Some((_, '%')) => Some("the database's URL has a '%' without two hexadecimal digits"),
        _ => None,
    }
}

/// How to write the URL instead. Says no more of a password than the one character that
/// has to be written differently.
pub(super) fn advice(url: &str) -> String {
    let general = "write postgres://user:password@host:5432/database";
    let Some((what, character)) = first_reserved(url) else {
        return general.into();
    };
    let mut bytes = [0; 4];
    let encoded = character.encode_utf8(&mut bytes).bytes();
    let encoded: String = encoded.map(|byte| format!("%{byte:02X}")).collect();
    format!(
        "{general}; the {what} holds {character:?}, which is written {encoded} in a URL, also in \
         an environment variable that is put into one"
    )
}

/// The first character of user or password that must be escaped, and which of the two
/// holds it.
fn first_reserved(url: &str) -> Option<(&'static str, char)> {
    let (_, rest) = url.split_once("://")?;
    // Whatever else they hold, only a host, a port and a database follow the last one.
    let (account, _) = rest.rsplit_once('@')?;
    let (user, password) = account.split_once(':').unwrap_or((account, ""));
    let found = |what, text: &str, also: &str| {
        let mut characters = text.char_indices();
        let is_escape = |at: usize| {
            let digits = text.get(at + 1..at + 3);
            digits.is_some_and(|it| it.bytes().all(|digit| digit.is_ascii_hexdigit()))
        };
        let reserved = characters.find(|&(at, character)| {
            (RESERVED.contains(&character) || also.contains(character))
                && !(character == '%' && is_escape(at))
        });
        reserved.map(|(_, character)| (what, character))
    };
    found("password", password, ":").or_else(|| found("user", user, ""))
}

#[cfg(test)]
mod tests {
    use super::super::connection::address;
    use super::*;

    #[test]
    fn a_url_may_name_several_hosts() {
        let url = "postgres://u:pw@one:5432,two:5433/d?target_session_attrs=read-write\
                   &options=-c%20geqo%3Doff";
        address(url).unwrap();
        let read: Config = without_options(url).parse().unwrap();
        assert_eq!(read.get_hosts().len(), 2);
        assert_eq!(read.get_ports(), [5432, 5433]);
        assert_eq!(read.get_options(), None);
    }

    #[test]
    fn a_password_that_needs_escapes_is_told_by_its_character_only() {
        for (url, character, escape) in [
            ("postgres://u:s3cret@x@h/d", "'@'", "%40"),
            ("postgres://u:s3cret@x:y@h/d", "'@'", "%40"),
            ("postgres://u:s3cret/x@h:port/d", "'/'", "%2F"),
            ("postgres://u:s3cret#x@h:port/d", "'#'", "%23"),
            ("postgres://u:s3cret:x@h:port/d", "':'", "%3A"),
            ("postgres://u:s3cret%x@h:port/d", "'%'", "%25"),
            ("postgres://u:s3cret%x@h/d", "'%'", "%25"),
            ("postgres://u:s3cret@x/y@h/d", "'@'", "%40"),
        ] {
            let error = address(url).unwrap_err();
            let hint = error.hint();
            let expected = format!("the password holds {character}, which is written {escape} ");
            assert!(hint.contains(&expected), "{url}: {hint}");
            assert!(
                !format!("{error} {hint}").contains("s3cret"),
                "{error} {hint}"
            );
        }
        assert!(advice("postgres://a@b@h:port/d").contains("the user holds '@'"));
        assert!(!advice("postgres://u:%40@h:port/d").contains("holds"));
        let right: Config = "postgres://u:a%40b@h/d".parse().unwrap();
        assert_eq!(right.get_password(), Some(&b"a@b"[..]));
    }

    #[test]
    fn an_unknown_parameter_is_named_and_nothing_that_may_be_a_password() {
        let error = address("postgres://u:pw@h/d?sslmod=require").unwrap_err();
        assert!(
            error.to_string().ends_with("unknown parameter \"sslmod\""),
            "{error}"
        );
        assert!(error.hint().contains("sslmode, sslrootcert"));
        let error = address("postgres://u@h/d?s3cret=x@y").unwrap_err();
        assert!(
            !format!("{error} {}", error.hint()).contains("s3cret"),
            "{error}"
        );
    }
}
