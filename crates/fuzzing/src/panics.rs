//! Panics in tasks: tokio catches them, and nobody would notice.

use std::cell::Cell;
use std::sync::Once;

thread_local! {
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

/// From now on panics of this thread are counted. Whoever had a hook, keeps it.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |what| {
            PANICS.set(PANICS.get() + 1);
            before(what);
        }));
    });
}

/// Fails if there was a panic since.
pub(crate) fn check() {
    assert_eq!(PANICS.replace(0), 0, "I8: a task has panicked");
}
