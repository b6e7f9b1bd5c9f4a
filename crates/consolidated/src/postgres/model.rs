//! Publications, compiled against the catalog: everything that serving them needs.
//!
//! Pure: no SQL is run here. The errors are the operator's, so they say where in the
//! configuration something is wrong and what to write instead.

use std::collections::HashMap;
use std::sync::Arc;

use ring::digest::{SHA256, digest};

use tidewater_protocol::{Column, Direction, ForeignKey, PublicationSchema, RowShape, Table};

use super::binary::Kind;
use super::live::{Catalog, LiveColumnInfo, TableInfo};
use super::quote::ident;
use super::triggers::{LogSpec, log_column};
use crate::error::CentreError;
use crate::publication::{PartitionSpec, PublicationSpec, TableSpec, Tracking, check_names};
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
    pub(super) has_secondary_unique: bool,
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
    /// Whether its deletes go before inserts and updates, for the unique values that they free.
    /// Not where foreign keys act on them: they could take along what the same upload moves
    /// elsewhere. What needs their values is tried again after them.
    pub(super) fn deletes_first(&self) -> bool {
        self.has_secondary_unique && !self.effects.on_delete
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

/// Compiles a publication.
pub(super) fn compile(spec: &PublicationSpec, catalog: &Catalog) -> Result<Compiled, CentreError> {
    let mut chosen: Vec<(&TableSpec, &TableInfo)> = Vec::with_capacity(spec.tables.len());
    for table in &spec.tables {
        let place = format!("publication {:?}: table {:?}", spec.name, table.name);
        let live = match catalog.named(&table.name)[..] {
            [live] => live,
            [] => {
                return Err(wrong(
                    format!("{place} does not exist"),
                    format!("the database has {}; a view is no table", known(catalog)),
                ));
            }
            _ => {
                return Err(wrong(
                    format!("{place}: two tables can be meant, of different schemas"),
                    "rename one of the schemas or tables that have a point in their name",
                ));
            }
        };
        if let Some(obstacle) = &live.obstacle {
            return Err(wrong(
                format!("{place} cannot be published: {obstacle}"),
                "change the table, or leave it out of the publication",
            ));
        }
        if chosen.iter().any(|(_, other)| other.name == live.name) {
            return Err(wrong(
                format!(
                    "{place}: another table of the publication is called {:?}",
                    live.name
                ),
                "remotes know tables without their schema: publish them in two publications",
            ));
        }
        chosen.push((table, live));
    }
    let chosen = parents_first(chosen);
    let mut columns = Vec::with_capacity(chosen.len());
    for &(table, live) in &chosen {
        columns.push(published_columns(&spec.name, table, live)?);
    }
    let mut tables = Vec::with_capacity(chosen.len());
    let mut compiled = Vec::with_capacity(chosen.len());
    for (index, &(table, live)) in chosen.iter().enumerate() {
        let partition = partition(&spec.name, table, live, &columns[index])?;
        tables.push(schema_table(
            table, live, &chosen, &columns, index, &partition,
        ));
        compiled.push(compile_table(
            &spec.name,
            table,
            live,
            catalog,
            &columns[index],
            partition,
        )?);
    }
    let schema = PublicationSchema {
        name: spec.name.clone(),
        tables,
    };
    check_names(&schema)?;
    Ok(Compiled {
        shapes: schema.tables.iter().map(Table::shape).collect(),
        layout: layout(&schema),
        schema: Arc::new(schema),
        tables: compiled,
    })
}

fn known(catalog: &Catalog) -> String {
    let mut names: Vec<String> = catalog.tables.iter().map(TableInfo::title).collect();
    let more = names.len().saturating_sub(20);
    names.truncate(20);
    match (names.is_empty(), more) {
        (true, _) => "no tables".into(),
        (_, 0) => names.join(", "),
        _ => format!("{} and {more} more", names.join(", ")),
    }
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

/// Orders tables so that whoever is referred to comes first, where there is no cycle.
fn parents_first<'a>(
    mut waiting: Vec<(&'a TableSpec, &'a TableInfo)>,
) -> Vec<(&'a TableSpec, &'a TableInfo)> {
    let mut ordered = Vec::with_capacity(waiting.len());
    while !waiting.is_empty() {
        let free = waiting.iter().position(|(_, table)| {
            let parents = table.references.iter().map(|it| it.parent_oid);
            let mut parents = parents.filter(|&oid| oid != table.oid);
            !parents.any(|oid| waiting.iter().any(|(_, other)| other.oid == oid))
        });
        ordered.push(waiting.remove(free.unwrap_or(0)));
    }
    ordered
}

/// The published columns of a table, as indexes into the live ones.
fn published_columns(
    publication: &str,
    spec: &TableSpec,
    live: &TableInfo,
) -> Result<Vec<usize>, CentreError> {
    let place = format!("publication {publication:?}: table {:?}", spec.name);
    let columns = match &spec.columns {
        None => (0..live.columns.len()).collect::<Vec<_>>(),
        Some(names) => {
            let mut columns = Vec::with_capacity(names.len());
            for name in names {
                let index = live_column(&place, live, name)?;
                if columns.contains(&index) {
                    return Err(wrong(
                        format!("{place}: column {name:?} is listed twice"),
                        "list it once",
                    ));
                }
                columns.push(index);
            }
            columns
        }
    };
    let mut unreadable = columns.iter().map(|&index| &live.columns[index]);
    if let Some(column) = unreadable.find(|column| column.write_only) {
        return Err(wrong(
            format!(
                "{place}: the column {:?} is of the type {}, whose values PostgreSQL writes and \
                 never reads: nobody could upload one",
                column.name, column.type_name
            ),
            "list the other columns in `columns`",
        ));
    }
    if columns.len() > spec.max_columns() {
        return Err(wrong(
            format!("{place} has more than {} columns", spec.max_columns()),
            "list those to publish in `columns`",
        ));
    }
    if let Some(&key) = live.key.iter().find(|index| !columns.contains(index)) {
        let name = &live.columns[key].name;
        return Err(wrong(
            format!("{place}: `columns` leaves out {name:?} of the primary key"),
            format!("add {name:?} to `columns`"),
        ));
    }
    Ok(columns)
}

fn live_column(place: &str, live: &TableInfo, name: &str) -> Result<usize, CentreError> {
    live.column(name).ok_or_else(|| {
        let names: Vec<&str> = live.columns.iter().map(|it| it.name.as_str()).collect();
        wrong(
            format!("{place} has no column {name:?}"),
            format!("its columns are {}", names.join(", ")),
        )
    })
}

/// The partition columns, as indexes into the published ones.
fn partition(
    publication: &str,
    spec: &TableSpec,
    live: &TableInfo,
    published: &[usize],
) -> Result<Vec<usize>, CentreError> {
    let PartitionSpec::Columns { columns, .. } = &spec.partition else {
        return Ok(Vec::new());
    };
    let place = format!("publication {publication:?}: table {:?}", spec.name);
    let mut partition = Vec::with_capacity(columns.len());
    if columns.is_empty() {
        return Err(wrong(
            format!("{place}: the partition has no columns"),
            "name them, or write partition = \"everyone\"",
        ));
    }
    for name in columns {
        let index = live_column(&place, live, name)?;
        let column = &live.columns[index];
        let unfit = match column.kind {
            Kind::Numeric => column.scale.is_none(),
            Kind::Float4 | Kind::Float8 | Kind::Json | Kind::Jsonb => true,
            _ => false,
        };
        if unfit {
            return Err(wrong(
                format!(
                    "{place}: {name:?} of the type {} cannot be a partition column: equal values \
                     can be spelled differently",
                    column.type_name
                ),
                "partition by an integer, text, uuid, date or numeric(p,s) column",
            ));
        }
        if column.generated && spec.direction.uploads() {
            return Err(wrong(
                format!(
                    "{place}: the partition column {name:?} is generated: what a remote says \
                     about it does not bind the centre, which could put its rows into the \
                     partitions of others"
                ),
                "partition by a column that is written, or let the table be downloaded only: \
                 direction = \"download\"",
            ));
        }
        let Some(position) = published.iter().position(|&it| it == index) else {
            return Err(wrong(
                format!("{place}: `columns` leaves out the partition column {name:?}"),
                format!("add {name:?} to `columns`"),
            ));
        };
        if partition.contains(&position) {
            return Err(wrong(
                format!("{place}: the partition column {name:?} is listed twice"),
                "list it once",
            ));
        }
        partition.push(position);
    }
    Ok(partition)
}

/// Live column indexes as indexes into the published ones; `None` if one is not
/// published.
fn positions(live: &[usize], published: &[usize]) -> Option<Vec<usize>> {
    let position = |index| published.iter().position(|it| it == index);
    live.iter().map(position).collect()
}

fn schema_table(
    spec: &TableSpec,
    live: &TableInfo,
    chosen: &[(&TableSpec, &TableInfo)],
    columns: &[Vec<usize>],
    index: usize,
    partition: &[usize],
) -> Table {
    let published = &columns[index];
    let column = |&index: &usize| {
        let column = &live.columns[index];
        Column {
            name: column.name.clone(),
            column_type: column.column_type(),
            nullable: column.nullable,
            default: column.default.clone(),
        }
    };
    let mut foreign_keys = Vec::new();
    for reference in &live.references {
        let parent = chosen
            .iter()
            .position(|(_, it)| it.oid == reference.parent_oid);
        let (Some(parent), Some(own)) = (parent, positions(&reference.columns, published)) else {
            continue;
        };
        let parent_live = chosen[parent].1;
        let Some(parent_columns) = reference.parent_positions(parent_live) else {
            continue;
        };
        if positions(&parent_columns, &columns[parent]).is_none() {
            continue;
        }
        foreign_keys.push(ForeignKey {
            columns: own,
            parent: parent_live.name.clone(),
            parent_columns: parent_columns
                .iter()
                .map(|&index| parent_live.columns[index].name.clone())
                .collect(),
            on_delete: reference.on_delete,
            on_update: reference.on_update,
        });
    }
    let unique = live.unique.iter();
    Table {
        name: live.name.clone(),
        columns: published.iter().map(column).collect(),
        key: positions(&live.key, published).unwrap_or_default(),
        partition: partition.to_vec(),
        unique: unique.filter_map(|it| positions(it, published)).collect(),
        foreign_keys,
        direction: spec.direction,
    }
}

fn compile_table(
    publication: &str,
    spec: &TableSpec,
    live: &TableInfo,
    catalog: &Catalog,
    published: &[usize],
    partition: Vec<usize>,
) -> Result<CompiledTable, CentreError> {
    let columns: Vec<PgColumn> = published
        .iter()
        .map(|&index| PgColumn::of(&live.columns[index]))
        .collect();
    let scope = match &spec.partition {
        PartitionSpec::Everyone => None,
        PartitionSpec::Columns { values, .. } => {
            let place = format!("publication {publication:?}: table {:?}", spec.name);
            let partition = partition.iter().map(|&index| &columns[index]);
            Some(scope_query(&place, values, &partition.collect::<Vec<_>>())?)
        }
    };
    let live_partition: Vec<usize> = partition.iter().map(|&index| published[index]).collect();
    let tracked = spec.tracking != Tracking::Off && spec.direction.downloads();
    let effects = Effects {
        // Whether a partition has a trigger of its own is not asked in every upload.
        always: live.members.is_some()
            || live.user_triggers
            || live.columns.iter().any(|column| column.generated),
        on_delete: catalog
            .references_to(live.oid)
            .any(|(_, it)| it.on_delete.acts()),
        on_update: catalog
            .references_to(live.oid)
            .any(|(_, it)| it.on_update.acts()),
    };
    Ok(CompiledTable {
        oid: live.oid,
        sql_name: live.sql_name(),
        title: live.title(),
        key: positions(&live.key, published).unwrap_or_default(),
        partition,
        direction: spec.direction,
        log: tracked.then(|| LogSpec::new(live, &live_partition, spec.tracking)),
        log_id: 0,
        scope,
        has_secondary_unique: live.has_secondary_unique,
        effects,
        fingerprint: String::new(),
        row_estimate: live.row_estimate,
        columns,
    })
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
