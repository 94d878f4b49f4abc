"""Claims that handlers ack in a transaction: left alone while that is open, kept again once it was rolled back (Q-14, Q-23)."""

import asyncio

import pytest
from faulty import FaultyStore, turn, warped

from alkstore import JobHandle, StopToken, Tx
from alkstore.errors import DatabaseError
from alkstore.worker import Counts, Worker

WINDOW = 30
LOOK = 4.0
"""Seconds on the loop's clock: by then who looks whether a transaction has ended has looked."""


class RolledBack(Exception):
    """What ends a transaction here."""


class Riding:
    """A worker on queue ``q`` whose handler acks in a transaction, ends it when told how, and goes on until told to end."""

    def __init__(self, store: FaultyStore) -> None:
        self.acked: asyncio.Queue[Tx] = asyncio.Queue()
        self.may_ack, self.may_commit, self.may_roll_back = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.gate = asyncio.Event()
        self.cancelled: list[int] = []
        self._store = store
        self._stop = StopToken()
        self._run = asyncio.ensure_future(Worker(store, {"q": self._handle}).run(self._stop, signals=False))

    async def _handle(self, claim: JobHandle) -> None:
        try:
            await self.may_ack.wait()
            try:
                async with self._store.begin_tx() as tx:
                    await tx.ack(claim)
                    self.acked.put_nowait(tx)
                    await self._told()
            except RolledBack:
                pass
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(claim.job.attempts)
            raise

    async def _told(self) -> None:
        ends = [asyncio.ensure_future(each.wait()) for each in (self.may_commit, self.may_roll_back)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        if self.may_roll_back.is_set():
            raise RolledBack

    async def end(self) -> Counts:
        self.gate.set()
        self._stop.cancel()
        return await self._run


async def riding(store: FaultyStore) -> Riding:
    await store.queue("q").enqueue(1, visibility_timeout=WINDOW, max_attempts=1)
    return Riding(store)


def beats(store: FaultyStore) -> int:
    return store.wire.calls["settle_jobs"]


@warped
async def test_a_claim_that_rides_an_open_transaction_is_not_renewed_and_is_done_with_its_commit() -> None:
    async with FaultyStore() as store:
        work = await riding(store)
        work.may_ack.set()
        await work.acked.get()
        await store.clock.advance(WINDOW / 3)
        await asyncio.sleep(LOOK)
        assert beats(store) == 0
        work.may_commit.set()
        await asyncio.sleep(LOOK)

        assert beats(store) == 0
        assert await work.end() == Counts(done=1)


@warped
async def test_a_claim_whose_ack_was_rolled_back_after_its_renewal_was_due_is_renewed_at_once() -> None:
    async with FaultyStore() as store:
        work = await riding(store)
        work.may_ack.set()
        await work.acked.get()
        await store.clock.advance(WINDOW / 2)
        await asyncio.sleep(LOOK)
        work.may_roll_back.set()
        await asyncio.sleep(LOOK)
        assert beats(store) == 1
        for _ in range(2 * WINDOW):
            await store.clock.advance(1)

        assert work.cancelled == []
        assert await work.end() == Counts(done=1)


@warped
async def test_a_claim_that_was_acked_while_its_renewal_was_under_way_is_kept_after_the_rollback() -> None:
    async with FaultyStore() as store:
        work = await riding(store)
        await turn()
        gate = store.wire.hang("settle_jobs")
        await store.clock.advance(WINDOW / 3)
        await turn()
        work.may_ack.set()
        await work.acked.get()
        gate.set()  # it finds nothing to renew: on this engine what an open transaction has acked is not to be had
        await asyncio.sleep(LOOK)
        assert beats(store) == 1
        work.may_roll_back.set()
        await asyncio.sleep(LOOK)
        for _ in range(2 * WINDOW):
            await store.clock.advance(1)

        assert work.cancelled == []
        assert await work.end() == Counts(done=1)


@warped
async def test_a_claim_that_was_acked_while_its_renewals_failed_is_not_tried_again_before_the_end() -> None:
    async with FaultyStore() as store:
        work = await riding(store)
        await turn()
        store.wire.refusing["settle_jobs"] = 1
        await store.clock.advance(WINDOW / 3)
        work.may_ack.set()
        await work.acked.get()
        await asyncio.sleep(LOOK)
        assert beats(store) == 1
        work.may_roll_back.set()
        await asyncio.sleep(LOOK)

        assert beats(store) == 2
        assert await work.end() == Counts(done=1)


@warped
async def test_a_claim_that_ended_while_it_rode_is_lost_with_the_rollback() -> None:
    async with FaultyStore() as store:
        work = await riding(store)
        work.may_ack.set()
        await work.acked.get()
        await store.clock.advance(WINDOW / 3)
        await store.clock.advance(WINDOW)
        await asyncio.sleep(WINDOW)
        assert work.cancelled == []
        work.may_roll_back.set()
        await asyncio.sleep(LOOK)

        assert work.cancelled == [1]
        assert await work.end() == Counts(lost=1)


@warped
async def test_an_ack_that_was_rolled_back_unseen_and_then_renewed_is_no_longer_taken_for_done() -> None:
    async with FaultyStore() as store:
        work = await riding(store)
        work.may_ack.set()
        tx = await work.acked.get()
        await tx._tx.rollback()  # as the caller's own SQL does it, past the transaction
        work.may_commit.set()
        await turn()
        await store.clock.advance(WINDOW / 3)
        await asyncio.sleep(LOOK)
        assert beats(store) == 1
        await store.clock.advance(WINDOW)
        await turn()

        assert work.cancelled == [1]
        assert await work.end() == Counts(lost=1)


@warped
async def test_a_claim_is_kept_again_after_its_handlers_own_ack_has_failed() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue(1, visibility_timeout=WINDOW)
        gate = store.wire.hang("settle_jobs")
        goes_on, stop = asyncio.Event(), StopToken()

        async def handler(claim: JobHandle) -> None:
            with pytest.raises(DatabaseError):
                await claim.ack()
            await goes_on.wait()

        work = asyncio.ensure_future(Worker(store, {"q": handler}).run(stop, signals=False))
        await turn()
        await store.clock.advance(WINDOW / 2)
        await asyncio.sleep(LOOK)
        assert beats(store) == 1
        store.wire.refusing["settle_jobs"] = 1
        gate.set()
        await asyncio.sleep(LOOK)

        assert beats(store) == 2
        for _ in range(2 * WINDOW):
            await store.clock.advance(1)
        goes_on.set()
        await turn()
        stop.cancel()
        assert await work == Counts(done=1)
