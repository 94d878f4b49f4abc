-- Locks and schedules, where it takes more than one statement. patience is in milliseconds: how long a call waits for a
-- row that somebody else holds; the setting ends with the transaction, and these calls are one each. What is asked for by
-- name is never looked for in the whole table, which a plan from when the table was small would do; and what a planner
-- then finds dear it must not compile first.

-- Take a lock that is free or lapsed, with the next fence; taken is NULL while somebody holds it, until the end.
CREATE FUNCTION {schema}.take_lock(wanted text, ttl bigint, patience bigint, OUT taken bigint, OUT until bigint)
LANGUAGE plpgsql
SET enable_seqscan = off
SET jit = off
AS $alkstore$
DECLARE
    instant CONSTANT bigint := {schema}.now();
BEGIN
    -- Most who are refused are refused here, without a write.
    SELECT l.expires_at INTO until FROM {schema}.lock AS l WHERE l.name = wanted AND l.expires_at > instant;
    IF FOUND THEN
        RETURN;
    END IF;
    PERFORM set_config('lock_timeout', patience::text, true);
    INSERT INTO {schema}.lock AS l (name, fence, expires_at)
    VALUES (wanted, 1, {schema}.shift(instant, ttl))
    ON CONFLICT (name) DO UPDATE SET fence = l.fence + 1, expires_at = excluded.expires_at
    WHERE l.expires_at IS NULL OR l.expires_at <= instant
    RETURNING l.fence, l.expires_at INTO taken, until;
    IF NOT FOUND THEN
        -- Somebody else was faster; the conflict holds the row, so it is still his.
        SELECT l.expires_at INTO until FROM {schema}.lock AS l WHERE l.name = wanted;
    END IF;
END
$alkstore$;

-- Move the end of a live lease to now + ttl, free it if ttl is 0, and tell others if its end comes sooner. NULL if this
-- fence is not live: then nothing has changed.
CREATE FUNCTION {schema}.renew_lock(
    wanted text, holder bigint, ttl bigint, texts text[], patience bigint
) RETURNS bigint
LANGUAGE plpgsql
SET enable_seqscan = off
SET jit = off
AS $alkstore$
DECLARE
    instant CONSTANT bigint := {schema}.now();
    until CONSTANT bigint := {schema}.shift(instant, ttl);
    before bigint;
BEGIN
    PERFORM set_config('lock_timeout', patience::text, true);
    SELECT l.expires_at INTO before FROM {schema}.lock AS l
    WHERE l.name = wanted AND l.fence = holder AND l.expires_at > instant
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    UPDATE {schema}.lock AS l SET expires_at = CASE WHEN ttl <> 0 THEN until END WHERE l.name = wanted;
    IF until < before THEN
        PERFORM pg_notify({channel}, wake.text) FROM unnest(texts) AS wake (text);
    END IF;
    RETURN until;
END
$alkstore$;

-- Write a schedule, whole. The grid that is there keeps its next boundary, another one begins with fresh.
CREATE FUNCTION {schema}.put_schedule(
    wanted text, spec text, every bigint, anchor bigint, queue text, payload bytea, priority bigint,
    visibility_timeout bigint, max_attempts bigint, base_delay bigint, expires bigint, fresh bigint,
    texts text[], patience bigint
) RETURNS bigint
LANGUAGE plpgsql
SET enable_seqscan = off
SET jit = off
AS $alkstore$
#variable_conflict use_column
DECLARE
    boundary bigint;
BEGIN
    PERFORM set_config('lock_timeout', patience::text, true);
    INSERT INTO {schema}.schedule AS s (
        name, spec, every, anchor, queue, payload, priority, visibility_timeout, max_attempts, base_delay, expires,
        next_fire_at
    )
    VALUES (
        wanted, put_schedule.spec, put_schedule.every, put_schedule.anchor, put_schedule.queue, put_schedule.payload,
        put_schedule.priority, put_schedule.visibility_timeout, put_schedule.max_attempts, put_schedule.base_delay,
        put_schedule.expires, fresh
    )
    ON CONFLICT (name) DO UPDATE SET
        revision = excluded.revision, spec = excluded.spec, every = excluded.every, anchor = excluded.anchor,
        queue = excluded.queue, payload = excluded.payload, priority = excluded.priority,
        visibility_timeout = excluded.visibility_timeout, max_attempts = excluded.max_attempts,
        base_delay = excluded.base_delay, expires = excluded.expires,
        next_fire_at = CASE
            WHEN s.every = excluded.every AND s.anchor IS NOT DISTINCT FROM excluded.anchor THEN s.next_fire_at
            ELSE excluded.next_fire_at
        END
    RETURNING s.next_fire_at INTO boundary;
    PERFORM pg_notify({channel}, wake.text) FROM unnest(texts) AS wake (text);
    RETURN boundary;
END
$alkstore$;

-- Delete a schedule, and tell others if there was one.
CREATE FUNCTION {schema}.delete_schedule(wanted text, texts text[], patience bigint) RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off
SET jit = off
AS $alkstore$
BEGIN
    PERFORM set_config('lock_timeout', patience::text, true);
    DELETE FROM {schema}.schedule AS s WHERE s.name = wanted;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pg_notify({channel}, wake.text) FROM unnest(texts) AS wake (text);
    RETURN true;
END
$alkstore$;

-- The schedules whose next boundary has come, by name, one row without a name if there is none; with each now, whether the
-- lease is live, and the first boundary after now, or with a lease that is not live the first of all. The last instant of
-- the calendar is never due, even when it is now.
CREATE FUNCTION {schema}.due_schedules(in_lease text, in_holder bigint)
RETURNS TABLE (
    instant bigint, is_live boolean, next_at bigint, name text, revision bigint, every bigint, queue text,
    next_fire_at bigint
)
LANGUAGE plpgsql
STABLE
SET enable_seqscan = off
SET jit = off
AS $alkstore$
#variable_conflict use_column
DECLARE
    moment CONSTANT bigint := {schema}.now();
    last CONSTANT bigint := least(moment, 253402300799999998);
    live CONSTANT boolean := in_lease IS NULL OR EXISTS (
        SELECT FROM {schema}.lock AS l WHERE l.name = in_lease AND l.fence = in_holder AND l.expires_at > moment
    );
    ahead CONSTANT bigint := (
        SELECT min(s.next_fire_at) FROM {schema}.schedule AS s
        WHERE s.next_fire_at > CASE WHEN live THEN last ELSE -62135596800000001 END
    );
BEGIN
    IF live THEN
        RETURN QUERY
        SELECT moment, live, ahead, s.name, s.revision, s.every, s.queue, s.next_fire_at
        FROM {schema}.schedule AS s
        WHERE s.next_fire_at <= last
        ORDER BY s.name;
    END IF;
    IF NOT FOUND OR NOT live THEN
        RETURN QUERY SELECT moment, live, ahead, NULL::text, NULL::bigint, NULL::bigint, NULL::text, NULL::bigint;
    END IF;
END
$alkstore$;

-- Enqueue the boundaries of schedules and advance them, in one step with the look whether the lease is live: NULL, and
-- nothing done, if it is not. Only those are fired that still are at the revision and the boundary from which the caller
-- worked this out; gives the number of jobs. names is sorted, so that no two callers hold what the other waits for; owners
-- and boundaries are the fires, in the order in which they get their ids.
CREATE FUNCTION {schema}.fire(
    lease text, holder bigint, names text[], revisions bigint[], expected bigint[], following bigint[],
    owners text[], boundaries bigint[], texts text[], patience bigint
) RETURNS bigint
LANGUAGE plpgsql
SET enable_seqscan = off
SET jit = off
AS $alkstore$
DECLARE
    instant CONSTANT bigint := {schema}.now();
    fired bigint;
BEGIN
    PERFORM set_config('lock_timeout', patience::text, true);
    IF lease IS NOT NULL THEN
        -- The lock keeps whoever takes the lease over from firing before this has landed.
        PERFORM FROM {schema}.lock AS l
        WHERE l.name = lease AND l.fence = holder AND l.expires_at > instant
        FOR SHARE;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
    END IF;
    WITH due AS MATERIALIZED (
        SELECT s.name, wanted.following
        FROM unnest(names, revisions, expected, following) WITH ORDINALITY
            AS wanted (name, revision, expected, following, n)
        JOIN {schema}.schedule AS s
            ON s.name = wanted.name AND s.revision = wanted.revision AND s.next_fire_at = wanted.expected
        ORDER BY wanted.n
        FOR NO KEY UPDATE OF s
    ),
    advanced AS (
        UPDATE {schema}.schedule AS s SET next_fire_at = due.following FROM due WHERE s.name = due.name
        RETURNING s.*
    )
    INSERT INTO {schema}.job (
        queue, payload, headers, priority, run_at, expires_at, max_attempts, visibility_timeout, base_delay, created_at,
        scheduled_for
    )
    SELECT
        a.queue, a.payload, '{}', a.priority, instant, {schema}.shift(instant, a.expires), a.max_attempts,
        a.visibility_timeout, a.base_delay, instant, fires.boundary
    FROM unnest(owners, boundaries) WITH ORDINALITY AS fires (owner, boundary, n)
    JOIN advanced AS a ON a.name = fires.owner
    ORDER BY fires.n;
    GET DIAGNOSTICS fired = ROW_COUNT;
    IF fired > 0 THEN
        PERFORM pg_notify({channel}, wake.text) FROM unnest(texts) AS wake (text);
    END IF;
    RETURN fired;
END
$alkstore$;
