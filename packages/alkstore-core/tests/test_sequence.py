import asyncio
from collections.abc import Sequence

import pytest

from alkstore import carrying
from alkstore.batching import Batcher
from alkstore.draft import new_events, new_jobs
from alkstore.engine import AlikeEvents, AlikeJobs, EventRecord, EventRow, EventRows, NewEvent, NewJob
from alkstore.stamps import PLAIN
from alkstore.values import EnqueueOpts, stream_events


def job(payload: bytes) -> NewJob:
    return NewJob("mail", payload, b"{}", 2, None, None, 300, 3, 5, None)


ALIKE = AlikeJobs(job(b""), [b"1", b"2", b"3"])
JOBS = [job(b"1"), job(b"2"), job(b"3")]


def test_alike_jobs_are_the_sequence_of_the_jobs_that_they_stand_for() -> None:
    assert list(ALIKE) == JOBS
    assert len(ALIKE) == 3
    assert (ALIKE[0], ALIKE[-1]) == (JOBS[0], JOBS[-1])
    assert list(zip(*ALIKE, strict=True)) == list(zip(*JOBS, strict=True))
    assert all(type(each) is NewJob for each in (*ALIKE, ALIKE[1]))
    assert JOBS[1] in ALIKE


def test_a_slice_of_alike_jobs_is_alike_too() -> None:
    part = ALIKE[1:]

    assert isinstance(part, AlikeJobs)
    assert list(part) == JOBS[1:]
    assert not ALIKE[3:]


def test_there_is_no_job_past_the_end_of_alike_jobs() -> None:
    with pytest.raises(IndexError):
        ALIKE[3]


def test_a_batch_with_options_for_each_is_not_alike_and_one_without_is() -> None:
    call = EnqueueOpts(priority=2)
    values = [1, 2, 3]

    assert isinstance(new_jobs("mail", PLAIN, values, None, call), AlikeJobs)
    each = new_jobs("mail", PLAIN, values, [EnqueueOpts()] * 3, call)
    assert list(new_jobs("mail", PLAIN, values, None, call)) == list(each)


class Storage:
    """An engine that keeps what it is handed, and takes a turn of the loop for it."""

    def __init__(self) -> None:
        self.handed: list[Sequence[object]] = []

    async def insert_jobs(self, jobs: Sequence[object]) -> Sequence[int]:
        self.handed.append(jobs)
        await asyncio.sleep(0)
        return range(len(jobs))

    settle_jobs = append_events = insert_jobs

    async def notify(self, wakes: Sequence[object]) -> None:
        raise NotImplementedError


async def enqueue(batcher: Batcher, jobs: Sequence[NewJob]) -> list[int]:
    return list(await batcher.insert_jobs(jobs))


async def test_a_batch_that_stands_in_line_alone_is_handed_on_as_alike() -> None:
    storage = Storage()
    batcher = Batcher(storage)

    async with asyncio.TaskGroup() as group:
        group.create_task(enqueue(batcher, [job(b"0")]))
        second = group.create_task(enqueue(batcher, ALIKE))

    assert storage.handed == [[job(b"0")], ALIKE]
    assert second.result() == [0, 1, 2]


# ---------------------------------------------------------------- events


def event(payload: bytes) -> NewEvent:
    return NewEvent("orders", "k", payload, b"{}")


EVENTS = [event(b"1"), event(b"2"), event(b"3")]
ALIKE_EVENTS = AlikeEvents(event(b""), [b"1", b"2", b"3"])


def test_alike_events_are_the_sequence_of_the_events_that_they_stand_for() -> None:
    assert list(ALIKE_EVENTS) == EVENTS
    assert len(ALIKE_EVENTS) == 3
    assert (ALIKE_EVENTS[0], ALIKE_EVENTS[-1]) == (EVENTS[0], EVENTS[-1])
    assert all(type(each) is NewEvent for each in (*ALIKE_EVENTS, ALIKE_EVENTS[1]))


def test_a_slice_of_alike_events_is_alike_too() -> None:
    part = ALIKE_EVENTS[1:]

    assert isinstance(part, AlikeEvents)
    assert list(part) == EVENTS[1:]
    assert not ALIKE_EVENTS[3:]


def test_events_of_one_call_are_alike_unless_each_has_a_key_of_its_own() -> None:
    alike = new_events("orders", [1, 2, 3], "k", None)

    assert isinstance(alike, AlikeEvents)
    assert list(alike) == EVENTS == list(new_events("orders", [1, 2, 3], None, ["k"] * 3))


def test_alike_events_stay_alike_when_headers_are_added() -> None:
    carried = carrying.events(ALIKE_EVENTS, {"traceparent": "00-1"})

    assert isinstance(carried, AlikeEvents)
    assert list(carried) == [each._replace(headers=b'{"traceparent":"00-1"}') for each in EVENTS]


# ---------------------------------------------------------------- rows


def row(offset: int) -> EventRow:
    return (offset, "k", b"%d" % offset, b"{}", 7)


ROWS = EventRows("orders", [row(1), row(2), row(3)])
RECORDS = [EventRecord(at, "orders", "k", b"%d" % at, b"{}", 7) for at in (1, 2, 3)]


def test_rows_are_the_sequence_of_the_records_that_they_stand_for() -> None:
    assert list(ROWS) == RECORDS
    assert len(ROWS) == 3
    assert (ROWS[0], ROWS[-1]) == (RECORDS[0], RECORDS[-1])
    assert all(type(each) is EventRecord for each in (*ROWS, ROWS[1]))
    assert not EventRows("orders", [])


def test_a_slice_of_rows_is_rows_too() -> None:
    part = ROWS[1:]

    assert isinstance(part, EventRows)
    assert list(part) == RECORDS[1:]


def test_rows_equal_what_holds_the_same_records_and_nothing_else() -> None:
    assert ROWS == RECORDS
    assert EventRows("orders", ROWS.rows) == ROWS
    assert EventRows("invoices", ROWS.rows) != ROWS
    assert RECORDS[1:] != ROWS
    assert ROWS != 3


def test_rows_show_the_records_that_they_stand_for() -> None:
    assert repr(EventRows("orders", [row(1)])) == f"EventRows([{RECORDS[0]!r}])"


def test_users_see_the_same_events_of_rows_as_of_records() -> None:
    events = stream_events(ROWS)

    assert events == stream_events(RECORDS)
    assert [(event.offset, event.stream, event.key, event.payload) for event in events] == [
        (1, "orders", "k", 1),
        (2, "orders", "k", 2),
        (3, "orders", "k", 3),
    ]
