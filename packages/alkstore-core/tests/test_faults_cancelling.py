"""Every operation cancelled after every turn of the loop, over a wire that is slow both ways (DUR-08, Q-21, DUR-11)."""

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest
from faulty import FaultyStore, turn, warped

from alkstore import AlkstoreError, JobHandle, StopToken

Operation = Callable[[FaultyStore], Awaitable[object]]
TURNS = 3
LONGEST = 120
"""Turns that any of the operations takes at most over this wire."""


def soon(call: Callable[[], object], turns: int = 40) -> None:
    """Call after so many turns of the loop."""
    loop = asyncio.get_running_loop()
    loop.call_soon(soon, call, turns - 1) if turns else call()


async def enqueue(store: FaultyStore) -> None:
    await store.queue("other").enqueue(1)


async def claim(store: FaultyStore) -> None:
    await store.queue("q").claim()


async def claim_one(store: FaultyStore) -> None:
    await store.queue("q").claim_one()


async def claim_and_handle(store: FaultyStore) -> None:
    async for handle in store.queue("q").claims():
        async with handle:
            await asyncio.sleep(0)
        return


async def run_once(store: FaultyStore) -> None:
    async def handle_it(handle: JobHandle) -> None:
        async with handle.hold():
            await asyncio.sleep(0)

    await store.queue("q").run_once(handle_it)


async def listen(store: FaultyStore) -> None:
    async with store.listen("c") as receiver:
        await store.notify("c")
        await receiver.recv()


async def subscribe(store: FaultyStore) -> None:
    async with store.stream("s").subscribe("me", after=0) as receiver:
        event = await receiver.recv()
        assert event is not None
        await receiver.save(event)


async def lock(store: FaultyStore) -> None:
    async with store.lock("l"):
        await asyncio.sleep(0)


async def lock_in_time(store: FaultyStore) -> None:
    async with store.lock("l", timeout=60):
        await asyncio.sleep(0)


async def transaction(store: FaultyStore) -> None:
    async with store.begin_tx() as tx:
        await tx.enqueue("other", 1)
        await tx.publish("other", 1)
        await tx.read_from_consumer("s", "me")


async def rolled_back(store: FaultyStore) -> None:
    tx = await store.begin_tx()
    try:
        await tx.read_from_consumer("s", "me")
    finally:
        await tx.rollback()


async def acked_in_a_transaction(store: FaultyStore) -> None:
    handle = await store.queue("q").claim()
    assert handle is not None
    async with handle, store.begin_tx() as tx:
        await tx.ack(handle)


async def run_schedules(store: FaultyStore) -> None:
    stop = StopToken()
    soon(stop.cancel)
    await store.run_schedules(stop)


async def supervise_schedules(store: FaultyStore) -> None:
    stop = StopToken()
    soon(stop.cancel)
    await store.supervise_schedules(stop)


async def run_outbox(store: FaultyStore) -> None:
    stop = StopToken()

    async def deliver(handle: JobHandle) -> None:
        stop.cancel()

    await store.outbox("o").run(deliver, stop=stop, concurrency=2)


OPERATIONS = [
    enqueue, claim, claim_one, claim_and_handle, run_once, listen, subscribe, lock, lock_in_time, transaction,
    rolled_back, acked_in_a_transaction, run_schedules, supervise_schedules, run_outbox,
]  # fmt: skip


async def cancelled_after(store: FaultyStore, operation: Operation, turns: int, times: int) -> bool:
    """Cancel an operation after so many turns, ``times`` in consecutive turns; True if it had ended before."""
    running = asyncio.ensure_future(operation(store))
    await turn(turns)
    had_ended = running.done()
    for _ in range(times):
        running.cancel()
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await asyncio.wait((running,))
    if not running.cancelled():
        error = running.exception()
        assert error is None or isinstance(error, AlkstoreError), repr(error)
        del error
    return had_ended


async def nothing_is_left(store: FaultyStore) -> None:
    await asyncio.sleep(2)  # the loop's time only: what was begun goes on to its end
    await turn(TURNS * 20)
    state = (
        store.open_watches,
        store.open_transactions,
        [lock.name for lock in store.mem._inner._locks.held()],
        list(store._pumps),
        [task.get_coro() for task in store._tasks],
        list(store._watches),
        list(store._runners),
        store._open_transactions,
    )
    assert state == ([], 0, [], [], [], [], [], 0)


@pytest.mark.parametrize("persists", [False, True])
@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_nothing_is_left_of_an_operation_that_is_cancelled_anywhere(
    operation: Operation, times: int, persists: bool
) -> None:
    @warped
    async def check() -> None:
        async with FaultyStore(turns=TURNS) as store:
            store.wire.persists = persists
            await store.stream("s").publish(1)
            await store.schedule("x", "@every 1h", "other", 1)
            for turns in range(LONGEST):
                await store.queue("q").enqueue(1)
                await store.outbox("o").enqueue(1)
                if await cancelled_after(store, operation, turns, times):
                    break
                gc.collect(0)
                await nothing_is_left(store)
                stats = await store.queue("q").stats()
                assert stats.processing == 0, turns
            else:
                raise AssertionError(f"{operation} takes more than {LONGEST} turns")

    check()


@pytest.mark.parametrize("operation", [claim, claim_one])
def test_a_claim_that_is_cancelled_anywhere_uses_no_attempt_and_loses_no_job(operation: Operation) -> None:
    @warped
    async def check() -> None:
        async with FaultyStore(turns=TURNS) as store:
            id = await store.queue("q").enqueue(1)
            for turns in range(LONGEST):
                if await cancelled_after(store, operation, turns, 1):
                    break
                await nothing_is_left(store)
                job = await store.queue("q").get_job(id)
                assert job is not None
                assert (job.state.name, job.attempts) == ("PENDING", 0), turns
            else:
                raise AssertionError("never ended")

    check()


@warped
async def test_a_row_whose_transaction_is_cancelled_anywhere_is_written_whole_or_not_at_all() -> None:
    async with FaultyStore(turns=TURNS) as store:
        await store.stream("s").publish(1)
        for turns in range(LONGEST):
            before = (
                (await store.queue("other").stats()).ready,
                len(await store.stream("other").read_since(0, 500)),
            )
            ended = await cancelled_after(store, transaction, turns, 1)
            await nothing_is_left(store)
            after = (
                (await store.queue("other").stats()).ready,
                len(await store.stream("other").read_since(0, 500)),
            )
            assert after in (before, (before[0] + 1, before[1] + 1)), turns
            if ended:
                break


@warped
async def test_callers_cancelled_anywhere_in_a_batch_leave_the_others_one_row_each() -> None:
    for turns in range(4 * TURNS):
        async with FaultyStore(turns=TURNS) as store:
            calls = [asyncio.ensure_future(store.queue("q").enqueue(at)) for at in range(9)]
            await turn(turns)
            for call in calls[::2]:
                call.cancel()
            await asyncio.wait(calls)
            await nothing_is_left(store)

            stored = [job.payload for job in await store.queue("q").list()]
            landed = [at for at, call in enumerate(calls) if not call.cancelled()]
            assert len(stored) == len(set(map(str, stored)))
            assert set(landed) <= set(stored)


@pytest.mark.parametrize("fault", ["refusing", "losing"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_enqueue_in_a_batch_that_fails_never_leaves_two_rows(fault: str, at: int) -> None:
    @warped
    async def check() -> None:
        async with FaultyStore(turns=TURNS) as store:
            first = asyncio.ensure_future(store.queue("q").enqueue(0))
            await turn(1)
            calls = [first, *(asyncio.ensure_future(store.queue("q").enqueue(n)) for n in range(1, 6))]
            if at == 1:
                getattr(store.wire, fault)["insert_jobs"] = 1
            else:
                await asyncio.wait((first,))
                getattr(store.wire, fault)["insert_jobs"] = at - 1

            answers = await asyncio.gather(*calls, return_exceptions=True)

            rows = [job.payload for job in await store.queue("q").list()]
            assert len(rows) == len(set(map(str, rows)))
            answered = {n for n, answer in enumerate(answers) if isinstance(answer, int)}
            assert answered <= set(rows)
            if fault == "refusing":
                assert answered == set(rows)

    check()


@warped
async def test_a_thousand_waits_that_end_in_every_way_leave_nothing() -> None:
    async with FaultyStore(turns=1) as store:
        holder = await store.try_lock("held", 3_600)
        assert holder is not None

        async def wait(at: int) -> None:
            kind, way = at % 4, at // 4 % 3
            limit = 0.5 if way == 0 else None
            async with asyncio.timeout(None if way == 0 else 1 + at % 7 / 10):
                if kind == 0:
                    await store.queue("empty").claim(timeout=limit)
                elif kind == 1:
                    await store.lock("held", timeout=limit)
                elif kind == 2:
                    async with store.listen("quiet") as receiver:
                        await receiver.recv_timeout(0.5) if limit else await receiver.recv()
                else:
                    async with store.stream("quiet").subscribe() as events:
                        await (asyncio.wait_for(events.recv(), limit) if limit else events.recv())

        waits = [asyncio.ensure_future(wait(at)) for at in range(1_000)]
        await turn()
        for wait_ in waits[::5]:
            wait_.cancel()
        ended = await asyncio.gather(*waits, return_exceptions=True)
        assert {type(end).__name__ for end in ended} <= {
            "NoneType",
            "TimeoutError",
            "LockTimeout",
            "CancelledError",
        }
        await holder.release()
        del ended, waits

        gc.collect()
        await nothing_is_left(store)
        assert len(store._tracked) == 0
        assert len(store._turns) == 0
