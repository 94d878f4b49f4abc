"""Context variables that go with a call from a thread into the loop, and back to the thread for what runs there."""

import contextvars
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

__all__ = ["Loan", "Within"]

T = TypeVar("T")

_ABSENT: Final = object()


class Within(Generic[T]):
    """Awaited by a task, it runs in a context that is not the task's: for the task it is the same step all along.

    A line of the portal is one task for many calls, each with the context of its caller.
    """

    __slots__ = ("_context", "_work")

    def __init__(self, context: contextvars.Context, work: Callable[[], Awaitable[T]]) -> None:
        self._context = context
        self._work = work

    def __await__(self) -> Generator[Any, Any, T]:
        run = self._context.run
        steps: Any = run(lambda: self._work().__await__())
        step, given = steps.send, None
        while True:
            try:
                waiting = run(step, given)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]  # what the work returned
            try:
                given, step = (yield waiting), steps.send
            except BaseException as error:  # thrown in, a cancellation say: the work's to deal with
                given, step = error, steps.throw


class Loan:
    """The variables of a context, set where they differ, until they are given back."""

    __slots__ = ("_tokens",)

    def __init__(self, context: contextvars.Context) -> None:
        self._tokens = [
            (variable, variable.set(value))
            for variable, value in context.items()
            if variable.get(_ABSENT) is not value
        ]

    def give_back(self) -> None:
        """Set the variables back, in the thread that they were lent to; in another one there is nothing to set."""
        while self._tokens:
            variable, token = self._tokens.pop()
            with suppress(ValueError):
                variable.reset(token)
