"""Schedules: rules, their next boundaries, and the jobs that they become.

State model. What is due is read first and worked out here; one statement then checks the lease, fires and advances. It
passes over what has moved since it was read, so whoever is slower fires nothing twice, and no lock waits for a client.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from alkstore import statements
from alkstore.engine import Fired, NewSchedule, ScheduleRecord, Topic, TopicKind
from alkstore.errors import DatabaseError, show
from alkstore.interval import Due, due_boundaries, first_boundary
from alkstore.numbers import MAX_INSTANT
from alkstore_pg.errors import sqlstate, was_lost
from alkstore_pg.pool import Pool
from alkstore_pg.session import Session
from alkstore_pg.wake import Woken

__all__ = ["CHANGED", "all", "delete", "fire", "put"]

LOGGER: Final = logging.getLogger("alkstore")

CHANGED: Final = (Woken(Topic(TopicKind.SCHEDULE)),)

NOTHING: Final = Due((), MAX_INSTANT)

PASSES: Final = 8
"""How often a pass looks for what others have moved meanwhile. What is due then waits for the next one."""

_SQL: Final = statements.load("alkstore_pg", "schedule")

Landing: TypeAlias = Callable[[Session, Sequence[str]], Awaitable[int | None]]

Write: TypeAlias = Callable[[Landing, Sequence[Woken]], Awaitable[int | None]]
"""Sends a statement that commits by itself with texts that tell others whom it concerns."""


async def put(on: Session, rule: NewSchedule, texts: Sequence[str], patience: int) -> ScheduleRecord:
    """Write by name, whole. Same interval and anchor keep next_fire_at, else the grid starts anew."""
    ((now,),) = await on.fetch(_SQL["now"])
    fresh = first_boundary(now, rule.every, rule.anchor)
    ((next_fire_at,),) = await on.fetch(_SQL["put"], *rule, fresh, texts, patience)
    return ScheduleRecord(rule, next_fire_at)


async def delete(on: Session, name: str, texts: Sequence[str], patience: int) -> bool:
    """Delete by name. True if it was there."""
    ((was_there,),) = await on.fetch(_SQL["delete"], name, texts, patience)
    return bool(was_there)


class _Fire(NamedTuple):
    """What one schedule fires, and its next boundary."""

    name: str
    revision: int
    queue: str
    next_fire_at: int
    due: Due


class _Look(NamedTuple):
    """What is due, and what `Fired` is to say of the rest."""

    fires: Sequence[_Fire]
    next_at: int | None
    led: bool


async def fire(lease: tuple[str, int] | None, pool: Pool, write: Write, patience: int) -> Fired:
    """Fire what is due: nothing if ``lease`` (name and fence) is not live.

    Cost: one round trip if nothing is due, else three.
    """
    count = 0
    broken: set[str] = set()
    for passes_left in reversed(range(PASSES)):
        look = await pool.run(lambda on: _look(on, lease, broken), reads=True)
        if not look.fires:
            # Who lost the lease after he had fired learns it in his next pass.
            return Fired(count, look.next_at, look.led or count > 0)
        count += await _land(look.fires, lease, write, patience, broken)
        if not passes_left:
            return Fired(count, look.fires[0].next_fire_at, True)
    raise AssertionError("the last pass returns")


async def _look(on: Session, lease: tuple[str, int] | None, broken: set[str]) -> _Look:
    rows = await on.fetch(_SQL["due"], *(lease or (None, None)))
    now, led, next_at = rows[0][:3]
    fires: list[_Fire] = []
    for name, revision, every, queue, next_fire_at in (row[3:] for row in rows):
        if name is not None and name not in broken:
            due = _due(name, every, next_fire_at, now)
            if due.boundaries:
                fires.append(_Fire(name, revision, queue, next_fire_at, due))
            else:
                broken.add(name)
    return _Look(fires, next_at, led)


def _due(name: str, every: int, next_fire_at: int, now: int) -> Due:
    """Say what a schedule fires; nothing, logged, if that cannot be said."""
    try:
        if every <= 0:
            raise ValueError(f"stored interval must be positive, got {every}; schedule it again")
        return due_boundaries(next_fire_at, every, now)
    except Exception:
        # Whatever it is, it is this schedule's: the boundaries of the others must not be lost to it.
        LOGGER.exception("scheduler: schedule %s cannot fire", show(name))
        return NOTHING


async def _land(
    fires: Sequence[_Fire], lease: tuple[str, int] | None, write: Write, patience: int, broken: set[str]
) -> int:
    """Enqueue and advance all together, or one by one where one of them cannot: it must not hold back the others."""
    woken = [Woken(Topic(TopicKind.QUEUE, queue)) for queue in dict.fromkeys(fire.queue for fire in fires)]
    try:
        return await write(lambda on, texts: _send(on, fires, lease, texts, patience), woken) or 0
    except DatabaseError as error:
        if not _is_of_a_row(error):
            raise
        if len(fires) == 1:
            LOGGER.exception("scheduler: schedule %s cannot fire", show(fires[0].name))
            broken.add(fires[0].name)
            return 0
    return sum([await _land((fire,), lease, write, patience, broken) for fire in fires])


async def _send(
    on: Session,
    fires: Sequence[_Fire],
    lease: tuple[str, int] | None,
    texts: Sequence[str],
    patience: int,
) -> int | None:
    ((fired,),) = await on.fetch(
        _SQL["fire"],
        *(lease or (None, None)),
        [fire.name for fire in fires],
        [fire.revision for fire in fires],
        [fire.next_fire_at for fire in fires],
        [fire.due.next_at for fire in fires],
        [fire.name for fire in fires for _ in fire.due.boundaries],
        [boundary for fire in fires for boundary in fire.due.boundaries],
        texts,
        patience,
    )
    count: int | None = fired
    return count


_OF_THE_SERVER: Final = ("08", "25", "40", "42", "53", "55", "57", "58", "XX")
"""Classes of errors that come of the server's state or of the schema's, whatever is written."""


def _is_of_a_row(error: DatabaseError) -> bool:
    cause = error.__cause__
    if cause is None or was_lost(cause):
        return False
    state = sqlstate(cause)
    return state is not None and not state.startswith(_OF_THE_SERVER)


async def all(on: Session) -> list[ScheduleRecord]:
    """Give all, sorted by name."""
    return [ScheduleRecord(NewSchedule(*row[:-1]), row[-1]) for row in await on.fetch(_SQL["all"])]
