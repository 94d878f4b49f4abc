"""What is measured on PostgreSQL alone: many processes, many connections, and an old snapshot that somebody holds."""

import asyncio
import sys
from contextlib import ExitStack
from typing import Any, Final, Self

from actor import Actor, Slices, in_turn
from figure import Figure
from pg_scaling import churn
from pg_sides import Bare, Ours
from stage import OURS, Amount, Stage, figures
from workloads import JOINS, Work, drain, fill

__all__ = ["Spread", "connections", "processes", "snapshot"]

PROCESSES: Final = (1, 4, 16)
JOBS: Final = {OURS: 40_000, "pgqueuer": 12_000, "procrastinate": 600}
"""Jobs of one run: about a second of each side."""
FEWER: Final = {"procrastinate": 4}
"""Processes at most, of those that are no faster with 16."""
ROUNDS: Final = 3
CONNECTIONS: Final = (1, 4, 16, 64)
SECONDS: Final = 15.0
STEP: Final = 1.0


# ---------------------------------------------------------------- processes


def _run(stage: Stage, side: str, number: int, jobs: int, dsn: str) -> list[float]:
    """Have so many processes work off the same jobs, round by round; gives jobs a second."""
    kind = stage.sides[side]
    rates = []
    with ExitStack() as stack:
        workers = [stack.enter_context(Actor(kind, dsn, ""))]
        # One makes the tables; the others start together.
        others = [Actor(kind, dsn, JOINS) for _ in range(number - 1)]
        workers += [stack.enter_context(other) for other in others]
        for turn in range(ROUNDS + 1):
            workers[0].do(fill, jobs)
            for worker in workers:
                worker.begin(drain, 1)
            longest = max(1 / worker.end().rate for worker in workers)
            if turn:  # the first warms up
                rates.append(jobs / longest)
    return rates


def processes(stage: Stage, amount: Amount) -> list[Figure]:
    """Work off one queue by 1, 4 and 16 processes, each with the library's own worker, from the first to the last one's end."""
    found = []
    for number in PROCESSES:
        for side, jobs in JOBS.items():
            if side not in stage.sides or number > FEWER.get(side, number):
                continue
            with stage.place() as dsn:
                rates = _run(stage, side, number, amount.of(jobs, 500), dsn)
            found.append(Figure("processes", "worker", side, number, "/s", rates))
            print(f"{number} processes, {side}: {rates}", file=sys.stderr)
    return found


# ---------------------------------------------------------------- connections


class Spread:
    """Many of one side, each with its own connections, and a task for each."""

    kind: type

    async def open(self, dsn: str, setting: str) -> Self:
        self._sides: list[Any] = [await self.kind().open(dsn) for _ in range(int(setting))]
        return self

    async def close(self) -> None:
        for side in self._sides:
            await side.close()

    async def enqueue(self, count: int) -> None:
        """Have each enqueue its share, one by one."""

        async def share(side: Any) -> None:
            for _ in range(count // len(self._sides)):
                await side.enqueue()

        await asyncio.gather(*map(share, self._sides))


class Stores(Spread):
    """A store for each."""

    kind = Ours


class Drivers(Spread):
    """A connection of the bare driver for each."""

    kind = Bare


async def _enqueue(side: Spread, count: int) -> None:
    await side.enqueue(count)


def connections(stage: Stage, amount: Amount) -> list[Figure]:
    """Enqueue one by one through more and more stores, each as one process of a fleet would hold it."""
    found: list[Figure] = []
    for number in CONNECTIONS:
        with ExitStack() as stack:
            actors = {
                name: Actor(kind, stack.enter_context(stage.place()), str(number))
                for name, kind in ((OURS, Stores), ("bare driver", Drivers))
            }
            for actor in actors.values():
                stack.enter_context(actor)
            work = Work("enqueue one by one", _enqueue, tuple(actors), 2 * number, seconds=0.3)
            samples = in_turn(work, actors, Slices(5 if amount.share == 1 else 2, 1))
        found += figures("connections", work.name, samples, number)
    return found


# ---------------------------------------------------------------- a held snapshot


def snapshot(stage: Stage, amount: Amount) -> list[Figure]:
    """Produce and ack by 100 while somebody holds a snapshot, so that nothing that is done can be cleaned away."""
    found, seconds = [], SECONDS * max(amount.share, 0.3)
    for is_held in (False, True):
        with stage.place() as dsn:
            rates = asyncio.run(churn(dsn, seconds, 1, is_held=is_held, step=STEP))
        name = "snapshot held" if is_held else "no snapshot"
        found.append(Figure("snapshot", name, OURS, STEP, "/s", rates))
        print(f"{name}: {rates}", file=sys.stderr)
    return found
