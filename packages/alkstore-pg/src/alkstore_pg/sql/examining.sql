-- What only the server can tell of a storage's state. Nothing here is written, and nothing waits for a lock of others.

-- name: surroundings
-- The server, its clock, and the size of what is in the schema. A relation that goes meanwhile has no size.
SELECT
    current_setting('server_version'),
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    pg_database_size(current_database())::bigint,
    coalesce((
        SELECT sum(pg_total_relation_size(c.oid))
        FROM pg_catalog.pg_class AS c
        JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = $1::text AND c.relkind = 'r'
    ), 0)::bigint,
    current_setting('max_connections')::bigint,
    (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend')::bigint;

-- name: tables
-- Rows and dead rows of each table as the statistics have it, and whether autovacuum is on for it.
SELECT
    s.relname::text,
    s.n_live_tup::bigint,
    s.n_dead_tup::bigint,
    extract(epoch FROM clock_timestamp() - greatest(s.last_autovacuum, s.last_vacuum))::float8
FROM pg_catalog.pg_stat_user_tables AS s
WHERE s.schemaname = $1::text
ORDER BY s.relname;

-- name: snapshots
-- Who holds old rows back, the oldest first: sessions of this database, prepared transactions, replication slots. Others'
-- sessions show what they do only to those who may see it.
SELECT held.what, held.who, held.xids, held.seconds
FROM (
    SELECT
        'session' AS what,
        a.pid::text || coalesce(' (' || nullif(a.application_name, '') || ')', '') AS who,
        age(a.backend_xmin)::bigint AS xids,
        extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds
    FROM pg_catalog.pg_stat_activity AS a
    WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_xmin IS NOT NULL
    UNION ALL
    SELECT
        'prepared transaction', p.gid, age(p.transaction)::bigint,
        extract(epoch FROM clock_timestamp() - p.prepared)::float8
    FROM pg_catalog.pg_prepared_xacts AS p
    WHERE p.database = current_database()
    UNION ALL
    SELECT 'replication slot', r.slot_name::text, age(r.xmin)::bigint, NULL
    FROM pg_catalog.pg_replication_slots AS r
    WHERE r.xmin IS NOT NULL
) AS held
ORDER BY held.xids DESC, held.who;

-- name: idlers
-- Sessions of this database that have a transaction open and do nothing.
SELECT
    a.pid::bigint,
    coalesce(a.application_name, ''),
    extract(epoch FROM clock_timestamp() - a.state_change)::float8
FROM pg_catalog.pg_stat_activity AS a
WHERE a.datname = current_database() AND a.state LIKE 'idle in transaction%'
ORDER BY a.state_change, a.pid;
