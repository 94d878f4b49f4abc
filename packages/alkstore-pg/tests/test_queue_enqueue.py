"""The SQL function enqueue: for triggers, psql and other languages, with the same stamps and wakes as Queue.enqueue."""

import json
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
from queues import Jobs, jobs

from alkstore.engine import JobFilter, JobRecord, JobState
from alkstore.numbers import MAX_INSTANT, MIN_INSTANT
from alkstore_pg.contract_server import Server
from alkstore_pg.session import Schema


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[str]:
    yield server.create_database("test_queue_enqueue")
    server.drop_database("test_queue_enqueue")


@pytest.fixture
async def q(database: str) -> AsyncIterator[Jobs]:
    async with jobs(database, Schema('It\'s "Mixed"')) as world:
        yield world


async def enqueue(q: Jobs, arguments: str, *parameters: object) -> JobRecord:
    """Call it with arguments as SQL spells them, at instant 10, and give the job."""
    await q.at(10)
    ((id,),) = await q.sql("SELECT {schema}.enqueue(" + arguments + ")", *parameters)
    ((name,),) = await q.sql("SELECT queue FROM {schema}.job WHERE id = $1::bigint", id)
    return await q.job_of(id, name)


async def refusal(q: Jobs, arguments: str, *parameters: object) -> asyncpg.PostgresError:
    with pytest.raises(asyncpg.PostgresError) as caught:
        await enqueue(q, arguments, *parameters)
    assert await q.everything() == []
    return caught.value


# ---------------------------------------------------------------- what it stores


async def test_a_job_has_the_plain_defaults(q: Jobs) -> None:
    job = await enqueue(q, """'mail', '{"to": "ada"}'""")

    assert job == JobRecord(
        job.id, "mail", b'{"to": "ada"}', b"{}", JobState.PENDING, 0, 10, None, 0, 3, 300_000_000, 5_000_000, None, None,
        10, None, None, None, None, None,
    )  # fmt: skip


async def test_what_is_null_has_the_plain_default(q: Jobs) -> None:
    plain = await enqueue(q, "'mail', '1'")

    job = await enqueue(q, "'mail', '1'" + ", NULL" * 8)

    assert job == plain._replace(id=job.id)


async def test_every_stamp_can_be_given_by_name(q: Jobs) -> None:
    job = await enqueue(
        q,
        "queue => 'mail', payload => '[1]', priority => -5, run_at => '2000-01-01 00:00:00.000001+00', "
        "visibility_timeout => '1 minute', max_attempts => 7, base_delay => '0', expires => '1 hour', "
        """headers => '{"trace": "é"}'""",
    )

    assert job == JobRecord(
        job.id, "mail", b"[1]", '{"trace": "é"}'.encode(), JobState.PENDING, -5, 946_684_800_000_001, 3_600_000_010, 0, 7,
        60_000_000, 0, None, None, 10, None, None, None, None, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "run_at"),
    [
        ("delay => '5 s', run_at => now()", 5_000_010),
        ("delay => '1 day 0.000001 s'", 86_400_000_011),
        ("delay => '-5 s'", 10),
        ("delay => '178000000 years'", MAX_INSTANT),
        ("run_at => 'infinity'", MAX_INSTANT),
        ("run_at => '-infinity'", MIN_INSTANT),
        ("run_at => '4000-01-01 BC'", MIN_INSTANT),
        ("run_at => '1969-12-31 23:59:59.999999+00'", -1),
    ],
)
async def test_a_delay_beats_an_instant_and_both_stay_within_the_calendar(
    q: Jobs, arguments: str, run_at: int
) -> None:
    assert (await enqueue(q, f"'mail', '1', {arguments}")).run_at == run_at


@pytest.mark.parametrize("expires", ["'178000000 years'", "'-1 s'"])
async def test_an_expiry_stays_within_the_calendar_and_may_be_over(q: Jobs, expires: str) -> None:
    job = await enqueue(q, f"'mail', '1', expires => {expires}")

    assert job.expires_at == (MAX_INSTANT if "years" in expires else -999_990)


@pytest.mark.parametrize(
    "payload",
    [
        "null",
        "0",
        '"a\\u0000b"',
        '{"a": [1, 2.50, -0.0, 1e16]}',
        " [1]\n",
        '"\\ud83d\\ude00 \\\\ud800 /"',
        '"é😀\u2028"',
    ],
)
async def test_a_payload_is_stored_as_it_was_given(q: Jobs, payload: str) -> None:
    job = await enqueue(q, "'mail', $1::text", payload)

    assert job.payload == payload.encode()
    json.loads(job.payload)


@pytest.mark.parametrize(
    "name", ["q" * 255, "é" * 127, " a ", "Robert'); --", "__Alkstore_x", "\u200b", '"', "%s"]
)
async def test_a_name_that_a_queue_may_have_is_taken(q: Jobs, name: str) -> None:
    assert (await enqueue(q, "$1::text, '1'", name)).queue == name


# ---------------------------------------------------------------- what it refuses


@pytest.mark.parametrize("name", ["", " ", "\t\n\r\v\f", "\u00a0\u2003\u3000\u0085\x1f", None])
async def test_a_blank_name_is_refused(q: Jobs, name: str | None) -> None:
    assert name is None or not name.strip()

    assert "queue name must not be blank, got" in str(await refusal(q, "$1::text, '1'", name))


async def test_a_name_that_is_too_long_is_refused(q: Jobs) -> None:
    error = await refusal(q, "$1::text, '1'", "é" * 128)

    assert str(error) == "queue name must be at most 255 bytes of UTF-8, not 256"


async def test_a_name_of_alkstore_s_own_is_refused(q: Jobs) -> None:
    error = await refusal(q, "'__alkstore_outbox:mail', '1'")

    assert error.message == "queue name must not begin with __alkstore_, got '__alkstore_outbox:mail'"
    assert error.sqlstate == "42939"


@pytest.mark.parametrize(
    "payload", ["", "{", "NaN", "{'a': 1}", "1 2", "[1,]", '"\\ud800"', '"\\udc00\\ud800"', '{"\\uDFFF": 1}']
)
async def test_a_payload_that_nobody_could_decode_is_refused(q: Jobs, payload: str) -> None:
    error = await refusal(q, "'mail', $1::text", payload)

    assert str(error).startswith("payload must be JSON: ")
    assert error.sqlstate == "22023"


async def test_no_payload_is_not_the_same_as_null(q: Jobs) -> None:
    assert (await refusal(q, "'mail', NULL")).message == "payload must not be NULL"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            "visibility_timeout => '0'",
            "visibility_timeout must be positive, one microsecond or more, got 00:00:00",
        ),
        (
            "visibility_timeout => '-1 day'",
            "visibility_timeout must be positive, one microsecond or more, got -1 days",
        ),
        ("max_attempts => 0", "max_attempts must be at least 1, got 0"),
        ("base_delay => '-1 s'", "base_delay must be at least 0 s, got -00:00:01"),
        ("headers => '[1]'", "headers must be a JSON object, got [1]"),
        ("""headers => '{"a": 1}'""", "headers must be texts under names of 1 to 255 bytes, got 1 under 'a'"),
        (
            """headers => '{" ": "1"}'""",
            "headers must be texts under names of 1 to 255 bytes, got \"1\" under ' '",
        ),
        (
            "headers => jsonb_build_object('a', repeat('x', 8192))",
            "headers must be at most 8192 bytes of JSON, not 8201",
        ),
    ],
)
async def test_a_stamp_out_of_its_domain_is_refused_by_name(q: Jobs, arguments: str, text: str) -> None:
    assert (await refusal(q, f"'mail', '1', {arguments}")).message == text


# ---------------------------------------------------------------- within a transaction


async def test_it_lands_and_wakes_with_the_caller_s_commit(q: Jobs) -> None:
    async with q.listening() as heard:
        await q.sql("BEGIN")
        for _ in range(2):
            await enqueue(q, "'né', '1'")
        await enqueue(q, "'né', '1', delay => '5 s'")
        assert await heard() == []
        await q.sql("COMMIT")

        assert await heard() == ["q2:né", "q2:né@5000010"]
        await q.sql("BEGIN")
        await enqueue(q, "'né', '1'")
        await q.sql("ROLLBACK")
        assert await heard() == []
    assert len((await q.claim(9, name="né", now=10)).jobs) == 2


async def test_a_trigger_enqueues_whatever_the_session_s_settings(q: Jobs) -> None:
    await q.script(
        """
        CREATE TABLE {schema}.customer (name text);
        CREATE FUNCTION {schema}.greet() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM {schema}.enqueue('greetings', to_json(NEW)::text);
            RETURN NEW;
        END $$;
        CREATE TRIGGER greet AFTER INSERT ON {schema}.customer FOR EACH ROW EXECUTE FUNCTION {schema}.greet();
        SET search_path = '';
        SET standard_conforming_strings = off;
        SET TimeZone = 'Asia/Kathmandu';
        """
    )

    await q.sql("INSERT INTO {schema}.customer VALUES ($1::text)", "Ada \\ud800 \U0001f600")

    (job,) = await q.find(JobFilter(), "greetings")
    assert json.loads(job.payload) == {"name": "Ada \\ud800 \U0001f600"}
