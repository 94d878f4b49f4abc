import shutil
from collections.abc import Iterator

import asyncpg
import pytest

from alkstore_pg.contract_pooler import Pooler, pgbouncer_available
from alkstore_pg.contract_server import Server, available, execute

ADVICE = available(own=True) or pgbouncer_available()

pytestmark = pytest.mark.skipif(ADVICE is not None, reason=str(ADVICE))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server.start(own=True) as server:
        yield server


@pytest.fixture(scope="module")
def pooler(server: Server) -> Iterator[Pooler]:
    with Pooler.start(server, default_pool_size=1) as pooler:
        yield pooler


async def test_two_clients_take_turns_on_one_connection(pooler: Pooler) -> None:
    first = await asyncpg.connect(pooler.dsn("postgres"), statement_cache_size=0)
    second = await asyncpg.connect(pooler.dsn("postgres", tcp=True), statement_cache_size=0)

    pids = [await client.fetchval("SELECT pg_backend_pid()") for client in (first, second, first)]

    assert len(set(pids)) == 1
    await first.close()
    await second.close()


def test_roles_that_are_named_come_in(server: Server) -> None:
    server.execute("CREATE ROLE runner LOGIN")

    with Pooler.start(server, roles=("runner",)) as pooler:
        found = execute(pooler.dsn("postgres", role="runner"), "SELECT current_user")
        with pytest.raises(asyncpg.ProtocolViolationError, match="authentication failed"):
            execute(pooler.dsn("postgres", role="stranger"), "SELECT 1")

    assert found[0][0] == "runner"


async def test_a_parameter_at_the_start_is_refused(pooler: Pooler) -> None:
    with pytest.raises(asyncpg.ProtocolViolationError, match="unsupported startup parameter"):
        await asyncpg.connect(pooler.dsn("postgres"), server_settings={"search_path": "elsewhere"})


def test_a_restarted_pooler_is_found_at_the_same_address(server: Server) -> None:
    with Pooler.start(server) as pooler:
        pooler.restart()

        assert execute(pooler.dsn("postgres", tcp=True), "SELECT 1")[0][0] == 1
        version = execute(pooler.dsn("pgbouncer"), "SHOW VERSION") if pooler.version >= (1, 21) else None

    assert version is None or "PgBouncer" in version[0][0]


@pytest.mark.parametrize("loss", ["its process", "its folder", "both"])
def test_a_pooler_that_was_lost_is_there_again_at_the_same_address(
    server: Server, loss: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Pooler.start(server) as pooler:
        if loss != "its folder":
            assert pooler._process is not None
            pooler._process.kill()
            pooler._process.wait()
        if loss != "its process":
            shutil.rmtree(pooler._folder)

        answers = pooler.revive(), pooler.revive()

        assert execute(pooler.dsn("postgres"), "SELECT 1")[0][0] == 1
        assert execute(pooler.dsn("postgres", tcp=True), "SELECT 1")[0][0] == 1
    assert answers == (True, False)
    assert "pgbouncer had ended" in caplog.text
