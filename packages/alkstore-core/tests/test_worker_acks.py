"""What a worker has done it acks together, beside the work that it goes on with (Q-09, Q-24)."""

import asyncio

from faulty import FaultyStore, turn, warped

from alkstore import JobHandle, StopToken
from alkstore.worker import Counts, Worker


class Work:
    """A worker at work on queue ``q``, one job at a time, with a handler that waits for nothing."""

    def __init__(self, store: FaultyStore, prefetch: int) -> None:
        self.seen: list[int] = []
        self._stop = StopToken()
        worker = Worker(store, {"q": self._handle}, concurrency=1, prefetch=prefetch)
        self.run = asyncio.ensure_future(worker.run(self._stop, signals=False))

    async def _handle(self, value: int) -> None:
        self.seen.append(value)

    async def end(self) -> Counts:
        self._stop.cancel()
        return await self.run


@warped
async def test_what_was_claimed_ahead_begins_while_an_ack_is_under_way() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue_batch(range(4))
        answers = store.wire.hang_answers("settle_jobs")
        work = Work(store, prefetch=4)
        await turn()
        assert work.seen == [0, 1, 2, 3]
        assert store.wire.calls["settle_jobs"] == 1
        answers.set()
        await turn()

        assert store.wire.calls["settle_jobs"] == 2
        assert await work.end() == Counts(done=4)


@warped
async def test_without_a_claim_ahead_no_job_begins_before_the_last_ones_ack_has_landed() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue_batch(range(2))
        answers = store.wire.hang_answers("settle_jobs")
        work = Work(store, prefetch=1)
        await turn()
        assert work.seen == [0]
        answers.set()
        await turn()

        assert work.seen == [0, 1]
        assert await work.end() == Counts(done=2)


@warped
async def test_acks_that_failed_together_are_given_each_by_itself() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue_batch(range(4))
        answers = store.wire.hang_answers("settle_jobs")
        work = Work(store, prefetch=4)
        await turn()
        store.wire.refusing["settle_jobs"] = (
            2  # that of the three that are done by now, and one of them by itself
        )
        answers.set()
        async with asyncio.timeout(60):
            while await store.queue("q").list():  # noqa: ASYNC110  # back-off has no event to wait for
                await asyncio.sleep(0.001)

        assert work.seen == [0, 1, 2, 3]
        assert await work.end() == Counts(done=4)


@warped
async def test_a_worker_that_has_something_to_begin_with_claims_no_single_job() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue_batch(range(24))
        work = Work(store, prefetch=8)
        await turn()

        assert work.seen == list(range(24))
        assert store.wire.calls["claim_jobs"] <= 10
        assert await work.end() == Counts(done=24)


@warped
async def test_a_handler_that_has_settled_its_job_goes_on_for_as_long_as_it_likes() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue(1, visibility_timeout=3)
        stop, settled, goes_on = StopToken(), asyncio.Event(), asyncio.Event()
        ended: list[int] = []

        async def handler(claim: JobHandle) -> None:
            await claim.ack()
            settled.set()
            await goes_on.wait()
            ended.append(claim.job.id)

        working = asyncio.ensure_future(Worker(store, {"q": handler}).run(stop, signals=False))
        await settled.wait()
        for _ in range(10):
            await store.clock.advance(1)  # its claim would have been renewed, and found to be gone
        await turn()
        goes_on.set()
        await turn()
        stop.cancel()

        assert await working == Counts(done=1)
        assert ended == [1]
