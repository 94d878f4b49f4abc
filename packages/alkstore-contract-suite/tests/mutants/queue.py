"""Engines that enqueue or claim wrongly, or handles that do, each in exactly one way."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop
from types import TracebackType
from typing import Any

from mutant import Patch, mutant

from alkstore import CodecError, JobHandle, Queue, Store
from alkstore.claiming import ClaimPump, Want
from alkstore.engine import (
    Ack,
    Claimed,
    JobFilter,
    JobRecord,
    NewJob,
)
from alkstore_mem import backlog as backlog_module
from alkstore_mem.backlog import BITS, ID, Backlog, due_at
from alkstore_mem.engine import MemEngine
from alkstore_mem.queue import Queues
from alkstore_mem.transaction import MemTransaction

# ---------------------------------------------------------------- what an enqueue writes


@mutant("default-budget-is-four", kills="Q-01")
class DefaultBudgetIsFour(MemEngine):
    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        return await super().insert_jobs(
            [job._replace(max_attempts=4) if job.max_attempts == 3 else job for job in jobs]
        )


@mutant("handle-options-ignored", kills="Q-02", wide="whatever gives its own timeout or budget")
def handle_options_ignored(patch: Patch) -> None:
    original = Store.queue
    patch.attribute(Store, "queue", lambda store, name, **options: original(store, name))


@mutant("delay-ignored", kills="Q-03", wide="whatever enqueues for later")
class DelayIgnored(MemEngine):
    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        return await super().insert_jobs(
            [job._replace(delay=None if job.delay is None else 0) for job in jobs]
        )


@mutant("ids-given-again", kills="Q-04")
class IdsGivenAgain(MemEngine):
    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        if not self._queues.names():
            self._queues._last_id = 0
        return await super().insert_jobs(jobs)


@mutant("batch-not-atomic", kills="Q-22")
def batch_not_atomic(patch: Patch) -> None:
    original = Queue.enqueue_batch

    async def one_by_one(queue: Queue, payloads: Iterable[object], **options: Any) -> list[int]:
        values = payloads if isinstance(payloads, (str, bytes, dict)) else list(payloads)
        try:
            return await original(queue, values, **options)
        except CodecError:
            for value in values:
                await queue.enqueue(value)  # raises at the bad one, and what came before it stays
            raise

    patch.attribute(Queue, "enqueue_batch", one_by_one)


# ---------------------------------------------------------------- who gets which job, and when


@mutant("due-one-microsecond-late", kills="Q-05")
def due_one_microsecond_late(patch: Patch) -> None:
    original = Backlog.claim

    def claim(self: Backlog, worker_ids: Sequence[str], token: int, now: int) -> list[JobRecord]:
        with _hidden(self._delayed, lambda entry: entry >> BITS == now):
            return original(self, worker_ids, token, now)

    patch.attribute(Backlog, "claim", claim)


@contextmanager
def _hidden(heap: list[int], is_hidden: Callable[[int], bool]) -> Iterator[None]:
    hidden = [entry for entry in heap if is_hidden(entry)]
    heap[:] = sorted(entry for entry in heap if not is_hidden(entry))
    yield
    heap[:] = sorted([*heap, *hidden])


@mutant("newest-first", kills="Q-05")
def newest_first(patch: Patch) -> None:
    patch.attribute(
        backlog_module, "rank", lambda row: (-row.run_at - (row.priority << BITS) << BITS) | row.id
    )


@mutant("priority-inverted", kills="Q-05")
def priority_inverted(patch: Patch) -> None:
    patch.attribute(
        backlog_module, "rank", lambda row: (row.run_at + (row.priority << BITS) << BITS) | row.id
    )


@mutant("attempts-not-counted", kills=("Q-06", "Q-24"), wide="whatever looks at attempts, or ends by them")
def attempts_not_counted(patch: Patch) -> None:
    original = Backlog._hand_out

    def hand_out(self: Backlog, row: JobRecord, worker_id: str, token: int, now: int) -> JobRecord:
        return original(self, row._replace(attempts=row.attempts - 1), worker_id, token, now)

    patch.attribute(Backlog, "_hand_out", hand_out)


@mutant("batch-in-id-order", kills="Q-06")
class BatchInIdOrder(MemEngine):
    async def claim_jobs(self, queue: str, worker_ids: Sequence[str]) -> Claimed:
        claimed = await super().claim_jobs(queue, worker_ids)
        return claimed._replace(jobs=sorted(claimed.jobs, key=lambda job: job.id))


@mutant("claimed-row-given-twice", kills="Q-07")
class ClaimedRowGivenTwice(MemEngine):
    """Looks, then takes: who comes between the two is given the same rows."""

    _claiming = 0
    _seen: Claimed | None = None

    async def claim_jobs(self, queue: str, worker_ids: Sequence[str]) -> Claimed:
        self._claiming += 1
        try:
            await asyncio.sleep(0)
            seen, self._seen = self._seen, None
            if self._claiming > 1 and seen is not None:
                return seen._replace(jobs=seen.jobs[: len(worker_ids)])
            self._seen = await super().claim_jobs(queue, worker_ids)
            return self._seen
        finally:
            self._claiming -= 1


@mutant("lapsed-claim-never-returns", kills=("Q-08", "Q-21"), wide="whatever lets a claim lapse")
def lapsed_claim_never_returns(patch: Patch) -> None:
    claim, next_at = Backlog.claim, Backlog.next_at

    def blind_claim(self: Backlog, worker_ids: Sequence[str], token: int, now: int) -> list[JobRecord]:
        with _hidden(self._deadlines, lambda entry: True):
            return claim(self, worker_ids, token, now)

    def blind_next_at(self: Backlog, now: int) -> int | None:
        with _hidden(self._deadlines, lambda entry: True):
            return next_at(self, now)

    patch.attribute(Backlog, "claim", blind_claim)
    patch.attribute(Backlog, "next_at", blind_next_at)


@mutant("one-attempt-too-many", kills=("Q-08", "Q-24"), wide="whatever uses up its attempts")
class OneAttemptTooMany(MemEngine):
    """Counts to one more than it shows."""

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        return await super().insert_jobs([job._replace(max_attempts=job.max_attempts + 1) for job in jobs])

    async def find_jobs(self, queue: str, where: JobFilter) -> Sequence[JobRecord]:
        return [_shown(job) for job in await super().find_jobs(queue, where)]

    async def claim_jobs(self, queue: str, worker_ids: Sequence[str]) -> Claimed:
        claimed = await super().claim_jobs(queue, worker_ids)
        return claimed._replace(jobs=[_shown(job) for job in claimed.jobs])


def _shown(job: JobRecord) -> JobRecord:
    return job._replace(max_attempts=job.max_attempts - 1)


@mutant("exhausted-row-stranded", kills=("Q-08", "Q-24"))
def exhausted_row_stranded(patch: Patch) -> None:
    original = Backlog._bury_lapsed

    def bury_lapsed(self: Backlog, now: int, most: int | None = None) -> int:
        return 0 if most is not None else original(self, now)

    patch.attribute(Backlog, "_bury_lapsed", bury_lapsed)


@mutant("expired-row-claimed", kills="Q-16")
def expired_row_claimed(patch: Patch) -> None:
    def following(self: Backlog, now: int) -> JobRecord | None:
        while self._ready:
            entry = heappop(self._ready)
            row = self.rows.get(entry & ID)
            if row is None or backlog_module.rank(row) != entry:
                continue
            if now < due_at(row):
                self.place(row, now)
            elif row.deadline is None or row.attempts < row.max_attempts:
                return row
        return None

    patch.attribute(Backlog, "_next", following)


@mutant("enqueue-wakes-nobody", kills="Q-21")
def enqueue_wakes_nobody(patch: Patch) -> None:
    def insert(self: Queues, jobs: Sequence[NewJob]) -> list[int]:
        now = self._state.clock.now()
        rows = [self.make(job, now) for job in jobs]
        self.land(rows, now)
        return [row.id for row in rows]

    patch.attribute(Queues, "insert", insert)


@mutant("last-waiter-served-first", kills="Q-21")
def last_waiter_served_first(patch: Patch) -> None:
    original = ClaimPump._first

    def first(self: ClaimPump) -> list[Want]:
        return original(self)[::-1]

    patch.attribute(ClaimPump, "_first", first)


@mutant("cancelled-wait-strands-its-job", kills="Q-21")
def cancelled_wait_strands_its_job(patch: Patch) -> None:
    async def release(self: ClaimPump, jobs: Sequence[JobRecord]) -> None:
        """Forget them."""

    patch.attribute(ClaimPump, "_release", release)


# ---------------------------------------------------------------- around a handle


@mutant("tx-ack-is-ignored", kills="Q-23")
def tx_ack_is_ignored(patch: Patch) -> None:
    async def settle_jobs(self: MemTransaction, settles: Sequence[Ack]) -> Sequence[int | None]:
        return [self._state.clock.now()] * len(settles)

    patch.attribute(MemTransaction, "settle_jobs", settle_jobs)


@mutant("tx-sees-what-it-acked", kills="Q-23")
def tx_sees_what_it_acked(patch: Patch) -> None:
    original = MemTransaction.find_jobs

    async def blind(self: MemTransaction, queue: str, where: JobFilter) -> Sequence[JobRecord]:
        acked, self._acked = self._acked, []
        try:
            return await original(self, queue, where)
        finally:
            self._acked = acked

    patch.attribute(MemTransaction, "find_jobs", blind)


@mutant("tx-acked-row-lapses", kills="Q-23")
def tx_acked_row_lapses(patch: Patch) -> None:
    original = Backlog._next

    def blind(self: Backlog, now: int) -> JobRecord | None:
        acked, self._acked = self._acked, ()
        try:
            return original(self, now)
        finally:
            self._acked = acked

    patch.attribute(Backlog, "_next", blind)


@mutant("rolled-back-ack-stays", kills="Q-23")
def rolled_back_ack_stays(patch: Patch) -> None:
    async def settle_jobs(self: MemTransaction, settles: Sequence[Ack]) -> Sequence[int | None]:
        return self._queues.settle(settles)

    patch.attribute(MemTransaction, "settle_jobs", settle_jobs)


Exit = Callable[
    [JobHandle, type[BaseException] | None, BaseException | None, TracebackType | None], Awaitable[None]
]


@mutant("lost-ack-is-silent", kills="Q-28")
def lost_ack_is_silent(patch: Patch) -> None:
    original: Exit = JobHandle.__aexit__

    async def leave(self: JobHandle, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is None and self._consumed is None:
            await self.ack()
        else:
            await original(self, kind, error, traceback)

    patch.attribute(JobHandle, "__aexit__", leave)


@mutant("exception-acks", kills="Q-28")
def exception_acks(patch: Patch) -> None:
    original: Exit = JobHandle.__aexit__

    async def leave(self: JobHandle, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, Exception) and self._consumed is None:
            await self.ack()
        else:
            await original(self, kind, error, traceback)

    patch.attribute(JobHandle, "__aexit__", leave)
