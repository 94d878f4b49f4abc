"""Steps on wakes."""

from alkstore import InvalidArgument, WakeReceiver
from alkstore_contract_suite.machines.stage import Absent, Stage, operation
from alkstore_contract_suite.machines.trace import Step
from alkstore_contract_suite.model.allowed import Raised, just


@operation("notify")
async def _notify(stage: Stage, step: Step) -> bool:
    channel, on = step["channel"], step.get("on", "a")
    store = await stage.store(on)
    allowed = stage.writes(step, on, just(None))
    got = await stage.hold(allowed, store.notify(channel), "WAKE-01")
    if not isinstance(got, Raised):
        stage.ears.notify([channel])
    return False


@operation("listen")
async def _listen(stage: Stage, step: Step) -> bool:
    channel, store = step["channel"], await stage.store(step.get("on", "a"))
    try:
        receiver = await store.listen(channel)
    except InvalidArgument as error:
        # Without the capability; that who declares it can listen is other rows' to see.
        raise Absent(step["as"]) from error
    stage.give(step, receiver, None, store)
    stage.ears.open(step["as"], channel)
    return True


@operation("hear")
async def _hear(stage: Stage, step: Step) -> bool:
    receiver: WakeReceiver = stage.take(step["ear"]).real
    await stage.factory.settle()
    count = 0
    while await receiver.try_recv() is not None:
        count += 1
    stage.check(stage.ears.hear(step["ear"]), count, "WAKE-01 to WAKE-05")
    return False


@operation("deafen")
async def _deafen(stage: Stage, step: Step) -> bool:
    if step["ear"] not in stage.given:
        raise Absent(step["ear"])
    await stage.take(step["ear"]).real.aclose()
    del stage.given[step["ear"]]
    stage.ears.close(step["ear"])
    return False
