"""Keeping a claim or a lock alive while a block runs, and cancelling the block once when it is lost.

The worker, a task of its own, sleeps until a third of the window has passed, renews, and sleeps again. The window is
measured in the engine's time, since that is what the lease ends by; back-off between failed attempts runs on the loop's.
A lease is lost when a renewal answers so, or when its end came and none succeeded before: a renewal that hangs is not
waited for beyond that.

How the block learns of it is what `asyncio.timeout` does: the worker cancels the block's task, and leaving the block takes
that one cancellation back and raises the loss in its place. The block's own exception, and a cancellation that came from
outside as well, are left as they are.

A block that never lets the loop run (a long computation) cannot be cancelled, and the worker has not run either. So a
clean exit looks whether the end has passed, on the loop's clock and on the engine's, which costs no round trip; only if
one of them says so is the engine asked, by one more renewal, whose answer is the truth.
"""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Protocol

from alkstore import numbers
from alkstore.engine import Signal, Topic, TopicKind, Watch
from alkstore.errors import AlkstoreError, Closed, DatabaseError, InvalidArgument
from alkstore.pausing import Pause

__all__ = ["Renewal", "Surroundings"]

FIRST_BACK_OFF: Final = 0.05
"""Seconds before the second attempt of a renewal that failed; it doubles from there."""

LONGEST_BACK_OFF: Final = 1.0
"""Seconds: often enough within any window that outlives a short failure of the storage."""

SECOND: Final = 1_000_000


class Surroundings(Protocol):
    """What a renewal needs of its store."""

    @property
    def _random(self) -> random.Random: ...

    async def _watch(self, topic: Topic) -> Watch: ...


class Renewal:
    """``async with Renewal(…):`` renews while the block runs; leaving it raises what ``lost`` makes if it was lost.

    ``renew`` moves the end a whole window from now and gives it, or None for a loss. ``is_over`` says that the block
    itself ended what is renewed (it acked the job, released the lock): then nothing is renewed and nothing can be lost.
    If the store closes, renewing stops and the lease is left to lapse. Rows: Q-14, LOCK-06, CLK-02.
    """

    def __init__(
        self,
        store: Surroundings,
        *,
        renew: Callable[[], Awaitable[int | None]],
        end: Callable[[], int],
        window: int,
        lost: Callable[[], AlkstoreError],
        is_over: Callable[[], bool] = lambda: False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare.

        Args:
            store: Where to hear of time, and the source of jitter.
            renew: One attempt; a `DatabaseError` is tried again, `Closed` ends the renewing.
            end: The instant at which the lease ends unless it is renewed; the block may renew by itself as well.
            window: Microseconds from a renewal to the end that it gives.
            lost: Makes the error that leaving the block raises.
            is_over: Asked before each attempt, and when an attempt found a loss.
            check: Raises what forbids to begin.
        """
        self._store = store
        self._renew = renew
        self._end = end
        self._window = window
        self._check = check
        self._lost = lost
        self._is_over = is_over
        self._began = 0.0
        self._error: Exception | None = None
        self._is_lost = False
        self._is_deaf = False
        self._is_abandoned = False
        self._has_cancelled = False
        self._watch: Watch | None = None
        self._worker: asyncio.Task[None] | None = None
        self._pause = Pause()
        self._is_keeping = False

    async def __aenter__(self) -> None:
        body = asyncio.current_task()
        if body is None or self._worker is not None:
            raise InvalidArgument("a renewal is entered once, in a task")
        self._check()
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._body = body
        self._cancelling = body.cancelling()
        self._watch = await self._store._watch(Topic(TopicKind.CLOCK))
        self._worker = self._loop.create_task(self._work(self._watch))

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        is_cancelled_outside = self._take_back()
        await self._leave(is_clean=exc is None)
        # Cases of a loss: the body ended by our cancellation, or swallowed it, or never got it: the loss is raised.
        # It ended by its own exception, or was cancelled from outside too: that propagates.
        is_ours = exc is None or (isinstance(exc, asyncio.CancelledError) and not is_cancelled_outside)
        if self._is_lost and is_ours:
            raise self._lost() from self._error

    def _take_back(self) -> bool:
        """Take our cancellation back, before anything is awaited; True if another one is still asked for."""
        if self._has_cancelled:
            return self._body.uncancel() > self._cancelling
        self._has_cancelled = True  # from here on the worker must not cancel any more
        return self._body.cancelling() > self._cancelling

    async def _leave(self, *, is_clean: bool) -> None:
        worker, watch = self._worker, self._watch
        if worker is None or watch is None:
            return
        try:
            worker.cancel()
            await asyncio.wait((worker,))
            if is_clean and not self._is_lost:
                await self._look_again(watch)
        finally:
            watch.close()

    def note_sooner(self) -> None:
        """Hear that the block itself moved the end to an earlier instant: the worker sleeps for the old one."""
        if (
            not self._is_keeping
        ):  # an attempt under way gives a new end anyway, and its limit is no sleep to cut short
            self._pause.cut()

    # ------------------------------------------------------------ the worker

    async def _work(self, watch: Watch) -> None:
        instant = self._next()
        while await self._sleep(watch, instant):
            # If the block renewed by itself meanwhile, for longer, renewing now would cut that short.
            is_early = self._next() > instant
            if not is_early and not await self._keep(watch):
                break
            instant = self._next()

    def _lose(self) -> None:
        # At once: the attempt that hangs may take long to be cancelled, and the block goes on without its lease.
        self._is_lost = True
        if not self._has_cancelled:
            self._has_cancelled = True
            self._body.cancel()

    def _next(self) -> int:
        # An end at the last instant of the calendar was clamped: two thirds of the window before it may be long past.
        end = self._end()
        return end if end >= numbers.MAX_INSTANT else end - self._window * 2 // 3

    async def _sleep(self, watch: Watch, instant: int) -> bool:
        """Wait for an instant of the engine's time, or until the end comes sooner; False if the store closed."""
        while not self._is_deaf:
            try:
                signal = await self._pause.wait(watch, until=instant)
            except DatabaseError:
                self._is_deaf = True  # the engine may still renew: time goes on by the loop's clock
            else:
                if signal is Signal.CLOSED:
                    self._is_abandoned = True
                if signal in (None, Signal.DUE, Signal.CLOSED):
                    return not self._is_abandoned
        ahead = self._window - (self._end() - instant)
        await asyncio.sleep(self._began + ahead / SECOND - self._loop.time())
        return True

    async def _keep(self, watch: Watch) -> bool:
        """Renew before the end comes; False if that is no use any more: lost, over, or the store closed."""
        self._is_keeping = True
        attempt = self._loop.create_task(self._attempt())
        limit = self._loop.create_task(self._sleep(watch, self._end()))
        try:
            await asyncio.wait((attempt, limit), return_when=asyncio.FIRST_COMPLETED)
            if attempt.done():
                return attempt.result()
            if not self._is_abandoned and not self._is_over():
                self._lose()
            return False
        finally:
            attempt.cancel()
            limit.cancel()
            await asyncio.wait((attempt, limit))
            self._is_keeping = False

    async def _attempt(self) -> bool:
        """Renew, again and again while the engine fails; False if it answered that there is nothing to renew."""
        for failures in itertools.count():
            if not self._is_over() and (answer := await self._ask()) is not None:
                return answer
            pause = min(FIRST_BACK_OFF * 2 ** min(failures, 10), LONGEST_BACK_OFF)
            await asyncio.sleep(pause * self._store._random.uniform(0.5, 1.0))
        raise AssertionError("unreachable")

    async def _ask(self) -> bool | None:
        """Renew once: True if it landed, False if that is the end of it, None if the answer is not known yet."""
        began = self._loop.time()
        try:
            end = await self._renew()
        except DatabaseError as error:
            self._error = error
            return None
        except Closed:
            self._is_abandoned = True
            return False
        except Exception as error:
            # Whatever it is, nobody renews any more, and the block must not go on unaware.
            self._error = error
            self._lose()
            return False
        if end is not None:
            self._began, self._error = began, None
            return True
        if self._is_over():  # asked again: the block may have ended it while the renewal was under way
            return None
        self._lose()
        return False

    # ------------------------------------------------------------ a clean exit

    async def _look_again(self, watch: Watch) -> None:
        if self._is_over() or self._is_abandoned or not await self._has_passed(watch):
            return
        if await self._ask() is None and not self._is_over():
            self._is_lost = True  # the end has passed, and the engine cannot say otherwise

    async def _has_passed(self, watch: Watch) -> bool:
        if (self._loop.time() - self._began) * SECOND >= self._window:
            return True
        try:
            # The limit strikes one loop turn later: time enough for a watch that sees at once that the instant has passed.
            async with asyncio.timeout(0):
                return await watch.wait(until=self._end()) is Signal.DUE
        except (TimeoutError, DatabaseError):
            return False
