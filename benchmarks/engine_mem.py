"""The benchmarks in memory."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from axes import backlog, payload
from figure import Figure
from mem_sides import AsyncioQueue, Ours, Skeleton
from mem_wakes import wakes
from memory import memory
from stage import OURS, Amount, Stage, Target, figures, rates, visited
from workloads import (
    BATCH,
    CLAIMED,
    Work,
    claim,
    claim_by_batch,
    enqueue,
    enqueue_by_batch,
    fill,
    fill_stream,
    lock,
    pass_through,
    publish,
    publish_by_batch,
    replay,
    stay,
    work,
)

__all__ = ["PARTS", "SIDES", "stage"]

SIDES: Final[Mapping[str, type]] = {OURS: Ours, "bare skeleton": Skeleton, "asyncio.Queue": AsyncioQueue}
ALL: Final = tuple(SIDES)
ROWS: Final = (OURS, "bare skeleton")

WORKS: Final = (
    Work("enqueue one by one", enqueue, ALL, 100),
    Work("enqueue by 1,000", enqueue_by_batch, ALL, BATCH),
    Work("claim+ack one by one", claim, ALL, 100, fill),
    Work("claim+ack by 100", claim_by_batch, ALL, CLAIMED, fill),
    Work("publish one by one", publish, ROWS, 100),
    Work("publish by 1,000", publish_by_batch, ROWS, BATCH),
    Work("replay", replay, ROWS, BATCH, fill_stream, seconds=0.05),
    Work("lock, release", lock, (OURS,), 100),
    Work("worker", work, (OURS,), BATCH, fill, seconds=0.4),
    Work("enqueue, claim, ack", pass_through, ALL, 10, part="payload"),
    Work("enqueue, claim, ack", stay, ALL, 100, part="backlog"),
)
FOOTPRINT: Final = 1_000_000


def footprint(stage: Stage, amount: Amount) -> list[Figure]:
    """Measure the memory of many small jobs that wait."""
    count = amount.of(FOOTPRINT / BATCH) * BATCH
    found = []
    for name in ALL:
        with visited(stage, [name], "") as (actors, _):
            sample = actors[name].measure(fill, count)
        found += figures("footprint", "jobs that wait", {name: [sample]}, count)
    return found


PARTS: Final[Mapping[str, Callable[[Stage, Amount], list[Figure]]]] = {
    "rates": rates,
    "footprint": footprint,
    "backlog": backlog,
    "payload": payload,
    "wakes": wakes,
    "memory": memory,
}


@contextmanager
def _nowhere() -> Iterator[None]:
    yield None


def _target(place: Any, setting: str) -> Target:
    return Target("mem://", {})


def stage(sides: Mapping[str, type]) -> Stage:
    """Give the stage with some sides."""
    fewer = {OURS: 6, "bare skeleton": 6, "asyncio.Queue": 6}
    return Stage("mem", {"": ""}, sides, WORKS, _nowhere, _target, None, None, fewer)
