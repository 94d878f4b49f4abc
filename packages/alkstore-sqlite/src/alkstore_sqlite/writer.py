"""The one writer of a store: what is awaited at the same time lands in one commit, and a transaction has it for itself.

State model. The writer is idle, busy with a hop, or lent to a transaction. A hop is one change of threads: it takes
SQLite's write lock (BEGIN IMMEDIATE), reads the clock, performs its operations and commits. An operation that finds the
writer idle makes a hop of its own, in its caller's task; one that finds it busy stands in line, and whatever stands there
when the hop ends shares the next one. A transaction stands in the same line, and everybody behind it waits until it has
ended. Nobody stands there for longer than ``wait_timeout``.

Another process that holds the write lock is waited for in the driver's thread, so the event loop runs on.
"""

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from alkstore.clock import Clock
from alkstore.errors import Closed, DatabaseError
from alkstore_sqlite.connection import Wait, Woken
from alkstore_sqlite.errors import is_broken, is_stale
from alkstore_sqlite.hop import Hop, Operation, Work, told
from alkstore_sqlite.link import CLOSE_LIMIT, LAST_CALL, Link
from alkstore_sqlite.turn import Owner, Turn

__all__ = ["Writer"]

T = TypeVar("T")

MOST_A_HOP: Final = 256
"""Operations that share a commit at most, so that the last of a crowd does not wait for all of it."""

CHORES_LIMIT: Final = 0.4
"""Seconds. Core gives a close that has had its time one more second, of which the connection needs some."""


def _answer(place: Work[Any] | Turn) -> None:
    if place.done is not None and not place.done.done():
        place.done.set_result(None)


class Writer:
    """The line before the one writing connection. For one event loop.

    Args:
        link: The connection.
        reopen: Opens it again once it is of no use, within such a wait; never makes a file.
        clock: What *now* is.
        wait_timeout: Seconds that anybody stands in line, or waits for another process.
        landed: Called in the loop after each commit with the topics to wake.
    """

    def __init__(
        self,
        link: Link,
        *,
        reopen: Callable[[Wait], Awaitable[Link]],
        clock: Clock,
        wait_timeout: float,
        landed: Callable[[Sequence[Woken]], object],
    ) -> None:
        self.link = link
        self.clock = clock
        self._reopen = reopen
        self._landed = landed
        self._line: deque[Work[Any] | Turn] = deque()
        self._is_busy = False
        self._is_broken = False
        self._mending: asyncio.Future[None] | None = None
        self._is_closed = False
        self._owner: Owner | None = None
        self._flusher: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._chores: set[asyncio.Task[object]] = set()
        self.wait = Wait(wait_timeout)

    @property
    def hops(self) -> int:
        """Hops that have ended on the connection that there is."""
        return self.link.hops

    @property
    def is_at_work(self) -> bool:
        """Whether the thread has anything in hand, if only for somebody who was cancelled.

        Not so while a caller stands still between its hop and handing on, or has the writer for a transaction.
        """
        return self._mending is not None or self.link.is_at_work

    @property
    def is_held_up(self) -> bool:
        """Whether it only asks for the write lock again, which another process had when it last did."""
        return self.wait.is_held_up

    # ------------------------------------------------------------ operations

    def run(self, operation: Operation[T], *, is_single: bool = False) -> Coroutine[Any, Any, T]:
        """Perform an operation, of one statement at most if ``is_single``, and give its result once it is committed.

        Raises:
            DatabaseError: Nothing landed, or (it says so) the outcome is unknown.
            Closed: The writer is closed.
        """
        return self.do(Work(operation, is_single=is_single))

    async def do(self, work: Work[T]) -> T:
        """The same, for who must also know when the operation had the write lock."""
        if self._is_closed:
            raise Closed("store")
        if self._is_busy or self._is_broken:
            await self._wait(work)
        else:  # as `_hop`, without the coroutine and the questions of a batch
            self._is_busy = True
            works, is_left = (work,), False
            program = Hop(works, self.link.path, self.clock, self.wait)
            try:
                await self.link.hop(program)
            except BaseException as error:
                is_left = not isinstance(error, Exception)
                self._not_awaited(works, program, error)
            else:
                if work.error is not None:
                    self._finish(works)
                elif work.woken:
                    woken, work.woken = work.woken, ()
                    self._landed(woken)
            finally:
                if not self._line:
                    self._is_busy = is_left
                elif not is_left:
                    self._hand_on()
        if work.error is not None:
            if self._is_stale((work,)):
                return await self.do(work)
            raise work.error
        return work._result

    async def _wait(self, work: Work[Any]) -> None:
        done = work.done = asyncio.get_running_loop().create_future()
        work.since = time.monotonic()
        self._stand(work)
        if not self._is_busy:  # the flusher opens the connection anew
            self._is_busy = True
            self._hand_on()
        try:
            await done
        except asyncio.CancelledError:
            if done.done() and not done.cancelled():  # answered, but the cancellation reached the task first
                work.take_back()
            raise

    async def _hop(self, works: Sequence[Work[Any]]) -> None:
        program: Hop | None = None
        try:
            while program is None or self._is_stale(works):
                program = None
                if self._is_broken:
                    await self._mend()
                program = Hop(works, self.link.path, self.clock, self.wait)
                await self.link.hop(program)
        except BaseException as error:
            self._not_awaited(works, program, error)
        else:
            self._finish(works)

    def _is_stale(self, works: Sequence[Work[Any]]) -> bool:
        """Whether they have to be performed anew, on another connection: nothing was done, nor ever would be on this one."""
        error = works[0].error
        if error is None or not is_stale(error):
            return False
        for work in works:
            work.error = None
        self._is_broken = True
        return True

    def _not_awaited(self, works: Sequence[Work[Any]], program: Hop | None, error: BaseException) -> None:
        """See to operations whose hop was not awaited to its end; what is not for them to be told of is raised."""
        if isinstance(error, Exception):  # it could not be handed over, so nothing was done
            self._give_up(works, error)
            return
        if program is None:
            self._give_up(works, Closed("store"))
        else:
            self.start(self._end_left(works, program))
        raise error

    async def _end_left(self, works: Sequence[Work[Any]], program: Hop) -> None:
        """See to what a hop did for somebody who has gone, when it has; a close and the line wait for that."""
        has_run = asyncio.Event()
        program.leave_to(has_run.set)
        try:
            await has_run.wait()
            self._finish(works, is_left=True)
        finally:
            self._hand_on()  # not before: behind it in the thread nobody is told that he has waited for too long

    def _give_up(self, works: Sequence[Work[Any]], error: Exception) -> None:
        for work in works:
            work.error = told(error, self.link.path)
        self._finish(works)

    def _finish(self, works: Sequence[Work[Any]], *, is_left: bool = False) -> None:
        if len(works) > 1:
            put_off = [work for work in works if work.is_put_off]
            self._line.extendleft(reversed(put_off))  # before all who came since
        for work in works:
            if work.is_put_off:
                work.is_put_off = False
                continue
            woken, work.woken = work.woken, ()  # this may come twice after a cancellation
            if woken:
                self._landed(woken)
            if work.error is not None and is_broken(work.error):
                self._is_broken = True
            done = work.done
            if is_left or (done is not None and done.cancelled()):
                work.take_back()
            if done is not None and not done.done():
                done.set_result(None)

    # ------------------------------------------------------------ the line

    def _stand(self, place: Work[Any] | Turn) -> None:
        self._line.append(place)
        if self._timer is None:
            self._watch_the_line()

    def _watch_the_line(self) -> None:
        """Tell those who have stood for too long; they stand in the order in which they came."""
        self._timer = None
        now = time.monotonic()
        while self._line and now - self._line[0].since >= self.wait.limit:
            place = self._line.popleft()
            place.error = self._too_long()
            _answer(place)
        if self._line:
            left = self._line[0].since + self.wait.limit - now
            self._timer = asyncio.get_running_loop().call_later(left, self._watch_the_line)

    def _too_long(self) -> DatabaseError:
        holder = "other writes" if self._owner is None else self._owner.label
        error = DatabaseError(
            f"storage was held by {holder} for over {self.wait.limit:g} s, and nothing of this was done; "
            "end transactions sooner, or raise wait_timeout"
        )
        error._is_held_back = True
        return error

    def _hand_on(self) -> None:
        if not self._line:
            self._is_busy = False
            return
        # In a context of its own, or the line would keep alive what some caller's context holds.
        self._flusher = asyncio.get_running_loop().create_task(
            self._flush_line(), context=contextvars.Context()
        )

    async def _flush_line(self) -> None:
        try:
            while batch := self._next():
                if isinstance(batch, Turn):
                    self._owner = batch.owner
                    _answer(batch)
                    return
                await self._hop(batch)
                if len(batch) == 1 and not self._line:
                    break  # a caller that is alone again makes a hop of its own
                # Those who were answered call again within this turn; without it the next hop would miss half of them.
                await asyncio.sleep(0)
            self._is_busy = False
        finally:
            self._flusher = None

    def _next(self) -> "list[Work[Any]] | Turn | None":
        batch: list[Work[Any]] = []
        while self._line and len(batch) < MOST_A_HOP:
            place = self._line[0]
            if place.done is not None and place.done.done():  # cancelled in line: it never happened
                self._line.popleft()
            elif isinstance(place, Work):
                self._line.popleft()
                batch.append(place)
            else:
                return batch or self._line.popleft()  # type: ignore[return-value]  # it is the turn just seen
        return batch or None

    # ------------------------------------------------------------ transactions

    async def lend(self, owner: Owner) -> None:
        """Give the writer to a transaction, in its turn.

        Raises:
            DatabaseError: Others had it for too long.
            Closed: The writer is closed.
        """
        if self._is_closed:
            raise Closed("store")
        if not self._is_busy:
            self._is_busy = True
            self._owner = owner
            return
        turn = Turn(owner)
        self._stand(turn)
        try:
            await turn.done
        except asyncio.CancelledError:
            self.take_back(owner)  # it may have been given in this very moment
            raise
        if turn.error is not None:
            raise turn.error

    def take_back(self, owner: Owner) -> None:
        """End a loan; harmless if it is another's."""
        if self._owner is owner:
            self._owner = None
            self._hand_on()

    async def usable(self) -> Link:
        """Give the connection, opened again if it was of no use any more."""
        if self._is_broken:
            await self._mend()
        return self.link

    async def _mend(self) -> None:
        if self._is_closed:
            raise Closed("store")
        mending = self._mending = asyncio.get_running_loop().create_future()
        try:
            await self.link.close()
            link = await self._reopen(self.wait)
            if self._is_closed:  # the close has found the old one, and nobody would ever close this
                await link.close()
                raise Closed("store")
            self.link, self._is_broken = link, False
        finally:
            self._mending = None
            mending.set_result(None)

    def broke(self) -> None:
        """Have the connection opened again before its next use."""
        self._is_broken = True

    def start(self, chore: Coroutine[Any, Any, object]) -> None:
        """Run something that nobody awaits but `close`; what it raises, nobody is there to be told."""
        task = asyncio.get_running_loop().create_task(chore, context=contextvars.Context())
        self._chores.add(task)
        task.add_done_callback(self._is_done)

    def _is_done(self, chore: asyncio.Task[object]) -> None:
        self._chores.discard(chore)
        if not chore.cancelled():
            chore.exception()  # looked at, or the loop would complain of an error that its connection has paid for

    def landed(self, woken: Sequence[Woken]) -> None:
        """Wake what a transaction touched."""
        self._landed(woken)

    # ------------------------------------------------------------ the end

    async def close(self) -> None:
        """Refuse everything, end what stands in line, and close the connection after what it has in hand."""
        patience = CLOSE_LIMIT
        try:
            await self._end_chores()
        except asyncio.CancelledError:
            patience = 0.0
            raise
        finally:
            self._end_line()
            await self.link.close(patience)
            if self._mending is not None:
                await asyncio.wait((self._mending,), timeout=LAST_CALL)
            rest = {*self._chores, *((self._flusher,) if self._flusher is not None else ())}
            if rest:
                await asyncio.wait(rest, timeout=LAST_CALL)

    async def _end_chores(self) -> None:
        """Let transactions be undone and claims be given back: first in peace, then without waiting for anybody's lock."""
        for _ in range(2):
            if self._chores:
                await asyncio.wait(self._chores, timeout=CHORES_LIMIT)
            self.wait.abort.set()

    def _end_line(self) -> None:
        self._is_closed = True
        self.wait.abort.set()
        while self._line:
            place = self._line.popleft()
            place.error = Closed("store")
            _answer(place)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
