"""Plays: the steps of one run, each done in one task of one event loop that turns while a step is done."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any, Final

from alkstore_contract_suite.factory import Backend
from alkstore_contract_suite.failure import ContractFailure
from alkstore_contract_suite.machines import clock, lock, outbox, queue, schedule, stream, transaction, wake
from alkstore_contract_suite.machines.stage import LOOKS, OPERATIONS, Stage
from alkstore_contract_suite.machines.trace import Step, TraceError

__all__ = ["Play", "Plays", "Stuck", "check"]

AREAS: Final = (clock, lock, outbox, queue, schedule, stream, transaction, wake)
"""Imported for the operations that they declare."""


class Stuck(Exception):
    """A step did not come back."""


class Plays:
    """Begins plays on one backend, in one event loop.

    Args:
        runner: The loop's.
        name: Unique in the run; each play's storage is named after it.
        mode: The mode of the case.
        areas: What is looked at after each step.
        soon: Seconds of real time that a step may take.
    """

    def __init__(
        self,
        runner: asyncio.Runner,
        backend: Backend,
        name: str,
        *,
        mode: str,
        areas: tuple[str, ...],
        soon: float,
    ) -> None:
        self.runner = runner
        self.backend = backend
        self.mode = mode
        self.areas = areas
        self.soon = soon
        self.failed: Play | None = None
        self._name = name
        self._numbers = itertools.count()

    def begin(self) -> "Play":
        """Begin on empty storage."""
        return Play(self, f"{self._name}/{next(self._numbers)}")


class Play:
    """One run.

    Attributes:
        steps: Those that were done, in their order; one that could not be done is none of them.
        error: What ended it, if anything did.
    """

    def __init__(self, plays: Plays, name: str) -> None:
        self.mode = plays.mode
        self.steps: list[Step] = []
        self.error: Exception | None = None
        self._plays = plays
        self._orders: asyncio.Queue[tuple[Step, asyncio.Future[bool | None]] | None] = asyncio.Queue()
        self._acting = plays.runner.get_loop().create_task(self._act(name))

    def do(self, step: Step) -> bool:
        """Do a step.

        Raises:
            ContractFailure: The model allows no such answer.
            Stuck: It did not come back in time.
        """
        self.steps.append(step)
        try:
            gave = self._plays.runner.run(self._asked(step))
        except Exception as error:
            self.error = error
            self._plays.failed = self._plays.failed or self
            raise
        if gave is None:
            self.steps.pop()
        return bool(gave)

    def end(self) -> None:
        """Close every store, and leave the storage."""
        self._plays.runner.run(self._left())

    async def _asked(self, step: Step) -> bool | None:
        answer: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        self._orders.put_nowait((step, answer))
        ends: list[asyncio.Future[Any]] = [answer, self._acting]
        await asyncio.wait(ends, timeout=self._plays.soon, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        if self._acting.done():
            self._acting.result()
        raise ContractFailure(f"{step['do']} answers", "an answer", f"none within {self._plays.soon:g} s")

    async def _left(self) -> None:
        self._orders.put_nowait(None)
        await asyncio.wait({self._acting}, timeout=self._plays.soon)
        if not self._acting.done():
            self._acting.cancel()
            await asyncio.wait({self._acting}, timeout=1)
            raise Stuck("the stores of a play did not close") from self.error
        if self.error is None:
            self._acting.result()

    async def _act(self, name: str) -> None:
        # One task for everything: a transaction knows the task that uses it.
        async with self._plays.backend.scope(name) as factory:
            stage = Stage(factory)
            await stage.begin()
            try:
                while (order := await self._orders.get()) is not None:
                    await _obey(stage, *order, self._plays.areas)
            finally:
                await stage.finish()


async def _obey(
    stage: Stage, step: Step, answer: "asyncio.Future[bool | None]", areas: tuple[str, ...]
) -> None:
    try:
        gave = await stage.do(step, areas)
    except Exception as error:  # whatever an engine raises is what this step came to
        answer.set_exception(error)
    else:
        answer.set_result(gave)


def check(steps: Sequence[Step], areas: Sequence[str]) -> None:
    """Refuse what this suite has no operation for."""
    for verb in {step["do"] for step in steps} - OPERATIONS.keys():
        raise TraceError(f"no machine of this suite can {verb!r}; a newer one wrote this trace")
    for area in {*areas} - LOOKS.keys():
        raise TraceError(f"no machine of this suite looks at {area!r}; a newer one wrote this trace")
