"""One queue's rows and where each of them waits.

State model. A live row is the value of `rows`: an immutable record that every change replaces. Beside it stands one
entry in a heap, by what the row waits for:

    ready       a claim: pending and due, or lapsed with attempts left     (-priority, run_at, id)
    delayed     its run_at                                                 (run_at, id)
    deadlines   the end of its claim                                       (deadline, id)
    lasts       the same, of a claim on its last attempt                   (deadline, id)
    aside       nothing: it expired, and only a clock stepped back makes it claimable again

An entry is one integer, the row's place shifted left over its id: an order of tuples at half of their memory. Entries
are never searched for. A change leaves the old one behind, and whoever meets it finds that the row tells another
story. Heaps are rebuilt when most of a heap is such leftovers, so steady traffic leaves nothing. What a row is, the row
alone says: an entry is only a reason to look, which is what makes a clock that steps back harmless.
"""

from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from alkstore.engine import JobCounts, JobFilter, JobRecord, JobState, Topic, TopicKind
from alkstore.numbers import MIN_INSTANT, shift

__all__ = ["EXPIRED", "LAPSED", "Backlog", "is_among", "new_row"]

EXPIRED: Final = "expired"
LAPSED: Final = "visibility timeout lapsed on the last attempt"

BURIED_BY_A_CLAIM: Final = 1_000
"""Rows that one claim moves to DEAD at most, so that no claim pays for everybody's neglect (Q-08)."""

SLACK: Final = 64
"""Leftovers that are not worth a rebuild."""

BITS: Final = 64
ID: Final = (1 << BITS) - 1

# An enum's member costs a metaclass call at every access in Python 3.11.
PENDING: Final = JobState.PENDING
PROCESSING: Final = JobState.PROCESSING
DEAD: Final = JobState.DEAD


new_row: Final[Callable[[type[JobRecord], tuple[object, ...]], JobRecord]] = tuple.__new__
"""A record from its fields in their order: a third of the time that the named tuple's own constructor takes."""


def rank(row: JobRecord) -> int:
    """Give a row's place among the claimable: priority high to low, then run_at, then id."""
    return (row.run_at - (row.priority << BITS) << BITS) | row.id


def due_at(row: JobRecord) -> int:
    """Give the instant from which a row is claimable. A claim that a clock set back can end before the row's run_at."""
    return row.run_at if row.deadline is None else max(row.deadline, row.run_at)


def buried(row: JobRecord, error: str, now: int) -> JobRecord:
    """Give a row as it is once dead: no claim, no retry_error, its stamps kept."""
    return row._replace(
        state=DEAD,
        worker_id=None,
        deadline=None,
        retry_error=None,
        last_error=error,
        died_at=now,
        token=None,
    )


class Backlog:
    """All jobs of one queue; ``acked`` are the ids that open transactions hold, which nobody else may touch."""

    __slots__ = (
        "_acked", "_aside", "_aside_until", "_dead_ids", "_deadlines", "_delayed", "_expiries", "_expiring", "_ids",
        "_lasts", "_processing", "_ready", "dead", "name", "reclaimed", "rows", "topic"
    )  # fmt: skip

    def __init__(self, name: str, acked: Collection[int]) -> None:
        self.name = name
        self.topic = Topic(TopicKind.QUEUE, name)
        self.rows: dict[int, JobRecord] = {}
        self.dead: dict[int, JobRecord] = {}
        self._acked = acked
        self._ready: list[int] = []
        self._delayed: list[int] = []
        self._deadlines: list[int] = []
        self._lasts: list[int] = []
        self._expiries: list[int] = []
        self._aside: set[int] = set()
        self._aside_until = MIN_INSTANT
        self._ids: list[int] = []
        self._dead_ids: list[int] | None = None
        self._processing = self._expiring = self.reclaimed = 0

    @property
    def is_empty(self) -> bool:
        return not self.rows and not self.dead

    # ------------------------------------------------------------ rows come, change and go

    def add(self, row: JobRecord, now: int) -> None:
        """Take in a pending row."""
        ids = self._ids
        if ids and row.id < ids[-1]:
            insort(ids, row.id)  # a transaction's: it took its id before others that landed first
        else:
            ids.append(row.id)
        self._admit(row, now)

    def revive(self, dead: JobRecord, row: JobRecord, now: int) -> None:
        """Make a dead row live again."""
        del self.dead[dead.id]
        self._dead_ids = None
        self._admit(row, now)

    def _admit(self, row: JobRecord, now: int) -> None:
        self.rows[row.id] = row
        if row.expires_at is not None:
            self._expiring += 1
            heappush(self._expiries, (row.expires_at << BITS) | row.id)
        self.place(row, now)

    def replace(self, new: JobRecord, now: int) -> None:
        """Change a live row that is claimed."""
        self.rows[new.id] = new
        if new.deadline is None:
            self._processing -= 1
        self.place(new, now)
        self._tidy_claims()

    def remove(self, row: JobRecord) -> None:
        """Forget a live row."""
        del self.rows[row.id]
        if row.deadline is None:
            self._tidy_pending()
        else:
            self._processing -= 1
            if len(self._deadlines) + len(self._lasts) > SLACK:
                self._tidy_claims()
        if row.expires_at is not None:
            self._expiring -= 1
            self._aside.discard(row.id)
            self._tidy_expiries()
        if len(self._ids) > SLACK:
            self._tidy_ids()

    def bury(self, row: JobRecord, error: str, now: int) -> None:
        """Move a live row to DEAD."""
        self.dead[row.id] = buried(row, error, now)
        self._dead_ids = None
        self.remove(row)

    def purge(self, older_than: int, now: int) -> int:
        """Forget dead rows that died longer ago than ``older_than`` (all if that is <= 0); gives how many."""
        horizon = shift(now, -older_than)
        gone = [
            row.id
            for row in self.dead.values()
            if older_than <= 0 or (row.died_at is not None and row.died_at < horizon)
        ]
        for id in gone:
            del self.dead[id]
        self._dead_ids = None
        self._tidy_ids()
        return len(gone)

    def put_back(self, id: int, now: int) -> None:
        """Give a row back to claims and sweeps that an open transaction had kept from them."""
        self.place(self.rows[id], now)
        self._tidy_claims()

    def place(self, row: JobRecord, now: int) -> None:
        """Put a live row where it is found when its time comes."""
        if row.deadline is not None:
            if row.attempts < row.max_attempts:
                heappush(self._deadlines, (due_at(row) << BITS) | row.id)
            else:
                heappush(self._lasts, (row.deadline << BITS) | row.id)
        elif row.run_at <= now:
            heappush(self._ready, rank(row))
        else:
            heappush(self._delayed, (row.run_at << BITS) | row.id)

    # ------------------------------------------------------------ claims

    def claim(self, worker_ids: Sequence[str], token: int, now: int) -> list[JobRecord]:
        """Take a row for each worker id as long as there are any; tokens are those after ``token``."""
        if now < self._aside_until:
            self._recall(now)
        due = now + 1 << BITS
        if self._delayed and self._delayed[0] < due:
            self._promote(self._delayed, due)
        if self._deadlines and self._deadlines[0] < due:
            self._promote(self._deadlines, due)
        if self._lasts and self._lasts[0] < due:
            self._bury_lapsed(now, BURIED_BY_A_CLAIM)
        taken: list[JobRecord] = []
        for worker_id in worker_ids:
            row = self._next(now)
            if row is None:
                break
            token += 1
            taken.append(self._hand_out(row, worker_id, token, now))
        return taken

    def _hand_out(self, row: JobRecord, worker_id: str, token: int, now: int) -> JobRecord:
        (id, queue, payload, headers, _, priority, run_at, expires_at, attempts, most, window, base, _, deadline,
         created_at, scheduled_for, retry_error, _, _, _) = row  # fmt: skip
        if deadline is None:
            self._processing += 1
        else:
            self.reclaimed += 1  # whoever asks sets it back
        end = shift(now, window)
        attempts += 1
        claimed = self.rows[id] = new_row(JobRecord, (
            id, queue, payload, headers, PROCESSING, priority, run_at, expires_at, attempts, most, window, base,
            worker_id, end, created_at, scheduled_for, retry_error, None, None, token,
        ))  # fmt: skip
        heappush(self._deadlines if attempts < most else self._lasts, (end << BITS) | id)
        return claimed

    def _promote(self, heap: list[int], due: int) -> None:
        """Move what stands before ``due`` to the claimable: delayed rows, or lapsed ones."""
        seen = 0
        while heap and heap[0] < due:
            entry = heappop(heap)
            row = self.rows.get(entry & ID)
            # A row that was put back may stand here twice: among the claimable it must not.
            if entry != seen and row is not None and due_at(row) == entry >> BITS:
                heappush(self._ready, rank(row))
            seen = entry

    def _bury_lapsed(self, now: int, most: int | None = None) -> int:
        due = now + 1 << BITS
        lasts = self._lasts
        moved = 0
        while lasts and lasts[0] < due and moved != most:
            entry = heappop(lasts)
            row = self.rows.get(entry & ID)
            if row is not None and row.deadline == entry >> BITS and row.id not in self._acked:
                self.bury(row, LAPSED, now)
                moved += 1
        return moved

    def _next(self, now: int) -> JobRecord | None:
        """Pop the first claimable row; what is met on the way and is none goes where it belongs."""
        ready = self._ready
        while ready:
            entry = heappop(ready)
            row = self.rows.get(entry & ID)
            if row is None or rank(row) != entry:
                continue
            if row.expires_at is not None and now >= row.expires_at:
                self._set_aside(row, row.expires_at)
            elif now < due_at(row):  # the clock stepped back since it was put here
                self.place(row, now)
            elif row.deadline is None or (row.id not in self._acked and row.attempts < row.max_attempts):
                return row
        return None

    def _set_aside(self, row: JobRecord, expires_at: int) -> None:
        self._aside.add(row.id)
        self._aside_until = max(self._aside_until, expires_at)

    def _recall(self, now: int) -> None:
        # Only after the clock stepped back: rows that were expired when a claim met them are not any more.
        self._aside_until = MIN_INSTANT
        for id in list(self._aside):
            row = self.rows[id]
            if row.expires_at is not None and now >= row.expires_at:
                self._set_aside(row, row.expires_at)
            else:
                self._aside.discard(id)
                self.place(row, now)

    def next_at(self, now: int) -> int | None:
        """Give the earliest instant at which a row becomes claimable by itself; asked after a claim that came short."""
        heads = [self._head(heap, now) for heap in (self._delayed, self._deadlines)]
        return min((head for head in heads if head is not None), default=None)

    def _head(self, heap: list[int], now: int) -> int | None:
        while heap:
            at = heap[0] >> BITS
            row = self.rows.get(heap[0] & ID)
            if row is not None and due_at(row) == at and row.id not in self._acked:
                if row.expires_at is None or now < row.expires_at:
                    return at
                self._set_aside(row, row.expires_at)
            heappop(heap)
        return None

    # ------------------------------------------------------------ sweeping and looking

    def sweep(self, now: int) -> int:
        """Move to DEAD what expired and is held by nobody, and what lapsed without attempts left; gives how many."""
        due = now + 1 << BITS
        held: list[int] = []
        moved = 0
        while self._expiries and self._expiries[0] < due:
            entry = heappop(self._expiries)
            row = self.rows.get(entry & ID)
            if row is None or row.expires_at != entry >> BITS:
                continue
            if row.deadline is not None and (now < row.deadline or row.id in self._acked):
                held.append(entry)
            else:
                self.bury(row, EXPIRED, now)
                moved += 1
        for entry in held:
            heappush(self._expiries, entry)
        return moved + self._bury_lapsed(now)

    def count(self, now: int) -> JobCounts:
        """Count the rows by what a claim would make of them now. Cost: O(rows)."""
        ready = delayed = processing = stale = 0
        oldest: int | None = None
        for row in self.rows.values():
            is_used_up = row.deadline is not None and row.attempts >= row.max_attempts
            if row.deadline is not None and (now < row.deadline or row.id in self._acked):
                processing += 1
            elif is_used_up or (row.expires_at is not None and now >= row.expires_at):
                stale += 1
            elif now < row.run_at:
                delayed += 1
            else:
                ready += 1
                oldest = row.run_at if oldest is None else min(oldest, row.run_at)
        age = None if oldest is None else now - oldest
        return JobCounts(ready, delayed, processing, stale, len(self.dead), age)

    def scan(self, where: JobFilter) -> Iterator[JobRecord]:
        """Give what a filter asks for in id order, its limit apart."""
        if where.ids is not None:
            ids, start = sorted(set(where.ids)), 0
        else:
            ids = self._sorted_dead() if where.state is DEAD else self._ids
            start = bisect_right(ids, where.after)
        for at in range(start, len(ids)):
            row = self.rows.get(ids[at]) or self.dead.get(ids[at])
            if row is not None and _is_wanted(row, where):
                yield row

    def _sorted_dead(self) -> list[int]:
        if self._dead_ids is None:
            self._dead_ids = sorted(self.dead)
        return self._dead_ids

    # ------------------------------------------------------------ leftovers

    # In place: a loop over a heap may be what got us here. As sets: an entry put in twice stays once.

    def _tidy_claims(self) -> None:
        if len(self._deadlines) + len(self._lasts) > SLACK + 2 * self._processing:
            for heap in (self._deadlines, self._lasts):
                heap[:] = {e for e in heap if (row := self.rows.get(e & ID)) and _lapses(row, e)}
                heapify(heap)

    def _tidy_pending(self) -> None:
        if len(self._ready) + len(self._delayed) > SLACK + 2 * len(self.rows):
            self._ready[:] = {e for e in self._ready if (row := self.rows.get(e & ID)) and rank(row) == e}
            self._delayed[:] = {e for e in self._delayed if (row := self.rows.get(e & ID)) and _waits(row, e)}
            heapify(self._ready)
            heapify(self._delayed)

    def _tidy_expiries(self) -> None:
        if len(self._expiries) > SLACK + 2 * self._expiring:
            self._expiries[:] = {
                e for e in self._expiries if (row := self.rows.get(e & ID)) and row.expires_at == e >> BITS
            }
            heapify(self._expiries)

    def _tidy_ids(self) -> None:
        if len(self._ids) > SLACK + 2 * (len(self.rows) + len(self.dead)):
            self._ids[:] = [id for id in self._ids if id in self.rows or id in self.dead]


def _waits(row: JobRecord, entry: int) -> bool:
    return row.deadline is None and row.run_at == entry >> BITS


def is_among(row: JobRecord, where: JobFilter) -> bool:
    """Whether a filter asks for a row, its limit apart."""
    in_range = row.id > where.after if where.ids is None else row.id in where.ids
    return in_range and _is_wanted(row, where)


def _is_wanted(row: JobRecord, where: JobFilter) -> bool:
    if where.state is not None and row.state is not where.state:
        return False
    error = where.error
    return error is None or any(
        error in text for text in (row.last_error, row.retry_error) if text is not None
    )  # not even the empty text is in none


def _lapses(row: JobRecord, entry: int) -> bool:
    return row.deadline is not None and entry >> BITS in (row.deadline, due_at(row))
