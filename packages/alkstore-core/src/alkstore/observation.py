"""The observers of one store, kept from doing any harm to what they observe."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

from alkstore.errors import InvalidArgument, show
from alkstore.observing import Carrier, Destination, Fact, JobHandled, Observer
from alkstore.values import Job

__all__ = ["Handling", "Observation", "Sending", "check_observers"]

LOGGER: Final = logging.getLogger("alkstore.observing")

NOTHING: Final[Mapping[str, str]] = {}

HARMLESS: Final = (Exception, asyncio.CancelledError)
"""What an observer raises. Nobody can cancel it, for it does not await: a cancellation is one that it found elsewhere."""

T = TypeVar("T")


def check_observers(observers: object) -> tuple[Observer, ...]:
    """Take the observers that a store is given.

    Raises:
        InvalidArgument: One of them cannot be called, or there is no list of them.
    """
    if not isinstance(observers, Iterable) or isinstance(observers, (str, bytes)):
        raise InvalidArgument(
            f"observers must be a list of functions that take a fact, got {show(observers)}"
        )
    found = tuple(observers)
    for each in found:
        if not callable(each):
            raise InvalidArgument(f"an observer must be a function that takes a fact, got {show(each)}")
    return found


class Observation:
    """Tells the observers, and lets the carriers be around. Nothing that they raise gets out."""

    def __init__(self, observers: tuple[Observer, ...]) -> None:
        self.observers: Final = observers
        self.carriers: Final = tuple(each for each in observers if isinstance(each, Carrier))
        self._faulty: list[object] = []

    def tell(self, fact: Fact) -> None:
        """Tell everybody."""
        for observer in self.observers:
            try:
                observer(fact)
            except HARMLESS as error:  # whatever it is, it is not to end what was observed
                self.note(observer, error)

    def sending(self, destination: Destination, count: int) -> "Sending":
        """Let the carriers be around a call that sends; what goes along is in its ``headers``."""
        return Sending(self, destination, count)

    def handling(self, job: Job) -> "Handling":
        """Let the carriers be around a handler from now on, until it is told to have ended."""
        return Handling(self, job)

    def note(self, observer: object, error: BaseException) -> None:
        """Log what an observer raised; only once, for it may do so at every job."""
        if not any(observer is each for each in self._faulty):
            self._faulty.append(observer)
            LOGGER.error(
                "observer %s failed; what it observed is unharmed (this is told once)",
                show(observer),
                exc_info=error,
                extra={"alkstore_observer": show(observer)},
            )


class _Around:
    """The contexts of all carriers, one inside the other; one that fails is left out."""

    __slots__ = ("_entered", "_observation")

    def __init__(self, observation: Observation) -> None:
        self._observation = observation
        self._entered: list[tuple[Carrier, AbstractContextManager[object]]] = []

    def _enter(self, carrier: Carrier, make: Callable[[], AbstractContextManager[T]], default: T) -> T:
        try:
            context = make()
            value = context.__enter__()
        except HARMLESS as error:
            self._observation.note(carrier, error)
            return default
        self._entered.append((carrier, context))
        return value

    def _leave(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        while self._entered:
            carrier, context = self._entered.pop()
            try:
                context.__exit__(exc_type, exc, traceback)
            except HARMLESS as error:
                if error is not exc:  # a generator passes on what it was left with
                    self._observation.note(carrier, error)


class Sending(_Around):
    """``with`` it, a call that sends has the carriers around it."""

    __slots__ = ("_count", "_destination", "headers")

    def __init__(self, observation: Observation, destination: Destination, count: int) -> None:
        super().__init__(observation)
        self._destination = destination
        self._count = count
        self.headers: dict[str, str] = {}

    def __enter__(self) -> Self:
        headers = self.headers
        for carrier in self._observation.carriers:
            headers.update(
                self._enter(carrier, partial(carrier.sending, self._destination, self._count), NOTHING)
            )
        return self

    def sent(self, ids: Sequence[int]) -> None:
        for carrier, _ in self._entered:
            try:
                carrier.sent(ids)
            except HARMLESS as error:
                self._observation.note(carrier, error)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave(exc_type, exc, traceback)


class Handling(_Around):
    """One handler of one job: begun when this is made, over with `end`."""

    __slots__ = ("_began", "_job", "error")

    def __init__(self, observation: Observation, job: Job) -> None:
        super().__init__(observation)
        self._job = job
        for carrier in observation.carriers:
            self._enter(carrier, partial(carrier.handling, job), None)
        self._began: float | None = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end(exc)

    def end(self, error: BaseException | None) -> None:
        """Let the carriers leave, and tell. Nothing happens the second time."""
        if self._began is None:
            return
        seconds, self._began = time.perf_counter() - self._began, None
        destination = Destination.of_queue(self._job.queue)
        self._observation.tell(
            JobHandled(destination=destination, job=self._job, seconds=seconds, error=error)
        )
        self._leave(
            None if error is None else type(error), error, None if error is None else error.__traceback__
        )
