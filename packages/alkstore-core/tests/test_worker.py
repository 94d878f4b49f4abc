"""What a worker makes of how a handler ends."""

import asyncio
import contextvars
import functools
import logging
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from alkstore import Job, JobHandle, JobState, Store
from alkstore.errors import InvalidArgument
from alkstore.testing import ManualClock
from alkstore.worker import Counts, Fail, Retry, Worker, by_kind, handle
from alkstore_mem import MemStore


@pytest.fixture
async def store() -> AsyncIterator[MemStore]:
    async with MemStore(clock=ManualClock()) as opened:
        yield opened


@dataclass
class Email:
    to: str
    copies: int = 1


async def counted(store: Store, handler: Any, payload: object, **options: Any) -> tuple[Counts, list[Job]]:
    queue = store.queue("q")
    await queue.enqueue(payload, max_attempts=2)
    counts = await Worker(store, {"q": handler}, **options).run_until_idle()
    return counts, await queue.list()


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


async def test_the_log_says_what_is_wrong_with_a_payload_and_not_what_is_in_it(
    store: MemStore, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(email: Email) -> None: ...

    _, (left,) = await counted(store, handler, {"to": 3, "text": "a secret " * 40})

    assert left.last_error == "payload must fit Email: Expected `str`, got `int` - at `$.to`"
    assert left.last_error in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_traceback_begins_with_the_handler(store: MemStore, is_async: bool) -> None:
    def plain(value: int) -> None:
        raise ValueError("no such person")

    async def handler(value: int) -> None:
        plain(value)

    _, (left,) = await counted(store, handler if is_async else plain, 1)

    first, second = (left.retry_error or "").splitlines()[:2]
    assert first == "builtins.ValueError: no such person"
    assert second.startswith(f'  File "{__file__}"')


async def test_a_call_that_cannot_be_made_keeps_its_traceback(store: MemStore) -> None:
    _, (left,) = await counted(store, functools.partial(print, sep=1), 1)

    assert len((left.retry_error or "").splitlines()) > 1


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


async def test_a_kind_has_the_timeout_of_all_unless_it_has_its_own(store: MemStore) -> None:
    async def hangs(value: object) -> None:
        await asyncio.Event().wait()

    kinds = by_kind({"a": hangs, "b": handle(hangs, timeout=0.002)})
    for kind in "ab":
        await store.queue("q").enqueue({"kind": kind})

    await Worker(store, {"q": handle(kinds, timeout=0.001)}).run_until_idle()
    errors = [job.retry_error for job in await store.queue("q").list()]
    assert errors == [f"the handler did not end within its timeout of {limit} s" for limit in (0.001, 0.002)]


async def test_a_timeout_of_the_handlers_own_is_no_timeout_of_the_worker(store: MemStore) -> None:
    async def handler(value: int) -> None:
        raise TimeoutError("of the mail server")

    _, (left,) = await counted(store, handle(handler, timeout=60), 1)

    assert (left.retry_error or "").startswith("builtins.TimeoutError: of the mail server")


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
