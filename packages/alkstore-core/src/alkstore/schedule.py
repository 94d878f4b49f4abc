"""The scheduler: who leads fires what is due.

State model. A runner *leads* while its lease on the lock `SCHEDULER_LOCK` is live; the lease lasts `LEASE`, belongs to
one runner (its fence) and is renewed before every tick and at least every `RENEWAL` while the runner sleeps. A *tick* is
one pass over the schedules: each due one enqueues its jobs and moves to its next boundary in one atomic step with the
check of the lease, so a runner that was paused between renewal and fire fires nothing. The runner sleeps until the next
boundary, the next renewal, a change of any schedule, or its stop.

Only the working loop renews: a runner whose ticks do not get through lets the lease go, and a standby takes over. A
database error is met with back-off while the lease lives, and is the cause of `LeadershipLost` once it does not.
"""

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from alkstore.engine import Signal, Taken, Topic, TopicKind, Watch
from alkstore.errors import Closed, DatabaseError, LeadershipLost
from alkstore.lock import take
from alkstore.names import SCHEDULER_LOCK
from alkstore.numbers import MAX_INSTANT, shift
from alkstore.pausing import Pause
from alkstore.stop import StopToken

if TYPE_CHECKING:
    from alkstore.store import Store

__all__ = ["run", "supervise"]

LOGGER: Final = logging.getLogger("alkstore")
LEASE: Final = 10_000_000
"""Microseconds that a runner leads without renewing (SCHED-09)."""
RENEWAL: Final = 2_000_000
"""Microseconds between renewals while it sleeps (SCHED-09)."""
FIRST_BACKOFF: Final = 0.1
LONGEST_BACKOFF: Final = 2.0
"""Seconds on the event loop's clock between tries while the database is away."""


async def run(store: "Store", stop: StopToken) -> None:
    """Lead until ``stop`` or the store's close; `LeadershipLost` when refused or deposed. Rows: SCHED-09 to SCHED-15."""
    if stop.is_cancelled:
        return
    with suppress(Closed), store._inside:
        taken = await take(store, SCHEDULER_LOCK, LEASE)
        if taken.fence is None:
            raise LeadershipLost(
                "another runner holds the scheduler's lease; run supervise_schedules to stand by"
            )
        await _run_leading(store, taken.fence, taken.expires_at, stop)


async def supervise(store: "Store", stop: StopToken) -> None:
    """Stand by, lead, and stand by again after a loss, until ``stop`` or the store's close. Rows: SCHED-13."""
    backoff = FIRST_BACKOFF
    with suppress(Closed), store._inside:
        while not stop.is_cancelled:
            try:
                taken = await _stand_by(store, stop)
                if taken.fence is not None:
                    backoff = FIRST_BACKOFF
                    await _run_leading(store, taken.fence, taken.expires_at, stop)
                    return
            except (LeadershipLost, DatabaseError) as error:
                LOGGER.warning("scheduler: %s; standing by", error)
            else:
                continue
            # Out of the handler: what this raises is not to carry the error that was dealt with.
            await store._rest(backoff * store._random.uniform(0.5, 1.0), stop)
            backoff = min(backoff * 2, LONGEST_BACKOFF)


async def _stand_by(store: "Store", stop: StopToken) -> Taken:
    """Take the lease, or wait until it is worth trying again."""
    async with store._watching(Topic(TopicKind.LOCK, SCHEDULER_LOCK)) as watch:
        taken = await take(store, SCHEDULER_LOCK, LEASE)
        if taken.fence is None:
            until, limit = taken.expires_at, store._poll_after()
            if await Pause().wait(watch, until=until, timeout=limit, stop=stop) is Signal.CLOSED:
                raise Closed("store")
        return taken


async def _run_leading(store: "Store", fence: int, lease_end: int, stop: StopToken) -> None:
    try:
        await _Runner(store, fence, lease_end, stop).run()
    finally:
        # The next runner need not wait for the lapse; a lost lease is not freed by this.
        await store._quietly(store._engine.renew_lock(SCHEDULER_LOCK, fence, 0))


class _Runner:
    """One leadership, from its fence to its end."""

    def __init__(self, store: "Store", fence: int, lease_end: int, stop: StopToken) -> None:
        self._store = store
        self._engine = store._engine
        self._fence = fence
        self._stop = stop
        self._pause = Pause()
        self._lease_end = lease_end
        self._began = asyncio.get_running_loop().time()
        self._backoff = FIRST_BACKOFF
        self._is_stuck = False
        self._error: DatabaseError | None = None

    async def run(self) -> None:
        while not self._stop.is_cancelled:
            try:
                async with self._store._watching(Topic(TopicKind.SCHEDULE)) as watch:
                    await self._work(watch)
                return
            except DatabaseError as error:  # nothing can be heard: the watch could not be had, or it died
                LOGGER.warning("scheduler: %s; trying again", error)
                # Without a watch the engine's time cannot be waited for, so the loop's decides.
                if (asyncio.get_running_loop().time() - self._began) * 1_000_000 >= LEASE:
                    raise LeadershipLost("the scheduler's lease could not be renewed in time") from error
            await self._store._rest(self._next_backoff(), self._stop)

    async def _work(self, watch: Watch) -> None:
        while not self._stop.is_cancelled:
            try:
                # What was changed without a wake is seen by polling; every tick renews, so polls renew as well.
                until, limit = await self._tick(), self._store._poll_after()
            except DatabaseError as error:
                self._error = error
                await self._check_lease(watch, error)
                until, limit = self._lease_end, self._next_backoff()
            signal = await self._pause.wait(watch, until=until, timeout=limit, stop=self._stop)
            if signal is Signal.CLOSED:
                return

    def _next_backoff(self) -> float:
        backoff = self._backoff
        self._backoff = min(backoff * 2, LONGEST_BACKOFF)
        return backoff

    async def _tick(self) -> int:
        """Renew, fire, and give the instant to do it again."""
        if not self._is_stuck:  # who cannot fire must not keep the lease from one who can
            await self._renew()
        self._is_stuck = True
        fired = await self._engine.fire_schedules((SCHEDULER_LOCK, self._fence))
        if not fired.led:
            raise self._lost("the scheduler's lease was lost between renewal and fire; nothing was fired")
        self._is_stuck, self._error = False, None
        self._backoff = FIRST_BACKOFF
        end = self._lease_end
        # An end at the last instant of the calendar was clamped: a renewal counted back from it would be due for ever.
        renewal = end if end >= MAX_INSTANT else shift(end, RENEWAL - LEASE)
        return renewal if fired.next_at is None else min(renewal, fired.next_at)

    async def _renew(self) -> None:
        began = asyncio.get_running_loop().time()
        end = await self._engine.renew_lock(SCHEDULER_LOCK, self._fence, LEASE)
        if end is None:
            raise self._lost("the scheduler's lease lapsed or was taken; nothing was fired")
        self._lease_end, self._began = end, began

    def _lost(self, text: str) -> LeadershipLost:
        lost = LeadershipLost(text)
        lost.__cause__ = self._error  # the storage was away before: that is why it lapsed
        return lost

    async def _check_lease(self, watch: Watch, error: DatabaseError) -> None:
        LOGGER.warning("scheduler: %s; trying again", error)
        if await self._pause.wait(watch, until=self._lease_end, timeout=0) is Signal.DUE:
            raise LeadershipLost("the scheduler's lease could not be renewed in time") from error
