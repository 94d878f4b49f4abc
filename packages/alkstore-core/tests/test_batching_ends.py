"""How a batcher ends with one call in hand, and what interrupts it."""

import asyncio
from collections.abc import Sequence

import pytest

from alkstore.batching import Batcher
from alkstore.engine import NewEvent, NewJob, NewWake, Settle

JOB = NewJob("mail", b"1", b"{}", 0, None, None, 300, 3, 5, None)


class Gate:
    """An engine whose inserts wait until they are let through, or raise what they are told to."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.interruption: BaseException | None = None

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        await self.opened.wait()
        if self.interruption is not None and len(jobs) > 1:
            raise self.interruption
        return range(len(jobs))

    async def settle_jobs(self, settles: Sequence[Settle]) -> Sequence[int | None]:
        return [None] * len(settles)

    async def append_events(self, events: Sequence[NewEvent]) -> Sequence[int]:
        return range(len(events))

    async def notify(self, wakes: Sequence[NewWake]) -> None:
        pass


async def insert(batcher: Batcher, *jobs: NewJob) -> Sequence[int]:
    return await batcher.insert_jobs(jobs)


async def turn(times: int = 20) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def test_a_close_ends_with_the_one_call_that_flushes_itself() -> None:
    gate = Gate()
    batcher = Batcher(gate)
    call = asyncio.ensure_future(insert(batcher, JOB))
    await turn()
    closing = asyncio.ensure_future(batcher.close())
    await turn()
    assert not closing.done()

    gate.opened.set()
    await turn()

    assert list(call.result()) == [0]
    assert closing.done()


def test_what_interrupts_a_flush_of_the_line_interrupts_the_loop() -> None:
    gate = Gate()
    gate.interruption = KeyboardInterrupt()
    batcher = Batcher(gate)
    loop = asyncio.new_event_loop()
    # The flush's task has nobody to ask how it ended; told when it is collected, it would be in the middle of another test.
    loop.set_exception_handler(lambda *_: None)
    calls = []

    async def write() -> None:
        calls.append(asyncio.ensure_future(insert(batcher, JOB)))
        await turn()
        calls.append(asyncio.ensure_future(insert(batcher, JOB, JOB)))
        await turn()
        gate.opened.set()
        await turn()

    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(write())

    loop.run_until_complete(asyncio.wait(calls))
    assert [call.exception() is None for call in calls] == [True, False]
    loop.close()
