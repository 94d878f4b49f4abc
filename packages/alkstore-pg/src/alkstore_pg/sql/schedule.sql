-- Schedules; what takes more than one statement is a function of migrations/0004_leases.sql.

-- name: now
-- The instant from which a schedule that is written anew counts.
SELECT {schema}.now();

-- name: put
-- Write a schedule, whole, and tell others; gives its next boundary.
SELECT {schema}.put_schedule(
    $1::text, $2::text, $3::bigint, $4::bigint, $5::text, $6::bytea, $7::bigint, $8::bigint, $9::bigint, $10::bigint,
    $11::bigint, $12::bigint, $13::text[], $14::bigint
);

-- name: delete
-- Delete a schedule, and tell others if there was one.
SELECT {schema}.delete_schedule($1::text, $2::text[], $3::bigint);

-- name: due
-- The schedules whose next boundary has come, and what else a pass must know; one row without a name if there is none.
SELECT instant, is_live, next_at, name, revision, every, queue, next_fire_at
FROM {schema}.due_schedules($1::text, $2::bigint);

-- name: fire
-- Enqueue what is due and advance, if the lease is live.
SELECT {schema}.fire(
    $1::text, $2::bigint, $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[], $8::bigint[], $9::text[],
    $10::bigint
);

-- name: all
-- Every schedule.
SELECT
    name, spec, every, anchor, queue, payload, priority, visibility_timeout, max_attempts, base_delay, expires,
    next_fire_at
FROM {schema}.schedule
ORDER BY name;
