import asyncio
import gc
import threading

import pytest
from hanging import HUNG

from alkstore.engine import (
    Ack,
    Cancel,
    Engine,
    EngineTransaction,
    JobFilter,
    JobRecord,
    JobState,
    NewEvent,
    NewJob,
    NewWake,
    OffsetSave,
    Release,
    Settle,
    Signal,
    Topic,
    TopicKind,
)
from alkstore.errors import Closed, DatabaseError, InvalidArgument, OffsetConflict
from alkstore.testing import ManualClock
from alkstore_mem.engine import MemEngine

SECOND = 1_000_000
JOB = NewJob("mail", b"1", b"{}", 0, None, None, 300 * SECOND, 3, 5 * SECOND, None)
EVENT = NewEvent("orders", None, b"1", b"{}")
EVERYTHING = JobFilter()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(clock: ManualClock) -> Engine:
    return MemEngine(clock, wait_timeout=0.001)


async def claim(engine: Engine) -> JobRecord:
    (row,) = (await engine.claim_jobs("mail", ["w"])).jobs
    return row


async def ids(engine: Engine | EngineTransaction, where: JobFilter = EVERYTHING) -> list[int]:
    return [row.id for row in await engine.find_jobs("mail", where)]


async def test_a_commit_lands_everything_then_wakes(engine: Engine) -> None:
    topics = [
        Topic(TopicKind.QUEUE, "mail"),
        Topic(TopicKind.STREAM, "orders"),
        Topic(TopicKind.CHANNEL, "bell"),
    ]
    watches = [await engine.watch(topic) for topic in topics]
    tx = await engine.begin()
    await tx.insert_jobs([JOB, JOB])
    await tx.append_events([EVENT])
    await tx.notify([NewWake("bell", None), NewWake("bell", None)])
    await tx.save_offset("orders", "c", 1, None)
    assert (await ids(engine), await engine.read_offsets("orders")) == ([], {})
    assert [watch.poll() for watch in watches] == [None] * 3

    await tx.commit()

    assert await ids(engine) == [1, 2]
    assert await engine.read_offsets("orders") == {"c": 1}
    assert [watch.poll() for watch in watches] == [Signal.WOKEN] * 3
    assert [watch.poll() for watch in watches] == [None, None, Signal.WOKEN]


async def test_a_rollback_leaves_no_trace_and_wakes_no_channel(engine: Engine) -> None:
    watch = await engine.watch(Topic(TopicKind.CHANNEL, "bell"))
    tx = await engine.begin()
    await tx.insert_jobs([JOB])
    await tx.append_events([EVENT])
    await tx.notify([NewWake("bell", None)])
    await tx.save_offset("orders", "c", 1, None)

    await tx.rollback()
    await tx.rollback()

    assert await engine.list_names() == ([], [])
    assert watch.poll() is None
    assert not tx.is_open


async def test_a_transaction_sees_its_own_jobs_among_the_others(engine: Engine) -> None:
    await engine.insert_jobs([JOB, JOB])
    tx = await engine.begin()
    await tx.insert_jobs([JOB, JOB._replace(queue="other")])
    await engine.insert_jobs([JOB])
    row = await claim(engine)
    await tx.settle_jobs([Ack("mail", row.id, row.token or 0)])

    assert await ids(tx) == [2, 3, 5]
    assert await ids(tx, JobFilter(after=2, limit=1)) == [3]
    assert await ids(tx, JobFilter(ids=(1, 3, 4, 5))) == [3, 5]
    assert await ids(tx, JobFilter(state=JobState.DEAD)) == []
    assert await ids(engine) == [1, 2, 5]


async def test_an_acked_row_is_nobody_elses_until_the_end(engine: Engine, clock: ManualClock) -> None:
    await engine.insert_jobs([JOB._replace(expires=SECOND, max_attempts=1)])
    row = await claim(engine)
    ack = Ack("mail", row.id, row.token or 0)
    tx = await engine.begin()

    assert await tx.settle_jobs([ack, ack]) == [clock.now(), None]

    await clock.advance(900)
    settles: list[Settle] = [ack, Release("mail", row.id, row.token or 0), Cancel("mail", row.id)]
    assert await engine.settle_jobs(settles) == [None] * 3
    assert (await engine.claim_jobs("mail", ["w"])).jobs == []
    assert await engine.sweep_jobs("mail") == 0
    assert (await engine.find_jobs("mail", JobFilter()))[0] == row
    await tx.commit()
    assert await ids(engine) == []


async def test_a_rollback_gives_an_acked_row_back_and_wakes_its_queue(
    engine: Engine, clock: ManualClock
) -> None:
    await engine.insert_jobs([JOB])
    row = await claim(engine)
    tx = await engine.begin()
    await tx.settle_jobs([Ack("mail", row.id, row.token or 0)])
    await clock.advance(300)
    assert (await engine.claim_jobs("mail", ["w"])).jobs == []
    watch = await engine.watch(Topic(TopicKind.QUEUE, "mail"))

    await tx.rollback()

    assert watch.poll() is Signal.WOKEN
    assert (await claim(engine)).attempts == 2


async def test_an_ended_transaction_is_closed(engine: Engine) -> None:
    tx = await engine.begin()
    await tx.commit()

    with pytest.raises(Closed):
        await tx.commit()
    with pytest.raises(Closed):
        await tx.insert_jobs([JOB])
    with pytest.raises(Closed):
        await tx.read_offset("orders", "c", hold=True)


async def test_there_is_no_connection_and_nothing_but_a_session_is_joined(engine: Engine) -> None:
    with pytest.raises(InvalidArgument, match="no connection"):
        _ = (await engine.begin()).connection
    with pytest.raises(InvalidArgument, match="joins a SQLAlchemy AsyncSession"):
        await engine.begin(object())


# ---------------------------------------------------------------- positions


async def test_a_save_compares_with_what_is_there(engine: Engine) -> None:
    await engine.move_offset("orders", "c", 5, backwards=False)
    tx = await engine.begin()

    assert await tx.save_offset("orders", "c", 5, None) == OffsetSave(5, False)
    assert await tx.save_offset("orders", "c", 9, 4) == OffsetSave(5, False)
    assert await tx.save_offset("orders", "c", 3, 5) == OffsetSave(5, True)
    assert await tx.read_offset("orders", "c", hold=False) == 3
    assert await tx.save_offset("orders", "c", 4, None) == OffsetSave(3, True)
    await tx.commit()
    assert await engine.read_offsets("orders") == {"c": 4}


@pytest.mark.parametrize(("meanwhile", "after"), [(7, 9), (12, 12)])
async def test_a_plain_save_that_came_between_is_not_lost(engine: Engine, meanwhile: int, after: int) -> None:
    tx = await engine.begin()
    assert (await tx.save_offset("orders", "c", 9, 0)).saved

    assert await engine.move_offset("orders", "c", meanwhile, backwards=False)

    await tx.commit()
    assert await engine.read_offsets("orders") == {"c": after}


async def test_a_reset_that_came_between_makes_the_commit_a_conflict(engine: Engine) -> None:
    await engine.move_offset("orders", "c", 5, backwards=False)
    tx = await engine.begin()
    await tx.insert_jobs([JOB])
    await tx.save_offset("orders", "c", 9, 5)
    await engine.move_offset("orders", "c", 1, backwards=True)
    await tx.save_offset("orders", "c", 10, 9)

    with pytest.raises(OffsetConflict) as caught:
        await tx.commit()

    assert (caught.value.expected, caught.value.found) == (5, 1)
    assert not tx.is_open
    assert await ids(engine) == []
    assert await engine.read_offsets("orders") == {"c": 1}


async def test_a_held_position_makes_another_transaction_wait_its_turn(clock: ManualClock) -> None:
    engine = MemEngine(clock)
    first, second, third = [await engine.begin() for _ in range(3)]
    await first.read_offset("orders", "c", hold=True)
    assert await second.read_offset("orders", "c", hold=False) == 0
    order: list[str] = []

    async def save(tx: EngineTransaction, name: str) -> OffsetSave:
        saved = await tx.save_offset("orders", "c", 7, 5)
        order.append(name)
        await tx.rollback()
        return saved

    waiters = [asyncio.create_task(save(second, "second")), asyncio.create_task(save(third, "third"))]
    await clock.settle()
    assert order == []
    await first.save_offset("orders", "c", 5, 0)
    await first.commit()

    async with asyncio.timeout(HUNG):
        assert await asyncio.gather(*waiters) == [OffsetSave(5, True)] * 2
    assert order == ["second", "third"]


async def test_a_wait_ends_after_wait_timeout_and_with_it_the_transaction(engine: Engine) -> None:
    holder, waiter = await engine.begin(begun="app.py:7"), await engine.begin()
    await holder.read_offset("orders", "c", hold=True)
    await waiter.insert_jobs([JOB])

    async with asyncio.timeout(HUNG):
        with pytest.raises(
            DatabaseError, match=r"'c' in stream 'orders' was held by open transaction 1, begun at app\.py:7"
        ):
            await waiter.save_offset("orders", "c", 1, None)

    assert (holder.is_open, waiter.is_open) == (True, False)
    assert (await holder.save_offset("orders", "c", 1, None)).saved
    await holder.commit()


async def test_of_a_circle_of_waits_one_transaction_lands(clock: ManualClock) -> None:
    engine = MemEngine(clock)
    txs = [await engine.begin() for _ in range(3)]
    for number, tx in enumerate(txs):
        await tx.save_offset("orders", f"c{number}", 1, None)
    waits = [asyncio.create_task(txs[n].save_offset("orders", f"c{n + 1}", 2, None)) for n in range(2)]
    await clock.settle()

    with pytest.raises(DatabaseError, match="which waits for this one"):
        await txs[2].save_offset("orders", "c0", 2, None)

    async with asyncio.timeout(HUNG):
        assert await waits[1] == OffsetSave(0, True)
        await txs[1].commit()
        assert await waits[0] == OffsetSave(1, True)
        await txs[0].commit()
    assert await engine.read_offsets("orders") == {"c0": 1, "c1": 2, "c2": 2}


async def test_a_cancelled_wait_leaves_the_position_to_the_next(clock: ManualClock) -> None:
    engine = MemEngine(clock)
    holder, impatient, patient = [await engine.begin() for _ in range(3)]
    await holder.read_offset("orders", "c", hold=True)
    waits = [asyncio.create_task(tx.read_offset("orders", "c", hold=True)) for tx in (impatient, patient)]
    await clock.settle()

    waits[0].cancel()
    await clock.settle()
    await holder.commit()

    async with asyncio.timeout(HUNG):
        assert await waits[1] == 0
    assert waits[0].cancelled()
    assert impatient.is_open


async def test_a_wait_that_is_cancelled_as_it_is_granted_strands_nobody(clock: ManualClock) -> None:
    engine = MemEngine(clock)
    holder, cancelled, last = [await engine.begin() for _ in range(3)]
    await holder.read_offset("orders", "c", hold=True)
    waits = [asyncio.create_task(tx.read_offset("orders", "c", hold=True)) for tx in (cancelled, last)]
    await clock.settle()

    await holder.commit()
    waits[0].cancel()
    await clock.settle()
    await cancelled.rollback()

    async with asyncio.timeout(HUNG):
        assert await waits[1] == 0


# ---------------------------------------------------------------- abandoned


async def test_an_abandoned_transaction_frees_all_that_it_held(engine: Engine, clock: ManualClock) -> None:
    await engine.insert_jobs([JOB])
    row = await claim(engine)
    tx, waiter = await engine.begin(), await engine.begin()
    await tx.settle_jobs([Ack("mail", row.id, row.token or 0)])
    await tx.append_events([EVENT])
    await tx.read_offset("orders", "c", hold=True)
    await engine.append_events([EVENT])
    watch = await engine.watch(Topic(TopicKind.STREAM, "orders"))

    tx.abandon()
    tx.abandon()

    async with asyncio.timeout(HUNG):
        assert await watch.wait() is Signal.WOKEN
        assert await waiter.read_offset("orders", "c", hold=True) == 0
    assert not tx.is_open
    assert await engine.read_head("orders") == 2
    assert await engine.settle_jobs([Ack("mail", row.id, row.token or 0)]) == [clock.now()]


async def test_the_next_operation_already_sees_an_abandoned_transaction_gone(engine: Engine) -> None:
    tx = await engine.begin()
    await tx.append_events([EVENT])
    await engine.append_events([EVENT])

    tx.abandon()

    assert await engine.read_head("orders") == 2


async def test_a_collector_in_another_thread_may_abandon(engine: Engine) -> None:
    tx = await engine.begin()
    await tx.append_events([EVENT])
    watch = await engine.watch(Topic(TopicKind.STREAM, "orders"))
    thread = threading.Thread(target=tx.abandon)

    thread.start()

    async with asyncio.timeout(HUNG):
        assert await watch.wait() is Signal.WOKEN
    thread.join()


async def test_ended_transactions_are_not_kept(engine: Engine) -> None:
    def count() -> int:
        gc.collect()
        return sum(type(thing).__name__ == "MemTransaction" for thing in gc.get_objects())

    async def end_some() -> None:
        for _ in range(50):
            tx = await engine.begin()
            await tx.insert_jobs([JOB])
            await tx.save_offset("orders", "c", 1, None)
            await tx.rollback()
        (await engine.begin()).abandon()
        await asyncio.sleep(0)

    before = count()
    await end_some()

    assert count() == before


async def test_a_transaction_pages_through_its_own_jobs(engine: Engine) -> None:
    tx = await engine.begin()
    first, second = await tx.insert_jobs([JOB, JOB])

    assert await ids(tx, JobFilter(after=first)) == [second]
    assert await ids(tx, JobFilter(after=second)) == []
