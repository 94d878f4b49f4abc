"""A connection of the store's own that is made when it is wanted, and made anew when it was lost.

What a store does most has a link to itself. Operations on a link follow each other in the order in which they came.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import asyncpg

from alkstore_pg.cancelling import see_through, settled
from alkstore_pg.ending import Ending
from alkstore_pg.errors import DRIVER, cut_off, is_repeatable, silent, translate, was_lost
from alkstore_pg.session import Row, Schema, Session
from alkstore_pg.watchdog import Watchdog

__all__ = [
    "Dial",
    "DriverSession",
    "Guest",
    "Link",
    "Operation",
    "OwnConnection",
    "Place",
    "Traffic",
    "answered",
    "end",
    "is_ours",
]

T = TypeVar("T")

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Operation: TypeAlias = Callable[[Session], Awaitable[T]]

Dial: TypeAlias = Callable[[], Awaitable[Connection]]
"""Makes a connection, or raises the driver's error."""

REPEATS: Final = 5
"""Times that an operation is sent again whose every trace the server has undone: a deadlock, a serialization failure."""

SLACK: Final = 1.0
"""Seconds for which we wait longer than the server does: its answer says that nothing was done, our silence does not."""

LAST_WORD: Final = 0.5
"""Seconds that the server has to cancel what it does for a connection that is to end."""


class OwnConnection(asyncpg.Connection):
    """asyncpg's, which undoes more of what its user did in the session when it is reset, and remembers what became of
    the last command that was sent alone.
    """

    last_status = ""
    """What the server said: a COMMIT of a transaction that had failed is answered ``ROLLBACK``, and no error."""

    is_seen_through = True
    """Whether the server is still asked to cancel what it has in hand when the connection ends."""

    # What the driver's stubs do not have.
    _cancellations: "set[asyncio.Task[Any]]"
    _protocol: Any

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str:
        self.last_status = ""
        self.last_status = status = await answered(self, super().execute(query, *args, timeout=timeout))
        return status

    def get_reset_query(self) -> str:
        # RESET ALL leaves the role: whoever had the connection next would be refused what is not that role's.
        return f"RESET SESSION AUTHORIZATION; RESET ROLE; DISCARD TEMP; {super().get_reset_query()}"

    def _abort(self) -> None:
        protocol = self._protocol
        super()._abort()  # type: ignore[misc]  # as above
        if self._cancellations and self.is_seen_through:
            self._protocol = protocol  # of which a request that has not begun asks whom it is for

    def _cleanup(self) -> None:
        if self.is_seen_through:
            see_through(self._cancellations)
        super()._cleanup()  # type: ignore[misc]  # as above


async def end(connection: Connection) -> None:
    """End a connection, and before that what the server does on it: cut off from us it would go on, and land, later."""
    try:
        async with asyncio.timeout(LAST_WORD):
            await connection.close()
    except DRIVER:
        with suppress(asyncpg.InterfaceError):  # one that was lost has left its pool
            connection.terminate()


async def answered(connection: Connection, sent: Awaitable[T]) -> T:
    """Await the driver's answer, and see that it is the server's.

    Raises:
        ConnectionDoesNotExistError: The connection ended before it, whatever the driver makes of that.
    """
    try:
        answer = await sent
    except (AttributeError, TypeError) as error:
        if not connection.is_closed():
            raise
        # Ended between two steps of one statement, the driver misses what it has just thrown away.
        raise asyncpg.ConnectionDoesNotExistError(_UNANSWERED) from error
    # None is what the driver answers of a connection that is lost while it is being closed: a commit that never landed
    # would be taken for one that has. A statement may have no other answer, so it does not count alone.
    if answer is None and connection.is_closed():
        raise asyncpg.ConnectionDoesNotExistError(_UNANSWERED)
    return answer


_UNANSWERED: Final = "connection was ended before its answer"


class Traffic:
    """How much is in the server's hands, and how much ever was, for whoever waits until nothing moves any more."""

    def __init__(self) -> None:
        self.in_hand = 0
        self.done = 0

    def __enter__(self) -> None:
        self.in_hand += 1

    def __exit__(self, *_: object) -> None:
        self.in_hand -= 1
        self.done += 1


class DriverSession:
    """An asyncpg connection as a `Session`."""

    __slots__ = ("_schema", "connection")

    def __init__(self, connection: Connection, schema: Schema) -> None:
        self.connection = connection
        self._schema = schema

    async def fetch(self, statement: str, *parameters: object) -> Sequence[Row]:
        connection = self.connection
        # A record is read by position like a tuple; its stubs do not say so.
        rows: Sequence[Any] = await answered(
            connection, connection.fetch(self._schema.render(statement), *parameters)
        )
        return rows


def is_ours(limit: asyncio.Timeout, before: int) -> bool:
    """Whether a cancellation is this limit's alone, and nobody else's: the task had had ``before`` of them when it was set.

    As asyncio.timeout() does it. A task that is cancelled cleans up, and what it writes then may have landed too.
    """
    return limit.expired() and cancellations() <= before + 1


def cancellations() -> int:
    """Give how many requests to cancel the running task has had, and nobody has taken back."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


class _Line:
    """Who has the connection, and who is next: `asyncio.Lock`, but for one that is free and taken without a coroutine."""

    __slots__ = ("_waiting", "is_taken")

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.is_taken = False

    def enter_if_free(self) -> bool:
        """Take it if nobody has it; who waits for it is handed it, so it is not free while anybody does."""
        if self.is_taken:
            return False
        self.is_taken = True
        return True

    async def enter(self) -> None:
        """Take it when those who came before have left."""
        if self.enter_if_free():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was ours already
                self.leave()
            raise

    def leave(self) -> None:
        """Hand it to who is next."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.is_taken = False


class Link:
    """One connection at most, and operations that commit by themselves on it.

    Args:
        dial: Makes the connection.
        schema: What statements name.
        wait_timeout: Seconds that an operation may take, its wait for the link and for a connection included.
        traffic: Is told of every operation.
    """

    def __init__(self, dial: Dial, schema: Schema, *, wait_timeout: float, traffic: Traffic) -> None:
        self._dial = dial
        self._schema = schema
        self._limit = wait_timeout + SLACK
        self._traffic = traffic
        self._line = _Line()
        self._session: DriverSession | None = None
        self._was_cut = False
        self._watchdog = Watchdog(self._limit)
        self._ending = Ending()

    async def run(self, operation: Operation[T], *, reads: bool = False) -> T:
        """Run an operation that commits by itself, and again if nothing of it was sent, or the server undid it.

        It may read before it writes, but writes in one statement, its last.

        With ``reads`` it changes nothing, so it is run again after a lost connection too.

        Raises:
            Closed: The link was closed.
            DatabaseError: It failed; ``outcome_unknown`` if it may have landed all the same.

        Cost: what the operation costs; a connection first if there is none. Rows: DUR-05, DUR-11, Q-26.
        """
        session = self._session
        traffic = self._traffic
        traffic.in_hand += 1
        try:
            if (
                session is None
                or self._was_cut
                or session.connection.is_closed()
                or not self._line.enter_if_free()
            ):
                return await self._run_in_turn(operation, reads)
            # Nothing is waited for but the server: the watchdog does, for a timer would cost a tenth of a short statement.
            began = self._watchdog.begin(session.connection)
            try:
                return await operation(session)
            except BaseException as error:
                return await self._run_again(error, began, session, operation, reads)
            finally:
                self._watchdog.end(session.connection)
                self._line.leave()
        finally:
            traffic.in_hand -= 1
            traffic.done += 1

    async def _run_again(
        self, error: BaseException, began: float, session: DriverSession, operation: Operation[T], reads: bool
    ) -> T:
        """Go on after an attempt that was watched has failed."""
        if isinstance(error, asyncio.CancelledError):
            self._was_cut = True
            raise error
        if not isinstance(error, DRIVER):
            raise error
        if self._watchdog.end(session.connection):
            raise silent(self._limit, writes=not reads) from error
        self._judge(error, session, reads, REPEATS - 1)
        try:
            async with asyncio.timeout_at(began + self._limit) as limit:
                return await self._attempt(operation, reads, limit, REPEATS - 1)
        except TimeoutError as late:  # nothing was sent
            raise silent(self._limit, writes=False) from late

    async def _run_in_turn(self, operation: Operation[T], reads: bool) -> T:
        try:
            async with asyncio.timeout(self._limit) as limit:
                await self._line.enter()
                try:
                    return await self._attempt(operation, reads, limit, REPEATS)
                finally:
                    self._line.leave()
        except TimeoutError as error:  # nothing was sent
            raise silent(self._limit, writes=False) from error

    async def _attempt(self, operation: Operation[T], reads: bool, limit: asyncio.Timeout, times: int) -> T:
        before = cancellations()
        for repeats_left in reversed(range(times)):
            session = await self._ready()
            try:
                result = await operation(session)
            except asyncio.CancelledError as error:
                if not is_ours(limit, before):
                    self._was_cut = True
                    raise
                # Whoever is next must not wait for an answer that may never come: the network may be dead.
                session.connection.terminate()
                raise silent(self._limit, writes=not reads) from error
            except DRIVER as error:
                self._judge(error, session, reads, repeats_left)
            else:
                self._was_cut = False
                return result
        raise AssertionError("the last attempt returns or raises")

    def _judge(self, error: BaseException, session: DriverSession, reads: bool, repeats_left: int) -> None:
        """Raise what a caller is to see of a failed attempt, unless it is to be made again."""
        if isinstance(error, TimeoutError) or not repeats_left:
            raise translate(error, writes=not reads) from error
        was_ended = was_lost(error) or self._ending.is_reached
        if not (is_repeatable(error) or (reads and was_ended)):
            make = cut_off if self._ending.is_reached else translate
            raise make(error, writes=not reads) from error
        if was_lost(error):
            session.connection.terminate()  # it may not know yet that it has ended

    async def _ready(self) -> DriverSession:
        session = self._session
        if session is None or session.connection.is_closed():
            with self._ending.awaited():
                try:
                    session = self._session = DriverSession(await self._dial(), self._schema)
                except DRIVER as error:
                    raise translate(error, writes=False) from error
        return session

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection that is not known to be lost."""
        return self._session is not None and not self._session.connection.is_closed()

    @property
    def is_idle(self) -> bool:
        """Whether an operation would run at once, on a connection that is there."""
        return self.is_connected and not self._line.is_taken

    async def close(self) -> None:
        """End the connection, whatever it is doing: what waits for its answer gets `DatabaseError`."""
        self._ending.reach()
        session, self._session = self._session, None
        try:
            if session is not None:
                await end(session.connection)
        finally:
            self._watchdog.close()
        await settled()


class Place(Protocol):
    """Where operations that commit by themselves can run: a link, or the pool."""

    @property
    def is_connected(self) -> bool: ...

    async def run(self, operation: Operation[T], *, reads: bool = False) -> T: ...


class Guest:
    """A place that makes no connection of its own as long as another link is idle: a store that does little has few.

    For short operations that wait for no row: whoever the link belongs to waits for them.
    """

    def __init__(self, host: Link, own: Place) -> None:
        self._host = host
        self._own = own

    async def run(self, operation: Operation[T], *, reads: bool = False) -> T:
        """Run an operation as `Link.run` does."""
        if self._host.is_idle and not self._own.is_connected:
            return await self._host.run(operation, reads=reads)
        return await self._own.run(operation, reads=reads)
