"""Readers: connections that cannot write, and never wait for a writer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from alkstore.errors import Closed
from alkstore_sqlite.connection import Connection, Errand, Patience, Steps, Wait, perform
from alkstore_sqlite.errors import is_broken
from alkstore_sqlite.hop import told
from alkstore_sqlite.link import CLOSE_LIMIT, LAST_CALL, Link
from alkstore_sqlite.place import Place
from alkstore_sqlite.surroundings import prepare_reader

__all__ = ["Readers", "open_reader"]

T = TypeVar("T")

MOST_READERS: Final = 2
"""Connections, each with a thread: one long read must not hold up the short ones."""


class _Reading(Errand, Generic[T]):
    """The program of one read: all of its statements see the same state, and a single one needs nothing for that."""

    _result: T

    def __init__(
        self, operation: Callable[[], Steps[T]], path: str, patience: Patience, *, is_single: bool
    ) -> None:
        self._operation = operation
        self._is_single = is_single
        self._path = path
        self._patience = patience
        self.error: Exception | None = None

    def work(self, connection: Connection) -> None:
        connection.check_place()
        self._result = self._patience.call(lambda: self._read(connection))

    def failed(self, error: Exception) -> None:
        self.error = told(error, self._path, waited=self._patience.waited)

    def _read(self, connection: Connection) -> T:
        if self._is_single:
            return perform(connection, self._operation())
        connection.run_sql("BEGIN")
        try:
            return perform(connection, self._operation())
        finally:
            connection.roll_back()

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return self._result


class Readers:
    """A few connections for reading, opened when they are first wanted. For one event loop.

    Args:
        open_link: Opens one.
        wait_timeout: Seconds that a read waits while another process holds the whole file.
    """

    def __init__(self, open_link: Callable[[], Awaitable[Link]], *, wait_timeout: float) -> None:
        self._open_link = open_link
        self._wait = Wait(wait_timeout)
        self._free = asyncio.Semaphore(MOST_READERS)
        self._idle: list[Link] = []
        self._used: set[Link] = set()
        self._opening: set[asyncio.Future[None]] = set()
        self._reads = 0
        self._is_closed = False

    async def run(self, operation: Callable[[], Steps[T]], *, is_single: bool = False) -> T:
        """Perform a read, and give its result.

        Args:
            is_single: It is of one statement.

        Raises:
            DatabaseError: It failed, and why.
            Closed: The readers are closed.
        """
        self._reads += 1
        try:
            return await self._run(operation, is_single)
        finally:
            self._reads -= 1

    async def _run(self, operation: Callable[[], Steps[T]], is_single: bool) -> T:
        async with self._free:
            if self._is_closed:
                raise Closed("store")
            link = self._idle.pop() if self._idle else await self._open()
            self._used.add(link)
            program = _Reading(operation, link.path, Patience(self._wait), is_single=is_single)
            is_sound = False
            try:
                await link.hop(program)
                is_sound = program.error is None or not is_broken(program.error)
            except asyncio.CancelledError:
                is_sound = True  # it reads on, and whoever has it next stands behind it
                raise
            except Exception as error:
                raise told(error, link.path) from error
            finally:
                await self._put_back(link, is_sound)
        return program.result()

    async def _open(self) -> Link:
        opening: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opening.add(opening)
        try:
            link = await self._open_link()
            if self._is_closed:  # the close has not found it, and nobody would ever close it
                await link.close()
                raise Closed("store")
            return link
        finally:
            self._opening.discard(opening)
            opening.set_result(None)

    @property
    def is_at_work(self) -> bool:
        """Whether anything is being read, if only for somebody who was cancelled."""
        return self._reads > 0 or any(link.is_at_work for link in self._idle)

    @property
    def hops(self) -> int:
        """Hops that have ended on the connections there are."""
        return sum(link.hops for link in (*self._idle, *self._used))

    async def _put_back(self, link: Link, is_sound: bool) -> None:
        self._used.discard(link)
        if is_sound and not self._is_closed:
            self._idle.append(link)
        else:
            await link.close()

    async def close(self) -> None:
        """Close every connection after what it has in hand."""
        self._is_closed = True
        self._wait.abort.set()
        links = [*self._idle, *self._used]
        self._idle.clear()
        await asyncio.gather(*(link.close(CLOSE_LIMIT) for link in links))
        if self._opening:
            await asyncio.wait({*self._opening}, timeout=LAST_CALL)


async def open_reader(place: Place) -> Link:
    """Open one more connection that cannot write."""
    return await Link.open(place.path, prepare_reader, place)
