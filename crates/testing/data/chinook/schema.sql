-- The Chinook tables, for PostgreSQL and SQLite alike, parents before children.

CREATE TABLE artist (
  artist_id INTEGER NOT NULL PRIMARY KEY,
  name VARCHAR(120)
);

CREATE TABLE album (
  album_id INTEGER NOT NULL PRIMARY KEY,
  title VARCHAR(160) NOT NULL,
  artist_id INTEGER NOT NULL REFERENCES artist (artist_id)
);
CREATE INDEX album_artist_id ON album (artist_id);

CREATE TABLE genre (
  genre_id INTEGER NOT NULL PRIMARY KEY,
  name VARCHAR(120)
);

CREATE TABLE media_type (
  media_type_id INTEGER NOT NULL PRIMARY KEY,
  name VARCHAR(120)
);

CREATE TABLE track (
  track_id INTEGER NOT NULL PRIMARY KEY,
  name VARCHAR(200) NOT NULL,
  album_id INTEGER REFERENCES album (album_id),
  media_type_id INTEGER NOT NULL REFERENCES media_type (media_type_id),
  genre_id INTEGER REFERENCES genre (genre_id),
  composer VARCHAR(220),
  milliseconds INTEGER NOT NULL,
  bytes INTEGER,
  unit_price NUMERIC(10,2) NOT NULL
);
CREATE INDEX track_album_id ON track (album_id);
CREATE INDEX track_media_type_id ON track (media_type_id);
CREATE INDEX track_genre_id ON track (genre_id);

CREATE TABLE playlist (
  playlist_id INTEGER NOT NULL PRIMARY KEY,
  name VARCHAR(120)
);

CREATE TABLE playlist_track (
  playlist_id INTEGER NOT NULL REFERENCES playlist (playlist_id),
  track_id INTEGER NOT NULL REFERENCES track (track_id),
  PRIMARY KEY (playlist_id, track_id)
);
CREATE INDEX playlist_track_track_id ON playlist_track (track_id);

CREATE TABLE employee (
  employee_id INTEGER NOT NULL PRIMARY KEY,
  last_name VARCHAR(20) NOT NULL,
  first_name VARCHAR(20) NOT NULL,
  title VARCHAR(30),
  reports_to INTEGER REFERENCES employee (employee_id),
  birth_date TIMESTAMP,
  hire_date TIMESTAMP,
  address VARCHAR(70),
  city VARCHAR(40),
  state VARCHAR(40),
  country VARCHAR(40),
  postal_code VARCHAR(10),
  phone VARCHAR(24),
  fax VARCHAR(24),
  email VARCHAR(60),
  login TEXT UNIQUE
);
CREATE INDEX employee_reports_to ON employee (reports_to);

CREATE TABLE customer (
  customer_id INTEGER NOT NULL PRIMARY KEY,
  first_name VARCHAR(40) NOT NULL,
  last_name VARCHAR(20) NOT NULL,
  company VARCHAR(80),
  address VARCHAR(70),
  city VARCHAR(40),
  state VARCHAR(40),
  country VARCHAR(40),
  postal_code VARCHAR(10),
  phone VARCHAR(24),
  fax VARCHAR(24),
  email VARCHAR(60) NOT NULL,
  support_rep_id INTEGER REFERENCES employee (employee_id)
);
CREATE INDEX customer_support_rep_id ON customer (support_rep_id);

CREATE TABLE invoice (
  invoice_id INTEGER NOT NULL PRIMARY KEY,
  customer_id INTEGER NOT NULL REFERENCES customer (customer_id),
  invoice_date TIMESTAMP NOT NULL,
  billing_address VARCHAR(70),
  billing_city VARCHAR(40),
  billing_state VARCHAR(40),
  billing_country VARCHAR(40),
  billing_postal_code VARCHAR(10),
  total NUMERIC(10,2) NOT NULL
);
CREATE INDEX invoice_customer_id ON invoice (customer_id);

CREATE TABLE invoice_line (
  invoice_line_id INTEGER NOT NULL PRIMARY KEY,
  invoice_id INTEGER NOT NULL REFERENCES invoice (invoice_id),
  track_id INTEGER NOT NULL REFERENCES track (track_id),
  unit_price NUMERIC(10,2) NOT NULL,
  quantity INTEGER NOT NULL
);
CREATE INDEX invoice_line_invoice_id ON invoice_line (invoice_id);
CREATE INDEX invoice_line_track_id ON invoice_line (track_id);
