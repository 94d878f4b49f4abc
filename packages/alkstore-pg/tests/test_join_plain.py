"""Riding the transaction of a plain thread: `alkstore.sync.Store.join`."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from plain_applications import (
    POSTGRESQL,
    Make,
    closes_with_its_transaction,
    leaves_nothing_or_lands,
    payloads,
    refuses_and_goes_on,
    rolls_back_a_part,
    wakes_who_waits,
)
from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session, sessionmaker

import alkstore.sync
from alkstore.errors import Closed, DatabaseError, InsideTransaction, InvalidArgument
from alkstore_pg import contract_dsn

every_library = pytest.mark.parametrize("make", POSTGRESQL.values(), ids=POSTGRESQL)


@pytest.fixture
def store(dsn: str) -> Iterator[alkstore.sync.Store]:
    with alkstore.sync.open(dsn, wait_timeout=5) as opened:
        yield opened


# ---------------------------------------------------------------- what lands, and what does not


@every_library
@pytest.mark.parametrize("keep", [False, True], ids=["rollback", "commit"])
def test_everything_shares_the_fate_of_the_threads_transaction(
    store: alkstore.sync.Store, dsn: str, make: Make, keep: bool
) -> None:
    with make(dsn) as app:
        leaves_nothing_or_lands(store, app, keep=keep)


@every_library
def test_a_savepoint_takes_its_part_along(store: alkstore.sync.Store, dsn: str, make: Make) -> None:
    with make(dsn) as app:
        rolls_back_a_part(store, app)


@every_library
def test_what_was_closed_does_not_come_to_life_with_the_next_transaction(
    store: alkstore.sync.Store, dsn: str, make: Make
) -> None:
    with make(dsn) as app:
        closes_with_its_transaction(store, app)


@every_library
def test_the_commit_wakes_a_thread_that_waits_for_a_job(
    store: alkstore.sync.Store, dsn: str, make: Make
) -> None:
    with make(dsn) as app:
        wakes_who_waits(store, app)


@every_library
def test_what_is_refused_leaves_the_transaction_usable(
    store: alkstore.sync.Store, dsn: str, make: Make
) -> None:
    with make(dsn) as app:
        refuses_and_goes_on(store, app)


def test_a_block_of_the_drivers_own_is_ridden(store: alkstore.sync.Store, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        with connection.transaction(), store.join(connection) as tx:
            tx.enqueue("q", 1)
        with connection.transaction(force_rollback=True), store.join(connection) as tx:
            tx.enqueue("q", 2)

    assert payloads(store) == [1]


# ---------------------------------------------------------------- the thread, and its connection


def test_every_statement_is_sent_by_the_thread_that_calls(store: alkstore.sync.Store, dsn: str) -> None:
    seen = set()

    class Looking(psycopg.Connection[tuple[object, ...]]):
        def wait(self, *args: Any, **kwargs: Any) -> Any:
            seen.add(threading.get_ident())
            return super().wait(*args, **kwargs)

    with closing(Looking.connect(dsn)) as connection, store.join(connection) as tx:
        tx.enqueue("q", 1)
        tx.publish("s", 1)
        assert tx.read_from_consumer("s", "c")[0].payload == 1

    assert seen == {threading.get_ident()}


def test_a_write_beside_the_joined_transaction_is_refused_on_its_thread(
    store: alkstore.sync.Store, dsn: str
) -> None:
    with psycopg.connect(dsn) as connection, store.join(connection):
        with pytest.raises(InsideTransaction, match="enqueue"):
            store.queue("q").enqueue(1)
        with alkstore.outside_tx():
            assert store.queue("q").enqueue(2)


def test_a_transaction_that_has_failed_is_an_error_of_the_server(
    store: alkstore.sync.Store, dsn: str
) -> None:
    with psycopg.connect(dsn) as connection:
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT 1 / 0")
        with pytest.raises(DatabaseError) as caught, store.join(connection):
            pass
        assert isinstance(caught.value.__cause__, psycopg.errors.InFailedSqlTransaction)
        connection.rollback()
        with store.join(connection) as tx:
            tx.enqueue("q", 1)

    assert payloads(store) == [1]


def test_a_row_that_another_transaction_holds_is_waited_for_and_then_told(dsn: str) -> None:
    with (
        alkstore.sync.open(dsn, wait_timeout=0.1) as store,
        psycopg.connect(dsn) as one,
        psycopg.connect(dsn) as other,
    ):
        with store.join(one) as tx:
            tx.save_offset("s", "c", 1)
        with store.join(other) as tx, pytest.raises(DatabaseError):
            tx.save_offset("s", "c", 2)
        other.rollback()


def test_the_stores_close_leaves_the_transaction_to_its_owner(dsn: str) -> None:
    store = alkstore.sync.open(dsn)
    with psycopg.connect(dsn) as connection:
        tx = store.join(connection).__enter__()
        tx.enqueue("q", 1)
        store.close()
        with pytest.raises(Closed):
            tx.enqueue("q", 2)
        connection.commit()

    with alkstore.sync.open(dsn) as again:
        assert payloads(again) == [1]


# ---------------------------------------------------------------- what cannot be joined


@pytest.mark.parametrize("given", [7, "a", object(), sqlite3.Row, Session, psycopg.Connection])
def test_what_is_no_connection_is_refused_by_name(store: alkstore.sync.Store, given: object) -> None:
    with pytest.raises(InvalidArgument, match="from a plain thread, a psycopg Conn"), store.join(given):
        pass


def test_other_databases_and_libraries_things_are_refused(store: alkstore.sync.Store) -> None:
    engine = create_engine("sqlite://")
    with closing(sqlite3.connect(":memory:")) as connection, Session(engine) as session:
        for given in (engine, sessionmaker(engine), connection, session):
            with pytest.raises(InvalidArgument, match="this engine joins"), store.join(given):
                pass
    engine.dispose()


def test_a_connection_that_commits_by_itself_is_refused(store: alkstore.sync.Store, dsn: str) -> None:
    with (
        psycopg.connect(dsn, autocommit=True) as connection,
        pytest.raises(InvalidArgument, match=r"'with connection.transaction\(\):'"),
        store.join(connection),
    ):
        pass
    engine = create_engine(
        dsn.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as alchemys:
        with pytest.raises(InvalidArgument, match="commits every statement"), store.join(alchemys):
            pass
        assert not alchemys.in_transaction()
    engine.dispose()


def test_a_closed_connection_is_refused(store: alkstore.sync.Store, dsn: str) -> None:
    connection = psycopg.connect(dsn)
    connection.close()

    with pytest.raises(InvalidArgument, match="it is closed"), store.join(connection):
        pass


def test_a_session_that_does_not_begin_by_itself_is_refused(store: alkstore.sync.Store, dsn: str) -> None:
    engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
    with (
        Session(engine, autobegin=False) as session,
        pytest.raises(InvalidArgument, match="cannot be joined"),
        store.join(session),
    ):
        pass
    engine.dispose()


def test_another_database_is_refused_and_its_connection_left_as_it_was(
    store: alkstore.sync.Store, dsn: str
) -> None:
    with psycopg.connect(contract_dsn.on_database(dsn, "postgres")) as connection:
        with pytest.raises(InvalidArgument, match="another database"), store.join(connection):
            pass
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_a_join_whose_store_is_closed_meanwhile_leaves_no_transaction(dsn: str) -> None:
    engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
    store = alkstore.sync.open(dsn)
    ending = threading.Thread(target=store.close)

    def look_until_it_ends() -> None:
        while True:
            store.queue("q").stats()

    @event.listens_for(engine, "begin")
    def end(_: object) -> None:
        ending.start()
        with pytest.raises(Closed):
            look_until_it_ends()

    with store, engine.connect() as connection:
        with pytest.raises(Closed), store.join(connection):
            pass
        ending.join(5)

        assert not connection.in_transaction()
    engine.dispose()
