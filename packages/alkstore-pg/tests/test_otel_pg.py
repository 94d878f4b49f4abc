"""Traces on a server: through its pump of claims, its listener's wakes and its transactions."""

from traced import Traced, order

import alkstore
from alkstore.observing import Fact, JobsClaimed, ListenerChanged


async def test_one_trace_leads_from_a_request_to_the_last_delivery(dsn: str) -> None:
    traced = Traced()
    async with alkstore.open(dsn, observers=[traced.telemetry]) as store:
        assert await order(store, traced) == [7]

    assert {span.context.trace_id for span in traced.spans if span.context is not None} == {
        span.context.trace_id for span in traced.spans[:1] if span.context is not None
    }
    assert traced.lineage("handle carrier") == [
        "handle carrier",
        "enqueue carrier",
        "handle orders",
        "enqueue orders",
        "POST /orders",
    ]


async def test_the_listener_is_told_of_when_somebody_waits(dsn: str) -> None:
    facts: list[Fact] = []
    async with alkstore.open(dsn, observers=[facts.append]) as store, store.listen("orders"):
        pass

    assert facts == [ListenerChanged(is_connected=True, reason=None)]


async def test_a_job_on_a_further_attempt_without_an_error_is_taken_for_reclaimed(dsn: str) -> None:
    facts: list[Fact] = []
    async with alkstore.open(dsn, observers=[facts.append]) as store:
        queue = store.queue("mail", base_delay=0)
        await queue.enqueue_batch([1, 2])
        first, second = await queue.claim_batch(2)
        await first.retry(error="busy")
        await second.retry()
        await queue.claim_batch(2)

    claimed = [fact for fact in facts if isinstance(fact, JobsClaimed)]
    assert [(fact.reclaimed, fact.reclaimed_exactly) for fact in claimed] == [(0, False), (1, False)]
