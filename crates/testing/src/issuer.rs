//! An identity provider of a test's own: tells its keys over HTTP on loopback, signs tokens of any
//! kind, changes its keys, and goes away when it is told to.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::SystemRandom;
use ring::rsa::{KeyPair as RsaKeyPair, PublicKeyComponents};
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256};
use serde_json::{Value, json};

/// A key for tests, which anybody may read: RSA keys take long to make.
const RSA: &[u8] = include_bytes!("issuer/rsa.pk8");

/// An identity provider; it ends when this is dropped.
pub struct Issuer {
    url: String,
    state: Arc<State>,
    server: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    keys: Mutex<Keys>,
    /// What is answered where, in place of the usual.
    instead: Mutex<HashMap<String, String>>,
    is_away: AtomicBool,
    asked: AtomicUsize,
    ends: AtomicBool,
}

#[derive(Default)]
struct Keys {
    /// Those that it tells of.
    published: Vec<Value>,
    /// That it signs with.
    signing: Option<(String, IssuerKey)>,
    made: usize,
}

enum IssuerKey {
    Ec(Arc<EcdsaKeyPair>),
    Rsa(Arc<RsaKeyPair>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Issuer {
    /// Starts one on a free port, with a key for ES256.
    ///
    /// # Errors
    /// There is no port or no key.
    pub fn start() -> Result<Issuer> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}", listener.local_addr()?);
        let state = Arc::new(State::default());
        let (own, serving) = (url.clone(), state.clone());
        let server = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if serving.ends.load(Ordering::SeqCst) {
                    return;
                }
                // Whoever asks badly gets no answer.
                let _ = stream.map(|it| serving.answer(&own, &it));
            }
        });
        let issuer = Issuer {
            url,
            state,
            server: Some(server),
        };
        issuer.rotate()?;
        Ok(issuer)
    }

    /// What its tokens have as `iss`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Signs with a new key for ES256 from now on, which it tells of beside those before.
    ///
    /// # Errors
    /// There is none.
    pub fn rotate(&self) -> Result<()> {
        let random = SystemRandom::new();
        let made = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random);
        let made = made.map_err(|_| anyhow!("no random numbers"))?;
        let pair =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, made.as_ref(), &random);
        let pair = pair.map_err(|error| anyhow!("{error}"))?;
        let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
        let key = json!({
            "kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig",
            "x": encode(x), "y": encode(y),
        });
        self.publish(key, IssuerKey::Ec(Arc::new(pair)));
        Ok(())
    }

    /// The same with the one key for RS256.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn rotate_to_rsa(&self) -> Result<()> {
        let pair = RsaKeyPair::from_pkcs8(RSA).map_err(|error| anyhow!("{error}"))?;
        let public = PublicKeyComponents::<Vec<u8>>::from(pair.public());
        let key = json!({
            "kty": "RSA",
            "n": encode(&public.n),
            "e": encode(&public.e),
        });
        self.publish(key, IssuerKey::Rsa(Arc::new(pair)));
        Ok(())
    }

    /// Tells of no key any more but the one that it signs with.
    pub fn withdraw(&self) {
        let mut keys = lock(&self.state.keys);
        let newest = keys.published.pop();
        keys.published = newest.into_iter().collect();
    }

    /// Signs with a new key under the id of the one before, and tells of it in that one's place.
    ///
    /// # Errors
    /// There is none.
    pub fn rotate_in_place(&self) -> Result<()> {
        self.rotate()?;
        let mut keys = lock(&self.state.keys);
        let newest = keys.published.pop();
        let before = keys.published.pop();
        let (mut newest, before) = newest.zip(before).context("there is a key before it")?;
        newest["kid"] = before["kid"].clone();
        keys.published.push(newest);
        let id = before["kid"]
            .as_str()
            .context("keys have an id")?
            .to_owned();
        let signing = keys.signing.take().context("it signs with a key")?;
        keys.signing = Some((id, signing.1));
        Ok(())
    }

    /// Signs with a new key, and tells nobody of that.
    ///
    /// # Errors
    /// There is none.
    pub fn rotate_secretly(&self) -> Result<()> {
        let before = lock(&self.state.keys).published.clone();
        self.rotate()?;
        lock(&self.state.keys).published = before;
        Ok(())
    }

    fn publish(&self, mut key: Value, signing: IssuerKey) {
        let mut keys = lock(&self.state.keys);
        keys.made += 1;
        let id = format!("key-{}", keys.made);
        key["kid"] = id.clone().into();
        keys.published.push(key);
        keys.signing = Some((id, signing));
    }

    /// Does not answer from now on, or does again.
    pub fn set_away(&self, is_away: bool) {
        self.state.is_away.store(is_away, Ordering::SeqCst);
    }

    /// Answers this at a path.
    pub fn answer(&self, path: &str, body: impl Into<String>) {
        lock(&self.state.instead).insert(path.to_owned(), body.into());
    }

    /// How often it was asked for its keys.
    pub fn asked(&self) -> usize {
        self.state.asked.load(Ordering::SeqCst)
    }

    /// What a token of this user for this audience says, good for an hour from a time in seconds
    /// since 1970; to be changed as a test wants it.
    pub fn claims(&self, user: &str, audience: &str, now_s: i64) -> Value {
        json!({
            "iss": self.url, "aud": audience, "sub": user,
            "iat": now_s, "nbf": now_s, "exp": now_s + 3_600,
        })
    }

    /// A token that says this.
    ///
    /// # Errors
    /// The key cannot sign.
    pub fn sign(&self, claims: &Value) -> Result<String> {
        self.sign_with(&json!({}), claims)
    }

    /// The same with a header that says something else, too.
    ///
    /// # Errors
    /// The key cannot sign.
    pub fn sign_with(&self, header: &Value, claims: &Value) -> Result<String> {
        let keys = lock(&self.state.keys);
        let (id, signing) = keys.signing.as_ref().context("it has a key")?;
        let alg = match signing {
            IssuerKey::Ec(_) => "ES256",
            IssuerKey::Rsa(_) => "RS256",
        };
        let mut full = json!({ "alg": alg, "typ": "JWT", "kid": id });
        for (name, value) in header.as_object().into_iter().flatten() {
            full[name] = value.clone();
        }
        let signed = format!("{}.{}", part(&full), part(claims));
        let random = SystemRandom::new();
        let signature = match signing {
            IssuerKey::Ec(pair) => {
                let signature = pair.sign(&random, signed.as_bytes());
                signature
                    .map_err(|_| anyhow!("no random numbers"))?
                    .as_ref()
                    .to_vec()
            }
            IssuerKey::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(
                    &RSA_PKCS1_SHA256,
                    &random,
                    signed.as_bytes(),
                    &mut signature,
                )
                .map_err(|_| anyhow!("the key cannot sign"))?;
                signature
            }
        };
        Ok(format!("{signed}.{}", encode(&signature)))
    }

    /// A token that nobody has signed.
    pub fn unsigned(claims: &Value) -> String {
        let header = json!({ "alg": "none", "typ": "JWT" });
        format!("{}.{}.", part(&header), part(claims))
    }

    /// A token signed with HMAC, for which the public key was taken as the secret: as bytes, and
    /// as the text that is published.
    ///
    /// # Errors
    /// There is no key.
    pub fn signed_with_the_public_key(&self, claims: &Value) -> Result<[String; 2]> {
        let keys = lock(&self.state.keys);
        let (id, signing) = keys.signing.as_ref().context("it has a key")?;
        let public = match signing {
            IssuerKey::Ec(pair) => pair.public_key().as_ref().to_vec(),
            IssuerKey::Rsa(pair) => pair.public().as_ref().to_vec(),
        };
        let published = keys.published.last().context("it tells of a key")?;
        let header = json!({ "alg": "HS256", "typ": "JWT", "kid": id });
        let signed = format!("{}.{}", part(&header), part(claims));
        Ok([public, published.to_string().into_bytes()].map(|secret| {
            let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
            let tag = hmac::sign(&key, signed.as_bytes());
            format!("{signed}.{}", encode(tag.as_ref()))
        }))
    }
}

impl State {
    fn answer(&self, url: &str, mut stream: &TcpStream) -> Result<()> {
        if self.is_away.load(Ordering::SeqCst) {
            stream.shutdown(Shutdown::Both)?;
            return Ok(());
        }
        let mut lines = BufReader::new(stream).lines();
        let request = lines.next().context("a request has a line")??;
        for line in lines {
            if line?.is_empty() {
                break;
            }
        }
        let path = request.split(' ').nth(1).unwrap_or_default();
        let instead = lock(&self.instead).get(path).cloned();
        let usual = || match path {
            "/.well-known/openid-configuration" => {
                Some(json!({ "issuer": url, "jwks_uri": format!("{url}/keys") }).to_string())
            }
            "/keys" => {
                self.asked.fetch_add(1, Ordering::SeqCst);
                let keys = &lock(&self.keys).published;
                Some(json!({ "keys": keys }).to_string())
            }
            _ => None,
        };
        let answer = match instead.or_else(usual) {
            // Whole answers begin with their status.
            Some(body) if body.starts_with("HTTP/1.1 ") => body,
            Some(body) => format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
                 connection: close\r\n\r\n{body}",
                body.len()
            ),
            None => "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".into(),
        };
        stream.write_all(answer.as_bytes())?;
        stream.shutdown(Shutdown::Write)?;
        Ok(())
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::SeqCst);
        let address = self.url.trim_start_matches("http://").to_owned();
        // It looks up when somebody connects.
        let _ = TcpStream::connect(address);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

fn part(value: &Value) -> String {
    encode(value.to_string().as_bytes())
}

fn encode(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
