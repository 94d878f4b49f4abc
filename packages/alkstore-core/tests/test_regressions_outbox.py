"""Faults that were found in the outbox's runner, and stay found."""

import asyncio
from collections.abc import Awaitable
from typing import cast

import pytest
from hanging import HUNG

from alkstore import InvalidArgument, JobHandle, StopToken
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
            async with asyncio.timeout(HUNG):
                await runner
        assert (await outbox.jobs.stats()).processing == 0


async def test_a_delivery_that_gives_nothing_to_await_ends_the_runner_and_the_deliveries_beside_it() -> None:
    async with MemStore() as store:
        outbox = store.outbox("o")
        await outbox.enqueue(1)
        forgotten = [True]

        def deliver(handle: JobHandle) -> Awaitable[object]:
            return cast(Awaitable[object], None) if forgotten and forgotten.pop() else asyncio.Event().wait()

        with pytest.raises(InvalidArgument, match="something to await"):
            async with asyncio.timeout(HUNG):
                await outbox.run(deliver, stop=StopToken(), concurrency=2)
