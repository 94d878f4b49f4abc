"""Keeping the claims of a worker alive: one task renews all of them, each at a third of its window.

A claim that is settled before that costs nothing but its entry here. Claims of one window come in the order in which they
end, so the next one to be renewed is the first; the few that are out of this order (their handlers renewed by themselves,
or the clock was set back) stand apart and are looked at one by one. What is due at about the same time is renewed in one
round trip. The engine's time decides, as it does for the claims; only while nothing can be heard of it, the storage being
away, does the loop's stand in.

A claim that its handler has settled is set aside once it is due: it may be acked in a transaction that is still open, whose
row a renewal would wait for, and with it every other write of the store. If that comes to nothing, it is renewed again.
"""

import asyncio
import itertools
import logging
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, Final, Protocol

from alkstore import numbers
from alkstore.engine import EngineTransaction, Heartbeat, Signal, Topic, TopicKind, Watch
from alkstore.errors import Closed, DatabaseError
from alkstore.job import ACKED_IN_TX, JobHandle
from alkstore.pausing import Pause
from alkstore.store import Store
from alkstore.worker.settling import SETTLED

__all__ = ["Keeper", "Loser"]

LOGGER: Final = logging.getLogger("alkstore.worker")
SLACK: Final = 8
"""A renewal takes along what is due within this part of a window, so that claims of one burst stay together; and so often
in a window somebody looks whether a claim that was set aside is open again."""

SECOND: Final = 1_000_000

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
"""Seconds on the event loop's clock between attempts while the database is away."""


class Loser(Protocol):
    """Who holds a claim, and has to hear of its loss."""

    def lose(self, handle: JobHandle) -> None: ...


class Keeper:
    """Renews what it was told to keep until it is told to drop it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ordered: dict[int, dict[JobHandle, Loser]] = {}
        self._loose: dict[JobHandle, Loser] = {}
        self._renewing: dict[JobHandle, Loser] = {}
        self._aside: dict[JobHandle, Loser] = {}
        self._attempts: set[asyncio.Task[None]] = set()
        self._pause = Pause()
        self._sleeps_until: int | None = None
        self._is_asleep = False

    def keep(self, handles: Sequence[JobHandle], loser: Loser) -> None:
        """Renew claims from now on: those of one call of the engine's, most of which have one window and end together."""
        known, held, last, soonest = None, self._loose, numbers.MIN_INSTANT, numbers.MAX_INSTANT
        for handle in handles:
            handle._keeper = self
            window = handle._record.visibility_timeout
            if window != known:
                known, held = window, self._ordered.setdefault(window, {})
                last = _due(next(reversed(held))) if held else numbers.MIN_INSTANT
            due = _due(handle)
            if due < last:
                self._loose[handle] = loser
            else:
                held[handle] = loser
                last = due
            soonest = min(soonest, due)
        self._expect(soonest)

    def drop(self, handle: JobHandle) -> None:
        """Renew a claim no more; one that is not kept is no matter."""
        window = handle._record.visibility_timeout
        held = self._ordered.get(window)
        if held is None or held.pop(handle, None) is None:
            self._loose.pop(handle, None)
            self._renewing.pop(handle, None)
            self._aside.pop(handle, None)
        elif not held:
            del self._ordered[window]

    def note_moved(self, handle: JobHandle) -> None:
        """Hear that the handler itself renewed: for longer or for less long than the others of its window."""
        held = self._ordered.get(handle._record.visibility_timeout, {})
        loser = held.get(handle)
        if loser is not None:
            self.drop(handle)
            self._loose[handle] = loser
        self._expect(_due(handle))

    def _expect(self, due: int) -> None:
        if self._is_asleep and (self._sleeps_until is None or due < self._sleeps_until):
            self._pause.cut()

    # ------------------------------------------------------------ the task

    async def run(self) -> None:
        """Renew until cancelled, or until the store closes."""
        pauses = _pauses()
        try:
            while True:
                try:
                    async with self._store._watching(Topic(TopicKind.CLOCK)) as watch:
                        pauses = _pauses()
                        return await self._watch(watch)
                except Closed:
                    return None
                except DatabaseError as error:
                    LOGGER.warning("worker: nothing can be heard of the time: %s; trying again", error)
                await asyncio.sleep(next(pauses))
                # Who does not know what time it is renews everything: too often does no harm.
                self._renew([*self._loose, *itertools.chain.from_iterable(self._ordered.values())])
        finally:
            for attempt in self._attempts:
                attempt.cancel()
            if self._attempts:
                await asyncio.wait(self._attempts)

    async def _watch(self, watch: Watch) -> None:
        while True:
            until = self._sleeps_until = self._next()
            self._is_asleep = True
            try:
                signal = await self._pause.wait(watch, until=until)
            finally:
                self._is_asleep = False
            if signal is Signal.CLOSED:
                return
            if signal is Signal.DUE and until is not None:
                self._lose_ended(until)
                self._renew(self._due_by(until))

    def _next(self) -> int | None:
        """The instant at which a claim is to be renewed, or one whose renewal is under way ends."""
        firsts = map(_due, itertools.chain(map(next, map(iter, self._ordered.values())), self._loose))
        ends = (handle._deadline for handle in self._renewing)
        return min(itertools.chain(firsts, ends), default=None)

    def _due_by(self, instant: int) -> Sequence[JobHandle]:
        def is_due(handle: JobHandle) -> bool:
            return _due(handle) <= instant + handle._record.visibility_timeout // SLACK

        due = list(filter(is_due, self._loose))
        for held in self._ordered.values():
            due += itertools.takewhile(is_due, held)
        return due

    def _lose_ended(self, instant: int) -> None:
        for handle, loser in list(self._renewing.items()):
            if handle._deadline <= instant:
                del self._renewing[handle]
                self._lapsed(handle, loser)

    # ------------------------------------------------------------ attempts

    def _renew(self, handles: Sequence[JobHandle]) -> None:
        by_window: dict[int, list[JobHandle]] = {}
        for handle in handles:
            window = handle._record.visibility_timeout
            loser = self._ordered.get(window, {}).get(handle) or self._loose[handle]
            self.drop(handle)
            self._renewing[handle] = loser
            by_window.setdefault(window, []).append(handle)
        for window, renewed in by_window.items():
            self._start(self._attempt(renewed, window * 2 // 3 / SECOND))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        attempt = asyncio.ensure_future(work)
        self._attempts.add(attempt)
        attempt.add_done_callback(self._attempts.discard)

    async def _attempt(self, handles: Sequence[JobHandle], limit: float) -> None:
        """Renew until an answer comes, nobody holds these claims any more, or they have ended by the loop's time."""
        try:
            async with asyncio.timeout(limit):
                for pause in _pauses():
                    handles = self._still_open(handles)
                    if await self._ask(handles):
                        return
                    await asyncio.sleep(pause * self._store._random.uniform(0.5, 1.0))
        except TimeoutError:
            for handle in handles:
                loser = self._renewing.pop(handle, None)
                if loser is not None:
                    self._lapsed(handle, loser)

    def _still_open(self, handles: Sequence[JobHandle]) -> Sequence[JobHandle]:
        """Give those that are still to be renewed, and set aside what its handler has settled."""
        left: list[JobHandle] = []
        for handle in handles:
            loser = self._renewing.get(handle)
            if loser is None:
                continue
            if _is_settled(handle):
                del self._renewing[handle]
                self._set_aside(handle, loser)
            else:
                left.append(handle)
        return left

    async def _ask(self, handles: Sequence[JobHandle]) -> bool:
        """Renew once; False if the answer is not known yet."""
        if not handles:
            return True
        ridden = [handle._rides if handle._is_undecided else None for handle in handles]
        try:
            ends = await self._store._writer.settle_jobs([_beat(handle) for handle in handles])
        except Closed:
            return True
        except DatabaseError as error:
            LOGGER.warning("worker: %d claims could not be renewed: %s; trying again", len(handles), error)
            return False
        for handle, end, rode in zip(handles, ends, ridden, strict=True):
            self._answered(handle, end, rode)
        return True

    def _answered(self, handle: JobHandle, end: int | None, rode: EngineTransaction | None) -> None:
        """Take an answer; ``rode`` is the transaction that was over before it was asked for, and of whose end it tells."""
        loser = self._renewing.pop(handle, None)
        if loser is None:  # settled meanwhile
            return
        is_told = rode is not None and rode is handle._rides
        if end is not None:
            if is_told:  # it was rolled back
                handle._rides = None
                if handle._consumed is ACKED_IN_TX:  # and not by its worker meanwhile
                    handle._consumed = None
            handle._deadline = end
            self.keep((handle,), loser)
        elif handle._consumed in (None, SETTLED):
            loser.lose(handle)
        elif is_told:
            handle._rode_home()
        else:  # its handler settled it while this was under way, and may be the reason of the answer
            self._set_aside(handle, loser)

    def _lapsed(self, handle: JobHandle, loser: Loser) -> None:
        """Take the end of a claim that no answer has come for."""
        if handle._consumed in (None, SETTLED):
            loser.lose(handle)
        elif handle._is_settled:  # if that comes to nothing, its handler has to hear of it
            self._set_aside(handle, loser)

    # ------------------------------------------------------------ what handlers have settled

    def _set_aside(self, handle: JobHandle, loser: Loser) -> None:
        self._aside[handle] = loser
        self._start(self._await_end(handle))

    async def _await_end(self, handle: JobHandle) -> None:
        """Keep a claim again once its handle is open again: its ack was rolled back, or its settle has failed."""
        # Nobody tells of it: a transaction may be the caller's, and end past us. What is asked here costs no round trip.
        pause = min(handle._record.visibility_timeout / SLACK / SECOND, LONGEST_PAUSE)
        while handle in self._aside and _is_settled(handle):  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(pause)
        loser = self._aside.pop(handle, None)
        if loser is not None:
            self.keep((handle,), loser)


def _is_settled(handle: JobHandle) -> bool:
    """Whether its handler has settled it, as far as is known; what its worker settles is renewed until that has landed."""
    return handle._is_settled and handle._consumed != SETTLED


def _due(handle: JobHandle) -> int:
    # An end at the last instant of the calendar was clamped: two thirds of the window before it may be long past.
    end = handle._deadline
    return end if end >= numbers.MAX_INSTANT else end - handle._record.visibility_timeout * 2 // 3


def _beat(handle: JobHandle) -> Heartbeat:
    record = handle._record
    return Heartbeat(record.queue, record.id, record.token or 0, record.visibility_timeout)


def _pauses() -> Iterator[float]:
    return (min(FIRST_PAUSE * 2 ** min(number, 10), LONGEST_PAUSE) for number in itertools.count())
