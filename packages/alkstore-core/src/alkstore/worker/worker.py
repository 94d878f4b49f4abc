"""The worker: handlers for queues and outboxes, the scheduler, and the housekeeping, in one process."""

from collections.abc import Callable, Mapping
from typing import Final

from alkstore import names, numbers
from alkstore.errors import InvalidArgument, show
from alkstore.queue import Queue
from alkstore.stamps import Duration
from alkstore.stop import StopToken, check_stop
from alkstore.store import Store
from alkstore.worker.handler import Handler, Selector, compiled, handle
from alkstore.worker.idle import run_until_idle
from alkstore.worker.outcome import Counts
from alkstore.worker.running import Assignment, Plan, run

__all__ = ["Worker"]

Handlers = Mapping[str, Callable[..., object] | Handler]

NOTHING: Final[Handlers] = {}


class Worker:
    """Claims jobs, calls a handler for each, and gives them their outcomes, until it is told to stop.

    A handler is a function, async or plain (which runs in a thread). Its parameters get, by their annotations: the payload
    as that type (a dataclass, a msgspec Struct, a TypedDict, a pydantic model, or any JSON type; as decoded if it has
    none), the `Job`, the `JobHandle`, the `Store`, or a resource.

    A handler that returns has done its job. An `Exception` or a ``SystemExit``, or a `Retry` raised or returned, puts it
    back on its curve until its attempts are used up; a `Fail` lets it go dead at once. So does a payload that cannot be read as the
    handler's type, with an error that says why: the worker goes on. A handler may settle the job by the `JobHandle`, or in
    its own transaction by ``tx.ack``: then the worker leaves it at that.

    While a handler lives, its claim is renewed at a third of the window. A claim that is lost all the same cancels the
    handler, and the job may run again.

    Rows: Q-09, Q-11 to Q-14, Q-17, Q-24, Q-27, Q-28.
    """

    def __init__(
        self,
        store: Store,
        queues: Handlers = NOTHING,
        *,
        outboxes: Handlers = NOTHING,
        schedules: bool = False,
        resources: Mapping[type, object] | None = None,
        concurrency: int = 10,
        prefetch: int = 1,
        grace: Duration = 30,
        keep_dead: Duration | None = None,
    ) -> None:
        """Look at the handlers; nothing is opened or claimed yet, and the store may still be closed.

        Args:
            store: Where the jobs are. It is opened and closed by whoever made it.
            queues: A handler for each queue, by name.
            outboxes: A handler for each outbox, by name.
            schedules: Whether to fire schedules, when no other process does.
            resources: What handlers may ask for by a type: ``{SmtpPool: pool}``.
            concurrency: Jobs at once of each queue that does not say it with `handle`.
            prefetch: Jobs claimed for each of them: 1 claims none that cannot begin at once; more hides the
                round trips of claims and acks from short handlers, and gives back at a stop what has not begun.
            grace: Seconds that running handlers have at a stop, before they are cancelled and their jobs given back.
            keep_dead: Seconds after which dead jobs are deleted; they are kept for ever by default.

        Raises:
            InvalidArgument: A handler cannot be called, or a parameter of it can get nothing; an option is not of its
                domain; there is nothing to work on.
            InvalidName, ReservedName: Of a queue or an outbox.
        """
        if not isinstance(store, Store):
            raise InvalidArgument(f"a worker needs a Store, got {show(store)}")
        self._store = store
        if resources is not None and not isinstance(resources, Mapping):
            raise InvalidArgument(
                f"resources are given by their types, {{SmtpPool: pool}}; got {show(resources)}"
            )
        self._assignments = self._looked_at(queues, outboxes, dict(resources or {}), concurrency)
        if not self._assignments and not schedules:
            raise InvalidArgument("a worker needs a handler for a queue or an outbox, or schedules=True")
        self._plan = Plan(
            store,
            self._assignments,
            fires_schedules=schedules,
            prefetch=numbers.integer(prefetch, "prefetch", least=1),
            grace=max(numbers.duration(grace, "grace"), 0) / 1_000_000,
            keep_dead=None if keep_dead is None else max(numbers.duration(keep_dead, "keep_dead"), 0),
        )
        self._is_running = False

    @property
    def store(self) -> Store:
        """Where the jobs are."""
        return self._store

    def __repr__(self) -> str:
        return f"<Worker of {', '.join(each.title for each in self._assignments) or 'schedules'}>"

    async def run(self, stop: StopToken | None = None, *, signals: bool = True) -> Counts:
        """Work until told to stop, or until the store closes.

        Args:
            stop: Stops it, as the first signal does.
            signals: Whether SIGTERM and SIGINT stop it, in the main thread: at the first, nothing more is claimed, what
                has not begun is given back with its attempt restored, and what runs has ``grace`` seconds before it is
                cancelled and given back; at the second, at once.

        Returns:
            What became of the jobs.

        Raises:
            InvalidArgument: It runs already, or the store is not open.
            Closed: The store was closed before.
            Exception: What must not happen, a bug of an engine for one; the jobs in hand are given back first. While the
                database is away it waits and goes on.
            BaseException: What a handler has raised that is no `Exception`, but for ``SystemExit``.
        """
        if stop is not None:
            check_stop(stop)
        with _Once(self):
            return await run(self._plan, stop, signals=signals)

    async def run_until_idle(self, *, include_delayed: bool = False) -> Counts:
        """Work off what is ready, and what handlers enqueue meanwhile, and come back: for tests and batch jobs.

        Args:
            include_delayed: Wait for what becomes ready later too, retries included. A store on a
                `alkstore.testing.ManualClock` is not waited for: its clock is moved there.

        Returns:
            What became of the jobs. Jobs that others have claimed are not waited for.

        Raises:
            InvalidArgument: It runs already, or the store is not open.
            DatabaseError: The engine failed; the jobs in hand are given back first.
        """
        with _Once(self):
            return await run_until_idle(self._plan, include_delayed=include_delayed)

    def _looked_at(
        self, queues: Handlers, outboxes: Handlers, resources: Mapping[type, object], concurrency: int
    ) -> list[Assignment]:
        numbers.integer(concurrency, "concurrency", least=1)
        for type_, resource in resources.items():
            if not isinstance(type_, type):
                raise InvalidArgument(
                    f"resources are given by their types, {{SmtpPool: pool}}; got {show(type_)} for {show(resource)}"
                )
        found = [
            (f"queue {name!r}", self._store.queue(name), given) for name, given in _items(queues, "queues")
        ]
        for name, given in _items(outboxes, "outboxes"):
            found.append((f"outbox {name!r}", self._store.outbox(name)._queue, given))
        return [
            self._assignment(title, queue, given, resources, concurrency) for title, queue, given in found
        ]

    def _assignment(
        self,
        title: str,
        queue: Queue,
        given: Callable[..., object] | Handler,
        resources: Mapping[type, object],
        concurrency: int,
    ) -> Assignment:
        handler = handle(given)
        select: Selector = compiled(handler, f"handler of {title}", self._store, resources)
        return Assignment(title, queue, select, handler.concurrency or concurrency)


class _Once:
    """A worker runs once at a time: two runs would take each other's signals."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def __enter__(self) -> None:
        if self._worker._is_running:
            raise InvalidArgument("this worker runs already; make another one to run two")
        self._worker._is_running = True

    def __exit__(self, *_: object) -> None:
        self._worker._is_running = False


def _items(handlers: object, what: str) -> list[tuple[str, Callable[..., object] | Handler]]:
    if not isinstance(handlers, Mapping):
        raise InvalidArgument(f"{what} is a mapping of names to handlers, got {show(handlers)}")
    return [(names.shared(name, f"{what[:-1]} name"), given) for name, given in handlers.items()]
