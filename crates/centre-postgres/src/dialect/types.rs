//! What PostgreSQL's catalog tells of types.

/// See [`assignment_sql`](tidewater_centre::engine::sql::sql_dialect::SqlDialect::assignment_sql). A
/// value can be written to a column if it is of the same type, or if PostgreSQL converts it without
/// being asked, as it does everything to text. Text is converted to nothing by itself, and a cast that
/// fails for some values would fail in the middle of a sync. A pseudo-type of the server has no row.
pub(super) const ASSIGNMENT: &str = "
WITH RECURSIVE below (place, oid, base) AS (
  SELECT a.place, t.oid, t.typbasetype FROM pg_catalog.pg_type t JOIN (VALUES
    (1, ?1::text::regtype::oid), (2, ?2::text::regtype::oid)) AS a (place, oid) ON a.oid = t.oid
  UNION ALL SELECT b.place, t.oid, t.typbasetype FROM below b
    JOIN pg_catalog.pg_type t ON t.oid = b.base)
SELECT pg_catalog.format_type(?1::text::regtype, NULL),
  f.oid = w.oid OR t.typcategory = 'S' OR EXISTS (SELECT FROM pg_catalog.pg_cast c
    WHERE c.castsource = f.oid AND c.casttarget = w.oid AND c.castcontext IN ('i', 'a'))
FROM below f JOIN below w ON f.place = 1 AND f.base = 0 AND w.place = 2 AND w.base = 0
JOIN pg_catalog.pg_type t ON t.oid = w.oid";

/// See [`zoneless_sql`](tidewater_centre::engine::sql::sql_dialect::SqlDialect::zoneless_sql).
pub(super) const ZONELESS: &str = "
WITH words AS (SELECT v.c1 AS word FROM {rows TEXT})
SELECT pg_catalog.current_setting('TimeZone'), coalesce((
  SELECT string_agg(DISTINCT a.attname::text, ', ') FROM pg_catalog.pg_attribute a
  JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
  WHERE a.attname::text IN (SELECT word FROM words) AND a.atttypid IN (1082, 1114)
    AND NOT a.attisdropped AND c.relname::text IN (SELECT word FROM words)), '')";
