//! What the system knows of a process: processor time, memory, children, cores; and the clock
//! that all processes of a machine share.

use std::fs;
use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the monotonic clock, comparable between processes of one machine.
pub(crate) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What a line of `/proc/PID/stat` says: see proc(5).
struct Stat {
    name: String,
    parent: u32,
    /// Ticks of the process itself, user and system.
    own: u64,
    /// Ticks of its children that have ended and were waited for.
    ended_children: u64,
}

impl Stat {
    fn read(process: &str) -> Option<Stat> {
        let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The second field is the program's name in parentheses, and may hold anything.
        let (before, after) = text.rsplit_once(')')?;
        let fields: Vec<&str> = after.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Stat {
            name: before.split_once('(')?.1.to_owned(),
            parent: number(1)? as u32,
            own: number(11)? + number(12)?,
            ended_children: number(13)? + number(14)?,
        })
    }
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Processor time of a process so far, user and system.
pub(crate) fn cpu_seconds(process: u32) -> Option<f64> {
    Some(seconds(Stat::read(&process.to_string())?.own))
}

/// Processor time of this process so far.
pub(crate) fn own_cpu_seconds() -> f64 {
    Stat::read("self").map_or(0.0, |stat| seconds(stat.own))
}

/// The first process of the PostgreSQL that one of its sessions belongs to; none if there is no
/// such process here.
pub(crate) fn postmaster(session: u32) -> Option<u32> {
    let stat = Stat::read(&session.to_string())?;
    stat.name.starts_with("postgres").then_some(stat.parent)
}

/// Processor time of a process, of its children, and of those that it had: whoever is waited for
/// between two looks is among the latter.
pub(crate) fn family_cpu_seconds(process: u32) -> Option<f64> {
    let parent = Stat::read(&process.to_string())?;
    let mut ticks = parent.own + parent.ended_children;
    for child in children(process) {
        ticks += Stat::read(&child.to_string()).map_or(0, |stat| stat.own);
    }
    Some(seconds(ticks))
}

/// The children of a process.
pub(crate) fn children(process: u32) -> Vec<u32> {
    numbers_in("/proc")
        .filter(|child| Stat::read(&child.to_string()).is_some_and(|stat| stat.parent == process))
        .collect()
}

fn numbers_in(folder: &str) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Forgets the peak of a process's memory, where the system lets us.
pub(crate) fn reset_peak(process: u32) {
    // What is refused only means that the peak is that of more than this run.
    let _ = fs::write(format!("/proc/{process}/clear_refs"), "5");
}

/// The most memory that a process had resident.
pub(crate) fn peak_bytes(process: u32) -> Option<u64> {
    status_bytes(process, "VmHWM:")
}

/// Memory that a process has resident and that is no file's: not the program itself.
pub(crate) fn anonymous_bytes(process: u32) -> Option<u64> {
    status_bytes(process, "RssAnon:")
}

fn status_bytes(process: u32, name: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The cores that this process may use.
pub(crate) fn allowed_cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else {
        return Vec::new();
    };
    (0..CpuSet::MAX_CPU)
        .filter(|&core| set.is_set(core))
        .collect()
}

/// Confines a process and all its threads to some cores.
pub(crate) fn confine(process: u32, cores: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &core in cores {
        set.set(core);
    }
    for thread in numbers_in(&format!("/proc/{process}/task")) {
        let Some(thread) = Pid::from_raw(thread as i32) else {
            continue;
        };
        match sched_setaffinity(Some(thread), &set) {
            // It has ended meanwhile.
            Err(error) if error == rustix::io::Errno::SRCH => {}
            other => other?,
        }
    }
    Ok(())
}

/// Asks a process to end.
pub(crate) fn terminate(process: u32) {
    if let Some(process) = Pid::from_raw(process as i32) {
        // It may have ended already.
        let _ = rustix::process::kill_process(process, Signal::TERM);
    }
}

/// Files that this process may have open; raised as far as the system lets it, up to what is
/// wanted. None if there is no limit.
pub(crate) fn raise_open_files(wanted: u64) -> Option<u64> {
    use rustix::process::{Resource, getrlimit, setrlimit};

    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        let before = limit.current;
        limit.current = Some(limit.maximum.map_or(wanted, |most| most.min(wanted)));
        if setrlimit(Resource::Nofile, limit).is_err() {
            limit.current = before;
        }
    }
    limit.current
}

/// Files that a process of ours could have open, if it asked for that.
pub(crate) fn most_open_files() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum
}

/// How often something is looked at that tells nobody when it changes.
pub(crate) const GLANCE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_number() {
        let own = std::process::id();
        assert!(cpu_seconds(own).is_some());
        assert!(peak_bytes(own).unwrap() > 100_000);
        // In this order: the tests beside this one go on working.
        let alone = cpu_seconds(own).unwrap();
        assert!(family_cpu_seconds(own).unwrap() >= alone);
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        assert!(children(own).contains(&child.id()));
        assert_eq!(postmaster(child.id()), None);
        terminate(child.id());
        assert!(!child.wait().unwrap().success());
        assert_eq!(cpu_seconds(child.id()), None);
    }

    #[test]
    fn the_clock_goes_forward() {
        let before = monotonic_ns();
        assert!(before > 0 && monotonic_ns() >= before);
    }
}
