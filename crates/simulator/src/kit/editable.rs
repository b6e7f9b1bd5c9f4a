//! What can be edited in a file: its tables as SQLite knows them.

use rusqlite::Connection;
use tidewater_protocol::ColumnType;

use super::tables::PublishedTable;
use super::values::quote;

/// A table of a file.
#[derive(Clone, Debug)]
pub(super) struct Editable {
    pub(super) name: String,
    pub(super) fields: Vec<Field>,
    pub(super) key: Vec<usize>,
    pub(super) references: Vec<KeyReference>,
    /// Whether its rows travel.
    pub(super) is_published: bool,
    /// The column whose numbers the product gives, if they are left to it.
    pub(super) numbered: Option<usize>,
}

/// A column that statements may name.
#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) name: String,
    /// `None`: values of it are copied, and never made.
    pub(super) column_type: Option<ColumnType>,
    pub(super) is_nullable: bool,
    pub(super) has_default: bool,
    pub(super) is_writable: bool,
}

/// A foreign key.
#[derive(Clone, Debug)]
pub(super) struct KeyReference {
    pub(super) fields: Vec<usize>,
    /// The place of the table that it refers to.
    pub(super) parent: usize,
    pub(super) parent_fields: Vec<usize>,
}

/// All tables of a file that can be edited; `None` as long as it lacks one of the published ones.
pub(super) fn all(
    connection: &Connection,
    published: &[&PublishedTable],
    is_centre: bool,
) -> rusqlite::Result<Option<Vec<Editable>>> {
    let mut names: Vec<String> = Vec::new();
    for table in published {
        if !table.is_in(connection)? {
            return Ok(None);
        }
        let is_known = names.contains(&table.name);
        if !is_known && (is_centre || table.direction.uploads()) {
            names.push(table.name.clone());
        }
    }
    if is_centre {
        // What belongs to a virtual table is that one's affair.
        let sql = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' \
                   AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' \
                   AND name NOT LIKE 'tidewater\\_%' ESCAPE '\\' ORDER BY name";
        let mut statement = connection.prepare_cached(sql)?;
        let others = statement.query_map([], |row| row.get::<_, String>(0))?;
        for other in others {
            let other = other?;
            if !names.iter().any(|it| it.eq_ignore_ascii_case(&other)) {
                names.push(other);
            }
        }
    }
    let mut tables = Vec::new();
    for name in &names {
        let table = published
            .iter()
            .find(|it| it.name.eq_ignore_ascii_case(name));
        tables.push(read(connection, name, table.copied(), is_centre)?);
    }
    for index in 0..tables.len() {
        tables[index].references = references(connection, &tables, index)?;
    }
    Ok(Some(tables))
}

fn read(
    connection: &Connection,
    name: &str,
    published: Option<&PublishedTable>,
    is_centre: bool,
) -> rusqlite::Result<Editable> {
    let sql = "SELECT name, type, \"notnull\", dflt_value IS NOT NULL, pk, hidden \
               FROM pragma_table_xinfo(?1) ORDER BY cid";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([name])?;
    let mut fields = Vec::new();
    let mut key = Vec::new();
    while let Some(row) = rows.next()? {
        let hidden: i64 = row.get(5)?;
        if hidden != 0 {
            continue;
        }
        let field: String = row.get(0)?;
        let of_publication = published.and_then(|table| {
            let mut columns = table.columns.iter().enumerate();
            columns.find(|(_, it)| it.name.eq_ignore_ascii_case(&field))
        });
        let is_read_only = match (published, of_publication) {
            (Some(table), Some((at, _))) => table.read_only[at],
            _ => false,
        };
        let declared: String = row.get(1)?;
        let pk: i64 = row.get(4)?;
        if pk > 0 {
            key.push((pk, fields.len()));
        }
        fields.push(Field {
            column_type: match of_publication {
                Some((_, column)) => Some(column.column_type),
                None => guessed(&declared),
            },
            is_nullable: !row.get::<_, bool>(2)? && pk == 0,
            has_default: row.get(3)?,
            is_writable: is_centre || (of_publication.is_some() && !is_read_only),
            name: field,
        });
    }
    key.sort_unstable();
    let key: Vec<usize> = key.into_iter().map(|(_, at)| at).collect();
    // Of a table with an identity the product has the numbers.
    let sql = "SELECT 1 FROM sqlite_schema WHERE type = 'trigger' AND name = ?1";
    let is_numbered = connection
        .prepare_cached(sql)?
        .exists([format!("tidewater_identity_{name}")])?;
    Ok(Editable {
        name: name.to_owned(),
        numbered: key
            .first()
            .copied()
            .filter(|_| is_numbered && key.len() == 1),
        fields,
        key,
        references: Vec::new(),
        is_published: published.is_some(),
    })
}

/// What a declared type of an unpublished column is likely to mean.
fn guessed(declared: &str) -> Option<ColumnType> {
    let declared = declared.to_ascii_uppercase();
    let has = |parts: &[&str]| parts.iter().any(|it| declared.contains(it));
    match () {
        () if has(&["INT"]) => Some(ColumnType::Integer),
        () if has(&["CHAR", "TEXT", "CLOB"]) => Some(ColumnType::Text),
        () if has(&["REAL", "DOUBLE", "FLOAT"]) => Some(ColumnType::Real),
        () if has(&["BOOL"]) => Some(ColumnType::Boolean),
        () if has(&["TIMESTAMP", "DATETIME"]) => Some(ColumnType::Timestamp),
        () if has(&["DATE"]) => Some(ColumnType::Date),
        () => None,
    }
}

fn references(
    connection: &Connection,
    tables: &[Editable],
    of: usize,
) -> rusqlite::Result<Vec<KeyReference>> {
    let sql =
        "SELECT id, \"table\", \"from\", \"to\" FROM pragma_foreign_key_list(?1) ORDER BY id, seq";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([&tables[of].name])?;
    let mut found: Vec<(i64, KeyReference)> = Vec::new();
    while let Some(row) = rows.next()? {
        let (id, parent): (i64, String) = (row.get(0)?, row.get(1)?);
        let (from, to): (String, Option<String>) = (row.get(2)?, row.get(3)?);
        let is_parent = |it: &Editable| it.name.eq_ignore_ascii_case(&parent);
        let Some(parent) = tables.iter().position(is_parent) else {
            continue;
        };
        let place = |table: &Editable, name: &str| {
            let mut fields = table.fields.iter();
            fields.position(|it| it.name.eq_ignore_ascii_case(name))
        };
        let count = found.iter().filter(|it| it.0 == id).count();
        if count == 0 {
            let reference = KeyReference {
                fields: Vec::new(),
                parent,
                parent_fields: Vec::new(),
            };
            found.push((id, reference));
        }
        let at = found.iter().position(|it| it.0 == id).unwrap_or_default();
        let reference = &mut found[at].1;
        let to = match to {
            Some(to) => place(&tables[parent], &to),
            None => tables[parent].key.get(reference.fields.len()).copied(),
        };
        if let (Some(from), Some(to)) = (place(&tables[of], &from), to) {
            reference.fields.push(from);
            reference.parent_fields.push(to);
        }
    }
    Ok(found.into_iter().map(|(_, it)| it).collect())
}

impl Editable {
    /// The place of a column in a reference, if it is in one.
    pub(super) fn reference_of(&self, field: usize) -> Option<(&KeyReference, usize)> {
        let mut references = self.references.iter();
        references.find_map(|it| {
            let at = it.fields.iter().position(|other| *other == field)?;
            Some((it, it.parent_fields[at]))
        })
    }

    /// Its key, for an order that is the same in every world.
    pub(super) fn order(&self) -> String {
        let key = self.key.iter().map(|&it| quote(&self.fields[it].name));
        let key: Vec<String> = key.collect();
        match key.is_empty() {
            true => "rowid".into(),
            false => key.join(", "),
        }
    }
}
