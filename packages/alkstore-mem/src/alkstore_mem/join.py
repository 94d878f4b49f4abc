"""Riding a SQLAlchemy session's transaction: what a store does in it is merged once the session has committed.

So an endpoint that writes with SQLAlchemy and alkstore in one transaction can be tested without a server, whatever
database its session has. SQLAlchemy is imported when something of its was given, and not before.
"""

import asyncio
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

from alkstore.errors import DatabaseError, InvalidArgument, show
from alkstore_mem.hold import Holds, Position
from alkstore_mem.queue import Queues
from alkstore_mem.state import State
from alkstore_mem.stream import Streams
from alkstore_mem.transaction import Mark, MemTransaction
from alkstore_mem.wake import Wakes

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session, SessionTransaction

__all__ = ["Inside", "JoinedTransaction", "begin", "part_of", "refuse_autocommit", "told"]

T = TypeVar("T")

LEAVE_LIMIT: Final = 5.0
"""Seconds that a session is given to end what it began to be joined."""


class Inside(Protocol):
    """Runs a function in the event loop, and gives what it gave."""

    def __call__(self, function: Callable[[], T], /) -> T: ...


def _at_once(function: Callable[[], T]) -> T:
    return function()


class JoinedTransaction(MemTransaction):
    """A store's part of a session's transaction. Make it by `begin`."""

    def __init__(
        self, state: State, queues: Queues, streams: Streams, wakes: Wakes, holds: Holds, label: str
    ) -> None:
        super().__init__(state, queues, streams, wakes, holds, label)
        self._given: Callable[[], object] = lambda: None
        self._forget: Callable[[], object] = lambda: None
        self._has_failed = False
        self.has_begun = False
        """Whether its session had to begin to be joined."""
        self.inside: Inside = _at_once
        """Runs what concerns this part where its store lives, when a session's thread is another one."""
        self.marks: dict[SessionTransaction, Mark] = {}
        """The session's open savepoints."""

    def ride(self, given: object, session: object) -> None:
        """Belong to a session, and end with it if it is dropped."""
        # Not the session itself: what waits for its end would keep it alive.
        self._given = weakref.ref(given)
        self._forget = weakref.finalize(session, self.abandon).detach

    @property
    def connection(self) -> object:
        return self._given()

    async def _hold(self, position: Position) -> None:
        try:
            await super()._hold(position)
        except DatabaseError:
            self._has_failed = True
            raise

    def check(self) -> None:
        if self._has_failed:  # one half would land without the other
            raise DatabaseError("joined transaction has failed before; roll the session back")
        if self._is_open:  # else the store was closed, and nothing of it is left
            super().check()

    async def commit(self) -> None:
        raise InvalidArgument("commit of a joined transaction is its owner's; call it on your session")

    async def rollback(self) -> None:
        """End what `begin` made begin, and no more: the rest is its owner's. For a store that is closed meanwhile."""
        if self._is_open:
            self._end()
            if self.has_begun:
                await _leave(cast("AsyncSession", self._given()))

    def _leave(self) -> None:
        self._forget()
        super()._leave()


async def begin(given: object, store: object, make: Callable[[], JoinedTransaction]) -> JoinedTransaction:
    """Have a session begin, and give a store's part of its transaction: the one that it has, or one of ``make``.
    Joined twice within one transaction it sees what it did the first time. Failed or cancelled, it leaves the session as it
    was.

    Raises:
        InvalidArgument: It is no session, or one that cannot be joined, and why.
        DatabaseError: Its database failed.
    """
    found = _session_in(given)
    if found is None:
        raise InvalidArgument(f"this engine joins a SQLAlchemy AsyncSession, got {show(given)}")
    has_begun = not found.in_transaction()
    try:
        with told():
            inner = (await found.connection()).sync_connection
        if inner is not None:
            refuse_autocommit(inner)
        part = part_of(found.sync_session, found, store, make)
    except BaseException:
        if has_begun:
            await _leave(found)
        raise
    part.has_begun = has_begun
    return part


async def _leave(given: "AsyncSession") -> None:
    """Have a session end what it began for us, to its end: cut short, it would go on beside whoever uses it next."""
    leaving = asyncio.ensure_future(_end_of(given))
    cancelled: asyncio.CancelledError | None = None
    while not leaving.done():
        try:
            await asyncio.wait((leaving,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def _end_of(given: "AsyncSession") -> None:
    # The first error is the one to tell; and its database may not answer any more.
    with suppress(Exception):
        async with asyncio.timeout(LEAVE_LIMIT):
            # A rollback of the session's would have its objects read anew, which is not ours to ask for.
            await given.run_sync(_close_transaction)


def _close_transaction(session: "Session") -> None:
    if (transaction := session.get_transaction()) is not None:
        transaction.close()


def part_of(
    session: "Session", given: object, store: object, make: Callable[[], JoinedTransaction]
) -> JoinedTransaction:
    """Give a store's part of the transaction that a session is in: the one that it has, or one of ``make``."""
    riders = _RIDERS.get(session)
    if riders is None:
        riders = _RIDERS[session] = _Riders(session)
    part = riders.parts.get(store)
    if part is not None:
        part.check()
    if part is None or not part.is_open:
        part = riders.parts[store] = make()
        part.ride(given, session)
        savepoint = session.get_nested_transaction()
        while savepoint is not None:
            part.marks[savepoint] = part.mark()
            savepoint = savepoint.parent
    return part


def _session_in(given: object) -> "AsyncSession | None":
    if not any(base.__module__.partition(".")[0] == "sqlalchemy" for base in type(given).__mro__):
        return None
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

    if isinstance(given, async_scoped_session):
        # Its session is often that of the task that asks, and the task that begins is not the caller's.
        raise InvalidArgument("session is a scoped one: join the session that it stands for, join(session())")
    return given if isinstance(given, AsyncSession) else None


@contextmanager
def told() -> Iterator[None]:
    """Raise what SQLAlchemy raises within the block as errors of ours."""
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    try:
        yield
    except DBAPIError as error:
        cause = error.orig and (error.orig.__cause__ or error.orig)
        raise DatabaseError(f"session's database failed: {cause}") from cause
    except SQLAlchemyError as error:
        raise InvalidArgument(f"session cannot be joined: {error}") from error


def refuse_autocommit(connection: "Connection") -> None:
    """See that there is a transaction that could be joined, as a real database would.

    Raises:
        InvalidArgument: There is none.
    """
    # The level of the whole engine has no public name.
    of_engine = getattr(connection.dialect, "_on_connect_isolation_level", None)
    if connection.get_execution_options().get("isolation_level", of_engine) == "AUTOCOMMIT":
        raise InvalidArgument(
            "session commits every statement by itself: give its engine another isolation level than AUTOCOMMIT"
        )


class _Riders:
    """Every store's part of one session's transaction, and what the session tells of it.

    The listeners stay for the session's life: SQLAlchemy does not like one to be removed while it is called.
    """

    def __init__(self, session: "Session") -> None:
        from sqlalchemy import event

        self.parts: dict[object, JoinedTransaction] = {}
        self._released: SessionTransaction | None = None
        listeners: dict[str, Callable[..., None]] = {
            "before_commit": self._before_commit,
            "after_commit": self._after_commit,
            "after_rollback": self._after_rollback,
            "after_transaction_create": self._after_create,
            "after_transaction_end": self._after_end,
        }
        for name, listener in listeners.items():
            event.listen(session, name, listener)

    def _before_commit(self, session: "Session") -> None:
        # The last moment in which the commit can still be refused.
        for part in self.parts.values():
            inside = part.inside if part.is_open else _at_once  # one that has failed is not open any more
            inside(part.check)

    def _after_commit(self, session: "Session") -> None:
        # Told of the release of a savepoint too.
        self._released = session.get_nested_transaction()
        if self._released is None:
            parts, self.parts = self.parts, {}
            for part in parts.values():
                if part.is_open:
                    part.inside(part.land)

    def _after_rollback(self, session: "Session") -> None:
        savepoint = session.get_nested_transaction()
        if savepoint is None:
            self._end()
        else:
            self._back_to(savepoint)

    def _after_create(self, session: "Session", transaction: "SessionTransaction") -> None:
        if transaction.nested:
            for part in self.parts.values():
                if part.is_open:
                    part.marks[transaction] = part.inside(part.mark)

    def _after_end(self, session: "Session", transaction: "SessionTransaction") -> None:
        if transaction.nested:
            if transaction is not self._released:
                self._back_to(transaction)
            self._released = None
            for part in self.parts.values():
                part.marks.pop(transaction, None)
        elif transaction.parent is None:  # else a flush, which has one to itself
            self._end()

    def _back_to(self, savepoint: "SessionTransaction") -> None:
        for part in self.parts.values():
            mark = part.marks.get(savepoint)
            if mark is not None and part.is_open:
                part.inside(partial(part.back_to, mark))

    def _end(self) -> None:
        parts, self.parts = self.parts, {}
        for part in parts.values():
            if part.is_open:
                part.inside(part.free)


_RIDERS: Final[weakref.WeakKeyDictionary["Session", _Riders]] = weakref.WeakKeyDictionary()
