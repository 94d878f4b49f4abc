"""Opportunistic group commit: what is awaited at the same time lands in one commit.

Each kind of write has a lane. A lane is idle, or one flush of it runs. A call that finds its lane idle flushes itself, in
its own task: nothing is added to what the engine costs. A call that finds it busy waits in line, and a task, which lives
while the line does, flushes the line in batches. No timer is involved, so nobody waits for company. But while calls come
in company, as when a hundred acks are awaited together again and again, the first of them stands in line too: one loop turn
later they are one flush of a hundred, and not one of one and another of ninety-nine.

A batch is all or nothing in the engine. When it fails, and the engine knows that nothing landed, its calls are flushed
one by one, so that a call fails by its own fault alone. When the outcome is unknown every call gets the error: a repeated
write could land twice (DUR-11). When it waited in vain for another holder of the storage, so do all in line: each of them
would wait as long again.

A caller that is cancelled while it waits in line has done nothing. Later its outcome is unknown, but the flush goes on:
it carries the others.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from alkstore.engine import Fail, NewEvent, NewJob, NewWake, Retry, Settle
from alkstore.errors import AlkstoreError, Closed, DatabaseError

__all__ = ["Batcher", "Storage", "unanswered"]

MAX_ROWS: Final = 1_000
"""Rows of a batch: beyond it a row costs no less, and the first caller waits longer for its answer."""

MAX_BYTES: Final = 1 << 20
"""Bytes of payload of a batch, so that one flush of large payloads does not hold up small ones behind it."""

CLOSE_LIMIT: Final = 5.0
"""Seconds that `Batcher.close` waits for what was accepted (DUR-06)."""

LAST_CALL: Final = 1.0
"""Seconds that a flush has to end once it was cancelled."""

PATIENCE: Final = 1.0
"""Seconds. A call that is at fault fails at once; an error that took longer is the storage's (a lock, a lost server), and
trying each call by itself would let the last caller wait a thousand times as long."""

_TELLING: Final = frozenset({Retry, Fail})
"""Settles that say why."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Storage(Protocol):
    """The writes of an engine that are merged."""

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]: ...

    async def settle_jobs(self, settles: Sequence[Settle]) -> Sequence[int | None]: ...

    async def append_events(self, events: Sequence[NewEvent]) -> Sequence[int]: ...

    async def notify(self, wakes: Sequence[NewWake]) -> None: ...


class Batcher:
    """The writes of an engine whose calls cost I/O, merged. Each method does what the engine's of that name does.

    One call is never split: it is atomic. Within a kind the order of calls is kept. For one event loop.
    """

    def __init__(self, engine: Storage) -> None:
        self._jobs = _Lane(engine.insert_jobs, _weigh)
        self._settles = _Lane(engine.settle_jobs, _weigh_errors)
        self._events = _Lane(engine.append_events, _weigh)
        self._wakes = _Lane(_answering(engine.notify), _weigh_wakes)
        # The lanes' own methods: one more coroutine in between is a tenth of what a call costs here.
        self.insert_jobs: Final[Callable[[Sequence[NewJob]], Awaitable[Sequence[int]]]] = self._jobs.submit
        self.settle_jobs: Final[Callable[[Sequence[Settle]], Awaitable[Sequence[int | None]]]] = (
            self._settles.submit
        )
        self.append_events: Final[Callable[[Sequence[NewEvent]], Awaitable[Sequence[int]]]] = (
            self._events.submit
        )
        self.notify: Final[Callable[[Sequence[NewWake]], Awaitable[object]]] = self._wakes.submit

    async def close(self, limit: float = CLOSE_LIMIT) -> None:
        """Refuse further calls with `Closed` and let those accepted finish, for so many seconds.

        What is still in line then is `Closed`, and what a flush of the line has in hand is a `DatabaseError` of unknown
        outcome. A caller that flushes itself is inside the engine: its `aclose` ends that call.
        """
        lanes = (self._jobs, self._settles, self._events, self._wakes)
        for lane in lanes:
            lane.refuse()
        try:
            async with asyncio.timeout(limit):
                await asyncio.gather(*(lane.drain() for lane in lanes))
        except TimeoutError:
            pass  # told to the callers, who have the use of it
        finally:
            flushers = {flusher for lane in lanes if (flusher := lane.abort()) is not None}
            if flushers:
                await asyncio.wait(flushers, timeout=LAST_CALL)


def _weigh(rows: Sequence[NewJob] | Sequence[NewEvent]) -> int:
    return sum([len(row.payload) + len(row.headers) for row in rows])


def _weigh_errors(settles: Sequence[Settle]) -> int:
    if _TELLING.isdisjoint(map(type, settles)):
        return 0
    return sum([len(each.error or "") for each in settles if isinstance(each, (Retry, Fail))])


def _weigh_wakes(wakes: Sequence[NewWake]) -> int:
    return sum([len(wake.payload or b"") for wake in wakes])


def _answering(
    notify: Callable[[Sequence[NewWake]], Awaitable[None]],
) -> Callable[[Sequence[NewWake]], Awaitable[Sequence[None]]]:
    async def write(wakes: Sequence[NewWake]) -> Sequence[None]:
        await notify(wakes)
        return [None] * len(wakes)

    return write


_Call: TypeAlias = tuple[asyncio.Future[Sequence[Result]], Sequence[Item]]
"""One caller in line: what answers it, and what it wants written."""


class _Lane(Generic[Item, Result]):
    """The writes of one kind: at most one flush runs, the rest stands in line."""

    def __init__(
        self,
        write: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        weigh: Callable[[Sequence[Item]], int],
    ) -> None:
        self._write = write
        self._weigh = weigh
        self._line: deque[_Call[Result, Item]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_busy = False
        self._has_company = False
        """Whether a flush of the last line there was carried several calls."""
        self._was_slow = False
        self._is_refusing = False
        self._flusher: asyncio.Task[None] | None = None
        self._drained: asyncio.Event | None = None

    def submit(self, items: Sequence[Item]) -> Awaitable[Sequence[Result]]:
        loop = self._loop
        if self._is_busy and loop is not None and items and not self._is_refusing:
            # As `_stand`: a crowd is spared a coroutine and two calls a call.
            answer: asyncio.Future[Sequence[Result]] = loop.create_future()
            self._line.append((answer, items))
            return answer
        return self._submit(items)

    async def _submit(self, items: Sequence[Item]) -> Sequence[Result]:
        if self._is_refusing:
            raise Closed("store")
        if not items:
            return ()
        if self._is_busy or self._has_company:
            return await self._stand(items)
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._is_busy = True
        try:
            return await self._write(items)
        except DatabaseError as error:
            self._is_held_back(error)
            raise
        finally:
            if self._line or self._drained is not None:
                self._hand_on()
            else:
                self._is_busy = False

    def _stand(self, items: Sequence[Item]) -> asyncio.Future[Sequence[Result]]:
        answer: asyncio.Future[Sequence[Result]] = asyncio.get_running_loop().create_future()
        self._line.append((answer, items))
        if not self._is_busy:
            self._is_busy = True
            self._hand_on()
        return answer

    def _hand_on(self) -> None:
        if not self._line:
            self._rest()
            return
        # In a context of its own, or the line would keep alive what some caller's context holds, a transaction say.
        loop = asyncio.get_running_loop()
        self._flusher = loop.create_task(self._flush_line(), context=contextvars.Context())

    def _rest(self) -> None:
        self._is_busy = False
        self._flusher = None
        if self._drained is not None:
            self._drained.set()

    # ------------------------------------------------------------ flushing

    async def _flush_line(self) -> None:
        self._has_company = False
        try:
            while (taken := self._take())[0]:
                batch, items = taken
                self._has_company = self._has_company or len(batch) > 1
                await self._flush(batch, items)
                if len(batch) == 1 and not self._line:
                    break  # a caller that is alone again flushes itself
                # Those who were answered call again within this turn; without it the next flush would miss half of them.
                await asyncio.sleep(0)
        except BaseException:  # the task was cancelled: nobody in line may wait for ever
            self._drop(Closed("store"))
            raise
        finally:
            self._rest()

    def _take(self) -> tuple[list[_Call[Result, Item]], Sequence[Item]]:
        """Take the calls of one flush, none if the line is empty, and all that they want written."""
        line = self._line
        if len(line) <= MAX_ROWS:  # nearly always all of them fit
            batch = [call for call in line if not call[0].done()]
            items = _items_of(batch)
            if len(batch) < 2 or (len(items) <= MAX_ROWS and self._weigh(items) <= MAX_BYTES):
                line.clear()
                return batch, items
        batch = self._part_of_line()
        return batch, _items_of(batch)

    def _part_of_line(self) -> list[_Call[Result, Item]]:
        """Take no more calls than one flush may carry, one at least if there is any."""
        line = self._line
        batch: list[_Call[Result, Item]] = []
        rows = size = 0
        while line:
            answer, items = call = line[0]
            if answer.done():  # cancelled before its flush began: it never happened
                line.popleft()
                continue
            rows += len(items)
            size += self._weigh(items)
            if batch and (rows > MAX_ROWS or size > MAX_BYTES):
                break
            batch.append(call)
            line.popleft()
        return batch

    async def _flush(self, batch: Sequence[_Call[Result, Item]], items: Sequence[Item]) -> None:
        error = await self._try(batch, items)
        if error is None:
            return
        if len(batch) == 1 or not self._is_repeatable(error):
            _fail(batch, error)
            return
        waiting = deque(batch)
        while waiting:
            call = waiting.popleft()
            if call[0].done():
                continue
            error = await self._try((call,), call[1], waiting)
            if error is not None:
                _fail((call,), error)
                if self._was_slow:
                    _fail(waiting, error)
                    return

    async def _try(
        self,
        batch: Sequence[_Call[Result, Item]],
        items: Sequence[Item],
        waiting: Iterable[_Call[Result, Item]] = (),
    ) -> Exception | None:
        """Write a batch and answer its calls; gives the error if that failed, and notes whether it took long."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            results = await self._write(items)
        except Exception as error:  # whatever the engine raised is the callers' to see, and the line goes on
            self._was_slow = clock() - began > PATIENCE or self._is_held_back(error)
            return error
        except BaseException:  # this task was cancelled under the engine's hands: nobody may wait for ever
            _fail(batch, unanswered())
            _fail(waiting, Closed("store"))
            raise
        if len(results) == len(batch):  # one for each: no slices
            for (answer, _), result in zip(batch, results, strict=True):
                if not answer.done():
                    answer.set_result([result])
            return None
        at = 0
        for answer, items in batch:
            end = at + len(items)
            if not answer.done():
                answer.set_result(results[at:end])
            at = end
        return None

    def _is_held_back(self, error: Exception) -> bool:
        """Whether it waited for others as long as anybody may (TX-08). Then those in line, who came meanwhile, have too."""
        if not (isinstance(error, DatabaseError) and error._is_held_back):
            return False
        self._drop(error)
        return True

    def _is_repeatable(self, error: Exception) -> bool:
        return isinstance(error, DatabaseError) and not error.outcome_unknown and not self._was_slow

    # ------------------------------------------------------------ the end

    def refuse(self) -> None:
        self._is_refusing = True

    async def drain(self) -> None:
        if self._is_busy:
            self._drained = self._drained or asyncio.Event()
            await self._drained.wait()

    def abort(self) -> asyncio.Task[None] | None:
        """Give up what is in line or in hand; gives the task that ends with it."""
        flusher = self._flusher
        if flusher is not None:
            flusher.cancel()
        self._drop(Closed("store"))
        return flusher

    def _drop(self, error: Exception) -> None:
        _fail(self._line, error)
        self._line.clear()


def _items_of(calls: Sequence[_Call[Result, Item]]) -> Sequence[Item]:
    if len(calls) == 1:  # as it came: jobs that are handed on as alike stay so
        return calls[0][1]
    return [item for _, items in calls for item in items]


def _fail(calls: Iterable[_Call[Any, Any]], error: Exception) -> None:
    for answer, _ in calls:
        if not answer.done():
            answer.set_exception(error._twin() if isinstance(error, AlkstoreError) else error)


def unanswered() -> DatabaseError:
    """Make the error of a write that the storage had in hand when the store was closed."""
    error = DatabaseError("store was closed before the storage answered; the write may have landed or not")
    error.outcome_unknown = True
    return error
