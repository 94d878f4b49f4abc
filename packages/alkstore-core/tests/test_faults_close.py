"""Closing a store whose storage is slow, deaf or gone (DUR-06)."""

import asyncio

import pytest
from faulty import FaultyStore, turn, warped

from alkstore import Closed, DatabaseError, JobHandle, StopToken, Tx
from alkstore.engine import Traits
from alkstore.names import SCHEDULER_LOCK

CALLS = ("insert_jobs", "claim_jobs", "take_lock", "begin", "fire_schedules", "sweep_jobs", "watch")


@warped
async def test_a_close_takes_five_seconds_however_much_hangs() -> None:
    store = await FaultyStore()
    transactions = [await asyncio.ensure_future(_begin(store)) for _ in range(5)]
    for name in ("tx.rollback", "insert_jobs", "take_lock", "aclose"):
        store.wire.hang(name)
    calls = [asyncio.ensure_future(store.queue("q").enqueue(at)) for at in range(3)]
    locking = asyncio.ensure_future(store.try_lock("l", 30))
    await turn()
    began = asyncio.get_running_loop().time()

    await store.aclose()

    assert asyncio.get_running_loop().time() - began < 7
    for call in (*calls, locking):
        call.cancel()
    await asyncio.wait((*calls, locking))
    assert all(not tx._is_open for tx in transactions)


@warped
async def test_a_close_while_the_storage_hangs_leaves_no_task() -> None:
    store = await FaultyStore()
    for name in CALLS:
        store.wire.hang(name)
    queue, stop = store.queue("q"), StopToken()
    calls = [
        asyncio.ensure_future(call)
        for call in (
            queue.enqueue(1), queue.enqueue(2), queue.claim(), queue.claim_one(), store.try_lock("l", 30), _lock(store),
            _begin(store), store.run_schedules(stop), store.supervise_schedules(stop),
        )
    ]  # fmt: skip
    await turn()

    await store.aclose()
    await turn()
    direct = calls.pop(0)
    assert not direct.done()  # the engine's to end, and this one's is deaf
    direct.cancel()
    await asyncio.wait((direct,))

    assert [type(call.exception()) if call.done() else call for call in calls] == [Closed] * 6 + [
        type(None)
    ] * 2


async def _begin(store: FaultyStore) -> Tx:
    return await store.begin_tx()


async def _lock(store: FaultyStore) -> None:
    async with store.lock("m"):
        pass


@warped
async def test_a_transaction_whose_beginning_ends_after_the_close_began_is_not_handed_out() -> None:
    store = await FaultyStore()
    gate = store.wire.hang_answers("begin")
    beginning = asyncio.ensure_future(_begin(store))
    await turn()

    closing = asyncio.ensure_future(store.aclose())
    await turn()
    gate.set()
    await closing

    with pytest.raises(Closed):
        await beginning
    assert store.open_transactions == 0


@warped
async def test_a_commit_that_was_handed_over_before_the_close_lands() -> None:
    store = await FaultyStore()
    gate = store.wire.hang("tx.commit")
    tx = await store.begin_tx()
    await tx.enqueue("q", 1)
    committing = asyncio.ensure_future(tx.commit())
    await turn()

    closing = asyncio.ensure_future(store.aclose())
    await turn()
    gate.set()
    await closing

    await committing
    assert store.wire.done["tx.commit"] == 1


@warped
async def test_a_receiver_whose_opening_ends_after_the_close_began_is_not_handed_out() -> None:
    store = await FaultyStore()
    gate = store.wire.hang_answers("watch")
    openings = [asyncio.ensure_future(opening) for opening in (_listen(store), _subscribe(store))]
    await turn()

    closing = asyncio.ensure_future(store.aclose())
    await turn()
    gate.set()
    await closing

    assert [type(error) for error in await asyncio.gather(*openings, return_exceptions=True)] == [
        Closed,
        Closed,
    ]
    assert store.open_watches == []


async def _listen(store: FaultyStore) -> None:
    async with store.listen("c"):
        pass


async def _subscribe(store: FaultyStore) -> None:
    async with store.stream("s").subscribe():
        pass


@pytest.mark.parametrize("is_supervised", [False, True])
@pytest.mark.parametrize("call", ["take_lock", "watch"])
def test_a_runner_that_a_close_meets_on_its_way_gives_up_its_lease(is_supervised: bool, call: str) -> None:
    @warped
    async def check() -> None:
        store = await FaultyStore()
        gate = store.wire.hang_answers(call)
        run = store.supervise_schedules if is_supervised else store.run_schedules
        runner = asyncio.ensure_future(run(StopToken()))
        await turn()

        closing = asyncio.ensure_future(store.aclose())
        await turn()
        gate.set()
        began = asyncio.get_running_loop().time()
        await closing

        await runner
        assert asyncio.get_running_loop().time() - began < 1
        assert store.mem._inner._locks._leases.get(SCHEDULER_LOCK, (0, None))[1] is None

    check()


@warped
async def test_a_close_ends_the_rest_of_an_outbox_whose_storage_is_away() -> None:
    store = await FaultyStore()
    store.wire.refusing["claim_jobs"] = 100
    running = asyncio.ensure_future(store.outbox("o").run(_deliver, stop=StopToken()))
    async with asyncio.timeout(60):
        while store.wire.calls["claim_jobs"] < 8:  # noqa: ASYNC110  # back-off has no event to wait for
            await asyncio.sleep(0.1)

    await store.aclose()
    await turn()

    assert running.done()
    await running


async def _deliver(handle: JobHandle) -> None:
    pass


@warped
async def test_an_outbox_claims_nothing_more_once_a_close_began() -> None:
    store = await FaultyStore()
    outbox = store.outbox("o")
    for at in range(2):
        await outbox.enqueue(at)
    is_delivering, may_end = asyncio.Event(), asyncio.Event()

    async def deliver(handle: JobHandle) -> None:
        await handle.ack()  # settled already, so the close refuses the delivery nothing more
        is_delivering.set()
        await may_end.wait()

    running = asyncio.ensure_future(outbox.run(deliver, stop=StopToken()))
    await is_delivering.wait()
    gate = store.wire.hang("sweep_jobs")
    sweeping = store._spawn(store.mem.sweep_jobs("q"))
    closing = asyncio.ensure_future(store.aclose())
    await turn()
    may_end.set()
    await turn()
    gate.set()
    await sweeping
    await closing
    await running

    assert store.wire.done["claim_jobs"] == 1


@warped
async def test_what_a_cancelled_call_gives_back_late_is_waited_for_by_the_close() -> None:
    store = await FaultyStore()
    gate = store.wire.hang_answers("take_lock")
    locking = asyncio.ensure_future(store.try_lock("l", 30))
    await turn()
    locking.cancel()
    await asyncio.wait((locking,))

    closing = asyncio.ensure_future(store.aclose())
    await turn()
    gate.set()
    await closing

    assert store.wire.done["renew_lock"] == 1


@warped
@pytest.mark.parametrize("gives_back", [False, True])
async def test_what_a_call_got_while_the_store_closed_is_undone(gives_back: bool) -> None:
    store = FaultyStore()
    store.mem.traits = Traits(batches=True, gives_back=gives_back)
    assert await store is store
    gates = [store.wire.hang_answers(name) for name in ("take_lock", "begin", "watch")]
    calls = [
        asyncio.ensure_future(store.try_lock("l", 30)),
        asyncio.ensure_future(_begin(store)),
        asyncio.ensure_future(_subscribe(store)),
    ]
    await turn()

    closing = asyncio.ensure_future(store.aclose())
    await turn()
    for gate in gates:
        gate.set()
    await closing
    await asyncio.wait(calls)

    assert [type(call.exception()) for call in calls] == [Closed] * 3
    assert store.wire.done["renew_lock"] == 1
    assert (store.open_transactions, store.open_watches) == (0, [])


@warped
async def test_a_cancelled_close_goes_on_and_a_second_one_waits_for_it() -> None:
    store = await FaultyStore()
    gate = store.wire.hang("aclose")
    first = asyncio.ensure_future(store.aclose())
    await turn()

    first.cancel()
    await asyncio.wait((first,))
    second = asyncio.ensure_future(store.aclose())
    await turn()
    gate.set()
    await second

    assert (first.cancelled(), store.wire.done["aclose"]) == (True, 1)


@warped
async def test_a_flush_that_hangs_through_a_close_is_over_with_it() -> None:
    store = await FaultyStore()
    gate = store.wire.hang("insert_jobs")
    first = asyncio.ensure_future(store.queue("q").enqueue(1))
    await turn()
    second = asyncio.ensure_future(store.queue("q").enqueue(2))
    await turn()
    gate.set()
    gate.clear()  # for those who come next
    await first
    await turn()

    await store.aclose()

    tasks = asyncio.all_tasks()
    assert len(tasks - {second}) == 1
    with pytest.raises(DatabaseError) as caught:
        await second
    assert caught.value.outcome_unknown


@warped
async def test_a_subscription_whose_start_is_read_while_the_store_closes_is_not_handed_out() -> None:
    store = await FaultyStore()
    gate = store.wire.hang("read_head")
    opening = asyncio.ensure_future(_subscribe(store))
    await turn()

    holding = store.wire.hang("aclose")
    closing = asyncio.ensure_future(store.aclose())
    await turn()
    gate.set()
    await turn()

    assert opening.done()
    with pytest.raises(Closed):
        await opening
    holding.set()
    await closing
    assert store.open_watches == []


@warped
async def test_a_delivery_may_close_its_store() -> None:
    store = await FaultyStore()
    await store.outbox("o").enqueue(1)

    async def deliver(handle: JobHandle) -> None:
        await store.aclose()

    async with asyncio.timeout(60):
        await store.outbox("o").run(deliver, stop=StopToken())

    assert store.wire.done["aclose"] == 1
