"""What an engine's benchmarks stand on: its sides, its places, and how much is done."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final, NamedTuple

from actor import Actor, Sample, Slices, in_turn
from figure import Figure
from workloads import Work

import alkstore

__all__ = ["OURS", "Amount", "Stage", "Target", "figures", "rates", "visited"]

OURS: Final = "alkstore"


class Target(NamedTuple):
    """How a store is opened, in any process."""

    url: str
    options: Mapping[str, str]

    def open(self) -> alkstore.Store:
        """Give the store."""
        return alkstore.open(self.url, **self.options)


class Amount(NamedTuple):
    """How much is done.

    Attributes:
        share: Of the whole work: 1, or less for a look at the script.
        slices: Of each side in each workload of the rates.
    """

    share: float
    slices: int

    def of(self, count: float, least: int = 1) -> int:
        """Give this share of a count."""
        return max(round(count * self.share), least)


class Stage(NamedTuple):
    """One engine.

    Attributes:
        settings: What sides are opened with, and how it is called ("" if there is one only).
        sides: By name, ours first; those alone that are installed.
        place: A new place for a side: a file, a database, nothing.
        target: How a store is opened at a place with a setting.
        add_rows: Puts rows there by the storage's own means: ``(place, kind, count)``, kind "waiting" or "dead".
        add_events: Puts events there likewise; what it has not, the store itself publishes.
        decades: Greatest power of ten of rows that a side is given, for those that get fewer than the axis has.
        processor: The one that the sides stay on while they take turns, if they do.
    """

    engine: str
    settings: Mapping[str, str]
    sides: Mapping[str, type]
    works: Sequence[Work]
    place: Callable[[], AbstractContextManager[Any]]
    target: Callable[[Any, str], Target]
    add_rows: Callable[[Any, str, int], None] | None
    add_events: Callable[[Any, int], None] | None
    decades: Mapping[str, int]
    processor: int | None = None


@contextmanager
def visited(
    stage: Stage, names: Sequence[str], setting: str
) -> Iterator[tuple[dict[str, Actor], dict[str, Any]]]:
    """Give sides, each in a process and at a place of its own, and the places; all of them start at once."""
    with ExitStack() as stack:
        wanted = [name for name in names if name in stage.sides]
        places = {name: stack.enter_context(stage.place()) for name in wanted}
        actors = {name: Actor(stage.sides[name], places[name], setting, stage.processor) for name in wanted}
        for actor in actors.values():
            stack.enter_context(actor)
        yield actors, places


def figures(
    part: str, name: str, samples: Mapping[str, Sequence[Sample]], x: float = 0, unit: str = "/s"
) -> list[Figure]:
    """Make a figure of what each side's slices cost: as a rate, or in microseconds an operation."""
    return [
        Figure(
            part,
            name,
            side,
            x,
            unit,
            [each.rate if unit == "/s" else 1e6 / each.rate for each in found],
            [each.cpu for each in found],
            [each.all_cpu for each in found],
            [each.grown for each in found],
        )
        for side, found in samples.items()
    ]


def rates(stage: Stage, amount: Amount) -> list[Figure]:
    """Do every workload in turn: once with each setting.

    The hop of those "in a thread" is the same with every setting: only the first has them.
    """
    found: list[Figure] = []
    slices = Slices(amount.slices, min(amount.share * 3, 1))
    for at, (setting, shown) in enumerate(stage.settings.items()):
        for work in (work for work in stage.works if work.part == "rates"):
            sides = [side for side in work.sides if at == 0 or not side.endswith("in a thread")]
            with visited(stage, sides, setting) as (actors, _):
                name = f"{work.name}, {shown}" if shown else work.name
                found += figures("rates", name, in_turn(work, actors, slices))
    return found
