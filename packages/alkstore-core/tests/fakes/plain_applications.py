"""Applications on plain threads whose transactions are joined: each library as its users hold it."""

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from hanging import HUNG
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import alkstore.sync
from alkstore.errors import Closed, InvalidArgument, InvalidName

__all__ = [
    "POSTGRESQL",
    "SQLITE",
    "Application",
    "Make",
    "closes_with_its_transaction",
    "leaves_nothing_or_lands",
    "payloads",
    "refuses_and_goes_on",
    "rolls_back_a_part",
    "wakes_who_waits",
]


@dataclass
class Application:
    """A transaction of one library's: what is joined, and what its owner does with it."""

    given: Any
    run: Callable[[str], Any]
    savepoint: Callable[[], AbstractContextManager[Any]]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]


Make = Callable[[str], AbstractContextManager[Application]]
"""Connects to a database: the path of a file, or a DSN."""


# ---------------------------------------------------------------- drivers


@contextmanager
def _sqlite3(path: str) -> Iterator[Application]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        yield _of_sqlite3(connection)


@contextmanager
def _sqlite3_by_hand(path: str) -> Iterator[Application]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        yield _of_sqlite3(connection)


def _of_sqlite3(connection: sqlite3.Connection) -> Application:
    @contextmanager
    def savepoint() -> Iterator[None]:
        connection.execute("SAVEPOINT a")
        try:
            yield
        except BaseException:
            connection.execute("ROLLBACK TO a")
            raise

    return Application(connection, connection.execute, savepoint, connection.commit, connection.rollback)


@contextmanager
def _psycopg(dsn: str) -> Iterator[Application]:
    with closing(psycopg.connect(dsn, row_factory=psycopg.rows.dict_row)) as connection:
        yield Application(
            connection, connection.execute, connection.transaction, connection.commit, connection.rollback
        )


@contextmanager
def _psycopg_by_hand(dsn: str) -> Iterator[Application]:
    with closing(psycopg.connect(dsn, autocommit=True)) as connection:
        connection.execute("BEGIN")
        yield Application(
            connection, connection.execute, connection.transaction, connection.commit, connection.rollback
        )


# ---------------------------------------------------------------- SQLAlchemy


def _url(database: str) -> str:
    if database.startswith("postgresql://"):
        return database.replace("postgresql://", "postgresql+psycopg://")
    return f"sqlite:///{database}"


@contextmanager
def _connection(database: str) -> Iterator[Application]:
    engine = create_engine(_url(database))
    try:
        with engine.connect() as connection:
            yield Application(
                connection,
                connection.exec_driver_sql,
                connection.begin_nested,
                connection.commit,
                connection.rollback,
            )
    finally:
        engine.dispose()


@contextmanager
def _session(database: str) -> Iterator[Application]:
    engine = create_engine(_url(database))
    try:
        with Session(engine) as session:
            yield _of_session(session, session)
    finally:
        engine.dispose()


@contextmanager
def _scoped_session(database: str) -> Iterator[Application]:
    engine = create_engine(_url(database))
    scoped = scoped_session(sessionmaker(engine))
    try:
        yield _of_session(scoped, scoped())
    finally:
        scoped.remove()
        engine.dispose()


def _of_session(given: object, session: Session) -> Application:
    return Application(
        given,
        lambda sql: session.execute(text(sql)),
        session.begin_nested,
        session.commit,
        session.rollback,
    )


_ALCHEMY: dict[str, Make] = {
    "SQLAlchemy Connection": _connection,
    "SQLAlchemy Session": _session,
    "SQLAlchemy scoped_session": _scoped_session,
}
SQLITE: dict[str, Make] = {"sqlite3": _sqlite3, "sqlite3, BEGIN by hand": _sqlite3_by_hand, **_ALCHEMY}
POSTGRESQL: dict[str, Make] = {"psycopg": _psycopg, "psycopg, BEGIN by hand": _psycopg_by_hand, **_ALCHEMY}


# ---------------------------------------------------------------- what all of them are to do


def leaves_nothing_or_lands(store: alkstore.sync.Store, app: Application, *, keep: bool) -> None:
    """See that all that is done in a joined transaction shares its fate."""
    app.rollback()
    app.run("CREATE TABLE business (value text)")
    app.commit()
    queue, stream = store.queue("q"), store.stream("s")
    store.queue("claims").enqueue("claimed")
    claim = store.queue("claims").claim_one()
    assert claim is not None
    _begin(app)

    with store.listen("bell") as bell:
        with store.join(app.given) as tx:
            id = tx.enqueue(queue, {"keep": keep})
            assert tx.enqueue_batch("q", [1, 2]) == [id + 1, id + 2]
            tx.publish("s", "event", key="k")
            tx.notify("bell")
            tx.ack(claim)
            tx.save_offset("s", "c", 7)
            found = tx.get_job("q", id)
            assert found is not None
            assert found.payload == {"keep": keep}
            assert [event.payload for event in tx.read_since("s", 0)] == ["event"]
            assert tx.get_offset("s", "c") == 7
        app.run("INSERT INTO business VALUES ('a')")
        assert (queue.list(), stream.read_since(0), bell.try_recv()) == ([], [], None)
        (app.commit if keep else app.rollback)()

        assert [job.payload for job in queue.list()] == ([{"keep": True}, 1, 2] if keep else [])
        assert [event.payload for event in stream.read_since(0)] == ["event"] * keep
        if keep:
            assert bell.recv_timeout(10) is not None
        assert stream.get_offset("c") == 7 * keep
        assert len(store.queue("claims").list()) == 1 - keep
        assert len(app.run("SELECT value FROM business").fetchall()) == keep
    assert queue.stats().ready == 3 * keep


def rolls_back_a_part(store: alkstore.sync.Store, app: Application) -> None:
    """See that a savepoint takes along what was done in it, and nothing else."""
    _begin(app)
    with store.join(app.given) as tx:
        tx.enqueue("q", "before")
        try:
            with app.savepoint():
                tx.enqueue("q", "lost")
                tx.publish("s", "lost")
                raise KeyError
        except KeyError:
            pass
        tx.enqueue("q", "after")
    app.commit()

    assert payloads(store) == ["before", "after"]
    assert store.stream("s").read_since(0) == []


def closes_with_its_transaction(store: alkstore.sync.Store, app: Application) -> None:
    """See that what was joined is closed after the commit, and does not come to life with the next transaction."""
    with store.join(app.given) as tx:
        tx.enqueue("q", 1)
        app.commit()
        with pytest.raises(Closed):
            tx.enqueue("q", 2)
    app.rollback()

    assert payloads(store) == [1]


def wakes_who_waits(store: alkstore.sync.Store, app: Application) -> None:
    """See that the commit wakes a thread that waits for a job."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: store.queue("q").claim(timeout=HUNG))
        _begin(app)
        with store.join(app.given) as tx:
            tx.enqueue("q", 1)
        app.commit()

        handle = waiting.result(HUNG)
        assert handle is not None
        assert handle.ack()


def refuses_and_goes_on(store: alkstore.sync.Store, app: Application) -> None:
    """See that what is refused leaves the transaction usable, and that its end is its owner's."""
    _begin(app)
    with store.join(app.given) as tx:
        with pytest.raises(InvalidName):
            tx.enqueue("", 1)
        for end in (tx.commit, tx.rollback):
            with pytest.raises(InvalidArgument, match="its owner's"):
                end()
        tx.enqueue("q", 1)
        app.commit()

    assert payloads(store) == [1]


def payloads(store: alkstore.sync.Store) -> list[object]:
    """Give what is in the queue."""
    return [job.payload for job in store.queue("q").list()]


def _begin(app: Application) -> None:
    """Type BEGIN, where its owner has to."""
    given = app.given
    if isinstance(given, sqlite3.Connection):
        is_idle = given.isolation_level is None and not given.in_transaction
    elif isinstance(given, psycopg.Connection):
        is_idle = given.autocommit and given.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    else:
        is_idle = False
    if is_idle:
        app.run("BEGIN")
