"""Two engines are given the same calls in the same order, and must give the same answers: what mem keeps in plain objects
is the oracle for what SQLite keeps in rows and indexes. The clock steps forward and back between the calls.
"""

import random
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from calls import JOBS, OTHERS, QUEUES, STEPS, Drawing, Side, answered

from alkstore.testing import ManualClock, seeded
from alkstore_mem import MemStore
from alkstore_sqlite import SqliteStore

CALLS: Final = 220
"""Calls of a sequence."""


async def compare(path: Path, seed: int) -> None:
    drawn = random.Random(seed)
    # Few names at a time, or nothing meets anything.
    mine = drawn.sample(QUEUES, 2)
    async with AsyncExitStack() as stack:
        first, second = ManualClock(), ManualClock()
        mem = MemStore(clock=first, random=seeded(seed), worker_id="w")
        file = SqliteStore(path, clock=second, random=seeded(seed), worker_id="w", durability="process")
        sides = [
            Side(await stack.enter_async_context(mem), first),
            Side(await stack.enter_async_context(file), second),
        ]
        told: list[str] = []
        for number in range(CALLS):
            if drawn.random() < 0.25:
                step = drawn.choice(STEPS)
                told.append(f"step {step}")
                for side in sides:
                    await side.clock.advance(step)
            call = drawn.choice(JOBS if drawn.random() < 0.7 else OTHERS)
            draws = drawn.random()
            told.append(f"{call.__name__} {draws}")
            expected, got = [await answered(partial(call, side, Drawing(draws, mine))) for side in sides]
            assert got == expected, (seed, number, told[-12:], first.datetime)


@pytest.mark.parametrize("seed", range(24))
async def test_the_same_calls_give_the_same_answers_on_mem_and_on_a_file(tmp_path: Path, seed: int) -> None:
    await compare(tmp_path / "a.db", seed)
