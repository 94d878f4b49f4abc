"""The line before the one writing connection, with other programs at the same file."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from engines import commits, held_up, locked, opened, rest, rows
from jobs import new_job

from alkstore.engine import Cancel, JobFilter, JobState, NewEvent, NewWake
from alkstore.errors import Closed, DatabaseError
from alkstore.testing import ManualClock
from alkstore_sqlite import lock, queue
from alkstore_sqlite.connection import Connection, Wait
from alkstore_sqlite.engine import SqliteEngine
from alkstore_sqlite.hop import Hop, Work
from alkstore_sqlite.link import CLOSE_LIMIT
from alkstore_sqlite.writer import MOST_A_HOP

LABEL = "open transaction 1, begun at app.py:7"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


async def insert(engine: SqliteEngine, payload: bytes = b"1") -> int:
    (id,) = await engine.insert_jobs([new_job(payload)])
    return id


async def turn(times: int = 5) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


# ---------------------------------------------------------------- one commit for many


async def test_what_is_awaited_together_rides_one_commit_behind_the_first(path: Path) -> None:
    async with opened(path) as engine:
        before = commits(path)

        ids = await asyncio.gather(*(insert(engine, b"%d" % n) for n in range(50)))

        assert commits(path) - before == 2
        assert ids == sorted(ids)
        assert rows(path) == [b"%d" % n for n in range(50)]


async def test_a_crowd_is_parted_so_that_the_last_does_not_wait_for_all_of_it(path: Path) -> None:
    async with opened(path) as engine:
        before = commits(path)

        await asyncio.gather(*(insert(engine) for _ in range(1 + 2 * MOST_A_HOP)))

        assert commits(path) - before == 3


async def test_callers_that_go_on_as_they_are_answered_meet_again(path: Path) -> None:
    async def call(engine: SqliteEngine) -> None:
        for _ in range(10):
            await insert(engine)

    async with opened(path) as engine:
        before = commits(path)

        await asyncio.gather(*(call(engine) for _ in range(10)))

        assert commits(path) - before <= 15


async def test_operations_of_every_kind_share_a_commit_and_keep_their_order(path: Path) -> None:
    async with opened(path) as engine:
        id = await insert(engine)
        before = commits(path)

        answers = await asyncio.gather(
            insert(engine, b"2"),
            engine.settle_jobs([Cancel("q", id)]),
            engine.settle_jobs([Cancel("q", id)]),
            engine.append_events([NewEvent("s", None, b"1", b"{}")]),
            engine.take_lock("l", 5),
            engine.notify([NewWake("c", None)]),
            engine.claim_jobs("q", ["me"]),
            engine.purge_jobs("q", 0),
        )

        assert commits(path) - before == 2
        now = engine._clock.now()
        assert answers[:4] == [id + 1, [now], [None], [1]]
        assert rows(path, "SELECT worker_id FROM alkstore_job") == ["me"]


async def test_nothing_to_do_is_no_commit(path: Path) -> None:
    async with opened(path) as engine:
        before = commits(path)

        assert list(await engine.insert_jobs([])) == []
        assert list(await engine.settle_jobs([])) == []

        assert commits(path) == before


# ---------------------------------------------------------------- another process has the write lock


async def test_a_write_waits_for_another_process_while_the_loop_and_its_reads_go_on(path: Path) -> None:
    async with opened(path) as engine:
        await insert(engine, b"before")
        with locked(path) as other:
            writing = asyncio.ensure_future(insert(engine, b"behind"))
            await held_up(engine)

            assert [job.payload for job in await engine.find_jobs("q", JobFilter())] == [b"before"]
            assert not writing.done()
            other.execute("ROLLBACK")
            await writing

        assert rows(path) == [b"before", b"behind"]


@pytest.mark.parametrize("count", [1, 2])
async def test_now_is_when_the_write_lock_was_got(path: Path, count: int) -> None:
    clock = ManualClock()
    async with opened(path, clock=clock) as engine:
        with locked(path) as other:
            writing = asyncio.ensure_future(engine.insert_jobs([new_job()] * count))
            await held_up(engine)
            await clock.advance(60)
            other.execute("ROLLBACK")
            await writing

        (job, *_) = await engine.find_jobs("q", JobFilter())
        assert job.created_at == job.run_at == clock.now()


@pytest.mark.parametrize("count", [1, 2])
async def test_a_lock_that_stays_held_is_an_error_in_time_and_nothing_was_done(
    path: Path, count: int
) -> None:
    async with opened(path, wait_timeout=0.05) as engine:
        with locked(path):
            with pytest.raises(DatabaseError, match=r"locked by another connection for over 0\.0") as caught:
                await engine.insert_jobs([new_job()] * count)
            with pytest.raises(DatabaseError, match=r"locked by another connection for over 0\.0"):
                await engine.begin()

        assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
        assert not caught.value.outcome_unknown
        assert rows(path) == []
        await insert(engine, b"after")
        assert rows(path) == [b"after"]


async def test_those_who_stand_behind_a_lock_that_stays_held_are_told_too(path: Path) -> None:
    async with opened(path, wait_timeout=0.05) as engine:
        with locked(path):
            errors = await asyncio.gather(*(insert(engine) for _ in range(5)), return_exceptions=True)

        assert [type(error) for error in errors] == [DatabaseError] * 5
        assert len({id(error) for error in errors}) == 5
        assert rows(path) == []


async def test_a_close_ends_the_wait_for_another_process_and_the_line_behind_it(path: Path) -> None:
    async with opened(path) as engine:
        with locked(path):
            waiting = [asyncio.ensure_future(insert(engine)) for _ in range(3)]
            beginning = asyncio.ensure_future(engine.begin())
            await held_up(engine)

            async with asyncio.timeout(CLOSE_LIMIT):  # not to its end
                await engine.aclose()

            errors = await asyncio.gather(*waiting, beginning, return_exceptions=True)
            assert [type(error) for error in errors] == [Closed] * 4
            with pytest.raises(Closed):
                await insert(engine)
        assert rows(path) == []


async def test_a_close_tells_each_of_those_who_share_a_hop(path: Path) -> None:
    async with opened(path) as engine:
        tx = await engine.begin()
        waiting = [asyncio.ensure_future(insert(engine)) for _ in range(3)]
        await turn()
        await tx.rollback()
        with locked(path):
            await held_up(engine)
            await engine.aclose()

        errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in errors] == [Closed] * 3
        assert len({id(error) for error in errors}) == 3


# ---------------------------------------------------------------- transactions stand in the same line


async def test_a_transaction_has_its_turn_and_what_came_later_waits_for_its_end(path: Path) -> None:
    async with opened(path) as engine:
        first = asyncio.ensure_future(insert(engine, b"before"))
        beginning = asyncio.ensure_future(engine.begin())
        behind = [asyncio.ensure_future(insert(engine, b"behind")) for _ in range(2)]

        await first
        tx = await beginning
        await tx.insert_jobs([new_job(b"within")])
        assert (rows(path), [call.done() for call in behind]) == ([b"before"], [False, False])
        await tx.commit()
        await asyncio.gather(*behind)

        assert rows(path) == [b"before", b"within", b"behind", b"behind"]


async def test_who_stands_behind_a_transaction_for_too_long_is_told_which(path: Path) -> None:
    async with opened(path, wait_timeout=0.05) as engine:
        tx = await engine.begin(None, "app.py:7")
        waiting = (insert(engine), engine.begin(), engine.claim_jobs("q", ["me"]))

        errors = await asyncio.gather(*waiting, return_exceptions=True)

        for error in errors:
            assert isinstance(error, DatabaseError)
            assert f"held by {LABEL} for over 0.05 s, and nothing of this was done" in str(error)
        await tx.insert_jobs([new_job(b"within")])
        await tx.commit()
        await insert(engine, b"after")
        assert rows(path) == [b"within", b"after"]


async def test_a_beginning_that_is_cancelled_in_line_holds_nobody_up(path: Path) -> None:
    async with opened(path) as engine:
        tx = await engine.begin()
        beginning = asyncio.ensure_future(engine.begin())
        behind = asyncio.ensure_future(insert(engine, b"behind"))
        await turn()
        beginning.cancel()
        await turn()

        await tx.rollback()
        await behind

        assert beginning.cancelled()
        assert rows(path) == [b"behind"]


async def test_a_beginning_that_is_cancelled_as_it_gets_the_writer_gives_it_back(path: Path) -> None:
    async with opened(path) as engine:
        for turns in range(6):
            tx = await engine.begin()
            beginning = asyncio.ensure_future(engine.begin())
            await turn()
            await tx.rollback()
            await turn(turns)
            beginning.cancel()
            await asyncio.wait((beginning,))
            if not beginning.cancelled():
                await beginning.result().rollback()

            await insert(engine, b"%d" % turns)

        assert rows(path) == [b"%d" % turns for turns in range(6)]


# ---------------------------------------------------------------- callers that go


async def test_a_write_that_is_cancelled_in_line_never_happens(path: Path) -> None:
    async with opened(path) as engine:
        with locked(path) as other:
            calls = [asyncio.ensure_future(insert(engine, b"%d" % n)) for n in range(4)]
            await held_up(engine)
            calls[2].cancel()
            await turn()
            other.execute("ROLLBACK")
            await asyncio.wait(calls)

        assert [call.cancelled() for call in calls] == [False, False, True, False]
        assert rows(path) == [b"0", b"1", b"3"]


async def test_a_write_that_is_cancelled_in_the_thread_is_whole_or_not_at_all_before_what_comes_behind_it(
    path: Path,
) -> None:
    async with opened(path) as engine:
        with locked(path) as other:
            writing = asyncio.ensure_future(engine.insert_jobs([new_job(b"1"), new_job(b"2")]))
            await held_up(engine)
            behind = asyncio.ensure_future(insert(engine, b"3"))
            await turn()
            writing.cancel()
            await turn()
            assert writing.cancelled()
            other.execute("ROLLBACK")
            await behind

        assert rows(path) in ([b"1", b"2", b"3"], [b"3"])


async def free(engine: SqliteEngine) -> None:
    """Make sure that the one job is as it was before anybody claimed it."""
    await rest(engine)
    (job,) = await engine.find_jobs("q", JobFilter())
    assert (job.state, job.attempts, job.worker_id) == (JobState.PENDING, 0, None)


async def test_a_claim_that_is_cancelled_while_it_waits_for_another_process_claims_nothing(
    path: Path,
) -> None:
    async with opened(path) as engine:
        await insert(engine)
        before = commits(path)
        with locked(path) as other:
            claiming = asyncio.ensure_future(engine.claim_jobs("q", ["me"]))
            await held_up(engine)
            claiming.cancel()
            await turn()
            assert claiming.cancelled()
            other.execute("ROLLBACK")
            await free(engine)

        assert commits(path) == before


async def test_a_claim_that_is_cancelled_in_line_claims_nothing(path: Path) -> None:
    async with opened(path) as engine:
        await insert(engine)
        tx = await engine.begin()
        claiming = asyncio.ensure_future(engine.claim_jobs("q", ["me"]))
        await turn()
        claiming.cancel()
        await turn()
        before = commits(path)
        await tx.rollback()
        await free(engine)

        assert commits(path) == before


async def test_a_claim_that_is_cancelled_in_a_shared_hop_is_given_back(path: Path) -> None:
    async with opened(path) as engine:
        await insert(engine)
        tx = await engine.begin()
        calls = [
            asyncio.ensure_future(call)
            for call in (engine.purge_jobs("q", 0), engine.claim_jobs("q", ["me"]))
        ]
        await turn()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            await tx.rollback()
            other.execute("BEGIN IMMEDIATE")
            await held_up(engine)
            calls[1].cancel()
            await turn()
            other.execute("ROLLBACK")
        await calls[0]
        await free(engine)

        assert calls[1].cancelled()


async def test_a_claim_that_is_cancelled_as_its_answer_comes_is_given_back(path: Path) -> None:
    async with opened(path) as engine:
        await insert(engine)
        with locked(path) as other:
            first = asyncio.ensure_future(engine.purge_jobs("q", 0))
            await held_up(engine)
            claiming: asyncio.Future[object]

            async def cancel_it() -> None:
                await engine.purge_jobs("q", 0)
                claiming.cancel()  # both are answered in this turn, and this one was asked first

            cancelling = asyncio.ensure_future(cancel_it())
            await turn()
            claiming = asyncio.ensure_future(engine.claim_jobs("q", ["me"]))
            await turn()
            other.execute("ROLLBACK")
            await asyncio.wait((first, cancelling, claiming))
        assert claiming.cancelled()
        await free(engine)


async def test_a_claim_that_is_cancelled_in_any_turn_is_given_or_given_back(path: Path) -> None:
    async with opened(path) as engine:
        for turns in range(150):
            queue = f"q{turns}"
            await engine.insert_jobs([new_job(name=queue)])
            claiming = asyncio.ensure_future(engine.claim_jobs(queue, ["me"]))
            await turn(turns % 50)
            while turns >= 50 and engine.is_at_work:  # noqa: ASYNC110  # a thread's state has no event
                await asyncio.sleep(0)
            await turn(max(turns // 50 - 1, 0))
            claiming.cancel()
            await asyncio.wait((claiming,))

            await rest(engine)

            (job,) = await engine.find_jobs(queue, JobFilter())
            assert (job.state is JobState.PENDING) == claiming.cancelled(), turns


async def test_a_single_statement_behind_the_end_of_its_connection_is_told_and_ends() -> None:
    connection = sqlite3.connect(":memory:", factory=Connection, isolation_level=None)
    connection.close()
    work = Work(lambda _: queue.sweep("q", 0), is_single=True)
    hop = Hop((work,), "a.db", ManualClock(), Wait(1))

    hop.run(connection)

    told = []
    hop.leave_to(lambda: told.append(work.error))
    assert [type(error) for error in told] == [DatabaseError]


async def test_a_lock_is_not_taken_for_a_caller_who_went_before_its_turn(path: Path) -> None:
    async with opened(path) as engine:
        with closing(sqlite3.connect(path, factory=Connection, isolation_level=None)) as connection:
            freed: list[object] = []
            gone = Work(lambda now: lock.take("report", 30, now), freed.append)
            hop = Hop((gone,), str(path), ManualClock(), Wait(1))
            hop.leave_to(lambda: None)

            hop.run(connection)

            gone.take_back()
        assert (type(gone.error), freed) == (DatabaseError, [])
        assert (await engine.take_lock("report", 30)).fence == 1
