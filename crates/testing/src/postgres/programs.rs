//! Where PostgreSQL's programs are.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::account::Account;

/// Names a folder with PostgreSQL's programs, before all other places.
const FOLDER_VARIABLE: &str = "TIDEWATER_PG_BIN";

#[derive(Debug, Clone)]
pub(super) struct Programs {
    pub(super) initdb: PathBuf,
    pub(super) postgres: PathBuf,
}

impl Programs {
    /// Looks in `TIDEWATER_PG_BIN`, then in `PATH`, then where distributions put versions, the
    /// newest first.
    pub(super) fn find() -> anyhow::Result<Self> {
        if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
            return Self::in_folder(Path::new(&folder)).with_context(|| {
                format!("{FOLDER_VARIABLE} names a folder without initdb and postgres")
            });
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        if let Some(found) = std::env::split_paths(&path).find_map(|it| Self::in_folder(&it)) {
            return Ok(found);
        }
        match installed_versions()
            .iter()
            .find_map(|it| Self::in_folder(it))
        {
            Some(found) => Ok(found),
            None => bail!(
                "found no initdb and postgres: install PostgreSQL (Debian: apt-get install \
                 postgresql), or set {FOLDER_VARIABLE} to the folder that holds them"
            ),
        }
    }

    /// A command that runs one of the programs as `account`, undisturbed by the environment.
    pub(super) fn command(
        &self,
        program: &Path,
        account: Option<Account>,
        folder: &Path,
    ) -> Command {
        let mut command = Command::new(program);
        // The caller's folder may be closed to the account.
        command.current_dir(folder);
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"PG") {
                command.env_remove(name);
            }
        }
        command.env("LC_ALL", "C");
        if let Some(account) = account {
            command.uid(account.uid).gid(account.gid);
        }
        command
    }

    fn in_folder(folder: &Path) -> Option<Self> {
        // PATH may hold links to programs that look for their files beside themselves.
        let initdb = fs::canonicalize(folder.join("initdb")).ok()?;
        let postgres = initdb.with_file_name("postgres");
        postgres.is_file().then_some(Self { initdb, postgres })
    }
}

/// Folders of programs under the usual prefixes, the newest version first.
fn installed_versions() -> Vec<PathBuf> {
    let debian = versions_in("/usr/lib/postgresql", "");
    let red_hat = versions_in("/usr", "pgsql-");
    let mut all: Vec<(u32, PathBuf)> = debian.into_iter().chain(red_hat).collect();
    all.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    all.into_iter().map(|(_, folder)| folder).collect()
}

fn versions_in(parent: &str, prefix: &str) -> Vec<(u32, PathBuf)> {
    let Ok(entries) = fs::read_dir(parent) else {
        return Vec::new();
    };
    let version = |name: &OsStr| name.to_str()?.strip_prefix(prefix)?.parse().ok();
    entries
        .flatten()
        .filter_map(|it| Some((version(&it.file_name())?, it.path().join("bin"))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbered_folders_are_versions() {
        let parent = tempfile::tempdir().unwrap();
        for name in ["9", "15", "8", "common"] {
            fs::create_dir(parent.path().join(name)).unwrap();
        }
        let mut found = versions_in(parent.path().to_str().unwrap(), "");
        found.sort();
        let versions: Vec<u32> = found.iter().map(|(version, _)| *version).collect();
        assert_eq!(versions, [8, 9, 15]);
    }
}
