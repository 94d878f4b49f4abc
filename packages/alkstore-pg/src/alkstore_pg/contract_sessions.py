"""Sessions of a server that outlive the stores they belonged to, so that not each of some thousand costs a process there.

A store's connection that ends in good order leaves its session here, where ``DISCARD ALL`` makes it as new, as poolers do
between two clients; the next store that dials gets it. Dialling is the engine's own all the same: a door in the way of the
server's socket greets as the server did, and what lies behind the connection is the session from then on. Cut off, in a
transaction, at work: a session with which anything is the matter ends with its store.
"""

import asyncio
import itertools
import os
import socket
import struct
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from alkstore_pg import contract_dsn
from alkstore_pg import contract_keeper as keeper
from alkstore_pg.contract_dsn import Address
from alkstore_pg.link import Connection, OwnConnection

__all__ = ["Returning", "Sessions"]

C = TypeVar("C", bound=Connection)

MOST: Final = 24
"""Sessions that are kept; a case seldom has more open at once."""

PATIENCE: Final = 1.0
"""Seconds of real time; it takes less than a millisecond."""

PORTS: Final = range(1, 60_000)
"""Names for doors: to the driver they are ports."""

_HEAD: Final = struct.Struct("!ci")
"""The kind of a message, and its length without the kind."""

_TOLD: Final = (
    "server_version", "server_encoding", "client_encoding", "application_name", "is_superuser", "session_authorization",
    "default_transaction_read_only", "in_hot_standby", "DateStyle", "IntervalStyle", "TimeZone", "integer_datetimes",
    "standard_conforming_strings", "search_path", "scram_iterations",
)  # fmt: skip
"""What a server tells of a session when it begins; of these its version decides."""

_UNASKED: Final = (b"A", b"N", b"S")
"""What comes by itself: a notify, a notice, a changed setting."""

_AS_NEW: Final = [(b"C", b"DISCARD ALL\0"), (b"Z", b"I")]
"""The whole answer to the one command, from a session that did nothing else and is in no transaction."""


def _message(kind: bytes, body: bytes) -> bytes:
    return _HEAD.pack(kind, len(body) + 4) + body


_DISCARD: Final = _message(b"Q", b"DISCARD ALL\0")


@dataclass(frozen=True)
class _Session:
    socket: socket.socket
    greeting: bytes
    address: object
    """Where the driver cancels what it does."""


class Returning(OwnConnection):
    """A connection whose session can go back where it came from.

    Attributes:
        origin: Who is to have it back, as soon as its store is being closed; None until then.
    """

    origin: "Sessions | None" = None
    greeting = b""
    _at_work = 0
    _transport: Any
    """What the driver's stubs do not have."""

    @contextmanager
    def _working(self) -> Iterator[None]:
        self._at_work += 1
        try:
            yield
        finally:
            self._at_work -= 1

    async def fetch(self, *arguments: Any, **options: Any) -> Any:
        with self._working():
            return await super().fetch(*arguments, **options)

    async def execute(self, *arguments: Any, **options: Any) -> str:
        with self._working():
            return await super().execute(*arguments, **options)

    async def close(self, *, timeout: float | None = None) -> None:
        if self._is_given_back():
            super().terminate()
        else:
            await super().close(timeout=timeout)

    def terminate(self) -> None:
        self._is_given_back()
        super().terminate()

    def _is_given_back(self) -> bool:
        origin, self.origin = self.origin, None
        if (
            origin is None
            or self._at_work
            or self.is_closed()
            or self.is_in_transaction()
            or self._protocol._is_cancelling()
            or self._transport.get_write_buffer_size()
        ):
            return False
        origin.keep(self)
        return True


class Sessions:
    """What is kept of one server, for one database and user.

    Args:
        dsn: The way there, over a Unix socket, without a password.
        patience: Seconds that a session has to become as new.
    """

    def __init__(self, dsn: str, *, patience: float = PATIENCE) -> None:
        self._dsn = dsn
        self._patience = patience
        self._kept: list[_Session] = []
        self._folder = tempfile.mkdtemp(prefix="alkstore-doors-")
        keeper.keep(self._folder)
        self._ports = itertools.cycle(PORTS)
        # What is written here goes nowhere, and whoever reads here finds the end.
        self._void, beyond = socket.socketpair()
        beyond.close()

    def close(self) -> None:
        """End everything."""
        self.forget()
        self._void.close()
        keeper.forget(self._folder)

    def forget(self) -> None:
        """End what is kept: something happens to the server, or to the settings with which sessions begin."""
        while self._kept:
            self._kept.pop().socket.close()

    # ---------------------------------------------------------------- out

    async def connection(self, dsn: str, dial: Callable[[str], Awaitable[C]]) -> C:
        """Give a connection to where a DSN leads, as ``dial`` makes it, on a session that is kept if there is one."""
        if dsn != self._dsn:
            return await dial(dsn)
        session = self._next()
        if session is None:
            connection = await dial(dsn)
            session = _Session(self._void, _greeting(connection), connection._addr)  # type: ignore[attr-defined]
        else:
            with session.socket:
                connection = await self._resume(session, dial)
        if isinstance(connection, Returning):
            connection.greeting = session.greeting
        return connection

    def _next(self) -> _Session | None:
        while self._kept:
            session = self._kept.pop()
            with suppress(OSError):  # it has ended, or is in trouble
                if _is_as_new(session.socket, self._patience):
                    return session
            session.socket.close()
        return None

    async def _resume(self, session: _Session, dial: Callable[[str], Awaitable[C]]) -> C:
        place = Address(self._folder, next(self._ports))
        with _door(place, session.greeting):
            connection = await dial(contract_dsn.elsewhere(self._dsn, place))
            _move(connection, session.socket)
        connection._addr = session.address  # type: ignore[attr-defined]  # the door is closed
        return connection

    # ---------------------------------------------------------------- back

    def keep(self, connection: Returning) -> None:
        """Take the session out of a connection, which leads nowhere from then on."""
        session = _Session(_taken(connection), connection.greeting, connection._addr)  # type: ignore[attr-defined]
        _move(connection, self._void)
        try:
            if len(self._kept) < MOST and session.socket.send(_DISCARD) == len(_DISCARD):
                self._kept.append(session)
                return
        except OSError:
            pass  # it has ended
        session.socket.close()


def _greeting(connection: Connection) -> bytes:
    settings, protocol = connection.get_settings(), connection._protocol  # type: ignore[attr-defined]  # of the cancel key
    told = {name: getattr(settings, name, None) for name in _TOLD}
    lines = [f"{name}\0{value}\0".encode() for name, value in told.items() if value is not None]
    return b"".join(
        (
            _message(b"R", struct.pack("!i", 0)),
            *(_message(b"S", line) for line in lines),
            _message(b"K", struct.pack("!ii", protocol.backend_pid, protocol.backend_secret)),
            _message(b"Z", b"I"),
        )
    )


def _is_as_new(session: socket.socket, patience: float) -> bool:
    """Read the answer that a session has given meanwhile; whether there is nothing beside it."""
    session.settimeout(patience)
    answer = b""
    while not answer.endswith(_message(*_AS_NEW[-1])):
        part = session.recv(65_536)
        if not part:
            return False
        answer += part
    session.setblocking(False)
    with suppress(BlockingIOError):
        session.recv(1)
        return False
    return [message for message in _messages(answer) if message[0] not in _UNASKED] == _AS_NEW


def _messages(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at < len(data):
        kind, size = _HEAD.unpack_from(data, at)
        yield kind, data[at + _HEAD.size : at + 1 + size]
        at += 1 + size


@contextmanager
def _door(place: Address, greeting: bytes) -> Iterator[None]:
    """Greet whoever comes to this place as a server does."""
    loop, path = asyncio.get_running_loop(), str(place.socket)
    with ExitStack() as stack:
        door = stack.enter_context(socket.socket(socket.AF_UNIX))
        door.setblocking(False)
        door.bind(path)
        stack.callback(os.unlink, path)
        door.listen(1)

        def greet() -> None:
            with suppress(OSError):  # who came has gone
                caller = stack.enter_context(door.accept()[0])
                caller.send(greeting)

        loop.add_reader(door, greet)
        stack.callback(loop.remove_reader, door)
        yield


def _descriptor(connection: Connection) -> int:
    transport: Any = connection._transport  # type: ignore[attr-defined]  # there is no public way to the socket
    return int(transport.get_extra_info("socket").fileno())


def _taken(connection: Connection) -> socket.socket:
    return socket.socket(fileno=os.dup(_descriptor(connection)))


def _move(connection: Connection, to: socket.socket) -> None:
    """Let a connection be to somewhere else."""
    transport: Any = connection._transport  # type: ignore[attr-defined]
    transport.pause_reading()
    os.dup2(to.fileno(), _descriptor(connection), inheritable=False)
    transport.resume_reading()
