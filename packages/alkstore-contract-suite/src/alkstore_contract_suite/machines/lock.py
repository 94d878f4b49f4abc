"""Steps on locks."""

from alkstore import Lock, Store
from alkstore_contract_suite.machines.stage import Absent, Stage, look, micros, operation
from alkstore_contract_suite.machines.trace import Step
from alkstore_contract_suite.model.lock import Holder


@operation("take")
async def _take(stage: Stage, step: Step) -> bool:
    name, ttl, on = step["lock"], step["ttl"], step.get("on", "a")
    store = await stage.store(on)
    allowed = stage.writes(step, on, stage.world.locks.take(stage.now, name, round(ttl * 1_000_000)))
    rows = "LOCK-01, LOCK-02, LOCK-05"
    got = await stage.hold(allowed, store.try_lock(name, ttl), rows, lambda lock: lock and lock.fence)
    if not isinstance(got, Lock):
        return False
    stage.give(step, got, Holder(name, got.fence), store)
    return True


@operation("renew")
async def _renew(stage: Stage, step: Step) -> bool:
    named, ttl = stage.take(step["holder"]), step["ttl"]
    _check_open(stage, named.model)
    allowed = stage.world.locks.renew(stage.now, named.model, round(ttl * 1_000_000))
    allowed = stage.writes(step, named.on, allowed)
    await stage.hold(allowed, named.real.renew(ttl), "LOCK-02, LOCK-03, LOCK-04")
    return False


@operation("free")
async def _free(stage: Stage, step: Step) -> bool:
    named = stage.take(step["holder"])
    _check_open(stage, named.model)
    allowed = stage.writes(step, named.on, stage.world.locks.release(stage.now, named.model))
    await stage.hold(allowed, named.real.release(), "LOCK-03, LOCK-04")
    return False


def _check_open(stage: Stage, holder: Holder) -> None:
    if stage.tx is not None and holder.is_consumed:
        # Both errors are so, and the contract does not say which is told.
        raise Absent("a used lock inside a transaction")


@look("lock")
async def _look(stage: Stage, store: Store) -> None:
    found = [(lock.name, lock.fence, micros(lock.expires_at)) for lock in await store.locks()]
    stage.same(found, stage.world.locks.look(stage.now), "LOCK-01 to LOCK-04, ADM-01", "the list of locks")
