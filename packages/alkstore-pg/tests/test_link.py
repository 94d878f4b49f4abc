import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeVar, cast

import asyncpg
import pytest
from jumping import jumping, skip

from alkstore import Closed, DatabaseError
from alkstore_pg.contract_proxy import Proxy
from alkstore_pg.link import SLACK, Guest, Link, Operation, Traffic
from alkstore_pg.session import Row, Schema, Session

T = TypeVar("T")

TABLE = "CREATE TABLE note (id bigint PRIMARY KEY, text text)"
PATIENCE = 10.0

ASLEEP = """
DO $$ BEGIN
    WHILE NOT EXISTS (
        SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query = 'SELECT pg_sleep(3600)'
        AND datname = current_database()
    ) LOOP
        PERFORM pg_sleep(0.001), pg_stat_clear_snapshot();
    END LOOP;
END $$
"""


class Dialler:
    """Makes connections, and knows them."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.made: list[asyncpg.Connection[asyncpg.Record]] = []
        self.hangs = asyncio.Event()
        self.hangs.set()
        self.error: Exception | None = None

    async def __call__(self) -> "asyncpg.Connection[asyncpg.Record]":
        await self.hangs.wait()
        if self.error is not None:
            raise self.error
        self.made.append(await asyncpg.connect(self.dsn))
        return self.made[-1]


@pytest.fixture
async def dialler(dsn: str) -> Dialler:
    connection = await asyncpg.connect(dsn)
    await connection.execute(TABLE)
    await connection.close()
    return Dialler(dsn)


@pytest.fixture
async def link(dialler: Dialler) -> AsyncIterator[Link]:
    link = Link(dialler, Schema("alkstore"), wait_timeout=PATIENCE, traffic=Traffic())
    yield link
    await link.close()


async def one(on: Session) -> int:
    return int((await on.fetch("SELECT 1"))[0][0])


async def sleep_for_ever(on: Session) -> list[Row]:
    return list(await on.fetch("SELECT pg_sleep(3600)"))


async def put(on: Session, id: int = 1) -> None:
    await on.fetch("INSERT INTO note VALUES ($1::bigint, 'x')", id)


async def test_a_connection_is_made_when_it_is_wanted_and_kept(link: Link, dialler: Dialler) -> None:
    assert dialler.made == []
    assert await link.run(one) == await link.run(one) == 1
    assert len(dialler.made) == 1


async def test_operations_follow_each_other(link: Link) -> None:
    inside = 0
    most = 0

    async def look(on: Session) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await one(on)
        inside -= 1

    await asyncio.gather(*(link.run(look) for _ in range(20)))
    assert most == 1


async def test_who_is_cancelled_in_line_holds_up_nobody(link: Link) -> None:
    at_hand, goes_on = asyncio.Event(), asyncio.Event()
    line: list[asyncio.Task[int]] = []
    done: list[int] = []

    async def hold(on: Session) -> int:
        at_hand.set()
        await goes_on.wait()
        # Before he goes on, but when the link is his: it is handed over in this turn of the loop.
        asyncio.get_running_loop().call_soon(line[1].cancel)
        return 0

    def note(number: int) -> Operation[int]:
        async def append(on: Session) -> int:
            done.append(number)
            return number

        return append

    await link.run(one)
    holder = asyncio.create_task(link.run(hold))
    await at_hand.wait()
    line += [asyncio.create_task(link.run(note(number))) for number in range(4)]
    await asyncio.sleep(0)
    line[0].cancel()
    goes_on.set()
    found = await asyncio.gather(*line, return_exceptions=True)

    assert await holder == 0
    assert [type(each) for each in found] == [asyncio.CancelledError] * 2 + [int] * 2
    assert done == [2, 3]
    assert link.is_idle


async def test_a_connection_that_was_lost_is_made_anew(link: Link, dialler: Dialler) -> None:
    await link.run(one)
    dialler.made[0].terminate()
    assert await link.run(one) == 1
    assert len(dialler.made) == 2


async def test_a_write_whose_connection_is_lost_under_it_may_have_landed(
    link: Link, dialler: Dialler
) -> None:
    write = asyncio.create_task(link.run(sleep_for_ever))
    await asleep(dialler)
    dialler.made[0].terminate()
    with pytest.raises(DatabaseError) as caught:
        await write
    assert caught.value.outcome_unknown
    assert caught.value.__cause__ is not None
    assert await link.run(one) == 1


async def test_a_read_whose_connection_is_lost_under_it_is_sent_again(link: Link, dialler: Dialler) -> None:
    async def look(on: Session) -> int:
        return await one(on) if len(dialler.made) > 1 else len(await sleep_for_ever(on))

    read = asyncio.create_task(link.run(look, reads=True))
    await asleep(dialler)
    dialler.made[0].terminate()
    assert await read == 1


async def test_what_the_server_undid_is_sent_again(link: Link) -> None:
    tries = 0

    async def conflict(on: Session) -> int:
        nonlocal tries
        tries += 1
        if tries < 3:
            await on.fetch("DO $$ BEGIN RAISE EXCEPTION 'conflict' USING errcode = '40001'; END $$")
        return tries

    assert await link.run(conflict) == 3


async def test_a_conflict_without_an_end_is_an_error_that_landed_nothing(link: Link) -> None:
    tries = 0

    async def conflict(on: Session) -> None:
        nonlocal tries
        tries += 1
        await on.fetch("DO $$ BEGIN RAISE EXCEPTION 'conflict' USING errcode = '40P01'; END $$")

    with pytest.raises(DatabaseError, match="deadlock") as caught:
        await link.run(conflict)
    assert tries == 5
    assert not caught.value.outcome_unknown


async def test_a_refused_write_landed_nothing_and_says_why(link: Link) -> None:
    await link.run(put)
    with pytest.raises(DatabaseError, match="note_pkey") as caught:
        await link.run(put)
    assert not caught.value.outcome_unknown
    assert isinstance(caught.value.__cause__, asyncpg.UniqueViolationError)


async def test_a_server_that_cannot_be_reached_is_an_error_that_landed_nothing(
    link: Link, dialler: Dialler
) -> None:
    dialler.error = ConnectionRefusedError(111, "refused")
    with pytest.raises(DatabaseError, match="refused") as caught:
        await link.run(put)
    assert not caught.value.outcome_unknown
    dialler.error = None
    await link.run(put)


async def test_nothing_is_waited_for_longer_than_allowed(dialler: Dialler) -> None:
    link = Link(dialler, Schema("alkstore"), wait_timeout=-0.95, traffic=Traffic())
    dialler.hangs.clear()
    with pytest.raises(DatabaseError) as caught:
        await link.run(put)
    assert caught.value._is_held_back
    await link.close()


async def test_a_cancelled_operation_leaves_a_usable_link(link: Link, dialler: Dialler) -> None:
    for _ in range(3):
        task = asyncio.create_task(link.run(sleep_for_ever))
        await asleep(dialler)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await link.run(one) == 1
    assert len(dialler.made) == 1


async def test_the_end_ends_who_waits_for_the_server_and_who_stands_in_line(
    link: Link, dialler: Dialler
) -> None:
    first = asyncio.create_task(link.run(sleep_for_ever))
    await asleep(dialler)
    second = asyncio.create_task(link.run(one))
    await asyncio.sleep(0)
    await link.close()
    with pytest.raises(DatabaseError, match="nothing of it landed") as caught:
        await first
    assert not caught.value.outcome_unknown
    with pytest.raises(Closed):
        await second
    with pytest.raises(Closed):
        await link.run(one)


async def test_the_end_ends_who_waits_for_a_connection(link: Link, dialler: Dialler) -> None:
    dialler.hangs.clear()
    task = asyncio.create_task(link.run(one))
    await asyncio.sleep(0)
    await link.close()
    with pytest.raises(Closed):
        await task
    assert task.cancelling() == 0


async def test_traffic_counts_what_is_in_hand_and_what_was(dialler: Dialler) -> None:
    traffic = Traffic()
    link = Link(dialler, Schema("alkstore"), wait_timeout=PATIENCE, traffic=traffic)
    task = asyncio.create_task(link.run(one))
    await asyncio.sleep(0)
    assert (traffic.in_hand, traffic.done) == (1, 0)
    await task
    assert (traffic.in_hand, traffic.done) == (0, 1)
    await link.close()


async def asleep(dialler: Dialler) -> None:
    """Return when the server has an operation that sleeps for ever in hand."""
    connection = await asyncpg.connect(dialler.dsn)
    try:
        await connection.execute(ASLEEP, timeout=PATIENCE)
    finally:
        await connection.close()


LIMIT = PATIENCE + SLACK
"""Seconds that an operation may take."""


@jumping
async def test_a_connection_that_does_not_answer_is_given_up(dsn: str) -> None:
    async with Proxy(dsn) as proxy:
        link = Link(
            lambda: asyncpg.connect(proxy.dsn()), Schema("alkstore"), wait_timeout=PATIENCE, traffic=Traffic()
        )
        assert await link.run(one) == 1
        proxy.swallow(True)
        asking = asyncio.ensure_future(link.run(one))
        await skip(0)
        await skip(LIMIT)
        with pytest.raises(DatabaseError, match=f"no answer within {LIMIT:g} s") as caught:
            await asking
        assert caught.value.outcome_unknown
        proxy.swallow(False)
        assert await link.run(one) == 1
        await link.close()


@jumping
async def test_an_operation_has_all_of_its_time_whatever_came_before(dialler: Dialler) -> None:
    link = Link(dialler, Schema("alkstore"), wait_timeout=PATIENCE, traffic=Traffic())
    await link.run(one)
    for _ in range(3):  # the first timer rings while another one is in hand
        await link.run(lambda _: skip(LIMIT * 0.45))
    asking = asyncio.ensure_future(link.run(sleep_for_ever))
    await skip(0)
    await skip(LIMIT * 0.5)
    assert not asking.done()
    await skip(LIMIT * 0.5)
    with pytest.raises(DatabaseError, match=f"no answer within {LIMIT:g} s") as caught:
        await asking
    assert caught.value.outcome_unknown
    assert len(dialler.made) == 1
    await link.run(put)
    assert len(dialler.made) == 2
    await link.close()


@jumping
async def test_what_is_undone_again_and_again_takes_no_longer_than_one_operation(dialler: Dialler) -> None:
    link = Link(dialler, Schema("alkstore"), wait_timeout=PATIENCE, traffic=Traffic())
    await link.run(one)
    times = 0

    async def conflict(on: Session) -> None:
        nonlocal times
        times += 1
        await skip(LIMIT * 0.6)
        await on.fetch("DO $$ BEGIN RAISE EXCEPTION 'conflict' USING errcode = '40001'; END $$")

    with pytest.raises(DatabaseError, match=f"no answer within {LIMIT:g} s"):
        await link.run(conflict)
    assert times == 2
    await link.close()


@jumping
async def test_who_only_stood_in_line_knows_that_nothing_was_done(dialler: Dialler) -> None:
    link = Link(dialler, Schema("alkstore"), wait_timeout=PATIENCE, traffic=Traffic())
    await link.run(one)
    first, second = asyncio.create_task(link.run(sleep_for_ever)), asyncio.create_task(link.run(put))
    await skip(0)
    await skip(LIMIT)
    with pytest.raises(DatabaseError) as caught:
        await first
    assert caught.value.outcome_unknown
    with pytest.raises(DatabaseError) as caught:
        await second
    assert not caught.value.outcome_unknown
    await link.close()


class Elsewhere:
    """A place of one's own, which may be connected or not."""

    def __init__(self) -> None:
        self.is_connected = False
        self.times = 0

    async def run(self, operation: Operation[T], *, reads: bool = False) -> T:
        self.times += 1
        return cast(T, self.times)


async def test_a_guest_makes_no_connection_while_its_host_is_idle(link: Link) -> None:
    own = Elsewhere()
    guest = Guest(link, own)
    await guest.run(one)
    assert own.times == 1, "the host has no connection either, so each makes its own"
    await link.run(one)
    await guest.run(one)
    assert own.times == 1
    own.is_connected = True
    await guest.run(one)
    assert own.times == 2


async def test_a_guest_does_not_stand_in_its_hosts_line(link: Link, dialler: Dialler) -> None:
    own = Elsewhere()
    await link.run(one)
    busy = asyncio.create_task(link.run(sleep_for_ever))
    await asleep(dialler)
    assert await Guest(link, own).run(one) == 1
    assert own.times == 1
    busy.cancel()
    with pytest.raises(asyncio.CancelledError):
        await busy


class Ending(asyncpg.Connection):
    """Ends in the moment in which a statement is prepared and not yet executed."""

    async def _get_statement(self, *arguments: object, **named: object) -> object:
        statement = await super()._get_statement(*arguments, **named)  # type: ignore[misc]
        self.terminate()
        return statement


async def test_an_end_between_the_steps_of_a_statement_is_the_end_of_a_connection(dialler: Dialler) -> None:
    made: list[asyncpg.Connection[asyncpg.Record]] = []

    async def dial() -> "asyncpg.Connection[asyncpg.Record]":
        kind: Any = asyncpg.Connection if made else Ending
        made.append(await asyncpg.connect(dialler.dsn, connection_class=kind))
        return made[-1]

    link = Link(dial, Schema("alkstore"), wait_timeout=PATIENCE, traffic=Traffic())
    with pytest.raises(DatabaseError):
        await link.run(put)
    await link.run(put)
    await link.close()
