CREATE TABLE employee (emp_id integer PRIMARY KEY, login text NOT NULL UNIQUE);
CREATE TABLE purchase (
    emp_id integer NOT NULL REFERENCES employee (emp_id),
    purch_id integer NOT NULL,
    cust_id integer NOT NULL,
    cost numeric(30, 6) NOT NULL,
    order_date timestamp NOT NULL,
    notes varchar(64),
    last_modified timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (emp_id, purch_id));
CREATE TABLE purchase_deleted (
    emp_id integer NOT NULL,
    purch_id integer NOT NULL,
    deleted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (emp_id, purch_id));
CREATE TABLE purchase_conflict (
    emp_id integer, purch_id integer, old_cost numeric(30, 6), new_cost numeric(30, 6));
CREATE TABLE sync_figures (
    line_id serial PRIMARY KEY, user_name text, what text, first_figure integer, second_figure integer);
CREATE TABLE happened (id serial PRIMARY KEY, event text NOT NULL);

CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN NEW.last_modified := clock_timestamp(); RETURN NEW; END';
CREATE TRIGGER touch BEFORE UPDATE ON purchase FOR EACH ROW EXECUTE FUNCTION touch();
CREATE FUNCTION keep_deleted() RETURNS trigger LANGUAGE plpgsql AS '
BEGIN
    INSERT INTO purchase_deleted (emp_id, purch_id, deleted_at)
    VALUES (OLD.emp_id, OLD.purch_id, clock_timestamp())
    ON CONFLICT (emp_id, purch_id) DO UPDATE SET deleted_at = excluded.deleted_at;
    RETURN OLD;
END';
CREATE TRIGGER keep_deleted AFTER DELETE ON purchase FOR EACH ROW EXECUTE FUNCTION keep_deleted();

-- The higher cost wins, and the fight is written down.
CREATE PROCEDURE resolve_purchase(who varchar, of_table varchar) LANGUAGE plpgsql AS '
BEGIN
    UPDATE purchase p SET cost = greatest(p.cost, f.new_cost)
    FROM purchase_conflict f WHERE p.emp_id = f.emp_id AND p.purch_id = f.purch_id;
    INSERT INTO happened (event) VALUES (''resolve_conflict '' || who || '' '' || of_table);
    DELETE FROM purchase_conflict WHERE new_cost IS NOT NULL;
END';

INSERT INTO employee VALUES (1, 'anna'), (2, 'bert');
INSERT INTO purchase (emp_id, purch_id, cust_id, cost, order_date, notes)
VALUES (1, 1, 10, 100.5, '2026-01-05', 'first'), (1, 2, 11, 200, '2026-01-06', 'second'),
       (1, 3, 12, 300, '2026-01-07', 'third'), (2, 1, 10, 400, '2026-01-08', 'of bert');
