-- name: grid
-- What decides whether a schedule that is written anew keeps its next boundary.
SELECT every, anchor, next_fire_at FROM alkstore_schedule WHERE name = ?1;

-- name: delete
-- Delete a schedule.
DELETE FROM alkstore_schedule WHERE name = ?1 RETURNING id;

-- name: insert
-- Write a schedule under a new id: that is what tells watchers of a change that keeps the number of rows.
INSERT INTO alkstore_schedule (
    name, spec, every, anchor, queue, payload, priority, visibility_timeout, max_attempts, base_delay, expires,
    next_fire_at
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12);

-- name: due
-- The schedules whose next boundary has come; sorted by who asks.
SELECT
    name, spec, every, anchor, queue, payload, priority, visibility_timeout, max_attempts, base_delay, expires,
    next_fire_at
FROM alkstore_schedule
WHERE next_fire_at <= ?1;

-- name: advance
-- Set the next boundary of a schedule that has fired; its id stays, for nobody need be told.
UPDATE alkstore_schedule SET next_fire_at = ?2 WHERE name = ?1;

-- name: next_at
-- The first boundary after an instant.
SELECT MIN(next_fire_at) FROM alkstore_schedule WHERE next_fire_at > ?1;

-- name: all
-- Every schedule; sorted by who asks, because a file in UTF-16 sorts otherwise.
SELECT
    name, spec, every, anchor, queue, payload, priority, visibility_timeout, max_attempts, base_delay, expires,
    next_fire_at
FROM alkstore_schedule;
