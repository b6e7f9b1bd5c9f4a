//! The application's tables as SQLite describes them.

use tidewater_protocol::{ColumnType, Datum, ForeignKeyAction, index_sql};

use super::upstream::BranchSubscription;
use super::values::SqliteKind;
use super::{failure, quote, values};
use tidewater_centre::engine::catalog::CatalogReader as _;
use tidewater_centre::engine::catalog::{
    self, CheckInfo, ColumnInfo, ForeignKeyInfo, RowNumbering, TableInfo, checks,
    default_of_sqlite, is_null,
};
use tidewater_centre::engine::sql::column::{SqlColumn, SqlTable};
use tidewater_centre::error::CentreError;
use tidewater_centre::records::KeylessRows;

/// All tables of the application, by name.
#[derive(Debug)]
pub(crate) struct SqliteCatalog {
    pub(super) infos: Vec<TableInfo>,
    /// In the same order.
    pub(super) tables: Vec<SqliteTable>,
}

/// What of a table only SQLite has.
#[derive(Debug, Default)]
pub(super) struct SqliteTable {
    /// Its name in SQL.
    sql_name: String,
    columns: Vec<SqliteColumn>,
    /// Everything by which a row can displace another; the primary key first.
    pub(super) uniques: Vec<UniqueKey>,
    /// Whether a statement on it may leave something behind when it fails, or end
    /// the transaction: triggers of the application, conflict clauses.
    pub(super) has_triggers: bool,
    pub(super) has_conflict_clauses: bool,
    /// The columns of the primary key that may be NULL, as in SQLite they may.
    pub(super) nullable_key: Vec<usize>,
}

/// A column, as SQL needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SqliteColumn {
    pub(super) name: String,
    /// Its name in SQL.
    pub(super) sql: String,
    pub(super) column_type: ColumnType,
    /// The type as it is declared.
    pub(super) declared: String,
    /// Whether its affinity is TEXT.
    pub(super) is_kept_as_text: bool,
    /// What its default is declared as.
    default: Option<String>,
}

impl SqliteColumn {
    fn new(column: &ColumnInfo, default: Option<String>) -> SqliteColumn {
        SqliteColumn {
            name: column.name.clone(),
            sql: quote(&column.name),
            // One that stands for no type is not published.
            column_type: column.column_type.clone().unwrap_or(ColumnType::Text),
            is_kept_as_text: values::is_kept_as_text(&column.type_name),
            declared: column.type_name.clone(),
            default,
        }
    }
}

#[cfg(test)]
impl SqliteColumn {
    /// A column that is declared so.
    pub(super) fn declared(name: &str, declared: &str) -> SqliteColumn {
        SqliteColumn {
            name: name.to_owned(),
            sql: quote(name),
            column_type: values::column_type(declared).expect("a type that is published"),
            declared: declared.to_owned(),
            is_kept_as_text: values::is_kept_as_text(declared),
            default: None,
        }
    }
}

impl SqlColumn for SqliteColumn {
    type Kind = SqliteKind;

    fn kind(&self) -> SqliteKind {
        SqliteKind {
            column_type: self.column_type,
            is_kept_as_text: self.is_kept_as_text,
        }
    }

    /// A number in a column that is text on remotes becomes text there, as SQLite spells it.
    fn kept_output(&self, prefix: &str) -> Option<String> {
        let column = format!("{prefix}{}", self.sql);
        (self.column_type.sqlite_type() == "TEXT").then(|| {
            format!(
                "CASE WHEN typeof({column}) IN ('integer', 'real') THEN CAST({column} AS TEXT) END"
            )
        })
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn sql_name(&self) -> &str {
        &self.sql
    }

    fn default_sql(&self) -> Option<&str> {
        self.default.as_deref()
    }

    fn column_type(&self) -> ColumnType {
        self.column_type
    }

    /// Once by its collation, for its index, and once to the byte.
    fn equals(&self, column: &str, parameter: &str) -> String {
        match self.column_type {
            ColumnType::Text => {
                format!("{column} = {parameter} AND {column} = {parameter} COLLATE BINARY")
            }
            _ => format!("{column} = {parameter}"),
        }
    }

    fn misfit(&self, _: bool, value: &Datum<'_>, _: &mut Vec<u8>) -> Option<String> {
        const LONGEST: usize = 40;
        let bound = values::bind(self.column_type, self.is_kept_as_text, value);
        let why = bound.err()?;
        let mut text = value.to_string();
        if let Some((end, _)) = text.char_indices().nth(LONGEST) {
            text.truncate(end);
            text.push('…');
        }
        Some(format!("{}: {text:?} {why} ({})", self.name, self.declared))
    }

    fn keeps(&self, value: &Datum<'_>) -> bool {
        values::is_kept(self.column_type, self.is_kept_as_text, value)
    }

    fn normalize<'v>(&self, value: Datum<'v>) -> Datum<'v> {
        values::normalize(self.column_type, value)
    }

    fn is_equal(&self, left: &Datum<'_>, right: &Datum<'_>) -> bool {
        values::equal(left, right)
    }

    fn differs(&self, left: &Datum<'_>, right: &Datum<'_>) -> bool {
        values::differ(left, right)
    }

    fn coerce<'v>(&self, value: Datum<'v>) -> Option<Datum<'v>> {
        let value = values::coerce(self.column_type, value)?;
        Some(values::normalize(self.column_type, value))
    }
}

/// The primary key or a unique index.
#[derive(Debug)]
pub(super) struct UniqueKey {
    pub(super) is_primary_key: bool,
    pub(super) terms: Vec<UniqueTerm>,
    /// The condition of a partial index, as SQL over the table's columns.
    pub(super) condition: Option<String>,
}

/// What a unique index is about.
#[derive(Debug)]
pub(super) enum UniqueTerm {
    /// A column, and the collation by which it is compared.
    Column(usize, String),
    /// SQL over the table's columns.
    Expression(String),
}

impl catalog::CatalogReader for SqliteCatalog {
    type Column = SqliteColumn;

    fn tables(&self) -> &[TableInfo] {
        &self.infos
    }

    fn sql_table(&self, index: usize) -> SqlTable<'_, SqliteColumn> {
        let (info, table) = (&self.infos[index], &self.tables[index]);
        SqlTable {
            sql_name: &table.sql_name,
            title: &info.title,
            columns: &table.columns,
            key: &info.key,
            nullable_key: &table.nullable_key,
            row_estimate: 0,
        }
    }
}

impl SqliteCatalog {
    pub(super) fn read(connection: &rusqlite::Connection) -> Result<SqliteCatalog, CentreError> {
        read(connection).map_err(failure("reading the database's schema"))
    }
}

impl SqliteTable {
    /// The value that `REPLACE` puts in the place of NULL where a column has none, unless it
    /// is computed. BEFORE triggers see the NULL.
    pub(super) fn replaces_null(&self, info: &TableInfo, column: usize) -> Option<&str> {
        let is_nullable = info.columns[column].nullable;
        let default = self.columns[column].default.as_deref();
        let default = default.filter(|_| !is_nullable);
        default.filter(|sql| !sql.contains('('))
    }
}

impl UniqueKey {
    /// The columns, if remotes can have such a constraint. Of an index whose SQL is not understood
    /// no term may be known.
    fn columns(&self) -> Option<Vec<usize>> {
        let columns = self.terms.iter().map(|term| match term {
            UniqueTerm::Column(column, _) => Some(*column),
            UniqueTerm::Expression(_) => None,
        });
        let columns = columns.collect::<Option<Vec<usize>>>()?;
        let tells = !self.is_primary_key && self.condition.is_none() && !columns.is_empty();
        tells.then_some(columns)
    }
}

fn read(connection: &rusqlite::Connection) -> rusqlite::Result<SqliteCatalog> {
    // Virtual tables and their shadows keep rows by means that no trigger sees.
    let mut statement = connection.prepare(
        "SELECT name, sql FROM sqlite_schema s WHERE type = 'table'
         AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name NOT LIKE 'tidewater\\_%' ESCAPE '\\'
         AND sql NOT LIKE 'CREATE VIRTUAL%'
         AND NOT EXISTS (SELECT 1 FROM sqlite_schema v WHERE v.sql LIKE 'CREATE VIRTUAL%'
             AND s.name LIKE v.name || '\\_%' ESCAPE '\\') ORDER BY name",
    )?;
    let named = statement.query_map([], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
    })?;
    let named = named.collect::<rusqlite::Result<Vec<_>>>()?;
    let upstream = BranchSubscription::read(connection)?;
    let (mut infos, mut tables) = (Vec::new(), Vec::new());
    for (name, sql) in named {
        let (mut info, mut table, defaults) = read_table(connection, name, &sql)?;
        follow_headquarters(&mut info, &upstream);
        let columns = info.columns.iter().zip(defaults);
        table.columns = columns
            .map(|(column, default)| SqliteColumn::new(column, default))
            .collect();
        infos.push(info);
        tables.push(table);
    }
    for at in 0..infos.len() {
        infos[at].references = read_references(connection, &infos[at], &infos)?;
    }
    Ok(SqliteCatalog { infos, tables })
}

/// A branch's table is what headquarters says, not what it is declared as.
fn follow_headquarters(info: &mut TableInfo, upstream: &BranchSubscription) {
    for column in &mut info.columns {
        if let Some(theirs) = upstream.column(&info.name, &column.name) {
            column.column_type = Ok(theirs.column_type);
            column.default.clone_from(&theirs.default);
        }
        if upstream.numbers(&info.name, &column.name) {
            column.numbering = Some(RowNumbering::Sequence("numbered by headquarters"));
        }
    }
}

fn read_table(
    connection: &rusqlite::Connection,
    name: String,
    sql: &str,
) -> rusqlite::Result<(TableInfo, SqliteTable, Vec<Option<String>>)> {
    let mut table = SqliteTable {
        sql_name: quote(&name),
        has_triggers: has_triggers(connection, &name)?,
        has_conflict_clauses: sql.to_ascii_uppercase().contains("CONFLICT"),
        ..SqliteTable::default()
    };
    let (mut columns, mut defaults) = (Vec::new(), Vec::new());
    let mut key: Vec<(i64, usize)> = Vec::new();
    let mut statement = connection.prepare_cached(
        "SELECT name, type, \"notnull\", dflt_value, pk, hidden FROM pragma_table_xinfo(?1)
         WHERE hidden <> 1 ORDER BY cid",
    )?;
    let mut rows = statement.query([&name])?;
    while let Some(row) = rows.next()? {
        let position: i64 = row.get(4)?;
        if position > 0 {
            key.push((position, columns.len()));
        }
        let default: Option<String> = row.get(3)?;
        let may_be_null = row.get::<_, i64>(2)? == 0;
        let is_nullable = may_be_null && position == 0;
        if may_be_null && position > 0 {
            table.nullable_key.push(columns.len());
        }
        let is_generated = row.get::<_, i64>(5)? != 0;
        columns.push(column(
            row.get(0)?,
            row.get(1)?,
            is_nullable,
            default.as_deref(),
            is_generated,
        ));
        defaults.push(default);
    }
    key.sort_unstable();
    let is_own = name.to_ascii_lowercase().starts_with("tidewater_");
    let mut info = TableInfo {
        title: name.clone(),
        schema: "main".into(),
        columns,
        key: key.into_iter().map(|(_, index)| index).collect(),
        unique: Vec::new(),
        references: Vec::new(),
        indexed: Vec::new(),
        ignores_case: true,
        own_obstacle: is_own.then(|| {
            "names that begin with tidewater_ are Tidewater's own; rename the table".to_owned()
        }),
        unnoticed: None,
        is_tracked: false,
        is_part: false,
        checks: Vec::new(),
        setting_triggers: Vec::new(),
        name,
    };
    info.checks = table_checks(&info.columns, sql);
    number(&mut info, sql);
    // The row's number is never NULL.
    if let [key] = info.key[..]
        && info.columns[key].numbering.is_some()
    {
        table.nullable_key.clear();
    }
    read_indexes(connection, &mut info, &mut table)?;
    info.unique = table
        .uniques
        .iter()
        .filter_map(UniqueKey::columns)
        .collect();
    Ok((info, table, defaults))
}

fn column(
    name: String,
    declared: String,
    nullable: bool,
    default: Option<&str>,
    is_generated: bool,
) -> ColumnInfo {
    let column_type = match values::column_type(&declared) {
        _ if is_generated => Err(format!("the column {name:?} is generated")),
        Some(column_type) => Ok(column_type),
        None => Err(format!(
            "the column {name:?} has the declared type {declared:?}, which stands for no type; \
             declare INTEGER, REAL, BOOLEAN, DECIMAL(p,s), TEXT, BLOB, DATE, TIME, TIMESTAMP, \
             TIMESTAMPTZ, UUID or JSON, or leave it out with columns = [...]"
        )),
    };
    let literal = default.zip(column_type.as_ref().ok());
    ColumnInfo {
        default: literal.and_then(|(sql, &column_type)| default_of_sqlite(sql, column_type)),
        has_default: default.is_some_and(|it| !is_null(it)),
        name,
        type_name: declared,
        nullable,
        column_type,
        is_generated,
        is_by_default: !is_generated,
        is_ambiguous: false,
        has_one_spelling: true,
        is_padded: false,
        numbering: None,
    }
}

/// What numbers a key that is the row's number.
fn number(info: &mut TableInfo, sql: &str) {
    let sql = sql.to_ascii_uppercase();
    let [key] = info.key[..] else {
        return;
    };
    let column = &mut info.columns[key];
    if column.type_name.eq_ignore_ascii_case("integer") && !sql.contains("WITHOUT ROWID") {
        column.numbering = Some(match sql.contains("AUTOINCREMENT") {
            true => RowNumbering::Sequence("INTEGER PRIMARY KEY AUTOINCREMENT"),
            false => RowNumbering::Highest("declare it INTEGER PRIMARY KEY AUTOINCREMENT"),
        });
    }
}

/// The CHECKs in the words that made a table, as far as they are understood. Where values are
/// compared by a collation, or comments stand between the words, nothing is said.
fn table_checks(columns: &[ColumnInfo], sql: &str) -> Vec<CheckInfo> {
    let upper = sql.to_ascii_uppercase();
    if ["COLLATE", "--", "/*"].iter().any(|it| upper.contains(it)) {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = upper[from..].find("CHECK") {
        let after = from + at + "CHECK".len();
        let before = sql[..from + at].trim_end();
        let inner = sql[after..].trim_start().strip_prefix('(');
        from = after;
        let begins = before.ends_with(|it: char| !(it.is_alphanumeric() || it == '_'))
            || before.len() < after - "CHECK".len();
        let Some((inner, end)) = inner
            .filter(|_| begins)
            .and_then(|it| Some((it, close(it)?)))
        else {
            continue;
        };
        let condition = inner[..end].trim();
        let mut words = before.rsplit(char::is_whitespace);
        let (last, constraint) = (words.next().unwrap_or_default(), words.next());
        let is_named = constraint.is_some_and(|it| it.eq_ignore_ascii_case("CONSTRAINT"));
        let name = match is_named {
            true => last.trim_matches(['"', '`', '[', ']']),
            false => condition,
        };
        found.extend(checks::understood(columns, name, condition));
    }
    found
}

/// Where a parenthesis closes that is open already.
fn close(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (1, None);
    for (at, character) in text.char_indices() {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(character),
            (None, '(') => depth += 1,
            (None, ')') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

fn has_triggers(connection: &rusqlite::Connection, table: &str) -> rusqlite::Result<bool> {
    let mut statement = connection.prepare_cached(
        "SELECT 1 FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ?1 COLLATE NOCASE
         AND name NOT LIKE 'tidewater\\_%' ESCAPE '\\'",
    )?;
    statement.exists([table])
}

fn read_indexes(
    connection: &rusqlite::Connection,
    info: &mut TableInfo,
    table: &mut SqliteTable,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(
        "SELECT l.name, l.\"unique\", l.origin, s.sql FROM pragma_index_list(?1) l
         LEFT JOIN sqlite_schema s ON s.type = 'index' AND s.name = l.name ORDER BY l.name",
    )?;
    let mut rows = statement.query([&info.name])?;
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        let is_unique: bool = row.get(1)?;
        let is_primary_key = row.get::<_, String>(2)? == "pk";
        let sql: Option<String> = row.get(3)?;
        let parts = sql.as_deref().and_then(index_sql::parts);
        let (mut texts, condition) = parts.unwrap_or_default();
        let mut terms = Vec::new();
        let mut details = connection.prepare_cached(
            "SELECT cid, coll FROM pragma_index_xinfo(?1) WHERE key = 1 ORDER BY seqno",
        )?;
        let mut details = details.query([&name])?;
        while let Some(detail) = details.next()? {
            let column: i64 = detail.get(0)?;
            let text = texts.get_mut(terms.len()).map(std::mem::take);
            terms.push(match (usize::try_from(column), text) {
                (Ok(column), _) => UniqueTerm::Column(column, detail.get(1)?),
                (Err(_), Some(text)) => UniqueTerm::Expression(text),
                // Only the rowid, which no CREATE INDEX can name.
                (Err(_), None) => continue,
            });
        }
        if condition.is_none() {
            let leading = terms.iter().map_while(|term| match term {
                UniqueTerm::Column(column, _) => Some(*column),
                UniqueTerm::Expression(_) => None,
            });
            info.indexed.push(leading.collect());
        }
        if is_unique {
            table.uniques.push(UniqueKey {
                is_primary_key,
                terms,
                condition,
            });
        }
    }
    table.uniques.sort_by_key(|unique| !unique.is_primary_key);
    if !info.key.is_empty() && !table.uniques.iter().any(|unique| unique.is_primary_key) {
        // INTEGER PRIMARY KEY is the rowid and has no index.
        info.indexed.push(info.key.clone());
        let terms = info
            .key
            .iter()
            .map(|&index| UniqueTerm::Column(index, "BINARY".into()));
        table.uniques.insert(
            0,
            UniqueKey {
                is_primary_key: true,
                terms: terms.collect(),
                condition: None,
            },
        );
    }
    Ok(())
}

/// The foreign keys of a table; not those that refer to nothing.
fn read_references(
    connection: &rusqlite::Connection,
    table: &TableInfo,
    all: &[TableInfo],
) -> rusqlite::Result<Vec<ForeignKeyInfo>> {
    let mut statement = connection.prepare_cached(
        "SELECT id, \"table\", on_update, on_delete, \"from\", \"to\"
         FROM pragma_foreign_key_list(?1) ORDER BY id DESC, seq",
    )?;
    let mut rows = statement.query([&table.name])?;
    let mut found: Vec<(i64, Option<ForeignKeyInfo>)> = Vec::new();
    while let Some(row) = rows.next()? {
        let id: i64 = row.get(0)?;
        if found.last().is_none_or(|(last, _)| *last != id) {
            let parent: String = row.get(1)?;
            let parent = all
                .iter()
                .position(|it| it.name.eq_ignore_ascii_case(&parent));
            let (on_update, on_delete): (String, String) = (row.get(2)?, row.get(3)?);
            let reference = parent.map(|parent| ForeignKeyInfo {
                columns: Vec::new(),
                parent,
                parent_columns: Vec::new(),
                on_delete: action(&on_delete),
                on_update: action(&on_update),
                // Nobody needs to check them, and then a row may come before its parent.
                is_deferrable: true,
                // A table would have to be made anew.
                cascading: None,
            });
            found.push((id, reference));
        }
        let Some((_, slot)) = found.last_mut() else {
            continue;
        };
        let (own, theirs): (String, Option<String>) = (row.get(4)?, row.get(5)?);
        if let Some(reference) = slot {
            let parent = &all[reference.parent];
            // Without a name it is the same place of the parent's key.
            let theirs = match theirs {
                Some(name) => parent.column(&name),
                None => parent.key.get(reference.columns.len()).copied(),
            };
            match table.column(&own).zip(theirs) {
                Some((own, theirs)) => {
                    reference.columns.push(own);
                    reference.parent_columns.push(theirs);
                }
                None => *slot = None,
            }
        }
    }
    let references = found.into_iter();
    Ok(references.filter_map(|(_, reference)| reference).collect())
}

fn action(name: &str) -> ForeignKeyAction {
    match name {
        "RESTRICT" => ForeignKeyAction::Restrict,
        "CASCADE" => ForeignKeyAction::Cascade,
        "SET NULL" => ForeignKeyAction::SetNull,
        "SET DEFAULT" => ForeignKeyAction::SetDefault,
        _ => ForeignKeyAction::NoAction,
    }
}

/// The rows of these tables that have no key.
pub(super) fn keyless_rows(
    connection: &rusqlite::Connection,
    tables: &[String],
) -> Result<Vec<KeylessRows>, CentreError> {
    let catalog = SqliteCatalog::read(connection)?;
    let mut found = Vec::new();
    for (at, info) in catalog.infos.iter().enumerate() {
        let has_no_key = catalog.sql_table(at).has_no_key();
        let Some(condition) = has_no_key.filter(|_| tables.contains(&info.name)) else {
            continue;
        };
        let sql = format!(
            "SELECT count(*) FROM {} t WHERE {condition}",
            quote(&info.name)
        );
        let rows: i64 = connection
            .query_row(&sql, [], |row| row.get(0))
            .map_err(failure("looking for rows without a key"))?;
        if rows > 0 {
            found.push(KeylessRows {
                table: info.title.clone(),
                rows: rows.unsigned_abs(),
            });
        }
    }
    Ok(found)
}
