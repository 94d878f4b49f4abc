"""The store for plain threads: the async one, opened in a loop of its own, once in each process that uses it."""

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from alkstore import store
from alkstore.beginning import TxContext, where_called
from alkstore.errors import Closed, InvalidArgument
from alkstore.opening import open as open_async
from alkstore.outbox import Outbox as AsyncOutbox
from alkstore.plain import PlainConnection, PlainThread
from alkstore.queue import Queue as AsyncQueue
from alkstore.stamps import Duration
from alkstore.stream import Stream as AsyncStream
from alkstore.sync.lock import Lock
from alkstore.sync.portal import Portal
from alkstore.sync.proxy import Call, Changed, Context, Proxy, inner
from alkstore.sync.queue import Outbox, Queue
from alkstore.sync.stream import Stream, WakeReceiver
from alkstore.sync.tx import Tx
from alkstore.transaction import Tx as AsyncTx
from alkstore.values import Schedule

__all__ = ["Store", "open"]

A = TypeVar("A")

_inherited: Final[list[object]] = []
"""What a forked process got from its parent. It is kept: to collect it would close the parent's connections."""


def open(url: str, **options: object) -> "Store":
    """Make a store for plain threads; arguments and errors as `alkstore.open`.

    ``with alkstore.sync.open(url) as store`` opens and closes it. Without the block the first call opens it, and the end
    of the process closes it; so a module may hold one, and a process that is forked later opens its own.

    Any number of threads may use it at once. Cost: about 0.1 ms a call over the async one.
    """
    return Store(lambda: open_async(url, **options))


class _Lazy(Proxy[A]):
    """A handle that is only a name: in each process it finds that process's store."""

    __slots__ = ("_make", "_store")

    def __init__(self, owner: "Store", make: Callable[[store.Store], A]) -> None:
        self._store = owner
        self._make = make

    def _reach(self) -> tuple[Portal, A]:
        portal, opened = self._store._reach()
        return portal, self._make(opened)


class _LazyQueue(_Lazy[AsyncQueue], Queue):
    __slots__ = ()


class _LazyStream(_Lazy[AsyncStream], Stream):
    __slots__ = ()


class _LazyOutbox(_Lazy[AsyncOutbox], Outbox):
    __slots__ = ()


class Store(Proxy[store.Store]):
    """Queues, streams, wakes, locks, schedules, outboxes and transactions, as `alkstore.Store`, by plain calls.

    What belongs to a task there belongs to a thread here: a transaction and its use, the refusal of a write beside it.
    """

    __slots__ = ("_is_closed", "_make", "_turn")

    def __init__(self, make: Callable[[], store.Store]) -> None:
        """Prepare a store over one that ``make`` makes, in each process anew; nothing is opened yet.

        Raises:
            InvalidArgument: As ``make`` does: it is tried once, now.
        """
        self._make = make
        self._turn = threading.Lock()
        self._is_closed = False
        self._portal = None  # type: ignore[assignment]  # until it is opened
        self._target = make()
        _stores.add(self)

    # ------------------------------------------------------------ life

    def __enter__(self) -> Self:
        self._reach()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<sync {self._target!r}>"

    def close(self) -> None:
        """End every wait, let what was handed to the storage finish, and free everything. Closing twice is fine."""
        with self._turn:
            self._is_closed = True
            portal, opened = self._portal, self._target
            if portal is None or portal.pid != os.getpid():
                return
            self._portal = None  # type: ignore[assignment]
        try:
            portal.call(lambda _: opened.aclose())
        finally:
            portal.close()
            _opened.discard(self)

    def _reach(self) -> tuple[Portal, store.Store]:
        with self._turn:
            if self._is_closed:
                raise Closed("store")
            if self._portal is not None and self._portal.pid != os.getpid():
                _inherited.append((self._portal, self._target))
                self._portal = None  # type: ignore[assignment]
                self._target = self._make()
            if self._portal is None:
                self._open()
            return self._portal, self._target

    def _open(self) -> None:
        portal, opened = Portal(), self._target
        try:
            _ = portal.call(lambda _: opened.__aenter__())
        except BaseException:
            portal.close()
            raise
        self._portal = portal
        _opened.add(self)

    # ------------------------------------------------------------ areas

    def queue(
        self,
        name: str,
        *,
        visibility_timeout: Duration | None = None,
        max_attempts: int | None = None,
        base_delay: Duration | None = None,
        expires: Duration | None = None,
    ) -> Queue:
        """Give a handle on a queue; as `alkstore.Store.queue`."""

        def make(opened: store.Store) -> AsyncQueue:
            return opened.queue(
                name,
                visibility_timeout=visibility_timeout,
                max_attempts=max_attempts,
                base_delay=base_delay,
                expires=expires,
            )

        make(self._target)  # what is wrong with it is told here, and not at its first use
        return _LazyQueue(self, make)

    def stream(self, name: str) -> Stream:
        """Give a handle on a stream; as `alkstore.Store.stream`."""
        self._target.stream(name)
        return _LazyStream(self, lambda opened: opened.stream(name))

    def outbox(self, name: str) -> Outbox:
        """Give a handle on an outbox; as `alkstore.Store.outbox`."""
        self._target.outbox(name)
        return _LazyOutbox(self, lambda opened: opened.outbox(name))

    queues = Call(store.Store.queues)
    streams = Call(store.Store.streams)
    outboxes = Call(store.Store.outboxes)
    locks = Call(store.Store.locks)
    schedules = Call(store.Store.schedules)
    notify = Call(store.Store.notify)
    unschedule = Call(store.Store.unschedule)
    tick_schedules = Call(store.Store.tick_schedules)
    run_schedules = Call(store.Store.run_schedules)
    supervise_schedules = Call(store.Store.supervise_schedules)
    try_lock = Changed(
        store.Store.try_lock, lambda portal, taken: None if taken is None else Lock(portal, taken)
    )

    def listen(self, channel: str) -> Context[WakeReceiver]:
        """Open a receiver: ``with store.listen("orders") as receiver``; as `alkstore.Store.listen`."""
        portal, opened = self._reach()
        return Context(portal, lambda: opened.listen(channel), WakeReceiver)

    def lock(self, name: str, ttl: Duration = 30, *, timeout: Duration | None = None) -> Context[Lock]:
        """Wait for a named lock: ``with store.lock("report") as lock`` renews it while the block runs.

        A thread cannot be interrupted: a lost lock ends the alkstore call that the block is in, if it is in one, and
        leaving the block raises `LockLost`. As `alkstore.Store.lock` otherwise.
        """
        portal, opened = self._reach()
        return Context(portal, lambda: opened.lock(name, ttl, timeout=timeout), Lock)

    def schedule(
        self,
        name: str,
        spec: str,
        queue: Queue | str,
        payload: object,
        *,
        anchor: datetime | None = None,
        priority: int = 0,
        visibility_timeout: Duration | None = None,
        max_attempts: int | None = None,
        base_delay: Duration | None = None,
        expires: Duration | None = None,
    ) -> Schedule:
        """Write a schedule by name; as `alkstore.Store.schedule`."""
        stamps: Mapping[str, Any] = {
            "visibility_timeout": visibility_timeout,
            "max_attempts": max_attempts,
            "base_delay": base_delay,
            "expires": expires,
        }
        return self._call(
            lambda opened, _: opened.schedule(
                name, spec, inner(queue), payload, anchor=anchor, priority=priority, **stamps
            )
        )

    def begin_tx(self) -> Context[Tx]:
        """Begin a transaction: ``with store.begin_tx() as tx`` commits on a clean exit, else rolls back."""
        portal, opened = self._reach()
        begun = where_called(1)
        return Context(portal, lambda: TxContext(opened, begun, AsyncTx), Tx)

    def join(self, connection: object) -> Context[Tx]:
        """Ride the transaction that is open on the caller's connection: ``with store.join(connection) as tx``.

        Leaving the block commits nothing; the caller's commit does. Every statement runs on this thread.

        Args:
            connection: One that blocks: a psycopg ``Connection`` or a ``sqlite3.Connection``, ``django.db.connection``
                within ``transaction.atomic()``, a SQLAlchemy ``Connection`` or ``Session`` on those drivers.

        Raises:
            InvalidArgument: It cannot be joined, and why (on entering).

        Rows: TX-10, TX-11. Cost: 0.1 ms a statement over the statement's own.
        """
        portal, opened = self._reach()
        begun = where_called(1)
        if connection is None:
            raise InvalidArgument(
                "join takes the connection or session whose transaction is to be joined, got None"
            )
        plain = PlainConnection(connection, PlainThread(portal))
        return Context(portal, lambda: TxContext(opened, begun, AsyncTx, plain), Tx)


_stores: "Final[weakref.WeakSet[Store]]" = weakref.WeakSet()
_opened: "Final[set[Store]]" = set()
"""What is to be closed at the end of the process: those that the caller has dropped too, whose loops run on."""


@atexit.register
def _close_all() -> None:
    for each in list(_opened):
        each.close()


def _renew_locks() -> None:
    # A thread that held one at the fork is not there to let it go.
    for each in list(_stores):
        each._turn = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
