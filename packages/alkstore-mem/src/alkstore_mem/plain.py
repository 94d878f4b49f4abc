"""Riding a plain thread's transaction: a SQLAlchemy session's, or Django's, on whatever database it is.

The session tells of its commit and of its rollbacks. Django tells of the commit alone, by `on_commit`, and forgets what it
was to tell when that is rolled back: a *guard* is what it forgets, one for each write, and takes its write along.
"""

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from alkstore.engine import Ack, NewEvent, NewJob, NewWake, OffsetSave
from alkstore.errors import Closed, DatabaseError, InvalidArgument, OffsetConflict, show
from alkstore.plain import AlchemySession, DjangoConnection, PlainConnection, PlainThread, library_of
from alkstore_mem.hold import Position
from alkstore_mem.join import JoinedTransaction, part_of, refuse_autocommit, told
from alkstore_mem.transaction import Mark

__all__ = ["begin_plain"]

T = TypeVar("T")

Make: TypeAlias = Callable[[type[JoinedTransaction]], JoinedTransaction]


async def begin_plain(plain: PlainConnection, store: object, make: Make) -> JoinedTransaction:
    """Give a store's part of the transaction that a plain thread is in; as `alkstore_mem.join.begin`.

    Raises:
        InvalidArgument: It is no session, and not Django's, or it cannot be joined, and why.
        DatabaseError: Its database failed.
    """
    library = library_of(plain.given)
    if isinstance(library, AlchemySession):
        return await _session_part(plain, library, store, make)
    if isinstance(library, DjangoConnection):
        await plain.thread.run(library.enter)
        return await _django_part(plain, store, make)
    raise InvalidArgument(
        "this engine joins, from a plain thread, a SQLAlchemy Session or Django's connection, "
        f"got {show(plain.given)}"
    )


async def _session_part(
    plain: PlainConnection, library: AlchemySession, store: object, make: Make
) -> JoinedTransaction:
    session: Any = plain.given
    thread = plain.thread  # not the session itself, which what waits for its end would keep alive

    def enter() -> None:
        try:
            library.enter()
            refuse_autocommit(session.connection())
        except BaseException:
            library.leave()
            raise

    with told():
        await thread.run(enter)

    def inside(function: Callable[[], T]) -> T:
        try:
            return thread.call(function)
        except Closed:  # the store was, with its loop: nobody is left to be disturbed
            return function()

    def made() -> JoinedTransaction:
        part = make(JoinedTransaction)
        part.inside = inside
        return part

    return part_of(session, session, store, made)


# ---------------------------------------------------------------- Django


_PARTS: Final[weakref.WeakKeyDictionary[Any, dict[object, "_DjangoTransaction"]]] = (
    weakref.WeakKeyDictionary()
)


async def _django_part(plain: PlainConnection, store: object, make: Make) -> JoinedTransaction:
    connection: Any = plain.given
    if not connection.in_atomic_block:
        raise InvalidArgument(
            "connection tells of no commit in manual transaction management; use transaction.atomic()"
        )
    parts = _PARTS.setdefault(connection, {})
    part = parts.get(store)
    if part is None or not part.is_open:
        made = make(_DjangoTransaction)
        assert isinstance(made, _DjangoTransaction)
        part = parts[store] = made
        part._forget = partial(parts.pop, store, None)
        await part.begin(plain)
    return part


class _DjangoTransaction(JoinedTransaction):
    """A store's part of Django's transaction."""

    _thread: PlainThread
    _root: object
    _guards: list[int]

    async def begin(self, plain: PlainConnection) -> None:
        """Belong to the transaction that Django is in, and end with it."""
        self._thread, self._guards = plain.thread, []
        self._given = weakref.ref(plain.given)
        self._root = self._library.root
        await self._guard()

    @property
    def _library(self) -> DjangoConnection:
        return DjangoConnection(self._given())

    @property
    def is_open(self) -> bool:
        return super().is_open and self._given() is not None and self._root is self._library.root

    async def _guard(self) -> None:
        """Have Django say what becomes of what is written next."""
        self._enter()
        number = self._guards[-1] + 1 if self._guards else 0
        guard = _Guard(self, number, self.mark())
        self._guards.append(number)
        await self._thread.run(partial(self._library.given.on_commit, guard))

    async def _hold(self, position: Position) -> None:
        try:
            await super()._hold(position)
        except DatabaseError:
            await self._thread.run(self._library.spoil)
            raise

    def landed(self) -> None:
        """Land with Django's commit, or tell why not: its own half has landed."""
        if self._is_open:
            try:
                self.check()
            except OffsetConflict:
                self.free()
                raise
            self.land()

    def lost(self, number: int, mark: Mark) -> None:
        """Take back what came after a savepoint, or all of it."""
        if not self._is_open or number not in self._guards:
            return
        del self._guards[self._guards.index(number) :]
        if self._guards:
            self.back_to(mark)
        else:
            self.free()

    # ------------------------------------------------------------ operations

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        await self._guard()
        return await super().insert_jobs(jobs)

    async def settle_jobs(self, settles: Sequence[Ack]) -> Sequence[int | None]:
        await self._guard()
        return await super().settle_jobs(settles)

    async def append_events(self, events: Sequence[NewEvent]) -> Sequence[int]:
        await self._guard()
        return await super().append_events(events)

    async def save_offset(self, stream: str, consumer: str, offset: int, expected: int | None) -> OffsetSave:
        await self._guard()
        return await super().save_offset(stream, consumer, offset, expected)

    async def notify(self, wakes: Sequence[NewWake]) -> None:
        await self._guard()
        await super().notify(wakes)


class _Guard:
    """What Django calls at its commit, and drops without a call when what stands before it is rolled back."""

    def __init__(self, part: _DjangoTransaction, number: int, mark: Mark) -> None:
        self._part = part
        self._number = number
        self._mark = mark
        self._was_called = False

    def __call__(self) -> None:
        self._was_called = True
        part = self._part
        if part._is_open:
            part._thread.call(part.landed)

    def __del__(self) -> None:
        # Whichever thread it is, and whatever that is doing: nothing is waited for here.
        if not self._was_called:
            self._part._thread.tell(partial(self._part.lost, self._number, self._mark))
