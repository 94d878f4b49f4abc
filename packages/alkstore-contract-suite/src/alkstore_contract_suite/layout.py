"""The one layout in which a failure is shown, on the terminal and in reports."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from alkstore_contract_suite.outcome import Outcome
from alkstore_contract_suite.plan import Case

__all__ = ["Surroundings", "again", "command", "failure"]

LAST_STEPS: Final = 12
"""Steps of the timeline that a failure shows."""


PYTEST: Final = ("pytest", "--pyargs", "alkstore_contract_suite")

SESSION: Final = re.compile(r"contract(-[\w.]+)?")
"""A session of nox that hands its arguments to the suite: the one of the skeleton, and ours."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where this process was started, as far as it decides what a shell finds there."""

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    program: str = field(default_factory=lambda: sys.argv[0])
    python: str = sys.executable
    prefix: str = sys.prefix
    which: Callable[[str], str | None] = shutil.which

    def runner(self) -> list[str]:
        """Give the words that run the suite from the same folder and shell; its arguments come after them.

        They are nox's if it started this, else pytest's, or the interpreter's where pytest is not what the shell finds.
        """
        session = self.environment.get("NOX_CURRENT_SESSION", "")
        if SESSION.fullmatch(session):
            # An environment of nox's own is in its folder; without one it was told to use the present one.
            bare = [] if ".nox" in Path(self.prefix).parts else ["--no-venv"]
            return ["nox", *bare, "-s", session, "--"]
        plugin = (
            ["-p", "alkstore_contract_suite.plugin"]
            if self.environment.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
            else []
        )
        program, *suite = PYTEST
        begin = [program] if self._is_found(program) else [self._interpreter(), "-m", program]
        return [*begin, *plugin, *suite]

    def _is_found(self, program: str) -> bool:
        found = self.which(program)
        is_ours = found is not None and Path(found).parent == Path(self.python).parent
        return is_ours and Path(self.program).name == program

    def _interpreter(self) -> str:
        if self.which("python") == self.python:
            return "python"
        # Not resolved: an environment's interpreter is a link, and would lose the environment.
        here = Path.cwd()
        return str(Path(self.python).relative_to(here)) if here in Path(self.python).parents else self.python


def failure(
    case: Case,
    outcome: Outcome,
    seed: int,
    trace: Path | None = None,
    surroundings: Surroundings = Surroundings(),
) -> str:
    """Give the text for one case that did not pass; one line if a method is not there yet.

    ``trace`` is where the steps of a machine were written.
    """
    head = f"{case.row.id} [{case.engine}, {case.mode}]"
    if outcome.missing:
        return f"{head}  {outcome.reason}"
    lines = [f'{head}  {case.row.level}  "{case.row.text}"', _line("test", case.row.name)]
    if outcome.promise:
        lines.append(_line("promise", outcome.promise))
        lines.append(_line("expected", outcome.expected))
        lines.append(_line("observed", outcome.observed))
    else:
        lines.append(_line("observed", outcome.reason))
    lines.extend(_line("at", frame) for frame in outcome.traceback)
    lines.append(_line("oracle", case.row.oracle))
    if outcome.timeline:
        lines.append(_line("timeline", _timeline(outcome)))
    look = [*([case.row.hints] if case.row.hints else []), *_mutants(case)]
    if look:
        lines.append(_line("look at", "; ".join(look)))
    lines.append(_line("again", again(case, seed, surroundings)))
    if trace is not None:
        words = [*surroundings.runner(), "--alk-engine", case.engine, "--alk-replay", str(trace)]
        lines.append(_line("or", shlex.join(words)))
    return "\n".join(lines)


def again(case: Case, seed: int, surroundings: Surroundings = Surroundings()) -> str:
    """Give the command that runs a case's cell again where this process was started."""
    words = _cell(case.engine, case.row.id, case.mode, seed)
    return shlex.join([*surroundings.runner(), *words])


def command(engine: str, row: str, mode: str, seed: int) -> str:
    """Give the command that runs one cell again, for whoever reads of it elsewhere."""
    # Quoted: a report may come from anybody, and this is there to be pasted into a shell.
    return shlex.join([*PYTEST, *_cell(engine, row, mode, seed)])


def _cell(engine: str, row: str, mode: str, seed: int) -> list[str]:
    return ["--alk-engine", engine, "--alk-row", row, "--alk-mode", mode, "--alk-seed", str(seed)]


def _line(label: str, text: str) -> str:
    return f"  {label:<9} {text}"


def _timeline(outcome: Outcome) -> str:
    steps = outcome.timeline[-LAST_STEPS:]
    left = len(outcome.timeline) - len(steps)
    return " | ".join([f"({left} earlier)", *steps] if left else steps)


def _mutants(case: Case) -> list[str]:
    return [f"broken engines with this signature: {', '.join(case.row.kills)}"] if case.row.kills else []
