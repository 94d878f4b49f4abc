"""What a worker gives to handlers, and what it makes of how they end."""

import asyncio
import contextvars
import functools
import logging
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec
import pytest

from alkstore import Job, JobHandle, JobState, Store
from alkstore.errors import InvalidArgument, InvalidName, ReservedName
from alkstore.testing import ManualClock
from alkstore.worker import Counts, Fail, Retry, Worker, by_kind, handle
from alkstore_mem import MemStore

if TYPE_CHECKING:
    from decimal import Decimal as Unimported


@pytest.fixture
async def store() -> AsyncIterator[MemStore]:
    async with MemStore(clock=ManualClock()) as opened:
        yield opened


@dataclass
class Email:
    to: str
    copies: int = 1


class Order(msgspec.Struct):
    id: int


class Shipment(TypedDict):
    weight: float


class Model:
    """Reads itself, as pydantic's models do."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @classmethod
    def model_validate_json(cls, data: bytes) -> "Model":
        if data == b"13":
            raise ValueError("thirteen is no number")
        return cls(data)


class Pool:
    """A resource."""


async def counted(store: Store, handler: Any, payload: object, **options: Any) -> tuple[Counts, list[Job]]:
    queue = store.queue("q")
    await queue.enqueue(payload, max_attempts=2)
    counts = await Worker(store, {"q": handler}, **options).run_until_idle()
    return counts, await queue.list()


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("type_", "payload", "expected"),
    [
        (Email, {"to": "ada@example.org"}, Email("ada@example.org")),
        (Order, {"id": 7}, Order(7)),
        (Shipment, {"weight": 1.5}, {"weight": 1.5}),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (int | None, None, None),
        (Annotated[int, msgspec.Meta(ge=0)], 3, 3),
        (object, [1, "a"], [1, "a"]),
        (Any, 2.5, 2.5),
    ],
)
async def test_a_parameter_gets_the_payload_as_its_type(
    store: MemStore, type_: Any, payload: object, expected: object
) -> None:
    seen: list[object] = []

    async def handler(value: object) -> None:
        seen.append(value)

    handler.__annotations__["value"] = type_

    counts, left = await counted(store, handler, payload)

    assert seen == [expected]
    assert (counts, left) == (Counts(done=1), [])


async def test_a_model_reads_itself(store: MemStore) -> None:
    seen: list[bytes] = []

    async def handler(model: Model) -> None:
        seen.append(model.data)

    assert (await counted(store, handler, 12))[0] == Counts(done=1)
    counts, (left,) = await counted(store, handler, 13)

    assert seen == [b"12"]
    assert counts == Counts(dead=1)
    assert "thirteen is no number" in (left.last_error or "")


async def test_a_parameter_without_an_annotation_gets_the_decoded_payload(store: MemStore) -> None:
    seen: list[object] = []

    counts, _ = await counted(store, lambda value: seen.append(value), {"a": [1]})

    assert seen == [{"a": [1]}]
    assert counts == Counts(done=1)


async def test_parameters_get_job_handle_store_and_resources_by_their_types(store: MemStore) -> None:
    seen: list[object] = []
    pool = Pool()

    async def handler(
        pool: Pool, job: Job, handle: JobHandle, store: Store, same: MemStore, /, email: Email, *, again: Pool
    ) -> None:
        seen.extend((pool, job.id, handle.job, store, same, email, again))

    await counted(store, handler, {"to": "ada@example.org"}, resources={Pool: pool})

    assert seen[0] is pool
    assert seen[6] is pool
    assert seen[3] is seen[4] is store
    assert seen[5] == Email("ada@example.org")
    assert isinstance(seen[2], Job)
    assert seen[2].id == seen[1]


async def test_further_parameters_keep_their_defaults(store: MemStore) -> None:
    seen: list[object] = []

    async def handler(value: int, factor: int = 10, *rest: int, unit: str = "s", **more: str) -> None:
        seen.append((value, factor, rest, unit, more))

    await counted(store, handler, 3)

    assert seen == [(3, 10, (), "s", {})]


async def test_a_handler_may_take_nothing(store: MemStore) -> None:
    calls: list[int] = []

    async def handler() -> None:
        calls.append(1)

    assert (await counted(store, handler, None))[0] == Counts(done=1)
    assert calls == [1]


def two_payloads(one: int, other: int) -> None: ...


def unresolved(value: "Unimported") -> None: ...


def unreadable(value: threading.Thread) -> None: ...


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (two_payloads, "second payload"),
        (unresolved, "TYPE_CHECKING"),
        (unreadable, "neither a payload that can be read nor a resource"),
        (3, "must be a function"),
        ("module:function", "must be a function"),
    ],
)
def test_a_handler_that_can_get_nothing_is_refused_when_the_worker_is_made(
    handler: Any, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Worker(MemStore(), {"q": handler})


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": True},
        {"prefetch": 0},
        {"grace": "soon"},
        {"keep_dead": "x"},
        {"resources": {"pool": Pool()}},
        {"outboxes": ["mail"]},
    ],
)
def test_an_option_outside_its_domain_is_refused_by_name(options: dict[str, Any]) -> None:
    name = next(iter(options))

    with pytest.raises(InvalidArgument, match=name):
        Worker(MemStore(), {"q": print}, **options)


def test_a_worker_needs_a_store_and_something_to_do() -> None:
    with pytest.raises(InvalidArgument, match="needs a Store, got 'mem://'"):
        Worker("mem://", {"q": print})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="a handler for a queue or an outbox"):
        Worker(MemStore())
    with pytest.raises(ReservedName):
        Worker(MemStore(), {"__alkstore_outbox:mail": print})
    with pytest.raises(InvalidName):
        Worker(MemStore(), outboxes={"": print})


@pytest.mark.parametrize(
    "limits", [{"concurrency": 0}, {"timeout": 0}, {"timeout": -1}, {"timeout": "3"}, {"concurrency": 1.5}]
)
def test_a_limit_outside_its_domain_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(limits))):
        handle(print, **limits)


# ---------------------------------------------------------------- kinds


async def test_a_kind_chooses_its_handler(store: MemStore) -> None:
    seen: list[object] = []

    async def receipt(order: Order) -> None:
        seen.append(order)

    def reminder(value: dict[str, object]) -> None:
        seen.append(value)

    queue = store.queue("q")
    await queue.enqueue({"type": "receipt", "id": 1})
    await queue.enqueue({"type": "reminder"})
    worker = Worker(
        store, {"q": by_kind({"receipt": receipt, "reminder": reminder}, key="type")}, concurrency=1
    )

    assert await worker.run_until_idle() == Counts(done=2)
    assert seen == [Order(1), {"type": "reminder"}]


@pytest.mark.parametrize("payload", [{"kind": "unknown"}, {"kind": ["receipt"]}, {}, [1], None, "receipt"])
async def test_a_job_of_no_known_kind_goes_dead_and_says_why(store: MemStore, payload: object) -> None:
    counts, (left,) = await counted(store, by_kind({"receipt": print}), payload)

    assert counts == Counts(dead=1)
    assert left.state is JobState.DEAD
    assert "'kind' is one of ['receipt']" in (left.last_error or "")


def test_kinds_have_no_concurrency_of_their_own() -> None:
    with pytest.raises(InvalidArgument, match="a queue has one"):
        by_kind({"a": handle(print, concurrency=2)})
    for wrong in ({}, [print], {1: print}):
        with pytest.raises(InvalidArgument):
            by_kind(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="key"):
        by_kind({"a": print}, key=1)  # type: ignore[arg-type]


# ---------------------------------------------------------------- outcomes


async def test_an_undecodable_payload_goes_dead_at_once_and_the_worker_goes_on(store: MemStore) -> None:
    seen: list[Email] = []

    async def handler(email: Email) -> None:
        seen.append(email)

    queue = store.queue("q")
    await queue.enqueue({"to": 3})
    await queue.enqueue({"to": "ada@example.org"})
    counts = await Worker(store, {"q": handler}).run_until_idle()

    (left,) = await queue.list()
    assert counts == Counts(done=1, dead=1)
    assert seen == [Email("ada@example.org")]
    assert left.attempts == 1
    assert "payload must fit" in (left.last_error or "")


async def test_an_exception_puts_the_job_back_with_its_traceback(
    store: MemStore, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(value: int) -> None:
        raise ValueError("no such person")

    counts, (left,) = await counted(store, handler, 1)

    assert counts == Counts(retried=1)
    assert left.state is JobState.PENDING
    assert (left.retry_error or "").startswith("builtins.ValueError: no such person")
    assert "is to be tried again after attempt 1 of 2" in caplog.text
    assert caplog.records[-1].exc_info is not None


async def test_an_exception_on_the_last_attempt_lets_the_job_go_dead(
    store: MemStore, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(value: int) -> None:
        raise ValueError("no such person")

    queue = store.queue("q")
    await queue.enqueue(1, max_attempts=1)
    counts = await Worker(store, {"q": handler}).run_until_idle()

    (left,) = await queue.list()
    assert counts == Counts(dead=1)
    assert left.state is JobState.DEAD
    assert caplog.records[-1].levelno == logging.ERROR
    assert "is dead after attempt 1 of 1" in caplog.text


@pytest.mark.parametrize("is_raised", [True, False])
async def test_retry_raised_or_returned_puts_the_job_back_with_its_reason_and_delay(
    store: MemStore, is_raised: bool
) -> None:
    async def handler(value: int) -> object:
        verdict = Retry("the mail server is busy", delay=90)
        if is_raised:
            raise verdict
        return verdict

    counts, (left,) = await counted(store, handler, 1)

    assert counts == Counts(retried=1)
    assert left.retry_error == "the mail server is busy"
    assert (left.run_at - left.created_at).total_seconds() == 90


@pytest.mark.parametrize("is_raised", [True, False])
async def test_fail_raised_or_returned_lets_the_job_go_dead_with_its_reason(
    store: MemStore, is_raised: bool
) -> None:
    async def handler(value: int) -> object:
        verdict = Fail("no such person")
        if is_raised:
            raise verdict
        return verdict

    counts, (left,) = await counted(store, handler, 1)

    assert counts == Counts(dead=1)
    assert left.last_error == "no such person"
    assert left.attempts == 1


async def test_a_verdict_without_a_reason_takes_the_exception_that_it_was_raised_from(
    store: MemStore,
) -> None:
    async def handler(value: int) -> None:
        try:
            raise OSError("connection refused")
        except OSError as error:
            raise Retry(delay=1) from error

    _, (left,) = await counted(store, handler, 1)

    assert (left.retry_error or "").startswith("builtins.OSError: connection refused")


def test_a_verdict_of_something_else_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="reason of Retry"):
        Retry(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="delay"):
        Retry("x", delay="soon")  # type: ignore[arg-type]


async def test_a_returned_value_means_nothing_and_is_told_once(
    store: MemStore, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(value: int) -> bool:
        return False

    await store.queue("q").enqueue_batch([1, 2, 3])
    counts = await Worker(store, {"q": handler}).run_until_idle()

    assert counts == Counts(done=3)
    assert caplog.text.count("the handler returned False, which means nothing") == 1


@pytest.mark.parametrize(
    ("settle", "expected"),
    [
        ("ack", Counts(done=1)),
        ("retry", Counts(retried=1)),
        ("fail", Counts(dead=1)),
        ("release", Counts(released=1)),
    ],
)
async def test_a_handler_that_settles_by_itself_is_left_at_that(
    store: MemStore, settle: str, expected: Counts
) -> None:
    calls: list[int] = []

    async def handler(handle: JobHandle) -> None:
        calls.append(1)
        if len(calls) == 1:
            options = {"delay": 1000} if settle == "retry" else {}
            await getattr(handle, settle)(**options)

    counts, left = await counted(store, handler, 1)

    if settle == "release":  # so it was claimed again, and done
        assert counts == Counts(released=1, done=1)
    else:
        assert counts == expected
        assert len(left) == (settle != "ack")


async def test_a_handler_may_ack_within_its_own_transaction(store: MemStore) -> None:
    async def handler(handle: JobHandle, store: Store) -> None:
        async with store.begin_tx() as tx:
            await tx.enqueue("next", 1)
            await tx.ack(handle)

    counts, left = await counted(store, handler, 1)

    assert (counts, left) == (Counts(done=1), [])
    assert (await store.queue("next").stats()).ready == 1


async def test_an_ack_that_was_rolled_back_is_given_by_the_worker(store: MemStore) -> None:
    async def handler(handle: JobHandle, store: Store) -> None:
        async with store.begin_tx() as tx:
            await tx.ack(handle)
            await tx.rollback()

    counts, left = await counted(store, handler, 1)

    assert (counts, left) == (Counts(done=1), [])


# ---------------------------------------------------------------- threads, timeouts, context


async def test_a_plain_function_runs_in_a_thread_with_the_context_of_the_worker(store: MemStore) -> None:
    name = contextvars.ContextVar("name", default="nobody")
    seen: list[object] = []

    def handler(value: int) -> None:
        seen.append((threading.current_thread() is threading.main_thread(), name.get()))

    name.set("ada")
    counts, _ = await counted(store, handler, 1)

    assert counts == Counts(done=1)
    assert seen == [(False, "ada")]


async def test_what_a_plain_function_gives_to_await_is_awaited(store: MemStore) -> None:
    seen: list[int] = []

    async def inner(value: int) -> None:
        seen.append(value)

    def decorated(value: int) -> object:
        return inner(value)

    assert (await counted(store, decorated, 1))[0] == Counts(done=1)
    assert (await counted(store, functools.partial(inner), 2))[0] == Counts(done=1)
    assert seen == [1, 2]


async def test_a_plain_function_that_raises_is_retried(store: MemStore) -> None:
    def handler(value: int) -> None:
        raise Fail("never")

    assert (await counted(store, handler, 1))[0] == Counts(dead=1)


async def test_a_handler_over_its_timeout_is_cancelled_and_retried(store: MemStore) -> None:
    cancelled: list[int] = []

    async def handler(value: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(value)

    counts, (left,) = await counted(store, handle(handler, timeout=0.001), 1)

    assert counts == Counts(retried=1)
    assert cancelled == [1]
    assert left.retry_error == "the handler did not end within its timeout of 0.001 s"


async def test_a_timeout_of_the_handlers_own_is_no_timeout_of_the_worker(store: MemStore) -> None:
    async def handler(value: int) -> None:
        raise TimeoutError("of the mail server")

    _, (left,) = await counted(store, handle(handler, timeout=60), 1)

    assert (left.retry_error or "").startswith("builtins.TimeoutError: of the mail server")


async def test_the_place_of_a_thread_that_is_over_its_timeout_waits_for_it(store: MemStore) -> None:
    may_end = threading.Event()
    running: list[int] = []
    most: list[int] = []

    def handler(value: int) -> None:
        running.append(value)
        most.append(len(running))
        if value == 1:
            may_end.wait(10)
        running.remove(value)

    queue = store.queue("q")
    await queue.enqueue(1, max_attempts=1)
    await queue.enqueue(2)
    work = asyncio.ensure_future(
        Worker(store, {"q": handle(handler, concurrency=1, timeout=0.01)}).run_until_idle()
    )
    async with asyncio.timeout(10):
        while (await queue.stats()).dead == 0:  # noqa: ASYNC110  # a thread tells no event
            await asyncio.sleep(0.001)
    may_end.set()

    assert await work == Counts(done=1, dead=1)
    assert max(most) == 1


async def test_a_handler_that_cancels_itself_is_retried(store: MemStore) -> None:
    async def handler(value: int) -> None:
        raise asyncio.CancelledError

    counts, (left,) = await counted(store, handler, 1)

    assert counts == Counts(retried=1)
    assert left.retry_error == "the handler was cancelled by something of its own"


async def test_what_a_handler_leaves_in_a_context_variable_is_not_there_for_the_next_job(
    store: MemStore,
) -> None:
    tenant = contextvars.ContextVar("tenant", default="none")
    seen: list[str] = []

    async def handler(value: str) -> None:
        seen.append(tenant.get())
        tenant.set(value)

    await store.queue("q").enqueue_batch(["a", "b", "c"])
    counts = await Worker(store, {"q": handler}, concurrency=1).run_until_idle()

    assert counts == Counts(done=3)
    assert seen == ["none", "none", "none"]


async def test_outboxes_are_worked_off_beside_queues(store: MemStore) -> None:
    seen: list[object] = []

    async def deliver(email: Email) -> None:
        seen.append(email)

    await store.outbox("mail").enqueue({"to": "ada@example.org"})
    worker = Worker(store, {"q": print}, outboxes={"mail": deliver})

    assert await worker.run_until_idle() == Counts(done=1)
    assert seen == [Email("ada@example.org")]
    assert repr(worker) == "<Worker of queue 'q', outbox 'mail'>"


def test_counts_add_up() -> None:
    assert Counts(done=1, retried=2, dead=3, released=4, lost=5).total == 15
