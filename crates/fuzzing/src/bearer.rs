//! Tokens of identity providers and the sets of their keys: nothing counts that no key has signed.

use tidewater_server::fuzzing::is_signed_by;

use crate::input::Input;

/// RFC 7515, A.3: a key for ES256, and what it has signed.
const KEYS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;
const TOKEN: &str = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";

/// The bytes of a token or of a set of keys; or the genuine one, changed at one place.
///
/// # Panics
/// A promise is broken.
pub fn bearer(data: &[u8]) {
    let mut input = Input::new(data);
    let (choice, at, with) = (input.below(4), input.below(256), input.byte());
    let genuine = if choice < 2 { TOKEN } else { KEYS };
    let changed = match choice % 2 {
        0 => {
            let mut changed = genuine.as_bytes().to_vec();
            let at = at % changed.len();
            changed[at] ^= with;
            changed.extend_from_slice(input.rest());
            changed
        }
        _ => input.rest().to_vec(),
    };
    if choice < 2 {
        let Ok(token) = std::str::from_utf8(&changed) else {
            return;
        };
        let is_signed = is_signed_by(token, KEYS.as_bytes());
        assert_eq!(is_signed, token == TOKEN, "a forged token");
    } else {
        // Whatever the keys are, they have not signed what was changed.
        is_signed_by(TOKEN, &changed);
        assert!(!is_signed_by(&TOKEN.replacen('I', "J", 1), &changed));
    }
}
