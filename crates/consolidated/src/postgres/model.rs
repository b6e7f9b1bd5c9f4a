//! Publications, compiled against the catalog: everything that serving them needs.
//!
//! Pure: no SQL is run here. The errors are the operator's, so they say where in the
//! configuration something is wrong and what to write instead.

use std::collections::HashMap;
use std::sync::Arc;

use ring::digest::{SHA256, digest};

use tidewater_protocol::{Direction, PublicationSchema, RowShape, Table};

use super::binary::Kind;
use super::catalog::{Catalog, LiveColumnInfo, TableInfo};
use super::quote::ident;
use super::triggers::{LogSpec, log_column};
use crate::engine::compile::Published;
use crate::engine::{self, catalog};
use crate::error::CentreError;
use crate::publication::{PartitionSpec, PublicationSpec};
use crate::script::{Dialect, Script};

/// A publication, ready to be served.
#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) schema: Arc<PublicationSchema>,
    pub(super) shapes: Arc<[RowShape]>,
    /// In the order of the schema.
    pub(super) tables: Vec<CompiledTable>,
    /// Distinguishes lists of tables and partition columns: a scope is only understood
    /// under the layout under which it was written.
    pub(super) layout: [u8; 8],
}

/// A table of a publication.
#[derive(Debug)]
pub(super) struct CompiledTable {
    pub(super) oid: u32,
    /// Its name in SQL.
    pub(super) sql_name: String,
    /// Its name in a configuration.
    pub(super) title: String,
    /// The published columns.
    pub(super) columns: Vec<PgColumn>,
    pub(super) key: Vec<usize>,
    pub(super) partition: Vec<usize>,
    pub(super) direction: Direction,
    /// The change log; `None` if the table is not tracked.
    pub(super) log: Option<LogSpec>,
    /// The log's number, known once it is deployed.
    pub(super) log_id: i32,
    /// The query that yields a user's partitions; `None` for "everyone".
    pub(super) scope: Option<ScopeQuery>,
    /// See [`Published::deletes_first`].
    pub(super) deletes_first: bool,
    pub(super) effects: Effects,
    /// What [`super::FINGERPRINTS`] said when it was loaded.
    pub(super) fingerprint: String,
    /// The planner's guess of the number of rows.
    pub(super) row_estimate: u64,
}

/// What beside the uploaded rows an upload may change.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Effects {
    /// Triggers of the user, generated columns, or values that a column gives back in
    /// another form.
    pub(super) always: bool,
    /// Foreign keys that act on a delete.
    pub(super) on_delete: bool,
    /// Foreign keys that act on an update.
    pub(super) on_update: bool,
}

/// A published column, as SQL needs it.
#[derive(Clone, Debug)]
pub(super) struct PgColumn {
    /// Its name in SQL.
    pub(super) sql: String,
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) type_name: String,
    pub(super) cast_name: String,
    pub(super) scale: Option<u16>,
    pub(super) limit: Option<i32>,
    pub(super) collation: Option<String>,
    pub(super) generated: bool,
    pub(super) identity_always: bool,
}

/// A query for the values of the partition columns that a user holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ScopeQuery {
    /// The operator's query, with positional parameters.
    pub(super) inner: String,
    /// The same with its results cast to the partition columns' types.
    pub(super) sql: String,
    /// What the parameters stand for.
    pub(super) parameters: Vec<&'static str>,
}

impl PgColumn {
    fn of(column: &LiveColumnInfo) -> PgColumn {
        PgColumn {
            sql: ident(&column.name),
            name: column.name.clone(),
            kind: column.kind,
            type_name: column.type_name.clone(),
            cast_name: column.base_type_name.clone(),
            scale: column.scale,
            limit: column.limit,
            collation: column.collation.clone(),
            generated: column.generated,
            identity_always: column.identity_always,
        }
    }

    /// The column as a result in binary form: of the type as which it is decoded, even if
    /// its owner has given it another one meanwhile.
    pub(super) fn output(&self, prefix: &str) -> String {
        let (_, decoded) = self.kind.parameter();
        format!("{prefix}{}::{decoded}", self.sql)
    }

    /// A parameter's value as one of the column.
    pub(super) fn input(&self, value: &str) -> String {
        match self.kind {
            Kind::Other => format!("{value}::{}", self.cast_name),
            Kind::Bpchar => format!("{value}::bpchar"),
            _ => value.to_owned(),
        }
    }

    /// Whether the column has the value of a parameter: in the way that finds it by
    /// an index, for columns of a key.
    pub(super) fn equals(&self, column: &str, value: &str) -> String {
        format!("{column} = {}", self.input(value))
    }

    /// A partition's value as the column takes it, NULL if it takes it no more: a remote may hold
    /// one of an enumeration that has been renamed since.
    pub(super) fn held(&self, value: &str) -> String {
        let input = self.input(value);
        if self.kind != Kind::Other {
            return input;
        }
        let labels = format!(
            "SELECT FROM pg_catalog.pg_enum e \
             WHERE e.enumtypid = pg_catalog.pg_typeof(NULL::{})",
            self.cast_name
        );
        format!(
            "CASE WHEN NOT EXISTS ({labels}) OR EXISTS ({labels} AND e.enumlabel = {value}) \
             THEN {input} END"
        )
    }

    /// Whether the column has exactly the value of a parameter, NULL included.
    pub(super) fn same(&self, column: &str, value: &str) -> String {
        match self.kind {
            Kind::Text => format!("{column} COLLATE \"C\" IS NOT DISTINCT FROM {value}"),
            Kind::Bpchar => {
                format!("{column} COLLATE \"C\" IS NOT DISTINCT FROM {value}::bpchar")
            }
            Kind::Json => format!("{column}::text IS NOT DISTINCT FROM {value}::text"),
            Kind::Other => {
                format!("{column}::text COLLATE \"C\" IS NOT DISTINCT FROM {value}")
            }
            _ => format!("{column} IS NOT DISTINCT FROM {value}"),
        }
    }

    /// The column as it is compared with a partition's value: of exotic types the
    /// text, because that is what partitions are told apart by.
    pub(super) fn compared(&self, prefix: &str) -> String {
        match self.kind {
            Kind::Other => format!("{prefix}{}::text COLLATE \"C\"", self.sql),
            _ => format!("{prefix}{}", self.sql),
        }
    }

    /// The type of what [`Self::compared`] is compared with.
    pub(super) fn cast_for_comparison(&self) -> &str {
        match self.kind {
            Kind::Other => "text",
            _ => &self.cast_name,
        }
    }
}

impl CompiledTable {
    fn of(
        published: &Published<'_>,
        live: &TableInfo,
        described: &catalog::TableInfo,
    ) -> Result<CompiledTable, CentreError> {
        let columns = published.columns.iter();
        let columns: Vec<PgColumn> = columns.map(|&it| PgColumn::of(&live.columns[it])).collect();
        let scope = match &published.spec.partition {
            PartitionSpec::Everyone => None,
            PartitionSpec::Columns { values, .. } => {
                let partition = published.partition.iter().map(|&index| &columns[index]);
                let partition: Vec<_> = partition.collect();
                Some(scope_query(&published.place, values, &partition)?)
            }
        };
        let partition = published.partition.iter();
        let partition: Vec<usize> = partition.map(|&index| published.columns[index]).collect();
        let log = || LogSpec::new(live, &partition, published.spec.tracking);
        Ok(CompiledTable {
            oid: live.oid,
            sql_name: live.sql_name(),
            title: described.title.clone(),
            key: published.positions(&live.key).unwrap_or_default(),
            partition: published.partition.clone(),
            direction: published.spec.direction,
            log: published.is_logged.then(log),
            log_id: 0,
            scope,
            deletes_first: published.deletes_first,
            effects: Effects {
                // Whether a partition has a trigger of its own is not asked in every upload.
                always: live.members.is_some()
                    || live.user_triggers
                    || live.columns.iter().any(|column| column.generated),
                on_delete: published.acts_on_delete,
                on_update: published.acts_on_update,
            },
            fingerprint: String::new(),
            row_estimate: live.row_estimate,
            columns,
        })
    }

    /// The log's column that has a published column's values.
    pub(super) fn log_column(&self, column: usize) -> Option<String> {
        let positions = LogSpec::positions(&self.partition, &self.key);
        positions
            .iter()
            .position(|&it| it == column)
            .map(log_column)
    }

    /// The log table's name in SQL.
    pub(super) fn log_table(&self) -> String {
        LogSpec::log_table(self.log_id)
    }

    /// The key's columns, under the names that they have in another relation, as
    /// results in binary form.
    pub(super) fn key_outputs(&self, prefix: &str, names: &[String]) -> String {
        let outputs =
            self.key
                .iter()
                .zip(names)
                .map(|(&index, name)| match self.columns[index].kind {
                    Kind::Other => format!("{prefix}{name}::text"),
                    _ => format!("{prefix}{name}"),
                });
        outputs.collect::<Vec<_>>().join(", ")
    }

    /// All published columns as results in binary form.
    pub(super) fn outputs(&self, prefix: &str) -> String {
        let outputs = self.columns.iter().map(|column| column.output(prefix));
        outputs.collect::<Vec<_>>().join(", ")
    }
}

fn wrong(message: String, hint: impl Into<String>) -> CentreError {
    CentreError::Configuration {
        message,
        hint: hint.into(),
    }
}

/// Compiles a publication; `described` is the catalog as the engine knows it.
pub(super) fn compile(
    spec: &PublicationSpec,
    catalog: &Catalog,
    described: &[catalog::TableInfo],
) -> Result<Compiled, CentreError> {
    let named = |name: &str| catalog.named(name);
    let publication = engine::compile::compile(spec, described, named)?;
    let tables = publication.tables.iter();
    let tables = tables.map(|published| {
        let live = &catalog.tables[published.table];
        CompiledTable::of(published, live, &described[published.table])
    });
    let schema = publication.schema;
    Ok(Compiled {
        shapes: schema.tables.iter().map(Table::shape).collect(),
        layout: layout(&schema),
        tables: tables.collect::<Result<_, _>>()?,
        schema: Arc::new(schema),
    })
}

fn layout(schema: &PublicationSchema) -> [u8; 8] {
    let mut text = String::new();
    for table in &schema.tables {
        let partition = table.partition.iter().map(|&index| {
            let column = &table.columns[index];
            (&column.name, column.column_type)
        });
        text.push_str(&format!(
            "{:?}{:?}",
            table.name,
            partition.collect::<Vec<_>>()
        ));
    }
    let mut layout = [0; 8];
    layout.copy_from_slice(&digest(&SHA256, text.as_bytes()).as_ref()[..8]);
    layout
}

fn scope_query(
    place: &str,
    values: &str,
    partition: &[&PgColumn],
) -> Result<ScopeQuery, CentreError> {
    let script = Script::parse(values, Dialect::Postgres, |number| format!("${number}"))
        .map_err(|error| wrong(format!("{place}: partition values: {error}"), error.hint()))?;
    let inner = script.sql.trim().trim_end_matches(';').to_owned();
    let names: Vec<String> = (0..partition.len()).map(log_column).collect();
    let outputs = partition.iter().zip(&names).map(|(column, name)| {
        // A numeric's scale decides how it is spelled; a varchar's limit must not cut
        // a longer value down to another partition's.
        let cast = match column.kind {
            Kind::Numeric | Kind::Time | Kind::Timestamp | Kind::TimestampTz => &column.type_name,
            _ => &column.cast_name,
        };
        let cast = format!("v.{name}::{cast}");
        match column.kind {
            Kind::Other => format!("{cast}::text"),
            _ => cast,
        }
    });
    let outputs = outputs.collect::<Vec<_>>().join(", ");
    // The query may end in a comment: the parenthesis stands on a line of its own.
    let sql = format!(
        "SELECT DISTINCT {outputs} FROM (\n{inner}\n) AS v({})",
        names.join(", ")
    );
    Ok(ScopeQuery {
        inner,
        sql,
        parameters: script.parameters,
    })
}

/// The distinct change logs that publications need.
pub(super) fn logs(compiled: &[Compiled]) -> Vec<LogSpec> {
    let mut logs: Vec<LogSpec> = Vec::new();
    let mut seen: HashMap<(u32, Vec<String>), usize> = HashMap::new();
    for log in compiled
        .iter()
        .flat_map(|it| &it.tables)
        .filter_map(|it| it.log.as_ref())
    {
        match seen.get(&log.identity()) {
            // One that fires by row serves both.
            Some(&index) => logs[index].by_row |= log.by_row,
            None => {
                seen.insert(log.identity(), logs.len());
                logs.push(log.clone());
            }
        }
    }
    logs
}
