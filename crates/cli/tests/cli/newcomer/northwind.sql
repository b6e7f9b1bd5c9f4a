-- A trading company in the manner of the Northwind samples: text keys that others refer to, sellers
-- with territories, no sign-in names, no sequences. The same for PostgreSQL and SQLite, but for
-- {computed}, a default that only the database can compute.

CREATE TABLE region (region_id SMALLINT NOT NULL PRIMARY KEY, description VARCHAR(40) NOT NULL);
CREATE TABLE territories (
  territory_id VARCHAR(20) NOT NULL PRIMARY KEY,
  description VARCHAR(40) NOT NULL,
  region_id SMALLINT NOT NULL REFERENCES region (region_id));
CREATE TABLE employees (
  employee_id SMALLINT NOT NULL PRIMARY KEY,
  last_name VARCHAR(20) NOT NULL,
  first_name VARCHAR(20) NOT NULL,
  birth_date DATE,
  reports_to SMALLINT REFERENCES employees (employee_id));
CREATE TABLE employee_territories (
  employee_id SMALLINT NOT NULL REFERENCES employees (employee_id),
  territory_id VARCHAR(20) NOT NULL REFERENCES territories (territory_id),
  PRIMARY KEY (employee_id, territory_id));
CREATE TABLE customers (
  customer_id VARCHAR(5) NOT NULL PRIMARY KEY,
  company_name VARCHAR(40) NOT NULL,
  region VARCHAR(15));
CREATE TABLE shippers (shipper_id SMALLINT NOT NULL PRIMARY KEY, company_name VARCHAR(40) NOT NULL);
CREATE TABLE categories (category_id SMALLINT NOT NULL PRIMARY KEY, name VARCHAR(15) NOT NULL);
CREATE TABLE products (
  product_id SMALLINT NOT NULL PRIMARY KEY,
  product_name VARCHAR(40) NOT NULL,
  category_id SMALLINT REFERENCES categories (category_id),
  unit_price NUMERIC(10,2) NOT NULL);
CREATE TABLE orders (
  order_id INTEGER NOT NULL PRIMARY KEY,
  customer_id VARCHAR(5) NOT NULL REFERENCES customers (customer_id),
  employee_id SMALLINT NOT NULL REFERENCES employees (employee_id),
  order_date DATE,
  ship_via SMALLINT REFERENCES shippers (shipper_id),
  ship_region VARCHAR(15),
  entry_code VARCHAR(40) NOT NULL DEFAULT ({computed}));
CREATE TABLE order_details (
  order_id INTEGER NOT NULL REFERENCES orders (order_id),
  product_id SMALLINT NOT NULL REFERENCES products (product_id),
  unit_price NUMERIC(10,2) NOT NULL,
  quantity SMALLINT NOT NULL,
  PRIMARY KEY (order_id, product_id));

INSERT INTO region VALUES (1, 'East'), (2, 'West');
INSERT INTO territories VALUES ('01581', 'Westboro', 1), ('94025', 'Menlo Park', 2);
INSERT INTO employees VALUES (1, 'Davolio', 'Nancy', '1988-12-08', NULL),
  (2, 'Fuller', 'Andrew', '1972-02-19', 1), (3, 'Peacock', 'Nancy', NULL, 1);
INSERT INTO employee_territories VALUES (1, '01581'), (2, '94025'), (3, '94025');
INSERT INTO customers VALUES ('ALFKI', 'Futterkiste', NULL), ('BERGS', 'Snabbk', 'Skaane');
INSERT INTO shippers VALUES (1, 'Speedy'), (2, 'United');
INSERT INTO categories VALUES (1, 'Beverages');
INSERT INTO products VALUES (1, 'Chai', 1, 18.00), (2, 'Chang', 1, 19.00);
INSERT INTO orders (order_id, customer_id, employee_id, order_date, ship_via) VALUES
  (10248, 'ALFKI', 1, '2026-07-04', 1), (10249, 'BERGS', 2, '2026-07-05', 2),
  (10250, 'ALFKI', 3, '2026-07-08', NULL);
INSERT INTO order_details VALUES (10248, 1, 14.00, 12), (10249, 1, 18.60, 9), (10250, 2, 7.70, 10);
