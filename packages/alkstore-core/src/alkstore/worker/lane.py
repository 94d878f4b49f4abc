"""One queue of a worker: claims what it has room for, and has its places run the handler.

A fixed number of long-lived tasks, the *places*, run the handlers: a task for each job would cost as much as the job. The
lane claims for all free places at once and keeps what it claimed in a line that the places take from. What a place has done
the lane acks, all that is done by then in one call, while the place goes on with what was claimed ahead; a claim is held,
renewed and counted until its outcome has landed. Every other outcome its place awaits.

A place whose handler left something in the context variables is not used again: another one, with a clean context, takes
its turn.
"""

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from alkstore.claiming import Want
from alkstore.engine import JobRecord
from alkstore.errors import Closed, DatabaseError, show
from alkstore.job import JobHandle
from alkstore.logs import queue_fields
from alkstore.queue import Queue
from alkstore.stop import StopToken
from alkstore.store import Store
from alkstore.threads import Threads
from alkstore.worker.handler import Selector
from alkstore.worker.keeping import Keeper
from alkstore.worker.outcome import Answer, Ending
from alkstore.worker.place import Place
from alkstore.worker.settling import FIRST_BACKOFF, LONGEST_BACKOFF, SETTLED, Settling

__all__ = ["Lane", "Setting"]

LOGGER: Final = logging.getLogger("alkstore.worker")
ACKED_AT_ONCE: Final = 1_000
"""Jobs: more in one call cost no less each, and the first of them would wait longer."""

REFILL: Final = 4
"""The part of what it may hold that a lane claims at least while it still has something to begin with: by less each job
would cost more in the engine, and by more the next ones would come too late."""

STUBBORN: Final = 1.0
"""Seconds that a handler which goes on after its cancellation is waited for at the end."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What the lanes of one run share.

    Attributes:
        store: Where the jobs are.
        stop: Ends the run.
        keeper: Renews what is claimed.
        settling: Gives the outcomes.
        threads: Where plain functions run.
        context: What handlers find in the context variables.
    """

    store: Store
    stop: StopToken
    keeper: Keeper
    settling: Settling
    threads: Threads
    context: contextvars.Context


class Lane:
    """Works one queue off."""

    def __init__(
        self, setting: Setting, queue: Queue, select: Selector, *, concurrency: int, prefetch: int
    ) -> None:
        self.select = select
        self.threads = setting.threads
        self._setting = setting
        self._store = setting.store
        self._queue = queue
        self._capacity = concurrency * prefetch
        self._ready: deque[JobHandle] = deque()
        self._held: dict[JobHandle, Place | None] = {}
        """What has begun, with its place while its handler runs, until its outcome has landed."""
        self._done: list[JobHandle] = []
        self._acking: asyncio.Task[None] | None = None
        self._lost: set[JobHandle] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._is_stopping = False
        self._tells_of_values = True
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._places: set[Place] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        for _ in range(concurrency):
            self._add_place()

    # ------------------------------------------------------------ claiming

    async def run(self) -> None:
        """Claim and work until cancelled, or until the store closes; what must not happen is raised."""
        feeding = asyncio.ensure_future(self._feed())
        try:
            await asyncio.wait((feeding, self._broken), return_when=asyncio.FIRST_COMPLETED)
            for ended in (self._broken, feeding):
                if ended.done():
                    ended.result()
        finally:
            feeding.cancel()
            await asyncio.wait((feeding,))

    async def drain(self) -> int:
        """Work off what is ready, and what becomes so meanwhile; give how many jobs that were.

        Raises:
            DatabaseError: The engine failed.
            Closed: The store was closed meanwhile.
        """
        count = 0
        while True:
            if self._broken.done():
                self._broken.result()
            room = self._room()
            jobs = await self._claim(room, waits=False) if room else ()
            count += len(jobs)
            self._take(jobs)
            if not jobs:
                if self.is_empty:
                    return count
                await self._change()

    async def _feed(self) -> None:
        backoff = FIRST_BACKOFF
        while True:
            room = self._room()
            if not room:
                await self._change()
                continue
            try:
                self._take(await self._claim(room, waits=True))
            except Closed:
                return
            except DatabaseError as error:
                LOGGER.warning(
                    "queue %r: %s; trying again in %.1f s",
                    self._queue.name,
                    error,
                    backoff,
                    extra=queue_fields(self._queue.name),
                )
            else:
                backoff = FIRST_BACKOFF
                continue
            await self._store._rest(backoff * self._store._random.uniform(0.5, 1.0), self._setting.stop)
            backoff = min(backoff * 2, LONGEST_BACKOFF)

    async def _claim(self, count: int, *, waits: bool) -> Sequence[JobRecord]:
        store = self._store
        return await store._pump(self._queue.name).claim(Want(store._worker_id, count, waits=waits))

    def _take(self, jobs: Sequence[JobRecord]) -> None:
        if not jobs:
            return
        handles = [JobHandle(self._store, record) for record in jobs]
        self._setting.keeper.keep(handles, self)
        self._ready.extend(handles)
        for _ in range(min(len(jobs), len(self._idle))):
            _wake(self._idle.pop())

    def _room(self) -> int:
        """Give how many to claim; none while there is enough to begin with and the round trip would bring little."""
        room = self._capacity - len(self._ready) - len(self._held)
        return room if not self._ready or room * REFILL >= self._capacity else 0

    @property
    def is_empty(self) -> bool:
        """Whether no claim is held."""
        return not self._ready and not self._held and not self._leaving

    async def _change(self) -> None:
        """Wait until a claim is held no more."""
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(change)
        await change

    def _changed(self) -> None:
        if self._waiting:
            _wake_all(self._waiting)

    # ------------------------------------------------------------ places

    def _add_place(self) -> None:
        place = Place(self, self._setting.context.copy())
        self._places.add(place)
        place.task.add_done_callback(lambda task: self._ended(place, task))

    def _ended(self, place: Place, task: asyncio.Task[None]) -> None:
        self._places.discard(place)
        if not task.cancelled() and task.exception() is not None:
            for handle in [each for each, at in self._held.items() if at is place]:
                self._conclude_apart(handle, Ending.GIVEN_BACK)
        self._break(task)

    def _break(self, task: asyncio.Task[None]) -> None:
        """End the run by the error of a task that has ended, if any."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._broken.done():
            self._broken.set_exception(error)
            self._broken.exception()  # nobody may be left to look at it
            self._changed()

    def replace(self, place: Place) -> None:
        """Put another place, with clean context variables, where this one ends."""
        self._add_place()

    async def next_job(self, place: Place) -> JobHandle | None:
        """Wait for a job; None once there is no more to come."""
        if self._ready:
            await asyncio.sleep(0)  # or handlers that wait for nothing would keep the loop to themselves
        while not self._ready:
            if self._is_stopping:  # then nothing is ready any more either
                return None
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(turn)
            await turn
        handle = self._ready.popleft()
        self._held[handle] = place
        return handle

    def finish(self, handle: JobHandle) -> None:
        """Have a job acked that its handler has done."""
        handle._consumed = SETTLED
        self._held[handle] = None
        self._done.append(handle)
        if self._acking is None:
            # In a clean context: what this handler left in its own is not the others'.
            context = self._setting.context.copy()
            self._acking = asyncio.get_running_loop().create_task(self._ack(), context=context)
            self._acking.add_done_callback(self._acking_ended)

    async def _ack(self) -> None:
        """Ack what is done, and what becomes so meanwhile."""
        try:
            while self._done:
                done = self._done[:ACKED_AT_ONCE]
                del self._done[:ACKED_AT_ONCE]
                await self._ack_these(done)
        finally:
            self._acking = None  # and not in a callback: what is done before that runs would wait for ever

    async def _ack_these(self, done: Sequence[JobHandle]) -> None:
        try:
            is_known = await self._setting.settling.ack(done)
        except BaseException:
            self._let_go([*done, *self._done])
            self._done.clear()
            raise
        if is_known:
            self._let_go(done)
            return
        for handle in done:  # one of them may be at fault: each by itself, as often as it takes
            self._conclude_apart(handle, Ending.DONE)

    def _acking_ended(self, task: asyncio.Task[None]) -> None:
        if self._acking is task:  # cancelled before it began
            self._acking = None
            self._let_go(self._done)
            self._done.clear()
        self._break(task)

    def _let_go(self, handles: Sequence[JobHandle]) -> None:
        drop = self._setting.keeper.drop
        for handle in handles:
            self._held.pop(handle, None)
            self._lost.discard(handle)
            drop(handle)
        self._changed()

    async def conclude(self, handle: JobHandle, answer: Answer) -> None:
        """Give a job its outcome, and its room to another one."""
        try:
            await self._setting.settling.settle(handle, answer, lambda: handle in self._lost)
        finally:
            self._let_go((handle,))

    def _conclude_apart(self, handle: JobHandle, answer: Answer) -> None:
        leaving = asyncio.ensure_future(self.conclude(handle, answer))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._left)

    def lose(self, handle: JobHandle) -> None:
        """Hear that a claim has ended under us."""
        if handle in self._held:
            self._lost.add(handle)
            if (place := self._held[handle]) is not None:
                place.interrupt(Ending.LOST)
        elif handle in self._ready:
            self._ready.remove(handle)
            self._setting.settling.lose(handle)
            self._changed()

    def note_value(self, value: object) -> None:
        """Hear of a returned value that means nothing: told once, for it may come with every job."""
        if self._tells_of_values:
            self._tells_of_values = False
            LOGGER.warning(
                "queue %r: the handler returned %s, which means nothing: a job is done unless its handler raises, or "
                "returns Retry or Fail (this is told once)",
                self._queue.name,
                show(value),
                extra=queue_fields(self._queue.name),
            )

    # ------------------------------------------------------------ the end

    def stop(self) -> None:
        """Give back what no handler has begun with, and let the places end; nobody may be claiming any more."""
        self._is_stopping = True
        _wake_all(self._idle)
        for handle in self._ready:
            self._conclude_apart(handle, Ending.GIVEN_BACK)
        self._ready.clear()

    def _left(self, leaving: asyncio.Task[None]) -> None:
        self._leaving.discard(leaving)
        self._break(leaving)
        self._changed()

    def interrupt(self) -> None:
        """Cancel what runs; each of the jobs is given back."""
        for place in list(self._held.values()):
            if place is not None:
                place.interrupt(Ending.GIVEN_BACK)

    async def empty(self) -> None:
        """Wait until no claim is held."""
        while not self.is_empty:
            await self._change()

    async def close(self) -> None:
        """End the places, whatever they wait for: what they still hold lapses."""
        tasks = [*(place.task for place in self._places), *self._leaving]
        if self._acking is not None:
            tasks.append(self._acking)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STUBBORN)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _wake_all(waiting: list[asyncio.Future[None]]) -> None:
    for each in waiting:
        _wake(each)
    waiting.clear()
