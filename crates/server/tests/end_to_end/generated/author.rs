//! What an application writes: the statements of one step, for the rows that are there.

mod postgres;

use tidewater_protocol::Value;
use tidewater_testing::generate::Dialect;
use tidewater_testing::generate::history::Write;
use tidewater_testing::generate::name;
use tidewater_testing::generate::random::Random;
use tidewater_testing::generate::schema::{Counter, Reference, Role, Schema, Table};
use tidewater_testing::generate::spelling::{literal, sqlite_literal};
use tidewater_testing::generate::types::Type;

use super::rows::Snapshot;

/// Who writes, and where.
pub(crate) struct Author<'a> {
    pub(crate) schema: &'a Schema,
    /// The centre's.
    pub(crate) dialect: Dialect,
    pub(crate) on_remote: bool,
    /// The rows that are there.
    pub(crate) rows: &'a Snapshot,
    pub(crate) random: Random,
    /// Every row that is written gets this tag.
    pub(crate) tag: String,
    /// What is written to in place of the table.
    pub(crate) leaf: Option<String>,
}

impl Author<'_> {
    /// What INSERT and UPDATE write to, under a name that no table has.
    fn target(&self, table: &Table) -> String {
        format!("{} AS the_target", self.table(table))
    }

    /// The statements of a transaction, and whether it is committed.
    pub(crate) fn write(&mut self, table: &Table, write: Write) -> (Vec<String>, bool) {
        let mut commit = true;
        let mut statements = match write {
            Write::Insert => self.inserts(table),
            Write::Update => self.update(table, "UPDATE"),
            Write::Delete => self.delete(table, 1),
            Write::DeleteMany => self.delete(table, 3),
            Write::UpdateMany => vec![format!(
                "UPDATE {} SET {}",
                self.table(table),
                self.assign(table, table.tag, &Value::Text(self.tag.clone()))
            )],
            Write::Rekey => self.rekey(table),
            Write::Move => self.change_partition(table),
            Write::Upsert => self.upsert(table),
            Write::Replace if self.is_sqlite() => self.replace(table),
            Write::Replace => self.upsert(table),
            Write::UpdateOrReplace if self.is_sqlite() => self.update_or_replace(table),
            Write::UpdateOrReplace => self.update(table, "UPDATE"),
            Write::Family => self.family(table),
            Write::Reinsert => self.reinsert(table),
            Write::Savepoint => {
                let mut statements = self.inserts(table);
                statements.push("SAVEPOINT here".into());
                statements.extend(self.delete(table, 2));
                statements.push("ROLLBACK TO here".into());
                statements.extend(self.update(table, "UPDATE"));
                statements
            }
            Write::NestedSavepoints => self.nested_savepoints(table),
            Write::Ignore => self.ignore(table),
            Write::Truncate if self.is_sqlite() => {
                vec![format!("DELETE FROM {}", self.table(table))]
            }
            Write::Truncate => vec![format!("TRUNCATE {} CASCADE", self.table(table))],
            Write::Copy if !self.is_sqlite() => self.copy(table),
            Write::Copy => self.inserts(table),
            Write::Merge if !self.is_sqlite() => self.merge(table),
            Write::Merge => self.upsert(table),
            Write::With if !self.is_sqlite() => self.with(table),
            Write::Block if !self.is_sqlite() => self.block(table),
            Write::Block => self.nested_savepoints(table),
            Write::Leaf if !self.is_sqlite() => self.by_leaf(table),
            Write::With | Write::Leaf => self.update(table, "UPDATE"),
            Write::RolledBack => {
                commit = false;
                let mut statements = self.inserts(table);
                statements.extend(self.delete(table, 2));
                statements
            }
            Write::Nonsense => self.nonsense(table),
            Write::Respell => self.respell(table),
        };
        statements.retain(|statement| !statement.is_empty());
        (statements, commit)
    }

    fn is_sqlite(&self) -> bool {
        self.on_remote || self.dialect == Dialect::Sqlite
    }

    fn table(&self, table: &Table) -> String {
        match (&self.leaf, self.on_remote) {
            (Some(leaf), _) => leaf.clone(),
            (None, true) => name(&table.name),
            (None, false) => table.sql_name(self.dialect),
        }
    }

    fn literal(&self, column_type: Type, value: &Value) -> String {
        match self.on_remote {
            true => sqlite_literal(value),
            false => literal(self.dialect, column_type, value),
        }
    }

    fn assign(&self, table: &Table, column: usize, value: &Value) -> String {
        let column = &table.columns[column];
        let value = self.literal(column.column_type, value);
        format!("{} = {value}", name(&column.name))
    }

    fn where_key(&self, table: &Table, row: &[Value]) -> String {
        let parts = table.key.iter().map(|&it| self.assign(table, it, &row[it]));
        parts.collect::<Vec<_>>().join(" AND ")
    }

    /// A row that is there.
    fn existing(&mut self, table: &Table) -> Option<Vec<Value>> {
        let rows = self.rows.table(table.id);
        let number = self.random.index(rows.len().max(1));
        rows.values().nth(number).cloned()
    }

    /// A value for a column of a row, apart from its references.
    fn value(&mut self, table: &Table, index: usize) -> Value {
        let column = &table.columns[index];
        if column.role == Role::Tag {
            return Value::Text(self.tag.clone());
        }
        if let Some(position) = table.partition.iter().position(|&it| it == index) {
            let choice = self.random.index(4);
            return table.partition_values(self.dialect, choice)[position].clone();
        }
        if column.nullable && self.random.once_in(5) {
            return Value::Null;
        }
        column.column_type.sample(self.dialect, &mut self.random)
    }

    fn refer(&mut self, reference: &Reference, row: &mut [Value]) {
        if self.random.once_in(6) {
            return;
        }
        let schema = self.schema;
        let Some(parent) = schema.table(reference.parent) else {
            return;
        };
        let Some(parent) = self.existing(parent) else {
            return;
        };
        for (&column, &parent_column) in reference.columns.iter().zip(&reference.parent_columns) {
            row[column] = parent[parent_column].clone();
        }
    }

    fn new_row(&mut self, table: &Table) -> Vec<Value> {
        let mut row: Vec<Value> = (0..table.columns.len())
            .map(|index| self.value(table, index))
            .collect();
        for reference in &table.references {
            self.refer(reference, &mut row);
        }
        row
    }

    fn insert(&mut self, table: &Table, verb: &str, row: &[Value]) -> String {
        let (columns, overriding) = self.columns_to_insert(table);
        let values = columns
            .iter()
            .map(|&it| self.literal(table.columns[it].column_type, &row[it]));
        let values = values.collect::<Vec<_>>().join(", ");
        format!(
            "{verb} INTO {} ({}){overriding} VALUES ({values})",
            self.target(table),
            table.names(&columns)
        )
    }

    /// The columns that an insert names, and what it has to say about a counter.
    fn columns_to_insert(&mut self, table: &Table) -> (Vec<usize>, &'static str) {
        let counts =
            table.counter != Counter::No && !self.on_remote && self.dialect == Dialect::Postgres;
        let counted = counts && self.random.once_in(2);
        let mut columns = Vec::new();
        for (index, column) in table.columns.iter().enumerate() {
            let is_key = table.key.contains(&index);
            let left_out = match column.role {
                Role::Generated => true,
                Role::Default | Role::Computed => self.random.once_in(2),
                _ => column.nullable && index != table.tag && self.random.once_in(8),
            };
            if !(is_key && counted) && (is_key || !left_out) {
                columns.push(index);
            }
        }
        let overriding = match table.counter {
            Counter::Always if counts && !counted => " OVERRIDING SYSTEM VALUE",
            _ => "",
        };
        (columns, overriding)
    }

    fn inserts(&mut self, table: &Table) -> Vec<String> {
        let count = 1 + self.random.weighted(&[6, 2, 1]);
        (0..count)
            .map(|_| {
                let row = self.new_row(table);
                self.insert(table, "INSERT", &row)
            })
            .collect()
    }

    /// New values for some columns that are not the key.
    fn changes(&mut self, table: &Table) -> Vec<String> {
        let row = self.new_row(table);
        let tag = table.tag;
        let mut changes = vec![self.assign(table, tag, &row[tag])];
        for (index, value) in row.iter().enumerate() {
            let fixed = index == tag || table.key.contains(&index) || !table.is_written(index);
            let moves = table.partition.contains(&index);
            if !fixed && self.random.once_in(if moves { 8 } else { 2 }) {
                changes.push(self.assign(table, index, value));
            }
        }
        changes
    }

    fn update(&mut self, table: &Table, verb: &str) -> Vec<String> {
        let Some(row) = self.existing(table) else {
            return self.inserts(table);
        };
        let changes = self.changes(table).join(", ");
        let key = self.where_key(table, &row);
        vec![format!(
            "{verb} {} SET {changes} WHERE {key}",
            self.table(table)
        )]
    }

    fn delete(&mut self, table: &Table, count: usize) -> Vec<String> {
        let rows: Vec<_> = (0..count).filter_map(|_| self.existing(table)).collect();
        let keys = rows.iter().map(|row| self.where_key(table, row));
        let keys: Vec<String> = keys.map(|key| format!("({key})")).collect();
        if keys.is_empty() {
            return self.inserts(table);
        }
        vec![format!(
            "DELETE FROM {} WHERE {}",
            self.table(table),
            keys.join(" OR ")
        )]
    }

    fn rekey(&mut self, table: &Table) -> Vec<String> {
        let Some(row) = self.existing(table) else {
            return self.inserts(table);
        };
        let column = *self.random.one_of(&table.key);
        let new = self.new_row(table);
        vec![format!(
            "UPDATE {} SET {}, {} WHERE {}",
            self.table(table),
            self.assign(table, column, &new[column]),
            self.assign(table, table.tag, &new[table.tag]),
            self.where_key(table, &row)
        )]
    }

    fn change_partition(&mut self, table: &Table) -> Vec<String> {
        let Some(row) = self.existing(table).filter(|_| !table.partition.is_empty()) else {
            return self.update(table, "UPDATE");
        };
        let choice = self.random.index(4);
        let values = table.partition_values(self.dialect, choice);
        let partition = table.partition.iter().zip(&values);
        let mut changes: Vec<String> = partition
            .map(|(&column, value)| self.assign(table, column, value))
            .collect();
        changes.push(self.assign(table, table.tag, &Value::Text(self.tag.clone())));
        vec![format!(
            "UPDATE {} SET {} WHERE {}",
            self.table(table),
            changes.join(", "),
            self.where_key(table, &row)
        )]
    }

    /// A new row, half of the time under a key that is there.
    fn row_for_upsert(&mut self, table: &Table) -> Vec<Value> {
        let mut row = self.new_row(table);
        if self.random.once_in(2)
            && let Some(existing) = self.existing(table)
        {
            for &column in &table.key {
                row[column] = existing[column].clone();
            }
        }
        row
    }

    fn upsert(&mut self, table: &Table) -> Vec<String> {
        let row = self.row_for_upsert(table);
        let insert = self.insert(table, "INSERT", &row);
        let tag = name(&table.columns[table.tag].name);
        vec![format!(
            "{insert} ON CONFLICT ({}) DO UPDATE SET {tag} = excluded.{tag}",
            table.names(&table.key)
        )]
    }

    fn replace(&mut self, table: &Table) -> Vec<String> {
        let mut row = self.row_for_upsert(table);
        self.take_unique(table, &mut row);
        let verb = *self.random.one_of(&["REPLACE", "INSERT OR REPLACE"]);
        vec![self.insert(table, verb, &row)]
    }

    /// Takes the unique values of a row that is there.
    fn take_unique(&mut self, table: &Table, row: &mut [Value]) {
        let Some(other) = self.existing(table) else {
            return;
        };
        for &column in table.uniques.iter().flatten() {
            if !table.key.contains(&column) {
                row[column] = other[column].clone();
            }
        }
    }

    fn update_or_replace(&mut self, table: &Table) -> Vec<String> {
        let (Some(row), Some(other)) = (self.existing(table), self.existing(table)) else {
            return self.inserts(table);
        };
        let mut columns: Vec<usize> = table.uniques.iter().flatten().copied().collect();
        if columns.is_empty() || self.random.once_in(3) {
            columns = table.key.clone();
        }
        columns.retain(|&it| it != table.tag);
        let mut changes: Vec<String> = columns
            .iter()
            .map(|&it| self.assign(table, it, &other[it]))
            .collect();
        changes.push(self.assign(table, table.tag, &Value::Text(self.tag.clone())));
        vec![format!(
            "UPDATE OR REPLACE {} SET {} WHERE {}",
            self.table(table),
            changes.join(", "),
            self.where_key(table, &row)
        )]
    }

    fn family(&mut self, table: &Table) -> Vec<String> {
        let schema = self.schema;
        let mut child = self.new_row(table);
        let mut statements = Vec::new();
        if let Some(reference) = table.references.first()
            && let Some(parent_table) = schema.table(reference.parent)
        {
            let parent = self.new_row(parent_table);
            for (&column, &from) in reference.columns.iter().zip(&reference.parent_columns) {
                child[column] = parent[from].clone();
            }
            statements.push(self.insert(parent_table, "INSERT", &parent));
        }
        statements.push(self.insert(table, "INSERT", &child));
        statements
    }

    fn reinsert(&mut self, table: &Table) -> Vec<String> {
        let Some(row) = self.existing(table) else {
            return self.inserts(table);
        };
        let mut new = self.new_row(table);
        for &column in &table.key {
            new[column] = row[column].clone();
        }
        vec![
            format!(
                "DELETE FROM {} WHERE {}",
                self.table(table),
                self.where_key(table, &row)
            ),
            self.insert(table, "INSERT", &new),
        ]
    }

    fn ignore(&mut self, table: &Table) -> Vec<String> {
        let row = self.row_for_upsert(table);
        if self.is_sqlite() {
            return vec![self.insert(table, "INSERT OR IGNORE", &row)];
        }
        let insert = self.insert(table, "INSERT", &row);
        vec![format!("{insert} ON CONFLICT DO NOTHING")]
    }

    fn nested_savepoints(&mut self, table: &Table) -> Vec<String> {
        let mut statements = vec!["SAVEPOINT outside".into()];
        statements.extend(self.update(table, "UPDATE"));
        statements.push("SAVEPOINT inside".into());
        statements.extend(self.delete(table, 2));
        statements.push("RELEASE inside".into());
        if self.random.once_in(2) {
            statements.push("ROLLBACK TO outside".into());
        }
        statements.extend(self.inserts(table));
        statements.push("RELEASE outside".into());
        statements
    }

    fn nonsense(&mut self, table: &Table) -> Vec<String> {
        let takes_text =
            |it: Type| matches!(it, Type::Text | Type::Json | Type::Jsonb | Type::TextArray);
        let columns: Vec<usize> = (0..table.columns.len())
            .filter(|it| !table.key.contains(it) && table.is_written(*it))
            .filter(|&it| it != table.tag && !takes_text(table.columns[it].column_type))
            .collect();
        let Some(row) = self
            .existing(table)
            .filter(|_| self.on_remote && !columns.is_empty())
        else {
            return self.update(table, "UPDATE");
        };
        let column = *self.random.one_of(&columns);
        vec![format!(
            "UPDATE {} SET {}, {} WHERE {}",
            self.table(table),
            self.assign(table, column, &Value::Text("nonsense, and too long".into())),
            self.assign(table, table.tag, &Value::Text(self.tag.clone())),
            self.where_key(table, &row)
        )]
    }

    /// Values that the remote takes in other spellings, outside the key.
    fn respell(&mut self, table: &Table) -> Vec<String> {
        let Some(mut row) = self.existing(table).filter(|_| self.on_remote) else {
            return self.update(table, "UPDATE");
        };
        let mut changes = vec![self.assign(table, table.tag, &Value::Text(self.tag.clone()))];
        for (index, column) in table.columns.iter().enumerate() {
            let Value::Text(text) = &mut row[index] else {
                continue;
            };
            if table.key.contains(&index) || !table.is_written(index) {
                continue;
            }
            let other = match column.column_type {
                Type::Decimal(_, 1..) => text.trim_end_matches('0').to_owned(),
                Type::Uuid => text.to_uppercase(),
                Type::Timestamp => text.replace('T', " "),
                Type::TimestampTz => text.replace('Z', "+00:00"),
                Type::Char(_) => format!("{text} "),
                _ => continue,
            };
            changes.push(self.assign(table, index, &Value::Text(other)));
        }
        vec![format!(
            "UPDATE {} SET {} WHERE {}",
            self.table(table),
            changes.join(", "),
            self.where_key(table, &row)
        )]
    }

    /// A row under a key that nobody else uses, in a table that has nothing to do with
    /// others; nothing where that cannot be.
    pub(crate) fn insert_aside(&mut self, table: &Table) -> Option<String> {
        let tables = self.schema.tables.iter();
        let mut references = tables.flat_map(|it| &it.references);
        if references.any(|it| it.parent == table.id)
            || !table.references.is_empty()
            || !table.uniques.is_empty()
        {
            return None;
        }
        let column = table.key.iter().find(|&&it| {
            !table.partition.contains(&it)
                && matches!(table.columns[it].column_type, Type::Integer | Type::BigInt)
        });
        let mut row = self.new_row(table);
        row[*column?] = Value::Integer(1_000_000 + self.random.below(1_000_000) as i64);
        Some(self.insert(table, "INSERT", &row))
    }
}
