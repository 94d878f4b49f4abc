-- Jobs. The places of a row, and what they mean, are told in migrations/0001_initial.sql.

-- name: insert
-- Put one job in line; the database gives its id.
INSERT INTO alkstore_job (
    queue, payload, headers, place, priority, run_at, expires_at, attempts, max_attempts, visibility_timeout,
    base_delay, created_at, scheduled_for
)
VALUES (?1, ?2, ?3, 0, ?4, ?5, ?6, 0, ?7, ?8, ?9, ?10, ?11);

-- name: insert_alike
-- Put jobs in line that are alike but for their payloads: all of them stand joined in ?2, and ?12 tells where each is, as
-- pack.py makes it. The ids follow each other, in its order.
INSERT INTO alkstore_job (
    queue, payload, headers, place, priority, run_at, expires_at, attempts, max_attempts, visibility_timeout,
    base_delay, created_at, scheduled_for
)
SELECT ?1, SUBSTR(?2, value >> 32, value & 4294967295), ?3, 0, ?4, ?5, ?6, 0, ?7, ?8, ?9, ?10, ?11
FROM JSON_EACH(?12);

-- name: insert_next
-- Put further jobs of the same call in line, alike but for their payloads: ?12 tells by each id where its payload is.
INSERT INTO alkstore_job (
    queue, payload, headers, place, priority, run_at, expires_at, attempts, max_attempts, visibility_timeout,
    base_delay, created_at, scheduled_for, id
)
SELECT ?1, SUBSTR(?2, value >> 32, value & 4294967295), ?3, 0, ?4, ?5, ?6, 0, ?7, ?8, ?9, ?10, ?11, CAST(key AS INTEGER)
FROM JSON_EACH(?12);

-- name: find
-- Read jobs of every state in the order of their ids. After an ANALYZE that met one queue alone, SQLite would rather walk
-- past the rows of every other one.
SELECT
    id, queue, payload, headers, CASE WHEN place = 4 THEN 2 WHEN deadline IS NULL THEN 0 ELSE 1 END, priority, run_at,
    expires_at, attempts, max_attempts, visibility_timeout, base_delay, worker_id, deadline, created_at, scheduled_for,
    retry_error, last_error, died_at, token
FROM alkstore_job INDEXED BY alkstore_job_queue
WHERE queue = ?1 AND id > ?2 AND (?3 IS NULL OR INSTR(last_error, ?3) > 0 OR INSTR(retry_error, ?3) > 0)
ORDER BY id
LIMIT ?4;

-- name: find_pending
-- Read jobs that nobody has claimed.
SELECT
    id, queue, payload, headers, 0, priority, run_at, expires_at, attempts, max_attempts, visibility_timeout, base_delay,
    worker_id, deadline, created_at, scheduled_for, retry_error, last_error, died_at, token
FROM alkstore_job INDEXED BY alkstore_job_queue
WHERE
    queue = ?1 AND id > ?2 AND (?3 IS NULL OR INSTR(last_error, ?3) > 0 OR INSTR(retry_error, ?3) > 0)
    AND deadline IS NULL AND place <> 4
ORDER BY id
LIMIT ?4;

-- name: find_processing
-- Read claimed jobs, lapsed ones too. They are sorted: workers hold few of them.
SELECT
    id, queue, payload, headers, 1, priority, run_at, expires_at, attempts, max_attempts, visibility_timeout, base_delay,
    worker_id, deadline, created_at, scheduled_for, retry_error, last_error, died_at, token
FROM alkstore_job INDEXED BY alkstore_job_held
WHERE
    queue = ?1 AND deadline IS NOT NULL AND +id > ?2
    AND (?3 IS NULL OR INSTR(last_error, ?3) > 0 OR INSTR(retry_error, ?3) > 0)
ORDER BY id
LIMIT ?4;

-- name: find_dead
-- Read dead jobs, by an index that holds no others.
SELECT
    id, queue, payload, headers, 2, priority, run_at, expires_at, attempts, max_attempts, visibility_timeout, base_delay,
    worker_id, deadline, created_at, scheduled_for, retry_error, last_error, died_at, token
FROM alkstore_job INDEXED BY alkstore_job_dead
WHERE
    queue = ?1 AND place = 4 AND id > ?2
    AND (?3 IS NULL OR INSTR(last_error, ?3) > 0 OR INSTR(retry_error, ?3) > 0)
ORDER BY id
LIMIT ?4;

-- name: find_by_id
-- Read the job of an id.
SELECT
    id, queue, payload, headers, CASE WHEN place = 4 THEN 2 WHEN deadline IS NULL THEN 0 ELSE 1 END, priority, run_at,
    expires_at, attempts, max_attempts, visibility_timeout, base_delay, worker_id, deadline, created_at, scheduled_for,
    retry_error, last_error, died_at, token
FROM alkstore_job
WHERE id = ?2 AND queue = ?1;

-- name: count
-- Count by what a claim would make of a row: dead, processing, stale, ready, delayed; and the least run_at of the ready.
WITH row (kind, run_at) AS (
    SELECT
        CASE
            WHEN place = 4 THEN 'dead'
            WHEN deadline > ?2 THEN 'processing'
            WHEN expires_at <= ?2 OR (deadline <= ?2 AND attempts >= max_attempts) THEN 'stale'
            WHEN run_at <= ?2 THEN 'ready'
            ELSE 'delayed'
        END,
        run_at
    FROM alkstore_job
    WHERE queue = ?1
)
SELECT
    COUNT(*) FILTER (WHERE kind = 'ready'),
    COUNT(*) FILTER (WHERE kind = 'delayed'),
    COUNT(*) FILTER (WHERE kind = 'processing'),
    COUNT(*) FILTER (WHERE kind = 'stale'),
    COUNT(*) FILTER (WHERE kind = 'dead'),
    MIN(run_at) FILTER (WHERE kind = 'ready')
FROM row;

-- name: is_stirred
-- Tell whether time has changed the place of any row since a claim last looked; five looks at the end of an index.
SELECT
    EXISTS (SELECT 1 FROM alkstore_job WHERE queue = ?1 AND place IN (1, 2) AND deadline <= ?2)
    OR EXISTS (SELECT 1 FROM alkstore_job WHERE queue = ?1 AND place = 0 AND expires_at <= ?2)
    OR EXISTS (SELECT 1 FROM alkstore_job WHERE queue = ?1 AND place = 3 AND expires_at > ?2)
    OR EXISTS (SELECT 1 FROM alkstore_job WHERE queue = ?1 AND place = 0 AND deadline > ?2);

-- name: bury_lapsed
-- Move rows whose last attempt lapsed to the dead, so many at most.
UPDATE alkstore_job
SET
    place = 4, worker_id = NULL, deadline = NULL, token = NULL, retry_error = NULL, last_error = ?3, died_at = ?2
WHERE id IN (
    SELECT id FROM alkstore_job WHERE queue = ?1 AND place = 2 AND deadline <= ?2 ORDER BY deadline, id LIMIT ?4
);

-- name: put_in_line
-- Give lapsed rows with attempts left their old place in line; they still read as claimed until somebody takes them.
UPDATE alkstore_job
SET place = 0
WHERE id IN (
    SELECT id FROM alkstore_job WHERE queue = ?1 AND place = 1 AND deadline <= ?2 ORDER BY deadline, id LIMIT ?3
);

-- name: set_aside
-- Take expired rows out of the line, each once: or every claim would walk past all of them.
UPDATE alkstore_job
SET place = 3
WHERE id IN (
    SELECT id FROM alkstore_job WHERE queue = ?1 AND place = 0 AND expires_at <= ?2 ORDER BY expires_at, id LIMIT ?3
);

-- name: take_up
-- Put back in line what a clock stepped back has not expired after all.
UPDATE alkstore_job
SET place = 0
WHERE id IN (
    SELECT id FROM alkstore_job WHERE queue = ?1 AND place = 3 AND expires_at > ?2 ORDER BY expires_at, id LIMIT ?3
);

-- name: hold_again
-- Take out of line what a clock stepped back has not let lapse after all.
UPDATE alkstore_job
SET place = 1
WHERE id IN (
    SELECT id FROM alkstore_job WHERE queue = ?1 AND place = 0 AND deadline > ?2 ORDER BY deadline, id LIMIT ?3
);

-- name: first_in_line
-- Read the first rows of the highest level of priority. Nothing is sorted: the index is in this order.
SELECT
    id, queue, payload, headers, 1, priority, run_at, expires_at, attempts, max_attempts, visibility_timeout, base_delay,
    worker_id, deadline, created_at, scheduled_for, retry_error, last_error, died_at, token
FROM alkstore_job
WHERE
    queue = ?1 AND place = 0 AND run_at <= ?2
    AND priority = (SELECT priority FROM alkstore_job WHERE queue = ?1 AND place = 0 ORDER BY priority DESC LIMIT 1)
ORDER BY run_at, id
LIMIT ?3;

-- name: first_of_level
-- Read the first rows of one level of priority.
SELECT
    id, queue, payload, headers, 1, priority, run_at, expires_at, attempts, max_attempts, visibility_timeout, base_delay,
    worker_id, deadline, created_at, scheduled_for, retry_error, last_error, died_at, token
FROM alkstore_job
WHERE queue = ?1 AND place = 0 AND priority = ?4 AND run_at <= ?2
ORDER BY run_at, id
LIMIT ?3;

-- name: highest_level
-- Find the highest priority in line, and when its first row is ready.
SELECT priority, run_at
FROM alkstore_job
WHERE queue = ?1 AND place = 0
ORDER BY priority DESC, run_at, id
LIMIT 1;

-- name: next_level
-- Find the next lower priority in line, and when its first row is ready: the delayed rows of a level are not walked past.
SELECT priority, run_at
FROM alkstore_job
WHERE queue = ?1 AND place = 0 AND priority < ?2
ORDER BY priority DESC, run_at, id
LIMIT 1;

-- name: next_of_level
-- Tell when the first row of a level is ready that is not ready now.
SELECT run_at
FROM alkstore_job
WHERE queue = ?1 AND place = 0 AND priority = ?2 AND run_at > ?3
ORDER BY run_at, id
LIMIT 1;

-- name: next_lapse
-- Tell when the first claim lapses whose job then can be claimed again.
SELECT deadline
FROM alkstore_job
WHERE queue = ?1 AND place = 1 AND deadline IS NOT NULL
ORDER BY deadline, id
LIMIT 1;

-- name: hold
-- Claim a row that was read in the same transaction.
UPDATE alkstore_job
SET place = ?2, attempts = attempts + 1, worker_id = ?3, deadline = ?4, token = ?5
WHERE id = ?1;

-- name: ack
-- Forget a job, if this very claim is live.
DELETE FROM alkstore_job
WHERE id = ?1 AND token = ?2 AND deadline > ?3 AND queue = ?4;

-- name: retry
-- Put a job back in line for later, if this very claim is live.
UPDATE alkstore_job
SET place = 0, worker_id = NULL, deadline = NULL, token = NULL, run_at = ?5, retry_error = ?6
WHERE id = ?1 AND token = ?2 AND deadline > ?3 AND queue = ?4;

-- name: fail
-- Bury a job, if this very claim is live.
UPDATE alkstore_job
SET place = 4, worker_id = NULL, deadline = NULL, token = NULL, retry_error = NULL, last_error = ?5, died_at = ?3
WHERE id = ?1 AND token = ?2 AND deadline > ?3 AND queue = ?4;

-- name: release
-- Put a job back in line as it was before this claim, if that is live.
UPDATE alkstore_job
SET place = 0, worker_id = NULL, deadline = NULL, token = NULL, attempts = attempts - 1
WHERE id = ?1 AND token = ?2 AND deadline > ?3 AND queue = ?4;

-- name: heartbeat
-- Move the end of this very claim, if it is live.
UPDATE alkstore_job
SET deadline = ?5
WHERE id = ?1 AND token = ?2 AND deadline > ?3 AND queue = ?4;

-- name: cancel
-- Forget a job that nobody has claimed.
DELETE FROM alkstore_job
WHERE id = ?1 AND queue = ?2 AND deadline IS NULL AND place <> 4;

-- name: redrive
-- Put a dead job in line as if it were new; its stamps stay.
UPDATE alkstore_job
SET
    place = 0, run_at = ?3, expires_at = NULL, attempts = 0, retry_error = NULL, last_error = NULL, died_at = NULL
WHERE id = ?1 AND queue = ?2 AND place = 4;

-- name: bury_expired
-- Move expired rows that nobody holds to the dead.
UPDATE alkstore_job
SET
    place = 4, worker_id = NULL, deadline = NULL, token = NULL, retry_error = NULL, last_error = ?3, died_at = ?2
WHERE queue = ?1 AND place IN (0, 1, 2, 3) AND expires_at <= ?2 AND (deadline IS NULL OR deadline <= ?2);

-- name: purge
-- Delete dead rows that died before an instant, or all of them.
DELETE FROM alkstore_job
WHERE queue = ?1 AND place = 4 AND (?2 IS NULL OR died_at < ?2);

-- name: names
-- List the queues that have rows, hopping from name to name; sorted by who asks, because a file in UTF-16 sorts otherwise.
WITH RECURSIVE name (queue) AS (
    SELECT MIN(queue) FROM alkstore_job
    UNION ALL
    SELECT (SELECT MIN(queue) FROM alkstore_job WHERE queue > name.queue) FROM name WHERE name.queue IS NOT NULL
)
SELECT queue
FROM name
WHERE queue IS NOT NULL;
