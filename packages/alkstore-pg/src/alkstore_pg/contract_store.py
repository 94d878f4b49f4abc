"""The stores that the suite opens: on its clock, and with every connection of theirs in its hand."""

import weakref
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final, Protocol, cast

from alkstore.clock import ServerClock
from alkstore.engine import Engine
from alkstore_contract_suite import server
from alkstore_pg.contract_sessions import Returning, Sessions
from alkstore_pg.dsn import Address
from alkstore_pg.engine import PgEngine
from alkstore_pg.link import Connection, Link, OwnConnection
from alkstore_pg.store import PgStore
from alkstore_pg.surroundings import Options

__all__ = ["Cord", "Host", "SuiteClock", "SuiteStore", "cancelling", "engine_of"]


class SuiteClock(server.SuiteClock):
    """The same, for an engine that also tells it of instants itself."""

    def heard(self, now: int, sent: float, received: float) -> None:
        """Learn nothing: the suite tells."""


class Cord:
    """Every connection of one store, and what the suite does to them.

    Attributes:
        is_cut: Whether there are to be no more of them.
        is_deaf: Whether none is to listen.
        dials: How many are being made.
    """

    def __init__(self) -> None:
        self._held: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._listener: weakref.ref[Connection] | None = None
        self.is_cut = False
        self.is_deaf = False
        self.dials = 0

    def hold(self, connection: Connection, *, listens: bool = False) -> Connection:
        """Take a new connection into the hand."""
        if self.is_cut:
            connection.terminate()
            raise ConnectionResetError("the suite has cut this store off")
        self._held.add(connection)
        if listens:
            self._listener = weakref.ref(connection)
        return connection

    @property
    def listener(self) -> "Connection | None":
        """The connection that listens, if there is one at the moment."""
        connection = self._listener() if self._listener is not None else None
        return None if connection is None or connection.is_closed() else connection

    @property
    def connections(self) -> list[Connection]:
        """Those that are open."""
        return [connection for connection in self._held if not connection.is_closed()]

    def pids(self) -> list[int]:
        """The sessions at the server's, or at the pooler's, end."""
        return [connection.get_server_pid() for connection in self.connections]

    def give_back(self, to: Sessions) -> None:
        """Let the sessions of those that end in good order from now on be of use to others."""
        for connection in self.connections:
            if isinstance(connection, Returning) and connection.greeting:
                connection.origin = to

    def cut(self) -> None:
        """End all of them without a goodbye, and let there be no others."""
        self.is_cut = True
        for connection in self.connections:
            connection.terminate()


class _Wired(Options):
    """Options whose connections are in the suite's hand."""

    cord: Cord
    sessions: Sessions | None
    connection_class = Returning

    async def dial(self) -> Connection:
        if self.cord.is_cut:
            raise ConnectionRefusedError("the suite has cut this store off")
        self.cord.dials += 1
        try:
            return self.cord.hold(await super().dial())
        finally:
            self.cord.dials -= 1

    async def dial_listener(self) -> Connection:
        if self.cord.is_cut or self.cord.is_deaf:
            raise ConnectionRefusedError("the suite lets this store's listener not connect")
        return self.cord.hold(await super().dial_listener(), listens=True)

    async def _connect(self, address: Address, statement_cache_size: int, seconds: float) -> OwnConnection:
        async def dial(dsn: str) -> OwnConnection:
            return await Options._connect(self, address._replace(dsn=dsn), statement_cache_size, seconds)

        return await (
            dial(address.dsn) if self.sessions is None else self.sessions.connection(address.dsn, dial)
        )


class Host(Protocol):
    """Who opens stores."""

    def opened(self, schema: str) -> None:
        """A store has found or made this schema, and has not used it yet."""


class SuiteStore(PgStore):
    """A store whose time the suite moves. It keeps its host, who is told of each opening, not alive."""

    def __init__(
        self,
        dsn: str,
        *,
        clock: SuiteClock,
        engine: type[PgEngine],
        host: "weakref.ref[Host]",
        sessions: Sessions | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dsn, **options)
        self.cord: Final = Cord()
        self._suite_clock = clock
        self._host = host
        self._kind = engine
        self._sessions = sessions

    async def aclose(self) -> None:
        if self._sessions is not None:
            self.cord.give_back(self._sessions)
        await super().aclose()

    async def _open_engine(self) -> Engine:
        plain = self._options.waiting(self._wait_timeout)
        wired = _Wired(**{field.name: getattr(plain, field.name) for field in fields(plain)})
        for name, value in (("cord", self.cord), ("sessions", self._sessions)):
            object.__setattr__(wired, name, value)  # frozen, as its class is
        engine = await self._kind.open(wired, self._make_clock())
        if (host := self._host()) is not None:
            host.opened(plain.schema.name)
        return engine

    def _make_clock(self) -> ServerClock:
        return cast(ServerClock, self._suite_clock)


def engine_of(store: object) -> PgEngine | None:
    """Give the engine of a store that is open."""
    ours = cast(SuiteStore, store)
    return cast(PgEngine, ours._engine) if ours._state == "open" else None


def cancelling(engine: PgEngine) -> Sequence[Link]:
    """Give the links on which the server was told to cancel a statement whose outcome is not known yet."""
    # asyncpg tells it to nobody but itself: the next statement on that connection waits for it.
    return [
        link
        for link in (engine._writer, engine._claimer)
        if link._session is not None and link._session.connection._protocol._is_cancelling()  # type: ignore[attr-defined]
    ]
