-- name: identity
-- Which database of which server this is, and which schema in it; no row where the schema is missing.
SELECT
    database.oid::bigint,
    namespace.oid::bigint,
    (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint
FROM pg_catalog.pg_database AS database, pg_catalog.pg_namespace AS namespace
WHERE database.datname = pg_catalog.current_database() AND namespace.nspname = $1::text::name;
