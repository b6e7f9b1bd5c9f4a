//! The statements that write uploaded rows, and that look for what these meet.
//!
//! A statement is run for many rows, whose values are its parameters: those of the columns of an
//! image each ([`ImageParameters`]). Where a database has a relation of them the statement joins it, and
//! gives back the numbers of the rows that it is about; where it has none, the statement is run for
//! one row after the other, and its parameters are the values.

use tidewater_protocol::Op;

use super::column::{SqlColumn, SqlTable};
use super::served_table::{ChildKey, TableAdapter, TableRule};
use crate::engine::flight::{RowParameters, RowSource};

/// Which of a row's images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowImage {
    /// As it was.
    Old,
    /// As it is to be.
    New,
}

/// A column of an image.
pub type ImageColumn = (RowImage, usize);

/// How an insert treats rows of which something unique is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenRow {
    /// It fails.
    Fails,
    /// It passes them over.
    PassedOver,
}

/// The values of columns of images of rows, as a statement of a table `t` names them.
pub struct ImageParameters<'t, C> {
    table: SqlTable<'t, C>,
    columns: Vec<ImageColumn>,
    source: RowSource,
}

/// The columns by which rows of a table are told from each other.
#[derive(Clone, Copy, Debug)]
pub struct PreImage<'i> {
    /// Those of which remotes send the values.
    pub sent: &'i [usize],
    /// Those of them that remotes do not write.
    pub read_only: &'i [usize],
}

/// The key of a table, as it was.
pub fn key_columns<C>(table: &SqlTable<'_, C>) -> Vec<ImageColumn> {
    let key = table.key.iter();
    key.map(|&index| (RowImage::Old, index)).collect()
}

impl<'t, C: SqlColumn> ImageParameters<'t, C> {
    /// Those of a statement, whose parameters for them begin with this number.
    pub fn new<R>(
        table: SqlTable<'t, C>,
        columns: Vec<ImageColumn>,
        first: usize,
    ) -> ImageParameters<'t, C>
    where
        R: RowParameters<Kind = C::Kind>,
    {
        let kinds: Vec<C::Kind> = columns
            .iter()
            .map(|&(_, it)| table.columns[it].kind())
            .collect();
        let source = R::source(&kinds, first);
        ImageParameters {
            table,
            columns,
            source,
        }
    }

    /// The columns, in the order of their values.
    pub fn columns(&self) -> &[ImageColumn] {
        &self.columns
    }

    /// The kinds of the values.
    pub fn kinds(&self) -> Vec<C::Kind> {
        let columns = self.columns.iter();
        let kinds = columns.map(|&(_, it)| self.table.columns[it].kind());
        kinds.collect()
    }

    /// The relation of the rows, for `FROM`.
    pub fn relation(&self) -> &str {
        &self.source.relation
    }

    /// Whether there is none: the statement is run for one row after the other.
    pub fn is_one(&self) -> bool {
        self.source.relation.is_empty()
    }

    /// The number of a row.
    pub fn number(&self) -> &str {
        &self.source.number
    }

    /// The value of a column of an image.
    pub fn value(&self, column: ImageColumn) -> &str {
        let place = self.columns.iter().position(|it| *it == column);
        &self.source.columns[place.expect("a statement uses the columns that it is given")]
    }

    /// A column by its name in the table `t`.
    fn of_table(&self, index: usize) -> String {
        format!("t.{}", self.table.columns[index].sql_name())
    }

    /// Whether a row `t` has these values.
    fn has_each(&self, values: impl Iterator<Item = ImageColumn>) -> String {
        self.has(values, "t.")
    }

    fn has(&self, values: impl Iterator<Item = ImageColumn>, prefix: &str) -> String {
        let equal = values.map(|of| {
            let column = &self.table.columns[of.1];
            column.equals(&format!("{prefix}{}", column.sql_name()), self.value(of))
        });
        join(equal, " AND ")
    }

    /// Whether a row `t` has the key of an image.
    fn has_key(&self, image: RowImage) -> String {
        self.has_each(self.table.key.iter().map(|&index| (image, index)))
    }

    /// Whether a row `t` is as its pre-image says.
    fn is_pre_image(&self, of: PreImage<'_>) -> String {
        let mut conditions = self.has_key(RowImage::Old);
        for &index in of.sent {
            let column = &self.table.columns[index];
            // What is computed has changed with the rest, or with the expression; what remotes do
            // not write is nothing that they could lose against.
            if column.is_generated() || of.read_only.contains(&index) {
                continue;
            }
            // The key is equal already.
            if self.table.key.contains(&index) && !column.compares_loosely() {
                continue;
            }
            let value = column.kept(self.value((RowImage::Old, index)));
            let same = column.same(&self.of_table(index), &value);
            conditions.push_str(&format!(" AND {same}"));
        }
        conditions
    }

    /// Of a table, and the rows with it, those that a condition holds for.
    fn from(&self, table: &str, condition: &str) -> String {
        match self.is_one() {
            true => format!("FROM {table} WHERE {condition}"),
            false => format!("FROM {} JOIN {table} ON {condition}", self.relation()),
        }
    }

    /// Reads rows by key: the number, whether the row has the values of some columns of the new
    /// image, and these outputs of the table, joined with what else is read.
    pub fn read_by_key(&self, joined: &str, outputs: &str, compared: &[usize]) -> String {
        let equal = compared.iter().map(|&index| {
            let column = &self.table.columns[index];
            column.same(&self.of_table(index), self.value((RowImage::New, index)))
        });
        let equal = join(equal.chain(["true".to_owned()]), " AND ");
        let from = self.from(joined, &self.has_key(RowImage::Old));
        format!("SELECT {}, {equal}, {outputs} {from}", self.number())
    }

    /// Locks rows by key; `lock` does it.
    pub fn lock_by_key(&self, lock: &str) -> String {
        let from = self.from(&self.named(), &self.has_key(RowImage::Old));
        format!("SELECT 1 {from} {lock}")
    }

    /// Finds, and locks, the rows that a delete would delete; gives back their numbers. `lock` does
    /// it: nobody can begin to refer to one.
    pub fn deletable(&self, only_if: Option<PreImage<'_>>, lock: &str) -> String {
        let from = self.from(&self.named(), &self.is_deleted(only_if));
        format!("SELECT {} {from} {lock}", self.number())
    }

    /// Deletes rows by key, or those that are as their pre-images say; gives back their numbers.
    pub fn delete(&self, only_if: Option<PreImage<'_>>) -> String {
        format!(
            "DELETE FROM {} AS t USING {} WHERE {} RETURNING {}",
            self.table.sql_name,
            self.relation(),
            self.is_deleted(only_if),
            self.number()
        )
    }

    /// The same for a row that is there.
    pub fn delete_one(&self) -> String {
        let key = self.table.key.iter().map(|&it| (RowImage::Old, it));
        let key = self.has(key, "");
        format!("DELETE FROM {} WHERE {key}", self.table.sql_name)
    }

    fn is_deleted(&self, only_if: Option<PreImage<'_>>) -> String {
        match only_if {
            None => self.has_key(RowImage::Old),
            Some(pre_image) => self.is_pre_image(pre_image),
        }
    }

    fn named(&self) -> String {
        format!("{} AS t", self.table.sql_name)
    }

    /// Updates rows: those that are as their pre-images say, or those with the key of an image. Gives
    /// back their numbers, and whether they have the key that they were to have.
    pub fn update(&self, changed: &[usize], found_by: FoundBy<'_>) -> String {
        let key_after = || {
            self.table
                .key
                .iter()
                .map(|&it| (image_after(it, changed), it))
        };
        let condition = match found_by {
            FoundBy::PreImage(pre_image) => self.is_pre_image(pre_image),
            FoundBy::Key(RowImage::Old) => self.has_key(RowImage::Old),
            FoundBy::Key(RowImage::New) => self.has_each(key_after()),
        };
        let is_there = match changed.iter().any(|it| self.table.key.contains(it)) {
            true => self.has_each(key_after()),
            false => "true".into(),
        };
        format!(
            "UPDATE {} AS t SET {} FROM {} WHERE {condition} RETURNING {}, {is_there}",
            self.table.sql_name,
            self.sets(changed),
            self.relation(),
            self.number()
        )
    }

    /// The same for a row that is there. `clause` stands behind `UPDATE`.
    pub fn update_one(&self, changed: &[usize], clause: &str) -> String {
        let key = self.table.key.iter().map(|&it| (RowImage::Old, it));
        let key = self.has(key, "");
        let sets = self.sets(changed);
        format!(
            "UPDATE{clause} {} SET {sets} WHERE {key}",
            self.table.sql_name
        )
    }

    fn sets(&self, changed: &[usize]) -> String {
        let sets = changed.iter().map(|&index| {
            let column = &self.table.columns[index];
            let value = column.input(self.value((RowImage::New, index)));
            format!("{} = {value}", column.sql_name())
        });
        join(sets, ", ")
    }

    /// Inserts rows; gives back the keys that they have. `filled` has the defaults in the place of
    /// NULL, `clause` what stands behind the columns.
    pub fn insert(&self, filled: &[Option<String>], clause: &str, taken: TakenRow) -> String {
        let what_is_taken = match taken {
            TakenRow::PassedOver => " ON CONFLICT DO NOTHING",
            TakenRow::Fails => "",
        };
        self.insert_if(filled, clause, what_is_taken)
    }

    /// The same; `condition` stands behind the rows.
    pub fn insert_if(&self, filled: &[Option<String>], clause: &str, condition: &str) -> String {
        let key = self.table.key.iter();
        let key = key.map(|&index| self.table.columns[index].output("t."));
        format!(
            "INSERT INTO {} AS t ({}){clause} SELECT {} FROM {}{condition} RETURNING {}",
            self.table.sql_name,
            self.inserted_names(),
            self.inserted_values(filled),
            self.relation(),
            join(key, ", ")
        )
    }

    /// Inserts a row. `clause` stands behind `INSERT`.
    pub fn insert_one(&self, filled: &[Option<String>], clause: &str) -> String {
        format!(
            "INSERT{clause} INTO {} ({}) VALUES ({})",
            self.table.sql_name,
            self.inserted_names(),
            self.inserted_values(filled)
        )
    }

    fn inserted_names(&self) -> String {
        let names = self.columns.iter();
        let names = names.map(|&(_, index)| self.table.columns[index].sql_name().to_owned());
        join(names, ", ")
    }

    fn inserted_values(&self, filled: &[Option<String>]) -> String {
        let values = self.columns.iter().map(|&of| {
            let value = self.table.columns[of.1].input(self.value(of));
            match &filled[of.1] {
                // The application's triggers see the default, as if nothing had been said.
                Some(default) => format!("coalesce({value}, ({default}))"),
                None => value,
            }
        });
        join(values, ", ")
    }

    /// Logs inserted rows that are in another partition of a rule than the one that they were
    /// uploaded into, under that: whoever holds it has them otherwise for ever. `None` if they were
    /// not told the partition.
    pub fn log_moved<T>(&self, rule: &TableRule<T>) -> Option<String>
    where
        T: TableAdapter<Column = C>,
    {
        let (mut names, mut values) = (Vec::new(), Vec::new());
        let partition = rule.own.iter().zip(&rule.log_columns.partition);
        let key = self.table.key.iter().zip(&rule.log_columns.key);
        for (&index, name) in partition.chain(key) {
            let of = (RowImage::New, index);
            if names.contains(name) {
                continue;
            }
            if !self.columns.contains(&of) {
                return None;
            }
            names.push(name.clone());
            values.push(self.table.columns[index].input(self.value(of)));
        }
        let stays = rule.own.iter().map(|&index| {
            let value = self.value((RowImage::New, index));
            self.table.columns[index].same(&self.of_table(index), value)
        });
        Some(format!(
            "INSERT INTO {} ({}) SELECT {} {} WHERE NOT ({})",
            rule.log_table(),
            names.join(", "),
            values.join(", "),
            self.from(&self.named(), &self.has_key(RowImage::New)),
            join(stays, " AND ")
        ))
    }

    /// The numbers of those rows with these keys to which others refer by foreign keys that act on
    /// deletes; rows that have one of the keys themselves do not count.
    pub fn parents(&self, children: &[ChildKey]) -> String {
        let names: Vec<String> = (0..self.columns.len()).map(|at| format!("k{at}")).collect();
        let named = self.source.columns.iter().zip(&names);
        let named = named.map(|(value, name)| format!("{value} AS {name}"));
        let is_key = |prefix: &str, of: &str| {
            let same = self.table.key.iter().zip(&names).map(|(&index, name)| {
                let column = &self.table.columns[index];
                column.equals(
                    &format!("{prefix}{}", column.sql_name()),
                    &format!("{of}{name}"),
                )
            });
            join(same, " AND ")
        };
        let exist = children.iter().map(|children| {
            let among = match children.is_same_table {
                true => format!(
                    " AND NOT EXISTS (SELECT 1 FROM gone d WHERE {})",
                    is_key("c.", "d.")
                ),
                false => String::new(),
            };
            format!(
                "EXISTS (SELECT 1 FROM {} c WHERE {}{among})",
                children.table, children.refers
            )
        });
        format!(
            "WITH gone AS MATERIALIZED (SELECT {} AS n, {} FROM {}) \
             SELECT i.n FROM gone i JOIN {} t ON {} WHERE {}",
            self.number(),
            join(named, ", "),
            self.relation(),
            self.table.sql_name,
            is_key("t.", "i."),
            join(exist, " OR ")
        )
    }

    /// For each foreign key of children: the number of a row, and the keys of those that refer to it
    /// by the foreign key; of rows of other tables one is enough.
    pub fn children(&self, children: &[ChildKey]) -> Vec<String> {
        let of_key = children.iter().map(|children| {
            let (keys, limit) = match children.is_same_table {
                true => (format!(", {}", children.key.join(", ")), ""),
                false => (String::new(), " LIMIT 1"),
            };
            let joined = format!(
                "{} t JOIN {} c ON {}",
                self.table.sql_name, children.table, children.refers
            );
            let from = self.from(&joined, &self.has_key(RowImage::Old));
            format!("SELECT {}{keys} {from}{limit}", self.number())
        });
        of_key.collect()
    }

    /// The numbers of rows whose values, one for each of these columns of another table, are in no
    /// row of it.
    pub fn without_parent(&self, parent: &SqlTable<'_, C>, columns: &[usize]) -> String {
        let equal = columns.iter().zip(&self.source.columns);
        let equal = equal.map(|(&index, value)| {
            let column = &parent.columns[index];
            format!("p.{} = {}", column.sql_name(), column.input(value))
        });
        let from = match self.is_one() {
            true => String::new(),
            false => format!(" FROM {}", self.relation()),
        };
        format!(
            "SELECT {}{from} WHERE NOT EXISTS (SELECT 1 FROM {} p WHERE {})",
            self.number(),
            parent.sql_name,
            join(equal, " AND ")
        )
    }

    /// The numbers of those inserted or updated rows `r` that a condition on their columns holds for,
    /// as they are to be.
    pub fn violating(&self, changed: &[usize], condition: &str) -> String {
        let known = known_after(&self.columns, changed).into_iter();
        let values = known.map(|of| {
            let column = &self.table.columns[of.1];
            let value = column.input(self.value(of));
            format!(", {value} AS {}", column.sql_name())
        });
        format!(
            "SELECT tidewater_number FROM (SELECT {} AS tidewater_number{} FROM {}) AS r \
             WHERE {condition}",
            self.number(),
            values.collect::<String>(),
            self.relation()
        )
    }
}

/// How an update finds its row.
#[derive(Clone, Copy, Debug)]
pub enum FoundBy<'i> {
    /// As its pre-image says.
    PreImage(PreImage<'i>),
    /// By the key of an image, as it is now.
    Key(RowImage),
}

/// Which columns of inserted or updated rows are known as they are to be, and from which image.
pub fn known_after(columns: &[ImageColumn], changed: &[usize]) -> Vec<ImageColumn> {
    let mut known = columns.to_vec();
    known.retain(|&(image, index)| image == RowImage::New || !changed.contains(&index));
    known
}

/// In which image an update has the value of a column as it is to be.
fn image_after(index: usize, changed: &[usize]) -> RowImage {
    match changed.contains(&index) {
        true => RowImage::New,
        false => RowImage::Old,
    }
}

fn join(texts: impl Iterator<Item = String>, between: &str) -> String {
    texts.collect::<Vec<_>>().join(between)
}

/// Rows of one operation of one table that are written with others by one statement.
pub struct JointPart<'p, C> {
    /// Their values.
    pub source: ImageParameters<'p, C>,
    /// What is done with them.
    pub op: Op,
    /// The columns that an update sets.
    pub changed: &'p [usize],
    /// The defaults that an insert has in the place of NULL.
    pub filled: &'p [Option<String>],
    /// By what updates and deletes find their rows.
    pub pre_image: PreImage<'p>,
}

/// Writes rows of several operations at once: what one of them frees, the others can take, and
/// foreign keys are checked, and act, when all of it is done. Gives back for each row that was
/// written the number of its part from 1 on, and whether it is where it was to be; the parameters are
/// those of all parts, in order. Deletes are to be first. `clause` stands behind the columns of an
/// insert.
pub fn joint<C: SqlColumn>(parts: &[JointPart<'_, C>], clause: &str) -> String {
    // The database decides which part goes first, unless one needs another's rows.
    let deletes = (1..).zip(parts).filter(|(_, part)| part.op == Op::Delete);
    let done = deletes.map(|(number, _)| format!("(SELECT count(*) FROM p{number}) >= 0"));
    let done: Vec<String> = done.collect();
    let when_done = match done.is_empty() {
        true => String::new(),
        false => format!(" WHERE {}", done.join(" AND ")),
    };
    let (mut written, mut told) = (Vec::new(), Vec::new());
    for (number, part) in (1..).zip(parts) {
        let source = &part.source;
        let key = source.table.key;
        let (columns, statement) = match part.op {
            Op::Insert => {
                let columns = key.iter().map(|index| format!("k{index}"));
                let statement = source.insert_if(part.filled, clause, &when_done);
                (join(columns, ", "), statement)
            }
            Op::Update => {
                let found_by = FoundBy::PreImage(part.pre_image);
                ("n, is_there".into(), source.update(part.changed, found_by))
            }
            _ => ("n".into(), source.delete(Some(part.pre_image))),
        };
        written.push(format!("p{number} ({columns}) AS ({statement})"));
        told.push(match part.op {
            // An insert can only give back what is in the table.
            Op::Insert => {
                let same = key.iter().map(|&index| {
                    let value = source.value((RowImage::New, index));
                    format!("p{number}.k{index} = {value}")
                });
                format!(
                    "SELECT CAST({number} AS bigint), true FROM {} JOIN p{number} ON {}",
                    source.relation(),
                    join(same, " AND ")
                )
            }
            Op::Update => format!("SELECT CAST({number} AS bigint), is_there FROM p{number}"),
            _ => format!("SELECT CAST({number} AS bigint), true FROM p{number}"),
        });
    }
    format!("WITH {} {}", written.join(", "), told.join(" UNION ALL "))
}
