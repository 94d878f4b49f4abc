"""Steps on outboxes."""

from typing import Final

from alkstore import JobHandle, Store
from alkstore_contract_suite.machines.queue import look_at, new_job, options, seen
from alkstore_contract_suite.machines.stage import Stage, look, operation
from alkstore_contract_suite.machines.trace import Step
from alkstore_contract_suite.model.allowed import just
from alkstore_contract_suite.model.row import Claim, Like, NewJob

__all__ = ["mail"]

BACKING: Final = "__alkstore_outbox:"
STAMPS: Final = {"visibility_timeout": 60.0, "max_attempts": 5, "base_delay": 5.0}

MESSAGE: Final = "the other side said no"
"""What a delivery that fails says."""


def mail(name: str, step: Step, payload: object) -> NewJob:
    """Give the job that an entry is to be."""
    return new_job(BACKING + name, step, payload, STAMPS)


@operation("send")
async def _send(stage: Stage, step: Step) -> bool:
    name, on, payload = step["outbox"], step.get("on", "a"), step.get("payload")
    store = await stage.store(on)
    stage.outboxes[name] = None
    allowed = stage.writes(step, on, stage.world.jobs.enqueue(stage.now, [mail(name, step, payload)]))
    await stage.hold(allowed, store.outbox(name).enqueue(payload, **options(step)), "OBX-02", lambda id: [id])
    return False


@operation("deliver")
async def _deliver(stage: Stage, step: Step) -> bool:
    name, on = step["outbox"], step.get("on", "a")
    store = await stage.store(on)
    stage.outboxes[name] = None
    delivery = _Delivery(stage, step, BACKING + name)
    has_any = any(row.is_claimable(stage.now) for row in stage.world.jobs.of(BACKING + name))
    allowed = stage.writes(step, on, just(has_any, lambda: None if has_any else delivery.claim_nothing()))
    await stage.hold(allowed, store.outbox(name).run_once(delivery, worker_id="w"), "OBX-03, OBX-05, OBX-06")
    if stage.tx is None:
        stage.same(delivery.calls, int(has_any), "OBX-03", "the number of deliveries")
        delivery.settle()
    return False


class _Delivery:
    """Takes one entry out, in the way that a step says, and lets the model do the same."""

    def __init__(self, stage: Stage, step: Step, queue: str) -> None:
        self.calls = 0
        self._stage = stage
        self._step = step
        self._queue = queue
        self._claim = Claim(0, queue, 0)

    async def __call__(self, handle: JobHandle) -> None:
        self.calls += 1
        stage, job, how = self._stage, handle.job, self._step.get("how")
        self._claim_one((job.id, job.attempts))
        stage.check(stage.world.jobs.show(job.id, self._queue), seen(job), "OBX-04", "a delivered job")
        self._claim = Claim(job.id, self._queue, stage.world.jobs.rows[job.id].claim)
        if how == "outlives":
            # Past its window: whoever comes next may have it, and what is said afterwards is not applied.
            await stage.advance(round(job.visibility_timeout.total_seconds() * 1_000_000))
        elif how == "settles":
            await stage.hold(
                stage.world.jobs.fail(stage.now, self._claim, "refused"), handle.fail("refused"), "OBX-05"
            )
        elif how == "fails":
            raise RuntimeError(MESSAGE)

    def claim_nothing(self) -> None:
        """A claim that comes back empty moves what is used up, too."""
        self._claim_one(None)

    def _claim_one(self, told: tuple[int, int] | None) -> None:
        stage = self._stage
        jobs = stage.world.jobs
        first = [(row.id, row.attempts + 1) for row in jobs.ready(stage.now, self._queue)[:1]]
        stage.same([] if told is None else [told], first, "OBX-03", "the entry that is claimed")
        jobs.claim(stage.now, self._queue, 1, "w").then(None)

    def settle(self) -> None:
        """Let the model do what follows a delivery."""
        jobs, now = self._stage.world.jobs, self._stage.now
        if self.calls == 0 or self._claim.is_consumed:
            return
        is_bad = self._step.get("how") == "fails"
        outcome = jobs.retry(now, self._claim, Like(MESSAGE), None) if is_bad else jobs.ack(now, self._claim)
        outcome.then(None)


@look("outbox")
async def _look(stage: Stage, store: Store) -> None:
    for name in stage.outboxes:
        await look_at(stage, store.outbox(name).jobs, BACKING + name)
    names = [name for name in stage.outboxes if stage.world.jobs.of(BACKING + name)]
    stage.same(await store.outboxes(), sorted(names), "ADM-01", "the list of outboxes")
