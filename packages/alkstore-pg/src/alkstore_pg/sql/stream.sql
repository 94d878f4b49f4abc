-- name: make
-- Give streams a row, unless they have one, and say where each stands.
SELECT name, id, base, home FROM {schema}.make_streams($1::text[]);

-- name: find
-- Where streams stand; no row of one that has none.
SELECT name, id, base, {sequence}::regclass::oid::bigint FROM {schema}.stream WHERE name = ANY ($1::text[]);

-- name: append
-- Append events to the streams of $1, under the floors of $3 as far as there are any.
SELECT held, drawn
FROM {schema}.append_events(
    {schema}.at_home($1::bigint[], $9::bigint), $2::bigint[], $3::bigint[],
    $4::integer[], $5::text[], $6::bytea[], $7::bytea[], $8::text[], $10::bigint
);

-- name: read
-- One page of a stream; a last row without an offset says that more is held back.
SELECT "offset", key, payload, headers, created_at
FROM {schema}.read_events(
    {schema}.at_home($1::bigint, $3::bigint), $2::bigint, $4::bigint, $5::bigint, $6::boolean
);

-- name: head
-- The greatest offset that a reader may see now.
SELECT {schema}.read_head({schema}.at_home($1::bigint, $3::bigint), $2::bigint);

-- name: trim
-- Delete the events up to an offset.
SELECT {schema}.trim_events({schema}.at_home($1::bigint, $3::bigint), $2::bigint, $4::bigint);

-- name: offsets
-- Where each consumer of a stream stands.
SELECT consumer, "offset"
FROM {schema}.position
WHERE stream = {schema}.at_home($1::bigint, $2::bigint) AND "offset" IS NOT NULL;

-- name: move
-- Set where one consumer of a stream stands, or move it forward only.
SELECT {schema}.move_position(
    {schema}.at_home($1::bigint, $2::bigint), $3::text, $4::bigint, $5::boolean, $6::bigint
);

-- name: names
-- The streams that have events or positions. In order, so that an index gives the first: EXISTS may scan all events.
SELECT name
FROM {schema}.stream AS s
WHERE (SELECT e.stream FROM {schema}.event AS e WHERE e.stream = s.id ORDER BY e."offset" LIMIT 1) IS NOT NULL
   OR EXISTS (SELECT FROM {schema}.position AS p WHERE p.stream = s.id AND p."offset" IS NOT NULL)
ORDER BY name;

-- name: position
-- Where one consumer stands; no row if it never saved.
SELECT "offset"
FROM {schema}.position
WHERE stream = {schema}.at_home($1::bigint, $2::bigint) AND consumer = $3::text AND "offset" IS NOT NULL;

-- name: hold
-- Where one consumer stands, and let nobody move it until the transaction ends.
SELECT {schema}.hold_position({schema}.at_home($1::bigint, $2::bigint), $3::text, $4::bigint);

-- name: save
-- Hold where one consumer stands, and change it if it is as expected.
SELECT found_offset, is_saved
FROM {schema}.save_position(
    {schema}.at_home($1::bigint, $2::bigint), $3::text, $4::bigint, $5::bigint, $6::bigint
);

-- name: isolation
-- The isolation level of the transaction that this runs in.
SELECT current_setting('transaction_isolation');

-- name: catch_up
-- Raise the sequence to the greatest offset there is. Where there is no stream the function is not even read: every store
-- that opens asks this.
SELECT {schema}.catch_up() WHERE EXISTS (SELECT FROM {schema}.stream);
