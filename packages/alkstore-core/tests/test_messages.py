"""The message of every refusal can be printed, and stays short, whatever a caller gave (contract.md, Errors)."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import alkstore
from alkstore import AlkstoreError, StopToken, Store
from alkstore_mem import MemStore

BAD: Any = "\ud800\n" + "x" * 100_000
LONGEST = 500

Call = Callable[[Store], Awaitable[object]]


async def _handler(_: object) -> None:
    """Handle nothing."""


CALLS: dict[str, Call] = {
    "queue": lambda s: s.queue("q").enqueue(1, max_attempts=BAD),
    "delay": lambda s: s.queue("q").enqueue(1, delay=BAD),
    "run_at": lambda s: s.queue("q").enqueue(1, run_at=BAD),
    "expires": lambda s: s.queue("q").enqueue(1, expires=[BAD] * 9),  # type: ignore[arg-type]
    "priority": lambda s: s.queue("q").enqueue(1, priority=10**5_000),
    "headers": lambda s: s.queue("q").enqueue(1, headers=BAD),
    "header name": lambda s: s.queue("q").enqueue(1, headers={BAD: "1"}),
    "header value": lambda s: s.queue("q").enqueue(1, headers={"h": BAD}),
    "payload": lambda s: s.queue("q").enqueue([{"k" * 9_000: {BAD: 1}}]),
    "payload value": lambda s: s.queue("q").enqueue({"k" * 9_000: [{"l" * 9_000: {b"x" * 9_000}}]}),
    "payload number": lambda s: s.queue("q").enqueue(10**5_000),
    "payloads": lambda s: s.queue("q").enqueue_batch(BAD),
    "each": lambda s: s.queue("q").enqueue_batch([1], each=[BAD]),
    "worker_id": lambda s: s.queue("q").claim_one(worker_id=BAD),
    "n": lambda s: s.queue("q").claim_batch(BAD),
    "id": lambda s: s.queue("q").get_job(BAD),
    "state": lambda s: s.queue("q").list(state=BAD),
    "error": lambda s: s.queue("q").list(error=[BAD]),  # type: ignore[arg-type]
    "handler": lambda s: s.queue("q").run_once(BAD),
    "key": lambda s: s.stream("s").publish(1, key=BAD),
    "keys": lambda s: s.stream("s").publish_batch([1], keys=[BAD]),
    "offset": lambda s: s.stream("s").read_since(BAD),
    "consumer": lambda s: s.stream("s").get_offset(BAD),
    "channel": lambda s: s.notify(BAD),
    "ttl": lambda s: s.try_lock("l", BAD),
    "lock": lambda s: s.try_lock(BAD, 5),
    "spec": lambda s: s.schedule("s", BAD, "q", 1),
    "spec digits": lambda s: s.schedule("s", f"@every {'9' * 9_000}s", "q", 1),
    "anchor": lambda s: s.schedule("s", "@every 1s", "q", 1, anchor=BAD),
    "stop": lambda s: s.run_schedules(BAD),
    "concurrency": lambda s: s.outbox("o").run(_handler, stop=StopToken(), concurrency=BAD),
}

OPENINGS: dict[str, Callable[[], object]] = {
    "no scheme": lambda: alkstore.open(BAD),
    "unknown scheme": lambda: alkstore.open("x" * 9_000 + "://"),
    "after the scheme": lambda: alkstore.open(f"mem://{BAD}"),
    "unknown option": lambda: alkstore.open("mem://", **{"x" * 9_000: 1}),
    "no text": lambda: alkstore.open([BAD]),  # type: ignore[arg-type]
    "worker_id": lambda: MemStore(worker_id=BAD),
    "wait_timeout": lambda: MemStore(wait_timeout=BAD),
    "random": lambda: MemStore(random=BAD),
    "clock": lambda: MemStore(clock=BAD),
}


def check(error: AlkstoreError) -> None:
    assert str(error).encode()
    assert "\n" not in str(error)
    assert len(str(error)) < LONGEST


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_a_refusal_of_any_argument_can_be_printed(call: Call) -> None:
    async with MemStore() as store:
        with pytest.raises(AlkstoreError) as caught:
            await call(store)

    check(caught.value)


@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS.keys())
def test_a_refusal_to_open_can_be_printed(opening: Callable[[], object]) -> None:
    with pytest.raises(AlkstoreError) as caught:
        opening()

    check(caught.value)
