"""``alkstore doctor``: what is wrong with a storage, and what to do about it."""

import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import Final

import click
from rich.console import Console
from rich.text import Text

from alkstore.cli import FAILED
from alkstore.cli.doctor_checks import Limits, checks
from alkstore.cli.output import console, emit, plain
from alkstore.cli.storage import Storage, json_option, run, storage_options
from alkstore.cli.values import SECONDS
from alkstore.diagnosis import Finding
from alkstore.hookspecs import EngineRegistration
from alkstore.version import CONTRACT_VERSION, __version__

__all__ = ["doctor"]

WRONG_CLOCK: Final = 1.0
"""Seconds by which clocks may differ before the times of log lines and of jobs are hard to bring together."""


@click.command(short_help="Say what is wrong, and what to do about it.")
@click.option(
    "--oldest",
    type=SECONDS,
    default=300.0,
    help="How long a ready job may wait for a claim.  [default: 300 s]",
)
@click.option("--dead", type=int, default=0, help="How many dead jobs a queue may have.  [default: 0]")
@storage_options
@json_option
def doctor(storage: Storage, oldest: float, dead: int, as_json: bool) -> None:
    """Look for what is wrong: with the connection, the versions, the clocks, the wakes, the queues, the schedules, and with
    what the engine alone can see. Each finding says what to do. It changes nothing, and exits with 1 if there is a problem.
    """
    report = _Report(as_json)
    run(_examine(storage, Limits(oldest, dead), report))
    report.close()
    if report.problems:
        sys.exit(FAILED)


async def _examine(storage: Storage, limits: Limits, report: "_Report") -> None:
    registration, url = storage.found()
    for name, value in _versions(storage, registration).items():
        report.fact(name, value)
    async with storage.looked_at() as store:
        offset = 0.0
        if registration.examine is not None:
            diagnosis = await registration.examine(url, storage.options)
            for name, value in diagnosis.facts.items():
                report.fact(name, value)
            offset = diagnosis.clock_offset or 0.0
            report.fact("clock-offset-s", None if diagnosis.clock_offset is None else round(offset, 3))
            for finding in diagnosis.findings:
                report.finding(finding)
        if abs(offset) > WRONG_CLOCK:
            report.finding(_wrong_clock(offset))
        async for each in checks(store, limits, offset):
            if isinstance(each, Finding):
                report.finding(each)
            else:
                report.fact(*each)


def _versions(storage: Storage, registration: EngineRegistration) -> Mapping[str, object]:
    return {
        "storage": storage.shown,
        "alkstore-core": __version__,
        registration.package: _version(registration.package),
        "contract": CONTRACT_VERSION,
        "python": platform.python_version(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # an engine that was registered by hand
        return None


def _wrong_clock(offset: float) -> Finding:
    side = "ahead of" if offset > 0 else "behind"
    return Finding(
        "clock",
        f"the storage's clock is {abs(offset):.1f} s {side} this machine's",
        "the storage's decides, so nothing goes wrong; but set both by NTP, or times in logs will not agree",
        is_problem=False,
    )


class _Report:
    """Prints what is found, at once."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._out: Console = console()
        self._findings: list[Finding] = []

    @property
    def problems(self) -> int:
        return sum(finding.is_problem for finding in self._findings)

    def fact(self, name: str, value: object) -> None:
        if self._as_json:
            emit({"fact": name, "value": value})
        else:
            shown = "–" if value is None else f"{value:,}" if isinstance(value, int) else plain(str(value))
            self._print(Text(f"{name:<22}{shown}"))

    def finding(self, finding: Finding) -> None:
        self._findings.append(finding)
        if self._as_json:
            kind = "problem" if finding.is_problem else "notice"
            emit({"finding": finding.name, "kind": kind, "text": finding.text, "advice": finding.advice})

    def close(self) -> None:
        if self._as_json:
            return
        for finding in sorted(self._findings, key=lambda each: not each.is_problem):
            kind, style = ("problem", "bold red") if finding.is_problem else ("notice", "yellow")
            self._print(Text.assemble("\n", (f"{kind}: ", style), plain(finding.text)))
            self._print(Text(f"  {plain(finding.advice)}"))
        if not self._findings:
            self._print(Text("\nnothing is wrong", style="green"))

    def _print(self, text: Text) -> None:
        self._out.print(text, soft_wrap=True)
