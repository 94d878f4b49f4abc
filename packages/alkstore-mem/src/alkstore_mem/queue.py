"""Jobs: what becomes of a row, and who is woken by it."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

from alkstore.engine import (
    Ack,
    Cancel,
    Claimed,
    Fail,
    Heartbeat,
    JobCounts,
    JobFilter,
    JobRecord,
    JobState,
    NewJob,
    Redrive,
    Release,
    Retry,
    Settle,
    Topic,
)
from alkstore.numbers import shift
from alkstore_mem.backlog import Backlog, new_row
from alkstore_mem.state import State

__all__ = ["Queues", "page"]

_T = TypeVar("_T")

PENDING: Final = JobState.PENDING

FEW_QUEUES: Final = 64
"""Queue names that are kept without a look at whether they still hold anything."""


def page(found: Iterable[_T], limit: int) -> list[_T]:
    """Give the first so many; a limit may be wider than the platform's sizes, which WebAssembly has of 32 bits."""
    return list(islice(found, max(min(limit, sys.maxsize), 0)))


class Queues:
    """Every queue of one store; ids and tokens are counted over all of them."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._backlogs: dict[str, Backlog] = {}
        self._acked: dict[int, Backlog] = {}
        self._last_id = 0
        self._last_token = 0
        self._prune_at = FEW_QUEUES

    # ------------------------------------------------------------ the seam, in its order

    def insert(self, jobs: Sequence[NewJob]) -> list[int]:
        now = self._state.clock.now()
        rows = [self.make(job, now) for job in jobs]
        self._state.wake(self.land(rows, now))
        return [row.id for row in rows]

    def scan(self, queue: str, where: JobFilter) -> Iterator[JobRecord]:
        """Give what a filter asks for in id order, its limit apart; to be used up before anything changes."""
        backlog = self._backlogs.get(queue)
        return iter(()) if backlog is None else backlog.scan(where)

    def count(self, queue: str) -> JobCounts:
        backlog = self._backlogs.get(queue)
        return JobCounts(0, 0, 0, 0, 0, None) if backlog is None else backlog.count(self._state.clock.now())

    def claim(self, queue: str, worker_ids: Sequence[str]) -> Claimed:
        backlog = self._backlogs.get(queue)
        if backlog is None:
            return Claimed((), None)
        now = self._state.clock.now()
        taken = backlog.claim(worker_ids, self._last_token, now)
        self._last_token += len(taken)
        reclaimed = backlog.reclaimed
        if reclaimed:
            backlog.reclaimed = 0
        return Claimed(taken, None if len(taken) == len(worker_ids) else backlog.next_at(now), reclaimed)

    def settle(self, settles: Sequence[Settle]) -> list[int | None]:
        now = self._state.clock.now()
        woken: dict[str, Topic] = {}
        instants = [self._apply(settle, now, woken) for settle in settles]
        if woken:
            self._state.wake(woken.values())
        return instants

    def sweep(self, queue: str) -> int:
        backlog = self._backlogs.get(queue)
        return 0 if backlog is None else backlog.sweep(self._state.clock.now())

    def purge(self, queue: str, older_than: int) -> int:
        backlog = self._backlogs.get(queue)
        return 0 if backlog is None else backlog.purge(older_than, self._state.clock.now())

    def names(self) -> list[str]:
        return sorted(name for name, backlog in self._backlogs.items() if not backlog.is_empty)

    # ------------------------------------------------------------ settles

    def _apply(self, settle: Settle, now: int, woken: dict[str, Topic]) -> int | None:
        backlog = self._backlogs.get(settle.queue)
        if backlog is None:
            return None
        if isinstance(settle, Ack):
            row = self._live(backlog, settle.id, settle.token, now)
            if row is None:
                return None
            backlog.remove(row)
            return now
        if isinstance(settle, Cancel):
            return self._cancel(backlog, settle, now)
        if isinstance(settle, Redrive):
            at = self._redrive(backlog, settle, now)
        else:
            at = self._change(backlog, settle, now)
        if at is not None and not isinstance(settle, Fail):
            woken[backlog.name] = backlog.topic
        return at

    def _live(self, backlog: Backlog, id: int, token: int, now: int) -> JobRecord | None:
        row = backlog.rows.get(id)
        if row is None or row.token != token or row.deadline is None or now >= row.deadline:
            return None
        return None if id in self._acked else row

    def _change(self, backlog: Backlog, settle: Retry | Fail | Release | Heartbeat, now: int) -> int | None:
        row = self._live(backlog, settle.id, settle.token, now)
        if row is None:
            return None
        if isinstance(settle, Fail):
            backlog.bury(row, settle.error, now)
            return now
        if isinstance(settle, Heartbeat):
            end = shift(now, settle.window)
            backlog.replace(row._replace(deadline=end), now)
            return end
        free = row._replace(state=PENDING, worker_id=None, deadline=None, token=None)
        if isinstance(settle, Retry):
            free = free._replace(run_at=shift(now, settle.delay), retry_error=settle.error)
        else:
            free = free._replace(attempts=row.attempts - 1)
        backlog.replace(free, now)
        return now

    def _cancel(self, backlog: Backlog, settle: Cancel, now: int) -> int | None:
        row = backlog.rows.get(settle.id)
        if row is None or row.deadline is not None:
            return None
        backlog.remove(row)
        return now

    def _redrive(self, backlog: Backlog, settle: Redrive, now: int) -> int | None:
        dead = backlog.dead.get(settle.id)
        if dead is None:
            return None
        row = dead._replace(
            state=PENDING,
            run_at=now,
            expires_at=None,
            attempts=0,
            retry_error=None,
            last_error=None,
            died_at=None,
        )
        backlog.revive(dead, row, now)
        return now

    # ------------------------------------------------------------ parts of a transaction, and of a fire

    def make(self, job: NewJob, now: int, scheduled_for: int | None = None) -> JobRecord:
        """Make the row of a new job, with an id of its own; nobody sees it before `land`."""
        queue, payload, headers, priority, delay, run_at, window, most, base, expires = job
        self._last_id += 1
        backlog = self._backlogs.get(queue)
        if backlog is not None:
            queue = backlog.name  # one text for a million rows, however often the caller spelt it anew
        if delay is not None:
            run_at = shift(now, delay)
        elif run_at is None:
            run_at = now
        return new_row(JobRecord, (
            self._last_id, queue, payload, headers, PENDING, priority, run_at,
            None if expires is None else shift(now, expires), 0, most, window, base,
            None, None, now, scheduled_for, None, None, None, None,
        ))  # fmt: skip

    def land(self, rows: Sequence[JobRecord], now: int) -> list[Topic]:
        """Show rows to everybody; gives the topics to wake, each once."""
        touched: dict[str, Topic] = {}
        for row in rows:
            backlog = self._backlogs.get(row.queue) or self._open(row.queue)
            backlog.add(row, now)
            touched[row.queue] = backlog.topic
        return list(touched.values())

    def hold(self, ack: Ack) -> int | None:
        """Keep a live claim's row from everybody until `drop` or `put_back`; gives now, or None if it is not live."""
        now = self._state.clock.now()
        backlog = self._backlogs.get(ack.queue)
        if backlog is None or self._live(backlog, ack.id, ack.token, now) is None:
            return None
        self._acked[ack.id] = backlog
        return now

    def drop(self, id: int) -> None:
        """Delete a row that was held, even if its claim has lapsed meanwhile: the holder decided in time."""
        backlog = self._acked.pop(id)
        backlog.remove(backlog.rows[id])

    def put_back(self, id: int, now: int) -> Topic:
        """Leave a row that was held as it was; gives the topic to wake."""
        backlog = self._acked.pop(id)
        backlog.put_back(id, now)
        return backlog.topic

    def _open(self, name: str) -> Backlog:
        if len(self._backlogs) >= self._prune_at:
            # Names come and go (one queue a tenant, a day): what holds nothing is forgotten.
            kept = {n: b for n, b in self._backlogs.items() if not b.is_empty}
            self._backlogs = kept
            self._prune_at = max(2 * len(kept), FEW_QUEUES)
        backlog = self._backlogs[name] = Backlog(name, self._acked.keys())
        return backlog
