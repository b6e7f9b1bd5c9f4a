//! What a table of the server's own is: its columns, its key and its indexes.

/// A table of the server's own.
#[derive(Debug, PartialEq, Eq)]
pub struct SystemTable {
    /// Its neutral name, without a schema or a prefix.
    pub name: &'static str,
    /// For people who read its DDL; empty if there is nothing to say.
    pub comment: &'static str,
    /// In their order.
    pub columns: &'static [SystemColumn],
    /// The columns of the primary key. They are the only ones that have to be unique.
    pub primary_key: &'static [&'static str],
    /// Its other indexes.
    pub indexes: &'static [SystemIndex],
}

/// A column of a [`SystemTable`].
#[derive(Debug, PartialEq, Eq)]
pub struct SystemColumn {
    /// Its name.
    pub name: &'static str,
    /// What is in it.
    pub column_type: SystemType,
    /// Whether it may be NULL.
    pub is_nullable: bool,
    /// The SQL of its default, if it has one.
    pub default: Option<&'static str>,
    /// For people who read its DDL; empty if there is nothing to say.
    pub comment: &'static str,
}

/// An index of a [`SystemTable`] that keeps nothing unique.
#[derive(Debug, PartialEq, Eq)]
pub struct SystemIndex {
    /// Its name.
    pub name: &'static str,
    /// Its columns, in their order.
    pub columns: &'static [&'static str],
}

/// What is in a column, or in a column of the rows that a statement gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SystemType {
    /// 64 bits.
    Integer,
    /// Numbers from 1 on that the database gives and never gives again: the primary key.
    Serial,
    /// Written as 0 or 1.
    Boolean,
    /// Text of a key or an index, compared byte by byte.
    ShortText,
    /// Text, compared byte by byte.
    Text,
    /// Bytes of a key or an index.
    ShortBlob,
    /// Bytes.
    Blob,
}

impl SystemColumn {
    /// A column that is never NULL.
    pub const fn new(name: &'static str, column_type: SystemType) -> SystemColumn {
        SystemColumn {
            name,
            column_type,
            is_nullable: false,
            default: None,
            comment: "",
        }
    }

    /// The same, and it may be NULL.
    pub const fn nullable(self) -> SystemColumn {
        SystemColumn {
            is_nullable: true,
            ..self
        }
    }

    /// The same with a default.
    pub const fn default(self, sql: &'static str) -> SystemColumn {
        SystemColumn {
            default: Some(sql),
            ..self
        }
    }

    /// The same with a comment.
    pub const fn comment(self, comment: &'static str) -> SystemColumn {
        SystemColumn { comment, ..self }
    }
}

impl SystemTable {
    /// The type of a column.
    ///
    /// # Panics
    /// The table has no such column.
    pub fn column_type(&self, name: &str) -> SystemType {
        let column = self.columns.iter().find(|it| it.name == name);
        column
            .expect("statements name columns that their table has")
            .column_type
    }
}

impl SystemType {
    /// The type that a neutral text calls so.
    pub fn from_name(name: &str) -> SystemType {
        match name {
            "INTEGER" => SystemType::Integer,
            "BOOLEAN" => SystemType::Boolean,
            "BLOB" => SystemType::Blob,
            _ => SystemType::Text,
        }
    }
}
