"""Handlers that end as few do: by leaving the program, by what no handler should raise, in threads that never end."""

import asyncio
import contextlib
import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faulty import FaultyStore, warped
from hanging import HUNG

from alkstore import JobState
from alkstore.testing import ManualClock
from alkstore.worker import Counts, Worker
from alkstore_mem import MemStore


class Odd(BaseException):
    """What frameworks raise to get through every ``except Exception``."""


def handler_of(error: Callable[[], BaseException], *, is_async: bool) -> Callable[[int], Any]:
    """Give a handler that raises at 1, and is done with anything else."""

    def plain(value: int) -> None:
        if value == 1:
            raise error()

    async def handler(value: int) -> None:
        plain(value)

    return handler if is_async else plain


async def left(store: MemStore) -> list[tuple[JobState, int, str]]:
    found = await store.queue("q").list()
    return [(job.state, job.attempts, (job.retry_error or "").partition("\n")[0]) for job in found]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_that_leaves_the_program_has_failed_and_the_worker_goes_on(is_async: bool) -> None:
    async with MemStore(clock=ManualClock()) as store:
        await store.queue("q").enqueue_batch([1, 2], max_attempts=2)
        handler = handler_of(lambda: SystemExit(3), is_async=is_async)

        counts = await Worker(store, {"q": handler}, concurrency=1).run_until_idle()

        assert counts == Counts(done=1, retried=1)
        assert await left(store) == [(JobState.PENDING, 1, "builtins.SystemExit: 3")]


async def test_a_plain_handler_that_raises_stop_iteration_has_failed_as_an_async_one_has() -> None:
    async with MemStore(clock=ManualClock()) as store:
        await store.queue("q").enqueue_batch([1, 2], max_attempts=2)
        handler = handler_of(StopIteration, is_async=False)

        async with asyncio.timeout(HUNG):
            counts = await Worker(store, {"q": handler}, concurrency=1).run_until_idle()

        assert counts == Counts(done=1, retried=1)
        assert await left(store) == [
            (JobState.PENDING, 1, "builtins.RuntimeError: the function raised StopIteration")
        ]


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyboardInterrupt, [(JobState.PENDING, 0, "")]),
        (lambda: Odd("enough"), [(JobState.PENDING, 1, f"{__name__}.Odd: enough")]),
        (GeneratorExit, [(JobState.PENDING, 0, "")]),
    ],
    ids=["KeyboardInterrupt", "Odd", "GeneratorExit"],
)
def test_what_no_handler_may_raise_ends_the_worker_and_leaves_its_job_to_others(
    error: Callable[[], BaseException], expected: object, is_async: bool
) -> None:
    found: list[object] = []

    async def main() -> None:
        async with MemStore(clock=ManualClock()) as store:
            await store.queue("q").enqueue(1, max_attempts=2)
            try:
                await Worker(store, {"q": handler_of(error, is_async=is_async)}).run(signals=False)
            finally:
                found.extend(await left(store))

    with pytest.raises(type(error())):
        asyncio.run(main())
    assert found == expected


@warped
async def test_a_place_whose_handler_failed_at_its_cancellation_is_as_good_as_before() -> None:
    async with FaultyStore() as store:
        is_begun = asyncio.Event()

        async def handler(value: int) -> None:
            if value == 2:
                raise asyncio.CancelledError
            is_begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                raise ValueError("the clean-up failed")

        queue = store.queue("q")
        await queue.enqueue(1, visibility_timeout=3, max_attempts=1)
        await queue.enqueue(2, max_attempts=1)
        run = asyncio.ensure_future(Worker(store, {"q": handler}, concurrency=1).run_until_idle())
        await is_begun.wait()
        await store.clock.advance(3)

        assert await run == Counts(lost=1, dead=1)


async def test_a_plain_function_around_an_async_one_may_run_it_to_its_end() -> None:
    async def inner(value: int) -> None:
        seen.append(value)

    @functools.wraps(inner)
    def runs(value: int) -> None:
        asyncio.run(inner(value))

    @functools.wraps(inner)
    def passes_on(value: int) -> Any:
        return inner(value)

    seen: list[int] = []
    for handler in (runs, passes_on):
        async with MemStore() as store:
            await store.queue("q").enqueue(1)
            assert await Worker(store, {"q": handler}).run_until_idle() == Counts(done=1)
    assert seen == [1, 1]


PROGRAM = """
import asyncio
import threading

from alkstore import StopToken
from alkstore.worker import Worker
from alkstore_mem import MemStore


async def main():
    loop, stop = asyncio.get_running_loop(), StopToken()

    def hangs(value: int) -> None:
        stop.cancel()
        threading.Event().wait()

    async with MemStore() as store:
        await store.queue("q").enqueue(1)
        print((await Worker(store, {"q": hangs}, grace=0).run(stop)).released)


asyncio.run(main())
"""


def test_a_plain_handler_that_never_ends_keeps_no_process_from_ending(tmp_path: Path) -> None:
    program = tmp_path / "hangs.py"
    program.write_text(PROGRAM, "utf-8")
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True) as process:
        try:
            said, _ = process.communicate(timeout=HUNG)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    assert (said, process.returncode) == ("1\n", 0)
