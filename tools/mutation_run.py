"""A run of pytest that plants one fault after the other, each in a fork, and notes which test finds it."""

import json
import os
import resource
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

SECONDS = 120.0
"""The longest that a fault's tests may take together; one that hangs is found by the limit of its test."""

LEAST, TIMES = 2.0, 4.0
"""A fault may hang: a test has these seconds and so many times what it took without a fault, before it is red."""

MEMORY = 4 << 30
"""Bytes of addresses of a fork: a loop that no longer ends would take the machine's memory before its time is up."""

NOT_RUN = 70
"""The exit code of a fork that got no result."""

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
        for name, item in items.items():
            item.add_marker(pytest.mark.timeout(LEAST + TIMES * seconds[name]))
        killers: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        with self.out.open("a") as lines:
            for number, fault in enumerate(self.chosen, 1):
                known = killers[fault.function]
                names = sorted(reach.get(fault.function, ()), key=lambda name: (-known[name], seconds[name]))
                result = self._try(fault, [items[name] for name in names])
                known[result] += 1
                self.results.append((fault, result))
                lines.write(json.dumps([*fault.described, result]) + "\n")
                lines.flush()
                print(f"{number}/{len(self.chosen)} {fault} {result}", file=sys.__stderr__, flush=True)
        return True

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
            sys.settrace(None)
            seconds[item.nodeid] = time.perf_counter() - begun
            result[item.nodeid] = sorted(called & wanted)
            if self.failed:
                broken.append(item.nodeid)
        return result, seconds, broken

    def _try(self, fault: Fault, items: list[pytest.Item]) -> str:
        """Give what found the fault: a test's id, an exit code, ``time-out``; or ``unreached`` or ``survived``."""
        if not items:
            return "unreached"
        reading, writing = os.pipe()
        if not (child := os.fork()):
            os.close(reading)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            _mute()
            try:
                plant(fault)
                os.write(writing, self._until_red(items).encode())
                os._exit(0)
            finally:
                os._exit(NOT_RUN)  # whatever happened: a fork must not go on as if it were the run
        os.close(writing)
        end = time.monotonic() + SECONDS
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                os.close(reading)
                return "time-out"
            time.sleep(0.01)
        with open(reading) as file:
            result = file.read()
        code = os.waitstatus_to_exitcode(ended[1])
        if code == NOT_RUN:
            raise RuntimeError(f"could not plant {fault}")
        return result or f"exit {code}"

    def _until_red(self, items: list[pytest.Item]) -> str:
        for item, following in zip(items, [*items[1:], None], strict=True):
            try:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            except BaseException as error:  # pytest's own ways out: whatever ends the run has found the fault
                return f"{item.nodeid} {type(error).__name__}"
            if self.failed:
                return item.nodeid
        return "survived"


def _mute() -> None:
    """Let nothing that the tests print reach the terminal, and no fork leave a file."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
