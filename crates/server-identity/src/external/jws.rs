//! Tokens as identity providers sign them (JWT, RFC 7519, in the compact form of RFC 7515), and the
//! keys that they publish for that (RFC 7517).
//!
//! Owns reading both and the signature's arithmetic, which is ring's. What a token says is left to
//! `oidc`. Only algorithms are known of which a server cannot sign by itself: there is no `none`
//! to be forgotten and no secret that a public key could be taken for.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Map, Value};
use tidewater_carrier::cryptography::signature::{
    self, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use tidewater_protocol::message::{MAX_BEARER_BYTES, bearer_too_long};

use tidewater_server_config::SigningAlgorithm;

/// So many keys of an issuer are looked at.
const MAX_KEYS: usize = 100;

/// A token that is read, and of which nothing is proven yet.
#[derive(Debug)]
pub(super) struct Token<'a> {
    pub(super) header: Header,
    pub(super) claims: Map<String, Value>,
    signed: &'a str,
    signature: Vec<u8>,
}

/// What a token says of its signature.
#[derive(Debug, Deserialize)]
pub(super) struct Header {
    #[serde(default)]
    pub(super) alg: String,
    pub(super) kid: Option<String>,
    pub(super) typ: Option<String>,
    crit: Option<Value>,
}

/// Why a text is no token.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("{}", bearer_too_long(*.0))]
    TooLong(usize),
    #[error("it has not three parts with dots between them")]
    Parts,
    #[error("its {0} is no Base64 of JSON")]
    Json(&'static str),
    #[error("its header asks for extensions that nobody knows here")]
    Critical,
}

impl<'a> Token<'a> {
    pub(super) fn read(text: &'a str) -> Result<Token<'a>, Unreadable> {
        if text.len() > MAX_BEARER_BYTES {
            return Err(Unreadable::TooLong(text.len()));
        }
        let (signed, signature) = text.rsplit_once('.').ok_or(Unreadable::Parts)?;
        let (header, claims) = signed.split_once('.').ok_or(Unreadable::Parts)?;
        if claims.contains('.') {
            return Err(Unreadable::Parts);
        }
        let header: Header = part(header).ok_or(Unreadable::Json("header"))?;
        if header.crit.is_some() {
            return Err(Unreadable::Critical);
        }
        Ok(Token {
            header,
            claims: part(claims).ok_or(Unreadable::Json("payload"))?,
            signed,
            signature: decode(signature).ok_or(Unreadable::Json("signature"))?,
        })
    }

    /// Whether this key, used so, has signed it.
    pub(super) fn is_signed(&self, key: &Key, algorithm: SigningAlgorithm) -> bool {
        key.fits(algorithm) && key.verify(algorithm, self.signed.as_bytes(), &self.signature)
    }
}

/// Whether one of these keys has signed a token, as it says. For the fuzzer: what it says is not
/// looked at.
pub fn is_signed_by(token: &str, keys: &[u8]) -> bool {
    let (Ok(token), Ok(keys)) = (Token::read(token), Keys::read(keys)) else {
        return false;
    };
    let Some(algorithm) = SigningAlgorithm::from_name(&token.header.alg) else {
        return false;
    };
    let keys = keys.for_token(token.header.kid.as_deref(), algorithm);
    keys.iter().any(|key| token.is_signed(key, algorithm))
}

fn part<T: serde::de::DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_slice(&decode(text)?).ok()
}

fn decode(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// The keys of an issuer.
#[derive(Debug, Default)]
pub(super) struct Keys(Vec<Key>);

/// A public key of an issuer.
#[derive(Debug)]
pub(super) struct Key {
    id: Option<String>,
    /// The only one that it is for, if it says so.
    algorithm: Option<String>,
    public: Public,
}

#[derive(Debug)]
enum Public {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// A point, not compressed.
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

#[derive(Deserialize)]
struct RawKeys {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct RawKey {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl Keys {
    /// Reads a set of keys. Those of other kinds, and for other purposes, are left out.
    ///
    /// # Errors
    /// It is no set of keys.
    pub(super) fn read(json: &[u8]) -> Result<Keys, String> {
        let raw: RawKeys = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        let keys = raw.keys.into_iter().take(MAX_KEYS);
        let keys = keys.filter_map(|key| Key::of(serde_json::from_value(key).ok()?));
        Ok(Keys(keys.collect()))
    }

    /// Those with which a token that says this may be signed.
    pub(super) fn for_token(&self, id: Option<&str>, algorithm: SigningAlgorithm) -> Vec<&Key> {
        let keys = self.0.iter().filter(|key| key.fits(algorithm));
        let is_named = |key: &&Key| id.is_none() || key.id.as_deref() == id;
        keys.filter(is_named).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Key {
    fn of(raw: RawKey) -> Option<Key> {
        if raw.purpose.as_deref().is_some_and(|it| it != "sig") {
            return None;
        }
        let bytes = |text: &Option<String>| decode(text.as_deref()?);
        let coordinate = |text, length| bytes(text).filter(|it| it.len() == length);
        let point = |length| {
            let mut point = vec![4];
            point.extend(coordinate(&raw.x, length)?);
            point.extend(coordinate(&raw.y, length)?);
            Some(point)
        };
        let public = match (raw.kty.as_str(), raw.crv.as_deref()) {
            ("RSA", _) => Public::Rsa {
                n: without_zeros(bytes(&raw.n)?),
                e: without_zeros(bytes(&raw.e)?),
            },
            ("EC", Some("P-256")) => Public::P256(point(32)?),
            ("EC", Some("P-384")) => Public::P384(point(48)?),
            ("OKP", Some("Ed25519")) => Public::Ed25519(coordinate(&raw.x, 32)?),
            _ => return None,
        };
        Some(Key {
            id: raw.kid,
            algorithm: raw.alg,
            public,
        })
    }

    /// Whether it can be used so.
    fn fits(&self, algorithm: SigningAlgorithm) -> bool {
        let is_meant = self.algorithm.as_deref();
        let is_meant = is_meant.is_none_or(|it| it == algorithm.name());
        is_meant
            && match (&self.public, algorithm) {
                (Public::P256(_), SigningAlgorithm::ES256)
                | (Public::P384(_), SigningAlgorithm::ES384)
                | (Public::Ed25519(_), SigningAlgorithm::EdDSA) => true,
                (Public::Rsa { .. }, algorithm) => rsa(algorithm).is_some(),
                _ => false,
            }
    }

    fn verify(&self, algorithm: SigningAlgorithm, message: &[u8], signature: &[u8]) -> bool {
        let by_point = |with: &'static dyn VerificationAlgorithm, point: &Vec<u8>| {
            UnparsedPublicKey::new(with, point).verify(message, signature)
        };
        let verified = match &self.public {
            Public::Rsa { n, e } => match rsa(algorithm) {
                Some(with) => RsaPublicKeyComponents { n, e }.verify(with, message, signature),
                None => return false,
            },
            Public::P256(point) => by_point(&signature::ECDSA_P256_SHA256_FIXED, point),
            Public::P384(point) => by_point(&signature::ECDSA_P384_SHA384_FIXED, point),
            Public::Ed25519(point) => by_point(&signature::ED25519, point),
        };
        verified.is_ok()
    }
}

/// Of at least 2,048 bits.
fn rsa(algorithm: SigningAlgorithm) -> Option<&'static signature::RsaParameters> {
    Some(match algorithm {
        SigningAlgorithm::RS256 => &signature::RSA_PKCS1_2048_8192_SHA256,
        SigningAlgorithm::RS384 => &signature::RSA_PKCS1_2048_8192_SHA384,
        SigningAlgorithm::RS512 => &signature::RSA_PKCS1_2048_8192_SHA512,
        SigningAlgorithm::PS256 => &signature::RSA_PSS_2048_8192_SHA256,
        SigningAlgorithm::PS384 => &signature::RSA_PSS_2048_8192_SHA384,
        SigningAlgorithm::PS512 => &signature::RSA_PSS_2048_8192_SHA512,
        SigningAlgorithm::ES256 | SigningAlgorithm::ES384 | SigningAlgorithm::EdDSA => return None,
    })
}

/// Some providers write a zero in front, so that the number is positive.
fn without_zeros(mut number: Vec<u8>) -> Vec<u8> {
    let zeros = number.iter().take_while(|&&byte| byte == 0).count();
    number.drain(..zeros);
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7515, A.2: RS256.
    const RSA_KEY: &str = r#"{"keys":[{"kty":"RSA","kid":"r","n":"ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ","e":"AQAB"}]}"#;
    const RSA_TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";

    /// RFC 7515, A.3: ES256.
    const EC_KEY: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;
    const EC_TOKEN: &str = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";

    fn signed_by<'k>(keys: &'k Keys, token: &Token<'_>, algorithm: SigningAlgorithm) -> bool {
        let keys: Vec<&'k Key> = keys.for_token(token.header.kid.as_deref(), algorithm);
        keys.iter().any(|key| token.is_signed(key, algorithm))
    }

    #[test]
    fn the_examples_of_rfc_7515_are_genuine_and_every_change_of_them_is_noticed() {
        for (keys, text, algorithm) in [
            (RSA_KEY, RSA_TOKEN, SigningAlgorithm::RS256),
            (EC_KEY, EC_TOKEN, SigningAlgorithm::ES256),
        ] {
            let keys = Keys::read(keys.as_bytes()).unwrap();
            let token = Token::read(text).unwrap();
            assert_eq!(token.claims["iss"], "joe");
            assert_eq!(token.header.alg, algorithm.name());
            assert!(signed_by(&keys, &token, algorithm));
            assert!(!signed_by(&keys, &token, SigningAlgorithm::RS384));
            assert!(!signed_by(&keys, &token, SigningAlgorithm::EdDSA));
            for at in (0..text.len()).step_by(7) {
                let mut changed = text.as_bytes().to_vec();
                changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
                let changed = String::from_utf8(changed).unwrap();
                if let Ok(token) = Token::read(&changed) {
                    // The last sign of Base64 has bits that mean nothing, and may be refused.
                    assert!(!signed_by(&keys, &token, algorithm), "{at}");
                }
            }
        }
    }

    #[test]
    fn a_key_is_used_only_as_it_says_and_other_keys_are_left_out() {
        let keys = |change: &dyn Fn(&mut Value)| {
            let mut keys: Value = serde_json::from_str(RSA_KEY).unwrap();
            change(&mut keys["keys"][0]);
            Keys::read(keys.to_string().as_bytes()).unwrap()
        };
        let token = Token::read(RSA_TOKEN).unwrap();
        let is_signed = |keys: &Keys| signed_by(keys, &token, SigningAlgorithm::RS256);
        assert!(is_signed(&keys(&|_| {})));
        assert!(is_signed(&keys(&|it| it["use"] = "sig".into())));
        assert!(is_signed(&keys(&|it| it["alg"] = "RS256".into())));
        assert!(!is_signed(&keys(&|it| it["alg"] = "PS256".into())));
        for (name, value) in [("use", "enc"), ("kty", "oct"), ("kty", "new"), ("n", "!")] {
            assert_eq!(keys(&|it| it[name] = value.into()).len(), 0, "{name}");
        }
        let named = keys(&|_| {});
        assert_eq!(named.for_token(Some("r"), SigningAlgorithm::RS256).len(), 1);
        assert_eq!(named.for_token(Some("s"), SigningAlgorithm::RS256).len(), 0);
        assert!(Keys::read(b"[]").is_err());
        assert_eq!(Keys::read(b"{\"keys\":[1,{}]}").unwrap().len(), 0);
    }

    #[test]
    fn what_is_no_token_says_why() {
        let encode = |json: &str| URL_SAFE_NO_PAD.encode(json);
        let long = "x".repeat(MAX_BEARER_BYTES + 1);
        let critical = encode("{\"alg\":\"RS256\",\"crit\":[\"b64\"]}");
        let critical = format!("{critical}.{}.AA", encode("{}"));
        for (text, why) in [
            ("", Unreadable::Parts),
            ("a.b", Unreadable::Parts),
            ("a.b.c.d", Unreadable::Parts),
            ("!.e30.AA", Unreadable::Json("header")),
            ("e30.e30.!", Unreadable::Json("signature")),
            ("e30.W10.AA", Unreadable::Json("payload")),
            (&critical, Unreadable::Critical),
            (&long, Unreadable::TooLong(MAX_BEARER_BYTES + 1)),
        ] {
            assert_eq!(Token::read(text).unwrap_err(), why, "{text:.20}");
        }
    }
}
