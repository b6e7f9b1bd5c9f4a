use super::*;
use tidewater_centre::{
    OnReject, OnUnseenChildren, RuleSpec, Tracking, UploadMode, WriteScopeSpec, WritesSpec,
};
use tidewater_protocol::Direction;

const ISSUE: &str = r#"
[server]
listen = ["tcp://127.0.0.1:7439"]
consolidated = "postgres://tidewater@127.0.0.1:5432/shop"     # or "sqlite:shop.db"

[retention]                                # all optional
log = "60d"
history = "14d"
conflicts = "180d"

[[publication]]
name = "sales"

[[publication.table]]
name = "customer"                          # schema-qualified names accepted
partition = { columns = ["support_rep_id"], values = "SELECT employee_id FROM employee WHERE login = {s.username}" }

[[publication.table]]
name = "product"
partition = "everyone"
direction = "download"                     # both (default), download, upload
columns = ["product_id", "name", "price"]
tracking = "log"                           # default; "row", "off"
on_unseen_children = "cascade"             # "conflict" (default)

[[publication.table]]
name = "visit"
partition = { columns = ["region"], values = "SELECT 'north'" }
write = { columns = ["technician"], values = "SELECT {s.username}" }
read_only = ["approved_at"]
hand_over = true
"#;

fn parse(text: &str) -> Result<Config, ServerError> {
    Config::parse_with(text, &|name| match name {
        "DATABASE" => Some("postgres://\"quoted\"@host/shop".into()),
        "EMPTY" => Some(String::new()),
        _ => None,
    })
}

fn error_of(text: &str) -> (String, String) {
    let error = parse(text).expect_err("the configuration is wrong");
    (error.to_string(), error.hint())
}

#[test]
fn change_logs_are_kept_for_a_minute_at_least() {
    let (message, hint) = error_of(&ISSUE.replace("60d", "59s"));
    assert!(message.contains("retention.log"), "{message}");
    assert!(hint.contains("\"1m\""), "{hint}");
    assert!(parse(&ISSUE.replace("60d", "1m")).is_ok());
}

#[test]
fn remotes_verify_themselves_only_if_that_is_said() {
    let server = "[server]\nconsolidated = \"sqlite:x\"\n";
    let every = |text: &str| parse(text).unwrap().server.verify_every;
    assert_eq!(every(server), 0);
    assert_eq!(every(&format!("{server}verify_every = 50")), 50);
    let (message, hint) = error_of(&format!("{server}verify_every = 0"));
    assert!(message.contains("server.verify_every is 0"), "{message}");
    assert!(hint.contains("leave the key out"), "{hint}");
}

#[test]
fn a_value_of_the_wrong_kind_is_told_with_its_line_and_what_to_write() {
    for (text, message, hint) in [
        (
            "[server]\nlisten = \"tcp://h:1\"\n",
            "line 2: server.listen is text, and takes a list of texts",
            "write listen = [\"tcp://127.0.0.1:7439\"]",
        ),
        (
            "[server]\nlisten = [1]\n",
            "line 2: server.listen is a list, and takes a list of texts",
            "write listen = ",
        ),
        (
            "[server]\ninsecure = \"yes\"\n",
            "line 2: server.insecure is text, and takes true or false",
            "write insecure = true",
        ),
        (
            "[retention]\nlog = 60\n",
            "line 2: retention.log is a number, and takes text in quotes",
            "write log = \"60d\"",
        ),
        (
            "[publication]\nname = \"main\"\n",
            "publication is a section, and takes sections of its own",
            "write [[publication]]",
        ),
    ] {
        let error = Config::parse(text).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
        assert!(error.hint().starts_with(hint), "{}", error.hint());
    }
}

#[test]
fn the_documented_example_means_what_it_says() {
    let config = parse(ISSUE).unwrap();
    assert_eq!(config.server.listen, ["tcp://127.0.0.1:7439"]);
    assert_eq!(config.server.limits, Limits::default());
    assert_eq!(config.retention, RetentionConfig::default());
    let [publication] = &config.publications[..] else {
        panic!("one publication");
    };
    assert_eq!(publication.name, "sales");
    let [customer, product, visit] = &publication.tables[..] else {
        panic!("three tables");
    };
    assert_eq!(
        customer.partition,
        [RuleSpec::columns(
            &["support_rep_id"],
            "SELECT employee_id FROM employee WHERE login = {s.username}",
        )]
    );
    assert_eq!(customer.direction, Direction::Both);
    assert_eq!(product.partition, [RuleSpec::everyone()]);
    assert_eq!(product.direction, Direction::Download);
    assert_eq!(product.tracking, Tracking::Log);
    assert_eq!(product.on_unseen_children, OnUnseenChildren::Cascade);
    assert_eq!(customer.on_unseen_children, OnUnseenChildren::Conflict);
    assert_eq!(product.columns.as_ref().map(Vec::len), Some(3));
    assert_eq!(product.writes, WritesSpec::default());
    let columns = vec!["technician".to_owned()];
    let values = "SELECT {s.username}".to_owned();
    let writes = WritesSpec {
        scope: Some(WriteScopeSpec { columns, values }),
        read_only: vec!["approved_at".into()],
        hand_over: true,
    };
    assert_eq!(visit.writes, writes);
}

#[test]
fn what_may_be_written_is_said_of_the_table_and_whole() {
    for (from, to, message, hint) in [
        (
            ", values = \"SELECT {s.username}\" }",
            " }",
            "write needs columns and values",
            "write = {",
        ),
        (
            "read_only = [\"approved_at\"]",
            "read_only = [\"a\", \"a\"]",
            "read_only names \"a\" twice",
            "remove it",
        ),
        (
            "hand_over = true",
            "hand_over = \"yes\"",
            "publication.table.hand_over is text, and takes true or false",
            "hand_over = true",
        ),
        (
            "values = \"SELECT 'north'\" }",
            "values = \"SELECT 'north'\", hand_over = true }",
            "unknown key \"hand_over\" in [publication.table.partition]",
            "\"hand_over\" belongs in [publication.table]",
        ),
        (
            "read_only = [",
            "readonly = [",
            "unknown key \"readonly\"",
            "did you mean \"read_only\"?",
        ),
    ] {
        let (found, way) = error_of(&ISSUE.replace(from, to));
        assert!(found.contains(message), "{found}");
        assert!(way.contains(hint), "{way}");
    }
}

#[test]
fn every_toml_block_of_the_manual_is_valid() {
    let manual = include_str!("../../../../docs/configuration.md");
    let blocks: Vec<&str> = manual
        .split("```toml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    assert!(blocks.len() >= 4, "{} blocks", blocks.len());
    for block in blocks {
        // A block may show a part; what a part leaves out is added.
        let mut text = block.to_owned();
        if !text.contains("[server]") {
            text.push_str("\n[server]\nconsolidated = \"sqlite:shop.db\"\n");
        }
        Config::parse_with(&text, &|_| Some("secret".into()))
            .unwrap_or_else(|error| panic!("{error}\n{}\n{text}", error.hint()));
    }
}

#[test]
fn the_manual_names_every_key() {
    let manual = include_str!("../../../../docs/configuration.md");
    // Sections stand in headings; every other key is explained by its name.
    let sections: Vec<&str> = keys::KEYS.iter().map(|(section, _)| *section).collect();
    for (section, known) in keys::KEYS {
        for key in *known {
            let path = format!("{section}.{key}");
            if sections.contains(&path.trim_start_matches('.')) {
                assert!(manual.contains(key), "{path} is not documented");
                continue;
            }
            assert!(
                manual.contains(&format!("`{key}`")),
                "{path} is not documented"
            );
        }
    }
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_nearest_known_one() {
    let (message, hint) = error_of(&ISSUE.replace("direction", "dirction"));
    assert_eq!(
        message,
        "line 21: unknown key \"dirction\" in [[publication.table]]"
    );
    assert_eq!(hint, "did you mean \"direction\"?");
    let (message, hint) = error_of("listen = []\n[server]\nconsolidated = \"sqlite:x\"");
    assert_eq!(message, "line 1: unknown key \"listen\" at the top level");
    assert_eq!(hint, "\"listen\" belongs in [server]");
    let (_, hint) = error_of("[log]\ncolour = true");
    assert_eq!(hint, "known here are: format, level");
    let (message, _) = error_of(&ISSUE.replace("values", "value"));
    assert!(message.ends_with("unknown key \"value\" in [publication.table.partition]"));
}

#[test]
fn a_table_without_partition_is_told_what_to_write() {
    for partition in ["", "partition = \"TODO\"", "partition = 3"] {
        let (message, hint) = error_of(&ISSUE.replace("partition = \"everyone\"", partition));
        assert!(
            message.starts_with("line 19: publication \"sales\", table \"product\": partition is"),
            "{message}"
        );
        assert!(hint.contains("partition = \"everyone\""));
        assert!(hint.contains("columns = "));
    }
}

#[test]
fn transactions_are_never_set_aside_row_by_row() {
    let with = |keys: &str| {
        ISSUE.replacen(
            "[[publication]]\n",
            &format!("[[publication]]\n{keys}\n"),
            1,
        )
    };
    let config = parse(&with("upload = \"transactional\"")).unwrap();
    assert_eq!(config.publications[0].upload, UploadMode::Transactional);
    assert_eq!(config.publications[0].on_reject, OnReject::Abort);
    let (message, hint) = error_of(&with(
        "upload = \"transactional\"\non_reject = \"set_aside\"",
    ));
    assert!(message.contains("contradicts"), "{message}");
    assert!(hint.contains("remove one of the two"), "{hint}");
    let (message, _) = error_of(&with("upload = \"all\""));
    assert!(message.contains("upload"), "{message}");
}

#[test]
fn variables_come_from_the_environment_and_cannot_break_the_syntax() {
    let text = "[server]\nconsolidated = \"${DATABASE}?x=$${y}\"";
    let config = parse(text).unwrap();
    assert_eq!(
        config.server.consolidated,
        "postgres://\"quoted\"@host/shop?x=${y}"
    );
    let (message, _) = error_of("[server]\nconsolidated = \"${MISSING}\"");
    assert_eq!(
        message,
        "server.consolidated: the environment variable \"MISSING\" is not set"
    );
    let (message, _) = error_of("[server]\nlisten = [\"tcp://${X\"]");
    assert_eq!(message, "server.listen[0]: \"${\" without \"}\"");
}

#[test]
fn secrets_of_the_database_url_are_not_printed() {
    let config = parse("[server]\nconsolidated = \"postgres://u:hunter2@h/d\"").unwrap();
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn durations_and_sizes_have_units() {
    let limits = "[server]\nconsolidated = \"sqlite:x\"\n[server.limits]\n";
    let config = parse(&format!(
        "{limits}idle = \"250ms\"\nsync = \"12h\"\nmemory = \"64MiB\"\nrow_bytes = 4096"
    ))
    .unwrap();
    assert_eq!(config.server.limits.idle, Duration::from_millis(250));
    assert_eq!(config.server.limits.sync, Duration::from_secs(43_200));
    assert_eq!(config.server.limits.memory_bytes, 64 << 20);
    assert_eq!(config.server.limits.row_bytes, 4096);
    for wrong in [
        "idle = \"10\"",
        "idle = \"0s\"",
        "idle = \"99999999999999999999d\"",
        "idle = \"99999999999999d\"",
        "memory = \"12MB\"",
        "memory = \"99999999999999GiB\"",
        "connections = 0",
        "connections = \"many\"",
        "connections = -1",
        "upload_rows = 0",
    ] {
        let (message, hint) = error_of(&format!("{limits}{wrong}"));
        assert!(!message.is_empty() && !hint.is_empty(), "{wrong}");
    }
}

#[test]
fn what_must_be_said_is_asked_for() {
    for (text, expected) in [
        ("", "[server] is missing"),
        ("[server]", "server.consolidated is missing"),
        ("[server]\nlisten = [", "line 2: "),
        (
            "[server]\nconsolidated = \"sqlite:x\"\n[server.tls]\nkey = \"k\"",
            "[server.tls] needs both",
        ),
        (
            "[server]\nconsolidated = \"sqlite:x\"\n[[publication]]",
            "[[publication]] number 1 has no name",
        ),
        (
            "[server]\nconsolidated = \"sqlite:x\"\n[[publication]]\nname = \"p\"",
            "line 4: publication \"p\" has no tables",
        ),
        (
            "[server]\nconsolidated = \"sqlite:x\"\n[log]\nformat = \"xml\"",
            "log.format is \"xml\"",
        ),
    ] {
        let (message, _) = error_of(text);
        assert!(message.starts_with(expected), "{message}");
    }
    let (message, _) = error_of(&ISSUE.replace("\"product\"", "\"customer\""));
    assert_eq!(
        message,
        "line 12: publication \"sales\" has the table \"customer\" twice"
    );
}

#[test]
fn what_can_never_work_is_refused_before_anything_is_opened() {
    let publication = ISSUE.split_once("[[publication]]").unwrap().1;
    let long = "long".repeat(200);
    for (text, expected) in [
        ("consolidated = \"\"".to_owned(), "server.consolidated: "),
        ("consolidated = \" \"".to_owned(), "server.consolidated: "),
        (
            "consolidated = \"${EMPTY}\"".to_owned(),
            "server.consolidated: ",
        ),
        (
            "consolidated = \"sqlite:\"".to_owned(),
            "server.consolidated: ",
        ),
        (
            "consolidated = \"mysql://u:hunter2@h/d\"".to_owned(),
            "server.consolidated: \"mysql\" is no kind of consolidated database",
        ),
        (
            "consolidated = \"sqlite:x\"\n[server.tls]\ncertificate = \"\"\nkey = \"k\"".to_owned(),
            "[server.tls] needs both",
        ),
        (
            "consolidated = \"sqlite:x\"\n[log]\nlevel = \"\"".to_owned(),
            "log.level is empty",
        ),
        (
            format!("consolidated = \"sqlite:x\"\n[[publication]]\nname = {long:?}"),
            "line 4: publication \"long",
        ),
        (
            publication.replace("\"support_rep_id\"", "\"\""),
            "line 7: publication \"sales\", table \"customer\": partition.columns holds an empty name",
        ),
        (
            publication.replace("\"support_rep_id\"", "\"a\", \"b\", \"a\""),
            "line 7: publication \"sales\", table \"customer\": partition.columns names \"a\" twice",
        ),
        (
            publication.replace("\"price\"", "\"\""),
            "line 11: publication \"sales\", table \"product\": columns holds an empty name",
        ),
        (
            publication.replace("\"price\"", "\"name\""),
            "line 11: publication \"sales\", table \"product\": columns names \"name\" twice",
        ),
    ] {
        let head = match text.starts_with("consolidated") {
            true => "[server]\n",
            false => "[server]\nconsolidated = \"sqlite:x\"\n[[publication]]",
        };
        let (message, hint) = error_of(&format!("{head}{text}"));
        assert!(message.starts_with(expected), "{message}");
        assert!(!hint.is_empty() && !format!("{message}{hint}").contains("hunter2"));
    }
}

#[test]
fn relative_paths_start_at_the_folder_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tidewater.toml");
    let load = |consolidated: &str| {
        let tls = "[server.tls]\ncertificate = \"a.pem\"\nkey = \"/etc/b.key\"\n";
        let text = format!("[server]\nconsolidated = {consolidated:?}\n{tls}");
        std::fs::write(&file, text).unwrap();
        Config::load(&file).unwrap().server
    };
    let inside = |name: &str| folder.path().join(name).display().to_string();
    let server = load("sqlite:shop.db");
    assert_eq!(server.consolidated, format!("sqlite:{}", inside("shop.db")));
    let tls = server.tls.unwrap();
    assert_eq!(tls.certificate.display().to_string(), inside("a.pem"));
    assert_eq!(tls.key.display().to_string(), "/etc/b.key");
    for url in ["sqlite:/srv/shop.db", "postgres://me@h/shop"] {
        assert_eq!(load(url).consolidated, url);
    }
}

#[test]
fn what_is_live_and_who_is_woken_is_read() {
    let head = "[server]\nconsolidated = \"sqlite:x\"\n";
    let read = |text: &str| Config::parse_with(&format!("{head}{text}"), &|_| None);
    let none = read("").unwrap();
    assert_eq!((none.live, none.wakes), (LiveConfig::default(), Vec::new()));
    let live =
        read("[live]\nnats = \"nats://n:4222\"\nservers = [\"tls://a\", \"tcp://127.0.0.1:7\"]\n");
    let live = live.unwrap().live;
    assert_eq!(live.nats.as_deref(), Some("nats://n:4222"));
    assert_eq!(live.servers, ["tls://a:7439", "tcp://127.0.0.1:7"]);
    let wakes = read(
        "[[publication]]\nname = \"p\"\n[[publication.table]]\nname = \"t\"\npartition = \"everyone\"\n\
         [[wake]]\nurl = \"https://a.b/c/d?e\"\ntoken = \"t\"\npublications = [\"p\"]\n\
         [[wake]]\nurl = \"http://127.0.0.1:8080\"\n",
    );
    let wakes = wakes.unwrap().wakes;
    let of = |it: &WakeConfig| (it.address.host.to_string(), it.address.path.clone());
    assert_eq!(of(&wakes[0]), ("tls://a.b:443".into(), "/c/d?e".into()));
    assert_eq!(wakes[0].publications, Some(vec!["p".to_owned()]));
    assert_eq!(of(&wakes[1]), ("tcp://127.0.0.1:8080".into(), "/".into()));
    for (text, expected) in [
        (
            "[live]\nservers = [\"http://a\"]",
            "live.servers: \"http://a\"",
        ),
        ("[live]\nserver = []", "line 4: unknown key \"server\""),
        (
            "[[publication]]\nname = \"field\"\n[[publication.table]]\nname = \"t\"\npartition = \"everyone\"\n\
             [[wake]]\nurl = \"https://a\"\npublications = [\"fields\"]",
            "wake.publications is \"fields\"",
        ),
        ("[[wake]]\ntoken = \"t\"", "wake.url \"\" does not begin"),
        (
            "[[wake]]\nurl = \"http://a.b/c\"",
            "wake.url \"http://a.b/c\" would have",
        ),
        (
            "[[wake]]\nurl = \"https:///c\"",
            "wake.url \"https:///c\" names no host",
        ),
        (
            "[[wake]]\nurl = \"https://a/b c\"",
            "wake.url \"https://a/b c\" has a path",
        ),
        (
            "[[wake]]\nurl = \"https://a\"\ntoken = \"t\\n\"",
            "wake.token has",
        ),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}");
        assert!(!error.hint().is_empty());
    }
}

#[test]
fn who_says_who_users_are_is_read() {
    let head = "[server]\nconsolidated = \"sqlite:x\"\n";
    let read = |text: &str| Config::parse_with(&format!("{head}{text}"), &|_| None);
    assert_eq!(read("").unwrap().sign_in, SignInConfig::default());
    let oidc = "[[sign_in.oidc]]\nissuer = \"https://a.b/c\"\naudience = [\"t\"]\n";
    let full = "[sign_in]\ncreate_users = true\nagain_after = \"30d\"\n";
    let config = read(&format!("{full}{oidc}claims = [\"unit\"]\n"))
        .unwrap()
        .sign_in;
    assert!(config.create_users);
    assert_eq!(config.again_after, Some(Duration::from_secs(30 * 86_400)));
    let issuer = &config.oidc[0];
    let KeySource::Discovery(document) = &issuer.source else {
        panic!("{issuer:?}");
    };
    assert_eq!(
        document.url,
        "https://a.b/c/.well-known/openid-configuration"
    );
    assert_eq!(
        (issuer.user_from.as_str(), issuer.prefix.as_str()),
        ("sub", "")
    );
    assert_eq!(issuer.algorithms, [Algorithm::RS256, Algorithm::ES256]);
    assert_eq!(config.claims().collect::<Vec<_>>(), ["unit"]);
    let ldap = "[sign_in]\npasswords = \"ldap\"\n[sign_in.ldap]\n";
    let by_name = format!("{ldap}url = \"ldaps://d\"\nbind = \"uid={{user}},dc=x\"\n");
    let directory = read(&by_name).unwrap().sign_in.ldap.unwrap();
    assert_eq!(directory.host.to_string(), "tls://d:636");
    assert_eq!(directory.entry, LdapEntry::Named("uid={user},dc=x".into()));
    for (text, expected) in [
        (
            oidc.replace("https", "http"),
            "sign_in.oidc \"http://a.b/c\": issuer",
        ),
        (
            oidc.replace("[\"t\"]", "[]"),
            "sign_in.oidc \"https://a.b/c\": audience",
        ),
        (
            format!("{oidc}algorithms = [\"HS256\"]\n"),
            "sign_in.oidc \"https://a.b/c\": algorithms is \"HS256\"",
        ),
        (
            format!("{oidc}algorithms = [\"none\"]\n"),
            "sign_in.oidc \"https://a.b/c\": algorithms is \"none\"",
        ),
        (
            format!("{oidc}algorithms = []\n"),
            "sign_in.oidc \"https://a.b/c\": algorithms",
        ),
        (format!("{oidc}{oidc}"), "two [[sign_in.oidc]]"),
        (
            format!("{oidc}claims = [\"a b\"]\n"),
            "sign_in.oidc \"https://a.b/c\": claims: \"a b\"",
        ),
        (
            format!("{oidc}claims = 7\n"),
            "sign_in.oidc \"https://a.b/c\": claims: it is neither",
        ),
        (
            format!("{oidc}claims = [\"a\", \"a\"]\n"),
            "sign_in.oidc \"https://a.b/c\": claims: a is there twice",
        ),
        (
            format!("{oidc}audience_ = 1\n"),
            "line 6: unknown key \"audience_\"",
        ),
        (
            "[sign_in]\npasswords = \"pam\"\n".into(),
            "sign_in.passwords is \"pam\"",
        ),
        (
            "[sign_in]\npasswords = \"ldap\"\n".into(),
            "sign_in.passwords is \"ldap\", and",
        ),
        (
            "[sign_in]\nagain_after = \"soon\"\n".into(),
            "sign_in.again_after is \"soon\"",
        ),
        (by_name.replace("passwords", "#"), "[sign_in.ldap] is there"),
        (
            by_name.replace("ldaps://d", "ldap://d"),
            "sign_in.ldap: passwords would go",
        ),
        (
            by_name.replace("ldaps://d", "http://d"),
            "sign_in.ldap: url \"http://d\"",
        ),
        (
            by_name.replace("{user}", "nancy"),
            "sign_in.ldap: it has to be said",
        ),
        (
            format!("{by_name}starttls = true\n"),
            "sign_in.ldap: starttls",
        ),
        (
            format!("{ldap}url = \"ldaps://d\"\nbase = \"x\"\nfilter = \"uid={{user}}\"\n"),
            "sign_in.ldap: it has to be said",
        ),
        (
            format!(
                "{ldap}url = \"ldaps://d\"\nbase = \"x\"\nfilter = \"(uid={{user}})\"\n\
                 account = \"a\"\n"
            ),
            "sign_in.ldap: account and password_file",
        ),
        (
            "[sign_in.certificates]\n".into(),
            "sign_in.certificates: authority is missing",
        ),
        (
            "[sign_in.certificates]\nauthority = \"f\"\nuser_from = \"mail\"\n".into(),
            "sign_in.certificates.user_from is \"mail\"",
        ),
    ] {
        let error = read(&text).unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}\n{text}");
        assert!(!error.hint().is_empty());
    }
    // Not encrypted, but nowhere to be read.
    for url in ["ldap://127.0.0.1:3890", "ldap://localhost"] {
        read(&by_name.replace("ldaps://d", url)).unwrap();
    }
    read(&format!(
        "{}starttls = true\n",
        by_name.replace("ldaps", "ldap")
    ))
    .unwrap();
    read(&oidc.replace("https://a.b", "http://127.0.0.1:8080")).unwrap();
}

#[test]
fn what_nobody_fills_of_what_queries_name_is_warned_of() {
    let text = "[server]\nconsolidated = \"sqlite:x\"\n\
        [[sign_in.oidc]]\nissuer = \"https://a.b\"\naudience = [\"t\"]\nclaims = [\"region\"]\n\
        [[procedure]]\nname = \"p\"\nreturns = \"value\"\n\
        sql = \"SELECT {s.claims.region}, {ml s.claims.regoin}\"\n\
        allow = \"SELECT 1 WHERE {s.claims.other} = 'x'\"\n";
    let warnings = Config::parse(text).unwrap().claim_warnings();
    let [other, regoin] = &warnings[..] else {
        panic!("{warnings:?}");
    };
    assert!(other.contains("{s.claims.other}") && other.contains("name it in claims"));
    assert!(regoin.contains("{s.claims.regoin}") && regoin.contains("did you mean \"region\"?"));
}

/// A configuration with a table of these lines, and whatever follows.
fn with_table(lines: &str, more: &str) -> String {
    format!(
        "[server]\nconsolidated = \"sqlite:x\"\n[[publication]]\nname = \"p\"\n\
         [[publication.table]]\nname = \"sales.orders\"\npartition = \"everyone\"\n{lines}\n{more}"
    )
}

#[test]
fn a_handler_stands_where_it_is_asked_or_has_a_name() {
    let text = with_table(
        "handler = { url = \"https://h.x/o?a=1\", secret = [\"${EMPTY}x\", \"y\"], rows = 7 }\n\
         conflict = { resolve = \"handler\" }",
        "[[publication.table]]\nname = \"note\"\npartition = \"everyone\"\nhandler = \"own\"\n\
         upload = \"handler\"\ndownload = \"handler\"\n\
         [[publication.table]]\nname = \"tag\"\npartition = \"everyone\"\n\
         handler = \"http://127.0.0.1:1/\"\n\
         [[handler]]\nname = \"own\"\nurl = \"call:notes\"\nretries = 0\n\
         [[procedure]]\nname = \"notes\"\nprovided_by = \"office\"\nallow = \"everyone\"\n\
         arguments = { request = \"json\" }\n\
         [sign_in]\npasswords = \"handler\"\nhandler = \"http://127.0.0.1:1/\"\n",
    );
    let config = parse(&text).unwrap();
    let names: Vec<&str> = config.handlers.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["own", "https://h.x/o?a=1", "http://127.0.0.1:1/"]);
    let of = |table: &str| &config.handling.tables[&("p".to_owned(), table.to_owned())];
    let orders = of("orders");
    assert_eq!(
        (orders.upload, orders.resolve, orders.download),
        (true, true, false)
    );
    let handler = &config.handlers[1];
    assert_eq!(
        (handler.secrets.len(), handler.rows, handler.retries),
        (2, 7, 2)
    );
    let note = of("note");
    assert_eq!(note.handler, "own");
    assert!(note.keeps_uploads && note.download && !note.resolve);
    let handled = config.publications[0].tables.iter().map(|it| it.handled);
    let handled: Vec<_> = handled
        .map(|it| (it.upload, it.keeps_uploads, it.download))
        .collect();
    assert_eq!(
        handled,
        [
            (true, false, false),
            (true, true, true),
            (true, false, false)
        ]
    );
    assert_eq!(
        config.handling.sign_in.as_deref(),
        Some("http://127.0.0.1:1/")
    );
    assert!(config.handler_warnings().is_empty());
    let unused = with_table(
        "",
        "[[handler]]\nname = \"h\"\nurl = \"http://localhost/\"\n",
    );
    assert_eq!(parse(&unused).unwrap().handler_warnings().len(), 1);
}

#[test]
fn a_handler_that_cannot_be_is_told_with_what_to_write() {
    let named =
        |more: &str| format!("[[handler]]\nname = \"h\"\nurl = \"http://localhost/\"\n{more}");
    for (lines, more, message, hint) in [
        (
            "handler = \"https://h.x/\"",
            String::new(),
            "there is no secret",
            "secret = \"${VARIABLE}\"",
        ),
        (
            "handler = \"http://h.x/\"",
            String::new(),
            "unencrypted",
            "https://",
        ),
        (
            "handler = \"hh\"",
            named(""),
            "no handler \"hh\"",
            "did you mean \"h\"",
        ),
        (
            "handler = { name = \"x\" }",
            String::new(),
            "has no url",
            "https://HOST/PATH",
        ),
        (
            "handler = \"call:f\"",
            String::new(),
            "no such procedure",
            "arguments = { request = \"json\" }",
        ),
        (
            "upload = \"handler\"",
            String::new(),
            "there is none",
            "write handler =",
        ),
        (
            "conflict = { resolve = \"handler\" }",
            String::new(),
            "there is none",
            "write handler =",
        ),
        (
            "handler = \"h\"\nupload = \"handlr\"",
            named(""),
            "upload is \"handlr\"",
            "did you mean",
        ),
        (
            "handler = \"h\"\ndownload = \"handler\"",
            named("events = [\"upload\"]"),
            "download is a handler's affair",
            "add \"download\"",
        ),
        (
            "handler = \"h\"\ndirection = \"download\"",
            named(""),
            "asked about nothing",
            "remove handler",
        ),
        (
            "handler = \"h\"\ndirection = \"download\"\nupload = \"handler\"",
            named(""),
            "what direction leaves out",
            "",
        ),
        (
            "handler = \"h\"",
            named("events = [\"uplod\"]"),
            "event is \"uplod\"",
            "did you mean",
        ),
        ("handler = \"h\"", named("rows = 0"), "rows is 0", "from 1"),
        (
            "handler = \"h\"",
            named("secret = \"\""),
            "secret is empty",
            "secret_file",
        ),
        (
            "handler = \"h\"",
            named("secret = [\"a\", \"b\", \"c\"]"),
            "3 secrets",
            "two",
        ),
        (
            "handler = \"h\"",
            named("") + &named(""),
            "two handlers",
            "of its own",
        ),
        (
            "",
            "[[handler]]\nurl = \"http://localhost/\"\n".into(),
            "has no name",
            "name =",
        ),
        (
            "",
            named("tiemout = \"1s\""),
            "unknown key \"tiemout\" in [[handler]]",
            "timeout",
        ),
        (
            "",
            "[sign_in]\npasswords = \"handler\"\n".into(),
            "there is none",
            "handler =",
        ),
        (
            "",
            named("") + "[sign_in]\nhandler = \"h\"\n",
            "nobody asks it",
            "passwords",
        ),
    ] {
        let (told, advice) = error_of(&with_table(lines, &more));
        assert!(told.contains(message), "{told} has no {message}");
        assert!(advice.contains(hint), "{advice} has no {hint}");
    }
}
