import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import pytest
from hanging import HUNG
from streams import FIRST, LAST, PATIENCE, Streams, event, streams

from alkstore.engine import AlikeEvents, EventRecord, NewEvent, OffsetSave, Topic, TopicKind
from alkstore_pg import stream
from alkstore_pg.contract_server import Server
from alkstore_pg.stream import StreamKey
from alkstore_pg.wake import Woken


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[str]:
    yield server.create_database("test_stream")
    server.drop_database("test_stream")


@pytest.fixture
async def world(database: str) -> AsyncIterator[Streams]:
    async with streams(database) as world:
        yield world


# ---------------------------------------------------------------- append and read


async def test_offsets_come_in_the_order_of_the_events_whatever_their_streams(world: Streams) -> None:
    assert await world.publish("b") == [1]

    assert await world.publish("a", "b", "a", "b") == [1, 3, 3, 5]

    assert (await world.seen("a"), await world.seen("b")) == ([1, 3], [1, 3, 5])


async def test_the_first_offset_of_a_stream_in_a_quiet_store_is_one_whatever_others_have(
    world: Streams,
) -> None:
    await world.publish(*["busy"] * 100)

    assert await world.publish("new") == [1]
    assert (await world.key("new"))[:2] == (2, 100)


async def test_an_event_reads_back_whole(world: Streams) -> None:
    key = await world.key("s")
    before = await world.sql("SELECT {schema}.now()")
    await stream.append(
        world.on, [NewEvent("s", "k\u00e9y", b"\x00\xff", b'{"a":"b"}')], {"s": key}, (), PATIENCE
    )

    page = await stream.read(world.on, "s", key, 0, 1)

    ((offset, name, event_key, payload, headers, created_at),) = page.events
    assert EventRecord(offset, name, event_key, payload, headers, 0) == EventRecord(
        1, "s", "k\u00e9y", b"\x00\xff", b'{"a":"b"}', 0
    )
    assert before <= created_at <= await world.sql("SELECT {schema}.now()")
    assert not page.is_held_back


async def test_appending_nothing_asks_the_server_nothing(world: Streams) -> None:
    await world.on.connection.close()

    assert await stream.append(world.on, [], {}, (), PATIENCE) == []


async def test_an_append_lands_whole_or_not_at_all(world: Streams) -> None:
    keys = await world.keys.made({"s"})

    with pytest.raises(asyncpg.DataError):
        await stream.append(world.on, [event("s"), event("s", key="\0")], keys, (), PATIENCE)

    assert await world.seen("s") == []


async def test_an_append_sends_its_texts_when_it_commits(world: Streams) -> None:
    heard: asyncio.Queue[object] = asyncio.Queue()
    listener = await world.session()
    await listener.connection.add_listener(world.schema.channel, lambda *a: heard.put_nowait(a[-1]))
    keys = await world.keys.made({"s"})

    async with world.on.connection.transaction():
        await stream.append(world.on, [event("s")], keys, ["s1:s", "s1:t"], PATIENCE)
        await listener.connection.fetch("SELECT 1")
        assert heard.empty()

    async with asyncio.timeout(HUNG):
        assert [await heard.get(), await heard.get()] == ["s1:s", "s1:t"]


async def test_alike_events_are_appended_as_those_that_they_stand_for(world: Streams) -> None:
    alike = AlikeEvents(NewEvent("s", "k", b"", b'{"h":"v"}'), [b"1", b"2", b"3"])
    keys = await world.keys.made(stream.names_in(alike))

    offsets = await stream.append(world.on, alike, keys, (), PATIENCE)

    page = await stream.read(world.on, "s", keys["s"], 0, LAST)
    assert [event[:5] for event in page.events] == [
        (offset, "s", "k", payload, b'{"h":"v"}')
        for offset, payload in zip(offsets, [b"1", b"2", b"3"], strict=True)
    ]


def test_no_events_name_no_stream() -> None:
    assert list(stream.names_in(AlikeEvents(event("s"), []))) == list(stream.names_in([])) == []


def test_an_append_concerns_each_of_its_streams_once() -> None:
    woken = stream.woken_by(stream.names_in([event("b"), event("a"), event("b")]))

    assert woken == [Woken(Topic(TopicKind.STREAM, "b")), Woken(Topic(TopicKind.STREAM, "a"))]


@pytest.mark.parametrize(
    ("after", "limit", "offsets"),
    [(FIRST, 2, [1, 3]), (0, 9, [1, 3, 4]), (3, 9, [4]), (4, 9, []), (LAST, 9, []), (-1, LAST, [1, 3, 4])],
)
async def test_a_page_holds_what_comes_after_an_offset(
    world: Streams, after: int, limit: int, offsets: list[int]
) -> None:
    await world.publish("s", "other", "s", "s")

    page = await stream.read(world.on, "s", await world.key("s"), after, limit)

    assert [record.offset for record in page.events] == offsets


async def test_a_page_may_hold_payloads_of_8_mib(world: Streams) -> None:
    payloads = [bytes([n]) * (8 * 2**20) for n in range(3)]
    keys = await world.keys.made({"s"})
    await stream.append(world.on, [event("s", payload) for payload in payloads], keys, (), PATIENCE)

    assert [record.payload for record in (await world.page("s")).events] == payloads


# ---------------------------------------------------------------- head, trim, names


async def test_a_trim_says_how_many_and_leaves_head_and_numbering(world: Streams) -> None:
    await world.publish("s", "s", "s", "other")
    key = await world.key("s")

    assert [await stream.trim(world.on, key, horizon) for horizon in (FIRST, 2, 2, LAST, LAST)] == [
        0,
        2,
        0,
        1,
        0,
    ]

    assert await world.head("s") == 3
    assert await world.publish("s") == [5]
    assert (await world.seen("s"), await world.seen("other")) == ([5], [4])
    assert await world.head("s") == 5


async def test_a_trim_takes_only_what_can_be_read(world: Streams) -> None:
    await world.publish("s")
    other = await world.session()
    async with other.connection.transaction():
        await world.publish("s", on=other)
        await world.publish("s")

        assert await stream.trim(world.on, await world.key("s"), LAST) == 1
        assert await world.head("s") == 1

    assert await world.seen("s") == [2, 3]


async def test_trims_of_one_stream_follow_each_other(world: Streams) -> None:
    key = await world.key("s")
    await world.publish(*["s"] * 200)
    sessions = [await world.session() for _ in range(4)]

    counts = await asyncio.gather(
        *(stream.trim(on, key, horizon) for on, horizon in zip(sessions, (50, 200, 100, 200), strict=True))
    )

    assert sum(counts) == 200
    assert await world.head("s") == 200


async def test_the_head_of_a_stream_without_events_is_zero(world: Streams) -> None:
    assert await world.head("s") == 0


async def test_streams_are_listed_by_their_events_and_positions_in_the_order_of_their_code_points(
    world: Streams,
) -> None:
    await world.publish("trimmed", "full", "Full", "\U0001f600", "\uffee")
    await stream.trim(world.on, await world.key("trimmed"), LAST)
    await stream.move(world.on, await world.key("awaited"), "c", 5, PATIENCE, backwards=False)
    await stream.move(world.on, await world.key("unmoved"), "c", 0, PATIENCE, backwards=False)
    await stream.hold_position(world.on, await world.key("held"), "c", PATIENCE)

    assert await stream.names(world.on) == ["Full", "awaited", "full", "\uffee", "\U0001f600"]


# ---------------------------------------------------------------- positions


async def test_a_position_moves_forward_only_unless_it_is_told_to(world: Streams) -> None:
    key = await world.key("s")

    async def move(offset: int, *, backwards: bool = False) -> bool:
        return await stream.move(world.on, key, "c", offset, PATIENCE, backwards=backwards)

    assert [await move(offset) for offset in (0, -1, 5, 5, 4, LAST)] == [
        False,
        False,
        True,
        False,
        False,
        True,
    ]
    assert await move(-7, backwards=True)
    assert await stream.position(world.on, key, "c") == -7
    assert [await move(offset) for offset in (-8, 0)] == [False, True]
    assert await move(FIRST, backwards=True)
    assert await stream.offsets(world.on, key, "c") == {"c": FIRST}


async def test_a_first_save_may_go_backwards(world: Streams) -> None:
    assert await stream.move(world.on, await world.key("s"), "c", -5, PATIENCE, backwards=True)
    assert await stream.offsets(world.on, await world.key("s"), None) == {"c": -5}


async def test_positions_are_each_consumers_and_each_streams_own(world: Streams) -> None:
    a, b = await world.key("a"), await world.key("b")
    for key, consumer, offset in ((a, "c", 1), (a, "C", 2), (b, "c", 3)):
        await stream.move(world.on, key, consumer, offset, PATIENCE, backwards=False)

    assert await stream.offsets(world.on, a, None) == {"c": 1, "C": 2}
    assert await stream.offsets(world.on, b, "c") == {"c": 3}
    assert await stream.offsets(world.on, b, "C") == {}
    assert await stream.position(world.on, b, "C") == 0


async def test_a_save_is_a_compare_and_set(world: Streams) -> None:
    key = await world.key("s")

    async def save(offset: int, expected: int | None) -> OffsetSave:
        return await stream.save(world.on, key, "c", offset, expected, PATIENCE)

    assert await save(4, 1) == OffsetSave(0, False)
    assert await save(4, 0) == OffsetSave(0, True)
    assert await save(2, 4) == OffsetSave(4, True)
    assert await save(2, None) == OffsetSave(2, False)
    assert await save(3, None) == OffsetSave(2, True)
    assert await stream.offsets(world.on, key, None) == {"c": 3}


async def test_a_hold_shows_nobody_a_position(world: Streams) -> None:
    key = await world.key("s")

    assert await stream.hold_position(world.on, key, "c", PATIENCE) == 0
    assert await stream.save(world.on, key, "d", 0, None, PATIENCE) == OffsetSave(0, False)

    assert await stream.offsets(world.on, key, None) == {}
    assert await stream.offsets(world.on, key, "c") == {}
    assert await stream.move(world.on, key, "c", 0, PATIENCE, backwards=False) is False
    assert await stream.move(world.on, key, "c", 1, PATIENCE, backwards=False) is True


async def test_of_saves_at_once_the_greatest_wins(world: Streams) -> None:
    key = await world.key("s")
    sessions = [await world.session() for _ in range(8)]
    offsets = random.Random(5).sample(range(1, 1_000), 400)

    async def save(on: Any, mine: list[int]) -> None:
        for offset in mine:
            await stream.move(on, key, "c", offset, PATIENCE, backwards=False)

    await asyncio.gather(*(save(on, offsets[n::8]) for n, on in enumerate(sessions)))

    assert await stream.position(world.on, key, "c") == max(offsets)


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize(("plain", "position"), [(7, 7), (3, 5)])
async def test_a_plain_save_that_meets_an_open_transactions_save_is_not_lost(
    world: Streams, there: bool, plain: int, position: int
) -> None:
    key = await world.key("s")
    if there:
        await stream.move(world.on, key, "c", 1, PATIENCE, backwards=False)
    other, mine = await world.session(), await world.session()
    async with other.connection.transaction():
        found = await stream.hold_position(other, key, "c", PATIENCE)
        assert (await stream.save(other, key, "c", 5, found, PATIENCE)).saved

        move = asyncio.create_task(stream.move(mine, key, "c", plain, PATIENCE, backwards=False))
        await world.blocked(mine)

    assert await move is (plain > 5)
    assert await stream.position(world.on, key, "c") == position


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("wait", ["move", "reset", "hold", "save"])
async def test_whoever_meets_a_held_position_waits_for_as_long_as_his_patience(
    world: Streams, there: bool, wait: str
) -> None:
    key = await world.key("s")
    if there:
        await stream.move(world.on, key, "c", 1, PATIENCE, backwards=False)
    other, mine = await world.session(), await world.session()
    waits: dict[str, Callable[[], Awaitable[object]]] = {
        "move": lambda: stream.move(mine, key, "c", 9, 20, backwards=False),
        "reset": lambda: stream.move(mine, key, "c", 0, 20, backwards=True),
        "hold": lambda: stream.hold_position(mine, key, "c", 20),
        "save": lambda: stream.save(mine, key, "c", 9, None, 20),
    }
    async with other.connection.transaction():
        await stream.hold_position(other, key, "c", PATIENCE)

        with pytest.raises(asyncpg.LockNotAvailableError):
            await waits[wait]()
        assert await stream.position(mine, key, "c") == int(there)

    await waits[wait]()


async def test_a_callers_own_patience_is_as_before_afterwards(world: Streams) -> None:
    key = await world.key("s")
    async with world.on.connection.transaction():
        await world.on.connection.execute("SET LOCAL lock_timeout = '1234ms'")
        await stream.hold_position(world.on, key, "c", 0)
        await stream.save(world.on, key, "c", 5, 0, LAST)
        await stream.move(world.on, key, "c", 6, PATIENCE, backwards=False)
        assert await world.sql("SHOW lock_timeout") == "1234ms"
    assert await world.sql("SHOW lock_timeout") == "0"


# ---------------------------------------------------------------- keys


async def test_keys_are_asked_for_once(world: Streams) -> None:
    made = await world.keys.made({"a", "b"})
    asked = world.runner.count

    assert (await world.keys.made(["b", "a"]), await world.keys.find("a")) == (made, made["a"])
    assert world.runner.count == asked
    assert await stream.StreamKeys(world.runner).find("b") == made["b"]


async def test_a_stream_that_has_no_row_is_asked_for_again(world: Streams) -> None:
    assert await world.keys.find("s") is None

    await stream.StreamKeys(world.runner).made({"s"})

    found = await world.keys.find("s")
    assert found is not None
    assert found[:2] == (1, 0)


async def test_no_more_keys_are_remembered_than_the_bound(world: Streams) -> None:
    names = [f"s{n}" for n in range(stream.MOST_KEYS + 1)]
    made = await world.keys.made(names)
    asked = world.runner.count

    assert len(made) == stream.MOST_KEYS + 1
    await world.keys.find(names[-1])
    assert world.runner.count == asked
    assert [await world.keys.find(name) for name in sorted(names)[:2]] == [made[n] for n in sorted(names)[:2]]
    assert world.runner.count > asked


async def test_any_number_of_first_publishers_agree_on_a_key(world: Streams) -> None:
    sessions = [await world.session() for _ in range(16)]

    async def begin(on: Any) -> tuple[StreamKey, int]:
        runner = type(world.runner)(on)
        key = (await stream.StreamKeys(runner).made({"a", "b", "c"}))["b"]
        return key, (await stream.append(on, [event("b")], {"b": key}, (), PATIENCE))[0]

    begun = await asyncio.gather(*map(begin, sessions))

    assert len({key for key, _ in begun}) == 1
    assert sorted(offset for _, offset in begun) == await world.seen("b") == list(range(1, 17))


# ---------------------------------------------------------------- plans


@pytest.mark.parametrize("wait", ["append", "read", "head", "trim", "move", "hold", "save", "catch_up"])
async def test_no_table_is_read_whole(world: Streams, wait: str) -> None:
    on = await world.session()  # the other one has made the indexes
    key = await world.key("s")
    await world.publish(*["s"] * 5, *["t"] * 5_000)
    await stream.move(world.on, key, "c", 1, PATIENCE, backwards=False)
    # So few rows that a plan which is kept for any stream and offset would rather read them all.
    await world.script("ANALYZE {schema}.event, {schema}.stream, {schema}.position")
    operations: dict[str, Callable[[], Awaitable[object]]] = {
        "append": lambda: world.publish("s", "t", "s", on=on),
        "read": lambda: stream.read(on, "s", key, 1, 10),
        "head": lambda: stream.head(on, key),
        "trim": lambda: stream.trim(on, key, 1),
        "move": lambda: stream.move(on, key, "c", 8, PATIENCE, backwards=False),
        "hold": lambda: stream.hold_position(on, key, "c", PATIENCE),
        "save": lambda: stream.save(on, key, "c", 9, None, PATIENCE),
        "catch_up": lambda: stream.catch_up(on),
    }
    async with on.connection.transaction():
        for _ in range(7):
            await operations[wait]()
        scanned = await on.fetch(
            "SELECT relname FROM pg_stat_xact_user_tables WHERE schemaname = $1 AND seq_scan > 0",
            world.schema.name,
        )

    assert {name for (name,) in scanned} <= ({"stream"} if wait == "catch_up" else set())
