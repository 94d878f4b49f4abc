"""Transactions: a connection of the pool is theirs alone until they end.

State model. *Open*: operations ride it. *Over*: none does any more, because it was committed, rolled back or abandoned,
because the caller's own SQL ended it, or because a statement failed, which PostgreSQL lets nothing follow. *Landing*: over,
and its commit has begun, which alone frees it then. *Freed*: its connection is on its way back to the pool, in a task that no
cancellation of a caller reaches.
"""

import asyncio
from collections.abc import Awaitable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import asyncpg
from asyncpg.transaction import Transaction

from alkstore.engine import Ack, EventRecord, JobFilter, JobRecord, NewEvent, NewJob, NewWake, OffsetSave
from alkstore.errors import Closed, DatabaseError, InvalidArgument
from alkstore.statements import load
from alkstore_pg import queue as _queue
from alkstore_pg import stream as _stream
from alkstore_pg import wake as _wake
from alkstore_pg.errors import DRIVER, translate, was_lost
from alkstore_pg.link import REPEATS, Connection, DriverSession, Operation
from alkstore_pg.loan import Loan
from alkstore_pg.session import READABLE
from alkstore_pg.stream import StreamKey
from alkstore_pg.wake import Woken

if TYPE_CHECKING:
    from alkstore_pg.engine import PgEngine

__all__ = ["Operations", "PgTransaction", "is_in_transaction"]

T = TypeVar("T")

SQL: Final = load("alkstore_pg", "transaction")


class Operations:
    """What can be done within a transaction, whoever's it is and whatever driver it has."""

    def __init__(self, engine: "PgEngine", label: str) -> None:
        self.label = label
        self._engine = engine
        self._floors: dict[int, int] = {}
        self._isolation: str | None = None

    @property
    def is_open(self) -> bool:
        raise NotImplementedError

    async def _do(self, operation: Operation[T]) -> T:
        raise NotImplementedError

    def _texts(self, woken: Sequence[Woken]) -> Sequence[str]:
        """Give what the server is to tell others once this has landed."""
        raise NotImplementedError

    async def _made(self, names: Collection[str]) -> Mapping[str, StreamKey]:
        return await self._engine._streams.made(names)

    async def _found(self, stream: str) -> StreamKey | None:
        return await self._engine._streams.find(stream)

    def _enter(self) -> None:
        if not self.is_open:
            raise Closed("transaction")

    # ------------------------------------------------------------ jobs

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        self._enter()
        texts = self._texts(_queue.woken_by_jobs(jobs, self._engine.clock.now))
        return await self._do(lambda on: _queue.insert(on, jobs, texts))

    async def find_jobs(self, queue: str, where: JobFilter) -> Sequence[JobRecord]:
        return await self._do(lambda on: _queue.find(on, queue, where))

    async def settle_jobs(self, settles: Sequence[Ack]) -> Sequence[int | None]:
        return await self._do(lambda on: _queue.settle(on, settles, (), self._engine._patience))

    # ------------------------------------------------------------ events and positions

    async def append_events(self, events: Sequence[NewEvent]) -> Sequence[int]:
        self._enter()
        # Made outside of this transaction: others would wait for it to make the same.
        names = _stream.names_in(events)
        keys = await self._made(names)
        texts = self._texts(_stream.woken_by(names))
        patience = self._engine._patience
        return await self._do(lambda on: _stream.append(on, events, keys, texts, patience, self._floors))

    async def read_events(self, stream: str, after: int, limit: int) -> Sequence[EventRecord]:
        self._enter()
        await self._check_isolation()
        key = await self._found(stream)
        if key is None:
            return ()
        page = await self._do(lambda on: _stream.read(on, stream, key, after, limit, own=True))
        return page.events

    async def read_offset(self, stream: str, consumer: str, *, hold: bool) -> int:
        self._enter()
        if hold:
            await self._check_isolation()
            made = (await self._made({stream}))[stream]
            return await self._do(
                lambda on: _stream.hold_position(on, made, consumer, self._engine._patience)
            )
        key = await self._found(stream)
        return 0 if key is None else await self._do(lambda on: _stream.position(on, key, consumer))

    async def save_offset(self, stream: str, consumer: str, offset: int, expected: int | None) -> OffsetSave:
        self._enter()
        key = (await self._made({stream}))[stream]
        return await self._do(
            lambda on: _stream.save(on, key, consumer, offset, expected, self._engine._patience)
        )

    async def _check_isolation(self) -> None:
        """See that a stream can be read here: asked before that, for a statement that fails would abort the transaction."""
        if self._isolation is None:
            self._isolation = await self._do(_stream.isolation)
        if self._isolation not in READABLE:
            raise InvalidArgument(
                "a stream is read in a transaction that is READ COMMITTED, "
                f"this one is {self._isolation.upper()}: begin it with another isolation level"
            )

    # ------------------------------------------------------------ wakes

    async def notify(self, wakes: Sequence[NewWake]) -> None:
        await self._do(lambda on: _wake.notify(on, wakes))


class PgTransaction(Operations):
    """A transaction of the store's own. Make it by `begin`."""

    def __init__(self, engine: "PgEngine", label: str, session: DriverSession) -> None:
        super().__init__(engine, label)
        self._isolation = "read committed"
        self._session = session
        self._connection = session.connection
        self._driver: Transaction
        self._loop = asyncio.get_running_loop()
        self._is_over = False
        self._is_landing = False
        self._is_freed = False
        self._ended = asyncio.Event()
        self._loan: Loan | None = None
        self._is_undone = False
        self._has_run = False
        self._inside: asyncio.Task[object] | None = None
        self._left: asyncio.Event | None = None
        self._woken: list[Woken] = []
        self._told: list[Woken] = []
        self._waiting: list[Woken] = []
        self._held_back: list[Woken] = []

    @classmethod
    async def begin(cls, engine: "PgEngine", label: str) -> "PgTransaction":
        """Take a connection and begin.

        Raises:
            DatabaseError: No connection was free for too long, or the server would not.
        """
        pool = engine._pool
        for repeats_left in reversed(range(REPEATS)):
            transaction = cls(engine, label, await pool.lend())
            try:
                await pool.kept(transaction._start(), transaction.abandon)
            except DRIVER as error:
                # A pool learns of a connection that was lost meanwhile by what fails on it.
                if not was_lost(error) or isinstance(error, TimeoutError) or not repeats_left:
                    raise translate(error, writes=False) from error
            else:
                return transaction
        raise AssertionError("the last attempt returns or raises")

    async def _start(self) -> None:
        try:
            # The driver's own kind, so that the caller's `connection.transaction()` is a savepoint in it. It raises if the
            # connection was lost since it was handed over.
            self._driver = self._connection.transaction(isolation="read_committed")
            await self._watched(self._driver.start())
        except BaseException:
            await self._free(is_broken=True)
            raise

    @property
    def is_open(self) -> bool:
        # Once and for all: what was Closed must not come to life again with what the caller begins on it next. One whose
        # connection was lost was ended by nobody: its commit must fail, or its loss would go unnoticed.
        if not self._is_over and not self._connection.is_closed():
            self._is_over = not self._connection.is_in_transaction()
        return not self._is_over

    @property
    def connection(self) -> object:
        self._enter()
        if self._loan is None:
            # It looks after each statement of the caller's: a COMMIT is not to be hidden by a BEGIN after it.
            self._loan = Loan(self._connection, lambda: self.is_open)
            if not self._has_run:  # its isolation level can still be changed
                self._isolation = None
        return self._loan

    # ------------------------------------------------------------ operations

    def _texts(self, woken: Sequence[Woken]) -> Sequence[str]:
        self._woken += woken
        wakes = self._engine.wakes
        told, waiting = wakes.parted(woken)
        self._told += told
        self._waiting += waiting
        return wakes.texts_within(told)

    async def append_events(self, events: Sequence[NewEvent]) -> Sequence[int]:
        self._enter()
        self._held_back += _stream.woken_by(_stream.names_in(events))
        return await super().append_events(events)

    async def _do(self, operation: Operation[T]) -> T:
        self._enter()
        try:
            with self._engine.traffic:
                return await self._sent(operation)
        except DRIVER as error:
            await self._failed(error)
            self._engine._streams.are_outdated(error)
            raise translate(error, writes=False) from error

    async def _sent(self, operation: Operation[T]) -> T:
        self._has_run = True
        task = self._inside = asyncio.current_task()
        before = 0 if task is None else task.cancelling()
        try:
            return await self._watched(operation(self._session))
        except asyncio.CancelledError:
            # As asyncio.timeout() does it: cancelled by `_undo` alone if nothing new is left after taking its part back.
            if self._left is not None and task is not None and task.uncancel() <= before:
                raise Closed("transaction") from None
            raise
        finally:
            self._inside = None
            if self._left is not None:
                self._left.set()

    async def _watched(self, work: Awaitable[T]) -> T:
        """Await the server, and no longer than it is given."""
        watchdog, connection = self._engine._pool.watchdog, self._connection
        watchdog.begin(connection)
        try:
            return await work
        except DRIVER as error:
            if watchdog.end(connection):
                raise TimeoutError("no answer within wait_timeout") from error
            raise
        finally:
            watchdog.end(connection)

    async def _failed(self, error: BaseException) -> None:
        """Roll back what PostgreSQL would let nothing follow: what it holds meanwhile is what others wait for."""
        is_refused = isinstance(error, asyncpg.InterfaceError) and is_in_transaction(self._connection)
        if (
            not is_refused
        ):  # by the driver, before anything was sent: the connection is in use by another task
            self._is_over = True
            await self._alone(self._free(is_broken=isinstance(error, TimeoutError) or was_lost(error)))

    # ------------------------------------------------------------ the end

    async def commit(self) -> None:
        self._enter()
        self._is_over = self._is_landing = True
        await self._engine._pool.kept(self._commit())

    async def _commit(self) -> None:
        may_have_landed = False
        try:
            if self._connection.is_closed():
                raise self._was_lost()
            with self._engine.traffic:
                may_have_landed = True
                await self._watched(self._driver.commit())
            if getattr(self._connection, "last_status", "") == "ROLLBACK":
                self._is_undone, may_have_landed = True, False
                raise asyncpg.InFailedSQLTransactionError("current transaction is aborted")
        except DRIVER as error:
            made = translate(error, writes=may_have_landed)
            may_have_landed = made.outcome_unknown
            raise made from error
        finally:
            try:
                await self._free(is_broken=False, has_landed=may_have_landed)
            finally:
                self._ended.set()

    def _was_lost(self) -> DatabaseError:
        if self._loan is None:
            return DatabaseError(
                "postgresql: the connection was lost before the commit; nothing of the transaction landed"
            )
        error = DatabaseError(
            "postgresql: the connection was lost before the commit; nothing of the transaction landed, "
            "unless your own SQL committed it"
        )
        error.outcome_unknown = True
        return error

    async def rollback(self) -> None:
        if self._is_landing:
            await self._ended.wait()
        elif not self._is_freed:
            await self._alone(self._undo())

    def abandon(self) -> None:
        if not self._is_freed:
            self._is_over = True
            # Perhaps the collector, in any thread; a loop that is closed has no connections.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._let_go)

    def _let_go(self) -> None:
        # A commit goes on though its caller was cancelled, knows whether it has landed, and frees in any case.
        if not self._is_freed and not self._is_landing:
            _ = self._engine._pool.spawn(self._undo())

    async def _undo(self) -> None:
        self._is_over = True
        if self._inside is not None:
            if self._left is None:  # a second cancellation would be taken back by nobody
                self._left = asyncio.Event()
                # The driver then has the server cancel the statement, which may wait for a row for a long time yet.
                self._inside.cancel()
            await self._left.wait()
        await self._free(is_broken=False)

    async def _free(self, *, is_broken: bool, has_landed: bool = False) -> None:
        """End it in the server, give the connection back, and wake those whom the end concerns."""
        if self._is_freed:
            return
        self._is_freed = True
        try:
            if not has_landed and not is_broken and not self._is_undone:
                has_landed = await self._roll_back()
        finally:
            connection, loan = self._connection, self._loan
            if is_broken:
                connection.terminate()
            try:
                if loan is not None:
                    loan.end()  # it warns of listeners that were left, and a warning may be an error
            finally:
                self._tell(has_landed=has_landed)
                self._engine._pool.take_back(self._session, reset=loan is not None)

    async def _roll_back(self) -> bool:
        """Roll back; True if the caller's own SQL had ended it before, and perhaps landed it."""
        if self._connection.is_closed():
            return False
        try:
            was_ended = not self._connection.is_in_transaction()
            await self._watched(self._driver.rollback())
        except DRIVER:
            self._connection.terminate()
            return False
        return was_ended

    def _tell(self, *, has_landed: bool) -> None:
        # Readers stand before the first offset that this one took, landed or not, and wait for it.
        if has_landed:
            # What began before others' later jobs may stand before them.
            self._engine._marks.stir(each.topic.name for each in self._woken)
            self._engine.wakes.landed(self._woken)
            self._engine.wakes.tell_of(self._told, self._waiting)
        elif self._held_back:
            self._engine.wakes.let_go(self._held_back)

    async def _alone(self, work: Coroutine[object, object, T]) -> T:
        """Await something that runs on to its end if the caller is cancelled."""
        task = self._engine._pool.spawn(work)
        await asyncio.wait((task,))
        return task.result()


def is_in_transaction(connection: Connection) -> bool:
    """Whether an asyncpg connection is in a transaction; one that was lost or given back is in none."""
    return not _is_lost(connection) and connection.is_in_transaction()


def _is_lost(connection: Connection) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:  # and taken back by the pool for that
        return True
