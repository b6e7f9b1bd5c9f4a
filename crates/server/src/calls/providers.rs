//! Who provides which procedures at the moment.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidewater_protocol::Code;
use tidewater_protocol::message::CallFailed;

use super::Address;
use super::post::Post;

/// By the procedure's name.
#[derive(Default)]
pub(super) struct Providers(Mutex<HashMap<String, Vec<Arc<Post>>>>);

impl Providers {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Vec<Arc<Post>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(&self, name: &str, post: &Arc<Post>) {
        let mut all = self.all();
        let of_name = all.entry(name.to_owned()).or_default();
        if !of_name.iter().any(|it| Arc::ptr_eq(it, post)) {
            of_name.push(post.clone());
        }
    }

    pub(super) fn leave(&self, name: &str, post: &Arc<Post>) {
        let mut all = self.all();
        if let Some(of_name) = all.get_mut(name) {
            of_name.retain(|it| !Arc::ptr_eq(it, post));
            if of_name.is_empty() {
                all.remove(name);
            }
        }
    }

    pub(super) fn leave_all(&self, post: &Arc<Post>) {
        self.all().retain(|_, of_name| {
            of_name.retain(|it| !Arc::ptr_eq(it, post));
            !of_name.is_empty()
        });
    }

    /// The one of those that are meant who has the least to do, of those who wait for calls if
    /// there is one; `None` if there is nobody.
    ///
    /// # Errors
    /// All of them have as much as they can have.
    pub(super) fn choose(&self, name: &str, to: &Address) -> Result<Option<Arc<Post>>, CallFailed> {
        let all = self.all();
        let Some(of_name) = all.get(name) else {
            return Ok(None);
        };
        let meant = of_name.iter().filter(|post| to.means(post.who()));
        let meant = meant.map(|post| (post.asked().unwrap_or(usize::MAX), post));
        match meant.min_by_key(|(asked, post)| (!post.is_attended(), *asked)) {
            None => Ok(None),
            Some((asked, post)) if asked < usize::MAX => Ok(Some(post.clone())),
            Some(_) => {
                let mut busy = CallFailed::new(
                    Code::Busy,
                    format!("whoever provides {name:?} has too much to do"),
                    "call again later, or start another provider",
                );
                busy.retry_after_ms = 500;
                Err(busy)
            }
        }
    }
}
