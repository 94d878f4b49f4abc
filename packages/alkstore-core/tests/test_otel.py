"""Traces that lead from a request to the last delivery that it caused, and the metrics of the conventions."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from traced import Traced, order

import alkstore
from alkstore import Store
from alkstore.worker import Worker

SENT = "messaging.client.sent.messages"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def traced() -> Traced:
    return Traced()


@pytest.fixture(params=["mem", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, traced: Traced) -> AsyncIterator[Store]:
    url = "mem://" if request.param == "mem" else f"sqlite:///{tmp_path}/app.db"
    async with alkstore.open(url, observers=[traced.telemetry]) as opened:
        yield opened


def traces(spans: list[ReadableSpan]) -> set[int]:
    return {span.context.trace_id for span in spans if span.context is not None}


def linked(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    found: int = span.context.span_id
    return found


async def test_one_trace_leads_from_a_request_to_the_last_delivery(store: Store, traced: Traced) -> None:
    assert await order(store, traced) == [7]

    assert len(traces(traced.spans)) == 1
    assert traced.lineage("handle carrier") == [
        "handle carrier",
        "enqueue carrier",
        "handle orders",
        "enqueue orders",
        "POST /orders",
    ]
    assert traced.lineage("claim carrier")[1:] == traced.lineage("enqueue carrier")
    assert traced.lineage("ack carrier")[1:] == traced.lineage("enqueue carrier")
    assert traced.lineage("enqueue notices") == [
        "enqueue notices",
        "handle shipments",
        "publish shipments",
        "handle orders",
        "enqueue orders",
        "POST /orders",
    ]
    assert linked(traced.span("handle orders")) == {id_of(traced.span("claim orders"))}


async def test_spans_say_what_the_conventions_ask_for(store: Store, traced: Traced) -> None:
    id = await store.queue("mail").enqueue({"to": "ada"})
    (handle,) = await store.queue("mail").claim_batch(1, worker_id="w1")
    async with handle:
        pass

    common: dict[str, object] = {
        "messaging.system": "alkstore",
        "messaging.destination.name": "mail",
        "alkstore.destination.kind": "queue",
        "messaging.message.id": str(id),
    }
    claimed = {"messaging.client.id": "w1", "messaging.message.body.size": 12, "alkstore.job.attempts": 1}
    found = [(span.name, span.kind, dict(span.attributes or {})) for span in traced.spans]
    expected = [
        ("enqueue", "send", SpanKind.PRODUCER, common),
        ("claim", "receive", SpanKind.CLIENT, common | claimed),
        ("handle", "process", SpanKind.CONSUMER, common | claimed),
        ("ack", "settle", SpanKind.CLIENT, common | claimed),
    ]
    assert found == [
        (
            f"{operation} mail",
            kind,
            {**given, "messaging.operation.name": operation, "messaging.operation.type": type_},
        )
        for operation, type_, kind, given in expected
    ]


async def test_a_claim_of_several_is_linked_with_the_trace_of_each(store: Store, traced: Traced) -> None:
    for number in range(3):
        await store.queue("mail").enqueue(number)
    for handle in await store.queue("mail").claim_batch(3):
        async with handle:
            pass

    claim = traced.span("claim mail")
    sent = [span for span in traced.spans if span.name == "enqueue mail"]
    handled = [span for span in traced.spans if span.name == "handle mail"]
    assert claim.attributes is not None
    assert claim.attributes["messaging.batch.message_count"] == 3
    assert linked(claim) == {id_of(span) for span in sent}
    assert [span.parent.span_id for span in handled if span.parent is not None] == [
        id_of(span) for span in sent
    ]
    assert [linked(span) for span in handled] == [{id_of(claim)}] * 3


async def test_a_batch_is_one_span_whose_context_goes_with_each_of_its_jobs(
    store: Store, traced: Traced
) -> None:
    await store.queue("mail").enqueue_batch([1, 2], headers={"own": "kept"})

    jobs = await store.queue("mail").list()
    sent = traced.span("enqueue mail")
    assert sent.attributes is not None
    assert sent.attributes["messaging.batch.message_count"] == 2
    assert "messaging.message.id" not in sent.attributes
    assert {f"{id_of(sent):016x}" in job.headers["traceparent"] for job in jobs} == {True}
    assert {job.headers["own"] for job in jobs} == {"kept"}


async def test_a_handlers_error_is_its_spans(store: Store, traced: Traced) -> None:
    async def handler(value: int) -> None:
        raise ValueError(f"no {value}")

    await store.queue("mail").enqueue(1)
    await Worker(store, {"mail": handler}).run_until_idle()

    span = traced.span("handle mail")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == "ValueError"
    assert [event.name for event in span.events] == ["exception"]
    assert traced.span("retry mail").parent == traced.span("handle mail").parent


async def test_a_context_that_the_caller_gave_himself_is_the_one_that_goes_on(
    store: Store, traced: Traced
) -> None:
    with traced.request("POST /orders"):
        await store.queue("mail").enqueue(1, headers={"traceparent": TRACEPARENT})
    await Worker(store, {"mail": lambda: None}).run_until_idle()

    handled = traced.span("handle mail")
    assert handled.parent is not None
    assert f"{handled.parent.trace_id:032x}-{handled.parent.span_id:016x}" == TRACEPARENT[3:52]


async def test_headers_without_room_leave_the_context_out_and_fail_nothing(
    store: Store, traced: Traced
) -> None:
    full = {"x": "y" * (8_192 - len('{"x":""}'))}
    roomy = {"x": "y" * 8_000}
    token = context.attach(baggage.set_baggage("customer", "z" * 300))
    try:
        await store.queue("mail").enqueue(1, headers=full)
        await store.queue("mail").enqueue(2, headers=roomy)
        await store.queue("mail").enqueue(3)
    finally:
        context.detach(token)

    without, lean, whole = await store.queue("mail").list()
    assert dict(without.headers) == full
    assert set(lean.headers) == {"x", "traceparent"}
    assert set(whole.headers) == {"traceparent", "baggage"}


async def test_a_worker_started_in_a_span_does_not_take_its_jobs_into_it(
    store: Store, traced: Traced
) -> None:
    with traced.request("POST /orders"):
        await store.queue("mail").enqueue(1)
    with traced.request("start"):
        await Worker(store, {"mail": lambda: None}).run_until_idle()

    assert traced.lineage("handle mail") == ["handle mail", "enqueue mail", "POST /orders"]
    assert id_of(traced.span("start")) in linked(traced.span("handle mail"))


async def test_a_handler_in_a_thread_is_in_its_jobs_trace(store: Store, traced: Traced) -> None:
    seen: list[int] = []

    def handler(value: int) -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)

    await store.queue("mail").enqueue(1)
    await Worker(store, {"mail": handler}).run_until_idle()

    assert seen == [id_of(traced.span("handle mail"))]


async def test_nothing_is_kept_of_a_claim_that_has_ended(store: Store, traced: Traced) -> None:
    await store.queue("mail").enqueue_batch(range(10))
    await Worker(store, {"mail": lambda: None}).run_until_idle()

    assert traced.telemetry._claims == {}


async def test_claims_whose_end_is_never_told_of_are_forgotten(traced: Traced) -> None:
    async with alkstore.open("mem://", observers=[traced.telemetry]) as store:
        await store.queue("mail").enqueue_batch(range(11_000))
        await store.queue("mail").claim_batch(11_000)

    assert len(traced.telemetry._claims) == 10_000


async def test_two_stores_of_one_telemetry_do_not_take_each_others_claims(traced: Traced) -> None:
    stores = [alkstore.open("mem://", observers=[traced.telemetry]) for _ in range(2)]
    async with stores[0] as one, stores[1] as two:
        for store in (one, two):
            await store.queue("mail").enqueue(1)
        handles = [(await store.queue("mail").claim_batch(1))[0] for store in (one, two)]
        for handle in handles:
            async with handle:
                pass

    claims = [id_of(span) for span in traced.spans if span.name == "claim mail"]
    handled = [linked(span) for span in traced.spans if span.name == "handle mail"]
    assert handled == [{claim} for claim in claims]


async def test_the_conventions_metrics_count_what_happens(store: Store, traced: Traced) -> None:
    await store.queue("mail").enqueue_batch([1, 2])
    await store.stream("log").publish(1)
    await Worker(store, {"mail": lambda: None}).run_until_idle()

    mail = {
        "messaging.system": "alkstore",
        "messaging.destination.name": "mail",
        "alkstore.destination.kind": "queue",
    }
    log = mail | {"messaging.destination.name": "log", "alkstore.destination.kind": "stream"}
    assert traced.points("messaging.client.sent.messages") == [
        (mail | {"messaging.operation.name": "enqueue"}, 2),
        (log | {"messaging.operation.name": "publish"}, 1),
    ]
    assert traced.points("messaging.client.consumed.messages") == [
        (mail | {"messaging.operation.name": "claim"}, 2)
    ]
    assert traced.points("alkstore.job.settled") == [(mail | {"alkstore.job.outcome": "done"}, 2)]
    ((labels, seconds),) = traced.points("messaging.process.duration")
    assert labels == mail | {"messaging.operation.name": "handle"}
    assert seconds > 0


async def test_the_names_of_a_queue_a_tenant_fill_no_memory_with_series() -> None:
    traced = Traced(most=2)
    async with alkstore.open("mem://", observers=[traced.telemetry]) as store:
        for name in ("a", "b", "c", "d", "a"):
            await store.queue(name).enqueue(1)

    sent = {labels["messaging.destination.name"]: count for labels, count in traced.points(SENT)}
    assert sent == {"a": 2, "b": 1, "other": 2}
    assert {"enqueue c", "enqueue d"} <= {span.name for span in traced.spans}
