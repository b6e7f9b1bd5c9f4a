//! Schemas in SQL, and their publication in TOML.

use super::schema::{Action, Column, Counter, Reference, Role, Schema, Table};
use super::spelling::literal;
use super::types::POSTGRES_TYPES;
use super::{Dialect, ROLE, USERS, name};
use crate::generate::random::Random;
use crate::generate::types::Type;
use tidewater_protocol::Value;

impl Schema {
    /// The statements that create the tables, and those that say who holds what.
    pub fn create(&self, dialect: Dialect) -> String {
        let mut sql = String::new();
        if dialect == Dialect::Postgres {
            sql += POSTGRES_TYPES;
            sql += "CREATE SCHEMA \"Other Schema\";\n";
        }
        for table in &self.tables {
            sql += &table.create(dialect, self);
        }
        if dialect == Dialect::Postgres {
            for table in &self.tables {
                for reference in &table.references {
                    let definition = reference.definition(dialect, table, self);
                    sql += &format!(
                        "ALTER TABLE {} ADD {definition};\n",
                        table.sql_name(dialect)
                    );
                }
            }
            sql += &rights(self.tables.iter().any(|it| it.schema.is_some()));
        }
        sql + &self.centre_triggers(dialect)
    }

    /// `[[publication]]` and its tables; the name is `main`.
    pub fn publication(&self, dialect: Dialect) -> String {
        let mut toml = String::from("[[publication]]\nname = \"main\"\n");
        for table in &self.tables {
            let configured = match table.schema.filter(|_| dialect == Dialect::Postgres) {
                Some(schema) => format!("{schema}.{}", table.name),
                None => table.name.clone(),
            };
            toml += &format!(
                "\n[[publication.table]]\nname = {}\n",
                toml_text(&configured)
            );
            if table.partition.is_empty() {
                toml += "partition = \"everyone\"\n";
            } else {
                let columns = table
                    .partition
                    .iter()
                    .map(|&it| toml_text(&table.columns[it].name));
                let columns = columns.collect::<Vec<_>>().join(", ");
                let query = format!(
                    "SELECT {} FROM assigned_{} WHERE login = {{s.username}}",
                    table.assigned_columns().join(", "),
                    table.id
                );
                toml += &format!(
                    "partition = {{ columns = [{columns}], values = {} }}\n",
                    toml_text(&query)
                );
            }
            if table.tracking != "log" {
                toml += &format!("tracking = \"{}\"\n", table.tracking);
            }
        }
        toml
    }
}

/// A role that may do everything with the tables, and nothing with Tidewater's schema. Roles
/// belong to the whole server: another test may have made it, or be making it.
fn rights(other_schema: bool) -> String {
    let mut sql = format!(
        "DO $do$ BEGIN CREATE ROLE {ROLE};
         EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $do$;\n"
    );
    let schemas = ["public", "\"Other Schema\""];
    for schema in &schemas[..1 + usize::from(other_schema)] {
        sql += &format!(
            "GRANT USAGE ON SCHEMA {schema} TO {ROLE};
             GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {ROLE};
             GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {ROLE};\n"
        );
    }
    sql
}

fn toml_text(text: &str) -> String {
    let escaped = text
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\t', "\\t");
    format!("\"{}\"", escaped)
}

impl Table {
    /// Its name in a statement in the centre.
    pub fn sql_name(&self, dialect: Dialect) -> String {
        match self.schema.filter(|_| dialect == Dialect::Postgres) {
            Some(schema) => format!("{}.{}", name(schema), name(&self.name)),
            None => name(&self.name),
        }
    }

    fn create(&self, dialect: Dialect, schema: &Schema) -> String {
        let mut parts = Vec::new();
        for (index, column) in self.columns.iter().enumerate() {
            parts.push(self.column(dialect, index, column));
        }
        parts.push(format!("PRIMARY KEY ({})", self.names(&self.key)));
        for unique in &self.uniques {
            parts.push(format!("UNIQUE ({})", self.names(unique)));
        }
        if dialect == Dialect::Sqlite {
            let references = self.references.iter();
            parts.extend(references.map(|it| it.definition(dialect, self, schema)));
        }
        let options = match dialect {
            Dialect::Sqlite if self.without_rowid => " WITHOUT ROWID".to_owned(),
            Dialect::Sqlite | Dialect::Mysql => String::new(),
            Dialect::Postgres => self.partition_by(),
        };
        let mut sql = format!(
            "CREATE TABLE {} (\n  {}){options};\n",
            self.sql_name(dialect),
            parts.join(",\n  ")
        );
        if dialect == Dialect::Postgres {
            sql += &self.create_leaves();
        }
        if !self.partition.is_empty() {
            sql += &self.assignments(dialect);
        }
        sql
    }

    fn column(&self, dialect: Dialect, index: usize, column: &Column) -> String {
        let declared = column.column_type.declared(dialect);
        let counts = dialect == Dialect::Postgres && self.key == [index];
        let declared = match self.counter {
            Counter::Serial if counts => "serial".to_owned(),
            Counter::Always if counts => format!("{declared} GENERATED ALWAYS AS IDENTITY"),
            Counter::ByDefault if counts => format!("{declared} GENERATED BY DEFAULT AS IDENTITY"),
            _ => declared,
        };
        let mut sql = format!("{} {declared}", name(&column.name));
        if !column.nullable {
            sql += " NOT NULL";
        }
        let constant = || {
            // Always the same one for the same column.
            let value = column
                .column_type
                .sample(dialect, &mut Random::seeded(index as u64));
            literal(dialect, column.column_type, &value)
        };
        match column.role {
            Role::Plain | Role::Tag => {}
            Role::Default => sql += &format!(" DEFAULT {}", constant()),
            Role::Computed => {
                sql += &match column.column_type {
                    Type::Uuid if dialect == Dialect::Postgres => {
                        " DEFAULT gen_random_uuid()".into()
                    }
                    Type::Text => " DEFAULT (lower('COMPUTED') || 'x')".to_owned(),
                    _ => String::new(),
                };
            }
            Role::Generated => {
                sql += &format!(
                    " GENERATED ALWAYS AS (coalesce({}, '-') || '!') STORED",
                    name(&self.columns[self.tag].name)
                );
            }
            Role::Check => {
                let text = match dialect {
                    Dialect::Postgres => format!("{}::text", name(&column.name)),
                    Dialect::Sqlite => format!("CAST({} AS TEXT)", name(&column.name)),
                    Dialect::Mysql => format!("CAST({} AS CHAR)", name(&column.name)),
                };
                sql += &format!(" CHECK ({text} NOT IN ('1', 'a', 'A', '1.00', 'sad'))");
            }
        }
        sql
    }

    /// Column names, as in a list in SQL.
    pub fn names(&self, columns: &[usize]) -> String {
        let names = columns.iter().map(|&it| name(&self.columns[it].name));
        names.collect::<Vec<_>>().join(", ")
    }

    fn assigned_columns(&self) -> Vec<String> {
        (0..self.partition.len())
            .map(|number| format!("value_{number}"))
            .collect()
    }

    /// The table that says who holds which partitions, and what it says at first.
    fn assignments(&self, dialect: Dialect) -> String {
        let columns = self.assigned_columns().into_iter().zip(&self.partition);
        let columns = columns.map(|(column, &index)| {
            format!(
                "{column} {} NOT NULL",
                self.columns[index].column_type.declared(dialect)
            )
        });
        let mut sql = format!(
            "CREATE TABLE assigned_{} (login TEXT NOT NULL, {}, PRIMARY KEY (login, {}));\n",
            self.id,
            columns.collect::<Vec<_>>().join(", "),
            self.assigned_columns().join(", ")
        );
        for (number, user) in USERS.iter().enumerate() {
            for choice in [number, number + 1] {
                sql += &format!("{};\n", self.assign(dialect, user, choice));
            }
        }
        sql
    }

    /// Gives a user a partition.
    pub fn assign(&self, dialect: Dialect, user: &str, choice: usize) -> String {
        let values = self.partition_values(dialect, choice);
        let values = self
            .partition
            .iter()
            .zip(&values)
            .map(|(&index, value)| literal(dialect, self.columns[index].column_type, value));
        format!(
            "INSERT INTO assigned_{} VALUES ('{user}', {}) ON CONFLICT DO NOTHING",
            self.id,
            values.collect::<Vec<_>>().join(", ")
        )
    }

    /// Takes one of a user's partitions away.
    pub fn unassign(&self, dialect: Dialect, user: &str, choice: usize) -> String {
        let values = self.partition_values(dialect, choice);
        let first = &self.columns[self.partition[0]];
        format!(
            "DELETE FROM assigned_{} WHERE login = '{user}' AND value_0 = {}",
            self.id,
            literal(dialect, first.column_type, &values[0])
        )
    }

    /// One of a few partitions.
    pub fn partition_values(&self, dialect: Dialect, choice: usize) -> Vec<Value> {
        let mut random = Random::seeded(choice as u64 % 4);
        let columns = self.partition.iter();
        columns
            .map(|&it| self.columns[it].column_type.sample(dialect, &mut random))
            .collect()
    }

    /// The condition by which a user holds a row of the centre.
    pub fn scope(&self, user: &str) -> String {
        if self.partition.is_empty() {
            return "1 = 1".into();
        }
        format!(
            "({}) IN (SELECT {} FROM assigned_{} WHERE login = '{user}')",
            self.names(&self.partition),
            self.assigned_columns().join(", "),
            self.id
        )
    }
}

impl Reference {
    fn definition(&self, dialect: Dialect, table: &Table, schema: &Schema) -> String {
        let Some(parent) = schema.table(self.parent) else {
            // Taken away while shrinking, together with its references.
            return "CHECK (1 = 1)".into();
        };
        format!(
            "FOREIGN KEY ({}) REFERENCES {} ({}) ON DELETE {} ON UPDATE {}{}",
            table.names(&self.columns),
            parent.sql_name(dialect),
            parent.names(&self.parent_columns),
            self.on_delete.sql(),
            self.on_update.sql(),
            if self.deferred {
                " DEFERRABLE INITIALLY DEFERRED"
            } else {
                ""
            }
        )
    }
}

impl Action {
    fn sql(self) -> &'static str {
        match self {
            Action::NoAction => "NO ACTION",
            Action::Restrict => "RESTRICT",
            Action::Cascade => "CASCADE",
            Action::SetNull => "SET NULL",
        }
    }
}
