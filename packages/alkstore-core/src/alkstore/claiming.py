"""Waiting claims: one pump a queue claims for everybody who waits in this store.

A claim costs a round trip and, on engines with I/O, its outcome is unknown when it is cancelled. So no waiter ever
claims in its own task: a waiter leaves a *want*; the pump claims once for all wants and hands the jobs over in the order
in which the wants began. A job that nobody takes any more (its waiter was cancelled) is released, which gives its
attempt back.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Final, Protocol

from alkstore.engine import Engine, JobRecord, Release, Settle, Signal, Topic, TopicKind
from alkstore.errors import AlkstoreError, Closed
from alkstore.pausing import Pause

__all__ = ["ClaimPump", "Want"]

LOGGER: Final = logging.getLogger("alkstore")


class Settler(Protocol):
    """What takes settles: the engine, or the batcher before it."""

    async def settle_jobs(self, settles: Sequence[Settle]) -> Sequence[int | None]: ...


class Want:
    """What one caller waits for: up to ``count`` jobs, and whether to wait when there is none."""

    __slots__ = ("count", "future", "tried", "waits", "worker_id")

    def __init__(self, worker_id: str, count: int, *, waits: bool) -> None:
        self.worker_id = worker_id
        self.count = count
        self.waits = waits
        self.tried = False
        self.future: asyncio.Future[Sequence[JobRecord]] = asyncio.get_running_loop().create_future()

    def expire(self) -> None:
        """End it empty-handed, unless a job was handed over already."""
        if not self.future.done():
            self.future.set_result(())


class ClaimPump:
    """Claims for the wants of one queue; its task lives while there are wants."""

    def __init__(
        self,
        queue: str,
        engine: Engine,
        settler: Settler,
        poll_interval: float,
        start: Callable[[Coroutine[object, object, object]], None],
    ) -> None:
        self._queue = queue
        self._engine = engine
        self._settler = settler
        self._poll_interval = poll_interval
        self._start = start
        self._wants: deque[Want] = deque()
        self._pause = Pause()
        self._is_running = False
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits and no task runs, so that the pump may be forgotten."""
        return not self._is_running and not self._wants

    async def claim(self, want: Want) -> Sequence[JobRecord]:
        """Leave a want and wait for it: the jobs, or an empty sequence once it expired.

        Raises:
            Closed: The store was closed meanwhile.
            DatabaseError: The engine failed.
        """
        if self._is_closed:
            raise Closed("store")
        self._wants.append(want)
        self._run()
        try:
            return await want.future
        except asyncio.CancelledError:
            # The jobs were handed over, but the cancellation reached the task first: nobody will see them.
            if want.future.done() and not want.future.cancelled() and want.future.exception() is None:
                self._start(self._release(want.future.result()))
            raise

    def close(self) -> None:
        """End every want with `Closed`; what is claimed but not handed over is released."""
        self._is_closed = True
        self._fail(Closed("store"))
        self._pause.cut()

    def _run(self) -> None:
        self._pause.cut()
        if not self._is_running:
            self._is_running = True
            self._start(self._pump())

    async def _pump(self) -> None:
        try:
            # Listen first, then look: the other way round loses what is committed in between.
            watch = await self._engine.watch(Topic(TopicKind.QUEUE, self._queue))
            try:
                while (next_at := await self._round()) is not _DONE:
                    if self._has_untried():
                        continue
                    signal = await self._pause.wait(watch, until=next_at, timeout=self._poll_interval)
                    if signal is Signal.CLOSED:
                        self._fail(Closed("store"))
            finally:
                watch.close()
        except Exception as error:
            # Not only what engines may raise: a bug in one must reach whoever waits, not be tried again for ever.
            self._fail(error)
        finally:
            self._is_running = False
            if self._wants and not self._is_closed:
                self._run()

    async def _round(self) -> int | None:
        """Claim once for all; gives the instant to look again, None for no such instant, _DONE if nobody waits."""
        wants = self._live()
        if not wants:
            return _DONE
        for want in wants:
            want.tried = True
        claimed = await self._engine.claim_jobs(
            self._queue, [w.worker_id for w in wants for _ in range(w.count)]
        )
        await self._hand_over(wants, list(claimed.jobs))
        return claimed.next_at

    async def _hand_over(self, wants: Sequence[Want], jobs: list[JobRecord]) -> None:
        left: list[JobRecord] = []
        at = 0
        for want in wants:
            mine = jobs[at : at + want.count]
            at += want.count
            if not mine and want.waits:
                continue
            if want.future.done():
                left.extend(mine)
            else:
                want.future.set_result(mine)
        if left:
            await self._release(left)

    async def _release(self, jobs: Sequence[JobRecord]) -> None:
        try:
            await self._settler.settle_jobs([Release(job.queue, job.id, job.token or 0) for job in jobs])
        except AlkstoreError:
            LOGGER.warning(
                "could not give back %d claimed jobs of queue %r; they lapse", len(jobs), self._queue
            )

    def _live(self) -> list[Want]:
        self._wants = deque(want for want in self._wants if not want.future.done())
        return list(self._wants)

    def _has_untried(self) -> bool:
        return any(not want.tried and not want.future.done() for want in self._wants)

    def _fail(self, error: Exception) -> None:
        wants, self._wants = self._wants, deque()
        for want in wants:
            if not want.future.done():
                want.future.set_exception(error)


_DONE: Final = -(2**80)
"""No instant: nobody waits any more."""
