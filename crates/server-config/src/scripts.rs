//! Scripts: files of SQL beside the configuration, `scripts/VERSION/TABLE/EVENT.sql`.

use std::fs;
use std::path::{Path, PathBuf};

use tidewater_centre::context::DEFAULT;
use tidewater_centre::engine::scripts::CONNECTION;
use tidewater_centre::{PublicationSpec, ScriptSpec, nearest};

use super::{Config, PasswordSource};
use crate::error::ConfigError;

/// Where they are if the configuration does not say.
const FOLDER: &str = "scripts";

/// The longest script that is read: 1 MiB.
const MAX_BYTES: u64 = 1 << 20;

/// The names of the event at which a password is checked, which is of the version `default` whatever
/// versions are served.
const PASSWORDS: [&str; 2] = ["authenticate_user", "authenticate_user_hashed"];

/// Reads the scripts of a folder into the publications that have their tables; `named` if the
/// configuration names it: then it has to be there.
///
/// # Errors
/// A file cannot be read, or is for nothing.
pub(super) fn read(
    base: &Path,
    named: Option<&Path>,
    publications: &mut [PublicationSpec],
) -> Result<(), ConfigError> {
    let folder = base.join(named.unwrap_or(Path::new(FOLDER)));
    if named.is_none() && !folder.is_dir() {
        return check_versions(FOLDER, &[], publications);
    }
    let shown = named.unwrap_or(Path::new(FOLDER)).display().to_string();
    let versions = entries(&folder, &shown, true)?;
    check_versions(&shown, &versions, publications)?;
    for version in versions {
        let in_version = format!("{shown}/{version}");
        for table in entries(&folder.join(&version), &in_version, true)? {
            let in_table = format!("{in_version}/{table}");
            let path = folder.join(&version).join(&table);
            for file in entries(&path, &in_table, false)? {
                let sql = text(&path.join(&file), &format!("{in_table}/{file}"))?;
                let event = file.trim_end_matches(".sql");
                let script = ScriptSpec::at(&shown, [&version, &table, event], sql);
                add(script, &in_table, publications)?;
            }
        }
    }
    Ok(())
}

/// Checks that there is a script that knows passwords, if one is to.
///
/// # Errors
/// There is none.
pub(super) fn check_passwords(config: &Config) -> Result<(), ConfigError> {
    let mut scripts = config.publications.iter().flat_map(|it| &it.scripts);
    let mut found = scripts
        .by_ref()
        .filter(|it| PASSWORDS.contains(&&*it.event));
    let first = found.next();
    let is_one = |it: &ScriptSpec| it.version == DEFAULT;
    if config.sign_in.passwords != PasswordSource::Script
        || first.is_some_and(is_one)
        || found.any(is_one)
    {
        return Ok(());
    }
    let place = "scripts/default/connection/authenticate_user.sql";
    Err(ConfigError::new(
        "sign_in.passwords is \"script\", and there is no script that checks one",
        match first {
            Some(other) => format!(
                "there is one in version {:?}, and passwords are checked before a remote has one: \
                 move {} to {place}",
                other.version, other.file
            ),
            None => format!("write {place}"),
        },
    ))
}

/// Checks that there is a folder of each version that a publication serves.
fn check_versions(
    shown: &str,
    versions: &[String],
    publications: &[PublicationSpec],
) -> Result<(), ConfigError> {
    for publication in publications {
        let mut asked = publication.script_versions.iter();
        // Without a script, `default` is what is generated.
        let is_missing = |it: &&String| !versions.contains(it) && *it != DEFAULT;
        if let Some(missing) = asked.find(is_missing) {
            let near = nearest(missing, versions.iter().map(String::as_str));
            return Err(ConfigError::new(
                format!(
                    "publication {:?}: script_versions names {missing:?}, and {shown} has no such \
                     folder",
                    publication.name
                ),
                match near {
                    Some(near) => format!("did you mean {near:?}?"),
                    None => format!("there are: {}", versions.join(", ")),
                },
            ));
        }
    }
    Ok(())
}

/// Adds a script to the publications that it is for.
fn add(
    script: ScriptSpec,
    folder: &str,
    publications: &mut [PublicationSpec],
) -> Result<(), ConfigError> {
    let checks_passwords = script.version == DEFAULT && PASSWORDS.contains(&&*script.event);
    let serves = |it: &PublicationSpec| {
        it.script_versions.is_empty()
            || it.script_versions.contains(&script.version)
            || checks_passwords
    };
    let Some(table) = &script.table else {
        for publication in publications.iter_mut().filter(|it| serves(it)) {
            publication.scripts.push(script.clone());
        }
        return Ok(());
    };
    // Remotes have tables without their schema.
    let plain = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let has = |it: &&mut PublicationSpec| it.tables.iter().any(|it| plain(&it.name) == *table);
    let mut found = false;
    for publication in publications.iter_mut().filter(has) {
        if serves(publication) {
            publication.scripts.push(script.clone());
        }
        found = true;
    }
    if found {
        return Ok(());
    }
    let names = publications.iter().flat_map(|it| &it.tables);
    let names: Vec<String> = names.map(|it| plain(&it.name)).collect();
    let known = names.iter().map(String::as_str).chain([CONNECTION]);
    Err(ConfigError::new(
        format!("{folder}: no publication has a table {table:?}"),
        match nearest(table, known) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("a folder is called like a published table, or {CONNECTION:?}"),
        },
    ))
}

/// The folders, or the files that end in `.sql`, of a folder, in order; what begins with a dot is
/// left out.
fn entries(path: &Path, shown: &str, folders: bool) -> Result<Vec<String>, ConfigError> {
    let cannot = |source| ConfigError::File {
        what: "folder of scripts",
        path: shown.to_owned(),
        source,
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(cannot)? {
        let entry: PathBuf = entry.map_err(cannot)?.path();
        let name = entry
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name.starts_with('.') {
            continue;
        }
        let is_fit = match folders {
            true => entry.is_dir(),
            false => entry.is_file() && name.ends_with(".sql"),
        };
        if !is_fit {
            let wanted = match folders {
                true => "only folders stand here: scripts/VERSION/TABLE/EVENT.sql",
                false => "only files that end in .sql stand here, each called like its event",
            };
            return Err(ConfigError::new(
                format!("{shown}/{name} is no script"),
                wanted,
            ));
        }
        names.push(name);
    }
    names.sort();
    Ok(names)
}

fn text(path: &Path, shown: &str) -> Result<String, ConfigError> {
    let cannot = |source| ConfigError::File {
        what: "script",
        path: shown.to_owned(),
        source,
    };
    let length = fs::metadata(path).map_err(cannot)?.len();
    if length > MAX_BYTES {
        return Err(ConfigError::new(
            format!("{shown} has {length} bytes"),
            "a script has at most 1 MiB: put what is longer into a function of the database",
        ));
    }
    fs::read_to_string(path).map_err(cannot)
}
