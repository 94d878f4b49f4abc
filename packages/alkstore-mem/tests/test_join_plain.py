"""Riding the SQLAlchemy session of a plain thread: `alkstore.sync.Store.join`."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from plain_applications import (
    SQLITE,
    Make,
    leaves_nothing_or_lands,
    payloads,
    refuses_and_goes_on,
    rolls_back_a_part,
    wakes_who_waits,
)
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

import alkstore.sync
from alkstore.errors import Closed, InvalidArgument, OffsetConflict

SESSIONS = {name: make for name, make in SQLITE.items() if "ession" in name}

every_session = pytest.mark.parametrize("make", SESSIONS.values(), ids=SESSIONS)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "a.db")


@pytest.fixture
def store() -> Iterator[alkstore.sync.Store]:
    with alkstore.sync.open("mem://") as opened:
        yield opened


@pytest.fixture
def engine(path: str) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{path}")
    yield engine
    engine.dispose()


# ---------------------------------------------------------------- what lands, and what does not


@every_session
@pytest.mark.parametrize("keep", [False, True], ids=["rollback", "commit"])
def test_everything_shares_the_fate_of_the_sessions_transaction(
    store: alkstore.sync.Store, path: str, make: Make, keep: bool
) -> None:
    with make(path) as app:
        leaves_nothing_or_lands(store, app, keep=keep)


@every_session
def test_a_savepoint_takes_its_part_along(store: alkstore.sync.Store, path: str, make: Make) -> None:
    with make(path) as app:
        rolls_back_a_part(store, app)


def test_a_savepoint_that_is_closed_and_not_rolled_back_takes_its_part_along(
    store: alkstore.sync.Store, engine: Engine
) -> None:
    with Session(engine) as session:
        with store.join(session) as tx:
            tx.enqueue("q", 1)
        savepoint = session.begin_nested()
        with store.join(session) as tx:
            tx.enqueue("q", 2)
        savepoint.close()
        session.commit()

    assert payloads(store) == [1]


def test_what_was_joined_is_closed_after_the_commit_and_the_session_goes_on(
    store: alkstore.sync.Store, engine: Engine
) -> None:
    with Session(engine) as session:
        with store.join(session) as tx:
            tx.enqueue("q", 1)
            session.commit()
            with pytest.raises(Closed):
                tx.enqueue("q", 2)
        with store.join(session) as tx:
            tx.enqueue("q", 3)
        with store.join(session) as tx:
            tx.enqueue("q", 4)
        session.commit()

    assert payloads(store) == [1, 3, 4]


def test_a_session_that_is_closed_or_dropped_without_a_commit_leaves_nothing(
    store: alkstore.sync.Store, engine: Engine
) -> None:
    with Session(engine) as session, store.join(session) as tx:
        tx.enqueue("q", 1)
    dropped = Session(engine)
    with store.join(dropped) as tx:
        tx.save_offset("s", "c", 7)
    dropped.connection().invalidate()
    del dropped, tx
    gc.collect()

    with Session(engine) as session, store.join(session) as tx:
        tx.save_offset("s", "c", 1)  # which nobody holds any more
        session.commit()
    assert payloads(store) == []


@every_session
def test_the_commit_wakes_a_thread_that_waits_for_a_job(
    store: alkstore.sync.Store, path: str, make: Make
) -> None:
    with make(path) as app:
        wakes_who_waits(store, app)


@every_session
def test_what_is_refused_leaves_the_transaction_usable(
    store: alkstore.sync.Store, path: str, make: Make
) -> None:
    with make(path) as app:
        refuses_and_goes_on(store, app)


def test_a_position_that_was_reset_meanwhile_refuses_the_sessions_commit(
    store: alkstore.sync.Store, engine: Engine
) -> None:
    with Session(engine) as session:
        session.execute(text("CREATE TABLE t (id)"))
        with store.join(session) as tx:
            tx.save_offset("s", "c", 7)
        with alkstore.outside_tx():
            store.stream("s").reset_offset("c", 3)
        with pytest.raises(OffsetConflict):
            session.commit()


def test_a_store_that_is_closed_meanwhile_lets_the_session_commit(engine: Engine) -> None:
    store = alkstore.sync.open("mem://")
    with Session(engine) as session:
        session.execute(text("CREATE TABLE t (id)"))
        with store.join(session) as tx:
            tx.enqueue("q", 1)
        store.close()
        session.commit()
        assert session.execute(text("SELECT * FROM t")).all() == []


def test_two_stores_ride_one_session(store: alkstore.sync.Store, engine: Engine) -> None:
    with alkstore.sync.open("mem://") as other, Session(engine) as session:
        for each in (store, other):
            with each.join(session) as tx:
                tx.enqueue("q", 1)
        session.commit()

        assert payloads(store) == payloads(other) == [1]


# ---------------------------------------------------------------- what cannot be joined


@pytest.mark.parametrize("given", [7, "a", object(), Session])
def test_what_is_no_session_is_refused_by_name(store: alkstore.sync.Store, given: object) -> None:
    with pytest.raises(InvalidArgument, match="joins, from a plain thread, a SQLAlchemy"), store.join(given):
        pass


def test_what_tells_of_no_commit_is_refused(store: alkstore.sync.Store, engine: Engine) -> None:
    with engine.connect() as connection, pytest.raises(InvalidArgument, match="this engine joins"):
        store.join(connection).__enter__()


def test_a_session_that_commits_by_itself_is_refused(store: alkstore.sync.Store, engine: Engine) -> None:
    with Session(engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
        with pytest.raises(InvalidArgument, match="commits every statement by itself"), store.join(session):
            pass
        assert not session.in_transaction()
