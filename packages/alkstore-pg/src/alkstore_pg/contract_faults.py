"""What the contract suite lets go wrong: brought about by the server, by its end, or at the ends of a store's connections."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import psycopg

from alkstore.errors import AlkstoreError
from alkstore_contract_suite.factory import Fault, Unsupported
from alkstore_pg import contract_dsn
from alkstore_pg.contract_outsider import TABLES, Outsider, quoted
from alkstore_pg.contract_server import Server
from alkstore_pg.contract_store import SuiteStore

if TYPE_CHECKING:
    from alkstore_pg.contract_factory import Place

__all__ = ["bounded", "fault"]

LOOK_AGAIN: Final = 0.001
"""Seconds of real time between two looks at something that tells nobody when it changes."""

MOST_LOOKS: Final = 2_000
"""Looks after which it does not come any more."""

MAINTENANCE: Final = "postgres"
"""The database from which another one is closed and opened."""

NO_WATCHER: Final = "there is no watcher: the server tells of commits"
NO_LISTENER: Final = "no connection listens in the polling-only mode"
NOT_OURS: Final = "the server of ALKSTORE_PG_DSN is not ours to restart"


class Broken(Protocol):
    """What a fault is brought about in: a factory."""

    @property
    def place(self) -> "Place": ...

    @property
    def outsider(self) -> Outsider: ...

    @property
    def server(self) -> Server | None: ...


_Break: TypeAlias = Callable[[Broken, SuiteStore], AbstractAsyncContextManager[None]]


def fault(kind: Fault, where: Broken, store: SuiteStore) -> AbstractAsyncContextManager[None] | Unsupported:
    """Break a store's storage for the length of a block, or say why that cannot happen."""
    if kind is Fault.WATCHER_DIES:
        return Unsupported(NO_WATCHER)
    if kind in _LISTENING and where.place.options.get("listen") is False:
        return Unsupported(NO_LISTENER)
    if kind is Fault.SERVER_RESTART and not is_ours(where):
        return Unsupported(NOT_OURS)
    return _FAULTS[kind](where, store)


def is_ours(where: Broken) -> bool:
    """Whether the server may be stopped and started."""
    return where.server is not None and where.server.can_restart


async def bounded(work: Awaitable[object], seconds: float) -> None:
    """Await something that a fault may keep from ever ending."""
    with suppress(TimeoutError, AlkstoreError):
        async with asyncio.timeout(seconds):
            await work


# -------------------------------------------------------------------- writes that the server refuses


@asynccontextmanager
async def _triggered(where: Broken, trigger: str, apart: str = "") -> AsyncIterator[None]:
    schema, outsider = where.place.schema, where.outsider
    names = [name for (name,) in outsider.run(TABLES, schema) if name != apart]
    tables = [f"{quoted(schema)}.{quoted(name)}" for name in names]
    outsider.run(";".join(trigger.replace("{table}", table) for table in tables))
    try:
        yield
    finally:
        _drop(outsider, tables)


def _drop(outsider: Outsider, tables: Sequence[str]) -> None:
    drop = ";".join(f"DROP TRIGGER broken ON {table}" for table in tables)
    try:
        outsider.run(drop)
    except psycopg.errors.LockNotAvailable:
        # A transaction that the case has left open, probably because of an error that is to be told.
        outsider.terminate(outsider.working())
        outsider.run(drop)


def commit_fails(where: Broken, store: SuiteStore) -> AbstractAsyncContextManager[None]:
    """Let a deferred constraint of the application find at the COMMIT, and not before, that what was written is wrong.

    Streams can be made: a transaction has that done past it, before its first event.
    """
    return _triggered(
        where,
        "CREATE CONSTRAINT TRIGGER broken AFTER INSERT OR UPDATE OR DELETE ON {table} "
        "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION suite.refuse()",
        apart="stream",
    )


def storage_full(where: Broken, store: SuiteStore) -> AbstractAsyncContextManager[None]:
    """Let every statement that wants room write where there is none; the disk itself serves other cases too."""
    return _triggered(
        where,
        "CREATE TRIGGER broken BEFORE INSERT OR UPDATE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION suite.fill()",
    )


@asynccontextmanager
async def read_only(where: Broken, store: SuiteStore) -> AsyncIterator[None]:
    """Cut everybody off from a database that then takes no writes, as when a standby takes the place of its primary."""
    name = quoted(contract_dsn.database(where.place.direct))
    where.outsider.run(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await _cut_off(where, store)
    try:
        yield
    finally:
        where.outsider.run(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        await _cut_off(where, store)


async def _cut_off(where: Broken, store: SuiteStore) -> None:
    before = store.cord.connections
    where.outsider.terminate(where.outsider.sessions())
    if not where.place.is_pooled:
        # Or the next call would find out that its connection is gone, and not what this is about.
        await _until(lambda: all(connection.is_closed() for connection in before))


async def _until(it_is_so: Callable[[], bool]) -> None:
    for _ in range(MOST_LOOKS):
        if it_is_so():
            return
        await asyncio.sleep(LOOK_AGAIN)
    raise RuntimeError("connections that the server was told to end do not end")


# -------------------------------------------------------------------- the server's end


@asynccontextmanager
async def storage_away(where: Broken, store: SuiteStore) -> AsyncIterator[None]:
    """Stop the server as a crash does; where it is not ours, let nobody into the database."""
    outsider = where.outsider
    outsider.close()
    outsider.is_away = True
    try:
        async with _stopped(where.server) if is_ours(where) else _closed(where.place.direct):
            yield
    finally:
        outsider.is_away = False
        outsider.set_clock()
    if where.place.is_pooled:
        # The pooler goes on refusing for a while, and the next case is to begin with everything as it should be.
        # In a thread: the stores are to learn meanwhile which of their connections it has closed.
        await asyncio.to_thread(be_let_in, where.place.dsn)


def be_let_in(dsn: str) -> None:
    """Wait until a pooler that has lost its server lets clients through again."""
    for _ in range(MOST_LOOKS):
        with suppress(psycopg.OperationalError), closing(psycopg.connect(dsn, autocommit=True)) as connection:
            connection.execute("SELECT 1", prepare=False)
            return
        time.sleep(LOOK_AGAIN)
    raise RuntimeError("the pooler lets nobody in")


@asynccontextmanager
async def _stopped(server: Server | None) -> AsyncIterator[None]:
    assert server is not None
    await asyncio.to_thread(server.stop, "immediate")
    try:
        yield
    finally:
        await asyncio.to_thread(server.resume)


@asynccontextmanager
async def _closed(dsn: str) -> AsyncIterator[None]:
    name = contract_dsn.database(dsn)
    beside = Outsider(contract_dsn.on_database(dsn, MAINTENANCE))
    beside.run(f"ALTER DATABASE {quoted(name)} ALLOW_CONNECTIONS false")
    beside.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
    try:
        yield
    finally:
        beside.run(f"ALTER DATABASE {quoted(name)} ALLOW_CONNECTIONS true")


@asynccontextmanager
async def server_restart(where: Broken, store: SuiteStore) -> AsyncIterator[None]:
    """End the server as a crash does, and start it again."""
    assert where.server is not None
    where.outsider.close()
    await asyncio.to_thread(where.server.restart, "immediate")
    yield


# -------------------------------------------------------------------- the listening connection


@asynccontextmanager
async def listener_lost(where: Broken, store: SuiteStore) -> AsyncIterator[None]:
    """Let the server end the listening connection, and make no other one before the end of the block."""
    store.cord.is_deaf = True
    try:
        while (listener := store.cord.listener) is not None:
            where.outsider.terminate([listener.get_server_pid()])
            await asyncio.sleep(LOOK_AGAIN)
        yield
    finally:
        store.cord.is_deaf = False


@asynccontextmanager
async def listener_silent(where: Broken, store: SuiteStore) -> AsyncIterator[None]:
    """Read nothing more of what comes over the listening connection: half open, as after a cable was pulled."""
    listener = store.cord.listener
    assert listener is not None
    listener._transport.pause_reading()  # type: ignore[attr-defined]  # asyncpg has no public way to its socket
    yield


@asynccontextmanager
async def wakes_lost(where: Broken, store: SuiteStore) -> AsyncIterator[None]:
    """Let the server tell the listening connection nothing, while it is as well as ever."""
    listener = store.cord.listener
    assert listener is not None
    await listener.execute("UNLISTEN *")
    try:
        yield
    finally:
        if not listener.is_closed():
            await listener.execute(f"LISTEN {quoted(where.place.schema)}")


_LISTENING: Final = frozenset({Fault.LISTENER_LOST, Fault.LISTENER_SILENT, Fault.WAKES_LOST})

_FAULTS: Final[Mapping[Fault, _Break]] = {
    Fault.COMMIT_FAILS: commit_fails,
    Fault.STORAGE_FULL: storage_full,
    Fault.READ_ONLY: read_only,
    Fault.STORAGE_AWAY: storage_away,
    Fault.SERVER_RESTART: server_restart,
    Fault.LISTENER_LOST: listener_lost,
    Fault.LISTENER_SILENT: listener_silent,
    Fault.WAKES_LOST: wakes_lost,
}
