-- A video rental in the manner of the sakila and pagila samples, for PostgreSQL: tables that refer to
-- each other, a column of sign-in names beside one of passwords, sequences, a trigger for text search.

CREATE TABLE language (language_id serial PRIMARY KEY, name character(20) NOT NULL);
CREATE TABLE film (
  film_id serial PRIMARY KEY,
  title text NOT NULL,
  description text,
  language_id integer NOT NULL REFERENCES language,
  last_update timestamp NOT NULL DEFAULT now(),
  fulltext tsvector NOT NULL);
CREATE TRIGGER film_fulltext_trigger BEFORE INSERT OR UPDATE ON film FOR EACH ROW
  EXECUTE FUNCTION tsvector_update_trigger('fulltext', 'pg_catalog.english', 'title', 'description');
CREATE TABLE store (store_id serial PRIMARY KEY, manager_staff_id integer NOT NULL);
CREATE TABLE staff (
  staff_id serial PRIMARY KEY,
  first_name text NOT NULL,
  store_id integer NOT NULL REFERENCES store,
  username text NOT NULL,
  password text);
ALTER TABLE store ADD FOREIGN KEY (manager_staff_id) REFERENCES staff DEFERRABLE;
CREATE TABLE customer (
  customer_id serial PRIMARY KEY,
  store_id integer NOT NULL REFERENCES store,
  name text NOT NULL);
CREATE TABLE inventory (
  inventory_id serial PRIMARY KEY,
  film_id integer NOT NULL REFERENCES film,
  store_id integer NOT NULL REFERENCES store);
CREATE TABLE rental (
  rental_id serial PRIMARY KEY,
  inventory_id integer NOT NULL REFERENCES inventory,
  customer_id integer NOT NULL REFERENCES customer,
  staff_id integer NOT NULL REFERENCES staff,
  total numeric(8,2) NOT NULL);
CREATE FUNCTION add_up() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN NEW.total := coalesce(NEW.total, 1); RETURN NEW; END $$;
CREATE TRIGGER add_up BEFORE INSERT ON rental FOR EACH ROW EXECUTE FUNCTION add_up();
