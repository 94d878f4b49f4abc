import asyncio
import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable

from hanging import HUNG

from alkstore.engine import Signal, Topic, TopicKind
from alkstore.pausing import Pause
from alkstore.stop import StopToken
from alkstore.testing import ManualClock
from alkstore.watch import Hub
from alkstore_mem import MemStore


async def test_a_wait_ends_when_the_token_is_cancelled() -> None:
    token = StopToken()
    waits = [asyncio.ensure_future(token.wait()) for _ in range(3)]
    await asyncio.sleep(0)

    assert not any(wait.done() for wait in waits)
    token.cancel()

    async with asyncio.timeout(HUNG):
        await asyncio.gather(*waits)


async def test_a_cancelled_token_stays_cancelled_and_may_be_cancelled_again() -> None:
    token = StopToken()
    assert not token.is_cancelled

    token.cancel()
    token.cancel()

    assert token.is_cancelled
    async with asyncio.timeout(HUNG):
        await token.wait()


def test_a_token_shows_whether_it_is_cancelled() -> None:
    token = StopToken()
    before = repr(token)

    token.cancel()

    assert (before, repr(token)) == ("<StopToken not cancelled>", "<StopToken cancelled>")


async def test_a_token_is_cancelled_from_another_thread() -> None:
    token = StopToken()
    wait = asyncio.ensure_future(token.wait())
    await asyncio.sleep(0)

    await asyncio.to_thread(token.cancel)

    async with asyncio.timeout(HUNG):
        await wait


async def test_a_token_is_cancelled_from_a_signal_handler() -> None:
    token = StopToken()
    before = signal.signal(signal.SIGUSR1, lambda number, frame: token.cancel())
    try:
        wait = asyncio.ensure_future(token.wait())
        await asyncio.sleep(0)

        os.kill(os.getpid(), signal.SIGUSR1)

        async with asyncio.timeout(HUNG):
            await wait
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_one_token_ends_waits_in_several_event_loops() -> None:
    token = StopToken()
    barrier = threading.Barrier(4)

    async def wait() -> None:
        waiting = asyncio.ensure_future(token.wait())
        await asyncio.sleep(0)
        await asyncio.to_thread(barrier.wait)
        async with asyncio.timeout(HUNG):
            await waiting

    threads = [threading.Thread(target=asyncio.run, args=(wait(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    barrier.wait()
    token.cancel()
    for thread in threads:
        thread.join(HUNG)

    assert not any(thread.is_alive() for thread in threads)


def test_a_subscriber_whose_loop_was_closed_does_no_harm() -> None:
    token = StopToken()
    called: list[str] = []

    async def subscribe() -> None:
        token.subscribe(lambda: called.append("closed loop"))

    asyncio.run(subscribe())
    token.cancel()

    assert token.is_cancelled
    assert called == []


async def test_a_callback_runs_once_and_never_within_the_call() -> None:
    token = StopToken()
    called: list[int] = []
    token.subscribe(lambda: called.append(1))

    token.cancel()
    token.cancel()
    assert called == []
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert called == [1]


async def test_a_callback_of_a_token_cancelled_before_runs_soon() -> None:
    token = StopToken()
    token.cancel()
    called: list[int] = []

    token.subscribe(lambda: called.append(1))
    assert called == []
    await asyncio.sleep(0)

    assert called == [1]


async def test_an_unsubscribed_callback_is_not_called_even_if_the_cancel_came_first() -> None:
    token = StopToken()
    called: list[int] = []
    early = token.subscribe(lambda: called.append(1))
    late = token.subscribe(lambda: called.append(2))

    early()
    token.cancel()
    late()
    late()
    await asyncio.sleep(0)

    assert called == []


async def test_a_cancelled_wait_leaves_nothing_in_the_token() -> None:
    class Kept:
        def note(self) -> None: ...

    token = StopToken()
    kept = Kept()
    gone = weakref.ref(kept)
    token.subscribe(kept.note)()
    del kept
    for _ in range(1_000):
        wait = asyncio.ensure_future(token.wait())
        await asyncio.sleep(0)
        wait.cancel()
        await asyncio.gather(wait, return_exceptions=True)
    gc.collect()

    assert gone() is None
    assert len(token._subscriptions) == 0


async def test_a_pause_is_not_cut_by_the_stop_of_one_that_ended() -> None:
    token, pause, hub, topic = StopToken(), Pause(), Hub(ManualClock()), Topic(TopicKind.QUEUE, "q")
    watch = hub.watch(topic)
    assert await pause.wait(watch, timeout=0, stop=token) is None

    waiting = asyncio.ensure_future(pause.wait(watch))
    await asyncio.sleep(0)
    token.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    hub.wake(topic)

    assert await waiting is Signal.WOKEN


async def test_threads_that_cancel_while_others_subscribe_stop_every_one_of_them() -> None:
    for _ in range(50):
        token = StopToken()
        start = threading.Barrier(2)

        def cancel(token: StopToken = token, start: threading.Barrier = start) -> None:
            start.wait()
            token.cancel()

        thread = threading.Thread(target=cancel)
        thread.start()
        start.wait()
        waits = [asyncio.ensure_future(token.wait()) for _ in range(20)]
        async with asyncio.timeout(HUNG):
            await asyncio.gather(*waits)
        thread.join()


class CountingToken(StopToken):
    """A token that knows how many wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0

    def subscribe(self, callback: Callable[[], object]) -> Callable[[], None]:
        forget = super().subscribe(callback)
        self.waiting += 1

        def unsubscribe() -> None:
            self.waiting -= 1
            forget()

        return unsubscribe


async def test_claims_leave_nothing_with_a_token_that_outlives_them() -> None:
    token = CountingToken()
    async with MemStore() as store:
        queue = store.queue("q")
        await queue.enqueue_batch(range(3))
        claims = queue.claims(stop=token)

        handles = [await anext(claims) for _ in range(3)]

        assert len(handles) == 3
        assert token.waiting == 0
