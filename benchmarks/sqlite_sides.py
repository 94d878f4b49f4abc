"""The two sides of `sqlite_driver.py`: a store, and the bare driver doing the same statements in the same hops.

The bare side reads its statements from the engine's own files, has its tables made by the engine's migration and its
connection set up by the engine's function, encodes and checks payloads by `alkstore.payload.encode`, and computes the same
columns. It has no names to check, no line to stand in, no wakes and no handles.

aiosqlite has no public way to run several statements in one hop, but for its ``factory``: `Bare` uses that too.
`Stepwise` takes a hop a statement, as most programs do.
"""

import asyncio
import random
import sqlite3
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol, Self, TypeAlias, TypeVar, cast

import aiosqlite
from harness import PAYLOAD
from store_side import NAME, StoreSide

from alkstore import Tx, statements
from alkstore.payload import decode, encode
from alkstore_sqlite import SqliteStore
from alkstore_sqlite.connection import Connection
from alkstore_sqlite.pack import pack
from alkstore_sqlite.surroundings import prepare_writer

__all__ = ["Bare", "Blind", "Durability", "Listed", "Ours", "Side", "Stepwise"]

T = TypeVar("T")
Durability: TypeAlias = Literal["power", "process"]
Rows: TypeAlias = list[Any]
Tells: TypeAlias = Literal["rows", "many", "id"]
Step: TypeAlias = tuple[str, Sequence[Any], Tells]
"""A statement, its parameters, and what it tells: its rows, how many it changed (they are many rows), or the id given."""
Steps: TypeAlias = Generator[Step, Rows, T]

QUEUE: Final = statements.load("alkstore_sqlite", "queue")
STREAM: Final = statements.load("alkstore_sqlite", "stream")
LOCK: Final = statements.load("alkstore_sqlite", "lock")
OWN_TABLE: Final = "CREATE TABLE IF NOT EXISTS person (name TEXT NOT NULL)"
OWN_ROW: Final = "INSERT INTO person VALUES (?)"
"""What an application keeps beside the store."""
PAGE: Final = 500
WORKER: Final = "bench:1:0000"
WINDOW, ATTEMPTS, BASE_DELAY = 300_000_000, 3, 5_000_000


class Side(Protocol):
    """What is timed."""

    async def open(self, path: Path, durability: Durability) -> Self: ...

    async def close(self) -> None: ...

    async def enqueue(self) -> object: ...

    async def enqueue_many(self, count: int) -> object: ...

    async def claim_and_ack(self) -> object: ...

    async def claim_and_ack_many(self, count: int) -> object: ...

    async def publish(self) -> object: ...

    async def publish_many(self, count: int) -> object: ...


class Ours(StoreSide):
    """The store, through its public interface."""

    async def open(self, path: Path, durability: Durability) -> Self:
        self._use(await SqliteStore(path, durability=durability))
        async with self._store.begin_tx() as tx:
            await _own(tx).execute(OWN_TABLE)
        return self

    async def transact(self) -> None:
        async with self._store.begin_tx() as tx:
            await _own(tx).execute(OWN_ROW, ["ada"])
            await tx.enqueue(NAME, self.payload)


def _own(tx: Tx) -> aiosqlite.Connection:
    return cast(aiosqlite.Connection, tx.connection)


# ---------------------------------------------------------------- the statements of each operation


def _row(data: bytes, now: int) -> list[object]:
    return [NAME, data, b"{}", 0, now, None, ATTEMPTS, WINDOW, BASE_DELAY, now, None]


def _now() -> int:
    return time.time_ns() // 1_000


def _claim(count: int) -> Steps[Rows]:
    now = _now()
    stirred = yield QUEUE["is_stirred"], (NAME, now), "rows"
    assert not stirred[0][0]
    return (yield from _claim_blindly(count, now))


def _claim_blindly(count: int, now: int) -> Steps[Rows]:
    rows = yield QUEUE["first_in_line"], (NAME, now, count), "rows"
    held = [(row[0], 1, WORKER, now + row[10], random.getrandbits(63)) for row in rows]
    if len(held) == 1:
        yield QUEUE["hold"], held[0], "id"
    else:
        yield QUEUE["hold"], held, "many"
    return held


def _append(data: list[bytes]) -> Steps[int]:
    now = _now()
    yield STREAM["grow"], (NAME, len(data)), "rows"
    ((stream, head),) = yield STREAM["find"], (NAME,), "rows"
    if len(data) == 1:
        yield STREAM["append"], (stream, head, None, data[0], b"{}", now), "rows"
    else:
        payloads, places = pack(data)
        yield (
            STREAM["append_alike"],
            (stream, head - len(data), None, payloads, b"{}", now, places),
            "rows",
        )
    return int(head)


def _begin_stream() -> Steps[None]:
    yield STREAM["begin"], (NAME, 0), "id"


def _ack(row: Sequence[Any], now: int) -> tuple[object, ...]:
    return (row[0], row[-1], now, NAME)


def _ack_many(rows: Rows) -> Steps[None]:
    now = _now()
    ((acked,),) = yield QUEUE["ack"], [_ack(row, now) for row in rows], "many"
    assert acked == len(rows)


def _take() -> Steps[int]:
    now = _now()
    yield LOCK["take"], (NAME, now + WINDOW, now), "id"
    ((fence, _),) = yield LOCK["find"], (NAME,), "rows"
    return int(fence)


# ---------------------------------------------------------------- bare


class _Answer:
    """What aiosqlite fetches after a program."""

    def __init__(self, result: object) -> None:
        self._result = result

    def fetchall(self) -> Any:
        return self._result


class _Connection(sqlite3.Connection):
    """Runs the steps of a generator in one hop and one transaction."""

    def execute(self, sql: Any, parameters: Any = (), /) -> Any:
        execute = super().execute
        if type(sql) is str:
            return execute(sql, parameters)
        execute("BEGIN IMMEDIATE")
        rows: Rows | None = None
        try:
            while True:
                text, values, tells = next(sql) if rows is None else sql.send(rows)
                if tells == "many":
                    rows = [(self.executemany(text, values).rowcount,)]
                    continue
                cursor = execute(text, values)
                rows = [(cursor.lastrowid,)] if tells == "id" else cursor.fetchall()
        except StopIteration as stop:
            execute("COMMIT")
            return _Answer(stop.value)
        except BaseException:
            execute("ROLLBACK")
            raise


class Bare:
    """aiosqlite, in as many hops as the engine takes."""

    payload: object = PAYLOAD
    factory: type[sqlite3.Connection] = _Connection

    async def open(self, path: Path, durability: Durability) -> Self:
        self._last = 0
        async with SqliteStore(path):
            pass  # its tables
        self._db = await aiosqlite.connect(
            path, isolation_level=None, cached_statements=256, factory=_opener(self.factory, durability)
        )
        await self.run(_begin_stream())
        await self._db.execute(OWN_TABLE)
        return self

    async def close(self) -> None:
        await self._db.close()

    async def run(self, steps: Steps[T]) -> T:
        result: T = await self._db.execute_fetchall(steps)  # type: ignore[assignment]
        return result

    async def enqueue(self) -> object:
        return (await self._db.execute(QUEUE["insert"], _row(encode(self.payload), _now()))).lastrowid

    async def enqueue_many(self, count: int) -> object:
        queue, _, *common = _row(b"", _now())
        payloads, places = pack([encode(self.payload) for _ in range(count)])
        added = await self._db.execute(QUEUE["insert_alike"], (queue, payloads, *common, places))
        last = added.lastrowid or 0
        return range(last - count + 1, last + 1)

    async def claim(self, count: int) -> Rows:
        return await self.run(_claim(count))

    async def claim_and_ack(self) -> None:
        (row,) = await self.claim(1)
        acked = await self._db.execute(QUEUE["ack"], _ack(row, _now()))
        assert acked.rowcount == 1

    async def claim_and_ack_many(self, count: int) -> None:
        rows = await self.claim(count)
        assert len(rows) == count
        line: list[asyncio.Future[None]] = []

        async def ack() -> None:
            line.append(asyncio.get_running_loop().create_future())
            await line[-1]

        async def commit() -> None:
            await self.run(_ack_many(rows))
            for answer in line:
                answer.set_result(None)

        await asyncio.gather(*(ack() for _ in rows), commit())

    async def publish(self) -> object:
        return await self.run(_append([encode(self.payload)]))

    async def publish_many(self, count: int) -> object:
        return await self.run(_append([encode(self.payload) for _ in range(count)]))

    async def replay(self, count: int) -> None:
        while count > 0:
            rows = list(await self._db.execute_fetchall(STREAM["read"], (NAME, self._last, min(count, PAGE))))
            for row in rows:
                assert decode(row[2]) is not None
            self._last = rows[-1][0]
            count -= len(rows)

    async def lock(self) -> None:
        fence = await self.run(_take())
        freed = await self._db.execute(LOCK["renew"], (NAME, fence, _now(), None))
        assert freed.rowcount == 1

    async def transact(self) -> None:
        await self._db.execute("BEGIN IMMEDIATE")
        await self._db.execute(OWN_ROW, ("ada",))
        await self._db.execute(QUEUE["insert"], _row(encode(self.payload), _now()))
        await self._db.execute("COMMIT")


class Blind(Bare):
    """As `Bare`, but it claims without a look at what time has changed: a lesser promise."""

    async def claim(self, count: int) -> Rows:
        return await self.run(_claim_blindly(count, _now()))


class Listed(Bare):
    """As `Bare`, but it acks a list of rows by one call, which the contract has not: nobody awaits an ack of his own."""

    async def claim_and_ack_many(self, count: int) -> None:
        rows = await self.claim(count)
        assert len(rows) == count
        await self.run(_ack_many(rows))


class Stepwise(Bare):
    """As `Bare`, but a hop a statement, BEGIN and COMMIT too. Others wait: a connection has one transaction at a time."""

    factory = sqlite3.Connection

    async def open(self, path: Path, durability: Durability) -> Self:
        self._turn = asyncio.Lock()
        return await super().open(path, durability)

    async def run(self, steps: Steps[T]) -> T:
        async with self._turn:
            db, rows = self._db, None
            await db.execute_fetchall("BEGIN IMMEDIATE")
            try:
                while True:
                    rows = await self._step(*(next(steps) if rows is None else steps.send(rows)))
            except StopIteration as stop:
                await db.execute_fetchall("COMMIT")
                result: T = stop.value
                return result

    async def _step(self, text: str, values: Sequence[Any], tells: Tells) -> Rows:
        if tells == "rows":
            return list(await self._db.execute_fetchall(text, values))
        cursor = await (
            self._db.executemany(text, values) if tells == "many" else self._db.execute(text, values)
        )
        await cursor.close()
        return [(cursor.rowcount if tells == "many" else cursor.lastrowid,)]


def _opener(kind: type[sqlite3.Connection], durability: Durability) -> Callable[..., sqlite3.Connection]:
    """Have the engine set a connection up as it does its own."""

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = kind(*arguments, **options)
        prepare_writer(cast(Connection, connection), durability)
        return connection

    return connect
