"""Outboxes that lose entries, deliver them wrongly, or hide what became of a delivery."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from mutant import Patch, mutant

from alkstore import AlkstoreError, JobHandle, Outbox, StopToken, names
from alkstore import outbox as delivering
from alkstore.engine import EngineTransaction, JobFilter, JobRecord, NewJob
from alkstore.names import OUTBOX_PREFIX
from alkstore.stamps import PLAIN
from alkstore_mem.engine import MemEngine
from alkstore_mem.transaction import MemTransaction

Delivery = Callable[[JobHandle], Awaitable[object]]


@mutant("outbox-name-is-cut", kills="OBX-01")
class OutboxNameIsCut(MemEngine):
    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        return await super().insert_jobs([job._replace(queue=job.queue[:255]) for job in jobs])

    async def find_jobs(self, queue: str, where: JobFilter) -> Sequence[JobRecord]:
        return await super().find_jobs(queue[:255], where)


@mutant("backing-queue-is-reachable", kills="OBX-01")
def backing_queue_is_reachable(patch: Patch) -> None:
    original = names.shared

    def shared(name: Any, what: str) -> str:
        if what == "queue name" and isinstance(name, str) and name.startswith(OUTBOX_PREFIX):
            return name
        return original(name, what)

    patch.attribute(names, "shared", shared)


@mutant("outbox-has-a-plain-queues-stamps", kills="OBX-02")
def outbox_has_a_plain_queues_stamps(patch: Patch) -> None:
    patch.attribute(delivering, "OUTBOX", PLAIN)


class _KeepsOutboxRows(MemTransaction):
    async def rollback(self) -> None:
        kept = [row for row in self._jobs.values() if row.queue.startswith(OUTBOX_PREFIX)]
        await super().rollback()
        self._queues.land(kept, self._state.clock.now())


@mutant("outbox-row-survives-rollback", kills="OBX-02")
class OutboxRowSurvivesRollback(MemEngine):
    async def begin(self, *place: Any, **named: Any) -> EngineTransaction:
        tx = await super().begin(*place, **named)
        assert isinstance(tx, MemTransaction)
        tx.__class__ = _KeepsOutboxRows
        return tx


def _delivering(name: str, kills: str) -> Callable[[Callable[[JobHandle, Delivery], Awaitable[None]]], None]:
    """Declare a mutant that delivers one claimed entry in its own way."""

    def declare(deliver: Callable[[JobHandle, Delivery], Awaitable[None]]) -> None:
        def plant(patch: Patch) -> None:
            patch.attribute(delivering, "_deliver", deliver)

        mutant(name, kills=kills)(plant)

    return declare


HONEST = delivering._deliver


@_delivering("outbox-acks-before-delivery", "OBX-03")
async def acks_before_delivery(handle: JobHandle, delivery: Delivery) -> None:
    await handle.ack()
    await delivery(handle)


@_delivering("outbox-acks-on-error", "OBX-03")
async def acks_on_error(handle: JobHandle, delivery: Delivery) -> None:
    async def quiet(handle: JobHandle) -> None:
        try:
            await delivery(handle)
        except Exception:  # the planted fault: a failed delivery counts as one
            return

    await HONEST(handle, quiet)


@_delivering("outbox-lets-our-own-errors-through", "OBX-03")
async def lets_our_own_errors_through(handle: JobHandle, delivery: Delivery) -> None:
    raised: list[AlkstoreError] = []

    async def telling(handle: JobHandle) -> None:
        try:
            await delivery(handle)
        except AlkstoreError as error:
            raised.append(error)
            raise

    await HONEST(handle, telling)
    if raised:
        raise raised[0]


@_delivering("outbox-retries-at-once", "OBX-03")
async def retries_at_once(handle: JobHandle, delivery: Delivery) -> None:
    try:
        await delivery(handle)
    except Exception as error:
        await handle.retry(error=error, delay=0)
    else:
        await handle.ack()


@_delivering("outbox-acks-what-was-not-awaited", "OBX-03")
async def acks_what_was_not_awaited(handle: JobHandle, delivery: Delivery) -> None:
    async def lenient(handle: JobHandle) -> None:
        result: Any = delivery(handle)
        if inspect.isawaitable(result):
            await result

    await HONEST(handle, lenient)


@_delivering("outbox-heartbeats", "OBX-04")
async def heartbeats(handle: JobHandle, delivery: Delivery) -> None:
    async with handle.hold():
        await HONEST(handle, delivery)


@_delivering("outbox-forgets-the-error", "OBX-06")
async def forgets_the_error(handle: JobHandle, delivery: Delivery) -> None:
    try:
        await delivery(handle)
    except Exception:
        await handle.retry()
    else:
        await handle.ack()


@_delivering("outbox-swallows-cancellation", "OBX-07")
async def swallows_cancellation(handle: JobHandle, delivery: Delivery) -> None:
    try:
        await delivery(handle)
    except BaseException as error:  # the planted fault
        await handle.retry(error=str(error))
    else:
        await handle.ack()


@_delivering("outbox-releases-on-cancellation", "OBX-07")
async def releases_on_cancellation(handle: JobHandle, delivery: Delivery) -> None:
    try:
        await HONEST(handle, delivery)
    except asyncio.CancelledError:
        await handle.release()
        raise


@mutant("outbox-run-cancels-on-stop", kills="OBX-09")
def outbox_run_cancels_on_stop(patch: Patch) -> None:
    original = Outbox.run

    async def run(outbox: Outbox, delivery: Delivery, *, stop: StopToken, concurrency: int = 1) -> None:
        running = asyncio.ensure_future(original(outbox, delivery, stop=StopToken(), concurrency=concurrency))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        for task in (running, stopping):
            task.cancel()
        await asyncio.wait((running, stopping))

    patch.attribute(Outbox, "run", run)


@mutant("outbox-run-ignores-concurrency", kills="OBX-09")
def outbox_run_ignores_concurrency(patch: Patch) -> None:
    original = Outbox.run

    async def run(outbox: Outbox, delivery: Delivery, *, stop: StopToken, concurrency: int = 1) -> None:
        await original(outbox, delivery, stop=stop, concurrency=1)

    patch.attribute(Outbox, "run", run)
