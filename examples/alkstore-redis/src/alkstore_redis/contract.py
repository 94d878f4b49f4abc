"""The column of the Redis engine in the contract suite."""

import asyncio
import functools
import random
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from datetime import datetime
from typing import Any, Final, TypeVar, cast

from redis import Redis
from redis.exceptions import RedisError

import alkstore
from alkstore import Store
from alkstore.clock import ServerClock
from alkstore.numbers import duration, shift, to_datetime
from alkstore.testing import ManualClock
from alkstore_contract_suite.factory import (
    Available,
    Backend,
    Business,
    Capability,
    ClockMode,
    Crash,
    Fault,
    Missing,
    Remote,
    StoreFactory,
    Supported,
    Unsupported,
)
from alkstore_contract_suite.registry import Registrar
from alkstore_redis.contract_server import Server, available
from alkstore_redis.engine import OMITTED, RedisEngine, RedisStore
from alkstore_redis.operation import text
from alkstore_redis.wake import RedisLine

__all__ = ["CAPABILITIES", "RedisColumn", "RedisFactory", "register"]

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

T = TypeVar("T")

PREFIX: Final = "{alkstore}:"
MOST_ROUNDS: Final = 1_000
"""Rounds of looking after which stores that still do something wake each other for ever."""
SHORT: Final = 0.001
"""Seconds of real time between two looks at something that tells nobody when it changes."""


NOW: Final = """
local now = redis.call('GET', KEYS[1] .. 'clock')
local lands = ARGV[1] == 'commit' or ARGV[3] == '' and ({ insert_jobs = 1, settle_jobs = 1, append_events = 1 })[ARGV[1]]
if lands and redis.call('EXISTS', KEYS[1] .. 'broken') == 1 then return { err = 'ERR no commit lands' } end
"""
"""What is the server's time to the suite's stores; and commits fail if the suite says so."""


class SuiteClock(ManualClock):
    """The server's clock as a process knows it, while the suite moves both."""

    async def learn(self, answer: Awaitable[T], told: Callable[[T], int | None]) -> T:
        """Await an answer."""
        return await answer


class SuiteStore(RedisStore):
    """A store whose time the suite moves."""

    def __init__(self, url: str, clock: SuiteClock, **options: Any) -> None:
        # Few connections: how many a case comes to need depends on the machine, and rows count what is left of them.
        super().__init__(url, probe_interval=0.3, pool_size=2, **options)
        self._clock = cast(ServerClock, clock)
        self._now = NOW


def register(registry: Registrar) -> None:
    """Register the column; the entry point ``alkstore.contract_engines`` names this function."""
    registry.register(RedisColumn())


class RedisColumn:
    """Stores on a server that each test process starts for itself."""

    name = "redis"
    version = alkstore.__version__
    contract = "1.0"
    clock = ClockMode.SERVER
    capabilities = CAPABILITIES
    omitted = OMITTED

    def available(self) -> Available | Missing:
        advice = available()
        return Available() if advice is None else Missing(advice)

    @asynccontextmanager
    async def backend(self, worker: str) -> AsyncIterator[Backend]:
        with Server() as server:
            yield _Backend(server)


class _Backend:
    def __init__(self, server: Server) -> None:
        self._server = server

    @asynccontextmanager
    async def scope(self, case: str) -> AsyncIterator[StoreFactory]:
        with ExitStack() as stack:
            factory = RedisFactory(self._server.url, self._server.redis, case, self._server, stack)
            await factory.blank()
            yield factory


class RedisFactory:
    """Stores on one server; without it in a child process, which neither moves the server's time nor breaks it."""

    def __init__(
        self,
        url: str,
        redis: Any,
        seed: str,
        server: Server | None = None,
        stack: ExitStack | None = None,
    ) -> None:
        self.clock = SuiteClock()
        self._url = url
        self.redis = redis
        self._seed = seed
        self.server = server
        self._stack = stack
        self._random = random.Random(seed)
        # Weak, or a store that a row dropped would never be collected.
        self._stores: weakref.WeakSet[Store] = weakref.WeakSet()

    # ------------------------------------------------------------ stores

    async def open(self, instance: str = "a") -> Store:
        return await self.open_with()

    async def open_with(self, **options: Any) -> Store:
        store = SuiteStore(self._url, self.clock, random=self._random, **options)
        _ = await store
        self._stores.add(store)
        return store

    async def reopen(self, store: Store) -> Store:
        await store.aclose()
        return await self.open()

    async def crash(self, store: Store, kind: Crash) -> None:
        """Cut a store off, as the network or the end of its process does: nothing that its close does gets through."""
        engine = cast(RedisEngine, store._engine)
        pool = engine._pool
        pool.connection_kwargs["path"] = "/gone"
        await engine.listener.aclose()
        await pool.disconnect(inuse_connections=True)
        pool.reset()  # type: ignore[no-untyped-call]  # each connection knows its own path
        await store.aclose()

    async def blank(self) -> None:
        self.redis.flushall()
        self.set_clock(self.clock.now())

    def set_clock(self, to: int) -> None:
        with suppress(RedisError):  # away: it is told when it comes back
            self.redis.ping()  # what a process sent that was killed belongs to before the jump
            self.redis.set(PREFIX + "clock", text(to))

    # ------------------------------------------------------------ time

    async def advance(self, seconds: float) -> None:
        to = shift(self.clock.now(), duration(seconds, "seconds"))
        if self.server is not None:
            self.set_clock(to)
        await self.clock.set(to_datetime(to))
        await self.settle()

    async def now(self) -> datetime:
        return self.clock.datetime

    async def settle(self) -> None:
        for _ in range(MOST_ROUNDS):
            before = self._moves()
            await self.clock.settle()
            for engine in self._engines():
                while engine.calls.in_hand:  # noqa: ASYNC110  # an engine needs no event for it but for this
                    await asyncio.sleep(SHORT)
                await engine.listener.hear()
            await self.clock.settle()
            if self._moves() == before:
                return
        raise RuntimeError(f"stores did not come to rest in {MOST_ROUNDS} rounds of looking")

    def _engines(self) -> list[RedisEngine]:
        return [cast(RedisEngine, store._engine) for store in self._stores if store._state == "open"]

    def _moves(self) -> list[tuple[int, int, int]]:
        return [(each.calls.in_hand, each.calls.done, each.listener.heard) for each in self._engines()]

    # ------------------------------------------------------------ what not every engine has

    def remote(self) -> Remote:
        return functools.partial(_elsewhere, self._url, self._seed)

    def fault(self, kind: Fault, store: Store) -> AbstractAsyncContextManager[None] | Unsupported:
        if kind not in _FAULTS:
            return Unsupported(f"there is nothing of which {kind.value!r} could be said")
        return _FAULTS[kind](self, cast(RedisEngine, store._engine))

    def business(self) -> Business | None:
        return None

    async def foreign_schema(self, newer: bool) -> None:
        raise RuntimeError("there is no schema; rows about schemas need 'migrations'")

    async def alter(self) -> None:
        """Do what an administrator may do under open stores."""
        self.redis.script_flush()
        with suppress(RedisError):  # one is under way
            self.redis.bgrewriteaof()

    async def dump_restore(self) -> StoreFactory | None:
        there = cast(ExitStack, self._stack).enter_context(Server())
        for key in self.redis.scan_iter():
            there.redis.restore(key, 0, self.redis.dump(key) or b"")
        return RedisFactory(there.url, there.redis, self._seed, there, self._stack)

    def outside(self, channel: str) -> AsyncIterator[bytes] | None:
        return None

    async def footprint(self) -> int:
        """Count the keys and their members (DUR-13)."""
        count = {b"hash": self.redis.hlen, b"set": self.redis.scard, b"zset": self.redis.zcard}
        return sum(int(count.get(self.redis.type(key), lambda _: 1)(key)) for key in self.redis.scan_iter())


def _elsewhere(url: str, seed: str, process: str) -> StoreFactory:
    return RedisFactory(url, Redis.from_url(url), f"{seed}/{process}")


@asynccontextmanager
async def _configured(name: str, value: str, on: RedisFactory, engine: RedisEngine) -> AsyncIterator[None]:
    before = on.redis.config_get(name)[name]
    on.redis.config_set(name, value)
    try:
        yield
    finally:
        on.redis.config_set(name, before)


@asynccontextmanager
async def _no_commit_lands(on: RedisFactory, engine: RedisEngine) -> AsyncIterator[None]:
    on.redis.set(PREFIX + "broken", 1)
    try:
        yield
    finally:
        on.redis.delete(PREFIX + "broken")


@asynccontextmanager
async def _away(on: RedisFactory, engine: RedisEngine) -> AsyncIterator[None]:
    server = cast(Server, on.server)
    server.stop()
    try:
        yield
    finally:
        server.start()
        on.set_clock(on.clock.now())


async def _connection(engine: RedisEngine) -> Any:
    while engine.listener.line is None:  # noqa: ASYNC110
        await asyncio.sleep(SHORT)
    return cast(RedisLine, engine.listener.line).connection


@asynccontextmanager
async def _listener_lost(on: RedisFactory, engine: RedisEngine) -> AsyncIterator[None]:
    await (await _connection(engine)).disconnect(nowait=True)
    yield


@asynccontextmanager
async def _listener_silent(on: RedisFactory, engine: RedisEngine) -> AsyncIterator[None]:
    (await _connection(engine))._reader._transport.pause_reading()
    yield


_Break = Callable[[RedisFactory, RedisEngine], AbstractAsyncContextManager[None]]
_FAULTS: Final[Mapping[Fault, _Break]] = {
    Fault.COMMIT_FAILS: _no_commit_lands,
    Fault.STORAGE_FULL: functools.partial(_configured, "maxmemory", "1"),
    Fault.READ_ONLY: functools.partial(_configured, "min-replicas-to-write", "1"),
    Fault.STORAGE_AWAY: _away,
    Fault.SERVER_RESTART: _away,
    Fault.LISTENER_LOST: _listener_lost,
    Fault.LISTENER_SILENT: _listener_silent,
}
