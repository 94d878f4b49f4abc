"""Every operation cancelled after every turn of the loop, over a wire that is slow both ways (DUR-08, Q-21, DUR-11)."""

import asyncio
import gc

import pytest
from cancelling import (
    OPERATIONS,
    Operation,
    cancel,
    claim,
    claim_one,
    left_in,
    prepare,
    supply,
    transaction,
)
from faulty import FaultyStore, turn, warped

TURNS = 3
LONGEST = 120
"""Turns that any of the operations takes at most over this wire."""


async def cancelled_after(store: FaultyStore, operation: Operation, turns: int, times: int) -> bool:
    """Cancel an operation after so many turns, ``times`` in consecutive turns; True if it had ended before."""
    running = asyncio.ensure_future(operation(store))
    await turn(turns)
    had_ended = running.done()
    await cancel(running, times)
    return had_ended


async def nothing_is_left(store: FaultyStore) -> None:
    await asyncio.sleep(2)  # the loop's time only: what was begun goes on to its end
    await turn(TURNS * 20)
    held = [lock.name for lock in store.mem._inner._locks.held()]
    assert (store.open_watches, store.open_transactions, held, left_in(store)) == ([], 0, [], [])


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
            await prepare(store)
            for turns in range(LONGEST):
                await supply(store)
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
