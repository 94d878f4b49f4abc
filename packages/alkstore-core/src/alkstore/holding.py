"""The claims of one observed store until each has ended, so that its end can be told whole, and is told once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from alkstore.engine import Ack, Fail, Heartbeat, JobRecord, Release, Retry, Settle
from alkstore.numbers import MAX_INSTANT
from alkstore.observing import Destination, JobSettled, Outcome
from alkstore.values import Job

__all__ = ["Claims"]

OUTCOMES: Final[dict[type[Settle], Outcome]] = {
    Ack: "done",
    Retry: "retried",
    Fail: "dead",
    Release: "released",
}


@dataclass(slots=True)
class _Held:
    """A claim: the job as claimed, and when it ends by itself."""

    record: JobRecord
    deadline: int


class Claims:
    """What this store holds. A claim that has lapsed is found when the next one begins, so no more are kept than that.

    They are kept by their windows: those of one window lapse in the order in which they were claimed or renewed.
    """

    def __init__(self) -> None:
        self._by_window: dict[int, dict[int, _Held]] = {}

    def begin(self, records: Sequence[JobRecord]) -> list[JobSettled]:
        """Take in what was claimed at one instant; gives the ends of claims that had lapsed by then."""
        first = records[0]
        now = (first.deadline or 0) - first.visibility_timeout
        lost = self._lapsed(now) if self._by_window and (first.deadline or 0) < MAX_INSTANT else []
        self.take_back(records)
        return lost

    def take_back(self, records: Iterable[JobRecord]) -> None:
        """Take in claims."""
        for record in records:
            held = self._by_window.setdefault(record.visibility_timeout, {})
            held[record.token or 0] = _Held(record, record.deadline or 0)

    def find(self, token: int) -> JobRecord | None:
        """Give the job of a claim."""
        for held in self._by_window.values():
            if token in held:
                return held[token].record
        return None

    def settle(self, settle: Settle, at: int | None, seconds: float) -> JobSettled | None:
        """Give what a settle has ended: nothing if it is none of a claim that is still known.

        ``at`` is the instant at which it landed, None if it did not: then the claim has lapsed.
        """
        if isinstance(settle, Heartbeat):
            if at is not None:
                self._renew(settle.token, at)
                return None
        elif not isinstance(settle, (Ack, Retry, Fail, Release)):
            return None
        held = self._pop(settle.token)
        if held is None:
            return None
        return _ended(held.record, "lost" if at is None else OUTCOMES[type(settle)], at, seconds)

    def _renew(self, token: int, deadline: int) -> None:
        for held in self._by_window.values():
            if (claim := held.pop(token, None)) is not None:
                held[token] = _Held(claim.record, deadline)  # behind those that end before it
                return

    def _pop(self, token: int) -> _Held | None:
        for window, held in self._by_window.items():
            if (claim := held.pop(token, None)) is not None:
                if not held:
                    del self._by_window[window]
                return claim
        return None

    def _lapsed(self, now: int) -> list[JobSettled]:
        lost: list[JobSettled] = []
        for window, held in list(self._by_window.items()):
            while held:
                token, claim = next(iter(held.items()))
                if claim.deadline > now:
                    break
                del held[token]
                lost.append(_ended(claim.record, "lost", None, 0.0))
            if not held:
                del self._by_window[window]
        return lost


def _ended(record: JobRecord, outcome: Outcome, at: int | None, seconds: float) -> JobSettled:
    deadline = record.deadline or 0
    # A deadline at the last instant of the calendar was clamped, so it does not say when the claim began.
    is_known = at is not None and deadline < MAX_INSTANT
    return JobSettled(
        destination=Destination.of_queue(record.queue),
        job=Job(record),
        outcome=outcome,
        held=max((at or 0) - deadline + record.visibility_timeout, 0) / 1_000_000 if is_known else None,
        seconds=seconds,
    )
