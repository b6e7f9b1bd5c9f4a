//! Publications as they are served: compiled, and with the numbers of what is deployed for them.

use std::sync::Arc;

use tidewater_protocol::{ColumnType, PublicationSchema, RowShape, Table};

use super::catalog::Catalog;
use super::compile::{Published, compile};
use super::database::{ChangeLog, Tracking};
use super::download::PublishedSchema;
use super::exact::types_of;
use super::scope::{ScopeQuery, wrong};
use crate::engine::script::Script;
use crate::error::CentreError;
use crate::publication::{PartitionSpec, PublicationSpec};

type Result<T> = std::result::Result<T, CentreError>;

/// A publication, ready to be served. `T` is what the adapter has to know of a table.
#[derive(Debug)]
pub struct Publication<T> {
    /// As remotes see it.
    pub schema: Arc<PublicationSchema>,
    /// In the order of the schema, as everything here.
    pub shapes: Arc<[RowShape]>,
    /// By which rows of the tables a remote holds.
    pub rules: Vec<Rule>,
    /// What the adapter knows of its tables.
    pub tables: Vec<T>,
    /// What its operator may not have thought of.
    pub warnings: Vec<String>,
}

impl<T> Publication<T> {
    /// What downloads need of it.
    pub fn published(&self) -> PublishedSchema {
        PublishedSchema {
            schema: self.schema.clone(),
            shapes: self.shapes.clone(),
            rules: self.rules.iter().map(|rule| rule.id).collect(),
        }
    }
}

/// By which rows of a table a remote holds.
#[derive(Debug)]
pub struct Rule {
    /// Stands for the rule in checkpoints, as long as its partition columns are what they are;
    /// known once it is deployed.
    pub id: i64,
    /// The query that yields a user's partitions; `None` for "everyone".
    pub query: Option<ScopeQuery>,
    /// The types of the partition columns.
    pub types: Vec<ColumnType>,
    /// What makes it another rule, as text.
    pub identity: String,
}

/// A table of a publication, as an adapter serves it.
pub trait ServedTable: Send + Sync + 'static {
    /// A change log.
    type Log: ChangeLog;

    /// Its change log; `None` if its changes are not tracked.
    fn log(&self) -> Option<&Self::Log>;

    /// Tells the number of its change log, once that is deployed.
    fn set_log(&mut self, id: i64);
}

/// Compiles publications, and has the database read their queries.
///
/// # Errors
/// [`CentreError::Configuration`], with the place.
pub async fn compile_all<T: Tracking>(
    connection: &mut T::Connection,
    specs: &[PublicationSpec],
    catalog: &T::Catalog,
) -> Result<Vec<Publication<T::Table>>> {
    let mut publications = Vec::with_capacity(specs.len());
    for spec in specs {
        publications.push(compile_one::<T>(connection, spec, catalog).await?);
    }
    Ok(publications)
}

/// Compiles one publication.
pub async fn compile_one<T: Tracking>(
    connection: &mut T::Connection,
    spec: &PublicationSpec,
    catalog: &T::Catalog,
) -> Result<Publication<T::Table>> {
    let (schema, published) = compile(spec, catalog.tables())?;
    let shapes: Arc<[RowShape]> = schema.tables.iter().map(Table::shape).collect();
    let (mut rules, mut tables, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
    let of_schema = schema.tables.iter().zip(&*shapes);
    for (published, (table, shape)) in published.iter().zip(of_schema) {
        let served = T::table(published, table, catalog);
        let rule = Rule::of::<T>(published, table, shape, &served)?;
        if let Some(query) = &rule.query {
            T::check_query(connection, &published.place, query, table, &served).await?;
        }
        warnings.extend(catalog.tables()[published.table].warnings(table));
        rules.push(rule);
        tables.push(served);
    }
    Ok(Publication {
        schema: Arc::new(schema),
        shapes,
        rules,
        tables,
        warnings,
    })
}

impl Rule {
    fn of<T: Tracking>(
        published: &Published<'_>,
        table: &Table,
        shape: &RowShape,
        served: &T::Table,
    ) -> Result<Rule> {
        let query = match &published.spec.partition {
            PartitionSpec::Everyone => None,
            PartitionSpec::Columns { values, .. } => {
                let script = Script::parse(values, T::DIALECT, T::parameter);
                let script = script.map_err(|error| {
                    wrong(
                        &published.place,
                        &format!("is wrong: {error}"),
                        error.hint(),
                    )
                })?;
                let inner = script.sql.trim().trim_end_matches(';').to_owned();
                Some(ScopeQuery {
                    sql: T::scope_sql(&inner, served),
                    inner,
                    parameters: script.parameters,
                })
            }
        };
        let columns = table.partition.iter().map(|&index| {
            let column = &table.columns[index];
            (&column.name, column.column_type)
        });
        Ok(Rule {
            id: 0,
            query,
            types: types_of(shape, &shape.partition),
            identity: format!("{:?}", columns.collect::<Vec<_>>()),
        })
    }
}
