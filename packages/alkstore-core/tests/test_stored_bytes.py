"""Stored bytes that cannot be decoded: whoever looks at them is told, and nobody else (PAY-05, PAY-08)."""

from collections.abc import AsyncIterator

import pytest

from alkstore import CodecError, EventReceiver, Job, JobHandle, JobState, StreamEvent
from alkstore.engine import NewEvent, NewJob
from alkstore_mem import MemStore

ODD = b"\xff{"
JOB = NewJob("q", ODD, ODD, 0, None, None, 300_000_000, 3, 0, None)


@pytest.fixture
async def store() -> AsyncIterator[MemStore]:
    """A store into which somebody wrote around core."""
    async with MemStore() as store:
        await store._engine.insert_jobs([JOB, JOB, JOB._replace(queue="__alkstore_outbox:o")])
        await store._engine.append_events([NewEvent("s", None, ODD, ODD)] * 2)
        yield store


def refuses(value: Job | StreamEvent) -> bool:
    with pytest.raises(CodecError):
        _ = value.payload
    with pytest.raises(CodecError):
        value.payload_as(dict)
    with pytest.raises(CodecError):
        _ = value.headers
    return value.payload_bytes == ODD


async def test_a_job_is_claimed_shown_and_settled_whatever_its_bytes(store: MemStore) -> None:
    queue = store.queue("q")
    handle = await queue.claim(timeout=0)
    assert handle is not None
    assert refuses(handle.job)
    assert repr(handle.job)

    assert all(refuses(job) for job in await queue.list())
    assert await handle.heartbeat()
    assert await handle.fail("odd bytes")
    dead = await queue.get_job(handle.job.id)
    assert dead is not None
    assert (dead.state, refuses(dead)) == (JobState.DEAD, True)
    assert await queue.redrive(dead.id) == 1


async def test_a_handler_and_a_delivery_hear_of_odd_bytes_and_the_row_is_retried(store: MemStore) -> None:
    async def handle(handle: JobHandle) -> object:
        return handle.job.payload

    assert await store.queue("q").run_once(handle)
    assert await store.outbox("o").run_once(handle)

    for queue in (store.queue("q"), store.outbox("o").jobs):
        texts = [job.retry_error for job in await queue.list() if job.attempts]
        assert ["CodecError" in (text or "") for text in texts] == [True]


async def test_an_event_is_read_and_received_whatever_its_bytes(store: MemStore) -> None:
    stream = store.stream("s")
    assert [refuses(event) for event in await stream.read_since(0)] == [True, True]

    async with stream.subscribe("c", after=0) as events:
        assert [refuses(event) for event in await received(events)] == [True, True]
    assert await stream.get_offset("c") == 2
    async with store.begin_tx() as tx:
        assert [refuses(event) for event in await tx.read_since("s", 0)] == [True, True]


async def received(events: EventReceiver) -> list[StreamEvent]:
    found = [await events.recv(), await events.try_recv()]
    kept = [event for event in found if event is not None]
    await events.save(kept[-1])
    return kept
