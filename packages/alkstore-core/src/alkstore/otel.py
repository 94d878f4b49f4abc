"""OpenTelemetry: spans and metrics by its conventions for messaging, and traces that go on where a job is handled.

``alkstore.open(url, observers=[alkstore.otel.Telemetry()])``. Extra: ``alkstore-core[otel]``.

What is sent has a span of its own, whose context goes along in the headers of the job or event (W3C trace context, or
whatever propagator is set). The handler's span is a child of it, in the same trace, however much later it runs; what the
handler sends in turn is a child of that. So one trace leads from a request to the last delivery that it caused. A claim of
one job belongs to the trace of that job; a claim of several is a trace of its own, linked with those of its jobs.

Source: OpenTelemetry semantic conventions 1.37, messaging spans and messaging metrics.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

try:
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "alkstore.otel needs opentelemetry-api: pip install 'alkstore-core[otel]'", name=error.name
    ) from error

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
from alkstore.values import Job, StreamEvent
from alkstore.version import __version__

__all__ = ["Telemetry"]

SYSTEM: Final = "alkstore"

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""Bounds of durations, as the conventions have them."""

MOST_LINKS: Final = 128
"""Links of one span: what the SDK keeps by default."""

OPERATIONS: Final[Mapping[Outcome, str]] = {
    "done": "ack",
    "retried": "retry",
    "dead": "fail",
    "released": "release",
}

MOST_CLAIMS: Final = 10_000
"""Claims whose spans are remembered, to be linked with. Of some nobody tells the end: the store was closed, or they were
acked in a caller's own transaction.
"""

Attributes = dict[str, str | int]


class Telemetry:
    """An observer that makes spans and metrics. One may observe several stores."""

    def __init__(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        propagator: TextMapPropagator | None = None,
        most: int = 200,
    ) -> None:
        """Make it of the providers and the propagator that the application has set, or of those given.

        Args:
            tracer_provider, meter_provider, propagator: In place of the application's.
            most: Queues, outboxes and streams whose names are attributes of metrics: those that came first. The rest
                share the name ``other``; in spans each has its own.

        Raises:
            InvalidArgument: ``most`` is not positive.
        """
        self._tracer = trace.get_tracer("alkstore", __version__, tracer_provider)
        meter = metrics.get_meter("alkstore", __version__, meter_provider)
        self._instruments = _Instruments(meter, Labels(most))
        self._propagator = propagator
        self._claims: dict[tuple[int, int, str | None], SpanContext] = {}

    def __call__(self, fact: Fact) -> None:
        """Hear of a fact."""
        match fact:
            case JobsClaimed():
                self._received("claim", fact.destination, fact.jobs, fact.seconds)
            case EventsRead():
                self._received("read", fact.destination, fact.events, fact.seconds)
            case JobSettled():
                self._settled(fact)
            case JobHandled() if fact.error is not None:
                trace.get_current_span().set_attribute("error.type", _error_type(fact.error))
        self._instruments.measure(fact)

    # ------------------------------------------------------------ as a carrier

    @contextmanager
    def sending(self, destination: Destination, count: int) -> Iterator[Mapping[str, str]]:
        """Make the span of what is sent; gives its context as headers."""
        operation = "publish" if destination.kind == "stream" else "enqueue"
        attributes = _attributes(destination, operation, "send")
        if count > 1:
            attributes["messaging.batch.message_count"] = count
        name = f"{operation} {destination.name}"
        with self._tracer.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes):
            headers: dict[str, str] = {}
            (self._propagator or propagate.get_global_textmap()).inject(headers)
            yield headers

    def sent(self, ids: Sequence[int]) -> None:
        """Note the id of what was sent, if it was one."""
        if len(ids) == 1:
            trace.get_current_span().set_attribute("messaging.message.id", str(ids[0]))

    @contextmanager
    def handling(self, subject: Job | StreamEvent) -> Iterator[Span]:
        """Be in the span of handling a job or an event, in the trace of who sent it.

        Around handlers of jobs it is put by alkstore. Who reads a stream puts it around what he does with an event:
        ``with telemetry.handling(event): …``.
        """
        destination = _destination(subject)
        attributes = _attributes(destination, "handle", "process") | _described(subject)
        parent, links = self._place(subject)
        if isinstance(subject, Job):
            claim = self._claims.get(_key(subject))
            links += [] if claim is None else [Link(claim)]
        with self._tracer.start_as_current_span(
            f"handle {destination.name}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
        ) as span:
            yield span

    # ------------------------------------------------------------ spans of what has happened

    def _received(
        self, operation: str, destination: Destination, subjects: Sequence[Job | StreamEvent], seconds: float
    ) -> None:
        attributes = _attributes(destination, operation, "receive")
        parent: Context | None = None
        links: list[Link] = []
        if len(subjects) == 1:
            parent, links = self._place(subjects[0])
            attributes |= _described(subjects[0])
        else:
            attributes["messaging.batch.message_count"] = len(subjects)
            senders = {sender.span_id: sender for sender in map(self._sender, subjects[:MOST_LINKS])}
            links = [Link(sender) for sender in senders.values() if sender.is_valid]
        context = self._past(
            f"{operation} {destination.name}", attributes, seconds, parent, links
        ).get_span_context()
        if context.is_valid:
            self._claims |= {_key(job): context for job in subjects if isinstance(job, Job)}
        while len(self._claims) > MOST_CLAIMS:
            del self._claims[next(iter(self._claims))]

    def _settled(self, fact: JobSettled) -> None:
        job = fact.job
        claim = self._claims.pop(_key(job), None)
        operation = OPERATIONS.get(fact.outcome)
        if operation is None:  # it lapsed: nobody did anything
            return
        attributes = _attributes(fact.destination, operation, "settle") | _described(job)
        parent, links = self._place(job)
        links += [] if claim is None else [Link(claim)]
        self._past(f"{operation} {fact.destination.name}", attributes, fact.seconds, parent, links)

    def _past(
        self,
        name: str,
        attributes: Attributes,
        seconds: float,
        parent: Context | None,
        links: Sequence[Link],
    ) -> Span:
        now = time.time_ns()
        span = self._tracer.start_span(
            name,
            context=parent,
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=links,
            start_time=now - int(seconds * 1e9),
        )
        span.end(now)
        return span

    # ------------------------------------------------------------ contexts

    def _place(self, subject: Job | StreamEvent) -> tuple[Context | None, list[Link]]:
        """Give the parent of a span about something that was sent, and what it is linked with besides.

        It belongs to the trace that came along. Only what is under way in that very trace, or beside a subject that
        carries none, has it as its child.
        """
        sender, here = self._sender(subject), trace.get_current_span().get_span_context()
        if not sender.is_valid:
            return None, []
        if here.is_valid and here.trace_id == sender.trace_id:
            return None, [] if here.span_id == sender.span_id else [Link(sender)]
        return self._carried(subject), [Link(here)] if here.is_valid else []

    def _sender(self, subject: Job | StreamEvent) -> SpanContext:
        return trace.get_current_span(self._carried(subject, Context())).get_span_context()

    def _carried(self, subject: Job | StreamEvent, under: Context | None = None) -> Context:
        propagator = self._propagator or propagate.get_global_textmap()
        return propagator.extract(dict(subject.headers), context=under)


def _key(job: Job) -> tuple[int, int, str | None]:
    # Two stores may have jobs of one id, but not one worker.
    return job.id, job.attempts, job.worker_id


def _destination(subject: Job | StreamEvent) -> Destination:
    if isinstance(subject, Job):
        return Destination.of_queue(subject.queue)
    return Destination("stream", subject.stream)


def _attributes(destination: Destination, operation: str, kind: str) -> Attributes:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": destination.name,
        "alkstore.destination.kind": destination.kind,
    }


def _described(subject: Job | StreamEvent) -> Attributes:
    found: Attributes = {"messaging.message.body.size": len(subject.payload_bytes)}
    if isinstance(subject, Job):
        found |= {"messaging.message.id": str(subject.id), "alkstore.job.attempts": subject.attempts}
        if subject.worker_id is not None:
            found["messaging.client.id"] = subject.worker_id
    else:
        found["messaging.message.id"] = str(subject.offset)
    return found


def _error_type(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# ---------------------------------------------------------------- metrics


class _Instruments:
    """The metrics: those of the conventions by their names, and ours."""

    def __init__(self, meter: metrics.Meter, labels: Labels) -> None:
        self._destinations = labels
        counter, histogram = meter.create_counter, meter.create_histogram
        self._sent = counter("messaging.client.sent.messages", "{message}", "Jobs and events sent.")
        self._consumed = counter(
            "messaging.client.consumed.messages", "{message}", "Jobs claimed, events read."
        )
        self._operation = histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of calls and round trips.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._process = histogram(
            "messaging.process.duration",
            "s",
            "Duration of handlers.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._wait = histogram(
            "alkstore.job.wait.duration",
            "s",
            "From a job's run_at to its claim.",
            explicit_bucket_boundaries_advisory=WAITS,
        )
        self._batch = histogram(
            "alkstore.batch.size",
            "{item}",
            "What one round trip wrote, or claimed.",
            explicit_bucket_boundaries_advisory=SIZES,
        )
        self._settled = counter("alkstore.job.settled", "{job}", "Claims that ended, by outcome.")
        self._reclaimed = counter("alkstore.job.reclaimed", "{job}", "Jobs claimed whose claim had lapsed.")
        self._expired = counter("alkstore.job.expired", "{job}", "Jobs that sweeps moved to the dead.")
        self._fired = counter("alkstore.schedule.fired", "{job}", "Jobs that schedules enqueued.")
        self._lost = counter("alkstore.listener.lost", "{connection}", "Times that the listener was lost.")

    def measure(self, fact: Fact) -> None:
        match fact:
            case JobsEnqueued():
                self._send("enqueue", fact.destination, len(fact.ids), fact.seconds)
            case EventsPublished():
                self._send("publish", fact.destination, len(fact.offsets), fact.seconds)
            case EventsRead():
                self._receive("read", fact.destination, len(fact.events), fact.seconds)
            case JobsClaimed():
                self._receive("claim", fact.destination, len(fact.jobs), fact.seconds)
                labels = self._labels(fact.destination)
                self._batch.record(len(fact.jobs), {"alkstore.batch.kind": "claim"})
                for waited in fact.waited:
                    self._wait.record(waited, labels)
                if fact.reclaimed:
                    self._reclaimed.add(fact.reclaimed, labels)
            case JobHandled():
                self._process.record(
                    fact.seconds, _failed(self._labels(fact.destination, "handle"), fact.error)
                )
            case JobSettled():
                self._settled.add(1, {**self._labels(fact.destination), "alkstore.job.outcome": fact.outcome})
                if (operation := OPERATIONS.get(fact.outcome)) is not None:
                    self._operation.record(fact.seconds, self._labels(fact.destination, operation))
            case JobsExpired():
                self._expired.add(fact.count, self._labels(fact.destination))
            case SchedulesFired():
                self._fired.add(fact.jobs)
            case BatchWritten():
                self._batch.record(fact.size, {"alkstore.batch.kind": fact.kind})
            case ListenerChanged(is_connected=False):
                self._lost.add(1)

    def _send(self, operation: str, destination: Destination, count: int, seconds: float) -> None:
        labels = self._labels(destination, operation)
        self._sent.add(count, labels)
        self._operation.record(seconds, labels)

    def _receive(self, operation: str, destination: Destination, count: int, seconds: float) -> None:
        labels = self._labels(destination, operation)
        self._consumed.add(count, labels)
        self._operation.record(seconds, labels)

    def _labels(self, destination: Destination, operation: str | None = None) -> dict[str, str]:
        labels = {
            "messaging.system": SYSTEM,
            "messaging.destination.name": self._destinations.name(destination),
            "alkstore.destination.kind": destination.kind,
        }
        if operation is not None:
            labels["messaging.operation.name"] = operation
        return labels


def _failed(labels: dict[str, str], error: BaseException | None) -> dict[str, str]:
    return labels if error is None else {**labels, "error.type": _error_type(error)}
