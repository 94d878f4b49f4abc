import asyncio
from collections.abc import AsyncIterator, Sequence

import asyncpg
import pytest
from timed import PATIENCE, Timed, timed

from alkstore import DatabaseError
from alkstore.engine import LockRecord, Taken
from alkstore.numbers import MAX_INSTANT
from alkstore_pg import lock
from alkstore_pg.session import Session

NAME = "nightly"


@pytest.fixture
async def at(dsn: str) -> AsyncIterator[Timed]:
    async with timed(dsn) as it:
        yield it


async def take(at: Timed, now: int, ttl: int = 10, name: str = NAME) -> Taken:
    return await at.run(lambda on: lock.take(on, name, ttl, PATIENCE), now)


async def renew(
    at: Timed, fence: int, ttl: int, now: int, texts: Sequence[str] = (), name: str = NAME
) -> int | None:
    return await at.run(lambda on: lock.renew(on, name, fence, ttl, texts, PATIENCE), now)


async def test_a_held_lock_tells_its_end_and_stays_as_it_is(at: Timed) -> None:
    assert await take(at, 100) == Taken(1, 110)
    assert await take(at, 109, 50) == Taken(None, 110)
    assert await at.run(lock.held, 109) == [LockRecord(NAME, 1, 110)]


async def test_a_lock_lapses_at_its_end_and_not_before(at: Timed) -> None:
    await take(at, 100)

    assert await renew(at, 1, 5, 109) == 114
    assert await renew(at, 1, 5, 114) is None
    assert await at.run(lock.held, 114) == []
    assert await take(at, 114) == Taken(2, 124)


async def test_the_fence_grows_over_releases_and_lapses(at: Timed) -> None:
    fences = []
    for now in (100, 101, 111):
        fences.append((await take(at, now)).fence)
        if now == 100:
            assert await renew(at, 1, 0, now) == now

    assert fences == [1, 2, 3]


@pytest.mark.parametrize("ttl", [0, 10])
async def test_a_lapsed_a_freed_and_a_strange_fence_change_nothing(at: Timed, ttl: int) -> None:
    await take(at, 100)
    before = await at.sql("SELECT xmin::text, * FROM {schema}.lock")

    assert await renew(at, 1, ttl, 110) is None
    assert await renew(at, 2, ttl, 105) is None
    assert await renew(at, 0, ttl, 105) is None
    assert await renew(at, 1, ttl, 105, name="unknown") is None
    assert await at.sql("SELECT xmin::text, * FROM {schema}.lock") == before
    await renew(at, 1, 0, 105)
    assert await renew(at, 1, ttl, 105) is None


async def test_others_are_told_of_an_end_that_comes_sooner_and_of_no_other(at: Timed) -> None:
    async with at.listening() as told:
        await take(at, 100)
        for number, ttl in enumerate((50, 50, 20, 0)):
            await renew(at, 1, ttl, 100, [str(number)])
        await renew(at, 1, 0, 100, ["no longer live"])

        assert await told.texts() == ["2", "3"]


async def test_an_end_stays_within_the_calendar(at: Timed) -> None:
    assert await take(at, 100, 2**63 - 1) == Taken(1, MAX_INSTANT)
    assert await renew(at, 1, 2**63 - 1, 101) == MAX_INSTANT


async def test_locks_held_are_listed_by_code_point(at: Timed) -> None:
    for name in ("b", "\u0101", "a", "free", "lapsed"):
        await take(at, 100, 1 if name == "lapsed" else 10, name)
    await renew(at, 1, 0, 100, name="free")

    assert [record.name for record in await at.run(lock.held, 101)] == ["a", "b", "\u0101"]


async def test_of_many_who_take_at_once_one_gets_it_and_the_others_hear_until_when(at: Timed) -> None:
    for now in (100, 110):
        taken = await asyncio.gather(
            *(at.run(lambda on: lock.take(on, NAME, 10, PATIENCE)) for _ in range(8))
        )

        assert sum(one.fence is not None for one in taken) == 1
        assert {one.expires_at for one in taken} == {now + 10}
        await at.sql("UPDATE {schema}.test_now SET instant = 110")


async def test_who_is_refused_writes_nothing_and_waits_for_nobody(at: Timed) -> None:
    await take(at, 100)
    async with at.transaction() as other:
        await other.fetch("SELECT FROM {schema}.lock FOR UPDATE")

        assert await take(at, 101) == Taken(None, 110)


async def test_a_row_that_somebody_holds_is_waited_for_only_so_long(at: Timed) -> None:
    await take(at, 100)
    async with at.transaction() as other:
        await other.fetch("SELECT FROM {schema}.lock FOR UPDATE")

        for now, operation in (
            (110, lambda on: lock.take(on, NAME, 10, 1)),
            (109, lambda on: lock.renew(on, NAME, 1, 10, (), 1)),
        ):
            with pytest.raises(DatabaseError) as caught:
                await at.run(operation, now)
            assert isinstance(caught.value.__cause__, asyncpg.LockNotAvailableError)
            assert not caught.value.outcome_unknown
    assert await at.sql("SHOW lock_timeout") == [("0",)]


async def test_a_lock_is_found_by_its_name_alone(at: Timed) -> None:
    await take(at, 100)

    async def everything(on: Session) -> None:
        for number in range(12):  # a plan for any name comes after some that are for one
            await lock.take(on, str(number), 10, PATIENCE)
            await lock.take(on, str(number), 10, PATIENCE)
            await lock.renew(on, str(number), 1, 10, (), PATIENCE)

    grow = "INSERT INTO {schema}.lock SELECT 1, 110, n::text FROM generate_series(100, 20000) AS n"
    assert await at.whole_scans("lock", grow, everything) == {}
