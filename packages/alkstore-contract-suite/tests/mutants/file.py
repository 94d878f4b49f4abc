"""Engines on one file that are wrong in how they open it, what they tell of its failures, and how they commit or join."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import aiosqlite
from mutant import mutant

from alkstore.clock import Clock
from alkstore.engine import EngineTransaction, JobFilter, JobRecord, NewJob, OffsetSave
from alkstore.errors import Closed, DatabaseError, SchemaMismatch
from alkstore.migrations import plan
from alkstore_sqlite import queue as _queue
from alkstore_sqlite import schema
from alkstore_sqlite.connection import Change, Connection, Patience, Steps, Wait, Woken, bind
from alkstore_sqlite.engine import SqliteEngine
from alkstore_sqlite.hop import Operation
from alkstore_sqlite.join import JoinedTransaction
from alkstore_sqlite.link import Link
from alkstore_sqlite.surroundings import Durability, prepare_writer
from alkstore_sqlite.transaction import SqliteTransaction
from alkstore_sqlite.writer import Writer

T = TypeVar("T")

LONGEST: Final = 2.0
"""Seconds of real time that a process waits for another one that has looked as well."""


# -------------------------------------------------------------------- what others committed


@mutant("reads-an-old-state", kills="DUR-02", wide="whatever is read after it was written")
class ReadsAnOldState(SqliteEngine):
    """A reader keeps the transaction of its first read open, and sees what was committed by then for ever."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        open_link = self._readers._open_link

        async def opened() -> Link:
            link = await open_link()
            reader: Any = link._raw
            run_sql = reader.run_sql
            reader.run_sql = lambda sql: None if reader.in_transaction else run_sql(sql)
            reader.roll_back = lambda: None
            return link

        self._readers._open_link = opened


# -------------------------------------------------------------------- tables


class _Opener(SqliteEngine):
    """An engine with its own way to bring a file's tables up to date."""

    @staticmethod
    def migrate(connection: Connection, now: int, patience: Patience) -> None:
        raise NotImplementedError

    @classmethod
    async def open(
        cls, path: str, clock: Clock, *, wait_timeout: float, durability: Durability
    ) -> SqliteEngine:
        patience = Patience(Wait(wait_timeout))

        def prepare(connection: Connection) -> None:
            patience.call(lambda: prepare_writer(connection, durability))
            cls.migrate(connection, clock.now(), patience)

        link = await Link.open(path, prepare)
        return cls(link, path, clock, wait_timeout=wait_timeout, durability=durability)


def _wait_for_another(file: Path) -> None:
    """Tell that this process has looked at an empty file, and wait until a second one has."""
    # A gap alone would not do: on a busy machine one process can be done before the next one has begun.
    file.with_name(f"looked-{os.getpid()}").touch()
    end = time.monotonic() + LONGEST
    while len(list(file.parent.glob("looked-*"))) < 2 and time.monotonic() < end:
        time.sleep(0.001)


@mutant("tables-are-made-without-looking-again", kills="DUR-03")
class TablesAreMadeWithoutLookingAgain(_Opener):
    """What was lacking before the lock was had is made, though somebody else has made it since."""

    @staticmethod
    def migrate(connection: Connection, now: int, patience: Patience) -> None:
        lacking = patience.call(lambda: plan(schema.MIGRATIONS, schema._applied(connection)))
        if not lacking:
            return
        assert connection.place is not None
        _wait_for_another(Path(connection.place.path))
        patience.call(lambda: connection.run_sql("BEGIN IMMEDIATE"))
        connection.run_sql(schema._TABLE)
        for migration in lacking:
            for statement in migration.statements:
                connection.run_sql(statement)
            connection.execute(
                schema._NOTE, bind((migration.version, migration.name, migration.checksum, now))
            )
        connection.run_sql("COMMIT")


@mutant("newer-schema-is-accepted", kills="DUR-04")
class NewerSchemaIsAccepted(_Opener):
    """Tables of a newer version are taken for those of this one."""

    @staticmethod
    def migrate(connection: Connection, now: int, patience: Patience) -> None:
        with suppress(SchemaMismatch):
            schema.migrate(connection, now, patience)


@mutant("newer-schema-is-refused-too-late", kills="DUR-04")
class NewerSchemaIsRefusedTooLate(_Opener):
    """Tables of a newer version are refused, after the locks in them were freed."""

    @staticmethod
    def migrate(connection: Connection, now: int, patience: Patience) -> None:
        try:
            schema.migrate(connection, now, patience)
        except SchemaMismatch:
            connection.run_sql("DELETE FROM alkstore_lock")
            raise


# -------------------------------------------------------------------- failures


@mutant("driver-error-comes-bare", kills="DUR-05")
class DriverErrorComesBare(SqliteEngine):
    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        try:
            return await super().insert_jobs(jobs)
        except DatabaseError as error:
            raise error.__cause__ or error from None


@mutant("driver-error-loses-its-cause", kills="DUR-05")
class DriverErrorLosesItsCause(SqliteEngine):
    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        try:
            return await super().insert_jobs(jobs)
        except DatabaseError as error:
            error.__cause__ = None
            raise


@mutant("failed-store-stays-failed", kills="DUR-05")
class FailedStoreStaysFailed(SqliteEngine):
    """After a write that failed every other one fails as it did."""

    _failed: DatabaseError | None = None

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        if self._failed is not None:
            raise self._failed
        try:
            return await super().insert_jobs(jobs)
        except DatabaseError as error:
            self._failed = error
            raise


# -------------------------------------------------------------------- commits that fail


class _WakesAllTheSame(SqliteTransaction):
    def _landed(self, part: Any) -> None:
        woken, self._woken = self._woken, []
        self._writer.landed(woken)


@mutant("failed-commit-wakes", kills="TX-05")
class FailedCommitWakes(SqliteEngine):
    async def begin(self, connection: object | None = None, begun: str = "") -> EngineTransaction:
        return await _WakesAllTheSame.begin(self._writer, begun)


class _RemembersItsJobs(SqliteTransaction):
    def __init__(self, writer: Writer, label: str) -> None:
        super().__init__(writer, label)
        self.jobs: list[NewJob] = []
        self.leave: Callable[[Sequence[NewJob]], object] = len

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        self.jobs.extend(jobs)
        return await super().insert_jobs(jobs)

    async def commit(self) -> None:
        try:
            await super().commit()
        except DatabaseError:
            self.leave(self.jobs)
            raise


@mutant("failed-commit-leaves-its-jobs", kills="TX-05")
class FailedCommitLeavesItsJobs(SqliteEngine):
    """The jobs of a commit that failed are written as soon as somebody looks for some."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._left: list[NewJob] = []

    async def begin(self, connection: object | None = None, begun: str = "") -> EngineTransaction:
        transaction = await _RemembersItsJobs.begin(self._writer, begun)
        assert isinstance(transaction, _RemembersItsJobs)
        transaction.leave = self._left.extend
        return transaction

    async def find_jobs(self, queue: str, where: JobFilter) -> Sequence[JobRecord]:
        left, self._left[:] = self._left[:], []
        if left:
            await self._writer.run(lambda now: _queue.insert(left, now))
        return await super().find_jobs(queue, where)


# -------------------------------------------------------------------- joins


class _Joiner(SqliteEngine):
    """An engine with its own way to ride the application's transaction."""

    joined: type[JoinedTransaction]

    async def begin(self, connection: object | None = None, begun: str = "") -> EngineTransaction:
        if connection is None:
            return await super().begin(connection, begun)
        return await self.joined.begin(connection, self._writer, begun)


class _CommitsWithAPosition(JoinedTransaction):
    async def save_offset(self, stream: str, consumer: str, offset: int, expected: int | None) -> OffsetSave:
        saved = await super().save_offset(stream, consumer, offset, expected)
        await self._connection.commit()
        return saved


@mutant("join-commits-by-itself", kills="TX-10")
class JoinCommitsByItself(_Joiner):
    """With a position the application's transaction is committed."""

    joined = _CommitsWithAPosition


@mutant("cancelled-join-raises", kills="DUR-08")
class CancelledJoinRaises(_Joiner):
    """A join that is cancelled ends with an error of its own, which takes the cancellation's place."""

    joined = JoinedTransaction

    async def begin(self, connection: object | None = None, begun: str = "") -> EngineTransaction:
        try:
            return await super().begin(connection, begun)
        except asyncio.CancelledError:
            if connection is None:
                raise
            raise DatabaseError("join was cut short") from None


class _SeesNoEnd(JoinedTransaction):
    @property
    def is_open(self) -> bool:
        return True


@mutant("joined-ack-is-final", kills="Q-23")
class JoinedAckIsFinal(_Joiner):
    """The application's transaction seems open for ever, so what was acked in it stays acked whatever became of it."""

    joined = _SeesNoEnd


class _AsksForNoFile(JoinedTransaction):
    @classmethod
    async def _ride(cls, connection: object, writer: Writer, label: str) -> JoinedTransaction:
        if isinstance(connection, aiosqlite.Connection) and connection.in_transaction:
            return cls(connection, connection, writer, label, None)
        return await super()._ride(connection, writer, label)


@mutant("join-takes-another-file", kills="TX-10")
class JoinTakesAnotherFile(_Joiner):
    """A bare connection that is in a transaction is joined, whichever file it is to."""

    joined = _AsksForNoFile


class _NeverAsksTheSession(JoinedTransaction):
    async def _do(self, operation: Operation[T]) -> T:
        if not self.is_open:
            raise Closed("transaction")
        given, root = self._given, self._root
        self._given, self._root = self._connection, None
        try:
            return await super()._do(operation)
        finally:
            self._given, self._root = given, root


@mutant("join-never-asks-the-session", kills="TX-11")
class JoinNeverAsksTheSession(_Joiner):
    """A session's savepoint that has not been sent yet is not sent before an operation."""

    joined = _NeverAsksTheSession


class _WakesAtOnce(JoinedTransaction):
    async def _do(self, operation: Operation[T]) -> T:
        woken: list[Woken] = []

        def heard(now: int) -> Steps[Change[T]]:
            change = yield from operation(now)
            woken.extend(change.woken)
            return change

        result = await super()._do(heard)
        self._writer.landed(woken)
        return result


@mutant("join-wakes-before-the-commit", kills="TX-11")
class JoinWakesBeforeTheCommit(_Joiner):
    """Who waits is woken by the operation, and not by the application's commit."""

    joined = _WakesAtOnce
