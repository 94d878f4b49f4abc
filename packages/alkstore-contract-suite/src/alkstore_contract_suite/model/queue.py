"""Queues: one table of jobs, and what claims, settles, sweeps and looks make of it. Rows: Q-01 to Q-28, CLK-01."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from alkstore_contract_suite.model.allowed import Allowed, just, raising, such
from alkstore_contract_suite.model.row import DEAD, PENDING, PROCESSING, Claim, Like, NewJob, Row, Seen, Span

__all__ = ["Jobs"]

EXPIRED: Final = "expired"
LAPSED: Final = "visibility timeout lapsed on the last attempt"
FAILED: Final = "failed"
HOUR: Final = 3_600_000_000


class Jobs:
    """Every job of one storage, and what a look may show of it.

    A row that is both expired and used up may be moved by a claim or not, with either text: such a row has another version in
    ``maybe`` until it was looked at.
    """

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.maybe: dict[int, Row] = {}
        self.ids: set[int] = set()
        self.claims = 0

    def copy(self) -> "Jobs":
        """Give a copy for a transaction: rows are values."""
        other = Jobs()
        other.rows, other.maybe = self.rows.copy(), self.maybe.copy()
        other.ids, other.claims = self.ids.copy(), self.claims
        return other

    def of(self, queue: str) -> list[Row]:
        """Give a queue's rows by id."""
        return [row for _, row in sorted(self.rows.items()) if row.new.queue == queue]

    # ---------------------------------------------------------------- into the queue

    def enqueue(self, now: int, jobs: Sequence[NewJob]) -> Allowed:
        """Allow ids that nobody was given before, rising."""

        def fits(ids: list[int]) -> bool:
            is_rising = all(one < other for one, other in itertools.pairwise(ids))
            return len(ids) == len(jobs) and is_rising and all(id > 0 and id not in self.ids for id in ids)

        def then(ids: list[int]) -> None:
            for id, job in zip(ids, jobs, strict=True):
                self.add(now, id, job)

        return such(f"{len(jobs)} rising ids that were never given", fits, then)

    def add(self, now: int, id: int, job: NewJob, scheduled_for: int | None = None) -> None:
        """Take in a job."""
        run_at = now + job.delay if job.delay is not None else now if job.run_at is None else job.run_at
        expires_at = None if job.expires is None else now + job.expires
        self.ids.add(id)
        self.rows[id] = Row(id, job, run_at, expires_at, now, scheduled_for)

    # ---------------------------------------------------------------- claims

    def ready(self, now: int, queue: str) -> list[Row]:
        """Give what a claim could take, in the order in which it would."""
        ready = [row for row in self.of(queue) if row.is_claimable(now)]
        return sorted(ready, key=lambda row: (-row.new.priority, row.due, row.id))

    def claim(self, now: int, queue: str, count: int, worker: str) -> Allowed:
        """Allow the first claimable rows, in their order: (id, attempts, deadline, worker)."""
        taken = [
            replace(
                row,
                state=PROCESSING,
                attempts=row.attempts + 1,
                worker=worker,
                deadline=now + row.new.visibility,
            )
            for row in self.ready(now, queue)[:count]
        ]

        def then() -> None:
            self._bury_used_up(now, queue)
            for row in taken:
                self.claims += 1
                self.rows[row.id] = replace(row, claim=self.claims)

        return just([(row.id, row.attempts, row.deadline, row.worker) for row in taken], then)

    def _bury_used_up(self, now: int, queue: str) -> None:
        for row in self.of(queue):
            if row.has_lapsed(now) and row.is_used_up():
                if row.is_expired(now):
                    self.maybe[row.id] = row
                self._bury(row, now, LAPSED)

    def _bury(self, row: Row, now: int, error: str | Like) -> None:
        self.rows[row.id] = replace(
            row, state=DEAD, worker=None, deadline=None, last_error=error, died_at=now, claim=0
        )

    def is_live(self, now: int, claim: Claim) -> bool:
        """Whether a claim may still be settled."""
        row = self.rows.get(claim.id)
        return (
            row is not None
            and row.state == PROCESSING
            and row.claim == claim.claim
            and not row.has_lapsed(now)
        )

    # ---------------------------------------------------------------- settles

    def _settle(
        self, now: int, claim: Claim, land: Callable[[Row], object], *, is_final: bool = True
    ) -> Allowed:
        if claim.is_consumed:
            return raising("HandleConsumed")
        is_live = self.is_live(now, claim)

        def then() -> None:
            if is_final:
                claim.is_consumed = True
            if is_live:
                land(self.rows[claim.id])

        return just(is_live, then)

    def ack(self, now: int, claim: Claim) -> Allowed:
        """The row goes."""
        return self._settle(now, claim, lambda row: self.rows.pop(row.id))

    def retry(self, now: int, claim: Claim, error: str | Like, delay: int | None) -> Allowed:
        """Again later, or dead after the last attempt."""

        def land(row: Row) -> None:
            if row.is_used_up():
                self._bury(row, now, error)
            else:
                run_at = now + delay if delay is not None else _curve(now, row)
                self._free(replace(row, retry_error=error), run_at, row.attempts)

        return self._settle(now, claim, land)

    def fail(self, now: int, claim: Claim, error: str | None) -> Allowed:
        """Never again."""
        return self._settle(now, claim, lambda row: self._bury(row, now, FAILED if error is None else error))

    def release(self, now: int, claim: Claim) -> Allowed:
        """As if it had never been claimed."""
        return self._settle(now, claim, lambda row: self._free(row, row.run_at, row.attempts - 1))

    def _free(self, row: Row, run_at: int | Span, attempts: int) -> None:
        self.rows[row.id] = replace(
            row, state=PENDING, run_at=run_at, attempts=attempts, worker=None, deadline=None, claim=0
        )

    def heartbeat(self, now: int, claim: Claim, window: int | None) -> Allowed:
        """A whole window from now."""

        def land(row: Row) -> None:
            length = row.new.visibility if window is None else window
            self.rows[row.id] = replace(row, deadline=now + length)

        return self._settle(now, claim, land, is_final=False)

    # ---------------------------------------------------------------- what an administrator does

    def sweep(self, now: int, queue: str) -> Allowed:
        """Whatever expired and is held by nobody, and whatever lapsed on its last attempt, dies."""
        due = [
            row
            for row in self.of(queue)
            if row.state != DEAD
            and (row.state == PENDING or row.has_lapsed(now))
            and (row.is_expired(now) or (row.has_lapsed(now) and row.is_used_up()))
        ]

        def then() -> None:
            for row in due:
                self._bury(row, now, EXPIRED if row.is_expired(now) else LAPSED)
                if row.is_expired(now) and row.has_lapsed(now) and row.is_used_up():
                    self.maybe[row.id] = replace(self.rows[row.id], last_error=LAPSED)

        return just(len(due), then)

    def cancel(self, id: int, queue: str) -> Allowed:
        """A pending row goes."""
        row = self.rows.get(id)
        is_there = row is not None and row.new.queue == queue and row.state == PENDING
        return just(is_there, lambda: self.rows.pop(id) if is_there else None)

    def redrive(self, now: int, queue: str, ids: Sequence[int]) -> Allowed:
        """Dead rows of this queue are new again."""
        found = [row for row in self.of(queue) if row.id in ids and row.state == DEAD]

        def then() -> None:
            for row in found:
                self.rows[row.id] = replace(
                    row,
                    state=PENDING,
                    run_at=now,
                    expires_at=None,
                    attempts=0,
                    retry_error=None,
                    last_error=None,
                    died_at=None,
                )

        return just(len(found), then)

    def purge(self, now: int, queue: str, older_than: int) -> Allowed:
        """Rows that died longer ago than that go; all of them if it is not positive."""
        gone = [
            row.id
            for row in self.of(queue)
            if row.died_at is not None and (older_than <= 0 or now - row.died_at > older_than)
        ]

        def then() -> None:
            for id in gone:
                del self.rows[id]

        return just(len(gone), then)

    # ---------------------------------------------------------------- looks

    def look(self, queue: str) -> Allowed:
        """Allow a whole list of a queue; the model takes over what was left to the engine."""
        rows = self.of(queue)

        def fits(seen: list[Seen]) -> bool:
            return len(seen) == len(rows) and not any(map(self._wrong, rows, seen))

        def then(seen: list[Seen]) -> None:
            for row, each in zip(rows, seen, strict=True):
                self.take_over(row, each)

        return such(", ".join(map(str, rows)) or "no job", fits, then)

    def show(self, id: int, queue: str) -> Allowed:
        """Allow one job, or None if the queue has none of this id."""
        row = self.rows.get(id)
        if row is None or row.new.queue != queue:
            return just(None)
        return such(
            str(row),
            lambda seen: seen is not None and not self._wrong(row, seen),
            lambda seen: self.take_over(row, seen),
        )

    def take_over(self, row: Row, seen: Seen) -> None:
        """Go on from what an engine chose."""
        other = self.maybe.pop(row.id, None)
        chosen = other if other is not None and row.differs(seen) else row
        self.rows[row.id] = replace(chosen, run_at=seen.run_at)

    def _wrong(self, row: Row, seen: Seen) -> list[str]:
        other = self.maybe.get(row.id)
        wrong = row.differs(seen)
        return [] if wrong and other is not None and not other.differs(seen) else wrong

    def stats(self, now: int, queue: str) -> Allowed:
        """Allow (ready, delayed, processing, stale, dead, oldest_ready_age)."""
        rows = self.of(queue)
        ready = [row for row in rows if row.is_claimable(now)]
        live = [row for row in rows if row.state == PROCESSING and not row.has_lapsed(now)]
        dead = [row for row in rows if row.state == DEAD]
        rest = [row for row in rows if row not in ready and row not in live and row not in dead]
        stale = [row for row in rest if row.is_expired(now) or (row.has_lapsed(now) and row.is_used_up())]
        age = max((now - row.due for row in ready), default=None)
        return just((len(ready), len(rest) - len(stale), len(live), len(stale), len(dead), age))

    def names(self) -> list[str]:
        """Give the queues that have rows, sorted."""
        return sorted({row.new.queue for row in self.rows.values()})

    def edges(self) -> set[int]:
        """Give the instants at which something becomes so."""
        found: set[int] = set()
        for row in self.rows.values():
            found |= {at for at in (row.due, row.expires_at, row.deadline) if at is not None}
        return found


def _curve(now: int, row: Row) -> Span:
    base = row.new.base_delay
    ceiling = min(base * 2 ** (row.attempts - 1), max(base, HOUR))
    return Span(now + ceiling // 2, now + ceiling)
