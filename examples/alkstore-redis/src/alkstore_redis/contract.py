"""The column of the Redis engine in the contract suite."""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, cast

from redis import Redis
from redis.exceptions import RedisError

import alkstore
from alkstore import Store
from alkstore.clock import ServerClock
from alkstore_contract_suite.factory import Capability, Fault, StoreFactory, Supported, Unsupported
from alkstore_contract_suite.proxy import Proxy
from alkstore_contract_suite.registry import Registrar
from alkstore_contract_suite.server import ServerColumn, ServerFactory, SuiteClock, moves_of, rest_of
from alkstore_redis.contract_server import Server, available
from alkstore_redis.engine import OMITTED, RedisEngine, RedisStore, alkstore_engine
from alkstore_redis.operation import text
from alkstore_redis.wake import RedisLine

__all__ = ["CAPABILITIES", "RedisFactory", "register"]

NO_SQL: Final = Unsupported(
    "there is no SQL: a transaction is sent at its commit, so nothing can be joined to it"
)
NO_TABLES: Final = Unsupported("there are no tables and no schemas; the keys have a prefix")

CAPABILITIES: Final[Mapping[str, Capability]] = {
    "durable": Supported(),
    "multi_process": Supported(),
    "listen": Supported(),
    "reconnects": Supported(),
    "server": Supported(),
    "sql": NO_SQL,
    "joins": NO_SQL,
    "schema": NO_TABLES,
    "migrations": NO_TABLES,
    "notify_limit": Unsupported("a notify payload has no limit"),
    "watcher": Unsupported(
        "there is no watcher: the server tells of commits, over a connection that listens"
    ),
    "poll_only": Unsupported("there is no polling-only mode"),
}

PREFIX: Final = "{alkstore}:"

SHORT: Final = 0.001
"""Seconds of real time between two looks at something that tells nobody when it changes."""


NOW: Final = """
local now = redis.call('GET', KEYS[1] .. 'clock')
local lands = ARGV[1] == 'commit' or ARGV[3] == '' and ({ insert_jobs = 1, settle_jobs = 1, append_events = 1 })[ARGV[1]]
if lands and redis.call('EXISTS', KEYS[1] .. 'broken') == 1 then return { err = 'ERR no commit lands' } end
"""
"""What is the server's time to the suite's stores; and commits fail if the suite says so."""


class SuiteStore(RedisStore):
    """A store whose time the suite moves."""

    def __init__(self, url: str, clock: SuiteClock, **options: Any) -> None:
        # Few connections: how many a case comes to need depends on the machine, and rows count what is left of them.
        super().__init__(url, probe_interval=0.3, pool_size=2, **options)
        self._clock = cast(ServerClock, clock)
        self._now = NOW


def register(registry: Registrar) -> None:
    """Register the column; the entry point ``alkstore.contract_engines`` names this function."""
    registry.register(
        ServerColumn(
            "redis",
            version=alkstore.__version__,
            contract="1.0",
            capabilities=CAPABILITIES,
            server=Server,
            factory=RedisFactory,
            available=available,
            omitted=OMITTED,
            registration=alkstore_engine,
        )
    )


class RedisFactory(ServerFactory[Server]):
    """Stores on one server."""

    def __init__(self, url: str, seed: str, server: Server | None = None) -> None:
        super().__init__(url, seed, server)
        self.redis: Any = server.redis if server is not None else Redis.from_url(url)

    def make_store(self, **options: Any) -> Store:
        return SuiteStore(self.url, self.clock, random=self.random, **options)

    async def set_clock(self, now: int) -> None:
        with suppress(RedisError):  # away: it is told when it comes back
            self.redis.ping()  # what a process sent that was killed belongs to before the jump
            self.redis.set(PREFIX + "clock", text(now))

    async def empty(self) -> None:
        self.redis.flushall()

    async def cut(self, store: Store) -> None:
        engine = engine_of(store)
        pool = engine._pool
        pool.connection_kwargs["path"] = "/gone"
        await engine.listener.aclose()
        await pool.disconnect(inuse_connections=True)
        pool.reset()  # type: ignore[no-untyped-call]  # each connection knows its own path

    def moves(self, store: Store) -> tuple[int, ...]:
        return moves_of(engine_of(store).calls, engine_of(store).listener)

    async def rest(self, store: Store) -> None:
        await rest_of(engine_of(store).calls, engine_of(store).listener)

    @asynccontextmanager
    async def disturbances(self) -> AsyncIterator[Mapping[str, Callable[[], Awaitable[None]]]]:
        server = cast(Server, self.server)
        async with Proxy(server.folder / "socket") as proxy:

            async def cut() -> None:
                proxy.cut()

            async def restart() -> None:
                server.stop()
                await asyncio.to_thread(server.start)
                await self.set_clock(self.clock.now())

            self.way = "redis://{}:{}".format(*proxy.address)
            try:
                yield {"network cut": cut, "server restart": restart}
            finally:
                self.way = self.url

    async def alter(self) -> None:
        """Do what an administrator may do under open stores."""
        self.redis.script_flush()
        with suppress(RedisError):  # one is under way
            self.redis.bgrewriteaof()

    async def dump_restore(self) -> StoreFactory:
        there = self.kept.enter_context(Server())
        for key in self.redis.scan_iter():
            there.redis.restore(key, 0, self.redis.dump(key) or b"")
        return RedisFactory(there.url, self._seed, there)

    async def footprint(self) -> int:
        """Count the keys and their members (DUR-13)."""
        count = {b"hash": self.redis.hlen, b"set": self.redis.scard, b"zset": self.redis.zcard}
        return sum(int(count.get(self.redis.type(key), lambda _: 1)(key)) for key in self.redis.scan_iter())


def engine_of(store: Store) -> RedisEngine:
    """Give the engine of a store that is open."""
    return cast(RedisEngine, store._engine)


@asynccontextmanager
async def _configured(name: str, value: str, on: RedisFactory, store: Store) -> AsyncIterator[None]:
    before = on.redis.config_get(name)[name]
    on.redis.config_set(name, value)
    try:
        yield
    finally:
        on.redis.config_set(name, before)


@asynccontextmanager
async def _no_commit_lands(on: RedisFactory, store: Store) -> AsyncIterator[None]:
    on.redis.set(PREFIX + "broken", 1)
    try:
        yield
    finally:
        on.redis.delete(PREFIX + "broken")


@asynccontextmanager
async def _away(on: RedisFactory, store: Store) -> AsyncIterator[None]:
    server = cast(Server, on.server)
    server.stop()
    try:
        yield
    finally:
        server.start()
        await on.set_clock(on.clock.now())


async def _connection(store: Store) -> Any:
    listener = engine_of(store).listener
    while listener.line is None:  # noqa: ASYNC110
        await asyncio.sleep(SHORT)
    return cast(RedisLine, listener.line).connection


@asynccontextmanager
async def _listener_lost(on: RedisFactory, store: Store) -> AsyncIterator[None]:
    await (await _connection(store)).disconnect(nowait=True)
    yield


@asynccontextmanager
async def _listener_silent(on: RedisFactory, store: Store) -> AsyncIterator[None]:
    (await _connection(store))._reader._transport.pause_reading()
    yield


RedisFactory.faults = {
    Fault.COMMIT_FAILS: _no_commit_lands,
    Fault.STORAGE_FULL: functools.partial(_configured, "maxmemory", "1"),
    Fault.READ_ONLY: functools.partial(_configured, "min-replicas-to-write", "1"),
    Fault.STORAGE_AWAY: _away,
    Fault.SERVER_RESTART: _away,
    Fault.LISTENER_LOST: _listener_lost,
    Fault.LISTENER_SILENT: _listener_silent,
}
