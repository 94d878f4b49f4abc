"""Steps in time, and the ends of stores."""

from typing import Final

from alkstore_contract_suite.machines.stage import Stage, operation
from alkstore_contract_suite.machines.trace import Step

SECOND: Final = 1_000_000
"""Where nothing lies ahead."""


@operation("advance")
async def _advance(stage: Stage, step: Step) -> bool:
    """Move by ``micros``, or to the ``nth`` instant at which something becomes so, and ``beside`` it."""
    if "micros" in step:
        await stage.advance(step["micros"])
        return False
    ahead = [edge for edge in stage.world.edges() if edge > stage.now]
    edge = ahead[step["nth"] % len(ahead)] if ahead else stage.now + SECOND
    await stage.advance(edge + step.get("beside", 0) - stage.now)
    return False


@operation("end")
async def _end(stage: Stage, step: Step) -> bool:
    await stage.end(step["how"])
    return False
