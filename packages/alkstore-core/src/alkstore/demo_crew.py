"""The demo's worker processes: started, killed at random if that is wanted, and started again."""

import asyncio
import random
import subprocess
import sys
from asyncio.subprocess import Process
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from alkstore._plugins import find_engine
from alkstore.demo_worker import Task
from alkstore.errors import InvalidArgument
from alkstore.stop import StopToken

__all__ = ["MOST_KILLS", "Crew", "CrewPlan", "CrewReport", "check_plan"]

MOST_KILLS: Final = 10
"""Kills that are enough to be convincing, and few enough for the work to get done."""
BETWEEN_KILLS: Final = (0.05, 0.3)
"""Seconds from one kill to the next, at least and at most."""
MOST_FALLS: Final = 3
"""Processes that end by themselves before the crew gives up: what ends each of them would end the next."""
GRACE: Final = 10.0
"""Seconds that a process has to end once it was told."""


@dataclass(frozen=True, slots=True)
class CrewPlan:
    """What is wanted of the worker processes.

    Attributes:
        url: Of the storage that they share with the demo.
        processes: How many work at once.
        kills: How many are killed at most while they work; 0 for none.
        seed: Of what is left to chance: who is killed and when, and the jitter of the retries.
    """

    url: str
    processes: int
    kills: int = 0
    seed: int = 0


@dataclass(slots=True)
class CrewReport:
    """What became of the worker processes.

    Attributes:
        processes: How many worked at once.
        kills: How many were killed.
        seed: The seed that it was done with.
        remark: Why none was killed, if any should have been.
        ended: Exit codes of those that ended by themselves, which none should.
    """

    processes: int
    kills: int
    seed: int
    remark: str = ""
    ended: list[int] = field(default_factory=list)


def check_plan(plan: CrewPlan) -> None:
    """Refuse a storage that other processes cannot see.

    Raises:
        InvalidArgument: Its engine says that it cannot be shared, or there is no engine for its scheme.
    """
    scheme = plan.url.partition("://")[0].lower()
    answer = find_engine(scheme).capabilities.get("multi_process", "its engine does not say that it can be")
    if answer is not True:
        why = answer if isinstance(answer, str) else "its engine cannot"
        raise InvalidArgument(
            f"{scheme}:// cannot be shared with worker processes: {why}; "
            "use sqlite:///path, or let the demo's own process do the work"
        )


class Crew:
    """Keeps so many processes at work until it is stopped."""

    def __init__(self, plan: CrewPlan, run: str) -> None:
        self._plan = plan
        self._run = run
        self._random = random.Random(plan.seed)
        self._at_work: dict[int, Process] = {}
        self._killed: set[Process] = set()
        self.report = CrewReport(plan.processes, 0, plan.seed)

    @property
    def is_over(self) -> bool:
        """Whether the crew gave up."""
        return len(self.report.ended) >= MOST_FALLS

    def problems(self) -> list[str]:
        """Give what should not have happened, as promises that do not hold."""
        codes = ", ".join(map(str, self.report.ended))
        return [f"no worker process ends by itself: code {codes}"] if codes else []

    async def run(self, stop: StopToken) -> None:
        """Work until ``stop``; then no process is left. Cancelled, it kills them all.

        Raises:
            OSError: No process can be started, in an `ExceptionGroup`.
        """
        async with asyncio.TaskGroup() as tasks:
            places = [tasks.create_task(self._fill(place, stop)) for place in range(self._plan.processes)]
            killing = tasks.create_task(self._kill()) if self._plan.kills else None
            await stop.wait()
            if killing is not None:
                killing.cancel()
            _, late = await asyncio.wait(places, timeout=GRACE)
            for place in late:
                place.cancel()
        if self._plan.kills and not self.report.kills:
            why = (
                "none was at work for long" if self.is_over else "the work was done before; index more files"
            )
            self.report.remark = f"none was killed: {why}"

    async def _fill(self, place: int, stop: StopToken) -> None:
        starts = 0
        while not stop.is_cancelled and not self.is_over:
            who = f"{place}.{starts}"
            seed = f"{self._plan.seed}:{who}"
            await self._accompany(place, Task(self._plan.url, self._run, f"{self._run}.{who}", seed), stop)
            starts += 1

    async def _accompany(self, place: int, task: Task, stop: StopToken) -> None:
        """Start a process, and be with it until it has ended, for whatever reason."""
        process = await _start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(task.line())
        unsubscribe = stop.subscribe(process.stdin.close)
        try:
            if await process.stdout.readline():
                self._at_work[place] = process
            await process.stdout.read()
            code = await process.wait()
            if process in self._killed:
                self.report.kills += 1
            elif code != 0 or not stop.is_cancelled:
                self.report.ended.append(code)
        finally:
            unsubscribe()
            self._at_work.pop(place, None)
            await _end(process)

    async def _kill(self) -> None:
        while len(self._killed) < self._plan.kills:
            await asyncio.sleep(self._random.uniform(*BETWEEN_KILLS))
            # One that has not begun holds no job: killing it would prove nothing.
            if self._at_work:
                victim = self._at_work.pop(self._random.choice(sorted(self._at_work)))
                with suppress(ProcessLookupError):  # it has just ended by itself
                    victim.kill()
                    self._killed.add(victim)


async def _start() -> Process:
    # In a session or group of its own, Ctrl-C reaches the demo alone, which then ends the processes as it should. -P keeps
    # a file of the current folder that is named like a module of the library from being imported in its place.
    command = [sys.executable, "-P", "-m", "alkstore.demo_worker"]
    pipe = asyncio.subprocess.PIPE
    if sys.platform == "win32":
        group = subprocess.CREATE_NEW_PROCESS_GROUP
        return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, creationflags=group)
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, start_new_session=True)


async def _end(process: Process) -> None:
    """Leave no process and no pipe behind."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    await process.wait()
    assert process.stdin is not None
    process.stdin.close()
    with suppress(BrokenPipeError, ConnectionResetError):
        await process.stdin.wait_closed()
