//! One password for all users, as cheap to check as a hash can be: ten thousand first sign-ins are
//! not what is measured.

use argon2::password_hash::{PasswordHasher, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use tidewater_server::Environment;

/// See the module.
pub(crate) struct Password {
    text: String,
    hash: String,
}

impl Password {
    pub(crate) fn random() -> anyhow::Result<Password> {
        let mut bytes = [0; 48];
        Environment::real().randomness.fill(&mut bytes)?;
        let (bytes, salt) = bytes.split_at(32);
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let failed = |error| anyhow::anyhow!("the password cannot be hashed: {error}");
        let parameters = Params::new(Params::MIN_M_COST, 1, 1, None);
        let parameters = parameters.map_err(|error| anyhow::anyhow!("{error}"))?;
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, parameters);
        let salt = SaltString::encode_b64(salt).map_err(failed)?;
        let hash = argon2
            .hash_password(text.as_bytes(), &salt)
            .map_err(failed)?;
        Ok(Password {
            text,
            hash: hash.to_string(),
        })
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn hash(&self) -> &str {
        &self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_one_that_a_server_takes() {
        let password = Password::random().unwrap();
        tidewater_server::check_password_hash(password.hash()).unwrap();
        assert_ne!(password.text(), Password::random().unwrap().text());
    }
}
