//! Rows that nobody here wrote, and many of them.

use tidewater_client::RetryPolicy;
use tidewater_testing::chinook;
use tidewater_testing::purchase::{self, FIRST_EMP_ID};

use crate::backend::Backend;
use crate::compare::{assert_converged, assert_converged_but_refused};
use crate::device::Device;
use crate::scenario::Column::{Decimal, Plain, Timestamp};
use crate::scenario::{Scenario, Table};
use crate::world::World;

const EVERYTHING: &str = "1 = 1";

const CHINOOK_PUBLICATION: &str = r#"
[[publication]]
name = "main"

[[publication.table]]
name = "artist"
partition = "everyone"
direction = "download"

[[publication.table]]
name = "album"
partition = "everyone"
direction = "download"

[[publication.table]]
name = "genre"
partition = "everyone"
direction = "download"

[[publication.table]]
name = "media_type"
partition = "everyone"
direction = "download"

[[publication.table]]
name = "track"
partition = "everyone"
direction = "download"

[[publication.table]]
name = "playlist"
partition = "everyone"
direction = "download"

[[publication.table]]
name = "playlist_track"
partition = "everyone"
direction = "download"

[[publication.table]]
name = "employee"
partition = "everyone"
direction = "download"

[[publication.table]]
name = "customer"
partition = { columns = ["support_rep_id"], values = "SELECT employee_id FROM employee WHERE login = {s.username}" }
"#;

const CHINOOK_TABLES: &[Table] = &[
    Table {
        name: "artist",
        columns: &[Plain("artist_id"), Plain("name")],
        scope: EVERYTHING,
        parents: &[],
    },
    Table {
        name: "album",
        columns: &[Plain("album_id"), Plain("title"), Plain("artist_id")],
        scope: EVERYTHING,
        parents: &[],
    },
    Table {
        name: "genre",
        columns: &[Plain("genre_id"), Plain("name")],
        scope: EVERYTHING,
        parents: &[],
    },
    Table {
        name: "media_type",
        columns: &[Plain("media_type_id"), Plain("name")],
        scope: EVERYTHING,
        parents: &[],
    },
    Table {
        name: "track",
        columns: &[
            Plain("track_id"),
            Plain("name"),
            Plain("album_id"),
            Plain("media_type_id"),
            Plain("genre_id"),
            Plain("composer"),
            Plain("milliseconds"),
            Plain("bytes"),
            Decimal("unit_price", 2),
        ],
        scope: EVERYTHING,
        parents: &[],
    },
    Table {
        name: "playlist",
        columns: &[Plain("playlist_id"), Plain("name")],
        scope: EVERYTHING,
        parents: &[],
    },
    Table {
        name: "playlist_track",
        columns: &[Plain("playlist_id"), Plain("track_id")],
        scope: EVERYTHING,
        parents: &[],
    },
    Table {
        name: "employee",
        columns: &[
            Plain("employee_id"),
            Plain("last_name"),
            Plain("first_name"),
            Plain("title"),
            Plain("reports_to"),
            Timestamp("birth_date"),
            Timestamp("hire_date"),
            Plain("address"),
            Plain("city"),
            Plain("state"),
            Plain("country"),
            Plain("postal_code"),
            Plain("phone"),
            Plain("fax"),
            Plain("email"),
            Plain("login"),
        ],
        scope: EVERYTHING,
        parents: &[],
    },
    CUSTOMER,
];

const CUSTOMER: Table = Table {
    name: "customer",
    columns: &[
        Plain("customer_id"),
        Plain("first_name"),
        Plain("last_name"),
        Plain("company"),
        Plain("address"),
        Plain("city"),
        Plain("state"),
        Plain("country"),
        Plain("postal_code"),
        Plain("phone"),
        Plain("fax"),
        Plain("email"),
        Plain("support_rep_id"),
    ],
    scope: "support_rep_id IN (SELECT employee_id FROM employee WHERE login = '{user}')",
    parents: &[],
};

const OF_CUSTOMER: &str = "customer_id IN (SELECT customer_id FROM customer WHERE support_rep_id IN
    (SELECT employee_id FROM employee WHERE login = '{user}'))";

const INVOICES_PUBLICATION: &str = r#"
[[publication]]
name = "main"

[[publication.table]]
name = "customer"
partition = { columns = ["support_rep_id"], values = "SELECT employee_id FROM employee WHERE login = {s.username}" }

[[publication.table]]
name = "invoice"
partition = { follows = "customer" }

[[publication.table]]
name = "invoice_line"
partition = { follows = "invoice" }
"#;

const INVOICES_TABLES: &[Table] = &[
    CUSTOMER,
    Table {
        name: "invoice",
        columns: &[
            Plain("invoice_id"),
            Plain("customer_id"),
            Timestamp("invoice_date"),
            Plain("billing_address"),
            Plain("billing_city"),
            Plain("billing_state"),
            Plain("billing_country"),
            Plain("billing_postal_code"),
            Decimal("total", 2),
        ],
        scope: OF_CUSTOMER,
        parents: &[],
    },
    Table {
        name: "invoice_line",
        columns: &[
            Plain("invoice_line_id"),
            Plain("invoice_id"),
            Plain("track_id"),
            Decimal("unit_price", 2),
            Plain("quantity"),
        ],
        scope: "invoice_id IN (SELECT invoice_id FROM invoice JOIN customer USING (customer_id)
            JOIN employee ON employee_id = support_rep_id WHERE login = '{user}')",
        parents: &[],
    },
];

/// The sales staff and their numbers.
const STAFF: [(&str, i64); 3] = [("jane", 3), ("margaret", 4), ("steve", 5)];

fn three_sales_remotes_and_the_chinook_database_end_equal<B: Backend>() {
    let backend = B::new();
    backend.execute(chinook::postgres_schema());
    backend.load_chinook();
    let world = World::open_in(
        backend,
        Scenario {
            schema: String::new(),
            publication: CHINOOK_PUBLICATION,
            tables: CHINOOK_TABLES,
            users: &["jane", "margaret", "steve"],
            limits: "",
        },
    );
    let mut devices = STAFF.map(|(user, _)| world.synced(user));
    assert_converged(&world, &devices.each_ref());
    let customers: i64 = devices
        .iter()
        .map(|it| it.value("SELECT count(*) FROM customer").parse::<i64>())
        .sum::<Result<i64, _>>()
        .expect("a number");
    assert_eq!(customers, chinook::row_count("customer") as i64);
    let tracks = devices[0].value("SELECT count(*) FROM track");
    assert_eq!(tracks, chinook::row_count("track").to_string());

    for (device, (user, number)) in devices.iter().zip(STAFF) {
        device.edit(&format!(
            "INSERT INTO customer (customer_id, first_name, last_name, email, support_rep_id)
                 VALUES (90{number}, 'Łukasz', '''; DROP TABLE', '{user}@example.org', {number}),
                        (91{number}, 'Moves', 'Away', 'm@example.org', {number});
             UPDATE customer SET phone = '+44 ' || phone, company = NULL
                 WHERE customer_id % 2 = 0;"
        ));
        let refused = device.remote_refuses("INSERT INTO genre VALUES (99, 'Polka')");
        assert!(refused.contains("download"), "{refused}");
    }
    world.execute(
        "UPDATE customer SET support_rep_id = 4 WHERE customer_id IN (1, 3);
         UPDATE customer SET city = 'Zürich' WHERE customer_id % 3 = 0;
         UPDATE track SET unit_price = unit_price + 1 WHERE track_id % 10 = 0;
         INSERT INTO artist VALUES (9001, 'Sigur Rós'), (9002, NULL);
         INSERT INTO album VALUES (9001, 'Ágætis byrjun', 9001);
         DELETE FROM playlist_track WHERE track_id % 7 = 0;
         UPDATE employee SET birth_date = NULL, title = 'Sales' WHERE employee_id = 5;",
    );
    sync_all(&mut devices);
    sync_all(&mut devices);
    assert_converged(&world, &devices.each_ref());
    // Nobody gives away what he could not have touched afterwards.
    devices[0].edit(
        "UPDATE customer SET support_rep_id = 5 WHERE customer_id = 913;
         DELETE FROM customer WHERE customer_id = 903;",
    );
    assert_eq!(devices[0].sync().refused, 1);
    assert_eq!(devices[0].refused()[0].code, "out_of_scope");
    // A customer with invoices that the remote does not hold cannot go.
    devices[1].edit("DELETE FROM customer WHERE customer_id = 1");
    assert_eq!(devices[1].sync().refused, 1);
    assert_eq!(devices[1].refused()[0].code, "foreign_key");
    world.execute("UPDATE customer SET support_rep_id = 5 WHERE customer_id = 914");
    sync_all(&mut devices);
    let [jane, margaret, steve] = &mut devices;
    assert_converged_but_refused(&world, &mut [jane, margaret, steve]);
    assert_eq!((jane.discard_refused(), margaret.discard_refused()), (1, 1));
    sync_all(&mut devices);
    assert_converged(&world, &devices.each_ref());
}

/// Invoices and their lines, which know nobody of the staff, go with their customers.
fn three_sales_remotes_and_the_chinook_invoices_end_equal<B: Backend>() {
    let backend = B::new();
    backend.execute(chinook::postgres_schema());
    backend.load_chinook();
    let world = World::open_in(
        backend,
        Scenario {
            schema: String::new(),
            publication: INVOICES_PUBLICATION,
            tables: INVOICES_TABLES,
            users: &["jane", "margaret", "steve"],
            limits: "",
        },
    );
    let mut devices = STAFF.map(|(user, _)| world.synced(user));
    assert_converged(&world, &devices.each_ref());
    for table in ["invoice", "invoice_line"] {
        let counts = devices.iter().map(|it| {
            let count = it.value(&format!("SELECT count(*) FROM {table}"));
            count.parse::<usize>().expect("a number")
        });
        assert_eq!(counts.sum::<usize>(), chinook::row_count(table), "{table}");
    }
    for (device, (_, number)) in devices.iter().zip(STAFF) {
        device.edit(&format!(
            "INSERT INTO invoice (invoice_id, customer_id, invoice_date, total)
                 SELECT 9000 + {number}, max(customer_id), '2026-11-26 08:00:00', '3.96'
                 FROM customer;
             INSERT INTO invoice_line VALUES (9{number}01, 9000 + {number}, 1, '0.99', 1),
                 (9{number}02, 9000 + {number}, 2, '0.99', 3);
             UPDATE invoice_line SET quantity = quantity + 1 WHERE invoice_line_id % 5 = 0;
             DELETE FROM invoice_line WHERE invoice_line_id % 50 = 7;"
        ));
    }
    world.execute(
        "UPDATE customer SET support_rep_id = 3 + support_rep_id % 3 WHERE customer_id % 4 = 1;
         UPDATE invoice SET customer_id = 2 WHERE invoice_id % 20 = 3;
         UPDATE invoice_line SET invoice_id = invoice_id + 1 WHERE invoice_line_id % 40 = 2;
         INSERT INTO invoice_line VALUES (9901, 10, 3, 0.99, 1);",
    );
    for _ in 0..2 {
        sync_all(&mut devices);
    }
    for device in &mut devices {
        if !device.refused().is_empty() {
            device.discard_refused();
        }
    }
    sync_all(&mut devices);
    assert_converged(&world, &devices.each_ref());
    let new = "SELECT count(*) FROM invoice_line WHERE invoice_id > 9000";
    assert_eq!(world.rows(new), ["6"]);
}

fn sync_all(devices: &mut [Device]) {
    for device in devices {
        device.sync();
    }
}

const PURCHASE_PUBLICATION: &str = r#"
[[publication]]
name = "main"

[[publication.table]]
name = "purchase"
partition = { columns = ["emp_id"], values = "SELECT emp_id FROM staff WHERE login = {s.username}" }
"#;

const PURCHASE_TABLES: &[Table] = &[Table {
    name: "purchase",
    columns: &[
        Plain("emp_id"),
        Plain("purch_id"),
        Plain("cust_id"),
        Decimal("cost", 6),
        Timestamp("order_date"),
        Plain("notes"),
    ],
    scope: "emp_id IN (SELECT emp_id FROM staff WHERE login = '{user}')",
    parents: &[],
}];

/// Of all employees together.
const PURCHASES: i32 = 200_000;

fn three_remotes_and_two_hundred_thousand_purchases_end_equal<B: Backend>() {
    let users = ["ada", "bob", "cleo"];
    let backend = B::new();
    backend.execute(purchase::postgres_schema());
    backend.execute("CREATE TABLE staff (login TEXT PRIMARY KEY, emp_id INTEGER NOT NULL)");
    for (user, emp_id) in users.iter().zip(FIRST_EMP_ID..) {
        backend.execute(&format!("INSERT INTO staff VALUES ('{user}', {emp_id})"));
    }
    let each = PURCHASES / 3 + 1;
    // Every employee has numbers of his own, so that purchases can change hands.
    backend.load_purchases(
        (0..PURCHASES).map(|number| purchase::Purchase::new(FIRST_EMP_ID + number / each, number)),
    );
    let world = World::open_in(
        backend,
        Scenario {
            schema: String::new(),
            publication: PURCHASE_PUBLICATION,
            tables: PURCHASE_TABLES,
            users: &["ada", "bob", "cleo"],
            limits: "",
        },
    );
    let mut devices = users.map(|user| world.device(user));
    sync_at_once(&mut devices);
    assert_converged(&world, &devices.each_ref());

    for (device, emp_id) in devices.iter().zip(FIRST_EMP_ID..) {
        device.edit(&format!(
            "BEGIN;
             UPDATE purchase SET cost = '987654321.000001', notes = NULL WHERE purch_id % 13 = 0;
             DELETE FROM purchase WHERE purch_id % 17 = 1;
             INSERT INTO purchase
                 SELECT emp_id, purch_id + 400000000, cust_id, cost, order_date, 'copied'
                 FROM purchase WHERE purch_id % 11 = 2 AND emp_id = {emp_id};
             COMMIT;"
        ));
    }
    world.execute(&format!(
        "UPDATE purchase SET cust_id = cust_id + 1 WHERE purch_id % 19 = 3;
         DELETE FROM purchase WHERE purch_id % 23 = 4;
         UPDATE purchase SET emp_id = emp_id + 1
             WHERE purch_id % 29 = 5 AND emp_id < {FIRST_EMP_ID} + 2;"
    ));
    sync_at_once(&mut devices);
    // Who synced first has not seen what the others uploaded.
    sync_at_once(&mut devices);
    assert_converged(&world, &devices.each_ref());
}

/// As devices do by themselves: whoever finds the file of the centre locked for long comes again.
fn sync_at_once(devices: &mut [Device]) {
    std::thread::scope(|scope| {
        for device in devices {
            device.remote.set_retry(RetryPolicy::default());
            scope.spawn(move || device.sync());
        }
    });
}

on_both_adapters!(
    three_sales_remotes_and_the_chinook_database_end_equal,
    three_sales_remotes_and_the_chinook_invoices_end_equal,
    three_remotes_and_two_hundred_thousand_purchases_end_equal,
);
