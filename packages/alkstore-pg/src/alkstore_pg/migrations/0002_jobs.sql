-- What becomes of jobs, where it takes more than one statement: a function is one round trip, and a backend plans each
-- of its statements once. Such a plan may be made while a table is empty and serve when there are a million rows, so
-- nothing is left to the planner: what is switched off leaves one way to every row, its index in its order; rows that are
-- locked are changed by their ctid, which nobody else can change meanwhile; and coalesce keeps deadlines that are compared
-- from leading into job_held, past what is dead and not cleaned away. All of that costs 0.5 µs a setting and a call.

-- Move locked rows to the dead, each with its reason, or all of them with the only one.
CREATE FUNCTION {schema}.bury(spots tid[], instant bigint, VARIADIC reasons text[])
RETURNS void
LANGUAGE plpgsql
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $alkstore$
BEGIN
    WITH gone AS (
        DELETE FROM {schema}.job AS j
        USING unnest(spots, reasons) AS f (spot, reason)
        WHERE j.ctid = f.spot
        RETURNING
            j.id, j.priority, j.run_at, j.attempts, j.max_attempts, j.visibility_timeout, j.base_delay, j.created_at,
            j.expires_at, j.scheduled_for, j.queue, j.payload, j.headers, coalesce(f.reason, reasons[1]) AS reason
    )
    INSERT INTO {schema}.dead (
        id, priority, run_at, attempts, max_attempts, visibility_timeout, base_delay, created_at, expires_at,
        scheduled_for, queue, payload, headers, died_at, last_error
    )
    SELECT
        g.id, g.priority, g.run_at, g.attempts, g.max_attempts, g.visibility_timeout, g.base_delay, g.created_at,
        g.expires_at, g.scheduled_for, g.queue, g.payload, g.headers, instant, g.reason
    FROM gone AS g;
END
$alkstore$;

-- Put what time has moved in its place, so many rows of each kind, and say whether that was all, how many came in line, and
-- from which levels of priority some were taken aside (NULL: none). Rows that others have locked are passed over. Lapses and
-- expiries up to and including since were seen to before.
CREATE FUNCTION {schema}.tidy(
    in_queue text, instant bigint, since bigint, portion bigint,
    OUT is_done boolean, OUT lined_up bigint, OUT cleared bigint[]
)
LANGUAGE plpgsql
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_incremental_sort = off
AS $alkstore$
DECLARE
    burials CONSTANT bigint := 1000;
    spots tid[];
    least_expiry bigint := since;
BEGIN
    -- Lapsed rows with attempts left get their old place in line; they read as claimed until somebody takes them.
    spots := ARRAY(
        SELECT j.ctid FROM {schema}.job AS j
        WHERE j.queue = in_queue AND j.place = 1 AND j.deadline > since AND j.deadline <= instant
        ORDER BY j.deadline, j.id LIMIT portion FOR UPDATE SKIP LOCKED
    );
    UPDATE {schema}.job AS j SET place = 0 WHERE j.ctid = ANY (spots);
    is_done := cardinality(spots) < portion;
    lined_up := cardinality(spots);
    IF lined_up > 0 THEN
        least_expiry := -9223372036854775808; -- some of them may have expired long ago
    END IF;
    -- Expired rows are taken out of the line, each once: or every claim would walk past all of them.
    spots := ARRAY(
        SELECT j.ctid FROM {schema}.job AS j
        WHERE j.queue = in_queue AND j.place = 0 AND j.expires_at > least_expiry AND j.expires_at <= instant
        ORDER BY j.expires_at, j.id LIMIT portion FOR UPDATE SKIP LOCKED
    );
    WITH moved AS (
        UPDATE {schema}.job AS j SET place = 3 WHERE j.ctid = ANY (spots) RETURNING j.priority
    ),
    levels AS (SELECT DISTINCT m.priority FROM moved AS m)
    SELECT array_agg(l.priority) INTO cleared FROM levels AS l;
    is_done := is_done AND cardinality(spots) < portion;
    -- What a clock stepped back has not expired after all is put back in line,
    spots := ARRAY(
        SELECT j.ctid FROM {schema}.job AS j
        WHERE j.queue = in_queue AND j.place = 3 AND j.expires_at > instant
        ORDER BY j.expires_at, j.id LIMIT portion FOR UPDATE SKIP LOCKED
    );
    UPDATE {schema}.job AS j SET place = 0 WHERE j.ctid = ANY (spots);
    is_done := is_done AND cardinality(spots) < portion;
    lined_up := lined_up + cardinality(spots);
    -- and what it has not let lapse after all is taken out of line.
    spots := ARRAY(
        SELECT j.ctid FROM {schema}.job AS j
        WHERE j.queue = in_queue AND j.place = 0 AND j.deadline > instant
        ORDER BY j.deadline, j.id LIMIT portion FOR UPDATE SKIP LOCKED
    );
    UPDATE {schema}.job AS j SET place = CASE WHEN j.attempts < j.max_attempts THEN 1 ELSE 2 END
    WHERE j.ctid = ANY (spots);
    is_done := is_done AND cardinality(spots) < portion;
    IF is_done THEN -- with the last portion: a claim buries so many, however many portions it takes
        spots := ARRAY(
            SELECT j.ctid FROM {schema}.job AS j
            WHERE j.queue = in_queue AND j.place = 2 AND j.deadline > since AND j.deadline <= instant
            ORDER BY j.deadline, j.id LIMIT burials FOR UPDATE SKIP LOCKED
        );
        PERFORM {schema}.bury(spots, instant, 'visibility timeout lapsed on the last attempt');
    END IF;
END
$alkstore$;

-- Take jobs. First what time has moved is put in its place; a call that met more than a portion of it takes nothing and is
-- to be made again. Then the rows in line, level by level of priority, each level by one search in the index: the delayed
-- rows of a level are not walked past. With marks (levels, high to low, and for each the run_at to begin at) the walk passes
-- what was claimed before and cannot be cleaned away; what has no mark is walked whole, so only rows below a mark wait for
-- a call without marks. looked, then, is the instant up to which lapses and expiries were seen to.
-- The last row is no job, its id is NULL: run_at is now, deadline the instant at which it is worth asking again,
-- attempts the microseconds that it took, priority 1 if it is to be called again, max_attempts 1 if its looks were slow:
-- each finds one row, so what takes long is the walk there, past what is dead and not cleaned away; cleared the levels of
-- priority from which expired rows were taken aside, for such a walk has no other trace.
CREATE FUNCTION {schema}.claim(
    in_queue text, workers text[], wanted bigint, ticket bigint, levels bigint[], marks bigint[], looked bigint
)
RETURNS TABLE (
    id bigint, payload bytea, headers bytea, priority bigint, run_at bigint, expires_at bigint, attempts bigint,
    max_attempts bigint, visibility_timeout bigint, base_delay bigint, deadline bigint, created_at bigint,
    scheduled_for bigint, retry_error text, worker_id text, cleared bigint[]
)
LANGUAGE plpgsql
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_incremental_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $alkstore$
#variable_conflict use_column
DECLARE
    portion CONSTANT bigint := 10000;
    slow CONSTANT interval := '0.5 ms';
    lowest CONSTANT bigint := -9223372036854775808;
    highest CONSTANT bigint := 9223372036854775807;
    hash CONSTANT bigint := hashtextextended(in_queue COLLATE "C", 0);
    instant CONSTANT bigint := {schema}.now();
    began CONSTANT timestamptz := clock_timestamp();
    since CONSTANT bigint := coalesce(looked, lowest);
    known bigint[] := levels;
    is_done boolean := true;
    lined_up bigint := 0;
    emptied bigint[];
    look_began timestamptz := began;
    looking interval;
    looks bigint := 1;
    taken tid[] := '{}';
    high bigint := highest;
    low bigint;
    level bigint;
    at bigint;
    next_at bigint;
BEGIN
    IF coalesce(
        (SELECT true FROM {schema}.job AS j
         WHERE j.queue = in_queue AND j.place = 1 AND j.deadline > since AND j.deadline <= instant
         ORDER BY j.deadline, j.id LIMIT 1),
        (SELECT true FROM {schema}.job AS j
         WHERE j.queue = in_queue AND j.place = 2 AND j.deadline > since AND j.deadline <= instant
         ORDER BY j.deadline, j.id LIMIT 1),
        (SELECT true FROM {schema}.job AS j
         WHERE j.queue = in_queue AND j.place = 0 AND j.expires_at > since AND j.expires_at <= instant
         ORDER BY j.expires_at, j.id LIMIT 1),
        (SELECT true FROM {schema}.job AS j
         WHERE j.queue = in_queue AND j.place = 3 AND j.expires_at > instant
         ORDER BY j.expires_at, j.id LIMIT 1),
        (SELECT true FROM {schema}.job AS j
         WHERE j.queue = in_queue AND j.place = 0 AND j.deadline > instant
         ORDER BY j.deadline, j.id LIMIT 1),
        false
    ) THEN
        looking := clock_timestamp() - look_began;
        SELECT t.is_done, t.lined_up, t.cleared INTO is_done, lined_up, emptied
        FROM {schema}.tidy(in_queue, instant, since, portion) AS t;
        IF lined_up > 0 THEN
            known := '{}'; -- their places are below any mark
        END IF;
    ELSE
        looking := clock_timestamp() - look_began;
    END IF;

    <<bands>>
    FOR i IN 1 .. CASE WHEN is_done THEN cardinality(known) + 1 ELSE 0 END LOOP
        -- The levels above this mark and below the one before, each found by the first of its rows.
        low := CASE WHEN i > cardinality(known) THEN lowest WHEN known[i] < highest THEN known[i] + 1 END;
        WHILE high >= low LOOP
            look_began := clock_timestamp();
            SELECT j.priority, j.run_at INTO level, at FROM {schema}.job AS j
            WHERE hashtextextended(j.queue, 0) = hash AND j.queue = in_queue AND j.place = 0
                AND j.priority <= high AND j.priority >= low
            ORDER BY j.priority DESC, j.run_at, j.id LIMIT 1;
            looking := looking + (clock_timestamp() - look_began);
            looks := looks + 1;
            EXIT WHEN level IS NULL;
            IF at <= instant THEN
                taken := taken || ARRAY(
                    SELECT j.ctid FROM {schema}.job AS j
                    WHERE hashtextextended(j.queue, 0) = hash AND j.queue = in_queue AND j.place = 0
                        AND j.priority = level AND j.run_at <= instant
                        AND coalesce(j.expires_at > instant, true) AND coalesce(j.deadline <= instant, true)
                    ORDER BY j.run_at, j.id LIMIT wanted - cardinality(taken) FOR UPDATE SKIP LOCKED
                );
                EXIT bands WHEN cardinality(taken) >= wanted;
                SELECT j.run_at INTO at FROM {schema}.job AS j
                WHERE hashtextextended(j.queue, 0) = hash AND j.queue = in_queue AND j.place = 0
                    AND j.priority = level AND j.run_at > instant
                ORDER BY j.run_at, j.id LIMIT 1;
            END IF;
            next_at := least(next_at, at);
            EXIT bands WHEN level = lowest;
            high := level - 1;
        END LOOP;
        EXIT WHEN i > cardinality(known);
        level := known[i];
        low := marks[i];
        taken := taken || ARRAY(
            SELECT j.ctid FROM {schema}.job AS j
            WHERE hashtextextended(j.queue, 0) = hash AND j.queue = in_queue AND j.place = 0
                AND j.priority = level AND j.run_at >= low AND j.run_at <= instant
                AND coalesce(j.expires_at > instant, true) AND coalesce(j.deadline <= instant, true)
            ORDER BY j.run_at, j.id LIMIT wanted - cardinality(taken) FOR UPDATE SKIP LOCKED
        );
        EXIT WHEN cardinality(taken) >= wanted OR level = lowest;
        SELECT j.run_at INTO at FROM {schema}.job AS j
        WHERE hashtextextended(j.queue, 0) = hash AND j.queue = in_queue AND j.place = 0
            AND j.priority = level AND j.run_at > instant
        ORDER BY j.run_at, j.id LIMIT 1;
        next_at := least(next_at, at);
        high := level - 1;
    END LOOP;

    IF cardinality(workers) = 1 THEN
        RETURN QUERY
        UPDATE {schema}.job AS j
        SET
            place = CASE WHEN j.attempts + 1 < j.max_attempts THEN 1 ELSE 2 END, attempts = j.attempts + 1,
            worker_id = workers[1], deadline = {schema}.shift(instant, j.visibility_timeout), token = ticket # j.id
        WHERE j.ctid = ANY (taken)
        RETURNING
            j.id, j.payload, j.headers, j.priority, j.run_at, j.expires_at, j.attempts, j.max_attempts,
            j.visibility_timeout, j.base_delay, j.deadline, j.created_at, j.scheduled_for, j.retry_error, j.worker_id,
            NULL::bigint[];
    ELSE
        RETURN QUERY
        UPDATE {schema}.job AS j
        SET
            place = CASE WHEN j.attempts + 1 < j.max_attempts THEN 1 ELSE 2 END, attempts = j.attempts + 1,
            worker_id = t.worker, deadline = {schema}.shift(instant, j.visibility_timeout), token = ticket # j.id
        FROM unnest(taken, workers[: cardinality(taken)]) AS t (spot, worker)
        WHERE j.ctid = t.spot
        RETURNING
            j.id, j.payload, j.headers, j.priority, j.run_at, j.expires_at, j.attempts, j.max_attempts,
            j.visibility_timeout, j.base_delay, j.deadline, j.created_at, j.scheduled_for, j.retry_error, j.worker_id,
            NULL::bigint[];
    END IF;
    IF is_done AND looked IS NULL AND cardinality(taken) < wanted THEN
        -- Asked after the claim: what it took lapses too.
        look_began := clock_timestamp();
        SELECT j.deadline INTO at FROM {schema}.job AS j
        WHERE j.queue = in_queue AND j.place = 1 AND j.deadline > instant
        ORDER BY j.deadline, j.id LIMIT 1;
        looking := looking + (clock_timestamp() - look_began);
        looks := looks + 1;
        next_at := least(next_at, at);
    END IF;
    IF lined_up > cardinality(taken) THEN -- more work than ours
        PERFORM pg_notify({channel}, {schema}.wake_text('q', in_queue));
    END IF;
    -- The columns are NULL until they are set; as a query the last row would cost as much as a look.
    priority := CASE WHEN is_done THEN 0 ELSE 1 END;
    run_at := instant;
    attempts := extract(epoch FROM clock_timestamp() - began) * 1000000;
    max_attempts := CASE WHEN looking > looks * slow THEN 1 ELSE 0 END;
    deadline := next_at;
    cleared := emptied;
    RETURN NEXT;
END
$alkstore$;

-- Forget jobs of one queue whose very claims are live; ids are ascending, so that two calls never wait for each other
-- crosswise. Gives now, and the ids that were there (NULL: none).
CREATE FUNCTION {schema}.ack(
    in_queue text, ids bigint[], tokens bigint[], texts text[], patience bigint, OUT instant bigint, OUT gone bigint[]
)
LANGUAGE plpgsql
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $alkstore$
DECLARE
    waits CONSTANT text := current_setting('lock_timeout');
    ignored text; -- an assignment is worked out where PERFORM is a query
    spots tid[];
BEGIN
    instant := {schema}.now();
    ignored := set_config('lock_timeout', patience::text, true);
    IF cardinality(ids) = 1 THEN
        DELETE FROM {schema}.job AS j
        WHERE j.queue = in_queue AND j.id = ids[1] AND j.token = tokens[1] AND coalesce(j.deadline > instant, false)
        RETURNING ARRAY[j.id] INTO gone;
    ELSE
        SELECT array_agg(live.spot), array_agg(live.id) INTO spots, gone
        FROM unnest(ids, tokens) AS a (id, token)
        CROSS JOIN LATERAL (
            SELECT j.ctid AS spot, j.id FROM {schema}.job AS j
            WHERE j.queue = in_queue AND j.id = a.id AND j.token = a.token AND coalesce(j.deadline > instant, false)
            FOR UPDATE
        ) AS live;
        DELETE FROM {schema}.job AS j WHERE j.ctid = ANY (spots);
    END IF;
    IF texts <> '{}' THEN -- an ack concerns nobody, but it carries what is owed to others
        PERFORM pg_notify({channel}, t.text) FROM unnest(texts) AS t (text);
    END IF;
    ignored := set_config('lock_timeout', waits, true);
END
$alkstore$;

-- Change jobs, each by itself; gives which of them landed, by their numbers from 1, and for each of those the instant at
-- which it took effect. Kinds: 1 ack, 2 retry, 3 fail, 4 release, 5 heartbeat, 6 cancel, 7 redrive. Changes of one row
-- have turns, from 1, and see each other in this order. Within a turn rows are locked in one order, so that two calls
-- never wait for each other crosswise.
CREATE FUNCTION {schema}.settle(
    kinds bigint[], turns bigint[], queues text[], ids bigint[], tokens bigint[], amounts bigint[], errors text[],
    texts text[], patience bigint, OUT landed bigint[], OUT instants bigint[]
)
LANGUAGE plpgsql
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $alkstore$
DECLARE
    waits CONSTANT text := current_setting('lock_timeout');
    instant CONSTANT bigint := {schema}.now();
    last_turn CONSTANT bigint := (SELECT max(u.turn) FROM unnest(turns) AS u (turn));
    f record;
    buried record;
BEGIN
    landed := '{}';
    instants := '{}';
    PERFORM set_config('lock_timeout', patience::text, true);
    FOR this_turn IN 1 .. coalesce(last_turn, 0) LOOP
        SELECT
            array_agg(s.kind) AS kinds, array_agg(live.spot) AS spots, array_agg(s.amount) AS amounts,
            array_agg(s.error) AS errors, array_agg(s.n) AS numbers,
            array_agg(CASE WHEN s.kind = 5 THEN {schema}.shift(instant, s.amount) ELSE instant END) AS instants
        INTO f
        FROM (
            SELECT u.kind, u.queue, u.id, u.token, u.amount, u.error, u.n
            FROM unnest(kinds, turns, queues, ids, tokens, amounts, errors) WITH ORDINALITY
                AS u (kind, turn, queue, id, token, amount, error, n)
            WHERE u.turn = this_turn AND u.kind <= 6
            ORDER BY u.queue, u.id
        ) AS s
        CROSS JOIN LATERAL (
            SELECT j.ctid AS spot FROM {schema}.job AS j
            WHERE j.queue = s.queue AND j.id = s.id
                AND CASE
                    WHEN s.kind = 6 THEN j.deadline IS NULL
                    ELSE j.token = s.token AND coalesce(j.deadline > instant, false)
                END
            FOR UPDATE
        ) AS live;
        IF f.numbers IS NOT NULL THEN
            IF 1 = ANY (f.kinds) OR 6 = ANY (f.kinds) THEN
                DELETE FROM {schema}.job AS j
                USING unnest(f.kinds, f.spots) AS c (kind, spot)
                WHERE c.kind IN (1, 6) AND j.ctid = c.spot;
            END IF;
            IF 2 = ANY (f.kinds) THEN
                UPDATE {schema}.job AS j
                SET
                    place = 0, worker_id = NULL, deadline = NULL, token = NULL,
                    run_at = {schema}.shift(instant, c.amount), retry_error = c.error
                FROM unnest(f.kinds, f.spots, f.amounts, f.errors) AS c (kind, spot, amount, error)
                WHERE c.kind = 2 AND j.ctid = c.spot;
            END IF;
            IF 3 = ANY (f.kinds) THEN
                PERFORM {schema}.bury(array_agg(c.spot), instant, VARIADIC array_agg(c.error))
                FROM unnest(f.kinds, f.spots, f.errors) AS c (kind, spot, error)
                WHERE c.kind = 3;
            END IF;
            IF 4 = ANY (f.kinds) THEN
                UPDATE {schema}.job AS j
                SET place = 0, worker_id = NULL, deadline = NULL, token = NULL, attempts = j.attempts - 1
                FROM unnest(f.kinds, f.spots) AS c (kind, spot)
                WHERE c.kind = 4 AND j.ctid = c.spot;
            END IF;
            IF 5 = ANY (f.kinds) THEN
                UPDATE {schema}.job AS j
                SET deadline = c.deadline
                FROM unnest(f.kinds, f.spots, f.instants) AS c (kind, spot, deadline)
                WHERE c.kind = 5 AND j.ctid = c.spot;
            END IF;
            landed := landed || f.numbers;
            instants := instants || f.instants;
        END IF;
        IF 7 = ANY (kinds) THEN
            SELECT array_agg(gone.spot) AS spots, array_agg(s.n) AS numbers INTO buried
            FROM (
                SELECT u.queue, u.id, u.n
                FROM unnest(kinds, turns, queues, ids) WITH ORDINALITY AS u (kind, turn, queue, id, n)
                WHERE u.turn = this_turn AND u.kind = 7
                ORDER BY u.queue, u.id
            ) AS s
            CROSS JOIN LATERAL (
                SELECT d.ctid AS spot FROM {schema}.dead AS d WHERE d.queue = s.queue AND d.id = s.id FOR UPDATE
            ) AS gone;
            WITH gone AS (
                DELETE FROM {schema}.dead AS d
                WHERE d.ctid = ANY (buried.spots)
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
            landed := landed || buried.numbers;
            instants := instants || array_fill(instant, ARRAY[coalesce(cardinality(buried.numbers), 0)]);
        END IF;
    END LOOP;
    PERFORM pg_notify({channel}, t.text) FROM unnest(texts) AS t (text);
    PERFORM set_config('lock_timeout', waits, true);
END
$alkstore$;

-- Move a portion of what qualified at an instant (NULL: now) to the dead, and pass over what others have locked. It goes
-- on behind a cursor (NULL: from the start): four stages for the expired of each place, then one for the lapsed, and within
-- a stage an instant and an id. Gives that instant, how many were moved, where to go on (a stage of NULL: it is through),
-- and then whether anything is left, which others have locked.
CREATE FUNCTION {schema}.sweep(
    in_queue text, before bigint, portion bigint, INOUT stage bigint, INOUT at bigint, INOUT id bigint,
    OUT instant bigint, OUT moved bigint, OUT is_left boolean
)
LANGUAGE plpgsql
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_incremental_sort = off
AS $alkstore$
#variable_conflict use_column
DECLARE
    lowest CONSTANT bigint := -9223372036854775808;
    died CONSTANT bigint := {schema}.now();
    spots tid[];
    instants bigint[];
    ids bigint[];
    after_at bigint := coalesce(at, lowest);
    after_id bigint := coalesce(id, lowest);
    met bigint;
BEGIN
    instant := coalesce(before, died);
    moved := 0;
    FOR n IN coalesce(stage, 0) .. 4 LOOP
        IF n < 4 THEN
            SELECT array_agg(f.spot), array_agg(f.at), array_agg(f.id) INTO spots, instants, ids
            FROM (
                SELECT j.ctid AS spot, j.expires_at AS at, j.id FROM {schema}.job AS j
                WHERE j.queue = in_queue AND j.place = n::smallint AND (j.expires_at, j.id) > (after_at, after_id)
                    AND j.expires_at <= instant AND coalesce(j.deadline <= instant, true)
                ORDER BY j.expires_at, j.id LIMIT portion - moved FOR UPDATE SKIP LOCKED
            ) AS f;
            PERFORM {schema}.bury(spots, died, 'expired');
        ELSE
            SELECT array_agg(f.spot), array_agg(f.at), array_agg(f.id) INTO spots, instants, ids
            FROM (
                SELECT j.ctid AS spot, j.deadline AS at, j.id FROM {schema}.job AS j
                WHERE j.queue = in_queue AND j.place = 2 AND (j.deadline, j.id) > (after_at, after_id)
                    AND j.deadline <= instant
                ORDER BY j.deadline, j.id LIMIT portion - moved FOR UPDATE SKIP LOCKED
            ) AS f;
            PERFORM {schema}.bury(spots, died, 'visibility timeout lapsed on the last attempt');
        END IF;
        met := coalesce(cardinality(spots), 0);
        moved := moved + met;
        IF moved >= portion THEN
            stage := n;
            at := instants[met];
            id := ids[met];
            RETURN;
        END IF;
        after_at := lowest;
        after_id := lowest;
    END LOOP;
    stage := NULL;
    is_left := coalesce(
        (SELECT true FROM {schema}.job AS j
         WHERE j.queue = in_queue AND j.place = 0 AND j.expires_at <= instant AND coalesce(j.deadline <= instant, true)
         ORDER BY j.expires_at, j.id LIMIT 1),
        (SELECT true FROM {schema}.job AS j
         WHERE j.queue = in_queue AND j.place = 1 AND j.expires_at <= instant AND coalesce(j.deadline <= instant, true)
         ORDER BY j.expires_at, j.id LIMIT 1),
        (SELECT true FROM {schema}.job AS j
         WHERE j.queue = in_queue AND j.place = 2 AND j.deadline <= instant
         ORDER BY j.deadline, j.id LIMIT 1),
        (SELECT true FROM {schema}.job AS j
         WHERE j.queue = in_queue AND j.place = 3 AND j.expires_at <= instant AND coalesce(j.deadline <= instant, true)
         ORDER BY j.expires_at, j.id LIMIT 1),
        false
    );
END
$alkstore$;
