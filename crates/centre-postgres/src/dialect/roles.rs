//! What PostgreSQL tells of roles and row security.

use crate::quote::literal;
use tidewater_centre::engine::sql::role_sql::{RoleSource, RoleSql};

/// What is known of roles that are asked for: the name, whether there is one, whether it may do
/// everything or what the owner of our schema may, whether we may assume it, and what lets us. Who
/// logged in counts for that, whatever role is set.
macro_rules! known {
    ($asked:literal) => {
        concat!(
            "
SELECT q.role, r.oid IS NOT NULL,
  coalesce(r.rolsuper OR pg_catalog.pg_has_role(r.oid, coalesce((SELECT n.nspowner
    FROM pg_catalog.pg_namespace n WHERE n.nspname = 'tidewater'),
    (SELECT s.oid FROM pg_catalog.pg_roles s WHERE s.rolname = current_user)), 'MEMBER'), false),
  coalesce(pg_catalog.pg_has_role(session_user, r.oid,
    CASE WHEN pg_catalog.current_setting('server_version_num')::int >= 160000 THEN 'SET'
    ELSE 'MEMBER' END), false),
  pg_catalog.format('GRANT %I TO %I', q.role, session_user)
FROM (SELECT DISTINCT a.role::text COLLATE \"C\" FROM (\n",
            $asked,
            "\n) AS a (role)
  WHERE a.role IS NOT NULL LIMIT 2) AS q (role)
LEFT JOIN pg_catalog.pg_roles r ON r.rolname = q.role"
        )
    };
}

pub(super) const ROLES: RoleSql = RoleSql {
    asks: ask,
    known: known!("SELECT v.c1 FROM {rows TEXT}"),
    hidden: HIDDEN,
    unprotected: UNPROTECTED,
    by_others: BY_OTHERS,
};

fn ask(asked: RoleSource<'_>) -> String {
    let asked = match asked {
        RoleSource::Named(role) => {
            // A name with a NUL is none.
            let role = literal(role).unwrap_or_else(|| "NULL".into());
            format!("SELECT {role}::text")
        }
        RoleSource::Query(query) => query.to_owned(),
    };
    known!("{asked}").replace("{asked}", &asked)
}

/// As far as can be told: no policy lets us read all rows.
const HIDDEN: &str = "
SELECT c.oid::regclass::text,
  pg_catalog.format('\"%s\"', replace(current_user::text, '\"', '\"\"')) FROM pg_catalog.pg_class c
WHERE c.oid IN (SELECT v.c1::regclass FROM {rows TEXT})
  AND pg_catalog.row_security_active(c.oid)
  AND (EXISTS (SELECT FROM pg_catalog.pg_policy p WHERE p.polrelid = c.oid AND NOT p.polpermissive)
    OR NOT EXISTS (SELECT FROM pg_catalog.pg_policy p
      WHERE p.polrelid = c.oid AND p.polpermissive AND p.polcmd IN ('*', 'r')
        AND pg_catalog.pg_get_expr(p.polqual, p.polrelid) = 'true'
        AND EXISTS (SELECT FROM unnest(p.polroles) AS o (role)
          WHERE CASE o.role WHEN 0 THEN true
            ELSE pg_catalog.pg_has_role(current_user, o.role, 'USAGE') END)))
ORDER BY 1";

const UNPROTECTED: &str = "
WITH served AS (SELECT v.c1::regclass AS oid FROM {rows TEXT})
SELECT DISTINCT c.oid::regclass::text, p.oid::regclass::text FROM pg_catalog.pg_constraint k
JOIN pg_catalog.pg_class c ON c.oid = k.conrelid JOIN pg_catalog.pg_class p ON p.oid = k.confrelid
WHERE k.contype = 'f' AND c.oid IN (SELECT oid FROM served) AND p.oid IN (SELECT oid FROM served)
  AND p.relrowsecurity AND NOT c.relrowsecurity ORDER BY 1, 2";

/// Nothing is logged of a row when the others change.
const BY_OTHERS: &str = "
SELECT DISTINCT c.oid::regclass::text, pg_catalog.format('\"%s\"', replace(p.polname::text, '\"', '\"\"')),
  d.refobjid::regclass::text
FROM pg_catalog.pg_policy p JOIN pg_catalog.pg_class c ON c.oid = p.polrelid
JOIN pg_catalog.pg_depend d ON d.objid = p.oid
WHERE c.oid IN (SELECT v.c1::regclass FROM {rows TEXT}) AND c.relrowsecurity
  AND p.polcmd IN ('*', 'r') AND d.classid = 'pg_catalog.pg_policy'::regclass
  AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid <> c.oid ORDER BY 1, 2, 3";
