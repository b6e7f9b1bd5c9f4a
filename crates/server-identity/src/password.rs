//! Passwords: argon2id, in a bounded pool, at the same cost whether the user exists
//! or not.
//!
//! A sign-in takes a place in the pool before anything else is done for it, so that ten
//! thousand at once cost ten thousand refusals and nothing more. Those who are turned away
//! are told to come back one after the other, at the pace of the pool.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use argon2::password_hash::{self, PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

use tidewater_server_jobs::environment::{BlockingRunner, Environment, random};
use tidewater_server_jobs::error::ServerError;

/// Longer passwords are wrong passwords.
const MAX_PASSWORD_BYTES: usize = 1_024;

/// How many sign-ins may wait for each check that runs.
const WAITING_PER_CHECK: usize = 64;

fn argon2() -> Argon2<'static> {
    Argon2::new(Algorithm::Argon2id, Version::V0x13, Params::DEFAULT)
}

/// Hashes a password with a fresh salt, in PHC form, for the user's record.
///
/// # Errors
/// The password is empty or longer than 1,024 bytes.
pub fn hash_password(environment: &Environment, password: &str) -> Result<String, ServerError> {
    check_new_password(password)
        .map_err(|wrong| ServerError::configuration(wrong.what, wrong.hint))?;
    let failed = |error: &dyn std::fmt::Display| {
        ServerError::configuration(
            format!("the password cannot be hashed: {error}"),
            "try again",
        )
    };
    let salt = random(&*environment.randomness).map_err(|error| failed(&error))?;
    hash_with(salt, password).map_err(|error| failed(&error))
}

/// Why a password cannot be one, and what to do.
pub struct UnfitPassword {
    /// What is wrong with it.
    pub what: String,
    /// What to do next.
    pub hint: String,
}

/// Whether a password may be set.
pub fn check_new_password(password: &str) -> Result<(), UnfitPassword> {
    match (1..=MAX_PASSWORD_BYTES).contains(&password.len()) {
        true => Ok(()),
        false => Err(UnfitPassword {
            what: format!("the password has {} bytes", password.len()),
            hint: format!("choose one of 1 to {MAX_PASSWORD_BYTES} bytes"),
        }),
    }
}

fn hash_with(salt: [u8; 16], password: &str) -> password_hash::Result<String> {
    let salt = SaltString::encode_b64(&salt)?;
    Ok(argon2()
        .hash_password(password.as_bytes(), &salt)?
        .to_string())
}

/// What a hash from elsewhere may cost: a check must not exhaust the server.
const MAX_MEMORY_KIB: u32 = 256 * 1024;
const MAX_ITERATIONS: u32 = 16;
const MAX_LANES: u32 = 16;

/// Checks that a text is a password hash that the server can check passwords against.
///
/// # Errors
/// It is no argon2id hash in PHC form, or checking it would cost too much.
pub fn check_password_hash(hash: &str) -> Result<(), ServerError> {
    let wrong = |what: String| {
        ServerError::configuration(
            what,
            "write an argon2id hash in PHC form, $argon2id$v=19$m=...,t=...,p=...$SALT$HASH",
        )
    };
    let parsed = PasswordHash::new(hash)
        .map_err(|error| wrong(format!("the password hash cannot be read: {error}")))?;
    if Algorithm::try_from(parsed.algorithm) != Ok(Algorithm::Argon2id) {
        return Err(wrong(format!(
            "the password hash is {}, not argon2id",
            parsed.algorithm
        )));
    }
    let parameters = Params::try_from(&parsed)
        .map_err(|error| wrong(format!("the password hash cannot be checked: {error}")))?;
    if parsed.salt.is_none() || parsed.hash.is_none() {
        return Err(wrong("the password hash is not complete".into()));
    }
    let too_much = parameters.m_cost() > MAX_MEMORY_KIB
        || parameters.t_cost() > MAX_ITERATIONS
        || parameters.p_cost() > MAX_LANES;
    if too_much {
        return Err(wrong(format!(
            "checking the password hash would cost too much: at most m={MAX_MEMORY_KIB}, \
             t={MAX_ITERATIONS}, p={MAX_LANES}"
        )));
    }
    Ok(())
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

/// When those who are turned away are asked to come back, at the latest.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(120);

/// Checks passwords, a few at a time.
pub struct PasswordChecks {
    blocking: Arc<dyn BlockingRunner>,
    running: Arc<Semaphore>,
    /// Checks that run or wait.
    admitted: AtomicUsize,
    limit: usize,
    parallel: usize,
    dummy: String,
    pace: Mutex<Pace>,
}

/// How fast checks go, and up to when those who were turned away would keep the pool busy
/// if they came back as they were told.
struct Pace {
    check: Duration,
    booked: Instant,
}

/// A place in the pool.
pub struct CheckPlace<'a>(&'a PasswordChecks);

/// The answer to a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PasswordCheck {
    /// The password is the user's.
    Right,
    /// It is not.
    Wrong,
    /// The check was not made: the server ends.
    Dropped,
}

impl PasswordChecks {
    /// So many at a time.
    pub fn new(blocking: Arc<dyn BlockingRunner>, parallel: usize) -> PasswordChecks {
        PasswordChecks {
            blocking,
            running: Arc::new(Semaphore::new(parallel)),
            admitted: AtomicUsize::new(0),
            limit: parallel * (1 + WAITING_PER_CHECK),
            parallel,
            dummy: dummy_hash(),
            pace: Mutex::new(Pace {
                check: Duration::from_millis(50),
                booked: Instant::now(),
            }),
        }
    }

    /// A place in the pool; `None` if too many wait already.
    pub fn admit(&self) -> Option<CheckPlace<'_>> {
        let before = self.admitted.fetch_add(1, Ordering::Relaxed);
        let place = CheckPlace(self);
        // Without a place, the drop gives the number back.
        (before < self.limit).then_some(place)
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When somebody who found no place comes back, in milliseconds: after everybody who
    /// waits and everybody who was turned away before. `jitter` is random.
    pub fn retry_after_ms(&self, jitter: u8) -> u64 {
        let now = Instant::now();
        let waiting = self.admitted.load(Ordering::Relaxed).min(self.limit);
        let mut pace = self.pace();
        let each = pace.check.div_f64(self.parallel.max(1) as f64);
        let served = now + each.mul_f64(waiting as f64);
        let latest = now + MAX_RETRY_AFTER;
        pace.booked = (pace.booked.max(served) + each).min(latest);
        let after = (pace.booked - now).max(Duration::from_secs(1));
        // At the end of what can be booked, the crowd spreads.
        let after = after.mul_f64(1.0 + f64::from(jitter) / 510.0);
        u64::try_from(after.as_millis()).unwrap_or(u64::MAX)
    }
}

impl CheckPlace<'_> {
    /// Whether the password has this hash. Without a hash (no such user) it is
    /// wrong, at the same cost.
    pub async fn check(self, hash: Option<&str>, password: &str) -> PasswordCheck {
        let checks = self.0;
        let hash = hash.filter(|hash| !hash.is_empty());
        let known = hash.is_some() && password.len() <= MAX_PASSWORD_BYTES;
        let hash = if known { hash } else { None };
        let hash = hash.unwrap_or(&checks.dummy).to_owned();
        let mut password = password.to_owned();
        password.truncate(floor_char_boundary(&password, MAX_PASSWORD_BYTES));
        match self.run(move || verify(&hash, &password)).await {
            Some(true) if known => PasswordCheck::Right,
            Some(_) => PasswordCheck::Wrong,
            None => PasswordCheck::Dropped,
        }
    }

    /// The hash of a password that is to be set; `None` if the server ends.
    pub async fn hash(
        self,
        salt: [u8; 16],
        password: &str,
    ) -> Option<password_hash::Result<String>> {
        let password = password.to_owned();
        self.run(move || hash_with(salt, &password)).await
    }

    /// Does in the pool what takes as long as a check; `None` if the server ends.
    async fn run<T: Send + 'static>(self, job: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let checks = self.0;
        let permit = checks.running.clone().acquire_owned().await.ok()?;
        let (done, answer) = oneshot::channel();
        let begun = Instant::now();
        checks.blocking.run(Box::new(move || {
            // Nobody waits any more if the connection is gone.
            let _ = done.send(job());
            drop(permit);
        }));
        let answer = answer.await;
        let mut pace = checks.pace();
        pace.check = pace.check.mul_f64(0.9) + begun.elapsed().mul_f64(0.1);
        answer.ok()
    }
}

impl Drop for CheckPlace<'_> {
    fn drop(&mut self) {
        self.0.admitted.fetch_sub(1, Ordering::Relaxed);
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
            let check = |hash, password| checks.admit().unwrap().check(hash, password);
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
    fn a_hash_from_elsewhere_is_checked_before_it_is_stored() {
        assert!(check_password_hash(&dummy_hash()).is_ok());
        let light = "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$a2V5a2V5a2V5a2V5a2V5a2V5a2V5a2U";
        assert!(check_password_hash(light).is_ok());
        for (hash, part) in [
            ("secret", "cannot be read"),
            ("$2b$12$abcdefghijklmnopqrstuv", "cannot be read"),
            (
                "$argon2i$v=19$m=8,t=1,p=1$c29tZXNhbHQ$a2V5a2V5a2V5a2U",
                "not argon2id",
            ),
            ("$argon2id$v=19$m=8,t=1,p=1", "not complete"),
            (
                "$argon2id$v=19$m=9000000,t=1,p=1$c29tZXNhbHQ$a2V5a2V5a2V5a2U",
                "too much",
            ),
            (
                "$argon2id$v=19$m=1,t=1,p=1$c29tZXNhbHQ$a2V5a2V5a2V5a2U",
                "cannot be checked",
            ),
        ] {
            let error = check_password_hash(hash).unwrap_err().to_string();
            assert!(error.contains(part), "{hash}: {error}");
        }
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

    #[tokio::test(start_paused = true)]
    async fn more_checks_than_can_wait_are_told_to_come_back_one_after_the_other() {
        struct Never;
        impl BlockingRunner for Never {
            fn run(&self, job: Box<dyn FnOnce() + Send>) {
                std::mem::forget(job);
            }
        }
        let checks = PasswordChecks::new(Arc::new(Never), 1);
        let places: Vec<CheckPlace<'_>> = (0..=WAITING_PER_CHECK)
            .map(|_| checks.admit().unwrap())
            .collect();
        assert!(checks.admit().is_none());
        assert!(
            checks.admit().is_none(),
            "who is turned away takes no place"
        );
        let told: Vec<u64> = (0..10_000).map(|_| checks.retry_after_ms(0)).collect();
        assert!(told.is_sorted());
        // Sixty-five wait, 50 ms each, and every second brings twenty more.
        assert_eq!(told[0], 66 * 50);
        assert_eq!(told[1_000], 1_066 * 50);
        assert_eq!(told[9_999], 120_000);
        assert_eq!(checks.retry_after_ms(255), 180_000);
        drop(places);
        assert_eq!(checks.admitted.load(Ordering::Relaxed), 0);
        tokio::time::advance(MAX_RETRY_AFTER).await;
        assert_eq!(checks.retry_after_ms(0), 1_000, "the crowd is forgotten");
    }
}
