import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tables import plan, with_tables

from alkstore.engine import AlikeEvents, EventRecord, NewEvent, OffsetSave, Topic, TopicKind
from alkstore_sqlite import stream
from alkstore_sqlite.connection import Woken, perform

FIRST, LAST = -(2**63), 2**63 - 1


def event(stream: str, payload: bytes = b"1", key: str | None = None) -> NewEvent:
    return NewEvent(stream, key, payload, b"{}")


def publish(connection: sqlite3.Connection, *streams: str) -> None:
    perform(connection, stream.append([event(name) for name in streams], 0))


def seen(connection: sqlite3.Connection, name: str) -> list[int]:
    return [record.offset for record in perform(connection, stream.read(name, FIRST, LAST))]


# ---------------------------------------------------------------- append and read


def test_offsets_come_in_the_order_of_the_events_whatever_their_streams(
    connection: sqlite3.Connection,
) -> None:
    publish(connection, "b")

    change = perform(connection, stream.append([event("a"), event("b"), event("a"), event("b")], 0))

    assert change.result == [1, 2, 2, 3]
    assert change.woken == [Woken(Topic(TopicKind.STREAM, "a"), 2), Woken(Topic(TopicKind.STREAM, "b"), 3)]
    assert (seen(connection, "a"), seen(connection, "b")) == ([1, 2], [1, 2, 3])


@pytest.mark.parametrize(
    "form", [list, tuple, lambda events: AlikeEvents(events[0], [event.payload for event in events])]
)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_alike_events_are_appended_in_their_order_behind_those_that_are_there(
    connection: sqlite3.Connection, form: Any, count: int
) -> None:
    publish(connection, "s")
    events = [event("s", b"%d" % at, "k") for at in range(count)]

    change = perform(connection, stream.append(form(events), 7))

    assert list(change.result) == list(range(2, count + 2))
    assert list(change.woken) == [Woken(Topic(TopicKind.STREAM, "s"), count + 1)]
    assert perform(connection, stream.read("s", 1, LAST)) == [
        EventRecord(at + 2, "s", "k", b"%d" % at, b"{}", 7) for at in range(count)
    ]


@pytest.mark.parametrize("other", [NewEvent("s", "l", b"2", b"{}"), NewEvent("s", "k", b"2", b'{"a":"b"}')])
def test_events_that_land_together_keep_what_they_differ_in(
    connection: sqlite3.Connection, other: NewEvent
) -> None:
    perform(connection, stream.append([NewEvent("s", "k", b"1", b"{}"), other], 7))

    assert perform(connection, stream.read("s", 0, LAST)) == [
        EventRecord(1, "s", "k", b"1", b"{}", 7),
        EventRecord(2, "s", other.key, b"2", other.headers, 7),
    ]


def test_an_event_reads_back_whole(connection: sqlite3.Connection) -> None:
    perform(connection, stream.append([NewEvent("s", "k\u00e9y", b"\x00\xff", b'{"a":"b"}')], 1_234))

    assert perform(connection, stream.read("s", 0, 1)) == [
        EventRecord(1, "s", "k\u00e9y", b"\x00\xff", b'{"a":"b"}', 1_234)
    ]


def test_appending_nothing_does_nothing(connection: sqlite3.Connection) -> None:
    change = perform(connection, stream.append([], 0))

    assert (change.result, change.woken, connection.total_changes) == ([], [], 0)


def test_an_offset_that_was_rolled_back_is_given_again(connection: sqlite3.Connection) -> None:
    publish(connection, "s")
    connection.execute("BEGIN")
    publish(connection, "s", "s")
    connection.execute("ROLLBACK")

    assert perform(connection, stream.append([event("s")], 0)).result == [2]
    assert seen(connection, "s") == [1, 2]


@pytest.mark.parametrize(
    ("after", "limit", "offsets"),
    [(FIRST, 2, [1, 2]), (0, 9, [1, 2, 3]), (2, 9, [3]), (3, 9, []), (LAST, 9, []), (-1, LAST, [1, 2, 3])],
)
def test_a_page_holds_what_comes_after_an_offset(
    connection: sqlite3.Connection, after: int, limit: int, offsets: list[int]
) -> None:
    publish(connection, "s", "other", "s", "s")

    page = perform(connection, stream.read("s", after, limit))

    assert [record.offset for record in page] == offsets


def test_a_page_may_hold_payloads_of_8_mib(connection: sqlite3.Connection) -> None:
    payloads = [bytes([n]) * (8 * 2**20) for n in range(3)]
    perform(connection, stream.append([event("s", payload) for payload in payloads], 0))

    assert [record.payload for record in perform(connection, stream.read("s", 0, 3))] == payloads


# ---------------------------------------------------------------- head, trim, names


def test_a_trim_says_how_many_and_leaves_the_numbering(connection: sqlite3.Connection) -> None:
    publish(connection, "s", "s", "s", "other")

    trims = [perform(connection, stream.trim("s", horizon)) for horizon in (FIRST, 2, 2, LAST)]

    assert [change.result for change in trims] == [0, 2, 0, 1]
    assert [*(change.woken for change in trims)] == [()] * 4
    assert perform(connection, stream.head("s")) == 3
    assert perform(connection, stream.append([event("s")], 0)).result == [4]
    assert (seen(connection, "s"), seen(connection, "other")) == ([4], [1])


def test_a_trim_of_an_unknown_stream_counts_nothing_that_was_changed_before(
    connection: sqlite3.Connection,
) -> None:
    publish(connection, "s", "s")

    assert perform(connection, stream.trim("unknown", LAST)).result == 0


def test_the_head_of_an_unknown_stream_is_zero(connection: sqlite3.Connection) -> None:
    assert perform(connection, stream.head("unknown")) == 0


def test_streams_are_listed_by_their_events_and_positions(connection: sqlite3.Connection) -> None:
    publish(connection, "trimmed", "full")
    perform(connection, stream.trim("trimmed", LAST))
    perform(connection, stream.move("awaited", "c", 5, backwards=False))
    perform(connection, stream.move("unmoved", "c", 0, backwards=False))

    assert perform(connection, stream.names()) == ["awaited", "full"]


def test_streams_are_listed_by_code_point_in_a_file_of_utf_16_too() -> None:
    connection = with_tables(":memory:", encoding="UTF-16le")
    publish(connection, "b", "\u0101", "a", "\U0001f600", "\uffee")

    names = perform(connection, stream.names())
    connection.close()

    assert names == ["a", "b", "\u0101", "\uffee", "\U0001f600"]


# ---------------------------------------------------------------- positions


def test_a_position_may_be_saved_before_anything_was_published(connection: sqlite3.Connection) -> None:
    assert perform(connection, stream.move("s", "c", 7, backwards=False)).result
    assert perform(connection, stream.offsets("s", None)) == {"c": 7}
    assert perform(connection, stream.append([event("s")], 0)).result == [1]


def test_a_position_moves_forward_only_unless_it_is_reset(connection: sqlite3.Connection) -> None:
    def moved(offset: int, *, backwards: bool = False) -> bool:
        return perform(connection, stream.move("s", "c", offset, backwards=backwards)).result

    assert [moved(0), moved(3), moved(3), moved(2)] == [False, True, False, False]
    assert [moved(3, backwards=True), moved(FIRST, backwards=True)] == [True, True]
    assert [moved(FIRST), moved(-5), moved(LAST), moved(LAST)] == [False, True, True, False]
    assert perform(connection, stream.position("s", "c")) == LAST


def test_positions_are_each_consumers_own(connection: sqlite3.Connection) -> None:
    for name, consumer, offset in [("s", "a", 1), ("s", "b", 2), ("other", "a", 3)]:
        perform(connection, stream.move(name, consumer, offset, backwards=False))

    assert perform(connection, stream.offsets("s", None)) == {"a": 1, "b": 2}
    assert perform(connection, stream.offsets("s", "b")) == {"b": 2}
    assert perform(connection, stream.offsets("s", "c")) == {}
    assert perform(connection, stream.offsets("unknown", None)) == {}
    assert perform(connection, stream.position("s", "c")) == 0


def test_a_save_is_a_compare_and_set(connection: sqlite3.Connection) -> None:
    def save(offset: int, expected: int | None) -> OffsetSave:
        return perform(connection, stream.save("s", "c", offset, expected)).result

    assert save(4, 1) == OffsetSave(0, False)
    assert save(4, 0) == OffsetSave(0, True)
    assert save(2, 4) == OffsetSave(4, True)
    assert save(2, None) == OffsetSave(2, False)
    assert save(3, None) == OffsetSave(2, True)
    assert perform(connection, stream.offsets("s", None)) == {"c": 3}


def test_a_save_that_is_refused_leaves_no_row(connection: sqlite3.Connection) -> None:
    perform(connection, stream.save("s", "c", 0, None))

    assert connection.total_changes == 0


def test_a_hold_shows_nobody_a_position(connection: sqlite3.Connection) -> None:
    assert perform(connection, stream.hold_position("s", "c")).result == 0
    assert perform(connection, stream.offsets("s", None)) == {}
    assert (perform(connection, stream.names()), connection.total_changes) == ([], 0)


@pytest.mark.parametrize(
    "steps",
    [
        lambda: stream.append([event("s")], 0),
        lambda: stream.hold_position("s", "c"),
        lambda: stream.save("s", "c", 1, 5),
    ],
    ids=["append", "hold_position", "save"],
)
def test_a_part_of_a_callers_transaction_begins_it_and_keeps_others_from_writing(
    tmp_path: Path, steps: Any
) -> None:
    with_tables(tmp_path / "file").close()
    # sqlite3 as it comes: only what begins with INSERT, UPDATE or DELETE begins a transaction.
    mine = sqlite3.connect(tmp_path / "file")
    other = sqlite3.connect(tmp_path / "file", isolation_level=None, timeout=0)

    perform(mine, steps())

    assert mine.in_transaction
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
    mine.rollback()
    other.execute("BEGIN IMMEDIATE")
    other.close()
    mine.close()


# ---------------------------------------------------------------- plans


@pytest.mark.parametrize(
    "steps",
    [
        lambda: stream.append([event("s"), event("t"), event("s")], 0),
        lambda: stream.read("s", 1, 10),
        lambda: stream.head("s"),
        lambda: stream.trim("s", 1),
        lambda: stream.offsets("s", None),
        lambda: stream.offsets("s", "c"),
        lambda: stream.move("s", "c", 8, backwards=False),
        lambda: stream.hold_position("s", "c"),
        lambda: stream.save("s", "c", 9, None),
    ],
    ids=["append", "read", "head", "trim", "offsets", "offset", "move", "hold_position", "save"],
)
def test_a_stream_is_found_by_its_keys_alone(connection: sqlite3.Connection, steps: Any) -> None:
    publish(connection, "s")

    details = plan(connection, steps())

    by_key = ("SEARCH", "SCALAR SUBQUERY", "SCAN CONSTANT ROW")
    assert [line for line in details if not line.startswith(by_key)] == []
