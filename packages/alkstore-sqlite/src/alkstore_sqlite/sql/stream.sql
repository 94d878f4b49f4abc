-- name: grow
-- Give a stream ?2 more offsets.
UPDATE alkstore_stream SET head = head + ?2 WHERE name = ?1;

-- name: begin
-- Give a stream that has no row yet its first ?2 offsets.
INSERT INTO alkstore_stream (name, head) VALUES (?1, ?2);

-- name: find
-- The row of a stream.
SELECT id, head FROM alkstore_stream WHERE name = ?1;

-- name: append
-- Put one event at its offset.
INSERT INTO alkstore_event (stream, offset, key, payload, headers, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6);

-- name: append_alike
-- Put events at the offsets behind ?2 that are alike but for their payloads: all of them stand joined in ?4, and ?7 tells
-- where each is, as pack.py makes it.
INSERT INTO alkstore_event (stream, offset, key, payload, headers, created_at)
SELECT ?1, ?2 + key + 1, ?3, SUBSTR(?4, value >> 32, value & 4294967295), ?5, ?6
FROM JSON_EACH(?7);

-- name: read
-- One page of a stream.
SELECT offset, key, payload, headers, created_at
FROM alkstore_event
WHERE stream = (SELECT id FROM alkstore_stream WHERE name = ?1) AND offset > ?2
ORDER BY offset
LIMIT ?3;

-- name: head
-- The greatest offset that was ever committed.
SELECT head FROM alkstore_stream WHERE name = ?1;

-- name: trim
-- Delete the events up to an offset.
DELETE FROM alkstore_event
WHERE stream = (SELECT id FROM alkstore_stream WHERE name = ?1) AND offset <= ?2;

-- name: offsets
-- Where each consumer of a stream stands.
SELECT consumer, offset
FROM alkstore_position
WHERE stream = (SELECT id FROM alkstore_stream WHERE name = ?1);

-- name: names
-- The streams that have events or positions; sorted by who asks, because a file in UTF-16 sorts otherwise.
SELECT name
FROM alkstore_stream
WHERE EXISTS (SELECT 1 FROM alkstore_event WHERE stream = alkstore_stream.id)
   OR EXISTS (SELECT 1 FROM alkstore_position WHERE stream = alkstore_stream.id);

-- name: position
-- Where one consumer stands; no row if it never saved.
SELECT offset
FROM alkstore_position
WHERE stream = (SELECT id FROM alkstore_stream WHERE name = ?1) AND consumer = ?2;

-- name: hold
-- Take the write lock and change nothing (no id equals NULL): a position read before it could be moved meanwhile.
UPDATE alkstore_stream SET head = head WHERE id = NULL;

-- name: add_stream
-- Have a row for a stream: its consumers may save before anybody publishes.
INSERT INTO alkstore_stream (name, head) VALUES (?1, 0)
ON CONFLICT (name) DO NOTHING;

-- name: save
-- Set where one consumer of a stream that has a row stands.
INSERT INTO alkstore_position (stream, consumer, offset)
VALUES ((SELECT id FROM alkstore_stream WHERE name = ?1), ?2, ?3)
ON CONFLICT (stream, consumer) DO UPDATE SET offset = excluded.offset;
