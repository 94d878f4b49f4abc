"""What Prometheus scrapes: what was counted, and what there is in the storage at that moment."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import alkstore
from alkstore import Store
from alkstore.errors import Closed
from alkstore.observing import ListenerChanged
from alkstore.prometheus import Metrics
from alkstore.testing import ManualClock
from alkstore.worker import Worker

MAIL = {"kind": "queue", "queue": "mail"}


class Scraped:
    """Metrics in a registry of their own, on a store with a clock."""

    def __init__(
        self, registry: CollectorRegistry, metrics: Metrics, store: Store, clock: ManualClock
    ) -> None:
        self.registry = registry
        self.metrics = metrics
        self.store = store
        self.clock = clock

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"alkstore_{name}", labels)

    async def scrape(self) -> "Samples":
        """Scrape as a server in a thread does."""
        return samples(await asyncio.to_thread(generate_latest, self.registry))


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: bytes) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def of(found: Samples, name: str, **labels: str) -> float | None:
    return found.get((f"alkstore_{name}", frozenset(labels.items())))


@pytest.fixture(params=["mem", "sqlite"])
async def scraped(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scraped]:
    url = "mem://" if request.param == "mem" else f"sqlite:///{tmp_path}/app.db"
    registry, clock = CollectorRegistry(), ManualClock()
    metrics = Metrics(registry)
    async with alkstore.open(url, clock=clock, observers=[metrics]) as store:
        yield Scraped(registry, metrics, store, clock)


async def test_a_job_is_counted_from_its_enqueue_to_its_end(scraped: Scraped) -> None:
    queue = scraped.store.queue("mail")
    await queue.enqueue_batch([1, 2, 3])
    await scraped.clock.advance(7)

    def handler(value: int) -> None:
        if value == 3:
            raise ValueError

    await Worker(scraped.store, {"mail": handler}).run_until_idle()

    assert scraped.value("jobs_enqueued_total", **MAIL) == 3
    assert scraped.value("jobs_claimed_total", **MAIL) == 3
    assert scraped.value("jobs_settled_total", **MAIL, outcome="done") == 2
    assert scraped.value("jobs_settled_total", **MAIL, outcome="retried") == 1
    assert scraped.value("handlers_failed_total", **MAIL) == 1
    assert scraped.value("job_wait_seconds_sum", **MAIL) == 21
    assert scraped.value("job_wait_seconds_bucket", **MAIL, le="5.0") == 0
    assert scraped.value("job_wait_seconds_bucket", **MAIL, le="10.0") == 3
    assert scraped.value("job_handling_seconds_count", **MAIL) == 3
    assert scraped.value("batch_size_sum", operation="claim") == 3


async def test_outboxes_streams_sweeps_and_schedules_are_counted(scraped: Scraped) -> None:
    store = scraped.store
    await store.outbox("hook").enqueue(1)
    await store.stream("log").publish_batch([1, 2])
    await store.stream("log").read_since(0)
    await store.queue("mail").enqueue(1, expires=1)
    await store.schedule("tick", "@every 1m", "mail", None)
    await scraped.clock.advance(60)
    await store.queue("mail").sweep_expired()
    await store.tick_schedules()

    assert scraped.value("jobs_enqueued_total", kind="outbox", queue="hook") == 1
    assert scraped.value("events_published_total", stream="log") == 2
    assert scraped.value("events_read_total", stream="log") == 2
    assert scraped.value("jobs_expired_total", **MAIL) == 1
    assert scraped.value("schedules_fired_total") == 1


async def test_a_scrape_reads_what_there_is_at_that_moment(scraped: Scraped) -> None:
    store = scraped.store
    with scraped.metrics.gauges(store):
        await store.queue("mail").enqueue_batch([1, 2])
        await store.outbox("hook").enqueue(1, delay=60)
        await store.stream("log").publish_batch([1, 2, 3])
        await store.stream("log").save_offset("reader", 1)
        await scraped.clock.advance(5)
        before = await scraped.scrape()
        await store.queue("mail").claim_batch(1)
        after = await scraped.scrape()

    assert of(before, "queue_jobs", **MAIL, state="ready") == 2
    assert of(before, "queue_oldest_ready_seconds", **MAIL) == 5
    assert of(before, "queue_jobs", kind="outbox", queue="hook", state="delayed") == 1
    assert of(before, "stream_lag", stream="log", consumer="reader") == 2
    assert of(after, "queue_jobs", **MAIL, state="ready") == 1
    assert of(after, "queue_jobs", **MAIL, state="processing") == 1
    assert of(after, "scrape_success") == 1


async def test_an_application_in_the_same_loop_awaits_its_metrics(scraped: Scraped) -> None:
    with scraped.metrics.gauges(scraped.store) as gauges:
        await scraped.store.queue("mail").enqueue(1)
        found = samples(await gauges.text())

    assert of(found, "queue_jobs", **MAIL, state="ready") == 1
    assert of(found, "jobs_enqueued_total", **MAIL) == 1


async def test_a_storage_that_cannot_be_read_leaves_the_counters_and_says_so(scraped: Scraped) -> None:
    with scraped.metrics.gauges(scraped.store):
        await scraped.store.queue("mail").enqueue(1)
        await scraped.store.aclose()
        found = await scraped.scrape()

    assert of(found, "scrape_success") == 0
    assert of(found, "queue_jobs", **MAIL, state="ready") is None
    assert of(found, "jobs_enqueued_total", **MAIL) == 1


async def test_the_gauges_end_with_their_block(scraped: Scraped) -> None:
    with scraped.metrics.gauges(scraped.store):
        pass

    assert of(await scraped.scrape(), "scrape_success") is None


async def test_gauges_are_of_an_open_store(scraped: Scraped) -> None:
    await scraped.store.aclose()

    with pytest.raises(Closed), scraped.metrics.gauges(scraped.store):
        pass


async def test_names_beyond_the_most_share_one_series() -> None:
    registry = CollectorRegistry()
    async with alkstore.open("mem://", observers=[Metrics(registry, most=2)]) as store:
        for name in "abcd":
            await store.queue(name).enqueue(1)
        await store.queue("a").enqueue(1)

    counted = {
        name: registry.get_sample_value("alkstore_jobs_enqueued_total", {"kind": "queue", "queue": name})
        for name in ("a", "b", "c", "other")
    }
    assert counted == {"a": 2, "b": 1, "c": None, "other": 2}


async def test_what_has_not_happened_yet_is_counted_as_nothing_from_a_queues_first_job_on(
    scraped: Scraped,
) -> None:
    await scraped.store.queue("mail").enqueue(1)

    for outcome in ("done", "retried", "dead", "released", "lost"):
        assert scraped.value("jobs_settled_total", **MAIL, outcome=outcome) == 0
    assert scraped.value("handlers_failed_total", **MAIL) == 0
    assert scraped.value("jobs_expired_total", **MAIL) == 0


@pytest.mark.parametrize("most", [0, "many"])
def test_the_most_is_a_positive_number(most: Any) -> None:
    with pytest.raises(ValueError, match="most must be"):
        Metrics(CollectorRegistry(), most=most)


def test_a_lost_listener_shows_until_it_is_back() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    seen = []
    for reason in (None, "no route to host", None):
        metrics(ListenerChanged(is_connected=reason is None, reason=reason))
        seen.append(registry.get_sample_value("alkstore_listener_connected"))

    assert seen == [1, 0, 1]
    assert registry.get_sample_value("alkstore_listener_lost_total") == 1
