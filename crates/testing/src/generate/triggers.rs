//! Triggers of the user: some write a published table when rows come into another, some keep
//! a copy of a remote's table and full-text search over it.

use super::Dialect;
use super::name;
use super::schema::{Action, Schema, Table, TriggersIn};
use super::types::Type;

/// What stands between the tags of all who wrote a row.
pub const THEN: char = '>';

impl Schema {
    /// The triggers of the centre.
    pub(super) fn centre_triggers(&self, dialect: Dialect) -> String {
        match (self.triggers_in, dialect) {
            (TriggersIn::Remotes, _) => String::new(),
            (_, Dialect::Postgres) => self.each_trigger(postgres_trigger),
            (_, Dialect::Sqlite) => self.each_trigger(sqlite_trigger),
            (_, Dialect::Mysql) => panic!("no schemas are generated for MySQL"),
        }
    }

    /// The triggers of a remote.
    pub fn remote_triggers(&self) -> String {
        match self.triggers_in {
            TriggersIn::Centre => String::new(),
            _ => self.each_trigger(sqlite_trigger),
        }
    }

    fn each_trigger(&self, write: fn(&Table, &Table) -> String) -> String {
        let triggers = self.triggers.iter();
        let tables = triggers.filter_map(|&(from, to)| Some((self.table(from)?, self.table(to)?)));
        tables.map(|(from, to)| write(from, to)).collect()
    }
}

/// The tag of whoever inserts goes behind the tags of some rows, so that all are to be seen.
fn sqlite_trigger(from: &Table, to: &Table) -> String {
    let (theirs, ours) = (tag(to), tag(from));
    format!(
        "CREATE TRIGGER follow_{}_{} AFTER INSERT ON {} BEGIN
             UPDATE {} SET {theirs} = coalesce({theirs}, '') || '{THEN}' || coalesce(NEW.{ours}, '')
             WHERE substr({theirs}, -1) = substr(NEW.{ours}, -1);
         END;\n",
        from.id,
        to.id,
        name(&from.name),
        name(&to.name),
    )
}

fn postgres_trigger(from: &Table, to: &Table) -> String {
    let (theirs, ours) = (tag(to), tag(from));
    let function = format!("follow_{}_{}", from.id, to.id);
    format!(
        "CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $follow$ BEGIN
             UPDATE {} AS the_target
             SET {theirs} = coalesce(the_target.{theirs}, '') || '{THEN}' || coalesce(NEW.{ours}, '')
             WHERE right(the_target.{theirs}, 1) = right(NEW.{ours}, 1);
             RETURN NULL;
         END $follow$;
         CREATE TRIGGER {function} AFTER INSERT ON {}
             FOR EACH ROW EXECUTE FUNCTION {function}();\n",
        to.sql_name(Dialect::Postgres),
        from.sql_name(Dialect::Postgres),
    )
}

fn tag(table: &Table) -> String {
    name(&table.columns[table.tag].name)
}

impl Table {
    /// What an application makes of a remote's table for itself: a copy of keys and tags that
    /// triggers keep; where the key is a number, also full-text search as SQLite's manual
    /// writes it for an index without a text of its own.
    pub fn shadow(&self) -> String {
        let table = name(&self.name);
        let columns: Vec<usize> = self.key.iter().copied().chain([self.tag]).collect();
        let of = |row: &str, columns: &[usize]| {
            let columns = columns.iter();
            let columns = columns.map(|&it| format!("{row}.{}", name(&self.columns[it].name)));
            columns.collect::<Vec<_>>()
        };
        let same = self.key.iter().zip(of("OLD", &self.key));
        let same = same.map(|(&it, old)| format!("{} IS {old}", name(&self.columns[it].name)));
        let shadow = format!("shadow_{}", self.id);
        let mut came = format!(
            "INSERT INTO {shadow} VALUES ({});",
            of("NEW", &columns).join(", ")
        );
        let mut gone = format!(
            "DELETE FROM {shadow} WHERE {};",
            same.collect::<Vec<_>>().join(" AND ")
        );
        let mut sql = format!(
            "CREATE TABLE IF NOT EXISTS {shadow} AS SELECT {} FROM {table};\n",
            self.names(&columns)
        );
        if self.is_searched() {
            let search = format!("search_{}", self.id);
            let (id, tag) = (self.names(&self.key), tag(self));
            sql += &format!(
                "CREATE VIEW IF NOT EXISTS tags_{0} AS SELECT {id} AS id, {tag} AS tag FROM {table};
                 CREATE VIRTUAL TABLE IF NOT EXISTS {search}
                     USING fts5 (tag, content = 'tags_{0}', content_rowid = 'id');
                 INSERT INTO {search} ({search}) VALUES ('rebuild');\n",
                self.id
            );
            came += &format!("INSERT INTO {search} (rowid, tag) VALUES (NEW.{id}, NEW.{tag});");
            gone += &format!(
                "INSERT INTO {search} ({search}, rowid, tag) VALUES ('delete', OLD.{id}, OLD.{tag});"
            );
        }
        for (event, body) in [
            ("INSERT", came.clone()),
            ("UPDATE", gone.clone() + &came),
            ("DELETE", gone),
        ] {
            sql += &format!(
                "CREATE TRIGGER shadow_{}_{event} AFTER {event} ON {table} BEGIN {body} END;\n",
                self.id
            );
        }
        sql
    }

    /// Whether a copy that triggers keep is equal to the table. When the key of a row changes that
    /// refers to itself, SQLite fires triggers for what the reference does before those for what
    /// the statement did: they end with another row than there is.
    pub fn can_be_shadowed(&self) -> bool {
        let mut itself = self.references.iter().filter(|it| it.parent == self.id);
        itself.all(|it| it.on_update == Action::NoAction)
    }

    /// Whether there is full-text search over it.
    fn is_searched(&self) -> bool {
        let [key] = self.key[..] else {
            return false;
        };
        matches!(
            self.columns[key].column_type,
            Type::SmallInt | Type::Integer | Type::BigInt
        )
    }

    /// A query for what the copy has and the table has not, and the other way round.
    pub fn shadow_differences(&self) -> String {
        let columns: Vec<usize> = self.key.iter().copied().chain([self.tag]).collect();
        let ours = format!(
            "SELECT count(*), {0} FROM {1} GROUP BY {0}",
            self.names(&columns),
            name(&self.name)
        );
        let copy = format!(
            "SELECT count(*), {0} FROM shadow_{1} GROUP BY {0}",
            self.names(&columns),
            self.id
        );
        format!(
            "SELECT * FROM (SELECT * FROM ({ours}) EXCEPT SELECT * FROM ({copy}))
             UNION ALL SELECT * FROM (SELECT * FROM ({copy}) EXCEPT SELECT * FROM ({ours}))"
        )
    }

    /// Fails if full-text search finds anything else than the table has.
    pub fn check_search(&self) -> Option<String> {
        let sql = "INSERT INTO search_{} (search_{}, rank) VALUES ('integrity-check', 1)";
        let sql = || sql.replace("{}", &self.id.to_string());
        self.is_searched().then(sql)
    }
}
