"""Threads for what blocks: as few as will do, and no outcome that never comes."""

import asyncio
import threading

import pytest
from hanging import HUNG

from alkstore.threads import Threads


async def test_calls_one_after_the_other_share_a_thread_and_calls_at_once_do_not() -> None:
    threads = Threads("t")
    together = threading.Barrier(3)

    one_by_one = {await threads.run(threading.get_ident) for _ in range(20)}
    at_once = await asyncio.gather(*(threads.run(lambda: together.wait(HUNG)) for _ in range(3)))
    threads.close()

    assert len(one_by_one) == 1
    assert sorted(at_once) == [0, 1, 2]


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt()])
async def test_what_a_function_raises_is_raised(error: BaseException) -> None:
    def fails() -> None:
        raise error

    threads = Threads("t")
    future = threads.run(fails)
    await asyncio.wait((future,), timeout=HUNG)
    threads.close()

    assert future.exception() is error


async def test_a_stop_iteration_comes_as_what_a_future_can_hold() -> None:
    threads = Threads("t")
    async with asyncio.timeout(HUNG):
        with pytest.raises(RuntimeError, match="raised StopIteration") as caught:
            await threads.run(lambda: next(iter(())))
    threads.close()

    assert isinstance(caught.value.__cause__, StopIteration)


async def test_who_gives_a_call_up_is_told_nothing_and_the_thread_takes_the_next_one() -> None:
    threads, gate = Threads("t"), threading.Event()
    given_up = threads.run(lambda: gate.wait(HUNG))
    given_up.cancel()
    gate.set()

    assert await threads.run(lambda: 7) == 7
    threads.close()


def test_a_loop_that_has_ended_meanwhile_is_no_matter_and_the_threads_end() -> None:
    gate, done = threading.Event(), threading.Event()
    before = threading.active_count()

    async def main() -> Threads:
        threads = Threads("t")
        _ = threads.run(lambda: gate.wait(HUNG))
        _ = threads.run(done.set)
        await asyncio.to_thread(done.wait, HUNG)
        return threads

    threads = asyncio.run(main())
    names = [thread for thread in threading.enumerate() if thread.name.startswith("t-")]
    gate.set()
    threads.close()
    for thread in names:
        thread.join(HUNG)

    assert len(names) == 2
    assert threading.active_count() <= before
