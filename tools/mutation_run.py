"""A run of pytest that plants one fault after the other, each in a fork, and notes which test finds it."""

import json
import os
import resource
import select
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import pytest

from mutation_faults import Fault, Place, owners, plant

__all__ = ["Run"]

PLANTED, GREEN, RED = b"p", b"g", b"r"
"""What a fork tells."""

LEAST, TIMES = 3.0, 4.0
"""A fault may make a test hang: it has these seconds, and so many times what it took without a fault."""

MEMORY = 4 << 30
"""Bytes of addresses of a fork: a loop that no longer ends would take the machine's memory before its time is up."""

Reach = dict[Place, list[str]]


@dataclass(eq=False)
class Run:
    """A plugin that takes the place of pytest's loop over the tests."""

    chosen: list[Fault]
    out: Path
    results: list[tuple[Fault, str]] = field(default_factory=list)
    failed: str = ""

    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings  # not earlier: pytest wants to be the first to import it

        # A random draw would let a fault survive today and not tomorrow; what fails need not be made smaller.
        phases = [Phase.explicit, Phase.generate]
        settings.register_profile("mutation", derandomize=True, database=None, phases=phases)
        settings.load_profile("mutation")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        reach, seconds = self._look(list(items.values()))
        killers: dict[Place, Counter[str]] = defaultdict(Counter)
        done = self._done()
        with self.out.open("a") as lines:
            for number, fault in enumerate(self.chosen, 1):
                if (known_result := done.get(json.dumps(fault.described))) is not None:
                    self.results.append((fault, known_result))
                    continue
                known = killers[fault.function]
                names = sorted(reach.get(fault.function, ()), key=lambda name: (-known[name], seconds[name]))
                result = self._try(fault, {name: items[name] for name in names}, seconds)
                known[result] += 1
                self.results.append((fault, result))
                lines.write(json.dumps([*fault.described, result]) + "\n")
                lines.flush()
                print(f"{number}/{len(self.chosen)} {fault} {result}", file=sys.__stderr__, flush=True)
        return True

    def _done(self) -> dict[str, str]:
        """Give the results of an earlier run that was ended: it goes on from there."""
        lines = self.out.read_text("utf-8").splitlines() if self.out.exists() else []
        return {json.dumps(described): result for *described, result in map(json.loads, lines)}

    def _look(self, items: list[pytest.Item]) -> tuple[Reach, dict[str, float]]:
        """Run everything once, in a fork: nothing that a test leaves behind reaches the forks to come."""
        reading, writing = os.pipe()
        if not (child := os.fork()):
            try:
                with open(writing, "w") as file:
                    json.dump(self._traced(items), file)
            finally:
                os._exit(0)
        os.close(writing)
        with open(reading) as file:
            called, seconds, broken = json.load(file)
        os.waitpid(child, 0)
        print(f"{len(seconds)} tests, left out as red: {broken}", file=sys.__stderr__, flush=True)
        reach: Reach = defaultdict(list)
        for name, functions in called.items():
            for path, line in functions if name not in broken else ():
                reach[path, line].append(name)
        return reach, seconds

    def _traced(
        self, items: list[pytest.Item]
    ) -> tuple[dict[str, list[tuple[str, int]]], dict[str, float], list[str]]:
        wanted = {fault.function for fault in self.chosen}
        lines = owners({path for path, _ in wanted})
        called: set[tuple[str, int]] = set()

        def trace(frame: FrameType, event: str, argument: object) -> None:
            code = frame.f_code
            if (owner := lines.get((code.co_filename, code.co_firstlineno))) is not None:
                called.add((code.co_filename, owner))

        _mute()
        threading.settrace(trace)
        result, seconds, broken = {}, {}, []
        for item, following in zip(items, [*items[1:], None], strict=True):
            called.clear()
            self.failed = ""
            begun = time.perf_counter()
            sys.settrace(trace)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            # Near the end of the stack it had no frame, and was called no more.
            if sys.gettrace() is not trace:
                modules = {path for path, _ in called}
                called.update(place for place in wanted if place[0] in modules)
            sys.settrace(None)
            seconds[item.nodeid] = time.perf_counter() - begun
            result[item.nodeid] = sorted(called & wanted)
            if self.failed:
                broken.append(item.nodeid)
        return result, seconds, broken

    def _try(self, fault: Fault, items: dict[str, pytest.Item], seconds: dict[str, float]) -> str:
        """Give what found the fault: a test's id, with what it did if it was not just red; or ``unreached`` or ``survived``."""
        if not items:
            return "unreached"
        reading, writing = os.pipe()
        if not (child := os.fork()):
            try:
                os.close(reading)
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
                _mute()
                plant(fault)
                self._tell(list(items.values()), writing)
            finally:
                os._exit(0)  # whatever happened: a fork must not go on as if it were the run
        os.close(writing)
        try:
            return self._hear(fault, {name: seconds[name] for name in items}, reading)
        finally:
            os.close(reading)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def _tell(self, items: list[pytest.Item], writing: int) -> None:
        """Run tests until one is red, and tell of each: a byte is all that the other side needs to know."""
        os.write(writing, PLANTED)
        for item, following in zip(items, [*items[1:], None], strict=True):
            self.failed = ""
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            os.write(writing, RED if self.failed else GREEN)
            if self.failed:
                return

    def _hear(self, fault: Fault, seconds: dict[str, float], reading: int) -> str:
        if os.read(reading, 1) != PLANTED:
            raise RuntimeError(f"could not plant {fault}")
        for name, usual in seconds.items():
            # Not pytest's own limit: what hangs may hang again while that limit's exception goes up through it.
            if not select.select([reading], [], [], LEAST + TIMES * usual)[0]:
                return f"{name} hung"
            told = os.read(reading, 1)
            if told != GREEN:
                return name if told == RED else f"{name} died"
        return "survived"


def _mute() -> None:
    """Let nothing that the tests print reach the terminal, and no fork leave a file."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
