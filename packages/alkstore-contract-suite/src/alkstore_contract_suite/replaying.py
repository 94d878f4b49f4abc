"""Traces of machines: written down when a case fails, and done again on any engine."""

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from alkstore_contract_suite import columns
from alkstore_contract_suite.backends import Backends
from alkstore_contract_suite.context import SOON
from alkstore_contract_suite.factory import EngineColumn, Missing, Supported
from alkstore_contract_suite.failure import ContractFailure, shown
from alkstore_contract_suite.outcome import Outcome
from alkstore_contract_suite.plan import Case

if TYPE_CHECKING:
    from alkstore_contract_suite.machines.trace import Trace

__all__ = ["keep", "replay"]

FOLDER: Final = "alkstore-traces"


def keep(config: pytest.Config, case: Case, outcome: Outcome) -> Path:
    """Write the trace of a failed case beside the report, or where temporary files are; gives where."""
    report: str | None = config.option.alk_report
    folder = Path(report or tempfile.gettempdir(), FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{case.row.id}-{case.engine}-{case.mode}.json"
    path.write_text(outcome.trace, "utf-8")
    return path.absolute()


def replay(config: pytest.Config, file: str) -> tuple[Sequence[str], int]:
    """Do the steps of a trace on each engine that was asked for; gives what to print and the exit code.

    Raises:
        pytest.UsageError: The file is no trace of a machine.
    """
    # What draws and does steps is dear to import, and only this wants it here.
    from alkstore_contract_suite.machines.player import check
    from alkstore_contract_suite.machines.trace import Trace, TraceError

    try:
        trace = Trace.from_json(Path(file).read_text("utf-8"))
        check(trace.steps, trace.areas)
    except (OSError, TraceError) as error:
        raise pytest.UsageError(f"{file}: {error}") from error
    lines, codes = [f"found: {trace.found}"], [0]
    with closing(Backends("replay")) as backends:
        for column in columns.chosen(config):
            reason = _absence(column, trace.needs)
            if reason:
                lines.append(f"{column.name}: cannot be replayed here: {reason}")
                continue
            met = _error(backends, column, trace)
            lines += _told(column.name, met)
            codes.append(0 if met is None else 1)
    return lines, max(codes)


def _absence(column: EngineColumn, needs: Sequence[str]) -> str:
    found = column.available()
    if isinstance(found, Missing):
        return found.advice
    absent = [need for need in needs if not isinstance(column.capabilities[need], Supported)]
    return f"it has no {absent[0]}" if absent else ""


def _error(backends: Backends, column: EngineColumn, trace: "Trace") -> Exception | None:
    from alkstore_contract_suite.machines.exploring import replayed
    from alkstore_contract_suite.machines.player import Plays

    backend = backends.of(column)
    with asyncio.Runner(debug=False, loop_factory=asyncio.new_event_loop) as runner:
        plays = Plays(runner, backend, "replay", mode="plain", areas=tuple(trace.areas), soon=SOON)
        return replayed(plays, trace.steps).error


def _told(engine: str, error: Exception | None) -> list[str]:
    if error is None:
        return [f"{engine}: every answer is one that the model allows"]
    if isinstance(error, ContractFailure):
        lines = ("promise", error.promise), ("expected", error.expected), ("observed", error.observed)
        return [f"{engine}: not so", *(f"  {label:<9} {text}" for label, text in lines)]
    return [f"{engine}: {type(error).__name__}: {shown(str(error))}"]
