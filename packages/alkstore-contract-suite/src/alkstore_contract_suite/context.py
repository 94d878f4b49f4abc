"""What a row's function gets: stores, time, randomness, and assertions that name the promise."""

import asyncio
import random
from collections.abc import Awaitable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Final, NoReturn, Self, TypeVar

from alkstore import Store
from alkstore_contract_suite.child import hold
from alkstore_contract_suite.children import Child, Children
from alkstore_contract_suite.claims import UNSAID, Claims
from alkstore_contract_suite.factory import Crash, StoreFactory
from alkstore_contract_suite.failure import ContractFailure, Inconclusive, NotRaced, shown
from alkstore_contract_suite.processes import ProcessDied, Processes
from alkstore_contract_suite.racing import Arm, Worker, overlapped, race, race_workers

__all__ = ["MICRO", "Context", "Refusal"]

T = TypeVar("T")

MICRO: Final = 1e-6
"""One microsecond, in seconds: the grain of every instant."""

SOON: Final = 5.0
"""Seconds of real time after which something that should come at once has not come."""


KILLS: Final = 5
"""Processes that are killed in the case that does nothing else; the long run kills more."""

PASSING: Final = (ContractFailure, Inconclusive, NotImplementedError)


class Context:
    """One case's view of the engine under test.

    Attributes:
        mode: The mode of this case.
        kills: How many processes to kill, in the row that does nothing else.
        random: Randomness that the run's seed and the case's name decide.
        factory: The author's factory, for rows about faults, SQL and schemas.
        claims: What the author's column says of the engine.
        timeline: What happened so far, in order, for the report.
        choices: Which of several allowed results the engine took, by promise.
        failures: Every promise that was not kept, also those whose error the engine swallowed in a callback.
        missing: What background tasks met that is not implemented; it ends the case.
        deaths: Child processes that ended without having been told to; that ends the case too.
        unraced: Races in which nothing overlapped; without a failure they are what became of the case.
        leaks: What child processes left behind.
    """

    def __init__(
        self,
        factory: StoreFactory,
        *,
        mode: str,
        random: random.Random,
        soon: float = SOON,
        kills: int = KILLS,
        processes: Processes | None = None,
        claims: Claims = UNSAID,
    ) -> None:
        self.factory = factory
        self.claims = claims
        self.mode = mode
        self.kills = kills
        self.random = random
        self.timeline: list[str] = []
        self.choices: dict[str, str] = {}
        self.failures: list[ContractFailure] = []
        self.missing: list[NotImplementedError] = []
        self.deaths: list[ProcessDied] = []
        self.unraced: list[NotRaced] = []
        self.leaks: list[str] = []
        self._body: asyncio.Task[Any] | None = None
        self._soon = soon
        self._names = 0
        self._open: dict[str, Store] = {}
        self._instance = "a"
        self._tasks: list[asyncio.Task[Any]] = []
        self._processes = processes
        self._children: Children | None = None

    async def begin(self, *, bare: bool = False) -> None:
        """Open the first store, unless the row wants storage that nobody has opened; this task is the case's own."""
        self._body = asyncio.current_task()
        if bare:
            await self.factory.blank()
        else:
            _ = await self.open("a")

    # ---------------------------------------------------------------- stores

    @property
    def store(self) -> Store:
        """The store through which the case goes on: "a" at first, the one that `turn` gave last later on."""
        return self._open[self._instance]

    async def open(self, instance: str = "b") -> Store:
        """Give the store of this instance, opened at the first call: own connections, same storage.

        Engines without ``multi_process`` give a store with storage of its own, so a row that wants shared storage
        needs that capability.
        """
        if instance not in self._open:
            self.note(f"open {instance}")
            self._open[instance] = await self.factory.open(instance)
        return self._open[instance]

    async def turn(self) -> Store:
        """Go on as the case's mode says, and give the store to go on with.

        plain, boundary, concurrent: the same store. second: the other one of two stores. reopen: the store closed and
        opened again. crash-drop, crash-kill: a new store after the old one died.
        """
        if self.mode == "second":
            self._instance = "b" if self._instance == "a" else "a"
            _ = await self.open(self._instance)
        elif self.mode == "reopen":
            self._open[self._instance] = await self.factory.reopen(self.store)
        elif self.mode in ("crash-drop", "crash-kill"):
            await self.factory.crash(self.store, Crash.DROP if self.mode == "crash-drop" else Crash.KILL)
            self._open[self._instance] = await self.factory.open(self._instance)
        else:
            return self.store
        self.note(f"turn {self.mode}, on with {self._instance}")
        return self.store

    async def process(self, **options: Any) -> Child:
        """Give a child process with a store of its own on the same storage and clock; it ends with the case at last."""
        return (await self.processes(1, **options))[0]

    async def processes(self, count: int, **options: Any) -> list[Child]:
        """Give so many of them, whose stores were opened all at once, with options that every engine has."""
        self.note(f"{count} more processes")
        if self._children is None:
            if self._processes is None:
                raise RuntimeError("this run has no fork server; rows with processes are of mode 'process'")
            self._children = Children(self._processes, self.factory, self.start, self._died)
        return await self._children.fork(count, options)

    def _died(self, death: ProcessDied) -> None:
        # Whoever waits for what the process was to do would wait in vain, and the report would name the wrong thing.
        self.deaths.append(death)
        if self._body is not None:
            self._body.cancel()

    # ---------------------------------------------------------------- time, names, background

    async def advance(self, seconds: float) -> None:
        """Move the storage's clock; returns when everything that fell due has been looked at."""
        self.note(f"advance {seconds:g} s")
        await self.factory.advance(seconds)
        if self._children is not None:
            await self._children.look()

    async def now(self) -> datetime:
        """Give the storage's now: aware, UTC, to the microsecond."""
        return await self.factory.now()

    async def settle(self) -> None:
        """Return when everything that can be delivered at this instant has been delivered."""
        await self.factory.settle()
        if self._children is not None:
            await self._children.settle()

    async def hold(self, seconds: float) -> None:
        """Let real time pass, at most 3 ms, for stresses that need something held open."""
        await hold(seconds)

    def name(self, stem: str = "name") -> str:
        """Give a legal shared name that this case has not used yet."""
        self._names += 1
        return f"{stem}-{self._names}"

    def start(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run in the background; cancelled and awaited at the end of the case."""
        task = asyncio.get_running_loop().create_task(self._watched(coroutine))
        # A task that is cancelled before its first step would leave the coroutine unawaited.
        task.add_done_callback(lambda _: coroutine.close())
        self._tasks.append(task)
        return task

    async def _watched(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return await coroutine
        except NotImplementedError as error:
            # Whoever waits for what this task was to do would wait in vain, and the report would name the wrong thing.
            self.missing.append(error)
            if self._body is not None:
                self._body.cancel()
            raise

    async def race(self, *coroutines: Coroutine[Any, Any, T]) -> list[T]:
        """Run all at once, none continuing before all have begun; gives the results in order.

        If no two of them overlapped the case cannot pass: unless it fails it is INCONCLUSIVE at its end.
        """
        self.note(f"race of {len(coroutines)}")
        arms = [Arm() for _ in coroutines]
        results = await race(coroutines, arms)
        try:
            self.note(overlapped(arms))
        except NotRaced as error:
            # Not at once: what is wrong with the results is worse.
            self.unraced.append(error)
        return results

    async def race_workers(self, workers: Sequence[Worker[T]]) -> list[T]:
        """Race workers; each gets ``step``, to await between its operations. Too little overlap is INCONCLUSIVE."""
        self.note(f"race of {len(workers)} workers")
        return await race_workers(workers)

    def skip_inconclusive(self, reason: str) -> NoReturn:
        """End the case: it cannot show here what it is there to show."""
        raise Inconclusive(reason)

    def note(self, text: str) -> None:
        """Add to the timeline that a failure shows."""
        self.timeline.append(text)

    # ---------------------------------------------------------------- assertions

    def expect(self, observed: object, expected: object, promise: str) -> None:
        """Hold the engine to an equal value."""
        if observed != expected:
            self.fail(promise, shown(expected), shown(observed))
        self.note(f"kept: {promise}")

    def that(self, condition: object, promise: str, *, observed: object = None) -> None:
        """Hold the engine to a condition; ``observed`` is what the report shows if it is false."""
        if not condition:
            self.fail(
                promise,
                "so it is",
                "it is not so" if observed is None else shown(observed),
            )
        self.note(f"kept: {promise}")

    def among(
        self,
        observed: object,
        allowed: Mapping[str, object] | Collection[object],
        promise: str,
    ) -> str:
        """Hold the engine to one of several allowed values; gives, and reports, the label of the one it took."""
        labelled = allowed if isinstance(allowed, Mapping) else {shown(value): value for value in allowed}
        taken = [label for label, value in labelled.items() if observed == value]
        if not taken:
            self.fail(promise, f"one of {', '.join(labelled)}", shown(observed))
        self.choices[promise] = taken[0]
        self.note(f"kept: {promise} ({taken[0]})")
        return taken[0]

    def refuses(self, error: type[Exception] | tuple[type[Exception], ...], promise: str) -> "Refusal":
        """Hold the block of an ``async with`` to a typed error; the value has it as ``error`` afterwards."""
        return Refusal(self, error, promise)

    def refuses_sync(self, error: type[Exception] | tuple[type[Exception], ...], promise: str) -> "Refusal":
        """Hold the block of a plain ``with`` to a typed error; the value has it as ``error`` afterwards."""
        return Refusal(self, error, promise)

    async def soon(self, awaitable: Awaitable[T], promise: str) -> T:
        """Hold an awaitable to a bounded wait, and give its result."""
        limit = asyncio.timeout(self._soon)
        try:
            async with limit:
                result = await awaitable
        except TimeoutError:
            if not limit.expired():
                raise
            self.fail(promise, "at once", f"nothing within {self._soon:g} s")
        self.note(f"kept: {promise}")
        return result

    async def idle(self, task: "asyncio.Future[Any]", promise: str) -> None:
        """Hold a task to waiting, once everything that can be delivered has been."""
        await self.settle()
        self.still_waiting(task, promise)

    def still_waiting(self, task: "asyncio.Future[Any]", promise: str) -> None:
        """Hold a task to waiting; await `settle` first."""
        if task.done():
            if not task.cancelled() and isinstance(task.exception(), NotImplementedError):
                task.result()
            self.fail(promise, "still waiting", _outcome(task))
        self.note(f"kept: {promise}")

    def fail(self, promise: str, expected: str, observed: str) -> NoReturn:
        """End the case because the promise was not kept, where no other assertion fits."""
        failure = ContractFailure(promise, expected, observed)
        self.failures.append(failure)
        raise failure

    # ---------------------------------------------------------------- the end

    async def finish(self) -> None:
        """End the background tasks, then every child process, then close every store.

        A task that had failed already is left alone: if nobody looked at its error, the loop tells of it.
        """
        self._body = None
        # Cancelling a task that has failed would count as having looked.
        going = [task for task in reversed(self._tasks) if not task.done()]
        for task in going:
            task.cancel()
        for task in going:
            with suppress(asyncio.CancelledError, Exception):
                await task
        self._tasks.clear()
        if self._children is not None:
            self.leaks.extend(await self._children.finish())
        for store in reversed(self._open.values()):
            await store.aclose()
        self._open.clear()


class Refusal:
    """A block that must raise; afterwards ``error`` is what it raised."""

    def __init__(
        self,
        context: Context,
        expected: type[Exception] | tuple[type[Exception], ...],
        promise: str,
    ) -> None:
        self._context = context
        self._expected = expected if isinstance(expected, tuple) else (expected,)
        self._promise = promise
        self._error: Exception | None = None

    @property
    def error(self) -> Any:
        """The error that the block raised, of one of the expected types."""
        if self._error is None:
            raise RuntimeError("the block has not ended yet")
        return self._error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        expected = " or ".join(each.__name__ for each in self._expected)
        if isinstance(error, self._expected):
            self._error = error
            self._context.note(f"kept: {self._promise}")
            return True
        # A cancellation, another promise's failure and an engine's missing method stay what they are.
        if error is None or (isinstance(error, Exception) and not isinstance(error, PASSING)):
            self._context.fail(self._promise, expected, "no error" if error is None else shown(error))
        return False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return self.__exit__(kind, error, traceback)


def _outcome(task: "asyncio.Future[Any]") -> str:
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return shown(error) if error is not None else f"done with {shown(task.result())}"
