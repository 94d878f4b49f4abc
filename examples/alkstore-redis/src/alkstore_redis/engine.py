"""The Redis engine: every operation is one script on the server, so it is atomic by itself, and now is the server's clock.

State model. The script is the files of `lua/`, in a row; each begins with what its keys hold. What rides a transaction is the
same operation, with the transaction's name. Beside the connections that run scripts there is one that listens, for wakes,
and by whose end the server knows that a process is gone.
"""

import hashlib
import json
import secrets
from functools import partial
from importlib.resources import files
from typing import Any, Final, Self, Unpack

from redis.asyncio import Redis
from redis.asyncio.connection import ConnectionPool, parse_url
from redis.exceptions import AuthenticationError, BusyLoadingError, NoScriptError, RedisError, ResponseError

from alkstore import Store, records
from alkstore.calls import Calls
from alkstore.clock import ServerClock
from alkstore.comparing import ComparedSchedules, StoredSchedules
from alkstore.document import document
from alkstore.engine import EngineTransaction, Topic, Traits, Watch
from alkstore.errors import InvalidArgument, show
from alkstore.hookspecs import EngineRegistration, hookimpl
from alkstore.listener import Listener
from alkstore.numbers import duration, integer
from alkstore.opening import StoreOptions, read_url
from alkstore.stamps import Duration
from alkstore.watch import Hub
from alkstore_redis.operation import Operations, number, operation, text
from alkstore_redis.transaction import RedisTransaction
from alkstore_redis.wake import RedisLine

__all__ = ["OMITTED", "RedisEngine", "RedisStore", "alkstore_engine"]

AREAS: Final = ("base", "wake", "queue", "stream", "lock", "schedule", "transaction", "engine")
NOW: Final = "local time = redis.call('TIME')\nlocal now = text(time[1] * 1000000 + time[2])"
"""How a script finds the instant of its operation."""

DRIVER: Final = (RedisError, OSError)
"""Everything that redis-py raises."""
REFUSED: Final = (ResponseError, AuthenticationError, BusyLoadingError)
"""Of them those that say that nothing was executed."""

# Of its own it would give up what the server is still at; and if a URL said so, send again what may have been executed (DUR-11).
_OURS: Final = {"socket_timeout": None, "protocol": 2, "decode_responses": False}
_ONCE: Final[dict[str, Any]] = {"retry": None, "retry_on_timeout": False, "retry_on_error": []}

OMITTED: Final = {
    "WAKE-10": "there is no polling-only mode: whoever reaches the server can subscribe there",
    **dict.fromkeys(("TX-10", "TX-11"), "a transaction has no connection, so there is none to ride on"),
    "DUR-03": "opening makes nothing: there are no tables",
    **dict.fromkeys(("DUR-04", "DUR-10"), "there are no tables; the keys have had one layout so far"),
}
"""Contract rows that cannot be expressed here, and why."""


class RedisEngine(Operations, ComparedSchedules):
    """`alkstore.engine.Engine` on one Redis server.

    Attributes:
        id: This store on the server: its transactions last while it is subscribed to a channel of that name.
        calls: What runs operations there, each one script: atomic, and one round trip.
    """

    traits = Traits(batches=True, notify_limit=None, outside_tx=True, durable=True)
    refusals = (ResponseError,)

    def __init__(self, store: "RedisStore") -> None:
        self.id: Final = secrets.token_hex(8)
        self._prefix, self._clock, self._hub = store._prefix, store._clock, Hub(store._clock)
        options: dict[str, Any] = {**store._url, **_OURS, **_ONCE, "max_connections": store._pool_size}
        self._pool = ConnectionPool(**options)
        self._redis: Any = Redis(connection_pool=self._pool)  # the driver's types leave out what it gives
        self.calls = Calls(store._pool_size, store._wait_timeout, "redis", DRIVER, REFUSED)
        line = partial(RedisLine, self._pool, [f"{self._prefix}wake", f"{self._prefix}store:{self.id}"])
        self.listener = Listener(line, self._hub, DRIVER, self.calls.patience, store._probe, store._random)
        base, *areas = [(files("alkstore_redis") / f"lua/{area}.lua").read_text("utf-8") for area in AREAS]
        self._script = "\n".join([base, store._now, *areas])
        self._hash = hashlib.sha1(self._script.encode()).hexdigest()

    count_jobs = operation("count_jobs", records.JobCounts)
    claim_jobs = operation("claim_jobs", records.Claimed)
    sweep_jobs = operation("sweep_jobs", int)
    purge_jobs = operation("purge_jobs", int)
    read_head = operation("read_head", int)
    trim_events = operation("trim_events", int)
    read_offsets = operation("read_offsets", dict[str, int])
    move_offset = operation("move_offset", bool)
    take_lock = operation("take_lock", records.Taken)
    renew_lock = operation("renew_lock", int | None)
    list_locks = operation("list_locks", list[records.LockRecord], sorted)
    read_schedules = operation("read_schedules", StoredSchedules)
    write_schedule = operation("write_schedule", bool)
    list_names = operation("list_names", list[list[str]], lambda found: records.Names(*map(sorted, found)))

    async def watch(self, topic: Topic) -> Watch:
        await self.listener.hear()  # or what was committed before would wake it too
        return self._hub.watch(topic)

    async def begin(self, connection: object | None = None, begun: str = "") -> EngineTransaction:
        if connection is not None:
            raise InvalidArgument(f"redis engine joins no connection of the caller's, got {show(connection)}")
        transaction = RedisTransaction(self)
        await transaction._run("begin")
        return transaction

    async def open(self) -> Self:
        """Connect, and see what time it is there."""
        try:
            await self.calls.run(self.listener.open)
            await self.list_names()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def aclose(self) -> None:
        self._hub.aclose()
        await self.calls.aclose(lambda: self._pool.disconnect(inuse_connections=True))
        await self.listener.aclose()
        await self._pool.disconnect()  # and what a call was just making

    async def _run(self, name: str, *arguments: object, tx: str = "") -> Any:
        def what() -> str:  # nothing else is ever held
            return f"position of consumer {show(arguments[1])} in stream {show(arguments[0])}"

        return await self.calls.run_when_free(what, self.call, name, arguments, tx)

    async def call(self, name: str, arguments: tuple[object, ...], tx: str) -> Any:
        """Run one operation of the script. Raises the driver's errors."""
        answer = self._evaluate(1, self._prefix, name, json.dumps(document(arguments, text)), tx)
        return (await self._clock.learn(answer, lambda found: number(found[0])))[1]

    async def _evaluate(self, *given: object) -> Any:
        try:
            return json.loads(await self._redis.evalsha(self._hash, *given))
        except NoScriptError:  # the server is new, was restarted, or somebody flushed its scripts
            return json.loads(await self._redis.eval(self._script, *given))


class RedisStore(Store):
    """A store on a Redis server, shared by every process that opens it there: ``async with RedisStore(url) as store:``."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "alkstore",
        pool_size: int = 10,
        probe_interval: Duration = 10,
        **options: Unpack[StoreOptions],
    ) -> None:
        """Prepare a store; it opens with ``async with`` or by awaiting it.

        Args:
            url: ``redis://user:password@host:port/database``; ``rediss://`` with TLS, ``unix:///path`` for a socket.
            prefix: Begins every key; two prefixes share nothing.
            pool_size: Operations that may be on their way at once, a connection each; one more connection listens.
            probe_interval: Seconds of silence after which the listener asks whether the server is still there.
            options: Those of every engine.

        Raises:
            InvalidArgument: An option is not of its domain.
            InvalidName: ``worker_id`` is blank or cannot be stored.
        """
        self._url, shown = read_url(url, parse_url, "redis://user:password@host:6379/0")
        if not prefix or not set(prefix).isdisjoint("{}"):
            raise InvalidArgument(f"prefix must be some text without braces, got {show(prefix)}")
        self._prefix = f"{{{prefix}}}:"
        self._pool_size = integer(pool_size, "pool_size", least=1)
        self._probe = duration(probe_interval, "probe_interval", positive=True) / 1_000_000
        self._clock, self._now = ServerClock(), NOW  # the suite's stores have others, whose time it moves
        super().__init__(lambda: RedisEngine(self).open(), name=shown, **options)


@hookimpl
def alkstore_engine() -> EngineRegistration:
    """Tell core of this engine."""
    return EngineRegistration(
        schemes=("redis", "rediss"),
        open=lambda url, options: RedisStore(url, **options),  # type: ignore[arg-type]  # the constructor judges them
        package="alkstore-redis",
        contract_version="1.0",
        durable=True,
        capabilities={
            "durable": True,
            "multi_process": True,
            "sql": "there is no SQL",
            "listen": True,
            "reconnects": True,
            "notify_limit": None,
        },
        options=frozenset({"prefix", "pool_size", "probe_interval"}),
        omitted=OMITTED,
    )
