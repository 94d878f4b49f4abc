"""What callers who were cancelled leave in the driver's threads, and what becomes of those behind it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from engines import PATIENCE, held_up, locked, opened, rest, rows
from hanging import HUNG
from jobs import new_job

from alkstore.errors import DatabaseError
from alkstore.testing import ManualClock
from alkstore_sqlite.engine import SqliteEngine

FOR_EVER = 100 * HUNG
"""Seconds to wait for another process, of which no test sees the end."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


async def insert(engine: SqliteEngine, payload: bytes = b"1") -> int:
    (id,) = await engine.insert_jobs([new_job(payload)])
    return id


async def leave(call: asyncio.Future[Any]) -> None:
    call.cancel()
    await asyncio.wait((call,))
    assert call.cancelled()


# ---------------------------------------------------------------- behind another process' lock


@pytest.mark.parametrize(
    "operation",
    [
        lambda engine: insert(engine),
        lambda engine: engine.insert_jobs([new_job()] * 2),
        lambda engine: engine.claim_jobs("q", ["me"]),
        lambda engine: engine.begin(),
    ],
    ids=["insert", "insert_two", "claim", "begin"],
)
async def test_a_caller_who_has_gone_is_waited_for_by_nobody(
    path: Path, operation: Callable[[SqliteEngine], Awaitable[object]]
) -> None:
    async with opened(path, wait_timeout=FOR_EVER) as engine:
        with locked(path):
            for _ in range(3):
                call = asyncio.ensure_future(operation(engine))
                await held_up(engine)
                await leave(call)

                await rest(engine)  # the lock is held still
        await insert(engine, b"after")

    assert rows(path) == [b"after"]


# ---------------------------------------------------------------- behind a hop that goes on


class GatedClock(ManualClock):
    """A clock at which a hop stands still, with the write lock in its hands, while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.has_looked = threading.Event(), threading.Event()
        self.gate.set()

    def now(self) -> int:
        if threading.current_thread() is not threading.main_thread():
            self.has_looked.set()
            assert self.gate.wait(PATIENCE)
        return super().now()


async def test_who_comes_behind_a_hop_whose_caller_has_gone_waits_no_longer_than_he_said(path: Path) -> None:
    clock = GatedClock()
    async with opened(path, wait_timeout=0.05, clock=clock) as engine:
        clock.gate.clear()
        clock.has_looked.clear()
        call = asyncio.ensure_future(insert(engine, b"gone"))
        try:
            await asyncio.to_thread(clock.has_looked.wait, HUNG)
            await leave(call)

            async with asyncio.timeout(PATIENCE / 2):
                with pytest.raises(DatabaseError, match=r"held by other writes for over 0\.05 s"):
                    await insert(engine, b"behind")
                with pytest.raises(DatabaseError, match=r"held by other writes for over 0\.05 s"):
                    await engine.begin()
        finally:
            clock.gate.set()
        await insert(engine, b"after")

    assert rows(path) == [b"gone", b"after"]
