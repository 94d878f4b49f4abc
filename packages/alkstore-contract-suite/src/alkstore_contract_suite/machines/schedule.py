"""Steps on schedules."""

from datetime import datetime, timedelta
from typing import Final

from alkstore import Schedule, Store
from alkstore_contract_suite.machines.queue import EVERYTHING, new_job, options, seen
from alkstore_contract_suite.machines.stage import EPOCH, Stage, look, micros, operation
from alkstore_contract_suite.machines.trace import Step
from alkstore_contract_suite.model.allowed import Raised, such
from alkstore_contract_suite.model.row import Seen

UNITS: Final = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


def _every(spec: str) -> int:
    """Read a spec that a machine wrote."""
    number = spec.removeprefix("@every ")
    return int(number[:-1]) * UNITS[number[-1]]


def _anchor(stage: Stage, step: Step) -> datetime | None:
    """Give the instant that lies so many seconds after now."""
    ahead = step.get("anchor")
    return None if ahead is None else EPOCH + timedelta(microseconds=stage.now + round(ahead * 1_000_000))


@operation("schedule")
async def _schedule(stage: Stage, step: Step) -> bool:
    name, spec, queue, on = step["schedule"], step["spec"], step["queue"], step.get("on", "a")
    store = await stage.store(on)
    stage.queues[queue] = None
    # The payload names its schedule, or nobody could tell whose a fired job is.
    job, anchor = new_job(queue, step, name), _anchor(stage, step)
    at = None if anchor is None else micros(anchor)
    allowed = stage.writes(step, on, stage.world.schedules.put(stage.now, name, _every(spec), job, at))
    call = store.schedule(name, spec, queue, name, anchor=anchor, **options(step))
    await stage.hold(allowed, call, "SCHED-01, SCHED-03", lambda made: micros(made.next_fire_at))
    return False


@operation("unschedule")
async def _unschedule(stage: Stage, step: Step) -> bool:
    name, on = step["schedule"], step.get("on", "a")
    store = await stage.store(on)
    allowed = stage.writes(step, on, stage.world.schedules.remove(name))
    await stage.hold(allowed, store.unschedule(name), "SCHED-07")
    return False


@operation("tick")
async def _tick(stage: Stage, step: Step) -> bool:
    on = step.get("on", "a")
    store = await stage.store(on)
    world = stage.world
    due = [[*fires] for fires in world.schedules.due(stage.now)]
    allowed = stage.writes(step, on, world.tick(stage.now))
    got = await stage.hold(allowed, store.tick_schedules(), "SCHED-04, SCHED-06, SCHED-08")
    if isinstance(got, Raised):
        return False
    found = [job for queue in stage.queues for job in await _new(stage, store, queue)]
    wanted = (
        ", ".join(f"{fire.job.payload} at {fire.boundary}" for fires in due for fire in fires) or "no job"
    )
    allowed = such(
        wanted, lambda jobs: world.fired(stage.now, due, jobs), lambda _: world.schedules.passed(stage.now)
    )
    stage.check(allowed, found, "SCHED-04 to SCHED-06", "what a pass fired")
    return False


async def _new(stage: Stage, store: Store, queue: str) -> list[Seen]:
    """Give the jobs of a queue that the model does not know yet."""
    found = [seen(job) for job in await store.queue(queue).list(limit=EVERYTHING)]
    return [job for job in found if job.id not in stage.world.jobs.rows]


@look("schedule")
async def _look(stage: Stage, store: Store) -> None:
    found = [_told(each) for each in await store.schedules()]
    stage.same(found, stage.world.schedules.look(), "SCHED-01, SCHED-03, SCHED-06", "the list of schedules")


def _told(found: Schedule) -> tuple[str, int, str, object, int | None, int]:
    anchor = None if found.anchor is None else micros(found.anchor)
    return found.name, _every(found.spec), found.queue, found.payload, anchor, micros(found.next_fire_at)
