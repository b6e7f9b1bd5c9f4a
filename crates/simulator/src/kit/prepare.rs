//! What all seeds of a run have in common: a copy of the user's centre, deployed, with users, and
//! what is known of its tables.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::config::DbConfig;
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags};
use tidewater_centre::records::{ProvenIdentity, UserRecord};
use tidewater_centre::{Centre, PublicationSpec};
use tidewater_centre_sqlite::connect_in;
use tidewater_protocol::ColumnType;
use tidewater_server::Config;
use tidewater_server::databases::SqliteTranslation;
use tokio::time::Instant;

use super::answers::HandlerAnswers;
use super::double;
use super::editable::{self, Editable};
use super::tables::PublishedTable;
use super::translated;
use super::values::quote;
use super::watch::{self, Audit};
use super::{BEGIN_MS, KitError};
use crate::disks::CentreDisk;
use crate::host::{Host, sqlite_environment};
use crate::intruder::Intruder;
use crate::random::SeededRandom;
use crate::server_life::Life;
use crate::template::password_hash;
use crate::vfs;

/// A larger centre is too slow to begin every seed with.
pub const MOST_BYTES: u64 = 64 << 20;

/// Users who are added where there are none.
const INVENTED: [&str; 2] = ["anna", "berta"];

/// Names that could be those of users are looked for among so many values of a column.
const MOST_NAMES: i64 = 200;

/// What is wanted of a run.
#[derive(Clone, Debug, Default)]
pub struct KitOptions {
    /// The SQLite file that is the consolidated database. It is only read.
    pub centre: PathBuf,
    /// What stands in for it, if it is no SQLite file.
    pub translation: Option<Arc<SqliteTranslation>>,
    /// What handlers say; `None`: they are not asked.
    pub answers: Option<Arc<HandlerAnswers>>,
    /// Only its tables, not its rows.
    pub is_empty: bool,
    /// Who syncs; whoever is there if nobody is named.
    pub users: Vec<String>,
    /// What remotes set: several values of one name are for several remotes.
    pub parameters: Vec<(String, String)>,
    /// Columns, as `TABLE.COLUMN`, of which scripts and triggers decide what they hold; or tables, of
    /// which scripts put what is uploaded elsewhere.
    pub made_by_centre: Vec<String>,
}

/// A centre and a configuration, ready to be simulated as often as wanted.
#[derive(Debug)]
pub struct Kit {
    pub(super) config: Config,
    pub(super) centre: Vec<u8>,
    pub(super) known: Arc<WorldKnowledge>,
    pub(super) parameters: Vec<(String, String)>,
    /// The script versions that remotes may have.
    pub(super) versions: Vec<String>,
    /// The greatest number in a key.
    pub(super) last_number: i64,
    /// What is otherwise than in the configuration, for people.
    pub(super) remarks: Vec<String>,
}

/// What every world knows.
#[derive(Debug)]
pub(super) struct WorldKnowledge {
    pub(super) tables: Vec<PublishedTable>,
    pub(super) audit: Audit,
    pub(super) users: Vec<String>,
}

impl Kit {
    /// Copies the centre, deploys to the copy and looks at its tables. The runtime is one of its own:
    /// not to be called in another.
    ///
    /// # Errors
    /// The centre cannot be copied, or the configuration does not fit it.
    pub fn prepare(config: &Config, wanted: &KitOptions) -> Result<Kit, KitError> {
        watch::begin(None, SeededRandom::new(0));
        vfs::set_clock(Some(BEGIN_MS), false);
        let kit = Kit::prepare_in_time(config, wanted);
        vfs::set_clock(None, false);
        watch::end();
        kit
    }

    fn prepare_in_time(config: &Config, wanted: &KitOptions) -> Result<Kit, KitError> {
        let (mut served, mut remarks) = double::served_config(config, wanted.answers.as_ref())?;
        let disk = CentreDisk::new(SeededRandom::new(0));
        let path = disk.path();
        match &wanted.translation {
            None => copy(&wanted.centre, &path)?,
            Some(translation) => {
                remarks.extend(translated::make(translation, &path)?);
                refuse_triggered_cursors(&served.publications, &translation.left_out)?;
                let publications = &mut served.publications;
                translated::spell(publications, &translation.names);
                remarks.extend(wait(without_scripts(&path, publications))?);
            }
        }
        let (mut tables, mut users, versions) = wait(deploy(&path, &served, wanted))?;
        name_made(&mut tables, &wanted.made_by_centre)?;
        if let Some(answers) = &wanted.answers {
            name_made(&mut tables, &answers.made())?;
        }
        let connection = Connection::open(&path)?;
        let all = editable::all(&connection, &tables.iter().collect::<Vec<_>>(), true)?;
        let all = all.unwrap_or_default();
        remarks.extend(probe(&connection, &mut tables, &all)?);
        let audit = Audit::new(&tables);
        connection.execute_batch(&audit.schema())?;
        let last_number = last_number(&connection, &all)?;
        if users.is_empty() {
            let remark;
            (users, remark) = new_users(&connection, &served.publications, &all)?;
            remarks.push(remark);
        }
        drop(connection);
        wait(add_users(&path, &users))?;
        Ok(Kit {
            config: served,
            centre: disk.bytes(),
            known: Arc::new(WorldKnowledge {
                tables,
                audit,
                users,
            }),
            parameters: wanted.parameters.clone(),
            versions,
            last_number,
            remarks,
        })
    }

    /// What is otherwise in the simulation than the configuration says, for people.
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }
}

/// Waits for something of the adapter's. When it is done, the last connection ends with the runtime.
fn wait<T>(work: impl Future<Output = Result<T, KitError>>) -> Result<T, KitError> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build();
    let runtime = runtime.map_err(|error| KitError::Internal(error.to_string()))?;
    runtime.block_on(work)
}

/// Users for a centre that has none, and what to say of them.
fn new_users(
    connection: &Connection,
    publications: &[PublicationSpec],
    tables: &[Editable],
) -> Result<(Vec<String>, String), KitError> {
    let likely = likely_users(connection, publications, tables)?;
    let (users, remark) = match likely.is_empty() {
        false => (
            likely,
            "the copy has these users, who are named in its rows",
        ),
        true => (
            INVENTED.map(String::from).to_vec(),
            "the copy has these users, who were made up",
        ),
    };
    let remark = format!("{remark}: {}", users.join(", "));
    Ok((users, remark))
}

/// Copies the rows of an SQLite file, with what is in its write-ahead log, without writing to it.
fn copy(from: &Path, to: &Path) -> Result<(), KitError> {
    let unreadable = |error: String| KitError::Centre {
        what: format!("cannot read {}: {error}", from.display()),
        hint: "name the file as consolidated = \"sqlite:FILE\" under [server]",
    };
    let metadata = std::fs::metadata(from).map_err(|error| unreadable(error.to_string()))?;
    if metadata.len() > MOST_BYTES {
        let megabytes = metadata.len() >> 20;
        return Err(KitError::Centre {
            what: format!(
                "{} has {megabytes} MiB, too much to begin every seed with",
                from.display()
            ),
            hint: "simulate with --empty, or name a smaller database in the configuration",
        });
    }
    let mut name = String::new();
    for byte in from.to_string_lossy().bytes() {
        match byte {
            b'?' | b'#' | b'%' => name.push_str(&format!("%{byte:02x}")),
            byte => name.push(char::from(byte)),
        }
    }
    let log = PathBuf::from(format!("{}-wal", from.display()));
    // Where nobody has it open a reader would make a log beside it.
    let mode = if log.exists() {
        "mode=ro"
    } else {
        "immutable=1"
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let connection = match from.to_str() {
        Some(path) if path.is_ascii() => {
            Connection::open_with_flags(format!("file:{name}?{mode}"), flags)
        }
        _ => Connection::open_with_flags(from, OpenFlags::SQLITE_OPEN_READ_ONLY),
    };
    let connection = connection.map_err(|error| unreadable(error.to_string()))?;
    let copied = connection.execute("VACUUM INTO ?1", [to.to_string_lossy()]);
    copied
        .map(drop)
        .map_err(|error| unreadable(error.to_string()))
}

/// Opens the copy as a server does.
async fn open(path: &Path) -> Result<Arc<dyn Centre>, KitError> {
    let (process, path) = vfs::start_beside(path)
        .ok_or_else(|| KitError::Internal("the copy is on no machine".into()))?;
    let intruder = Intruder::new(SeededRandom::new(0));
    intruder.leave();
    let life = Arc::new(Life::new(process));
    let environment = sqlite_environment(&mut SeededRandom::new(0), life, &intruder);
    Ok(connect_in(path, environment).await?)
}

/// A script that says what comes down by a time which a trigger writes would miss changes in a
/// translation without the trigger: what is broken then is not the configuration.
fn refuse_triggered_cursors(
    publications: &[PublicationSpec],
    left_out: &[String],
) -> Result<(), KitError> {
    let scripts = publications.iter().flat_map(|it| &it.scripts);
    let mut cursors = scripts.filter(|it| it.event == "download_cursor");
    let trigger = |table: &str| {
        let ending = format!(" of {table}");
        let mut all = left_out.iter();
        all.find(|it| it.starts_with("the trigger ") && it.ends_with(&ending))
    };
    let found = cursors.find_map(|it| Some((it, trigger(it.table.as_deref()?)?)));
    match found {
        None => Ok(()),
        Some((script, trigger)) => Err(KitError::Usage {
            what: format!(
                "{} says what comes down, and the translation into SQLite leaves out {trigger}, on \
                 which that may rest",
                script.file
            ),
            hint: "try it with devices that sync with a scratch database, or simulate an SQLite \
                   database with triggers of its own",
        }),
    }
}

/// Leaves out the scripts that the copy does not understand; what is to be said of them.
async fn without_scripts(
    path: &Path,
    publications: &mut [PublicationSpec],
) -> Result<Vec<String>, KitError> {
    let centre = open(path).await?;
    translated::leave_out_scripts(&*centre, publications).await
}

/// Deploys the publications to the copy as if nothing were deployed; their tables, the users who are
/// to sync, and the script versions that all publications serve.
async fn deploy(
    path: &Path,
    served: &Config,
    wanted: &KitOptions,
) -> Result<(Vec<PublishedTable>, Vec<String>, Vec<String>), KitError> {
    let centre = open(path).await?;
    let mut known = Vec::new();
    if is_deployed(path)? {
        known = centre.users().await?;
        // Remotes of the original, their uploads and what was signed for them are nothing here.
        centre.undeploy(false).await?;
    }
    if wanted.is_empty {
        empty(path)?;
    }
    let publications = &served.publications;
    centre.deploy(publications, false, BEGIN_MS).await?;
    let schemas = centre.load(publications).await?;
    let tables = publications.iter().zip(&schemas);
    let tables = tables.flat_map(|(spec, schema)| PublishedTable::all(spec, schema));
    let tables = tables.collect();
    let claims = |name: &str| known.iter().find(|it| it.name == name).cloned();
    let names: Vec<String> = match wanted.users.is_empty() {
        true => {
            let known = known.iter().filter(|it| !it.disabled);
            known.map(|it| it.name.clone()).collect()
        }
        false => wanted.users.clone(),
    };
    let hash = hash()?;
    for name in &names {
        let proven = claims(name).map_or_else(ProvenIdentity::default, |it| it.proven);
        centre.add_user(&user(name, &hash, proven)).await?;
    }
    let deployed = centre.refresh().await?.unwrap_or_default();
    let scripts = || deployed.scripts.iter().filter(|it| !it.is_empty());
    let mut versions: Vec<String> = scripts().flat_map(|it| it.keys().cloned()).collect();
    versions.sort_unstable();
    versions.dedup();
    versions.retain(|name| {
        let mut unserved = scripts().filter_map(|it| it.get(name)?.unserved.as_ref());
        unserved.next().is_none()
    });
    Ok((tables, names, versions))
}

/// Whether the original has anything of Tidewater's.
fn is_deployed(path: &Path) -> Result<bool, KitError> {
    let connection = Connection::open(path)?;
    let sql = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'tidewater_centre_user_account'";
    Ok(connection.prepare(sql)?.exists([])?)
}

async fn add_users(path: &Path, users: &[String]) -> Result<(), KitError> {
    let centre = open(path).await?;
    let hash = hash()?;
    for name in users {
        // Who is there stays.
        centre
            .add_user(&user(name, &hash, ProvenIdentity::default()))
            .await?;
    }
    Ok(())
}

fn hash() -> Result<String, KitError> {
    password_hash().map_err(|failed| KitError::Internal(failed.0))
}

fn user(name: &str, hash: &str, proven: ProvenIdentity) -> UserRecord {
    UserRecord {
        name: name.to_owned(),
        password_hash: hash.to_owned(),
        disabled: false,
        created_ms: BEGIN_MS,
        proven,
    }
}

/// Takes the rows out of all tables, whatever triggers and references say.
fn empty(path: &Path) -> Result<(), KitError> {
    let connection = Connection::open(path)?;
    watch::with_chance(&connection)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    connection.pragma_update(None, "foreign_keys", false)?;
    let sql = "SELECT name, type = 'virtual' FROM pragma_table_list WHERE schema = 'main' \
               AND type IN ('table', 'virtual') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'";
    let mut statement = connection.prepare(sql)?;
    let names = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let names: Vec<(String, bool)> = names.collect::<rusqlite::Result<_>>()?;
    for (name, is_virtual) in names {
        let emptied = connection.execute(&format!("DELETE FROM {}", quote(&name)), []);
        // One that only reads has nothing of its own.
        if !is_virtual {
            emptied?;
        }
    }
    Ok(())
}

/// Notes the columns that were named as the centre's own.
fn name_made(tables: &mut [PublishedTable], made: &[String]) -> Result<(), KitError> {
    for named in made {
        let (table, column) = named.split_once('.').unwrap_or((named, ""));
        let mut found = false;
        for known in tables.iter_mut().filter(|it| it.name == table) {
            for (at, it) in known.columns.iter().enumerate() {
                if it.name == column || column.is_empty() {
                    known.is_made[at] = true;
                    found = true;
                }
            }
            known.is_judged &= !column.is_empty();
        }
        if !found {
            return Err(KitError::Usage {
                what: format!("there is no published table or column {named}"),
                hint: "write TABLE or TABLE.COLUMN, as they are called in the publication",
            });
        }
    }
    Ok(())
}

/// Finds the columns that triggers of the centre write, whoever writes the row: each is written by
/// plain SQL, looked at, and undone. What comes out otherwise than it was written is the centre's
/// own.
fn probe(
    connection: &Connection,
    tables: &mut [PublishedTable],
    all: &[Editable],
) -> Result<Vec<String>, KitError> {
    let mut remarks = Vec::new();
    for table in tables.iter_mut() {
        let Some(editable) = all
            .iter()
            .find(|it| it.name.eq_ignore_ascii_case(&table.name))
        else {
            continue;
        };
        let sql = "SELECT 1 FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ?1 \
                   AND name NOT LIKE 'tidewater\\_%' ESCAPE '\\'";
        if editable.key.is_empty() || !connection.prepare(sql)?.exists([&editable.name])? {
            continue;
        }
        connection.execute_batch("BEGIN")?;
        let written = written_by_triggers(connection, table, editable);
        connection.execute_batch("ROLLBACK")?;
        for at in written? {
            if !table.is_made[at] {
                table.is_made[at] = true;
                let column = &table.columns[at].name;
                remarks.push(format!(
                    "{}.{column} is written by a trigger: what remotes write there is not looked for",
                    table.name
                ));
            }
        }
    }
    Ok(remarks)
}

fn written_by_triggers(
    connection: &Connection,
    table: &PublishedTable,
    editable: &Editable,
) -> rusqlite::Result<Vec<usize>> {
    let name = quote(&table.name);
    let key = table.key_of("");
    let sql = format!("SELECT {key} FROM {name} LIMIT 1");
    let key: Result<Vec<Value>, _> = connection.query_row(&sql, [], |row| {
        (0..table.key.len()).map(|at| row.get(at)).collect()
    });
    let key = match key {
        Ok(key) => key,
        Err(rusqlite::Error::QueryReturnedNoRows) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut made = Vec::new();
    for (at, column) in table.columns.iter().enumerate() {
        let is_of_key = table.key.contains(&at);
        let field = editable
            .fields
            .iter()
            .position(|it| it.name.eq_ignore_ascii_case(&column.name));
        let refers = field.is_some_and(|it| editable.reference_of(it).is_some());
        if is_of_key || refers {
            continue;
        }
        let before = table.row(connection, &key)?;
        // Every other column is written as it is, so that triggers of that fire, too.
        let sets = table
            .columns
            .iter()
            .enumerate()
            .filter(|it| !table.key.contains(&it.0));
        let sets = sets.map(|(of, it)| {
            let name = quote(&it.name);
            match (of == at, it.column_type) {
                (true, ColumnType::Text) => format!("{name} = {name} || 'x'"),
                (true, ColumnType::Integer | ColumnType::Real) => format!("{name} = {name} + 1"),
                _ => format!("{name} = {name}"),
            }
        });
        let sql = format!(
            "UPDATE {name} SET {} WHERE {}",
            sets.collect::<Vec<_>>().join(", "),
            table.has_key("")
        );
        connection.execute_batch("SAVEPOINT probe")?;
        let expected = expected(column.column_type, before.as_ref().map(|it| &it[at]));
        let updated = connection.execute(&sql, rusqlite::params_from_iter(&key));
        let after = table.row(connection, &key)?;
        connection.execute_batch("ROLLBACK TO probe; RELEASE probe")?;
        let is_other = after.as_ref().map(|it| &it[at]) != expected.as_ref();
        if updated.is_ok() && after.is_some() && is_other {
            made.push(at);
        }
    }
    Ok(made)
}

fn expected(
    column_type: ColumnType,
    before: Option<&serde_json::Value>,
) -> Option<serde_json::Value> {
    let before = before?;
    Some(match (column_type, before) {
        (ColumnType::Text, serde_json::Value::String(text)) => format!("{text}x").into(),
        (ColumnType::Integer, serde_json::Value::Number(number)) => {
            number.as_i64().map_or(before.clone(), |it| (it + 1).into())
        }
        (ColumnType::Real, serde_json::Value::Number(number)) => number
            .as_f64()
            .map_or(before.clone(), |it| (it + 1.0).into()),
        _ => before.clone(),
    })
}

/// The greatest number in an integer key, from which on numbers are free.
fn last_number(connection: &Connection, tables: &[Editable]) -> rusqlite::Result<i64> {
    let mut last = 0;
    for table in tables {
        for &field in &table.key {
            if table.fields[field].column_type == Some(ColumnType::Integer) {
                let (column, name) = (quote(&table.fields[field].name), quote(&table.name));
                let sql = format!("SELECT coalesce(max({column}), 0) FROM {name}");
                // What is no number is none.
                let most: i64 = connection
                    .query_row(&sql, [], |row| row.get(0))
                    .unwrap_or(0);
                last = last.max(most.min(1 << 40));
            }
        }
    }
    Ok(last)
}

/// Names in the rows for which queries of partitions yield something.
fn likely_users(
    connection: &Connection,
    publications: &[PublicationSpec],
    tables: &[Editable],
) -> Result<Vec<String>, KitError> {
    let queries = double::queries(publications);
    let mut names: Vec<String> = Vec::new();
    for table in tables {
        let texts = table
            .fields
            .iter()
            .filter(|it| it.column_type == Some(ColumnType::Text));
        for field in texts {
            let (column, name) = (quote(&field.name), quote(&table.name));
            let sql = format!(
                "SELECT DISTINCT {column} FROM {name} WHERE typeof({column}) = 'text' \
                 AND length({column}) BETWEEN 1 AND 40 ORDER BY 1 LIMIT {MOST_NAMES}"
            );
            let mut statement = connection.prepare(&sql)?;
            let values = statement.query_map([], |row| row.get::<_, String>(0))?;
            for value in values {
                let value = value?;
                if !names.contains(&value) {
                    names.push(value);
                }
            }
        }
    }
    let mut found = Vec::new();
    for name in names {
        let mut yielding = 0;
        for query in &queries {
            yielding += usize::from(double::yields(connection, query, &name));
        }
        if yielding > 0 {
            found.push((std::cmp::Reverse(yielding), name));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|it| it.1).take(8).collect())
}

/// A place where the copy is served.
pub(super) fn host(
    place: usize,
    began: Instant,
    mut random: SeededRandom,
    config: &Config,
) -> Host {
    let intruder = Intruder::new(random.fork());
    intruder.leave();
    Host::new(place, began, random, intruder).serving(config)
}
