"""Two engines are given the same calls in the same order, and must give the same answers: what mem keeps in plain objects
is the oracle for what SQLite keeps in rows and indexes. The clock steps forward and back between the calls.
"""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest
from differential import compare
from sides import Side

from alkstore.testing import ManualClock, seeded
from alkstore_mem import MemStore
from alkstore_sqlite import SqliteStore

CALLS: Final = 220
"""Calls of a sequence."""


@pytest.mark.parametrize("seed", range(24))
async def test_the_same_calls_give_the_same_answers_on_mem_and_on_a_file(tmp_path: Path, seed: int) -> None:
    first, second = ManualClock(), ManualClock()
    async with AsyncExitStack() as stack:
        mem = MemStore(clock=first, random=seeded(seed), worker_id="w")
        file = SqliteStore(
            tmp_path / "a.db", clock=second, random=seeded(seed), worker_id="w", durability="process"
        )
        sides = [
            Side([await stack.enter_async_context(mem)], first),
            Side([await stack.enter_async_context(file)], second),
        ]

        await compare(sides, seed, CALLS)
