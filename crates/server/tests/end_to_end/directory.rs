//! Users whose passwords a directory knows: OpenLDAP's slapd, which each test starts for itself.

use std::net::TcpListener;
use std::path::Path;

use tidewater_client::ClientError;
use tidewater_protocol::Code;
use tidewater_server::dev_certificate;
use tidewater_testing::{DirectoryTls, Slapd};

use crate::backend::Backend;
use crate::signing_in::{Stranger, names, regions, sign_in, users};
use crate::world::{LiveServer, World};

/// Two people, one with a name that a directory has to escape, and an account that may search.
const ENTRIES: &str = "\
dn: dc=example
objectClass: domain
dc: example

dn: ou=people,dc=example
objectClass: organizationalUnit
ou: people

dn: uid=nancy,ou=people,dc=example
objectClass: inetOrgPerson
uid: nancy
cn: Nancy
sn: N
userPassword: nancys secret
departmentNumber: north
ou: b
ou: a

dn: uid=o\\2cleary\\20\\2b1,ou=people,dc=example
objectClass: inetOrgPerson
uid: o,leary +1
cn: O'Leary
sn: O
userPassword: olearys secret
departmentNumber: south
";

/// A password of spaces is one, too.
const NANCY: (&str, &str) = ("nancy", "nancys secret");

fn by_name(url: &str) -> String {
    format!(
        "[sign_in]\npasswords = \"ldap\"\ncreate_users = true\n[sign_in.ldap]\nurl = {url:?}\n\
         user_dn = \"uid={{user}},ou=people,dc=example\"\ntimeout = \"5s\"\n\
         claims = {{ region = \"departmentnumber\", units = \"ou\" }}\n"
    )
}

fn by_search(url: &str, folder: &Path, password: &str) -> String {
    let (root, _) = tidewater_testing::slapd::ROOT;
    let file = folder.join("password");
    std::fs::write(&file, format!("{password}\n")).unwrap();
    format!(
        "[sign_in]\npasswords = \"ldap\"\ncreate_users = true\n[sign_in.ldap]\nurl = {url:?}\n\
         base_dn = \"ou=people,dc=example\"\nfilter = \"(&(objectClass=person)(uid={{user}}))\"\n\
         bind_dn = {root:?}\nbind_password_file = {file:?}\nclaims = {{ region = \"departmentNumber\" }}\n"
    )
}

fn serving<B: Backend>(world: &World<B>, text: &str) -> LiveServer {
    world.server_with(|config| config.sign_in = sign_in(text))
}

fn with(server: &LiveServer, user: &str, password: &str) -> (Stranger, Result<(), ClientError>) {
    let mut stranger = Stranger::named(user, server);
    stranger.remote.set_password(password);
    let synced = stranger.try_sync();
    (stranger, synced)
}

#[track_caller]
fn comes_in(server: &LiveServer, (user, password): (&str, &str)) -> Stranger {
    let (stranger, synced) = with(server, user, password);
    synced.unwrap_or_else(|error| panic!("{user}: {error}: {}", error.hint()));
    stranger
}

#[track_caller]
fn stays_out(server: &LiveServer, user: &str, password: &str) {
    let (_, synced) = with(server, user, password);
    let code = synced.unwrap_err().code();
    // Whoever tries often enough is slowed down.
    let expected = [Code::WrongPassword, Code::TooManyAttempts];
    assert!(expected.contains(&code), "{user:?}: {code}");
}

fn a_password_of_the_directory_lets_in_and_tells_what_is_held<B: Backend>() {
    let world = World::<B>::open(regions());
    let slapd = Slapd::start(ENTRIES, None).unwrap();
    let server = serving(&world, &by_name(&slapd.url()));
    let mut nancy = comes_in(&server, NANCY);
    assert_eq!(nancy.ids(), ["1", "3"]);
    // A directory takes other spellings: they are the same user here.
    for spelled in ["NANCY", " nancy ", "Nancy"] {
        let mut again = comes_in(&server, (spelled, NANCY.1));
        assert_eq!(again.remote.account().unwrap().user, "nancy");
    }
    let oleary = comes_in(&server, ("o,leary +1", "olearys secret"));
    assert_eq!(oleary.ids(), ["2"]);
    let known = users(&world);
    assert_eq!(names(&known), ["ada", "nancy", "o,leary +1"]);
    let claims = &known[1].proven.claims;
    assert_eq!(claims.named("units"), Some("[\"a\",\"b\"]"));
    assert_eq!(known[1].proven.by, slapd.url());
    // From then on nobody asks the directory.
    drop(slapd);
    nancy.sync();
}

fn what_is_typed_is_never_more_than_a_name_and_a_password<B: Backend>() {
    let world = World::<B>::open(regions());
    let slapd = Slapd::start(ENTRIES, None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (_, root) = tidewater_testing::slapd::ROOT;
    for text in [
        by_name(&slapd.url()),
        by_search(&slapd.url(), folder.path(), root),
    ] {
        let server = serving(&world, &text);
        for (user, password) in [
            (NANCY.0, "wrong"),
            // A bind without a password is one as nobody, and succeeds.
            (NANCY.0, ""),
            ("", ""),
            ("", NANCY.1),
            ("nobody", NANCY.1),
            ("nancy,ou=people", NANCY.1),
            ("nancy)(uid=*", NANCY.1),
            ("*", NANCY.1),
            ("n*", NANCY.1),
            ("nancy\0", NANCY.1),
            ("root", root),
        ] {
            let server = &serving(&world, &text);
            stays_out(server, user, password);
        }
        stays_out(&server, NANCY.0, &"x".repeat(2_000));
        comes_in(&server, NANCY);
        // Ada's is a password of the database, which is not asked.
        stays_out(&server, "ada", crate::world::PASSWORD);
    }
    assert_eq!(names(&users(&world)), ["ada", "nancy"]);
}

fn guessing_is_slowed_down_with_a_directory_too<B: Backend>() {
    let world = World::<B>::open(regions());
    let slapd = Slapd::start(ENTRIES, None).unwrap();
    let server = serving(&world, &by_name(&slapd.url()));
    for _ in 0..4 {
        stays_out(&server, NANCY.0, "wrong");
    }
    let (_, synced) = with(&server, NANCY.0, "wrong");
    assert_eq!(synced.unwrap_err().code(), Code::TooManyAttempts);
}

fn a_directory_that_is_away_or_badly_named_keeps_nobody_else_out<B: Backend>() {
    let world = World::<B>::open(regions());
    let mut slapd = Slapd::start(ENTRIES, None).unwrap();
    let server = serving(&world, &by_name(&slapd.url()));
    let mut nancy = comes_in(&server, NANCY);
    slapd.stop();
    let away = |server: &LiveServer| {
        let (_, synced) = with(server, NANCY.0, NANCY.1);
        let error = synced.unwrap_err();
        assert_eq!(error.code(), Code::IdentityUnavailable, "{error}");
        assert!(error.retry_after_ms().is_some());
        // What is wrong with it is for the server's log.
        let told = format!("{error} {}", error.hint());
        assert!(
            !told.contains("dc=example") && !told.contains("127.0.0.1"),
            "{told}"
        );
    };
    away(&server);
    nancy.sync();
    // It takes connections, and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ldap://{}", silent.local_addr().unwrap());
    let text = by_name(&url).replace("\"5s\"", "\"300ms\"");
    away(&serving(&world, &text));
    slapd.restart().unwrap();
    let folder = tempfile::tempdir().unwrap();
    away(&serving(
        &world,
        &by_search(&slapd.url(), folder.path(), "wrong"),
    ));
    let several = by_search(
        &slapd.url(),
        folder.path(),
        tidewater_testing::slapd::ROOT.1,
    )
    .replace("(uid={user})", "(|(uid={user})(uid=*))");
    away(&serving(&world, &several));
    let nameless = by_name(&slapd.url()).replace("timeout", "user_from = \"mail\"\ntimeout");
    let (_, synced) = with(&serving(&world, &nameless), NANCY.0, NANCY.1);
    let error = synced.unwrap_err();
    assert_eq!(error.code(), Code::ProofRejected, "{error}");
    comes_in(&serving(&world, &by_name(&slapd.url())), NANCY);
}

fn a_directory_is_trusted_by_its_certificate<B: Backend>() {
    let world = World::<B>::open(regions());
    let folder = tempfile::tempdir().unwrap();
    let own = dev_certificate(folder.path(), &["localhost".into(), "127.0.0.1".into()]).unwrap();
    let tls = DirectoryTls {
        certificate: &own.certificate,
        key: &own.key,
    };
    let slapd = Slapd::start(ENTRIES, Some(&tls)).unwrap();
    let ca = format!("ca = {:?}\ntimeout", own.certificate);
    let encrypted = by_name(&slapd.url_with_tls());
    comes_in(&serving(&world, &encrypted.replace("timeout", &ca)), NANCY);
    let starting = by_name(&slapd.url()).replace("timeout", "starttls = true\ntimeout");
    comes_in(&serving(&world, &starting.replace("timeout", &ca)), NANCY);
    for untrusting in [encrypted, starting] {
        let (_, synced) = with(&serving(&world, &untrusting), NANCY.0, NANCY.1);
        assert_eq!(synced.unwrap_err().code(), Code::IdentityUnavailable);
    }
}

on_both_adapters! {
    a_password_of_the_directory_lets_in_and_tells_what_is_held,
    what_is_typed_is_never_more_than_a_name_and_a_password,
    guessing_is_slowed_down_with_a_directory_too,
    a_directory_that_is_away_or_badly_named_keeps_nobody_else_out,
    a_directory_is_trusted_by_its_certificate,
}
