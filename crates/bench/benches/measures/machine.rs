//! What the figures were measured on.

use std::fs;

/// Prints processor, cores, memory and versions.
pub(crate) fn print() {
    let field = |file: &str, name: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.split_once(':'));
        value.map_or("unknown".to_owned(), |(_, value)| value.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!(
        "processor: {}, {cores} cores",
        field("/proc/cpuinfo", "model name")
    );
    println!("memory: {}", field("/proc/meminfo", "MemTotal"));
    println!("SQLite: {}", rusqlite::version());
    println!("Tidewater: {}", env!("CARGO_PKG_VERSION"));
}
