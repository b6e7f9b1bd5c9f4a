//! Users whom an identity provider proves: who comes in, who does not and is told why, and what is
//! kept of them.

use std::ops::ControlFlow;
use std::path::PathBuf;

use serde_json::{Value, json};
use tidewater_centre::records::UserRecord;
use tidewater_client::{
    BearerToken, ClientError, Link, LinkOptions, LinkProof, Remote, Request, RetryPolicy,
};
use tidewater_protocol::Code;
use tidewater_protocol::message::Control;
use tidewater_server::config::SignInConfig;
use tidewater_server::{Config, Environment};
use tidewater_testing::Issuer;
use tidewater_testing::proxy::{Accident, Place, Way};

use crate::backend::Backend;
use crate::carriers::{SCHEMES, everything_with};
use crate::clocks::Wrong;
use crate::device::Device;
use crate::scenario::Scenario;
use crate::web::{send, whole};
use crate::world::{LiveServer, PASSWORD, World};

/// What the server is called by the issuer.
const AUDIENCE: &str = "tidewater";

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// Sites of regions, of which users hold those of the region that is kept of them.
pub(crate) fn regions() -> Scenario {
    Scenario {
        schema: "
            CREATE TABLE site (id INTEGER NOT NULL PRIMARY KEY, region TEXT NOT NULL, note TEXT);
            INSERT INTO site VALUES (1, 'north', 'a'), (2, 'south', 'b'), (3, 'north', 'c');"
            .to_owned(),
        publication: r#"
[[procedure]]
name = "region"
sql = "SELECT {s.claims.region}"
returns = "value"
allow = "SELECT 1 WHERE {s.claims.region} <> 'nowhere'"
read_only = true

[[publication]]
name = "main"

[[publication.table]]
name = "site"
partition = { columns = ["region"], values = "SELECT {ml s.claims.region}" }
"#,
        tables: &[],
        users: &["ada"],
        limits: "",
    }
}

const IDS: &str = "SELECT id FROM site ORDER BY id";

/// The part of a configuration.
pub(crate) fn sign_in(text: &str) -> SignInConfig {
    let text = format!("[server]\nconsolidated = \"sqlite:x\"\n{text}");
    let config = Config::parse(&text).unwrap_or_else(|error| panic!("{error}: {}", error.hint()));
    config.sign_in
}

fn trusting(issuer: &Issuer, more: &str) -> SignInConfig {
    sign_in(&format!(
        "[sign_in]\ncreate_users = true\n{more}\n[[sign_in.oidc]]\nissuer = {:?}\n\
         audience = [{AUDIENCE:?}]\nclaims = [\"region\"]\n",
        issuer.url()
    ))
}

/// Seconds since 1970, as the server has them.
fn now_s() -> i64 {
    Environment::real().clock.now_ms() / 1_000
}

fn claims(issuer: &Issuer, user: &str, region: &str) -> Value {
    let mut claims = issuer.claims(user, AUDIENCE, now_s());
    claims["region"] = region.into();
    claims
}

fn token(issuer: &Issuer, user: &str, region: &str) -> String {
    issuer.sign(&claims(issuer, user, region)).unwrap()
}

pub(crate) fn users<B: Backend>(world: &World<B>) -> Vec<UserRecord> {
    let users = world.server.ask(async |centre| centre.users().await);
    users.unwrap()
}

pub(crate) fn names(users: &[UserRecord]) -> Vec<&str> {
    users.iter().map(|it| it.name.as_str()).collect()
}

/// A server that trusts an issuer.
fn server_for<B: Backend>(world: &World<B>, issuer: &Issuer) -> LiveServer {
    world.server_with(|config| {
        config.sign_in = trusting(issuer, "");
        config.server.http = Some("http://127.0.0.1:0".into());
    })
}

/// A remote that has never signed in, and does not know whose it is.
pub(crate) struct Stranger {
    pub(crate) path: PathBuf,
    pub(crate) remote: Remote,
    _folder: tempfile::TempDir,
}

impl Stranger {
    pub(crate) fn at(server: &LiveServer) -> Stranger {
        Stranger::named("", server)
    }

    pub(crate) fn named(user: &str, server: &LiveServer) -> Stranger {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("remote.db");
        let mut remote = Remote::open(&path).unwrap();
        let url = format!("tcp://{}", server.address);
        remote.subscribe(&url, user, &["main"]).unwrap();
        remote.set_retry(RetryPolicy::Off);
        Stranger {
            path,
            remote,
            _folder: folder,
        }
    }

    fn with_token(server: &LiveServer, token: String) -> Stranger {
        let mut stranger = Stranger::at(server);
        stranger.remote.set_bearer(BearerToken::Token(token));
        stranger
    }

    pub(crate) fn try_sync(&mut self) -> Result<(), ClientError> {
        let synced = self.remote.sync(&mut |_| ControlFlow::Continue(()));
        synced.map(|_| ())
    }

    #[track_caller]
    pub(crate) fn sync(&mut self) {
        if let Err(error) = self.try_sync() {
            panic!("{error}: {}", error.hint());
        }
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        crate::backend::rows_sqlite(&crate::backend::open_sqlite(&self.path), IDS)
    }

    fn user(&mut self) -> String {
        self.remote.account().unwrap().user
    }
}

fn a_token_tells_who_somebody_is_and_what_she_holds<B: Backend>() {
    let world = World::<B>::open(regions());
    let issuer = Issuer::start().unwrap();
    let server = server_for(&world, &issuer);
    let mut phone = Stranger::with_token(&server, token(&issuer, "nancy", "north"));
    phone.sync();
    assert_eq!(phone.ids(), ["1", "3"]);
    assert_eq!(phone.user(), "nancy");
    assert_eq!(names(&users(&world)), ["ada", "nancy"]);
    // From then on the remote has a credential of its own: nobody is asked any more.
    issuer.set_away(true);
    world.execute("INSERT INTO site VALUES (4, 'north', 'd')");
    let asked = issuer.asked();
    phone
        .remote
        .set_bearer(BearerToken::Token("none any more".into()));
    phone.sync();
    assert_eq!(phone.ids(), ["1", "3", "4"]);
    issuer.set_away(false);
    assert_eq!(issuer.asked(), asked);
    // What is kept of her is what was said last, on whatever device.
    let mut laptop = Stranger::with_token(&server, token(&issuer, "nancy", "south"));
    laptop.sync();
    phone.sync();
    assert_eq!(
        (laptop.ids(), phone.ids()),
        (vec!["2".into()], vec!["2".into()])
    );
    // A claim that is not there is NULL, and no region.
    let none = issuer.claims("nancy", AUDIENCE, now_s());
    Stranger::with_token(&server, issuer.sign(&none).unwrap()).sync();
    phone.sync();
    assert!(phone.ids().is_empty());
}

/// Users of images hold what nobody gave them.
fn nobody_is_proven_to_be_the_user_of_an_image<B: Backend>() {
    let world = World::<B>::open(regions());
    let issuer = Issuer::start().unwrap();
    let server = server_for(&world, &issuer);
    for user in ["image: everyone", "image: region=north"] {
        let mut stranger = Stranger::with_token(&server, token(&issuer, user, "north"));
        let error = stranger.try_sync().unwrap_err();
        assert_eq!(error.code(), Code::UnknownUser, "{error}");
    }
    assert_eq!(names(&users(&world)), ["ada"]);
}

/// Every token that proves nothing, and what is said of it.
fn worthless(issuer: &Issuer) -> Vec<(String, &'static str)> {
    let base = claims(issuer, "nancy", "north");
    let with = |name: &str, value: Value| {
        let mut claims = base.clone();
        claims[name] = value;
        issuer.sign(&claims).unwrap()
    };
    let without = |name: &str| {
        let mut claims = base.clone();
        claims.as_object_mut().unwrap().remove(name);
        issuer.sign(&claims).unwrap()
    };
    let header = |header: Value| issuer.sign_with(&header, &base).unwrap();
    let [by_bytes, by_text] = issuer.signed_with_the_public_key(&base).unwrap();
    let good = issuer.sign(&base).unwrap();
    let (signed, _) = good.rsplit_once('.').unwrap();
    let another = Issuer::start().unwrap();
    let mut cut = good.clone();
    cut.truncate(good.len() - 10);
    vec![
        (
            with("aud", json!("somebody else")),
            "for the audience \"somebody else\"",
        ),
        (without("aud"), "for whom it is"),
        (Issuer::unsigned(&base), "not signed"),
        (format!("{signed}."), "signature is not one of"),
        (header(json!({ "alg": "None" })), "not signed"),
        (by_bytes, "signed with HS256"),
        (by_text, "signed with HS256"),
        (with("exp", json!(now_s() - 3_600)), "has run out"),
        (without("exp"), "says no end"),
        (with("nbf", json!(now_s() + 3_600)), "not good yet"),
        (header(json!({ "kid": "nobody's" })), "the key \"nobody's\""),
        (with("iss", json!(another.url())), "from the issuer"),
        (without("iss"), "who issued it"),
        // Signed by somebody else in the issuer's name.
        (another.sign(&base).unwrap(), "signature is not one of"),
        (cut, "signature is not one of"),
        (without("sub"), "no claim \"sub\""),
        (with("sub", json!("a\nb")), "control characters"),
        (with("sub", json!("x".repeat(600))), "too long"),
        (with("region", json!("a\u{0}b")), "zero byte"),
        (with("events", json!({})), "not meant for signing in"),
        (
            header(json!({ "typ": "logout+jwt" })),
            "not meant for signing in",
        ),
        (header(json!({ "crit": ["exp"] })), "extensions"),
        ("no token at all".replace(' ', "-"), "three parts"),
    ]
}

fn a_token_that_proves_nothing_is_refused_with_the_reason_and_others_go_on<B: Backend>() {
    let world = World::<B>::open(regions());
    let issuer = Issuer::start().unwrap();
    let server = server_for(&world, &issuer);
    let mut nancy = Stranger::with_token(&server, token(&issuer, "nancy", "north"));
    nancy.sync();
    let before = users(&world);
    for (token, reason) in worthless(&issuer) {
        let mut stranger = Stranger::with_token(&server, token.clone());
        let error = stranger.try_sync().unwrap_err();
        assert_eq!(error.code(), Code::ProofRejected, "{error}");
        assert!(
            error.to_string().contains(reason),
            "{error} is not {reason}"
        );
        assert!(!error.hint().is_empty(), "{error}");
        assert_eq!(stranger.user(), "");
        // The same over HTTP.
        let body = json!({ "token": token }).to_string();
        let answer = whole(send(&server, "POST /v1/sign-in HTTP/1.1", &body));
        assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
        assert!(answer.contains("proof_rejected"), "{answer}");
    }
    assert_eq!(users(&world), before);
    let remotes = world.server.ask(async |centre| centre.remotes().await);
    assert_eq!(remotes.unwrap().len(), 1);
    nancy.sync();
}

/// Users of large companies are in hundreds of groups: a token of up to 64 KiB counts, and a longer one
/// is refused in the same words, whatever carries it.
fn a_token_with_hundreds_of_groups_counts_over_every_carrier<B: Backend>() {
    let world = World::<B>::open(regions());
    let issuer = Issuer::start().unwrap();
    let everything = everything_with(&world, |config| {
        config.sign_in = trusting(&issuer, "");
    });
    let groups = |count: usize| {
        let mut claims = claims(&issuer, "nancy", "north");
        let name = |at: usize| json!(format!("CN=group {at:04},OU=groups,DC=example,DC=com"));
        claims["groups"] = (0..count).map(name).collect::<Value>();
        issuer.sign(&claims).unwrap()
    };
    let (large, largest, over) = (groups(300), groups(1_000), groups(1_200));
    assert!(large.len() > 17_000 && largest.len() > 58_000 && largest.len() < 65_536);
    let too_long = format!(
        "the token cannot be read: it has {} bytes, and servers take 65536",
        over.len()
    );
    for scheme in SCHEMES {
        let mut stranger = Stranger::at(&everything.server);
        let url = format!("{scheme}://{}", everything.address);
        stranger.remote.subscribe(&url, "", &["main"]).unwrap();
        let trusted = stranger.remote.set_ca_file(Some(&everything.certificate));
        trusted.unwrap();
        stranger.remote.set_bearer(BearerToken::Token(over.clone()));
        let error = stranger.try_sync().unwrap_err();
        assert!(error.to_string().contains(&too_long), "{scheme}: {error}");
        for token in [&large, &largest] {
            stranger
                .remote
                .set_bearer(BearerToken::Token(token.clone()));
            stranger.sync();
        }
        assert_eq!(stranger.ids(), ["1", "3"], "{scheme}");
        assert_eq!(stranger.user(), "nancy");
    }
    for (token, status, words) in [
        (&largest, "HTTP/1.1 200", "\"nancy\""),
        (&over, "HTTP/1.1 401", &*too_long),
    ] {
        let body = json!({ "token": token }).to_string();
        let answer = whole(send(&everything.server, "POST /v1/sign-in HTTP/1.1", &body));
        assert!(
            answer.starts_with(status) && answer.contains(words),
            "{answer}"
        );
    }
    let endless = json!({ "token": "x".repeat(200_000) }).to_string();
    let answer = whole(send(
        &everything.server,
        "POST /v1/sign-in HTTP/1.1",
        &endless,
    ));
    assert!(
        answer.starts_with("HTTP/1.1 413") && answer.contains("too long"),
        "{answer}"
    );
}

/// A key under the id of another one is fetched at once; who forges tokens has the issuer asked at most
/// once in three seconds.
fn a_key_that_takes_the_id_of_another_is_fetched<B: Backend>() {
    let world = World::<B>::open(regions());
    let issuer = Issuer::start().unwrap();
    let server = server_for(&world, &issuer);
    let old = token(&issuer, "nancy", "north");
    Stranger::with_token(&server, old.clone()).sync();
    issuer.rotate_in_place().unwrap();
    Stranger::with_token(&server, token(&issuer, "olga", "south")).sync();
    assert_eq!(issuer.asked(), 2);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let error = Stranger::with_token(&server, old.clone()).try_sync();
                let error = error.unwrap_err();
                assert_eq!(error.code(), Code::ProofRejected);
                assert!(error.to_string().contains("signature"), "{error}");
            });
        }
    });
    assert!(issuer.asked() <= 4, "{} times", issuer.asked());
    Stranger::with_token(&server, token(&issuer, "nancy", "north")).sync();
}

fn keys_rotate_and_an_issuer_is_not_asked_for_each_token<B: Backend>() {
    let world = World::<B>::open(regions());
    let issuer = Issuer::start().unwrap();
    let server = server_for(&world, &issuer);
    for number in 0..5 {
        let user = format!("user-{number}");
        Stranger::with_token(&server, token(&issuer, &user, "north")).sync();
    }
    assert_eq!(issuer.asked(), 1);
    let old = token(&issuer, "nancy", "north");
    issuer.rotate().unwrap();
    let new = token(&issuer, "nancy", "north");
    Stranger::with_token(&server, new).sync();
    Stranger::with_token(&server, old).sync();
    issuer.rotate_to_rsa().unwrap();
    let of_rsa = token(&issuer, "nancy", "north");
    Stranger::with_token(&server, of_rsa.clone()).sync();
    assert_eq!(issuer.asked(), 3);
    // A crowd with keys that nobody has: one question for all.
    issuer.rotate_secretly().unwrap();
    let secret = token(&issuer, "nancy", "north");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let error = Stranger::with_token(&server, secret.clone()).try_sync();
                assert_eq!(error.unwrap_err().code(), Code::ProofRejected);
            });
        }
    });
    assert!(issuer.asked() <= 5, "{} times", issuer.asked());
    Stranger::with_token(&server, of_rsa).sync();
}

fn an_issuer_that_is_away_keeps_nobody_else_out<B: Backend>() {
    let world = World::<B>::open(regions());
    let issuer = Issuer::start().unwrap();
    issuer.set_away(true);
    let server = server_for(&world, &issuer);
    let mut nancy = Stranger::with_token(&server, token(&issuer, "nancy", "north"));
    let error = nancy.try_sync().unwrap_err();
    assert_eq!(error.code(), Code::IdentityUnavailable, "{error}");
    assert!(error.code().is_transient());
    assert!(error.retry_after_ms().is_some());
    assert!(error.to_string().contains(issuer.url()), "{error}");
    // Who has a password comes in.
    let mut ada = Stranger::named("ada", &server);
    ada.remote.set_password(PASSWORD);
    ada.sync();
    issuer.set_away(false);
    nancy.sync();
    // What it tells must be its own, and keys.
    for (path, body) in [
        (
            "/.well-known/openid-configuration",
            "{\"issuer\":\"http://other\"}",
        ),
        ("/.well-known/openid-configuration", "{}"),
        ("/.well-known/openid-configuration", "<html>"),
        ("/keys", "{\"keys\":[]}"),
        (
            "/keys",
            "HTTP/1.1 302 Found\r\nlocation: /other\r\ncontent-length: 0\r\n\r\n",
        ),
        ("/keys", "HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n"),
    ] {
        let strange = Issuer::start().unwrap();
        strange.answer(path, body);
        let server = server_for(&world, &strange);
        let token = token(&strange, "nancy", "north");
        let error = Stranger::with_token(&server, token).try_sync().unwrap_err();
        assert_eq!(error.code(), Code::IdentityUnavailable, "{body}: {error}");
    }
    let endless = Issuer::start().unwrap();
    endless.answer(
        "/keys",
        format!("{{\"keys\":[\"{}\"]}}", "x".repeat(300_000)),
    );
    let server = server_for(&world, &endless);
    let token = token(&endless, "nancy", "north");
    let error = Stranger::with_token(&server, token).try_sync().unwrap_err();
    assert_eq!(error.code(), Code::IdentityUnavailable, "{error}");
    nancy.sync();
}

fn a_token_that_runs_out_in_a_long_sync_does_not_break_it<B: Backend>() {
    let world = World::<B>::open(regions());
    let issuer = Issuer::start().unwrap();
    let clock = Wrong::by(0);
    let environment = Environment {
        clock: clock.clone(),
        ..Environment::real()
    };
    let server = world.server_in(environment, |config| {
        config.sign_in = trusting(&issuer, "");
    });
    let folder = tempfile::tempdir().unwrap();
    let mut device = Device::new(folder.path(), "nancy", server.address);
    device
        .remote
        .set_bearer(BearerToken::Token(token(&issuer, "nancy", "north")));
    let network = device.network.clone();
    network.plan(
        Place::message(Way::Down, |it| matches!(it, Control::DownloadBegin(_))),
        Accident::Stall,
    );
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| device.try_sync().map(|_| ()));
        network.wait_for_stall().unwrap();
        // The token, and ours of an hour.
        clock.set(2 * DAY_MS);
        issuer.set_away(true);
        network.release();
        sync.join().unwrap().unwrap();
    });
    assert_eq!(device.rows(IDS), ["1", "3"]);
    device.edit("UPDATE site SET note = 'mine' WHERE id = 1");
    device.sync();
    assert_eq!(world.rows("SELECT note FROM site WHERE id = 1"), ["mine"]);
}

fn who_was_proven_long_ago_is_wanted_again<B: Backend>() {
    let world = World::<B>::open(regions());
    let issuer = Issuer::start().unwrap();
    let clock = Wrong::by(-31 * DAY_MS);
    let environment = Environment {
        clock: clock.clone(),
        ..Environment::real()
    };
    let server = world.server_in(environment, |config| {
        config.sign_in = trusting(&issuer, "reauthenticate_after = \"30d\"");
    });
    let long_ago = |user: &str| {
        let mut claims = issuer.claims(user, AUDIENCE, now_s() - 31 * 24 * 3_600);
        claims["region"] = "north".into();
        issuer.sign(&claims).unwrap()
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), long_ago("nancy")).unwrap();
    let mut nancy = Stranger::at(&server);
    nancy
        .remote
        .set_bearer(BearerToken::File(file.path().into()));
    nancy.sync();
    let mut ada = Stranger::named("ada", &server);
    ada.remote.set_password(PASSWORD);
    ada.sync();
    clock.set(0);
    // The one that was good is not any more.
    let application = crate::backend::open_sqlite(&nancy.path);
    let edit = "UPDATE site SET note = 'mine' WHERE id = 1";
    crate::backend::execute_sqlite(&application, edit);
    let error = nancy.try_sync().unwrap_err();
    assert_eq!(error.code(), Code::ProofRejected, "{error}");
    // Nothing is at hand.
    let mut another = Remote::open(&nancy.path).unwrap();
    another.set_retry(RetryPolicy::Off);
    let error = another
        .sync(&mut |_| ControlFlow::Continue(()))
        .unwrap_err();
    assert_eq!(error.code(), Code::SignInAgain, "{error}");
    assert!(error.to_string().contains("31 days ago"), "{error}");
    assert_eq!(world.rows("SELECT note FROM site WHERE id = 1"), ["a"]);
    // A new one is in the file, and what is pending goes up.
    std::fs::write(file.path(), token(&issuer, "nancy", "north")).unwrap();
    nancy.sync();
    assert_eq!(world.rows("SELECT note FROM site WHERE id = 1"), ["mine"]);
    another.sync(&mut |_| ControlFlow::Continue(())).unwrap();
    // Whom only this database knows, nobody else can prove.
    ada.sync();
}

fn somebody_elses_token_opens_no_file_and_no_user<B: Backend>() {
    let world = World::<B>::open(regions());
    let issuer = Issuer::start().unwrap();
    let server = server_for(&world, &issuer);
    let mut nancy = Stranger::with_token(&server, token(&issuer, "nancy", "north"));
    nancy.sync();
    // As after the credential was lost.
    forget_credential(&nancy);
    let olga = token(&issuer, "olga", "south");
    nancy.remote.set_bearer(BearerToken::Token(olga.clone()));
    let error = nancy.try_sync().unwrap_err();
    assert_eq!(error.code(), Code::ProofRejected, "{error}");
    assert!(error.to_string().contains("\"olga\"'s"), "{error}");
    assert_eq!(nancy.ids(), ["1", "3"]);
    nancy
        .remote
        .set_bearer(BearerToken::Token(token(&issuer, "nancy", "north")));
    nancy.sync();
    // Who is disabled stays out, and who is not known where nobody is added.
    let disabled = world
        .server
        .ask(async |centre| centre.set_disabled("nancy", true).await);
    assert!(disabled.unwrap());
    let again = token(&issuer, "nancy", "north");
    let error = Stranger::with_token(&server, again).try_sync().unwrap_err();
    assert_eq!(error.code(), Code::UserDisabled, "{error}");
    let strict = world.server_with(|config| {
        config.sign_in = trusting(&issuer, "");
        config.sign_in.create_users = false;
    });
    let error = Stranger::with_token(&strict, olga).try_sync().unwrap_err();
    assert_eq!(error.code(), Code::UnknownUser, "{error}");
    assert!(error.to_string().contains("\"olga\""), "{error}");
    assert!(
        error.hint().contains("tidewater user add"),
        "{}",
        error.hint()
    );
    Stranger::with_token(&strict, token(&issuer, "ada", "north")).sync();
}

/// The next sync has nothing but what its user brings.
fn forget_credential(stranger: &Stranger) {
    let application = crate::backend::open_sqlite(&stranger.path);
    let sql = "UPDATE tidewater_state SET token = NULL, credential = NULL";
    crate::backend::execute_sqlite(&application, sql);
}

fn programs_and_http_sign_in_by_token<B: Backend>() {
    let world = World::<B>::open(regions());
    let issuer = Issuer::start().unwrap();
    let server = server_for(&world, &issuer);
    let url = format!("tcp://{}", server.address);
    let proof = LinkProof::Bearer(BearerToken::Token(token(&issuer, "nancy", "north")));
    let link = Link::connect(&url, &LinkOptions::proven("", proof)).unwrap();
    let region = || match link.call(&Request::new("region")) {
        Ok(answer) => Ok(tidewater_protocol::json::answer(&answer)
            .unwrap()
            .to_string()),
        Err(error) => Err(error.code()),
    };
    assert!(region().unwrap().contains("north"));
    // It counts what is kept now, not what it was when she connected.
    let body = json!({ "token": token(&issuer, "nancy", "south") }).to_string();
    let answer = whole(send(&server, "POST /v1/sign-in HTTP/1.1", &body));
    assert!(answer.contains("\"user\":\"nancy\""), "{answer}");
    assert!(region().unwrap().contains("south"));
    let (_, json) = answer.split_once("\r\n\r\n").unwrap();
    let json: Value = serde_json::from_str(json.trim()).unwrap();
    let own = json["token"].as_str().unwrap();
    let head = format!("POST /v1/call/region HTTP/1.1\r\nauthorization: Bearer {own}");
    let called = whole(send(&server, &head, "{}"));
    assert!(called.contains("south"), "{called}");
    let nowhere = json!({ "token": token(&issuer, "nancy", "nowhere") }).to_string();
    whole(send(&server, "POST /v1/sign-in HTTP/1.1", &nowhere));
    assert_eq!(region(), Err(Some(Code::NotAllowed)));
    let both = json!({ "token": "t", "password": "p", "user": "u" }).to_string();
    let answer = whole(send(&server, "POST /v1/sign-in HTTP/1.1", &both));
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
}

fn a_server_that_trusts_nobody_says_so_and_can_be_told_while_it_runs<B: Backend>() {
    let world = World::<B>::open(regions());
    let issuer = Issuer::start().unwrap();
    let token = token(&issuer, "nancy", "north");
    let error = Stranger::with_token(&world.server, token.clone())
        .try_sync()
        .unwrap_err();
    assert_eq!(error.code(), Code::ProofRejected, "{error}");
    assert!(
        error.hint().contains("[[sign_in.oidc]]"),
        "{}",
        error.hint()
    );
    world
        .reconfigure_with(|config| config.sign_in = trusting(&issuer, ""))
        .unwrap();
    Stranger::with_token(&world.server, token).sync();
    world
        .reconfigure_with(|config| config.sign_in = sign_in("[sign_in]\npasswords = \"off\"\n"))
        .unwrap();
    let mut ada = Stranger::named("ada", &world.server);
    ada.remote.set_password(PASSWORD);
    let error = ada.try_sync().unwrap_err();
    assert_eq!(error.code(), Code::ProofRejected, "{error}");
    assert!(error.to_string().contains("no passwords"), "{error}");
}

on_both_adapters! {
    a_token_tells_who_somebody_is_and_what_she_holds,
    nobody_is_proven_to_be_the_user_of_an_image,
    a_token_that_proves_nothing_is_refused_with_the_reason_and_others_go_on,
    keys_rotate_and_an_issuer_is_not_asked_for_each_token,
    a_key_that_takes_the_id_of_another_is_fetched,
    a_token_with_hundreds_of_groups_counts_over_every_carrier,
    an_issuer_that_is_away_keeps_nobody_else_out,
    a_token_that_runs_out_in_a_long_sync_does_not_break_it,
    who_was_proven_long_ago_is_wanted_again,
    somebody_elses_token_opens_no_file_and_no_user,
    programs_and_http_sign_in_by_token,
    a_server_that_trusts_nobody_says_so_and_can_be_told_while_it_runs,
}
