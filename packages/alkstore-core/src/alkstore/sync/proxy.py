"""What stands for an async object on a plain thread, and how its methods are made of the async ones."""

import contextvars
import functools
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypedDict, TypeVar, overload

from alkstore.stamps import Duration
from alkstore.sync.lending import Loan
from alkstore.sync.portal import Bounce, Portal

__all__ = ["Call", "Changed", "Context", "Options", "Proxy", "inner"]

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")
A = TypeVar("A")


class Proxy(Generic[A]):
    """Stands for one async object, in the loop of one portal."""

    __slots__ = ("__weakref__", "_portal", "_target")

    def __init__(self, portal: Portal, target: A) -> None:
        self._portal = portal
        self._target = target

    def _reach(self) -> tuple[Portal, A]:
        """Give the portal, and the object in its loop."""
        return self._portal, self._target

    def _call(self, work: Callable[[A, Bounce], Awaitable[T]]) -> T:
        portal, target = self._reach()
        return portal.call(lambda bounce: work(target, bounce))

    def __repr__(self) -> str:
        return repr(self._reach()[1])


@overload
def inner(value: Proxy[A]) -> A: ...
@overload
def inner(value: T) -> T: ...
def inner(value: object) -> object:
    """Give the async object that a proxy stands for; anything else as it is."""
    return value._reach()[1] if isinstance(value, Proxy) else value


class Call(Generic[P, T]):
    """A coroutine method as a plain one: the same arguments, the same result, the same errors."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, proxy: None, owner: type[Proxy[Any]]) -> Self: ...
    @overload
    def __get__(self, proxy: Proxy[Any], owner: type[Proxy[Any]]) -> Callable[P, T]: ...
    def __get__(self, proxy: Proxy[Any] | None, owner: type[Proxy[Any]]) -> "Self | Callable[P, T]":
        if proxy is None:
            return self
        method, name, at = self._method, self._method.__name__, proxy

        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            def work(target: Any, _: Bounce) -> Awaitable[T]:
                # By name, for an engine's own store may do it in its own way.
                found: Callable[P, Awaitable[T]] = getattr(target, name)
                return found(*args, **kwargs)

            return at._call(work)

        return call


class Changed(Generic[P, T, U]):
    """As `Call`, but what it gives is changed into what a plain thread can use."""

    def __init__(
        self,
        method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
        change: Callable[[Portal, T], U],
    ) -> None:
        self._call: Call[P, T] = Call(method)
        self._change = change
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, proxy: None, owner: type[Proxy[Any]]) -> Self: ...
    @overload
    def __get__(self, proxy: Proxy[Any], owner: type[Proxy[Any]]) -> Callable[P, U]: ...
    def __get__(self, proxy: Proxy[Any] | None, owner: type[Proxy[Any]]) -> "Self | Callable[P, U]":
        if proxy is None:
            return self
        call, change, at = self._call.__get__(proxy, owner), self._change, proxy

        @functools.wraps(call)
        def changed(*args: P.args, **kwargs: P.kwargs) -> U:
            return change(at._reach()[0], call(*args, **kwargs))

        return changed


class Context(Generic[T]):
    """An async context manager for a ``with`` statement."""

    def __init__(
        self,
        portal: Portal,
        open: Callable[[], AbstractAsyncContextManager[Any]],
        change: Callable[[Portal, Any], T],
    ) -> None:
        self._portal = portal
        self._open = open
        self._change = change
        self._context: AbstractAsyncContextManager[Any] | None = None

    def __enter__(self) -> T:
        context = self._context = self._open()
        # Left in the context in which it was entered: what it set there is set back there. The block sees it too.
        self._variables = contextvars.copy_context()
        entered = self._portal.call(lambda _: context.__aenter__(), self._variables)
        self._loan = Loan(self._variables)
        return self._change(self._portal, entered)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        context = self._context
        if context is None:
            return False
        self._loan.give_back()
        return bool(self._portal.call(lambda _: context.__aexit__(exc_type, exc, traceback), self._variables))


class Options(TypedDict, total=False):
    """What every enqueue takes by keyword."""

    delay: Duration | None
    run_at: datetime | None
    priority: int
    visibility_timeout: Duration | None
    max_attempts: int | None
    base_delay: Duration | None
    expires: Duration | None
    headers: Mapping[str, str] | None
