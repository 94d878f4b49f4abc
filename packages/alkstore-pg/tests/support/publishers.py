"""Many transactions that publish at once, and a reader beside them: what it missed."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter

from streams import Streams

from alkstore_pg import stream
from alkstore_pg.link import DriverSession

__all__ = ["Outcome", "publish_at_once"]

NAMES = ("a", "b", "c")
PAGE = 100
ROLLED_BACK = 0.1
WITH_SAVEPOINT = 0.2

LONGEST_HOLD = 0.003
"""Seconds that a transaction stays open between its appends and its end."""


@dataclass
class Outcome:
    committed: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    seen: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    transactions: int = 0
    seconds: float = 0.0
    durations: list[float] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    """Seconds from the answer to a commit until the reader had the event."""
    committed_at: dict[tuple[str, int], float] = field(default_factory=dict)
    heads_fell: int = 0

    @property
    def events(self) -> int:
        return sum(map(len, self.committed.values()))

    @property
    def missed(self) -> int:
        return sum(len(offsets - set(self.seen[name])) for name, offsets in self.committed.items())

    @property
    def invented(self) -> int:
        return sum(len(set(offsets) - self.committed[name]) for name, offsets in self.seen.items())

    @property
    def disordered(self) -> int:
        return sum(b <= a for offsets in self.seen.values() for a, b in pairwise(offsets))


class _Writer:
    def __init__(
        self, world: Streams, on: DriverSession, outcome: Outcome, random: random.Random, hold: float
    ) -> None:
        self._world, self._on, self._outcome, self._random = world, on, outcome, random
        self._hold = hold

    async def transact(self, *, savepoints: bool) -> None:
        begun = perf_counter()
        floors: dict[int, int] = {}
        landed: list[tuple[str, int]] = []
        transaction = self._on.connection.transaction()
        await transaction.start()
        for _ in range(self._random.randint(1, 2)):
            if savepoints and self._random.random() < WITH_SAVEPOINT:
                savepoint = self._on.connection.transaction()
                await savepoint.start()
                await self._append(floors)
                await savepoint.rollback()
            landed += await self._append(floors)
        if self._hold:
            await self._on.fetch("SELECT pg_sleep($1::float8)", self._random.uniform(0, self._hold))
        if self._random.random() < ROLLED_BACK:
            await transaction.rollback()
            return
        await transaction.commit()
        now = perf_counter()
        self._outcome.transactions += 1
        self._outcome.durations.append(now - begun)
        for name, offset in landed:
            self._outcome.committed[name].add(offset)
            self._outcome.committed_at[name, offset] = now

    async def _append(self, floors: dict[int, int]) -> Sequence[tuple[str, int]]:
        names = self._random.choices(NAMES, k=self._random.randint(1, 3))
        offsets = await self._world.publish(*names, on=self._on, floors=floors)
        return list(zip(names, offsets, strict=True))


class _Reader:
    def __init__(self, world: Streams, on: DriverSession, outcome: Outcome) -> None:
        self._world, self._on, self._outcome = world, on, outcome
        self._last = dict.fromkeys(NAMES, 0)
        self._heads = dict.fromkeys(NAMES, 0)

    async def look(self, *, heads: bool) -> int:
        found = 0
        for name in NAMES:
            key = await self._world.key(name)
            page = await stream.read(self._on, name, key, self._last[name], PAGE)
            now = perf_counter()
            for record in page.events:
                self._last[name] = record.offset
                self._outcome.seen[name].append(record.offset)
                if (at := self._outcome.committed_at.get((name, record.offset))) is not None:
                    self._outcome.delays.append(max(now - at, 0.0))
            found += len(page.events)
            if heads:
                head = await stream.head(self._on, key)
                self._outcome.heads_fell += head < self._heads[name]
                self._heads[name] = head
        return found


async def publish_at_once(
    world: Streams,
    is_enough: Callable[[Outcome, float], bool],
    *,
    writers: int = 16,
    seed: int = 0,
    hold: float = LONGEST_HOLD,
    savepoints: bool = True,
    heads: bool = False,
) -> Outcome:
    """Have writers publish until it is enough, and a reader read all the while, as fast as it can."""
    outcome = Outcome()
    begun = perf_counter()
    reader = _Reader(world, await world.session(), outcome)
    await world.keys.made(NAMES)

    async def write(number: int) -> None:
        writer = _Writer(world, await world.session(), outcome, random.Random(seed * 1_000 + number), hold)
        while not is_enough(outcome, perf_counter() - begun):
            await writer.transact(savepoints=savepoints)

    writing = asyncio.gather(*(write(number) for number in range(writers)))
    while not writing.done():
        await reader.look(heads=heads)
    await writing
    outcome.seconds = perf_counter() - begun
    while await reader.look(heads=heads):
        pass
    return outcome
