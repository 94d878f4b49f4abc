import sqlite3
from typing import Any

import pytest
from tables import plan

from alkstore.engine import LockRecord, Taken, Topic, TopicKind
from alkstore.numbers import MAX_INSTANT
from alkstore_sqlite import lock
from alkstore_sqlite.connection import Woken, perform

NAME = "nightly"
TOPIC = Topic(TopicKind.LOCK, NAME)


def take(connection: sqlite3.Connection, now: int, ttl: int = 10) -> Taken:
    return perform(connection, lock.take(NAME, ttl, now)).result


def renew(connection: sqlite3.Connection, fence: int, ttl: int, now: int) -> int | None:
    return perform(connection, lock.renewing(NAME, fence, ttl)(now)).result


def test_a_held_lock_tells_its_end_and_stays_as_it_is(connection: sqlite3.Connection) -> None:
    assert take(connection, 100) == Taken(1, 110)
    assert perform(connection, lock.take(NAME, 50, 109)) == (Taken(None, 110), ())
    assert perform(connection, lock.held(109)) == [LockRecord(NAME, 1, 110)]


def test_a_lock_lapses_at_its_end_and_not_before(connection: sqlite3.Connection) -> None:
    take(connection, 100)

    assert perform(connection, lock.is_live(NAME, 1, 109))
    assert not perform(connection, lock.is_live(NAME, 1, 110))
    assert perform(connection, lock.held(110)) == []
    assert take(connection, 110) == Taken(2, 120)


def test_the_fence_grows_over_releases_and_lapses(connection: sqlite3.Connection) -> None:
    fences = []
    for now in (100, 101, 111):
        taken = take(connection, now)
        fences.append(taken.fence)
        if now == 100:
            assert renew(connection, 1, 0, now) == now

    assert fences == [1, 2, 3]


def test_a_renewal_gives_a_whole_new_window(connection: sqlite3.Connection) -> None:
    take(connection, 100)

    assert renew(connection, 1, 10, 109) == 119
    assert take(connection, 118) == Taken(None, 119)


@pytest.mark.parametrize("ttl", [0, 10])
def test_a_lapsed_a_freed_and_a_strange_fence_change_nothing(
    connection: sqlite3.Connection, ttl: int
) -> None:
    take(connection, 100)
    before = connection.total_changes

    assert renew(connection, 1, ttl, 110) is None
    assert renew(connection, 2, ttl, 105) is None
    assert renew(connection, 0, ttl, 105) is None
    assert connection.total_changes == before
    renew(connection, 1, 0, 105)
    assert renew(connection, 1, ttl, 105) is None
    assert perform(connection, lock.renewing("unknown", 1, ttl)(105)) == (None, ())


def test_every_change_tells_the_end_that_waiters_are_to_know_and_a_free_lock_zero(
    connection: sqlite3.Connection,
) -> None:
    told = [perform(connection, lock.take(NAME, 10, 100)).woken]
    told += [perform(connection, lock.renewing(NAME, 1, ttl)(100)).woken for ttl in (50, 20, 0)]

    assert told == [(Woken(TOPIC, mark),) for mark in (110, 150, 120, 0)]


def test_an_end_stays_within_the_calendar(connection: sqlite3.Connection) -> None:
    assert take(connection, 100, 2**63 - 1) == Taken(1, MAX_INSTANT)
    assert renew(connection, 1, 2**63 - 1, 101) == MAX_INSTANT
    assert perform(connection, lock.is_live(NAME, 1, MAX_INSTANT - 1))


def test_locks_held_are_listed_by_code_point(connection: sqlite3.Connection) -> None:
    for name in ("b", "\u0101", "a", "free", "lapsed"):
        perform(connection, lock.take(name, 1 if name == "lapsed" else 10, 100))
    perform(connection, lock.renewing("free", 1, 0)(100))

    assert [record.name for record in perform(connection, lock.held(101))] == ["a", "b", "\u0101"]


@pytest.mark.parametrize(
    "steps",
    [
        lambda: lock.take(NAME, 10, 100),
        lambda: lock.take(NAME, 10, 110),
        lambda: lock.renewing(NAME, 1, 10)(100),
        lambda: lock.is_live(NAME, 1, 100),
    ],
    ids=["take held", "take lapsed", "renew", "is_live"],
)
def test_a_lock_is_found_by_its_name_alone(connection: sqlite3.Connection, steps: Any) -> None:
    take(connection, 100)

    details = plan(connection, steps())

    assert [line for line in details if not line.startswith("SEARCH")] == []
