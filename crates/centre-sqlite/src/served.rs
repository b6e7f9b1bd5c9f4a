//! What is served, and keeping it up to date with the file.

use std::sync::{Arc, PoisonError, RwLock};

use tidewater_protocol::PublicationSchema;

use super::catalog::Catalog;
use super::connection::Connection;
use super::publication::PublishedTable;
use super::{SqliteCentre, failure};
use tidewater_centre::engine::catalog::named;
use tidewater_centre::engine::compile::columns_differ;
use tidewater_centre::engine::deploy::{Loaded, load};
use tidewater_centre::engine::publication::{ServedTable, compile_one};
use tidewater_centre::engine::thread::at_once;
use tidewater_centre::error::CentreError;
use tidewater_centre::publication::PublicationSpec;

/// Publications as they are served.
pub(super) type Served = Loaded<PublishedTable>;

/// What is served, checked and compiled anew if the file's schema has changed since: a
/// new unique index needs a trigger of ours, a new trigger may fail half-way. A column that
/// was added and deployed by another process is left out until a new server begins: ours has
/// told remotes of the columns that there were.
///
/// # Errors
/// [`CentreError::NotDeployed`] when the file does not fit any more. Deploying has
/// remotes fetch what may have been missed.
pub(super) fn refresh(
    connection: &mut Connection,
    shared: &RwLock<Arc<Served>>,
) -> Result<Arc<Served>, CentreError> {
    let served = Arc::clone(&*shared.read().unwrap_or_else(PoisonError::into_inner));
    if served.publications.is_empty() || schema_version(connection)? == served.version {
        return Ok(served);
    }
    let fresh = at_once(load::<SqliteCentre>(connection, &served.specs));
    let mut fresh = fresh.map_err(changed_since)?;
    keep_columns(&mut fresh, connection, &served)?;
    let served = Arc::new(fresh);
    *shared.write().unwrap_or_else(PoisonError::into_inner) = served.clone();
    Ok(served)
}

/// The file fitted when the server began.
fn changed_since(error: CentreError) -> CentreError {
    match error {
        CentreError::NotDeployed { message } | CentreError::Configuration { message, .. } => {
            CentreError::NotDeployed {
                message: format!(
                    "the file was changed or deployed otherwise since the server began: {message}"
                ),
            }
        }
        other => other,
    }
}

/// Serves the columns that were served before.
fn keep_columns(
    fresh: &mut Served,
    connection: &mut Connection,
    before: &Served,
) -> Result<(), CentreError> {
    let old = before.publications.iter().map(|it| &it.schema);
    for ((now, old), spec) in fresh.publications.iter_mut().zip(old).zip(&fresh.specs) {
        if !tables_differ(old, &now.schema) {
            continue;
        }
        let catalog = Catalog::read(connection)?;
        let spec = with_columns_of(spec, old, &catalog);
        let kept = at_once(compile_one::<SqliteCentre>(connection, &spec, &catalog));
        let mut kept = kept.map_err(changed_since)?;
        if tables_differ(old, &kept.schema) {
            return Err(changed_since(CentreError::NotDeployed {
                message: format!("remotes know other columns or keys of {:?}", old.name),
            }));
        }
        for (index, table) in kept.schema.tables.iter().enumerate() {
            let mut tables = now.schema.tables.iter();
            let place = tables.position(|it| it.name == table.name);
            let place = place.ok_or_else(|| CentreError::Internal {
                message: format!("the table {:?} was deployed and is not there", table.name),
            })?;
            for (rule, known) in now.tables[place].rules.iter().enumerate() {
                let id = known.log.as_ref().map_or(0, |log| log.id);
                kept.tables[index].set_log(rule, id);
            }
            let ids: Vec<i64> = now.rules[now.rules_of(place)]
                .iter()
                .map(|it| it.id)
                .collect();
            let places = kept.rules_of(index);
            let rules = Arc::get_mut(&mut kept.rules).into_iter().flatten();
            for (rule, id) in rules.skip(places.start).take(places.len()).zip(ids) {
                rule.id = id;
            }
        }
        *now = Arc::new(kept);
    }
    Ok(())
}

/// Whether remotes that know one schema would be told of other tables, columns or keys by the
/// other.
fn tables_differ(old: &PublicationSchema, new: &PublicationSchema) -> bool {
    old.tables.len() != new.tables.len()
        || old.tables.iter().any(|old| {
            new.table(&old.name)
                .is_none_or(|new| columns_differ(old, new) || old.partition != new.partition)
        })
}

/// A publication that names its columns: those that a schema has.
fn with_columns_of(
    spec: &PublicationSpec,
    schema: &PublicationSchema,
    catalog: &Catalog,
) -> PublicationSpec {
    let mut spec = spec.clone();
    for table in &mut spec.tables {
        let meant = named(&catalog.infos, &table.name);
        let known = meant
            .first()
            .and_then(|&it| schema.table(&catalog.infos[it].name));
        if let Some(known) = known {
            let columns = known.columns.iter().map(|column| column.name.clone());
            table.columns = Some(columns.collect());
        }
    }
    spec
}

/// SQLite's counter of schema changes.
pub(super) fn schema_version(connection: &Connection) -> Result<i64, CentreError> {
    connection
        .prepare_cached("PRAGMA schema_version")
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .map_err(failure("reading the schema's version"))
}
