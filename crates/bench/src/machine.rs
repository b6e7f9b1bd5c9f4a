//! What the figures were measured on.

use std::fs;

use crate::report::MachineReport;

/// Everything that the system tells.
pub(crate) fn look() -> MachineReport {
    let field = |file: &str, name: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.split_once(':'));
        value.map(|(_, value)| value.trim().to_owned())
    };
    let kib = field("/proc/meminfo", "MemTotal");
    let kib = kib.and_then(|kib| kib.strip_suffix(" kB")?.trim().parse::<u64>().ok());
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    MachineReport {
        processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into()),
        cores: cores() as u64,
        memory_bytes: kib.unwrap_or(0) * 1024,
        system: format!("{} {}", std::env::consts::OS, release.trim()),
        tidewater: env!("CARGO_PKG_VERSION").into(),
        sqlite: rusqlite::version().into(),
        ..MachineReport::default()
    }
}

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
