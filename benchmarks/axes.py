"""What a job costs as something grows: the rows that wait, the rows that are dead, the payload."""

import os
import sys
from typing import Any, Final

from actor import Actor, Slices, in_turn
from figure import Figure
from stage import OURS, Amount, Stage, figures, visited
from workloads import BATCH, Work, fill

__all__ = ["REFERENCE", "backlog", "dead", "payload"]

REFERENCE: Final = "alkstore, 1,000 rows"
SLICES: Final = 5
DECADES: Final = range(2, 8)
DEAD: Final = (0, 3, 4, 5, 6)
SIZES: Final = (100, 1_000, 10_000, 100_000, 1_000_000)
SECONDS: Final = 0.2


def backlog(stage: Stage, amount: Amount) -> list[Figure]:
    """Claim and finish jobs while 10² … 10⁷ others wait, and stay that many; every side as far as it is given rows.

    Beside them a store with a thousand rows takes its turns: what a machine does after millions of rows were written to
    it, it does to both.
    """
    found: list[Figure] = []
    work, setting = _claiming(stage), next(iter(stage.settings))
    with (
        visited(stage, work.sides, setting) as (actors, places),
        visited(stage, [OURS], setting) as (small, at),
    ):
        _grow(stage, OURS, small[OURS], at[OURS], 1_000)
        rows = dict.fromkeys(actors, 0)
        for decade in DECADES:
            if amount.share < 1 and decade > 5:
                break
            those = {
                name: actor
                for name, actor in actors.items()
                if decade <= stage.decades.get(name, max(DECADES))
            }
            if not those:
                break
            for name, actor in those.items():
                _grow(stage, name, actor, places[name], 10**decade - rows[name])
                rows[name] = 10**decade
            os.sync()
            samples = in_turn(work, {**those, REFERENCE: small[OURS]}, _slices(amount))
            found += figures("backlog", work.name, samples, 10**decade, "µs")
    return found


def dead(stage: Stage, amount: Amount) -> list[Figure]:
    """Claim and finish jobs of a queue that keeps more and more dead ones."""
    found: list[Figure] = []
    work = _claiming(stage)
    with visited(stage, [OURS], next(iter(stage.settings))) as (actors, places):
        actors[OURS].do(fill, 2 * BATCH)
        there = 0
        for decade in DEAD:
            wanted = 10**decade if decade else 0
            if stage.add_rows is None or (amount.share < 1 and decade > 5):
                break
            stage.add_rows(places[OURS], "dead", wanted - there)
            there = wanted
            found += figures("dead", work.name, in_turn(work, actors, _slices(amount)), wanted, "µs")
    return found


def payload(stage: Stage, amount: Amount) -> list[Figure]:
    """Enqueue, claim and ack one job, with more and more in it: as one string, as most large payloads are in the main."""
    found: list[Figure] = []
    work = next(work for work in stage.works if work.part == "payload")
    with visited(stage, work.sides, next(iter(stage.settings))) as (actors, _):
        for size in SIZES:
            for actor in actors.values():
                actor.set("payload", {"data": "x" * (size - 11)})
            samples = in_turn(work, actors, _slices(amount))
            found += figures("payload", work.name, samples, size, "µs")
    return found


def _claiming(stage: Stage) -> Work:
    return next(work for work in stage.works if work.part == "backlog")


def _slices(amount: Amount) -> Slices:
    return Slices(SLICES if amount.share == 1 else 2, min(amount.share * 3, 1))


def _grow(stage: Stage, name: str, actor: Actor, place: Any, rows: int) -> None:
    """Have more rows wait: by the storage's own means for ours, by its own interface for a peer."""
    print(f"{name}: {rows:,} more rows", file=sys.stderr)
    if name == OURS and stage.add_rows is not None:
        stage.add_rows(place, "waiting", rows)
    else:
        actor.do(fill, rows)
