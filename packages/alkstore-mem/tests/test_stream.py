import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alkstore.engine import Engine, EngineTransaction, EventRecord, NewEvent, Signal, Topic, TopicKind
from alkstore.numbers import MAX_INT64, MIN_INT64
from alkstore.testing import ManualClock
from alkstore_mem.engine import MemEngine

EVENT = NewEvent("orders", None, b"1", b"{}")


@pytest.fixture
def engine() -> Engine:
    return MemEngine(ManualClock())


async def offsets(engine: Engine | EngineTransaction, after: int = 0, limit: int = 1_000) -> list[int]:
    return [event.offset for event in await engine.read_events("orders", after, limit)]


async def test_events_read_back_as_they_were_appended(engine: Engine) -> None:
    taken = await engine.append_events([EVENT._replace(key="k", headers=b'{"a":"b"}'), EVENT])

    (first, second) = await engine.read_events("orders", 0, 10)

    assert taken == [1, 2]
    assert (first.key, first.headers, second.key) == ("k", b'{"a":"b"}', None)
    assert await offsets(engine, 1) == [2]
    assert await offsets(engine, -5, 1) == [1]
    assert await offsets(engine, MAX_INT64) == []


async def test_an_open_transaction_holds_back_what_came_after_it(engine: Engine) -> None:
    tx = await engine.begin()
    assert await tx.append_events([EVENT]) == [1]
    assert await engine.append_events([EVENT]) == [2]
    assert (await offsets(engine), await engine.read_head("orders")) == ([], 0)
    watch = await engine.watch(Topic(TopicKind.STREAM, "orders"))

    await tx.commit()

    assert (await offsets(engine), await engine.read_head("orders")) == ([1, 2], 2)
    assert watch.poll() is Signal.WOKEN


async def test_a_rollback_frees_what_it_held_back_and_wakes_its_readers(engine: Engine) -> None:
    await engine.append_events([EVENT])
    tx = await engine.begin()
    await tx.append_events([EVENT])
    await engine.append_events([EVENT])
    assert await offsets(engine) == [1]
    watch = await engine.watch(Topic(TopicKind.STREAM, "orders"))

    await tx.rollback()

    assert (await offsets(engine), await engine.read_head("orders")) == ([1, 3], 3)
    assert watch.poll() is Signal.WOKEN


async def test_a_stream_that_only_a_rollback_touched_is_as_new(engine: Engine) -> None:
    tx = await engine.begin()
    await tx.append_events([EVENT])
    await tx.rollback()

    assert (await engine.list_names()).streams == []
    assert await engine.append_events([EVENT]) == [1]


async def test_a_transaction_reads_its_own_events_up_to_anothers_floor(engine: Engine) -> None:
    first, second = await engine.begin(), await engine.begin()
    await first.append_events([EVENT])
    await second.append_events([EVENT])
    await engine.append_events([EVENT])
    await first.append_events([EVENT])

    assert await offsets(first) == [1]
    assert await offsets(second) == []
    await first.rollback()
    assert await offsets(second) == [2, 3]
    assert await offsets(second, 2) == [3]
    assert await offsets(second, 0, 1) == [2]


async def test_a_trim_takes_what_is_readable_and_never_the_numbering(engine: Engine) -> None:
    await engine.append_events([EVENT] * 3)
    tx = await engine.begin()
    await tx.append_events([EVENT])
    await engine.append_events([EVENT])
    watch = await engine.watch(Topic(TopicKind.STREAM, "orders"))

    assert await engine.trim_events("orders", MIN_INT64) == 0
    assert await engine.trim_events("orders", 2) == 2
    assert await engine.trim_events("orders", MAX_INT64) == 1
    assert watch.poll() is None
    await tx.commit()
    assert await offsets(engine) == [4, 5]
    assert await engine.trim_events("orders", MAX_INT64) == 2
    assert (await engine.read_head("orders"), await engine.append_events([EVENT])) == (5, [6])


async def test_positions_only_go_forward_unless_they_are_reset(engine: Engine) -> None:
    assert await engine.move_offset("orders", "c", 0, backwards=False) is False
    assert await engine.read_offsets("orders") == {}
    assert await engine.move_offset("orders", "c", 7, backwards=False) is True
    assert await engine.move_offset("orders", "c", 7, backwards=False) is False
    assert await engine.move_offset("orders", "d", -3, backwards=True) is True
    assert await engine.move_offset("orders", "d", -2, backwards=False) is True
    assert await engine.read_offsets("orders") == {"c": 7, "d": -2}
    assert await engine.read_offsets("orders", "c") == {"c": 7}
    assert await engine.read_offsets("orders", "e") == {}
    assert (await engine.list_names()).streams == ["orders"]


class Reader:
    """Reads page by page, and remembers what it saw."""

    def __init__(self) -> None:
        self.seen: list[EventRecord] = []

    async def read(self, engine: Engine) -> None:
        after = self.seen[-1].offset if self.seen else 0
        page = await engine.read_events("orders", after, 3)
        self.seen += page


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.sampled_from("abptcrx"), st.integers(0, 5)), max_size=60))
async def test_a_reader_in_order_of_offsets_misses_nothing(steps: list[tuple[str, int]]) -> None:
    engine = MemEngine(ManualClock())
    reader = Reader()
    landed: set[int] = set()
    trimmed = 0
    opened: list[tuple[EngineTransaction, list[int]]] = []
    for kind, number in steps:
        match kind:
            case "a":
                landed.update(await engine.append_events([EVENT] * number))
            case "b":
                opened.append((await engine.begin(), []))
            case "p" if opened:
                tx, mine = opened[number % len(opened)]
                mine += await tx.append_events([EVENT] * number)
            case "c" if opened:
                tx, mine = opened.pop(number % len(opened))
                await tx.commit()
                landed.update(mine)
            case "r" if opened:
                tx, mine = opened.pop(number % len(opened))
                await tx.rollback()
            case "t":
                await reader.read(engine)
            case "x" if reader.seen:
                horizon = reader.seen[-1].offset
                trimmed += await engine.trim_events("orders", horizon)
    for tx, _ in opened:
        tx.abandon()
    for _ in range(100):
        await reader.read(engine)

    assert [event.offset for event in reader.seen] == sorted(landed)
    assert await engine.trim_events("orders", MAX_INT64) == len(landed) - trimmed
    assert await engine.read_head("orders") == max(landed, default=0)


async def test_trimmed_events_take_no_room(engine: Engine) -> None:
    async def rounds(count: int) -> None:
        for _ in range(count):
            await engine.append_events([EVENT] * 200)
            await engine.trim_events("orders", MAX_INT64)

    tracemalloc.start()
    try:
        await rounds(10)
        before, _ = tracemalloc.get_traced_memory()
        await rounds(100)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert after - before < 20_000  # a place that stays takes 8
