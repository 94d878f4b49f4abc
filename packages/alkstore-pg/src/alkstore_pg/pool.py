"""The store's other connections: for reads, locks, schedules and transactions, which may be many at once.

State model. A connection is *idle*, or *busy*: in an operation, lent to somebody who has it to himself, or being tidied
after somebody who left something behind in it. Each has a *place*, of which there are a few; one that is lost or was idle
for long leaves its place to a new one. Who finds no place stands in line, and is handed what comes free.

asyncpg's own pool takes a task, three futures and four timers a loan, and as much of the client's time as a statement.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from alkstore.errors import DatabaseError
from alkstore_pg.cancelling import settled
from alkstore_pg.ending import Ending
from alkstore_pg.errors import DRIVER, cut_off, is_repeatable, silent, translate, was_lost
from alkstore_pg.kept import Kept
from alkstore_pg.link import REPEATS, SLACK, Dial, DriverSession, Operation, Traffic, end
from alkstore_pg.session import Schema
from alkstore_pg.watchdog import Watchdog

__all__ = ["Pool"]

T = TypeVar("T")

LONGEST_IDLE: Final = 300.0
"""Seconds for which a connection that nobody uses is kept."""


class Pool:
    """Connections that are made when they are wanted.

    Args:
        dial: Makes one.
        schema: What statements name.
        size: How many can be lent at once. There is one more: who has one lent may wait for a read of his own, and a lease
            must be renewed meanwhile.
        wait_timeout: Seconds that anybody waits for one, and, with SLACK, that an operation may take.
        traffic: Is told of every operation.
    """

    def __init__(
        self, dial: Dial, schema: Schema, *, size: int, wait_timeout: float, traffic: Traffic
    ) -> None:
        self._dial = dial
        self._schema = schema
        self._size = size + 1
        self._turns = asyncio.Semaphore(size)
        self._limit = wait_timeout
        self._traffic = traffic
        self.watchdog: Final = Watchdog(wait_timeout + SLACK)
        """Looks after whatever somebody does with what he was lent."""
        self.lent: Final[set[DriverSession]] = set()
        """What somebody has to himself now."""
        self._places = 0
        self._idle: dict[DriverSession, float] = {}
        """Since when each is, the longest first."""
        self._busy: set[DriverSession] = set()
        self._line: deque[asyncio.Future[DriverSession | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._ending = Ending()
        self._tasks: set[asyncio.Future[Any]] = set()

    @property
    def is_connected(self) -> bool:
        """Whether a connection is there that nobody uses."""
        return bool(self._idle)

    async def run(self, operation: Operation[T], *, reads: bool = False) -> T:
        """Run an operation that commits by itself, as `Link.run` does; many may run at once.

        Raises:
            Closed: The pool was closed.
            DatabaseError: It failed, or no connection was free within ``wait_timeout``.
        """
        with self._traffic:
            for repeats_left in reversed(range(REPEATS)):
                session = self._take_idle() or await self._take(self._limit)
                connection, is_cut = session.connection, False
                self.watchdog.begin(connection)
                try:
                    return await operation(session)
                except asyncio.CancelledError:
                    is_cut = True
                    raise
                except DRIVER as error:
                    if self.watchdog.end(connection):
                        raise silent(self._limit + SLACK, writes=not reads) from error
                    self._judge(error, session, reads, repeats_left)
                finally:
                    self.watchdog.end(connection)
                    self._give_back(session, is_tidy=not is_cut)
        raise AssertionError("the last attempt returns or raises")

    def _judge(self, error: BaseException, session: DriverSession, reads: bool, repeats_left: int) -> None:
        """Raise what a caller is to see of a failed attempt, unless it is to be made again."""
        if isinstance(error, TimeoutError):
            raise translate(error, writes=not reads) from error
        was_ended = was_lost(error) or self._ending.is_reached
        if was_lost(error):
            session.connection.terminate()  # it may not know yet that it has ended
        if not repeats_left or not (is_repeatable(error) or (reads and was_ended)):
            make = cut_off if self._ending.is_reached else translate
            raise make(error, writes=not reads) from error

    # ------------------------------------------------------------ loans

    async def lend(self) -> DriverSession:
        """Give a connection to somebody who keeps it until he gives it back by `take_back`.

        Raises:
            Closed: The pool was closed.
            DatabaseError: None was free within ``wait_timeout``, or none could be made.
        """
        seconds = self._limit
        if self._turns.locked():
            seconds = await self._turn()
        else:
            await self._turns.acquire()  # at once
        try:
            session = self._take_idle() or await self._take(seconds)
        except BaseException:
            self._turns.release()
            raise
        self.lent.add(session)
        return session

    def take_back(self, session: DriverSession, *, reset: bool = False) -> None:
        """Take back what was lent. With ``reset`` its user may have changed the session, so that is undone first."""
        self.lent.discard(session)
        if reset and not session.connection.is_closed():
            # Nothing that its user has to wait for.
            _ = self.spawn(self._tidy(session, reset=True))
        else:
            self._give_back(session)
            self._turns.release()

    async def _turn(self) -> float:
        """Wait until one may be lent; gives the seconds that are left to take it."""
        time = asyncio.get_running_loop().time
        until = time() + self._limit
        try:
            with self._ending.awaited():
                async with asyncio.timeout_at(until):
                    await self._turns.acquire()
        except TimeoutError as error:
            raise self._none_free(len(self.lent), self._size - 1) from error
        return until - time()

    # ------------------------------------------------------------ places

    def _take_idle(self) -> DriverSession | None:
        """Take the one that was used last, if any is there: none once the pool is closed, which ends those that are busy now."""
        while self._idle and not self._ending.is_reached:
            session, _ = self._idle.popitem()
            if not session.connection.is_closed():
                self._busy.add(session)
                return session
            self._places -= 1
        return None

    async def _take(self, seconds: float) -> DriverSession:
        """Make one if there is a place, else wait for what comes free."""
        has_place = self._places < self._size
        # To make one takes its time, and waits for nobody.
        limit = seconds + SLACK if has_place else seconds
        try:
            with self._ending.awaited():
                async with asyncio.timeout(limit):
                    session = None if has_place else await self._handed_over()
                    return session or await self._made(is_new=has_place)
        except TimeoutError as error:
            raise self._none_free(len(self._busy), self._size) from error
        except DRIVER as error:
            raise translate(error, writes=False) from error

    async def _made(self, *, is_new: bool) -> DriverSession:
        self._places += is_new
        try:
            session = DriverSession(await self._dial(), self._schema)
        except BaseException:
            self._hand_on(None)
            raise
        self._busy.add(session)
        return session

    async def _handed_over(self) -> DriverSession | None:
        """Wait for a connection, or (None) for the place of one."""
        handed: asyncio.Future[DriverSession | None] = asyncio.get_running_loop().create_future()
        self._line.append(handed)
        try:
            return await handed
        except asyncio.CancelledError:
            if handed.done() and not handed.cancelled():  # it was ours already
                self._hand_on(handed.result())
            raise

    def _hand_on(self, session: DriverSession | None) -> None:
        """Give a connection, or the place of one that is gone, to who stands in line, or keep it."""
        while self._line:
            handed = self._line.popleft()
            if not handed.done():
                handed.set_result(session)
                return
        if session is None:
            self._places -= 1
            return
        self._busy.discard(session)
        loop = asyncio.get_running_loop()
        self._idle[session] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(LONGEST_IDLE, self._thin_out)

    def _give_back(self, session: DriverSession, *, is_tidy: bool = True) -> None:
        if self._ending.is_reached:
            session.connection.terminate()
        if session.connection.is_closed():
            session.connection.terminate()  # of one that the server ended the driver keeps things until it is told
            self._busy.discard(session)
            self._hand_on(None)
        elif is_tidy:
            self._hand_on(session)
        else:
            _ = self.spawn(self._tidy(session))

    async def _tidy(self, session: DriverSession, *, reset: bool = False) -> None:
        """Have it as if it were new: undo what its user did in the session, or wait until what he gave up has ended."""
        connection = session.connection
        self.watchdog.begin(connection)
        try:
            # The driver sends nothing before the server has cancelled what it was told to.
            await (connection.reset() if reset else connection.execute("SELECT"))
        except DRIVER:
            connection.terminate()
        except BaseException:
            connection.terminate()
            raise
        finally:
            self.watchdog.end(connection)
            self._give_back(session)
            if reset:
                self._turns.release()

    def _thin_out(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        for session, since in list(self._idle.items()):
            if since + LONGEST_IDLE > loop.time():
                self._timer = loop.call_at(since + LONGEST_IDLE, self._thin_out)
                return
            del self._idle[session]
            self._places -= 1
            session.connection.terminate()

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

    # ------------------------------------------------------------ tasks and the end

    def spawn(self, work: Coroutine[object, object, T]) -> "asyncio.Task[T]":
        """Run what must be done though its caller is cancelled: the end of a transaction. `close` waits for it."""
        task = asyncio.get_running_loop().create_task(self._counted(work))
        self._keep(task)
        return task

    def kept(self, work: Coroutine[object, object, T], undo: Callable[[], object] | None = None) -> Kept[T]:
        """Give what awaits as much, begins at once, and has no task: for work that waits for the server alone.

        ``undo`` is called behind it if the caller is cancelled.
        """
        return Kept(self._counted(work), partial(self._keep, undo=undo))

    def _keep(self, work: "asyncio.Future[Any]", undo: Callable[[], object] | None = None) -> None:
        self._tasks.add(work)
        work.add_done_callback(self._done)
        if undo is not None:
            work.add_done_callback(lambda _: undo())

    async def _counted(self, work: Coroutine[object, object, T]) -> T:
        with self._traffic:
            return await work

    def _done(self, work: "asyncio.Future[Any]") -> None:
        self._tasks.discard(work)
        if not work.cancelled():
            work.exception()  # whoever still waits for it sees it

    async def close(self) -> None:
        """End every connection, whatever it is doing."""
        self._ending.reach()
        try:
            await asyncio.gather(*(end(session.connection) for session in self._busy))
        finally:
            for session in self._idle:
                session.connection.terminate()
            self._idle.clear()
            self.watchdog.close()
            if self._timer is not None:
                self._timer.cancel()
        while self._tasks:  # one that ends may begin another: what its caller has left is undone
            await asyncio.wait(self._tasks)
        await settled()
