import asyncio
import random
import ssl
from typing import Any

import asyncpg
import pytest
from hanging import HUNG
from timed import extended, pool_of

from alkstore import AlkstoreError, DatabaseError, InvalidArgument
from alkstore.clock import ServerClock
from alkstore_pg.contract_server import Server
from alkstore_pg.errors import translate
from alkstore_pg.schema import Found
from alkstore_pg.session import Schema
from alkstore_pg.store import PgStore
from alkstore_pg.surroundings import Options, check, prepare

DSN = "postgresql://ada:hunter2@db.example/app"

NOBODY = "postgresql://ada:hunter2@127.0.0.1:1/app"
"""No port on which anybody listens."""


async def opened(dsn: str, **options: Any) -> None:
    async with PgStore(dsn, **options):
        pass


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("dsn", [None, 5, "db.example/app", "mysql://db"]),
        (
            "schema",
            [None, b"x", "", " ", "x" * 41, "é" * 21, "pg_x", "information_schema", "a\0b", "\ud800", "a$$b"],
        ),
        ("pool_size", [0, -1, 1.5, "10", True, None, 2**63]),
        ("listen", [0, 1, "no", None]),
        ("listener_dsn", [5, "", "db.example", "postgresql://db:port/app"]),
        ("probe_interval", [0, -1, float("nan"), "10", None, True]),
        ("statement_cache_size", [-1, 1.5, "0", None, False]),
        ("ssl", [1, "yes", b"require", object()]),
        ("migrate", [0, 1, "no", None]),
        ("random", [5, "seed", random]),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(option: str, values: list[object]) -> None:
    for value in values:
        options: dict[str, Any] = {"dsn": DSN, option: value}
        with pytest.raises(InvalidArgument, match=f"^{option} "):
            _ = PgStore(**options)


def test_a_listener_that_is_not_to_listen_needs_no_dsn() -> None:
    with pytest.raises(InvalidArgument, match="listener_dsn has no use with listen=False"):
        Options.checked(DSN, listen=False, listener_dsn=DSN)


@pytest.mark.parametrize("value", [None, True, False, "require", ssl.create_default_context()])
def test_every_way_to_ask_for_tls_is_taken(value: object) -> None:
    Options.checked(DSN, ssl=value)


def test_a_store_is_called_by_its_place_and_nothing_shows_its_password() -> None:
    options = Options.checked(DSN, schema="jobs", listener_dsn=DSN, random=random.Random(1))
    store = PgStore(DSN, schema="jobs")

    assert options.shown == "postgresql db.example/app schema jobs"
    for text in (repr(options), options.shown, repr(store), str(store)):
        assert "hunter2" not in text


# ---------------------------------------------------------------- connections


async def test_who_is_not_there_is_named_and_no_password_is() -> None:
    for dsn, where in (
        (NOBODY, "nobody answers at 127.0.0.1:1"),
        ("postgresql:///app?host=/nowhere&password=hunter2", "nobody answers at /nowhere"),
    ):
        with pytest.raises(DatabaseError, match=where) as caught:
            await opened(dsn, wait_timeout=5)

        assert isinstance(caught.value.__cause__, OSError)
        seen: BaseException | None = caught.value
        while seen is not None:
            assert "hunter2" not in str(seen)
            seen = seen.__cause__ or seen.__context__


@pytest.mark.parametrize("options", [{"ssl": "require"}, {"ssl": True}, {}])
async def test_what_is_asked_of_tls_is_passed_on(server: Server, options: dict[str, Any]) -> None:
    if server.tcp_dsn == server.dsn:
        pytest.skip("the server of the environment may speak TLS, or be reached by a socket only")
    dsn = server.tcp_dsn if options else extended(server.tcp_dsn, "sslmode=require")

    with pytest.raises(DatabaseError, match=r"^postgresql: the server at \S+ offers no TLS"):
        await opened(dsn, wait_timeout=5, **options)


async def test_what_only_the_driver_finds_wrong_names_no_password(tmp_path: Any) -> None:
    dsn = f"{NOBODY}?sslmode=verify-full&sslrootcert={tmp_path}/hunter2.pem"

    with pytest.raises(AlkstoreError) as caught:
        await opened(dsn, wait_timeout=5)

    assert "hunter2" not in str(caught.value)


async def test_who_says_nothing_is_given_up_within_wait_timeout_and_named() -> None:
    writers: list[asyncio.StreamWriter] = []
    deaf = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    port = deaf.sockets[0].getsockname()[1]
    async with deaf:
        with pytest.raises(DatabaseError, match=f"no answer from 127.0.0.1:{port} within 0.9 s") as caught:
            async with asyncio.timeout(HUNG):
                await opened(f"postgresql://ada@127.0.0.1:{port}/app", wait_timeout=0.2)
        for writer in writers:  # from Python 3.12.1 on the server waits for them at its end
            writer.close()
            await writer.wait_closed()

    assert not caught.value.outcome_unknown


async def test_a_server_that_refuses_says_why(server: Server) -> None:
    server.execute("DROP ROLE IF EXISTS crowded")
    server.execute("CREATE ROLE crowded LOGIN CONNECTION LIMIT 0")
    for dsn, state, said in (
        (server.dsn_of("postgres", role="crowded"), "53300", "too many connections.*raise max_connections"),
        (
            server.dsn_of("never_made"),
            "3D000",
            'database "never_made" does not exist; make the database first',
        ),
        (server.dsn_of("postgres", role="stranger"), "28000", 'role "stranger" does not exist'),
    ):
        with pytest.raises(DatabaseError, match=said) as caught:
            await opened(dsn, wait_timeout=5)

        assert isinstance(caught.value.__cause__, asyncpg.PostgresError)
        assert caught.value.__cause__.sqlstate == state


async def test_a_connection_says_whose_it_is_unless_the_dsn_does(dsn: str) -> None:
    names = []
    for address in (dsn, extended(dsn, "application_name=shop")):
        connection = await Options.checked(address).dial()
        names.append(await connection.fetchval("SHOW application_name"))
        await connection.close()

    assert names == ["alkstore", "shop"]


async def test_without_a_statement_cache_nothing_is_prepared_by_name(dsn: str) -> None:
    options = Options.checked(dsn, statement_cache_size=0)
    for dial in (options.dial, options.dial_listener):
        connection = await dial()
        await connection.fetch("SELECT $1::bigint", 1)

        assert await connection.fetchval("SELECT count(*) FROM pg_prepared_statements WHERE name <> ''") == 0
        await connection.close()


# ---------------------------------------------------------------- opening

GOOD = Found(150000, "15.0", "UTF8", "read committed", False, False, "ada", True, True, True, (), 0)


def test_what_can_work_is_let_pass() -> None:
    check(GOOD, Schema("jobs"))
    check(GOOD._replace(has_schema=False, has_usage=False, has_list=False), Schema("jobs"))
    check(GOOD._replace(isolation="read uncommitted"), Schema("jobs"))


@pytest.mark.parametrize(
    ("found", "kind", "said"),
    [
        ({"version": 130018, "version_text": "13.18"}, DatabaseError, "version 14 or newer, got 13.18"),
        ({"encoding": "SQL_ASCII"}, InvalidArgument, "encoding UTF8, got SQL_ASCII"),
        ({"isolation": "serializable"}, InvalidArgument, "read committed, got serializable"),
        ({"is_standby": True}, DatabaseError, "takes no writes, it is a standby; connect to the primary"),
        (
            {"is_read_only": True},
            DatabaseError,
            "takes no writes, it is set to default_transaction_read_only",
        ),
        ({"has_usage": False}, DatabaseError, "role 'ada' may not use schema 'jobs'; grant"),
        ({"lacking": ["event", "job"]}, DatabaseError, "role 'ada' may not use table event of schema 'jobs'"),
    ],
)
def test_what_cannot_work_is_refused_with_its_remedy(
    found: dict[str, object], kind: type[AlkstoreError], said: str
) -> None:
    with pytest.raises(kind, match=said):
        check(GOOD._replace(**found), Schema("jobs"))  # type: ignore[arg-type]  # the table above is right


async def test_another_encoding_is_refused_at_open_and_nothing_is_made(server: Server) -> None:
    server.drop_database("ascii")
    dsn = server.create_database(
        "ascii", template="template0", encoding="SQL_ASCII", lc_collate="C", lc_ctype="C"
    )

    with pytest.raises(InvalidArgument, match="UTF8, got SQL_ASCII"):
        await opened(dsn)

    assert server.execute("SELECT FROM pg_namespace WHERE nspname = 'alkstore'", database="ascii") == []
    server.drop_database("ascii")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("default_transaction_isolation=repeatable%20read", "got repeatable read"),
        ("default_transaction_read_only=on", "takes no writes"),
    ],
)
async def test_a_role_whose_settings_cannot_work_is_refused_at_open(
    dsn: str, setting: str, said: str
) -> None:
    with pytest.raises(AlkstoreError, match=said):
        await opened(extended(dsn, setting))


async def test_opening_tells_the_clock_what_time_it_is_there(dsn: str) -> None:
    options, clock = Options.checked(dsn), ServerClock()
    async with pool_of(options) as pool:
        await prepare(pool, pool, options, clock)

        ((before,),) = await pool.run(lambda on: on.fetch("SELECT {schema}.now()"))
        between = clock.now()
        ((after,),) = await pool.run(lambda on: on.fetch("SELECT {schema}.now()"))

    assert before - 1_000_000 < between <= after


def test_a_statement_of_another_ones_name_is_told_of_as_a_poolers_doing() -> None:
    driver = asyncpg.DuplicatePreparedStatementError(
        "it is there already\nHINT: the driver's, of its own functions"
    )

    told = str(translate(driver, writes=False))

    assert told.endswith("open with statement_cache_size=0")
    assert "HINT" not in told
