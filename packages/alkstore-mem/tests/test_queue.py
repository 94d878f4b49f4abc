import sys
import tracemalloc
from collections import Counter
from collections.abc import Awaitable

import pytest

from alkstore.engine import (
    Ack,
    Cancel,
    Claimed,
    Engine,
    Fail,
    Heartbeat,
    JobCounts,
    JobFilter,
    JobState,
    NewJob,
    Redrive,
    Release,
    Retry,
    Settle,
    Signal,
    Topic,
    TopicKind,
)
from alkstore.numbers import MAX_INSTANT
from alkstore.testing import ManualClock
from alkstore_mem.engine import MemEngine

SECOND = 1_000_000
JOB = NewJob("mail", b"1", b"{}", 0, None, None, 300 * SECOND, 3, 5 * SECOND, None)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(clock: ManualClock) -> Engine:
    return MemEngine(clock)


async def test_a_batch_gives_increasing_ids_over_all_queues(engine: Engine) -> None:
    ids = await engine.insert_jobs([JOB, JOB._replace(queue="other"), JOB])

    assert ids == [1, 2, 3]
    assert [row.id for row in await engine.find_jobs("mail", JobFilter())] == [1, 3]


async def test_delay_beats_run_at_and_instants_stay_within_the_calendar(
    engine: Engine, clock: ManualClock
) -> None:
    await engine.insert_jobs(
        [
            JOB._replace(delay=5, run_at=7),
            JOB._replace(run_at=7),
            JOB._replace(delay=2**63 - 1, expires=2**63 - 1),
        ]
    )

    rows = await engine.find_jobs("mail", JobFilter())

    assert [row.run_at for row in rows] == [clock.now() + 5, 7, MAX_INSTANT]
    assert rows[2].expires_at == MAX_INSTANT


async def test_an_unknown_queue_reads_as_empty(engine: Engine) -> None:
    assert await engine.find_jobs("mail", JobFilter()) == []
    assert await engine.count_jobs("mail") == JobCounts(0, 0, 0, 0, 0, None)
    assert await engine.claim_jobs("mail", ["w"]) == Claimed((), None)
    assert await engine.settle_jobs([Ack("mail", 1, 1), Cancel("mail", 1), Redrive("mail", 1)]) == [None] * 3
    assert await engine.sweep_jobs("mail") == 0
    assert await engine.purge_jobs("mail", 0) == 0
    assert await engine.list_names() == ([], [])


async def test_a_claim_moves_a_thousand_spent_rows_and_still_fills_its_batch(
    engine: Engine, clock: ManualClock
) -> None:
    spent = JOB._replace(max_attempts=1, visibility_timeout=SECOND)
    await engine.insert_jobs([spent] * 1_500)
    await engine.claim_jobs("mail", ["w"] * 1_500)
    ids = await engine.insert_jobs([JOB] * 3)
    await clock.advance(1)

    first = await engine.claim_jobs("mail", ["w"] * 3)
    counts = await engine.count_jobs("mail")

    assert [row.id for row in first.jobs] == ids
    assert (counts.dead, counts.stale) == (1_000, 500)
    await engine.claim_jobs("mail", ["w"])
    assert (await engine.count_jobs("mail")).dead == 1_500


async def test_a_claim_looks_at_expired_rows_once_however_they_waited(
    engine: Engine, clock: ManualClock
) -> None:
    expiring = JOB._replace(expires=3 * SECOND, visibility_timeout=2 * SECOND)
    for kind in ("lapsed", "ready", "delayed"):
        await engine.insert_jobs([expiring._replace(delay=2 * SECOND if kind == "delayed" else None)] * 500)
        if kind == "lapsed":
            await engine.claim_jobs("mail", ["w"] * 500)
    await clock.advance(3)

    first, second = [await calls_of(engine.claim_jobs("mail", ["w"])) for _ in range(2)]

    assert first > 1_500
    assert second < 50


async def test_an_ack_looks_at_no_other_row_that_is_claimed_or_expires(engine: Engine) -> None:
    await engine.insert_jobs([JOB._replace(expires=900 * SECOND)] * 1_000)
    first, second, *_ = (await engine.claim_jobs("mail", ["w"] * 500)).jobs
    await engine.settle_jobs([Ack("mail", first.id, first.token or 0)])

    assert await calls_of(engine.settle_jobs([Ack("mail", second.id, second.token or 0)])) < 100


async def calls_of(work: Awaitable[object]) -> int:
    """Count the functions that an operation calls, those of the standard library included."""
    calls: Counter[str] = Counter()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, arg: calls.update((event,)))
    try:
        await work
    finally:
        sys.setprofile(before)
    return calls["call"] + calls["c_call"]


async def test_a_short_claim_says_when_to_look_again(engine: Engine, clock: ManualClock) -> None:
    await engine.insert_jobs(
        [JOB, JOB._replace(delay=900 * SECOND), JOB._replace(delay=10 * SECOND, expires=0)]
    )

    claimed = await engine.claim_jobs("mail", ["w", "w"])

    assert claimed.next_at == clock.now() + 300 * SECOND
    await engine.settle_jobs([Ack("mail", row.id, row.token or 0) for row in claimed.jobs])
    assert await engine.claim_jobs("mail", ["w"]) == Claimed([], clock.now() + 900 * SECOND)


async def test_pages_of_one_state_follow_ids(engine: Engine) -> None:
    await engine.insert_jobs([JOB] * 10)
    claimed = await engine.claim_jobs("mail", ["w"] * 6)
    await engine.settle_jobs(
        [Retry("mail", row.id, row.token or 0, 0, "bad gateway") for row in claimed.jobs[:2]]
    )

    pending = await engine.find_jobs("mail", JobFilter(state=JobState.PENDING, after=1, limit=3))
    failed = await engine.find_jobs("mail", JobFilter(error="gate", limit=1))

    assert [row.id for row in pending] == [2, 7, 8]
    assert [row.id for row in failed] == [1]
    assert await engine.find_jobs("mail", JobFilter(limit=0)) == []


async def test_a_limit_may_be_wider_than_any_platforms_sizes(engine: Engine) -> None:
    ids = await engine.insert_jobs([JOB] * 2)

    assert [row.id for row in await engine.find_jobs("mail", JobFilter(limit=2**70))] == ids


async def test_dead_rows_page_by_id_and_go_by_age(engine: Engine, clock: ManualClock) -> None:
    await engine.insert_jobs([JOB._replace(expires=5 * SECOND), JOB._replace(expires=1 * SECOND)])
    await clock.advance(1)
    await engine.sweep_jobs("mail")
    await clock.advance(4)
    await engine.sweep_jobs("mail")

    dead = await engine.find_jobs("mail", JobFilter(state=JobState.DEAD))

    assert [(row.id, row.last_error, row.token) for row in dead] == [
        (1, "expired", None),
        (2, "expired", None),
    ]
    assert await engine.purge_jobs("mail", 4 * SECOND) == 0
    assert await engine.purge_jobs("mail", 4 * SECOND - 1) == 1
    assert [row.id for row in await engine.find_jobs("mail", JobFilter(state=JobState.DEAD))] == [1]
    assert await engine.settle_jobs([Redrive("mail", 1), Redrive("mail", 2)]) == [clock.now(), None]
    assert await engine.purge_jobs("mail", 0) == 0


async def test_a_row_that_a_transaction_landed_late_stands_at_its_id(engine: Engine) -> None:
    tx = await engine.begin()
    await tx.insert_jobs([JOB])
    await engine.insert_jobs([JOB])
    await tx.commit()

    assert [row.id for row in await engine.find_jobs("mail", JobFilter())] == [1, 2]
    assert [row.id for row in await engine.find_jobs("mail", JobFilter(after=1))] == [2]


@pytest.mark.parametrize(
    ("settle", "wakes"),
    [
        ("ack", False),
        ("fail", False),
        ("cancel", False),
        ("retry", True),
        ("release", True),
        ("heartbeat", True),
    ],
)
async def test_a_settle_wakes_its_queue_when_a_row_becomes_claimable(
    engine: Engine, settle: str, wakes: bool
) -> None:
    await engine.insert_jobs([JOB, JOB])
    (row,) = (await engine.claim_jobs("mail", ["w"])).jobs
    token = row.token or 0
    settles: dict[str, Settle] = {
        "ack": Ack("mail", row.id, token),
        "fail": Fail("mail", row.id, token, "no"),
        "cancel": Cancel("mail", 2),
        "retry": Retry("mail", row.id, token, 60 * SECOND, None),
        "release": Release("mail", row.id, token),
        "heartbeat": Heartbeat("mail", row.id, token, SECOND),
    }
    watch = await engine.watch(Topic(TopicKind.QUEUE, "mail"))

    (landed,) = await engine.settle_jobs([settles[settle]])

    assert landed is not None
    assert watch.poll() is (Signal.WOKEN if wakes else None)
    await engine.settle_jobs([Ack("mail", row.id, token + 1), Retry("mail", row.id, token + 1, 0, None)])
    assert watch.poll() is None


async def test_steady_traffic_leaves_nothing_behind(engine: Engine) -> None:
    job = JOB._replace(expires=900 * SECOND)

    async def rounds(count: int) -> None:
        for _ in range(count):
            await engine.insert_jobs(
                [
                    job,
                    job._replace(delay=60 * SECOND, max_attempts=1),
                    job._replace(max_attempts=1),
                    job._replace(priority=-1),
                ]
            )
            claimed = await engine.claim_jobs("mail", ["w", "w"])
            ids = [row.id for row in claimed.jobs]
            await engine.settle_jobs([Ack("mail", row.id, row.token or 0) for row in claimed.jobs])
            await engine.settle_jobs([Cancel("mail", id) for id in range(ids[0], ids[0] + 4)])

    await rounds(300)
    tracemalloc.start()
    try:
        await rounds(300)
        before, _ = tracemalloc.get_traced_memory()
        await rounds(3_000)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert after - before < 20_000


async def test_names_of_queues_that_hold_nothing_are_forgotten(engine: Engine) -> None:
    await engine.insert_jobs([JOB._replace(queue="kept")])
    tracemalloc.start()
    try:
        for number in range(3_000):
            (id,) = await engine.insert_jobs([JOB._replace(queue=f"day-{number}")])
            await engine.settle_jobs([Cancel(f"day-{number}", id)])
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert size < 1_000_000  # a name that stays takes over 3,000
    assert (await engine.list_names()).queues == ["kept"]


async def test_a_new_queue_is_made_without_a_look_at_the_others(engine: Engine) -> None:
    await engine.insert_jobs([JOB._replace(queue=f"tenant-{number}") for number in range(300)])

    assert await calls_of(engine.insert_jobs([JOB._replace(queue="new")])) < 100
