//! Passwords: argon2id, in a bounded pool, at the same cost whether the user exists
//! or not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use tokio::sync::{Semaphore, oneshot};

use crate::environment::{Blocking, Environment, random};
use crate::error::ServerError;

/// Longer passwords are wrong passwords.
const MAX_PASSWORD_BYTES: usize = 1_024;

/// How many sign-ins may wait for each check that runs.
const WAITING_PER_CHECK: usize = 16;

fn argon2() -> Argon2<'static> {
    Argon2::new(Algorithm::Argon2id, Version::V0x13, Params::DEFAULT)
}

/// Hashes a password with a fresh salt, in PHC form, for the user's record.
///
/// # Errors
/// The password is empty or longer than 1,024 bytes.
pub fn hash_password(environment: &Environment, password: &str) -> Result<String, ServerError> {
    if password.is_empty() || password.len() > MAX_PASSWORD_BYTES {
        return Err(ServerError::configuration(
            format!("the password has {} bytes", password.len()),
            format!("choose one of 1 to {MAX_PASSWORD_BYTES} bytes"),
        ));
    }
    let failed = |error: &dyn std::fmt::Display| {
        ServerError::configuration(
            format!("the password cannot be hashed: {error}"),
            "try again",
        )
    };
    let salt = random::<16>(&*environment.randomness).map_err(|error| failed(&error))?;
    let salt = SaltString::encode_b64(&salt).map_err(|error| failed(&error))?;
    let hash = argon2()
        .hash_password(password.as_bytes(), &salt)
        .map_err(|error| failed(&error))?;
    Ok(hash.to_string())
}

/// A hash that no password has, of the cost of every other.
fn dummy_hash() -> String {
    format!(
        "$argon2id$v=19$m={},t={},p={}$dGlkZXdhdGVyIGR1bW15IQ${}",
        Params::DEFAULT_M_COST,
        Params::DEFAULT_T_COST,
        Params::DEFAULT_P_COST,
        "A".repeat(43)
    )
}

/// Checks passwords, a few at a time.
pub(crate) struct PasswordChecks {
    blocking: Arc<dyn Blocking>,
    running: Arc<Semaphore>,
    /// Checks that run or wait.
    admitted: AtomicUsize,
    limit: usize,
    dummy: String,
}

/// The answer to a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PasswordCheck {
    Right,
    Wrong,
    /// Too many checks wait already.
    Busy,
}

impl PasswordChecks {
    /// So many at a time.
    pub(crate) fn new(blocking: Arc<dyn Blocking>, parallel: usize) -> PasswordChecks {
        PasswordChecks {
            blocking,
            running: Arc::new(Semaphore::new(parallel)),
            admitted: AtomicUsize::new(0),
            limit: parallel * (1 + WAITING_PER_CHECK),
            dummy: dummy_hash(),
        }
    }

    /// Whether the password has this hash. Without a hash (no such user) it is
    /// wrong, at the same cost.
    pub(crate) async fn check(&self, hash: Option<&str>, password: &str) -> PasswordCheck {
        if self.admitted.fetch_add(1, Ordering::Relaxed) >= self.limit {
            self.admitted.fetch_sub(1, Ordering::Relaxed);
            return PasswordCheck::Busy;
        }
        let _admitted = Admitted(&self.admitted);
        let Ok(permit) = self.running.clone().acquire_owned().await else {
            return PasswordCheck::Busy;
        };
        let hash = hash.filter(|hash| !hash.is_empty());
        let known = hash.is_some() && password.len() <= MAX_PASSWORD_BYTES;
        let hash = if known { hash } else { None };
        let hash = hash.unwrap_or(&self.dummy).to_owned();
        let mut password = password.to_owned();
        password.truncate(floor_char_boundary(&password, MAX_PASSWORD_BYTES));
        let (done, answer) = oneshot::channel();
        self.blocking.run(Box::new(move || {
            let right = verify(&hash, &password);
            // Nobody waits any more if the connection is gone.
            let _ = done.send(right);
            drop(permit);
        }));
        match answer.await {
            Ok(true) if known => PasswordCheck::Right,
            Ok(_) => PasswordCheck::Wrong,
            Err(_) => PasswordCheck::Busy,
        }
    }
}

struct Admitted<'a>(&'a AtomicUsize);

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn verify(hash: &str, password: &str) -> bool {
    PasswordHash::new(hash)
        .is_ok_and(|hash| argon2().verify_password(password.as_bytes(), &hash).is_ok())
}

fn floor_char_boundary(text: &str, limit: usize) -> usize {
    (0..=limit.min(text.len()))
        .rev()
        .find(|&index| text.is_char_boundary(index))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    }

    #[test]
    fn a_password_is_right_only_for_its_own_hash() {
        let environment = Environment::real();
        let checks = PasswordChecks::new(environment.blocking.clone(), 1);
        let hash = hash_password(&environment, "correct horse").unwrap();
        assert!(hash.starts_with("$argon2id$"));
        assert_ne!(hash, hash_password(&environment, "correct horse").unwrap());
        runtime().block_on(async {
            let check = |hash, password| checks.check(hash, password);
            assert_eq!(
                check(Some(&hash), "correct horse").await,
                PasswordCheck::Right
            );
            assert_eq!(check(Some(&hash), "correct").await, PasswordCheck::Wrong);
            assert_eq!(check(None, "correct horse").await, PasswordCheck::Wrong);
            assert_eq!(check(Some(""), "").await, PasswordCheck::Wrong);
            assert_eq!(check(Some("nonsense"), "x").await, PasswordCheck::Wrong);
            let long = "ä".repeat(4_000);
            assert_eq!(check(Some(&hash), &long).await, PasswordCheck::Wrong);
        });
        assert!(hash_password(&environment, "").is_err());
    }

    #[test]
    fn the_dummy_costs_what_every_hash_costs() {
        let dummy = dummy_hash();
        let parsed = PasswordHash::new(&dummy).unwrap();
        let environment = Environment::real();
        let real = hash_password(&environment, "x").unwrap();
        let real = PasswordHash::new(&real).unwrap();
        assert_eq!(parsed.params, real.params);
        assert_eq!(parsed.algorithm, real.algorithm);
        assert_eq!(parsed.hash.unwrap().len(), real.hash.unwrap().len());
        assert!(!verify(&dummy, ""));
    }

    #[test]
    fn more_checks_than_can_wait_are_told_to_come_back() {
        struct Never;
        impl Blocking for Never {
            fn run(&self, job: Box<dyn FnOnce() + Send>) {
                std::mem::forget(job);
            }
        }
        runtime().block_on(async {
            let checks = Arc::new(PasswordChecks::new(Arc::new(Never), 1));
            let waiting: Vec<_> = (0..=WAITING_PER_CHECK)
                .map(|_| {
                    let checks = checks.clone();
                    tokio::spawn(async move { checks.check(None, "x").await })
                })
                .collect();
            while checks.admitted.load(Ordering::Relaxed) <= WAITING_PER_CHECK {
                tokio::task::yield_now().await;
            }
            assert_eq!(checks.check(None, "x").await, PasswordCheck::Busy);
            for task in &waiting {
                task.abort();
            }
            for task in waiting {
                let _ = task.await;
            }
            assert_eq!(checks.admitted.load(Ordering::Relaxed), 0);
        });
    }
}
