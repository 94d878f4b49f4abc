"""What a worker gives to handlers, and which handlers it takes."""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec
import pytest

from alkstore import Job, JobHandle, JobState, Store
from alkstore.errors import InvalidArgument, InvalidName, ReservedName
from alkstore.testing import ManualClock
from alkstore.worker import Counts, Worker, by_kind, handle
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


def yielding(value: int) -> Iterator[int]:
    yield value


async def yielding_async(value: int) -> AsyncIterator[int]:
    yield value


class Yielding:
    """A handler that is an object."""

    async def __call__(self, value: int) -> AsyncIterator[int]:
        yield value


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


async def test_a_decorators_function_gets_the_payload_to_hand_on(store: MemStore) -> None:
    seen: list[object] = []

    def logged(function: Callable[[object], Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def wrapper(*arguments: Any, **named: Any) -> object:
            return await function(*arguments, **named)

        return wrapper

    @logged
    async def handler(value: object) -> None:
        seen.append(value)

    assert (await counted(store, handler, {"to": "ada"}))[0] == Counts(done=1)
    assert seen == [{"to": "ada"}]


@pytest.mark.parametrize("is_async", [True, False])
async def test_what_a_handler_returns_to_be_awaited_is_awaited_before_the_job_is_done(
    store: MemStore, is_async: bool
) -> None:
    async def failing(value: int) -> None:
        raise ValueError(f"{value} was handled")

    def plain(value: int) -> Awaitable[None]:
        return failing(value)

    async def forgetful(value: int) -> Awaitable[None]:
        return failing(value)

    counts, _ = await counted(store, forgetful if is_async else plain, 1)

    assert counts == Counts(retried=1)
    (job,) = await store.queue("q").list()
    assert "1 was handled" in str(job.retry_error)


@pytest.mark.parametrize("give", [yielding, yielding_async])
async def test_a_handler_that_gives_a_generator_has_failed(store: MemStore, give: Any) -> None:
    counts, _ = await counted(store, lambda value: give(value), 1)

    assert counts == Counts(retried=1)
    (job,) = await store.queue("q").list()
    assert "of which nothing has run" in str(job.retry_error)


def two_payloads(one: int, other: int) -> None: ...


def unresolved(value: "Unimported") -> None: ...


def unreadable(value: threading.Thread) -> None: ...


def ambiguous(value: Email | Order) -> None: ...


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (two_payloads, "second payload"),
        (unresolved, "TYPE_CHECKING"),
        (unreadable, "neither a payload that can be read nor a resource"),
        (ambiguous, "cannot be read from a payload"),
        (yielding, "has a yield in it"),
        (yielding_async, "has a yield in it"),
        (Yielding(), "has a yield in it"),
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
        {"resources": [Pool()]},
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


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        ({"kind": "refund", "card": "4111"}, "got 'refund'"),
        ({"kind": {"card": "4111"}}, "got a dict there"),
        ({"card": "4111"}, "got no such key"),
        (["4111"], "got a list"),
    ],
)
async def test_a_job_of_no_known_kind_tells_the_kind_and_nothing_else_of_its_payload(
    store: MemStore, payload: object, found: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, (left,) = await counted(store, by_kind({"receipt": print}), payload)

    assert (left.last_error or "").endswith(found)
    assert found.replace("'", "") in caplog.text.replace("'", "")
    assert "4111" not in caplog.text


def test_kinds_have_no_concurrency_of_their_own() -> None:
    with pytest.raises(InvalidArgument, match="a queue has one"):
        by_kind({"a": handle(print, concurrency=2)})
    for wrong in ({}, [print], {1: print}):
        with pytest.raises(InvalidArgument):
            by_kind(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="key"):
        by_kind({"a": print}, key=1)  # type: ignore[arg-type]
