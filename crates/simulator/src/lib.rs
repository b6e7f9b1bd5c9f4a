//! Real remotes, real servers and a real SQLite centre in a simulated world.
//!
//! Owns the world: time, chance, network, applications, and the judges that watch it. What
//! is judged is the product's own code, unchanged. One seed decides everything; the same
//! seed gives the same history to the byte. The reasons are in this crate's DESIGN.md.

mod application;
mod backup;
mod besides;
mod calendar;
mod chronicle;
mod clerk;
mod defects;
mod disks;
mod failure;
mod hierarchy;
mod host;
mod hunt;
mod intruder;
mod judge;
pub mod kit;
mod liar;
mod line;
mod market;
mod network;
mod office;
mod operator;
mod plan;
mod random;
mod range;
mod remote;
mod scenario;
mod server_life;
mod simulation;
mod site;
mod tables;
mod template;
mod users;
mod vfs;
mod waking;
mod world;

pub use chronicle::SimulationOutcome;
pub use defects::Defect;
pub use hunt::{Caught, HUNTED, hunt, hunt_all, listed, run_all_with, run_with};
pub use plan::Plan;
pub use range::{SeedFailure, Summary, run_all};

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Once;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::task::LocalSet;

use chronicle::Chronicle;

/// Whatever is left to do when everything has stopped is done after so long.
const LAST_WORDS: Duration = Duration::from_secs(600);

thread_local! {
    static PANICS: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs a simulation; with `readable` it keeps what happened.
pub fn run(plan: Plan, readable: bool) -> SimulationOutcome {
    watch_panics();
    for deferred in [false, true] {
        template::centre((deferred, plan.besides()));
    }
    defects::begin_world();
    PANICS.with_borrow_mut(Option::take);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without threads needs nothing of the system");
    let chronicle = runtime.block_on(async { Rc::new(Chronicle::new(readable)) });
    let played = catch_unwind(AssertUnwindSafe(|| {
        let tasks = LocalSet::new();
        tasks.block_on(&runtime, simulation::play(plan, chronicle.clone()));
    }));
    let panicked = PANICS.with_borrow_mut(Option::take);
    if let Some(what) = panicked.or(played.err().map(|_| "a panic".to_owned())) {
        chronicle.failed(format!("panic: {what}"));
    }
    let ended = runtime.block_on(async { chronicle.conclude() });
    leaks(&runtime, ended)
}

/// When all servers have stopped, none of their tasks may be left: a judge of its own, for
/// it needs the runtime.
fn leaks(runtime: &Runtime, mut ended: SimulationOutcome) -> SimulationOutcome {
    runtime.block_on(async { tokio::time::sleep(LAST_WORDS).await });
    let tasks = runtime.metrics().num_alive_tasks();
    if tasks > 0 {
        let what = format!("a leak: {tasks} tasks are alive when all servers have stopped");
        ended.failure.get_or_insert(what);
    }
    ended
}

/// Makes a failing plan as small as it can be and still fail.
pub fn shrink(plan: Plan) -> Plan {
    let mut smallest = plan;
    'again: loop {
        for candidate in smallest.smaller() {
            if run(candidate, false).failure.is_some() {
                smallest = candidate;
                continue 'again;
            }
        }
        return smallest;
    }
}

/// A plan as a test that can be committed.
pub fn regression_test(plan: Plan, failure: &str) -> String {
    format!(
        "/// {failure}\n#[test]\nfn seed_{seed}_keeps_its_promises() {{\n    \
         assert_holds(Plan {{\n        seed: {seed},\n        remotes: {},\n        steps: {},\n        \
         centre_steps: {},\n        accidents: {},\n        faults: {},\n    }});\n}}\n",
        plan.remotes,
        plan.steps,
        plan.centre_steps,
        plan.accidents,
        plan.faults,
        seed = plan.seed,
        failure = failure.lines().next().unwrap_or_default(),
    )
}

/// Runs a plan.
///
/// # Panics
/// It breaks a promise: with what happened.
pub fn assert_holds(plan: Plan) {
    let ended = run(plan, true);
    if let Some(failure) = ended.failure {
        panic!("{failure}\nin {plan:?}:\n{}", ended.lines.join("\n"));
    }
}

/// Panics of any task count, also those that a server survives.
fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.with_borrow_mut(|first| {
                first.get_or_insert_with(|| info.to_string());
            });
            before(info);
        }));
    });
}
