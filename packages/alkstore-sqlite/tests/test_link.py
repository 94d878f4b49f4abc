"""The end of a connection whose thread does not answer any more."""

import asyncio
import threading
from pathlib import Path

import pytest
from hanging import HUNG

from alkstore.errors import DatabaseError
from alkstore_sqlite.connection import Connection, Program
from alkstore_sqlite.link import Link


class Gated(Program):
    """A program that stands still until it is let go on."""

    def __init__(self) -> None:
        self.has_begun, self.gate = threading.Event(), threading.Event()

    def run(self, connection: Connection) -> None:
        self.has_begun.set()
        assert self.gate.wait(HUNG)


async def caught(link: Link, program: Program) -> BaseException | None:
    try:
        await link.hop(program)
    except BaseException as error:
        return error
    return None


async def cleans_up(link: Link, program: Program) -> BaseException | None:
    """Hop in the clean-up after a cancellation of the task's own."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return await caught(link, program)
    return None


@pytest.mark.parametrize("is_cancelled_before", [False, True])
async def test_who_is_cut_off_is_told_and_not_cancelled(tmp_path: Path, is_cancelled_before: bool) -> None:
    link = await Link.open(str(tmp_path / "a.db"), lambda connection: None)
    program = Gated()
    task = asyncio.ensure_future((cleans_up if is_cancelled_before else caught)(link, program))
    await asyncio.sleep(0)
    if is_cancelled_before:
        task.cancel()
    assert await asyncio.to_thread(program.has_begun.wait, HUNG)

    await link.close(0)
    error = await task
    program.gate.set()
    # It answers in this loop, and must not come too late for that.
    await asyncio.to_thread(link.connection._thread.join, HUNG)

    assert isinstance(error, DatabaseError)
    assert error.outcome_unknown
    assert task.cancelling() == int(is_cancelled_before)
