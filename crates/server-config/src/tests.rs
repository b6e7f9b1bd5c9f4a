mod handlers;
mod sign_in;

use std::time::Duration;

use super::*;
use tidewater_centre::{
    OnReject, OnUnseenChildren, RuleSpec, TrackingMode, UploadMode, WriteScopeSpec, WritesSpec,
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

fn parse(text: &str) -> Result<Config, ConfigError> {
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
            "line 2: retention.log is a number, and takes a duration such as \"90d\"",
            "write log = \"90d\"",
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
    assert_eq!(config.server.limits, ServerLimits::default());
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
    assert_eq!(product.tracking, TrackingMode::Log);
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
            "\"hand_over\" belongs in [[publication.table]]",
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
    let manual = include_str!("../../../docs/configuration.md");
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
        "{limits}idle_timeout = \"250ms\"\nsync_timeout = \"12h\"\nmemory = \"64MiB\"\nrow_size = 4096\n\
         min_workers = 20"
    ))
    .unwrap();
    assert_eq!(config.server.limits.idle, Duration::from_millis(250));
    assert_eq!(config.server.limits.sync, Duration::from_secs(43_200));
    assert_eq!(config.server.limits.memory_bytes, 64 << 20);
    assert_eq!(config.server.limits.row_bytes, 4096);
    assert_eq!(config.server.limits.tried_workers, 20..=20);
    let text = format!("{limits}min_workers = 4\nmax_workers = 2");
    let (message, hint) = error_of(&text);
    assert!(
        message.contains("min_workers is 4, and max_workers is 2"),
        "{message}"
    );
    assert!(hint.contains("not greater"), "{hint}");
    let (message, hint) = error_of(&format!("{limits}max_workers = 1001"));
    assert!(message.contains("max_workers is 1001"), "{message}");
    assert!(hint.contains("from 1 to 1000"), "{hint}");
    for wrong in [
        "idle_timeout = \"10\"",
        "idle_timeout = \"0s\"",
        "idle_timeout = \"99999999999999999999d\"",
        "idle_timeout = \"99999999999999d\"",
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
    assert_eq!(of(&wakes[0]), ("https://a.b:443".into(), "/c/d?e".into()));
    assert_eq!(wakes[0].publications, Some(vec!["p".to_owned()]));
    assert_eq!(of(&wakes[1]), ("http://127.0.0.1:8080".into(), "/".into()));
    for (text, expected) in [
        (
            "[live]\nservers = [\"ftp://a\"]",
            "live.servers: \"ftp://a\"",
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
fn images_are_read_and_what_can_be_none_is_told() {
    let head = "[server]\nconsolidated = \"sqlite:x\"\n";
    let read = |text: &str| Config::parse_with(&format!("{head}{text}"), &|_| None);
    assert_eq!(read("").unwrap().images, None);
    let image = "[[images.image]]\nname = \"a-1\"\npublication = \"p\"\nuser = \"u\"\n";
    let images = read(image).unwrap().images.unwrap();
    assert_eq!(
        images,
        ImagesConfig {
            folder: "images".into(),
            every: Duration::from_secs(3_600),
            images: vec![ImageConfig {
                name: "a-1".into(),
                publication: "p".into(),
                rows: ImageRows::Of("u".into()),
                public: false,
            }],
        }
    );
    let rows = |line: &str| {
        let text = image.replace("user = \"u\"", line);
        read(&text).unwrap().images.unwrap().images[0].rows.user()
    };
    assert_eq!(rows("everyone = true"), "image: everyone");
    let partitions = "partitions = [\"b=2=3\", \"a=1\"]";
    assert_eq!(rows(partitions), "image: a=1 b=2=3");
    let published = "[[publication]]\nname = \"q\"\n[[publication.table]]\nname = \"t\"\n\
                     partition = \"everyone\"\n";
    let without = |line: &str| image.replace(line, "");
    for (text, expected) in [
        ("[images]\n".to_owned(), "[images] names no image"),
        (
            format!("[images]\nevery = \"0s\"\n{image}"),
            "images.every is \"0s\"",
        ),
        (
            format!("{image}{image}"),
            "two images.images are named \"a-1\"",
        ),
        (
            image.replace("a-1", "../a"),
            "images.image.name is \"../a\"",
        ),
        (without("name = \"a-1\"\n"), "images.image.name is \"\""),
        (
            without("user = \"u\"\n"),
            "[[images.image]] \"a-1\" has no user",
        ),
        (
            without("publication = \"p\"\n"),
            "[[images.image]] \"a-1\" has no publication",
        ),
        (
            format!("{image}everyone = true"),
            "[[images.image]] \"a-1\" says in more than one way",
        ),
        (
            image.replace("user = \"u\"", "partitions = [\"a\"]"),
            "images.image.partitions has \"a\"",
        ),
        (
            format!("{published}{image}"),
            "images.image.publication is \"p\"",
        ),
        (
            format!("{image}publik = true"),
            "line 7: unknown key \"publik\" in [[images.image]]",
        ),
    ] {
        let error = read(&text).unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}");
        assert!(!error.hint().is_empty());
    }
}

#[test]
fn proxies_are_addresses_and_networks_and_what_is_none_is_told_with_its_line() {
    let head = "[server]\nconsolidated = \"sqlite:x\"\n";
    let server = |text: &str| parse(&format!("{head}{text}")).unwrap().server;
    let none = server("");
    assert!(!none.proxies.contain_text("127.0.0.1") && none.drain_delay.is_zero());
    let some = server("proxies = [\"10.0.0.0/8\", \"::1\"]\ndrain_delay = \"0s\"");
    assert!(some.proxies.contain_text("10.9.8.7") && some.proxies.contain_text("::1"));
    assert!(some.drain_delay.is_zero());
    let delay = server("drain_delay = \"10s\"").drain_delay;
    assert_eq!(delay, Duration::from_secs(10));
    for (text, message, hint) in [
        (
            "proxies = [\"127.0.0.1\",\n  \"lb.example.com\"]",
            "line 3: server.proxies: \"lb.example.com\" is neither an address nor a network",
            "write addresses and networks, such as proxies = [",
        ),
        (
            "insecure = true\nproxies = [\"10.1.0.0/8\"]",
            "line 4: server.proxies: \"10.1.0.0/8\" has bits beyond its length",
            "write \"10.0.0.0/8\"",
        ),
        (
            "proxies = \"127.0.0.1\"",
            "line 3: server.proxies is text, and takes a list of texts",
            "write proxies = [",
        ),
        (
            "drain_delay = \"soon\"",
            "line 3: server.drain_delay is \"soon\", which is no duration",
            "write a number and a unit",
        ),
    ] {
        let (told, tip) = error_of(&format!("{head}{text}"));
        assert!(told.starts_with(message), "{told}");
        assert!(tip.starts_with(hint), "{tip}");
    }
}
