-- Jobs. The places of a row, and what they mean, are told in migrations/0001_tables.sql; what takes more than one
-- statement is a function of migrations/0002_jobs.sql.

-- name: insert_ready
-- Put one job in line that is ready now and never expires: what most are, at two thirds of what `insert` costs the server.
INSERT INTO {schema}.job (
    queue, payload, headers, priority, run_at, visibility_timeout, max_attempts, base_delay, created_at
)
VALUES (
    $1::text, $2::bytea, $3::bytea, $4::bigint, {schema}.now(), $5::bigint, $6::bigint, $7::bigint, {schema}.now()
)
RETURNING id;

-- name: insert
-- Put one job in line.
INSERT INTO {schema}.job (
    queue, payload, headers, priority, run_at, visibility_timeout, max_attempts, base_delay, expires_at, created_at,
    scheduled_for
)
VALUES (
    $1::text, $2::bytea, $3::bytea, $4::bigint,
    CASE
        WHEN $5::bigint IS NOT NULL THEN {schema}.shift({schema}.now(), $5::bigint)
        ELSE coalesce($6::bigint, {schema}.now())
    END,
    $7::bigint, $8::bigint, $9::bigint,
    CASE WHEN $10::bigint IS NOT NULL THEN {schema}.shift({schema}.now(), $10::bigint) END, {schema}.now(), $11::bigint
)
RETURNING id;

-- name: insert_and_wake
-- Put one job in line and tell other processes.
INSERT INTO {schema}.job (
    queue, payload, headers, priority, run_at, visibility_timeout, max_attempts, base_delay, expires_at, created_at,
    scheduled_for
)
VALUES (
    $1::text, $2::bytea, $3::bytea, $4::bigint,
    CASE
        WHEN $5::bigint IS NOT NULL THEN {schema}.shift({schema}.now(), $5::bigint)
        ELSE coalesce($6::bigint, {schema}.now())
    END,
    $7::bigint, $8::bigint, $9::bigint,
    CASE WHEN $10::bigint IS NOT NULL THEN {schema}.shift({schema}.now(), $10::bigint) END, {schema}.now(), $11::bigint
)
RETURNING id, (SELECT count(pg_notify({channel}, wake.text)) FROM unnest($12::text[]) AS wake (text));

-- name: insert_alike
-- Put jobs in line that differ in their payloads alone. One scan feeds the insert and is never sorted, so the ids follow
-- the order of the array, and what does not differ is worked out once.
WITH made AS (
    INSERT INTO {schema}.job (
        queue, payload, headers, priority, run_at, visibility_timeout, max_attempts, base_delay, expires_at, created_at
    )
    SELECT
        $1::text, given.payload, $3::bytea, $4::bigint, stamp.run_at, $7::bigint, $8::bigint, $9::bigint, stamp.expires_at,
        stamp.now
    FROM (
        SELECT
            moment.now,
            CASE
                WHEN $5::bigint IS NOT NULL THEN {schema}.shift(moment.now, $5::bigint)
                ELSE coalesce($6::bigint, moment.now)
            END AS run_at,
            CASE WHEN $10::bigint IS NOT NULL THEN {schema}.shift(moment.now, $10::bigint) END AS expires_at
        FROM (SELECT {schema}.now() AS now OFFSET 0) AS moment
        OFFSET 0
    ) AS stamp
    CROSS JOIN unnest($2::bytea[]) AS given (payload)
    RETURNING id
)
SELECT
    (SELECT array_agg(made.id) FROM made),
    (SELECT count(pg_notify({channel}, wake.text)) FROM unnest($11::text[]) AS wake (text));

-- name: insert_mixed
-- Put jobs of any kind in line.
WITH moment AS MATERIALIZED (SELECT {schema}.now() AS now),
made AS (
    INSERT INTO {schema}.job (
        queue, payload, headers, priority, run_at, visibility_timeout, max_attempts, base_delay, expires_at, created_at,
        scheduled_for
    )
    SELECT
        given.queue, given.payload, given.headers, given.priority,
        CASE
            WHEN given.delay IS NOT NULL THEN {schema}.shift(moment.now, given.delay)
            ELSE coalesce(given.run_at, moment.now)
        END,
        given.visibility_timeout, given.max_attempts, given.base_delay,
        CASE WHEN given.expires IS NOT NULL THEN {schema}.shift(moment.now, given.expires) END, moment.now,
        given.scheduled_for
    FROM moment CROSS JOIN unnest(
        $1::text[], $2::bytea[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
        $9::bigint[], $10::bigint[], $11::bigint[]
    ) WITH ORDINALITY AS given (
        queue, payload, headers, priority, delay, run_at, visibility_timeout, max_attempts, base_delay, expires,
        scheduled_for, n
    )
    ORDER BY given.n
    RETURNING id
)
SELECT
    (SELECT array_agg(made.id ORDER BY made.id) FROM made),
    (SELECT count(pg_notify({channel}, wake.text)) FROM unnest($12::text[]) AS wake (text));

-- name: find
-- Read jobs of every state in the order of their ids.
(
    SELECT
        id, queue, payload, headers, CASE WHEN deadline IS NULL THEN 0 ELSE 1 END, priority, run_at, expires_at, attempts,
        max_attempts, visibility_timeout, base_delay, worker_id, deadline, created_at, scheduled_for, retry_error,
        NULL::text, NULL::bigint, token
    FROM {schema}.job
    WHERE queue = $1::text AND id > $2::bigint AND ($3::text IS NULL OR strpos(retry_error, $3::text) > 0)
    ORDER BY id
    LIMIT $4::bigint
)
UNION ALL
(
    SELECT
        id, queue, payload, headers, 2, priority, run_at, expires_at, attempts, max_attempts, visibility_timeout,
        base_delay, NULL::text, NULL::bigint, created_at, scheduled_for, NULL::text, last_error, died_at, NULL::bigint
    FROM {schema}.dead
    WHERE queue = $1::text AND id > $2::bigint AND ($3::text IS NULL OR strpos(last_error, $3::text) > 0)
    ORDER BY id
    LIMIT $4::bigint
)
ORDER BY id
LIMIT $4::bigint;

-- name: find_pending
-- Read jobs that nobody has claimed.
SELECT
    id, queue, payload, headers, 0, priority, run_at, expires_at, attempts, max_attempts, visibility_timeout, base_delay,
    worker_id, deadline, created_at, scheduled_for, retry_error, NULL::text, NULL::bigint, token
FROM {schema}.job
WHERE
    queue = $1::text AND id > $2::bigint AND ($3::text IS NULL OR strpos(retry_error, $3::text) > 0)
    AND deadline IS NULL
ORDER BY id
LIMIT $4::bigint;

-- name: find_processing
-- Read claimed jobs, lapsed ones too. They are sorted: workers hold few of them.
SELECT
    held.id, held.queue, held.payload, held.headers, 1, held.priority, held.run_at, held.expires_at, held.attempts,
    held.max_attempts, held.visibility_timeout, held.base_delay, held.worker_id, held.deadline, held.created_at,
    held.scheduled_for, held.retry_error, NULL::text, NULL::bigint, held.token
FROM (
    SELECT
        id, queue, payload, headers, priority, run_at, expires_at, attempts, max_attempts, visibility_timeout, base_delay,
        worker_id, deadline, created_at, scheduled_for, retry_error, token
    FROM {schema}.job
    WHERE queue = $1::text AND deadline IS NOT NULL
    OFFSET 0
) AS held
WHERE held.id > $2::bigint AND ($3::text IS NULL OR strpos(held.retry_error, $3::text) > 0)
ORDER BY held.id
LIMIT $4::bigint;

-- name: find_dead
-- Read dead jobs.
SELECT
    id, queue, payload, headers, 2, priority, run_at, expires_at, attempts, max_attempts, visibility_timeout, base_delay,
    NULL::text, NULL::bigint, created_at, scheduled_for, NULL::text, last_error, died_at, NULL::bigint
FROM {schema}.dead
WHERE queue = $1::text AND id > $2::bigint AND ($3::text IS NULL OR strpos(last_error, $3::text) > 0)
ORDER BY id
LIMIT $4::bigint;

-- name: find_by_ids
-- Read the jobs of these ids that are in a state, if one is asked for. Each is looked for by itself: a plan for all of them
-- that was made while the table was small would read all of it when it is large.
SELECT
    found.id, found.queue, found.payload, found.headers, found.state, found.priority, found.run_at, found.expires_at,
    found.attempts, found.max_attempts, found.visibility_timeout, found.base_delay, found.worker_id, found.deadline,
    found.created_at, found.scheduled_for, found.retry_error, found.last_error, found.died_at, found.token
FROM (SELECT DISTINCT given.id FROM unnest($2::bigint[]) AS given (id)) AS wanted
CROSS JOIN LATERAL (
    (
        SELECT
            job.id, queue, payload, headers, CASE WHEN deadline IS NULL THEN 0 ELSE 1 END AS state, priority, run_at,
            expires_at, attempts, max_attempts, visibility_timeout, base_delay, worker_id, deadline, created_at,
            scheduled_for, retry_error, NULL::text AS last_error, NULL::bigint AS died_at, token
        FROM {schema}.job
        WHERE queue = $1::text AND job.id = wanted.id
        LIMIT 1
    )
    UNION ALL
    (
        SELECT
            dead.id, queue, payload, headers, 2, priority, run_at, expires_at, attempts, max_attempts, visibility_timeout,
            base_delay, NULL::text, NULL::bigint, created_at, scheduled_for, NULL::text, last_error, died_at, NULL::bigint
        FROM {schema}.dead
        WHERE queue = $1::text AND dead.id = wanted.id
        LIMIT 1
    )
) AS found
WHERE
    ($3::text IS NULL OR strpos(found.retry_error, $3::text) > 0 OR strpos(found.last_error, $3::text) > 0)
    AND ($5::bigint IS NULL OR found.state = $5::bigint)
ORDER BY found.id
LIMIT $4::bigint;

-- name: count
-- Count by what a claim would make of a row: ready, delayed, processing, stale, dead; and the age of the oldest ready one.
WITH row (kind, run_at, now) AS (
    SELECT
        CASE
            WHEN job.deadline > moment.now THEN 'processing'
            WHEN
                job.expires_at <= moment.now
                OR (job.deadline <= moment.now AND job.attempts >= job.max_attempts)
                THEN 'stale'
            WHEN job.run_at <= moment.now THEN 'ready'
            ELSE 'delayed'
        END,
        job.run_at, moment.now
    FROM (SELECT {schema}.now() AS now OFFSET 0) AS moment CROSS JOIN {schema}.job
    WHERE job.queue = $1::text
)
SELECT
    count(*) FILTER (WHERE row.kind = 'ready'),
    count(*) FILTER (WHERE row.kind = 'delayed'),
    count(*) FILTER (WHERE row.kind = 'processing'),
    count(*) FILTER (WHERE row.kind = 'stale'),
    (SELECT count(*) FROM {schema}.dead WHERE dead.queue = $1::text),
    max(row.now - row.run_at) FILTER (WHERE row.kind = 'ready')
FROM row;

-- name: claim
-- Take jobs; the last row tells of the claim itself.
SELECT
    id, payload, headers, priority, run_at, expires_at, attempts, max_attempts, visibility_timeout, base_delay, deadline,
    created_at, scheduled_for, retry_error, worker_id, cleared
FROM {schema}.claim(
    $1::text, $2::text[], $3::bigint, $4::bigint, $5::bigint[], $6::bigint[], $7::bigint
);

-- name: ack
-- Forget jobs of one queue whose very claims are live.
SELECT instant, gone
FROM {schema}.ack($1::text, $2::bigint[], $3::bigint[], $4::text[], $5::bigint);

-- name: settle
-- Change jobs, each by itself.
SELECT landed, instants
FROM {schema}.settle(
    $1::bigint[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[], $8::text[], $9::bigint
);

-- name: sweep
-- Move a portion of what qualified at an instant to the dead, behind a cursor.
SELECT instant, moved, is_left, stage, at, id
FROM {schema}.sweep($1::text, $2::bigint, $3::bigint, $4::bigint, $5::bigint, $6::bigint);

-- name: purge
-- Delete dead rows that died before an instant, or all of them.
WITH gone AS (
    DELETE FROM {schema}.dead
    WHERE
        queue = $1::text
        AND died_at < CASE
            WHEN $2::bigint <= 0 THEN 9223372036854775807
            ELSE {schema}.shift({schema}.now(), -$2::bigint)
        END
    RETURNING id
)
SELECT count(*)
FROM gone;

-- name: names
-- List the queues that have rows, hopping from name to name.
WITH RECURSIVE live (queue) AS (
    SELECT (SELECT job.queue FROM {schema}.job ORDER BY job.queue LIMIT 1)
    UNION ALL
    SELECT (SELECT job.queue FROM {schema}.job WHERE job.queue > live.queue ORDER BY job.queue LIMIT 1)
    FROM live
    WHERE live.queue IS NOT NULL
),
gone (queue) AS (
    SELECT (SELECT dead.queue FROM {schema}.dead ORDER BY dead.queue LIMIT 1)
    UNION ALL
    SELECT (SELECT dead.queue FROM {schema}.dead WHERE dead.queue > gone.queue ORDER BY dead.queue LIMIT 1)
    FROM gone
    WHERE gone.queue IS NOT NULL
)
SELECT live.queue FROM live WHERE live.queue IS NOT NULL
UNION
SELECT gone.queue FROM gone WHERE gone.queue IS NOT NULL;
