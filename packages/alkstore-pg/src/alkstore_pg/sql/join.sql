-- name: place
-- Which database of which server this is, which schema in it, and whether the role may use that; no row without it.
SELECT
    database.oid::bigint,
    namespace.oid::bigint,
    (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint,
    pg_catalog.has_schema_privilege(namespace.oid, 'USAGE')
FROM pg_catalog.pg_database AS database, pg_catalog.pg_namespace AS namespace
WHERE database.datname = pg_catalog.current_database() AND namespace.nspname = $1::text::name;
