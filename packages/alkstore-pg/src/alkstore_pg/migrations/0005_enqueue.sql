-- The door for who has no Python: triggers, psql, other languages.

-- Seconds as microseconds of 64 bits, whatever an interval or a timestamp holds, infinity too.
CREATE FUNCTION {schema}.microseconds(seconds numeric) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT least(greatest(seconds * 1000000, -9223372036854775808), 9223372036854775807)::bigint $$;

-- Put a job in line, as Queue.enqueue does: within the caller's transaction, so it is claimable, and workers are woken,
-- once that commits. payload is JSON as text and stored as it is; what is NULL or left out has the plain default.
--     SELECT alkstore.enqueue('mail', '{"to": "ada@example.org"}', delay => '5 seconds');
CREATE FUNCTION {schema}.enqueue(
    queue text,
    payload text,
    priority bigint DEFAULT 0,
    delay interval DEFAULT NULL,
    run_at timestamptz DEFAULT NULL,
    visibility_timeout interval DEFAULT '300 seconds',
    max_attempts bigint DEFAULT 3,
    base_delay interval DEFAULT '5 seconds',
    expires interval DEFAULT NULL,
    headers jsonb DEFAULT '{}'
)
RETURNS bigint
LANGUAGE plpgsql
AS $alkstore$
DECLARE
    -- What Python's str.strip takes off: a name of these alone is blank.
    spaces CONSTANT text := E'\t\n\u000B\f\r\u001C\u001D\u001E\u001F \u0085\u00A0\u1680\u2000\u2001\u2002\u2003\u2004'
        || E'\u2005\u2006\u2007\u2008\u2009\u200A\u2028\u2029\u202F\u205F\u3000';
    longest_name CONSTANT bigint := 255;
    longest_headers CONSTANT bigint := 8192;
    instant CONSTANT bigint := {schema}.now();
    most CONSTANT bigint := coalesce(max_attempts, 3);
    claim_window CONSTANT bigint :=
        {schema}.microseconds(extract(epoch FROM coalesce(visibility_timeout, '300 seconds'::interval)));
    base CONSTANT bigint := {schema}.microseconds(extract(epoch FROM coalesce(base_delay, '5 seconds'::interval)));
    given_headers CONSTANT jsonb := coalesce(headers, '{}'::jsonb);
    header record;
    ready_at bigint;
    ends_at bigint;
    made bigint;
BEGIN
    IF queue IS NULL OR btrim(queue, spaces) = '' THEN
        RAISE EXCEPTION 'queue name must not be blank, got %', quote_nullable(queue)
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF octet_length(queue) > longest_name THEN
        RAISE EXCEPTION 'queue name must be at most % bytes of UTF-8, not %', longest_name, octet_length(queue)
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF starts_with(queue, '__alkstore_') THEN
        RAISE EXCEPTION 'queue name must not begin with __alkstore_, got %', quote_literal(queue)
            USING ERRCODE = 'reserved_name', HINT = 'Such names are alkstore''s own; choose another one.';
    END IF;
    IF payload IS NULL THEN
        RAISE EXCEPTION 'payload must not be NULL'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'The JSON value is the text ''null''.';
    END IF;
    BEGIN
        PERFORM payload::json;
        IF payload ~* E'\\\\ud[89a-f]' THEN
            -- json lets halves of a surrogate pair through, which nobody could decode; jsonb does not, nor a NUL.
            PERFORM replace(payload, E'\\u0000', E'\\u0001')::jsonb;
        END IF;
    EXCEPTION WHEN invalid_text_representation OR untranslatable_character THEN
        RAISE EXCEPTION 'payload must be JSON: %, got %', sqlerrm, quote_literal(left(payload, 60))
            USING ERRCODE = 'invalid_parameter_value', HINT = 'to_json(value)::text makes JSON of any value.';
    END;
    IF claim_window <= 0 THEN
        RAISE EXCEPTION 'visibility_timeout must be positive, one microsecond or more, got %', visibility_timeout
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF most < 1 THEN
        RAISE EXCEPTION 'max_attempts must be at least 1, got %', max_attempts
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF base < 0 THEN
        RAISE EXCEPTION 'base_delay must be at least 0 s, got %', base_delay USING ERRCODE = 'invalid_parameter_value';
    ELSIF jsonb_typeof(given_headers) <> 'object' THEN
        RAISE EXCEPTION 'headers must be a JSON object, got %', left(given_headers::text, 60)
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF octet_length(given_headers::text) > longest_headers THEN
        RAISE EXCEPTION 'headers must be at most % bytes of JSON, not %', longest_headers, octet_length(given_headers::text)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR header IN SELECT h.key, h.value FROM jsonb_each(given_headers) AS h (key, value) LOOP
        IF jsonb_typeof(header.value) <> 'string' OR btrim(header.key, spaces) = ''
            OR octet_length(header.key) > longest_name
        THEN
            RAISE EXCEPTION 'headers must be texts under names of 1 to % bytes, got % under %',
                longest_name, left(header.value::text, 60), quote_literal(left(header.key, 60))
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END LOOP;
    ready_at := CASE
        WHEN delay IS NOT NULL THEN
            {schema}.shift(instant, greatest({schema}.microseconds(extract(epoch FROM delay)), 0))
        WHEN run_at IS NOT NULL THEN
            least(
                greatest({schema}.microseconds(extract(epoch FROM run_at)::numeric), -62135596800000000),
                253402300799999999
            )
        ELSE instant
    END;
    IF expires IS NOT NULL THEN
        ends_at := {schema}.shift(instant, {schema}.microseconds(extract(epoch FROM expires)));
    END IF;
    INSERT INTO {schema}.job (
        queue, payload, headers, priority, run_at, expires_at, max_attempts, visibility_timeout, base_delay, created_at
    )
    VALUES (
        queue, convert_to(payload, 'UTF8'), convert_to(given_headers::text, 'UTF8'), coalesce(priority, 0), ready_at,
        ends_at, most, claim_window, base, instant
    )
    RETURNING job.id INTO made;
    PERFORM pg_notify(
        {channel}, {schema}.wake_text('q', queue) || CASE WHEN ready_at > instant THEN '@' || ready_at ELSE '' END
    );
    RETURN made;
END
$alkstore$;
