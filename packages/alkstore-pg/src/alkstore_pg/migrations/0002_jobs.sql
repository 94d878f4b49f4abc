-- What becomes of jobs, where it takes more than one statement: a function is one round trip, and a backend plans each
-- of its statements once. What is switched off for a function is what a planner with old statistics likes too well: a
-- plan that was made while a table was empty is kept when there are a million rows.

-- Take jobs. First put in its place what time has moved, in portions: a call that met more than one portion takes nothing
-- and is to be made again. Then the rows in line, level by level of priority, each level by one search in the index: the
-- delayed rows of a level are not walked past. With marks (levels, high to low, and for each the run_at to begin at) the
-- walk passes what was claimed before and cannot be cleaned away; levels that have no mark are walked whole, so only rows
-- below a mark wait for a call without marks. Looks at deadlines and expiries begin after looked, then.
-- The last row is no job, its id is NULL: run_at is now, deadline the instant at which it is worth asking again,
-- attempts the microseconds that it took, priority 1 if it is to be called again.
CREATE FUNCTION {schema}.claim(
    in_queue text, workers text[], wanted bigint, ticket bigint, levels bigint[], marks bigint[], looked bigint
)
RETURNS TABLE (
    id bigint, payload bytea, headers bytea, priority bigint, run_at bigint, expires_at bigint, attempts bigint,
    max_attempts bigint, visibility_timeout bigint, base_delay bigint, deadline bigint, created_at bigint,
    scheduled_for bigint, retry_error text, worker_id text
)
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_incremental_sort = off
AS $body$
#variable_conflict use_column
DECLARE
    portion CONSTANT bigint := 10000;
    burials CONSTANT bigint := 1000;
    instant CONSTANT bigint := {schema}.now();
    began CONSTANT timestamptz := clock_timestamp();
    since bigint := coalesce(looked, -9223372036854775808);
    known bigint[] := coalesce(levels, '{}');
    moved bigint;
    lapsed bigint := 0;
    is_done boolean := true;
    taken bigint[] := '{}';
    more bigint[];
    high bigint := 9223372036854775807;
    low bigint;
    level bigint;
    begins bigint;
    next_at bigint;
    at bigint;
BEGIN
    IF EXISTS (SELECT FROM {schema}.job AS j
               WHERE j.queue = in_queue AND j.place = 1 AND j.deadline > since AND j.deadline <= instant)
        OR EXISTS (SELECT FROM {schema}.job AS j
                   WHERE j.queue = in_queue AND j.place = 2 AND j.deadline > since AND j.deadline <= instant)
        OR EXISTS (SELECT FROM {schema}.job AS j
                   WHERE j.queue = in_queue AND j.place = 0 AND j.expires_at > since AND j.expires_at <= instant)
        OR EXISTS (SELECT FROM {schema}.job AS j
                   WHERE j.queue = in_queue AND j.place = 3 AND j.expires_at > instant)
        OR EXISTS (SELECT FROM {schema}.job AS j
                   WHERE j.queue = in_queue AND j.place = 0 AND j.deadline > instant)
    THEN
        -- Lapsed rows with attempts left get their old place in line; they read as claimed until somebody takes them.
        UPDATE {schema}.job AS j SET place = 0
        WHERE j.queue = in_queue AND j.id = ANY (ARRAY(
            SELECT r.id FROM {schema}.job AS r
            WHERE r.queue = in_queue AND r.place = 1 AND r.deadline > since AND r.deadline <= instant
            ORDER BY r.deadline, r.id LIMIT portion FOR UPDATE SKIP LOCKED
        ));
        GET DIAGNOSTICS lapsed = ROW_COUNT;
        is_done := lapsed < portion;
        -- Expired rows are taken out of the line, each once: or every claim would walk past all of them.
        UPDATE {schema}.job AS j SET place = 3
        WHERE j.queue = in_queue AND j.id = ANY (ARRAY(
            SELECT r.id FROM {schema}.job AS r
            WHERE r.queue = in_queue AND r.place = 0 AND r.expires_at <= instant
                AND (lapsed > 0 OR r.expires_at > since)
            ORDER BY r.expires_at, r.id LIMIT portion FOR UPDATE SKIP LOCKED
        ));
        GET DIAGNOSTICS moved = ROW_COUNT;
        is_done := is_done AND moved < portion;
        -- What a clock stepped back has not expired after all is put back in line,
        UPDATE {schema}.job AS j SET place = 0
        WHERE j.queue = in_queue AND j.id = ANY (ARRAY(
            SELECT r.id FROM {schema}.job AS r
            WHERE r.queue = in_queue AND r.place = 3 AND r.expires_at > instant
            ORDER BY r.expires_at, r.id LIMIT portion FOR UPDATE SKIP LOCKED
        ));
        GET DIAGNOSTICS moved = ROW_COUNT;
        is_done := is_done AND moved < portion;
        lapsed := lapsed + moved;
        -- and what it has not let lapse after all is taken out of line.
        UPDATE {schema}.job AS j SET place = CASE WHEN j.attempts < j.max_attempts THEN 1 ELSE 2 END
        WHERE j.queue = in_queue AND j.id = ANY (ARRAY(
            SELECT r.id FROM {schema}.job AS r
            WHERE r.queue = in_queue AND r.place = 0 AND r.deadline > instant
            ORDER BY r.deadline, r.id LIMIT portion FOR UPDATE SKIP LOCKED
        ));
        GET DIAGNOSTICS moved = ROW_COUNT;
        is_done := is_done AND moved < portion;
        IF is_done THEN -- with the last portion: a claim buries so many, however many portions it takes
            WITH gone AS (
                DELETE FROM {schema}.job AS j
                WHERE j.queue = in_queue AND j.id = ANY (ARRAY(
                    SELECT r.id FROM {schema}.job AS r
                    WHERE r.queue = in_queue AND r.place = 2 AND r.deadline > since AND r.deadline <= instant
                    ORDER BY r.deadline, r.id LIMIT burials FOR UPDATE SKIP LOCKED
                ))
                RETURNING
                    j.id, j.priority, j.run_at, j.attempts, j.max_attempts, j.visibility_timeout, j.base_delay,
                    j.created_at, j.expires_at, j.scheduled_for, j.queue, j.payload, j.headers
            )
            INSERT INTO {schema}.dead (
                id, priority, run_at, attempts, max_attempts, visibility_timeout, base_delay, created_at, expires_at,
                scheduled_for, queue, payload, headers, died_at, last_error
            )
            SELECT
                g.id, g.priority, g.run_at, g.attempts, g.max_attempts, g.visibility_timeout, g.base_delay, g.created_at,
                g.expires_at, g.scheduled_for, g.queue, g.payload, g.headers, instant,
                'visibility timeout lapsed on the last attempt'
            FROM gone AS g;
        END IF;
        IF lapsed > 0 THEN
            known := '{}'; -- their places are below any mark
        END IF;
    END IF;

    IF is_done THEN
        <<bands>>
        FOR i IN 1 .. cardinality(known) + 1 LOOP
            -- The levels between this mark and the one before, each found by the first of its rows.
            low := CASE
                WHEN i > cardinality(known) THEN -9223372036854775808
                WHEN known[i] = 9223372036854775807 THEN NULL
                ELSE known[i] + 1
            END;
            WHILE high >= low LOOP
                SELECT j.priority, j.run_at INTO level, at FROM {schema}.job AS j
                WHERE j.queue = in_queue AND j.place = 0 AND j.priority <= high AND j.priority >= low
                ORDER BY j.priority DESC, j.run_at, j.id LIMIT 1;
                EXIT WHEN NOT FOUND;
                IF at <= instant THEN
                    more := ARRAY(
                        SELECT j.id FROM {schema}.job AS j
                        WHERE j.queue = in_queue AND j.place = 0 AND j.priority = level AND j.run_at <= instant
                            AND (j.expires_at IS NULL OR j.expires_at > instant)
                            AND (j.deadline IS NULL OR j.deadline <= instant)
                        ORDER BY j.run_at, j.id LIMIT wanted - cardinality(taken) FOR UPDATE SKIP LOCKED
                    );
                    taken := taken || more;
                    EXIT bands WHEN cardinality(taken) >= wanted;
                    SELECT j.run_at INTO at FROM {schema}.job AS j
                    WHERE j.queue = in_queue AND j.place = 0 AND j.priority = level AND j.run_at > instant
                    ORDER BY j.run_at, j.id LIMIT 1;
                END IF;
                next_at := least(next_at, at);
                EXIT WHEN level = -9223372036854775808;
                high := level - 1;
            END LOOP;
            EXIT WHEN i > cardinality(known);
            level := known[i];
            begins := marks[i];
            more := ARRAY(
                SELECT j.id FROM {schema}.job AS j
                WHERE j.queue = in_queue AND j.place = 0 AND j.priority = level AND j.run_at >= begins
                    AND j.run_at <= instant
                    AND (j.expires_at IS NULL OR j.expires_at > instant)
                    AND (j.deadline IS NULL OR j.deadline <= instant)
                ORDER BY j.run_at, j.id LIMIT wanted - cardinality(taken) FOR UPDATE SKIP LOCKED
            );
            taken := taken || more;
            EXIT WHEN cardinality(taken) >= wanted;
            SELECT j.run_at INTO at FROM {schema}.job AS j
            WHERE j.queue = in_queue AND j.place = 0 AND j.priority = level AND j.run_at > instant
            ORDER BY j.run_at, j.id LIMIT 1;
            next_at := least(next_at, at);
            EXIT WHEN level = -9223372036854775808;
            high := level - 1;
        END LOOP;
        IF cardinality(workers) = 1 THEN
            RETURN QUERY
            UPDATE {schema}.job AS j
            SET
                place = CASE WHEN j.attempts + 1 < j.max_attempts THEN 1 ELSE 2 END, attempts = j.attempts + 1,
                worker_id = workers[1], deadline = {schema}.shift(instant, j.visibility_timeout), token = ticket # j.id
            WHERE j.queue = in_queue AND j.id = ANY (taken)
            RETURNING
                j.id, j.payload, j.headers, j.priority, j.run_at, j.expires_at, j.attempts, j.max_attempts,
                j.visibility_timeout, j.base_delay, j.deadline, j.created_at, j.scheduled_for, j.retry_error,
                j.worker_id;
        ELSIF cardinality(taken) > 0 THEN
            RETURN QUERY
            UPDATE {schema}.job AS j
            SET
                place = CASE WHEN j.attempts + 1 < j.max_attempts THEN 1 ELSE 2 END, attempts = j.attempts + 1,
                worker_id = t.worker, deadline = {schema}.shift(instant, j.visibility_timeout), token = ticket # j.id
            FROM unnest(taken, workers) AS t (id, worker)
            WHERE j.queue = in_queue AND j.id = ANY (taken) AND j.id = t.id
            RETURNING
                j.id, j.payload, j.headers, j.priority, j.run_at, j.expires_at, j.attempts, j.max_attempts,
                j.visibility_timeout, j.base_delay, j.deadline, j.created_at, j.scheduled_for, j.retry_error,
                j.worker_id;
        END IF;
        IF cardinality(taken) < wanted THEN
            -- Asked after the claim: what it took lapses too.
            SELECT j.deadline INTO at FROM {schema}.job AS j
            WHERE j.queue = in_queue AND j.place = 1 AND j.deadline > instant
            ORDER BY j.deadline, j.id LIMIT 1;
            next_at := least(next_at, at);
        END IF;
    END IF;
    IF lapsed > cardinality(taken) THEN -- more work than ours
        PERFORM pg_notify({channel}, {schema}.wake_text('q', in_queue));
    END IF;
    RETURN QUERY SELECT
        NULL::bigint, NULL::bytea, NULL::bytea, CASE WHEN is_done THEN 0 ELSE 1 END::bigint, instant, NULL::bigint,
        (extract(epoch FROM clock_timestamp() - began) * 1000000)::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
        next_at, NULL::bigint, NULL::bigint, NULL::text, NULL::text;
END
$body$;

-- Forget jobs of one queue whose very claims are live. Gives now, and the ids that were there; ids are ascending.
CREATE FUNCTION {schema}.ack(
    in_queue text, ids bigint[], tokens bigint[], patience bigint, OUT instant bigint, OUT gone bigint[]
)
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $body$
DECLARE
    waits CONSTANT text := current_setting('lock_timeout');
BEGIN
    instant := {schema}.now();
    PERFORM set_config('lock_timeout', patience::text, true);
    WITH acked AS (
        DELETE FROM {schema}.job AS j
        USING unnest(ids, tokens) AS a (id, token)
        WHERE j.queue = in_queue AND j.id = ANY (ids) AND j.id = a.id AND j.token = a.token AND j.deadline > instant
        RETURNING j.id
    )
    SELECT array_agg(acked.id) INTO gone FROM acked;
    PERFORM set_config('lock_timeout', waits, true);
END
$body$;

-- Change jobs one after the other, each by itself; gives for each the instant at which it took effect, or NULL where it
-- did not. Kinds: 1 ack, 2 retry, 3 fail, 4 release, 5 heartbeat, 6 cancel, 7 redrive. All rows are locked first, in one
-- order: two calls never wait for each other crosswise.
CREATE FUNCTION {schema}.settle(
    kinds bigint[], queues text[], ids bigint[], tokens bigint[], amounts bigint[], errors text[], texts text[],
    patience bigint
)
RETURNS bigint[]
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $body$
#variable_conflict use_column
DECLARE
    waits CONSTANT text := current_setting('lock_timeout');
    instant CONSTANT bigint := {schema}.now();
    answer bigint[] := '{}';
    found bigint;
    at bigint;
    s record;
BEGIN
    PERFORM set_config('lock_timeout', patience::text, true);
    PERFORM FROM (SELECT u.queue, u.id FROM unnest(queues, ids) AS u (queue, id) ORDER BY u.queue, u.id) AS s
    CROSS JOIN LATERAL (
        SELECT FROM {schema}.job AS j WHERE j.queue = s.queue AND j.id = s.id FOR UPDATE
    ) AS locked;
    IF 7 = ANY (kinds) THEN
        PERFORM FROM (SELECT u.queue, u.id FROM unnest(queues, ids) AS u (queue, id) ORDER BY u.queue, u.id) AS s
        CROSS JOIN LATERAL (
            SELECT FROM {schema}.dead AS d WHERE d.queue = s.queue AND d.id = s.id FOR UPDATE
        ) AS locked;
    END IF;
    FOR s IN
        SELECT u.kind, u.queue, u.id, u.token, u.amount, u.error
        FROM unnest(kinds, queues, ids, tokens, amounts, errors) AS u (kind, queue, id, token, amount, error)
    LOOP
        at := instant;
        CASE s.kind
        WHEN 1 THEN
            DELETE FROM {schema}.job AS j
            WHERE j.queue = s.queue AND j.id = s.id AND j.token = s.token AND j.deadline > instant;
        WHEN 2 THEN
            UPDATE {schema}.job AS j
            SET
                place = 0, worker_id = NULL, deadline = NULL, token = NULL,
                run_at = {schema}.shift(instant, s.amount), retry_error = s.error
            WHERE j.queue = s.queue AND j.id = s.id AND j.token = s.token AND j.deadline > instant;
        WHEN 3 THEN
            WITH gone AS (
                DELETE FROM {schema}.job AS j
                WHERE j.queue = s.queue AND j.id = s.id AND j.token = s.token AND j.deadline > instant
                RETURNING
                    j.id, j.priority, j.run_at, j.attempts, j.max_attempts, j.visibility_timeout, j.base_delay,
                    j.created_at, j.expires_at, j.scheduled_for, j.queue, j.payload, j.headers
            )
            INSERT INTO {schema}.dead (
                id, priority, run_at, attempts, max_attempts, visibility_timeout, base_delay, created_at, expires_at,
                scheduled_for, queue, payload, headers, died_at, last_error
            )
            SELECT
                g.id, g.priority, g.run_at, g.attempts, g.max_attempts, g.visibility_timeout, g.base_delay, g.created_at,
                g.expires_at, g.scheduled_for, g.queue, g.payload, g.headers, instant, s.error
            FROM gone AS g;
        WHEN 4 THEN
            UPDATE {schema}.job AS j
            SET place = 0, worker_id = NULL, deadline = NULL, token = NULL, attempts = j.attempts - 1
            WHERE j.queue = s.queue AND j.id = s.id AND j.token = s.token AND j.deadline > instant;
        WHEN 5 THEN
            at := {schema}.shift(instant, s.amount);
            UPDATE {schema}.job AS j
            SET deadline = at
            WHERE j.queue = s.queue AND j.id = s.id AND j.token = s.token AND j.deadline > instant;
        WHEN 6 THEN
            DELETE FROM {schema}.job AS j
            WHERE j.queue = s.queue AND j.id = s.id AND j.deadline IS NULL;
        WHEN 7 THEN
            WITH gone AS (
                DELETE FROM {schema}.dead AS d
                WHERE d.queue = s.queue AND d.id = s.id
                RETURNING
                    d.id, d.priority, d.max_attempts, d.visibility_timeout, d.base_delay, d.created_at, d.scheduled_for,
                    d.queue, d.payload, d.headers
            )
            INSERT INTO {schema}.job (
                id, priority, run_at, max_attempts, visibility_timeout, base_delay, created_at, scheduled_for, queue,
                payload, headers
            )
            SELECT
                g.id, g.priority, instant, g.max_attempts, g.visibility_timeout, g.base_delay, g.created_at,
                g.scheduled_for, g.queue, g.payload, g.headers
            FROM gone AS g;
        END CASE;
        GET DIAGNOSTICS found = ROW_COUNT;
        answer := answer || CASE WHEN found > 0 THEN at END;
    END LOOP;
    PERFORM pg_notify({channel}, t.text) FROM unnest(texts) AS t (text);
    PERFORM set_config('lock_timeout', waits, true);
    RETURN answer;
END
$body$;

-- Move a portion of what qualified at an instant (NULL: now) to the dead, and pass over what others have locked. Gives
-- that instant, how many were moved, and whether anything is left that qualifies.
CREATE FUNCTION {schema}.sweep(
    in_queue text, before bigint, portion bigint, OUT instant bigint, OUT moved bigint, OUT is_left boolean
)
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_incremental_sort = off
AS $body$
#variable_conflict use_column
DECLARE
    died CONSTANT bigint := {schema}.now();
    found bigint[];
    reason text;
BEGIN
    instant := coalesce(before, died);
    moved := 0;
    is_left := false;
    FOR spot IN 0 .. 4 LOOP
        IF spot < 4 THEN
            reason := 'expired';
            found := ARRAY(
                SELECT j.id FROM {schema}.job AS j
                WHERE j.queue = in_queue AND j.place = spot::smallint AND j.expires_at <= instant
                    AND (j.deadline IS NULL OR j.deadline <= instant)
                ORDER BY j.expires_at, j.id LIMIT portion - moved FOR UPDATE SKIP LOCKED
            );
        ELSE
            reason := 'visibility timeout lapsed on the last attempt';
            found := ARRAY(
                SELECT j.id FROM {schema}.job AS j
                WHERE j.queue = in_queue AND j.place = 2 AND j.deadline <= instant
                ORDER BY j.deadline, j.id LIMIT portion - moved FOR UPDATE SKIP LOCKED
            );
        END IF;
        WITH gone AS (
            DELETE FROM {schema}.job AS j
            WHERE j.queue = in_queue AND j.id = ANY (found)
            RETURNING
                j.id, j.priority, j.run_at, j.attempts, j.max_attempts, j.visibility_timeout, j.base_delay,
                j.created_at, j.expires_at, j.scheduled_for, j.queue, j.payload, j.headers
        )
        INSERT INTO {schema}.dead (
            id, priority, run_at, attempts, max_attempts, visibility_timeout, base_delay, created_at, expires_at,
            scheduled_for, queue, payload, headers, died_at, last_error
        )
        SELECT
            g.id, g.priority, g.run_at, g.attempts, g.max_attempts, g.visibility_timeout, g.base_delay, g.created_at,
            g.expires_at, g.scheduled_for, g.queue, g.payload, g.headers, died, reason
        FROM gone AS g;
        moved := moved + cardinality(found);
        is_left := moved >= portion;
        EXIT WHEN is_left;
    END LOOP;
    IF NOT is_left THEN
        is_left := EXISTS (
            SELECT FROM {schema}.job AS j
            WHERE j.queue = in_queue AND j.place IN (0, 1, 2, 3) AND j.expires_at <= instant
                AND (j.deadline IS NULL OR j.deadline <= instant)
        ) OR EXISTS (
            SELECT FROM {schema}.job AS j WHERE j.queue = in_queue AND j.place = 2 AND j.deadline <= instant
        );
    END IF;
END
$body$;
