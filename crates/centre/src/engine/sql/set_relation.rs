//! The relation of a set of uploaded rows, as a statement of an operator reads it.

/// A column of the relation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationColumn<'a> {
    /// Its name.
    pub name: &'a str,
    /// The type of a parameter that carries its values, where the database has to be told.
    pub parameter_type: String,
    /// The value that stands in `i.c0`, `i.c1` and so on, by the place of the column, as one of its
    /// type.
    pub value: String,
}

/// The relation as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetRelation {
    /// The relation, in parentheses.
    pub sql: String,
    /// How many parameters it has.
    pub parameters: usize,
}
