//! The user's tables as the catalog describes them.
//!
//! Owns the catalog queries and what they mean for publishing: kinds of types,
//! keys, references, obstacles. What a publication makes of them is `model`'s affair.

use std::collections::{HashMap, HashSet};

use tokio_postgres::{GenericClient, Row};

use tidewater_protocol::ForeignKeyAction;

use super::quote::{ident, qualified};
use super::trigger_functions::setting_trigger;
use super::values::PostgresType;
use crate::column::PgColumn;
use crate::driver_error::statement_failed;
use crate::partition_members::{Members, PARTITIONS};
use tidewater_centre::engine::catalog::{
    CatalogReader, ColumnInfo, ForeignKeyInfo, RowNumbering, TableInfo, checks, default_of, is_null,
};
use tidewater_centre::engine::sql::column::SqlTable;
use tidewater_centre::error::CentreError;

/// Everything about user tables, as of one moment.
#[derive(Debug)]
pub(crate) struct PostgresCatalog {
    infos: Vec<TableInfo>,
    /// In the same order.
    pub(super) tables: Vec<PostgresTable>,
    by_oid: HashMap<u32, usize>,
}

/// What of a table only PostgreSQL has.
#[derive(Clone, Debug)]
pub(super) struct PostgresTable {
    pub(super) oid: u32,
    /// Its name in SQL.
    pub(super) sql_name: String,
    /// Its name for people.
    pub(super) title: String,
    pub(super) columns: Vec<PgColumn>,
    /// The primary key, as indexes into `columns`.
    pub(super) key: Vec<usize>,
    /// Triggers that are not Tidewater's, the internal ones of foreign keys apart.
    pub(super) user_triggers: bool,
    /// The names of Tidewater's triggers that can fire.
    pub(super) own_triggers: Vec<OwnTrigger>,
    /// The planner's guess.
    pub(super) row_estimate: u64,
    /// Of a partitioned table: everything below it, whatever the level.
    pub(super) members: Option<Members>,
    /// Why nothing above it can be published, if so.
    member_obstacle: Option<&'static str>,
}

/// One of Tidewater's triggers on a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnTrigger {
    pub(super) name: String,
    /// `pg_trigger.tgenabled`.
    pub(super) enabled: char,
    /// Made by PostgreSQL from the row trigger of a partitioned table above, and gone
    /// with it.
    pub(super) cloned: bool,
}

const TABLES: &str = "
SELECT c.oid, n.nspname::text, c.relname::text, c.relkind::text, c.relispartition,
       (SELECT min(h.inhrelid::regclass::text) FROM pg_catalog.pg_inherits h
        WHERE h.inhparent = c.oid AND c.relkind <> 'p'),
       EXISTS (SELECT FROM pg_catalog.pg_rewrite r WHERE r.ev_class = c.oid), c.relpersistence::text,
       greatest(c.reltuples, 0)::float8,
       (SELECT min(h.inhparent::regclass::text) FROM pg_catalog.pg_inherits h
        WHERE h.inhrelid = c.oid AND NOT c.relispartition)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f') AND n.nspname <> 'tidewater' AND n.nspname <> 'information_schema'
  AND n.nspname !~ '^pg_'
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_class'::regclass
                  AND d.objid = c.oid AND d.deptype = 'e')
ORDER BY n.nspname <> 'public', n.nspname, c.relname";

const COLUMNS: &str = "
SELECT a.attrelid, a.attnum, a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod),
       a.attnotnull, a.atttypid, a.atttypmod, a.attidentity::text, a.attgenerated::text,
       CASE WHEN l.oid IS NOT NULL
         THEN pg_catalog.quote_ident(ln.nspname) || '.' || pg_catalog.quote_ident(l.collname) END,
       pg_catalog.pg_get_expr(d.adbin, d.adrelid), coalesce(l.collisdeterministic, true)
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation
LEFT JOIN pg_catalog.pg_namespace ln ON ln.oid = l.collnamespace
WHERE a.attrelid = ANY($1) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum";

const DOMAINS: &str = "
SELECT t.oid, t.typbasetype, t.typtypmod, t.typnotnull FROM pg_catalog.pg_type t WHERE t.typtype = 'd'";

/// Last: whether no text is read as a value of the type, or of an array's elements.
const BASE_TYPES: &str = "
SELECT t.oid, pg_catalog.format_type(t.oid, -1), t.typtype = 'e',
       coalesce(e.typinput, t.typinput)::oid::regproc::text = ANY ('{gtsvectorin, pg_node_tree_in,
         pg_ndistinct_in, pg_dependencies_in, pg_mcv_list_in, brin_bloom_summary_in,
         brin_minmax_multi_summary_in}')
FROM pg_catalog.pg_type t
LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
WHERE t.oid = ANY($1)";

const INDEXES: &str = "
SELECT i.indrelid, i.indisprimary, i.indisexclusion, i.indisunique, i.indpred IS NULL,
       (i.indkey::int2[])[0:i.indnkeyatts - 1]
FROM pg_catalog.pg_index i
WHERE i.indrelid = ANY($1) AND i.indislive
ORDER BY i.indrelid, i.indexrelid";

const REFERENCES: &str = "
SELECT o.conrelid, o.confrelid, o.conkey, o.confkey, o.confdeltype::text, o.confupdtype::text,
       o.condeferrable, o.conname::text, pg_catalog.pg_get_constraintdef(o.oid)
FROM pg_catalog.pg_constraint o
WHERE o.contype = 'f' AND o.conparentid = 0 AND (o.conrelid = ANY($1) OR o.confrelid = ANY($1))
ORDER BY o.conrelid, o.oid";

const CHECKS: &str = "
SELECT o.conrelid, o.conname::text, pg_catalog.pg_get_expr(o.conbin, o.conrelid)
FROM pg_catalog.pg_constraint o WHERE o.contype = 'c' AND o.conrelid = ANY($1)
ORDER BY o.conrelid, o.conname";

const LABELS: &str = "
SELECT e.enumtypid, e.enumlabel::text FROM pg_catalog.pg_enum e ORDER BY e.enumtypid, e.enumsortorder";

/// Last, of a row trigger that comes before an insert and may change the row: its function, whether
/// that is written in C, the trigger's arguments, each with a NUL behind it, and the function's text.
const TRIGGERS: &str = "
SELECT t.tgrelid, t.tgname::text, t.tgenabled::text, n.nspname = 'tidewater', t.tgparentid <> 0,
       CASE WHEN t.tgtype & 7 = 7 THEN p.proname::text END, l.lanname IN ('internal', 'c'),
       t.tgargs, p.prosrc
FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
JOIN pg_catalog.pg_language l ON l.oid = p.prolang
JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
WHERE t.tgrelid = ANY($1)
  AND (NOT t.tgisinternal OR t.tgparentid <> 0 AND t.tgconstraint = 0)
ORDER BY t.tgrelid, t.tgname";

impl CatalogReader for PostgresCatalog {
    type Column = PgColumn;

    fn tables(&self) -> &[TableInfo] {
        &self.infos
    }

    fn sql_table(&self, index: usize) -> SqlTable<'_, PgColumn> {
        let table = &self.tables[index];
        SqlTable {
            sql_name: &table.sql_name,
            title: &table.title,
            columns: &table.columns,
            key: &table.key,
            nullable_key: &[],
            row_estimate: table.row_estimate,
        }
    }
}

impl PostgresCatalog {
    /// Reads the catalog, in the transaction that is open or statement by statement.
    pub(super) async fn read(client: &impl GenericClient) -> Result<PostgresCatalog, CentreError> {
        let error = |error| statement_failed("reading the catalog")(error);
        let rows = client.query(TABLES, &[]).await.map_err(error)?;
        let (infos, tables): (Vec<TableInfo>, Vec<PostgresTable>) = rows.iter().map(table).unzip();
        let by_oid = tables.iter().enumerate().map(|(at, it)| (it.oid, at));
        let mut catalog = PostgresCatalog {
            by_oid: by_oid.collect(),
            infos,
            tables,
        };
        let oids: Vec<u32> = catalog.tables.iter().map(|table| table.oid).collect();
        let numbers = catalog.read_columns(client, &oids).await?;
        let position = |oid: u32, number: &i16| numbers.get(&(oid, *number)).copied();
        for row in &client.query(INDEXES, &[&oids]).await.map_err(error)? {
            let oid: u32 = row.get(0);
            let numbers: Vec<i16> = row.get(5);
            let columns = numbers.iter().map(|it| position(oid, it));
            catalog.take_index(row, columns.collect());
        }
        catalog.limit_texts();
        for row in &client.query(REFERENCES, &[&oids]).await.map_err(error)? {
            let (oid, parent): (u32, u32) = (row.get(0), row.get(1));
            let (own, theirs): (Vec<i16>, Vec<i16>) = (row.get(2), row.get(3));
            let all = |oid, numbers: &[i16]| -> Option<Vec<usize>> {
                numbers.iter().map(|it| position(oid, it)).collect()
            };
            let found = (
                all(oid, &own),
                all(parent, &theirs),
                catalog.at(oid),
                catalog.at(parent),
            );
            if let (Some(columns), Some(parent_columns), Some(at), Some(parent)) = found {
                let (name, definition): (String, String) = (row.get(7), row.get(8));
                let cascading = cascading(&catalog.tables[at], &name, &definition);
                catalog.infos[at].references.push(ForeignKeyInfo {
                    columns,
                    parent,
                    parent_columns,
                    on_delete: action(row.get(4)),
                    on_update: action(row.get(5)),
                    is_deferrable: row.get(6),
                    cascading,
                });
            }
        }
        for row in &client.query(TRIGGERS, &[&oids]).await.map_err(error)? {
            let (enabled, own): (String, bool) = (row.get(2), row.get(3));
            let Some(table) = catalog.at(row.get(0)).map(|at| &mut catalog.tables[at]) else {
                continue;
            };
            match own {
                true => table.own_triggers.push(OwnTrigger {
                    name: row.get(1),
                    enabled: enabled.chars().next().unwrap_or('D'),
                    cloned: row.get(4),
                }),
                false => {
                    table.user_triggers = true;
                    // One that is switched off sets nothing.
                    let function: Option<String> = row.get(5);
                    let setting = function.filter(|_| enabled != "D").map(|function| {
                        let (is_compiled, arguments): (bool, Vec<u8>) = (row.get(6), row.get(7));
                        setting_trigger(row.get(1), function, is_compiled, &arguments, row.get(8))
                    });
                    if let Some(at) = catalog.at(row.get(0)) {
                        catalog.infos[at].setting_triggers.extend(setting);
                    }
                }
            }
        }
        for row in &client.query(CHECKS, &[&oids]).await.map_err(error)? {
            let (name, condition): (String, Option<String>) = (row.get(1), row.get(2));
            if let (Some(at), Some(condition)) = (catalog.at(row.get(0)), condition) {
                let info = &mut catalog.infos[at];
                let check = checks::understood(&info.columns, &name, &condition);
                info.checks.extend(check);
            }
        }
        let partitions = client.query(PARTITIONS, &[]).await.map_err(error)?;
        catalog.take_partitions(&partitions);
        catalog.take_tracked(client).await?;
        Ok(catalog)
    }

    /// Notes which tables have change logs.
    async fn take_tracked(&mut self, client: &impl GenericClient) -> Result<(), CentreError> {
        let error = |error| statement_failed("reading the deployed state")(error);
        // Who looks at tables before he deploys may be another than who has deployed.
        let is_there = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c
              JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = 'tidewater' AND c.relname = 'change_log'
              AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
              AND pg_catalog.has_table_privilege(c.oid, 'SELECT'))";
        let is_there = client.query_one(is_there, &[]).await.map_err(error)?;
        if !is_there.get::<_, bool>(0) {
            return Ok(());
        }
        let tracked = "SELECT DISTINCT table_oid FROM tidewater.change_log";
        for row in &client.query(tracked, &[]).await.map_err(error)? {
            if let Some(at) = self.at(row.get(0)) {
                self.infos[at].is_tracked = true;
            }
        }
        Ok(())
    }

    /// Reads the columns; gives their indexes by table and attribute number.
    async fn read_columns(
        &mut self,
        client: &impl GenericClient,
        oids: &[u32],
    ) -> Result<HashMap<(u32, i16), usize>, CentreError> {
        let error = |error| statement_failed("reading the catalog")(error);
        let domains = Domains::read(client).await?;
        let rows = client.query(COLUMNS, &[&oids]).await.map_err(error)?;
        let base = |row: &Row| domains.base(row.get(5), -1).0;
        let base_types: Vec<u32> = rows.iter().map(base).collect();
        let names = client.query(BASE_TYPES, &[&base_types]).await;
        let names = names.map_err(error)?;
        let names: HashMap<u32, BaseType> = names.iter().map(BaseType::from_row).collect();
        let mut labels: HashMap<u32, Vec<String>> = HashMap::new();
        for row in &client.query(LABELS, &[]).await.map_err(error)? {
            labels.entry(row.get(0)).or_default().push(row.get(1));
        }
        let mut numbers = HashMap::new();
        for row in &rows {
            let oid: u32 = row.get(0);
            if let Some(at) = self.at(oid) {
                let (info, column) = column(row, &domains, &names);
                numbers.insert((oid, row.get(1)), self.infos[at].columns.len());
                let (infos, table) = (&mut self.infos[at], &mut self.tables[at]);
                infos.columns.push(info);
                let index = infos.columns.len() - 1;
                if let Some(labels) = labels.get(&base(row)) {
                    let check = checks::one_of(&infos.columns, index, labels);
                    infos.checks.push(check);
                }
                table.columns.push(column);
            }
        }
        Ok(numbers)
    }

    /// Takes an index with its columns; an expression is none.
    fn take_index(&mut self, row: &Row, columns: Vec<Option<usize>>) {
        let (primary, exclusion, unique): (bool, bool, bool) = (row.get(1), row.get(2), row.get(3));
        let is_of_all_rows: bool = row.get(4);
        let Some(at) = self.at(row.get(0)) else {
            return;
        };
        let info = &mut self.infos[at];
        if is_of_all_rows {
            let leading = columns.iter().map_while(|it| *it);
            info.indexed.push(leading.collect());
        }
        let columns: Option<Vec<usize>> = columns.into_iter().collect();
        if primary {
            info.key = columns.unwrap_or_default();
            self.tables[at].key.clone_from(&info.key);
            return;
        }
        if let Some(columns) = columns.filter(|_| unique && is_of_all_rows && !exclusion) {
            info.unique.push(columns);
        }
    }

    /// Makes rules of the limits of texts, once it is known which columns are of a key.
    fn limit_texts(&mut self) {
        for (info, table) in self.infos.iter_mut().zip(&self.tables) {
            for (index, column) in table.columns.iter().enumerate() {
                let check = match (column.kind, column.limit) {
                    (PostgresType::Text | PostgresType::Bpchar, limit)
                        if info.key.contains(&index) =>
                    {
                        checks::one_spelling(&info.columns, index, limit)
                    }
                    (PostgresType::Text | PostgresType::Bpchar, Some(limit)) => {
                        Some(checks::at_most(&info.columns, index, limit))
                    }
                    _ => None,
                };
                info.checks.extend(check);
            }
        }
    }

    /// Gives partitioned tables what is below them, and tells partitions whose they are.
    fn take_partitions(&mut self, rows: &[Row]) {
        for table in &mut self.tables {
            if table.members.is_some() {
                table.members = Some(Members::below(table.oid, rows));
            }
        }
        let partitions: HashSet<u32> = rows.iter().map(|row| row.get(1)).collect();
        for at in 0..self.tables.len() {
            let Some(members) = self.tables[at].members.clone() else {
                continue;
            };
            if partitions.contains(&self.tables[at].oid) {
                continue;
            }
            let root = self.tables[at].title.clone();
            let (mut user_triggers, mut obstacle, mut unnoticed) = (false, None, None);
            for oid in members.oids() {
                let Some(at) = self.at(oid) else {
                    obstacle = Some("one of its partitions is a table of an extension".into());
                    continue;
                };
                let member = &self.tables[at];
                user_triggers |= member.user_triggers;
                if let Some(reason) = member.member_obstacle {
                    unnoticed = Some(format!("its partition {} is {reason}", member.title));
                }
                let below = format!("it is a partition of {root}: publish {root}");
                self.infos[at].own_obstacle = Some(below);
                self.infos[at].is_part = true;
            }
            self.tables[at].user_triggers |= user_triggers;
            let info = &mut self.infos[at];
            info.own_obstacle = info.own_obstacle.take().or(obstacle);
            info.unnoticed = info.unnoticed.take().or(unnoticed);
        }
    }

    fn at(&self, oid: u32) -> Option<usize> {
        self.by_oid.get(&oid).copied()
    }

    /// A table by its OID.
    pub(super) fn by_oid(&self, oid: u32) -> Option<&PostgresTable> {
        self.at(oid).map(|at| &self.tables[at])
    }
}

const FOREIGN: &str = "a foreign table, whose changes nobody sees here";

/// A table of a row of [`TABLES`].
fn table(row: &Row) -> (TableInfo, PostgresTable) {
    let (schema, name, kind): (String, String, String) = (row.get(1), row.get(2), row.get(3));
    let persistence: String = row.get(7);
    let (heir, has_rules): (Option<String>, bool) = (row.get(5), row.get(6));
    let ancestor: Option<String> = row.get(9);
    let is_partitioned = kind == "p";
    let member_obstacle = match kind.as_str() {
        "f" => Some(FOREIGN),
        _ if has_rules => Some("a table with rewrite rules, which write what triggers do not see"),
        _ if persistence == "u" => Some("an unlogged table, which loses its rows in a crash"),
        _ => None,
    };
    let title = match schema.as_str() {
        "public" => name.clone(),
        _ => format!("{schema}.{name}"),
    };
    let own_obstacle = (kind == "f").then(|| format!("it is {FOREIGN}"));
    // The triggers of one of them see nothing of what is written through the other.
    let unnoticed = match (member_obstacle, heir, ancestor) {
        (Some(reason), ..) => Some(format!("it is {reason}")),
        (None, Some(heir), _) => Some(format!(
            "{heir} inherits from it, and what is written to one of them is not noticed at the \
             other; a partitioned table can be published"
        )),
        (None, None, Some(ancestor)) => Some(format!(
            "it inherits from {ancestor}, and what is written through {ancestor} is not noticed; \
             to publish it alone: ALTER TABLE {title} NO INHERIT {ancestor}"
        )),
        (None, None, None) => None,
    };
    let table = PostgresTable {
        oid: row.get(0),
        sql_name: qualified(&schema, &name),
        title: title.clone(),
        columns: Vec::new(),
        key: Vec::new(),
        user_triggers: false,
        own_triggers: Vec::new(),
        row_estimate: row.get::<_, f64>(8) as u64,
        members: is_partitioned.then(Members::default),
        member_obstacle,
    };
    let info = TableInfo {
        name,
        title,
        schema,
        columns: Vec::new(),
        key: Vec::new(),
        unique: Vec::new(),
        references: Vec::new(),
        indexed: Vec::new(),
        ignores_case: false,
        own_obstacle,
        unnoticed,
        is_tracked: false,
        is_part: false,
        checks: Vec::new(),
        setting_triggers: Vec::new(),
    };
    (info, table)
}

/// A column of a row of [`COLUMNS`].
fn column(row: &Row, domains: &Domains, names: &HashMap<u32, BaseType>) -> (ColumnInfo, PgColumn) {
    let type_oid: u32 = row.get(5);
    let (base, modifier, domain_not_null) = domains.base(type_oid, row.get(6));
    let base_type = names.get(&base);
    let kind = PostgresType::from_oid(base);
    let (identity, generated): (String, String) = (row.get(7), row.get(8));
    let scale = kind.scale(modifier).map(|it| it.max(0) as u16);
    let limit = match kind {
        PostgresType::Text | PostgresType::Bpchar if modifier >= 4 => Some(modifier - 4),
        PostgresType::Time | PostgresType::Timestamp | PostgresType::TimestampTz
            if modifier >= 0 =>
        {
            Some(modifier)
        }
        _ => None,
    };
    let default: Option<String> = row.get(10);
    let (column_type, is_generated) = (kind.column_type(scale), !generated.is_empty());
    let (name, type_name): (String, String) = (row.get(2), row.get(3));
    let is_serial = default
        .as_ref()
        .is_some_and(|it| it.starts_with("nextval("));
    let info = ColumnInfo {
        is_padded: kind == PostgresType::Bpchar,
        numbering: match (identity.is_empty(), is_serial) {
            (false, _) => Some(RowNumbering::Sequence("an identity column")),
            (true, true) => Some(RowNumbering::Sequence("numbered by a sequence (serial)")),
            (true, false) => None,
        },
        column_type: match base_type.is_some_and(|it| it.write_only) {
            false => Ok(column_type),
            true => Err(format!(
                "the column {name:?} is of the type {type_name}, whose values PostgreSQL writes \
                 and never reads: nobody could upload one"
            )),
        },
        nullable: !(row.get::<_, bool>(4) || domain_not_null),
        has_default: default.as_deref().is_some_and(|it| !is_null(it)) || !identity.is_empty(),
        default: default
            .as_ref()
            .filter(|_| !is_generated)
            .and_then(|default| default_of(default, column_type)),
        is_generated,
        is_by_default: true,
        is_ambiguous: match kind {
            PostgresType::Numeric => scale.is_none(),
            PostgresType::Float4
            | PostgresType::Float8
            | PostgresType::Json
            | PostgresType::Jsonb => true,
            _ => false,
        },
        has_one_spelling: match kind {
            PostgresType::Float4 | PostgresType::Float8 | PostgresType::Jsonb => false,
            PostgresType::Numeric => scale.is_some(),
            PostgresType::Other => base_type.is_some_and(|it| it.is_enum),
            _ => row.get(11),
        },
        name: name.clone(),
        type_name: type_name.clone(),
    };
    let column = PgColumn {
        sql: ident(&name),
        name,
        type_oid,
        type_name,
        cast_name: base_type.map_or_else(String::new, |it| it.name.clone()),
        kind,
        scale,
        limit,
        generated: is_generated,
        identity_always: identity == "a",
        default: default.filter(|_| !is_generated),
        collation: row.get(9),
    };
    (info, column)
}

/// A type below all domains.
struct BaseType {
    name: String,
    is_enum: bool,
    write_only: bool,
}

impl BaseType {
    fn from_row(row: &Row) -> (u32, BaseType) {
        let base = BaseType {
            name: row.get(1),
            is_enum: row.get(2),
            write_only: row.get(3),
        };
        (row.get(0), base)
    }
}

/// Domains, and the types below them.
struct Domains(HashMap<u32, (u32, i32, bool)>);

impl Domains {
    async fn read(client: &impl GenericClient) -> Result<Domains, CentreError> {
        let rows = client.query(DOMAINS, &[]).await;
        let rows = rows.map_err(statement_failed("reading the catalog"))?;
        let domain = |row: &Row| (row.get(0), (row.get(1), row.get(2), row.get(3)));
        Ok(Domains(rows.iter().map(domain).collect()))
    }

    /// The type below all domains, its modifier, and whether one of them is NOT NULL.
    fn base(&self, mut type_oid: u32, mut modifier: i32) -> (u32, i32, bool) {
        let mut not_null = false;
        while let Some(&(base, base_modifier, base_not_null)) = self.0.get(&type_oid) {
            type_oid = base;
            modifier = base_modifier;
            not_null |= base_not_null;
        }
        (type_oid, modifier, not_null)
    }
}

fn action(letter: String) -> ForeignKeyAction {
    match letter.as_str() {
        "r" => ForeignKeyAction::Restrict,
        "c" => ForeignKeyAction::Cascade,
        "n" => ForeignKeyAction::SetNull,
        "d" => ForeignKeyAction::SetDefault,
        _ => ForeignKeyAction::NoAction,
    }
}

/// The statement after which a foreign key passes on changed keys, unless it does.
fn cascading(table: &PostgresTable, name: &str, definition: &str) -> Option<String> {
    if definition.contains(" ON UPDATE CASCADE") {
        return None;
    }
    let definition = definition.replace(" ON UPDATE RESTRICT", "");
    if definition.contains(" ON UPDATE ") {
        // It does something else, by intention.
        return None;
    }
    // What follows the columns of a foreign key, in PostgreSQL's order.
    let behind = [" ON DELETE ", " DEFERRABLE", " NOT VALID"];
    let at = behind.iter().find_map(|it| definition.rfind(it));
    let (before, behind) = definition.split_at(at.unwrap_or(definition.len()));
    let (table, name) = (&table.sql_name, ident(name));
    Some(format!(
        "ALTER TABLE {table} DROP CONSTRAINT {name}, ADD CONSTRAINT {name} {before} ON UPDATE \
         CASCADE{behind};"
    ))
}
