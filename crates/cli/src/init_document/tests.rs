//! What the document says of tables.

use tidewater_centre::ListedColumn;

use super::*;

fn table(name: &str, references: &[&str]) -> ListedTable {
    let column = |name: &str, nullable| ListedColumn {
        name: name.into(),
        type_name: "integer".into(),
        nullable,
        is_integer: true,
        ..ListedColumn::default()
    };
    ListedTable {
        name: name.into(),
        sql_name: name.into(),
        columns: vec![column("id", false), column("owner \"id\"", true)],
        primary_key: vec!["id".into()],
        references: references.iter().map(|it| reference(it)).collect(),
        ..ListedTable::default()
    }
}

fn reference(parent: &str) -> ListedReference {
    ListedReference {
        columns: vec![format!("{parent}_id")],
        parent: parent.into(),
        ..ListedReference::default()
    }
}

fn document(tables: &[ListedTable]) -> DraftDocument {
    write(&Draft {
        consolidated: "postgres://me:pass\"word@127.0.0.1/shop",
        publication: "o'brien's \"sales\"",
        tables,
        people: People::find(tables, None).as_ref(),
    })
}

fn names(text: &str) -> Vec<String> {
    let parsed: toml::Table = text.parse().unwrap();
    let tables = parsed["publication"][0].get("table");
    tables
        .and_then(toml::Value::as_array)
        .into_iter()
        .flatten()
        .map(|it| it["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn tables_stand_parents_first_and_cycles_do_no_harm() {
    let tables = [
        table("invoice", &["customer"]),
        table("customer", &["employee"]),
        table("employee", &["employee"]),
        table("hen", &["egg"]),
        table("egg", &["hen"]),
    ];
    let drafted = document(&tables);
    assert_eq!(
        names(&drafted.text),
        ["employee", "customer", "invoice", "egg", "hen"]
    );
    assert_eq!(drafted.published, 5);
}

#[test]
fn every_line_that_may_be_uncommented_is_valid_toml() {
    let drafted = document(&[table("a \"b\"\nc", &[])]);
    let mut everyone = String::new();
    let mut columns = String::new();
    let mut inside = false;
    for line in drafted.text.lines() {
        let bare = line.strip_prefix("# ").unwrap_or(line);
        inside |= bare == "columns = [";
        let optional = inside || bare.starts_with("direction") || bare.starts_with("tracking");
        let is_everyone = bare.starts_with("partition = \"everyone\"");
        let is_columns = bare.starts_with("partition = { columns");
        let take = |wanted| if optional || wanted { bare } else { line };
        writeln!(everyone, "{}", take(is_everyone)).unwrap();
        writeln!(columns, "{}", take(is_columns)).unwrap();
        inside &= bare != "]";
    }
    for text in [everyone, columns] {
        let parsed: toml::Table = text.parse().unwrap();
        let table = &parsed["publication"][0]["table"][0];
        assert!(table.get("partition").is_some());
        assert_eq!(table["columns"][1].as_str(), Some("owner \"id\""));
        assert_eq!(table["name"].as_str(), Some("a \"b\"\nc"));
    }
}

/// A table with these columns, as `name type`, and these foreign keys, as `column parent`.
fn with(name: &str, columns: &[&str], references: &[&str]) -> ListedTable {
    let words = |text: &str| {
        let (one, other) = text.split_once(' ').unwrap();
        (one.to_owned(), other.to_owned())
    };
    let columns = columns.iter().map(|text| {
        let (name, type_name) = words(text);
        ListedColumn {
            is_integer: type_name.ends_with("int") || type_name == "integer",
            is_text: type_name == "text",
            name,
            type_name,
            ..ListedColumn::default()
        }
    });
    let references = references.iter().map(|text| {
        let (column, parent) = words(text);
        ListedReference {
            parent_columns: vec!["id".into()],
            columns: vec![column],
            parent,
            ..ListedReference::default()
        }
    });
    ListedTable {
        columns: columns.collect(),
        references: references.collect(),
        ..table(name, &[])
    }
}

/// The lines about the partition of the last table.
fn partition_lines(tables: &[ListedTable]) -> Vec<String> {
    let text = document(tables).text;
    let last = text.rsplit("[[publication.table]]").next().unwrap();
    let lines = last.lines().filter(|line| line.contains("partition ="));
    lines.map(str::to_owned).collect()
}

#[test]
fn a_table_follows_the_one_that_it_is_a_part_of() {
    let details = with(
        "order_details",
        &[
            "order_id smallint",
            "product_id smallint",
            "unit_price real",
        ],
        &["product_id products", "order_id orders"],
    );
    let tables = [table("products", &[]), table("orders", &[]), details];
    assert_eq!(
        partition_lines(&tables),
        [
            "partition = { follows = \"orders\" }",
            "# or: partition = \"everyone\"",
            "# or: partition = { follows = \"products\" }",
        ]
    );
    let match_ = with(
        "match",
        &["home_id integer", "guest_id integer"],
        &["home_id club", "guest_id club"],
    );
    assert_eq!(
        partition_lines(&[table("club", &[]), match_])[0],
        "partition = { follows = \"club\", by = [\"home_id\"] }"
    );
}

#[test]
fn tables_that_refer_to_each_other_wait_for_a_decision() {
    let table =
        |name: &str, parent: &str| with(name, &["boss integer"], &[&format!("boss {parent}")]);
    let tables = [
        table("shop", "clerk"),
        table("clerk", "shop"),
        table("till", "shop"),
    ];
    let drafted = document(&tables);
    assert_eq!(
        (drafted.published, drafted.undecided),
        (3, 2),
        "{}",
        drafted.text
    );
    assert!(
        !drafted
            .text
            .contains("\npartition = { follows = \"clerk\" }")
    );
}

#[test]
fn what_names_somebody_is_suggested_and_never_a_date_a_price_or_an_array() {
    let orders = with(
        "orders",
        &["order_id integer", "shop_owner smallint"],
        &["shop_owner shops"],
    );
    let lines = partition_lines(&[table("shops", &[]), orders]);
    assert!(lines[1].contains("columns = [\"shop_owner\"]"), "{lines:?}");
    assert_eq!(lines[2], "# or: partition = { follows = \"shops\" }");
    let columns = [
        "id integer",
        "stored_on date",
        "store_price numeric(5,2)",
        "owners text[]",
        "report text",
    ];
    let lines = partition_lines(&[with("film", &columns, &[])]);
    assert!(lines[1].contains("columns = [\"...\"]"), "{lines:?}");
}

#[test]
fn rows_of_people_lead_to_all_that_is_theirs() {
    let tables = [
        table("employees", &[]),
        table("region", &[]),
        with(
            "orders",
            &["id integer", "employee_id integer", "region_id integer"],
            &["employee_id employees", "region_id region"],
        ),
        with(
            "line",
            &["id integer", "order_id integer"],
            &["order_id orders"],
        ),
    ];
    let drafted = document(&tables);
    assert_eq!(drafted.undecided, 0, "{}", drafted.text);
    let values = "values = \"SELECT id FROM employees_login WHERE login = {s.username}\"";
    assert_eq!(
        partition_lines(&tables[..3]),
        [
            &format!("partition = {{ columns = [\"employee_id\"], {values} }}"),
            "# or: partition = \"everyone\"",
            "# or: partition = { follows = \"region\" }",
        ]
    );
    assert_eq!(
        partition_lines(&tables)[0],
        "partition = { follows = \"orders\" }"
    );
    let parsed: toml::Table = drafted.text.parse().unwrap();
    let employees = &parsed["publication"][0]["table"][0];
    assert_eq!(employees["direction"].as_str(), Some("download"));
    let line = &parsed["publication"][0]["table"][3];
    assert_eq!(line["identity"]["block"].as_integer(), Some(1000));
    // Names of people, and a sequence for each of the two tables that devices number.
    assert_eq!(drafted.proposals.len(), 3, "{:?}", drafted.proposals);
}

#[test]
fn names_that_no_publication_can_have_are_left_out_with_the_reason() {
    let mut other = table("archive.note", &[]);
    other.sql_name = "archive.note".into();
    let tables = [
        table("note", &[]),
        other,
        table("tidewater_evil", &[]),
        table("", &[]),
    ];
    let drafted = document(&tables);
    assert_eq!(names(&drafted.text), ["note"]);
    let told: Vec<&str> = drafted.left_out.iter().map(|it| &*it.1).collect();
    assert!(told[0].contains("note is published"), "{told:?}");
    assert!(told[1].contains("reserved"), "{told:?}");
    assert!(told[2].contains("empty"), "{told:?}");
}

#[test]
fn no_statement_is_proposed_for_names_with_control_characters() {
    let drafted = document(&[table("a\u{1b}[31m", &["b"]), table("b\nc", &[])]);
    assert_eq!(drafted.proposals, []);
    assert!(
        drafted.text.contains("has control characters"),
        "{}",
        drafted.text
    );
}

#[test]
fn a_part_of_what_somebody_holds_follows_it_and_others_are_warned_of() {
    let job = |more: &str| {
        let part = with(
            more,
            &["id integer", "job_id integer", "author integer"],
            &["job_id job", "author employees"],
        );
        let job = with(
            "job",
            &["id integer", "employee_id integer"],
            &["employee_id employees"],
        );
        document(&[table("employees", &[]), job, part])
    };
    let note = job("job_note");
    assert!(
        note.text.contains("partition = { follows = \"job\" }"),
        "{}",
        note.text
    );
    assert!(
        note.text
            .contains("# or: partition = { columns = [\"author\"]"),
        "{}",
        note.text
    );
    assert_eq!(note.warnings, Vec::<String>::new());
    let comment = job("remark");
    assert_eq!(comment.warnings.len(), 1, "{:?}", comment.warnings);
    assert!(
        comment.warnings[0].contains("follows = \"job\""),
        "{:?}",
        comment.warnings
    );
}

#[test]
fn columns_that_look_like_secrets_are_not_published() {
    let staff = with(
        "staff",
        &["staff_id integer", "Password text", "name text"],
        &[],
    );
    let drafted = document(&[staff]);
    let parsed: toml::Table = drafted.text.parse().unwrap();
    let columns = parsed["publication"][0]["table"][0]["columns"].as_array();
    let columns: Vec<&str> = columns
        .unwrap()
        .iter()
        .filter_map(|it| it.as_str())
        .collect();
    assert_eq!(columns, ["staff_id", "name"]);
}

#[test]
fn a_table_that_cannot_be_published_is_a_comment_with_its_reason() {
    let mut keyless = table("note", &[]);
    keyless.obstacle = Some("it has no primary key\n[server]".into());
    let drafted = document(&[keyless, table("customer", &[])]);
    assert_eq!(names(&drafted.text), ["customer"]);
    assert!(drafted.text.contains("#   note: it has no primary key\n"));
    assert_eq!(drafted.left_out.len(), 1);
}
