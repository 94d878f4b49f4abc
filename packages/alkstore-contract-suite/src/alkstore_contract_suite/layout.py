"""The one layout in which a failure is shown, on the terminal and in reports."""

import shlex
from pathlib import Path
from typing import Final

from alkstore_contract_suite.outcome import Outcome
from alkstore_contract_suite.plan import Case

__all__ = ["again", "command", "failure"]

LAST_STEPS: Final = 12
"""Steps of the timeline that a failure shows."""


def failure(case: Case, outcome: Outcome, seed: int, trace: Path | None = None) -> str:
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
    lines.append(_line("again", again(case, seed)))
    if trace is not None:
        words = ["--alk-engine", case.engine, "--alk-replay", str(trace)]
        lines.append(_line("or", f"pytest {shlex.join(words)}"))
    return "\n".join(lines)


def again(case: Case, seed: int) -> str:
    """Give the command that runs a case's cell again."""
    return command(case.engine, case.row.id, case.mode, seed)


def command(engine: str, row: str, mode: str, seed: int) -> str:
    """Give the command that runs one cell again."""
    words = ["--alk-engine", engine, "--alk-row", row, "--alk-mode", mode, "--alk-seed", str(seed)]
    # Quoted: a report may come from anybody, and this is there to be pasted into a shell.
    return f"pytest --pyargs alkstore_contract_suite {shlex.join(words)}"


def _line(label: str, text: str) -> str:
    return f"  {label:<9} {text}"


def _timeline(outcome: Outcome) -> str:
    steps = outcome.timeline[-LAST_STEPS:]
    left = len(outcome.timeline) - len(steps)
    return " | ".join([f"({left} earlier)", *steps] if left else steps)


def _mutants(case: Case) -> list[str]:
    return [f"broken engines with this signature: {', '.join(case.row.kills)}"] if case.row.kills else []
