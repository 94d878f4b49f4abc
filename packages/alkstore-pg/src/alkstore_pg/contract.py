"""The columns of the PostgreSQL engine in the contract suite: direct, through PgBouncer, and with nothing but polling.

Each test process has a server of its own, so that one may restart it; where ``ALKSTORE_PG_DSN`` names a server, it has a
database of its own there. ``ALKSTORE_PG_VERSION`` chooses among the versions on the machine.
"""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

import alkstore
from alkstore.engine import Engine
from alkstore.hookspecs import EngineRegistration
from alkstore_contract_suite.factory import (
    Available,
    Backend,
    Capability,
    ClockMode,
    Missing,
    StoreFactory,
    Supported,
    Unsupported,
)
from alkstore_contract_suite.registry import Registrar
from alkstore_pg import contract_server
from alkstore_pg.contract_factory import PgFactory, Place
from alkstore_pg.contract_outsider import Outsider
from alkstore_pg.contract_pooler import Pooler, pgbouncer_available
from alkstore_pg.contract_server import Server
from alkstore_pg.contract_sessions import Sessions
from alkstore_pg.contract_store import SuiteClock
from alkstore_pg.engine import PgEngine
from alkstore_pg.store import PgStore, alkstore_engine

__all__ = [
    "CAPABILITIES",
    "DIRECT",
    "POLL",
    "Kind",
    "PgColumn",
    "register",
    "register_bouncer",
    "register_poll",
]

VERSION: Final = "ALKSTORE_PG_VERSION"

CAPABILITIES: Final[Mapping[str, Capability]] = {
    "durable": Supported(),
    "multi_process": Supported(),
    "sql": Supported(),
    "listen": Supported(),
    "reconnects": Supported(),
    "notify_limit": Supported(),
    "joins": Supported(),
    "schema": Supported(),
    "server": Supported(),
    "migrations": Supported(),
    "watcher": Unsupported(
        "there is no watcher: the server tells of commits, over a connection that listens"
    ),
    "poll_only": Unsupported("these stores listen; the column pg_poll is of stores that only poll"),
}

_NO_LISTENER: Final = "the polling-only mode, in which no connection listens"

_POLLING: Final[Mapping[str, Capability]] = {
    **CAPABILITIES,
    "listen": Unsupported(_NO_LISTENER),
    "reconnects": Unsupported(_NO_LISTENER),
    "poll_only": Supported(),
}

LEFTOVER_LOOKS: Final = 50
"""Looks at what the case before has left at work, after which the server is told to end it."""

LAST_LOOKS: Final = 5_000
"""Looks after which it cannot be ended: on a busy machine a session takes its time to be gone."""

LOOK_AGAIN: Final = 0.002
"""Seconds of real time between two of them."""

ROOM_FOR_ALL: Final = 60
"""Connections of the pooler to the server: a case with many transactions open has about 40."""

QUICK_AGAIN: Final = {"server_login_retry": "0.1", "query_wait_timeout": "2"}
"""While a server is away PgBouncer would let who is connected wait for 120 s, and refuse the others for 15 s after a look."""


@dataclass(frozen=True)
class Kind:
    """What one column has that the others have not."""

    name: str
    schema: str
    search_path: str
    """What sessions begin with; nothing may depend on it (DUR-10)."""
    capabilities: Mapping[str, Capability] = field(default_factory=lambda: CAPABILITIES)
    is_pooled: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    engine: type[PgEngine] = PgEngine


# A probe each second lets a silent connection be found soon; every other figure is a user's own.
DIRECT: Final = Kind("pg", 'The "suite"', "''", options={"probe_interval": 1})

BOUNCER: Final = Kind(
    "pg_bouncer",
    "alkstore",
    "hostile, public",
    is_pooled=True,
    options={"probe_interval": 1, "statement_cache_size": 0},
)

POLL: Final = Kind(
    "pg_poll",
    "alkstore",
    "hostile, public",
    capabilities=_POLLING,
    options={"listen": False, "poll_interval": 0.05},
)


def register(registry: Registrar) -> None:
    """Register the column; the entry point ``alkstore.contract_engines`` names this function."""
    registry.register(PgColumn(DIRECT))


def register_bouncer(registry: Registrar) -> None:
    """Register the column in which everything but the listener goes through PgBouncer, in transaction mode."""
    registry.register(PgColumn(BOUNCER))


def register_poll(registry: Registrar) -> None:
    """Register the column of the polling-only mode."""
    registry.register(PgColumn(POLL))


class PgColumn:
    """One of the columns."""

    version = alkstore.__version__
    contract = "1.0"
    clock = ClockMode.SERVER
    omitted: Mapping[str, str] = {}

    def __init__(self, kind: Kind) -> None:
        self.name = kind.name
        self.capabilities = kind.capabilities
        self._kind = kind
        self._pooler: Pooler | None = None

    @cache  # noqa: B019  # it is asked of every case, and there are three columns a process
    def available(self) -> Available | Missing:
        advice = contract_server.available(_version())
        if advice is None and self._kind.is_pooled:
            advice = pgbouncer_available()
        return Available() if advice is None else Missing(advice)

    @cache  # noqa: B019  # as above; and at a run's end the server may be gone
    def storage(self) -> str:
        version = contract_server.chosen(_version())
        pooled = ", PgBouncer" if self._kind.is_pooled else ""
        return f"PostgreSQL {version}{pooled}" if version else ""

    def registration(self) -> EngineRegistration:
        """Give what is said of the engine, but for what stores give up that are opened as this column opens them."""
        said = alkstore_engine()
        given_up = {
            word: known.reason
            for word, known in self.capabilities.items()
            if word in said.capabilities
            and known is not CAPABILITIES[word]
            and isinstance(known, Unsupported)
        }
        return replace(said, capabilities={**said.capabilities, **given_up})

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Make the folder that every server is a copy of."""
        self.storage()
        if contract_server.available(_version(), own=True) is None:
            contract_server.prepare(_version())
        yield

    @asynccontextmanager
    async def backend(self, worker: str) -> AsyncIterator[Backend]:
        async with AsyncExitStack() as stack:
            server = stack.enter_context(await asyncio.to_thread(Server.start, _version()))
            database = f"alkstore {self.name} {worker} {secrets.token_hex(4)}"
            server.create_database(database, encoding="UTF8", template="template0")
            stack.callback(server.drop_database, database)
            outsider = Outsider(server.dsn_of(database))
            stack.callback(outsider.close)
            outsider.furnish()
            outsider.search(self._kind.search_path)
            place = self._place(server, database, stack)
            # Another's server may want a password, or TLS.
            sessions = Sessions(place.direct) if server.can_restart else None
            if sessions is not None:
                stack.callback(sessions.close)
            backend = _Backend(place, server, outsider, sessions, self._pooler)
            await backend.make()
            yield backend

    def _place(self, server: Server, database: str, stack: AsyncExitStack) -> Place:
        kind, direct = self._kind, server.dsn_of(database)
        if not kind.is_pooled:
            return Place(direct, direct, kind.schema, dict(kind.options), kind.engine)
        pooler = self._pooler = Pooler.start(server, default_pool_size=ROOM_FOR_ALL, settings=QUICK_AGAIN)
        stack.enter_context(pooler)
        return Place(
            pooler.dsn(database), direct, kind.schema, {**kind.options, "listener_dsn": direct}, kind.engine
        )


def _version() -> int | None:
    return int(os.environ[VERSION]) if os.environ.get(VERSION) else None


class _Founder(PgStore):
    """Makes the schema, with the functions in it, as the column's own engine does: one that is broken breaks them too."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.direct, schema=place.schema)
        self._kind = place.engine

    async def _open_engine(self) -> Engine:
        return await self._kind.open(self._options.waiting(self._wait_timeout), self._make_clock())


class _Backend:
    """A database whose schema is emptied between the cases, and made anew where one of them has spoilt it."""

    def __init__(
        self,
        place: Place,
        server: Server,
        outsider: Outsider,
        sessions: Sessions | None,
        pooler: Pooler | None,
    ) -> None:
        self._place = place
        self._pooler = pooler
        self._server = server
        self._outsider = outsider
        self._sessions = sessions
        self._is_spoilt = False

    async def make(self) -> None:
        """Let a store make the schema."""
        schema = self._place.schema
        self._outsider.drop([schema])
        async with _Founder(self._place):
            pass
        self._outsider.tame(schema)
        self._outsider.learn_to_empty(schema)

    @asynccontextmanager
    async def scope(self, case: str) -> AsyncIterator[StoreFactory]:
        await self._clear()
        if self._pooler is not None:
            await asyncio.to_thread(self._pooler.revive)
        factory = PgFactory(self._place, case, self._outsider, self._server, self._sessions)
        try:
            yield factory
        finally:
            self._is_spoilt = factory.is_spoilt
            factory.close()

    async def _clear(self) -> None:
        await self._end_what_is_left()
        self._outsider.drop(self._outsider.strangers(self._place.schema))
        if self._is_spoilt:
            await self.make()
        self._outsider.empty()
        self._outsider.set_clock(SuiteClock().now())

    async def _end_what_is_left(self) -> None:
        """Wait until nobody works any more: a statement of a process that was killed may still land."""
        for looks in range(LAST_LOOKS):
            left = self._outsider.working()
            if not left:
                return
            if looks >= LEFTOVER_LOOKS:
                self._outsider.terminate(left)
            await asyncio.sleep(LOOK_AGAIN)
        raise RuntimeError("sessions of the case before cannot be ended")
