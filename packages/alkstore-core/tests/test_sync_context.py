"""Context variables of a thread go with its calls, and those of a claim reach what the thread does with it."""

import contextvars
import threading
from collections.abc import Iterator

import pytest
from hanging import HUNG
from opentelemetry import trace
from traced import Traced

import alkstore.sync
from alkstore.sync import JobHandle, Store


@pytest.fixture
def traced() -> Traced:
    return Traced()


@pytest.fixture
def store(traced: Traced) -> Iterator[Store]:
    with alkstore.sync.open("mem://", observers=[traced.telemetry]) as opened:
        yield opened


def is_in_a_span() -> bool:
    return trace.get_current_span().get_span_context().is_valid


def test_a_call_goes_with_the_trace_of_its_thread_and_the_next_one_with_its_own(
    store: Store, traced: Traced
) -> None:
    queue = store.queue("mail")
    for number in (1, 2):
        with traced.request(f"POST /{number}"):
            queue.enqueue(number)
    queue.enqueue(3)

    sent = [span for span in traced.spans if span.name == "enqueue mail"]
    requests = [traced.span("POST /1"), traced.span("POST /2")]
    assert [span.parent for span in sent] == [*(request.context for request in requests), None]


def test_a_transaction_of_a_request_is_in_its_trace(store: Store, traced: Traced) -> None:
    with traced.request("POST /orders"), store.begin_tx() as tx:
        tx.enqueue("orders", 1)

    assert traced.lineage("enqueue orders") == ["enqueue orders", "POST /orders"]


def test_the_block_of_a_claim_is_in_its_jobs_trace(store: Store, traced: Traced) -> None:
    with traced.request("POST /orders"):
        store.queue("orders").enqueue(1)
    (handle,) = store.queue("orders").claim_batch(1)
    with handle:
        store.outbox("carrier").enqueue(1)

    assert not is_in_a_span()
    assert traced.lineage("enqueue carrier") == [
        "enqueue carrier",
        "handle orders",
        "enqueue orders",
        "POST /orders",
    ]


def test_a_handler_on_the_callers_thread_is_in_its_jobs_trace(store: Store, traced: Traced) -> None:
    def handler(handle: JobHandle) -> None:
        assert is_in_a_span()
        store.outbox("carrier").enqueue(handle.job.payload)

    store.queue("orders").enqueue(1)
    assert store.queue("orders").run_once(handler)

    assert not is_in_a_span()
    assert traced.lineage("enqueue carrier") == ["enqueue carrier", "handle orders", "enqueue orders"]


def test_what_a_handler_sets_of_its_own_stays_set_as_with_any_function(store: Store) -> None:
    own: contextvars.ContextVar[int] = contextvars.ContextVar("own")
    store.queue("mail").enqueue(1)
    store.queue("mail").run_once(lambda handle: own.set(7))

    assert own.get() == 7


def test_threads_do_not_see_each_others_variables(store: Store, traced: Traced) -> None:
    def work(number: int) -> None:
        with traced.request(f"POST /{number}"):
            store.queue("mail").enqueue(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HUNG)

    sent = [
        span.parent.span_id
        for span in traced.spans
        if span.name == "enqueue mail" and span.parent is not None
    ]
    asked = [
        span.context.span_id
        for span in traced.spans
        if span.name.startswith("POST") and span.context is not None
    ]
    assert sorted(sent) == sorted(asked)
