//! OpenID Connect: whether a token of an identity provider counts here, and whom it is of.
//!
//! Owns the keys of each issuer, which are fetched when they are needed, and again when they are
//! old, a token names one that is not among them, or none of them has signed it; never more often than
//! every few seconds, one request at a time, and with a deadline. An issuer that is away costs nobody
//! anything but those who bring a token whose key is not known yet.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep_until, timeout};

use super::jws::{Keys, Token};
use super::{Identity, ago, away, kept, rejected, span, user_name};
use crate::web_client::{WebClient, WebRequest, successful};
use tidewater_server_config::{
    IssuerKeySource, KeptClaim, OidcConfig, SigningAlgorithm, WebAddress,
};
use tidewater_server_jobs::error::ServerError;
use tidewater_server_jobs::fault::Fault;

/// How far clocks may differ.
const LEEWAY_MS: i64 = 60_000;

/// How long an issuer may take to tell its keys.
const PATIENCE: Duration = Duration::from_secs(10);

/// From one look at an issuer's keys to the next, whatever tokens say.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(3);

/// How old keys may be: a key that the issuer has withdrawn counts for so long.
const FRESH: Duration = Duration::from_secs(600);

/// When an issuer is asked again that did not answer, as long as its keys are known.
const AWAY_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// How long its keys count if it does not answer.
const KEPT: Duration = Duration::from_secs(24 * 3_600);

/// No document of a provider is longer.
const MAX_BYTES: usize = 256 << 10;

/// What a token may call itself; others have a meaning of their own, as logout tokens.
const TYPES: [&str; 3] = ["jwt", "at+jwt", "application/at+jwt"];

/// An identity provider.
pub(super) struct OidcIssuer {
    config: OidcConfig,
    client: WebClient,
    known: Mutex<JwksCache>,
    /// Whoever asks it.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct JwksCache {
    keys: Arc<Keys>,
    /// When they were told.
    told: Option<Instant>,
    /// When it was last asked, successfully or not: the end of that, once it has ended.
    asked: Option<Instant>,
    /// Why it has told nothing then.
    failure: Option<String>,
}

impl OidcIssuer {
    pub(super) fn new(config: &OidcConfig) -> Result<OidcIssuer, ServerError> {
        let client = WebClient::new(config.ca.as_deref(), 0).map_err(|error| {
            ServerError::configuration(
                format!("sign_in.oidc {:?}: ca: {error}", config.issuer),
                "name a PEM file with the certificate of the authority, or remove ca",
            )
        })?;
        Ok(OidcIssuer {
            config: config.clone(),
            client,
            known: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
        })
    }

    pub(super) async fn warm_up(&self) {
        let _turn = self.asking.lock().await;
        self.ask().await;
    }

    fn known(&self) -> MutexGuard<'_, JwksCache> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its keys, looked for anew if they are old, or those that are known do not do.
    ///
    /// # Errors
    /// It does not tell them.
    async fn keys(&self, will_do: impl Fn(&Keys) -> bool) -> Result<Arc<Keys>, Fault> {
        let arrived = Instant::now();
        // Signatures take time, and nobody waits for that.
        let usable = self.known().usable();
        if let Some(keys) = usable.filter(|keys| will_do(keys)) {
            return Ok(keys);
        }
        let _turn = self.asking.lock().await;
        // Somebody has asked while this one waited for a turn.
        let asked = self.known().asked;
        if asked.is_none_or(|asked| asked < arrived) {
            if let Some(asked) = asked {
                sleep_until(asked + LOOK_AGAIN_AFTER).await;
            }
            self.ask().await;
        }
        let (keys, failure, is_kept) = {
            let known = self.known();
            let is_kept = known.told.is_some_and(|told| told.elapsed() < KEPT);
            (known.keys.clone(), known.failure.clone(), is_kept)
        };
        match failure {
            Some(failure) if !is_kept || !will_do(&keys) => Err(away(
                format!(
                    "the identity provider {} does not tell its keys",
                    self.config.issuer
                ),
                &failure,
            )),
            _ => Ok(keys),
        }
    }

    /// Asks for the keys. At most one does so at a time.
    async fn ask(&self) {
        let issuer = &self.config.issuer;
        // Whoever goes away meanwhile has asked all the same.
        self.known().asked = Some(Instant::now());
        let asked = timeout(PATIENCE, self.fetch()).await;
        let asked = asked.unwrap_or_else(|_| Err("it takes too long".into()));
        let mut known = self.known();
        let now = Instant::now();
        known.asked = Some(now);
        match asked {
            Ok(keys) => {
                tracing::debug!(
                    issuer,
                    keys = keys.len(),
                    "an identity provider told its keys"
                );
                known.keys = Arc::new(keys);
                known.told = Some(now);
                known.failure = None;
            }
            Err(error) => {
                tracing::warn!(issuer, %error, "an identity provider does not tell its keys");
                known.failure = Some(error);
            }
        }
    }

    async fn fetch(&self) -> Result<Keys, String> {
        let keys = match &self.config.source {
            IssuerKeySource::Keys(address) => address.clone(),
            IssuerKeySource::Discovery(document) => self.discover(document).await?,
        };
        let json = self.document(&keys).await?;
        let read = Keys::read(&json).map_err(|error| format!("{}: {error}", keys.url))?;
        match read.len() {
            0 => Err(format!("{} has no key that can be used", keys.url)),
            _ => Ok(read),
        }
    }

    /// The document at an address.
    async fn document(&self, address: &WebAddress) -> Result<Bytes, String> {
        let request = WebRequest {
            method: Method::GET,
            headers: &[("accept", "application/json".to_owned())],
            body: Bytes::new(),
            max_bytes: MAX_BYTES,
        };
        let answer = self
            .client
            .ask(address, request)
            .await
            .map_err(|error| error.to_string());
        let answer = answer.and_then(successful);
        answer
            .map(|it| it.body)
            .map_err(|error| format!("{}: {error}", address.url))
    }

    async fn discover(&self, document: &WebAddress) -> Result<WebAddress, String> {
        let json = self.document(document).await?;
        let wrong = |what: String| format!("{}: {what}", document.url);
        let read: Map<String, Value> =
            serde_json::from_slice(&json).map_err(|error| wrong(error.to_string()))?;
        let text = |name: &str| read.get(name).and_then(Value::as_str);
        let issuer = text("issuer").unwrap_or_default();
        if issuer != self.config.issuer {
            return Err(wrong(format!(
                "it is of the issuer {issuer:?}: write just that as issuer, or another address"
            )));
        }
        let keys = text("jwks_uri").ok_or_else(|| wrong("it names no jwks_uri".into()))?;
        // Keys that come over a network unencrypted are anybody's.
        let insecure = document.host.is_exposed();
        WebAddress::read(keys, insecure)
            .map_err(|(what, _)| wrong(format!("its jwks_uri {keys:?} {what}")))
    }
}

impl JwksCache {
    /// The keys, if they are not too old.
    fn usable(&self) -> Option<Arc<Keys>> {
        let age = self.told?.elapsed();
        let since = self.asked.map(|it| it.elapsed());
        let is_away = self.failure.is_some() && since.is_some_and(|it| it < AWAY_AGAIN_AFTER);
        let is_good = age < FRESH || (is_away && age < KEPT);
        is_good.then(|| self.keys.clone())
    }
}

/// Whom a token is of.
///
/// # Errors
/// It proves nothing; or nobody can say, because the issuer does not tell its keys.
pub(super) async fn check(
    issuers: &[Arc<OidcIssuer>],
    text: &str,
    now_ms: i64,
) -> Result<Identity, Fault> {
    let token = Token::read(text).map_err(|error| {
        rejected(
            format!("the token cannot be read: {error}"),
            "present the token as the identity provider gave it: an ID token, or an access token \
             that is a JWT",
        )
    })?;
    check_type(&token)?;
    let issuer = issuer_of(issuers, &token)?;
    let config = &issuer.config;
    let algorithm = algorithm_of(config, &token)?;
    let id = token.header.kid.as_deref();
    // An issuer may have another key under an id that it had before.
    let is_signed = |keys: &Keys| {
        let keys = keys.for_token(id, algorithm);
        keys.iter().any(|key| token.is_signed(key, algorithm))
    };
    let keys = issuer.keys(is_signed).await?;
    if keys.for_token(id, algorithm).is_empty() {
        return Err(unknown_key(config, id));
    }
    if !is_signed(&keys) {
        return Err(rejected(
            format!("the token's signature is not one of {}", config.issuer),
            "get a new token from the identity provider: this one was changed, or somebody else \
             has made it",
        ));
    }
    check_time(&token.claims, now_ms)?;
    check_audience(config, &token.claims)?;
    identity(config, &token.claims)
}

fn check_type(token: &Token<'_>) -> Result<(), Fault> {
    let typ = token.header.typ.as_deref().unwrap_or("JWT");
    let is_known = TYPES.iter().any(|it| it.eq_ignore_ascii_case(typ));
    match is_known && !token.claims.contains_key("events") {
        true => Ok(()),
        false => Err(rejected(
            format!("the token is of the type {typ:?}, and not meant for signing in"),
            "present an ID token, or an access token that is a JWT",
        )),
    }
}

fn issuer_of<'i>(
    issuers: &'i [Arc<OidcIssuer>],
    token: &Token<'_>,
) -> Result<&'i OidcIssuer, Fault> {
    let said = token.claims.get("iss").and_then(Value::as_str);
    let found = issuers.iter().find(|it| said == Some(&it.config.issuer));
    found.map(|it| &**it).ok_or_else(|| {
        let known = issuers.iter().map(|it| it.config.issuer.as_str());
        let known: Vec<&str> = known.take(5).collect();
        rejected(
            match said {
                Some(said) => format!(
                    "the token is from the issuer {said:?}, whose tokens this server does not take"
                ),
                None => "the token does not say who issued it (iss)".into(),
            },
            format!("get one from {}", known.join(" or ")),
        )
    })
}

fn algorithm_of(config: &OidcConfig, token: &Token<'_>) -> Result<SigningAlgorithm, Fault> {
    let said = token.header.alg.as_str();
    let known = SigningAlgorithm::from_name(said).filter(|it| config.algorithms.contains(it));
    known.ok_or_else(|| {
        let taken: Vec<&str> = config.algorithms.iter().map(|it| it.name()).collect();
        let taken = taken.join(", ");
        match said.is_empty() || said.eq_ignore_ascii_case("none") {
            true => rejected(
                "the token is not signed (alg is none), so anybody could have made it",
                format!("get one that is signed with {taken}"),
            ),
            false => rejected(
                format!("the token is signed with {said}, and only {taken} counts here"),
                "have the identity provider sign with one of these; the server's operator can add \
                 others to algorithms, if their keys are public ones",
            ),
        }
    })
}

fn unknown_key(config: &OidcConfig, id: Option<&str>) -> Fault {
    let issuer = &config.issuer;
    rejected(
        match id {
            Some(id) => format!("the token is signed with the key {id:?}, which {issuer} has not"),
            None => format!("{issuer} has no key for the token's alg"),
        },
        "get a new token: the identity provider may have changed its keys, or this token is from \
         somebody else",
    )
}

/// Seconds since 1970 in a token, as milliseconds.
fn time(claims: &Map<String, Value>, name: &str) -> Result<Option<i64>, Fault> {
    let Some(value) = claims.get(name) else {
        return Ok(None);
    };
    let seconds = value.as_f64().filter(|it| it.abs() < 1e15);
    let ms = seconds.map(|it| (it * 1_000.0) as i64);
    ms.map(Some).ok_or_else(|| {
        rejected(
            format!("the token's {name} is no time"),
            "get a new token from the identity provider",
        )
    })
}

fn check_time(claims: &Map<String, Value>, now_ms: i64) -> Result<(), Fault> {
    let Some(expires) = time(claims, "exp")? else {
        return Err(rejected(
            "the token says no end (exp), and so would count for ever",
            "have the identity provider give tokens that run out",
        ));
    };
    let late = now_ms.saturating_sub(expires);
    if late >= LEEWAY_MS {
        return Err(rejected(
            format!("the token has run out, {}", ago(late)),
            "get a new token from the identity provider, and sign in with that",
        ));
    }
    let begins = time(claims, "nbf")?.unwrap_or(i64::MIN);
    let early = begins.saturating_sub(now_ms);
    if early > LEEWAY_MS {
        return Err(rejected(
            format!("the token is not good yet, but in {}", span(early)),
            "wait, or see that the clocks of the identity provider and of the server are right",
        ));
    }
    Ok(())
}

fn check_audience(config: &OidcConfig, claims: &Map<String, Value>) -> Result<(), Fault> {
    let said: Vec<&str> = match claims.get("aud") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if said
        .iter()
        .any(|it| config.audience.iter().any(|own| own == it))
    {
        return Ok(());
    }
    let said: Vec<String> = said.iter().take(5).map(|it| format!("{it:?}")).collect();
    Err(rejected(
        match said.is_empty() {
            true => "the token does not say for whom it is (aud)".to_owned(),
            false => format!(
                "the token is for the audience {}, not for this server",
                said.join(", ")
            ),
        },
        format!(
            "ask the identity provider for one with the audience {:?}",
            config.audience[0]
        ),
    ))
}

/// What a token says of the user.
fn identity(config: &OidcConfig, claims: &Map<String, Value>) -> Result<Identity, Fault> {
    let from = &config.user_from;
    let name = lookup(claims, from).and_then(text);
    let name = name.filter(|it| !it.is_empty()).ok_or_else(|| {
        rejected(
            format!("the token has no claim {from:?}, which is to be the user's name"),
            "have the identity provider put it into its tokens; the server's operator can take \
             another one: user_from under [[sign_in.oidc]]",
        )
    })?;
    // Some providers write it as text.
    let verified = lookup(claims, "email_verified").and_then(text);
    let is_unproven = verified.as_deref() == Some("false");
    if from == "email" && is_unproven {
        return Err(rejected(
            format!("the identity provider has not verified the address {name:?}"),
            "have it verified there, then get a new token",
        ));
    }
    let found = config
        .claims
        .iter()
        .filter_map(|KeptClaim { name, from }| Some((name.clone(), text(lookup(claims, from)?)?)));
    Ok(Identity {
        user: user_name(
            &format!("{}{name}", config.prefix),
            &format!("the claim {from:?}"),
        )?,
        by: config.issuer.clone(),
        claims: Some(kept(found)?),
    })
}

/// The claim of this name, or where the name's dots lead to.
fn lookup<'c>(claims: &'c Map<String, Value>, name: &str) -> Option<&'c Value> {
    claims.get(name).or_else(|| {
        let (first, rest) = name.split_once('.')?;
        lookup(claims.get(first)?.as_object()?, rest)
    })
}

/// A claim as text: lists and objects as JSON.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidewater_protocol::Code;

    use super::*;

    fn config() -> OidcConfig {
        let text = r#"
            [server]
            consolidated = "sqlite:x"
            [[sign_in.oidc]]
            issuer = "https://login.example.com/"
            audience = ["tidewater", "app"]
            prefix = "p:"
            claims = { region = "custom:region", roles = "realm.roles", level = "level", no = "no" }
        "#;
        let config = tidewater_server_config::Config::parse(text).unwrap();
        config.sign_in.oidc[0].clone()
    }

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[track_caller]
    fn refused<T: std::fmt::Debug>(result: Result<T, Fault>, what: &str) {
        let fault = result.unwrap_err();
        assert_eq!(fault.code, Code::ProofRejected);
        assert!(fault.message.contains(what), "{fault}");
        assert!(!fault.hint.is_empty());
    }

    #[test]
    fn where_an_issuer_tells_of_itself_follows_from_its_name() {
        let IssuerKeySource::Discovery(address) = config().source else {
            panic!("nothing else was said");
        };
        let document = "https://login.example.com/.well-known/openid-configuration";
        assert_eq!(address.url, document);
    }

    #[tokio::test(start_paused = true)]
    async fn keys_are_used_while_they_are_fresh_and_for_a_day_while_their_issuer_is_away() {
        let advance = tokio::time::advance;
        let mut known = JwksCache {
            told: Some(Instant::now()),
            asked: Some(Instant::now()),
            ..JwksCache::default()
        };
        assert!(known.usable().is_some());
        advance(FRESH).await;
        assert!(known.usable().is_none(), "they are old");
        // It was asked, and did not answer.
        known.failure = Some("away".into());
        known.asked = Some(Instant::now());
        assert!(known.usable().is_some());
        advance(AWAY_AGAIN_AFTER).await;
        assert!(known.usable().is_none(), "it is asked again");
        advance(KEPT).await;
        known.asked = Some(Instant::now());
        assert!(known.usable().is_none(), "that is too long");
    }

    #[test]
    fn a_token_is_good_from_its_beginning_to_its_end_and_a_minute_beyond() {
        let at = |claims: Value, now_s: i64| check_time(&map(claims), now_s * 1_000);
        let both = json!({ "nbf": 1_000, "exp": 2_000 });
        for now_s in [940, 1_000, 1_999, 2_059] {
            at(both.clone(), now_s).unwrap();
        }
        refused(at(both.clone(), 939), "not good yet");
        refused(at(both.clone(), 2_060), "run out, 60 seconds ago");
        refused(at(both, 9_000_000), "days ago");
        refused(at(json!({}), 0), "exp");
        refused(at(json!({ "exp": "soon" }), 0), "exp is no time");
        refused(at(json!({ "exp": 1e300 }), 0), "exp is no time");
        at(json!({ "exp": 2_000.5 }), 2_000).unwrap();
    }

    #[test]
    fn a_token_is_for_one_of_the_audiences() {
        let of = |aud: Value| check_audience(&config(), &map(json!({ "aud": aud })));
        of(json!("app")).unwrap();
        of(json!(["other", "tidewater"])).unwrap();
        refused(of(json!("other")), "\"other\"");
        refused(of(json!(["other"])), "\"other\"");
        refused(of(json!([])), "for whom");
        refused(of(json!(7)), "for whom");
        refused(of(Value::Null), "for whom");
    }

    #[test]
    fn the_user_and_what_is_kept_of_her_come_from_claims() {
        let of = |claims: Value| identity(&config(), &map(claims));
        let found = of(json!({
            "sub": "nancy",
            "custom:region": "north",
            "realm": { "roles": ["a", "b"] },
            "level": 7,
            "no": null,
            "other": "secret",
        }));
        let found = found.unwrap();
        assert_eq!(found.user, "p:nancy");
        assert_eq!(found.by, "https://login.example.com/");
        let claims = found.claims.unwrap();
        let claims: Vec<_> = claims.iter().collect();
        assert_eq!(
            claims,
            [
                ("level", "7"),
                ("region", "north"),
                ("roles", "[\"a\",\"b\"]")
            ]
        );
        refused(of(json!({ "email": "a@b" })), "\"sub\"");
        refused(of(json!({ "sub": null })), "\"sub\"");
        refused(of(json!({ "sub": "" })), "\"sub\"");
        refused(of(json!({ "sub": "a\u{0}b" })), "control characters");
    }

    #[test]
    fn an_address_that_the_provider_has_not_verified_is_nobodys() {
        let config = OidcConfig {
            user_from: "email".into(),
            ..config()
        };
        let of = |verified: Value| {
            identity(
                &config,
                &map(json!({ "email": "a@b", "email_verified": verified })),
            )
        };
        assert_eq!(of(json!(true)).unwrap().user, "p:a@b");
        assert_eq!(of(Value::Null).unwrap().user, "p:a@b");
        refused(of(json!(false)), "verified");
        refused(of(json!("false")), "verified");
    }
}
