"""Jobs acked in a transaction of the application's own: nobody tells of its end, and the claim decides."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from alkstore import HandleConsumed, JobHandle, JobState
from alkstore.testing import ManualClock
from alkstore.worker import Counts, Worker
from alkstore_mem import MemStore
from alkstore_mem.contract_joins import Sessions

PENDING = JobState.PENDING


class Boom(Exception):
    """What goes wrong in an application."""


@pytest.fixture
async def store() -> AsyncIterator[MemStore]:
    async with MemStore(clock=ManualClock()) as store:
        yield store


@pytest.fixture
def sessions(tmp_path: Path) -> Sessions:
    return Sessions(tmp_path)


async def ack_in(store: MemStore, sessions: Sessions, handle: JobHandle, end: str) -> None:
    """Ack in a session's transaction, and end that: by a commit, by a rollback, or by raising inside or behind it."""
    async with sessions.transaction() as session:
        async with store.join(session.connection) as tx:
            await tx.ack(handle)
            if end == "raise inside":
                raise Boom(end)
        if end == "roll back":
            await session.rollback()
        if end.startswith("commit"):
            await session.commit()
    if end.endswith("raise"):
        raise Boom(end)


ENDS = [
    ("commit", "done", None),
    ("commit and raise", "done", None),
    ("roll back", "done", None),
    ("roll back and raise", "retried", PENDING),
    ("raise inside", "retried", PENDING),
]
"""How a handler ends, what becomes of its job, and the state in which that is left."""


async def states(store: MemStore, queue: str = "q") -> list[JobState]:
    return [job.state for job in await store.queue(queue).list()]


@pytest.mark.parametrize(("end", "became", "left"), ENDS)
async def test_a_worker_gives_a_job_what_its_handlers_transaction_left(
    store: MemStore, sessions: Sessions, caplog: pytest.LogCaptureFixture, end: str, became: str, left: Any
) -> None:
    await store.queue("q").enqueue(1)

    async def handler(handle: JobHandle) -> None:
        await ack_in(store, sessions, handle, end)

    counts = await Worker(store, {"q": handler}).run_until_idle()

    assert counts == Counts(**{became: 1})
    assert await states(store) == ([] if left is None else [left])
    assert ("raised after the job was acked in a transaction" in caplog.text) == (end == "commit and raise")


@pytest.mark.parametrize(("end", "became", "left"), ENDS)
async def test_handling_one_job_gives_it_what_its_handlers_transaction_left(
    store: MemStore, sessions: Sessions, caplog: pytest.LogCaptureFixture, end: str, became: str, left: Any
) -> None:
    await store.queue("q").enqueue(1)

    async def handler(handle: JobHandle) -> None:
        await ack_in(store, sessions, handle, end)

    assert await store.queue("q").run_once(handler)

    assert await states(store) == ([] if left is None else [left])
    assert ("raised after the job was acked in a transaction" in caplog.text) == (end == "commit and raise")


@pytest.mark.parametrize(("end", "became", "left"), ENDS)
async def test_a_delivery_gives_an_entry_what_its_transaction_left(
    store: MemStore, sessions: Sessions, caplog: pytest.LogCaptureFixture, end: str, became: str, left: Any
) -> None:
    outbox = store.outbox("o")
    await outbox.enqueue(1)

    async def deliver(handle: JobHandle) -> None:
        await ack_in(store, sessions, handle, end)

    assert await outbox.run_once(deliver)

    assert len(await outbox.jobs.list()) == (0 if left is None else 1)
    assert ("raised after the job was acked in a transaction" in caplog.text) == (end == "commit and raise")


async def test_a_transaction_that_is_still_open_has_its_ack(store: MemStore, sessions: Sessions) -> None:
    await store.queue("q").enqueue(1)
    async with sessions.transaction() as session:

        async def handler(handle: JobHandle) -> None:
            async with store.join(session.connection) as tx:
                await tx.ack(handle)

        assert await Worker(store, {"q": handler}).run_until_idle() == Counts(done=1)
        await session.commit()

    assert await states(store) == []


@pytest.mark.parametrize("settle", ["ack", "retry", "fail", "release", "heartbeat"])
async def test_a_settle_by_hand_lands_after_the_rollback_and_finds_the_handle_used_up_after_the_commit(
    store: MemStore, sessions: Sessions, settle: str
) -> None:
    await store.queue("q").enqueue_batch([1, 2])
    one, two = await store.queue("q").claim_batch(2)
    await ack_in(store, sessions, one, "roll back")
    await ack_in(store, sessions, two, "commit")

    assert await getattr(one, settle)()
    for _ in range(2):
        with pytest.raises(HandleConsumed, match="acked in a transaction"):
            await getattr(two, settle)()


async def test_of_two_settles_at_once_after_a_rollback_one_lands(store: MemStore, sessions: Sessions) -> None:
    await store.queue("q").enqueue(1)
    handle = await store.queue("q").claim_one()
    assert handle is not None
    await ack_in(store, sessions, handle, "roll back")

    results = await asyncio.gather(handle.ack(), handle.retry(), return_exceptions=True)

    assert [type(result) for result in results] == [bool, HandleConsumed]


async def test_a_handle_is_acked_in_one_transaction_after_another_was_rolled_back(
    store: MemStore, sessions: Sessions
) -> None:
    await store.queue("q").enqueue(1)
    handle = await store.queue("q").claim_one()
    assert handle is not None

    await ack_in(store, sessions, handle, "roll back")
    await ack_in(store, sessions, handle, "roll back")
    async with store.begin_tx() as tx:
        await tx.ack(handle)

    assert await states(store) == []
    with pytest.raises(HandleConsumed):
        await handle.ack()


@pytest.mark.parametrize("end", ["commit", "roll back"])
async def test_a_claim_that_is_held_is_renewed_after_a_rollback_and_not_lost_by_a_commit(
    sessions: Sessions, end: str
) -> None:
    clock = ManualClock()
    async with MemStore(clock=clock) as store:
        await store.queue("q", visibility_timeout=60).enqueue(1)
        handle = await store.queue("q").claim_one()
        assert handle is not None
        async with handle.hold():
            await ack_in(store, sessions, handle, end)
            for _ in range(5):
                await clock.advance(30)
        if end == "roll back":
            assert await handle.ack()
