-- Every table of alkstore in one file, beside the application's own: hence the prefix.
-- Instants are microseconds since 1970-01-01T00:00:00Z, durations microseconds.

-- AUTOINCREMENT, or the id of an acked job would be given to the next one.
-- place says where a row stands for claims: 0 in line, 1 held, 2 held on its last attempt, 3 aside (expired when a claim
-- met it), 4 dead. A row is processing while it has a deadline; one whose deadline a claim saw pass stands in line again.
CREATE TABLE alkstore_job (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue TEXT NOT NULL,
    payload BLOB NOT NULL,
    headers BLOB NOT NULL,
    place INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    expires_at INTEGER,
    attempts INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    visibility_timeout INTEGER NOT NULL,
    base_delay INTEGER NOT NULL,
    worker_id TEXT,
    deadline INTEGER,
    token INTEGER,
    created_at INTEGER NOT NULL,
    scheduled_for INTEGER,
    retry_error TEXT,
    last_error TEXT,
    died_at INTEGER
) STRICT;

-- The order of claims: the id ends every key of an index.
CREATE INDEX alkstore_job_line ON alkstore_job (queue, priority DESC, run_at) WHERE place = 0;

-- What lapses, and when.
CREATE INDEX alkstore_job_held ON alkstore_job (queue, place, deadline) WHERE deadline IS NOT NULL;

-- What expires, and when.
CREATE INDEX alkstore_job_expiry ON alkstore_job (queue, place, expires_at) WHERE expires_at IS NOT NULL;

-- Pages by id, counts, names.
CREATE INDEX alkstore_job_queue ON alkstore_job (queue);

-- Pages of the dead, however many live.
CREATE INDEX alkstore_job_dead ON alkstore_job (queue) WHERE place = 4;

-- head is the greatest offset that was ever committed: numbering goes on after a trim of everything.
CREATE TABLE alkstore_stream (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    head INTEGER NOT NULL
) STRICT;

CREATE TABLE alkstore_event (
    stream INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    key TEXT,
    payload BLOB NOT NULL,
    headers BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (stream, offset)
) STRICT;

CREATE TABLE alkstore_position (
    stream INTEGER NOT NULL,
    consumer TEXT NOT NULL,
    offset INTEGER NOT NULL,
    PRIMARY KEY (stream, consumer)
) STRICT, WITHOUT ROWID;

-- What wakes: a counter a channel, written by notify alone.
CREATE TABLE alkstore_channel (
    name TEXT PRIMARY KEY,
    wakes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- For those who listen without alkstore: the last 10,000 notifies. No wake depends on them.
CREATE TABLE alkstore_notification (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    channel TEXT NOT NULL,
    payload TEXT,
    created_at INTEGER NOT NULL
) STRICT;

-- expires_at is NULL while the lock is free; the fence outlives its holders.
CREATE TABLE alkstore_lock (
    name TEXT PRIMARY KEY,
    fence INTEGER NOT NULL,
    expires_at INTEGER
) STRICT, WITHOUT ROWID;

-- Every put gives a new id, so the last id and the number of rows tell watchers that something changed.
CREATE TABLE alkstore_schedule (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    spec TEXT NOT NULL,
    every INTEGER NOT NULL,
    anchor INTEGER,
    queue TEXT NOT NULL,
    payload BLOB NOT NULL,
    priority INTEGER NOT NULL,
    visibility_timeout INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    base_delay INTEGER NOT NULL,
    expires INTEGER,
    next_fire_at INTEGER NOT NULL
) STRICT;

CREATE INDEX alkstore_schedule_due ON alkstore_schedule (next_fire_at);
