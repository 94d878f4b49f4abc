"""The tasks of `tools/dev.py`, run in its environment, each with a verdict in one line."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from devenv import Failed, call, executable, prepare
from workspace import ROOT, contract

__all__ = ["main"]

GREEN, RED, NOT_RUN, INTERRUPTED = 0, 1, 2, 130
REPORTS = ROOT / "reports"
DETAIL_LINES = 30
PASSED_ON = {"demo", "soak"}
"""Tasks with options of their own, --help among them: the parser here must not see them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one step ended, in a few words for the verdict."""

    is_green: bool
    text: str
    details: str = ""
    """What failed and how: shown again just above the verdict, since of a long log often only the end is kept."""


def main(arguments: list[str]) -> int:
    """Run one task and give the exit code."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal may not know the dash
    own = arguments[:1] if PASSED_ON.issuperset(arguments[:1]) else arguments
    task = str(_parser().parse_args(own).task)
    try:
        outcomes = _run(task, arguments[1:])
    except Failed as failure:
        print(f"verdict: not run — {failure}")
        return NOT_RUN
    except KeyboardInterrupt:
        print("verdict: not run to its end — stopped by Ctrl-C", file=sys.stderr)
        return INTERRUPTED
    is_green = all(outcome.is_green for outcome in outcomes)
    verdict = f"verdict: {'green' if is_green else 'red'} — {', '.join(outcome.text for outcome in outcomes)}"
    for outcome in outcomes:
        if outcome.details:
            print(outcome.details)
    # The demo's output may be read by a machine (--json); it alone stands on its standard output.
    print(verdict, file=sys.stderr if task == "demo" else sys.stdout)
    return GREEN if is_green else RED


def _run(task: str, rest: list[str]) -> list[Outcome]:
    python = prepare()
    if task == "demo":
        return [_demo(python, rest)]
    if task == "soak":
        return [_soak(python, rest)]
    if task == "servers":
        return _servers(python)
    return [_unit(python), _selftest(python), _contract(python)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/dev.py", description="Set up what is needed, run, and judge."
    )
    parser.add_argument("task", choices=["demo", "tests", "servers", "soak"])
    return parser


def _demo(python: Path, arguments: list[str]) -> Outcome:
    command = [str(executable(python.parent.parent, "alkstore")), "demo", *arguments]
    code = call(command)
    return Outcome(code == 0, "the demo ended well" if code == 0 else f"the demo ended with code {code}")


def _unit(python: Path) -> Outcome:
    report = REPORTS / "unit.xml"
    code = _pytest(python, [f"--junitxml={report}"])
    return judge_unit(code, report)


def judge_unit(code: int, report: Path) -> Outcome:
    """Judge a run by pytest's exit code, and count by its report."""
    if not report.exists():
        return Outcome(False, f"the unit tests did not run (pytest ended with code {code})")
    suite = ElementTree.parse(report).getroot()[0]
    counts = suite.attrib
    bad = int(counts["failures"]) + int(counts["errors"])
    good = int(counts["tests"]) - bad - int(counts["skipped"])
    if code == 0 and good:
        return Outcome(True, f"{good} unit tests passed")
    text = f"{bad} of {good + bad} unit tests failed (pytest ended with code {code})"
    return Outcome(False, text, "\n".join(_failures(suite)))


def _failures(suite: ElementTree.Element) -> Iterator[str]:
    """Each test that failed by its name, with the last lines of what pytest told about it."""
    for case in suite.iter("testcase"):
        for told in [*case.iter("failure"), *case.iter("error")]:
            lines = (told.text or told.get("message") or "").splitlines()[-DETAIL_LINES:]
            yield "\n".join([f"{told.tag}: {case.get('classname')}::{case.get('name')}", *lines])


def _selftest(python: Path) -> Outcome:
    code = _pytest(python, ["--alk-selftest"])
    if code == 0:
        return Outcome(True, "every planted fault was found by its row")
    return Outcome(False, f"planted faults went unnoticed (pytest ended with code {code})")


def _contract(python: Path) -> Outcome:
    folder = REPORTS / "contract"
    code = _pytest(python, [*contract(), f"--alk-report={folder}"])
    return judge_contract(code, folder / "report.json")


def _servers(python: Path) -> list[Outcome]:
    """Run PostgreSQL's column on each of its versions that this machine could start, but the one that the tests start."""
    others = "from alkstore_pg.contract_binaries import *; print(*(versions().keys() - {default()}))"
    told = subprocess.run(
        [str(python), "-c", others],
        capture_output=True,
        check=True,
        text=True,
    )
    found = [_on_server(python, version) for version in sorted(told.stdout.split())]
    return found or [Outcome(True, "no other version of PostgreSQL is here")]


def _on_server(python: Path, version: str) -> Outcome:
    folder = REPORTS / f"postgresql-{version}"
    arguments = [*contract("pg"), f"--alk-report={folder}"]
    code = _pytest(python, arguments, {"ALKSTORE_PG_VERSION": version, "ALKSTORE_PG_DSN": ""})
    judged = judge_contract(code, folder / "report.json")
    return Outcome(judged.is_green, f"{judged.text} {version}")


def judge_contract(code: int, report: Path) -> Outcome:
    """Judge by the suite's own verdict; an exit code that disagrees with it is red as well."""
    if not report.exists():
        return Outcome(False, f"the contract did not run (pytest ended with code {code})")
    engines = json.loads(report.read_text("utf-8"))["engines"]
    verdicts = {str(engine["name"]): str(engine["verdict"]) for engine in engines}
    text = ", ".join(f"contract {verdict} on {name}" for name, verdict in verdicts.items())
    if not verdicts:
        return Outcome(False, "the contract ran on no engine")
    # What this machine has nothing to run it on is told, and no fault of the engine.
    is_green = "CONFORMANT" in verdicts.values() and set(verdicts.values()) <= {"CONFORMANT", "MISSING"}
    if code != 0 and is_green:
        return Outcome(False, f"{text}, but pytest ended with code {code}")
    return Outcome(is_green, text)


def _pytest(python: Path, arguments: list[str], surroundings: Mapping[str, str] | None = None) -> int:
    REPORTS.mkdir(exist_ok=True)
    for old in [*REPORTS.glob("unit.xml"), *REPORTS.glob("*/report.json")]:
        old.unlink()  # a run that dies must not be judged by the last one's report
    os.environ.update(surroundings or {})
    return call([str(python), "-m", "pytest", *arguments], ROOT)


def _soak(python: Path, arguments: list[str]) -> Outcome:
    code = call([str(python), str(ROOT / "tools" / "soak.py"), *arguments])
    return Outcome(code == 0, f"the contract in random orders, {'no' if code == 0 else 'some'} failures")
