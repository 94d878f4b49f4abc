"""Steps in time, and the ends of stores."""

from alkstore_contract_suite.machines.stage import Absent, Stage, operation
from alkstore_contract_suite.machines.trace import Step


@operation("advance")
async def _advance(stage: Stage, step: Step) -> bool:
    """Move by ``micros``, or to the ``nth`` instant at which something becomes so, and ``beside`` it."""
    if "micros" in step:
        await stage.advance(step["micros"])
        return False
    ahead = [edge for edge in stage.world.edges() if edge > stage.now]
    if not ahead:
        raise Absent("nothing lies ahead")
    edge = ahead[step["nth"] % len(ahead)]
    await stage.advance(edge + step.get("beside", 0) - stage.now)
    return False


@operation("end")
async def _end(stage: Stage, step: Step) -> bool:
    await stage.end(step["how"])
    return False
