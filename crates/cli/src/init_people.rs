//! Who signs in, going by the tables of a database: for `tidewater init`.
//!
//! Owns how the table of people is found, how a sign-in name leads to a row of it, and which rows
//! of the other tables belong to whom. What the configuration says of it is `init_document`'s.

use std::collections::HashMap;

use tidewater_centre::{ListedColumn, ListedReference, ListedTable};

/// What tables of those who sign in are called, the likeliest first.
const PEOPLE: [&str; 20] = [
    "employee",
    "staff",
    "salesperson",
    "sales_person",
    "salesrep",
    "sales_rep",
    "customer_rep",
    "representative",
    "rep",
    "technician",
    "engineer",
    "driver",
    "courier",
    "inspector",
    "nurse",
    "agent",
    "worker",
    "user",
    "person",
    "people",
];

/// What columns with sign-in names are called.
const LOGINS: [&str; 6] = [
    "login",
    "loginname",
    "username",
    "userlogin",
    "signin",
    "accountname",
];

/// Parts of the names of columns that say whose a row is, where no foreign key does.
const OWNERS: [&str; 6] = ["rep", "owner", "user", "employee", "tenant", "login"];

/// The table of those who sign in.
#[derive(Debug)]
pub(crate) struct People<'a> {
    pub(crate) table: &'a ListedTable,
    /// The column of its key.
    pub(crate) key: &'a ListedColumn,
    pub(crate) login: Login<'a>,
}

/// How a sign-in name leads to a person.
#[derive(Debug)]
pub(crate) enum Login<'a> {
    /// The table of people has this column.
    Column(&'a str),
    /// Another table has names and keys.
    Mapping {
        table: &'a ListedTable,
        login: &'a str,
        key: &'a str,
    },
    /// Nothing does: this table has to be made, as a name in SQL.
    Missing(String),
}

/// Which rows of a table a remote holds.
#[derive(Debug, PartialEq)]
pub(crate) enum PathToPeople<'a> {
    /// The row of the person who signs in.
    Person,
    /// Those that name the person in the first of these columns.
    Columns(Vec<&'a str>),
    /// Those that go with a row that the remote holds.
    Follows(&'a ListedReference),
    /// All.
    Everyone,
    /// The operator has to say.
    Undecided,
}

impl<'a> People<'a> {
    /// Finds the table, or takes the one that is named.
    pub(crate) fn find(live: &'a [ListedTable], named: Option<&str>) -> Option<People<'a>> {
        let rank = |table: &ListedTable| {
            let name = singular(&bare(&table.name).to_lowercase());
            let is_it = |word: &&str| {
                let word = singular(word);
                name == word || name.ends_with(&format!("_{word}"))
            };
            PEOPLE.iter().position(is_it)
        };
        let candidates = live.iter().filter_map(|table| {
            let key = person_key(table)?;
            let rank = match named {
                Some(named) => (table.name == named).then_some(0)?,
                None => rank(table).filter(|_| is_referred_to(table, key, live))?,
            };
            Some((rank, table, key))
        });
        let (_, table, key) = candidates.min_by_key(|it| it.0)?;
        let login = Login::find(table, key, live);
        Some(People { table, key, login })
    }

    /// The query for the keys of the person who signs in.
    pub(crate) fn values(&self) -> String {
        let identifier = tidewater_centre::identifier;
        let (key, table, login) = match &self.login {
            Login::Column(login) => (&*self.key.name, self.table.sql_name.clone(), *login),
            Login::Mapping { table, login, key } => (*key, table.sql_name.clone(), *login),
            Login::Missing(table) => (&*self.key.name, table.clone(), "login"),
        };
        format!(
            "SELECT {} FROM {table} WHERE {} = {{s.username}}",
            identifier(key),
            identifier(login)
        )
    }

    /// Whether a table only says who signs in as whom.
    pub(crate) fn is_mapping(&self, table: &ListedTable) -> bool {
        matches!(self.login, Login::Mapping { table: mapping, .. } if mapping.name == table.name)
    }

    /// Which rows of each table a remote holds, by the table's name.
    pub(crate) fn ways(&self, tables: &[&'a ListedTable]) -> HashMap<&'a str, PathToPeople<'a>> {
        let mut ways = HashMap::new();
        for &table in tables {
            if table.name == self.table.name {
                ways.insert(&*table.name, PathToPeople::Person);
                continue;
            }
            let columns = self.columns_of(table);
            if !columns.is_empty() {
                ways.insert(&*table.name, PathToPeople::Columns(columns));
            }
        }
        // Whom a part names, its author say, may not hold what it is a part of.
        let parts = tables.iter().filter_map(|table| {
            let Some(PathToPeople::Columns(own)) = ways.get(&*table.name) else {
                return None;
            };
            let parent = *parents(table, tables).first()?;
            let is_whole = is_part_of(table, parent) && parent.columns != own[..1];
            let is_needed = parent.columns.iter().all(|column| {
                let mut columns = table.columns.iter();
                columns.any(|it| it.name == *column && !it.nullable)
            });
            let way = ways.get(&*parent.parent);
            let is_owned = matches!(way, Some(PathToPeople::Columns(_)));
            (is_whole && is_needed && is_owned)
                .then(|| (&*table.name, PathToPeople::Follows(parent)))
        });
        let parts: Vec<_> = parts.collect();
        // A part of a part follows it, whatever else that follows.
        ways.extend(parts);
        self.follow(tables, &mut ways);
        for &table in tables {
            let is_connected = || {
                let refers = |one: &ListedTable, other: &ListedTable| {
                    one.name != other.name
                        && one.references.iter().any(|it| it.parent == other.name)
                };
                tables
                    .iter()
                    .any(|it| refers(it, table) || refers(table, it))
            };
            ways.entry(&table.name).or_insert_with(|| {
                match !names_somebody(table) && is_connected() {
                    true => PathToPeople::Everyone,
                    false => PathToPeople::Undecided,
                }
            });
        }
        ways
    }

    /// Has tables follow those that belong to somebody, the nearest ones first: so none follows
    /// itself in a circle.
    fn follow(&self, tables: &[&'a ListedTable], ways: &mut HashMap<&'a str, PathToPeople<'a>>) {
        loop {
            let mut found = Vec::new();
            for &table in tables.iter().filter(|it| !ways.contains_key(&*it.name)) {
                let is_owned = |it: &&&ListedReference| {
                    let way = ways.get(&*it.parent);
                    matches!(
                        way,
                        Some(PathToPeople::Columns(_) | PathToPeople::Follows(_))
                    )
                };
                let parents = parents(table, tables);
                if let Some(&parent) = parents.iter().find(is_owned) {
                    found.push((&*table.name, PathToPeople::Follows(parent)));
                }
            }
            if found.is_empty() {
                return;
            }
            ways.extend(found);
        }
    }

    /// The columns of a table that name a person: foreign keys, the likeliest first, or a column
    /// that is called like the key.
    pub(crate) fn columns_of<'t>(&self, table: &'t ListedTable) -> Vec<&'t str> {
        let all = [self.table];
        let to_key = parents(table, &all)
            .into_iter()
            .filter(|it| it.columns.len() == 1 && it.parent_columns == [self.key.name.as_str()]);
        let mut found: Vec<&str> = to_key.map(|it| &*it.columns[0]).collect();
        let person = singular(&bare(&self.table.name).to_lowercase());
        let is_named = |column: &&ListedColumn| {
            let name = column.name.to_lowercase();
            let is_key = name != "id" && column.name == self.key.name;
            let is_reference = name == format!("{person}_id") || name == format!("{person}id");
            let is_taken = table
                .references
                .iter()
                .any(|it| it.columns.contains(&column.name));
            (is_key || is_reference) && column.is_integer == self.key.is_integer && !is_taken
        };
        if found.is_empty() {
            found.extend(table.columns.iter().find(is_named).map(|it| &*it.name));
        }
        found
    }
}

impl<'a> Login<'a> {
    fn find(people: &ListedTable, key: &ListedColumn, live: &'a [ListedTable]) -> Login<'a> {
        let column = |table: &'a ListedTable| {
            let mut columns = table.columns.iter();
            columns.find(|it| it.is_text && is_login(&it.name))
        };
        let own = live.iter().find(|it| it.name == people.name);
        if let Some(own) = own.and_then(column) {
            return Login::Column(&own.name);
        }
        let others = live.iter().filter(|it| it.name != people.name);
        let mut mapping = others.filter_map(|table| {
            let login = column(table)?;
            let mut references = table.references.iter();
            let reference = references
                .find(|it| it.parent == people.name && it.parent_columns == [key.name.as_str()])?;
            Some((table, &*login.name, &*reference.columns[0]))
        });
        if let Some((table, login, key)) = mapping.next() {
            return Login::Mapping { table, login, key };
        }
        let bare = bare(&people.name);
        let name = tidewater_centre::identifier(&format!("{bare}_login"));
        Login::Missing(match people.sql_name.rsplit_once('.') {
            Some((schema, _)) if people.name.contains('.') => format!("{schema}.{name}"),
            _ => name,
        })
    }
}

/// The one column of the key of a table that could be one of people.
fn person_key(table: &ListedTable) -> Option<&ListedColumn> {
    let [key] = &table.primary_key[..] else {
        return None;
    };
    table.columns.iter().find(|it| it.name == *key)
}

fn is_referred_to(table: &ListedTable, key: &ListedColumn, live: &[ListedTable]) -> bool {
    let mut others = live.iter().filter(|it| it.name != table.name);
    others.any(|other| {
        let refers = other.references.iter().any(|it| it.parent == table.name);
        let names =
            key.name.to_lowercase() != "id" && other.columns.iter().any(|it| it.name == key.name);
        refers || names
    })
}

fn is_login(column: &str) -> bool {
    let name = column.to_lowercase().replace('_', "");
    LOGINS.contains(&&*name)
}

/// Whether a column of its own seems to say whose a row is.
fn names_somebody(table: &ListedTable) -> bool {
    let is_key = |name: &String| table.primary_key.len() == 1 && table.primary_key[0] == *name;
    let mut columns = table.columns.iter().filter(|it| !is_key(&it.name));
    columns.any(|column| {
        let name = column.name.to_lowercase();
        name.split('_').any(|part| OWNERS.contains(&part))
    })
}

/// A table's name without its schema.
fn bare(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// The name of a table without its schema.
pub(crate) fn bare_name(table: &ListedTable) -> &str {
    let is_own = |it: &(usize, &str)| {
        let schema = tidewater_centre::identifier(&table.name[..it.0]);
        format!(
            "{schema}.{}",
            tidewater_centre::identifier(&table.name[it.0 + 1..])
        ) == table.sql_name
    };
    let mut points = table.name.match_indices('.');
    let point = points.find(is_own);
    point.map_or(&*table.name, |it| &table.name[it.0 + 1..])
}

/// The name of one of them.
fn singular(name: &str) -> String {
    let stem = name.strip_suffix('s').filter(|it| !it.ends_with('s'));
    stem.unwrap_or(name).to_owned()
}

/// Whether a table is called like a part of the one that it refers to.
fn is_part_of(table: &ListedTable, reference: &ListedReference) -> bool {
    let name = bare(&table.name).to_lowercase();
    name.starts_with(&singular(&bare(&reference.parent).to_lowercase()))
}

/// The foreign keys that a table may follow, the likeliest first: the one whose rows it is a part
/// of.
pub(crate) fn parents<'a>(
    table: &'a ListedTable,
    all: &[&ListedTable],
) -> Vec<&'a ListedReference> {
    let is_published = |it: &&ListedReference| {
        it.parent != table.name && all.iter().any(|other| other.name == it.parent)
    };
    let mut parents: Vec<&ListedReference> = table.references.iter().filter(is_published).collect();
    let is_required = |column: &String| {
        let mut columns = table.columns.iter();
        columns.any(|it| it.name == *column && !it.nullable)
    };
    parents.sort_by_key(|it| {
        let begins = is_part_of(table, it);
        let in_key = it
            .columns
            .iter()
            .all(|column| table.primary_key.contains(column));
        let required = it.columns.iter().all(is_required);
        (!begins, !in_key, !it.cascades, !required)
    });
    parents
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table whose key is its first column, with columns as `name type` and foreign keys as
    /// `column parent column`.
    fn table(name: &str, columns: &[&str], references: &[&str]) -> ListedTable {
        let columns: Vec<ListedColumn> = columns
            .iter()
            .map(|text| {
                let (name, type_name) = text.split_once(' ').unwrap();
                ListedColumn {
                    name: name.into(),
                    type_name: type_name.into(),
                    is_integer: type_name == "integer",
                    is_text: type_name == "text",
                    ..ListedColumn::default()
                }
            })
            .collect();
        let references = references.iter().map(|text| {
            let words: Vec<&str> = text.split(' ').collect();
            ListedReference {
                columns: vec![words[0].into()],
                parent: words[1].into(),
                parent_columns: vec![words[2].into()],
                ..ListedReference::default()
            }
        });
        ListedTable {
            name: name.into(),
            sql_name: name.into(),
            primary_key: vec![columns[0].name.clone()],
            references: references.collect(),
            columns,
            ..ListedTable::default()
        }
    }

    fn northwind() -> Vec<ListedTable> {
        vec![
            table("customers", &["customer_id text", "region text"], &[]),
            table(
                "employees",
                &["employee_id integer", "boss integer"],
                &["boss employees employee_id"],
            ),
            table(
                "orders",
                &[
                    "order_id integer",
                    "customer_id text",
                    "employee_id integer",
                ],
                &[
                    "customer_id customers customer_id",
                    "employee_id employees employee_id",
                ],
            ),
            table(
                "order_details",
                &["order_id integer", "product_id integer"],
                &["product_id products product_id", "order_id orders order_id"],
            ),
            table("products", &["product_id integer"], &[]),
            table("us_states", &["state_id integer"], &[]),
            table(
                "quote",
                &["quote_id integer", "owner text"],
                &["quote_id products product_id"],
            ),
        ]
    }

    #[test]
    fn what_leads_to_people_belongs_to_them_and_the_rest_is_everyones() {
        let live = northwind();
        let people = People::find(&live, None).unwrap();
        assert_eq!(people.table.name, "employees");
        assert_eq!(
            people.values(),
            "SELECT employee_id FROM employees_login WHERE login = {s.username}"
        );
        let tables: Vec<&ListedTable> = live.iter().collect();
        let ways = people.ways(&tables);
        assert_eq!(ways["employees"], PathToPeople::Person);
        assert_eq!(ways["orders"], PathToPeople::Columns(vec!["employee_id"]));
        assert_eq!(
            ways["order_details"],
            PathToPeople::Follows(&live[3].references[1])
        );
        for (name, way) in [
            ("customers", PathToPeople::Everyone),
            ("products", PathToPeople::Everyone),
            ("us_states", PathToPeople::Undecided),
            ("quote", PathToPeople::Undecided),
        ] {
            assert_eq!(ways[name], way, "{name}");
        }
    }

    #[test]
    fn tables_that_refer_to_each_other_do_no_harm() {
        let live = [
            table(
                "staff",
                &["staff_id integer", "username text", "store_id integer"],
                &["store_id store store_id"],
            ),
            table(
                "store",
                &["store_id integer", "manager_id integer"],
                &["manager_id staff staff_id"],
            ),
            table(
                "customer",
                &["customer_id integer", "store_id integer"],
                &["store_id store store_id"],
            ),
            table(
                "hen",
                &["hen_id integer", "egg_id integer"],
                &["egg_id egg egg_id"],
            ),
            table(
                "egg",
                &["egg_id integer", "hen_id integer"],
                &["hen_id hen hen_id"],
            ),
        ];
        let people = People::find(&live, None).unwrap();
        assert_eq!(
            people.values(),
            "SELECT staff_id FROM staff WHERE username = {s.username}"
        );
        let tables: Vec<&ListedTable> = live.iter().collect();
        let ways = people.ways(&tables);
        assert_eq!(ways["store"], PathToPeople::Columns(vec!["manager_id"]));
        assert_eq!(
            ways["customer"],
            PathToPeople::Follows(&live[2].references[0])
        );
        assert_eq!(ways["hen"], PathToPeople::Everyone);
    }

    #[test]
    fn a_table_of_names_and_keys_is_found_and_one_may_be_named() {
        let mut live = northwind();
        live.push(table(
            "account",
            &["user_name text", "employee_id integer"],
            &["employee_id employees employee_id"],
        ));
        let people = People::find(&live, None).unwrap();
        assert!(people.is_mapping(&live[7]));
        assert_eq!(
            people.values(),
            "SELECT employee_id FROM account WHERE user_name = {s.username}"
        );
        let named = People::find(&live, Some("customers")).unwrap();
        assert_eq!(named.table.name, "customers");
        assert!(People::find(&live[3..5], None).is_none());
    }

    #[test]
    fn a_column_may_name_a_person_without_a_foreign_key() {
        let live = [
            table("hr.employee", &["emp_no integer"], &[]),
            table("visit", &["visit_id integer", "emp_no integer"], &[]),
            table("note", &["note_id integer", "employee_id integer"], &[]),
        ];
        let people = People::find(&live, None).unwrap();
        let tables: Vec<&ListedTable> = live.iter().collect();
        let ways = people.ways(&tables);
        assert_eq!(ways["visit"], PathToPeople::Columns(vec!["emp_no"]));
        assert_eq!(ways["note"], PathToPeople::Columns(vec!["employee_id"]));
    }
}
