CREATE TABLE employee (
    emp_id integer PRIMARY KEY, login text NOT NULL UNIQUE, password text NOT NULL);
CREATE TABLE customer (
    cust_id integer PRIMARY KEY,
    name varchar(40) NOT NULL,
    emp_id integer NOT NULL REFERENCES employee (emp_id),
    active integer NOT NULL DEFAULT 1,
    last_modified timestamptz NOT NULL DEFAULT now());
CREATE TABLE orders (
    order_id integer PRIMARY KEY,
    cust_id integer NOT NULL REFERENCES customer (cust_id),
    quantity integer NOT NULL CHECK (quantity > 0),
    status varchar(10) NOT NULL,
    last_modified timestamptz NOT NULL DEFAULT now());
-- Keys that a device may use for new customers; the pool is filled up while it syncs.
CREATE TABLE customer_pool (
    emp_id integer NOT NULL, cust_id serial, last_modified timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (emp_id, cust_id));
CREATE TABLE stock_taking (item integer PRIMARY KEY, counted integer NOT NULL);
CREATE TABLE stock_taken (id serial PRIMARY KEY, item integer, was integer, counted integer);
CREATE TABLE sync_error (id serial PRIMARY KEY, of_table text, code text, state text);
CREATE TABLE happened (id serial PRIMARY KEY, event text NOT NULL);

CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN NEW.last_modified := clock_timestamp(); RETURN NEW; END';
CREATE TRIGGER touch BEFORE UPDATE ON customer FOR EACH ROW EXECUTE FUNCTION touch();
CREATE TRIGGER touch BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION touch();

CREATE PROCEDURE check_user(INOUT status integer, who varchar, proof varchar, next varchar)
LANGUAGE plpgsql AS '
BEGIN
    IF EXISTS (SELECT FROM employee WHERE login = who AND password = proof) THEN
        status := 1000;
        UPDATE employee SET password = next WHERE login = who AND next IS NOT NULL;
    ELSE
        status := 4000;
    END IF;
END';
CREATE PROCEDURE handle_sync_error(
    INOUT action integer, code varchar, message text, who varchar, of_table varchar)
LANGUAGE plpgsql AS '
BEGIN
    action := 1000;
    INSERT INTO happened (event) VALUES (''handle_error '' || code);
END';
-- The order of the customer's own employee wins over nobody; quantities are added.
CREATE PROCEDURE resolve_order(who varchar, of_table varchar) LANGUAGE plpgsql AS '
BEGIN
    UPDATE orders o SET quantity = o.quantity + n.quantity - p.quantity
    FROM new_order n JOIN old_order p ON p.order_id = n.order_id
    WHERE o.order_id = n.order_id;
    DELETE FROM new_order;
    DELETE FROM old_order;
    INSERT INTO happened (event) VALUES (''resolve_conflict'');
END';
CREATE PROCEDURE fill_pool(who varchar) LANGUAGE plpgsql AS '
DECLARE
    own integer;
BEGIN
    SELECT emp_id INTO own FROM employee WHERE login = who;
    WHILE (SELECT count(*) FROM customer_pool WHERE emp_id = own) < 5 LOOP
        INSERT INTO customer_pool (emp_id) VALUES (own);
    END LOOP;
END';

ALTER SEQUENCE customer_pool_cust_id_seq RESTART WITH 1000;
INSERT INTO employee VALUES (1, 'anna', 'annas'), (2, 'bert', 'berts');
INSERT INTO customer (cust_id, name, emp_id) VALUES (10, 'Ada', 1), (11, 'Bob', 1), (20, 'Cleo', 2);
INSERT INTO orders (order_id, cust_id, quantity, status)
VALUES (1, 10, 5, 'open'), (2, 11, 7, 'open'), (3, 20, 9, 'open');
