//! Two schemas as there are many, published as they are: an order management whose order lines know
//! only their order, and a film rental whose payments know only their rental. Both sides are edited
//! at random for fifty rounds.

use tidewater_client::RowSelection;

use crate::backend::Backend;
use crate::compare::assert_converged;
use crate::device::Device;
use crate::random::Random;
use crate::scenario::{Column, Scenario, Table};
use crate::world::World;

const ROUNDS: u64 = 50;

const ORDER_TABLES: &[Table] = &[
    Table {
        name: "orders",
        columns: &[
            Column::Plain("order_id"),
            Column::Plain("customer_id"),
            Column::Plain("employee_id"),
            Column::Decimal("freight", 2),
        ],
        scope: "employee_id IN (SELECT employee_id FROM employee WHERE login = '{user}')",
        parents: &[],
    },
    Table {
        name: "order_detail",
        columns: &[
            Column::Plain("order_id"),
            Column::Plain("product_id"),
            Column::Plain("quantity"),
        ],
        scope: "order_id IN (SELECT order_id FROM orders o JOIN employee e
            ON e.employee_id = o.employee_id WHERE login = '{user}')",
        parents: &[],
    },
    Table {
        name: "shipment",
        columns: &[
            Column::Plain("shipment_id"),
            Column::Plain("order_id"),
            Column::Plain("carrier"),
        ],
        scope: "order_id IN (SELECT order_id FROM orders o JOIN employee e
            ON e.employee_id = o.employee_id WHERE login = '{user}')",
        parents: &[],
    },
];

fn orders() -> Scenario {
    let mut schema = "
        CREATE TABLE employee (employee_id INTEGER NOT NULL PRIMARY KEY, login TEXT NOT NULL);
        CREATE TABLE customer (customer_id TEXT NOT NULL PRIMARY KEY, name TEXT NOT NULL);
        CREATE TABLE orders (order_id INTEGER NOT NULL PRIMARY KEY,
            customer_id TEXT NOT NULL REFERENCES customer,
            employee_id INTEGER NOT NULL REFERENCES employee, freight NUMERIC(9,2));
        CREATE INDEX orders_employee ON orders (employee_id);
        CREATE TABLE order_detail (
            order_id INTEGER NOT NULL REFERENCES orders ON UPDATE CASCADE ON DELETE CASCADE,
            product_id INTEGER NOT NULL, quantity INTEGER NOT NULL CHECK (quantity > 0),
            PRIMARY KEY (order_id, product_id));
        CREATE TABLE shipment (shipment_id INTEGER NOT NULL PRIMARY KEY,
            order_id INTEGER REFERENCES orders ON UPDATE CASCADE ON DELETE SET NULL,
            carrier TEXT);
        CREATE INDEX shipment_order ON shipment (order_id);
        INSERT INTO employee VALUES (1, 'ada'), (2, 'bob'), (3, 'nobody');
        INSERT INTO customer VALUES ('ALFKI', 'Alfreds'), ('BERGS', 'Berglunds');"
        .to_owned();
    for order in 1..=20 {
        let employee = 1 + order % 3;
        schema.push_str(&format!(
            "INSERT INTO orders VALUES ({order}, 'ALFKI', {employee}, {order}.25);
             INSERT INTO order_detail VALUES ({order}, 1, 5), ({order}, 2, {order});
             INSERT INTO shipment VALUES ({order}, {order}, 'post');"
        ));
    }
    Scenario {
        schema,
        publication: r#"
[[publication]]
name = "main"

[[publication.table]]
name = "orders"
partition = { columns = ["employee_id"], values = "SELECT employee_id FROM employee WHERE login = {s.username}" }

[[publication.table]]
name = "order_detail"
partition = { follows = "orders" }

[[publication.table]]
name = "shipment"
partition = { follows = "orders" }

[[publication.table]]
name = "customer"
partition = "everyone"
direction = "download"
"#,
        tables: ORDER_TABLES,
        users: &["ada", "bob"],
        limits: "",
    }
}

/// What an application of the order management does.
fn order_statement(random: &mut Random) -> String {
    let (order, product) = (1 + random.below(30), 1 + random.below(4));
    let (number, employee) = (1 + random.below(9), 1 + random.below(3));
    match random.below(12) {
        0 | 1 => format!(
            "INSERT INTO orders VALUES ({order}, 'BERGS', {employee}, {number}.50);
             INSERT INTO order_detail VALUES ({order}, 1, {number}), ({order}, {product}, 2);"
        ),
        2 => format!("INSERT INTO order_detail VALUES ({order}, {product}, {number})"),
        3 => format!("UPDATE order_detail SET quantity = {number} - 1 WHERE order_id = {order}"),
        4 => format!("UPDATE orders SET freight = {number}.75 WHERE order_id = {order}"),
        5 => format!("UPDATE orders SET employee_id = {employee} WHERE order_id = {order}"),
        6 => format!("DELETE FROM orders WHERE order_id = {order}"),
        7 => {
            format!("DELETE FROM order_detail WHERE order_id = {order} AND product_id = {product}")
        }
        8 => format!(
            "UPDATE orders SET order_id = {} WHERE order_id = {order}",
            1 + random.below(30)
        ),
        9 => format!(
            "INSERT INTO shipment VALUES ({}, {order}, 'van')",
            1 + random.below(60)
        ),
        10 => format!("UPDATE shipment SET order_id = {order} WHERE shipment_id = {number}"),
        _ => format!("UPDATE shipment SET carrier = 'ship {number}' WHERE order_id = {order}"),
    }
}

const OF_STORE: &str = "store_id IN (SELECT store_id FROM staff WHERE login = '{user}')";
const RENTAL_TABLES: &[Table] = &[
    Table {
        name: "customer",
        columns: &[
            Column::Plain("customer_id"),
            Column::Plain("store_id"),
            Column::Plain("name"),
        ],
        scope: OF_STORE,
        parents: &[],
    },
    Table {
        name: "inventory",
        columns: &[
            Column::Plain("inventory_id"),
            Column::Plain("film_id"),
            Column::Plain("store_id"),
        ],
        scope: OF_STORE,
        parents: &[],
    },
    Table {
        name: "rental",
        columns: &[
            Column::Plain("rental_id"),
            Column::Plain("inventory_id"),
            Column::Plain("note"),
        ],
        scope: "inventory_id IN (SELECT inventory_id FROM inventory WHERE store_id IN
            (SELECT store_id FROM staff WHERE login = '{user}'))",
        parents: &[],
    },
    Table {
        name: "payment",
        columns: &[
            Column::Plain("payment_id"),
            Column::Plain("rental_id"),
            Column::Decimal("amount", 2),
        ],
        scope: "rental_id IN (SELECT rental_id FROM rental r JOIN inventory i
            ON i.inventory_id = r.inventory_id WHERE store_id IN
            (SELECT store_id FROM staff WHERE login = '{user}'))",
        parents: &[],
    },
];

fn rentals<B: Backend>() -> Scenario {
    let mut schema = "
        CREATE TABLE staff (login TEXT NOT NULL PRIMARY KEY, store_id INTEGER NOT NULL);
        CREATE TABLE customer (customer_id INTEGER NOT NULL PRIMARY KEY,
            store_id INTEGER NOT NULL, name TEXT);
        CREATE INDEX customer_store ON customer (store_id);
        CREATE TABLE inventory (inventory_id INTEGER NOT NULL PRIMARY KEY,
            film_id INTEGER NOT NULL, store_id INTEGER NOT NULL);
        CREATE INDEX inventory_store ON inventory (store_id);
        CREATE TABLE rental (rental_id INTEGER NOT NULL PRIMARY KEY,
            inventory_id INTEGER NOT NULL REFERENCES inventory ON UPDATE CASCADE, note TEXT);
        CREATE INDEX rental_inventory ON rental (inventory_id);
        INSERT INTO staff VALUES ('ada', 1), ('bob', 2);"
        .to_owned();
    let payment = "CREATE TABLE payment (payment_id INTEGER NOT NULL, paid DATE NOT NULL,
            rental_id INTEGER REFERENCES rental ON UPDATE CASCADE ON DELETE SET NULL,
            amount NUMERIC(5,2) NOT NULL, PRIMARY KEY (payment_id, paid))";
    schema.push_str(payment);
    schema.push_str(match B::NAME == "postgres" {
        false => ";",
        true => {
            " PARTITION BY RANGE (paid);
             CREATE TABLE payment_01 PARTITION OF payment
                FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
             CREATE TABLE payment_02 PARTITION OF payment
                FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');"
        }
    });
    schema.push_str("CREATE INDEX payment_rental ON payment (rental_id);");
    for number in 1..=20 {
        let store = 1 + number % 3;
        schema.push_str(&format!(
            "INSERT INTO customer VALUES ({number}, {store}, 'c');
             INSERT INTO inventory VALUES ({number}, 7, {store});
             INSERT INTO rental VALUES ({number}, {number}, 'r');
             INSERT INTO payment VALUES ({number}, '2026-01-05', {number}, {number}.99);"
        ));
    }
    Scenario {
        schema,
        publication: r#"
[[publication]]
name = "main"

[[publication.table]]
name = "customer"
partition = { columns = ["store_id"], values = "SELECT store_id FROM staff WHERE login = {s.username}" }

[[publication.table]]
name = "inventory"
partition = { columns = ["store_id"], values = "SELECT store_id FROM staff WHERE login = {s.username}" }

[[publication.table]]
name = "rental"
partition = { follows = "inventory" }

[[publication.table]]
name = "payment"
partition = { follows = "rental" }
"#,
        tables: RENTAL_TABLES,
        users: &["ada", "bob"],
        limits: "",
    }
}

/// What an application of the film rental does.
fn rental_statement(random: &mut Random) -> String {
    let (one, other) = (1 + random.below(30), 1 + random.below(30));
    let (number, month) = (1 + random.below(3), 1 + random.below(2));
    match random.below(12) {
        0 | 1 => format!(
            "INSERT INTO rental VALUES ({one}, {other}, 'new');
             INSERT INTO payment VALUES ({one}, '2026-0{month}-07', {one}, {number}.50);"
        ),
        2 => format!("INSERT INTO inventory VALUES ({one}, {other}, {number})"),
        3 => format!("UPDATE inventory SET store_id = {number} WHERE inventory_id = {one}"),
        4 => format!("UPDATE rental SET inventory_id = {one} WHERE rental_id = {other}"),
        5 => format!("UPDATE payment SET amount = {number}.25 WHERE rental_id = {one}"),
        6 => format!("UPDATE payment SET paid = '2026-0{month}-09' WHERE payment_id = {one}"),
        7 => format!("DELETE FROM rental WHERE rental_id = {one}"),
        8 => format!("DELETE FROM payment WHERE payment_id = {one}"),
        9 => {
            format!("UPDATE customer SET store_id = {number}, name = 'n' WHERE customer_id = {one}")
        }
        10 => format!("UPDATE inventory SET inventory_id = {one} WHERE inventory_id = {other}"),
        _ => format!("UPDATE rental SET note = 'note {number}' WHERE inventory_id = {one}"),
    }
}

/// Fifty rounds in which both sides are edited; in the end all are equal.
fn live<B: Backend>(scenario: Scenario, statement: fn(&mut Random) -> String) {
    let world = World::<B>::open(scenario);
    let mut random = Random::seeded(7);
    let mut devices = [world.synced("ada"), world.synced("bob")];
    for _ in 0..ROUNDS {
        for _ in 0..random.below(3) {
            world.try_execute(&statement(&mut random));
        }
        for device in &mut devices {
            for _ in 0..random.below(4) {
                device.try_edit(&statement(&mut random));
            }
            if random.once_in(2) {
                device.sync();
            }
        }
    }
    settle(&mut devices);
    assert_converged(&world, &devices.each_ref());
    // A staff of the other store, once, and back.
    assert!(world.server.conflicts().len() < 200);
}

/// Syncs until nothing moves; what was refused is given up.
fn settle(devices: &mut [Device]) {
    for _ in 0..3 {
        for device in &mut *devices {
            device.sync();
            device.remote.discard_refused(RowSelection::All).unwrap();
        }
    }
    for device in devices {
        device.sync();
        device.sync();
    }
}

fn an_order_management_is_published_as_it_is<B: Backend>() {
    live::<B>(orders(), order_statement);
}

fn a_film_rental_is_published_as_it_is<B: Backend>() {
    live::<B>(rentals::<B>(), rental_statement);
}

on_both_adapters!(
    an_order_management_is_published_as_it_is,
    a_film_rental_is_published_as_it_is,
);
