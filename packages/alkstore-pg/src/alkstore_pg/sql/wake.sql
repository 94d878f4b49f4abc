-- What is committed is told in texts, all on the schema's one channel: see telling.py.

-- name: notify
-- Tell whoever listens; equal texts of one transaction arrive as one.
SELECT pg_catalog.pg_notify({channel}, told.text) FROM unnest($1::text[]) AS told (text);

-- name: look
-- A round trip: what was committed before it came to this connection before its answer.
SELECT 1;
