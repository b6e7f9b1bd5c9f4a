//! The examples of docs/sign-in.md, run as they stand there, with an issuer and a directory of the
//! test's own; and what the command line says of proofs.

use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType, date_time_ymd,
};
use serde_json::Value;
use tidewater_testing::{Issuer, Slapd};

use crate::desk::Desk;
use crate::manual::blocks;
use crate::program::Place;

const MANUAL: &str = include_str!("../../../../docs/sign-in.md");

const ENTRIES: &str = "\
dn: dc=example
objectClass: domain
dc: example

dn: ou=people,dc=example
objectClass: organizationalUnit
ou: people

dn: uid=olga,ou=people,dc=example
objectClass: inetOrgPerson
uid: olga
cn: Olga
sn: O
userPassword: olgas secret
departmentNumber: south
";

fn now_s() -> i64 {
    tidewater_server::Environment::real().clock.now_ms() / 1_000
}

fn token(issuer: &Issuer, user: &str, region: &str) -> String {
    let mut claims = issuer.claims(user, "tidewater", now_s());
    claims["region"] = region.into();
    issuer.sign(&claims).unwrap()
}

/// The first configuration of the manual, with `[sign_in]` and what is below it as in another one.
fn with_sign_in(configuration: &str, other: &str) -> String {
    let (before, rest) = configuration.split_once("[sign_in]").unwrap();
    let (_, after) = rest.split_once("[[procedure]]").unwrap();
    format!("{before}{other}\n[[procedure]]{after}")
}

#[test]
fn what_the_manual_of_signing_in_shows_works() {
    let issuer = Issuer::start().unwrap();
    let slapd = Slapd::start(ENTRIES, None).unwrap();
    let desk = Desk::new();
    let text = |block: &str| {
        let block = block.replace("http://127.0.0.1:8080", issuer.url());
        desk.text(&block.replace("ldap://127.0.0.1:8389", &slapd.url()))
    };
    let commands = blocks(MANUAL, "sh");
    let [shop, first, programs, directory, cert, certificate] = &commands[..] else {
        panic!("the manual has other examples: {commands:#?}");
    };
    let configurations = blocks(MANUAL, "toml");
    let [oidc, ldap, tls] = &configurations[..] else {
        panic!("the manual has other configurations: {configurations:#?}");
    };
    desk.run(shop);
    desk.place.write("tidewater.toml", &text(oidc));
    desk.place
        .write("token", &format!("{}\n", token(&issuer, "nancy", "north")));
    // The server is the test's own, which ends it.
    let (deploy, sync) = first.split_once("tidewater serve &\nsleep 1\n").unwrap();
    desk.run(deploy);
    let server = desk.place.serve_as_configured();
    assert!(desk.run(sync).ends_with("\n1\n3"));
    assert_eq!(desk.run(programs), "north\n\"north\"");
    let listed = desk
        .place
        .tidewater(&["user", "list", "--json"])
        .done()
        .stdout;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let nancy = &listed["users"][0];
    assert_eq!(nancy["name"], "nancy");
    assert_eq!(nancy["proven"]["by"], issuer.url());
    assert_eq!(nancy["proven"]["claims"]["region"], "north");
    drop(server);

    let configuration = with_sign_in(&text(oidc), &text(ldap));
    desk.place.write("tidewater.toml", &configuration);
    let server = desk.place.serve_as_configured();
    assert!(desk.run(directory).ends_with("\n2"));
    let url = server.url().to_owned();
    desk.place
        .change_password(("olga", "olgas secret"), &url, "another")
        .tells(&["a directory checks the passwords"]);
    drop(server);

    desk.run(cert);
    let create = format!("[sign_in]\ncreate_users = true\n{tls}");
    let configuration = with_sign_in(&text(oidc), &create);
    let configuration = configuration.replacen("tcp://", "tls://", 1);
    desk.place.write("tidewater.toml", &configuration);
    let _server = desk.place.serve_as_configured();
    assert!(desk.run(certificate).contains("downloaded"));
}

/// An authority of clients.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = params(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Issues a certificate into `NAME.pem` and `NAME.key`.
    fn issue(&self, place: &Place, name: &str, params: &CertificateParams) {
        let key = KeyPair::generate().unwrap();
        let issued = params.signed_by(&key, &self.0).unwrap();
        place.write(&format!("{name}.pem"), &issued.pem());
        place.write(&format!("{name}.key"), &key.serialize_pem());
    }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    if !name.is_empty() {
        params.distinguished_name.push(DnType::CommonName, name);
    }
    params
}

fn of_client(name: &str) -> CertificateParams {
    let mut params = params(name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

const CONFIGURATION: &str = r#"
[server]
listen = ["tls://127.0.0.1:0"]
consolidated = "sqlite:shop.db"

[server.tls]
certificate = "tidewater-dev.pem"
key = "tidewater-dev.key"

[sign_in]
create_users = true

[sign_in.certificates]
authority = "authority.pem"

[[publication]]
name = "main"

[[publication.table]]
name = "site"
partition = "everyone"
"#;

#[test]
fn a_certificate_signs_in_and_one_that_proves_nothing_says_why() {
    let place = Place::new();
    let shop = rusqlite::Connection::open(place.path("shop.db")).unwrap();
    let schema = "CREATE TABLE site (id INTEGER NOT NULL PRIMARY KEY); INSERT INTO site VALUES (7)";
    shop.execute_batch(schema).unwrap();
    drop(shop);
    let host = ["cert", "--out", ".", "--host", "127.0.0.1"];
    place.tidewater(&host).done();
    let authority = Authority::new("clients");
    place.write("authority.pem", &authority.0.pem());
    place.write("tidewater.toml", CONFIGURATION);
    place.tidewater(&["deploy"]).done();

    let between = |file: &str| std::fs::read_to_string(place.path(file)).unwrap();
    authority.issue(&place, "nancy", &of_client("nancy"));
    Authority::new("others").issue(&place, "stranger", &of_client("nancy"));
    // One that only looks like it.
    Authority::new("clients").issue(&place, "liar", &of_client("nancy"));
    let mut old = of_client("nancy");
    old.not_before = date_time_ymd(2001, 1, 1);
    old.not_after = date_time_ymd(2002, 1, 1);
    authority.issue(&place, "old", &old);
    let mut early = of_client("nancy");
    early.not_before = date_time_ymd(2090, 1, 1);
    early.not_after = date_time_ymd(2091, 1, 1);
    authority.issue(&place, "early", &early);
    let mut nameless = of_client("");
    let address = SanType::Rfc822Name("nancy@example.com".try_into().unwrap());
    nameless.subject_alt_names = vec![address];
    authority.issue(&place, "nameless", &nameless);
    let mut server_only = params("nancy");
    server_only.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    authority.issue(&place, "server-only", &server_only);
    assert!(between("nancy.pem").contains("CERTIFICATE"));

    let server = place.serve_as_configured();
    let sync = |file: &str, name: &str, more: &[&str]| {
        let (certificate, key) = (format!("{name}.pem"), format!("{name}.key"));
        let arguments = [
            "sync",
            file,
            "--server",
            server.url(),
            "--publication",
            "main",
            "--ca",
            "tidewater-dev.pem",
            "--certificate",
            &certificate,
            "--certificate-key",
            &key,
        ];
        place.tidewater(&[&arguments, more].concat())
    };
    sync("nancy.db", "nancy", &[]).done();
    let of_file = |file: &str| {
        let file = rusqlite::Connection::open(place.path(file)).unwrap();
        let row = file.query_row("SELECT user FROM tidewater_state", [], |row| row.get(0));
        row.unwrap_or_else(|error| panic!("{error}"))
    };
    let user: String = of_file("nancy.db");
    assert_eq!(user, "nancy");
    for (name, reason) in [
        ("stranger", "authority that does not count here"),
        ("liar", "proves nothing"),
        ("old", "has run out"),
        ("early", "not good yet"),
        ("nameless", "no common name"),
        ("server-only", "not meant for clients"),
    ] {
        let run = sync(&format!("{name}.db"), name, &["--json"]).exits(3);
        let error: Value = serde_json::from_str(&run.stdout).unwrap();
        let error = &error["error"];
        assert_eq!(error["code"], "proof_rejected", "{run:#?}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(reason), "{message} is not {reason}");
        assert!(!error["hint"].as_str().unwrap().is_empty());
    }
    // Somebody else's name.
    let run = sync("olga.db", "nancy", &["--user", "olga"]).exits(3);
    run.tells(&["\"nancy\"'s", "\"olga\""]);
    // A certificate that is worth nothing does not keep a credential from counting.
    sync("nancy.db", "stranger", &[]).done();
    // Without one nothing is asked for but a proof.
    let bare = [
        "sync",
        "bare.db",
        "--server",
        server.url(),
        "--publication",
        "main",
    ];
    place.tidewater(&bare).exits(1).tells(&["--user"]);
    let user = ["--user", "nancy", "--ca", "tidewater-dev.pem"];
    let run = place.tidewater_as("wrong", &[&bare[..], &user].concat());
    run.exits(3).tells(&["user and password do not fit"]);
    // The name among the alternative ones.
    drop(server);
    let by_address = CONFIGURATION.replace("authority =", "user_from = \"email\"\nauthority =");
    place.write("tidewater.toml", &by_address);
    let server = place.serve_as_configured();
    let arguments = [
        "sync",
        "mail.db",
        "--server",
        server.url(),
        "--publication",
        "main",
        "--ca",
        "tidewater-dev.pem",
        "--certificate",
        "nameless.pem",
        "--certificate-key",
        "nameless.key",
    ];
    place.tidewater(&arguments).done();
    assert_eq!(of_file("mail.db"), "nancy@example.com");
}

#[test]
fn certificates_need_an_address_where_they_can_be_shown_and_files_that_are_some() {
    let place = Place::new();
    let shop = rusqlite::Connection::open(place.path("shop.db")).unwrap();
    shop.execute_batch("CREATE TABLE site (id INTEGER NOT NULL PRIMARY KEY)")
        .unwrap();
    drop(shop);
    let cert = [
        "cert",
        "--out",
        ".",
        "--host",
        "127.0.0.1",
        "--client",
        "../nancy",
    ];
    place
        .tidewater(&cert)
        .exits(1)
        .tells(&["no name for a file"]);
    let text = CONFIGURATION.replace("authority.pem", "tidewater-dev.pem");
    place.write("tidewater.toml", &text);
    place.tidewater(&["deploy"]).done();
    place.write("tidewater.toml", &text.replace("tls://", "tcp://"));
    place
        .tidewater(&["serve"])
        .exits(1)
        .tells(&["tls://", "nobody shows a certificate"]);
    place.write(
        "tidewater.toml",
        &text.replace(
            "authority = \"tidewater-dev.pem\"",
            "authority = \"shop.db\"",
        ),
    );
    place
        .tidewater(&["serve"])
        .exits(1)
        .tells(&["sign_in.certificates", "shop.db"]);
    let connect = [
        "call",
        "x",
        "--server",
        "tls://127.0.0.1:1",
        "--certificate",
    ];
    let run = place.tidewater(
        &[
            &connect[..],
            &["tidewater-dev.pem", "--certificate-key", "shop.db"],
        ]
        .concat(),
    );
    run.exits(1).tells(&["shop.db"]);
    place
        .tidewater(&[&connect[..], &["tidewater-dev.pem"]].concat())
        .exits(1)
        .tells(&["--certificate-key"]);
}

#[test]
fn a_token_comes_from_a_file_or_the_environment_and_a_missing_one_says_so() {
    let place = Place::new();
    let sync = |file: &str, more: &[&str]| {
        let arguments = [
            "sync",
            file,
            "--server",
            "tcp://127.0.0.1:1",
            "--publication",
            "main",
        ];
        [&arguments, more]
            .concat()
            .iter()
            .map(|it| (*it).to_owned())
            .collect::<Vec<_>>()
    };
    let run = |arguments: Vec<String>| {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        place.tidewater(&arguments)
    };
    run(sync("a.db", &[])).exits(1).tells(&["--user"]);
    // Nobody is there to ask, which is found out before anything is read.
    run(sync("b.db", &["--token-file", "none"]))
        .exits(2)
        .tells(&["cannot be reached"]);
    let both = sync("c.db", &["--token-file", "none", "--password-stdin"]);
    run(both).exits(1).tells(&["--password-stdin"]);
    assert!(!Path::new(&place.path("a.db")).exists());
}
