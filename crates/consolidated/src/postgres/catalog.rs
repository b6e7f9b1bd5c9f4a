//! The user's tables as the catalog describes them.
//!
//! Owns the catalog queries and what they mean for publishing: kinds of types,
//! keys, references, obstacles. What a publication makes of them is `model`'s affair.

use std::collections::{HashMap, HashSet};

use tokio_postgres::{GenericClient, Row};

use tidewater_protocol::{ColumnType, Fit, ForeignKeyAction, ValueRef};

use super::binary::Kind;
use super::connection::refused;
use super::members::{Members, PARTITIONS};
use super::quote::qualified;
use crate::engine::catalog::{self, ColumnInfo};
use crate::error::CentreError;
use crate::publication::ListedTable;

/// Everything about user tables, as of one moment.
#[derive(Debug)]
pub(super) struct Catalog {
    pub(super) tables: Vec<TableInfo>,
    by_oid: HashMap<u32, usize>,
}

/// A table.
#[derive(Clone, Debug)]
pub(super) struct TableInfo {
    pub(super) oid: u32,
    pub(super) schema: String,
    pub(super) name: String,
    pub(super) columns: Vec<LiveColumnInfo>,
    /// The primary key, as indexes into `columns`.
    pub(super) key: Vec<usize>,
    /// Other unique constraints and indexes that any row falls under.
    pub(super) unique: Vec<Vec<usize>>,
    /// Whether there is any unique or exclusion constraint besides the primary key.
    pub(super) has_secondary_unique: bool,
    /// Outgoing references.
    pub(super) references: Vec<Reference>,
    /// Triggers that are not Tidewater's, the internal ones of foreign keys apart.
    pub(super) user_triggers: bool,
    /// The names of Tidewater's triggers that can fire.
    pub(super) own_triggers: Vec<OwnTrigger>,
    pub(super) obstacle: Option<String>,
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

/// A column.
#[derive(Clone, Debug)]
pub(super) struct LiveColumnInfo {
    pub(super) name: String,
    /// `pg_attribute.attnum`: dropped columns leave gaps.
    pub(super) number: i16,
    /// The declared type, a domain perhaps.
    pub(super) type_oid: u32,
    /// As people write it.
    pub(super) type_name: String,
    /// The type (below all domains) without its modifiers, for casts and logs.
    pub(super) base_type_name: String,
    pub(super) kind: Kind,
    /// The scale of a numeric column.
    pub(super) scale: Option<u16>,
    /// The most characters that a varchar takes, the digits of a second that a time keeps.
    pub(super) limit: Option<i32>,
    pub(super) nullable: bool,
    /// GENERATED ALWAYS AS (expression): nobody writes it.
    pub(super) generated: bool,
    /// GENERATED ALWAYS AS IDENTITY: an update cannot write it.
    pub(super) identity_always: bool,
    /// Whether values that are equal are spelled equally, as those of a key must be.
    pub(super) one_spelling: bool,
    /// Whether PostgreSQL reads no text as a value of the type.
    pub(super) write_only: bool,
    /// The collation's name, quoted, where the type has one.
    pub(super) collation: Option<String>,
    /// The default as an SQL literal, where it is a constant.
    pub(super) default: Option<String>,
}

impl Reference {
    /// The referred columns, as indexes into the parent's.
    pub(super) fn parent_positions(&self, parent: &TableInfo) -> Option<Vec<usize>> {
        let position = |number: &i16| parent.columns.iter().position(|it| it.number == *number);
        self.parent_columns.iter().map(position).collect()
    }
}

/// A foreign key.
#[derive(Clone, Debug)]
pub(super) struct Reference {
    pub(super) columns: Vec<usize>,
    pub(super) parent_oid: u32,
    pub(super) parent_columns: Vec<i16>,
    pub(super) on_delete: ForeignKeyAction,
    pub(super) on_update: ForeignKeyAction,
}

const TABLES: &str = "
SELECT c.oid, n.nspname::text, c.relname::text, c.relkind::text, c.relispartition, c.relhassubclass,
       c.relhasrules, c.relpersistence::text, greatest(c.reltuples, 0)::float8
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
SELECT i.indrelid, i.indisprimary, i.indisexclusion, i.indpred IS NULL AND i.indexprs IS NULL,
       (i.indkey::int2[])[0:i.indnkeyatts - 1]
FROM pg_catalog.pg_index i
WHERE i.indrelid = ANY($1) AND (i.indisunique OR i.indisexclusion) AND i.indislive
ORDER BY i.indrelid, i.indexrelid";

const REFERENCES: &str = "
SELECT o.conrelid, o.confrelid, o.conkey, o.confkey, o.confdeltype::text, o.confupdtype::text
FROM pg_catalog.pg_constraint o
WHERE o.contype = 'f' AND o.conparentid = 0 AND (o.conrelid = ANY($1) OR o.confrelid = ANY($1))
ORDER BY o.conrelid, o.oid";

const TRIGGERS: &str = "
SELECT t.tgrelid, t.tgname::text, t.tgenabled::text, n.nspname = 'tidewater', t.tgparentid <> 0
FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
WHERE t.tgrelid = ANY($1)
  AND (NOT t.tgisinternal OR t.tgparentid <> 0 AND t.tgconstraint = 0)
ORDER BY t.tgrelid, t.tgname";

impl Catalog {
    /// Reads the catalog, in the transaction that is open or statement by statement.
    pub(super) async fn read(client: &impl GenericClient) -> Result<Catalog, CentreError> {
        let error = |error| refused("reading the catalog")(error);
        let rows = client.query(TABLES, &[]).await.map_err(error)?;
        let mut catalog = Catalog {
            tables: Vec::with_capacity(rows.len()),
            by_oid: HashMap::new(),
        };
        for row in &rows {
            let table = TableInfo::of(row);
            catalog.by_oid.insert(table.oid, catalog.tables.len());
            catalog.tables.push(table);
        }
        let oids: Vec<u32> = catalog.tables.iter().map(|table| table.oid).collect();
        let numbers = catalog.read_columns(client, &oids).await?;
        let position = |oid: u32, number: &i16| numbers.get(&(oid, *number)).copied();
        for row in &client.query(INDEXES, &[&oids]).await.map_err(error)? {
            let oid: u32 = row.get(0);
            let numbers: Vec<i16> = row.get(4);
            let columns: Option<Vec<usize>> = numbers.iter().map(|it| position(oid, it)).collect();
            if let Some(table) = catalog.table_mut(oid) {
                table.take_index(row, columns);
            }
        }
        for row in &client.query(REFERENCES, &[&oids]).await.map_err(error)? {
            let oid: u32 = row.get(0);
            let numbers: Vec<i16> = row.get(2);
            let reference = Reference {
                columns: numbers.iter().filter_map(|it| position(oid, it)).collect(),
                parent_oid: row.get(1),
                parent_columns: row.get(3),
                on_delete: action(row.get(4)),
                on_update: action(row.get(5)),
            };
            if let Some(table) = catalog.table_mut(oid) {
                table.references.push(reference);
            }
        }
        for row in &client.query(TRIGGERS, &[&oids]).await.map_err(error)? {
            let (name, enabled, own): (String, String, bool) = (row.get(1), row.get(2), row.get(3));
            if let Some(table) = catalog.table_mut(row.get(0)) {
                if own {
                    let enabled = enabled.chars().next().unwrap_or('D');
                    let cloned = row.get(4);
                    table.own_triggers.push(OwnTrigger {
                        name,
                        enabled,
                        cloned,
                    });
                } else {
                    table.user_triggers = true;
                }
            }
        }
        let partitions = client.query(PARTITIONS, &[]).await.map_err(error)?;
        catalog.take_partitions(&partitions);
        for table in &mut catalog.tables {
            if table.obstacle.is_none() {
                table.obstacle = table.key_obstacle();
            }
        }
        Ok(catalog)
    }

    /// Reads the columns; gives their indexes by table and attribute number.
    async fn read_columns(
        &mut self,
        client: &impl GenericClient,
        oids: &[u32],
    ) -> Result<HashMap<(u32, i16), usize>, CentreError> {
        let error = |error| refused("reading the catalog")(error);
        let domains = Domains::read(client).await?;
        let rows = client.query(COLUMNS, &[&oids]).await.map_err(error)?;
        let base = |row: &Row| domains.base(row.get(5), -1).0;
        let base_types: Vec<u32> = rows.iter().map(base).collect();
        let names = client.query(BASE_TYPES, &[&base_types]).await;
        let names = names.map_err(error)?;
        let names: HashMap<u32, BaseType> = names.iter().map(BaseType::of).collect();
        let mut numbers = HashMap::new();
        for row in &rows {
            let oid: u32 = row.get(0);
            if let Some(table) = self.table_mut(oid) {
                numbers.insert((oid, row.get(1)), table.columns.len());
                let column = LiveColumnInfo::of(row, &domains, &names);
                table.columns.push(column);
            }
        }
        Ok(numbers)
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
            let root = self.tables[at].title();
            let (mut user_triggers, mut obstacle) = (false, None);
            for oid in members.oids() {
                let Some(member) = self.table_mut(oid) else {
                    obstacle = Some("one of its partitions is a table of an extension".into());
                    continue;
                };
                user_triggers |= member.user_triggers;
                if let Some(reason) = member.member_obstacle {
                    obstacle = Some(format!("its partition {} is {reason}", member.title()));
                }
                let below = format!("it is a partition of {root}: publish {root}");
                member.obstacle = Some(below);
            }
            let table = &mut self.tables[at];
            table.user_triggers |= user_triggers;
            table.obstacle = table.obstacle.take().or(obstacle);
        }
    }

    fn table_mut(&mut self, oid: u32) -> Option<&mut TableInfo> {
        self.by_oid.get(&oid).map(|&index| &mut self.tables[index])
    }

    /// A table by its OID.
    pub(super) fn by_oid(&self, oid: u32) -> Option<&TableInfo> {
        self.by_oid.get(&oid).map(|&index| &self.tables[index])
    }

    /// The tables that a name in a configuration can mean: in the schema `public`, or with
    /// its schema before a point. Names with points of their own can mean two.
    pub(super) fn named(&self, name: &str) -> Vec<usize> {
        let has_name = |table: &TableInfo| {
            table.schema == "public" && table.name == name
                || name
                    .strip_prefix(table.schema.as_str())
                    .and_then(|it| it.strip_prefix('.'))
                    == Some(table.name.as_str())
        };
        let tables = self.tables.iter().enumerate();
        let tables = tables.filter(|(_, table)| has_name(table));
        tables.map(|(index, _)| index).collect()
    }

    /// The tables as the engine knows them, in the same order.
    pub(super) fn described(&self) -> Vec<catalog::TableInfo> {
        self.tables
            .iter()
            .map(|table| self.describe(table))
            .collect()
    }

    fn describe(&self, table: &TableInfo) -> catalog::TableInfo {
        let references = table.references.iter().filter_map(|reference| {
            let parent = *self.by_oid.get(&reference.parent_oid)?;
            Some(catalog::Reference {
                columns: reference.columns.clone(),
                parent,
                parent_columns: reference.parent_positions(&self.tables[parent])?,
                on_delete: reference.on_delete,
                on_update: reference.on_update,
            })
        });
        catalog::TableInfo {
            name: table.name.clone(),
            title: table.title(),
            columns: table
                .columns
                .iter()
                .map(LiveColumnInfo::described)
                .collect(),
            key: table.key.clone(),
            unique: table.unique.clone(),
            has_secondary_unique: table.has_secondary_unique,
            references: references.collect(),
            ignores_case: false,
            obstacle: table.obstacle.clone(),
        }
    }

    /// The tables as `init` lists them: partitions are published with what they are partitions of.
    pub(super) fn tables(&self) -> Vec<ListedTable> {
        let partitions: HashSet<u32> = self
            .tables
            .iter()
            .filter_map(|table| table.members.as_ref())
            .flat_map(Members::oids)
            .collect();
        let listed = self.tables.iter().zip(catalog::listed(&self.described()));
        let listed = listed.filter(|(table, _)| !partitions.contains(&table.oid));
        listed.map(|(_, listed)| listed).collect()
    }
}

impl TableInfo {
    fn of(row: &Row) -> TableInfo {
        let kind: String = row.get(3);
        let persistence: String = row.get(7);
        let (has_children, has_rules): (bool, bool) = (row.get(5), row.get(6));
        let is_partitioned = kind == "p";
        let member_obstacle = match kind.as_str() {
            "f" => Some("a foreign table, whose changes nobody sees here"),
            _ if has_rules => Some("a table with rewrite rules"),
            _ if persistence == "u" => Some("an unlogged table, which loses its rows in a crash"),
            _ => None,
        };
        let obstacle = match member_obstacle {
            None if has_children && !is_partitioned => Some("it has inheritance children".into()),
            reason => reason.map(|reason| format!("it is {reason}")),
        };
        TableInfo {
            oid: row.get(0),
            schema: row.get(1),
            name: row.get(2),
            columns: Vec::new(),
            key: Vec::new(),
            unique: Vec::new(),
            has_secondary_unique: false,
            references: Vec::new(),
            user_triggers: false,
            own_triggers: Vec::new(),
            obstacle,
            row_estimate: row.get::<_, f64>(8) as u64,
            members: is_partitioned.then(Members::default),
            member_obstacle,
        }
    }

    fn take_index(&mut self, row: &Row, columns: Option<Vec<usize>>) {
        let (primary, exclusion, plain): (bool, bool, bool) = (row.get(1), row.get(2), row.get(3));
        if primary {
            self.key = columns.unwrap_or_default();
            return;
        }
        self.has_secondary_unique = true;
        if let Some(columns) = columns.filter(|_| plain && !exclusion) {
            self.unique.push(columns);
        }
    }

    fn key_obstacle(&self) -> Option<String> {
        if self.key.is_empty() {
            return Some("it has no primary key; declare one".into());
        }
        let unfit = self
            .key
            .iter()
            .map(|&index| &self.columns[index])
            .find(|column| !column.one_spelling)?;
        Some(format!(
            "values of the type {} of its key column {:?} can be equal and yet be spelled \
             differently; make the key of integers, text, uuid, dates, bytea or numeric(p,s)",
            unfit.type_name, unfit.name
        ))
    }

    /// The name to write into a configuration.
    pub(super) fn title(&self) -> String {
        if self.schema == "public" {
            self.name.clone()
        } else {
            format!("{}.{}", self.schema, self.name)
        }
    }

    /// Its name in SQL.
    pub(super) fn sql_name(&self) -> String {
        qualified(&self.schema, &self.name)
    }
}

impl LiveColumnInfo {
    fn of(row: &Row, domains: &Domains, names: &HashMap<u32, BaseType>) -> LiveColumnInfo {
        let type_oid: u32 = row.get(5);
        let (base, modifier, domain_not_null) = domains.base(type_oid, row.get(6));
        let base_type = names.get(&base);
        let kind = Kind::of(base);
        let (identity, generated): (String, String) = (row.get(7), row.get(8));
        let scale = (kind == Kind::Numeric && modifier >= 4).then(|| {
            // numeric.c, numeric_typmod_scale: eleven bits with a sign.
            let scale = (((modifier - 4) & 0x7ff) ^ 0x400) - 0x400;
            scale.max(0) as u16
        });
        let limit = match kind {
            Kind::Text if modifier >= 4 => Some(modifier - 4),
            Kind::Bpchar if modifier >= 4 => Some(modifier - 4),
            Kind::Time | Kind::Timestamp | Kind::TimestampTz if modifier >= 0 => Some(modifier),
            _ => None,
        };
        let default: Option<String> = row.get(10);
        let is_generated = !generated.is_empty();
        LiveColumnInfo {
            name: row.get(2),
            number: row.get(1),
            type_oid,
            type_name: row.get(3),
            base_type_name: base_type.map_or_else(String::new, |it| it.name.clone()),
            one_spelling: match kind {
                Kind::Float4 | Kind::Float8 | Kind::Jsonb => false,
                Kind::Numeric => scale.is_some(),
                Kind::Other => base_type.is_some_and(|it| it.is_enum),
                _ => row.get(11),
            },
            write_only: base_type.is_some_and(|it| it.write_only),
            kind,
            scale,
            limit,
            nullable: !(row.get::<_, bool>(4) || domain_not_null),
            generated: is_generated,
            identity_always: identity == "a",
            collation: row.get(9),
            default: default
                .filter(|_| !is_generated)
                .and_then(|default| constant(&default, kind.column_type(scale))),
        }
    }

    fn described(&self) -> ColumnInfo {
        ColumnInfo {
            name: self.name.clone(),
            type_name: self.type_name.clone(),
            column_type: match self.write_only {
                false => Ok(self.kind.column_type(self.scale)),
                true => Err(format!(
                    "the column {:?} is of the type {}, whose values PostgreSQL writes and never \
                     reads: nobody could upload one",
                    self.name, self.type_name
                )),
            },
            nullable: self.nullable,
            default: self.default.clone(),
            is_generated: self.generated,
            is_by_default: true,
            is_ambiguous: match self.kind {
                Kind::Numeric => self.scale.is_none(),
                Kind::Float4 | Kind::Float8 | Kind::Json | Kind::Jsonb => true,
                _ => false,
            },
        }
    }
}

/// A type below all domains.
struct BaseType {
    name: String,
    is_enum: bool,
    write_only: bool,
}

impl BaseType {
    fn of(row: &Row) -> (u32, BaseType) {
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
        let rows = rows.map_err(refused("reading the catalog"))?;
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

/// The literal for remotes of a default that is a constant: `'new'::text`, `0`,
/// `'-1'::integer`, `true`. Anything else is an expression, which remotes cannot run.
fn constant(expression: &str, column_type: ColumnType) -> Option<String> {
    let (value, rest) = match expression.strip_prefix('\'') {
        Some(quoted) => {
            let mut value = String::new();
            let mut characters = quoted.char_indices();
            loop {
                match characters.next()? {
                    (at, '\'') if !quoted[at + 1..].starts_with('\'') => {
                        break (value, &quoted[at + 1..]);
                    }
                    (_, '\'') => {
                        characters.next();
                        value.push('\'');
                    }
                    (_, other) => value.push(other),
                }
            }
        }
        None => {
            let end = expression.find("::").unwrap_or(expression.len());
            let word = expression[..end].trim_matches(|it| matches!(it, '(' | ')'));
            let number = word.parse::<f64>().is_ok() && !word.contains(char::is_alphabetic);
            if !number && !matches!(word, "true" | "false") {
                return None;
            }
            (word.to_owned(), &expression[end..])
        }
    };
    let is_cast = |character: char| {
        character.is_alphanumeric() || matches!(character, ' ' | '_' | '"' | '(' | ')' | ',')
    };
    if !rest.split("::").all(|cast| cast.chars().all(is_cast)) {
        return None;
    }
    let stored = match (column_type, value.parse::<i64>(), value.parse::<f64>()) {
        (ColumnType::Integer, Ok(integer), _) => return Some(integer.to_string()),
        (ColumnType::Real, _, Ok(real)) if real.is_finite() => return Some(format!("{real:?}")),
        (ColumnType::Integer | ColumnType::Real | ColumnType::Bytes, _, _) => return None,
        _ => column_type.datum(ValueRef::Text(&value)),
    };
    match (stored.1, stored.0.to_value().as_ref()) {
        (Fit::Unfit, _) => None,
        (_, ValueRef::Integer(integer)) => Some(integer.to_string()),
        (_, ValueRef::Text(text)) if !text.contains('\0') => {
            Some(format!("'{}'", text.replace('\'', "''")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_that_are_constants_become_literals() {
        let decimal = ColumnType::Decimal { scale: Some(2) };
        for (expression, column_type, literal) in [
            ("0", ColumnType::Integer, Some("0")),
            ("'-1'::integer", ColumnType::Integer, Some("-1")),
            ("(-1)", ColumnType::Integer, Some("-1")),
            ("1.5", decimal, Some("'1.50'")),
            ("true", ColumnType::Boolean, Some("1")),
            ("'it''s'::text", ColumnType::Text, Some("'it''s'")),
            ("'a'::character varying(3)", ColumnType::Text, Some("'a'")),
            ("'2026-01-02'::date", ColumnType::Date, Some("'2026-01-02'")),
            ("now()", ColumnType::TimestampTz, None),
            ("nextval('s'::regclass)", ColumnType::Integer, None),
            ("('a'::text || 'b'::text)", ColumnType::Text, None),
            ("'a'::text || 'b'::text", ColumnType::Text, None),
            ("NULL::integer", ColumnType::Integer, None),
            ("'nan'::real", ColumnType::Real, None),
        ] {
            assert_eq!(
                constant(expression, column_type).as_deref(),
                literal,
                "{expression}"
            );
        }
    }
}
