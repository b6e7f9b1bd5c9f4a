//! Which machines there are on this thread, and the paths of their files.
//!
//! A simulation runs on one thread; others know nothing of its machines, so that names need
//! not differ between simulations that run at the same time.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use tokio::time::Instant;

use super::disk::{Life, MachineDisk};

/// Where the simulated files seem to be: `/simulated/machine/process/file`.
const ROOT: &str = "/simulated/";

thread_local! {
    static CLOCK: Cell<Option<(Option<Instant>, i64)>> = const { Cell::new(None) };
    static MACHINES: RefCell<Vec<Weak<MachineDisk>>> = const { RefCell::new(Vec::new()) };
}

/// What a path names.
pub(super) struct PathTarget {
    pub(super) machine: Arc<MachineDisk>,
    pub(super) life: Arc<Life>,
    pub(super) file: String,
}

/// What time it is on this thread's machines from now on, in milliseconds since 1970; without, it is
/// the time outside. It passes with the time of the runtime, or stands still.
pub(crate) fn set_clock(now_ms: Option<i64>, passes: bool) {
    CLOCK.set(now_ms.map(|now_ms| (passes.then(Instant::now), now_ms)));
}

/// What time it is, if that is simulated.
pub(super) fn now_ms() -> Option<i64> {
    let (began, began_ms) = CLOCK.try_with(Cell::get).ok().flatten()?;
    let elapsed = began.map_or(0, |it| it.elapsed().as_millis());
    Some(began_ms + i64::try_from(elapsed).unwrap_or_default())
}

pub(super) fn add(machine: &Arc<MachineDisk>) {
    MACHINES.with_borrow_mut(|machines| {
        machines.retain(|it| it.upgrade().is_some_and(|it| it.name() != machine.name()));
        machines.push(Arc::downgrade(machine));
    });
}

pub(super) fn remove(machine: &Arc<MachineDisk>) {
    // While a thread ends there may be no list any more.
    let _ = MACHINES.try_with(|machines| {
        let mut machines = machines.borrow_mut();
        machines.retain(|it| !std::ptr::eq(it.as_ptr(), Arc::as_ptr(machine)));
    });
}

/// Whether a simulation runs on this thread.
pub(super) fn is_simulated() -> bool {
    let machines = MACHINES.try_with(|machines| !machines.borrow().is_empty());
    machines.unwrap_or(false)
}

pub(super) fn path(machine: &str, process: u64, file: &str) -> PathBuf {
    format!("{ROOT}{machine}/{process}/{file}").into()
}

/// Whether it is a path of ours, also if there is no such machine.
pub(super) fn is_ours(path: &str) -> bool {
    path.starts_with(ROOT)
}

/// What a path names; there may be no such file yet.
pub(super) fn find(path: &str) -> Option<PathTarget> {
    let mut parts = path.strip_prefix(ROOT)?.splitn(3, '/');
    let (name, process, file) = (parts.next()?, parts.next()?, parts.next()?);
    let process = process.parse().ok()?;
    let machines = MACHINES.try_with(|machines| {
        let machines = machines.borrow();
        let mut alive = machines.iter().filter_map(Weak::upgrade);
        alive.find(|machine| machine.name() == name)
    });
    let machine = machines.ok().flatten()?;
    Some(PathTarget {
        life: machine.life(process)?,
        machine,
        file: file.into(),
    })
}
