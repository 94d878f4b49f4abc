"""Steps on queues."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from alkstore import Job, JobHandle, Queue, Store
from alkstore_contract_suite.machines.stage import Absent, Stage, look, micros, operation, span
from alkstore_contract_suite.machines.trace import Step
from alkstore_contract_suite.model.allowed import Allowed
from alkstore_contract_suite.model.queue import Jobs
from alkstore_contract_suite.model.row import Claim, NewJob, Seen

__all__ = ["BY_NAME", "claims", "new_job", "options", "seen", "settle"]

EVERYTHING: Final = 100_000
"""More than a machine ever enqueues."""

BY_NAME: Final = {"visibility_timeout": 300.0, "max_attempts": 3, "base_delay": 5.0}
"""The options of a queue for which nothing was said."""

Call: TypeAlias = Callable[[], Awaitable[Any]]

GIVEN: Final = ("priority", "delay", "visibility_timeout", "max_attempts", "base_delay", "expires")


def options(step: Step) -> dict[str, Any]:
    """Give the options of an enqueue that a step names."""
    return {name: step[name] for name in GIVEN if step.get(name) is not None}


def new_job(queue: str, step: Step, payload: object, defaults: dict[str, Any] | None = None) -> NewJob:
    """Give what an enqueue is to store; a step's durations are seconds."""
    found = {**(defaults or BY_NAME), **options(step)}
    moments = {name: round(found[name] * 1_000_000) for name in ("delay", "expires") if name in found}
    return NewJob(
        queue,
        payload,
        priority=found.get("priority", 0),
        visibility=round(found["visibility_timeout"] * 1_000_000),
        max_attempts=found["max_attempts"],
        base_delay=round(found["base_delay"] * 1_000_000),
        **moments,
    )


def seen(job: Job) -> Seen:
    """Give a job in the model's words."""

    def instant(value: Any) -> int | None:
        return None if value is None else micros(value)

    return Seen(
        job.id, job.queue, job.payload, job.state.value.lower(), job.priority, micros(job.run_at), instant(job.expires_at),
        job.attempts, job.max_attempts, span(job.visibility_timeout), span(job.base_delay), job.worker_id,
        instant(job.deadline), micros(job.created_at), instant(job.scheduled_for), job.retry_error, job.last_error,
        instant(job.died_at),
    )  # fmt: skip


@operation("enqueue")
async def _enqueue(stage: Stage, step: Step) -> bool:
    queue, on = step["queue"], step.get("on", "a")
    store = await stage.store(on)
    stage.queues[queue] = None
    payloads = step["payloads"]
    jobs = [new_job(queue, step, payload) for payload in payloads]
    allowed = stage.writes(step, on, stage.world.jobs.enqueue(stage.now, jobs))
    if len(payloads) == 1:
        got = await stage.hold(
            allowed, store.queue(queue).enqueue(payloads[0], **options(step)), "Q-01 to Q-04", lambda id: [id]
        )
        ids = [got]
    else:
        ids = await stage.hold(allowed, store.queue(queue).enqueue_batch(payloads, **options(step)), "Q-22")
    if stage.tx is not None:
        return False
    stage.give(step, ids[-1], queue, store)
    return True


@operation("claim")
async def _claim(stage: Stage, step: Step) -> bool:
    queue, on, count = step["queue"], step.get("on", "a"), step.get("count", 1)
    store = await stage.store(on)
    stage.queues[queue] = None
    handles = await claims(stage, step, store.queue(queue), queue, count)
    for number, handle in enumerate(handles):
        row = stage.world.jobs.rows[handle.job.id]
        named = step if number == 0 else {**step, "as": f"{step['as']}.{number}"}
        stage.give(named, handle, Claim(row.id, queue, row.claim), store)
    return bool(handles)


async def claims(stage: Stage, step: Step, queue: Queue, name: str, count: int) -> Sequence[JobHandle]:
    """Claim, and compare what was got with the model's rows in full."""
    worker = step.get("worker", "w")
    allowed = stage.writes(step, step.get("on", "a"), stage.world.jobs.claim(stage.now, name, count, worker))
    if count == 1:
        got = await stage.hold(
            allowed,
            queue.claim_one(worker_id=worker),
            "Q-05, Q-06, Q-08",
            lambda one: _told([one] if one else []),
        )
        handles = [got] if isinstance(got, JobHandle) else []
    else:
        got = await stage.hold(allowed, queue.claim_batch(count, worker_id=worker), "Q-05, Q-06, Q-08", _told)
        handles = got if isinstance(got, list) else []
    for handle in handles:
        stage.check(stage.world.jobs.show(handle.job.id, name), seen(handle.job), "Q-06", "a claimed job")
    return handles


def _told(handles: Sequence[JobHandle]) -> list[tuple[int, int, int, str | None]]:
    jobs = [handle.job for handle in handles]
    return [
        (job.id, job.attempts, micros(job.deadline) if job.deadline else 0, job.worker_id) for job in jobs
    ]


# ---------------------------------------------------------------- settles


@operation("settle")
async def _settle(stage: Stage, step: Step) -> bool:
    named = stage.take(step["claim"])
    handle: JobHandle = named.real
    await settle(stage, step, handle, named.model, named.on)
    return False


async def settle(stage: Stage, step: Step, handle: JobHandle, claim: Claim, on: str) -> None:
    """Do what a step wants with a claim."""
    if stage.tx is not None and claim.is_consumed:
        # Both are so, and the contract does not say which is told.
        raise Absent("a settle of a used handle inside a transaction")
    allowed, call, rows = _verb(stage.world.jobs, stage.now, step, handle, claim)
    await stage.hold(stage.writes(step, on, allowed), call(), rows)


def _verb(jobs: Jobs, now: int, step: Step, handle: JobHandle, claim: Claim) -> tuple[Allowed, Call, str]:
    """Give what a settle may answer, the settle itself, and the rows that say so."""
    how, error, delay, window = (step.get(name) for name in ("how", "error", "delay", "window"))
    if how == "ack":
        return jobs.ack(now, claim), handle.ack, "Q-09, Q-10, Q-15"
    if how == "retry":
        wait = None if delay is None else round(delay * 1_000_000)
        return (
            jobs.retry(now, claim, str(error), wait),
            partial(handle.retry, error=error, delay=delay),
            "Q-09, Q-11, Q-12, Q-15",
        )
    if how == "fail":
        return jobs.fail(now, claim, error), partial(handle.fail, error), "Q-09, Q-13, Q-15"
    if how == "release":
        return jobs.release(now, claim), handle.release, "Q-09, Q-15, Q-27"
    length = None if window is None else round(window * 1_000_000)
    return jobs.heartbeat(now, claim, length), partial(handle.heartbeat, window), "Q-09, Q-14"


# ---------------------------------------------------------------- administration


@operation("sweep")
async def _sweep(stage: Stage, step: Step) -> bool:
    queue, on = step["queue"], step.get("on", "a")
    store = await stage.store(on)
    allowed = stage.writes(step, on, stage.world.jobs.sweep(stage.now, queue))
    await stage.hold(allowed, store.queue(queue).sweep_expired(), "Q-17")
    return False


@operation("cancel")
async def _cancel(stage: Stage, step: Step) -> bool:
    id, queue, on = stage.take(step["job"]).real, step["queue"], step.get("on", "a")
    store = await stage.store(on)
    allowed = stage.writes(step, on, stage.world.jobs.cancel(id, queue))
    await stage.hold(allowed, store.queue(queue).cancel(id), "Q-04, Q-18")
    return False


@operation("redrive")
async def _redrive(stage: Stage, step: Step) -> bool:
    ids = [stage.take(name).real for name in step["jobs"]]
    queue, on = step["queue"], step.get("on", "a")
    store = await stage.store(on)
    allowed = stage.writes(step, on, stage.world.jobs.redrive(stage.now, queue, ids))
    await stage.hold(allowed, store.queue(queue).redrive(*ids), "Q-19")
    return False


@operation("purge")
async def _purge(stage: Stage, step: Step) -> bool:
    queue, on, older = step["queue"], step.get("on", "a"), step["older_than"]
    store = await stage.store(on)
    allowed = stage.writes(step, on, stage.world.jobs.purge(stage.now, queue, round(older * 1_000_000)))
    await stage.hold(allowed, store.queue(queue).purge_dead(older_than=older), "Q-19")
    return False


# ---------------------------------------------------------------- looks


@look("queue")
async def _look(stage: Stage, store: Store) -> None:
    for name in stage.queues:
        await look_at(stage, store.queue(name), name)
    names = [name for name in stage.world.jobs.names() if name in stage.queues]
    stage.same(await store.queues(), names, "ADM-01", "the list of queues")


async def look_at(stage: Stage, queue: Queue, name: str) -> None:
    """Compare all the jobs of a queue, and their counts."""
    found = [seen(job) for job in await queue.list(limit=EVERYTHING)]
    stage.check(stage.world.jobs.look(name), found, "Q-08, Q-10 to Q-19", f"the list of {name}")
    if stage.tx is not None and stage.tx.acked:
        return  # not a quiet moment: what stats says of a job that an open transaction acked is not promised
    stats = await queue.stats()
    age = None if stats.oldest_ready_age is None else span(stats.oldest_ready_age)
    told = (stats.ready, stats.delayed, stats.processing, stats.stale, stats.dead, age)
    stage.check(stage.world.jobs.stats(stage.now, name), told, "Q-20", f"the stats of {name}")
