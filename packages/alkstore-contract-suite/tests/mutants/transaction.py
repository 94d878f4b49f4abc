"""Transactions that are not quite, each in exactly one way."""

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from mutant import Patch, mutant

from alkstore import Closed, InsideTransaction, Store, Tx
from alkstore.clock import Clock
from alkstore.engine import EventRecord, NewJob
from alkstore.life import Life
from alkstore.names import OUTBOX_PREFIX
from alkstore_mem.engine import MemEngine
from alkstore_mem.hold import Holds
from alkstore_mem.transaction import MemTransaction

# ---------------------------------------------------------------- all of it, at one instant


@mutant(
    "transactions-write-at-once",
    kills=("TX-01", "TX-02"),
    wide="whatever a transaction holds back until its commit",
)
def transactions_write_at_once(patch: Patch) -> None:
    async def at_once(tx: MemTransaction, jobs: Sequence[NewJob]) -> Sequence[int]:
        return tx._queues.insert(jobs)

    patch.attribute(MemTransaction, "insert_jobs", at_once)


@mutant("commit-loses-the-positions", kills="TX-01", wide="whatever saves a position in a transaction")
def commit_loses_the_positions(patch: Patch) -> None:
    original = MemTransaction.commit

    async def lossy(tx: MemTransaction) -> None:
        tx._saves.clear()
        await original(tx)

    patch.attribute(MemTransaction, "commit", lossy)


@mutant("commit-in-two-steps", kills=("TX-01", "TX-09", "DUR-11"))
def commit_in_two_steps(patch: Patch) -> None:
    original = MemTransaction.commit

    async def halved(tx: MemTransaction) -> None:
        jobs, tx._jobs = list(tx._jobs.values()), {}
        tx._state.wake(tx._queues.land(jobs, tx._state.clock.now()))
        await asyncio.sleep(0)
        await original(tx)

    patch.attribute(MemTransaction, "commit", halved)


@mutant("wakes-before-the-commit", kills="TX-01")
def wakes_before_the_commit(patch: Patch) -> None:
    original = MemTransaction.commit

    async def hasty(tx: MemTransaction) -> None:
        channels, tx._channels = tx._channels, []
        tx._wakes.notify(channels)
        for _ in range(4):
            await asyncio.sleep(0)
        await original(tx)

    patch.attribute(MemTransaction, "commit", hasty)


# ---------------------------------------------------------------- what it sees


@mutant("tx-reads-miss-its-own-writes", kills="TX-02")
def tx_reads_miss_its_own_writes(patch: Patch) -> None:
    async def blind(tx: MemTransaction, stream: str, after: int, limit: int) -> Sequence[EventRecord]:
        return tx._streams.read(stream, after, limit)

    patch.attribute(MemTransaction, "read_events", blind)


@mutant("tx-reads-a-snapshot", kills="TX-02")
def tx_reads_a_snapshot(patch: Patch) -> None:
    original = MemTransaction.read_events
    seen: dict[tuple[int, str, int], Sequence[EventRecord]] = {}

    async def frozen(tx: MemTransaction, stream: str, after: int, limit: int) -> Sequence[EventRecord]:
        key = (id(tx), stream, after)
        if key not in seen or tx._events:
            seen[key] = await original(tx, stream, after, limit)
        return seen[key]

    patch.attribute(MemTransaction, "read_events", frozen)


# ---------------------------------------------------------------- how it ends


@mutant("exception-commits", kills="TX-03")
def exception_commits(patch: Patch) -> None:
    async def lenient(
        tx: Tx,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if tx._is_open:
            await tx.commit()

    patch.attribute(Tx, "__aexit__", lenient)


@mutant("rolled-back-job-stays", kills="TX-03")
def rolled_back_job_stays(patch: Patch) -> None:
    original = MemTransaction.rollback

    async def leaky(tx: MemTransaction) -> None:
        kept = [row for row in tx._jobs.values() if not row.queue.startswith(OUTBOX_PREFIX)]
        if tx.is_open:
            tx._queues.land(kept, tx._state.clock.now())
        await original(tx)

    patch.attribute(MemTransaction, "rollback", leaky)


@mutant("exit-after-commit-fails", kills="TX-03")
def exit_after_commit_fails(patch: Patch) -> None:
    original = Tx.__aexit__

    async def strict(
        tx: Tx,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not tx._is_open:
            raise Closed("transaction")
        await original(tx, exc_type, exc, traceback)

    patch.attribute(Tx, "__aexit__", strict)


@mutant("a-dropped-tx-holds-on", kills="TX-03")
def a_dropped_tx_holds_on(patch: Patch) -> None:
    patch.attribute(MemTransaction, "abandon", lambda tx: None)


@mutant("ended-tx-still-writes", kills=("TX-04", "DUR-06"))
def ended_tx_still_writes(patch: Patch) -> None:
    patch.attribute(Tx, "_check_open", lambda tx: None)
    patch.attribute(MemTransaction, "_enter", lambda tx: None)


@mutant("two-tasks-in-one-tx", kills="TX-04")
def two_tasks_in_one_tx(patch: Patch) -> None:
    @contextmanager
    def shared(tx: Tx) -> Generator[None, None, None]:
        tx._check_open()
        tx._task = asyncio.current_task()
        yield

    patch.attribute(Tx, "_using", shared)


@mutant("connection-is-none", kills="TX-06")
def connection_is_none(patch: Patch) -> None:
    patch.attribute(MemTransaction, "connection", property(lambda tx: None))


# ---------------------------------------------------------------- beside it


@mutant("writes-beside-the-tx-are-let-through", kills="TX-07")
def writes_beside_the_tx_are_let_through(patch: Patch) -> None:
    patch.attribute(Life, "_check_outside", lambda store, operation, twin: None)


@mutant("runners-pass-beside-the-tx", kills="TX-07")
def runners_pass_beside_the_tx(patch: Patch) -> None:
    original = Life._check_outside

    def lax(store: Store, operation: str, twin: str | None) -> None:
        if operation not in ("Outbox.run", "Store.run_schedules", "Store.supervise_schedules"):
            original(store, operation, twin)

    patch.attribute(Life, "_check_outside", lax)


@mutant("siblings-are-blamed", kills="TX-07")
def siblings_are_blamed(patch: Patch) -> None:
    def blame(store: Store, operation: str, twin: str | None) -> None:
        raise InsideTransaction(operation, twin)

    patch.attribute(Life, "_check_outside", blame)


@mutant("outside-tx-does-nothing", kills="TX-07")
def outside_tx_does_nothing(patch: Patch) -> None:
    def deaf(store: Store, operation: str, twin: str | None) -> None:
        if any(tx._task is asyncio.current_task() and tx._is_open for tx in store._transactions):
            raise InsideTransaction(operation, twin)

    patch.attribute(Life, "_check_outside", deaf)


@mutant("second-tx-overwrites-the-first", kills="TX-08")
def second_tx_overwrites_the_first(patch: Patch) -> None:
    begin, commit = MemTransaction.__init__, MemTransaction.commit

    def remember(tx: Any, *parts: Any) -> None:
        begin(tx, *parts)
        tx.last_id_seen = tx._queues._last_id

    async def overwrite(tx: Any) -> None:
        await commit(tx)
        own = set(tx._jobs)
        for name in {row.queue for row in tx._jobs.values()}:
            backlog = tx._queues._backlogs[name]
            for row in list(backlog.rows.values()):
                if row.id > tx.last_id_seen and row.id not in own:
                    backlog.remove(row)

    patch.attribute(MemTransaction, "__init__", remember)
    patch.attribute(MemTransaction, "commit", overwrite)


@mutant("holds-outlive-the-tx", kills="TX-08")
def holds_outlive_the_tx(patch: Patch) -> None:
    patch.attribute(Holds, "release", lambda holds, holder: None)


@mutant("deadlocks-are-waited-out", kills="TX-08")
def deadlocks_are_waited_out(patch: Patch) -> None:
    patch.attribute(Holds, "_would_close_a_circle", lambda holds, owner, asking: False)


@mutant("waits-have-no-limit", kills="TX-08")
class WaitsHaveNoLimit(MemEngine):
    def __init__(self, clock: Clock, *, wait_timeout: float = 30.0) -> None:
        super().__init__(clock, wait_timeout=1_000.0)


@mutant("open-tx-holds-the-store", kills="TX-09")
class OpenTxHoldsTheStore(MemEngine):
    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        while self._state.open:  # noqa: ASYNC110  # nobody in an engine this wrong would set an event
            await asyncio.sleep(0)
        return await super().insert_jobs(jobs)
