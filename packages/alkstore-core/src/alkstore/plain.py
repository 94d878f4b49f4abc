"""A connection that blocks, as a plain thread hands it to an engine: `alkstore.sync.Store.join`.

An engine works in the event loop, and a caller's connection belongs to the caller's thread: Django's and SQLite's refuse
any other. But that thread waits for the call anyway, so the engine has it run what concerns the connection, and no
statement is written twice.
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeVar, cast

from alkstore.errors import DatabaseError, InvalidArgument

__all__ = [
    "CALLER",
    "AlchemySession",
    "DjangoConnection",
    "Library",
    "Loop",
    "PlainConnection",
    "PlainThread",
    "is_of",
    "library_of",
]

T = TypeVar("T")

CALLER: Final[ContextVar[Callable[[Callable[[], Any]], Awaitable[Any]] | None]] = ContextVar(
    "alkstore_caller", default=None
)
"""Runs a plain function on the thread that waits for the call at hand."""


class Loop(Protocol):
    """The way into the event loop from a plain thread."""

    def tell(self, function: Callable[[], object], /) -> bool: ...

    def call(self, work: Callable[[Any], Awaitable[T]], /) -> T: ...


class PlainThread:
    """The way from an event loop to the thread that waits for a call, and from such a thread into the loop."""

    __slots__ = ("_loop",)

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    async def run(self, function: Callable[[], T]) -> T:
        """Run a plain function on the thread that waits for the call at hand; what it raises is raised.

        A cancellation does not reach it: it runs on.

        Raises:
            InvalidArgument: No thread waits, because the transaction is used by the async surface.
            Closed: It does not wait any more.
        """
        caller = CALLER.get()
        if caller is None:
            raise InvalidArgument("a plain connection is joined and used by alkstore.sync alone")
        result: T = await caller(function)
        return result

    def call(self, function: Callable[[], T]) -> T:
        """From a plain thread: run a plain function in the event loop, and give what it gave.

        Raises:
            Closed: The store is closed.
        """

        async def work() -> T:
            return function()

        return self._loop.call(lambda _: work())

    def tell(self, function: Callable[[], object]) -> None:
        """From any thread, a finaliser's too: run a plain function in the event loop, before what is called later."""
        self._loop.tell(function)


class PlainConnection:
    """What a plain thread joins, and the way to that thread."""

    __slots__ = ("given", "thread")

    def __init__(self, given: object, thread: PlainThread) -> None:
        self.given: Final = _resolved(given)
        self.thread: Final = thread

    def __repr__(self) -> str:
        return repr(self.given)


def is_of(given: object, package: str) -> bool:
    """Whether something is of a library; asked without importing what the caller may not have."""
    return any(base.__module__.partition(".")[0] == package for base in type(given).__mro__)


def _resolved(given: object) -> object:
    """Give what a library's stand-in means on this thread: ``django.db.connection``, or SQLAlchemy's scoped session."""
    if _is_from(given, "django.utils.connection") and hasattr(
        given, "atomic_blocks"
    ):  # a cache's is no database's
        from django.db import connections

        return connections[cast(Any, given).alias]
    if _is_from(given, "sqlalchemy.orm.scoping"):
        return cast(Any, given)()
    return given


def _is_from(given: object, module: str) -> bool:
    return any(base.__module__.startswith(module) for base in type(given).__mro__)


# ---------------------------------------------------------------- what stands between a caller and his driver


class Library:
    """A driver's connection with nothing around it.

    All of it is called on the caller's thread, but `root`, which only looks.
    """

    def __init__(self, given: Any) -> None:
        self.given = given

    @property
    def root(self) -> object:
        """The caller's transaction, where his library has an object for it: it tells one from the next."""
        return None

    def enter(self) -> object:
        """Make it begin, if it begins by itself, and give the driver's connection.

        Raises:
            InvalidArgument: It cannot be joined, and why.
        """
        return self.given

    def leave(self) -> None:
        """Roll back what `enter` made begin."""

    def prepare(self) -> None:
        """Send what the library still owes the driver, before a statement of ours.

        Raises:
            DatabaseError: The library has given this transaction up.
        """

    def spoil(self) -> None:
        """Hear that a statement of ours has failed, and the driver's transaction with it."""


class _Alchemy(Library):
    """A SQLAlchemy `Connection`."""

    _has_begun = False

    @property
    def root(self) -> object:
        return self.given.get_transaction()

    def enter(self) -> object:
        # Otherwise its commit would find nothing to commit, and what was written behind its back would be lost.
        if not self.given.in_transaction():
            self.given.begin()
            self._has_begun = True
        return self.given.connection.driver_connection

    def leave(self) -> None:
        if self._has_begun:
            self.given.rollback()


class AlchemySession(_Alchemy):
    """A SQLAlchemy `Session`."""

    _nested: object = None

    def enter(self) -> object:
        self._has_begun = not self.given.in_transaction()
        self._nested = self.given.get_nested_transaction()
        return self.given.connection().connection.driver_connection

    def leave(self) -> None:
        # A rollback of the session's would have its objects read anew, which is not ours to ask for.
        if self._has_begun and (transaction := self.given.get_transaction()) is not None:
            transaction.close()

    def prepare(self) -> None:
        # A session sends the SAVEPOINT of begin_nested() when it is next asked for its connection, and not before.
        if self._nested is not (nested := self.given.get_nested_transaction()):
            self.given.connection()
            self._nested = nested


class DjangoConnection(Library):
    """Django's connection, in `transaction.atomic()` or in a transaction that its owner manages."""

    @property
    def root(self) -> object:
        blocks = self.given.atomic_blocks
        return blocks[0] if blocks else None

    def enter(self) -> object:
        if self.given.get_autocommit():
            raise InvalidArgument(
                "connection is in no transaction and commits every statement by itself; "
                "join it within 'with transaction.atomic():'"
            )
        self.prepare()
        return self.given.connection

    def prepare(self) -> None:
        if self.given.needs_rollback:
            raise DatabaseError("connection's transaction has failed before; leave its atomic() block")

    def spoil(self) -> None:
        # Or Django would commit a transaction that the server has given up, and take the silence for success.
        if self.given.in_atomic_block:
            self.given.needs_rollback = True


def library_of(given: object) -> Library | None:
    """Give what is around a caller's driver; None if it is SQLAlchemy's or Django's and no connection, or asynchronous."""
    if is_of(given, "sqlalchemy"):
        if _is_from(given, "sqlalchemy.ext.asyncio") or not hasattr(given, "get_nested_transaction"):
            return None
        return _Alchemy(given) if hasattr(given, "exec_driver_sql") else AlchemySession(given)
    if is_of(given, "django"):
        return DjangoConnection(given) if hasattr(given, "atomic_blocks") else None
    return Library(given)
