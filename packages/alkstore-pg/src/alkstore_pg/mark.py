"""Marks: where claims may begin, while an old snapshot keeps what they took before from being cleaned away.

State model. A claim walks an index from its low end, past every row that was claimed before and is not cleaned away yet:
under a held snapshot that is all of them. So a queue whose *full* claims have become slow has marks: for each level of
priority the least run_at of the last batch, where the next claim begins. A row that becomes visible below a mark (a
late commit, a run_at in the past) waits for the next full claim, which comes after 12 times its own duration. A queue
whose full claims are fast has none, and every claim of it is exact.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from alkstore.engine import Claimed, JobRecord

__all__ = ["FULL", "Answer", "Marks", "Plan"]

SLOW_IN_A_ROW: Final = 3
"""Slow full claims one after another that it takes: a busy machine makes single ones, and marks cost exactness."""

SHARE: Final = 12
"""Durations of a full claim until the next one, so that they take at most a twelfth of the time."""

LEAST_PAUSE: Final = 0.1
"""Seconds until the next full claim at least."""

QUEUES: Final = 1_000
"""Queues of which something is known at most; the one that was not claimed from for the longest time is forgotten."""

LEVELS: Final = 100
"""Levels of priority with a mark in one queue at most, the highest ones."""


class Plan(NamedTuple):
    """Where a claim is to begin.

    Attributes:
        levels: Levels of priority, high to low.
        marks: For each of them the run_at to begin at.
        looked: The instant up to which lapses and expiries were seen to; None: a full claim, which looks at everything.
        pause: Microseconds until a full claim is due.
    """

    levels: Sequence[int] = ()
    marks: Sequence[int] = ()
    looked: int | None = None
    pause: int = 0

    @property
    def is_full(self) -> bool:
        return self.looked is None


FULL: Final = Plan()


class Answer(NamedTuple):
    """What a claim found.

    Attributes:
        claimed: The jobs; None: claim again, since there is more to put in its place first, or a marked claim found none.
        now: The server's now.
        sent: The loop's time before the statement was sent.
        received: The loop's time when its answer was there.
        took: Microseconds that it took in the server.
        is_slow: Whether its looks took long: one finds a single row, so that is the walk past what is not cleaned away.
        cleared: Levels of priority from which it took expired rows aside.
    """

    claimed: Claimed | None
    now: int
    sent: float
    received: float
    took: int
    is_slow: bool
    cleared: Sequence[int] = ()


class _Queue:
    """What is known of a queue whose full claims are slow."""

    __slots__ = ("cleared", "full_at", "looked", "marks", "pause", "slow", "stirred_at")

    def __init__(self) -> None:
        self.slow = 0
        self.cleared: set[int] = set()
        self.marks: dict[int, int] = {}
        self.looked = 0
        self.full_at = 0.0
        self.stirred_at = float("-inf")
        self.pause = LEAST_PAUSE


class Marks:
    """The marks of every queue that one store claims from."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, _Queue] = OrderedDict()

    def __bool__(self) -> bool:
        """Whether there is any queue whose claims were slow."""
        return bool(self._queues)

    def plan(self, queue: str, at: float | None = None) -> Plan:
        """Say where the next claim is to begin, at a time of the loop (None: now)."""
        known = self._queues.get(queue)
        if known is None or known.slow < SLOW_IN_A_ROW:
            return FULL
        self._queues.move_to_end(queue)
        left = known.full_at + known.pause - (asyncio.get_running_loop().time() if at is None else at)
        if left <= 0:
            return FULL
        levels = sorted(known.marks, reverse=True)[:LEVELS]
        return Plan(levels, [known.marks[level] for level in levels], known.looked, round(left * 1_000_000))

    def learn(self, queue: str, plan: Plan, answer: Answer) -> None:
        """Take in what a claim that began where ``plan`` says has found."""
        known = self._queues.get(queue)
        if plan.is_full:
            self._learn_full(queue, known or _Queue(), answer)
        elif known is None:
            return
        elif (
            answer.claimed is None or answer.now < known.looked
        ):  # or the clock was stepped back, behind every mark
            known.full_at = float("-inf")
        else:
            known.looked = answer.now
            known.marks |= _least(answer.claimed.jobs)

    def _learn_full(self, queue: str, known: _Queue, answer: Answer) -> None:
        known.cleared.update(answer.cleared[:LEVELS])
        if answer.claimed is None:
            if known.cleared:
                self._keep(queue, known)
            return
        if not answer.is_slow:
            self._queues.pop(queue, None)
            return
        known.slow += 1
        known.marks |= _passed(known, answer.claimed.jobs, answer.now) | _least(answer.claimed.jobs)
        known.looked = answer.now
        # What was stirred while this claim was under way it may not have seen.
        known.full_at = answer.received if known.stirred_at < answer.sent else float("-inf")
        known.pause = max(LEAST_PAUSE, SHARE * answer.took / 1_000_000)
        self._keep(queue, known)

    def _keep(self, queue: str, known: _Queue) -> None:
        self._queues[queue] = known
        if len(self._queues) > QUEUES:
            self._queues.popitem(last=False)

    def stir(self, queues: Iterable[str], at: float | None = None) -> None:
        """Something of these queues may have become claimable below a mark: their next claims are full."""
        for queue in queues:
            known = self._queues.get(queue)
            if known is not None:
                known.stirred_at = asyncio.get_running_loop().time() if at is None else at
                known.full_at = float("-inf")


def _least(jobs: Sequence[JobRecord]) -> dict[int, int]:
    """Give the least run_at of each level; the jobs are in claim order."""
    return {job.priority: job.run_at for job in reversed(jobs)}


def _passed(known: _Queue, jobs: Sequence[JobRecord], now: int) -> dict[int, int]:
    """Give the levels that expired rows were taken from and that a claim passed: it left nothing there."""
    return {level: now for level in known.cleared if not jobs or level > jobs[-1].priority}
