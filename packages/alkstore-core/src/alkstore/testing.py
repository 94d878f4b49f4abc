"""What tests of applications need: a clock that moves only when told, a seeded random source, and a look into a queue."""

import asyncio
import contextvars
import datetime as dt
import itertools
import random
from collections.abc import Callable
from typing import Final

import msgspec

from alkstore import payload as payloads
from alkstore.clock import Timer
from alkstore.engine import JobState
from alkstore.errors import CodecError, InvalidArgument, show
from alkstore.numbers import duration, instant, shift, to_datetime
from alkstore.queue import Queue
from alkstore.values import Job

__all__ = ["ManualClock", "assert_enqueued", "seeded"]

START: Final = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
"""Where a clock stands when nothing is said."""

QUIET_TURNS: Final = 20
"""Turns of the loop without a look at the clock after which nobody is on the way to it any more."""

MOST_TURNS: Final = 100_000
"""Turns after which a task that looks at the clock again and again is an error and no longer a wait."""


def seeded(seed: int = 0) -> random.Random:
    """Give a random source whose draws are the same in every run."""
    return random.Random(seed)


class _Any:
    def __repr__(self) -> str:
        return "any payload"


ANY: Final = _Any()
"""Stands for whatever payload there is; None is one."""

SHOWN: Final = 10
"""Payloads that a message names at most."""

PAGE: Final = 1_000


async def assert_enqueued(queue: Queue, payload: object = ANY) -> Job:
    """Make sure that a job waits in a queue: ready, delayed, or to be tried again.

    Args:
        queue: Where to look.
        payload: What the job holds, a tuple standing for a list as in `Queue.enqueue`; or a function of the payload that
            says whether it is the one; any job by default.

    Returns:
        The first of those that fit, in the order of ids; nothing is claimed or changed.

    Raises:
        AssertionError: There is none; it names the payloads that do wait there.
        CodecError: ``payload`` is not a JSON value.
        InvalidArgument: ``queue`` is no `Queue`.

    Cost: a read of every job that waits there, by pages.
    """
    if not isinstance(queue, Queue):
        raise InvalidArgument(f"queue must be a Queue, as store.queue(name) gives it, got {show(queue)}")
    fits = _fitting(payload)
    others: list[str] = []
    after, count = 0, 0
    while jobs := await queue.list(state=JobState.PENDING, after=after, limit=PAGE):
        for job in jobs:
            found = _read(job)
            if not isinstance(found, CodecError) and fits(found):
                return job
            if len(others) < SHOWN:
                others.append(show(found))
        after, count = jobs[-1].id, count + len(jobs)
    there = f"what waits there is {', '.join(others)}" if others else "nothing waits there"
    more = f", and {count - SHOWN} more" if count > SHOWN else ""
    wanted = (
        "job" if payload is ANY else f"job with {'such a payload' if callable(payload) else show(payload)}"
    )
    raise AssertionError(f"no {wanted} waits in queue {queue.name!r}; {there}{more}")


def _fitting(payload: object) -> Callable[[object], object]:
    if payload is ANY:
        return lambda _: True
    if callable(payload):
        return payload
    wanted = _sorted(payloads.decode(payloads.encode(payload)))
    return lambda found: _sorted(found) == wanted


def _sorted(value: object) -> bytes:
    # Python holds True equal to 1, which a handler's types do not; the order of keys means nothing.
    return msgspec.json.encode(value, order="sorted")


def _read(job: Job) -> object:
    try:
        return job.payload
    except CodecError as error:
        return error


class ManualClock:
    """A clock that stands still until it is moved; hand it to a store as ``clock=``.

    Moving it is one jump: first the time is the new one, then whoever waits for an instant up to it is called back
    once, in the order of instants. One clock may serve several stores, in one event loop at a time.

    Args:
        start: An aware datetime, 2026-01-01T00:00Z by default.

    Raises:
        InvalidArgument: ``start`` is no aware datetime.

    Rows: CLK-01, CLK-02, CLK-03.
    """

    def __init__(self, start: dt.datetime | None = None) -> None:
        self._now = instant(START if start is None else start, "start")
        self._waiting: dict[int, _ManualTimer] = {}
        self._numbers = itertools.count()
        self._looks = 0

    @property
    def datetime(self) -> dt.datetime:
        """The present instant as an aware UTC datetime."""
        return to_datetime(self._now)

    def now(self) -> int:
        """Give the present instant in microseconds since 1970."""
        self._looks += 1
        return self._now

    def call_at(self, instant: int, callback: Callable[[], object]) -> Timer:
        """Call back once, in the running event loop, when ``now() >= instant``; never within this call."""
        self._looks += 1
        timer = _ManualTimer(self._waiting, next(self._numbers), instant, callback)
        if instant <= self._now:
            timer.fire()
        else:
            self._waiting[timer.number] = timer
        return timer

    async def advance(self, by: float | dt.timedelta) -> None:
        """Move by seconds or a timedelta, backwards too, and return when everything due has run.

        Raises:
            InvalidArgument: ``by`` is no finite duration.
            RuntimeError: As `settle`.
        """
        await self._move(shift(self._now, duration(by, "by")))

    async def set(self, to: dt.datetime) -> None:
        """Move to an instant, backwards too, and return when everything due has run.

        Raises:
            InvalidArgument: ``to`` is no aware datetime.
            RuntimeError: As `settle`.
        """
        await self._move(instant(to, "to"))

    async def settle(self) -> None:
        """Let the event loop turn until nobody has looked at this clock for 20 turns; time stands still.

        What waits for I/O or for a thread is not waited for.

        Raises:
            RuntimeError: Somebody still looks at it after 100,000 turns.
        """
        quiet = 0
        for _ in range(MOST_TURNS):
            looks = self._looks
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._looks == looks else 0
            if quiet >= QUIET_TURNS:
                return
        raise RuntimeError(
            f"manual clock did not come to rest in {MOST_TURNS} turns of the loop at {self.datetime.isoformat()}; "
            "some task looks at it without waiting for a later instant"
        )

    async def _move(self, to: int) -> None:
        self._now = to
        due = sorted(
            (timer for timer in self._waiting.values() if timer.instant <= to),
            key=lambda timer: (timer.instant, timer.number),
        )
        for timer in due:
            timer.fire()
        await self.settle()


class _ManualTimer:
    """A callback that waits in its clock, or, fired, in its loop."""

    __slots__ = ("_callback", "_context", "_handle", "_loop", "_waiting", "instant", "number")

    def __init__(
        self,
        waiting: "dict[int, _ManualTimer]",
        number: int,
        instant: int,
        callback: Callable[[], object],
    ) -> None:
        self.instant = instant
        self.number = number
        self._waiting = waiting
        self._callback = callback
        self._context = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle | None = None

    def fire(self) -> None:
        self._waiting.pop(self.number, None)
        # A loop that was closed with timers in it belongs to an earlier test that shared the clock.
        if not self._loop.is_closed():
            self._handle = self._loop.call_soon(self._callback, context=self._context)

    def cancel(self) -> None:
        self._waiting.pop(self.number, None)
        if self._handle is not None:
            self._handle.cancel()
