-- without_parent
SELECT v.n FROM unnest($1::int4[], $2::text[]) WITH ORDINALITY AS v(c1, c2, n) WHERE NOT EXISTS (SELECT 1 FROM public.purchase p WHERE p."a" = v.c1 AND p."region" = v.c2);

-- lock_by_key
SELECT 1 FROM unnest($1::int4[], $2::text[]) WITH ORDINALITY AS v(c1, c2, n) JOIN public.purchase AS t ON t."a" = v.c1 AND t."region" = v.c2 FOR NO KEY UPDATE OF t;

-- read_by_key
SELECT v.n, t."cost" IS NOT DISTINCT FROM v.c3 AND t."mood"::text COLLATE "C" IS NOT DISTINCT FROM v.c4 AND true, t.* FROM unnest($1::int4[], $2::text[], $3::numeric[], $4::text[]) WITH ORDINALITY AS v(c1, c2, c3, c4, n) JOIN public.purchase t ON t."a" = v.c1 AND t."region" = v.c2;

-- insert
INSERT INTO public.purchase AS t ("a", "region", "cost", "mood") OVERRIDING SYSTEM VALUE SELECT v.c1, v.c2, coalesce(v.c3, (7)), v.c4::mood FROM unnest($1::int4[], $2::text[], $3::numeric[], $4::text[]) WITH ORDINALITY AS v(c1, c2, c3, c4, n) ON CONFLICT DO NOTHING RETURNING t."a"::int4, t."region"::text;

-- insert strictly
INSERT INTO public.purchase AS t ("a", "region", "cost", "mood") OVERRIDING SYSTEM VALUE SELECT v.c1, v.c2, coalesce(v.c3, (7)), v.c4::mood FROM unnest($1::int4[], $2::text[], $3::numeric[], $4::text[]) WITH ORDINALITY AS v(c1, c2, c3, c4, n) RETURNING t."a"::int4, t."region"::text;

-- log_moved
INSERT INTO "tidewater"."log_5" (c0, c1) SELECT v.c2, v.c1 FROM unnest($1::int4[], $2::text[], $3::numeric[], $4::text[]) WITH ORDINALITY AS v(c1, c2, c3, c4, n) JOIN public.purchase AS t ON t."a" = v.c1 AND t."region" = v.c2 WHERE NOT (t."region" COLLATE "C" IS NOT DISTINCT FROM v.c2);

-- update
UPDATE public.purchase AS t SET "cost" = v.c5, "mood" = v.c6::mood FROM unnest($1::int4[], $2::text[], $3::numeric[], $4::text[], $5::numeric[], $6::text[]) WITH ORDINALITY AS v(c1, c2, c3, c4, c5, c6, n) WHERE t."a" = v.c1 AND t."region" = v.c2 AND t."region" COLLATE "C" IS NOT DISTINCT FROM v.c2 AND t."cost" IS NOT DISTINCT FROM pg_catalog.round(v.c3, 2) AND t."mood"::text COLLATE "C" IS NOT DISTINCT FROM v.c4 RETURNING v.n, true;

-- update by key
UPDATE public.purchase AS t SET "cost" = v.c5, "mood" = v.c6::mood FROM unnest($1::int4[], $2::text[], $3::numeric[], $4::text[], $5::numeric[], $6::text[]) WITH ORDINALITY AS v(c1, c2, c3, c4, c5, c6, n) WHERE t."a" = v.c1 AND t."region" = v.c2 RETURNING v.n, true;

-- update the key
UPDATE public.purchase AS t SET "a" = v.c5, "region" = v.c6, "cost" = v.c7, "mood" = v.c8::mood FROM unnest($1::int4[], $2::text[], $3::numeric[], $4::text[], $5::int4[], $6::text[], $7::numeric[], $8::text[]) WITH ORDINALITY AS v(c1, c2, c3, c4, c5, c6, c7, c8, n) WHERE t."a" = v.c1 AND t."region" = v.c2 AND t."region" COLLATE "C" IS NOT DISTINCT FROM v.c2 AND t."cost" IS NOT DISTINCT FROM pg_catalog.round(v.c3, 2) AND t."mood"::text COLLATE "C" IS NOT DISTINCT FROM v.c4 RETURNING v.n, t."a" = v.c5 AND t."region" = v.c6;

-- violating
SELECT tidewater_number FROM (SELECT v.n AS tidewater_number, v.c1 AS "a", v.c2 AS "region", v.c5 AS "cost", v.c6::mood AS "mood" FROM unnest($1::int4[], $2::text[], $3::numeric[], $4::text[], $5::numeric[], $6::text[]) WITH ORDINALITY AS v(c1, c2, c3, c4, c5, c6, n)) AS r WHERE r.x < 0;

-- delete
DELETE FROM public.purchase AS t USING unnest($1::int4[], $2::text[], $3::numeric[], $4::text[]) WITH ORDINALITY AS v(c1, c2, c3, c4, n) WHERE t."a" = v.c1 AND t."region" = v.c2 AND t."region" COLLATE "C" IS NOT DISTINCT FROM v.c2 AND t."cost" IS NOT DISTINCT FROM pg_catalog.round(v.c3, 2) AND t."mood"::text COLLATE "C" IS NOT DISTINCT FROM v.c4 RETURNING v.n;

-- delete by key
DELETE FROM public.purchase AS t USING unnest($1::int4[], $2::text[], $3::numeric[], $4::text[]) WITH ORDINALITY AS v(c1, c2, c3, c4, n) WHERE t."a" = v.c1 AND t."region" = v.c2 RETURNING v.n;

-- deletable
SELECT v.n FROM unnest($1::int4[], $2::text[], $3::numeric[], $4::text[]) WITH ORDINALITY AS v(c1, c2, c3, c4, n) JOIN public.purchase AS t ON t."a" = v.c1 AND t."region" = v.c2 AND t."region" COLLATE "C" IS NOT DISTINCT FROM v.c2 AND t."cost" IS NOT DISTINCT FROM pg_catalog.round(v.c3, 2) AND t."mood"::text COLLATE "C" IS NOT DISTINCT FROM v.c4 FOR UPDATE OF t;

-- parents
WITH gone AS MATERIALIZED (SELECT v.n AS n, v.c1 AS k0, v.c2 AS k1 FROM unnest($1::int4[], $2::text[]) WITH ORDINALITY AS v(c1, c2, n)) SELECT i.n FROM gone i JOIN public.purchase t ON t."a" = i.k0 AND t."region" = i.k1 WHERE EXISTS (SELECT 1 FROM child c WHERE t.a = c.parent) OR EXISTS (SELECT 1 FROM child c WHERE t.a = c.parent AND NOT EXISTS (SELECT 1 FROM gone d WHERE c."a" = d.k0 AND c."region" = d.k1));

-- joint
WITH p1 (n) AS (DELETE FROM public.purchase AS t USING unnest($1::int4[], $2::text[], $3::numeric[], $4::text[]) WITH ORDINALITY AS v(c1, c2, c3, c4, n) WHERE t."a" = v.c1 AND t."region" = v.c2 AND t."region" COLLATE "C" IS NOT DISTINCT FROM v.c2 AND t."cost" IS NOT DISTINCT FROM pg_catalog.round(v.c3, 2) AND t."mood"::text COLLATE "C" IS NOT DISTINCT FROM v.c4 RETURNING v.n), p2 (n, is_there) AS (UPDATE public.purchase AS t SET "cost" = v.c5, "mood" = v.c6::mood FROM unnest($1::int4[], $2::text[], $3::numeric[], $4::text[], $5::numeric[], $6::text[]) WITH ORDINALITY AS v(c1, c2, c3, c4, c5, c6, n) WHERE t."a" = v.c1 AND t."region" = v.c2 AND t."region" COLLATE "C" IS NOT DISTINCT FROM v.c2 AND t."cost" IS NOT DISTINCT FROM pg_catalog.round(v.c3, 2) AND t."mood"::text COLLATE "C" IS NOT DISTINCT FROM v.c4 RETURNING v.n, true), p3 (k0, k1) AS (INSERT INTO public.purchase AS t ("a", "region", "cost", "mood") OVERRIDING SYSTEM VALUE SELECT v.c1, v.c2, coalesce(v.c3, (7)), v.c4::mood FROM unnest($1::int4[], $2::text[], $3::numeric[], $4::text[]) WITH ORDINALITY AS v(c1, c2, c3, c4, n) WHERE (SELECT count(*) FROM p1) >= 0 RETURNING t."a"::int4, t."region"::text) SELECT CAST(1 AS bigint), true FROM p1 UNION ALL SELECT CAST(2 AS bigint), is_there FROM p2 UNION ALL SELECT CAST(3 AS bigint), true FROM unnest($1::int4[], $2::text[], $3::numeric[], $4::text[]) WITH ORDINALITY AS v(c1, c2, c3, c4, n) JOIN p3 ON p3.k0 = v.c1 AND p3.k1 = v.c2;

