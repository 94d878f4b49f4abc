import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from alkstore.engine import NewWake, Signal, Topic, TopicKind, Watch
from alkstore.errors import Closed
from alkstore.testing import ManualClock
from alkstore_sqlite import wake
from alkstore_sqlite.connection import Woken, bind, perform
from alkstore_sqlite.mark import Mark, Report, Watched
from alkstore_sqlite.place import Place
from alkstore_sqlite.schema import MIGRATIONS
from alkstore_sqlite.wake import Wakes

NEWS = Topic(TopicKind.CHANNEL, "news")
JOBS = Topic(TopicKind.QUEUE, "jobs")
DOOR = Topic(TopicKind.LOCK, "door")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        for migration in MIGRATIONS:
            for statement in migration.statements:
                connection.execute(statement)
        connection.execute("COMMIT")
        yield connection


@pytest.fixture
def wakes(tmp_path: Path, file: sqlite3.Connection) -> Wakes:
    async def baseline(channel: str) -> int:
        return perform(file, wake.read_channel(channel))

    # Whatever the watcher reports meanwhile was heard before: nothing here waits for it.
    return Wakes(Place(str(tmp_path / "a.db"), 0, 0), ManualClock(), baseline, open_hint=lambda _: None)


def notify(file: sqlite3.Connection, *channels: str) -> list[Woken]:
    return list(perform(file, wake.notify([NewWake(channel, None) for channel in channels], 5)).woken)


def pending(watch: Watch) -> int:
    count = 0
    while watch.poll() is Signal.WOKEN:
        count += 1
    return count


# ---------------------------------------------------------------- notify


def test_a_notify_counts_its_channel_up_and_leaves_a_row(file: sqlite3.Connection) -> None:
    wakes = [NewWake("news", b'"\xc3\xa4"'), NewWake("other", None), NewWake("news", b"1")]

    assert perform(file, wake.notify(wakes, 7)) == (
        None,
        [Woken(NEWS, 2), Woken(Topic(TopicKind.CHANNEL, "other"), 1)],
    )

    assert perform(file, wake.read_channel("news")) == 2
    assert perform(file, wake.read_channel("silent")) == 0
    assert file.execute(
        "SELECT channel, payload, created_at FROM alkstore_notification ORDER BY id"
    ).fetchall() == [
        ("news", '"ä"', 7),
        ("other", None, 7),
        ("news", "1", 7),
    ]


def test_a_notify_of_nothing_writes_nothing(file: sqlite3.Connection) -> None:
    assert perform(file, wake.notify([], 7)) == (None, [])
    assert file.total_changes == 0


def test_no_more_than_the_last_ten_thousand_rows_stay(file: sqlite3.Connection) -> None:
    file.execute("BEGIN")
    notify(file, *["news"] * 10_004)
    notify(file, "news")
    file.execute("COMMIT")

    rows = file.execute("SELECT COUNT(*), MIN(id), MAX(id) FROM alkstore_notification").fetchall()
    assert rows == [(10_000, 6, 10_005)]
    assert perform(file, wake.read_channel("news")) == 10_005


def test_a_notify_begins_with_a_statement_that_opens_a_transaction() -> None:
    statement = next(wake.notify([NewWake("news", None)], 0))

    assert statement.sql.startswith("UPDATE")


def test_a_trim_reads_no_more_than_it_deletes(file: sqlite3.Connection) -> None:
    plan = file.execute(f"EXPLAIN QUERY PLAN {wake._SQL['trim']}", bind((1,))).fetchall()

    assert [row[3] for row in plan] == [
        "SEARCH alkstore_notification USING INTEGER PRIMARY KEY (rowid<?)",
        "SCALAR SUBQUERY 1",
        "SEARCH alkstore_notification",
    ]


# ---------------------------------------------------------------- commits of this store


async def test_a_commit_of_this_store_wakes_who_waits_for_it(wakes: Wakes, file: sqlite3.Connection) -> None:
    watch, other = await wakes.watch(NEWS), await wakes.watch(Topic(TopicKind.CHANNEL, "other"))

    wakes.landed(notify(file, "news"))
    wakes.landed(notify(file, "news"))

    assert (pending(watch), pending(other)) == (2, 0)
    await wakes.aclose()


async def test_a_mark_that_was_seen_wakes_nobody_again(wakes: Wakes, file: sqlite3.Connection) -> None:
    watch = await wakes.watch(NEWS)
    woken = notify(file, "news")

    wakes.landed(woken)
    wakes.landed(woken)

    assert pending(watch) == 1
    await wakes.aclose()


async def test_a_new_receiver_hears_nothing_of_before_and_the_older_one_does(
    wakes: Wakes, file: sqlite3.Connection
) -> None:
    older = await wakes.watch(NEWS)
    woken = notify(file, "news")  # by somebody else, and not reported yet

    newer = await wakes.watch(NEWS)

    assert (pending(older), pending(newer)) == (1, 0)
    wakes.landed(woken)
    assert (pending(older), pending(newer)) == (0, 0)
    await wakes.aclose()


async def test_what_has_no_mark_wakes_each_time(wakes: Wakes) -> None:
    watch = await wakes.watch(JOBS)

    for _ in range(2):
        wakes.landed([Woken(JOBS)])
        assert pending(watch) == 1
    await wakes.aclose()


async def test_nothing_is_kept_of_topics_that_nobody_waits_for(
    wakes: Wakes, file: sqlite3.Connection
) -> None:
    for number in range(1_000):
        name = f"q{number}"
        watch = await wakes.watch(Topic(TopicKind.QUEUE, name))
        wakes.claim_begins(name)
        wakes.claim_ended(name, 1.0, 5, True)
        watch.close()
        wakes.claim_begins(name)
        wakes.claim_ended(name, 2.0, None, True)
    wakes.landed(notify(file, "news"))

    assert len(wakes.board) == 0
    await wakes.aclose()


async def test_a_wait_for_the_clock_needs_no_watcher(wakes: Wakes) -> None:
    watch = await wakes.watch(Topic(TopicKind.CLOCK))

    assert wakes._watcher is None
    watch.close()


async def test_a_close_ends_every_watch_and_refuses_new_ones(wakes: Wakes) -> None:
    watch = await wakes.watch(NEWS)

    await wakes.aclose()
    await wakes.aclose()

    assert watch.poll() is Signal.CLOSED
    with pytest.raises(Closed):
        await wakes.watch(JOBS)


# ---------------------------------------------------------------- which movements are news


def heard(topic: Topic, *marks: Mark) -> list[bool]:
    watched = Watched(topic)
    return [watched.hear(mark) for mark in marks]


def test_a_counter_and_a_head_are_news_when_they_have_grown() -> None:
    for kind in (TopicKind.CHANNEL, TopicKind.STREAM):
        assert heard(Topic(kind, "a"), (3,), (3,), (2,), (4,)) == [True, False, False, True]


def test_a_schedule_is_news_whenever_it_differs() -> None:
    assert heard(Topic(TopicKind.SCHEDULE), (3, 2), (3, 2), (3, 1), (4, 2)) == [True, False, True, True]


@pytest.mark.parametrize(
    ("before", "after", "is_news"),
    [
        ((100, 1), (0, 1), True),  # released
        ((100, 1), (90, 1), True),  # ends sooner
        ((100, 1), (110, 1), False),  # renewed
        ((0, 1), (100, 2), False),  # taken
        ((100, 1), (0, 2), True),  # released, taken and released
        ((0, 1), (0, 2), True),  # taken and released: somebody may have been told of an end in between
        ((0, 1), (100, 3), True),  # taken by two, and the first one's end may have been later
        ((100, 1), (0,), True),  # released by this store
        ((0, 1), (100,), False),  # taken by this store
    ],
)
def test_a_lock_is_news_when_it_may_be_free_sooner_than_was_told(
    before: Mark, after: Mark, is_news: bool
) -> None:
    assert heard(DOOR, before, after) == [True, is_news]


def test_the_fence_that_a_watcher_saw_is_kept_when_this_store_tells_an_end() -> None:
    assert heard(DOOR, (0, 4), (100,), (100, 5), (0, 5)) == [True, False, False, True]


def queue(*, told: int | None = None, began: float = 0.0) -> Watched:
    watched = Watched(JOBS)
    watched.begin_claim()
    watched.end_claim(began, told)
    return watched


def test_a_queue_is_news_when_a_job_comes_sooner_than_the_last_claim_told() -> None:
    for told, mark, is_news in ((None, 7, True), (7, 6, True), (7, 7, False), (7, 8, False)):
        watched = queue(told=told)
        assert watched.is_worth((mark,)) is is_news
        assert watched.judge(Report(watched, (mark,), 1.0)) is is_news


def test_what_a_claim_saw_is_no_news() -> None:
    watched = queue(began=2.0)

    assert not watched.judge(Report(watched, (7,), 1.9))
    assert not watched.judge(Report(watched, (7,), 2.0))
    assert watched.judge(Report(watched, (7,), 2.1))


@pytest.mark.parametrize(
    ("began", "told", "is_news"), [(5.0, None, False), (0.5, None, True), (0.5, 7, False), (None, None, True)]
)
def test_a_report_during_a_claim_is_judged_when_that_has_ended(
    began: float | None, told: int | None, is_news: bool
) -> None:
    watched = queue(told=7)
    watched.begin_claim()

    assert watched.is_worth((7,))
    assert not watched.judge(Report(watched, (7,), 1.0))
    assert watched.end_claim(began, told) is is_news
    watched.begin_claim()
    assert not watched.end_claim(0.5, None)  # once


def test_a_report_waits_for_the_last_of_several_claims() -> None:
    watched = queue()
    watched.begin_claim()
    watched.begin_claim()

    assert not watched.judge(Report(watched, (7,), 1.0))
    assert not watched.end_claim(0.5, None)
    assert watched.end_claim(0.6, None)


def test_the_watcher_reports_equal_marks_of_a_queue_again_and_of_nothing_else() -> None:
    # With a clock that stands still two jobs after each other are ready at the same instant.
    for topic, mark, again in ((JOBS, (7,), True), (NEWS, (7,), False), (DOOR, (7, 1), False)):
        watched = Watched(topic)
        assert watched.is_worth(mark)
        watched.reported = mark
        assert watched.is_worth(mark) is again
