//! The world that is broken: tables, what is published of them, who works where.

/// The tables of the centre. Triggers write down every row that anybody writes, and keep the
/// stock, which is right only if each movement has arrived exactly once.
pub(crate) const SCHEMA: &str = "
    CREATE TABLE member (login TEXT, region INT, PRIMARY KEY (login, region));
    CREATE TABLE visit (
        visit_id BIGINT PRIMARY KEY,
        region INT NOT NULL,
        own BOOLEAN NOT NULL,
        tag TEXT NOT NULL,
        amount INT NOT NULL CHECK (abs(amount) = amount),
        payload TEXT NOT NULL);
    CREATE TABLE line (
        line_id BIGINT PRIMARY KEY,
        visit_id BIGINT NOT NULL REFERENCES visit ON DELETE CASCADE,
        region INT NOT NULL,
        tag TEXT NOT NULL,
        quantity INT NOT NULL);
    CREATE INDEX ON line (visit_id);
    CREATE TABLE product (product_id BIGINT PRIMARY KEY, tag TEXT NOT NULL, name TEXT NOT NULL);
    CREATE TABLE movement (
        movement_id BIGINT PRIMARY KEY,
        product_id BIGINT NOT NULL REFERENCES product,
        tag TEXT NOT NULL,
        quantity INT NOT NULL);
    CREATE TABLE stock (product_id BIGINT PRIMARY KEY REFERENCES product, quantity BIGINT NOT NULL);
    CREATE TABLE audit (
        id BIGSERIAL PRIMARY KEY,
        name TEXT NOT NULL,
        key BIGINT NOT NULL,
        operation TEXT NOT NULL,
        tag TEXT NOT NULL);
    CREATE TABLE journal (tag TEXT PRIMARY KEY);
    CREATE TABLE noted (tag TEXT NOT NULL, seen BOOLEAN NOT NULL);
    CREATE TABLE barrier (passed BIGINT NOT NULL);

    CREATE FUNCTION written() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        image JSONB := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;
    BEGIN
        INSERT INTO audit (name, key, operation, tag) VALUES
            (TG_TABLE_NAME, (image ->> (TG_TABLE_NAME || '_id'))::BIGINT, lower(TG_OP),
             image ->> 'tag');
        RETURN NULL;
    END $$;
    CREATE TRIGGER written AFTER INSERT OR UPDATE OR DELETE ON visit
        FOR EACH ROW EXECUTE FUNCTION written();
    CREATE TRIGGER written AFTER INSERT OR UPDATE OR DELETE ON line
        FOR EACH ROW EXECUTE FUNCTION written();
    CREATE TRIGGER written AFTER INSERT OR UPDATE OR DELETE ON product
        FOR EACH ROW EXECUTE FUNCTION written();
    CREATE TRIGGER written AFTER INSERT OR UPDATE OR DELETE ON movement
        FOR EACH ROW EXECUTE FUNCTION written();

    CREATE FUNCTION moved() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        UPDATE stock SET quantity = quantity + NEW.quantity WHERE product_id = NEW.product_id;
        RETURN NULL;
    END $$;
    CREATE TRIGGER moved AFTER INSERT ON movement FOR EACH ROW EXECUTE FUNCTION moved();

    INSERT INTO product SELECT i, 'first', 'product ' || i FROM generate_series(1, 20) AS i;
    INSERT INTO stock SELECT i, 0 FROM generate_series(1, 20) AS i;
    INSERT INTO member VALUES
        ('nancy', 1), ('nancy', 2), ('steve', 2), ('steve', 3), ('maria', 3), ('maria', 4);
";

pub(crate) const PRODUCTS: u64 = 20;

/// What is published. Visits and lines by their region, the rest to everyone.
pub(crate) const PUBLICATION: &str = r#"
[[publication]]
name = "field"

[[publication.table]]
name = "product"
partition = "everyone"

[[publication.table]]
name = "stock"
partition = "everyone"
direction = "download"

[[publication.table]]
name = "movement"
partition = "everyone"

[[publication.table]]
name = "visit"
partition = { columns = ["region"], values = "SELECT region FROM member WHERE login = {s.username}" }

[[publication.table]]
name = "line"
partition = { columns = ["region"], values = "SELECT region FROM member WHERE login = {s.username}" }
"#;

/// What devices call and publish: a statement, which sees whether what goes before it is there; a
/// procedure of programs that die; events that everybody hears.
pub(crate) const LIVE: &str = r#"
[[procedure]]
name = "note"
sql = """
INSERT INTO noted (tag, seen)
SELECT {a.tag}, EXISTS (SELECT 1 FROM movement WHERE tag = {a.tag})"""
arguments = { tag = "text" }
returns = "nothing"
allow = "everyone"

[[procedure]]
name = "stamp"
provided_by = "office"
arguments = { tag = "text" }
allow = "everyone"
idempotent = true

[[space]]
name = "news"
publish = "everyone"
subscribe = "everyone"
durable = "1d"
"#;

/// The user of the programs that provide.
pub(crate) const PROVIDER: &str = "office";

/// Users, and the regions that they always have.
pub(crate) const USERS: [(&str, [i64; 2]); 3] =
    [("nancy", [1, 2]), ("steve", [2, 3]), ("maria", [3, 4])];

/// The region that users gain and lose.
pub(crate) const WANDERING_REGION: i64 = 5;
/// A region that nobody has.
pub(crate) const FOREIGN_REGION: i64 = 9;

pub(crate) fn password(user: &str) -> String {
    format!("password of {user}")
}

/// A synced table, as the judges see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum JudgedTable {
    Visit,
    Line,
    Product,
    Movement,
    Stock,
}

impl JudgedTable {
    pub(crate) const ALL: [JudgedTable; 5] = [
        JudgedTable::Visit,
        JudgedTable::Line,
        JudgedTable::Product,
        JudgedTable::Movement,
        JudgedTable::Stock,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            JudgedTable::Visit => "visit",
            JudgedTable::Line => "line",
            JudgedTable::Product => "product",
            JudgedTable::Movement => "movement",
            JudgedTable::Stock => "stock",
        }
    }

    pub(crate) fn named(name: &str) -> Option<JudgedTable> {
        JudgedTable::ALL.into_iter().find(|it| it.name() == name)
    }

    /// Key and values of all rows, as one text each and the same on both sides; the region of
    /// a row that has none is 0. `flag` turns the column `own` into 0 or 1.
    pub(crate) fn select(self, flag: &str) -> String {
        match self {
            JudgedTable::Visit => format!(
                "SELECT visit_id, region, {flag} || '|' || tag || '|' || amount || '|' || payload \
                 FROM visit"
            ),
            JudgedTable::Line => {
                "SELECT line_id, region, visit_id || '|' || tag || '|' || quantity \
                            FROM line"
                    .into()
            }
            JudgedTable::Product => "SELECT product_id, 0, tag || '|' || name FROM product".into(),
            JudgedTable::Movement => {
                "SELECT movement_id, 0, product_id || '|' || tag || '|' || quantity \
                                FROM movement"
                    .into()
            }
            JudgedTable::Stock => "SELECT product_id, 0, quantity || '' FROM stock".into(),
        }
    }
}
