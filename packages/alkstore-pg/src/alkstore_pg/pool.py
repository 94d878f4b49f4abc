"""The store's other connections: for reads, locks, schedules and transactions, which may be many at once."""

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

import asyncpg

from alkstore.errors import DatabaseError
from alkstore_pg.ending import Ending
from alkstore_pg.errors import DRIVER, cut_off, is_repeatable, silent, translate, was_lost
from alkstore_pg.link import REPEATS, SLACK, Connection, Dial, DriverSession, Operation, Traffic, end
from alkstore_pg.session import Schema

__all__ = ["Pool"]

T = TypeVar("T")


class Pool:
    """asyncpg's pool, whose connections are made when they are wanted. Make it by `open`.

    One more than can be lent: who has one lent may wait for a read of his own, and a lease must be renewed meanwhile.
    """

    def __init__(
        self, pool: "asyncpg.Pool[asyncpg.Record]", schema: Schema, wait_timeout: float, traffic: Traffic
    ) -> None:
        self._pool = pool
        self._turns = asyncio.Semaphore(pool.get_max_size() - 1)
        self._running: set[Connection] = set()
        self._schema = schema
        self._limit = wait_timeout
        self._traffic = traffic
        self.lent: Final[set[Connection]] = set()
        """What somebody has to himself now."""
        self._ending = Ending()
        self._tasks: set[asyncio.Task[Any]] = set()

    @classmethod
    async def open(
        cls, dial: Dial, schema: Schema, *, size: int, wait_timeout: float, traffic: Traffic
    ) -> "Pool":
        """Make a pool of which at most ``size`` connections can be lent at once; none is made yet."""

        async def connect(*_: object, **__: object) -> Connection:
            return await dial()

        async def reset(connection: Connection) -> None:
            # Only who had a connection to himself can have left anything in it: `release` resets those.
            return None

        arguments: Mapping[str, Any] = {"connect": connect, "reset": reset}
        pool = await asyncpg.create_pool(min_size=0, max_size=size + 1, **arguments)
        return cls(pool, schema, wait_timeout, traffic)

    @property
    def is_connected(self) -> bool:
        """Whether a connection is there that nobody uses."""
        return self._pool.get_idle_size() > 0

    async def run(self, operation: Operation[T], *, reads: bool = False) -> T:
        """Run an operation that commits by itself, as `Link.run` does; many may run at once.

        Raises:
            Closed: The pool was closed.
            DatabaseError: It failed, or no connection was free within ``wait_timeout``.
        """
        with self._traffic:
            for repeats_left in reversed(range(REPEATS)):
                connection, limit = await self._take(self._limit), asyncio.timeout(self._limit + SLACK)
                self._running.add(connection)
                try:
                    async with limit:
                        return await operation(DriverSession(connection, self._schema))
                except TimeoutError as error:
                    if not limit.expired():
                        raise translate(error, writes=not reads) from error
                    # Whoever is next must not wait for an answer that may never come: the network may be dead.
                    _terminate(connection)
                    raise silent(self._limit + SLACK, writes=not reads) from error
                except DRIVER as error:
                    was_ended = was_lost(error) or self._ending.is_reached
                    again = is_repeatable(error) or (reads and was_ended)
                    if was_lost(error):
                        _terminate(connection)  # it may not know yet that it has ended
                    if not again or not repeats_left:
                        make = cut_off if self._ending.is_reached else translate
                        raise make(error, writes=not reads) from error
                finally:
                    self._running.discard(connection)
                    await self._give_back(connection)
        raise AssertionError("the last attempt returns or raises")

    async def lend(self) -> Connection:
        """Give a connection to somebody who keeps it until he gives it back by `take_back`.

        Raises:
            Closed: The pool was closed.
            DatabaseError: None was free within ``wait_timeout``, or none could be made.
        """
        time = asyncio.get_running_loop().time
        began = time()
        try:
            with self._ending.awaited():
                async with asyncio.timeout(self._limit):
                    await self._turns.acquire()
        except TimeoutError as error:
            raise self._none_free(len(self.lent), self._pool.get_max_size() - 1) from error
        try:
            connection = await self._take(self._limit - (time() - began))
        except BaseException:
            self._turns.release()
            raise
        self.lent.add(connection)
        return connection

    async def _take(self, seconds: float) -> Connection:
        busy, size = len(self.lent) + len(self._running), self._pool.get_max_size()
        # Where there is room one is made, which takes its time and waits for nobody.
        limit = seconds + SLACK if busy < size else seconds
        try:
            with self._ending.awaited():
                async with asyncio.timeout(limit):  # the pool's own limit is a task
                    connection: Any = await self._pool.acquire()
        except TimeoutError as error:
            raise self._none_free(len(self.lent) + len(self._running), size) from error
        except DRIVER as error:
            raise translate(error, writes=False) from error
        return connection  # type: ignore[no-any-return]

    def _none_free(self, busy: int, size: int) -> DatabaseError:
        why = (
            f"{busy} are in use; raise pool_size, or end transactions sooner"
            if busy >= size
            else f"{busy} of {size} are in use, and the server was slow to let others be made"
        )
        error = DatabaseError(
            f"postgresql: no connection was free within wait_timeout ({self._limit:g} s), {why}"
        )
        error._is_held_back = True
        return error

    async def take_back(self, connection: Connection, *, reset: bool = False) -> None:
        """Take back what was lent. With ``reset`` its user may have changed the session, so that is undone first."""
        self.lent.discard(connection)
        try:
            if reset:
                await connection.reset(timeout=self._limit)
        except DRIVER:
            _terminate(connection)
        try:
            await self._give_back(connection)
        finally:
            self._turns.release()

    async def _give_back(self, connection: Connection) -> None:
        try:
            # What the pool gave is a proxy. It waits for the end of what the server was told to cancel.
            await self._pool.release(connection, timeout=self._limit + SLACK)  # type: ignore[arg-type]
        except DRIVER:
            _terminate(connection)

    def spawn(self, work: Coroutine[object, object, T]) -> "asyncio.Task[T]":
        """Run what must be done though its caller is cancelled: the end of a transaction. `close` waits for it."""
        task = asyncio.get_running_loop().create_task(self._counted(work))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def _counted(self, work: Coroutine[object, object, T]) -> T:
        with self._traffic:
            return await work

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever still waits for it sees it

    async def close(self) -> None:
        """End every connection, whatever it is doing."""
        self._ending.reach()
        try:
            await asyncio.gather(*map(end, (*self.lent, *self._running)))
        finally:
            self._pool.terminate()
        if self._tasks:
            await asyncio.wait(self._tasks)


def _terminate(connection: Connection) -> None:
    # One that was lost has left the pool by itself, and then answers nothing any more.
    with suppress(asyncpg.InterfaceError):
        connection.terminate()
