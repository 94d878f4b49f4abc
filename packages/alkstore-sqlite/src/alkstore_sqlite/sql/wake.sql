-- A probe tells the marks of many topics in one row, a JSON array of [place in the names asked for, mark…]: every row
-- costs the thread that asks another fight for the interpreter's lock. Names come as a JSON array too.

-- name: count
-- Count the notifies of a channel.
UPDATE alkstore_channel SET wakes = wakes + ?2 WHERE name = ?1;

-- name: begin
-- Count the first notifies of a channel.
INSERT INTO alkstore_channel (name, wakes) VALUES (?1, ?2);

-- name: note
-- Leave a notify for those who listen without alkstore.
INSERT INTO alkstore_notification (channel, payload, created_at) VALUES (?1, ?2, ?3);

-- name: trim
-- Keep the last ?1 notifies: the ids have no gaps.
DELETE FROM alkstore_notification WHERE id <= (SELECT MAX(id) FROM alkstore_notification) - ?1;

-- name: wakes
-- Where the counter of a channel stands; no row if it never had a notify.
SELECT wakes FROM alkstore_channel WHERE name = ?1;

-- name: read_only
-- Have the watcher's connection refuse to write.
PRAGMA query_only = 1;

-- name: version
-- A number that moves with every commit of any other connection.
PRAGMA data_version;

-- name: probe_channels
-- The counter of each channel.
SELECT JSON_GROUP_ARRAY(JSON_ARRAY(topic.key, COALESCE(channel.wakes, 0)))
FROM JSON_EACH(?1) AS topic LEFT JOIN alkstore_channel AS channel ON channel.name = topic.value;

-- name: probe_streams
-- The head of each stream.
SELECT JSON_GROUP_ARRAY(JSON_ARRAY(topic.key, COALESCE(stream.head, 0)))
FROM JSON_EACH(?1) AS topic LEFT JOIN alkstore_stream AS stream ON stream.name = topic.value;

-- name: probe_locks
-- The end of each lock, 0 while it is free, and its fence.
SELECT JSON_GROUP_ARRAY(JSON_ARRAY(topic.key, COALESCE(lock.expires_at, 0), COALESCE(lock.fence, 0)))
FROM JSON_EACH(?1) AS topic LEFT JOIN alkstore_lock AS lock ON lock.name = topic.value;

-- name: probe_schedules
-- The last id given to a schedule, and how many there are.
SELECT JSON_GROUP_ARRAY(JSON_ARRAY(
    topic.key,
    COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'alkstore_schedule'), 0),
    (SELECT COUNT(*) FROM alkstore_schedule)
))
FROM JSON_EACH(?1) AS topic;

-- name: probe_queues
-- When the first row of each queue is claimable, of those that have one: the first of each level of priority, which is
-- sought level by level because the index is in order of run_at only within one, and the first claim to lapse.
WITH RECURSIVE level (topic, queue, priority) AS (
    SELECT
        key,
        value,
        (SELECT priority FROM alkstore_job WHERE queue = value AND place = 0 ORDER BY priority DESC LIMIT 1)
    FROM JSON_EACH(?1)
    UNION ALL
    SELECT
        topic,
        queue,
        (
            SELECT job.priority
            FROM alkstore_job AS job
            WHERE job.queue = level.queue AND job.place = 0 AND job.priority < level.priority
            ORDER BY job.priority DESC
            LIMIT 1
        )
    FROM level
    WHERE level.priority IS NOT NULL
)
SELECT JSON_GROUP_ARRAY(JSON_ARRAY(topic, instant))
FROM (
    SELECT topic, MIN(instant) AS instant
    FROM (
        SELECT
            topic,
            (
                SELECT MIN(job.run_at)
                FROM alkstore_job AS job
                WHERE job.queue = level.queue AND job.place = 0 AND job.priority = level.priority
            ) AS instant
        FROM level
        UNION ALL
        SELECT
            key,
            (SELECT MIN(deadline) FROM alkstore_job WHERE queue = value AND place = 1 AND deadline IS NOT NULL)
        FROM JSON_EACH(?1)
    )
    GROUP BY topic
)
WHERE instant IS NOT NULL;
