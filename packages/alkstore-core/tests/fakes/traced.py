"""A shop whose requests are traced: the work that one of them causes, on any engine, and what was exported of it."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from alkstore import JobHandle, Store
from alkstore.otel import Telemetry
from alkstore.worker import Worker

__all__ = ["Traced", "order"]


class Traced:
    """Telemetry of one test, and what came out of it."""

    def __init__(self, *, most: int = 200) -> None:
        self.provider = TracerProvider()
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.telemetry = Telemetry(
            tracer_provider=self.provider, meter_provider=MeterProvider([self._reader]), most=most
        )

    @contextmanager
    def request(self, name: str) -> Iterator[None]:
        """Be in the span that a web framework's instrumentation makes of a request."""
        with self.provider.get_tracer("web").start_as_current_span(name, kind=SpanKind.SERVER):
            yield

    @property
    def spans(self) -> list[ReadableSpan]:
        """What has ended, in the order in which it began."""
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def span(self, name: str) -> ReadableSpan:
        """The one span of that name."""
        (found,) = (span for span in self.spans if span.name == name)
        return found

    def lineage(self, name: str) -> list[str]:
        """The names from a span up to the root of its trace."""
        names: list[str] = []
        by_id: dict[int, ReadableSpan] = {}
        for span in self.spans:
            assert span.context is not None
            by_id[span.context.span_id] = span
        at: ReadableSpan | None = self.span(name)
        while at is not None:
            names.append(at.name)
            at = None if at.parent is None else by_id[at.parent.span_id]
        return names

    def points(self, metric: str) -> list[tuple[dict[str, object], float]]:
        """The attributes and the sum of each series of a metric."""
        data = self._reader.get_metrics_data()
        assert data is not None
        return [
            (dict(point.attributes or {}), float(getattr(point, "value", 0) or getattr(point, "sum", 0)))
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for found in scope.metrics
            if found.name == metric
            for point in found.data.data_points
        ]


async def order(store: Store, traced: Traced) -> list[object]:
    """Take an order in a request, work it off, and deliver what that has to tell; gives what was delivered."""
    delivered: list[object] = []

    async def ship(order: int, handle: JobHandle) -> None:
        async with store.begin_tx() as tx:
            await tx.publish("shipments", order)
            await tx.outbox_enqueue("carrier", order)
            await tx.ack(handle)

    async def call_carrier(order: int) -> None:
        delivered.append(order)

    with traced.request("POST /orders"):
        async with store.begin_tx() as tx:
            await tx.enqueue("orders", 7)
    await Worker(store, {"orders": ship}, outboxes={"carrier": call_carrier}).run_until_idle()
    async with store.stream("shipments").subscribe(after=0) as events:
        event = await events.recv()
    assert event is not None
    with traced.telemetry.handling(event):
        await store.queue("notices").enqueue("on its way")
    return delivered
