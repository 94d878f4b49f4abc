"""Faults that were found in the outbox's runner, and stay found."""

import asyncio

import pytest

from alkstore import JobHandle, StopToken
from alkstore_mem import MemStore


async def test_a_delivery_that_swallows_the_cancellation_does_not_keep_the_runner_running() -> None:
    async with MemStore() as store:
        outbox = store.outbox("o")
        await outbox.enqueue(1)
        is_delivering = asyncio.Event()

        async def deliver(handle: JobHandle) -> None:
            is_delivering.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return

        runner = asyncio.create_task(outbox.run(deliver, stop=StopToken()))
        await is_delivering.wait()

        runner.cancel()

        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(5):
                await runner
        assert (await outbox.jobs.stats()).processing == 0
