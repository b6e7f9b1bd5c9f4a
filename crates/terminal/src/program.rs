//! Where one of the programs finds another.

use std::env;
use std::path::{Path, PathBuf};

/// A program of Tidewater: the one beside this program, or else the first in the folders of `PATH`.
///
/// The one beside comes first because it was built and installed together with this one.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let name = format!("{name}{}", env::consts::EXE_SUFFIX);
    let own = env::current_exe().ok();
    let own_folder = own.as_deref().and_then(Path::parent).map(Path::to_owned);
    let path = env::var_os("PATH").unwrap_or_default();
    // An empty folder in PATH means the current one: whatever lies there is nobody's installation.
    let others = env::split_paths(&path).filter(|it| !it.as_os_str().is_empty());
    let mut places = own_folder.into_iter().chain(others);
    places.find_map(|folder| Some(folder.join(&name)).filter(|it| is_executable(it)))
}

#[cfg(unix)]
fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let metadata = path.metadata();
    metadata.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(path: &Path) -> bool {
    path.is_file()
}
