//! Requests that carry a connection: what a server makes of their numbers.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::list::{Defect, is_on};

/// The numbers of a server's connections, by their names.
#[derive(Default)]
pub(crate) struct Numbers(RefCell<BTreeMap<String, Heard>>);

#[derive(Default)]
struct Heard {
    last: u64,
    /// How many were served again.
    again: u64,
}

/// What a server makes of a request.
pub(crate) struct Number {
    pub(crate) taken_for: u64,
    /// Whether nothing is left of its answer.
    pub(crate) is_forgotten: bool,
}

impl Numbers {
    /// A request comes.
    pub(crate) fn heard(&self, connection: &str, number: u64) -> Number {
        let mut all = self.0.borrow_mut();
        let heard = all.entry(connection.to_owned()).or_default();
        let is_repeated = number <= heard.last;
        heard.last = heard.last.max(number);
        if is_repeated && is_on(Defect::HttpRepeatsServed) {
            heard.again += 1;
        }
        Number {
            taken_for: number + heard.again,
            is_forgotten: is_repeated && is_on(Defect::HttpAnswersForgotten),
        }
    }
}
