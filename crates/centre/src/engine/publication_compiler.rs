//! Makes publications that can be served of those that are configured, and has the database read their queries.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidewater_protocol::{ColumnType, RowShape, Table};

use crate::engine::acting;
use crate::engine::catalog::CatalogReader as _;
use crate::engine::catalog::{ColumnInfo, TableInfo, named};
use crate::engine::change_tracking::ChangeTracking;
use crate::engine::compile::CompiledRule;
use crate::engine::compile::{CompiledTable, WhichRule, compile};
use crate::engine::publication::{Publication, RowRule, Writes};
use crate::engine::scope_query::{Permit, ScopeQuery, wrong};
use crate::engine::script::{Script, ScriptParameter};
use crate::engine::scripts;
use crate::engine::sql::column::SqlColumn;
use crate::engine::sql::served_table::{ServedTable, log_column};
use crate::engine::statement_check::{check_one_column, check_values};
use crate::engine::window::Window;
use crate::error::CentreError;
use crate::nearest::nearest;
use crate::publication::{ParameterSpec, PublicationSpec, RuleBy, TableSpec, WindowLength};

type Result<T> = std::result::Result<T, CentreError>;

/// What to do about a query that yields several columns, or none.
const ONE_COLUMN: &str = "select one column";

/// Compiles publications, and has the database read their queries.
///
/// # Errors
/// [`CentreError::Configuration`], with the place.
pub async fn compile_all<T: ChangeTracking>(
    connection: &mut T::Connection,
    specs: &[PublicationSpec],
    catalog: &T::Catalog,
) -> Result<Vec<Publication<T::Tables>>> {
    let mut publications = Vec::with_capacity(specs.len());
    for spec in specs {
        publications.push(compile_one::<T>(connection, spec, catalog).await?);
    }
    Ok(publications)
}

/// Compiles one publication.
pub async fn compile_one<T: ChangeTracking>(
    connection: &mut T::Connection,
    spec: &PublicationSpec,
    catalog: &T::Catalog,
) -> Result<Publication<T::Tables>> {
    let infos = catalog.tables();
    let (schema, published) = compile(spec, infos)?;
    let shapes: Arc<[RowShape]> = schema.tables.iter().map(Table::shape).collect();
    let (mut rules, mut tables, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
    let (mut writes, mut resolvers, mut ranks) = (Vec::new(), Vec::new(), Vec::new());
    let handled = published.iter().map(|it| it.handled).collect();
    let followed = followed(spec, infos);
    let followed = published.iter().map(|it| followed.contains(&it.table));
    let followed = followed.collect();
    let mut row_types = Vec::new();
    for (index, (published, table)) in published.iter().zip(&schema.tables).enumerate() {
        let served = T::table(published, table, catalog);
        let mut types = shapes[index].columns.clone();
        types.extend(
            published
                .extras(infos)
                .iter()
                .map(|extra| extra.column_type),
        );
        let held = published.rules.iter().enumerate();
        let held = held.map(|(local, rule)| (WhichRule::Held(local), rule));
        let written = published.writes.rule.iter();
        let written = written.map(|rule| (WhichRule::Written, rule));
        let mut rule_of_writes = None;
        for (which, compiled) in held.chain(written) {
            let mut rule =
                RowRule::from_compiled::<T>(published, (which, compiled), infos, &served)?;
            rule.table = index;
            if let Some(query) = &rule.query {
                let named = values_query(&published.place);
                let root = &infos[compiled.root(published.table)];
                let columns = compiled.columns.iter().map(|&it| &root.columns[it]);
                let columns: Vec<&ColumnInfo> = columns.collect();
                check_values::<T>(connection, &named, query, &columns).await?;
            }
            match which {
                WhichRule::Held(_) => rules.push(rule),
                WhichRule::Written => rule_of_writes = Some(rule),
            }
        }
        let read_only = published.positions(&published.writes.read_only);
        let completed = [&published.writes.read_only, &published.filled];
        writes.push(Writes {
            rule: rule_of_writes,
            are_completed: completed.iter().any(|it| !it.is_empty()),
            read_only: read_only.unwrap_or_default(),
            hand_over: published.writes.hand_over,
        });
        resolvers.push(published.resolver.clone());
        ranks.push(rank_query::<T>(connection, &published.place, published.spec).await?);
        row_types.push(types);
        warnings.extend(published.warnings(infos, table));
        tables.push(served);
    }
    let (scripts, told) = scripts::compile::<T>(connection, spec, &schema, &tables).await?;
    warnings.extend(told);
    let written = writes.iter().filter_map(|it| it.rule.as_ref());
    let queries = rules
        .iter()
        .chain(written)
        .filter_map(|it| it.query.as_ref());
    let of_queries = queries.flat_map(|it| &it.parameters);
    let of_queries = of_queries.filter_map(ScriptParameter::of_remote);
    let of_scripts = scripts.values().flat_map(|it| scripts::named(it));
    let named: BTreeSet<&str> = of_queries.chain(of_scripts).collect();
    let permits = permits::<T>(connection, spec, &named).await?;
    let act_as = acting::compile::<T>(connection, spec, &tables).await?;
    let act_as = act_as.map(|(assumed, told)| {
        warnings.extend(told);
        assumed
    });
    let schema = Arc::new(schema);
    Ok(Publication {
        scripts,
        permits,
        act_as,
        on_reject: spec.on_reject,
        replay: spec.replay,
        upload_order: spec.upload_order,
        announced: schema.clone(),
        schema,
        past: Arc::default(),
        shapes,
        rules: rules.into(),
        writes,
        resolvers,
        ranks,
        followed,
        handled,
        row_types: row_types.into(),
        tables,
        warnings,
    })
}

/// The tables that others of a publication follow, as indexes into the catalog.
fn followed(spec: &PublicationSpec, infos: &[TableInfo]) -> BTreeSet<usize> {
    let rules = spec.tables.iter().flat_map(|table| &table.partition);
    let followed = rules.filter_map(|rule| match &rule.by {
        RuleBy::Follows { table, .. } => Some(named(infos, table)),
        _ => None,
    });
    followed.flatten().collect()
}

/// What the query for a table's partitions is called.
fn values_query(place: &str) -> String {
    format!("{place}: the values query")
}

/// What the parameters of remotes may be that queries or scripts name.
async fn permits<T: ChangeTracking>(
    connection: &mut T::Connection,
    spec: &PublicationSpec,
    named: &BTreeSet<&str>,
) -> Result<Vec<Permit>> {
    let mut permits = Vec::new();
    for parameter in &spec.parameters {
        let place = format!(
            "publication {:?}, parameter {:?}",
            spec.name, parameter.name
        );
        if !named.contains(parameter.name.as_str()) {
            let near = nearest(&parameter.name, named.iter().copied());
            return Err(CentreError::Configuration {
                message: format!(
                    "{place}: neither a values query of the publication nor a script names it"
                ),
                hint: match near {
                    Some(near) => format!("did you mean {near:?}?"),
                    None => format!("write {{u.{}}} in a values query", parameter.name),
                },
            });
        }
        if let Some(permit) = Permit::from_spec::<T>(parameter, &place)? {
            let query = allowed_query(&place);
            check_one_column::<T>(connection, &query, &permit.query, ONE_COLUMN).await?;
            permits.push(permit);
        }
    }
    Ok(permits)
}

/// The query for the rank of a user in a table, checked; `None` where conflicts do not go by it.
async fn rank_query<T: ChangeTracking>(
    connection: &mut T::Connection,
    place: &str,
    table: &TableSpec,
) -> Result<Option<ScopeQuery>> {
    let Some(rank) = &table.conflict.rank else {
        return Ok(None);
    };
    let named = format!("{place}: conflict.rank");
    let claim = rank.trim();
    let is_claim = claim.starts_with("{s.claims.") && claim.find('}') == Some(claim.len() - 1);
    let rank = match is_claim {
        true => format!("SELECT {claim}"),
        false => rank.clone(),
    };
    let script = Script::parse(&rank, T::lexing(), T::parameter);
    let script =
        script.map_err(|error| wrong(&named, &format!("is wrong: {error}"), error.hint()))?;
    let inner = script.sql.trim().trim_end_matches(';').to_owned();
    let (from, highest) = (
        T::dialect().value_relation(&inner),
        T::dialect().highest_integer(),
    );
    let query = ScopeQuery {
        sql: format!("SELECT {highest} FROM {from}"),
        inner,
        parameters: script.parameters,
    };
    check_one_column::<T>(connection, &named, &query, ONE_COLUMN).await?;
    Ok(Some(query))
}

/// What the query for the values of a parameter is called.
fn allowed_query(place: &str) -> String {
    format!("{place}: the allowed query")
}

impl Permit {
    fn from_spec<T: ChangeTracking>(
        parameter: &ParameterSpec,
        place: &str,
    ) -> Result<Option<Permit>> {
        let Some(allowed) = &parameter.allowed else {
            return Ok(None);
        };
        let script = Script::parse(allowed, T::lexing(), T::parameter);
        let mut script = script.map_err(|error| {
            let what = format!("is wrong: {error}");
            wrong(&allowed_query(place), &what, error.hint())
        })?;
        let inner = script.sql.trim().trim_end_matches(';').to_owned();
        let asked = script.number_of(ScriptParameter::User(parameter.name.clone()));
        let asked = T::parameter(asked);
        // Values are the same if their texts are, byte by byte.
        let dialect = T::dialect();
        let from = dialect.value_relation(&inner);
        let (text, collation) = (dialect.text_cast(), dialect.byte_collation());
        Ok(Some(Permit {
            parameter: parameter.name.clone(),
            query: ScopeQuery {
                sql: format!(
                    "SELECT 1 FROM {from} WHERE CAST(value AS {text}) COLLATE {collation} = \
                     CAST({asked} AS {text}) LIMIT 1"
                ),
                inner,
                parameters: script.parameters,
            },
        }))
    }
}

impl RowRule {
    fn from_compiled<T: ChangeTracking>(
        published: &CompiledTable<'_>,
        (which, compiled): (WhichRule, &CompiledRule),
        infos: &[TableInfo],
        served: &ServedTable<T::Tables>,
    ) -> Result<RowRule> {
        let query = compiled.values.as_ref();
        let query = query.map(|values| query_of::<T>(&published.place, values, which, served));
        let root = &infos[compiled.root(published.table)];
        let columns = compiled.columns.iter().map(|&index| &root.columns[index]);
        let types = columns.clone().filter_map(|it| it.column_type.clone().ok());
        let names = columns
            .clone()
            .map(|column| (&column.name, &column.column_type));
        // What is written is told by the table's own columns, which are all published.
        let place_of = |level, column| match which {
            WhichRule::Held(local) => published.place_of(infos, local, level, column),
            WhichRule::Written => {
                let mut published = published.columns.iter();
                published.position(|it| *it == column).unwrap_or_default()
            }
        };
        let windows = compiled.windows.iter().enumerate().map(|(at, window)| {
            let table = &infos[compiled.table_at(published.table, window.level)];
            let column_type = table.columns[window.column].column_type.clone();
            let highest = match (window.last, which) {
                (WindowLength::Number(_), WhichRule::Held(local)) => {
                    let sql = served.rules[local].windows[at].highest_sql();
                    Some(ScopeQuery {
                        inner: sql.clone(),
                        sql,
                        parameters: Vec::new(),
                    })
                }
                _ => None,
            };
            Window {
                column: place_of(window.level, window.column),
                column_type: column_type.unwrap_or(ColumnType::Integer),
                last: window.last,
                highest,
            }
        });
        let level = compiled.route.len();
        let places = compiled.columns.iter().map(|&it| place_of(level, it));
        let own = compiled.columns.iter().filter(|_| level == 0);
        let filled = own.filter(|column| published.filled.contains(column));
        let refers = compiled.route.first().map(|reach| &reach.columns[..]);
        let refers = published.positions(refers.unwrap_or_default());
        Ok(RowRule {
            id: 0,
            table: 0,
            query: query.transpose()?,
            names: columns.clone().map(|it| it.name.clone()).collect(),
            types: types.collect(),
            columns: places.collect(),
            windows: windows.collect(),
            follows: level > 0,
            refers: refers.unwrap_or_default(),
            filled: filled.map(|&it| place_of(level, it)).collect(),
            identity: format!(
                "{:?} {:?} {:?}",
                published.route_names(infos, compiled),
                names.collect::<Vec<_>>(),
                compiled
                    .windows
                    .iter()
                    .map(|it| (it.level, it.column))
                    .collect::<Vec<_>>(),
            ),
        })
    }
}

/// A query of the operator's for the values of a rule.
fn query_of<T: ChangeTracking>(
    place: &str,
    values: &str,
    which: WhichRule,
    served: &ServedTable<T::Tables>,
) -> Result<ScopeQuery> {
    let script = Script::parse(values, T::lexing(), T::parameter);
    let script = script.map_err(|error| {
        wrong(
            &values_query(place),
            &format!("is wrong: {error}"),
            error.hint(),
        )
    })?;
    let inner = script.sql.trim().trim_end_matches(';').to_owned();
    Ok(ScopeQuery {
        sql: cast_values(&inner, served.asked(which, None)),
        inner,
        parameters: script.parameters,
    })
}

/// A query for the values of columns, with its results made values of their types.
fn cast_values<C: SqlColumn>(query: &str, columns: &[C]) -> String {
    let names: Vec<String> = (0..columns.len()).map(log_column).collect();
    let casts = columns.iter().zip(&names);
    let casts: Option<Vec<String>> = casts
        .map(|(column, name)| column.cast_value(&format!("v.{name}")))
        .collect();
    match casts {
        // The query may end in a comment: the parenthesis stands on a line of its own.
        Some(casts) if !casts.is_empty() => format!(
            "SELECT DISTINCT {} FROM (\n{query}\n) AS v({})",
            casts.join(", "),
            names.join(", ")
        ),
        _ => query.to_owned(),
    }
}
