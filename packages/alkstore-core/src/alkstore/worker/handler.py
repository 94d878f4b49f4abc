"""Handlers as an application writes them, and what the worker makes of them: one call for one job."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from alkstore import numbers, payload
from alkstore.errors import CodecError, InvalidArgument, show
from alkstore.job import JobHandle
from alkstore.stamps import Duration
from alkstore.store import Store
from alkstore.worker.arguments import Arguments, arguments_of

__all__ = ["Call", "Handler", "Kinds", "Selector", "by_kind", "compiled", "handle"]


@dataclass(frozen=True, slots=True)
class Kinds:
    """Handlers by the value of one key of the payload; made by `by_kind`."""

    handlers: Mapping[str, "Handler"]
    key: str


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler and its limits; made by `handle`.

    Attributes:
        function: What is called, or the handlers of each kind.
        concurrency: How many jobs at once; None: as the worker says.
        timeout: Seconds that a job may take; None: as long as it likes.
    """

    function: Callable[..., object] | Kinds
    concurrency: int | None = None
    timeout: float | None = None


def handle(
    function: "Callable[..., object] | Handler",
    *,
    concurrency: int | None = None,
    timeout: Duration | None = None,
) -> Handler:
    """Give a handler limits of its own.

    ``Worker(store, {"emails": handle(send_email, concurrency=2, timeout=30)})``

    Args:
        function: A function, plain or async, or what `by_kind` gave. A plain one runs in a thread.
        concurrency: Jobs of this queue at once; the worker's by default.
        timeout: Seconds for one job, after which it is cancelled and retried; none by default. A thread cannot be
            cancelled: the job is retried all the same, and its place is taken until the thread ends.

    Raises:
        InvalidArgument: ``function`` cannot be called, or a limit is not positive.
    """
    inner = function if isinstance(function, Handler) else Handler(_callable(function, "handler"))
    return Handler(
        inner.function,
        inner.concurrency if concurrency is None else numbers.integer(concurrency, "concurrency", least=1),
        inner.timeout if timeout is None else numbers.duration(timeout, "timeout", positive=True) / 1_000_000,
    )


def by_kind(handlers: Mapping[str, Callable[..., object] | Handler], *, key: str = "kind") -> Handler:
    """Make one handler of several, chosen by a key of the payload: ``by_kind({"receipt": f, "reminder": g})``.

    A job whose payload is no object, lacks the key or names another kind goes dead, with an error that says so.

    Raises:
        InvalidArgument: There are no handlers, one cannot be called, or one has a concurrency, which is the queue's.
    """
    if not isinstance(handlers, Mapping) or not handlers:
        raise InvalidArgument(f"by_kind takes a mapping of kinds to handlers, got {show(handlers)}")
    if not isinstance(key, str):
        raise InvalidArgument(f"key must be a str, got {show(key)}")
    made: dict[str, Handler] = {}
    for kind, each in handlers.items():
        if not isinstance(kind, str):
            raise InvalidArgument(f"a kind must be a str, got {show(kind)}")
        made[kind] = handler = handle(each)
        if handler.concurrency is not None:
            raise InvalidArgument(
                f"kind {show(kind)} cannot have a concurrency of its own: a queue has one; "
                "give it to all kinds, handle(by_kind(…), concurrency=…)"
            )
    return Handler(Kinds(made, key))


def _callable(function: object, what: str) -> Callable[..., object]:
    if not callable(function):
        raise InvalidArgument(f"{what} must be a function, plain or async, got {show(function)}")
    return function


# ---------------------------------------------------------------- what the worker makes of them


@dataclass(frozen=True, slots=True)
class Call:
    """A function with everything known about it that can be known before there is a job.

    Attributes:
        function: What is called.
        arguments: What with.
        is_async: Whether it gives something to await; else it runs in a thread.
        timeout: Seconds, or None.
    """

    function: Callable[..., Any]
    arguments: Arguments
    is_async: bool
    timeout: float | None


class Selector(Protocol):
    """Chooses the call for a job."""

    def __call__(self, handle: JobHandle, /) -> Call:
        """Choose.

        Raises:
            CodecError: No call is for this payload.
        """


def compiled(handler: Handler, what: str, store: Store, resources: Mapping[type, object]) -> Selector:
    """Look at a handler, and at each of its kinds, once and for all jobs.

    Raises:
        InvalidArgument: A parameter can get nothing, or the function is a generator.
    """
    function, timeout = handler.function, handler.timeout
    if isinstance(function, Kinds):
        calls = {
            kind: compiled(
                each if each.timeout is not None else Handler(each.function, None, timeout),
                f"{what}, kind {kind!r}",
                store,
                resources,
            )
            for kind, each in function.handlers.items()
        }
        return _chooser(calls, function.key)
    if _is_generator(function):
        raise InvalidArgument(
            f"{what} has a yield in it, so that calling it runs none of it, got {show(function)}; take the yield out"
        )
    call = Call(function, arguments_of(function, what, store, resources), _is_async(function), timeout)
    return lambda _: call


def _chooser(calls: Mapping[str, Selector], key: str) -> Selector:
    def choose(handle: JobHandle) -> Call:
        value = payload.decode(handle._record.payload)
        kind = value.get(key) if isinstance(value, dict) else None
        selector = calls.get(kind) if isinstance(kind, str) else None
        if selector is None:
            found = _found(value, key)
            raise CodecError(
                f"payload must be an object whose {key!r} is one of {sorted(calls)}, got {found}"
            )
        return selector(handle)

    return choose


def _found(value: object, key: str) -> str:
    # No more of the payload than its kind: errors are logged.
    if not isinstance(value, dict):
        return f"a {type(value).__name__}"
    if key not in value:
        return "no such key"
    kind = value[key]
    return show(kind) if isinstance(kind, str) else f"a {type(kind).__name__} there"


def _is_generator(function: Callable[..., object]) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004  # as in `_is_async`
    kinds = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(is_kind(each) for is_kind in kinds for each in (function, call))


def _is_async(function: Callable[..., object]) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004  # not a test: an object's async __call__ counts
    # Not by what it wraps: a plain function around an async one may well run that to its end.
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
