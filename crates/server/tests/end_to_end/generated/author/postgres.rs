//! Statements that only PostgreSQL has.

use tidewater_protocol::Value;
use tidewater_testing::generate::name;
use tidewater_testing::generate::schema::{LEAVES, Leaves, Table};
use tidewater_testing::generate::spelling::copied;

use super::Author;

impl Author<'_> {
    /// As psql takes it: the rows stand behind the statement's line.
    pub(super) fn copy(&mut self, table: &Table) -> Vec<String> {
        let (columns, _) = self.columns_to_insert(table);
        let mut text = format!(
            "COPY {} ({}) FROM STDIN\n",
            self.table(table),
            table.names(&columns)
        );
        for _ in 0..1 + self.random.index(4) {
            let row = self.new_row(table);
            let fields = columns.iter();
            let fields = fields.map(|&it| copied(table.columns[it].column_type, &row[it]));
            text += &(fields.collect::<Vec<_>>().join("\t") + "\n");
        }
        vec![text]
    }

    /// Updates or deletes the row that is there, or inserts it.
    pub(super) fn merge(&mut self, table: &Table) -> Vec<String> {
        let row = self.row_for_upsert(table);
        let written: Vec<usize> = (0..table.columns.len())
            .filter(|&it| table.is_written(it))
            .collect();
        let (columns, overriding) = self.columns_to_insert(table);
        let values = written.iter().map(|&it| {
            let column_type = table.columns[it].column_type;
            let value = self.literal(column_type, &row[it]);
            format!("CAST({value} AS {})", column_type.declared(self.dialect))
        });
        let values = values.collect::<Vec<_>>().join(", ");
        let on = table.key.iter().map(|&it| {
            let column = name(&table.columns[it].name);
            format!("the_target.{column} = the_source.{column}")
        });
        let on = on.collect::<Vec<_>>().join(" AND ");
        let matched = match self.random.below(3) {
            0 => "DELETE".to_owned(),
            _ => {
                let tag = name(&table.columns[table.tag].name);
                format!("UPDATE SET {tag} = the_source.{tag}")
            }
        };
        let sources = columns.iter();
        let sources = sources.map(|&it| format!("the_source.{}", name(&table.columns[it].name)));
        vec![format!(
            "MERGE INTO {} USING (VALUES ({values})) AS the_source ({}) ON {on}
             WHEN MATCHED THEN {matched}
             WHEN NOT MATCHED THEN INSERT ({}){overriding} VALUES ({})",
            self.target(table),
            table.names(&written),
            table.names(&columns),
            sources.collect::<Vec<_>>().join(", ")
        )]
    }

    /// Three changes in one statement.
    pub(super) fn with(&mut self, table: &Table) -> Vec<String> {
        let (Some(gone), Some(changed)) = (self.existing(table), self.existing(table)) else {
            return self.inserts(table);
        };
        let new = self.new_row(table);
        let insert = self.insert(table, "INSERT", &new);
        vec![format!(
            "WITH gone AS (DELETE FROM {table} WHERE {} RETURNING 1),
                  came AS ({insert} RETURNING 1)
             UPDATE {table} SET {} WHERE {}",
            self.where_key(table, &gone),
            self.assign(table, table.tag, &Value::Text(self.tag.clone())),
            self.where_key(table, &changed),
            table = self.table(table),
        )]
    }

    /// One subtransaction that is undone, and one that is undone if it has to be.
    pub(super) fn block(&mut self, table: &Table) -> Vec<String> {
        let lines = |statements: Vec<String>| statements.join(";\n") + ";";
        let first = lines(self.update(table, "UPDATE"));
        let undone = lines(self.delete(table, 2));
        let tried = lines(self.inserts(table));
        vec![format!(
            "DO $do$ BEGIN
                 {first}
                 BEGIN
                     {undone}
                     RAISE EXCEPTION 'undone';
                 EXCEPTION WHEN raise_exception THEN NULL; END;
                 BEGIN
                     {tried}
                 EXCEPTION WHEN integrity_constraint_violation THEN NULL; END;
             END $do$"
        )]
    }

    /// Writes to one leaf, whose name an application knows.
    pub(super) fn by_leaf(&mut self, table: &Table) -> Vec<String> {
        if table.leaves != Leaves::None {
            self.leaf = Some(table.leaf(self.random.index(LEAVES)));
        }
        let statements = match self.random.below(4) {
            0 => self.inserts(table),
            1 => self.delete(table, 3),
            2 => self.upsert(table),
            _ => self.update(table, "UPDATE"),
        };
        self.leaf = None;
        statements
    }
}
