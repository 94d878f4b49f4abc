"""The scheduler: who leads fires what is due.

State model. A runner *leads* while its lease on the lock `SCHEDULER_LOCK` is live; the lease lasts `LEASE`, belongs to
one runner (its fence) and is renewed before every tick and at least every `RENEWAL` while the runner sleeps. A *tick* is
one pass over the schedules: each due one enqueues its jobs and moves to its next boundary in one atomic step with the
check of the lease, so a runner that was paused between renewal and fire fires nothing. The runner sleeps until the next
boundary, the next renewal, a change of any schedule, or its stop.

Only the working loop renews: a runner whose ticks do not get through lets the lease go, and a standby takes over. A
database error is met with back-off while the lease lives, and is the cause of `LeadershipLost` once it does not.
"""

import logging
from typing import TYPE_CHECKING, Final

from alkstore.engine import Signal, Topic, TopicKind, Watch
from alkstore.errors import Closed, DatabaseError, LeadershipLost
from alkstore.lock import take
from alkstore.names import SCHEDULER_LOCK
from alkstore.numbers import shift
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
    fence = await _lead(store)
    if fence is None:
        raise LeadershipLost(
            "another runner holds the scheduler's lease; run supervise_schedules to stand by"
        )
    await _run_leading(store, fence, stop)


async def supervise(store: "Store", stop: StopToken) -> None:
    """Stand by, lead, and stand by again after a loss, until ``stop`` or the store's close. Rows: SCHED-13."""
    pause = Pause()
    backoff = FIRST_BACKOFF
    while not stop.is_cancelled:
        try:
            async with store._watching(Topic(TopicKind.LOCK, SCHEDULER_LOCK)) as watch:
                taken = await take(store, SCHEDULER_LOCK, LEASE)
                if taken.fence is None:
                    until, limit = taken.expires_at, store._poll_interval
                    if await pause.wait(watch, until=until, timeout=limit, stop=stop) is Signal.CLOSED:
                        return
                    continue
            backoff = FIRST_BACKOFF
            await _run_leading(store, taken.fence, stop)
            return
        except Closed:
            return
        except (LeadershipLost, DatabaseError) as error:
            LOGGER.warning("scheduler: %s; standing by", error)
            await _rest(backoff * store._random.uniform(0.5, 1.0), stop, store)
            backoff = min(backoff * 2, LONGEST_BACKOFF)


async def _lead(store: "Store") -> int | None:
    return (await take(store, SCHEDULER_LOCK, LEASE)).fence


async def _run_leading(store: "Store", fence: int, stop: StopToken) -> None:
    with store._running():
        runner = _Runner(store, fence, stop)
        try:
            await runner.run()
        except Closed:
            return
        finally:
            # The next runner need not wait for the lapse; a lost lease is not freed by this.
            await store._quietly(store._engine.renew_lock(SCHEDULER_LOCK, fence, 0))


async def _rest(seconds: float, stop: StopToken, store: "Store") -> None:
    async with store._watching(Topic(TopicKind.CLOCK)) as watch:
        await Pause().wait(watch, timeout=seconds, stop=stop)


class _Runner:
    """One leadership, from its fence to its end."""

    def __init__(self, store: "Store", fence: int, stop: StopToken) -> None:
        self._store = store
        self._engine = store._engine
        self._fence = fence
        self._stop = stop
        self._pause = Pause()
        self._lease_end: int | None = None

    async def run(self) -> None:
        async with self._store._watching(Topic(TopicKind.SCHEDULE)) as watch:
            backoff = FIRST_BACKOFF
            while not self._stop.is_cancelled:
                try:
                    until: int | None = await self._tick()
                    limit = None
                    backoff = FIRST_BACKOFF
                except DatabaseError as error:
                    await self._check_lease(watch, error)
                    until, limit, backoff = self._lease_end, backoff, min(backoff * 2, LONGEST_BACKOFF)
                if (
                    await self._pause.wait(watch, until=until, timeout=limit, stop=self._stop)
                    is Signal.CLOSED
                ):
                    return

    async def _tick(self) -> int:
        """Renew, fire, and give the instant to do it again."""
        end = await self._engine.renew_lock(SCHEDULER_LOCK, self._fence, LEASE)
        if end is None:
            raise LeadershipLost("the scheduler's lease lapsed or was taken; nothing was fired")
        self._lease_end = end
        fired = await self._engine.fire_schedules((SCHEDULER_LOCK, self._fence))
        if not fired.led:
            raise LeadershipLost("the scheduler's lease was lost between renewal and fire; nothing was fired")
        renewal = shift(end, RENEWAL - LEASE)
        return renewal if fired.next_at is None else min(renewal, fired.next_at)

    async def _check_lease(self, watch: Watch, error: DatabaseError) -> None:
        LOGGER.warning("scheduler: %s; trying again", error)
        if self._lease_end is None:
            return
        if await self._pause.wait(watch, until=self._lease_end, timeout=0) is Signal.DUE:
            raise LeadershipLost("the scheduler's lease could not be renewed in time") from error
