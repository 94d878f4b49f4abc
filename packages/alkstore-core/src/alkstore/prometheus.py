"""Prometheus: counters and histograms of what happens, gauges of what there is. Extra: ``alkstore-core[prometheus]``.

``metrics = alkstore.prometheus.Metrics()`` is an observer, and ``with metrics.gauges(store):`` shows the gauges.

What happens is counted in the process in which it happens, so a sum over all processes is the whole. What there is (jobs
in a queue, a consumer's lag) is read from the storage at every scrape, so one process of a storage need show it: a sum
over several counts it as often.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, get_args

try:
    import prometheus_client
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.core import GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "alkstore.prometheus needs prometheus-client: pip install 'alkstore-core[prometheus]'",
        name=error.name,
    ) from error

from alkstore.engine import JobCounts
from alkstore.errors import AlkstoreError
from alkstore.metering import SIZES, WAITS, Labels
from alkstore.observing import (
    BatchWritten,
    Destination,
    EventsPublished,
    EventsRead,
    Fact,
    JobHandled,
    JobsClaimed,
    JobsEnqueued,
    JobSettled,
    JobsExpired,
    ListenerChanged,
    Outcome,
    SchedulesFired,
)
from alkstore.store import Store

__all__ = ["Gauges", "Metrics"]

HANDLING: Final = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900)
ROUND_TRIPS: Final = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30)

PATIENCE: Final = 5.0
"""Seconds that a scrape waits for the storage; Prometheus itself gives up after 10 by default."""

QUEUE: Final = ("kind", "queue")
STATES: Final = ("ready", "delayed", "processing", "stale", "dead")


class Metrics:
    """An observer that counts. One may observe several stores of a process."""

    def __init__(self, registry: CollectorRegistry = prometheus_client.REGISTRY, *, most: int = 200) -> None:
        """Register the metrics.

        Args:
            registry: Where; once each.
            most: Queues, outboxes and streams that have series of their own, each a dozen and more: those that came first.
                The rest share the name ``other``, and are left out of the gauges.

        Raises:
            InvalidArgument: ``most`` is not positive.
            ValueError: The registry has these metrics already.
        """
        self._registry = registry
        self._labels = Labels(most, self._begin)
        self._define_counters(registry)
        self._define_histograms(registry)
        self._listener = Gauge(
            "alkstore_listener_connected",
            "1 while the connection is up that hears of other processes' commits, else 0.",
            registry=registry,
        )

    def _define_counters(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"alkstore_{name}", text, labels, registry=registry)

        self._enqueued = counter("jobs_enqueued", "Jobs put into a queue or an outbox.", *QUEUE)
        self._claimed = counter("jobs_claimed", "Jobs claimed.", *QUEUE)
        self._reclaimed = counter("jobs_reclaimed", "Jobs claimed whose claim before had lapsed.", *QUEUE)
        self._settled = counter("jobs_settled", "Claims that ended, by outcome.", *QUEUE, "outcome")
        self._expired = counter("jobs_expired", "Jobs that sweeps moved to the dead.", *QUEUE)
        self._failed = counter("handlers_failed", "Handlers that ended with an error.", *QUEUE)
        self._published = counter("events_published", "Events appended to a stream.", "stream")
        self._read = counter("events_read", "Events read from a stream.", "stream")
        self._fired = counter("schedules_fired", "Jobs that schedules enqueued.")
        self._lost = counter("listener_lost", "Times that the listener was lost.")

    def _define_histograms(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"alkstore_{name}", text, labels, registry=registry, buckets=buckets)

        self._wait = histogram("job_wait_seconds", "From a job's run_at to its claim.", WAITS, *QUEUE)
        self._handling = histogram("job_handling_seconds", "Duration of handlers.", HANDLING, *QUEUE)
        self._held = histogram("job_held_seconds", "From a claim to its outcome.", HANDLING, *QUEUE)
        self._batch = histogram("batch_size", "What one round trip wrote, or claimed.", SIZES, "operation")
        self._round_trip = histogram(
            "round_trip_seconds", "Duration of round trips to the storage.", ROUND_TRIPS, "operation"
        )

    def __call__(self, fact: Fact) -> None:
        """Hear of a fact."""
        match fact:
            case JobsEnqueued():
                self._enqueued.labels(*self._queue(fact.destination)).inc(len(fact.ids))
            case JobsClaimed():
                self._count_claimed(fact)
            case JobHandled():
                labels = self._queue(fact.destination)
                self._handling.labels(*labels).observe(fact.seconds)
                if fact.error is not None:
                    self._failed.labels(*labels).inc()
            case JobSettled():
                labels = self._queue(fact.destination)
                self._settled.labels(*labels, fact.outcome).inc()
                if fact.held is not None:
                    self._held.labels(*labels).observe(fact.held)
            case JobsExpired():
                self._expired.labels(*self._queue(fact.destination)).inc(fact.count)
            case EventsPublished():
                self._published.labels(self._labels.name(fact.destination)).inc(len(fact.offsets))
            case EventsRead():
                self._read.labels(self._labels.name(fact.destination)).inc(len(fact.events))
                self._round_trip.labels("read").observe(fact.seconds)
            case SchedulesFired():
                self._fired.inc(fact.jobs)
            case BatchWritten():
                self._batch.labels(fact.kind).observe(fact.size)
                self._round_trip.labels(fact.kind).observe(fact.seconds)
            case ListenerChanged():
                self._listener.set(fact.is_connected)
                if not fact.is_connected:
                    self._lost.inc()

    def _count_claimed(self, fact: JobsClaimed) -> None:
        labels = self._queue(fact.destination)
        self._claimed.labels(*labels).inc(len(fact.jobs))
        self._reclaimed.labels(*labels).inc(fact.reclaimed)
        wait = self._wait.labels(*labels)
        for waited in fact.waited:
            wait.observe(waited)
        self._batch.labels("claim").observe(len(fact.jobs))
        self._round_trip.labels("claim").observe(fact.seconds)

    def _queue(self, destination: Destination) -> tuple[str, str]:
        return destination.kind, self._labels.name(destination)

    def _begin(self, destination: Destination) -> None:
        if destination.kind == "stream":
            return
        # A series that begins with its first count looks to rate() and increase() as if nothing had happened.
        for counter in (self._reclaimed, self._expired, self._failed):
            counter.labels(*destination)
        for outcome in get_args(Outcome):
            self._settled.labels(*destination, outcome)

    # ------------------------------------------------------------ gauges

    @contextmanager
    def gauges(self, store: Store) -> Iterator["Gauges"]:
        """Show what there is in a store, while the block runs; the store must be open, and this its loop.

        A scrape that comes from another thread, as from `prometheus_client.start_http_server`, reads the storage. One that
        comes from the loop itself must not wait for it: an ASGI application awaits `Gauges.text`.
        """
        store._check("Metrics.gauges", write=False)
        gauges = Gauges(store, self._registry, self._labels.most)
        self._registry.register(gauges)
        try:
            yield gauges
        finally:
            self._registry.unregister(gauges)


class _Seen(NamedTuple):
    """What a look at the storage found."""

    counts: dict[Destination, JobCounts]
    lags: dict[tuple[str, str], int]


class Gauges(Collector):
    """What there is in one store, read at every scrape."""

    def __init__(self, store: Store, registry: CollectorRegistry, most: int) -> None:
        self._store = store
        self._registry = registry
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._last: _Seen | None = None

    async def text(self) -> bytes:
        """Give all metrics of the registry in Prometheus' text format, with the gauges as they are now.

        Cost: a round trip for the names, one for each queue, two for each stream. Nothing is raised: what cannot be read
        is left out, and ``alkstore_scrape_success`` is 0.
        """
        self._last = await self._look()
        return prometheus_client.generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Give the metrics without their values."""
        return self._families(None)

    def collect(self) -> Iterable[Metric]:
        """Give the metrics as they are now, or from within the loop as they were last seen."""
        in_loop = threading.get_ident() == self._thread
        seen = self._last if in_loop else self._ask()
        return self._families(seen)

    def _ask(self) -> _Seen | None:
        """Have the loop look, from another thread."""
        look = self._look()
        try:
            looking = asyncio.run_coroutine_threadsafe(look, self._loop)
        except RuntimeError:  # the loop is closed
            look.close()
            return None
        try:
            return looking.result(PATIENCE)
        except (TimeoutError, concurrent.futures.CancelledError):  # too busy to tell, or about to end
            looking.cancel()
            return None

    async def _look(self) -> _Seen | None:
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._read()
        except (AlkstoreError, TimeoutError):
            return None

    async def _read(self) -> _Seen:
        engine = self._store._engine
        self._store._check("Metrics.gauges", write=False)
        found = await engine.list_names()
        counts = {
            Destination.of_queue(queue): await engine.count_jobs(queue)
            for queue in found.queues[: self._most]
        }
        lags: dict[tuple[str, str], int] = {}
        for stream in found.streams[: self._most]:
            offsets = await engine.read_offsets(stream)
            head = await engine.read_head(stream) if offsets else 0
            lags |= {(stream, consumer): max(head - offset, 0) for consumer, offset in offsets.items()}
        return _Seen(counts, lags)

    def _families(self, seen: _Seen | None) -> list[Metric]:
        success = GaugeMetricFamily("alkstore_scrape_success", "1 if the storage could be read, else 0.")
        success.add_metric([], seen is not None)
        return [
            *_depths({} if seen is None else seen.counts),
            _lags({} if seen is None else seen.lags),
            success,
        ]


def _depths(counts: dict[Destination, JobCounts]) -> list[Metric]:
    jobs = GaugeMetricFamily(
        "alkstore_queue_jobs", "Jobs by what a claim would make of them.", labels=[*QUEUE, "state"]
    )
    age = GaugeMetricFamily(
        "alkstore_queue_oldest_ready_seconds",
        "Seconds that the longest waiting of the ready jobs has waited; 0 if none is ready.",
        labels=QUEUE,
    )
    for (kind, name), found in counts.items():
        for state in STATES:
            jobs.add_metric([kind, name, state], getattr(found, state))
        age.add_metric([kind, name], (found.oldest_ready_age or 0) / 1_000_000)
    return [jobs, age]


def _lags(lags: dict[tuple[str, str], int]) -> Metric:
    lag = GaugeMetricFamily(
        "alkstore_stream_lag",
        "Offsets from a consumer's position to the stream's head.",
        labels=["stream", "consumer"],
    )
    for (stream, consumer), behind in lags.items():
        lag.add_metric([stream, consumer], behind)
    return lag
