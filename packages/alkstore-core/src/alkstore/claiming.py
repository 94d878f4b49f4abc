"""Waiting claims: one pump a queue claims for everybody who waits in this store.

A claim costs a round trip and, on engines with I/O, its outcome is unknown when it is cancelled. So no waiter ever
claims in its own task: a waiter leaves a *want*; the pump claims once for all wants and hands the jobs over in the order
in which the wants began. A job that nobody takes any more (its waiter was cancelled) is released, which gives its
attempt back.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import islice, takewhile
from typing import Final, Protocol

from alkstore.engine import Engine, JobRecord, Release, Settle, Signal, Topic, TopicKind, Watch
from alkstore.errors import AlkstoreError, Closed
from alkstore.logs import queue_fields
from alkstore.pausing import Pause

__all__ = ["ClaimPump", "Settler", "Want"]

LOGGER: Final = logging.getLogger("alkstore")
WANTS_A_ROUND: Final = 1_000
"""How many waiters one claim is made for, so that a crowd of them does not make every claim long."""

MANY: Final = 50
"""Jobs for which who asks for what is there now gets a claim of his own. Two who share a long one begin and end their work
together: while they work the storage idles, and while it claims or acks for them they do."""


class Settler(Protocol):
    """What takes settles: the engine, or the batcher before it."""

    def settle_jobs(self, settles: Sequence[Settle]) -> Awaitable[Sequence[int | None]]: ...


class Want:
    """What one caller waits for: up to ``count`` jobs, and whether to wait when there is none."""

    __slots__ = ("count", "future", "waits", "worker_id")

    def __init__(self, worker_id: str, count: int, *, waits: bool) -> None:
        self.worker_id = worker_id
        self.count = count
        self.waits = waits
        self.future: asyncio.Future[Sequence[JobRecord]] = asyncio.get_running_loop().create_future()

    @property
    def is_long(self) -> bool:
        """Whether it is claimed for by itself. Who waits shares: a commit costs one claim, however many wait (Q-21)."""
        return self.count >= MANY and not self.waits

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
        poll_after: Callable[[], float],
        start: Callable[[Coroutine[object, object, object]], None],
        forget: Callable[[str], object],
    ) -> None:
        self._queue = queue
        self._engine = engine
        self._settler = settler
        self._poll_after = poll_after
        self._start = start
        self._forget = forget
        self._wants: dict[Want, None] = {}
        self._has_news = False
        self._impatient: list[Want] = []
        self._pause = Pause()
        self._is_running = False
        self._is_closed = False

    async def claim(self, want: Want) -> Sequence[JobRecord]:
        """Leave a want and wait for it: the jobs, or an empty sequence once it expired.

        Raises:
            Closed: The store was closed meanwhile.
            DatabaseError: The engine failed.
        """
        if self._is_closed:
            raise Closed("store")
        self._wants[want] = None
        if not want.waits:
            self._impatient.append(want)
        self._has_news = True
        self._run()
        try:
            return await want.future
        except asyncio.CancelledError:
            # The jobs were handed over, but the cancellation reached the task first: nobody will see them.
            handed = want.future
            if handed.done() and not handed.cancelled() and handed.exception() is None and handed.result():
                self._start(self._release(handed.result()))
            raise
        finally:
            self._wants.pop(want, None)
            if not self._wants:
                self._pause.cut()  # the pump has nobody left to wait for

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
        watch: Watch | None = None
        try:
            while wants := self._first():
                if watch is None and any(want.waits for want in wants):
                    # Listen first, then look: the other way round loses what is committed in between.
                    watch = await self._engine.watch(Topic(TopicKind.QUEUE, self._queue))
                    wants = self._first()
                next_at = await self._round(wants)
                if not self._engine.traits.batches and wants and wants[0].future.done():
                    # Who got a job goes on before this tidies up after him, and may want the next one. With I/O that is no matter.
                    await asyncio.sleep(0)
                if self._has_news or watch is None or not self._first():
                    continue
                signal = await self._pause.wait(watch, until=next_at, timeout=self._poll_after())
                if signal is Signal.CLOSED:
                    self._fail(Closed("store"))
        except Exception as error:
            # Not only what engines may raise: a bug in one must reach whoever waits, not be tried again for ever.
            self._fail(error)
        except BaseException:
            # Cancelled, by the loop's end or the store's close: nobody may wait for ever, and no other pump begin.
            self._fail(Closed("store"))
            raise
        finally:
            if watch is not None:
                watch.close()
            self._is_running = False
            if self._first() and not self._is_closed:
                self._run()
            else:
                self._forget(self._queue)

    async def _round(self, wants: Sequence[Want]) -> int | None:
        """Claim once for those who began first; gives the instant at which it is worth looking again, if any."""
        self._has_news = False
        impatient, self._impatient = self._impatient, []
        if not wants:  # they were cancelled while the watch was opened
            return None
        worker_ids = [want.worker_id for want in wants for _ in range(want.count)]
        claimed = await self._engine.claim_jobs(self._queue, worker_ids)
        await self._hand_over(wants, list(claimed.jobs))
        if len(claimed.jobs) == len(worker_ids):
            self._has_news = True  # there may be more, for those further behind
            self._impatient += [want for want in impatient if not want.future.done()]
        else:
            # Not those who came meanwhile: what was committed before they asked may be too new for this claim.
            for want in impatient:
                want.expire()
        return claimed.next_at

    def _first(self) -> list[Want]:
        """Give those for whom the next claim is made: who began first, and who may share it with him."""
        if len(self._wants) == 1:
            (only,) = self._wants
            return [] if only.future.done() else [only]
        open_wants = list(islice((want for want in self._wants if not want.future.done()), WANTS_A_ROUND))
        if open_wants and open_wants[0].is_long:
            return open_wants[:1]
        return list(takewhile(lambda want: not want.is_long, open_wants))

    async def _hand_over(self, wants: Sequence[Want], jobs: list[JobRecord]) -> None:
        left: list[JobRecord] = []
        at = 0
        for want in wants:
            mine = jobs[at : at + want.count]
            at += want.count
            if not mine:
                break
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
                "could not give back %d claimed jobs of queue %r; they lapse",
                len(jobs),
                self._queue,
                extra=queue_fields(self._queue),
            )

    def _fail(self, error: Exception) -> None:
        for want in list(self._wants):
            if not want.future.done():
                want.future.set_exception(error._twin() if isinstance(error, AlkstoreError) else error)
