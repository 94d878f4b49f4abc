"""Riding the transaction of a plain thread: `alkstore.sync.Store.join`."""

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import aiosqlite
import psycopg
import pytest
from plain_applications import (
    SQLITE,
    Make,
    closes_with_its_transaction,
    leaves_nothing_or_lands,
    payloads,
    refuses_and_goes_on,
    rolls_back_a_part,
    wakes_who_waits,
)
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker

import alkstore.sync
from alkstore.errors import Closed, DatabaseError, InsideTransaction, InvalidArgument

every_library = pytest.mark.parametrize("make", SQLITE.values(), ids=SQLITE)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "a.db")


@pytest.fixture
def store(path: str) -> Iterator[alkstore.sync.Store]:
    with alkstore.sync.open(f"sqlite:///{path}", durability="process", wait_timeout=0.2) as opened:
        yield opened


# ---------------------------------------------------------------- what lands, and what does not


@every_library
@pytest.mark.parametrize("keep", [False, True], ids=["rollback", "commit"])
def test_everything_shares_the_fate_of_the_threads_transaction(
    store: alkstore.sync.Store, path: str, make: Make, keep: bool
) -> None:
    with make(path) as app:
        leaves_nothing_or_lands(store, app, keep=keep)


@every_library
def test_a_savepoint_takes_its_part_along(store: alkstore.sync.Store, path: str, make: Make) -> None:
    with make(path) as app:
        rolls_back_a_part(store, app)


@every_library
def test_what_was_closed_does_not_come_to_life_with_the_next_transaction(
    store: alkstore.sync.Store, path: str, make: Make
) -> None:
    with make(path) as app:
        closes_with_its_transaction(store, app)


@every_library
def test_the_commit_wakes_a_thread_that_waits_for_a_job(
    store: alkstore.sync.Store, path: str, make: Make
) -> None:
    with make(path) as app:
        wakes_who_waits(store, app)


@every_library
def test_what_is_refused_leaves_the_transaction_usable(
    store: alkstore.sync.Store, path: str, make: Make
) -> None:
    with make(path) as app:
        refuses_and_goes_on(store, app)


# ---------------------------------------------------------------- the thread, and its connection


def test_every_statement_runs_on_the_thread_that_calls(store: alkstore.sync.Store, path: str) -> None:
    seen = set()
    with closing(sqlite3.connect(path)) as connection:
        connection.set_trace_callback(lambda _: seen.add(threading.get_ident()))
        with store.join(connection) as tx:
            tx.enqueue("q", 1)
            tx.publish("s", 1)
        connection.commit()

    assert seen == {threading.get_ident()}


def test_the_connection_keeps_its_owners_ways(store: alkstore.sync.Store, path: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory, connection.text_factory = sqlite3.Row, bytes
        with store.join(connection) as tx:
            id = tx.enqueue("q", "käse")
            found = tx.get_job("q", id)
        row = connection.execute("SELECT 'a' AS letter").fetchone()
        connection.commit()

    assert found is not None
    assert found.payload == "käse"
    assert row["letter"] == b"a"


def test_a_write_beside_the_joined_transaction_is_refused_on_its_thread(
    store: alkstore.sync.Store, path: str
) -> None:
    with closing(sqlite3.connect(path)) as connection:
        with store.join(connection), pytest.raises(InsideTransaction, match="enqueue"):
            store.queue("q").enqueue(1)
        connection.rollback()

    assert store.queue("q").enqueue(2)


def test_a_statement_that_fails_leaves_the_transaction_usable(store: alkstore.sync.Store, path: str) -> None:
    with closing(sqlite3.connect(path)) as connection, store.join(connection) as tx:
        connection.execute(
            "CREATE TEMP TRIGGER t BEFORE INSERT ON main.alkstore_job BEGIN SELECT RAISE(FAIL, 'no'); END"
        )
        with pytest.raises(DatabaseError, match="refused a row"):
            tx.enqueue("q", 1)
        connection.execute("DROP TRIGGER t")
        tx.enqueue("q", 2)
        connection.commit()

    assert payloads(store) == [2]


def test_another_threads_connection_is_refused(store: alkstore.sync.Store, path: str) -> None:
    with closing(sqlite3.connect(path)) as connection, ThreadPoolExecutor(1) as pool:

        def join() -> None:
            with store.join(connection):
                pass

        with pytest.raises(InvalidArgument, match="created in a thread"):
            pool.submit(join).result(10)


def test_the_stores_close_leaves_the_transaction_to_its_owner(path: str) -> None:
    store = alkstore.sync.open(f"sqlite:///{path}", durability="process")
    with store:
        store.queue("q").enqueue(0)
    with (
        alkstore.sync.open(f"sqlite:///{path}") as other,
        closing(sqlite3.connect(path)) as connection,
    ):
        joined = other.join(connection)
        tx = joined.__enter__()
        tx.enqueue("q", 1)
        other.close()
        with pytest.raises(Closed):
            tx.enqueue("q", 2)
        connection.commit()

    with alkstore.sync.open(f"sqlite:///{path}") as again:
        assert payloads(again) == [0, 1]


# ---------------------------------------------------------------- what cannot be joined


@pytest.mark.parametrize("given", [7, "a.db", object(), sqlite3.Row, Session, sqlite3.Connection])
def test_what_is_no_connection_is_refused_by_name(store: alkstore.sync.Store, given: object) -> None:
    with pytest.raises(InvalidArgument, match="from a plain thread, a sqlite3 connection"), store.join(given):
        pass


def test_nothing_is_refused(store: alkstore.sync.Store) -> None:
    with pytest.raises(InvalidArgument, match="got None"):
        store.join(None)


def test_other_libraries_things_are_refused(store: alkstore.sync.Store, path: str) -> None:
    engine = create_engine(f"sqlite:///{path}")
    try:
        for given in (engine, sessionmaker(engine), psycopg.Connection, aiosqlite.connect(path)):
            with pytest.raises(InvalidArgument, match="this engine joins"), store.join(given):
                pass
    finally:
        engine.dispose()


def test_a_connection_that_commits_by_itself_is_refused(store: alkstore.sync.Store, path: str) -> None:
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as connection,
        pytest.raises(InvalidArgument, match="BEGIN IMMEDIATE on it"),
        store.join(connection),
    ):
        pass


def test_another_file_is_refused(store: alkstore.sync.Store, path: str) -> None:
    for other in (f"{path}.other", ":memory:"):
        with (
            closing(sqlite3.connect(other)) as connection,
            pytest.raises(InvalidArgument, match="this store is on"),
            store.join(connection),
        ):
            pass


def test_a_closed_connection_is_refused(store: alkstore.sync.Store, path: str) -> None:
    connection = sqlite3.connect(path)
    connection.close()

    with pytest.raises(InvalidArgument, match="closed database"), store.join(connection):
        pass


def test_a_refused_connection_of_sqlalchemy_is_left_as_it_was(store: alkstore.sync.Store) -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        with pytest.raises(InvalidArgument, match="private database"), store.join(connection):
            pass
        assert not connection.in_transaction()
    engine.dispose()


async def test_the_async_surface_refuses_a_connection_that_blocks(path: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        async with alkstore.open(f"sqlite:///{path}") as store:
            with pytest.raises(InvalidArgument, match="this engine joins an aiosqlite connection"):
                async with store.join(connection):
                    pass
