//! The files of an empty server: made once by `initdb`, copied after that.
//!
//! `initdb` takes a second or more, a copy a fraction of it. The template lies in a folder of
//! the temporary directory that only this user can write, keyed by the programs' place and
//! version; it is never changed, and replaced when something (a cleaner of old temporary
//! files, say) has thinned it out.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail};

use super::copy_tree;
use super::programs::Programs;
use crate::account::Account;

/// Bump it when the arguments of `initdb` change.
const ARGUMENTS_VERSION: u32 = 2;
const ARGUMENTS: [&str; 5] = [
    "--username=postgres",
    "--auth=trust",
    "--encoding=UTF8",
    "--locale=C",
    "--no-sync",
];

/// Makes `folder/data`.
pub(super) fn make_data(
    programs: &Programs,
    account: Option<Account>,
    folder: &Path,
) -> anyhow::Result<()> {
    let data = folder.join("data");
    // Without a place that can be trusted, every server pays for its own.
    let template = match cache(folder) {
        Some(cache) => Some(cache.join(key(programs, account, folder)?)),
        None => None,
    };
    if let Some(template) = &template
        && copy_complete(template, &data, account)?
    {
        return Ok(());
    }
    initialise(programs, account, folder, &data)?;
    if let Some(template) = &template {
        keep(&data, template).context("cannot keep a template of PostgreSQL's data")?;
    }
    Ok(())
}

fn initialise(
    programs: &Programs,
    account: Option<Account>,
    folder: &Path,
    data: &Path,
) -> anyhow::Result<()> {
    let output = programs
        .command(&programs.initdb, account, folder)
        .args(ARGUMENTS)
        .arg("-D")
        .arg(data)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", programs.initdb.display()))?;
    if !output.status.success() {
        bail!(
            "initdb failed ({}) in {}; can the user it runs as enter that folder?\n{}",
            output.status,
            folder.display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// The folder of templates, if nobody but this user can write to it.
fn cache(folder: &Path) -> Option<PathBuf> {
    let parent = folder.parent()?;
    // Who made the parent of `folder` is unknown, but a new folder is always one's own.
    let probe = tempfile::tempdir_in(parent).ok()?;
    let user = fs::metadata(probe.path()).ok()?.uid();
    let cache = parent.join(format!("tidewater-testing-{user}"));
    match fs::DirBuilder::new().mode(0o700).create(&cache) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return None,
        _ => {}
    }
    let found = fs::symlink_metadata(&cache).ok()?;
    let trusted = found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0;
    trusted.then_some(cache)
}

fn key(programs: &Programs, account: Option<Account>, folder: &Path) -> anyhow::Result<String> {
    let output = programs
        .command(&programs.postgres, account, folder)
        .arg("--version")
        .output()
        .with_context(|| format!("cannot run {}", programs.postgres.display()))?;
    if !output.status.success() {
        bail!("{} --version failed", programs.postgres.display());
    }
    let identity = format!(
        "{}-{}-{ARGUMENTS_VERSION}",
        programs.postgres.display(),
        String::from_utf8_lossy(&output.stdout)
    );
    let mut key = String::new();
    for character in identity.chars() {
        if character.is_ascii_alphanumeric() || character == '.' {
            key.push(character);
        } else if !key.is_empty() && !key.ends_with('-') {
            key.push('-');
        }
    }
    Ok(key)
}

/// Copies the template if there is one and nothing of it is missing.
fn copy_complete(template: &Path, data: &Path, account: Option<Account>) -> anyhow::Result<bool> {
    let Ok(entries) = fs::read_to_string(template.join("entries")) else {
        return Ok(false);
    };
    if let Ok(copied) = copy_tree(&template.join("data"), data, account)
        && copied.to_string() == entries
    {
        return Ok(true);
    }
    remove_if_there(data)?;
    remove_if_there(template)?;
    Ok(false)
}

/// Makes a template of new data; several processes may do so at once, one of them wins.
fn keep(data: &Path, template: &Path) -> anyhow::Result<()> {
    let cache = template.parent().context("a template lies in a folder")?;
    let building = tempfile::tempdir_in(cache)?;
    let entries = copy_tree(data, &building.path().join("data"), None)?;
    fs::write(building.path().join("entries"), entries.to_string())?;
    if fs::rename(building.path(), template).is_ok() {
        // It has its final name; there is nothing left to remove.
        let _ = building.keep();
    }
    Ok(())
}

fn remove_if_there(folder: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
