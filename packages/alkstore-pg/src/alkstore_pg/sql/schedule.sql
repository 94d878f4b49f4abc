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
-- The schedules whose next boundary has come, one row without a name if there is none; and now, whether the lease is live,
-- and the first boundary after now, or with a lease that is not live the first of all. The last instant of the calendar
-- is never due, even when it is now.
SELECT
    moment.now,
    lease.is_live,
    (
        SELECT min(ahead.next_fire_at) FROM {schema}.schedule AS ahead
        WHERE ahead.next_fire_at > CASE
            WHEN lease.is_live THEN least(moment.now, 253402300799999998)
            ELSE -62135596800000001
        END
    ),
    s.name, s.revision, s.every, s.queue, s.next_fire_at
FROM (SELECT {schema}.now() AS now) AS moment
CROSS JOIN LATERAL (
    SELECT $1::text IS NULL OR EXISTS (
        SELECT FROM {schema}.lock AS l
        WHERE l.name = $1::text AND l.fence = $2::bigint AND l.expires_at > moment.now
    ) AS is_live
) AS lease
LEFT JOIN {schema}.schedule AS s
    ON lease.is_live AND s.next_fire_at <= least({schema}.now(), 253402300799999998)
ORDER BY s.name;

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
