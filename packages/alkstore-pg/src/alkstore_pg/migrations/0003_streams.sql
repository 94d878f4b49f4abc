-- What streams do in one round trip each. A transaction's events become visible at its commit, but their offsets are drawn
-- before, so a reader must stop below every offset that an open transaction may still fill. Who appends therefore takes a
-- shared advisory lock that carries the *floor*, what the sequence had given before he draws, and a reader stops at the
-- least floor that he finds (docs/decisions/0022-floor-lock.md). Values below are the sequence's: offset + base.

-- The first key of a stream's floor locks; 0, which no stream is called, stands for every stream. Streams of a schema differ
-- in it as long as their ids differ in 32 bits; the sequence's oid parts schemas.
CREATE FUNCTION {schema}.floor_class(stream bigint) RETURNS integer
LANGUAGE sql STABLE PARALLEL SAFE
AS $alkstore$
    SELECT hashint8({sequence}::regclass::oid::bigint) # ((stream << 32) >> 32)::integer
$alkstore$;

-- Give what a stream's key, or keys, say, if this is still the schema in which they were learnt: one that was dropped and
-- made again gives the same ids to other streams, while stores live that remember them.
CREATE FUNCTION {schema}.at_home(ids anyelement, home bigint) RETURNS anyelement
LANGUAGE plpgsql STABLE PARALLEL SAFE
AS $alkstore$
BEGIN
    IF home IS DISTINCT FROM {sequence}::regclass::oid::bigint THEN
        RAISE EXCEPTION 'the schema was made again since its streams were learnt' USING ERRCODE = 'AK002';
    END IF;
    RETURN ids;
END
$alkstore$;

-- What the sequence has given so far.
CREATE FUNCTION {schema}.given() RETURNS bigint
LANGUAGE sql VOLATILE
AS $alkstore$
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {schema}.event_offset
$alkstore$;

-- Append to the streams of ``streams``, which are distinct; places says for each event which of them is its own, from 1.
-- remembered is the floor that this transaction had for each stream before, or NULL: it is locked again, because a
-- savepoint that was rolled back has taken its lock along. Without remembered nothing follows in this transaction. Gives
-- the floor of those that had none, and the values drawn. Waits at most ``patience`` ms for others that draw.
CREATE FUNCTION {schema}.append_events(
    streams bigint[], bases bigint[], remembered bigint[],
    places integer[], keys text[], payloads bytea[], headers bytea[], texts text[], patience bigint,
    OUT held bigint, OUT drawn bigint[]
)
LANGUAGE plpgsql
AS $alkstore$
#variable_conflict use_column
DECLARE
    latest bigint;
    first bigint;
    instant bigint := {schema}.now();
    locked bigint[] := streams;
    numbered xid8;
BEGIN
    IF NOT pg_is_in_recovery() THEN
        -- A floor has a numbered transaction from its first moment on, by which readers see whether it counts.
        numbered := pg_current_xact_id();
    END IF;
    IF remembered IS NULL AND cardinality(streams) > 50 THEN
        -- The server has a few thousand locks in all. For as long as a commit takes, all streams may stand still.
        locked := ARRAY[0];
    END IF;
    FOR tries_left IN REVERSE 9..0 LOOP
        SELECT CASE WHEN is_called THEN last_value ELSE 0 END INTO held FROM {schema}.event_offset;
        BEGIN
            PERFORM pg_advisory_xact_lock_shared(
                {schema}.floor_class(s.id), ((coalesce(s.remembered, held) << 32) >> 32)::integer
            )
            FROM unnest(locked, remembered) AS s(id, remembered);
            SELECT CASE WHEN is_called THEN last_value ELSE 0 END INTO latest FROM {schema}.event_offset;
            -- What others drew since may be read already, and this lock would hide it again until we end. An
            -- exception gives a lock back, nothing else does.
            EXIT WHEN latest = held OR tries_left = 0;
            RAISE EXCEPTION USING ERRCODE = 'AK001';
        EXCEPTION WHEN SQLSTATE 'AK001' THEN
            NULL;
        END;
    END LOOP;
    BEGIN
        -- All at once: a floor, or a reader's bound, that fell between two of them would part what is one append. A
        -- sequence gives one at a time, so who needs more sets it, and nobody else may draw meanwhile: the lock of one
        -- key, no floor, is shared by who takes one. It is held for microseconds, unless its holder stands still.
        IF cardinality(places) = 1 THEN
            IF NOT pg_try_advisory_xact_lock_shared({schema}.floor_class(0)) THEN
                PERFORM set_config('lock_timeout', greatest(1, least(patience, 2147483647))::text, true);
                PERFORM pg_advisory_xact_lock_shared({schema}.floor_class(0));
            END IF;
            first := nextval({sequence}::regclass);
            drawn := ARRAY[first];  -- a third of the call's time as below
        ELSE
            IF NOT pg_try_advisory_xact_lock({schema}.floor_class(0)) THEN
                PERFORM set_config('lock_timeout', greatest(1, least(patience, 2147483647))::text, true);
                PERFORM pg_advisory_xact_lock({schema}.floor_class(0));
            END IF;
            SELECT CASE WHEN is_called THEN last_value ELSE 0 END + 1 INTO first FROM {schema}.event_offset;
            PERFORM setval({sequence}::regclass, first + cardinality(places) - 1);
        END IF;
        -- What was drawn stays so; lock and setting go back now, not when a transaction ends that may be long.
        RAISE EXCEPTION USING ERRCODE = 'AK001';
    EXCEPTION WHEN SQLSTATE 'AK001' THEN
        NULL;
    END;
    IF first <= latest THEN
        RAISE EXCEPTION 'the sequence of offsets gave % after %', first, latest
            USING HINT = 'it must not cache values nor cycle: ALTER SEQUENCE ... CACHE 1 NO CYCLE';
    END IF;
    IF drawn IS NULL THEN
        drawn := ARRAY(SELECT generate_series(first, first + cardinality(places) - 1));
    END IF;
    INSERT INTO {schema}.event (stream, "offset", created_at, key, payload, headers)
    SELECT streams[e.place], e.value - bases[e.place], instant, e.key, e.payload, e.headers
    FROM unnest(places, drawn, keys, payloads, headers) AS e(place, value, key, payload, headers);
    IF cardinality(texts) > 0 THEN
        PERFORM pg_notify({channel}, t.text) FROM unnest(texts) AS t(text);
    END IF;
END
$alkstore$;

-- Whether a transaction that has held its lock just now has ended: what it wrote is visible to the next statement. The
-- number carries 32 bits; those who hold locks are near the newest.
CREATE FUNCTION {schema}.has_ended(locked xid) RETURNS boolean
LANGUAGE sql VOLATILE
AS $alkstore$
    SELECT coalesce(pg_xact_status((
        newest.id + ((locked::text::bigint - newest.id + 2147483648) & 4294967295) - 2147483648
    )::text::xid8) <> 'in progress', false)
    FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint) AS newest(id)
$alkstore$;

-- The greatest value up to which nothing of a stream can change any more, and whether an open transaction is the reason
-- that it is not greater. With ``own`` the caller's own transaction does not count. The steps must be statements of
-- their own, and whatever uses the bound a later one: each has a snapshot, and a value that was drawn before the first
-- is locked in the second or visible in the third.
CREATE FUNCTION {schema}.readable(
    stream bigint, own boolean, OUT bound bigint, OUT is_held boolean
)
LANGUAGE plpgsql
AS $alkstore$
DECLARE
    class constant oid := {schema}.floor_class(stream)::oid;
    class_of_all constant oid := {schema}.floor_class(0)::oid;
    floors bigint[];
    is_between boolean;
    latest bigint;
    least_floor bigint;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'a stream can only be read in a transaction that is READ COMMITTED'
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'a stream cannot be read on a standby: it does not see the locks of open transactions'
            USING ERRCODE = 'read_only_sql_transaction';
    END IF;
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END INTO bound FROM {schema}.event_offset;
    is_held := false;
    FOR looks_left IN REVERSE 99..0 LOOP
        WITH locks AS MATERIALIZED (
            SELECT l.locktype, l.virtualtransaction AS holder, l.classid, l.objid, l.objsubid, l.pid, l.transactionid
            FROM pg_locks AS l
            WHERE (
                l.locktype = 'advisory' AND l.classid IN (class, class_of_all) AND l.objsubid = 2
                AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
                -- A prepared transaction has no pid.
                AND NOT (own AND l.pid IS NOT DISTINCT FROM pg_backend_pid())
            ) OR (l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted)
        )
        -- A transaction that has ended is seen by others a moment before it lets go of its locks. Whoever sees its jobs
        -- must see its events.
        SELECT coalesce(array_agg(f.objid::bigint) FILTER (WHERE n.has_ended IS NOT TRUE), '{}'),
            coalesce(bool_or(n.has_ended IS NULL), false)
        INTO floors, is_between
        FROM locks AS f
        CROSS JOIN LATERAL (
            SELECT bool_and({schema}.has_ended(t.transactionid)) AS has_ended
            FROM locks AS t
            WHERE t.locktype = 'transactionid' AND t.holder = f.holder
        ) AS n
        WHERE f.locktype = 'advisory';
        -- It lets go of them one after the other, as PREPARE TRANSACTION hands them over; without its number nobody
        -- knows which of the two it is. It needs microseconds, unless the machine has something else to do.
        EXIT WHEN NOT is_between;
        PERFORM pg_sleep(0.001) WHERE looks_left > 0;
    END LOOP;
    IF cardinality(floors) > 0 THEN
        -- A lock carries the low 32 bits of a floor that is at most what was given by now.
        SELECT CASE WHEN is_called THEN last_value ELSE 0 END INTO latest FROM {schema}.event_offset;
        SELECT min(latest - ((latest - f) & 4294967295)) INTO least_floor FROM unnest(floors) AS f;
        IF least_floor < bound THEN
            bound := least_floor;
            is_held := true;
        END IF;
    END IF;
END
$alkstore$;

-- One page. A last row without an offset says that there is more, which an open transaction holds back.
CREATE FUNCTION {schema}.read_events(id bigint, base bigint, after bigint, size bigint, own boolean)
RETURNS TABLE ("offset" bigint, key text, payload bytea, headers bytea, created_at bigint)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $alkstore$
#variable_conflict use_column
DECLARE
    greatest_offset bigint;
    was_held boolean;
    found_rows bigint;
BEGIN
    -- A reader that waits at the end of a stream asks for no locks.
    IF NOT EXISTS (SELECT FROM {schema}.event AS e WHERE e.stream = id AND e."offset" > after) THEN
        RETURN;
    END IF;
    SELECT r.bound - base, r.is_held INTO greatest_offset, was_held FROM {schema}.readable(id, own) AS r;
    RETURN QUERY
    SELECT e."offset", e.key, e.payload, e.headers, e.created_at
    FROM {schema}.event AS e
    WHERE e.stream = id AND e."offset" > after AND e."offset" <= greatest_offset
    ORDER BY e."offset"
    LIMIT size;
    GET DIAGNOSTICS found_rows = ROW_COUNT;
    IF was_held AND found_rows < size AND EXISTS (
        SELECT FROM {schema}.event AS e
        WHERE e.stream = id AND e."offset" > greatest(after, greatest_offset)
    ) THEN
        "offset" := NULL;
        RETURN NEXT;
    END IF;
END
$alkstore$;

-- The greatest offset that a reader may see now, or that was trimmed.
CREATE FUNCTION {schema}.read_head(id bigint, base bigint) RETURNS bigint
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $alkstore$
#variable_conflict use_column
DECLARE
    head bigint;
    greatest_offset bigint;
BEGIN
    SELECT s.trimmed INTO head FROM {schema}.stream AS s WHERE s.id = read_head.id;
    head := coalesce(head, 0);
    IF NOT EXISTS (SELECT FROM {schema}.event AS e WHERE e.stream = read_head.id AND e."offset" > head) THEN
        RETURN head;
    END IF;
    SELECT r.bound - base INTO greatest_offset FROM {schema}.readable(read_head.id, false) AS r;
    RETURN greatest(head, (
        SELECT e."offset"
        FROM {schema}.event AS e
        WHERE e.stream = read_head.id AND e."offset" <= greatest_offset
        ORDER BY e."offset" DESC
        LIMIT 1
    ));
END
$alkstore$;

-- Delete what a reader may see now up to an offset. Trims of one stream follow each other.
CREATE FUNCTION {schema}.trim_events(id bigint, base bigint, horizon bigint) RETURNS bigint
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $alkstore$
DECLARE
    greatest_offset bigint;
    last_offset bigint;
    count_deleted bigint;
BEGIN
    SELECT least(horizon, r.bound - base) INTO greatest_offset FROM {schema}.readable(id, false) AS r;
    last_offset := (
        SELECT e."offset"
        FROM {schema}.event AS e
        WHERE e.stream = trim_events.id AND e."offset" <= greatest_offset
        ORDER BY e."offset" DESC
        LIMIT 1
    );
    IF last_offset IS NULL THEN
        RETURN 0;
    END IF;
    UPDATE {schema}.stream AS s SET trimmed = greatest(s.trimmed, last_offset) WHERE s.id = trim_events.id;
    DELETE FROM {schema}.event AS e WHERE e.stream = trim_events.id AND e."offset" <= last_offset;
    GET DIAGNOSTICS count_deleted = ROW_COUNT;
    RETURN count_deleted;
END
$alkstore$;

-- Give streams a row, and their keys. It must commit before anybody draws: then every offset is at least 1.
CREATE FUNCTION {schema}.make_streams(names text[])
RETURNS TABLE (name text, id bigint, base bigint, home bigint)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $alkstore$
#variable_conflict use_column
BEGIN
    INSERT INTO {schema}.stream (base, name)
    SELECT {schema}.given(), n.name
    FROM unnest(names) AS n(name)
    WHERE NOT EXISTS (SELECT FROM {schema}.stream AS s WHERE s.name = n.name)
    ORDER BY n.name COLLATE "C"
    ON CONFLICT DO NOTHING;
    RETURN QUERY
    SELECT s.name, s.id, s.base, {sequence}::regclass::oid::bigint
    FROM {schema}.stream AS s
    WHERE s.name = ANY (names);
END
$alkstore$;

-- Hold a consumer's position until the transaction ends, wait at most ``patience`` ms for others that hold it, and give it.
CREATE FUNCTION {schema}.hold_position(id bigint, reader text, patience bigint) RETURNS bigint
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $alkstore$
DECLARE
    limit_before constant text := current_setting('lock_timeout');
    found_offset bigint;
BEGIN
    PERFORM set_config('lock_timeout', greatest(1, least(patience, 2147483647))::text, true);
    SELECT p."offset" INTO found_offset
    FROM {schema}.position AS p
    WHERE p.stream = id AND p.consumer = reader
    FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO {schema}.position AS p (stream, consumer)
        VALUES (id, reader)
        ON CONFLICT (stream, consumer) DO UPDATE SET "offset" = p."offset"
        RETURNING p."offset" INTO found_offset;
    END IF;
    PERFORM set_config('lock_timeout', limit_before, true);
    RETURN coalesce(found_offset, 0);
END
$alkstore$;

-- Hold a consumer's position, and save if it is ``expected`` (NULL: if ``target`` is greater).
CREATE FUNCTION {schema}.save_position(
    id bigint, reader text, target bigint, expected bigint, patience bigint, OUT found_offset bigint, OUT is_saved boolean
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $alkstore$
BEGIN
    found_offset := {schema}.hold_position(id, reader, patience);
    is_saved := CASE WHEN expected IS NULL THEN target > found_offset ELSE expected = found_offset END;
    IF is_saved THEN
        UPDATE {schema}.position AS p SET "offset" = target WHERE p.stream = id AND p.consumer = reader;
    END IF;
END
$alkstore$;

-- Set a consumer's position, or move it forward only; says whether it moved.
CREATE FUNCTION {schema}.move_position(id bigint, reader text, target bigint, backwards boolean, patience bigint)
RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $alkstore$
DECLARE
    limit_before constant text := current_setting('lock_timeout');
    has_moved boolean;
BEGIN
    PERFORM set_config('lock_timeout', greatest(1, least(patience, 2147483647))::text, true);
    UPDATE {schema}.position AS p
    SET "offset" = target
    WHERE p.stream = id AND p.consumer = reader AND (backwards OR coalesce(p."offset", 0) < target);
    has_moved := FOUND;
    -- Somebody may have an uncommitted row where there is none for us.
    IF NOT has_moved AND (backwards OR target > 0) THEN
        INSERT INTO {schema}.position AS p (stream, consumer, "offset")
        VALUES (id, reader, target)
        ON CONFLICT (stream, consumer) DO UPDATE
        SET "offset" = excluded."offset"
        WHERE backwards OR coalesce(p."offset", 0) < excluded."offset";
        has_moved := FOUND;
    END IF;
    PERFORM set_config('lock_timeout', limit_before, true);
    RETURN has_moved;
END
$alkstore$;

-- Raise the sequence to the greatest offset there is: rows may have come without it, by logical replication. Says whether
-- it was behind. Nobody draws meanwhile.
CREATE FUNCTION {schema}.catch_up() RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $alkstore$
DECLARE
    last_value_used bigint;
BEGIN
    last_value_used := (
        SELECT max(s.base + greatest(s.trimmed, (
            SELECT e."offset" FROM {schema}.event AS e WHERE e.stream = s.id ORDER BY e."offset" DESC LIMIT 1
        )))
        FROM {schema}.stream AS s
    );
    IF last_value_used IS NULL OR last_value_used <= {schema}.given() THEN
        RETURN false;
    END IF;
    PERFORM pg_advisory_xact_lock({schema}.floor_class(0));  -- as who appends
    IF last_value_used <= {schema}.given() THEN
        RETURN false;
    END IF;
    PERFORM setval({sequence}::regclass, last_value_used);
    RETURN true;
END
$alkstore$;
