-- name: surroundings
-- What the server and the role are like, whether the schema and its list of migrations are there, and in which of the
-- tables the role may not do everything. It names nothing of the schema, which may be missing, and one catalog: a session
-- that has just begun takes as long to plan a join of two as to begin, and one that reads none does not learn what was
-- committed while its transaction waited. A schema that the role may not use is an error to who asks for a table in it.
SELECT
    current_setting('server_version_num')::integer,
    current_setting('server_version'),
    current_setting('server_encoding'),
    current_setting('default_transaction_isolation'),
    pg_is_in_recovery(),
    current_setting('default_transaction_read_only')::boolean,
    current_user::text,
    n.oid IS NOT NULL,
    coalesce(has_schema_privilege(n.oid, 'USAGE'), false),
    CASE WHEN has_schema_privilege(n.oid, 'USAGE')
        THEN to_regclass(wanted.name || '.migration') IS NOT NULL ELSE false
    END,
    CASE WHEN has_schema_privilege(n.oid, 'USAGE') THEN ARRAY(
        SELECT t.name FROM unnest($2::text[]) AS t (name)
        WHERE NOT (
            has_table_privilege(to_regclass(wanted.name || '.' || t.name), 'SELECT')
            AND has_table_privilege(to_regclass(wanted.name || '.' || t.name), 'INSERT')
            AND has_table_privilege(to_regclass(wanted.name || '.' || t.name), 'UPDATE')
            AND has_table_privilege(to_regclass(wanted.name || '.' || t.name), 'DELETE')
        )
    ) ELSE '{}' END,
    (extract(epoch FROM statement_timestamp()) * 1000000)::bigint
FROM (SELECT quote_ident($1::text) AS name) AS wanted
LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname = $1::text;

-- name: applied
-- Which migrations the schema has had.
SELECT version, checksum FROM {schema}.migration ORDER BY version;

-- name: standing
-- The same, and whether there is any stream; for who may use the tables, which are there if the list is.
SELECT version, checksum, EXISTS (SELECT FROM {schema}.stream) FROM {schema}.migration ORDER BY version;

-- name: own_names
-- Names of PostgreSQL's own and of nobody else's, for the rest of a transaction.
SELECT set_config('search_path', 'pg_catalog, pg_temp', true);

-- name: patience
-- How long, in milliseconds, the rest of this transaction waits for a lock.
SELECT set_config('lock_timeout', $1::bigint::text, true);

-- name: turn
-- Wait until nobody else migrates this schema; whoever ends, in whatever way, makes room.
SELECT pg_advisory_xact_lock($1::bigint);

-- name: make_schema
-- Make the schema; only where it is missing, for IF NOT EXISTS would want the privilege even if there is nothing to do.
CREATE SCHEMA {schema};

-- name: make_list
-- Make the list of migrations.
CREATE TABLE {schema}.migration (
    version integer PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at bigint NOT NULL
);

-- name: note
-- Say that a migration was applied.
INSERT INTO {schema}.migration (version, name, checksum, applied_at)
VALUES ($1::integer, $2::text, $3::text, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint);

-- name: grant_schema
-- The role may name what is in the schema.
GRANT USAGE ON SCHEMA {schema} TO {role};

-- name: grant_tables
-- The role may use the tables.
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};

-- name: grant_sequences
-- The role may draw offsets and ids, and raise the offsets above what a restored table holds.
GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA {schema} TO {role};

-- name: grant_functions
-- The role may call the functions.
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {role};

-- name: later_tables
-- The same for tables that later migrations make.
ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {role};

-- name: later_sequences
-- The same for sequences that later migrations make.
ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT USAGE, SELECT, UPDATE ON SEQUENCES TO {role};

-- name: later_functions
-- The same for functions that later migrations make.
ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT EXECUTE ON FUNCTIONS TO {role};

-- name: guard_list
-- Which migrations were applied is not the role's to write.
REVOKE INSERT, UPDATE, DELETE ON {schema}.migration FROM {role};
