//! Who provides which procedures at the moment.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use tidewater_protocol::message::CallFailed;

use crate::call_address::CallAddress;
use crate::call_address::subjects;
use crate::call_outcome::busy;
use crate::outgoing_calls::OutgoingCalls;
use tidewater_centre::Caller;

/// Those who provide, and what other servers have to know of them.
#[derive(Default)]
pub(crate) struct Providers {
    all: Mutex<All>,
    changed: Notify,
}

#[derive(Default)]
struct All {
    /// By the procedure's name.
    posts: HashMap<String, Vec<Arc<OutgoingCalls>>>,
    /// Those who provided what they may not provide now: they do so again once they may.
    resting: Vec<(String, Arc<OutgoingCalls>)>,
    /// How many can be meant under a subject of other servers.
    subjects: HashMap<String, usize>,
    /// The subjects under which somebody can be meant since they were asked for, or nobody any more.
    changed: HashSet<String>,
}

impl All {
    fn entered(&mut self, name: &str, post: &OutgoingCalls) {
        for subject in subjects(name, post.who()) {
            let count = self.subjects.entry(subject.clone()).or_default();
            *count += 1;
            if *count == 1 {
                self.changed.insert(subject);
            }
        }
    }

    fn left(&mut self, name: &str, post: &OutgoingCalls) {
        for subject in subjects(name, post.who()) {
            if let Some(count) = self.subjects.get_mut(&subject) {
                *count -= 1;
                if *count == 0 {
                    self.subjects.remove(&subject);
                    self.changed.insert(subject);
                }
            }
        }
    }
}

impl All {
    /// Whether it did not before.
    fn enter(&mut self, name: &str, post: &Arc<OutgoingCalls>) -> bool {
        self.rest_no_more(name, post);
        let of_name = self.posts.entry(name.to_owned()).or_default();
        let enters = !of_name.iter().any(|it| Arc::ptr_eq(it, post));
        if enters {
            of_name.push(post.clone());
            self.entered(name, post);
        }
        enters
    }

    /// Whether it did before.
    fn leave(&mut self, name: &str, post: &Arc<OutgoingCalls>) -> bool {
        self.rest_no_more(name, post);
        let Some(of_name) = self.posts.get_mut(name) else {
            return false;
        };
        let Some(place) = of_name.iter().position(|it| Arc::ptr_eq(it, post)) else {
            return false;
        };
        of_name.remove(place);
        if of_name.is_empty() {
            self.posts.remove(name);
        }
        self.left(name, post);
        true
    }

    fn rest_no_more(&mut self, name: &str, post: &Arc<OutgoingCalls>) {
        self.resting
            .retain(|(it, who)| it != name || !Arc::ptr_eq(who, post));
    }
}

impl Providers {
    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends when [`Self::changes`] has some. Safe to drop; one caller at a time.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The subjects of other servers that have changed, and whether somebody provides there now.
    pub(crate) fn changes(&self) -> Vec<(String, bool)> {
        let mut all = self.all();
        let changed = std::mem::take(&mut all.changed).into_iter();
        let changes = changed.map(|subject| {
            let is_provided = all.subjects.contains_key(&subject);
            (subject, is_provided)
        });
        changes.collect()
    }

    /// Goes by what everybody may provide from now on.
    pub(crate) fn settle(&self, may: impl Fn(&str, &Caller) -> bool) {
        let mut all = self.all();
        let named = all.posts.iter();
        let named =
            named.flat_map(|(name, posts)| posts.iter().map(|it| (name.clone(), it.clone())));
        let stopping: Vec<_> = named.filter(|(name, it)| !may(name, it.who())).collect();
        let resting = std::mem::take(&mut all.resting).into_iter();
        let (again, resting): (Vec<_>, Vec<_>) =
            resting.partition(|(name, it)| may(name, it.who()));
        all.resting = resting;
        for (name, post) in again {
            all.enter(&name, &post);
        }
        for (name, post) in stopping {
            all.leave(&name, &post);
            all.resting.push((name, post));
        }
        self.changed.notify_one();
    }

    pub(crate) fn enter(&self, name: &str, post: &Arc<OutgoingCalls>) {
        if self.all().enter(name, post) {
            self.changed.notify_one();
        }
    }

    pub(crate) fn leave(&self, name: &str, post: &Arc<OutgoingCalls>) {
        if self.all().leave(name, post) {
            self.changed.notify_one();
        }
    }

    pub(crate) fn leave_all(&self, post: &Arc<OutgoingCalls>) {
        let provides = |posts: &[Arc<OutgoingCalls>]| posts.iter().any(|it| Arc::ptr_eq(it, post));
        let mut all = self.all();
        all.resting.retain(|(_, it)| !Arc::ptr_eq(it, post));
        let names = all.posts.iter().filter(|(_, posts)| provides(posts));
        let names: Vec<String> = names.map(|(name, _)| name.clone()).collect();
        drop(all);
        names.iter().for_each(|name| self.leave(name, post));
    }

    /// The one of those that are meant who has the least to do, of those who wait for calls if
    /// there is one; `None` if there is nobody.
    ///
    /// # Errors
    /// All of them have as much as they can have.
    pub(crate) fn choose(
        &self,
        name: &str,
        to: &CallAddress,
    ) -> Result<Option<Arc<OutgoingCalls>>, CallFailed> {
        let all = self.all();
        let Some(of_name) = all.posts.get(name) else {
            return Ok(None);
        };
        let meant = of_name.iter().filter(|post| to.means(post.who()));
        let meant = meant.map(|post| (post.asked().unwrap_or(usize::MAX), post));
        match meant.min_by_key(|(asked, post)| (!post.is_attended(), *asked)) {
            None => Ok(None),
            Some((asked, post)) if asked < usize::MAX => Ok(Some(post.clone())),
            Some(_) => Err(CallFailed {
                hint: "call again later, or start another provider".into(),
                retry_after_ms: 500,
                ..busy(format!("whoever provides {name:?} has too much to do"))
            }),
        }
    }
}
