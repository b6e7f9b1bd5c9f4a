//! The limit of open files, without which the limit of connections is a wish: many systems
//! start programs with 1,024 and let them ask for more.

/// Files beside those of remotes: listeners, database connections, spools, and connections over
/// the limit, which are told so.
#[cfg(unix)]
const OTHERS: u64 = 256 + tidewater_server::TURNED_AWAY as u64;

/// Raises the limit as far as the system lets us, and warns if that is not enough for so many
/// connections, which this setting allows.
#[cfg(unix)]
pub(crate) fn make_room(connections: usize, setting: &str) {
    use rustix::process::{Resource, getrlimit, setrlimit};

    let mut limit = getrlimit(Resource::Nofile);
    let wanted = connections as u64 + OTHERS;
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= wanted);
    if !enough(limit.current) {
        // Not beyond what is wanted: some systems do not take "unlimited" for an answer.
        let most = limit.maximum.map_or(wanted, |most| most.min(wanted));
        let before = limit.current.replace(most);
        if setrlimit(Resource::Nofile, limit).is_err() {
            limit.current = before;
        }
    }
    if !enough(limit.current) {
        tracing::warn!(
            open_files = limit.current,
            connections,
            "the system's limit of open files is below {setting}; raise it (ulimit -n, \
             LimitNOFILE=)"
        );
    }
}

/// Other systems have no such limit.
#[cfg(not(unix))]
pub(crate) fn make_room(_connections: usize, _setting: &str) {}
