//! A value that others wait for, and that wakes them in a fixed order.
//!
//! What tokio has for that (`watch`) wakes whoever waits in an order that is drawn: faster for
//! thousands of cores, but a simulation would not be the same twice.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A value that changes, and whoever waits for that.
#[derive(Debug)]
pub struct Signal<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T: Copy> Signal<T> {
    /// Begins with a value.
    pub fn new(value: T) -> Signal<T> {
        Signal {
            value: Mutex::new(value),
            changed: Notify::new(),
        }
    }

    /// The value now.
    pub fn get(&self) -> T {
        *self.lock()
    }

    /// Changes it, and wakes all who wait, those first who have waited longest.
    pub fn set(&self, value: T) {
        *self.lock() = value;
        self.changed.notify_waiters();
    }

    /// Waits until it is such a value; at once if it is one already. A value that stays for
    /// less than it takes to wake somebody may be missed.
    pub async fn wait_for(&self, is_such: impl Fn(T) -> bool) -> T {
        loop {
            // A change between the look and the wait is not missed: it wakes whoever has
            // asked before.
            let changed = self.changed.notified();
            let value = self.get();
            if is_such(value) {
                return value;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn whoever_waits_is_woken_in_order_and_nobody_waits_for_what_is_there() {
        let signal = Arc::new(Signal::new(0));
        let woken = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..20)
            .map(|number| {
                let (signal, woken) = (signal.clone(), woken.clone());
                tokio::spawn(async move {
                    let value = signal.wait_for(|value| value >= 2).await;
                    woken.lock().unwrap().push((number, value));
                })
            })
            .collect();
        for value in 1..=2 {
            tokio::task::yield_now().await;
            signal.set(value);
        }
        for task in tasks {
            task.await.unwrap();
        }
        let expected: Vec<_> = (0..20).map(|number| (number, 2)).collect();
        assert_eq!(*woken.lock().unwrap(), expected);
        assert_eq!(signal.wait_for(|value| value == 2).await, 2);
    }
}
