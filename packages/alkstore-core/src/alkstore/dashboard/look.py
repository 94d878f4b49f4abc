"""Looking at a storage: once for all viewers, at most every two seconds, and only while there is one.

State model. A *look* reads the counts of every queue, the heads and positions of every stream, the locks and the schedules.
While somebody *watches*, one task looks again and again; without anybody it ends. Whoever asks for a page gets the last
look if it is fresh, or waits for the one that is under way, or makes one: never do two run at once.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import nan
from typing import Final

from alkstore.clock import Clock
from alkstore.dashboard.history import History
from alkstore.dashboard.witness import Witness
from alkstore.engine import JobCounts, ListenerReporting, Topic, TopicKind, Watch
from alkstore.errors import AlkstoreError
from alkstore.names import PREFIX
from alkstore.observing import Destination
from alkstore.stop import StopToken
from alkstore.store import Store
from alkstore.values import LockInfo, Schedule

__all__ = [
    "AGE",
    "DEAD",
    "DELAYED",
    "DONE",
    "ENQUEUED",
    "FAILED",
    "HEAD",
    "LIVE",
    "PROCESSING",
    "READY",
    "Look",
    "Seen",
]

INTERVAL: Final = 2.0
"""Seconds between two looks at least."""

SHARE: Final = 10
"""A look is followed by nine times as long without one: on a slow storage the dashboard is slow, and nothing else is."""

PATIENCE: Final = 10.0
"""Seconds that a look may take."""

CHANNEL: Final = f"{PREFIX}dashboard"
"""A channel that nobody notifies."""

MOST: Final = 200
"""Queues, and streams, that are looked at: each costs a round trip."""

READY, DELAYED, PROCESSING, STALE, DEAD, AGE, LIVE, ENQUEUED, DONE, FAILED = range(10)
"""The numbers of a queue's track; ``LIVE`` is all but the dead, ``AGE`` in seconds."""

HEAD: Final = 0
"""The number of a stream's track, and the lag of a consumer's."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look saw. ``at`` is the clock's instant in seconds since 1970; ``left_out`` queues and streams were not read,
    of which ``unread`` are the queues.
    """

    at: float = 0.0
    queues: Mapping[Destination, JobCounts] = field(default_factory=dict)
    heads: Mapping[str, int] = field(default_factory=dict)
    offsets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    locks: Sequence[LockInfo] = ()
    schedules: Sequence[Schedule] = ()
    left_out: int = 0
    unread: frozenset[Destination] = frozenset()


class Look:
    """Looks at one store.

    Attributes:
        seen: What the last look that succeeded saw.
        error: Why the last look failed; None if it did not.
        queues: The history of every queue and outbox.
        streams: The history of every stream's head.
        lags: The history of every consumer's lag, by stream and consumer.
    """

    def __init__(
        self, store: Store, clock: Clock, witness: Witness | None, interval: float = INTERVAL
    ) -> None:
        """Prepare to look; nothing is read before somebody asks."""
        self.seen = Seen()
        self.error: str | None = None
        self.queues: History[Destination] = History(10, 2 * MOST)
        self.streams: History[str] = History(1, 2 * MOST)
        self.lags: History[tuple[str, str]] = History(1, 4 * MOST)
        self.ending = StopToken()
        self._store = store
        self._clock = clock
        self._witness = witness
        self._interval = interval
        self._turn = asyncio.Lock()
        self._fresh_until = 0.0
        self._forgotten = 0
        self._changed: asyncio.Future[None] | None = None
        self._viewers = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def now(self) -> float:
        """The present instant in seconds since 1970, by the clock that ages are told by."""
        return self._clock.now() / 1_000_000

    @property
    def is_looking(self) -> bool:
        """Whether it looks by itself, for a viewer."""
        return self._task is not None

    def forget(self) -> None:
        """Have the next one who asks look anew: something was changed."""
        self._fresh_until = 0.0
        self._forgotten += 1

    async def refresh(self) -> None:
        """Look, unless somebody did just now. Nothing is raised: `error` says what went wrong."""
        async with self._turn:
            time = asyncio.get_running_loop().time()
            if time < self._fresh_until:
                return
            forgotten = self._forgotten
            try:
                async with asyncio.timeout(PATIENCE):
                    self.seen = await self._read()
                self.error = None
                self._keep(self.seen)
            except TimeoutError:
                self.error = f"a look took longer than {PATIENCE:g} s"
            except AlkstoreError as error:
                self.error = str(error)
            took = asyncio.get_running_loop().time() - time
            # What was changed meanwhile it may not have seen.
            rest = max(self._interval, took * (SHARE - 1)) if forgotten == self._forgotten else 0.0
            self._fresh_until = time + took + rest
        self._tell()

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Look again and again while the block runs; `changed` waits for each look."""
        self._viewers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._go_on(), name="alkstore-dashboard")
        try:
            yield
        finally:
            self._viewers -= 1
            if not self._viewers and self._task is not None:
                task, self._task = self._task, None
                task.cancel()

    def changed(self) -> "asyncio.Future[None]":
        """Give what is done when the next look is; it must be awaited with `asyncio.wait`, for all viewers share it."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    @property
    def has_listener(self) -> bool:
        """Whether the engine has a connection that hears of other processes' commits, and tells of it."""
        engine = getattr(self._store, "_engine", None)
        return isinstance(getattr(engine, "_engine", engine), ListenerReporting)

    async def _go_on(self) -> None:
        hearing: Watch | None = None
        try:
            while True:
                hearing = hearing or await self._hear()
                await self.refresh()
                await self._rest()
        finally:
            if hearing is not None:
                hearing.close()

    async def _hear(self) -> Watch | None:
        """Wait for something that never comes: engines listen only while somebody waits, and then tell how that goes."""
        if self._witness is None or not self.has_listener:
            return None
        try:
            self._store._check("the dashboard", write=False)
            return await self._store._watch(Topic(TopicKind.CHANNEL, CHANNEL))
        except AlkstoreError:  # the look after it says so, and the next one tries again
            return None

    async def _rest(self) -> None:
        await asyncio.sleep(max(self._fresh_until - asyncio.get_running_loop().time(), 0.001))

    def _tell(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        self._changed = None

    async def _read(self) -> Seen:
        store = self._store
        store._check("the dashboard", write=False)
        engine = store._engine
        found = await engine.list_names()
        queues, streams = found.queues[:MOST], found.streams[:MOST]
        counts = {Destination.of_queue(name): await engine.count_jobs(name) for name in queues}
        offsets = {name: await engine.read_offsets(name) for name in streams}
        heads = {name: await engine.read_head(name) for name in streams}
        left_out = len(found.queues) + len(found.streams) - len(queues) - len(streams)
        unread = frozenset(map(Destination.of_queue, found.queues[MOST:]))
        locks, schedules = await store.locks(), await store.schedules()
        return Seen(self.now, counts, heads, offsets, locks, schedules, left_out, unread)

    def _keep(self, seen: Seen) -> None:
        at = seen.at
        for destination, counts in seen.queues.items():
            self.queues.add(destination, at, self._numbers(destination, counts))
        for destination in self.queues:  # a queue without jobs has no row, and so no name
            if destination in seen.unread:
                self.queues.forget(destination)
            elif destination not in seen.queues:
                self.queues.fade(destination, at, self._numbers(destination, NONE))
        for stream, head in seen.heads.items():
            self.streams.add(stream, at, (head,))
            for consumer, offset in seen.offsets[stream].items():
                self.lags.add((stream, consumer), at, (max(head - offset, 0),))

    def _numbers(self, destination: Destination, counts: JobCounts) -> tuple[float, ...]:
        states = counts.ready, counts.delayed, counts.processing, counts.stale, counts.dead
        age = nan if counts.oldest_ready_age is None else counts.oldest_ready_age / 1_000_000
        live = counts.ready + counts.delayed + counts.processing + counts.stale
        if self._witness is None:
            return (*states, age, live, nan, nan, nan)
        totals = self._witness.totals(destination)
        return (*states, age, live, totals.enqueued, totals.done, totals.failed)


NONE: Final = JobCounts(0, 0, 0, 0, 0, None)
"""The counts of a queue that has no jobs."""
