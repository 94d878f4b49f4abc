"""The Redis engine: every operation is one script on the server, so it is atomic by itself, and now is the server's clock.

State model. The script is the files of `lua/`, in a row; each begins with what its keys hold. A transaction is an overlay in
the process, merged by one script at its commit. Beside the connections that run scripts there is one that listens, for
wakes, and by whose end the server knows that a process is gone.
"""

import random
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from alkstore import Store
from alkstore.engine import Engine, EngineTransaction, Names, Traits
from alkstore.errors import InvalidArgument, show
from alkstore.hookspecs import EngineRegistration, hookimpl
from alkstore.numbers import duration, integer
from alkstore.stamps import Duration
from alkstore.watch import Hub
from alkstore_redis.lock import Locks
from alkstore_redis.queue import Queues
from alkstore_redis.schedule import Schedules
from alkstore_redis.state import DRIVER, ServerClock, State, translated
from alkstore_redis.stream import Streams
from alkstore_redis.transaction import RedisTransaction
from alkstore_redis.wake import Listener, Wakes

__all__ = ["OMITTED", "RedisEngine", "RedisStore", "alkstore_engine"]

TRAITS: Final = Traits(batches=True, notify_limit=None, outside_tx=True, durable=True)

_NO_TABLES: Final = "there are no tables; the layout of the keys has had one version so far"
_SENT_AT_ONCE: Final = (
    "a transaction is sent whole at its commit: there is none of the caller's that it could ride"
)

OMITTED: Final[Mapping[str, str]] = {
    "WAKE-10": "there is no polling-only mode: whoever reaches the server can subscribe there",
    "TX-10": _SENT_AT_ONCE,
    "TX-11": _SENT_AT_ONCE,
    "DUR-03": "opening makes nothing: there are no tables",
    "DUR-04": _NO_TABLES,
    "DUR-10": _NO_TABLES,
}
"""Contract rows that cannot be expressed here, and why."""


class RedisEngine(Queues, Streams, Wakes, Locks, Schedules):
    """`alkstore.engine.Engine` on one Redis server."""

    def __init__(self, state: State, probe_interval: float) -> None:
        self._state = state
        self._hub = Hub(state.clock)
        self._listener = Listener(state, self._hub, probe_interval)

    @property
    def traits(self) -> Traits:
        return TRAITS

    async def open(self) -> None:
        """Connect, and see what time it is there."""
        try:
            await self._listener.open()
            await self._state.run("hello")
        except BaseException as error:
            await self.aclose()
            if isinstance(error, DRIVER):
                raise translated(error) from error
            raise

    async def begin(self, connection: object | None = None, begun: str = "") -> EngineTransaction:
        if connection is not None:
            raise InvalidArgument(
                f"redis engine joins no transaction of the caller's, got {show(connection)}"
            )
        return RedisTransaction(self._state, self)

    async def list_names(self) -> Names:
        return Names(*(sorted(names) for names in await self._state.run("list_names")))

    async def aclose(self) -> None:
        self._hub.aclose()
        await self._listener.aclose()
        await self._state.aclose()


class RedisStore(Store):
    """A store on a Redis server, shared by every process that opens it there: ``async with RedisStore(url) as store:``."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "alkstore",
        pool_size: int = 10,
        probe_interval: Duration = 10,
        worker_id: str | None = None,
        wait_timeout: Duration = 30,
        poll_interval: Duration = 5,
        random: random.Random | None = None,
    ) -> None:
        """Prepare a store; it opens with ``async with`` or by awaiting it.

        Args:
            url: ``redis://user:password@host:port/database``; ``rediss://`` with TLS, ``unix:///path`` for a socket.
            prefix: Begins every key; two prefixes share nothing.
            pool_size: Operations that may be on their way at once, a connection each; one more connection listens.
            probe_interval: Seconds of silence after which the listener asks whether the server is still there.
            worker_id: Who claims, for people to read; ``host:pid:4 hex`` by default.
            wait_timeout: Seconds that anything waits for a transaction, a connection or the server.
            poll_interval: Seconds between looks when a wake was lost.
            random: The source of jitter.

        Raises:
            InvalidArgument: An option is not of its domain.
            InvalidName: ``worker_id`` is blank or cannot be stored.
        """
        self._url, shown = _checked(url)
        if not prefix or not set(prefix).isdisjoint("{}"):
            raise InvalidArgument(f"prefix must be some text without braces, got {show(prefix)}")
        self._prefix = f"{{{prefix}}}:"
        self._pool_size = integer(pool_size, "pool_size", least=1)
        self._probe_interval = duration(probe_interval, "probe_interval", positive=True) / 1_000_000
        super().__init__(
            self._open_engine,
            name=shown,
            worker_id=worker_id,
            wait_timeout=wait_timeout,
            poll_interval=poll_interval,
            random=random,
        )

    async def _open_engine(self) -> Engine:
        engine = RedisEngine(self._make_state(), self._probe_interval)
        await engine.open()
        return engine

    def _make_state(self) -> State:
        options: dict[str, Any] = {
            **self._url,
            "max_connections": self._pool_size,
            "retry": Retry(
                NoBackoff(), 0
            ),  # by default the driver sends again what may have been executed (DUR-11)
            "protocol": 2,
            "decode_responses": False,
        }
        return State(
            ConnectionPool(**options), self._prefix, self._make_clock(), self._wait_timeout, self._random
        )

    def _make_clock(self) -> ServerClock:
        # The suite's stores have another one, whose time it moves.
        return ServerClock()


def _checked(url: object) -> tuple[dict[str, Any], str]:
    """Give what the driver reads in a URL, and what of it may be shown."""
    wrong = "url must be text such as 'redis://user:password@host:6379/0', with what is no letter or digit in them encoded"
    if not isinstance(url, str):
        raise InvalidArgument(f"{wrong}, got {type(url).__name__}")
    try:
        parts, options = urlsplit(url), dict(parse_url(url))
    except Exception:  # whatever it is, its text may show a part of a password
        raise InvalidArgument(wrong) from None
    if "#" in url or "@" in parts.path or url.count("@") > 1:
        raise InvalidArgument(wrong)
    return options, f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


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
